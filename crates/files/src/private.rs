//! Files and folders that only the user can read.
//!
//! Invariants: a new file has its permissions from its first moment; a file that is replaced is there as a whole, before
//! or after, whatever happens meanwhile, and nothing is left beside it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The permissions of a private file.
pub const FILE_MODE: u32 = 0o600;
/// The permissions of a private folder.
pub(crate) const FOLDER_MODE: u32 = 0o700;

/// Creates a file that does not exist, for writing.
///
/// # Errors
/// It exists, or cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens a file for appending; creates it if it does not exist.
///
/// # Errors
/// It cannot be opened.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}

/// Replaces a file as a whole, or creates it.
///
/// # Errors
/// It cannot be written; then it is as before.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with_mode(path, bytes, FILE_MODE)
}

/// Replaces a file as a whole, with these permissions.
///
/// # Errors
/// As [`replace`].
pub fn replace_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_file_name(format!(".{name}.{}-{number}", std::process::id()));
    // A process with this id may have been killed here.
    let _ = std::fs::remove_file(&beside);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written
        .and_then(|()| std::fs::rename(&beside, path))
        // The error that counts is the first one.
        .inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

/// Creates a folder that does not exist.
///
/// # Errors
/// It exists, or cannot be created.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(path)
}

/// Creates a folder with those above it, as far as they do not exist.
///
/// # Errors
/// One cannot be created.
pub fn create_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

#[cfg(test)]
mod tests;
