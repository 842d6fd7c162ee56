//! The segment files, shared by the writer and all readers.
//!
//! Invariants: a reader gets only whole frames: their crcs are valid, and they belong to the requested
//! session.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Frame, SEGMENT_HEADER_BYTES, SegmentHeader, parse};
use crate::error::StoreError;
use crate::files::{File, Files, OpenMode, read_at, write_all_at};
use crate::index::Location;

/// How many segment files are kept open for reading.
const OPEN_MAX: usize = 64;

/// The readable segments, and their directory.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) dir: PathBuf,
    readable: RwLock<HashMap<u64, Readable>>,
}

#[derive(Debug)]
struct Readable {
    seed: u32,
    /// The segment's file while it is open; [`OPEN_MAX`] bounds the number of open files.
    file: Option<Arc<dyn File>>,
}

/// A segment's seed and its open file.
type OpenSegment = (u32, Arc<dyn File>);

impl Segments {
    pub(crate) fn new(files: Arc<dyn Files>, dir: PathBuf) -> Self {
        Self { files, dir, readable: RwLock::new(HashMap::new()) }
    }

    pub(crate) fn path(&self, id: u64) -> PathBuf {
        self.dir.join(Self::name(id))
    }

    /// Returns the name of a segment's file.
    pub(crate) fn name(id: u64) -> String {
        format!("{id:010}.seg")
    }

    /// Returns the segment's number, from its file name; `None` if the file is not a segment.
    pub(crate) fn id_of(name: &str) -> Option<u64> {
        name.strip_suffix(".seg").filter(|stem| stem.len() == 10)?.parse().ok()
    }

    /// Makes a segment readable. `file` is its file, if it is already open.
    pub(crate) fn add(&self, id: u64, seed: u32, file: Option<Arc<dyn File>>) {
        let mut readable = self.readable.write();
        if file.is_some() {
            make_room(&mut readable);
        }
        readable.insert(id, Readable { seed, file });
    }

    /// Forgets a segment that was reclaimed or lost.
    pub(crate) fn remove(&self, id: u64) {
        self.readable.write().remove(&id);
    }

    /// Creates a segment that holds nothing but its header. The header and the file's name are durable.
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

    /// Returns the segment's seed and its file; `None` if it is not listed or the file is missing.
    fn open(&self, id: u64) -> Result<Option<OpenSegment>, StoreError> {
        match self.readable.read().get(&id) {
            None => return Ok(None),
            Some(Readable { seed, file: Some(file) }) => return Ok(Some((*seed, Arc::clone(file)))),
            Some(Readable { file: None, .. }) => {}
        }
        let path = self.path(id);
        let file = match self.files.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("open", &path, error)),
        };
        let mut readable = self.readable.write();
        make_room(&mut readable);
        Ok(readable.get_mut(&id).map(|segment| {
            segment.file = Some(Arc::clone(&file));
            (segment.seed, file)
        }))
    }

    /// Returns the frame at `location` and its payload, if it is whole and belongs to the session.
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

/// Closes the files that are open for reading if there are too many for another one.
fn make_room(readable: &mut HashMap<u64, Readable>) {
    if readable.values().filter(|segment| segment.file.is_some()).count() >= OPEN_MAX {
        readable.values_mut().for_each(|segment| segment.file = None);
    }
}

/// Returns a random number for a new segment.
pub(crate) fn random_seed() -> u32 {
    u32::try_from(random_number() >> 32).expect("32 bits")
}

/// Returns a random number.
pub(crate) fn random_number() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// Returns the journal's directory in a store's.
pub(crate) fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}
