//! The list of a segment's frames, in a file beside the segment that is appended to while the segment is
//! written.
//!
//! It records which frames were synced and which sessions they belong to, even if the end of the segment was
//! cut off and the index is behind. A sealed segment has a footer and a record of its sessions instead.
//!
//! ```text
//! list    header · piece · piece · …
//! header  magic · version · segment id · order · seed · crc
//! piece   length · frames · crc
//! ```
//!
//! Invariants: frames are listed after they were synced, from the segment's first frame on and without a gap.
//! The crc of a piece continues that of the previous piece, so a list ends before the first damaged piece.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frames::{Frames, Mark, decode};
use super::{Frame, SEGMENT_HEADER_BYTES, Scan, SegmentHeader};
use crate::bytes::{Cursor, checked, seal, to_u64, to_usize};
use crate::error::StoreError;
use crate::files::{File, Files, OpenMode, read_all, replace, write_all_at};

const MAGIC: u32 = u32::from_le_bytes(*b"GRL1");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
/// The end of a list's file name, after the segment's number.
pub(super) const SUFFIX: &str = ".frames";

/// A list that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrameList {
    /// The segment's header.
    pub(crate) header: SegmentHeader,
    /// The frames in order.
    pub(crate) frames: Vec<Frame>,
}

impl FrameList {
    /// Returns the offset before which the list has every frame.
    pub(crate) fn until(&self) -> u64 {
        self.frames.last().map_or(SEGMENT_HEADER_BYTES, Frame::end)
    }

    /// Whether the whole frames of a segment agree with the list, as far as it goes.
    pub(crate) fn fits(&self, scanned: &Scan) -> bool {
        let mut listed = self.frames.iter().peekable();
        scanned.frames.iter().take_while(|(frame, _)| frame.offset < self.until()).all(|(frame, _)| {
            while listed.next_if(|listed| listed.offset < frame.offset).is_some() {}
            listed.next() == Some(frame)
        })
    }

    /// Reads the list of a segment; `None` if there is no usable one.
    pub(crate) fn load(files: &dyn Files, journal: &Path, id: u64) -> Option<Self> {
        let file = files.open(&path(journal, id), OpenMode::Read).ok()?;
        Self::decode(&read_all(file.as_ref()).ok()?).filter(|list| list.header.id == id)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let head = cursor.take(HEADER_BYTES)?;
        let mut fields = Cursor::new(checked(head)?);
        (fields.u32()? == MAGIC && fields.u32()? == VERSION).then_some(())?;
        let header = SegmentHeader { id: fields.u64()?, order: fields.u64()?, seed: fields.u32()? };
        let mut list = Self { header, frames: Vec::new() };
        let mut crc = crc32c::crc32c(head);
        while let Some((frames, next)) = read_piece(&mut cursor, crc, list.until()) {
            list.frames.extend(frames);
            crc = next;
        }
        Some(list)
    }
}

/// Reads the next piece, whose frames lie from the offset `end` on. Returns its frames and its crc; `None` if
/// it is damaged.
fn read_piece(cursor: &mut Cursor<'_>, crc: u32, end: u64) -> Option<(Vec<Frame>, u32)> {
    let length = to_usize(u64::from(cursor.u32()?));
    let bytes = cursor.take(length)?;
    let next = crc32c::crc32c_append(crc, bytes);
    (cursor.u32()? == next).then_some(())?;
    let frames = decode(bytes, if end == SEGMENT_HEADER_BYTES { 0 } else { end })?;
    let mut at = end;
    let follow = |frame: &Frame| std::mem::replace(&mut at, frame.end()) == frame.offset;
    frames.iter().all(follow).then_some((frames, next))
}

/// Returns the list's file in the journal's directory.
pub(super) fn path(journal: &Path, id: u64) -> PathBuf {
    journal.join(format!("{id:010}{SUFFIX}"))
}

/// A list that is being appended to.
#[derive(Debug)]
pub(crate) struct OpenList {
    path: PathBuf,
    file: Arc<dyn File>,
    /// The length of the file, in bytes.
    length: u64,
    /// The crc of the last piece.
    crc: u32,
    /// The position up to which frames are listed.
    mark: Mark,
}

impl OpenList {
    /// Writes a segment's list of these frames durably. It replaces an earlier one.
    pub(crate) fn create(
        files: &dyn Files,
        journal: &Path,
        header: SegmentHeader,
        frames: &Frames,
    ) -> Result<Self, StoreError> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(header.id.to_le_bytes());
        bytes.extend(header.order.to_le_bytes());
        bytes.extend(header.seed.to_le_bytes());
        seal(&mut bytes, 0);
        let crc = crc32c::crc32c(&bytes);
        let crc = add_piece(&mut bytes, &frames.since(Mark::default()), crc);
        let path = path(journal, header.id);
        let written = replace(files, &path, &bytes).and_then(|()| files.open(&path, OpenMode::Write));
        match written {
            Ok(file) => Ok(Self { path, file, length: to_u64(bytes.len()), crc, mark: frames.mark() }),
            Err(error) => Err(StoreError::io("write", &path, error)),
        }
    }

    /// Adds the frames that are not listed yet, durably. `frames` are those that the list was created with,
    /// and all later ones. After an error, the list must be created again.
    pub(crate) fn append(&mut self, frames: &Frames) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        let crc = add_piece(&mut bytes, &frames.since(self.mark), self.crc);
        let written = write_all_at(self.file.as_ref(), &bytes, self.length).and_then(|()| self.file.sync());
        written.map_err(|error| StoreError::io("write", &self.path, error))?;
        (self.length, self.crc, self.mark) = (self.length + to_u64(bytes.len()), crc, frames.mark());
        Ok(())
    }
}

/// Adds a piece behind one with this crc, and returns its own crc.
fn add_piece(bytes: &mut Vec<u8>, frames: &[u8], crc: u32) -> u32 {
    let length = u32::try_from(frames.len()).expect("a segment's frames take far less than 4 GiB");
    let crc = crc32c::crc32c_append(crc, frames);
    bytes.extend(length.to_le_bytes());
    bytes.extend(frames);
    bytes.extend(crc.to_le_bytes());
    crc
}
