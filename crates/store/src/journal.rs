//! The journal's bytes: segment files of checksummed frames.
//!
//! ```text
//! segment  header · frame · frame · … · [footer · trailer, once it is sealed]
//! header   magic · format version · segment id · order · seed · crc
//! frame    magic · header crc · payload crc · length · chain · count · sequence · group · kind · session · payload
//! footer   (offset · length · sequence · count · kind · session) of each frame
//! trailer  magic · version · frames · digest · footer offset · footer crc · crc
//! ```
//!
//! Numbers are little-endian. Four fields of a frame need an explanation:
//!
//! - `chain` is the header crc of the previous frame (of the first frame: a crc of the segment's id). A frame
//!   missing between two others is detected, because the chain does not continue.
//! - The two crcs start from the segment's random seed, so that no text inside a payload can pass for a
//!   frame.
//! - `group` is the offset at which the write that contained this frame began. A frame of a later group
//!   proves that everything before that group had been synced, which distinguishes damage from a write that
//!   never finished.
//!
//! Invariants: a frame holds a whole batch, so a batch is in the journal entirely or not at all. A batch that
//! is too large for one frame lies in several `Part` frames and one `Commit` frame, and counts only with the
//! latter. Frames follow one another without a gap. Data is validated before it is used, and invalid data
//! never causes a panic.

pub(crate) mod frames;
pub(crate) mod list;
pub(crate) mod manifest;
pub(crate) mod segments;
pub(crate) mod sessions;
pub(crate) mod stream;

#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::sync::Arc;

use crate::bytes::{Cursor, checked, seal, to_u64, to_usize};
use crate::error::StoreError;

/// The version of the journal's own bytes: of segments and of the manifest. Records have separate versions.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// The length of a segment's header, which is also the offset of its first frame.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 40;
/// The length of a sealed segment's trailer.
pub(crate) const TRAILER_BYTES: u64 = 44;
/// The length of a frame's header without the session's id.
const FRAME_HEADER_BYTES: usize = 44;
/// The most bytes of a frame's header with the session's id.
const HEADER_BYTES_MAX: usize = FRAME_HEADER_BYTES + 255;
const FRAME_PADDING: [u8; 2] = [0; 2];
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"GRS1");
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"GRF1");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"GRT1");

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number, which is also its file name. A number is never reused.
    pub(crate) id: u64,
    /// The segment's position among the others. A rewritten segment keeps the position of the old one.
    pub(crate) order: u64,
    /// The start value of all crcs in the segment.
    pub(crate) seed: u32,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(to_usize(SEGMENT_HEADER_BYTES));
        bytes.extend(SEGMENT_MAGIC.to_le_bytes());
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(self.order.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend([0; 8]);
        seal(&mut bytes, 0);
        bytes
    }

    /// Reads the header at the start of `bytes`; `Ok(None)` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        let read = || {
            let mut cursor = Cursor::new(checked(bytes.get(..to_usize(SEGMENT_HEADER_BYTES))?)?);
            (cursor.u32()? == SEGMENT_MAGIC).then_some(())?;
            let version = cursor.u32()?;
            Some((version, Self { id: cursor.u64()?, order: cursor.u64()?, seed: cursor.u32()? }))
        };
        match read() {
            Some((found, _)) if found > FORMAT_VERSION => {
                Err(StoreError::Version { what: "a journal segment", found, supported: FORMAT_VERSION })
            }
            found => Ok(found.map(|(_, header)| header)),
        }
    }

    /// Whether a file without a valid header was left behind when the segment with this number was being created: it is
    /// empty, or holds a part of a header, and zeros where nothing reached the disk.
    pub(crate) fn is_begun(bytes: &[u8], id: u64) -> bool {
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let begun = &bytes[..length];
        let known = Self { id, order: 0, seed: 0 }.encode();
        // The order and the seed may be anything, and with them the checksum; everything else is known.
        let (fixed, reserved) = (&known[..16], begun.get(28..36.min(length)).unwrap_or_default());
        length < to_usize(SEGMENT_HEADER_BYTES)
            && fixed.starts_with(&begun[..length.min(fixed.len())])
            && reserved.iter().all(|byte| *byte == 0)
    }

    /// Returns the `chain` of the segment's first frame.
    pub(crate) fn chain(&self) -> u32 {
        first_chain(self.id, self.seed)
    }
}

