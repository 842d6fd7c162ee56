//! The record of a segment's sessions, in a small file beside the segment: which entries of which sessions it
//! holds.
//!
//! It is read only if a part of the segment is damaged or gone: it then tells which sessions lost which
//! entries, even if the index is lost. A segment that is still written to has a [list](super::list) of its
//! frames instead.
//!
//! Invariants: a record covers every frame of its segment before the offset `until`. It is written whole, by
//! one rename. Record and list are removed before their segment is.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::list::{self, FrameList};
use super::{Frame, FrameKind, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::bytes::{Cursor, checked, seal};
use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_all, replace};

const MAGIC: u32 = u32::from_le_bytes(*b"GRP1");
const VERSION: u32 = 1;
/// The end of a record's file name, after the segment's number.
const SUFFIX: &str = ".sessions";

/// Frames of one session and one kind, with consecutive entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) kind: FrameKind,
    pub(crate) session: Arc<str>,
    /// The first entry.
    pub(crate) first: u64,
    /// The entry after the last.
    pub(crate) next: u64,
}

/// The sessions and entries that a segment holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentSessions {
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    /// The record covers the frames before this offset.
    pub(crate) until: u64,
    /// The runs in the order in which they begin.
    pub(crate) runs: Vec<Run>,
}

impl SegmentSessions {
    /// Creates the record of a segment with these frames.
    pub(crate) fn of(header: SegmentHeader, frames: impl IntoIterator<Item: Borrow<Frame>>) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut last: HashMap<Arc<str>, usize> = HashMap::new();
        let mut until = SEGMENT_HEADER_BYTES;
        for frame in frames {
            let frame = frame.borrow();
            until = frame.end();
            if frame.session.is_empty() {
                continue;
            }
            let next = frame.sequence.saturating_add(u64::from(frame.count));
            match last.get(&frame.session).and_then(|at| runs.get_mut(*at)) {
                Some(run) if run.kind == frame.kind && run.next == frame.sequence => run.next = next,
                _ => {
                    last.insert(frame.session.clone(), runs.len());
                    let session = frame.session.clone();
                    runs.push(Run { kind: frame.kind, session, first: frame.sequence, next });
                }
            }
        }
        Self { header, until, runs }
    }

    /// Returns the runs of entries that are not among `whole`, the frames that can still be read (in order),
    /// as frames at the offset `at`. A deletion comes before the session's next frame, wherever that is: it
    /// must not affect a session that was created again.
    pub(crate) fn missing(&self, whole: &[&Frame], at: u64) -> Vec<Frame> {
        let mut found: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
        for frame in whole {
            let end = frame.sequence.saturating_add(u64::from(frame.count));
            found.entry(&frame.session).or_default().push((frame.sequence, end));
        }
        let mut missing = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            let holds_entries = run.next > run.first;
            if !holds_entries && whole.iter().any(|frame| is_same(frame, run)) {
                continue;
            }
            let at = match run.kind {
                FrameKind::Deleted => self.followed_at(index, whole).unwrap_or(at),
                FrameKind::Append
                | FrameKind::Part
                | FrameKind::Commit
                | FrameKind::Learned
                | FrameKind::Quarantined
                | FrameKind::LossAccepted => at,
            };
            let mut next = run.first;
            if holds_entries {
                let mut ranges = found.get(run.session.as_ref()).cloned().unwrap_or_default();
                ranges.sort_unstable();
                for (from, until) in ranges {
                    if from > next {
                        missing.push(frame_of(run, next, from.min(run.next), at));
                    }
                    next = next.max(until);
                    if next >= run.next {
                        break;
                    }
                }
            }
            if !holds_entries || next < run.next {
                missing.push(frame_of(run, next, run.next, at));
            }
        }
        missing
    }

    /// Returns the offset of the frame, among `whole`, with which the session of the run at `index`
    /// continues.
    fn followed_at(&self, index: usize, whole: &[&Frame]) -> Option<u64> {
        let (before, after) = self.runs.split_at(index + 1);
        let next = after.iter().find(|run| run.session == self.runs[index].session)?;
        // A session that was created again several times has as many frames that look the same.
        let begins_alike =
            |run: &&Run| (run.kind, run.first) == (next.kind, next.first) && run.session == next.session;
        let earlier = before.iter().filter(begins_alike).count();
        whole.iter().filter(|frame| is_same(frame, next)).nth(earlier).map(|frame| frame.offset)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.header.id.to_le_bytes());
        bytes.extend(self.header.order.to_le_bytes());
        bytes.extend(self.header.seed.to_le_bytes());
        bytes.extend(self.until.to_le_bytes());
        for Run { kind, session, first, next } in &self.runs {
            let length = u8::try_from(session.len()).expect("session ids have at most 64 bytes");
            bytes.extend([*kind as u8, length]);
            bytes.extend(session.as_bytes());
            bytes.extend(first.to_le_bytes());
            bytes.extend(next.to_le_bytes());
        }
        seal(&mut bytes, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(checked(bytes)?);
        (cursor.u32()? == MAGIC && cursor.u32()? == VERSION).then_some(())?;
        let header = SegmentHeader { id: cursor.u64()?, order: cursor.u64()?, seed: cursor.u32()? };
        let until = cursor.u64()?;
        let mut runs = Vec::new();
        while !cursor.is_empty() {
            let kind = FrameKind::from_number(cursor.u8()?)?;
            let length = usize::from(cursor.u8()?);
            let session = cursor.text(length)?.into();
            runs.push(Run { kind, session, first: cursor.u64()?, next: cursor.u64()? });
        }
        Some(Self { header, until, runs })
    }

    /// Returns the record's file in the journal's directory.
    fn path(journal: &Path, id: u64) -> PathBuf {
        journal.join(format!("{id:010}{SUFFIX}"))
    }

    /// Returns the segment's number, from the name of its record or its list; `None` if the file is neither.
    pub(crate) fn id_of(name: &str) -> Option<u64> {
        let stem = name.strip_suffix(SUFFIX).or_else(|| name.strip_suffix(list::SUFFIX))?;
        Some(stem).filter(|stem| stem.len() == 10)?.parse().ok()
    }

    /// Writes the record durably, and removes the segment's list.
    pub(crate) fn store(&self, files: &dyn Files, journal: &Path) -> Result<(), StoreError> {
        let path = Self::path(journal, self.header.id);
        replace(files, &path, &self.encode()).map_err(|error| StoreError::io("write", &path, error))?;
        remove(files, &list::path(journal, self.header.id))
    }

    /// Returns what is known of a segment's sessions, from its record or from its list; `None` if there is
    /// neither.
    pub(crate) fn load(files: &dyn Files, journal: &Path, id: u64) -> Option<Self> {
        let list = FrameList::load(files, journal, id).map(|list| Self::of(list.header, &list.frames));
        list.into_iter().chain(Self::load_record(files, journal, id)).max_by_key(|record| record.until)
    }

    /// Reads the record of a segment; `None` if there is no usable one.
    pub(crate) fn load_record(files: &dyn Files, journal: &Path, id: u64) -> Option<Self> {
        let file = files.open(&Self::path(journal, id), OpenMode::Read).ok()?;
        Self::decode(&read_all(file.as_ref()).ok()?).filter(|record| record.header.id == id)
    }

    /// Returns the paths of the record and the list of a segment.
    pub(crate) fn paths(journal: &Path, id: u64) -> [PathBuf; 2] {
        [Self::path(journal, id), list::path(journal, id)]
    }

    /// Removes the record and the list of a segment that is about to be removed.
    pub(crate) fn forget(files: &dyn Files, journal: &Path, id: u64) -> Result<(), StoreError> {
        let [record, list] = Self::paths(journal, id);
        remove(files, &record).and(remove(files, &list))
    }
}

/// Removes a file, if it exists.
fn remove(files: &dyn Files, path: &Path) -> Result<(), StoreError> {
    match files.remove(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_same(frame: &Frame, run: &Run) -> bool {
    frame.kind == run.kind && frame.session == run.session && frame.sequence == run.first
}

/// Returns a frame that represents the entries from `first` to before `next`.
fn frame_of(run: &Run, first: u64, next: u64, at: u64) -> Frame {
    Frame {
        offset: at,
        length: 0,
        sequence: first,
        count: u32::try_from(next - first).unwrap_or(u32::MAX),
        kind: run.kind,
        session: run.session.clone(),
    }
}
