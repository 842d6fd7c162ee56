//! The list of the segments that count. It is replaced as a whole, by one rename.
//!
//! Invariants: a segment that is not listed holds nothing acknowledged that still counts; a crash during a
//! rotation or a reclaim left it behind. A segment that is listed but missing was lost, and stays on the list
//! as lost. Exactly one listed segment is active, and it is the last; a list that violates this is never
//! written.

use std::path::{Path, PathBuf};

use super::{FORMAT_VERSION, SegmentHeader};
use crate::bytes::{Cursor, checked, seal};
use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_all, replace};

const MAGIC: u32 = u32::from_le_bytes(*b"GRM1");
/// The version of a list with losses. A list without losses is written in the previous version.
const VERSION_WITH_LOSSES: u32 = 2;

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The segment's number, as in its header.
    pub(crate) id: u64,
    /// The segment's position among the others, as in its header.
    pub(crate) order: u64,
    /// The start value of the segment's crcs, as in its header.
    pub(crate) seed: u32,
    pub(crate) state: SegmentState,
}

impl Listed {
    /// Returns the header that the segment's file must have.
    pub(crate) fn header(&self) -> SegmentHeader {
        SegmentHeader { id: self.id, order: self.order, seed: self.seed }
    }
}

/// The state of a listed segment. Lengths and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// The segment is being written to. At least `floor` bytes of it had been synced when the list was
    /// written.
    Active { floor: u64 },
    /// The segment is full. Its frames take `length` bytes, and a footer follows. `frames` and `digest` are those of
    /// its trailer.
    Sealed { length: u64, frames: u64, digest: u32 },
    /// The segment is no longer written to, and has no trustworthy footer: its disk failed, or it is damaged.
    /// Its frames lie in the first `length` bytes.
    Abandoned { length: u64 },
    /// The segment's file is gone. Its record of sessions has what is known of it, if that still exists.
    Lost,
}

/// A damaged part of the journal, without a record of which sessions' entries it held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnknownLoss {
    pub(crate) segment: u64,
    /// Where the damage begins, in bytes.
    pub(crate) offset: u64,
    /// Whether a person accepted the loss. It stays listed, so that it is not reported again.
    pub(crate) is_accepted: bool,
}

/// The listed segments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    /// The number that the next new segment gets.
    pub(crate) next_id: u64,
    /// The segments by order; the active one is the last.
    pub(crate) segments: Vec<Listed>,
    /// Losses without a record of what they affected.
    pub(crate) unknown: Vec<UnknownLoss>,
}

impl Manifest {
    pub(crate) fn get(&self, id: u64) -> Option<&Listed> {
        self.segments.iter().find(|listed| listed.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Listed> {
        self.segments.iter_mut().find(|listed| listed.id == id)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.segments.len()).expect("far fewer than 4 billion segments");
        let tells_losses =
            !self.unknown.is_empty() || self.segments.iter().any(|listed| listed.state == SegmentState::Lost);
        let version = if tells_losses { VERSION_WITH_LOSSES } else { FORMAT_VERSION };
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(version.to_le_bytes());
        bytes.extend(self.next_id.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        for listed in &self.segments {
            let (state, length, frames, digest) = match listed.state {
                SegmentState::Active { floor } => (0, floor, 0, 0),
                SegmentState::Sealed { length, frames, digest } => (1, length, frames, digest),
                SegmentState::Abandoned { length } => (2, length, 0, 0),
                SegmentState::Lost => (3, 0, 0, 0),
            };
            bytes.extend(listed.id.to_le_bytes());
            bytes.extend(listed.order.to_le_bytes());
            bytes.extend(listed.seed.to_le_bytes());
            bytes.push(state);
            bytes.extend(length.to_le_bytes());
            bytes.extend(frames.to_le_bytes());
            bytes.extend(digest.to_le_bytes());
        }
        if tells_losses {
            let count = u32::try_from(self.unknown.len()).expect("far fewer than 4 billion losses");
            bytes.extend(count.to_le_bytes());
            for unknown in &self.unknown {
                bytes.extend(unknown.segment.to_le_bytes());
                bytes.extend(unknown.offset.to_le_bytes());
                bytes.push(u8::from(unknown.is_accepted));
            }
        }
        seal(&mut bytes, 0);
        bytes
    }

    /// Reads the list in `bytes`; `Ok(None)` if it is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        let read_version = || {
            let mut cursor = Cursor::new(checked(bytes)?);
            (cursor.u32()? == MAGIC).then_some(())?;
            Some((cursor.u32()?, cursor))
        };
        match read_version() {
            None => Ok(None),
            Some((found, _)) if found > VERSION_WITH_LOSSES => {
                let supported = VERSION_WITH_LOSSES;
                Err(StoreError::Version { what: "the journal's manifest", found, supported })
            }
            Some((version, cursor)) => Ok(Self::decode_body(cursor, version)),
        }
    }

