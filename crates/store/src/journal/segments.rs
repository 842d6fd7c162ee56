//! The segment files, shared by the writer and all readers.
//!
//! Always true: what a reader gets is checked: the frame's crcs, its session and its sequence.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Frame, FrameKind, SEGMENT_HEADER_BYTES, SegmentHeader, parse};
use crate::error::StoreError;
use crate::files::{File, Files, OpenMode, read_at, write_all_at};
use crate::index::Location;

/// How many segment files are kept open for reading.
const OPEN_MAX: usize = 64;

/// The journal directory.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) dir: PathBuf,
    /// Each segment's seed, and its file while it is open.
    known: RwLock<HashMap<u64, (u32, Option<Arc<dyn File>>)>>,
}

impl Segments {
    pub(crate) fn new(files: Arc<dyn Files>, dir: PathBuf) -> Self {
        Self { files, dir, known: RwLock::new(HashMap::new()) }
    }

    pub(crate) fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:010}.seg"))
    }

    /// The id in a segment file's name.
    pub(crate) fn id_of(name: &str) -> Option<u64> {
        name.strip_suffix(".seg").filter(|stem| stem.len() == 10)?.parse().ok()
    }

    /// Makes a segment readable.
    pub(crate) fn add(&self, id: u64, seed: u32, file: Option<Arc<dyn File>>) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(id, (seed, file));
    }

    /// Forgets a segment that was reclaimed or lost.
    pub(crate) fn remove(&self, id: u64) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// A new segment with its header, synced, with its name.
    pub(crate) fn create(&self, header: &SegmentHeader) -> Result<Arc<dyn File>, StoreError> {
        let path = self.path(header.id);
        let create = || {
            let file = self.files.open(&path, OpenMode::Create)?;
            write_all_at(file.as_ref(), &header.encode(), 0)?;
            file.sync()?;
            self.files.sync_dir(&self.dir)?;
            Ok(file)
        };
        create().map_err(|error| StoreError::io("create", &path, error))
    }

    fn open(&self, id: u64) -> Result<Option<(u32, Arc<dyn File>)>, StoreError> {
        match self.known.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            None => return Ok(None),
            Some((seed, Some(file))) => return Ok(Some((*seed, Arc::clone(file)))),
            Some((_, None)) => {}
        }
        let path = self.path(id);
        let file = match self.files.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("open", &path, error)),
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.values().filter(|(_, open)| open.is_some()).count() >= OPEN_MAX {
            known.values_mut().for_each(|(_, open)| *open = None);
        }
        Ok(known.get_mut(&id).map(|(seed, open)| {
            *open = Some(Arc::clone(&file));
            (*seed, file)
        }))
    }

    /// The payload of the frame at `location`, if it is whole and is the session's.
    pub(crate) fn read(
        &self,
        location: Location,
        session: &str,
    ) -> Result<Option<(Frame, Vec<u8>)>, StoreError> {
        let Some((seed, file)) = self.open(location.segment)? else { return Ok(None) };
        if location.offset < SEGMENT_HEADER_BYTES {
            return Ok(None);
        }
        let length = usize::try_from(location.length).expect("a frame's length fits an address");
        let bytes = read_at(file.as_ref(), location.offset, length)
            .map_err(|error| StoreError::io("read", &self.path(location.segment), error))?;
        let parsed = parse(&bytes, 0, location.offset, seed)
            .filter(|parsed| parsed.is_whole && parsed.frame.session.as_ref() == session);
        Ok(parsed.map(|parsed| {
            let payload = parsed.payload.to_vec();
            (parsed.frame, payload)
        }))
    }
}

/// A random number for a new segment.
pub(crate) fn random_seed() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let random = std::hash::RandomState::new().build_hasher().finish();
    u32::try_from(random >> 32).expect("32 bits")
}

/// Whether frames of this kind belong to a session.
pub(crate) fn is_of_a_session(kind: FrameKind) -> bool {
    match kind {
        FrameKind::Append | FrameKind::Deleted | FrameKind::Quarantined | FrameKind::LossAccepted => true,
        FrameKind::Learned => false,
    }
}

/// The journal's directory in a store's.
pub(crate) fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}
