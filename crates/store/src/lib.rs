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
//! and `indexer` (the content of sled), `reader`, `recovery` (how a store is opened), `reclaim`, `memory`,
//! `read_only` and `overlay` (how a store is opened read-only). All journal files are accessed through
//! [`files`], and [`faults`] makes those fail in tests.

pub mod faults;
pub mod files;

mod bytes;
mod copy;
mod error;
mod index;
mod indexer;
mod journal;
mod lock;
mod memory;
mod overlay;
mod parts;
mod read_only;
mod reader;
mod reclaim;
mod record;
mod recovery;
mod writer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use greenroom_kernel::Head;
use greenroom_kernel::{Entry, EntryId, session_id};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{mpsc, oneshot};

pub use copy::SessionCopy;
pub use error::{Notice, StoreError};
pub use reader::{Loss, Salvaged};

use files::{Files, RealFiles};
use index::Index;
use journal::manifest::UnknownLoss;
use journal::segments::Segments;
use memory::Memory;
use parts::{Part, PartKind};
use record::StoredRecord;
use writer::{AppendCommand, Command};

/// The most encoded bytes in a batch (32 MiB).
pub const BATCH_BYTES_MAX: u64 = 32 << 20;
/// The most entries in a batch.
pub const BATCH_ENTRIES_MAX: u64 = 16_384;
/// The most bytes in an idempotency key, and in the name of a learned fact.
pub const KEY_BYTES_MAX: u64 = 512;
/// The most bytes in a learned fact (1 MiB).
pub const LEARNED_BYTES_MAX: u64 = 1 << 20;
/// The length of the writer's queue. When it is full, callers wait until there is room.
const QUEUE_COMMANDS: usize = 1_024;

/// The location and settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The store's directory. It is created if it does not exist, with access for its owner only.
    pub dir: PathBuf,
    /// The size at which a journal segment is sealed, in bytes. The default is 64 MiB.
    pub segment_bytes: u64,
    /// The size of the index's cache, in bytes. In memory it takes two to three times as much. The default is
    /// 8 MiB: the rest is in the system's file cache.
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
            cache_bytes: 8 << 20,
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

/// A store of sessions. All clones are the same store. Dropping the last one closes it, and waits for the disk.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
enum Inner {
    Disk(Disk),
    Memory(Mutex<Memory>),
}