/// Returns the `chain` of the first frame of the segment with this id and seed.
pub(crate) fn first_chain(id: u64, seed: u32) -> u32 {
    crc32c::crc32c_append(seed, &id.to_le_bytes())
}

/// The kind of a frame. The numbers are those on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Entries of a session and the head after them.
    Append = 1,
    /// The session was deleted.
    Deleted = 2,
    /// A fact, which belongs to no session.
    Learned = 3,
    /// Entries of the session were found to be lost.
    Quarantined = 4,
    /// A person accepted the loss.
    LossAccepted = 5,
    /// Entries of a batch that takes several frames. They count only once its `Commit` exists.
    Part = 6,
    /// The last entries of a batch that takes several frames.
    Commit = 7,
}

impl FrameKind {
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let all = [
            Self::Append,
            Self::Deleted,
            Self::Learned,
            Self::Quarantined,
            Self::LossAccepted,
            Self::Part,
            Self::Commit,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A frame's location and header, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where the frame begins in its segment, in bytes.
    pub(crate) offset: u64,
    /// The frame's length in bytes, header included.
    pub(crate) length: u32,
    /// The sequence number of the frame's first entry; of the session's next entry if the frame holds none.
    pub(crate) sequence: u64,
    /// The number of entries in the frame.
    pub(crate) count: u32,
    pub(crate) kind: FrameKind,
    /// The session that the frame belongs to; empty for a fact.
    pub(crate) session: Arc<str>,
}

impl Frame {
    /// Returns the offset of the next frame.
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// A frame to be written. The fields mean the same as in [`Frame`].
#[derive(Debug, Clone)]
pub(crate) struct NewFrame {
    pub(crate) kind: FrameKind,
    pub(crate) session: Arc<str>,
    pub(crate) sequence: u64,
    pub(crate) count: u32,
    pub(crate) payload: Vec<u8>,
}

impl NewFrame {
    /// Returns the length of the encoded frame, in bytes.
    pub(crate) fn length(&self) -> u64 {
        to_u64(FRAME_HEADER_BYTES + self.session.len() + self.payload.len())
    }

