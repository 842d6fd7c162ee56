//! The index: where each entry lies in the journal, each session's head, and how far the journal is indexed.
//!
//! Invariants: it says nothing that the journal does not say; lost or damaged, it is built again. What the journal
//! has made durable is first put into a table in memory, where every reader sees it at once, and moved to sled in
//! atomic batches that carry the checkpoint with them, so that an append never waits for sled and sled never holds
//! half a group. It is one tree with a prefix for each kind of key, because a batch is atomic only within a tree.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use greenroom_kernel::EntryId;

use crate::error::StoreError;
use crate::head::Head;
use crate::record;

/// The version of everything in the index. Another version's index is built again.
const INDEX_VERSION: u8 = 1;

/// How often, and how far apart, sled's own lock is tried.
const LOCK_ATTEMPTS: u32 = 400;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Where a frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

impl Location {
    const BYTES: usize = 20;

    fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.segment.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self { segment: reader.u64()?, offset: reader.u64()?, length: reader.u32()? })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
}

/// A session's row: its head, and what the store needs to know beside it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) head: Head,
    pub(crate) place: RowPlace,
}

/// What a row says beside the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlace {
    /// The newest frame that set the head.
    pub(crate) newest: Location,
    /// The newest frame about a loss.
    pub(crate) mark: Option<Location>,
    /// How many idempotency keys the session has: a check on the index.
    pub(crate) keys: u64,
}

impl RowPlace {
    /// The row's bytes, given the head's.
    pub(crate) fn encode(&self, head: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + head.len());
        bytes.extend(self.newest.encode());
        bytes.push(u8::from(self.mark.is_some()));
        bytes.extend(self.mark.unwrap_or(self.newest).encode());
        bytes.extend(self.keys.to_le_bytes());
        bytes.extend(head);
        bytes
    }
}

impl Row {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let newest = Location::decode(reader.take(Location::BYTES)?)?;
        let is_marked = reader.take(1)?[0] == 1;
        let mark = Location::decode(reader.take(Location::BYTES)?)?;
        let keys = reader.u64()?;
        let head = record::decode_head(reader.0).ok()?;
        Some(Self { head, place: RowPlace { newest, mark: is_marked.then_some(mark), keys } })
    }
}

/// What the index knows of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SegmentRow {
    pub(crate) order: u64,
    pub(crate) seed: u32,
    /// How many frames are indexed.
    pub(crate) frames: u64,
    /// The last one's chain.
    pub(crate) digest: u32,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// How many of these nobody needs.
    pub(crate) dead: u64,
}

impl SegmentRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend(self.order.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(self.frames.to_le_bytes());
        bytes.extend(self.digest.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.dead.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self {
            order: reader.u64()?,
            seed: reader.u32()?,
            frames: reader.u64()?,
            digest: reader.u32()?,
            bytes: reader.u64()?,
            dead: reader.u64()?,
        })
    }
}

/// How far the journal is indexed, and what all rows add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Checkpoint {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    pub(crate) chain: u32,
    /// How many sessions there are.
    pub(crate) rows: u64,
    /// The sum of [`row_sum`] over them.
    pub(crate) sum: u64,
}

impl Checkpoint {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![INDEX_VERSION];
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(self.sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        (reader.take(1)? == [INDEX_VERSION]).then_some(())?;
        Some(Self {
            segment: reader.u64()?,
            offset: reader.u64()?,
            chain: reader.u32()?,
            rows: reader.u64()?,
            sum: reader.u64()?,
        })
    }
}

/// What a row adds to the checkpoint's sum.
pub(crate) fn row_sum(session: &str, row: &[u8]) -> u64 {
    u64::from(crc32c::crc32c_append(crc32c::crc32c(session.as_bytes()), row)) + 1
}

/// The index's keys. Session ids never hold a zero byte, so that no session's keys lie among another's.
pub(crate) mod key {
    pub(crate) const CHECKPOINT: &[u8] = b"m";

    pub(crate) fn session(kind: u8, session: &str, rest: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(2 + session.len() + rest.len());
        key.push(kind);
        key.extend(session.as_bytes());
        key.push(0);
        key.extend(rest);
        key
    }

