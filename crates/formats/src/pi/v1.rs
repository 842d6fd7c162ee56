//! What version 1 needs: its lines have no ids, so a compaction names the first entry that it kept by its place
//! among the readable lines, counted from the header, which is 0.

use greenroom_kernel::entry::EntryId;

/// The readable lines so far, in order.
#[derive(Debug, Default)]
pub(super) struct Linear {
    lines: Vec<Option<EntryId>>,
}

impl Linear {
    /// One more readable line: the entry that it became, or `None` for the header and for what was left out.
    pub(super) fn passed(&mut self, entry: Option<EntryId>) {
        self.lines.push(entry);
    }

    /// The entry at a place, or, where that line was left out, the next one. The header is no entry.
    pub(super) fn at(&self, index: u64) -> Option<EntryId> {
        let index = usize::try_from(index).ok().filter(|index| *index > 0)?;
        self.lines.get(index..)?.iter().flatten().next().copied()
    }
}