#[derive(Debug)]
struct Disk {
    commands: Option<mpsc::Sender<Command>>,
    index: Arc<Index>,
    segments: Arc<Segments>,
    unknown: Arc<Mutex<Vec<UnknownLoss>>>,
    thread: Option<JoinHandle<()>>,
    /// The store's directory, if it is only read.
    read_only: Option<PathBuf>,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // This ends the queue. The writer finishes what is in it, closes the index and releases the lock.
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
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
    pub fn open(options: &StoreOptions) -> Result<(Self, Vec<Notice>), StoreError> {
        let (writer, notices) = if options.is_read_only {
            read_only::read(options)?
        } else {
            let created = RealFiles.create_dir(&options.dir);
            created.map_err(|error| StoreError::io("create", &options.dir, error))?;
            recovery::recover(options, lock::DirectoryLock::take(&options.dir)?)?
        };
        for notice in &notices {
            tracing::warn!(dir = %options.dir.display(), "{notice}");
        }
        let (index, segments) = (Arc::clone(&writer.index), Arc::clone(&writer.segments));
        let unknown = Arc::clone(&writer.unknown);
        let (commands, queue) = mpsc::channel(QUEUE_COMMANDS);
        let thread = std::thread::Builder::new().name("greenroom-store".to_owned());
        let thread = thread.spawn(move || writer::run(writer, queue));
        let thread = thread.map_err(|error| StoreError::io("start a thread for", &options.dir, error))?;
        let read_only = options.is_read_only.then(|| options.dir.clone());
        let disk =
            Disk { commands: Some(commands), index, segments, unknown, thread: Some(thread), read_only };
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

    /// Whether the store keeps everything in memory. If so, none of its methods blocks on a disk.
    pub fn is_memory(&self) -> bool {
        matches!(self.inner.as_ref(), Inner::Memory(_))
    }

    /// Appends a batch atomically. When this returns, the batch is durable, and every reader sees it.
    ///
    /// If the future is dropped, the batch may still be written. With a key, the same call can be repeated safely.
    ///
    /// # Errors
    /// [`StoreError::Sequence`], [`StoreError::Head`], [`StoreError::SessionId`] and [`StoreError::TooLarge`]
    /// for an invalid batch; [`StoreError::Quarantined`]; [`StoreError::Full`], [`StoreError::Io`] and
    /// [`StoreError::Invariant`] if it could not be written, in which case nothing of it remains.
    pub async fn append(&self, session: &str, batch: Batch) -> Result<Appended, StoreError> {
        let first = check_batch(session, &batch)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                open_memory(memory)?.append(session, first, Batch { head: without_loss(batch.head), ..batch })
            }
            Inner::Disk(disk) => {
                let Batch { entries, head, key } = batch;
                let (count, head) = (entries.len(), without_loss(head));
                let record = StoredRecord::Append { key: key.clone(), entries, head: Arc::clone(&head) };
                let payload = record::encode(&record)?;
                let part = Part { kind: PartKind::Whole, count, head, payload };
                disk.append_part(session, first, &key, part).await
            }
        }
    }

    /// Appends a batch of any size atomically: if it does not fit into one record of the journal, it is
    /// written in parts, and no reader sees a part before the last one is durable. If the process ends before
    /// that, nothing of the batch remains. A concurrent append to the session makes this one fail.
    ///
    /// # Errors
    /// Those of [`Store::append`]. [`StoreError::TooLarge`] remains possible for an entry that is too large
    /// by itself.
    pub async fn append_of_any_size(&self, session: &str, batch: Batch) -> Result<Appended, StoreError> {
        let first = check_order(session, &batch)?;
        let Batch { entries, head, key } = batch;
        let head = without_loss(head);
        let disk = match self.inner.as_ref() {
            Inner::Disk(disk) => disk,
            Inner::Memory(memory) => {
                return open_memory(memory)?.append(session, first, Batch { entries, head, key });
            }
        };
        let number = journal::segments::random_number();
        let (mut sequence, mut rest, mut is_begun) = (first, entries.as_slice(), false);
        loop {
            let part = Part::first_of(rest, is_begun, number, &key, &head)?;
            rest = &rest[part.count..];
            let appended = disk.append_part(session, sequence, &key, part).await;
            match appended {
                Ok(Appended::Written { next, .. }) if !rest.is_empty() => (sequence, is_begun) = (next, true),
                Ok(Appended::Written { next, .. }) => return Ok(Appended::Written { first, next }),
                Ok(duplicate @ Appended::Duplicate { .. }) => return Ok(duplicate),
                Err(error) => {
                    if is_begun && let Some(commands) = disk.commands.as_ref() {
                        // If this message is not received, the next append or the next start discards the
                        // parts.
                        drop(commands.send(Command::DropParts { session: session.to_owned() }).await);
                    }
                    return Err(error);
                }
            }
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
            Inner::Disk(disk) => Ok(disk.index.row(session)?.map(|row| row.head)),
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
            Inner::Disk(disk) => Ok(disk.index.used_key(session, key)?.map(|(first, _)| first)),
        }
    }

    /// Returns the session's entries from `from` on. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Damaged`] if one of the entries is lost. [`Store::salvage`] returns the
    /// others.
    pub fn load(&self, session: &str, from: EntryId) -> Result<Vec<Entry>, StoreError> {
        check_session(session)?;
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory)?.load(session, from),
            Inner::Disk(disk) => {
                let head = disk.head(session)?;
                reader::load(&disk.index, &disk.segments, session, from.0, head.entries)
            }
        }
    }

    /// Returns the session's entries with these ids, in the same order. This blocks on the disk.
    ///
    /// # Errors
    /// Those of [`Store::load`]. An entry that the session does not have is [`StoreError::Damaged`] too.
    pub fn get(&self, session: &str, entries: &[EntryId]) -> Result<Vec<Entry>, StoreError> {
        check_session(session)?;
        let one = |entry: &EntryId| {
            let found = match self.inner.as_ref() {
                Inner::Memory(memory) => open_memory(memory)?.load(session, *entry)?.into_iter().next(),
                Inner::Disk(disk) => {
                    let until = disk.head(session)?.entries.min(entry.0.saturating_add(1));
                    reader::load(&disk.index, &disk.segments, session, entry.0, until)?.into_iter().next()
                }
            };
            found.ok_or_else(|| StoreError::Damaged { session: session.to_owned(), entry: *entry })
        };
        entries.iter().map(one).collect()
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
                let entries = open_memory(memory)?.load(session, EntryId(0))?;
                Ok(Salvaged { entries, lost: Vec::new() })
            }
            Inner::Disk(disk) => {
                let head = disk.head(session)?;
                reader::salvage(&disk.index, &disk.segments, session, 0, head.entries)
            }
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
            Inner::Disk(disk) => disk.index.heads(after, limit),
        }
    }

    /// Returns all sessions and their heads, ordered by id. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn list(&self) -> Result<Vec<(String, Head)>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.list()),
            Inner::Disk(disk) => {
                let (rows, _) = disk.index.rows()?;
                Ok(rows.into_iter().map(|(session, row)| (session, row.head)).collect())
            }
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
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::Delete { session: session.to_owned(), reply }, answer).await
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
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::AcceptLoss { session: session.to_owned(), reply }, answer).await
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
            Inner::Disk(disk) => {
                let check = |(session, row): (String, _)| {
                    reader::check(&disk.index, &disk.segments, &session, &row).transpose()
                };
                disk.index.rows()?.0.into_iter().filter_map(check).collect()
            }
        }
    }

    /// Like [`Store::check`] for one session; `None` if it has lost nothing. This blocks on the disk.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], and those of [`Store::check`].
    pub fn check_session(&self, session: &str) -> Result<Option<Loss>, StoreError> {
        check_session(session)?;
        let not_found = || StoreError::NotFound { session: session.to_owned() };
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory)?.head(session).map(|_| None).ok_or_else(not_found),
            Inner::Disk(disk) => {
                let row = disk.index.row(session)?.ok_or_else(not_found)?;
                reader::check(&disk.index, &disk.segments, session, &row)
            }
        }
    }

    /// Returns the losses that cannot be attributed to sessions and that nobody has accepted yet: the numbers of the
    /// damaged segments. While there is one, any session may lack its newest entries, and whole sessions may be missing.
    pub fn unknown_losses(&self) -> Vec<u64> {
        match self.inner.as_ref() {
            Inner::Memory(_) => Vec::new(),
            Inner::Disk(disk) => {
                let unknown = disk.unknown.lock();
                let mut open: Vec<u64> =
                    unknown.iter().filter(|loss| !loss.is_accepted).map(|loss| loss.segment).collect();
                open.sort_unstable();
                open.dedup();
                open
            }
        }
    }

    /// Accepts that the losses with a segment are unknown: they are not reported at the next openings.
    /// Returns whether there was such a loss.
    ///
    /// # Errors
    /// [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    pub async fn accept_unknown_loss(&self, segment: u64) -> Result<bool, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => open_memory(memory).map(|_| false),
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::AcceptUnknown { segment, reply }, answer).await
            }
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
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::Reclaim { reply }, answer).await
            }
        }
    }

    /// Returns a learned fact, such as a model's true window; `None` if it is not known. This blocks on the
    /// disk, briefly.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn learned_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.learned_get(key)),
            Inner::Disk(disk) => Ok(disk.index.learned(key)?.map(|(_, value)| value)),
        }
    }

    /// Returns the names of all learned facts that begin with `prefix`, in order. This blocks on the disk,
    /// briefly.
    ///
    /// # Errors
    /// [`StoreError::Index`], [`StoreError::Closed`].
    pub fn learned_keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(memory) => Ok(open_memory(memory)?.learned_keys(prefix)),
            Inner::Disk(disk) => disk.index.learned_keys(prefix),
        }
    }

    /// Stores a learned fact durably. It replaces the old value of the same key.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`]; [`StoreError::Full`] and [`StoreError::Io`] if it could not be written.
    pub async fn learned_put(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        check_size("bytes of a fact's name", key.len(), KEY_BYTES_MAX)?;
        check_size("bytes of a fact", value.len(), LEARNED_BYTES_MAX)?;
        let (key, value) = (key.to_owned(), value.to_vec());
        match self.inner.as_ref() {
            Inner::Memory(memory) => {
                open_memory(memory)?.learned_put(key, value);
                Ok(())
            }
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::LearnedPut { key, value, reply }, answer).await
            }
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
            Inner::Disk(disk) => {
                let (reply, answer) = oneshot::channel();
                disk.ask(Command::Close { reply }, answer).await
            }
        }
    }
}

