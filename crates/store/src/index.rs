//! The index: the location of each entry in the journal, each session's head, and how far the journal is
//! indexed.
//!
//! A change is first staged: it goes into a table in memory, where every reader sees it at once. Later the
//! staged changes move to sled in one atomic batch, together with the checkpoint; until then, readers find
//! them in memory, and newer changes are staged beside them. So an append never waits for sled, and sled
//! never holds half a group.
//!
//! Invariants: everything in the index is derived from the journal, so it can be rebuilt from it. After the
//! first failure of sled every call fails, and the next start rebuilds the index.

mod chunks;
mod rows;
mod staged;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chunks::Places;
use greenroom_kernel::EntryId;
use greenroom_kernel::head::Head;
use greenroom_kernel::text::panic_text;

use crate::error::StoreError;
use crate::files::{close_files, create_own_dir};
use parking_lot::{Mutex, RwLock};
pub(crate) use rows::{
    Checkpoint, Location, PartRow, Row, RowPlace, SegmentRow, encode_fact, encode_used_key, key,
};
use rows::{decode_fact, decode_used_key, row_sum};
pub(crate) use staged::{Change, Size};
use staged::{SessionChanges, Staged, Table};

/// How often sled's own lock is tried, and how long to wait between two attempts.
const LOCK_ATTEMPTS: u32 = 400;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

type Pair = (Vec<u8>, Vec<u8>);

/// What the rows of all sessions amount to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RowsSummary {
    /// The number of sessions.
    pub(crate) count: u64,
    /// The sum that the checkpoint must have.
    pub(crate) sum: u64,
    /// The sessions that lost entries, which nobody has accepted.
    pub(crate) quarantined: BTreeSet<String>,
}

/// The index of one store. Every call may block on the disk.
#[derive(Debug)]
pub(crate) struct Index {
    /// `None` if the index is kept in memory only, and after it was closed.
    database: RwLock<Option<sled::Db>>,
    staged: RwLock<Staged>,
    /// The sum of the rows in sled, for the checkpoint. Only a move changes it, and there is one at a time.
    sum: Mutex<u64>,
    /// The first failure of sled. After it, sled is not used any more.
    broken: Mutex<Option<String>>,
    is_closed: AtomicBool,
    /// If this file exists, the next start rebuilds the index.
    suspect_path: PathBuf,
    /// Blocks moves while a test holds it.
    #[cfg(test)]
    pub(crate) gate: Mutex<()>,
}

/// What an unreadable index is told as.
const DAMAGED: &str = "its files are damaged";

/// Returns why sled failed, for a person: its own text is for its developers, and goes to the log.
fn in_words(error: &sled::Error) -> String {
    tracing::debug!(%error, "the index failed");
    match error {
        sled::Error::Io(error) => error.to_string(),
        sled::Error::Unsupported(reason) => format!("it cannot be used: {reason}"),
        sled::Error::CollectionNotFound(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. } => DAMAGED.to_owned(),
        #[allow(unreachable_patterns, reason = "sled has another variant with its feature for tests")]
        _ => DAMAGED.to_owned(),
    }
}

fn index_error(detail: impl std::fmt::Display) -> StoreError {
    StoreError::Index { detail: detail.to_string() }
}

fn undecoded_row() -> StoreError {
    index_error("a session's row does not decode")
}

fn undecoded_place() -> StoreError {
    index_error("an entry's place does not decode")
}

impl Index {
    fn new(dir: &Path, database: Option<sled::Db>) -> Self {
        Self {
            database: RwLock::new(database),
            staged: RwLock::default(),
            sum: Mutex::default(),
            broken: Mutex::new(None),
            is_closed: AtomicBool::new(false),
            suspect_path: dir.join("index.suspect"),
            #[cfg(test)]
            gate: Mutex::default(),
        }
    }

    /// Creates an index in memory only, for when sled cannot be used.
    pub(crate) fn in_memory(dir: &Path) -> Self {
        Self::new(dir, None)
    }