    /// Appends the frame's bytes to `buffer`, which will be written at the offset `group` of a segment with this
    /// `seed`. Returns the frame's place and the chain of the next frame.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>, group: u64, seed: u32, chain: u32) -> (Frame, u32) {
        let start = buffer.len();
        let length = u32::try_from(self.length()).expect("payloads are limited to far less than 4 GiB");
        let session_length = u8::try_from(self.session.len()).expect("session ids have at most 255 bytes");
        buffer.extend(FRAME_MAGIC.to_le_bytes());
        buffer.extend([0; 4]);
        buffer.extend(crc32c::crc32c_append(seed, &self.payload).to_le_bytes());
        buffer.extend(length.to_le_bytes());
        buffer.extend(chain.to_le_bytes());
        buffer.extend(self.count.to_le_bytes());
        buffer.extend(self.sequence.to_le_bytes());
        buffer.extend(group.to_le_bytes());
        buffer.extend([self.kind as u8, session_length]);
        buffer.extend(FRAME_PADDING);
        buffer.extend(self.session.as_bytes());
        let crc = crc32c::crc32c_append(seed, &buffer[start + 8..]);
        buffer[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        buffer.extend(&self.payload);
        let frame = Frame {
            offset: group + to_u64(start),
            length,
            sequence: self.sequence,
            count: self.count,
            kind: self.kind,
            session: Arc::clone(&self.session),
        };
        (frame, crc)
    }
}

/// A frame with a valid header.
#[derive(Debug, Clone)]
pub(crate) struct Parsed<'a> {
    pub(crate) frame: Frame,
    pub(crate) payload: &'a [u8],
    /// Whether the payload is complete and valid too.
    pub(crate) is_whole: bool,
    /// The chain in the frame's header: it must be the `next_chain` of the previous frame.
    pub(crate) chain: u32,
    /// The chain that the next frame's header must have.
    pub(crate) next_chain: u32,
    /// The offset at which the write that contained this frame began.
    pub(crate) group: u64,
}

/// Reads the frame at `bytes[at..]`, if its header is valid. `base` is the offset of `bytes` in the segment.
pub(crate) fn parse(bytes: &[u8], at: usize, base: u64, seed: u32) -> Option<Parsed<'_>> {
    let bytes = bytes.get(at..)?;
    let mut cursor = Cursor::new(bytes);
    (cursor.u32()? == FRAME_MAGIC).then_some(())?;
    let header_crc = cursor.u32()?;
    let crc_start = bytes.len() - cursor.rest().len();
    let payload_crc = cursor.u32()?;
    let length = cursor.u32()?;
    let chain = cursor.u32()?;
    let count = cursor.u32()?;
    let sequence = cursor.u64()?;
    let group = cursor.u64()?;
    let kind = cursor.u8()?;
    let session_length = cursor.u8()?;
    cursor.take(FRAME_PADDING.len())?;
    let session = cursor.take(usize::from(session_length))?;
    let header_length = bytes.len() - cursor.rest().len();
    let next_chain = crc32c::crc32c_append(seed, &bytes[crc_start..header_length]);
    (header_crc == next_chain).then_some(())?;
    let frame = Frame {
        offset: base + to_u64(at),
        length,
        sequence,
        count,
        kind: FrameKind::from_number(kind)?,
        session: std::str::from_utf8(session).ok()?.into(),
    };
    let payload_length = to_usize(u64::from(length)).checked_sub(header_length)?;
    let rest = cursor.rest();
    let payload = rest.get(..payload_length).unwrap_or(rest);
    let is_whole = payload.len() == payload_length && payload_crc == crc32c::crc32c_append(seed, payload);
    Some(Parsed { frame, payload, is_whole, chain, next_chain, group })
}

/// A range of a segment that should contain frames, but contains no valid one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRange {
    /// The offset of its first byte.
    pub(crate) from: u64,
    /// The offset after its last byte. Equal to `from` if frames were cut out between two others.
    pub(crate) until: u64,
    /// The frames in the range whose headers can still be read.
    pub(crate) legible: Vec<Frame>,
    /// Whether a later group proves that the range had been written and synced: then it is damage. Otherwise
    /// it may be a write that never finished.
    pub(crate) was_synced: bool,
}

impl BadRange {
    fn starting_at(from: usize) -> Self {
        Self { from: to_u64(from), until: to_u64(from), legible: Vec::new(), was_synced: false }
    }
}

/// The content of a segment.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The whole frames in order, each with the chain that the next frame must have.
    pub(crate) frames: Vec<(Frame, u32)>,
    /// The bad ranges between whole frames.
    pub(crate) bad: Vec<BadRange>,
    /// The bad range after the last whole frame, if there is one.
    pub(crate) tail: Option<BadRange>,
    /// Where the last whole frame ends; where the header ends if there is no frame.
    pub(crate) end: u64,
    /// The chain that a frame at `end` must have.
    pub(crate) chain: u32,
    /// The trailer, if the segment has a footer and both are valid.
    pub(crate) trailer: Option<Trailer>,
}

