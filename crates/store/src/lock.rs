//! The lock that lets only one store at a time write to a directory.
//!
//! Invariants: the lock ends with the process, however it ends. The process id in the file is for people
//! only.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::files::check_regular;

/// The name of the lock file.
pub(crate) const FILE: &str = "lock";
/// The maximum length of a process id as text.
const PID_BYTES_MAX: u64 = 32;

/// The lock on a directory. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// `None` if the directory is read-only and has no lock file, or another store writes to it.
    file: Option<File>,
    path: PathBuf,
    /// The identity of the lock file; `None` if nothing is written.
    identity: Option<Identity>,
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that was just forked holds a copy of it until it
        // executes another program.
        if let Some(Err(error)) = self.file.as_ref().map(File::unlock) {
            tracing::debug!(%error, "cannot unlock the store's directory");
        }
    }
}

impl DirectoryLock {
    /// Locks the directory. If another process holds the lock, this fails at once, and the error names that
    /// process.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let failed = |error| StoreError::io("lock", &path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        check_regular(&path).map_err(failed)?;
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(dir, file)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // On a full disk the process id cannot be written. The lock is held nevertheless.
        let noted = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| write!(file, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::debug!(%error, "cannot write the process id to the lock file");
        }
        let identity = Some(identity(&file.metadata().map_err(failed)?));
        Ok(Self { file: Some(file), path, identity })
    }

    /// Checks that the locked directory is still at its path, and was not moved, removed or replaced.
    ///
    /// # Errors
    /// [`StoreError::Replaced`].
    pub(crate) fn check_in_place(&self) -> Result<(), StoreError> {
        let Some(held) = self.identity else { return Ok(()) };
        if self.path.metadata().is_ok_and(|there| identity(&there) == held) {
            return Ok(());
        }
        Err(StoreError::Replaced { dir: self.path.parent().map(Path::to_owned).unwrap_or_default() })
    }

    /// Returns no lock, for reading beside a store that writes.
    pub(crate) fn none() -> Self {
        Self { file: None, path: PathBuf::new(), identity: None }
    }

    /// Takes a shared lock, which keeps writers out and allows other readers. Nothing is written.
    pub(crate) fn share(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(FILE);
        let failed = |error| StoreError::io("lock", &path, error);
        check_regular(&path).map_err(failed)?;
        let file = match File::open(&path) {
            Ok(file) => file,
            // No store has it open then: opening creates the file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { file: None, path, identity: None });
            }
            Err(error) => return Err(failed(error)),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Self { file: Some(file), path, identity: None }),
            Err(TryLockError::WouldBlock) => Err(in_use(dir, file)),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

/// A file's unique identity: device and number.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

/// On systems where open files cannot be replaced, no identity is needed.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

/// Returns the error that names the process holding the directory, according to its lock file.
fn in_use(dir: &Path, lock: File) -> StoreError {
    let mut text = String::new();
    let read = lock.take(PID_BYTES_MAX).read_to_string(&mut text);
    StoreError::InUse { dir: dir.to_owned(), pid: read.ok().and_then(|_| text.trim().parse().ok()) }
}
