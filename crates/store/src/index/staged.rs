//! The changes of the index that are not yet in sled.
//!
//! Invariants: what almost every append changes, its session's row and the locations of its entries, is staged as
//! values, which are encoded when they move to sled: once, however many appends they stand for. Other rows are staged
//! as their bytes. A newer change of a row or an entry replaces an older one, so a table is no larger than what changed.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::head::Head;

use super::chunks::Places;
use super::rows::{Checkpoint, Location, Row};

/// What is counted for a session besides its id, its row and its spans, in bytes.
const SESSION_BYTES: usize = 128;
/// What is counted for a span, in bytes.
const SPAN_BYTES: usize = 48;
/// What is counted for any other change besides its key and value, in bytes.
const CHANGE_BYTES: usize = 64;

/// A change of the index.
#[derive(Debug)]
pub(crate) enum Change {
    /// A session has this row now, or none any more.
    Row { session: Arc<str>, row: Option<Row> },
    /// These entries of a session lie here now, or nowhere any more.
    Entries { session: Arc<str>, entries: Range<u64>, location: Option<Location> },
    /// The journal is indexed up to here.
    Checkpoint(Checkpoint),
    /// Any other key has this value now, or none any more.
    Other { key: Vec<u8>, value: Option<Vec<u8>> },
}

/// How much is staged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Size {
    /// The approximate size in memory.
    pub(crate) bytes: usize,
    /// The number of sessions that changed.
    pub(crate) sessions: u64,
}

/// Entries that have the same location now: that of a frame, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// The sequence number after the last one.
    end: u64,
    location: Option<Location>,
}

/// Changes of a session's entries, by the first entry of each. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct Spans(BTreeMap<u64, Span>);

impl Spans {
    /// Sets the location of entries. Returns whether a span was added.
    fn set(&mut self, entries: Range<u64>, location: Option<Location>) -> bool {
        let Range { start, end } = entries;
        if start >= end {
            return false;
        }
        if let Some(mut last) = self.0.last_entry() {
            let last = last.get_mut();
            if last.end == start && last.location == location {
                last.end = end;
                return false;
            }
            if last.end > start {
                self.clear(start, end);
            }
        }
        self.0.insert(start, Span { end, location });
        true
    }

    /// Removes the changes of the entries in `start..end`.
    fn clear(&mut self, start: u64, end: u64) {
        let mut rest = None;
        if let Some((_, before)) = self.0.range_mut(..start).next_back()
            && before.end > start
        {
            rest = Some(*before);
            before.end = start;
        }
        while let Some((first, inside)) = self.0.range(start..end).next().map(|(first, span)| (*first, *span))
        {
            self.0.remove(&first);
            rest = Some(inside);
        }
        // Only the last span may extend beyond the end.
        if let Some(rest) = rest.filter(|rest| rest.end > end) {
            self.0.insert(end, rest);
        }
    }

    /// Returns the first entry and the one after the last.
    pub(super) fn bounds(&self) -> Option<Range<u64>> {
        Some(*self.0.first_key_value()?.0..self.0.last_key_value()?.1.end)
    }

    /// Returns the changes of the entries in `range`, in their order. The range must not be empty.
    fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Option<Location>)> {
        let Range { start, end } = range;
        let before = self.0.range(..start).next_back().filter(|(_, span)| span.end > start);
        let inside = self.0.range(start..end);
        before
            .into_iter()
            .chain(inside)
            .map(move |(first, span)| ((*first).max(start)..span.end.min(end), span.location))
    }

    /// Applies all changes.
    pub(super) fn apply(&self, places: &mut Places) {
        self.0.iter().for_each(|(first, span)| apply(*first..span.end, span.location, places));
    }
}

/// The changes of one session.
#[derive(Debug, Default)]
pub(super) struct SessionChanges {
    /// The session's row, if it changed; `Some(None)` if it was removed.
    pub(super) row: Option<Option<Row>>,
    /// The changes of its entries.
    pub(super) spans: Spans,
}

/// Changes by row.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) sessions: HashMap<Arc<str>, SessionChanges>,
    /// The ids of these sessions, in order.
    ids: BTreeSet<Arc<str>>,
    pub(super) checkpoint: Option<Checkpoint>,
    /// The changes of all other rows, by key.
    pub(super) others: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Table {
    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.checkpoint.is_none() && self.others.is_empty()
    }
}

/// The changes that are not yet in sled.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// The newest changes.
    table: Table,
    /// The size of the newest changes.
    pub(super) size: Size,
    /// The changes that are being moved to sled.
    pub(super) moving: Option<Arc<Table>>,
}

