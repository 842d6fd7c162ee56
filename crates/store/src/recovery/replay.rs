//! Applies the journal to the index, including the known information on lost frames.
//!
//! Invariants: frames are applied in the order of the journal, and a lost frame takes effect at its position
//! in that order. A record that does not fit its frame counts as lost.

use greenroom_kernel::EntryId;

use super::listing::{missing_in, own_footer};
use super::{LostRange, OpenedActive, Recovery, STAGED_BYTES_MAX};
use crate::error::StoreError;
use crate::index::Checkpoint;
use crate::indexer::{Effect, Indexer};
use crate::journal::manifest::{Listed, SegmentState};
use crate::journal::{Frame, FrameKind, SEGMENT_HEADER_BYTES, Scan, first_chain, parse, scan};
use crate::record;

impl Recovery<'_> {
    /// Applies the journal from the checkpoint on; the whole journal if there is no checkpoint.
    pub(super) fn replay(
        &mut self,
        indexer: &mut Indexer,
        checkpoint: Option<Checkpoint>,
        opened: &Option<OpenedActive>,
    ) -> Result<(), StoreError> {
        let start = checkpoint.and_then(|checkpoint| {
            let row = indexer.segments.get(&checkpoint.segment).copied();
            let listed = self.manifest.get(checkpoint.segment).map(|listed| listed.order);
            let order = row.map(|row| row.order).or(listed)?;
            Some((order, checkpoint.offset))
        });
        for listed in self.manifest.segments.clone() {
            let from = match start {
                Some((order, _)) if listed.order < order => continue,
                Some((order, offset)) if listed.order == order => offset,
                _ => SEGMENT_HEADER_BYTES,
            };
            if let Some(opened) = opened.as_ref().filter(|opened| opened.listed.id == listed.id) {
                self.replay_segment(indexer, &listed, &opened.bytes, &opened.scan, from)?;
                continue;
            }
            let length = match listed.state {
                SegmentState::Sealed { length, .. } | SegmentState::Abandoned { length } => length,
                SegmentState::Active { .. } => continue,
                SegmentState::Lost => {
                    self.replay_lost(indexer, &listed)?;
                    continue;
                }
            };
            // The checkpoint is behind everything that the segment has. An abandoned one may have lost more
            // than it has.
            if from >= length && matches!(listed.state, SegmentState::Sealed { .. }) {
                continue;
            }
            let Some(bytes) = self.read_segment(listed.id)? else { continue };
            let scanned = scan(&bytes, listed.id, listed.seed, Some(length));
            let lost_before = self.lost.len();
            self.take_bad_ranges(&listed, &scanned, own_footer(&bytes, &listed).as_ref(), length);
            if self.lost.len() > lost_before {
                self.abandon(listed.id, length);
            }
            self.take_earlier_cut(&listed, &scanned);
            self.replay_segment(indexer, &listed, &bytes, &scanned, from)?;
        }
        Ok(())
    }

    /// Adds what an earlier start found cut off from a segment, and reported. Only its consequences are
    /// applied again.
    fn take_earlier_cut(&mut self, listed: &Listed, scanned: &Scan) {
        let SegmentState::Abandoned { .. } = listed.state else { return };
        if self.lost.iter().any(|range| range.segment == listed.id) {
            return;
        }
        let Some(record) = self.record_of(listed) else { return };
        let frames = missing_in(&record, scanned, scanned.end);
        if !frames.is_empty() {
            let mut range = LostRange::new(listed.id, scanned.end, record.until, frames);
            range.is_inferred = true;
            range.others_possible = false;
            self.lost.push(range);
        }
    }

    /// Applies what is known of a segment whose file is gone, at its position in the order.
    fn replay_lost(&mut self, indexer: &mut Indexer, listed: &Listed) -> Result<(), StoreError> {
        let at = match self.lost.iter().position(|range| range.segment == listed.id) {
            Some(at) => at,
            None => {
                // An earlier start found the loss and reported it. Only its consequences are applied again.
                let record = self.record_of(listed);
                let frames = record.map(|record| record.missing(&[], SEGMENT_HEADER_BYTES));
                let mut range = LostRange::new(listed.id, 0, u64::MAX, frames.unwrap_or_default());
                range.is_inferred = true;
                range.others_possible = false;
                self.lost.push(range);
                self.lost.len() - 1
            }
        };
        for frame in self.lost[at].frames.clone() {
            self.lose_frame(indexer, at, &frame)?;
        }
        indexer.publish();
        Ok(())
    }

    /// Applies one segment's frames from the offset `from` on.
    fn replay_segment(
        &mut self,
        indexer: &mut Indexer,
        listed: &Listed,
        bytes: &[u8],
        scanned: &Scan,
        from: u64,
    ) -> Result<(), StoreError> {
        if !indexer.segments.contains_key(&listed.id) {
            let chain = first_chain(listed.id, listed.seed);
            indexer.begin_segment(listed.id, listed.order, listed.seed, chain);
        }
        // The lost frames that are still known, each with the index of its range in `self.lost`.
        let ranges = self.lost.iter().enumerate().filter(|(_, range)| range.segment == listed.id);
        let mut lost: Vec<(usize, Frame)> = ranges
            .flat_map(|(at, range)| range.frames.iter().map(move |frame| (at, frame.clone())))
            .collect();
        lost.retain(|(_, frame)| {
            let is_elsewhere = || scanned.frames.iter().all(|(whole, _)| whole.offset != frame.offset);
            // A frame without a length represents entries whose location is not known.
            frame.offset >= from && (frame.length == 0 || is_elsewhere())
        });
        lost.sort_by_key(|(_, frame)| frame.offset);
        let mut lost = lost.into_iter().peekable();
        for (frame, chain) in scanned.frames.iter().filter(|(frame, _)| frame.offset >= from) {
            // Frames that were cut out lay before the frame that is now in their place.
            while let Some((range, gone)) = lost.next_if(|(_, gone)| gone.offset <= frame.offset) {
                self.lose_frame(indexer, range, &gone)?;
            }
            let at = usize::try_from(frame.offset).expect("an offset into a buffer in memory");
            let parsed = parse(bytes, at, 0, listed.seed).expect("the scan found a frame here");
            let effect = match record::decode(parsed.payload).and_then(|record| Effect::of(frame, record)) {
                Ok(effect) => effect,
                Err(error @ StoreError::Version { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, segment = listed.id, offset = frame.offset, "unusable record");
                    self.lost.push(LostRange::new(listed.id, frame.offset, frame.end(), Vec::new()));
                    self.lose_frame(indexer, self.lost.len() - 1, frame)?;
                    continue;
                }
            };
            let was_lost = indexer.newly_lost.get(frame.session.as_ref()).copied();
            indexer.apply(listed.id, frame, *chain, effect)?;
            let is_lost = indexer.newly_lost.get(frame.session.as_ref()).copied();
            if is_lost.is_some() && is_lost != was_lost {
                self.blame_gap(listed.id, frame);
            }
            indexer.publish();
            if indexer.index().staged_size().bytes > STAGED_BYTES_MAX {
                // If sled fails now, the changes stay in memory.
                if let Err(error) = indexer.index().flush_staged() {
                    tracing::error!(%error, "the index cannot be written");
                }
            }
        }
        for (range, gone) in lost {
            self.lose_frame(indexer, range, &gone)?;
        }
        indexer.publish();
        Ok(())
    }

    /// Applies the loss of a frame. `range` is the index in `self.lost` of the range that the frame lies in.
    fn lose_frame(&mut self, indexer: &mut Indexer, range: usize, frame: &Frame) -> Result<(), StoreError> {
        match frame.kind {
            FrameKind::Append => {
                self.lost[range].sessions.insert(frame.session.to_string());
                indexer.lose(&frame.session, EntryId(frame.sequence))
            }
            // The header has all the information of a deletion.
            FrameKind::Deleted => indexer.delete(&frame.session),
            FrameKind::Commit => {
                self.lost[range].sessions.insert(frame.session.to_string());
                indexer.lose_commit(&frame.session, frame.sequence)
            }
            // A part matters only if its batch was committed: then it is found missing.
            FrameKind::Part | FrameKind::Learned | FrameKind::Quarantined | FrameKind::LossAccepted => Ok(()),
        }
    }

    /// Records that entries of the frame's session are missing before the frame: the session is added to the
    /// last lost range before it, which must have held them.
    fn blame_gap(&mut self, segment: u64, frame: &Frame) {
        let session = frame.session.to_string();
        if self.lost.is_empty() {
            let mut gap = LostRange::new(segment, frame.offset, frame.offset, Vec::new());
            gap.others_possible = false;
            gap.is_inferred = true;
            self.lost.push(gap);
        }
        let is_before = |range: &LostRange| (range.segment, range.from) <= (segment, frame.offset);
        let at = self.lost.iter().rposition(is_before).unwrap_or(0);
        self.lost[at].sessions.insert(session);
    }
}
