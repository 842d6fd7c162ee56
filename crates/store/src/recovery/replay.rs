//! Applying the journal to the index again, with what is gone in its place.

use greenroom_kernel::EntryId;

use super::{Opened, Part, Recovery, STAGED_BYTES_MAX};
use crate::error::StoreError;
use crate::index::Checkpoint;
use crate::indexer::{Effect, Indexer};
use crate::journal::manifest::{Listed, State};
use crate::journal::{Frame, FrameKind, SEGMENT_HEADER_BYTES, Scan, first_chain, parse, read_footer, scan};
use crate::record;

impl Recovery<'_> {
    /// Applies the journal from the checkpoint on, or as a whole.
    pub(super) fn replay(
        &mut self,
        indexer: &mut Indexer,
        checkpoint: Option<Checkpoint>,
        opened: &Option<Opened>,
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
                State::Sealed { length, .. } | State::Abandoned { length } => length,
                State::Active { .. } => continue,
            };
            if from >= length {
                continue;
            }
            let Some(bytes) = self.read_segment(listed.id)? else { continue };
            let scanned = scan(&bytes, listed.id, listed.seed, Some(length));
            let before = self.parts.len();
            self.take_parts(&listed, &scanned, read_footer(&bytes).as_deref(), length);
            if self.parts.len() > before {
                self.abandon(listed.id, length);
            }
            self.replay_segment(indexer, &listed, &bytes, &scanned, from)?;
        }
        Ok(())
    }

    pub(super) fn replay_segment(
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
        // What is gone takes its place in the order of things.
        let known = self.parts.iter().enumerate().filter(|(_, part)| part.segment == listed.id);
        let mut lost: Vec<(usize, Frame)> =
            known.flat_map(|(at, part)| part.known.iter().map(move |frame| (at, frame.clone()))).collect();
        lost.retain(|(_, frame)| {
            frame.offset >= from && scanned.frames.iter().all(|(whole, _)| whole.offset != frame.offset)
        });
        lost.sort_by_key(|(_, frame)| frame.offset);
        let mut lost = lost.into_iter().peekable();
        for (frame, chain) in scanned.frames.iter().filter(|(frame, _)| frame.offset >= from) {
            while let Some((part, gone)) = lost.next_if(|(_, gone)| gone.offset < frame.offset) {
                self.lose_frame(indexer, part, &gone)?;
            }
            let at = usize::try_from(frame.offset).expect("an offset into a buffer in memory");
            let parsed = parse(bytes, at, 0, listed.seed).expect("the scan found a frame here");
            let effect = match record::decode(parsed.payload) {
                Ok(record) => Effect::from(record),
                Err(error @ StoreError::Version { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(%error, segment = listed.id, offset = frame.offset, "a record does not decode");
                    let part = Part::new(listed.id, frame.offset, frame.end(), Vec::new());
                    self.parts.push(part);
                    self.lose_frame(indexer, self.parts.len() - 1, frame)?;
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
            if indexer.index().staged_bytes() > STAGED_BYTES_MAX {
                // If sled fails now, what it misses stays in memory.
                if let Err(error) = indexer.index().settle() {
                    tracing::error!(%error, "the index cannot be written");
                }
            }
        }
        for (part, gone) in lost {
            self.lose_frame(indexer, part, &gone)?;
        }
        indexer.publish();
        Ok(())
    }

    pub(super) fn lose_frame(
        &mut self,
        indexer: &mut Indexer,
        part: usize,
        frame: &Frame,
    ) -> Result<(), StoreError> {
        match frame.kind {
            FrameKind::Append => {
                self.parts[part].sessions.insert(frame.session.to_string());
                indexer.lose(&frame.session, EntryId(frame.sequence))
            }
            // Its header says all that there is to say.
            FrameKind::Deleted => indexer.delete(&frame.session),
            FrameKind::Learned | FrameKind::Quarantined | FrameKind::LossAccepted => Ok(()),
        }
    }

    /// A session's entries are missing before this frame: the damage before it is why.
    pub(super) fn blame_gap(&mut self, segment: u64, frame: &Frame) {
        let session = frame.session.to_string();
        if self.parts.is_empty() {
            let mut part = Part::new(segment, frame.offset, frame.offset, Vec::new());
            part.others_possible = false;
            part.is_inferred = true;
            self.parts.push(part);
        }
        let is_before = |part: &Part| (part.segment, part.from) <= (segment, frame.offset);
        let at = self.parts.iter().rposition(is_before).unwrap_or(0);
        self.parts[at].sessions.insert(session);
    }
}
