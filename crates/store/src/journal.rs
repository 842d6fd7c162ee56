//! The journal's bytes: segment files of checksummed frames.
//!
//! ```text
//! segment  header · frame · frame · … · [footer · trailer, once it is sealed]
//! header   magic · format version · segment id · order · seed · crc
//! frame    magic · header crc · payload crc · length · chain · count · sequence · group · kind · session · payload
//! footer   (offset · length · sequence · count · kind · session) of each frame
//! trailer  magic · version · frames · digest · footer's offset · footer's crc · crc
//! ```
//!
//! Invariants: a frame holds a whole batch, so that a batch is there entirely or not at all. Each frame's `chain` is
//! the header crc of the frame before it (the first one's is derived from the segment's id), so that no frame can
//! vanish unseen between two others. All crcs begin with the segment's random seed, so that no text inside a payload
//! can look like a frame. `group` is where the write began that this frame was part of: a frame of a later group
//! proves that all before it was synced, and that tells damage from a write that never finished. Numbers are little
//! endian.

pub(crate) mod manifest;
pub(crate) mod segments;

#[cfg(test)]
mod tests;

use crate::error::StoreError;

pub(crate) const FORMAT_VERSION: u32 = 1;
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 40;
pub(crate) const TRAILER_BYTES: u64 = 44;
const FRAME_HEADER_BYTES: usize = 44;
const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"GRS1");
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"GRF1");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"GRT1");
/// The longest session id, in bytes.
pub(crate) const SESSION_BYTES_MAX: usize = 64;

/// Lengths here are bounded by the size of a segment in memory.
fn to_u64(length: usize) -> u64 {
    length as u64
}

/// Offsets here come from a buffer in memory, or were compared with its length.
fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset into a buffer in memory")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Its number, which is also its file's name; never used again.
    pub(crate) id: u64,
    /// Its place among the segments: its own id, or that of the segment that it was rewritten from.
    pub(crate) order: u64,
    /// Where all its crcs begin.
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
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// The header in front of `bytes`; `Ok(None)` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        let length = to_usize(SEGMENT_HEADER_BYTES);
        if bytes.len() < length
            || u32_at(bytes, 0) != SEGMENT_MAGIC
            || u32_at(bytes, length - 4) != crc32c::crc32c(&bytes[..length - 4])
        {
            return Ok(None);
        }
        let found = u32_at(bytes, 4);
        if found > FORMAT_VERSION {
            return Err(StoreError::Version { what: "a journal segment", found, supported: FORMAT_VERSION });
        }
        Ok(Some(Self { id: u64_at(bytes, 8), order: u64_at(bytes, 16), seed: u32_at(bytes, 24) }))
    }

    /// The chain value of the first frame.
    pub(crate) fn chain(&self) -> u32 {
        first_chain(self.id, self.seed)
    }
}

pub(crate) fn first_chain(id: u64, seed: u32) -> u32 {
    crc32c::crc32c_append(seed, &id.to_le_bytes())
}

/// What a frame holds; its number on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Append = 1,
    Deleted = 2,
    Learned = 3,
    Quarantined = 4,
    LossAccepted = 5,
}

impl FrameKind {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Append, Self::Deleted, Self::Learned, Self::Quarantined, Self::LossAccepted]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A frame's place and header, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where it begins in its segment.
    pub(crate) offset: u64,
    /// Its length, header included.
    pub(crate) length: u32,
    /// The first entry's sequence number (the next one's, where it holds none).
    pub(crate) sequence: u64,
    /// How many entries it holds.
    pub(crate) count: u32,
    pub(crate) kind: FrameKind,
    /// Whose it is; empty for what belongs to no session.
    pub(crate) session: Box<str>,
}

impl Frame {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// A frame about to be written.
#[derive(Debug, Clone)]
pub(crate) struct NewFrame {
    pub(crate) kind: FrameKind,
    pub(crate) session: String,
    pub(crate) sequence: u64,
    pub(crate) count: u32,
    pub(crate) payload: Vec<u8>,
}

impl NewFrame {
    pub(crate) fn length(&self) -> u64 {
        to_u64(FRAME_HEADER_BYTES + self.session.len() + self.payload.len())
    }

