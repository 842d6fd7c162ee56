//! Append-only session logs.
//!
//! The key decision is that **the journal is the truth and sled is the index.** An append is written to the
//! journal ([segment files of checksummed frames](StoreOptions::segment_bytes)), synced together with all
//! other waiting appends, and only then acknowledged. sled records where each entry lies, so that a session
//! opens without reading its whole history. An append never waits for sled, and the index is rebuilt from the
//! journal whenever it is lost, damaged or inconsistent. A list of the newest segment's frames, beside it,
//! reveals data that a disk cut off.
//!
//! Invariants:
//!
//! - An acknowledged append survives the end of the process and a power cut, and the order of appends is
//!   kept. A batch is there entirely or not at all.
//! - If a disk nevertheless loses data, a [`Notice`] at the start or a typed error reports it, and the
//!   session is quarantined until [`Store::accept_loss`]. Everything else can be read.
//! - A session's entries have dense ids from 0 and never change. An idempotency key writes one batch.
//! - Only one store at a time has a directory open for writing.
//!
//! This crate does not know, and will not: ractor, the network, clocks, the meaning of a head's fields.
//!
//! Reading order: `record` (what is stored), `journal` (its layout), `writer` (how it is written), `index`
//! and `indexer` (the content of sled), `reader`, `recovery` (how a store is opened), `reclaim`, `backup`,
//! `memory`, `read_only` and `overlay` (how a store is opened read-only). All journal files are accessed through
//! [`files`], and `faults` (with the feature `testing`) makes those fail in tests. Beside them: `engine` (the interface
//! to sessions), `disk` (a store in a directory), `parts` and `bytes` (frames), `loss`, `page`, `heads`, `copy`,
//! `lock`, `identity` (which store a backup is of), `error`, and `cluster` (nodes in memory).

#[cfg(any(test, feature = "testing"))]
pub mod faults;
#[cfg_attr(not(feature = "disk"), expect(dead_code, reason = "a store in memory writes to at most one file"))]
pub mod files;

#[cfg(feature = "disk")]
mod backup;
#[cfg(feature = "disk")]
mod bytes;
#[cfg(feature = "cluster")]
pub mod cluster;
mod copy;
#[cfg(feature = "disk")]
mod disk;
mod engine;
mod error;
mod heads;
#[cfg(feature = "disk")]
mod identity;
#[cfg(feature = "disk")]
mod index;
#[cfg(feature = "disk")]
mod indexer;
#[cfg(feature = "disk")]
mod journal;
#[cfg(feature = "disk")]
mod lock;
mod loss;
mod memory;
#[cfg(feature = "disk")]
mod overlay;
mod page;
#[cfg(feature = "disk")]
mod parts;
#[cfg(feature = "disk")]
mod read_only;
#[cfg(feature = "disk")]
mod reader;
#[cfg(feature = "disk")]
mod reclaim;
#[cfg(feature = "codec")]
#[cfg_attr(not(feature = "disk"), expect(dead_code, reason = "only the journal has whole records"))]
mod record;
#[cfg(feature = "disk")]
mod recovery;
#[cfg(feature = "disk")]
mod writer;

#[cfg(all(test, feature = "disk"))]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use greenroom_kernel::Head;
use greenroom_kernel::{Entry, EntryId, session_id};
use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "disk")]
pub use backup::{BackupInfo, Progress, VerifiedBackup};
pub use copy::{Copied, copy};
pub use engine::{Answer, Claim, Engine, Lease, Member, Opened, Owner, Placement};
pub use error::{Notice, StoreError};
pub use heads::Heads;
pub use loss::{Loss, Salvaged, StoreDamage};
pub use page::LogPage;
#[cfg(feature = "codec")]
pub use record::{decode_entry, decode_head, encode_entry, encode_head};

#[cfg(feature = "disk")]
use disk::Disk;
use files::{Files, RealFiles};
use memory::Memory;
#[cfg(feature = "disk")]
use writer::Command;

/// The maximum number of encoded bytes in a part of a batch, and so in an entry (32 MiB).
pub const BATCH_BYTES_MAX: u64 = 32 << 20;
/// The maximum number of bytes in an idempotency key, and in the name of a fact.
pub const KEY_BYTES_MAX: u64 = 512;
/// The maximum number of bytes in a fact (1 MiB).
pub const FACT_BYTES_MAX: u64 = 1 << 20;

