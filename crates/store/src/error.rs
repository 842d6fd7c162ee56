//! The errors of a store, and the notices that it returns when it is opened.
//!
//! Invariants: an error's text is a lower-case fragment that can follow a colon. If a person can do something
//! about it, it says what.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::engine::Owner;
use crate::loss::StoreDamage;

/// Why a store operation failed. If a whole group fails, each of its callers gets a clone.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process, or another store in this one, has the directory open.
    #[error("the store in {} is in use by {}", dir.display(), owner_and_advice(*.pid))]
    InUse {
        /// The store's directory.
        dir: PathBuf,
        /// The id of the process that has it open, if the lock file names it.
        pid: Option<u32>,
    },
    /// No space is left, or a quota is used up. The store can be read, and appends work again once there is
    /// space.
    #[error("no space is left to {action} {}; free some space and try again", path.display())]
    Full {
        /// The operation, as a verb: "write", "create" and so on.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
    },
    /// The process has no permission to do this to the file.
    #[error("not permitted to {action} {}; check who owns it, its mode, and whether the file system is read-only", path.display())]
    NotPermitted {
        /// The operation, as a verb: "write", "create" and so on.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
    },
    /// The directory was moved, removed or replaced while the store was open. Nothing more is written:
    /// whatever is there now belongs to another store.
    #[error("the store in {} was moved, removed or replaced while it was in use; start again", dir.display())]
    Replaced {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The file system failed in another way.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb: "write", "create" and so on.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The batch does not continue the session: something else was appended, or an entry was left out.
    #[error("the next entry of session {session} is {expected}, not {got}; load the session again and retry")]
    Sequence {
        /// The session.
        session: String,
        /// The id that the batch's first entry must have.
        expected: EntryId,
        /// The actual id of the batch's first entry.
        got: EntryId,
    },
    /// The batch's head has the wrong number of entries.
    #[error("the head of session {session} counts {got} entries, but the log will have {expected}")]
    Head {
        /// The session.
        session: String,
        /// The number of entries that the session will have.
        expected: u64,
        /// The number of entries in the head.
        got: u64,
    },
    /// The string is not a valid session id.
    #[error("{session:?} cannot be a session's id: {reason}")]
    SessionId {
        /// The string, truncated to 80 characters.
        session: String,
        /// The reason.
        reason: &'static str,
    },
    /// A batch, key or value is larger than the store accepts.
    #[error(
        "too large to be stored at once: {size} {what}, and at most {limit} fit; shorten it, or split it"
    )]
    TooLarge {
        /// The unit of the two numbers.
        what: &'static str,
        /// The actual size.
        size: u64,
        /// The maximum size.
        limit: u64,
    },
    /// There is no such session.
    #[error("there is no session {session}")]
    NotFound {
        /// The session.
        session: String,
    },
    /// Entries of the session were lost. Nothing may be appended until a person accepts that
    /// ([`crate::Store::accept_loss`]).
    #[error(
        "session {session} lost its entries from {from} on; nothing is appended to it until the loss is accepted"
    )]
    Quarantined {
        /// The session.
        session: String,
        /// The first entry that was lost.
        from: EntryId,
    },
    /// An entry cannot be read, because its bytes are damaged or gone. [`crate::Store::salvage`] reads the others.
    #[error("entry {entry} of session {session} is damaged or lost; the entries around it can be salvaged")]
    Damaged {
        /// The session.
        session: String,
        /// The first entry that cannot be read.
        entry: EntryId,
    },
    /// A file was written by a newer version.
    #[error(
        "{what} has format version {found}, and this version of Greenroom reads up to {supported}; update Greenroom"
    )]
    Version {
        /// The file or value: a record, a head, a journal segment or the manifest.
        what: &'static str,
        /// The version found.
        found: u32,
        /// The newest supported version.
        supported: u32,
    },
    /// A record's bytes cannot be decoded, although their checksum is valid.
    #[error("a record cannot be decoded: {detail}")]
    Record {
        /// The reason.
        detail: String,
    },
    /// The index failed. The journal is not affected.
    #[error("the index failed ({detail}); reopen the store to rebuild the index from the journal")]
    Index {
        /// The failure, in words.
        detail: String,
    },
    /// The store found that its own data is inconsistent, and refused the operation. This is a bug, or
    /// something else changed the store's files. Acknowledged data is not affected, and the next append
    /// begins a new segment.
    #[error("the store is inconsistent: {invariant} does not hold; the operation was refused")]
    Invariant {
        /// The condition that should hold.
        invariant: &'static str,
    },
    /// Entries of unknown sessions are lost, and nobody has accepted that: see [`crate::Store::accept_unknown_loss`].
    #[error(
        "segment {segment} of the journal has a loss that may concern any session, so it is unknown which sessions are \
         old; accept the loss first: `greenroom store accept-loss --segment {segment}`"
    )]
    UnknownLoss {
        /// The number of the damaged segment.
        segment: u64,
    },
    /// The store is damaged, so it was not backed up. A backup that was there before is unchanged.
    #[error(
        "the store is damaged ({damage}), so it was not backed up, and an earlier backup is unchanged; --damaged backs it \
         up all the same"
    )]
    DamagedStore {
        /// What is damaged.
        damage: Box<StoreDamage>,
    },
    /// A directory cannot be used for this: as the target of a backup, as a backup, or as the target of a restored one.
    #[error("{} {reason}", dir.display())]
    Backup {
        /// The directory.
        dir: PathBuf,
        /// Why, and what to do, as the rest of a sentence whose subject is the directory.
        reason: String,
    },
    /// This node no longer owns the session: its lease ran out, or another node took the session over.
    #[error("this node no longer owns session {session}, so its last write was rejected")]
    Fenced {
        /// The session.
        session: String,
    },
    /// Another node runs the session.
    #[error("session {session} runs on node {}; send the request there", owner.node)]
    Elsewhere {
        /// The session.
        session: String,
        /// Its owner.
        owner: Owner,
    },
    /// This node could not renew its lease in time. Everything that it ran may belong to other nodes.
    #[error("this node has lost its lease; wait until it has renewed the lease")]
    LeaseLost,
    /// The storage cannot be reached, or refuses work for now. Nothing was written.
    #[error("the storage is not available: {detail}; try again in a moment")]
    Unavailable {
        /// What happened.
        detail: String,
    },
    /// The connection failed while a batch was written. The same batch with the same key shows whether it was.
    #[error(
        "the storage did not answer ({detail}), and the write may have succeeded; repeat it with the same key"
    )]
    InDoubt {
        /// What happened.
        detail: String,
    },
    /// The storage contradicts what it acknowledged before: it was set back to an older state.
    #[error(
        "session {session} has lost acknowledged entries from {from} on: the storage was reset to an older state"
    )]
    SetBack {
        /// The session.
        session: String,
        /// The first entry that is gone.
        from: EntryId,
    },
    /// The storage cannot be used as it is: its settings, its version, or another node of the same name. Nothing was
    /// written.
    #[error("the storage cannot be used: {detail}")]
    Unsuitable {
        /// Why, and what to do.
        detail: String,
    },
    /// A backup was cancelled. Nothing of it remains.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