    pub(crate) fn entry(id: &str, sequence: u64) -> Vec<u8> {
        session(b'e', id, &sequence.to_be_bytes())
    }

    pub(crate) fn row(id: &str) -> Vec<u8> {
        session(b'h', id, &[])
    }

    pub(crate) fn idempotency(id: &str, key: &str) -> Vec<u8> {
        session(b'k', id, key.as_bytes())
    }

    pub(crate) fn learned(name: &str) -> Vec<u8> {
        session(b'l', name, &[])
    }

    pub(crate) fn segment(id: u64) -> Vec<u8> {
        let mut key = vec![b's'];
        key.extend(id.to_be_bytes());
        key
    }

    /// The session and what follows it.
    pub(crate) fn split(key: &[u8]) -> Option<(&str, &[u8])> {
        let zero = key.iter().position(|&byte| byte == 0)?;
        Some((std::str::from_utf8(key.get(1..zero)?).ok()?, &key[zero + 1..]))
    }
}

pub(crate) fn encode_location(location: Location) -> Vec<u8> {
    location.encode().to_vec()
}

pub(crate) fn encode_used_key(first: u64, location: Location) -> Vec<u8> {
    [first.to_le_bytes().as_slice(), &location.encode()].concat()
}

pub(crate) fn encode_learned(location: Location, value: &[u8]) -> Vec<u8> {
    [location.encode().as_slice(), value].concat()
}

/// A change: the new value, or `None` to remove the key.
pub(crate) type Change = (Vec<u8>, Option<Vec<u8>>);
type Pair = (Vec<u8>, Vec<u8>);

#[derive(Debug, Default)]
struct Overlay {
    table: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

/// The index of one store. All calls may block on the disk.
#[derive(Debug)]
pub(crate) struct Index {
    /// `None` while it lives in memory alone, and after it was closed.
    database: RwLock<Option<sled::Db>>,
    overlay: RwLock<Overlay>,
    /// The first failure; from then on everything fails.
    broken: Mutex<Option<String>>,
    is_closed: AtomicBool,
    /// A file that says that the next open must build the index again.
    suspect_path: PathBuf,
}

fn index_error(detail: impl std::fmt::Display) -> StoreError {
    StoreError::Index { detail: detail.to_string() }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

impl Index {
    fn new(dir: &Path, database: Option<sled::Db>) -> Self {
        Self {
            database: RwLock::new(database),
            overlay: RwLock::default(),
            broken: Mutex::new(None),
            is_closed: AtomicBool::new(false),
            suspect_path: dir.join("index.suspect"),
        }
    }

    /// An index in memory, for when sled cannot be used.
    pub(crate) fn in_memory(dir: &Path) -> Self {
        Self::new(dir, None)
    }

    /// Opens sled's database in `dir/index`, on a thread of its own: sled can panic here.
    pub(crate) fn open(dir: &Path, cache_bytes: u64) -> Result<Self, String> {
        let path = dir.join("index");
        let open = move || {
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(cache_bytes)
                .flush_every_ms(None)
                .mode(sled::Mode::HighThroughput);
            let mut opened = config.open();
            // sled's own threads may hold its lock a moment longer than the database that was dropped. Nobody else
            // can have it: the directory is locked.
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
            Ok(Ok(Ok(database))) => Ok(Self::new(dir, Some(database))),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(panic)) => Err(format!("opening it panicked: {}", panic_text(panic.as_ref()))),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether an earlier run asked for it to be built again.
    pub(crate) fn is_suspect(dir: &Path) -> bool {
        dir.join("index.suspect").exists()
    }

    /// Puts the database in `dir` out of the way, keeping one such copy at most.
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

    /// The next open builds it again.
    pub(crate) fn suspect(&self, reason: &str) {
        tracing::error!(reason, "the index does not fit the journal; the next start builds it again");
        if let Err(error) = std::fs::write(&self.suspect_path, reason) {
            tracing::error!(%error, "cannot note that the index is suspect");
        }
    }

    /// It was built anew.
    pub(crate) fn clear_suspect(&self) {
        if let Err(error) = std::fs::remove_file(&self.suspect_path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove the note about the suspect index");
        }
    }

    /// Runs `work` on the database; `Ok(None)` where there is none. After a failure or a panic sled is not touched
    /// again.
    fn with<T>(&self, work: impl FnOnce(&sled::Db) -> sled::Result<T>) -> Result<Option<T>, StoreError> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        if let Some(detail) = &*self.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(index_error(detail));
        }
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = database.as_ref() else { return Ok(None) };
        let detail = match catch_unwind(AssertUnwindSafe(|| work(database))) {
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_text(panic.as_ref()),
        };
        self.suspect(&detail);
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(detail.clone());
        Err(index_error(detail))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.overlay.read().unwrap_or_else(PoisonError::into_inner).table.get(key) {
            return Ok(value.clone());
        }
        let value = self.with(|database| database.get(key))?;
        Ok(value.flatten().map(|value| value.to_vec()))
    }

    /// The pairs from `from` up to but without `until`, in order.
    fn range(&self, from: &[u8], until: &[u8]) -> Result<Vec<Pair>, StoreError> {
        let bounds = (Bound::Included(from), Bound::Excluded(until));
        // The overlay first: what moves to sled meanwhile is then seen twice, not missed.
        let newer: Vec<Change> = {
            let overlay = self.overlay.read().unwrap_or_else(PoisonError::into_inner);
            overlay.table.range::<[u8], _>(bounds).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let older = self.with(|database| {
            database
                .range(from..until)
                .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())))
                .collect()
        })?;
        let older: Vec<Pair> = older.unwrap_or_default();
        if newer.is_empty() {
            return Ok(older);
        }
        let mut merged: BTreeMap<Vec<u8>, Option<Vec<u8>>> =
            older.into_iter().map(|(key, value)| (key, Some(value))).collect();
        merged.extend(newer);
        Ok(merged.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }

