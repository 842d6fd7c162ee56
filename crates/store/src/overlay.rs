//! A read-only directory tree: changes are made in memory, and discarded with the overlay.
//!
//! Invariants: the underlying files are never written to. Readers see the changes as they would see them on a
//! disk.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::files::{File, Files, OpenMode, read_all};

/// Read-only files, with changes that stay in memory.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Arc<dyn Files>,
    /// The changed or created files; `None` for removed ones.
    changed: Mutex<HashMap<PathBuf, Option<Arc<MemoryFile>>>>,
    /// The underlying files that were read. They stay open, since another process may remove them.
    opened: Mutex<HashMap<PathBuf, Arc<dyn File>>>,
}

impl Overlay {
    pub(crate) fn new(below: Arc<dyn Files>) -> Self {
        Self { below, changed: Mutex::default(), opened: Mutex::default() }
    }

    /// Opens an underlying file for reading.
    fn open_below(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut opened = self.opened.lock();
        if let Some(file) = opened.get(path) {
            return Ok(Arc::clone(file));
        }
        let file = self.below.open(path, OpenMode::Read)?;
        // The list of segments is replaced as a whole, and each read must get the newest.
        if path.extension().is_some_and(|extension| extension == "seg") {
            opened.insert(path.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }

    /// Copies an underlying file.
    fn copy(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        let bytes = read_all(self.below.open(path, OpenMode::Read)?.as_ref())?;
        Ok(Arc::new(MemoryFile { bytes: RwLock::new(bytes) }))
    }

    /// Removes a file and returns its content.
    fn take(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        let mut changed = self.changed.lock();
        let file = match changed.get(path) {
            Some(known) => known.clone().ok_or(io::ErrorKind::NotFound)?,
            None => self.copy(path)?,
        };
        changed.insert(path.to_owned(), None);
        Ok(file)
    }
}

impl Files for Overlay {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = match self.below.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed?,
        };
        for (path, file) in self.changed.lock().iter().filter(|(path, _)| path.parent() == Some(dir)) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            names.retain(|known| known != name);
            names.extend(file.as_ref().map(|_| name.to_owned()));
        }
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut changed = self.changed.lock();
        let known = changed.get(path).cloned();
        let file = match (mode, known) {
            (OpenMode::Read | OpenMode::Write, Some(Some(file))) => file,
            (OpenMode::Read | OpenMode::Write, Some(None)) => return Err(io::ErrorKind::NotFound.into()),
            (OpenMode::Read, None) => return self.open_below(path),
            (OpenMode::Write, None) => self.copy(path)?,
            (OpenMode::Create, Some(None)) => Arc::default(),
            (OpenMode::Create, Some(Some(_))) => return Err(io::ErrorKind::AlreadyExists.into()),
            (OpenMode::Create, None) => match self.below.open(path, OpenMode::Read) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Arc::default(),
                Err(error) => return Err(error),
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            },
        };
        changed.insert(path.to_owned(), Some(Arc::clone(&file)));
        Ok(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.take(from)?;
        self.changed.lock().insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.take(path).map(drop)
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// A changed file.
#[derive(Debug, Default)]
struct MemoryFile {
    bytes: RwLock<Vec<u8>>,
}

/// Converts an offset to an index in memory.
fn index(offset: u64) -> io::Result<usize> {
    usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.read();
        let rest = bytes.get(index(offset)?..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut file = self.bytes.write();
        let (from, until) = (index(offset)?, index(offset + bytes.len() as u64)?);
        if file.len() < until {
            file.resize(until, 0);
        }
        file[from..until].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut bytes = self.bytes.write();
        bytes.resize(index(length)?, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }
}
