//! Reclaims the space of deleted sessions: a segment that is mostly dead is rewritten without its dead
//! frames, and on request, every segment that held a deleted session. The active segment is sealed first. On
//! a full disk, the reserve makes room for the necessary writes.
//!
//! Invariants: a crash at any step leaves either the old or the new segment in the manifest, and whole; the
//! next start removes the other one. Neither is ever in memory as a whole. The record of a deletion is kept as long as an older segment may hold
//! frames of the deleted session. A segment that is damaged in any way is left unchanged.

use std::sync::Arc;

use crate::bytes::to_u64;
use crate::error::StoreError;
use crate::files::{File, OpenMode, replace, write_all_at};
use crate::index::{Location, SegmentRow};
use crate::indexer::Effect;
use crate::journal::frames::Frames;
use crate::journal::manifest::{Listed, SegmentState};
use crate::journal::segments::random_seed;
use crate::journal::stream::{FrameStream, WINDOW_BYTES, whole_end, write_footer};
use crate::journal::{
    Frame, FrameKind, NewFrame, Parsed, SEGMENT_HEADER_BYTES, SegmentHeader, are_contiguous,
};
use crate::record;
use crate::writer::{EraseAgain, Rotation, STAGED_BYTES_MAX, Writer};

/// A copy of a segment's needed frames that is being written.
struct Copy {
    header: SegmentHeader,
    /// `None` before the first frame.
    file: Option<Arc<dyn File>>,
    /// The frames that are not yet in the file, and where they begin.
    buffer: Vec<u8>,
    start: u64,
    /// The chain that the next frame must have.
    chain: u32,
    /// The frames where they were, and where they are now.
    old: Frames,
    new: Frames,
}

impl Copy {
    fn new(header: SegmentHeader) -> Self {
        let (old, new) = (Frames::default(), Frames::default());
        let (start, chain) = (SEGMENT_HEADER_BYTES, header.chain());
        Self { header, file: None, buffer: Vec::new(), start, chain, old, new }
    }

    /// Returns where the frames end so far.
    fn end(&self) -> u64 {
        self.start + to_u64(self.buffer.len())
    }

    fn add(&mut self, Parsed { frame, payload, .. }: Parsed<'_>) {
        self.old.push(&frame);
        let Frame { kind, session, sequence, count, .. } = frame;
        let copied = NewFrame { kind, session, sequence, count, payload: payload.to_vec() };
        let (frame, next) = copied.encode(&mut self.buffer, self.start, self.header.seed, self.chain);
        self.new.push(&frame);
        self.chain = next;
    }
}

/// A segment that takes the place of another one.
struct Replacement {
    listed: Listed,
    file: Arc<dyn File>,
    /// Its frames in order, where they were in the other segment.
    old: Frames,
    /// Where its frames end.
    end: u64,
    /// The chain after the last frame.
    digest: u32,
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

