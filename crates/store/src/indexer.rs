//! Converts the journal's frames to changes of the index: both frames just written, and frames read again
//! when a store is opened.
//!
//! Invariants: applying all frames in the order of their segments always results in the same index. A session
//! whose frames are not consecutive is quarantined. Nothing else changes the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::head::{Head, LoggedState};
use parking_lot::Mutex;

use crate::error::StoreError;
use crate::index::{
    Change, Checkpoint, Index, Location, PartRow, Row, RowPlace, SegmentRow, encode_fact, encode_used_key,
    key,
};
use crate::journal::{Frame, FrameKind, SEGMENT_HEADER_BYTES};
use crate::record::StoredRecord;

/// A frame's effect on the index, apart from the frame's location.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// The session has more entries, or a new head.
    Append { key: Option<String>, head: Arc<Head> },
    /// The session was deleted.
    Deleted,
    /// A fact was stored.
    Learned { key: String, value: Vec<u8> },
    /// The session lost entries, and has had this head since.
    Quarantined { head: Arc<Head> },
    /// The session continues from this head, without the lost entries.
    LossAccepted { head: Arc<Head> },
    /// The session has a part of a batch that does not count yet.
    Part { batch: u64 },
    /// The session has the whole batch.
    Commit { batch: u64, key: Option<String>, head: Arc<Head> },
}

impl Effect {
    /// Returns the effect of a record that was read from `frame`; an error if the two contradict each other.
    /// The writer checked the same before it wrote them.
    pub(crate) fn of(frame: &Frame, record: StoredRecord) -> Result<Self, StoreError> {
        let is_of_kind = kind_of(&record) == frame.kind;
        let fits = match &record {
            StoredRecord::Append { entries, head, .. }
            | StoredRecord::Part { entries, head, .. }
            | StoredRecord::Commit { entries, head, .. } => {
                let ids = entries.iter().map(|entry| entry.id.0);
                ids.eq(frame.sequence..frame.sequence.saturating_add(u64::from(frame.count)))
                    && frame.sequence.checked_add(u64::from(frame.count)) == Some(head.entries)
            }
            StoredRecord::Quarantined { head } | StoredRecord::LossAccepted { head } => {
                frame.sequence == head.entries
            }
            StoredRecord::Deleted | StoredRecord::Learned { .. } => true,
        };
        if is_of_kind && fits {
            Ok(record.into())
        } else {
            let (session, sequence) = (&frame.session, frame.sequence);
            let detail =
                format!("it is not what the header of {session}'s frame at entry {sequence} announces");
            Err(StoreError::Record { detail })
        }
    }
}

impl Effect {
    /// Returns the idempotency key that the frame used.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Append { key, .. } | Self::Commit { key, .. } => key.as_deref(),
            Self::Deleted
            | Self::Learned { .. }
            | Self::Quarantined { .. }
            | Self::LossAccepted { .. }
            | Self::Part { .. } => None,
        }
    }
}

/// Returns where the session ends with these parts behind its first `known` entries: before the first missing
/// part.
fn end_of(known: u64, parts: &[PartRow]) -> u64 {
    parts.iter().fold(known, |end, part| if part.first == end { part.end() } else { end })
}

impl From<StoredRecord> for Effect {
    fn from(record: StoredRecord) -> Self {
        match record {
            StoredRecord::Append { key, head, .. } => Self::Append { key, head },
            StoredRecord::Deleted => Self::Deleted,
            StoredRecord::Learned { key, value } => Self::Learned { key, value },
            StoredRecord::Quarantined { head } => Self::Quarantined { head },
            StoredRecord::LossAccepted { head } => Self::LossAccepted { head },
            StoredRecord::Part { batch, .. } => Self::Part { batch },
            StoredRecord::Commit { batch, key, head, .. } => Self::Commit { batch, key, head },
        }
    }
}

/// The part of a session's row that appends need, cached in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedRow {
    /// How many entries the session has.
    pub(crate) entries: u64,
    /// The first lost entry, if the session is quarantined.
    pub(crate) lost_from: Option<EntryId>,
    place: RowPlace,
}

/// The maximum number of cached rows, without those of the group that is being applied: a table of 2^14 has room for
/// both. If there are more sessions, all rows are read from the index again.
const CACHED_ROWS_MAX: usize = 10_240;