fn owner(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => "this process, which has it open already".to_owned(),
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    }
}

/// Names the process that has the store open, and gives advice.
fn owner_and_advice(pid: Option<u32>) -> String {
    let advice = match pid {
        Some(pid) if pid == std::process::id() => {
            "close it there first, or share it; a runtime that was dropped releases it in a moment, once its session \
             handles, runs and consumers are dropped, too"
        }
        Some(_) | None => "end it first",
    };
    format!("{}; {advice}", owner(pid))
}

impl StoreError {
    /// Whether the same call may succeed later: once there is space, the other process has exited, the device
    /// works again, or a new segment was begun.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InUse { .. }
            | Self::Full { .. }
            | Self::Io { .. }
            | Self::Invariant { .. }
            | Self::Fenced { .. }
            | Self::Elsewhere { .. }
            | Self::LeaseLost
            | Self::Unavailable { .. }
            | Self::InDoubt { .. } => true,
            Self::NotPermitted { .. }
            | Self::Replaced { .. }
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
            | Self::UnknownLoss { .. }
            | Self::Backup { .. }
            | Self::DamagedStore { .. }
            | Self::SetBack { .. }
            | Self::Unsuitable { .. }
            | Self::Cancelled
            | Self::Closed => false,
        }
    }

    /// Whether a file does not exist.
    #[cfg(feature = "disk")]
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Creates the error that a directory cannot be used.
    #[cfg(feature = "disk")]
    pub(crate) fn unusable(dir: &Path, reason: impl Into<String>) -> Self {
        Self::Backup { dir: dir.to_owned(), reason: reason.into() }
    }

    /// Returns [`Self::Invariant`] unless the condition holds. `invariant` is the condition in words.
    #[cfg(feature = "disk")]
    pub(crate) fn ensure(holds: bool, invariant: &'static str) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::Invariant { invariant }) }
    }

    /// Creates the error for a failed operation on a file. `action` is a verb that fits after "cannot".
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

