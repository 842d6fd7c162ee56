//! How a batch is divided into frames.
//!
//! Invariants: the parts of a batch are its entries in order, each part is as large as a frame permits, and only the
//! last one makes the batch visible.

use std::sync::Arc;

use greenroom_kernel::{Entry, Head};

use crate::error::StoreError;
use crate::record::{self, StoredRecord};

/// A large batch, such as an import, is split into parts of at most this many entries and bytes, except for an entry
/// that alone is larger. A part is read as a whole, however little of it is wanted, so parts are small.
pub(crate) const PART_ENTRIES_MAX: usize = if cfg!(test) { 8 } else { 512 };

const PART_BYTES_MAX: usize = 1 << 20;
/// Only as many entries of a larger batch are encoded as fit into a part by their sizes.
pub(crate) const UNMEASURED_MAX: usize = 16;

/// The content of one frame: a batch, or a part of one.
pub(crate) struct Part {
    pub(crate) kind: PartKind,
    /// The number of entries.
    pub(crate) count: usize,
    /// The head after the entries.
    pub(crate) head: Arc<Head>,
    /// The encoded record.
    pub(crate) payload: Vec<u8>,
}

/// Which part of a batch a frame holds. The numbers are those of [`StoredRecord::Part`].
pub(crate) enum PartKind {
    Whole,
    Part(u64),
    Last(u64),
}

impl Part {
    /// Returns the first part of `entries` that fits into a frame: all of them if they fit. `is_begun` tells
    /// whether other parts came before, and `head` is the head after the whole batch.
    pub(crate) fn first_of(
        entries: &[Arc<Entry>],
        is_begun: bool,
        batch: u64,
        key: &Option<String>,
        head: &Arc<Head>,
    ) -> Result<Self, StoreError> {
        let mut count = entries.len().min(PART_ENTRIES_MAX);
        if count > UNMEASURED_MAX {
            count = fitting(&entries[..count]);
        }
        loop {
            let (part, rest) = entries.split_at(count);
            let entries = part.to_vec();
            let (kind, head) = match (is_begun, rest.is_empty()) {
                (false, true) => (PartKind::Whole, Arc::clone(head)),
                (true, true) => (PartKind::Last(batch), Arc::clone(head)),
                (_, false) => {
                    let head = head.without_context(head.entries - rest.len() as u64);
                    (PartKind::Part(batch), Arc::new(head))
                }
            };
            let key = key.clone();
            let record = match kind {
                PartKind::Whole => StoredRecord::Append { key, entries, head },
                PartKind::Part(batch) => StoredRecord::Part { batch, entries, head },
                PartKind::Last(batch) => StoredRecord::Commit { batch, key, entries, head },
            };
            let encoded = record::encode(&record);
            let fits = encoded.as_ref().is_ok_and(|payload| payload.len() <= PART_BYTES_MAX);
            if (count <= 1 || fits)
                && let StoredRecord::Append { head, .. }
                | StoredRecord::Part { head, .. }
                | StoredRecord::Commit { head, .. } = record
            {
                return Ok(Self { kind, count, head, payload: encoded? });
            }
            // The head takes room, too.
            count = fitting(part).min(count - 1).max(1);
        }
    }
}

/// Returns how many of these entries fit into a part by their sizes: at least one. The cost does not depend on the others.
fn fitting(entries: &[Arc<Entry>]) -> usize {
    let mut room = PART_BYTES_MAX;
    let mut fits = |entry: &&Arc<Entry>| {
        // One that cannot be encoded is refused with its part.
        let size = record::entry_bytes(entry).unwrap_or(0);
        let fits = size <= room;
        room = room.saturating_sub(size);
        fits
    };
    entries.iter().take_while(|entry| fits(entry)).count().max(1)
}

#[cfg(test)]
mod tests;