    fn decode_body(mut cursor: Cursor<'_>, version: u32) -> Option<Self> {
        let next_id = cursor.u64()?;
        let count = cursor.u32()?;
        let mut segments = Vec::new();
        for _ in 0..count {
            let (id, order, seed) = (cursor.u64()?, cursor.u64()?, cursor.u32()?);
            let (number, length) = (cursor.u8()?, cursor.u64()?);
            let (frames, digest) = (cursor.u64()?, cursor.u32()?);
            let state = match number {
                0 => SegmentState::Active { floor: length },
                1 => SegmentState::Sealed { length, frames, digest },
                2 => SegmentState::Abandoned { length },
                3 => SegmentState::Lost,
                _ => return None,
            };
            segments.push(Listed { id, order, seed, state });
        }
        let mut unknown = Vec::new();
        if version >= VERSION_WITH_LOSSES {
            for _ in 0..cursor.u32()? {
                let (segment, offset, is_accepted) = (cursor.u64()?, cursor.u64()?, cursor.u8()? == 1);
                unknown.push(UnknownLoss { segment, offset, is_accepted });
            }
        }
        cursor.is_empty().then_some(Self { next_id, segments, unknown })
    }

    /// Checks the conditions for writing a list.
    fn check(&self) -> Result<(), StoreError> {
        let actives =
            self.segments.iter().filter(|listed| matches!(listed.state, SegmentState::Active { .. }));
        let is_last_active =
            self.segments.last().is_some_and(|listed| matches!(listed.state, SegmentState::Active { .. }));
        let are_ordered = self.segments.windows(2).all(|pair| pair[0].order < pair[1].order);
        let are_below_next = self.segments.iter().all(|listed| listed.id < self.next_id);
        StoreError::ensure(
            actives.count() == 1 && is_last_active,
            "the last segment, and no other, is active",
        )?;
        StoreError::ensure(are_ordered, "the listed segments are in order")?;
        StoreError::ensure(are_below_next, "the next segment's number is free")
    }

    fn path(journal: &Path) -> PathBuf {
        journal.join("manifest")
    }

    /// Reads the list from the disk; `Ok(None)` if there is none or it is damaged.
    pub(crate) fn load(files: &dyn Files, journal: &Path) -> Result<Option<Self>, StoreError> {
        let path = Self::path(journal);
        let bytes = match files.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.and_then(|file| read_all(file.as_ref())),
        };
        Self::decode(&bytes.map_err(|error| StoreError::io("read", &path, error))?)
    }

    /// Replaces the list on the disk, durably. After an error, either the old or the new list may be there.
    pub(crate) fn store(&self, files: &dyn Files, journal: &Path) -> Result<(), StoreError> {
        self.check()?;
        let path = Self::path(journal);
        replace(files, &path, &self.encode()).map_err(|error| StoreError::io("write", &path, error))
    }
}