    /// Makes changes visible to every reader at once. Only the writer calls it.
    pub(crate) fn stage(&self, changes: Vec<Change>) {
        let mut overlay = self.overlay.write().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in changes {
            overlay.bytes += 64 + key.len() + value.as_ref().map_or(0, Vec::len);
            overlay.table.insert(key, value);
        }
    }

    /// About how many bytes wait to be moved to sled.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.overlay.read().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// Moves what was staged to sled, as one atomic batch. On failure it stays where it is. Only the writer calls it.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        {
            let overlay = self.overlay.read().unwrap_or_else(PoisonError::into_inner);
            if overlay.table.is_empty() {
                return Ok(());
            }
            for (key, value) in &overlay.table {
                match value {
                    Some(value) => batch.insert(key.as_slice(), value.as_slice()),
                    None => batch.remove(key.as_slice()),
                }
            }
        }
        if self.with(|database| database.apply_batch(batch))?.is_some() {
            *self.overlay.write().unwrap_or_else(PoisonError::into_inner) = Overlay::default();
        }
        Ok(())
    }

    /// Settles, flushes and closes the database. Called on the writer's thread: sled's drop can panic.
    pub(crate) fn close(&self) {
        let settled = self.settle().and_then(|()| self.with(|database| database.flush()).map(drop));
        if let Err(error) = &settled {
            tracing::warn!(%error, "the index was not written to the end; the next start reads the journal again");
        }
        self.is_closed.store(true, Ordering::SeqCst);
        let database = self.database.write().unwrap_or_else(PoisonError::into_inner).take();
        if settled.is_ok() {
            if catch_unwind(AssertUnwindSafe(move || drop(database))).is_err() {
                tracing::warn!("closing the index panicked");
            }
        } else {
            // After a failure inside sled its drop may panic again or wait for ever.
            std::mem::forget(database);
        }
    }

    pub(crate) fn checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        Ok(self.get(key::CHECKPOINT)?.as_deref().and_then(Checkpoint::decode))
    }

    pub(crate) fn row(&self, session: &str) -> Result<Option<Row>, StoreError> {
        match self.get(&key::row(session))? {
            None => Ok(None),
            Some(bytes) => {
                Row::decode(&bytes).map(Some).ok_or_else(|| index_error("a session's row does not decode"))
            }
        }
    }

    /// All rows, and their sum.
    pub(crate) fn rows(&self) -> Result<(Vec<(String, Row)>, u64), StoreError> {
        let mut rows = Vec::new();
        let mut sum = 0_u64;
        for (key, value) in self.range(b"h", b"i")? {
            let session = key::split(&key).map(|(session, _)| session.to_owned());
            let row = Row::decode(&value);
            let (Some(session), Some(row)) = (session, row) else {
                return Err(index_error("a session's row does not decode"));
            };
            sum = sum.wrapping_add(row_sum(&session, &value));
            rows.push((session, row));
        }
        Ok((rows, sum))
    }

    pub(crate) fn segment_rows(&self) -> Result<BTreeMap<u64, SegmentRow>, StoreError> {
        let decode = |(key, value): Pair| {
            let id = u64::from_be_bytes(key.get(1..)?.try_into().ok()?);
            Some((id, SegmentRow::decode(&value)?))
        };
        let rows: Option<BTreeMap<u64, SegmentRow>> =
            self.range(b"s", b"t")?.into_iter().map(decode).collect();
        rows.ok_or_else(|| index_error("a segment's row does not decode"))
    }

    fn entry_of(pair: &Pair) -> Result<(&str, u64, Location), StoreError> {
        let decode = || {
            let (session, sequence) = key::split(&pair.0)?;
            Some((session, u64::from_be_bytes(sequence.try_into().ok()?), Location::decode(&pair.1)?))
        };
        decode().ok_or_else(|| index_error("an entry's place does not decode"))
    }

    /// Where the session's entries from `from` up to but without `until` lie.
    pub(crate) fn entries(
        &self,
        session: &str,
        from: u64,
        until: u64,
    ) -> Result<Vec<(u64, Location)>, StoreError> {
        let pairs = self.range(&key::entry(session, from), &key::entry(session, until))?;
        pairs
            .iter()
            .map(|pair| Self::entry_of(pair).map(|(_, sequence, location)| (sequence, location)))
            .collect()
    }

    pub(crate) fn entry(&self, session: &str, sequence: u64) -> Result<Option<Location>, StoreError> {
        Ok(self.get(&key::entry(session, sequence))?.as_deref().and_then(Location::decode))
    }

    /// Every entry's place, by session. Reads the whole index: only after damage.
    pub(crate) fn all_entries(&self) -> Result<Vec<(String, u64, Location)>, StoreError> {
        let pairs = self.range(b"e", b"f")?;
        let owned =
            |pair| Self::entry_of(pair).map(|(session, sequence, at)| (session.to_owned(), sequence, at));
        pairs.iter().map(owned).collect()
    }

    /// The first entry of the batch that used this idempotency key, and where it lies.
    pub(crate) fn used_key(
        &self,
        session: &str,
        key: &str,
    ) -> Result<Option<(EntryId, Location)>, StoreError> {
        let value = self.get(&key::idempotency(session, key))?;
        Ok(value.and_then(|bytes| {
            let mut reader = Reader(&bytes);
            Some((EntryId(reader.u64()?), Location::decode(reader.0)?))
        }))
    }

    /// The session's idempotency keys, as they are in the index, with their values.
    pub(crate) fn used_keys(&self, session: &str) -> Result<Vec<Pair>, StoreError> {
        self.range(&key::session(b'k', session, &[]), &key::session(b'k', session, &[0xFF]))
    }

    /// Those of them that were used for entries from `from` on.
    pub(crate) fn used_keys_from(&self, session: &str, from: u64) -> Result<Vec<(Vec<u8>, u64)>, StoreError> {
        let first = |(key, value): Pair| Some((key, Reader(&value).u64()?));
        Ok(self
            .used_keys(session)?
            .into_iter()
            .filter_map(first)
            .filter(|(_, first)| *first >= from)
            .collect())
    }

    pub(crate) fn learned(&self, name: &str) -> Result<Option<(Location, Vec<u8>)>, StoreError> {
        let value = self.get(&key::learned(name))?;
        Ok(value.and_then(|bytes| {
            let mut reader = Reader(&bytes);
            let location = Location::decode(reader.take(Location::BYTES)?)?;
            Some((location, reader.0.to_vec()))
        }))
    }
}
