//! Everything that can go wrong with a store, and what it has to say when it is opened.
//!
//! Invariants: an error's text is a lower-case fragment that fits after "failed to …", and where a person can do
//! something, it says what.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_kernel::EntryId;

/// Why the store could not do what it was asked to. Cloned for every append of a group that failed together.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process, or another store in this one, has the directory open.
    #[error("the store in {} is in use by {}; end it, or use another directory", dir.display(), owner(*.pid))]
    InUse {
        /// The store's directory.
        dir: PathBuf,
        /// The process that has it open, where its lock file says so.
        pid: Option<u32>,
    },
    /// No space is left (or a quota is used up). The store can be read; appends work again once there is room.
    #[error("no space is left to {action} {}; free some space and try again", path.display())]
    Full {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
    },
    /// The user may not do this to the file.
    #[error("not permitted to {action} {}; check who owns it and its mode", path.display())]
    NotPermitted {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
    },
    /// The file system failed in another way.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The batch does not continue the session: someone else appended, or an entry was left out.
    #[error("session {session} goes on with entry {expected}, not {got}; load it again and retry")]
    Sequence {
        /// The session.
        session: String,
        /// The entry that comes next.
        expected: EntryId,
        /// The first entry that does not fit.
        got: EntryId,
    },
    /// The batch's head does not count its entries.
    #[error("the head of session {session} counts {got} entries where there will be {expected}")]
    Head {
        /// The session.
        session: String,
        /// How many there will be.
        expected: u64,
        /// What the head says.
        got: u64,
    },
    /// The session's id cannot be one.
    #[error("{session:?} cannot be a session's id: 1 to 64 of A-Z a-z 0-9 . _ - and not a dot in front")]
    SessionId {
        /// What was given.
        session: String,
    },
    /// The batch, or a key or value, is larger than the store takes.
    #[error("{what} has {size}, and the store takes at most {limit} at once; split it")]
    TooLarge {
        /// What is too large, with its unit.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// There is no such session.
    #[error("there is no session {session}")]
    NotFound {
        /// The session.
        session: String,
    },
    /// Entries of the session were lost, and nothing may be appended until a person has accepted that.
    #[error("session {session} lost entries from {from} on and takes no more until the loss is accepted")]
    Quarantined {
        /// The session.
        session: String,
        /// The first entry that was lost.
        from: EntryId,
    },
    /// An entry cannot be read: its bytes are damaged or gone. The others can ([`crate::Store::salvage`]).
    #[error("entry {entry} of session {session} is damaged or lost; the entries around it can be salvaged")]
    Damaged {
        /// The session.
        session: String,
        /// The first entry that cannot be read.
        entry: EntryId,
    },
    /// A file was written by a newer version.
    #[error("{what} has format version {found}, and this version reads up to {supported}; use a newer one")]
    Version {
        /// What was read.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The newest version that can be read.
        supported: u32,
    },
    /// A record's bytes do not decode though their checksum is right.
    #[error("a record does not decode: {detail}")]
    Record {
        /// What is wrong with it.
        detail: String,
    },
    /// The index failed; the journal is whole.
    #[error("the index failed ({detail}); open the store again to build it anew from the journal")]
    Index {
        /// What failed.
        detail: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl StoreError {
    /// Whether the same call may succeed later, unchanged: once there is room, the other process has ended, or the
    /// device works again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InUse { .. } | Self::Full { .. } | Self::Io { .. } => true,
            Self::NotPermitted { .. }
            | Self::Sequence { .. }
            | Self::Head { .. }
            | Self::SessionId { .. }
            | Self::TooLarge { .. }
            | Self::NotFound { .. }
            | Self::Quarantined { .. }
            | Self::Damaged { .. }
            | Self::Version { .. }
            | Self::Record { .. }
            | Self::Index { .. }
            | Self::Closed => false,
        }
    }

    /// Sorts an I/O error into its class.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let kind = source.kind();
        if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            Self::Full { action, path }
        } else if matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) {
            Self::NotPermitted { action, path }
        } else {
            Self::Io { action, path, source: Arc::new(source) }
        }
    }
}

/// What a person should know about a store that was opened: what was lost, and what was mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Entries at the end of the session that had been acknowledged are gone. The session is quarantined: it can be
    /// read up to `from`, and takes no more until [`crate::Store::accept_loss`].
    TailLost {
        /// The session.
        session: String,
        /// The first entry that was lost.
        from: EntryId,
    },
    /// A part of the journal is damaged or gone; everything else can be read.
    Damaged {
        /// The segment's number.
        segment: u64,
        /// Where in it the damage begins, in bytes.
        offset: u64,
        /// The sessions known to have lost entries. They are quarantined.
        sessions: Vec<String>,
        /// Whether there may be others, because nothing tells what stood there.
        others_possible: bool,
    },
    /// The journal's end was a write that never finished, and was cut off. Nothing acknowledged is known to be lost.
    TailCut {
        /// The segment's number.
        segment: u64,
        /// Where it was cut, in bytes.
        offset: u64,
        /// How many bytes were cut off.
        bytes: u64,
    },
    /// The index was unusable and was built anew from the journal.
    IndexRebuilt {
        /// What was wrong with it.
        reason: String,
    },
    /// The index can neither be opened nor built; it is kept in memory until the store is opened again.
    IndexInMemory {
        /// Why.
        reason: String,
    },
    /// The list of segments was unusable and was made anew from the segments that were found.
    ManifestRebuilt {
        /// What was wrong with it.
        reason: String,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TailLost { session, from } => {
                write!(f, "session {session} lost its entries from {from} on and is quarantined")
            }
            Self::Damaged { segment, offset, sessions, others_possible } => {
                write!(
                    f,
                    "segment {segment} of the journal is damaged at byte {offset}; sessions that lost entries: "
                )?;
                match (sessions.is_empty(), others_possible) {
                    (true, true) => f.write_str("not known"),
                    (true, false) => f.write_str("none"),
                    (false, true) => write!(f, "{}, perhaps others", sessions.join(", ")),
                    (false, false) => f.write_str(&sessions.join(", ")),
                }
            }
            Self::TailCut { segment, offset, bytes } => {
                write!(
                    f,
                    "an unfinished write of {bytes} bytes was cut off segment {segment} at byte {offset}"
                )
            }
            Self::IndexRebuilt { reason } => write!(f, "the index was built anew from the journal: {reason}"),
            Self::IndexInMemory { reason } => write!(f, "the index is kept in memory: {reason}"),
            Self::ManifestRebuilt { reason } => write!(f, "the list of segments was made anew: {reason}"),
        }
    }
}
