//! A compact list of a segment's frames: a segment of small frames has hundreds of thousands.
//!
//! Invariants: the list returns the frames as they were added, whether or not they are contiguous.

use super::{Frame, FrameKind};
use crate::bytes::{read_number, write_number};

/// The size of a piece of the list, in bytes. Pieces let a long list grow without being copied.
const PIECE_BYTES: usize = 32 << 10;
/// The maximum size of a frame: five numbers, its kind, and the session with its length.
const FRAME_BYTES_MAX: usize = 4 * 10 + 2 + 255;

/// A position in the list, behind the frames added so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    piece: usize,
    at: usize,
}

/// Frames in order.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pieces: Vec<Vec<u8>>,
    count: usize,
    /// Where the last frame ends.
    end: Option<u64>,
}

impl Frames {
    /// Whether there is no frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns how many frames there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns where the last frame ends; `None` if there is no frame.
    pub(crate) fn end(&self) -> Option<u64> {
        self.end
    }

    /// Adds a frame behind the others.
    pub(crate) fn push(&mut self, frame: &Frame) {
        if self.pieces.last().is_none_or(|piece| piece.len() + FRAME_BYTES_MAX > PIECE_BYTES) {
            self.pieces.push(Vec::with_capacity(if self.pieces.is_empty() { 0 } else { PIECE_BYTES }));
        }
        let piece = self.pieces.last_mut().expect("there is one now");
        // Most frames begin where the previous one ends.
        write_number(piece, frame.offset.wrapping_sub(self.end.unwrap_or(0)));
        write_number(piece, u64::from(frame.length));
        write_number(piece, frame.sequence);
        write_number(piece, u64::from(frame.count));
        let session_length = u8::try_from(frame.session.len()).expect("session ids have at most 255 bytes");
        piece.extend([frame.kind as u8, session_length]);
        piece.extend(frame.session.as_bytes());
        self.count += 1;
        self.end = Some(frame.end());
    }

    /// Returns the position behind the last frame.
    pub(crate) fn mark(&self) -> Mark {
        let piece = self.pieces.len().saturating_sub(1);
        Mark { piece, at: self.pieces.last().map_or(0, Vec::len) }
    }

    /// Returns the bytes of the frames added since the mark was taken, for [`decode`].
    pub(crate) fn since(&self, mark: Mark) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, piece) in self.pieces.iter().enumerate().skip(mark.piece) {
            bytes.extend(piece.iter().skip(if number == mark.piece { mark.at } else { 0 }));
        }
        bytes
    }

    /// Returns the frames in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Frame> {
        let mut end = 0;
        self.pieces
            .iter()
            .flat_map(|piece| {
                let mut rest = piece.as_slice();
                let read = |rest: &mut &[u8]| read_frame(rest).expect("a frame was written whole");
                std::iter::from_fn(move || (!rest.is_empty()).then(|| read(&mut rest)))
            })
            .map(move |mut frame| {
                frame.offset = frame.offset.wrapping_add(end);
                end = frame.end();
                frame
            })
    }
}

impl FromIterator<Frame> for Frames {
    fn from_iter<T: IntoIterator<Item = Frame>>(all: T) -> Self {
        let mut frames = Self::default();
        all.into_iter().for_each(|frame| frames.push(&frame));
        frames
    }
}

/// Decodes the result of [`Frames::since`], behind a frame that ends at `end`; `None` if it is not valid.
pub(crate) fn decode(bytes: &[u8], end: u64) -> Option<Vec<Frame>> {
    let (mut rest, mut end, mut frames) = (bytes, end, Vec::new());
    while !rest.is_empty() {
        let mut frame = read_frame(&mut rest)?;
        frame.offset = frame.offset.wrapping_add(end);
        end = frame.offset.checked_add(u64::from(frame.length))?;
        frames.push(frame);
    }
    Some(frames)
}

/// Reads a frame whose offset is relative to the end of the previous frame.
fn read_frame(rest: &mut &[u8]) -> Option<Frame> {
    let offset = read_number(rest)?;
    let length = u32::try_from(read_number(rest)?).ok()?;
    let sequence = read_number(rest)?;
    let count = u32::try_from(read_number(rest)?).ok()?;
    let (head, after) = rest.split_at_checked(2)?;
    let (session, after) = after.split_at_checked(usize::from(head[1]))?;
    *rest = after;
    let session = std::str::from_utf8(session).ok()?.into();
    Some(Frame { offset, length, sequence, count, kind: FrameKind::from_number(head[0])?, session })
}

#[cfg(test)]
mod tests;
