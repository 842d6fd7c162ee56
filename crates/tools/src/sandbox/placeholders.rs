//! Files and folders that exist while a command runs, so that a mount can keep it from creating them.
//!
//! Invariants: a placeholder is recognised by its permissions, which nothing else has, and by being empty; it is
//! locked by each command that needs it, in whatever process, and removed by the last of them. One that a killed
//! process left has no lock: the next command adopts it, or [`make_room`] removes it. A file with content is
//! never removed.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// The permissions of a file that is a placeholder: nobody sets the sticky bit of a file.
const FILE_MODE: u32 = 0o1444;
/// The permissions of a folder that is a placeholder.
const FOLDER_MODE: u32 = 0o1555;
/// The permissions of a folder that the user takes over.
const PRIVATE_MODE: u32 = 0o700;
/// How often a placeholder is made again that another process removes at the same moment.
const ATTEMPTS_MAX: usize = 200;

/// The placeholders of one command. Dropping it removes those that no other command needs.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    files: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    /// Keep others from removing them.
    locks: Vec<(PathBuf, File)>,
}

impl Placeholders {
    /// Creates placeholders, where their parents exist.
    pub(crate) fn create(files: &[PathBuf], folders: &[PathBuf]) -> Self {
        let mut locks = Vec::new();
        let mut all = |paths: &[PathBuf], make: fn(&Path) -> Result<()>| -> Vec<PathBuf> {
            let made = paths.iter().filter_map(|path| Some((path.clone(), made(path, make)?)));
            let made: Vec<(PathBuf, File)> = made.collect();
            let paths = made.iter().map(|(path, _)| path.clone()).collect();
            locks.extend(made);
            paths
        };
        let (files, folders) = (all(files, make_file), all(folders, make_folder));
        Self { files, folders, locks }
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
        for (path, lock) in self.locks.drain(..) {
            remove(&path, &lock);
        }
    }
}

/// Whether a path is a placeholder: it exists only while a command runs, so that the command cannot create
/// something there.
pub fn is_placeholder(path: &Path) -> bool {
    placeholder_at(path).is_some()
}

/// Makes room for a file that the user writes: a placeholder above it becomes an ordinary folder, which remains
/// hidden from commands that are running; one in the file's own place is removed.
///
/// # Errors
/// A command that is running needs the placeholder in the file's place (`ResourceBusy`), or it cannot be changed.
pub fn make_room(path: &Path) -> Result<()> {
    if let Some(folder) = path.ancestors().skip(1).find(|folder| is_placeholder(folder)) {
        return std::fs::set_permissions(folder, Permissions::from_mode(PRIVATE_MODE));
    }
    if !is_placeholder(path) {
        return Ok(());
    }
    match lock(path, FlockOperation::NonBlockingLockExclusive) {
        Ok(lock) if remove(path, &lock) => Ok(()),
        // It is gone, or has got content.
        Ok(_) | Err(_) if !is_placeholder(path) => Ok(()),
        Ok(_) => Err(ErrorKind::PermissionDenied.into()),
        Err(error) => Err(error),
    }
}

/// Makes a placeholder or adopts one, and locks it. `None`: something else is there, or it cannot be made.
fn made(path: &Path, make: impl Fn(&Path) -> Result<()>) -> Option<File> {
    for _ in 0..ATTEMPTS_MAX {
        match make(path) {
            Ok(()) => {}
            // One that another process removes before it is locked is gone again.
            Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {}
            Err(_) => return None,
        }
        if !is_placeholder(path) {
            std::thread::yield_now();
            continue;
        }
        // Another process may remove it before it is locked.
        if let Ok(lock) = lock(path, FlockOperation::LockShared) {
            return Some(lock);
        }
    }
    None
}

/// Locks the placeholder at a path.
fn lock(path: &Path, how: FlockOperation) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match flock(&opened, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(ErrorKind::ResourceBusy.into()),
        // A file system without locks has no protection against two processes; it works for one.
        Err(_) => {}
    }
    is_at(path, &opened).then_some(opened).ok_or(ErrorKind::NotFound.into())
}

/// Whether this placeholder is still at the path.
fn is_at(path: &Path, opened: &File) -> bool {
    let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    let opened = opened.metadata().ok().as_ref().map(id);
    placeholder_at(path).as_ref().map(id).is_some_and(|there| opened == Some(there))
}

/// Removes a placeholder that no other process has locked. Returns whether it did.
fn remove(path: &Path, lock: &File) -> bool {
    let is_needed = flock(lock, FlockOperation::NonBlockingLockExclusive)
        .is_err_and(|error| error == rustix::io::Errno::WOULDBLOCK);
    if is_needed || !is_at(path, lock) {
        return false;
    }
    // They fail if it is not empty.
    let is_folder = path.is_dir();
    if is_folder { std::fs::remove_dir(path).is_ok() } else { std::fs::remove_file(path).is_ok() }
}

/// Returns the metadata of a placeholder.
fn placeholder_at(path: &Path) -> Option<Metadata> {
    let metadata = path.symlink_metadata().ok()?;
    let mode = metadata.permissions().mode() & 0o7777;
    let is_file = metadata.is_file() && metadata.len() == 0 && mode == FILE_MODE;
    let is_folder = metadata.is_dir()
        && mode == FOLDER_MODE
        && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    (is_file || is_folder).then_some(metadata)
}

fn make_file(path: &Path) -> Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    // Whatever the `umask` is.
    file.set_permissions(Permissions::from_mode(FILE_MODE))
}

fn make_folder(path: &Path) -> Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
}

#[cfg(test)]
mod tests;
