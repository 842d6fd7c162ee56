//! Files and folders that exist while a command runs, so that a mount can keep it from creating them.
//!
//! Invariants: a placeholder is recognised by its permissions, which nothing else has, and by being empty; it is
//! removed by the last command that needs it, in whatever process, and one that a killed process left is adopted
//! by the next command. A file with content is never removed.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// The permissions of a file that is a placeholder: nobody sets the sticky bit of a file.
const FILE_MODE: u32 = 0o1444;
/// The permissions of a folder that is a placeholder.
const FOLDER_MODE: u32 = 0o1555;

/// The placeholders of one command. Dropping it removes those that no other command needs.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    /// The workspace's folder, locked as long as placeholders are needed.
    lock: Option<File>,
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Placeholders {
    /// Creates placeholders in a workspace, where their parents exist.
    pub(crate) fn create(root: &Path, files: &[PathBuf], folders: &[PathBuf]) -> Self {
        let mut created = Self::default();
        if files.is_empty() && folders.is_empty() {
            return created;
        }
        if let Ok(lock) = File::open(root) {
            // A file system without locks has no protection against two processes; it works for one.
            let _ = flock(&lock, FlockOperation::LockShared);
            created.lock = Some(lock);
        }
        created.folders = folders.iter().filter(|path| is_folder_made(path)).cloned().collect();
        created.files = files.iter().filter(|path| is_file_made(path)).cloned().collect();
        created
    }

    /// Returns the files.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the folders.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        let is_last = self
            .lock
            .as_ref()
            .is_none_or(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok());
        if !is_last {
            return;
        }
        // They fail if it is not empty, or gone.
        for path in self.files.iter().filter(|path| is_file(path)) {
            let _ = std::fs::remove_file(path);
        }
        for path in self.folders.iter().filter(|path| is_folder(path)) {
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// Whether a path is a placeholder: it exists only while a command runs, so that the command cannot create
/// something there.
pub fn is_placeholder(path: &Path) -> bool {
    is_file(path) || is_folder(path)
}

fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| {
        metadata.is_file() && metadata.len() == 0 && metadata.permissions().mode() & 0o7777 == FILE_MODE
    })
}

fn is_folder(path: &Path) -> bool {
    let is_marked = path
        .symlink_metadata()
        .is_ok_and(|metadata| metadata.is_dir() && metadata.permissions().mode() & 0o7777 == FOLDER_MODE);
    is_marked && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn is_file_made(path: &Path) -> bool {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o400).open(path);
    match made {
        Ok(file) => file.set_permissions(Permissions::from_mode(FILE_MODE)).is_ok(),
        Err(_) => is_file(path),
    }
}

fn is_folder_made(path: &Path) -> bool {
    match DirBuilder::new().mode(0o500).create(path) {
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)).is_ok(),
        Err(_) => is_folder(path),
    }
}

#[cfg(test)]
mod tests;
