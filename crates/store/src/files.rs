//! Access to the disk. Every journal file is reached through [`Files`], so that tests can make it fail.
//!
//! Invariants: no error is hidden, and nothing is retried except a call that a signal interrupted. A single
//! read or write may be short, as with the operating system. (sled accesses its own files itself: the index
//! can always be rebuilt, the journal cannot.)

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads an existing file.
    Read,
    /// Reads and writes an existing file.
    Write,
    /// Creates a file that does not exist yet, and reads and writes it.
    Create,
}

/// A directory tree of files.
pub trait Files: Send + Sync + fmt::Debug {
    /// Creates the directory and those above it, with access for their owner only (mode 0700). It may exist already.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns the names of the files in a directory, in no particular order.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Renames a file atomically. A file with the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the creation, renaming and removal of files in the directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Every read and write names its offset, so that readers and the writer can share the file.
pub trait File: Send + Sync + fmt::Debug {
    /// Reads at most `buffer.len()` bytes from `offset`, and returns how many. 0 means that the file ends there.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes at most `bytes.len()` bytes at `offset`, and returns how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Cuts the file to `length` bytes.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes the file's bytes and its length durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns the file's length in bytes.
    fn length(&self) -> io::Result<u64>;
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_all_at(file: &dyn File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads `length` bytes from `offset`; fewer if the file ends earlier.
pub(crate) fn read_at(file: &dyn File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

/// No file of a journal is larger: a segment is sealed far below this size, and every other file is smaller
/// still.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// Reads a whole file, if it is no larger than a journal file can be.
pub(crate) fn read_all(file: &dyn File) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    let length = usize::try_from(length).ok().filter(|_| length <= FILE_BYTES_MAX);
    read_at(file, 0, length.ok_or(io::ErrorKind::FileTooLarge)?)
}

/// Returns an error for anything but a regular file: reading a pipe would block for ever. A missing file is
/// accepted.
pub(crate) fn check_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Creates one of the store's own directories, or restricts an existing one to its owner. Failure to change
/// the mode of an existing one is not an error.
pub(crate) fn create_own_dir(dir: &Path) -> io::Result<()> {
    RealFiles.create_dir(dir)?;
    #[cfg(unix)]
    {
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        if let Err(error) = fs::set_permissions(dir, owner_only) {
            tracing::debug!(%error, dir = %dir.display(), "cannot restrict the directory to its owner");
        }
    }
    Ok(())
}

/// Restricts the files in one of the store's own directories to their owner. Failure to change a mode is not
/// an error.
pub(crate) fn close_files(dir: &Path) {
    #[cfg(unix)]
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        if is_file && let Err(error) = fs::set_permissions(entry.path(), owner_only) {
            tracing::debug!(%error, file = %entry.path().display(), "cannot restrict the file to its owner");
        }
    }
    #[cfg(not(unix))]
    let _ = dir;
}

/// Replaces a whole file, durably and by one rename. After an error, either the old or the new file may be there.
pub(crate) fn replace(files: &dyn Files, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().map(OsStr::to_owned).unwrap_or_default();
    name.push(".new");
    let new = path.with_file_name(name);
    match files.remove(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = files.open(&new, OpenMode::Create)?;
    let written = write_all_at(file.as_ref(), bytes, 0).and_then(|()| file.sync());
    if let Err(error) = written.and_then(|()| files.rename(&new, path)) {
        // On a full disk it would take the remaining space.
        drop(files.remove(&new));
        return Err(error);
    }
    files.sync_dir(path.parent().unwrap_or(path))
}

/// The files of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealFiles;

impl Files for RealFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // Our own names are UTF-8, so other names can be ignored.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        check_regular(path)?;
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true);
            }
            OpenMode::Create => {
                options.write(true).create_new(true);
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            }
        }
        Ok(Arc::new(RealFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Only unix can sync a directory, and only there it is necessary.
        if cfg!(unix) { fs::File::open(dir)?.sync_all() } else { Ok(()) }
    }
}

#[derive(Debug)]
struct RealFile(fs::File);

#[cfg(unix)]
impl RealFile {
    fn pread(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.0, buffer, offset)
    }

    fn pwrite(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(&self.0, bytes, offset)
    }
}

#[cfg(windows)]
impl RealFile {
    fn pread(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(&self.0, buffer, offset)
    }

    fn pwrite(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_write(&self.0, bytes, offset)
    }
}

impl File for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.pread(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.pwrite(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        // This is fdatasync. It writes the length too, if that has changed.
        self.0.sync_data()
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}
