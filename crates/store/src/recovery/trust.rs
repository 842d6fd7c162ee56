//! Decides whether sled's index can be used or has to be rebuilt.
//!
//! Invariants: an index is used only if it agrees with itself and with the list of segments. If it is not
//! used, a notice says why, unless it was never written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Recovery;
use crate::error::{Notice, StoreError};
use crate::index::{Checkpoint, Index, RowsSummary, SegmentRow};
use crate::journal::SEGMENT_HEADER_BYTES;
use crate::journal::manifest::SegmentState;

/// Summary of an index that agrees with the list of segments. Whether it agrees with the frames is not known
/// before they are read.
pub(super) struct TrustedIndex {
    pub(super) checkpoint: Checkpoint,
    pub(super) segments: BTreeMap<u64, SegmentRow>,
    /// The sessions that lost entries, which nobody has accepted.
    pub(super) quarantined: BTreeSet<String>,
}

impl Recovery<'_> {
    /// Opens the index, or sets it aside and begins a new one. `None` means that the whole journal has to be
    /// read.
    pub(super) fn open_index(&mut self) -> (Arc<Index>, Option<TrustedIndex>) {
        if self.options.is_read_only {
            self.notices.push(Notice::ReadOnly { dir: self.options.dir.clone() });
            return (Arc::new(Index::in_memory(&self.options.dir)), None);
        }
        let was_there = Index::exists(&self.options.dir);
        let opened = if Index::is_suspect(&self.options.dir) {
            Err("it did not fit the journal".to_owned())
        } else {
            Index::open(&self.options.dir, self.options.cache_bytes)
        };
        let (index, reason) = match opened {
            Err(reason) => (None, reason),
            Ok(index) => match self.trust(&index) {
                Ok(trusted) => return (Arc::new(index), Some(trusted)),
                // It is new, or nothing was ever written to it: its store was never closed, or was just restored. Only
                // one that somebody removed is missed.
                Err(reason) if reason.is_empty() => {
                    if !was_there && self.holds_frames() {
                        self.notices.push(Notice::IndexRebuilt { reason: "it was not there".to_owned() });
                    } else {
                        tracing::debug!("the index is empty; the whole journal is read");
                    }
                    return (Arc::new(index), None);
                }
                Err(reason) => (Some(index), reason),
            },
        };
        if let Some(index) = index {
            index.close();
        }
        (self.new_index(reason), None)
    }

    /// Whether the journal holds any frame.
    fn holds_frames(&self) -> bool {
        self.manifest.segments.iter().any(|listed| {
            self.ends(listed.id).is_ok_and(|ends| ends.is_some_and(|ends| ends.length > SEGMENT_HEADER_BYTES))
        })
    }

    /// Closes the index, sets it aside and begins a new one.
    pub(super) fn rebuild(&mut self, index: &Index, reason: &str) -> Arc<Index> {
        index.close();
        self.new_index(reason.to_owned())
    }

    /// Sets the index aside and begins a new one; in memory if that fails. `reason` is why the old one is
    /// unusable.
    fn new_index(&mut self, reason: String) -> Arc<Index> {
        let dir = &self.options.dir;
        let opened = Index::set_aside(dir)
            .map_err(|error| error.to_string())
            .and_then(|()| Index::open(dir, self.options.cache_bytes));
        match opened {
            Ok(index) => {
                index.clear_suspect();
                self.notices.push(Notice::IndexRebuilt { reason });
                Arc::new(index)
            }
            Err(second) => {
                let reason = format!("{reason}; and a new one cannot be made: {second}");
                self.notices.push(Notice::IndexInMemory { reason });
                Arc::new(Index::in_memory(dir))
            }
        }
    }

    /// Checks that the index agrees with itself and with the list of segments. The error is the reason if it
    /// does not; it is empty if the index is empty.
    fn trust(&self, index: &Index) -> Result<TrustedIndex, String> {
        let text = |error: StoreError| error.to_string();
        // The sum shows whether the rows are those that were written; their content is read when it is
        // needed.
        let RowsSummary { count: rows, sum, quarantined } = index.summary().map_err(text)?;
        let Some((checkpoint, expected)) = index.checkpoint().map_err(text)? else {
            return Err(if rows == 0 { String::new() } else { "it has no checkpoint".to_owned() });
        };
        if (checkpoint.rows, expected) != (rows, sum) {
            return Err("its sessions do not add up".to_owned());
        }
        let segments = index.segment_rows().map_err(text)?;
        let end = segments.get(&checkpoint.segment).ok_or("it does not know its own newest segment")?;
        for listed in &self.manifest.segments {
            let row = segments.get(&listed.id);
            let does_fit = match (listed.state, row) {
                // The index may still know what it held, and determines which sessions lost it.
                (SegmentState::Lost, _) => true,
                // It was begun after the newest segment that the index knows. One in the position of another
                // was rewritten.
                (_, None) => listed.order > end.order,
                (SegmentState::Sealed { frames, digest, .. }, Some(row)) => {
                    row.seed == listed.seed
                        && (listed.order >= end.order || (row.frames, row.digest) == (frames, digest))
                }
                (SegmentState::Active { .. } | SegmentState::Abandoned { .. }, Some(row)) => {
                    row.seed == listed.seed
                }
            };
            if !does_fit {
                return Err(format!("it does not fit segment {}", listed.id));
            }
        }
        Ok(TrustedIndex { checkpoint, segments, quarantined })
    }
}
