//! The snapshot that a backup copies: the journal at one moment, with its files opened.
//!
//! Invariants: everything acknowledged before the command is in the snapshot. A file that was opened for it keeps its
//! bytes: a segment that is no longer written to never changes, and is at most removed; of the active one, only the
//! bytes before its end are read, which never change. Nothing is awaited but the list of the newest frames.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::Writer;
use crate::error::StoreError;
use crate::files::{File, OpenMode};
use crate::journal::manifest::{Listed, Manifest, SegmentState};
use crate::journal::sessions::SegmentSessions;

/// How many segments are opened for the first snapshot of a backup; each has up to three files. Twice as many are opened
/// for the next one, so that a backup ends although segments are written meanwhile.
pub(crate) const OPENED_FIRST: usize = if cfg!(test) { 2 } else { 16 };
/// How many segments are opened at most.
pub(crate) const OPENED_MAX: usize = 128;

/// The numbers of the segments that a backup has copied. The active one is never among them.
pub(crate) type Copied = BTreeSet<u64>;

/// The journal at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// The list of the segments.
    pub(crate) manifest: Manifest,
    /// The chain after the last frame of the active segment.
    pub(crate) chain: u32,
    /// The number of sessions.
    pub(crate) sessions: u64,
    /// The number of their entries.
    pub(crate) entries: u64,
    /// The segments that are still to be copied: all, or as many as may be open at once.
    pub(crate) opened: Vec<OpenedSegment>,
    /// Whether `opened` has all of them.
    pub(crate) is_complete: bool,
}

/// A segment with its files.
#[derive(Debug)]
pub(crate) struct OpenedSegment {
    pub(crate) listed: Listed,
    pub(crate) files: Vec<OpenedFile>,
}

/// A file of the journal.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    /// How many of its bytes belong to the snapshot.
    pub(crate) length: u64,
}

impl Writer {
    /// Describes the journal, and opens the segments that are not among `copied`: at most `limit`.
    pub(super) fn snapshot(&mut self, copied: &Copied, limit: usize) -> Result<Snapshot, StoreError> {
        self.lock.check_in_place()?;
        self.list_frames();
        let mut manifest = self.manifest.clone();
        if let Some(listed) = manifest.get_mut(self.active.id) {
            listed.state = SegmentState::Active { floor: self.active.end };
        }
        let wanted = manifest.segments.iter().filter(|listed| !copied.contains(&listed.id));
        let is_complete = wanted.clone().count() <= limit;
        // The active segment is the last one, so it is copied only once all others are.
        let opened = wanted.take(limit);
        Ok(Snapshot {
            opened: opened.map(|listed| self.open_segment(*listed)).collect::<Result<_, _>>()?,
            manifest,
            chain: self.active.chain,
            sessions: self.indexer.checkpoint.rows,
            entries: self.indexer.checkpoint.entries.unwrap_or_default(),
            is_complete,
        })
    }

    fn open_segment(&self, listed: Listed) -> Result<OpenedSegment, StoreError> {
        let mut files = Vec::new();
        let is_active = listed.id == self.active.id;
        if listed.state != SegmentState::Lost {
            let segment = self.open_file(self.segments.path(listed.id))?;
            let length = if is_active { self.active.end } else { segment.length };
            files.push(OpenedFile { length, ..segment });
        }
        for beside in SegmentSessions::paths(&self.segments.dir, listed.id) {
            match self.open_file(beside) {
                Ok(file) => files.push(file),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(OpenedSegment { listed, files })
    }

    fn open_file(&self, path: PathBuf) -> Result<OpenedFile, StoreError> {
        let open = || {
            let file = self.segments.files.open(&path, OpenMode::Read)?;
            let length = file.length()?;
            Ok((file, length))
        };
        match open() {
            Ok((file, length)) => Ok(OpenedFile { path, file, length }),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }
}
