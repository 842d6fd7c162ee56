//! The rows of the index: their content, keys and bytes.
//!
//! All rows lie in one tree, with a prefix for each kind, because sled's batches are atomic only within a tree.
//!
//! Invariants: a row that cannot be decoded is an error or causes a rebuild of the index; it is never guessed
//! at. Session ids contain no zero byte, so one session's keys never lie among another's.

use std::sync::Arc;

use greenroom_kernel::head::Head;

use crate::bytes::Cursor;
use crate::error::StoreError;
use crate::record;

/// The version of everything in the index. An index of an unknown version is rebuilt.
const INDEX_VERSION: u8 = 3;
/// The previous version, which had a row for each entry. Such rows can be read, and are left unchanged.
const INDEX_VERSION_OF_SINGLES: u8 = 2;

/// Where a frame lies in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The segment's number.
    pub(crate) segment: u64,
    /// The frame's first byte in the segment.
    pub(crate) offset: u64,
    /// The frame's length in bytes.
    pub(crate) length: u32,
}

impl Location {
    const BYTES: usize = 20;

    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        self.write(&mut bytes);
        bytes
    }

    fn write(self, bytes: &mut Vec<u8>) {
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(&mut Cursor::new(bytes))
    }

    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        Some(Self { segment: cursor.u64()?, offset: cursor.u64()?, length: cursor.u32()? })
    }
}

/// A session's row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// The session's newest head.
    pub(crate) head: Arc<Head>,
    /// The store's own data.
    pub(crate) place: RowPlace,
}

/// The part of a session's row that does not depend on the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlace {
    /// The newest frame that set the head.
    pub(crate) newest: Location,
    /// The newest frame that recorded a loss or its acceptance.
    pub(crate) mark: Option<Location>,
    /// The number of idempotency keys that the session has used. If the index holds another number, it is
    /// damaged.
    pub(crate) keys: u64,
}

impl Row {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let Self { head, place: RowPlace { newest, mark, keys } } = self;
        let head = record::encode_head(head)?;
        let mut bytes = Vec::with_capacity(64 + head.len());
        newest.write(&mut bytes);
        bytes.push(u8::from(mark.is_some()));
        mark.unwrap_or(*newest).write(&mut bytes);
        bytes.extend(keys.to_le_bytes());
        bytes.extend(head);
        Ok(bytes)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (place, head) = RowPlace::split(bytes)?;
        Some(Self { head: Arc::new(record::decode_head(head).ok()?), place })
    }

    /// Returns whether the session of these bytes is quarantined; `None` if they are not those of a row in a supported
    /// version. Damage is not detected, and the head is decoded only if a loss was ever recorded.
    pub(crate) fn is_quarantined(bytes: &[u8]) -> Option<bool> {
        let (place, head) = RowPlace::split(bytes)?;
        if !record::is_known_version(head) {
            return None;
        }
        match place.mark {
            Some(_) => Some(record::decode_head(head).ok()?.lost_from.is_some()),
            None => Some(false),
        }
    }
}

impl RowPlace {
    /// Splits a row into the place and the bytes of its head.
    fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut cursor = Cursor::new(bytes);
        let newest = Location::read(&mut cursor)?;
        let is_marked = cursor.u8()? == 1;
        let mark = Location::read(&mut cursor)?;
        let keys = cursor.u64()?;
        Some((Self { newest, mark: is_marked.then_some(mark), keys }, cursor.rest()))
    }
}

/// A segment's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SegmentRow {
    /// The segment's position among the others, as in its header.
    pub(crate) order: u64,
    /// The start value of the segment's crcs, as in its header.
    pub(crate) seed: u32,
    /// How many of the segment's frames are indexed.
    pub(crate) frames: u64,
    /// The chain after the last indexed frame.
    pub(crate) digest: u32,
    /// The length of all indexed frames, in bytes.
    pub(crate) bytes: u64,
    /// The total length of the indexed frames that are no longer needed, in bytes.
    pub(crate) dead: u64,
    /// Whether it may hold entries of a deleted session, whose bytes must be erased.
    pub(crate) holds_deleted: bool,
}

impl SegmentRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend(self.order.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(self.frames.to_le_bytes());
        bytes.extend(self.digest.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.dead.to_le_bytes());
        bytes.push(u8::from(self.holds_deleted));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        Some(Self {
            order: cursor.u64()?,
            seed: cursor.u32()?,
            frames: cursor.u64()?,
            digest: cursor.u32()?,
            bytes: cursor.u64()?,
            dead: cursor.u64()?,
            // Earlier rows lack this field.
            holds_deleted: cursor.u8().is_some_and(|flag| flag != 0),
        })
    }
}

/// How far the journal is indexed. In sled it has a checksum over all session rows, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The segment of the last indexed frame.
    pub(crate) segment: u64,
    /// Where that frame ends.
    pub(crate) offset: u64,
    /// The chain that the next frame must have.
    pub(crate) chain: u32,
    /// How many sessions there are.
    pub(crate) rows: u64,
    /// How many entries all sessions have together; `None` if an earlier version wrote the index.
    pub(crate) entries: Option<u64>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { segment: 0, offset: 0, chain: 0, rows: 0, entries: Some(0) }
    }
}