/// Applies changes to the index.
#[derive(Debug)]
pub(crate) struct Indexer {
    index: Arc<Index>,
    /// `None` for a session that does not exist.
    cache: HashMap<String, Option<CachedRow>>,
    /// The checkpoint after all applied frames.
    pub(crate) checkpoint: Checkpoint,
    /// The rows of all segments, by number.
    pub(crate) segments: BTreeMap<u64, SegmentRow>,
    /// The changes that readers do not see yet.
    changes: Vec<Change>,
    /// The sessions found to have lost entries, and the first lost entry of each. The journal does not record
    /// these losses yet.
    pub(crate) newly_lost: BTreeMap<String, EntryId>,
    /// The sessions that lost entries, which nobody has accepted. Others read it.
    pub(crate) quarantined: Arc<Mutex<BTreeSet<String>>>,
    /// The sessions that have an uncommitted batch.
    uncommitted: HashMap<String, Uncommitted>,
}

/// An uncommitted batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uncommitted {
    /// The batch's random number.
    pub(crate) batch: u64,
    /// The sequence number after its last part.
    pub(crate) end: u64,
}

/// Returns the head of a session that lost its entries from `from` on.
pub(crate) fn lost_head(mut head: Head, from: EntryId) -> Head {
    head.lost_from = Some(from);
    head.state =
        LoggedState::Failed { reason: format!("entries from {from} on were lost with a damaged disk") };
    head
}

impl Indexer {
    pub(crate) fn new(
        index: Arc<Index>,
        checkpoint: Checkpoint,
        segments: BTreeMap<u64, SegmentRow>,
    ) -> Self {
        let mut uncommitted = HashMap::new();
        // Without these rows, the session's batch is found incomplete when its commit is read.
        for (session, part) in index.all_parts().unwrap_or_default() {
            uncommitted.insert(session, Uncommitted { batch: part.batch, end: part.end() });
        }
        Self {
            index,
            cache: HashMap::new(),
            checkpoint,
            segments,
            changes: Vec::new(),
            newly_lost: BTreeMap::new(),
            quarantined: Arc::default(),
            uncommitted,
        }
    }

    /// Returns the session's uncommitted batch.
    pub(crate) fn uncommitted(&self, session: &str) -> Option<Uncommitted> {
        self.uncommitted.get(session).copied()
    }

    /// Discards all uncommitted batches. Returns whether there was any.
    pub(crate) fn drop_uncommitted(&mut self) -> Result<bool, StoreError> {
        let sessions: Vec<String> = self.uncommitted.keys().cloned().collect();
        for session in &sessions {
            self.drop_parts(session)?;
        }
        Ok(!sessions.is_empty())
    }

    /// Discards the session's uncommitted batch.
    pub(crate) fn drop_parts(&mut self, session: &str) -> Result<(), StoreError> {
        self.keep_parts(session, 0).map(drop)
    }

    /// Keeps the entries before `until` of the uncommitted batch as entries of the session, and discards the
    /// others. Returns the parts of the batch.
    fn keep_parts(&mut self, session: &str, until: u64) -> Result<Vec<PartRow>, StoreError> {
        if self.uncommitted.is_empty() || self.uncommitted.remove(session).is_none() {
            return Ok(Vec::new());
        }
        self.stage();
        let parts = self.index.parts(session)?;
        let id: Arc<str> = session.into();
        for part in &parts {
            self.change(key::part(session, part.first), None);
            let entries = part.first..part.end().min(until);
            if !entries.is_empty() {
                let (session, location) = (Arc::clone(&id), Some(part.location));
                self.changes.push(Change::Entries { session, entries, location });
            }
            if part.first >= until {
                self.count_dead(part.location);
            }
        }
        Ok(parts)
    }

    /// Adds a part to the session's batch; the first part begins it.
    fn add_part(&mut self, frame: &Frame, location: Location, batch: u64) -> Result<(), StoreError> {
        let session = frame.session.as_ref();
        if self.uncommitted(session).is_some_and(|begun| begun.batch != batch) {
            self.drop_parts(session)?;
        }
        let part = PartRow { batch, first: frame.sequence, count: frame.count, location };
        self.change(key::part(session, part.first), Some(part.encode()));
        self.uncommitted.insert(session.to_owned(), Uncommitted { batch, end: part.end() });
        Ok(())
    }

    /// Returns the index.
    pub(crate) fn index(&self) -> Arc<Index> {
        Arc::clone(&self.index)
    }