/// The location and settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The store's directory. It is created if it does not exist, with access for its owner only.
    pub dir: PathBuf,
    /// The size at which a journal segment is sealed, in bytes. The default is 64 MiB.
    pub segment_bytes: u64,
    /// The size of the index's cache, in bytes. In memory it takes two to three times as much. The default is
    /// 4 MiB: the rest is in the system's file cache.
    pub cache_bytes: u64,
    /// The size of a reserved file that makes it possible to delete sessions on a full disk, in bytes; 0 for
    /// none. The default is 1 MiB.
    pub reserve_bytes: u64,
    /// Whether the store is opened read-only: nothing in its directory is created or changed, and operations
    /// that would change a session fail with [`StoreError::NotPermitted`]. Other processes may read it at the
    /// same time. If another store has the directory open for writing, this is a snapshot as of opening
    /// ([`Notice::InUse`]); otherwise writers are locked out. The whole journal is read at the start, and the
    /// index is kept in memory. The default is false.
    pub is_read_only: bool,
    /// The implementation of file access. The default is [`RealFiles`].
    pub files: Arc<dyn Files>,
}

impl StoreOptions {
    /// Returns the default options for a store in this directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            segment_bytes: 64 << 20,
            cache_bytes: 4 << 20,
            reserve_bytes: 1 << 20,
            is_read_only: false,
            files: Arc::new(RealFiles),
        }
    }
}

/// Entries that are appended together, and the head after them.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The entries. Their ids are dense and continue those of the session. With no entries, only the head changes.
    pub entries: Vec<Arc<Entry>>,
    /// The head after the entries. `head.entries` must count them.
    pub head: Arc<Head>,
    /// The caller's idempotency key. A second batch with the same key is not written.
    pub key: Option<String>,
}

impl Batch {
    /// Checks the batch without reading the session: the session's id, the key's length, that the ids are dense and
    /// that the head counts the entries. Returns the batch's first id, and the batch as it is stored: without what only
    /// a store sets in a head.
    ///
    /// # Errors
    /// [`StoreError::SessionId`], [`StoreError::TooLarge`], [`StoreError::Sequence`], [`StoreError::Head`].
    pub fn checked(self, session: &str) -> Result<(EntryId, Self), StoreError> {
        let first = check_batch(session, &self)?;
        Ok((first, Self { head: without_loss(self.head), ..self }))
    }
}

/// The result of an append. In either case the batch is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The batch was written.
    Written {
        /// The batch's first entry; the same as `next` if the batch has none.
        first: EntryId,
        /// The id that the session's next entry will have.
        next: EntryId,
    },
    /// A batch with the same key was written before, and this one was not.
    Duplicate {
        /// The first entry of the batch that was written.
        first: EntryId,
    },
}

/// How far an append has come without waiting.
enum Begun {
    /// It is over.
    Over(Result<Appended, StoreError>),
    /// The writer has it, and will answer.
    #[cfg(feature = "disk")]
    Sent(disk::Answered),
    /// Nothing was done: the batch takes several frames, the writer's queue is full, or the store is read-only. Holds the
    /// batch's first id.
    #[cfg(feature = "disk")]
    NotSent(EntryId, Batch),
}

/// A store of sessions. All clones are the same store. Dropping the last one closes it, and waits for the disk.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
enum Inner {
    #[cfg(feature = "disk")]
    Disk(Disk),
    Memory(Mutex<Memory>),
}

impl Store {
    /// Opens the store in a directory. The notices are for a person to read.
    ///
    /// This blocks on the disk: it reads the active segment (at most [`StoreOptions::segment_bytes`]), and the whole
    /// journal only if the index is lost.
    ///
    /// # Errors
    /// [`StoreError::InUse`] at once if another store has the directory open (except with
    /// [`StoreOptions::is_read_only`]); [`StoreError::Version`] if a newer version has written to the store;
    /// [`StoreError::Full`], [`StoreError::NotPermitted`] (which [`StoreOptions::is_read_only`] may avoid) or
    /// [`StoreError::Io`].
    #[cfg(feature = "disk")]
    pub fn open(options: &StoreOptions) -> Result<(Self, Vec<Notice>), StoreError> {
        let (disk, notices) = Disk::open(options)?;
        Ok((Self { inner: Arc::new(Inner::Disk(disk)) }, notices))
    }