    /// Appends the frame's bytes to `buffer`, which will be written at `group` in a segment with this `seed`; gives
    /// its place and the next frame's chain.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>, group: u64, seed: u32, chain: u32) -> (Frame, u32) {
        let start = buffer.len();
        let length = u32::try_from(self.length()).expect("payloads are limited to far less than 4 GiB");
        let session_length = u8::try_from(self.session.len()).expect("session ids have at most 64 bytes");
        buffer.extend(FRAME_MAGIC.to_le_bytes());
        buffer.extend([0; 4]);
        buffer.extend(crc32c::crc32c_append(seed, &self.payload).to_le_bytes());
        buffer.extend(length.to_le_bytes());
        buffer.extend(chain.to_le_bytes());
        buffer.extend(self.count.to_le_bytes());
        buffer.extend(self.sequence.to_le_bytes());
        buffer.extend(group.to_le_bytes());
        buffer.extend([self.kind as u8, session_length, 0, 0]);
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
            session: self.session.as_str().into(),
        };
        (frame, crc)
    }
}

/// A frame whose header was read and is right.
#[derive(Debug, Clone)]
pub(crate) struct Parsed<'a> {
    pub(crate) frame: Frame,
    pub(crate) payload: &'a [u8],
    /// Whether the payload is right too.
    pub(crate) is_whole: bool,
    /// What its header says of the frame before it.
    pub(crate) chain: u32,
    /// What the next frame's header has to say of it.
    pub(crate) next_chain: u32,
    /// Where the write that it was part of began.
    pub(crate) group: u64,
}

/// The frame at `bytes[at..]`, if its header is right; `base` is the offset of `bytes` in the segment.
pub(crate) fn parse(bytes: &[u8], at: usize, base: u64, seed: u32) -> Option<Parsed<'_>> {
    let bytes = bytes.get(at..)?;
    if bytes.len() < FRAME_HEADER_BYTES || u32_at(bytes, 0) != FRAME_MAGIC {
        return None;
    }
    let session_end = FRAME_HEADER_BYTES + usize::from(bytes[41]);
    let header = bytes.get(8..session_end)?;
    let next_chain = crc32c::crc32c_append(seed, header);
    if u32_at(bytes, 4) != next_chain {
        return None;
    }
    let length = u32_at(bytes, 12);
    let frame = Frame {
        offset: base + to_u64(at),
        length,
        sequence: u64_at(bytes, 24),
        count: u32_at(bytes, 20),
        kind: FrameKind::from_number(bytes[40])?,
        session: std::str::from_utf8(&bytes[FRAME_HEADER_BYTES..session_end]).ok()?.into(),
    };
    let end = to_usize(u64::from(length)).min(bytes.len());
    let payload = bytes.get(session_end..end)?;
    let is_whole =
        end == to_usize(u64::from(length)) && u32_at(bytes, 8) == crc32c::crc32c_append(seed, payload);
    Some(Parsed { frame, payload, is_whole, chain: u32_at(bytes, 16), next_chain, group: u64_at(bytes, 32) })
}

/// A part of a segment that holds no valid frame though it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bad {
    /// Where it begins.
    pub(crate) from: u64,
    /// Where it ends; the same as `from` where frames were cut out between two others.
    pub(crate) until: u64,
    /// The frames in it whose header can still be read.
    pub(crate) legible: Vec<Frame>,
}

/// What a segment holds.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The whole frames, in order, each with the chain after it.
    pub(crate) frames: Vec<(Frame, u32)>,
    /// What is bad between them, and whether a later group proves that it had been written whole.
    pub(crate) bad: Vec<(Bad, bool)>,
    /// What is bad after the last of them.
    pub(crate) tail: Option<Bad>,
    /// The end of the last whole frame (or of the header).
    pub(crate) end: u64,
    /// The chain after it.
    pub(crate) chain: u32,
    /// Whether a footer follows.
    pub(crate) trailer: Option<Trailer>,
}