/// Information for a person about a store that was opened: what was lost, and what was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Acknowledged entries at the end of the session are gone. The session is quarantined: it can be read up to
    /// `from`, and nothing can be appended until [`crate::Store::accept_loss`].
    TailLost {
        /// The session.
        session: String,
        /// The first lost entry.
        from: EntryId,
    },
    /// A part of the journal is damaged or gone. Everything else can be read.
    Damaged {
        /// The segment's number.
        segment: u64,
        /// The offset in the segment where the damage begins, in bytes.
        offset: u64,
        /// The sessions that are known to have lost entries with it, ordered by id. They are quarantined. Those that lost
        /// their newest entries have a [`Notice::TailLost`] too.
        sessions: Vec<String>,
        /// Whether other sessions may have lost entries too, because there is no record of what the damaged
        /// part held.
        others_possible: bool,
    },
    /// The journal ended with a write that never finished, and that write was cut off. As far as is known,
    /// nothing acknowledged was lost.
    TailCut {
        /// The segment's number.
        segment: u64,
        /// The offset in the segment at which it was cut, in bytes.
        offset: u64,
        /// How many bytes were cut off.
        bytes: u64,
    },
    /// The index was unusable and was rebuilt from the journal.
    IndexRebuilt {
        /// Why the old index was unusable.
        reason: String,
    },
    /// The index can be neither opened nor rebuilt. It is kept in memory until the store is opened again.
    IndexInMemory {
        /// Why it cannot be opened, and why it cannot be rebuilt.
        reason: String,
    },
    /// The store is opened read-only: nothing in its directory is changed.
    ReadOnly {
        /// The store's directory.
        dir: PathBuf,
    },
    /// The store is opened read-only while another one writes to it: this is a snapshot as of opening.
    InUse {
        /// The process that writes, if its lock file names it.
        pid: Option<u32>,
    },
    /// The list of segments was unusable and was rebuilt from the existing segments.
    ManifestRebuilt {
        /// Why the old list was unusable.
        reason: String,
    },
    /// A file among the segments does not belong to this store: it was renamed and is not read.
    SetAside {
        /// The file's new name.
        path: PathBuf,
    },
}

impl Notice {
    /// Whether entries are lost, so that a person has to decide.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::TailLost { .. } => true,
            Self::Damaged { sessions, others_possible, .. } => !sessions.is_empty() || *others_possible,
            Self::TailCut { .. }
            | Self::IndexRebuilt { .. }
            | Self::IndexInMemory { .. }
            | Self::ReadOnly { .. }
            | Self::InUse { .. }
            | Self::ManifestRebuilt { .. }
            | Self::SetAside { .. } => false,
        }
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TailLost { session, from } => {
                write!(f, "session {session} lost its entries from {from} on and is quarantined")
            }
            Self::Damaged { segment, offset, sessions, others_possible } => {
                write!(f, "segment {segment} of the journal is damaged at byte {offset}; ")?;
                let lost = "sessions that lost entries:";
                match (sessions.is_empty(), others_possible) {
                    (true, true) => write!(f, "{lost} not known"),
                    (true, false) => {
                        f.write_str("no entry was lost, and nothing more is written to the segment")
                    }
                    (false, true) => write!(f, "{lost} {}, perhaps others", sessions.join(", ")),
                    (false, false) => write!(f, "{lost} {}", sessions.join(", ")),
                }
            }
            Self::TailCut { segment, offset, bytes } => {
                write!(
                    f,
                    "an unfinished write of {bytes} bytes was cut off segment {segment} at byte {offset}"
                )
            }
            Self::IndexRebuilt { reason } => {
                write!(f, "the index was rebuilt from the journal: {reason}")
            }
            Self::ReadOnly { dir } => {
                write!(f, "the store in {} is opened read-only", dir.display())
            }
            Self::InUse { pid } => {
                write!(f, "the store is in use by {}; this is a snapshot as of opening", owner(*pid))
            }
            Self::IndexInMemory { reason } => write!(f, "the index is kept in memory: {reason}"),
            Self::ManifestRebuilt { reason } => write!(f, "the list of segments was rebuilt: {reason}"),
            Self::SetAside { path } => {
                write!(f, "a foreign segment was set aside; it is now {}", path.display())
            }
        }
    }
}