    /// Creates a store that keeps everything in memory and uses no thread. Appends complete at once.
    pub fn memory() -> Self {
        Self { inner: Arc::new(Inner::Memory(Mutex::default())) }
    }

    /// Like [`Store::memory`], but each append is also written to this file, and fails if that fails. This
    /// simulates failing disks.
    pub fn memory_on(disk: Arc<dyn files::File>) -> Self {
        Self { inner: Arc::new(Inner::Memory(Mutex::new(Memory::on(disk)))) }
    }

    /// Returns an open store in memory with the contents of this one, which may be closed: what a process
    /// finds that starts again. Returns `None` if this one is on a disk, where its directory is opened again.
    pub fn reopened(&self) -> Option<Self> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                let memory = memory.lock().reopened();
                Some(Self { inner: Arc::new(Inner::Memory(Mutex::new(memory))) })
            }
            #[cfg(feature = "disk")]
            Inner::Disk(_) => None,
        }
    }

    /// Whether the store keeps everything in memory. If so, none of its methods blocks on a disk.
    pub fn is_memory(&self) -> bool {
        matches!(self.inner.as_ref(), Inner::Memory(_))
    }

    /// Appends a batch of any size atomically. When this returns, the batch is durable, and every reader sees it. A batch
    /// that does not fit into one record of the journal is written in parts, and no reader sees a part before the last one
    /// is durable; if the process ends before that, nothing of the batch remains. A concurrent append to the session makes
    /// this one fail.
    ///
    /// If the future is dropped, the batch may still be written. With a key, the same call can be repeated safely.
    ///
    /// # Errors
    /// [`StoreError::Sequence`], [`StoreError::Head`], [`StoreError::SessionId`] and [`StoreError::TooLarge`], for an
    /// entry, a head or a key, for an invalid batch; [`StoreError::Quarantined`]; [`StoreError::Full`], [`StoreError::Io`]
    /// and [`StoreError::Invariant`] if it could not be written, in which case nothing of it remains.
    pub async fn append(&self, session: &str, batch: Batch) -> Result<Appended, StoreError> {
        let (first, batch) = batch.checked(session)?;
        self.append_checked(session, first, batch).await
    }

    async fn append_checked(
        &self,
        session: &str,
        first: EntryId,
        batch: Batch,
    ) -> Result<Appended, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory)?.append(session, first, batch),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.append(session, first, batch).await,
        }
    }

    /// Appends a batch as far as that is possible without waiting.
    fn begin_append(&self, session: &str, batch: Batch) -> Begun {
        let (first, batch) = match batch.checked(session) {
            Ok(checked) => checked,
            Err(error) => return Begun::Over(Err(error)),
        };
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                Begun::Over(open_memory(memory).and_then(|mut memory| memory.append(session, first, batch)))
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.begin_append(session, first, batch),
        }
    }

    /// Returns the session's head; `None` if there is no such session. This blocks on the disk, briefly.
    ///
    /// # Errors
    /// [`StoreError::SessionId`], [`StoreError::Index`], [`StoreError::Closed`].
    pub fn head(&self, session: &str) -> Result<Option<Head>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.head(session)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.head(session),
        }
    }

    /// Returns the first entry of the batch that was appended with this idempotency key; `None` if there is
    /// none. This blocks on the disk, briefly.
    ///
    /// # Errors
    /// [`StoreError::SessionId`], [`StoreError::Index`], [`StoreError::Closed`].
    pub fn used_key(&self, session: &str, key: &str) -> Result<Option<EntryId>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.used_key(session, key)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.used_key(session, key),
        }
    }

    /// Returns all idempotency keys of the session, ordered as bytes, each with the first entry of its batch; none if
    /// there is no such session. This blocks on the disk, briefly.
    ///
    /// # Errors
    /// [`StoreError::SessionId`], [`StoreError::Index`], [`StoreError::Closed`].
    pub fn used_keys(&self, session: &str) -> Result<Vec<(String, EntryId)>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.used_keys(session)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.used_keys(session),
        }
    }

    /// Returns the session's entries from `from` on. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Damaged`] if one of the entries is lost. [`Store::salvage`] returns the
    /// others.
    pub fn load(&self, session: &str, from: EntryId) -> Result<Vec<Entry>, StoreError> {
        self.load_until(session, from, EntryId(u64::MAX))
    }

    /// Like [`Self::load`], with the entries before `until`.
    fn load_until(&self, session: &str, from: EntryId, until: EntryId) -> Result<Vec<Entry>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory)?.load(session, from, until),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.load(session, from, until),
        }
    }

    /// Returns the session's entries with these ids, in the same order. This blocks on the disk.
    ///
    /// # Errors
    /// Those of [`Store::load`]. An entry that the session does not have is [`StoreError::Damaged`] too.
    pub fn get(&self, session: &str, entries: &[EntryId]) -> Result<Vec<Entry>, StoreError> {
        let mut found = Vec::with_capacity(entries.len());
        // Neighbours are often in one frame, which is read once.
        for run in entries.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
            let [first, ..] = run else { continue };
            let until = EntryId(first.0.saturating_add(run.len() as u64));
            let loaded = self.load_until(session, *first, until)?;
            if let Some(entry) = run.get(loaded.len()) {
                return Err(StoreError::Damaged { session: session.to_owned(), entry: *entry });
            }
            found.extend(loaded);
        }
        Ok(found)
    }

    /// Returns all entries of the session that can be read, and the ids of those that cannot. This blocks on
    /// the disk.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Io`]. Damage is not an error here.
    pub fn salvage(&self, session: &str) -> Result<Salvaged, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                let entries = open_memory(memory)?.load(session, EntryId(0), EntryId(u64::MAX))?;
                Ok(Salvaged { entries, lost: Vec::new() })
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.salvage(session),
        }
    }

    /// Returns the sessions after `after` and their heads, ordered by id: at most `limit`; fewer mean that no
    /// more follow. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, Head)>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.page(after, limit)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.page(after, limit),
        }
    }

    /// Returns all sessions and their heads, ordered by id. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn list(&self) -> Result<Vec<(String, Head)>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.list()),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.list(),
        }
    }

    /// Deletes a session durably. The id can be used again. A segment's space is reclaimed in the background
    /// once more than half of it is deleted; until then, the session's bytes stay in the file.
    /// [`Store::reclaim`] removes them at once.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    pub async fn delete(&self, session: &str) -> Result<(), StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory)?.delete(session),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => {
                disk.ask(|reply| Command::Delete { session: session.to_owned(), reply }).await
            }
        }
    }

    /// Lets a quarantined session continue without its lost entries, and returns the head that it continues
    /// with. That is the newest head if all entries that the context needs can be read. Otherwise it is the
    /// head before the loss, and everything after the loss is discarded: call [`Store::salvage`] first to
    /// keep it. A session that lost nothing is unchanged.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    pub async fn accept_loss(&self, session: &str) -> Result<Head, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                let head = open_memory(memory)?.head(session);
                head.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => {
                disk.ask(|reply| Command::AcceptLoss { session: session.to_owned(), reply }).await
            }
        }
    }

    /// Reads every entry of every session, and returns what each session has lost. Sessions that lost nothing are not
    /// listed. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Io`], [`StoreError::Closed`]. Damage is not an error here.
    pub fn check(&self) -> Result<Vec<Loss>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory).map(|_| Vec::new()),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.check(),
        }
    }

    /// Like [`Store::check`] for one session; `None` if it has lost nothing. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and those of [`Store::check`].
    pub fn check_session(&self, session: &str) -> Result<Option<Loss>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                let head = open_memory(memory)?.head(session);
                head.map(|_| None).ok_or_else(|| StoreError::NotFound { session: session.to_owned() })
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.check_session(session),
        }
    }

    /// Returns the losses that cannot be attributed to sessions and that nobody has accepted yet: the numbers of the
    /// damaged segments. While there is one, any session may lack its newest entries, and whole sessions may be
    /// missing.
    #[cfg(feature = "disk")]
    pub fn unknown_losses(&self) -> Vec<u64> {
        match self.inner.as_ref() {
            Inner::Memory(_) => Vec::new(),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.unknown_losses(),
        }
    }

    /// Returns the sessions that are quarantined, ordered by id: they lost entries, and nobody has accepted that. This
    /// reads nothing from the disk.
    #[cfg(feature = "disk")]
    pub fn quarantined(&self) -> Vec<String> {
        match self.inner.as_ref() {
            Inner::Memory(_) => Vec::new(),
            Inner::Disk(disk) => disk.quarantined(),
        }
    }

    /// Accepts that the losses with a segment are unknown: they are not reported at the next openings.
    /// Returns whether there was such a loss.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    #[cfg(feature = "disk")]
    pub async fn accept_unknown_loss(&self, segment: u64) -> Result<bool, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory).map(|_| false),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.ask(|reply| Command::AcceptUnknown { segment, reply }).await,
        }
    }

    /// Reclaims the space of sessions that were deleted since the store was opened: when this returns, their
    /// bytes are in no segment any more, except for a damaged one. Returns the number of bytes freed.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Io`]. Nothing is lost then, and the deleted data is erased
    /// later: after further writes, and after a full disk when the store is opened next.
    pub async fn reclaim(&self) -> Result<u64, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory).map(|_| 0),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.ask(|reply| Command::Reclaim { reply }).await,
        }
    }

    /// Returns a fact, such as a model's true window; `None` if it is not known. This blocks on the
    /// disk, briefly.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn fact_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.fact_get(key)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.fact_get(key),
        }
    }

    /// Returns the names of all facts that begin with `prefix`, in order. This blocks on the disk,
    /// briefly.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn fact_keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.fact_keys(prefix)),
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.fact_keys(prefix),
        }
    }

    /// Stores a fact durably. It replaces the old value of the same key; an empty value removes it. The key of
    /// a removed fact stays in the files.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`]; [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    pub async fn fact_put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_fact(key, value)?;
        let (key, value) = (key.to_owned(), value.to_vec());
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                open_memory(memory)?.fact_put(key, value);
                Ok(())
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.ask(|reply| Command::LearnedPut { key, value, reply }).await,
        }
    }

    /// Writes all pending commands, closes the store and releases its directory. All clones are closed too.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if it was closed before.
    pub async fn close(self) -> Result<(), StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                open_memory(memory)?.is_closed = true;
                Ok(())
            }
            #[cfg(feature = "disk")]
            Inner::Disk(disk) => disk.close().await,
        }
    }
}