/// Reads the bytes of a whole segment, including its header. It never fails: invalid parts are reported as
/// bad. With `until`, it reads nothing beyond that offset.
pub(crate) fn scan(bytes: &[u8], id: u64, seed: u32, until: Option<u64>) -> Scan {
    let trailer = Trailer::find(bytes);
    let limit = match (until, &trailer) {
        (Some(until), _) => usize::try_from(until).map_or(bytes.len(), |until| until.min(bytes.len())),
        (None, Some(trailer)) => to_usize(trailer.footer_offset),
        (None, None) => bytes.len(),
    };
    let bytes = &bytes[..limit];
    let mut scan =
        Scan { end: SEGMENT_HEADER_BYTES, chain: first_chain(id, seed), trailer, ..Scan::default() };
    let mut at = to_usize(SEGMENT_HEADER_BYTES);
    let mut current: Option<BadRange> = None;
    while at < bytes.len() {
        match parse(bytes, at, 0, seed) {
            Some(parsed) if parsed.is_whole => {
                if let Some(bad) = current.take() {
                    scan.bad.push(bad);
                } else if parsed.chain != scan.chain {
                    // The frame is valid, but not the one that followed the previous frame: some were cut
                    // out, and that happens only to synced bytes.
                    scan.bad.push(BadRange { was_synced: true, ..BadRange::starting_at(at) });
                }
                for bad in &mut scan.bad {
                    bad.was_synced |= parsed.group > bad.from;
                }
                scan.end = parsed.frame.end();
                scan.chain = parsed.next_chain;
                at = to_usize(scan.end);
                scan.frames.push((parsed.frame, parsed.next_chain));
            }
            Some(parsed) => {
                // Only the payload is damaged: the header gives the start of the next frame.
                let bad = current.get_or_insert(BadRange::starting_at(at));
                let next = usize::try_from(parsed.frame.end()).unwrap_or(usize::MAX);
                bad.legible.push(parsed.frame);
                at = if parse(bytes, next, 0, seed).is_some() { next } else { resync(bytes, at + 4, seed) };
                bad.until = to_u64(at);
            }
            None => {
                let bad = current.get_or_insert(BadRange::starting_at(at));
                at = resync(bytes, at + 1, seed);
                bad.until = to_u64(at);
            }
        }
    }
    scan.tail = current;
    scan
}

/// Returns the offset of the next valid frame header at or after `at`; the length of `bytes` if there is
/// none.
fn resync(bytes: &[u8], at: usize, seed: u32) -> usize {
    let magic = FRAME_MAGIC.to_le_bytes();
    let mut at = at;
    while at + FRAME_HEADER_BYTES <= bytes.len() {
        match bytes[at..].iter().position(|&byte| byte == magic[0]) {
            None => break,
            Some(ahead) => at += ahead,
        }
        if bytes[at..].starts_with(&magic) && parse(bytes, at, 0, seed).is_some() {
            return at;
        }
        at += 1;
    }
    bytes.len()
}

/// The last bytes of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// The number of frames in the segment.
    pub(crate) frames: u64,
    /// The header crc of the last frame. Through the chain it covers all frames before it.
    pub(crate) digest: u32,
    /// The offset where the frames end and the footer begins.
    pub(crate) footer_offset: u64,
    footer_crc: u32,
}

impl Trailer {
    /// Reads the trailer from `tail`, which must be the last bytes of the file; `None` if it is not valid.
    pub(crate) fn decode(tail: &[u8]) -> Option<Self> {
        let start = tail.len().checked_sub(to_usize(TRAILER_BYTES))?;
        let mut cursor = Cursor::new(checked(&tail[start..])?);
        (cursor.u32()? == TRAILER_MAGIC).then_some(())?;
        cursor.u32()?; // The format version: the segment's header has told it already.
        let frames = cursor.u64()?;
        let digest = cursor.u32()?;
        Some(Self { frames, digest, footer_offset: cursor.u64()?, footer_crc: cursor.u32()? })
    }

