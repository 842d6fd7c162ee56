//! When the staged index changes move to sled.
//!
//! Invariants: nothing is acknowledged that would leave the index on the disk too far behind the journal, and what is
//! staged takes a bounded amount of memory, as long as sled works.

use super::Writer;
use crate::index::Size;

/// After this many bytes in the journal, the staged index changes begin to move to sled: few and large
/// writes, in which a head that changed often is written once.
pub(super) const INDEXED_EVERY_BYTES: u64 = 1 << 20;
/// Unless a session has been appended to less often than this, on average, and few sessions have: then they
/// move after [`INDEXED_EVERY_BYTES_MAX`]. With many writers, sled's rows would otherwise cost more than the
/// journal.
const APPENDS_PER_ROW_MIN: u64 = 8;
/// What sled replaces stays in memory until the end of a move, some kilobytes for each session.
pub(super) const SESSIONS_MAX: u64 = 1_024;
pub(super) const INDEXED_EVERY_BYTES_MAX: u64 = 8 << 20;
/// The maximum lag of the index on the disk behind the journal when a group is acknowledged, in bytes. A
/// start reads at most this much, and one group, of the journal again. Where appends are faster than sled, a
/// move is as large as this permits: the more appends it covers, the fewer rows there are for each.
pub(super) const UNINDEXED_BYTES_MAX: u64 = 2 * INDEXED_EVERY_BYTES_MAX;
/// Staged index changes of this many bytes are moved to sled in any case.
pub(crate) const STAGED_BYTES_MAX: usize = 8 << 20;

impl Writer {
    /// Begins to move the staged index changes to sled, if there are many and no move is in progress.
    pub(super) fn index_if_due(&mut self) {
        let Size { bytes, sessions } = self.index.staged_size();
        let pays = self.unindexed_frames >= APPENDS_PER_ROW_MIN * sessions || sessions >= SESSIONS_MAX;
        let every = if pays { INDEXED_EVERY_BYTES } else { INDEXED_EVERY_BYTES_MAX };
        let is_due = self.unindexed_bytes >= every || bytes > STAGED_BYTES_MAX;
        if is_due && self.mover.under_way() == 0 {
            self.begin_flush();
        }
    }

    /// Begins to move the staged index changes to sled.
    pub(super) fn begin_flush(&mut self) {
        let bytes = std::mem::take(&mut self.unindexed_bytes);
        self.unindexed_frames = 0;
        if let Err(error) = self.mover.begin(bytes) {
            tracing::error!(%error, "the index cannot be written; the journal continues without it");
        }
    }

    /// Waits until the index on the disk is close enough to the journal to acknowledge more.
    pub(super) fn await_index(&mut self) {
        let lag = self.mover.under_way() + self.unindexed_bytes;
        if lag >= UNINDEXED_BYTES_MAX || self.index.staged_size().bytes > STAGED_BYTES_MAX {
            self.mover.wait();
        }
        if self.unindexed_bytes >= UNINDEXED_BYTES_MAX {
            self.begin_flush();
            self.mover.wait();
        }
    }

    /// Moves the staged index changes to sled.
    pub(crate) fn flush_index(&mut self) {
        self.mover.wait();
        (self.unindexed_bytes, self.unindexed_frames) = (0, 0);
        if let Err(error) = self.index.flush_staged().and_then(|()| self.index.sync()) {
            tracing::error!(%error, "the index cannot be written; the journal continues without it");
        }
    }
}
