//! A store in a directory: the writer's thread, and what is read beside it.
//!
//! Invariants: all writes are commands to the writer, and a command is answered once it is durable. A store that is
//! only read refuses every command but the one to close it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use greenroom_kernel::{Entry, EntryId, Head};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::backup::{self, BackupInfo, Job, OnDamage, Progress};
use crate::error::{Notice, StoreError};
use crate::files::{Files, RealFiles};
use crate::index::{Index, Row};
use crate::journal::manifest::UnknownLoss;
use crate::journal::segments::{Segments, random_number};
use crate::loss::{Loss, Salvaged, StoreDamage};
use crate::parts::{Part, PartKind, UNMEASURED_MAX};
use crate::writer::{self, AppendCommand, Command};
use crate::{Appended, Batch, Begun, StoreOptions, lock, read_only, reader, recovery};

/// The length of the writer's queue. When it is full, callers wait until there is room.
const QUEUE_COMMANDS: usize = 1_024;

/// The receiver of an append's result.
pub(crate) type Answered = oneshot::Receiver<Result<Appended, StoreError>>;

/// Waits for the writer's answer.
pub(crate) async fn answered<T>(answer: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    answer.await.map_err(|_| StoreError::Closed)?
}

#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) commands: Option<mpsc::Sender<Command>>,
    pub(crate) index: Arc<Index>,
    pub(crate) segments: Arc<Segments>,
    unknown: Arc<Mutex<Vec<UnknownLoss>>>,
    quarantined: Arc<Mutex<BTreeSet<String>>>,
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

impl Disk {
    /// Opens the directory. See [`Store::open`](crate::Store::open).
    pub(crate) fn open(options: &StoreOptions) -> Result<(Self, Vec<Notice>), StoreError> {
        if backup::is_unfinished(&options.dir) {
            return Err(StoreError::unusable(
                &options.dir,
                "is an unfinished backup, and not a store; use another one",
            ));
        }
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
        let quarantined = Arc::clone(&writer.indexer.quarantined);
        let (commands, queue) = mpsc::channel(QUEUE_COMMANDS);
        let thread = std::thread::Builder::new().name("greenroom-store".to_owned());
        let thread = thread.spawn(move || writer::run(writer, queue));
        let thread = thread.map_err(|error| StoreError::io("start a thread for", &options.dir, error))?;
        let read_only = options.is_read_only.then(|| options.dir.clone());
        let (commands, thread) = (Some(commands), Some(thread));
        Ok((Self { commands, index, segments, unknown, quarantined, thread, read_only }, notices))
    }

    /// Sends a batch to the writer if it fits into one frame, and the queue has room. `first` is its first id.
    pub(crate) fn begin_append(&self, session: &str, first: EntryId, batch: Batch) -> Begun {
        let place = self.writer().ok().and_then(|commands| commands.try_reserve().ok());
        let Some(place) = place.filter(|_| batch.entries.len() <= UNMEASURED_MAX) else {
            return Begun::NotSent(first, batch);
        };
        let part = match Part::first_of(&batch.entries, false, 0, &batch.key, &batch.head) {
            Ok(part) if part.count == batch.entries.len() => part,
            Ok(_) => return Begun::NotSent(first, batch),
            Err(error) => return Begun::Over(Err(error)),
        };
        let (reply, answer) = oneshot::channel();
        match AppendCommand::new(session, first, batch.key, part, reply) {
            Ok((_, command)) => place.send(Command::Append(command)),
            Err(error) => return Begun::Over(Err(error)),
        }
        Begun::Sent(answer)
    }

