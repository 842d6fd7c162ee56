//! Reads little-endian fields one after another, in the order in which they were written.
//!
//! Everything that this crate reads from a disk goes through [`Cursor`], except for records, which bincode reads.
//!
//! Invariants: a cursor never panics; an incomplete field is `None`.

/// The bytes that have not been read yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns all bytes that are left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Returns the next `count` bytes as text.
    pub(crate) fn text(&mut self, count: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(count)?).ok()
    }
}

/// Splits off the crc32c in the last four bytes; `None` if it is not the crc of the bytes before it.
pub(crate) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    (Cursor::new(crc).u32()? == crc32c::crc32c(body)).then_some(body)
}

/// Appends the crc32c of everything from `start` on.
pub(crate) fn seal(bytes: &mut Vec<u8>, start: usize) {
    let crc = crc32c::crc32c(&bytes[start..]);
    bytes.extend(crc.to_le_bytes());
}

/// Converts a length for writing. Lengths in this crate are those of buffers in memory.
pub(crate) fn to_u64(length: usize) -> u64 {
    length as u64
}

/// Converts an offset into a buffer in memory. Offsets from a disk are compared with the buffer's length
/// first.
pub(crate) fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset into a buffer in memory")
}

/// Appends a variable-length number: seven bits in each byte, the lowest first; the highest bit means that
/// more follow.
pub(crate) fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Reads a variable-length number; `None` if it is truncated.
pub(crate) fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
