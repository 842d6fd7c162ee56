//! Positions of lines in version 1, whose lines have no ids: a compaction names the first entry that it kept by its
//! position.
//!
//! Invariants: the header has position 0, and every readable line has one, even if it was skipped.

use greenroom_kernel::entry::EntryId;

/// The readable lines so far, in order.
#[derive(Debug, Default)]
pub(super) struct Linear {
    /// The entry of each line; `None` for the header and for skipped lines.
    lines: Vec<Option<EntryId>>,
}

impl Linear {
    /// Adds a readable line: its entry, or `None` for the header and for a skipped line.
    pub(super) fn add(&mut self, entry: Option<EntryId>) {
        self.lines.push(entry);
    }

    /// Returns the entry at a position, or if that line was skipped, the next entry. `None` for the header.
    pub(super) fn at(&self, index: u64) -> Option<EntryId> {
        let index = usize::try_from(index).ok().filter(|index| *index > 0)?;
        self.lines.get(index..)?.iter().flatten().next().copied()
    }
}