    /// Returns the session's cached row after everything that was applied; `None` if there is no such
    /// session.
    pub(crate) fn known(&mut self, session: &str) -> Result<Option<CachedRow>, StoreError> {
        if let Some(known) = self.cache.get(session) {
            return Ok(*known);
        }
        let known = match self.index.row(session)? {
            None => None,
            Some(Row { head, place }) => {
                // If the index lost a key, the append that used it could be written twice.
                let keys = self.index.used_keys(session)?.len();
                if place.keys != keys as u64 {
                    self.index.mark_suspect("idempotency keys are missing");
                    let detail = format!("session {session} has {keys} idempotency keys of {}", place.keys);
                    return Err(StoreError::Index { detail });
                }
                Some(CachedRow { entries: head.entries, lost_from: head.lost_from, place })
            }
        };
        if self.cache.len() >= CACHED_ROWS_MAX && self.changes.is_empty() {
            self.cache.clear();
        }
        self.cache.insert(session.to_owned(), known);
        Ok(known)
    }

    /// Replaces a session's row.
    pub(crate) fn set_row(
        &mut self,
        session: &str,
        head: Arc<Head>,
        place: RowPlace,
    ) -> Result<(), StoreError> {
        let old = self.known(session)?;
        self.replace_row(session.into(), old, Row { head, place });
        Ok(())
    }

    /// Replaces a session's row; `old` is the one that is known.
    fn replace_row(&mut self, session: Arc<str>, old: Option<CachedRow>, row: Row) {
        let Row { head, place } = &row;
        if old.is_none() {
            self.checkpoint.rows += 1;
        }
        self.recount(old.map_or(0, |old| old.entries), head.entries);
        self.set_quarantined(&session, old, head.lost_from.is_some());
        let known = CachedRow { entries: head.entries, lost_from: head.lost_from, place: *place };
        match self.cache.get_mut(&*session) {
            Some(cached) => *cached = Some(known),
            None => drop(self.cache.insert(session.to_string(), Some(known))),
        }
        self.changes.push(Change::Row { session, row: Some(row) });
    }

    /// Adds a change of a row that is staged as bytes.
    fn change(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.changes.push(Change::Other { key, value });
    }

    /// Adds the removal of a session's entry.
    fn remove_entry(&mut self, session: &str, sequence: u64) {
        let (session, entries) = (session.into(), sequence..sequence + 1);
        self.changes.push(Change::Entries { session, entries, location: None });
    }

    /// Notes whether a session is quarantined now; `old` is its row before.
    fn set_quarantined(&self, session: &str, old: Option<CachedRow>, is_quarantined: bool) {
        if is_quarantined {
            self.quarantined.lock().insert(session.to_owned());
        } else if old.is_some_and(|old| old.lost_from.is_some()) {
            self.quarantined.lock().remove(session);
        }
    }

    /// Notes that a session has `after` entries instead of `before`.
    fn recount(&mut self, before: u64, after: u64) {
        if let Some(entries) = &mut self.checkpoint.entries {
            *entries = entries.wrapping_sub(before).wrapping_add(after);
        }
    }

    /// Counts the entries of all sessions, if the index lacks their number.
    pub(crate) fn count_entries(&mut self) -> Result<(), StoreError> {
        if self.checkpoint.entries.is_none() {
            let rows = self.index.rows()?;
            self.checkpoint.entries = Some(rows.iter().map(|(_, row)| row.head.entries).sum());
        }
        Ok(())
    }

    /// Adds a segment without frames. `digest` is its first chain.
    pub(crate) fn begin_segment(&mut self, id: u64, order: u64, seed: u32, digest: u32) {
        let row = SegmentRow { order, seed, digest, ..SegmentRow::default() };
        self.segments.insert(id, row);
        self.change(key::segment(id), Some(row.encode()));
        self.checkpoint.segment = id;
        self.checkpoint.offset = SEGMENT_HEADER_BYTES;
        self.checkpoint.chain = digest;
    }

    /// Counts the frame at `location` as dead.
    fn count_dead(&mut self, location: Location) {
        if let Some(row) = self.segments.get_mut(&location.segment) {
            row.dead += u64::from(location.length);
            let row = row.encode();
            self.change(key::segment(location.segment), Some(row));
        }
    }

