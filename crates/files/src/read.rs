//! Reading whole files: configurations, tokens, session files.
//!
//! Invariants: only regular files are read, so no read blocks on a pipe or a device; and never more bytes
//! than the caller's limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufRead as _, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Why a file was not read.
#[derive(Debug)]
pub enum FileError {
    /// The path is a pipe, a device, a socket or a folder.
    NotRegular,
    /// The path is a symbolic link, and links are not followed here.
    Link,
    /// The file is larger than this limit, in bytes.
    TooLarge(u64),
    /// The file cannot be opened or read.
    Io(io::Error),
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotRegular => f.write_str("not a regular file"),
            Self::Link => f.write_str("it is a symbolic link"),
            Self::TooLarge(bytes_max) => write!(f, "it has more than {bytes_max} bytes"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

impl FileError {
    /// Whether the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// The file is not regular, is too large, or cannot be read.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let (file, _) = open(path, true)?;
    read_all(file, bytes_max)
}

/// Opens a regular file for reading, and returns it with its metadata. If the path's last component is a
/// link, it is followed only if `follows`.
///
/// # Errors
/// The file is not regular, is a link that is not followed, or cannot be opened.
pub fn open(path: &Path, follows: bool) -> Result<(File, Metadata), FileError> {
    // Without NONBLOCK, opening a pipe blocks until it has a writer.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    if !follows {
        flags |= OFlags::NOFOLLOW;
    }
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
        let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        if is_link && !follows { FileError::Link } else { FileError::Io(error) }
    })?;
    let metadata = file.metadata().map_err(FileError::Io)?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(FileError::NotRegular) }
}

/// Reads everything from a reader, if that is at most `bytes_max` bytes.
///
/// # Errors
/// There is more, or it cannot be read.
pub fn read_all(reader: impl io::Read, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    reader.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(FileError::Io)?;
    let is_larger = u64::try_from(bytes.len()).is_ok_and(|length| length > bytes_max);
    if is_larger { Err(FileError::TooLarge(bytes_max)) } else { Ok(bytes) }
}

/// Reads the first `bytes_max` bytes of a reader, or fewer if it ends before.
///
/// # Errors
/// It cannot be read.
pub fn read_start(reader: impl io::Read, bytes_max: usize) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    reader.take(bytes_max as u64).read_to_end(&mut bytes).map_err(FileError::Io)?;
    Ok(bytes)
}

/// Reads the next line, including its line break, if it is at most `bytes_max` bytes; returns `None` at the
/// end of the input.
pub fn read_line(reader: &mut impl io::BufRead, bytes_max: u64) -> Result<Option<String>, FileError> {
    let mut bytes = Vec::new();
    reader.take(bytes_max.saturating_add(1)).read_until(b'\n', &mut bytes).map_err(FileError::Io)?;
    match u64::try_from(bytes.len()) {
        Ok(0) => Ok(None),
        Ok(length) if length <= bytes_max => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Ok(_) | Err(_) => Err(FileError::TooLarge(bytes_max)),
    }
}
