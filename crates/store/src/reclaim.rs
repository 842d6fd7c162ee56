//! Giving the space of deleted sessions back: mostly dead segments are rewritten without what is dead.
//!
//! Invariants: a crash at any step leaves either the old segment or the new one in the manifest, whole, and the
//! other one as a leftover that the next start removes. A tombstone stays as long as an older segment could still
//! hold frames of its session.

use crate::error::StoreError;
use crate::files::{OpenMode, read_all, write_all_at};
use crate::index::{Location, SegmentRow};
use crate::indexer::Effect;
use crate::journal::manifest::{Listed, State};
use crate::journal::segments::random_seed;
use crate::journal::{
    Frame, FrameKind, NewFrame, SEGMENT_HEADER_BYTES, SegmentHeader, first_chain, footer, parse, scan,
};
use crate::record;
use crate::writer::Writer;

/// A frame that somebody still needs.
struct Live {
    old: Location,
    frame: NewFrame,
    effect: Effect,
}

impl Writer {
    /// Rewrites every sealed segment of which more than half is dead; answers how many bytes that freed.
    pub(crate) fn reclaim(&mut self) -> Result<u64, StoreError> {
        self.repair()?;
        let mostly_dead = |listed: &&Listed| {
            let row = self.indexer.segments.get(&listed.id);
            is_sealed(listed.state) && row.is_some_and(|row| row.dead.saturating_mul(2) > row.bytes)
        };
        let candidates: Vec<Listed> = self.manifest.segments.iter().filter(mostly_dead).copied().collect();
        let mut freed = 0;
        for listed in candidates {
            freed += self.rewrite(&listed)?;
        }
        Ok(freed)
    }

    fn rewrite(&mut self, listed: &Listed) -> Result<u64, StoreError> {
        let path = self.segments.path(listed.id);
        let file = self.segments.files.open(&path, OpenMode::Read);
        let bytes = file.and_then(|file| read_all(file.as_ref()));
        let bytes = bytes.map_err(|error| StoreError::io("read", &path, error))?;
        let scanned = scan(&bytes, listed.id, listed.seed, None);
        if !scanned.bad.is_empty() || scanned.tail.is_some() || scanned.trailer.is_none() {
            // What is damaged is kept as it is: a person may want to look at it.
            return Ok(0);
        }
        let is_oldest = self.manifest.segments.iter().all(|other| other.order >= listed.order);
        let mut live = Vec::new();
        for (frame, _) in &scanned.frames {
            if let Some(kept) = self.keep(&bytes, listed, frame, is_oldest)? {
                live.push(kept);
            }
        }
        let before = self.manifest.clone();
        let (replacement, moved) =
            if live.is_empty() { (None, Vec::new()) } else { self.copy(listed, &live)? };
        self.manifest.segments.retain(|other| other.id != listed.id);
        self.manifest.segments.extend(replacement);
        self.manifest.segments.sort_by_key(|listed| listed.order);
        if let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir) {
            self.manifest = before;
            self.is_manifest_dirty = true;
            return Err(error);
        }
        let mut kept_bytes = 0;
        for (live, frame) in live.iter().zip(&moved) {
            let segment = replacement.map_or(0, |listed| listed.id);
            let new = Location { segment, offset: frame.offset, length: frame.length };
            self.indexer.relocate(frame, live.old, new, &live.effect)?;
            kept_bytes += u64::from(frame.length);
        }
        if let Some(Listed { id, order, seed, state: State::Sealed { frames, digest, .. } }) = replacement {
            self.segments.add(id, seed, None);
            let row = SegmentRow { order, seed, frames, digest, bytes: kept_bytes, dead: 0 };
            self.indexer.put_segment(id, row);
        }
        self.indexer.drop_segment(listed.id);
        self.indexer.publish();
        self.segments.remove(listed.id);
        let removed = self.segments.files.remove(&path);
        if let Err(error) = removed.and_then(|()| self.segments.files.sync_dir(&self.segments.dir)) {
            tracing::warn!(%error, "a reclaimed segment is still there; the next start removes it");
        }
        Ok((bytes.len() as u64).saturating_sub(kept_bytes))
    }

    fn keep(
        &self,
        bytes: &[u8],
        listed: &Listed,
        frame: &Frame,
        is_oldest: bool,
    ) -> Result<Option<Live>, StoreError> {
        let at = usize::try_from(frame.offset).expect("an offset into a buffer in memory");
        let parsed = parse(bytes, at, 0, listed.seed).expect("the scan found a frame here");
        let effect = Effect::from(record::decode(parsed.payload)?);
        let old = Location { segment: listed.id, offset: frame.offset, length: frame.length };
        let is_live = match frame.kind {
            FrameKind::Deleted => !is_oldest,
            FrameKind::Append | FrameKind::Learned | FrameKind::Quarantined | FrameKind::LossAccepted => {
                self.indexer.is_live(frame, old, &effect)?
            }
        };
        let copy = || NewFrame {
            kind: frame.kind,
            session: frame.session.to_string(),
            sequence: frame.sequence,
            count: frame.count,
            payload: parsed.payload.to_vec(),
        };
        Ok(is_live.then(|| Live { old, frame: copy(), effect }))
    }

    /// Writes the live frames to a segment of their own, complete with footer, synced, and not yet listed.
    fn copy(&mut self, listed: &Listed, live: &[Live]) -> Result<(Option<Listed>, Vec<Frame>), StoreError> {
        let header = SegmentHeader { id: self.manifest.next_id, order: listed.order, seed: random_seed() };
        self.manifest.next_id += 1;
        let mut buffer = Vec::new();
        let mut chain = first_chain(header.id, header.seed);
        let mut frames = Vec::new();
        for live in live {
            let (frame, next) = live.frame.encode(&mut buffer, SEGMENT_HEADER_BYTES, header.seed, chain);
            frames.push(frame);
            chain = next;
        }
        let length = SEGMENT_HEADER_BYTES + buffer.len() as u64;
        buffer.extend(footer(&frames, length, chain));
        let path = self.segments.path(header.id);
        let written = self.segments.create(&header).and_then(|file| {
            let written =
                write_all_at(file.as_ref(), &buffer, SEGMENT_HEADER_BYTES).and_then(|()| file.sync());
            written.map_err(|error| StoreError::io("write", &path, error))
        });
        if let Err(error) = written {
            drop(self.segments.files.remove(&path));
            return Err(error);
        }
        let state = State::Sealed { length, frames: frames.len() as u64, digest: chain };
        Ok((Some(Listed { id: header.id, order: header.order, seed: header.seed, state }), frames))
    }
}

fn is_sealed(state: State) -> bool {
    match state {
        State::Sealed { .. } => true,
        State::Active { .. } | State::Abandoned { .. } => false,
    }
}