/// Reads a whole segment's bytes, header included, and never fails: what is not right is reported as bad. With
/// `until`, nothing beyond it is looked at (and no footer expected).
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
    let mut pending: Option<Bad> = None;
    while at < bytes.len() {
        match parse(bytes, at, 0, seed) {
            Some(parsed) if parsed.is_whole => {
                let gap = (parsed.chain != scan.chain && pending.is_none()).then(|| {
                    // Valid, but not what stood after the frame before it.
                    Bad { from: to_u64(at), until: to_u64(at), legible: Vec::new() }
                });
                scan.bad.extend(pending.take().or(gap).map(|bad| {
                    let was_cut_out = bad.from == bad.until;
                    (bad, was_cut_out)
                }));
                for (bad, was_synced) in &mut scan.bad {
                    *was_synced |= parsed.group > bad.from;
                }
                scan.end = parsed.frame.end();
                scan.chain = parsed.next_chain;
                at = to_usize(scan.end);
                scan.frames.push((parsed.frame, parsed.next_chain));
            }
            Some(parsed) => {
                // The header is right and tells where the next frame should begin.
                let bad = pending.get_or_insert(Bad { from: to_u64(at), until: 0, legible: Vec::new() });
                bad.legible.push(parsed.frame.clone());
                let next = usize::try_from(parsed.frame.end()).unwrap_or(usize::MAX);
                at = if parse(bytes, next, 0, seed).is_some() { next } else { resync(bytes, at + 4, seed) };
                bad.until = to_u64(at);
            }
            None => {
                let bad = pending.get_or_insert(Bad { from: to_u64(at), until: 0, legible: Vec::new() });
                at = resync(bytes, at + 1, seed);
                bad.until = to_u64(at);
            }
        }
    }
    scan.tail = pending;
    scan
}

/// Where the next right frame header begins, from `at` on; the end if there is none.
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

/// What ends a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    /// How many frames there are.
    pub(crate) frames: u64,
    /// The last frame's header crc; through the chain it vouches for all of them.
    pub(crate) digest: u32,
    /// Where the frames end and the footer begins.
    pub(crate) footer_offset: u64,
    footer_crc: u32,
}

impl Trailer {
    /// The trailer in the last bytes of `tail`, which are the file's last.
    pub(crate) fn decode(tail: &[u8]) -> Option<Self> {
        let bytes = tail.get(tail.len().checked_sub(to_usize(TRAILER_BYTES))?..)?;
        let crc_at = to_usize(TRAILER_BYTES) - 4;
        if u32_at(bytes, 0) != TRAILER_MAGIC || u32_at(bytes, crc_at) != crc32c::crc32c(&bytes[..crc_at]) {
            return None;
        }
        Some(Self {
            frames: u64_at(bytes, 8),
            digest: u32_at(bytes, 16),
            footer_offset: u64_at(bytes, 20),
            footer_crc: u32_at(bytes, 28),
        })
    }

    /// The trailer of a whole segment, if it and its footer are right.
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

/// The frames that a sealed segment's footer lists, if the footer is right.
pub(crate) fn read_footer(segment: &[u8]) -> Option<Vec<Frame>> {
    const FIXED: usize = 26;
    let trailer = Trailer::decode(segment)?;
    let mut footer = footer_bytes(segment, &trailer)?;
    let mut frames = Vec::new();
    while !footer.is_empty() {
        let fixed = footer.get(..FIXED)?;
        let session_end = FIXED + usize::from(fixed[25]);
        frames.push(Frame {
            offset: u64_at(fixed, 0),
            length: u32_at(fixed, 8),
            sequence: u64_at(fixed, 12),
            count: u32_at(fixed, 20),
            kind: FrameKind::from_number(fixed[24])?,
            session: std::str::from_utf8(footer.get(FIXED..session_end)?).ok()?.into(),
        });
        footer = &footer[session_end..];
    }
    Some(frames)
}

/// The bytes that seal a segment whose frames end at `end`.
pub(crate) fn footer(frames: &[Frame], end: u64, digest: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend(frame.offset.to_le_bytes());
        bytes.extend(frame.length.to_le_bytes());
        bytes.extend(frame.sequence.to_le_bytes());
        bytes.extend(frame.count.to_le_bytes());
        let session_length = u8::try_from(frame.session.len()).expect("session ids have at most 64 bytes");
        bytes.extend([frame.kind as u8, session_length]);
        bytes.extend(frame.session.as_bytes());
    }
    let footer_crc = crc32c::crc32c(&bytes);
    let start = bytes.len();
    bytes.extend(TRAILER_MAGIC.to_le_bytes());
    bytes.extend(FORMAT_VERSION.to_le_bytes());
    bytes.extend(to_u64(frames.len()).to_le_bytes());
    bytes.extend(digest.to_le_bytes());
    bytes.extend(end.to_le_bytes());
    bytes.extend(footer_crc.to_le_bytes());
    bytes.extend([0; 8]);
    let crc = crc32c::crc32c(&bytes[start..]);
    bytes.extend(crc.to_le_bytes());
    bytes
}