    /// Records whether a segment holds deleted data.
    pub(crate) fn set_holds_deleted(&mut self, segment: u64, holds_deleted: bool) {
        if let Some(row) = self.segments.get_mut(&segment).filter(|row| row.holds_deleted != holds_deleted) {
            row.holds_deleted = holds_deleted;
            let row = row.encode();
            self.change(key::segment(segment), Some(row));
        }
    }

    /// Applies the next frame of a segment. `chain` is the chain after the frame.
    pub(crate) fn apply(
        &mut self,
        segment: u64,
        frame: &Frame,
        chain: u32,
        effect: Effect,
    ) -> Result<(), StoreError> {
        let location = Location { segment, offset: frame.offset, length: frame.length };
        if let Some(row) = self.segments.get_mut(&segment) {
            row.frames += 1;
            row.digest = chain;
            row.bytes += u64::from(frame.length);
        }
        match effect {
            Effect::Append { key, head } => {
                self.drop_parts(&frame.session)?;
                self.append(frame, location, key, head, None)?;
            }
            Effect::Part { batch } => self.add_part(frame, location, batch)?,
            Effect::Commit { batch, key, head } => {
                let session = frame.session.as_ref();
                if self.uncommitted(session).is_some_and(|begun| begun.batch != batch) {
                    self.drop_parts(session)?;
                }
                let parts = self.keep_parts(session, frame.sequence)?;
                let first = self.known(session)?.map_or(0, |known| known.entries);
                self.append(frame, location, key, head, Some((first, end_of(first, &parts))))?;
            }
            Effect::Deleted => {
                self.delete(&frame.session)?;
                self.count_dead(location);
            }
            Effect::Learned { key, value } => {
                if let Some((old, _)) = self.fact(&key)? {
                    self.count_dead(old);
                }
                self.change(key::fact(&key), Some(encode_fact(location, &value)));
                // The next fact of the same name reads this one back.
                self.stage();
            }
            Effect::Quarantined { head } | Effect::LossAccepted { head } => {
                self.newly_lost.remove(frame.session.as_ref());
                // The commit of a batch may be gone by now, if the loss discarded its entries.
                self.keep_parts(&frame.session, head.entries)?;
                let mut keys = self.known(&frame.session)?.map_or(0, |known| known.place.keys);
                self.stage();
                // The caller of a lost batch may repeat it with the same key.
                for (raw, first) in self.index.used_keys_from(&frame.session, head.entries)? {
                    tracing::debug!(session = %frame.session, first, "an idempotency key was lost with its entries");
                    self.change(raw, None);
                    keys -= 1;
                }
                for (sequence, old) in self.index.entries(&frame.session, head.entries, u64::MAX)? {
                    self.remove_entry(&frame.session, sequence);
                    self.count_dead(old);
                }
                let place = RowPlace { newest: location, mark: Some(location), keys };
                self.set_row(&frame.session, head, place)?;
            }
        }
        self.checkpoint.segment = segment;
        self.checkpoint.offset = frame.end();
        self.checkpoint.chain = chain;
        Ok(())
    }

    fn fact(&self, name: &str) -> Result<Option<(Location, Vec<u8>)>, StoreError> {
        self.index.fact(name)
    }

    /// Adds the entries of a frame. `parts` is where the parts before it begin and end, if it commits a
    /// batch.
    fn append(
        &mut self,
        frame: &Frame,
        location: Location,
        key: Option<String>,
        mut head: Arc<Head>,
        parts: Option<(u64, u64)>,
    ) -> Result<(), StoreError> {
        let session = frame.session.as_ref();
        let known = self.known(session)?;
        let expected = parts.map_or_else(|| known.map_or(0, |known| known.entries), |(_, end)| end);
        let mut lost_from = known.and_then(|known| known.lost_from);
        if frame.sequence != expected {
            let from = EntryId(expected.min(frame.sequence));
            let from = lost_from.map_or(from, |earlier| earlier.min(from));
            lost_from = Some(from);
            self.newly_lost.insert(session.to_owned(), from);
        }
        if let Some(from) = lost_from {
            head = Arc::new(lost_head(Arc::unwrap_or_clone(head), from));
        }
        if frame.count > 0 {
            let entries = frame.sequence..frame.sequence.saturating_add(u64::from(frame.count));
            let (session, location) = (Arc::clone(&frame.session), Some(location));
            self.changes.push(Change::Entries { session, entries, location });
        }
        let mut keys = known.map_or(0, |known| known.place.keys);
        if let Some(key) = key {
            keys += 1;
            let first = parts.map_or(frame.sequence, |(first, _)| first);
            let value = encode_used_key(first, location);
            self.change(key::idempotency(session, &key), Some(value));
        }
        let mark = known.and_then(|known| known.place.mark);
        let place = RowPlace { newest: location, mark, keys };
        self.replace_row(Arc::clone(&frame.session), known, Row { head, place });
        Ok(())
    }

