//! The folder of a configuration file that is about to be written.
//!
//! Invariants: the folder is private if it is made here; a placeholder that the command of an agent left is no obstacle,
//! and what such a command must not create now remains impossible for it; one process at a time changes files there.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_files::private;
use greenroom_tools::sandbox;

use crate::error::usage;

/// How often to try to lock a folder that another process has locked, and how long to wait between two attempts. A change
/// takes less than that: after the last attempt, the file is changed without the lock.
const LOCK_ATTEMPTS: u32 = 200;
const LOCK_EVERY: Duration = Duration::from_millis(10);

/// The lock on a folder for changing its files. Dropping it releases the lock.
#[must_use]
pub(crate) struct FolderLock {
    _file: Option<File>,
}

/// Makes it possible to change a file: makes its folder, takes a placeholder out of its way, and waits until no other
/// process changes a file of the folder. Read what is to be changed only afterwards.
///
/// # Errors
/// A command of an agent runs that must not create the file, or the folder cannot be made.
pub(crate) fn make_room(path: &Path) -> Result<FolderLock> {
    let failed = || format!("write {}", path.display());
    sandbox::make_room(path).map_err(|error| match error.kind() == ErrorKind::ResourceBusy {
        true => usage(format!(
            "{} cannot be written now: a command of an agent is running, which must not create it; try again when the \
             command has ended",
            path.display()
        )),
        false => anyhow::Error::from(error).context(failed()),
    })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    private::create_folders(folder).with_context(failed)?;
    Ok(FolderLock { _file: locked(folder) })
}

/// Returns a folder, locked; `None` if it cannot be locked.
fn locked(folder: &Path) -> Option<File> {
    let opened = File::open(folder).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match opened.try_lock() {
            Ok(()) => return Some(opened),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_EVERY),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}