impl Staged {
    /// Adds a change to the newest ones.
    pub(super) fn add(&mut self, change: Change) {
        match change {
            Change::Row { session, row } => {
                let bytes = row.as_ref().map_or(0, |row| head_bytes(&row.head));
                let before = self.changes_of(session).row.replace(row).flatten();
                let bytes_before = before.map_or(0, |row| head_bytes(&row.head));
                self.size.bytes = (self.size.bytes + bytes).saturating_sub(bytes_before);
            }
            Change::Entries { session, entries, location } => {
                let is_added = self.changes_of(session).spans.set(entries, location);
                self.size.bytes += if is_added { SPAN_BYTES } else { 0 };
            }
            Change::Checkpoint(checkpoint) => self.table.checkpoint = Some(checkpoint),
            Change::Other { key, value } => {
                self.size.bytes += CHANGE_BYTES + key.len() + value.as_ref().map_or(0, Vec::len);
                self.table.others.insert(key, value);
            }
        }
    }

    fn changes_of(&mut self, session: Arc<str>) -> &mut SessionChanges {
        let Self { table, size, .. } = self;
        let Table { sessions, ids, .. } = table;
        match sessions.entry(session) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                ids.insert(Arc::clone(unknown.key()));
                size.bytes += SESSION_BYTES + unknown.key().len();
                size.sessions += 1;
                unknown.insert(SessionChanges::default())
            }
        }
    }

    /// Selects the newest changes for a move, unless one is in progress. Returns whether there is anything to move.
    pub(super) fn begin_move(&mut self) -> bool {
        if self.moving.is_none() && !self.table.is_empty() {
            self.moving = Some(Arc::new(std::mem::take(&mut self.table)));
            self.size = Size::default();
        }
        self.moving.is_some()
    }

    /// Returns both tables, the older one first.
    fn tables(&self) -> impl DoubleEndedIterator<Item = &Table> {
        self.moving.as_deref().into_iter().chain([&self.table])
    }

    /// Returns the newest change of a row that is staged as bytes.
    pub(super) fn other(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.tables().rev().find_map(|table| table.others.get(key))
    }

    /// Returns the changes of the rows that are staged as bytes within the bounds, the older ones first.
    pub(super) fn others(&self, from: &[u8], until: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let bounds = (Bound::Included(from), Bound::Excluded(until));
        let changes = self.tables().flat_map(|table| table.others.range::<[u8], _>(bounds));
        changes.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns the session's changed row; `None` if it did not change.
    pub(super) fn row(&self, session: &str) -> Option<&Option<Row>> {
        self.tables().rev().find_map(|table| table.sessions.get(session)?.row.as_ref())
    }

    /// Returns the changed rows of the first sessions after `after`, in order of their ids, until `limit` of them are rows
    /// that were not removed.
    pub(super) fn rows(&self, after: Option<&str>, limit: usize) -> BTreeMap<Arc<str>, Option<Row>> {
        let bounds = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut ids: Vec<_> =
            self.tables().map(|table| table.ids.range::<str, _>(bounds).peekable()).collect();
        let (mut rows, mut existing) = (BTreeMap::new(), 0);
        while existing < limit
            && let Some(id) = ids.iter_mut().filter_map(|ids| ids.peek().copied()).min()
        {
            for ids in &mut ids {
                let _ = ids.next_if_eq(&id);
            }
            if let Some(row) = self.row(id) {
                existing += usize::from(row.is_some());
                rows.insert(Arc::clone(id), row.clone());
            }
        }
        rows
    }

    /// Returns the changes of the session's entries in `range`, the older ones first.
    pub(super) fn spans(&self, session: &str, range: &Range<u64>) -> Vec<(Range<u64>, Option<Location>)> {
        let changes = self.tables().filter_map(|table| table.sessions.get(session));
        changes.flat_map(|changes| changes.spans.within(range.clone())).collect()
    }

    /// Returns the changes of all sessions' entries, those of each session with the older ones first.
    pub(super) fn all_spans(&self) -> Vec<(Arc<str>, Range<u64>, Option<Location>)> {
        let sessions = self.tables().flat_map(|table| &table.sessions);
        let changes = sessions.flat_map(|(session, changes)| {
            changes.spans.within(0..u64::MAX).map(|(entries, at)| (Arc::clone(session), entries, at))
        });
        changes.collect()
    }
}

/// Returns about how much memory a head takes, in bytes.
fn head_bytes(head: &Head) -> usize {
    let Head { inbox, pins, questions, labels, title, .. } = head;
    let ids = size_of::<EntryId>() * (inbox.len() + pins.len() + questions.len());
    let labels: usize = labels.iter().map(|(name, value)| CHANGE_BYTES + name.len() + value.len()).sum();
    size_of::<Head>() + ids + labels + title.as_ref().map_or(0, String::len)
}

/// Applies one change of a session's entries.
pub(super) fn apply(entries: Range<u64>, location: Option<Location>, places: &mut Places) {
    match location {
        Some(location) => places.extend(entries.map(|sequence| (sequence, location))),
        None => {
            let removed: Vec<u64> = places.range(entries).map(|(sequence, _)| *sequence).collect();
            for sequence in removed {
                places.remove(&sequence);
            }
        }
    }
}
