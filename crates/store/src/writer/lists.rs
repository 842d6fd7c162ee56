//! The files beside a segment: the list of its frames while it is active, the record of its sessions
//! afterwards.
//!
//! Invariants: nothing acknowledged depends on these files. If one cannot be written, that is logged, and the
//! journal continues without it.

use std::borrow::Borrow;

use super::{UNLISTED_BYTES_MAX, Writer};
use crate::journal::list::OpenList;
use crate::journal::manifest::Listed;
use crate::journal::sessions::SegmentSessions;
use crate::journal::{Frame, SegmentHeader};

impl Writer {
    /// Lists the frames of the active segment if many are not listed yet. The callers of the last group have
    /// been answered, and nothing more is acknowledged before this is done.
    pub(super) fn list_if_due(&mut self) {
        if self.active.end - self.listed_end >= UNLISTED_BYTES_MAX {
            self.list_frames();
        }
    }

    /// Lists the active segment's frames that are not listed yet.
    pub(super) fn list_frames(&mut self) {
        let end = self.active.end;
        if self.listed_end == end {
            return;
        }
        let frames = &self.active.frames;
        let listed = match self.list.take() {
            Some(mut list) => list.append(frames).map(|()| list),
            None => {
                let Some(&Listed { id, order, seed, .. }) = self.manifest.get(self.active.id) else { return };
                let header = SegmentHeader { id, order, seed };
                OpenList::create(self.segments.files.as_ref(), &self.segments.dir, header, frames)
            }
        };
        // After a failure the whole list is written when it is next due.
        self.listed_end = end;
        match listed {
            Ok(list) => self.list = Some(list),
            Err(error) => tracing::warn!(%error, "cannot list the frames of the active segment"),
        }
    }

    /// Writes the record of a segment's sessions beside the segment, replacing its list.
    pub(crate) fn note_sessions(
        &self,
        header: SegmentHeader,
        frames: impl IntoIterator<Item: Borrow<Frame>>,
    ) {
        let record = SegmentSessions::of(header, frames);
        if let Err(error) = record.store(self.segments.files.as_ref(), &self.segments.dir) {
            tracing::warn!(%error, "cannot record the sessions of a segment");
        }
    }

    /// Removes the files beside a segment that is about to be removed.
    pub(crate) fn forget_sessions(&self, id: u64) {
        if let Err(error) = SegmentSessions::forget(self.segments.files.as_ref(), &self.segments.dir, id) {
            tracing::warn!(%error, "the record of a segment that is gone is still there");
        }
    }
}