    /// Opens sled's database in `dir/index`, on a separate thread, because sled can panic here.
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self, String> {
        let path = dir.join("index");
        // sled would make it readable to others, and it contains the names of all sessions. Its files too:
        // the directory protects them only as long as nobody moves or copies them.
        create_own_dir(&path).map_err(|error| error.to_string())?;
        let made = path.clone();
        let open = move || {
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(cache_bytes)
                .flush_every_ms(None)
                .mode(sled::Mode::HighThroughput);
            let mut opened = config.open();
            // After a database is dropped, sled's own threads may hold its lock for a moment longer. Nothing else
            // can hold it, because the store's directory is locked.
            for _ in 0..LOCK_ATTEMPTS {
                match &opened {
                    Err(sled::Error::Io(error)) if error.to_string().contains("could not acquire lock") => {}
                    _ => break,
                }
                std::thread::sleep(LOCK_PAUSE);
                opened = config.open();
            }
            opened
        };
        let thread = std::thread::Builder::new().name("greenroom-index-open".to_owned()).spawn(open);
        match thread.map(std::thread::JoinHandle::join) {
            Ok(Ok(Ok(database))) => {
                close_files(&made);
                let index = Self::new(dir, Some(database));
                // If the checkpoint cannot be read, the index is found to be damaged when it is checked.
                if let Ok(Some((_, sum))) = index.checkpoint() {
                    *index.sum.lock() = sum;
                }
                Ok(index)
            }
            Ok(Ok(Err(error))) => Err(in_words(&error)),
            Ok(Err(panic)) => {
                tracing::debug!(panic = panic_text(panic.as_ref()), "opening the index panicked");
                Err(DAMAGED.to_owned())
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether there is a database in `dir`, even if nothing was written to it yet.
    pub(crate) fn exists(dir: &Path) -> bool {
        dir.join("index").exists()
    }

    /// Begins the index of a store that is being restored: it is empty, and is filled when the store is opened. A
    /// request to rebuild an earlier one is void.
    pub(crate) fn begin(dir: &Path) -> std::io::Result<()> {
        Self::in_memory(dir).clear_suspect();
        create_own_dir(&dir.join("index"))
    }

    /// Whether an earlier process requested a rebuild of the index.
    pub(crate) fn is_suspect(dir: &Path) -> bool {
        dir.join("index.suspect").exists()
    }

    /// Moves the database in `dir` out of the way. At most one such copy is kept.
    pub(crate) fn set_aside(dir: &Path) -> std::io::Result<()> {
        let aside = dir.join("index.damaged-1");
        if aside.exists() {
            std::fs::remove_dir_all(&aside)?;
        }
        match std::fs::rename(dir.join("index"), aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Requests a rebuild of the index at the next start.
    pub(crate) fn mark_suspect(&self, reason: &str) {
        tracing::error!(reason, "the index does not match the journal; the next start rebuilds it");
        if let Err(error) = std::fs::write(&self.suspect_path, reason) {
            tracing::error!(%error, "cannot record that the index is suspect");
        }
    }

    /// Withdraws that request, because the index was rebuilt.
    pub(crate) fn clear_suspect(&self) {
        if let Err(error) = std::fs::remove_file(&self.suspect_path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove the record of the suspect index");
        }
    }

    /// Runs `work` on the database; `Ok(None)` if there is none. After a failure or a panic, sled is not used any
    /// more.
    fn with<T>(&self, work: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<Option<T>, StoreError> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        if let Some(detail) = &*self.broken.lock() {
            return Err(index_error(detail));
        }
        let database = self.database.read();
        let Some(database) = database.as_ref() else { return Ok(None) };
        let detail = match catch_unwind(AssertUnwindSafe(|| work(database))) {
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(error)) => in_words(&error),
            Err(panic) => {
                tracing::debug!(panic = panic_text(panic.as_ref()), "the index panicked");
                DAMAGED.to_owned()
            }
        };
        self.mark_suspect(&detail);
        *self.broken.lock() = Some(detail.clone());
        Err(index_error(detail))
    }

    /// Returns the newest value of a row, staged or in sled. The row must be of a kind that is staged as bytes.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.staged.read().other(key) {
            return Ok(value.clone());
        }
        self.get_in_sled(key)
    }

    /// Returns a value that is in sled.
    fn get_in_sled(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.with(|database| database.get(key))?;
        Ok(value.flatten().map(|value| value.to_vec()))
    }

    /// Returns the pairs in sled with keys in `from..until`, in order.
    fn range_in_sled(&self, from: &[u8], until: &[u8]) -> Result<Vec<(sled::IVec, sled::IVec)>, StoreError> {
        if from >= until {
            return Ok(Vec::new());
        }
        Ok(self.with(|database| database.range(from..until).collect())?.unwrap_or_default())
    }

    /// Returns the newest pairs with keys in `from..until`, in order, staged or in sled. The rows must be of a kind that is
    /// staged as bytes.
    fn range(&self, from: &[u8], until: &[u8]) -> Result<Vec<Pair>, StoreError> {
        if from >= until {
            return Ok(Vec::new());
        }
        // The staged changes are read first, here and everywhere: one that moves to sled meanwhile is then seen
        // twice, but never missed.
        let newer = self.staged.read().others(from, until);
        let older = self.range_in_sled(from, until)?.into_iter();
        let older = older.map(|(key, value)| (key.to_vec(), value.to_vec()));
        if newer.is_empty() {
            return Ok(older.collect());
        }
        let mut merged: BTreeMap<_, _> = older.map(|(key, value)| (key, Some(value))).collect();
        merged.extend(newer);
        Ok(merged.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }

    /// Makes changes visible to every reader at once. Only the writer may call it.
    pub(crate) fn stage(&self, changes: impl IntoIterator<Item = Change>) {
        let mut staged = self.staged.write();
        changes.into_iter().for_each(|change| staged.add(change));
    }

    /// Returns the size of the staged changes, without those that are being moved.
    pub(crate) fn staged_size(&self) -> Size {
        self.staged.read().size
    }

    /// Selects all staged changes for the next move to sled. Returns whether there are any. While a move is
    /// in progress, it changes nothing. Only the writer may call it.
    pub(crate) fn begin_move(&self) -> Result<bool, StoreError> {
        if self.with(|_| Ok(()))?.is_none() {
            return Ok(false);
        }
        Ok(self.staged.write().begin_move())
    }

    /// Moves the changes selected by [`Self::begin_move`] to sled, in one atomic batch. If that fails,
    /// readers still find them in memory. Only one thread at a time may call it.
    pub(crate) fn finish_move(&self) -> Result<(), StoreError> {
        let moving = self.staged.read().moving.clone();
        let Some(moving) = moving else { return Ok(()) };
        #[cfg(test)]
        let _held = self.gate.lock();
        let sum = *self.sum.lock();
        let moved = self.with(|database| {
            let (batch, sum) = batch_of(database, &moving, sum)?;
            database.apply_batch(batch)?;
            Ok(sum)
        })?;
        if let Some(sum) = moved {
            *self.sum.lock() = sum;
            self.staged.write().moving = None;
        }
        Ok(())
    }

    /// Moves the staged changes to sled. If that fails, they stay in memory. Only the writer may call it,
    /// while no other move is in progress.
    pub(crate) fn flush_staged(&self) -> Result<(), StoreError> {
        // Changes that could not be moved earlier come first.
        self.finish_move()?;
        if self.begin_move()? { self.finish_move() } else { Ok(()) }
    }

    /// Makes the changes in sled durable.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.with(|database| database.flush()).map(drop)
    }

    /// Closes the index without writing: its directory now belongs to another store.
    pub(crate) fn abandon(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Dropping it would write.
        std::mem::forget(self.database.write().take());
    }

    /// Moves the staged changes to sled, flushes sled and closes it. The writer's thread calls it, because dropping
    /// sled can panic.
    pub(crate) fn close(&self) {
        let flushed = self.flush_staged().and_then(|()| self.sync());
        if let Err(error) = &flushed {
            tracing::warn!(%error, "the index was not fully written; the next start reads the journal again");
        }
        self.is_closed.store(true, Ordering::SeqCst);
        let database = self.database.write().take();
        if flushed.is_ok() {
            if catch_unwind(AssertUnwindSafe(move || drop(database))).is_err() {
                tracing::warn!("closing the index panicked");
            }
        } else {
            // After a failure inside sled, dropping it may panic again or never return.
            std::mem::forget(database);
        }
    }

    /// Returns how far the journal is indexed in sled, and the sum of the rows there; `None` if sled has no checkpoint
    /// that can be read.
    pub(crate) fn checkpoint(&self) -> Result<Option<(Checkpoint, u64)>, StoreError> {
        Ok(self.get_in_sled(key::CHECKPOINT)?.as_deref().and_then(Checkpoint::decode))
    }

    /// Returns the session's row; `None` if there is no such session.
    pub(crate) fn row(&self, session: &str) -> Result<Option<Row>, StoreError> {
        if let Some(row) = self.staged.read().row(session) {
            return Ok(row.clone());
        }
        self.get_in_sled(&key::row(session))?
            .map(|bytes| Row::decode(&bytes).ok_or_else(undecoded_row))
            .transpose()
    }

    /// Returns the rows of all sessions by id.
    pub(crate) fn rows(&self) -> Result<Vec<(String, Row)>, StoreError> {
        self.rows_after(None, usize::MAX)
    }

    /// Returns the rows of the sessions after `after`, ordered by id: at most `limit`; fewer mean that no more
    /// follow.
    pub(crate) fn rows_after(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Row)>, StoreError> {
        let newer = self.staged.read().rows(after, limit);
        let from = after.map_or_else(|| b"h".to_vec(), |after| key::after(&key::row(after)));
        // The page has at most `limit` unchanged rows. If `newer` was cut off, rows behind its last id may have changes
        // that were not read, but the page ends at that id.
        let unchanged = self.with(|database| {
            let is_changed =
                |key: &[u8]| key::split(key).is_some_and(|(session, _)| newer.contains_key(session));
            database
                .range(from.as_slice()..b"i".as_slice())
                .filter(|pair| !matches!(pair, Ok((key, _)) if is_changed(key)))
                .take(limit)
                .collect::<sled::Result<Vec<_>>>()
        })?;
        let mut rows = BTreeMap::new();
        for (key, value) in unchanged.unwrap_or_default() {
            let session =
                key::split(&key).map(|(session, _)| session.to_owned()).ok_or_else(undecoded_row)?;
            rows.insert(session, Row::decode(&value).ok_or_else(undecoded_row)?);
        }
        rows.extend(newer.into_iter().filter_map(|(session, row)| Some((session.to_string(), row?))));
        Ok(rows.into_iter().take(limit).collect())
    }

    /// Summarises the rows of all sessions that are in sled. The heads are not read, except those that were ever
    /// damaged.
    ///
    /// # Errors
    /// If a row cannot be read: it is truncated, or of a later version.
    pub(crate) fn summary(&self) -> Result<RowsSummary, StoreError> {
        let mut summary = RowsSummary::default();
        for (key, value) in self.range_in_sled(b"h", b"i")? {
            let (Some((session, _)), Some(is_quarantined)) = (key::split(&key), Row::is_quarantined(&value))
            else {
                return Err(undecoded_row());
            };
            summary.sum = summary.sum.wrapping_add(row_sum(session, &value));
            summary.count += 1;
            if is_quarantined {
                summary.quarantined.insert(session.to_owned());
            }
        }
        Ok(summary)
    }

    /// Returns the heads of the sessions after `after`, ordered by id: at most `limit`; fewer mean that no
    /// more follow.
    pub(crate) fn heads(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, Head)>, StoreError> {
        let rows = self.rows_after(after, limit)?.into_iter();
        Ok(rows.map(|(session, row)| (session, Arc::unwrap_or_clone(row.head))).collect())
    }

    /// Returns the rows of all segments, by number.
    pub(crate) fn segment_rows(&self) -> Result<BTreeMap<u64, SegmentRow>, StoreError> {
        let decode = |(key, value): Pair| {
            let id = u64::from_be_bytes(key.get(1..)?.try_into().ok()?);
            Some((id, SegmentRow::decode(&value)?))
        };
        let rows: Option<BTreeMap<u64, SegmentRow>> =
            self.range(b"s", b"t")?.into_iter().map(decode).collect();
        rows.ok_or_else(|| index_error("a segment's row does not decode"))
    }

    /// Returns the session's entries in `from..until`: their sequence numbers, and where they lie.
    pub(crate) fn entries(
        &self,
        session: &str,
        from: u64,
        until: u64,
    ) -> Result<Vec<(u64, Location)>, StoreError> {
        if from >= until {
            return Ok(Vec::new());
        }
        let newer = self.staged.read().spans(session, &(from..until));
        let first = chunks::first_key(&key::entry(session, from));
        let mut places = Places::new();
        for (key, value) in self.range_in_sled(&first, &key::entry(session, until))? {
            chunks::split(&key)
                .and_then(|(_, first)| chunks::unfold(first, &value, &mut places))
                .ok_or_else(undecoded_place)?;
        }
        places.retain(|sequence, _| (from..until).contains(sequence));
        newer.into_iter().for_each(|(entries, at)| staged::apply(entries, at, &mut places));
        Ok(places.into_iter().collect())
    }

    /// Returns where an entry lies; `None` if the session has no such entry.
    pub(crate) fn entry(&self, session: &str, sequence: u64) -> Result<Option<Location>, StoreError> {
        let found = self.entries(session, sequence, sequence.saturating_add(1))?;
        Ok(found.first().map(|(_, location)| *location))
    }

    /// Returns the parts of uncommitted batches, with their sessions, in order.
    pub(crate) fn all_parts(&self) -> Result<Vec<(String, PartRow)>, StoreError> {
        self.range(b"p", b"q")?.iter().map(Self::part_of).collect()
    }

    /// Returns the parts of the session's uncommitted batch, in order.
    pub(crate) fn parts(&self, session: &str) -> Result<Vec<PartRow>, StoreError> {
        let pairs = self.range(&key::part(session, 0), &key::part(session, u64::MAX))?;
        pairs.iter().map(|pair| Self::part_of(pair).map(|(_, part)| part)).collect()
    }

    fn part_of(pair: &Pair) -> Result<(String, PartRow), StoreError> {
        let decode = || {
            let (session, sequence) = key::split(&pair.0)?;
            let first = u64::from_be_bytes(sequence.try_into().ok()?);
            Some((session.to_owned(), PartRow::decode(first, &pair.1)?))
        };
        decode().ok_or_else(|| index_error("a part of a batch does not decode"))
    }

    /// Returns where every entry of every session lies. This reads the whole index, so it is used only after
    /// damage.
    pub(crate) fn all_entries(&self) -> Result<Vec<(String, u64, Location)>, StoreError> {
        let newer = self.staged.read().all_spans();
        let mut sessions: BTreeMap<String, Places> = BTreeMap::new();
        for (key, value) in self.range_in_sled(b"e", b"f")? {
            let (session, first) = chunks::entry_of(&key).ok_or_else(undecoded_place)?;
            let places = sessions.entry(session.to_owned()).or_default();
            chunks::unfold(first, &value, places).ok_or_else(undecoded_place)?;
        }
        for (session, entries, at) in newer {
            staged::apply(entries, at, sessions.entry(session.to_string()).or_default());
        }
        let of_session = |(session, places): (String, Places)| {
            places.into_iter().map(move |(sequence, at)| (session.clone(), sequence, at))
        };
        Ok(sessions.into_iter().flat_map(of_session).collect())
    }

    /// Returns the first entry of the batch that used this idempotency key, and where that batch lies.
    pub(crate) fn used_key(
        &self,
        session: &str,
        key: &str,
    ) -> Result<Option<(EntryId, Location)>, StoreError> {
        let value = self.get(&key::idempotency(session, key))?;
        Ok(value.as_deref().and_then(decode_used_key).map(|(first, location)| (EntryId(first), location)))
    }

    /// Returns the index's keys and values of all idempotency keys that the session has used.
    pub(crate) fn used_keys(&self, session: &str) -> Result<Vec<Pair>, StoreError> {
        self.range(&key::session(b'k', session, &[]), &key::session(b'k', session, &[0xFF]))
    }

    /// Returns all idempotency keys that the session has used, in order, and the first entry of the batch of each.
    pub(crate) fn decoded_keys(&self, session: &str) -> Result<Vec<(String, EntryId)>, StoreError> {
        let decode = |(key, value): Pair| {
            let name = std::str::from_utf8(key::split(&key)?.1).ok()?.to_owned();
            Some((name, EntryId(decode_used_key(&value)?.0)))
        };
        let keys = self.used_keys(session)?.into_iter().map(decode);
        keys.collect::<Option<_>>().ok_or_else(|| index_error("an idempotency key does not decode"))
    }

    /// Like [`Self::used_keys`], but only for batches that began at the entry `from` or later: returns the
    /// index's key, and the first entry.
    pub(crate) fn used_keys_from(&self, session: &str, from: u64) -> Result<Vec<(Vec<u8>, u64)>, StoreError> {
        let first = |(key, value): Pair| Some((key, decode_used_key(&value)?.0));
        Ok(self
            .used_keys(session)?
            .into_iter()
            .filter_map(first)
            .filter(|(_, first)| *first >= from)
            .collect())
    }

    /// Returns the names of the facts that begin with `prefix`, in order.
    pub(crate) fn fact_keys(&self, prefix: &str) -> Result<Vec<String>, StoreError> {
        let from = [b"l", prefix.as_bytes()].concat();
        // No byte of a text is 255.
        let rows = self.range(&from, &[&from[..], &[0xff]].concat())?;
        let is_known = |value: &[u8]| decode_fact(value).is_none_or(|(_, value)| !value.is_empty());
        let name = |(key, value): Pair| {
            key::split(&key).filter(|_| is_known(&value)).map(|(name, _)| name.to_owned())
        };
        Ok(rows.into_iter().filter_map(name).collect())
    }

    /// Returns a fact, which is empty if it was removed, and where it lies.
    pub(crate) fn fact(&self, name: &str) -> Result<Option<(Location, Vec<u8>)>, StoreError> {
        let value = self.get(&key::fact(name))?;
        Ok(value.as_deref().and_then(decode_fact))
    }
}

/// Converts staged changes to rows. `sum` is that of the rows in sled; returns what it is with the batch.
fn batch_of(database: &sled::Db, changes: &Table, mut sum: u64) -> sled::Result<(sled::Batch, u64)> {
    let mut batch = sled::Batch::default();
    let mut change = |key: Vec<u8>, value: Option<Vec<u8>>| match value {
        Some(value) => batch.insert(key, value),
        None => batch.remove(key),
    };
    for (session, SessionChanges { row, spans }) in &changes.sessions {
        chunks::change_rows(database, &key::session(b'e', session, &[]), spans, &mut change)?;
        let Some(row) = row else { continue };
        let key = key::row(session);
        if let Some(old) = database.get(&key)? {
            sum = sum.wrapping_sub(row_sum(session, &old));
        }
        let row = row.as_ref().map(Row::encode).transpose();
        let row = row.map_err(|error| sled::Error::Unsupported(error.to_string()))?;
        if let Some(row) = &row {
            sum = sum.wrapping_add(row_sum(session, row));
        }
        change(key, row);
    }
    for (key, value) in &changes.others {
        change(key.clone(), value.clone());
    }
    let checkpoint = match changes.checkpoint {
        Some(checkpoint) => Some(checkpoint),
        None => {
            let moved = database.get(key::CHECKPOINT)?;
            moved.and_then(|bytes| Checkpoint::decode(&bytes)).map(|(checkpoint, _)| checkpoint)
        }
    };
    if let Some(checkpoint) = checkpoint {
        change(key::CHECKPOINT.to_vec(), Some(checkpoint.encode(sum)));
    }
    Ok((batch, sum))
}
