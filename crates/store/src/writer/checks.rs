//! The checks around each write of a group.
//!
//! Invariants: a check writes nothing. One that fails because the segment's file is not as expected marks its tail as
//! wrong, so that the next group goes to a new segment.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{EncodedFrame, Tail, Writer};
use crate::error::StoreError;
use crate::indexer::Effect;

impl Writer {
    /// Checks, before the write, that every frame of the group continues its session. Each append was checked
    /// when it joined the group; this is the same check for the group as a whole.
    pub(super) fn check_group(&mut self, placed: &[EncodedFrame]) -> Result<(), StoreError> {
        let mut entries: HashMap<&str, u64> = HashMap::with_capacity(placed.len());
        for EncodedFrame { frame, effect, .. } in placed {
            let session = frame.session.as_ref();
            match effect {
                Effect::Append { head, .. } => {
                    let known = match entries.entry(session) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(unknown) => {
                            let known = self.indexer.known(session)?;
                            unknown.insert(known.map_or(0, |known| known.entries))
                        }
                    };
                    StoreError::ensure(frame.sequence == *known, "a batch follows its session's last entry")?;
                    *known += u64::from(frame.count);
                    StoreError::ensure(head.entries == *known, "a head counts the entries of its batch")?;
                }
                Effect::Quarantined { head } | Effect::LossAccepted { head } => {
                    let is_counted = frame.sequence == head.entries && frame.count == 0;
                    StoreError::ensure(is_counted, "the record of a loss comes after the remaining entries")?;
                }
                Effect::Part { batch } | Effect::Commit { batch, .. } => {
                    let begins = self.part_begins_at(session, *batch)?;
                    StoreError::ensure(frame.sequence == begins, "a part of a batch follows the one before")?;
                }
                Effect::Deleted | Effect::Learned { .. } => {
                    StoreError::ensure(frame.count == 0, "only a batch has entries")?;
                }
            }
        }
        Ok(())
    }

    /// Checks, before the write, that the group continues the segment: in the file, in the list of frames,
    /// and in the index. The group's bytes end at `buffer_end`; its frames were announced to end at
    /// `announced_end`.
    pub(super) fn check_place(
        &mut self,
        placed: &[EncodedFrame],
        buffer_end: u64,
        announced_end: u64,
    ) -> Result<(), StoreError> {
        let mut frames_end = self.active.frames_end();
        let follows = frames_end == self.active.end
            && placed.iter().all(|EncodedFrame { frame, .. }| {
                let is_next = frame.offset == frames_end;
                frames_end = frame.end();
                is_next
            });
        let is_whole = frames_end == buffer_end && buffer_end == announced_end;
        let indexed = self.indexer.checkpoint;
        let is_behind = indexed.segment != self.active.id || indexed.offset <= self.active.end;
        let checked = StoreError::ensure(follows, "a segment's frames follow one another")
            .and_then(|()| {
                StoreError::ensure(is_whole, "a group has the length that its frames have together")
            })
            .and_then(|()| StoreError::ensure(is_behind, "the index is not ahead of the journal"));
        if checked.is_err() {
            self.tail = Tail::Wrong;
        }
        checked.and_then(|()| self.check_file_end(self.active.end))
    }

    /// Checks that the active segment's file ends at `end`.
    pub(super) fn check_file_end(&mut self, end: u64) -> Result<(), StoreError> {
        let length = self.active.file.length();
        let length =
            length.map_err(|error| StoreError::io("look at", &self.segments.path(self.active.id), error));
        let checked = length.and_then(|length| {
            StoreError::ensure(length == end, "a segment's file ends where its last frame ends")
        });
        if checked.is_err() {
            self.tail = Tail::Wrong;
        }
        checked
    }
}