impl Disk {
    /// Sends one frame's entries to the writer and waits until they are durable.
    async fn append_part(
        &self,
        session: &str,
        sequence: EntryId,
        key: &Option<String>,
        part: Part,
    ) -> Result<Appended, StoreError> {
        let Part { kind, count, head, payload } = part;
        check_size("bytes", payload.len(), BATCH_BYTES_MAX)?;
        let count = u32::try_from(count).expect("a frame has at most 16,384 entries");
        let (reply, answer) = oneshot::channel();
        let (session, sequence, key) = (session.into(), sequence.0, key.clone());
        let part = Box::new(AppendCommand { session, sequence, count, key, head, payload, reply });
        let command = match kind {
            PartKind::Whole => Command::Append(part),
            PartKind::Part(batch) => Command::Part { batch, part },
            PartKind::Last(batch) => Command::Commit { batch, part },
        };
        self.ask(command, answer).await
    }

    /// Sends a command to the writer and waits for its answer.
    async fn ask<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let is_close = matches!(command, Command::Close { .. });
        if let Some(dir) = self.read_only.as_ref().filter(|_| !is_close) {
            return Err(StoreError::NotPermitted { action: "change the store in", path: dir.clone() });
        }
        let commands = self.commands.as_ref().expect("only dropping takes the queue away");
        commands.send(command).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    fn head(&self, session: &str) -> Result<Head, StoreError> {
        let row = self.index.row(session)?;
        row.map(|row| row.head).ok_or_else(|| StoreError::NotFound { session: session.to_owned() })
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

fn check_session(session: &str) -> Result<(), StoreError> {
    session_id::check(session)
        .map_err(|reason| StoreError::SessionId { session: session.chars().take(80).collect(), reason })
}

/// Checks the batch without reading the session: the session id, the sizes, that the ids are dense and that
/// the head counts the entries. Returns the batch's first id.
fn check_batch(session: &str, batch: &Batch) -> Result<EntryId, StoreError> {
    check_size("entries", batch.entries.len(), BATCH_ENTRIES_MAX)?;
    check_order(session, batch)
}

/// Like [`check_batch`], without the number of entries.
fn check_order(session: &str, batch: &Batch) -> Result<EntryId, StoreError> {
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