    /// Removes everything about a session.
    pub(crate) fn delete(&mut self, session: &str) -> Result<(), StoreError> {
        self.stage();
        for part in self.index.parts(session)? {
            self.set_holds_deleted(part.location.segment, true);
        }
        self.drop_parts(session)?;
        let Some(known) = self.known(session)? else { return Ok(()) };
        // The changes of this group are staged first: only staged changes are found below and removed.
        self.stage();
        let mut last = None;
        let entries = self.index.entries(session, 0, u64::MAX)?;
        if let Some((sequence, _)) = entries.last() {
            let (session, entries) = (session.into(), 0..sequence + 1);
            self.changes.push(Change::Entries { session, entries, location: None });
        }
        for (_, location) in entries {
            if last != Some(location) {
                self.count_dead(location);
                self.set_holds_deleted(location.segment, true);
            }
            last = Some(location);
        }
        for (key, _) in self.index.used_keys(session)? {
            self.change(key, None);
        }
        self.changes.push(Change::Row { session: session.into(), row: None });
        self.checkpoint.rows -= 1;
        self.recount(known.entries, 0);
        self.set_quarantined(session, Some(known), false);
        self.cache.insert(session.to_owned(), None);
        self.newly_lost.remove(session);
        Ok(())
    }

    /// Quarantines the session, because a damaged part of the journal held its entries from `from` on.
    pub(crate) fn lose(&mut self, session: &str, from: EntryId) -> Result<(), StoreError> {
        let row = match self.row(session)? {
            Some(row) => row,
            None => {
                let newest = Location { segment: 0, offset: 0, length: 0 };
                Row { head: Arc::default(), place: RowPlace { newest, mark: None, keys: 0 } }
            }
        };
        let from = row.head.lost_from.map_or(from, |earlier| earlier.min(from));
        self.newly_lost.insert(session.to_owned(), from);
        self.set_row(session, Arc::new(lost_head(Arc::unwrap_or_clone(row.head), from)), row.place)
    }

    /// Quarantines the session, because a damaged part of the journal held the commit of a batch, whose own
    /// entries began at `sequence`. The parts are kept if all of them exist.
    pub(crate) fn lose_commit(&mut self, session: &str, sequence: u64) -> Result<(), StoreError> {
        self.stage();
        let base = self.known(session)?.map_or(0, |known| known.entries);
        let is_whole = end_of(base, &self.index.parts(session)?) == sequence;
        self.keep_parts(session, if is_whole { sequence } else { 0 })?;
        self.lose(session, EntryId(if is_whole { sequence } else { base }))?;
        if is_whole && let Some(Row { mut head, place }) = self.row(session)? {
            Arc::make_mut(&mut head).entries = sequence;
            self.set_row(session, head, place)?;
        }
        Ok(())
    }

    /// Returns the session's row after everything that was applied.
    pub(crate) fn row(&mut self, session: &str) -> Result<Option<Row>, StoreError> {
        self.stage();
        self.index.row(session)
    }

    /// Removes an entry whose frame is lost.
    pub(crate) fn forget_entry(&mut self, session: &str, sequence: u64) {
        self.remove_entry(session, sequence);
    }

    /// Removes a segment that was reclaimed or lost.
    pub(crate) fn drop_segment(&mut self, id: u64) {
        self.segments.remove(&id);
        self.change(key::segment(id), None);
    }

