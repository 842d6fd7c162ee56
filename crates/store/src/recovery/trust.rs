//! Whether sled's index can be used, or has to be built again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Recovery;
use crate::error::{Notice, StoreError};
use crate::index::{Checkpoint, Index, SegmentRow};
use crate::journal::SEGMENT_HEADER_BYTES;
use crate::journal::manifest::{Listed, State};

/// An index that fits the journal, as far as that can be told without reading both.
pub(super) struct Trusted {
    pub(super) checkpoint: Checkpoint,
    pub(super) segments: BTreeMap<u64, SegmentRow>,
}

impl Recovery<'_> {
    /// Opens sled, or sets it aside. `None` where the journal has to be read as a whole.
    pub(super) fn open_index(&mut self) -> (Arc<Index>, Option<Trusted>) {
        let is_new = !self.options.dir.join("index").exists();
        let has_frames = !self.manifest.segments.is_empty() || !self.parts.is_empty();
        let opened = if Index::is_suspect(&self.options.dir) {
            Err("it did not fit the journal".to_owned())
        } else {
            Index::open(&self.options.dir, self.options.cache_bytes)
        };
        let (index, reason) = match opened {
            Err(reason) => (None, reason),
            Ok(index) => match self.trust(&index) {
                Ok(trusted) => return (Arc::new(index), Some(trusted)),
                Err(reason) if is_new || reason.is_empty() => {
                    let holds = self.holds_frames();
                    if has_frames && holds {
                        self.notices.push(Notice::IndexRebuilt { reason: "it was not there".to_owned() });
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

    pub(super) fn holds_frames(&self) -> bool {
        self.manifest.segments.len() > 1
            || self.manifest.segments.iter().any(|listed| {
                self.ends(listed.id)
                    .is_ok_and(|ends| ends.is_some_and(|ends| ends.length > SEGMENT_HEADER_BYTES))
            })
    }

    /// Sets the index aside and begins a new one.
    pub(super) fn rebuild(&mut self, index: &Index, reason: &str) -> Arc<Index> {
        index.close();
        self.new_index(reason.to_owned())
    }

    pub(super) fn new_index(&mut self, reason: String) -> Arc<Index> {
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

    /// Whether the index fits itself and the list of segments; else the reason why not, empty if it is empty.
    pub(super) fn trust(&self, index: &Index) -> Result<Trusted, String> {
        let text = |error: StoreError| error.to_string();
        let (rows, sum) = index.rows().map_err(text)?;
        let Some(checkpoint) = index.checkpoint().map_err(text)? else {
            return Err(if rows.is_empty() { String::new() } else { "it has no checkpoint".to_owned() });
        };
        if (checkpoint.rows, checkpoint.sum) != (rows.len() as u64, sum) {
            return Err("its sessions do not add up".to_owned());
        }
        let segments = index.segment_rows().map_err(text)?;
        let end = segments.get(&checkpoint.segment).ok_or("it does not know its own newest segment")?;
        for listed in &self.manifest.segments {
            let row = segments.get(&listed.id);
            let does_fit = match (listed.state, row) {
                (_, None) => listed.order > end.order,
                (State::Sealed { frames, digest, .. }, Some(row)) => {
                    row.seed == listed.seed
                        && (listed.order >= end.order || (row.frames, row.digest) == (frames, digest))
                }
                (State::Active { .. } | State::Abandoned { .. }, Some(row)) => row.seed == listed.seed,
            };
            if !does_fit {
                return Err(format!("it does not fit segment {}", listed.id));
            }
        }
        for (id, row) in &segments {
            let is_replaced = |listed: &Listed| listed.order == row.order && listed.id > *id;
            if self.manifest.get(*id).is_none() && self.manifest.segments.iter().any(is_replaced) {
                return Err(format!("segment {id} was rewritten"));
            }
        }
        Ok(Trusted { checkpoint, segments })
    }
}