    /// Rewrites one segment, piece by piece. Returns the number of bytes freed.
    fn rewrite(&mut self, listed: &Listed) -> Result<u64, StoreError> {
        let path = self.segments.path(listed.id);
        let open = || {
            let file = self.segments.files.open(&path, OpenMode::Read)?;
            let length = file.length()?;
            let end = whole_end(file.as_ref(), listed.id, listed.seed)?;
            Ok((file, length, end))
        };
        let (file, length, end) = open().map_err(|error| StoreError::io("read", &path, error))?;
        // A damaged segment is kept for inspection.
        let Some(end) = end else { return Ok(0) };
        let replacement = self.copy_needed(listed, file.as_ref(), end)?;
        let before = self.manifest.clone();
        self.manifest.segments.retain(|other| other.id != listed.id);
        self.manifest.segments.extend(replacement.as_ref().map(|new| new.listed));
        self.manifest.segments.sort_by_key(|listed| listed.order);
        if let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir) {
            self.manifest = before;
            self.is_manifest_dirty = true;
            return Err(error);
        }
        let kept_bytes = match replacement {
            None => 0,
            Some(new) => self.relocate(listed.id, &new).inspect_err(|error| {
                // The old segment can still be read until the next start.
                self.index.mark_suspect(&error.to_string());
            })?,
        };
        self.indexer.drop_segment(listed.id);
        self.indexer.publish();
        self.segments.remove(listed.id);
        self.forget_sessions(listed.id);
        let removed = self.segments.files.remove(&path);
        if let Err(error) = removed.and_then(|()| self.segments.files.sync_dir(&self.segments.dir)) {
            tracing::warn!(%error, "a reclaimed segment is still there; the next start removes it");
        }
        Ok(length.saturating_sub(kept_bytes))
    }

    /// Copies the frames before `end` that are still needed to a new segment with a footer, and syncs it. The manifest
    /// does not list it yet. Returns `None` if no frame is needed.
    fn copy_needed(
        &mut self,
        listed: &Listed,
        file: &dyn File,
        end: u64,
    ) -> Result<Option<Replacement>, StoreError> {
        let header = SegmentHeader { id: self.manifest.next_id, order: listed.order, seed: random_seed() };
        self.manifest.next_id += 1;
        let path = self.segments.path(header.id);
        let mut copy = Copy::new(header);
        let written = self.fill(&mut copy, listed, file, end).and_then(|()| {
            let Some(new) = &copy.file else { return Ok(()) };
            let written = write_all_at(new.as_ref(), &copy.buffer, copy.start)
                .and_then(|()| write_footer(new.as_ref(), &copy.new, copy.end(), copy.chain))
                .and_then(|()| new.sync());
            written.map_err(|error| StoreError::io("write", &path, error))
        });
        if let Err(error) = written {
            drop(self.segments.files.remove(&path));
            return Err(error);
        }
        let (length, digest) = (copy.end(), copy.chain);
        let Copy { file: Some(file), old, new, .. } = copy else { return Ok(None) };
        self.note_sessions(header, new.iter());
        let state = SegmentState::Sealed { length, frames: to_u64(new.len()), digest };
        let listed = Listed { id: header.id, order: header.order, seed: header.seed, state };
        Ok(Some(Replacement { listed, file, old, end: length, digest }))
    }

    /// Writes the needed frames to the copy's file, which is created before the first one.
    fn fill(
        &mut self,
        copy: &mut Copy,
        listed: &Listed,
        file: &dyn File,
        end: u64,
    ) -> Result<(), StoreError> {
        let is_oldest = self.manifest.segments.iter().all(|other| other.order >= listed.order);
        let mut stream = FrameStream::new(file, listed.seed, end);
        let path = self.segments.path(listed.id);
        while let Some(parsed) = stream.next().map_err(|error| StoreError::io("read", &path, error))? {
            if !self.is_needed(listed.id, &parsed, is_oldest)? {
                continue;
            }
            let new = match &copy.file {
                Some(file) => Arc::clone(file),
                None => Arc::clone(copy.file.insert(self.segments.create(&copy.header)?)),
            };
            copy.add(parsed);
            if copy.buffer.len() >= WINDOW_BYTES {
                let written = write_all_at(new.as_ref(), &copy.buffer, copy.start);
                written
                    .map_err(|error| StoreError::io("write", &self.segments.path(copy.header.id), error))?;
                copy.start = copy.end();
                copy.buffer = Vec::new();
            }
        }
        StoreError::ensure(stream.is_at_end(), "a segment that is rewritten does not change")?;
        let is_contiguous = are_contiguous(copy.new.iter(), copy.end());
        StoreError::ensure(is_contiguous, "the frames of a rewritten segment lie one after another")
    }

    /// Whether the frame is still needed.
    fn is_needed(&self, segment: u64, parsed: &Parsed<'_>, is_oldest: bool) -> Result<bool, StoreError> {
        let Parsed { frame, payload, .. } = parsed;
        let effect = Effect::of(frame, record::decode(payload)?)?;
        let at = Location { segment, offset: frame.offset, length: frame.length };
        match frame.kind {
            FrameKind::Deleted => Ok(!is_oldest),
            FrameKind::Append
            | FrameKind::Part
            | FrameKind::Commit
            | FrameKind::Learned
            | FrameKind::Quarantined
            | FrameKind::LossAccepted => self.indexer.is_needed(frame, at, &effect),
        }
    }

    /// Makes the index refer to the frames of the new segment instead of those of the old one, piece by piece. Until the
    /// last piece both can be read. Returns the length of the frames.
    fn relocate(&mut self, old_id: u64, new: &Replacement) -> Result<u64, StoreError> {
        let Replacement { listed: Listed { id, order, seed, .. }, file, old, end, digest } = new;
        self.segments.add(*id, *seed, Some(Arc::clone(file)));
        let path = self.segments.path(*id);
        let mut stream = FrameStream::new(file.as_ref(), *seed, *end);
        let mut unpublished = 0;
        for old in old.iter() {
            let parsed = stream.next().map_err(|error| StoreError::io("read", &path, error))?;
            let Some(Parsed { frame, payload, .. }) = parsed else { break };
            let from = Location { segment: old_id, offset: old.offset, length: old.length };
            let to = Location { segment: *id, offset: frame.offset, length: frame.length };
            let effect = Effect::of(&frame, record::decode(payload)?)?;
            self.indexer.relocate(&frame, from, to, &effect)?;
            unpublished += payload.len();
            if unpublished >= WINDOW_BYTES {
                unpublished = 0;
                self.indexer.publish();
                if cfg!(test) || self.index.staged_size().bytes > STAGED_BYTES_MAX {
                    self.flush_index();
                }
            }
        }
        StoreError::ensure(stream.is_at_end(), "a rewritten segment holds the frames that were copied")?;
        let bytes = end - SEGMENT_HEADER_BYTES;
        let (order, seed, frames, digest) = (*order, *seed, to_u64(old.len()), *digest);
        let row = SegmentRow { order, seed, frames, digest, bytes, dead: 0, holds_deleted: false };
        self.indexer.put_segment(*id, row);
        Ok(bytes)
    }
}

fn is_sealed(state: SegmentState) -> bool {
    match state {
        SegmentState::Sealed { .. } => true,
        SegmentState::Active { .. } | SegmentState::Abandoned { .. } | SegmentState::Lost => false,
    }
}
