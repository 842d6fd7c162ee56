//! Reads a segment one frame after another, for what need not have all of it in memory.
//!
//! Invariants: at most a window of the segment is in memory, or one frame if that is longer.

use super::frames::Frames;
use super::{
    Footer, HEADER_BYTES_MAX, Parsed, SEGMENT_HEADER_BYTES, TRAILER_BYTES, Trailer, first_chain, parse,
};
use crate::bytes::{to_u64, to_usize};
use crate::files::{File, read_at};

/// How many bytes of a segment are read or written at once.
pub(crate) const WINDOW_BYTES: usize = if cfg!(test) { 700 } else { 1 << 20 };

/// The frames of a segment before an offset.
pub(crate) struct FrameStream<'a> {
    file: &'a dyn File,
    seed: u32,
    /// Where the next frame begins.
    at: u64,
    /// Where the frames end.
    end: u64,
    window: Vec<u8>,
    /// Where the window begins.
    base: u64,
}

impl<'a> FrameStream<'a> {
    /// Creates a stream of the frames before `end`.
    pub(crate) fn new(file: &'a dyn File, seed: u32, end: u64) -> Self {
        Self { file, seed, at: SEGMENT_HEADER_BYTES, end, window: Vec::new(), base: 0 }
    }

    /// Whether all frames were read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    /// Returns the next frame. `None` at the end, and if the next frame is not whole.
    pub(crate) fn next(&mut self) -> std::io::Result<Option<Parsed<'_>>> {
        self.hold(HEADER_BYTES_MAX)?;
        let Some(Parsed { frame, .. }) = self.parse() else { return Ok(None) };
        self.hold(to_usize(u64::from(frame.length)))?;
        self.at = frame.end();
        let at = to_usize(frame.offset - self.base);
        Ok(parse(&self.window, at, self.base, self.seed).filter(|parsed| parsed.is_whole))
    }

    fn parse(&self) -> Option<Parsed<'_>> {
        parse(&self.window, to_usize(self.at - self.base), self.base, self.seed)
    }

    /// Makes the window hold `length` bytes of the next frame, or all that there are.
    fn hold(&mut self, length: usize) -> std::io::Result<()> {
        let end = self.at.saturating_add(to_u64(length)).min(self.end);
        if end > self.base + to_u64(self.window.len()) {
            let length = to_usize(end - self.at).max(WINDOW_BYTES);
            let length = length.min(to_usize(self.end - self.at));
            // Freed first: a long frame is not in memory twice.
            self.window = Vec::new();
            self.window = read_at(self.file, self.at, length)?;
            self.base = self.at;
        }
        Ok(())
    }
}

/// Returns where the frames of a sealed segment end, if it is undamaged, and its footer and trailer list exactly the
/// frames that it holds.
pub(crate) fn whole_end(file: &dyn File, id: u64, seed: u32) -> std::io::Result<Option<u64>> {
    let length = file.length()?;
    let tail = read_at(file, length.saturating_sub(TRAILER_BYTES), to_usize(TRAILER_BYTES))?;
    let Some(end) = Trailer::decode(&tail).map(|trailer| trailer.footer_offset) else { return Ok(None) };
    if !(SEGMENT_HEADER_BYTES..length).contains(&end) {
        return Ok(None);
    }
    let mut stream = FrameStream::new(file, seed, end);
    let (mut footer, mut bytes, mut at) = (Footer::default(), Vec::new(), end);
    let mut chain = first_chain(id, seed);
    while let Some(parsed) = stream.next()? {
        if parsed.chain != chain {
            return Ok(None);
        }
        chain = parsed.next_chain;
        footer.add(&parsed.frame, &mut bytes);
        if bytes.len() >= WINDOW_BYTES {
            if read_at(file, at, bytes.len())? != bytes {
                return Ok(None);
            }
            at += to_u64(bytes.len());
            bytes.clear();
        }
    }
    let is_read = stream.is_at_end();
    footer.end(end, chain, &mut bytes);
    let is_listed = at + to_u64(bytes.len()) == length && read_at(file, at, bytes.len())? == bytes;
    Ok((is_read && is_listed).then_some(end))
}

/// Writes the footer and the trailer of a segment, piece by piece: see [`Footer`].
pub(crate) fn write_footer(file: &dyn File, frames: &Frames, end: u64, digest: u32) -> std::io::Result<()> {
    let (mut footer, mut bytes, mut at) = (Footer::default(), Vec::new(), end);
    for frame in frames.iter() {
        footer.add(&frame, &mut bytes);
        if bytes.len() >= WINDOW_BYTES {
            crate::files::write_all_at(file, &bytes, at)?;
            at += to_u64(bytes.len());
            bytes.clear();
        }
    }
    footer.end(end, digest, &mut bytes);
    crate::files::write_all_at(file, &bytes, at)
}