    /// Appends a batch in as many frames as it takes. `first` is its first id.
    pub(crate) async fn append(
        &self,
        session: &str,
        first: EntryId,
        batch: Batch,
    ) -> Result<Appended, StoreError> {
        let Batch { entries, head, key } = batch;
        let number = random_number();
        let (mut sequence, mut rest, mut is_begun) = (first, entries.as_slice(), false);
        loop {
            let part = Part::first_of(rest, is_begun, number, &key, &head)?;
            rest = &rest[part.count..];
            let appended = self.append_part(session, sequence, &key, part).await;
            match appended {
                Ok(Appended::Written { next, .. }) if !rest.is_empty() => (sequence, is_begun) = (next, true),
                Ok(Appended::Written { next, .. }) => return Ok(Appended::Written { first, next }),
                Ok(duplicate @ Appended::Duplicate { .. }) => return Ok(duplicate),
                Err(error) => {
                    if is_begun && let Some(commands) = self.commands.as_ref() {
                        // If this message is not received, the next append or the next start discards the
                        // parts.
                        drop(commands.send(Command::DropParts { session: session.to_owned() }).await);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Sends one frame's entries to the writer and waits until they are durable.
    pub(crate) async fn append_part(
        &self,
        session: &str,
        sequence: EntryId,
        key: &Option<String>,
        part: Part,
    ) -> Result<Appended, StoreError> {
        let (reply, answer) = oneshot::channel();
        let (kind, command) = AppendCommand::new(session, sequence, key.clone(), part, reply)?;
        let command = match kind {
            PartKind::Whole => Command::Append(command),
            PartKind::Part(batch) => Command::Part { batch, part: command },
            PartKind::Last(batch) => Command::Commit { batch, part: command },
        };
        self.writer()?.send(command).await.map_err(|_| StoreError::Closed)?;
        answered(answer).await
    }

    /// Sends a command to the writer and waits for its answer.
    pub(crate) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        self.writer()?;
        self.send(command).await
    }

    /// Returns the writer's queue.
    ///
    /// # Errors
    /// The store is read-only.
    fn writer(&self) -> Result<&mpsc::Sender<Command>, StoreError> {
        if let Some(dir) = &self.read_only {
            return Err(StoreError::NotPermitted { action: "change the store in", path: dir.clone() });
        }
        Ok(self.commands.as_ref().expect("only dropping takes the queue away"))
    }

    /// Backs up the store. See [`Store::backup`](crate::Store::backup).
    pub(crate) async fn backup(
        &self,
        dir: &Path,
        made_at_ms: u64,
        on_damage: OnDamage,
        progress: &Arc<Progress>,
    ) -> Result<BackupInfo, StoreError> {
        if let Some(store) = &self.read_only {
            return Err(StoreError::NotPermitted {
                action: "back up the store, which is opened read-only, in",
                path: store.clone(),
            });
        }
        let commands = self.commands.as_ref().expect("only dropping takes the queue away").downgrade();
        let damage = StoreDamage { sessions: self.quarantined(), segments: self.unknown_losses() };
        let (segments, index) = (Arc::clone(&self.segments), Arc::clone(&self.index));
        let (dir, progress) = (dir.to_owned(), Arc::clone(progress));
        Job { commands, segments, index, dir, made_at_ms, damage, on_damage, progress }.run().await
    }

    /// Ends the writer, after the commands before this one.
    pub(crate) async fn close(&self) -> Result<(), StoreError> {
        self.send(|reply| Command::Close { reply }).await
    }

    async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Command,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let commands = self.commands.as_ref().expect("only dropping takes the queue away");
        commands.send(command(reply)).await.map_err(|_| StoreError::Closed)?;
        answered(answer).await
    }

    pub(crate) fn head(&self, session: &str) -> Result<Option<Head>, StoreError> {
        Ok(self.index.row(session)?.map(|row| Arc::unwrap_or_clone(row.head)))
    }

    pub(crate) fn used_key(&self, session: &str, key: &str) -> Result<Option<EntryId>, StoreError> {
        Ok(self.index.used_key(session, key)?.map(|(first, _)| first))
    }

    pub(crate) fn used_keys(&self, session: &str) -> Result<Vec<(String, EntryId)>, StoreError> {
        self.index.decoded_keys(session)
    }

    /// Returns the entries from `from` on that are before `until`.
    pub(crate) fn load(
        &self,
        session: &str,
        from: EntryId,
        until: EntryId,
    ) -> Result<Vec<Entry>, StoreError> {
        let end = self.row(session)?.head.entries.min(until.0);
        reader::load(&self.index, &self.segments, session, from.0, end)
    }

    pub(crate) fn salvage(&self, session: &str) -> Result<Salvaged, StoreError> {
        let end = self.row(session)?.head.entries;
        reader::salvage(&self.index, &self.segments, session, 0, end)
    }

    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, Head)>, StoreError> {
        self.index.heads(after, limit)
    }

    pub(crate) fn list(&self) -> Result<Vec<(String, Head)>, StoreError> {
        self.index.heads(None, usize::MAX)
    }

    pub(crate) fn check(&self) -> Result<Vec<Loss>, StoreError> {
        let check = |(session, row): (String, _)| {
            reader::check(&self.index, &self.segments, &session, &row).transpose()
        };
        self.index.rows()?.into_iter().filter_map(check).collect()
    }

    pub(crate) fn check_session(&self, session: &str) -> Result<Option<Loss>, StoreError> {
        reader::check(&self.index, &self.segments, session, &self.row(session)?)
    }

    pub(crate) fn unknown_losses(&self) -> Vec<u64> {
        let unknown = self.unknown.lock();
        let mut open: Vec<u64> =
            unknown.iter().filter(|loss| !loss.is_accepted).map(|loss| loss.segment).collect();
        open.sort_unstable();
        open.dedup();
        open
    }

    pub(crate) fn quarantined(&self) -> Vec<String> {
        self.quarantined.lock().iter().cloned().collect()
    }

    pub(crate) fn fact_get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.index.fact(key)?.map(|(_, value)| value).filter(|value| !value.is_empty()))
    }

    pub(crate) fn fact_keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        self.index.fact_keys(prefix)
    }

    fn row(&self, session: &str) -> Result<Row, StoreError> {
        let row = self.index.row(session)?;
        row.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })
    }
}