    /// Whether the frame at `location` is still needed. For the record of a deletion the answer is always no:
    /// only the caller knows whether older segments hold frames of the deleted session.
    pub(crate) fn is_needed(
        &self,
        frame: &Frame,
        location: Location,
        effect: &Effect,
    ) -> Result<bool, StoreError> {
        match effect {
            Effect::Learned { key, .. } => Ok(self.fact(key)?.is_some_and(|(at, _)| at == location)),
            Effect::Deleted => Ok(false),
            Effect::Part { .. } | Effect::Append { .. } | Effect::Commit { .. } => {
                for sequence in frame.sequence..frame.sequence + u64::from(frame.count) {
                    if self.index.entry(&frame.session, sequence)? == Some(location) {
                        return Ok(true);
                    }
                }
                if self.index.parts(&frame.session)?.iter().any(|part| part.location == location) {
                    return Ok(true);
                }
                if let Some(key) = effect.key()
                    && self.index.used_key(&frame.session, key)?.is_some_and(|(_, at)| at == location)
                {
                    return Ok(true);
                }
                Ok(self.index.row(&frame.session)?.is_some_and(|row| row.place.newest == location))
            }
            Effect::Quarantined { .. } | Effect::LossAccepted { .. } => {
                let row = self.index.row(&frame.session)?;
                Ok(row.is_some_and(|row| row.place.newest == location || row.place.mark == Some(location)))
            }
        }
    }

    /// Records that a needed frame was copied to another place.
    pub(crate) fn relocate(
        &mut self,
        frame: &Frame,
        from: Location,
        to: Location,
        effect: &Effect,
    ) -> Result<(), StoreError> {
        match effect {
            Effect::Learned { key, value } => {
                self.change(key::fact(key), Some(encode_fact(to, value)));
                return Ok(());
            }
            Effect::Deleted => return Ok(()),
            Effect::Part { .. } | Effect::Append { .. } | Effect::Commit { .. } => {
                for part in self.index.parts(&frame.session)? {
                    if part.location == from {
                        let moved = PartRow { location: to, ..part };
                        self.change(key::part(&frame.session, part.first), Some(moved.encode()));
                    }
                }
                for sequence in frame.sequence..frame.sequence + u64::from(frame.count) {
                    if self.index.entry(&frame.session, sequence)? == Some(from) {
                        let (session, entries) = (Arc::clone(&frame.session), sequence..sequence + 1);
                        self.changes.push(Change::Entries { session, entries, location: Some(to) });
                    }
                }
                if let Some(key) = effect.key()
                    && let Some((first, at)) = self.index.used_key(&frame.session, key)?
                    && at == from
                {
                    let value = encode_used_key(first.0, to);
                    self.change(key::idempotency(&frame.session, key), Some(value));
                }
            }
            Effect::Quarantined { .. } | Effect::LossAccepted { .. } => {}
        }
        if let Some(Row { head, mut place }) = self.row_unpublished(&frame.session)?
            && (place.newest == from || place.mark == Some(from))
        {
            place.newest = if place.newest == from { to } else { place.newest };
            place.mark = if place.mark == Some(from) { Some(to) } else { place.mark };
            self.set_row(&frame.session, head, place)?;
        }
        Ok(())
    }

    /// Returns the session's row with the changes of this group, which readers do not see yet.
    fn row_unpublished(&mut self, session: &str) -> Result<Option<Row>, StoreError> {
        let Some(mut row) = self.index.row(session)? else { return Ok(None) };
        if let Some(known) = self.known(session)? {
            row.place = known.place;
        }
        Ok(Some(row))
    }

    /// Adds a segment written by a reclaim.
    pub(crate) fn put_segment(&mut self, id: u64, row: SegmentRow) {
        self.segments.insert(id, row);
        self.change(key::segment(id), Some(row.encode()));
    }

    /// Makes the changes so far visible in the middle of a frame. The checkpoint stays before that frame.
    fn stage(&mut self) {
        self.index.stage(self.changes.drain(..));
    }

    /// Makes everything that was applied visible to readers, together with the checkpoint.
    pub(crate) fn publish(&mut self) {
        if let Some(row) = self.segments.get(&self.checkpoint.segment) {
            let row = row.encode();
            self.change(key::segment(self.checkpoint.segment), Some(row));
            self.changes.push(Change::Checkpoint(self.checkpoint));
        }
        self.stage();
    }
}

/// Returns the kind of the frame that holds this record.
pub(crate) fn kind_of(record: &StoredRecord) -> FrameKind {
    match record {
        StoredRecord::Append { .. } => FrameKind::Append,
        StoredRecord::Deleted => FrameKind::Deleted,
        StoredRecord::Learned { .. } => FrameKind::Learned,
        StoredRecord::Quarantined { .. } => FrameKind::Quarantined,
        StoredRecord::LossAccepted { .. } => FrameKind::LossAccepted,
        StoredRecord::Part { .. } => FrameKind::Part,
        StoredRecord::Commit { .. } => FrameKind::Commit,
    }
}
