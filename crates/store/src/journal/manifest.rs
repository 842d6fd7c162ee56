//! The list of the segments that count, replaced as a whole by one rename.
//!
//! Invariants: a segment that is not listed holds nothing that was acknowledged and still counts; it is what a crash
//! left of a rotation or of a reclaim. A segment that is listed and not there was lost.

use std::path::{Path, PathBuf};

use super::{FORMAT_VERSION, u32_at, u64_at};
use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_all, write_all_at};

const MAGIC: u32 = u32::from_le_bytes(*b"GRM1");
const HEADER_BYTES: usize = 20;
const LISTED_BYTES: usize = 41;

/// A listed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: u64,
    /// Its place among the segments.
    pub(crate) order: u64,
    pub(crate) seed: u32,
    pub(crate) state: State,
}

/// What is known of a listed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It is written to. At least `floor` bytes of it had been synced when the list was written.
    Active { floor: u64 },
    /// It is full and has a footer after `length` bytes.
    Sealed { length: u64, frames: u64, digest: u32 },
    /// It is not written to any more and has no footer that could be trusted: its disk failed, or it is damaged.
    /// Its frames lie in the first `length` bytes.
    Abandoned { length: u64 },
}

/// The segments, by order. The last is the active one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Manifest {
    /// The number for the next segment.
    pub(crate) next_id: u64,
    pub(crate) segments: Vec<Listed>,
}

impl Manifest {
    pub(crate) fn get(&self, id: u64) -> Option<&Listed> {
        self.segments.iter().find(|listed| listed.id == id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Listed> {
        self.segments.iter_mut().find(|listed| listed.id == id)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let count = u32::try_from(self.segments.len()).expect("far fewer than 4 billion segments");
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.next_id.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        for listed in &self.segments {
            let (state, length, frames, digest) = match listed.state {
                State::Active { floor } => (0, floor, 0, 0),
                State::Sealed { length, frames, digest } => (1, length, frames, digest),
                State::Abandoned { length } => (2, length, 0, 0),
            };
            bytes.extend(listed.id.to_le_bytes());
            bytes.extend(listed.order.to_le_bytes());
            bytes.extend(listed.seed.to_le_bytes());
            bytes.push(state);
            bytes.extend(length.to_le_bytes());
            bytes.extend(frames.to_le_bytes());
            bytes.extend(digest.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// The list in `bytes`; `Ok(None)` if it is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, StoreError> {
        if bytes.len() < HEADER_BYTES + 4
            || u32_at(bytes, 0) != MAGIC
            || u32_at(bytes, bytes.len() - 4) != crc32c::crc32c(&bytes[..bytes.len() - 4])
        {
            return Ok(None);
        }
        let found = u32_at(bytes, 4);
        if found > FORMAT_VERSION {
            return Err(StoreError::Version {
                what: "the journal's manifest",
                found,
                supported: FORMAT_VERSION,
            });
        }
        let listed = &bytes[HEADER_BYTES..bytes.len() - 4];
        let segments = listed.chunks_exact(LISTED_BYTES).map(|bytes| {
            let length = u64_at(bytes, 21);
            let state = match bytes[20] {
                0 => State::Active { floor: length },
                1 => State::Sealed { length, frames: u64_at(bytes, 29), digest: u32_at(bytes, 37) },
                _ => State::Abandoned { length },
            };
            Listed { id: u64_at(bytes, 0), order: u64_at(bytes, 8), seed: u32_at(bytes, 16), state }
        });
        Ok(Some(Self { next_id: u64_at(bytes, 8), segments: segments.collect() }))
    }

    fn path(journal: &Path) -> PathBuf {
        journal.join("manifest")
    }

    /// Reads the list; `Ok(None)` if there is none or it is damaged, `Err` if it cannot be read at all.
    pub(crate) fn load(files: &dyn Files, journal: &Path) -> Result<Option<Self>, StoreError> {
        let path = Self::path(journal);
        let bytes = match files.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.and_then(|file| read_all(file.as_ref())),
        };
        Self::decode(&bytes.map_err(|error| StoreError::io("read", &path, error))?)
    }

    /// Replaces the list, durably. After an error either list may be the one on disk.
    pub(crate) fn store(&self, files: &dyn Files, journal: &Path) -> Result<(), StoreError> {
        let path = Self::path(journal);
        let new = journal.join("manifest.new");
        let write = || {
            match files.remove(&new) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let file = files.open(&new, OpenMode::Create)?;
            write_all_at(file.as_ref(), &self.encode(), 0)?;
            file.sync()?;
            files.rename(&new, &path)?;
            files.sync_dir(journal)
        };
        write().map_err(|error| StoreError::io("write", &path, error))
    }
}