    /// Returns the trailer of a whole segment, if both it and the footer are valid.
    fn find(bytes: &[u8]) -> Option<Self> {
        let trailer = Self::decode(bytes)?;
        footer_bytes(bytes, &trailer).map(|_| trailer)
    }
}

fn footer_bytes<'a>(segment: &'a [u8], trailer: &Trailer) -> Option<&'a [u8]> {
    let start = usize::try_from(trailer.footer_offset).ok()?;
    let footer = segment.get(start..segment.len().checked_sub(to_usize(TRAILER_BYTES))?)?;
    (crc32c::crc32c(footer) == trailer.footer_crc).then_some(footer)
}

/// Returns the frames in a sealed segment's footer; `None` if the footer is missing or not valid.
pub(crate) fn read_footer(segment: &[u8]) -> Option<Vec<Frame>> {
    let trailer = Trailer::decode(segment)?;
    let mut cursor = Cursor::new(footer_bytes(segment, &trailer)?);
    let mut frames = Vec::new();
    while !cursor.is_empty() {
        let (offset, length) = (cursor.u64()?, cursor.u32()?);
        let (sequence, count) = (cursor.u64()?, cursor.u32()?);
        let kind = FrameKind::from_number(cursor.u8()?)?;
        let session_length = usize::from(cursor.u8()?);
        let session = cursor.text(session_length)?.into();
        frames.push(Frame { offset, length, sequence, count, kind, session });
    }
    Some(frames)
}

/// Encodes the footer and the trailer that seal a segment, one frame after another.
#[derive(Debug, Default)]
pub(crate) struct Footer {
    frames: u64,
    crc: u32,
}

impl Footer {
    /// Appends the next frame's part of the footer to `bytes`.
    pub(crate) fn add(&mut self, frame: &Frame, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend(frame.offset.to_le_bytes());
        bytes.extend(frame.length.to_le_bytes());
        bytes.extend(frame.sequence.to_le_bytes());
        bytes.extend(frame.count.to_le_bytes());
        let session_length = u8::try_from(frame.session.len()).expect("session ids have at most 64 bytes");
        bytes.extend([frame.kind as u8, session_length]);
        bytes.extend(frame.session.as_bytes());
        self.frames += 1;
        self.crc = crc32c::crc32c_append(self.crc, &bytes[start..]);
    }

    /// Appends the trailer of a segment whose frames end at the offset `end`. `digest` is the chain after the last
    /// frame.
    pub(crate) fn end(self, end: u64, digest: u32, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend(TRAILER_MAGIC.to_le_bytes());
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.frames.to_le_bytes());
        bytes.extend(digest.to_le_bytes());
        bytes.extend(end.to_le_bytes());
        bytes.extend(self.crc.to_le_bytes());
        bytes.extend([0; 8]);
        seal(bytes, start);
    }
}

/// Whether the frames are contiguous, from the header up to `end`.
pub(crate) fn are_contiguous(frames: impl IntoIterator<Item: Borrow<Frame>>, end: u64) -> bool {
    let mut at = SEGMENT_HEADER_BYTES;
    frames.into_iter().all(|frame| {
        let frame = frame.borrow();
        let follows = frame.offset == at;
        at = frame.end();
        follows
    }) && at == end
}

/// Whether the segment is undamaged, and its footer and trailer list exactly the frames that it holds.
pub(crate) fn is_whole(bytes: &[u8], scanned: &Scan) -> bool {
    let Some(trailer) = scanned.trailer else { return false };
    let frames = scanned.frames.iter().map(|(frame, _)| frame);
    scanned.bad.is_empty()
        && scanned.tail.is_none()
        && are_contiguous(frames.clone(), trailer.footer_offset)
        && (trailer.frames, trailer.digest) == (scanned.frames.len() as u64, scanned.chain)
        && read_footer(bytes).is_some_and(|listed| listed.iter().eq(frames))
}
