//! The writer's segments: how a segment is repaired after a failure, sealed, and followed by a new one.
//!
//! Invariants: a new segment is listed in the manifest before anything is written to it.

use std::sync::Arc;

use super::{Active, Rotation, Tail, Writer};
use crate::bytes::to_u64;
use crate::error::StoreError;
use crate::files::File;
use crate::journal::frames::Frames;
use crate::journal::manifest::{Listed, SegmentState};
use crate::journal::segments::random_seed;
use crate::journal::stream::write_footer;
use crate::journal::{SEGMENT_HEADER_BYTES, SegmentHeader, are_contiguous, first_chain};

impl Writer {
    /// After a failure: makes the files match the writer's view, or begins a new segment.
    pub(crate) fn repair(&mut self) -> Result<(), StoreError> {
        match self.tail {
            Tail::Empty => {}
            Tail::Unknown => {
                let path = self.segments.path(self.active.id);
                let cut = self.active.file.truncate(self.active.end).and_then(|()| self.active.file.sync());
                if let Err(error) = cut {
                    // Perhaps only this file cannot be written any more.
                    let error = StoreError::io("mend", &path, error);
                    return self.rotate(Rotation::Abandon).map_err(|_| error);
                }
                self.tail = Tail::Empty;
            }
            Tail::Wrong => {
                tracing::error!(
                    segment = self.active.id,
                    "a segment does not end where it should; a new one is begun"
                );
                return self.rotate(Rotation::Abandon);
            }
        }
        if self.is_manifest_dirty {
            self.manifest.store(self.segments.files.as_ref(), &self.segments.dir)?;
            self.is_manifest_dirty = false;
        }
        Ok(())
    }

    /// Begins a new segment.
    pub(crate) fn rotate(&mut self, rotation: Rotation) -> Result<(), StoreError> {
        let header =
            SegmentHeader { id: self.manifest.next_id, order: self.next_order(), seed: random_seed() };
        self.manifest.next_id += 1;
        let file = match self.segments.create(&header) {
            Ok(file) => file,
            Err(error) => {
                // If the empty segment cannot be removed now, the next start removes it, because it is not
                // listed.
                drop(self.segments.files.remove(&self.segments.path(header.id)));
                return Err(error);
            }
        };
        let state = match rotation {
            Rotation::Seal => match self.seal() {
                Ok(state) => state,
                Err(error) => {
                    drop(self.segments.files.remove(&self.segments.path(header.id)));
                    return Err(error);
                }
            },
            Rotation::Abandon => {
                SegmentState::Abandoned { length: self.active.end.max(self.active.frames_end()) }
            }
        };
        let before = self.manifest.clone();
        if let Some(listed) = self.manifest.get_mut(self.active.id) {
            listed.state = state;
            let header = listed.header();
            // The record replaces the list.
            self.list = None;
            self.note_sessions(header, self.active.frames.iter());
        }
        let state = SegmentState::Active { floor: SEGMENT_HEADER_BYTES };
        self.manifest.segments.push(Listed { id: header.id, order: header.order, seed: header.seed, state });
        if let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir) {
            // Either list may be on the disk now. The old one is written again before anything else happens.
            self.manifest = before;
            if self.tail == Tail::Empty {
                self.tail = Tail::Unknown;
            }
            self.is_manifest_dirty = true;
            return Err(error);
        }
        self.tail = Tail::Empty;
        self.is_manifest_dirty = false;
        self.begin(header, file);
        Ok(())
    }

    /// Writes the footer of the active segment. Returns the state to list the segment with.
    fn seal(&mut self) -> Result<SegmentState, StoreError> {
        let Active { end: length, chain: digest, ref frames, .. } = self.active;
        if let Err(error) = StoreError::ensure(
            are_contiguous(frames.iter(), length),
            "the frames of a footer lie one after another up to the segment's end",
        ) {
            self.tail = Tail::Wrong;
            return Err(error);
        }
        let state = SegmentState::Sealed { length, frames: to_u64(frames.len()), digest };
        let written = write_footer(self.active.file.as_ref(), frames, length, digest);
        if let Err(error) = written.and_then(|()| self.active.file.sync()) {
            self.tail = Tail::Unknown;
            return Err(StoreError::io("seal", &self.segments.path(self.active.id), error));
        }
        Ok(state)
    }

    /// Returns the position of a new segment: behind all others.
    fn next_order(&self) -> u64 {
        let highest = self.manifest.segments.iter().map(|listed| listed.order).max();
        highest.map_or(self.manifest.next_id, |order| order + 1)
    }

    /// Makes a new segment the active one.
    fn begin(&mut self, header: SegmentHeader, file: Arc<dyn File>) {
        self.segments.add(header.id, header.seed, Some(Arc::clone(&file)));
        (self.list, self.listed_end) = (None, SEGMENT_HEADER_BYTES);
        let chain = first_chain(header.id, header.seed);
        self.indexer.begin_segment(header.id, header.order, header.seed, chain);
        self.active = Active {
            id: header.id,
            seed: header.seed,
            file,
            end: SEGMENT_HEADER_BYTES,
            chain,
            frames: Frames::default(),
        };
    }
}
