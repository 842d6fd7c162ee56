//! The lock that lets only one store at a time use a directory.
//!
//! Invariants: the lock ends with the process, however the process ends. The process id in the file is for people only.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::files::check_regular;

/// The text of a process id has no more bytes.
const PID_BYTES_MAX: u64 = 32;

/// The lock on a directory. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    /// `None` where the directory is only read, and has no lock file or another store writes to it.
    file: Option<File>,
    path: PathBuf,
    /// Which file it is; `None` where nothing is written.
    identity: Option<Identity>,
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that was just forked holds a copy of it until it executes
        // another program.
        if let Some(Err(error)) = self.file.as_ref().map(File::unlock) {
            tracing::debug!(%error, "cannot unlock the store's directory");
        }
    }
}

impl DirectoryLock {
    /// Locks the directory. If another process has it, this does not wait, and the error names that process.
    pub(crate) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("lock");
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
        // On a full disk the process id cannot be written. The lock is held all the same.
        let noted = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| write!(file, "{}", std::process::id()));
        if let Err(error) = noted {
            tracing::debug!(%error, "cannot note the process in the lock file");
        }
        let identity = Some(identity(&file.metadata().map_err(failed)?));
        Ok(Self { file: Some(file), path, identity })
    }

    /// Whether the locked directory is still where it was. What is at its path otherwise is another's: the directory was
    /// moved, removed or replaced.
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

    /// No lock: for who reads beside a store that writes.
    pub(crate) fn none() -> Self {
        Self { file: None, path: PathBuf::new(), identity: None }
    }

    /// Keeps those out who would change the directory, and lets others read it as well. Nothing is written.
    pub(crate) fn share(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("lock");
        let failed = |error| StoreError::io("lock", &path, error);
        check_regular(&path).map_err(failed)?;
        let file = match File::open(&path) {
            Ok(file) => file,
            // Nobody has it open then: who does makes the file.
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

/// What tells a file from all others: device and number.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino())
}

/// A system that does not let go of a file that is open: nobody can replace it.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> Identity {
    (0, 0)
}

/// The error that names the process which has the directory, as its lock file says.
fn in_use(dir: &Path, lock: File) -> StoreError {
    let mut text = String::new();
    let read = lock.take(PID_BYTES_MAX).read_to_string(&mut text);
    StoreError::InUse { dir: dir.to_owned(), pid: read.ok().and_then(|_| text.trim().parse().ok()) }
}
