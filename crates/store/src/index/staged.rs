//! The changes of the index that are not yet in sled.
//!
//! Invariants: what almost every append changes, its session's row and the locations of its entries, is staged as
//! values, which are encoded when they move to sled: once, however many appends they stand for. Other rows are staged
//! as their bytes. A newer change of a row replaces an older one.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};
use std::sync::Arc;

use greenroom_kernel::head::Head;

use super::chunks::Places;
use super::rows::{Checkpoint, Location, Row};

/// What is counted for a session besides its id, in bytes.
const SESSION_BYTES: usize = 128;
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
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) entries: Range<u64>,
    pub(super) location: Option<Location>,
}

/// The changes of one session.
#[derive(Debug, Default)]
pub(super) struct OfSession {
    /// The session's row, if it changed; `Some(None)` if it was removed.
    pub(super) row: Option<Option<Row>>,
    /// The changes of its entries, in the order in which they were made.
    pub(super) spans: Vec<Span>,
}

/// Changes by row.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) sessions: HashMap<Arc<str>, OfSession>,
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
                let changes = self.of_session(session);
                let is_first = changes.row.is_none();
                changes.row = Some(row);
                self.size.bytes += if is_first { size_of::<Head>() } else { 0 };
            }
            Change::Entries { session, entries, location } => {
                self.of_session(session).spans.push(Span { entries, location });
                self.size.bytes += size_of::<Span>();
            }
            Change::Checkpoint(checkpoint) => self.table.checkpoint = Some(checkpoint),
            Change::Other { key, value } => {
                self.size.bytes += CHANGE_BYTES + key.len() + value.as_ref().map_or(0, Vec::len);
                self.table.others.insert(key, value);
            }
        }
    }

    fn of_session(&mut self, session: Arc<str>) -> &mut OfSession {
        let Self { table, size, .. } = self;
        let length = session.len();
        table.sessions.entry(session).or_insert_with(|| {
            size.bytes += SESSION_BYTES + length;
            size.sessions += 1;
            OfSession::default()
        })
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

    /// Returns the changed rows of the sessions after `after`, by id.
    pub(super) fn rows(&self, after: Option<&str>) -> BTreeMap<Arc<str>, Option<Row>> {
        let mut rows = BTreeMap::new();
        for (session, changes) in self.tables().flat_map(|table| &table.sessions) {
            if let Some(row) = &changes.row
                && after.is_none_or(|after| &**session > after)
            {
                rows.insert(Arc::clone(session), row.clone());
            }
        }
        rows
    }

    /// Returns the changes of the session's entries, the older ones first.
    pub(super) fn spans(&self, session: &str) -> Vec<Span> {
        let changes = self.tables().filter_map(|table| table.sessions.get(session));
        changes.flat_map(|changes| changes.spans.iter().cloned()).collect()
    }

    /// Returns the changes of all sessions' entries, those of each session with the older ones first.
    pub(super) fn all_spans(&self) -> Vec<(Arc<str>, Vec<Span>)> {
        let changes = self.tables().flat_map(|table| &table.sessions);
        changes.map(|(session, changes)| (Arc::clone(session), changes.spans.clone())).collect()
    }
}

/// Applies changes of a session's entries, in their order.
pub(super) fn apply(spans: &[Span], places: &mut Places) {
    for Span { entries, location } in spans {
        match location {
            Some(location) => places.extend(entries.clone().map(|sequence| (sequence, *location))),
            None => {
                let removed: Vec<u64> =
                    places.range(entries.clone()).map(|(sequence, _)| *sequence).collect();
                for sequence in removed {
                    places.remove(&sequence);
                }
            }
        }
    }
}