impl Checkpoint {
    /// Encodes the row; `sum` is the wrapping sum of [`row_sum`] over all sessions.
    pub(crate) fn encode(&self, sum: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(45);
        bytes.push(INDEX_VERSION);
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.chain.to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(sum.to_le_bytes());
        bytes.extend(self.entries.iter().flat_map(|entries| entries.to_le_bytes()));
        bytes
    }

    /// Decodes the row, and the sum in it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u64)> {
        let mut cursor = Cursor::new(bytes);
        matches!(cursor.u8()?, INDEX_VERSION | INDEX_VERSION_OF_SINGLES).then_some(())?;
        let (segment, offset, chain) = (cursor.u64()?, cursor.u64()?, cursor.u32()?);
        let (rows, sum, entries) = (cursor.u64()?, cursor.u64()?, cursor.u64());
        Some((Self { segment, offset, chain, rows, entries }, sum))
    }
}

/// Returns the contribution of one session's row to the sum in the checkpoint.
pub(crate) fn row_sum(session: &str, row: &[u8]) -> u64 {
    u64::from(crc32c::crc32c_append(crc32c::crc32c(session.as_bytes()), row)) + 1
}

/// A part of an uncommitted batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartRow {
    /// The batch's random number.
    pub(crate) batch: u64,
    /// The sequence number of the part's first entry.
    pub(crate) first: u64,
    /// The number of entries.
    pub(crate) count: u32,
    /// Where the part lies.
    pub(crate) location: Location,
}

impl PartRow {
    /// Returns the sequence number after the part's last entry.
    pub(crate) fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// Encodes the row. `first` is in its key.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.location.encode();
        bytes.extend(self.batch.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(first: u64, bytes: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(bytes);
        let location = Location::read(&mut cursor)?;
        Some(Self { batch: cursor.u64()?, first, count: cursor.u32()?, location })
    }
}

/// Encodes the value of an idempotency key: the first entry of the batch that used the key, and where that
/// batch lies.
pub(crate) fn encode_used_key(first: u64, location: Location) -> Vec<u8> {
    [first.to_le_bytes().as_slice(), &location.encode()].concat()
}

pub(crate) fn decode_used_key(bytes: &[u8]) -> Option<(u64, Location)> {
    let mut cursor = Cursor::new(bytes);
    Some((cursor.u64()?, Location::read(&mut cursor)?))
}

/// Encodes the value of a fact: where it lies, and the fact itself.
pub(crate) fn encode_fact(location: Location, value: &[u8]) -> Vec<u8> {
    [location.encode().as_slice(), value].concat()
}

pub(crate) fn decode_fact(bytes: &[u8]) -> Option<(Location, Vec<u8>)> {
    let mut cursor = Cursor::new(bytes);
    let location = Location::read(&mut cursor)?;
    Some((location, cursor.rest().to_vec()))
}

/// The keys of the rows. The first byte tells the kind; numbers are big-endian, so that they sort.
pub(crate) mod key {
    /// The one [`super::Checkpoint`].
    pub(crate) const CHECKPOINT: &[u8] = b"m";

    /// Returns a key of the session: the kind, the session's id, and the part that distinguishes the
    /// session's keys.
    pub(crate) fn session(kind: u8, session: &str, rest: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(2 + session.len() + rest.len());
        key.push(kind);
        key.extend(session.as_bytes());
        key.push(0);
        key.extend(rest);
        key
    }

    /// Returns the key of an entry's [`super::Location`].
    pub(crate) fn entry(id: &str, sequence: u64) -> Vec<u8> {
        session(b'e', id, &sequence.to_be_bytes())
    }

    /// Returns the key of a [`super::PartRow`].
    pub(crate) fn part(id: &str, sequence: u64) -> Vec<u8> {
        session(b'p', id, &sequence.to_be_bytes())
    }

    /// Returns the first key after this one.
    pub(crate) fn after(key: &[u8]) -> Vec<u8> {
        [key, &[0]].concat()
    }

    /// Returns the key of a session's [`super::Row`].
    pub(crate) fn row(id: &str) -> Vec<u8> {
        session(b'h', id, &[])
    }

    /// Returns the key of an idempotency key that the session has used.
    pub(crate) fn idempotency(id: &str, key: &str) -> Vec<u8> {
        session(b'k', id, key.as_bytes())
    }

    /// Returns the key of a fact.
    pub(crate) fn fact(name: &str) -> Vec<u8> {
        session(b'l', name, &[])
    }

    /// Returns the key of a [`super::SegmentRow`].
    pub(crate) fn segment(id: u64) -> Vec<u8> {
        let mut key = vec![b's'];
        key.extend(id.to_be_bytes());
        key
    }

    /// Splits a key into the session's id and the rest.
    pub(crate) fn split(key: &[u8]) -> Option<(&str, &[u8])> {
        let zero = key.iter().position(|&byte| byte == 0)?;
        Some((std::str::from_utf8(key.get(1..zero)?).ok()?, &key[zero + 1..]))
    }
}
