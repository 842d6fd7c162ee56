//! Reclaims the space of deleted sessions: a segment that is mostly dead is rewritten without its dead
//! frames, and on request, every segment that held a deleted session. The active segment is sealed first. On
//! a full disk, the reserve makes room for the necessary writes.
//!
//! Invariants: a crash at any step leaves either the old or the new segment in the manifest, and whole; the
//! next start removes the other one. The record of a deletion is kept as long as an older segment may hold
//! frames of the deleted session. A segment that is damaged in any way is left unchanged.

use std::sync::Arc;

use crate::error::StoreError;
use crate::files::{OpenMode, read_all, replace, write_all_at};
use crate::index::{Location, SegmentRow};
use crate::indexer::Effect;
use crate::journal::manifest::{Listed, SegmentState};
use crate::journal::segments::random_seed;
use crate::journal::{
    Frame, FrameKind, NewFrame, SEGMENT_HEADER_BYTES, SegmentHeader, are_contiguous, first_chain, footer,
    is_whole, parse, scan,
};
use crate::record;
use crate::writer::{EraseAgain, Rotation, Writer};

/// A frame that is still needed.
struct Needed {
    /// The frame's location in the old segment.
    old: Location,
    frame: NewFrame,
    effect: Effect,
}

impl Writer {
    /// Rewrites every segment of which more than half is dead; with `erases`, also every one that holds
    /// deleted data, with automatic retries after a failure. Returns the number of bytes freed.
    pub(crate) fn reclaim(&mut self, erases: bool) -> Result<u64, StoreError> {
        let freed = self.reclaim_now(erases);
        if erases {
            self.erase_again = freed.is_err().then(|| EraseAgain::after(self.erase_again));
        }
        // As long as the reserve is missing, the next opening tries to erase, too.
        if self.erase_again.is_none() {
            self.fill_reserve();
        }
        freed
    }

    fn reclaim_now(&mut self, erases: bool) -> Result<u64, StoreError> {
        self.repair()?;
        if self.is_worth_rewriting(self.active.id, erases) {
            self.with_reserve(|writer| writer.rotate(Rotation::Seal))?;
        }
        let candidates: Vec<Listed> = self
            .manifest
            .segments
            .iter()
            .filter(|listed| is_sealed(listed.state) && self.is_worth_rewriting(listed.id, erases))
            .copied()
            .collect();
        let mut freed = 0;
        // Segments that need the least space come first: the space they free is available for the others.
        let mut candidates: Vec<(u64, Listed)> =
            candidates.into_iter().map(|listed| (self.needed_bytes(listed.id), listed)).collect();
        candidates.sort_by_key(|(needed, _)| *needed);
        for (_, listed) in candidates {
            freed += self.with_reserve(|writer| writer.rewrite(&listed))?;
            // A damaged segment is left unchanged.
            self.indexer.set_holds_deleted(listed.id, false);
        }
        Ok(freed)
    }

    fn is_worth_rewriting(&self, id: u64, erases: bool) -> bool {
        let row = self.indexer.segments.get(&id);
        row.is_some_and(|row| row.dead.saturating_mul(2) > row.bytes || erases && row.holds_deleted)
    }

    /// Returns how many bytes of a segment are still needed.
    fn needed_bytes(&self, id: u64) -> u64 {
        self.indexer.segments.get(&id).map_or(0, |row| row.bytes.saturating_sub(row.dead))
    }