fn open_memory(memory: &Mutex<Memory>) -> Result<MutexGuard<'_, Memory>, StoreError> {
    let memory = memory.lock();
    if memory.is_closed { Err(StoreError::Closed) } else { Ok(memory) }
}

/// Returns the head without the field that only the store sets: the first lost entry.
fn without_loss(mut head: Arc<Head>) -> Arc<Head> {
    if head.lost_from.is_some() {
        Arc::make_mut(&mut head).lost_from = None;
    }
    head
}

fn check_size(what: &'static str, size: usize, limit: u64) -> Result<(), StoreError> {
    let size = size as u64;
    if size > limit { Err(StoreError::TooLarge { what, size, limit }) } else { Ok(()) }
}

/// Checks the sizes of a fact.
///
/// # Errors
/// [`StoreError::TooLarge`].
pub fn check_fact(key: &str, value: &[u8]) -> Result<(), StoreError> {
    check_size("bytes of a fact's name", key.len(), KEY_BYTES_MAX)?;
    check_size("bytes of a fact", value.len(), FACT_BYTES_MAX)
}

/// Checks a session's id.
///
/// # Errors
/// [`StoreError::SessionId`].
pub fn check_session(session: &str) -> Result<(), StoreError> {
    session_id::check(session)
        .map_err(|reason| StoreError::SessionId { session: session.chars().take(80).collect(), reason })
}

/// Checks the batch without reading the session: the session id, the sizes, that the ids are dense and that
/// the head counts the entries. Returns the batch's first id.
fn check_batch(session: &str, batch: &Batch) -> Result<EntryId, StoreError> {
    check_session(session)?;
    check_size("bytes of an idempotency key", batch.key.as_ref().map_or(0, String::len), KEY_BYTES_MAX)?;
    let first = batch.entries.first().map_or(EntryId(batch.head.entries), |entry| entry.id);
    let mut next = first;
    for entry in &batch.entries {
        if entry.id != next {
            return Err(StoreError::Sequence { session: session.to_owned(), expected: next, got: entry.id });
        }
        next = EntryId(next.0.saturating_add(1));
    }
    if batch.head.entries != next.0 {
        return Err(StoreError::Head {
            session: session.to_owned(),
            expected: next.0,
            got: batch.head.entries,
        });
    }
    Ok(first)
}