    /// Performs an operation that a person requested to free space. If the disk is full, the reserve is used
    /// up for it.
    pub(crate) fn with_reserve<T>(
        &mut self,
        work: impl Fn(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match work(self) {
            Err(StoreError::Full { .. }) if self.segments.files.remove(&self.reserve).is_ok() => {
                tracing::info!("the disk is full; using the reserve to delete a session");
                work(self)
            }
            done => done,
        }
    }

    /// Whether the reserve exists, or none is wanted.
    pub(crate) fn has_reserve(&self) -> bool {
        self.reserve_bytes == 0 || self.segments.files.open(&self.reserve, OpenMode::Read).is_ok()
    }

    /// Creates the reserve, if it is missing. If there is no space for it, the next deletion tries again.
    pub(crate) fn fill_reserve(&self) {
        let files = self.segments.files.as_ref();
        if self.has_reserve() {
            return;
        }
        let zeros = vec![0; usize::try_from(self.reserve_bytes).unwrap_or(0)];
        if let Err(error) = replace(files, &self.reserve, &zeros) {
            tracing::debug!(%error, "no space for the reserve");
        }
    }

    /// Rewrites one segment. Returns the number of bytes freed.
    fn rewrite(&mut self, listed: &Listed) -> Result<u64, StoreError> {
        let path = self.segments.path(listed.id);
        let file = self.segments.files.open(&path, OpenMode::Read);
        let bytes = file.and_then(|file| read_all(file.as_ref()));
        let bytes = bytes.map_err(|error| StoreError::io("read", &path, error))?;
        let scanned = scan(&bytes, listed.id, listed.seed, None);
        if !is_whole(&bytes, &scanned) {
            // A damaged segment is kept for inspection.
            return Ok(0);
        }
        let is_oldest = self.manifest.segments.iter().all(|other| other.order >= listed.order);
        let mut needed = Vec::new();
        for (frame, _) in &scanned.frames {
            if let Some(kept) = self.keep(&bytes, listed, frame, is_oldest)? {
                needed.push(kept);
            }
        }
        let before = self.manifest.clone();
        let (replacement, moved) =
            if needed.is_empty() { (None, Vec::new()) } else { self.copy(listed, &needed)? };
        self.manifest.segments.retain(|other| other.id != listed.id);
        self.manifest.segments.extend(replacement);
        self.manifest.segments.sort_by_key(|listed| listed.order);
        if let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir) {
            self.manifest = before;
            self.is_manifest_dirty = true;
            return Err(error);
        }
        let mut kept_bytes = 0;
        for (needed, frame) in needed.iter().zip(&moved) {
            let segment = replacement.map_or(0, |listed| listed.id);
            let new = Location { segment, offset: frame.offset, length: frame.length };
            self.indexer.relocate(frame, needed.old, new, &needed.effect)?;
            kept_bytes += u64::from(frame.length);
        }
        if let Some(Listed { id, order, seed, state: SegmentState::Sealed { frames, digest, .. } }) =
            replacement
        {
            self.segments.add(id, seed, None);
            let row =
                SegmentRow { order, seed, frames, digest, bytes: kept_bytes, dead: 0, holds_deleted: false };
            self.indexer.put_segment(id, row);
        }
        self.indexer.drop_segment(listed.id);
        self.indexer.publish();
        self.segments.remove(listed.id);
        self.forget_sessions(listed.id);
        let removed = self.segments.files.remove(&path);
        if let Err(error) = removed.and_then(|()| self.segments.files.sync_dir(&self.segments.dir)) {
            tracing::warn!(%error, "a reclaimed segment is still there; the next start removes it");
        }
        Ok((bytes.len() as u64).saturating_sub(kept_bytes))
    }

    /// Returns the frame with its payload, if it is still needed.
    fn keep(
        &self,
        bytes: &[u8],
        listed: &Listed,
        frame: &Frame,
        is_oldest: bool,
    ) -> Result<Option<Needed>, StoreError> {
        let at = usize::try_from(frame.offset).expect("an offset into a buffer in memory");
        let parsed = parse(bytes, at, 0, listed.seed).expect("the scan found a frame here");
        let effect = Effect::of(frame, record::decode(parsed.payload)?)?;
        let old = Location { segment: listed.id, offset: frame.offset, length: frame.length };
        let is_needed = match frame.kind {
            FrameKind::Deleted => !is_oldest,
            FrameKind::Append
            | FrameKind::Part
            | FrameKind::Commit
            | FrameKind::Learned
            | FrameKind::Quarantined
            | FrameKind::LossAccepted => self.indexer.is_needed(frame, old, &effect)?,
        };
        let copy = || NewFrame {
            kind: frame.kind,
            session: Arc::clone(&frame.session),
            sequence: frame.sequence,
            count: frame.count,
            payload: parsed.payload.to_vec(),
        };
        Ok(is_needed.then(|| Needed { old, frame: copy(), effect }))
    }

    /// Writes the needed frames to a new segment with a footer, and syncs it. The manifest does not list it yet.
    fn copy(
        &mut self,
        listed: &Listed,
        needed: &[Needed],
    ) -> Result<(Option<Listed>, Vec<Frame>), StoreError> {
        let header = SegmentHeader { id: self.manifest.next_id, order: listed.order, seed: random_seed() };
        self.manifest.next_id += 1;
        let mut buffer = Vec::new();
        let mut chain = first_chain(header.id, header.seed);
        let mut frames = Vec::new();
        for needed in needed {
            let (frame, next) = needed.frame.encode(&mut buffer, SEGMENT_HEADER_BYTES, header.seed, chain);
            frames.push(frame);
            chain = next;
        }
        let length = SEGMENT_HEADER_BYTES + buffer.len() as u64;
        let is_contiguous = are_contiguous(&frames, length);
        StoreError::ensure(is_contiguous, "the frames of a rewritten segment lie one after another")?;
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
        self.note_sessions(header, &frames);
        let state = SegmentState::Sealed { length, frames: frames.len() as u64, digest: chain };
        Ok((Some(Listed { id: header.id, order: header.order, seed: header.seed, state }), frames))
    }
}

fn is_sealed(state: SegmentState) -> bool {
    match state {
        SegmentState::Sealed { .. } => true,
        SegmentState::Active { .. } | SegmentState::Abandoned { .. } | SegmentState::Lost => false,
    }
}
