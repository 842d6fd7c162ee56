//! Contents of files by their hash: a folder with a file for each.
//!
//! Invariants: a content gets its name only when it is complete and on disk; content that is read is compared with
//! its name. Contents are private to the user.

use std::collections::HashSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The ending of contents that are being written.
const PART: &str = "part";
/// After there was too much, something is dropped until this share of the limit is left.
const LEFT_PERCENT: u64 = 90;

/// How much is left after something was dropped.
pub(super) fn left_after(bytes_max: u64) -> u64 {
    bytes_max / 100 * LEFT_PERCENT
}

/// The SHA-256 of a content, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentsHash(String);

impl ContentsHash {
    pub(super) fn of(content: &[u8]) -> Self {
        let mut text = String::with_capacity(64);
        for byte in Sha256::digest(content) {
            for digit in [byte >> 4, byte & 0xf] {
                text.push(char::from_digit(digit.into(), 16).expect("four bits are one digit"));
            }
        }
        Self(text)
    }

    /// A hash as it was recorded; `None` if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hash = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hash.then(|| Self(text.to_owned()))
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The folder.
#[derive(Debug)]
pub(super) struct Contents {
    dir: PathBuf,
    bytes: u64,
    /// The size of the journals, which count towards the same limit.
    journals: u64,
    /// The contents that a call has kept and not recorded yet. They are not dropped.
    in_use: HashSet<String>,
}

/// Creates a folder, and those above it, for this user only.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl Contents {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        create_private(&dir)?;
        let mut contents = Self { dir, bytes: 0, journals: 0, in_use: HashSet::new() };
        for (path, _, bytes) in contents.files()? {
            if path.extension().is_some_and(|ending| ending == PART) {
                // A crash left it. If it cannot be removed, the next start tries again.
                let _ = std::fs::remove_file(path);
            } else {
                contents.bytes += bytes;
            }
        }
        Ok(contents)
    }

    /// The size of the contents and the journals.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.journals
    }

    /// Notes that a journal has changed its size.
    pub(super) fn journal(&mut self, before: u64, after: u64) {
        self.journals = self.journals.saturating_sub(before) + after;
    }

    fn path(&self, hash: &ContentsHash) -> PathBuf {
        self.dir.join(hash.as_str())
    }

    /// Returns the files with their times and sizes.
    fn files(&self) -> io::Result<Vec<(PathBuf, SystemTime, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            files.push((entry.path(), metadata.modified()?, metadata.len()));
        }
        Ok(files)
    }

    /// Whether the content is kept. If it is, it becomes the newest.
    pub(super) fn touch(&mut self, hash: &ContentsHash) -> bool {
        let Ok(file) = OpenOptions::new().append(true).open(self.path(hash)) else { return false };
        // It is kept even if its time cannot be changed.
        let _ = file.set_modified(SystemTime::now());
        self.in_use.insert(hash.as_str().to_owned());
        true
    }

    /// Notes that a record refers to the content.
    pub(super) fn recorded(&mut self, hash: &str) {
        self.in_use.remove(hash);
    }

    /// Whether a call has kept it and not recorded it yet.
    fn is_in_use(&self, path: &Path) -> bool {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| self.in_use.contains(name))
    }

    /// Whether the content is kept.
    pub(super) fn has(&self, hash: &ContentsHash) -> bool {
        self.path(hash).exists()
    }

    /// Keeps a content.
    pub(super) fn put(&mut self, hash: &ContentsHash, content: &[u8]) -> io::Result<()> {
        let (path, part) = (self.path(hash), self.path(hash).with_extension(PART));
        let written = (|| {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
            file.write_all(content)?;
            file.sync_data()?;
            std::fs::rename(&part, &path)?;
            File::open(&self.dir)?.sync_all()
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&part);
        }
        written?;
        self.bytes += content.len() as u64;
        self.in_use.insert(hash.as_str().to_owned());
        Ok(())
    }

    /// Returns a content; `None` if it is not kept, or damaged.
    pub(super) fn get(&self, hash: &ContentsHash) -> io::Result<Option<Vec<u8>>> {
        let mut content = Vec::new();
        match File::open(self.path(hash)) {
            Ok(mut file) => file.read_to_end(&mut content)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok((ContentsHash::of(&content) == *hash).then_some(content))
    }

    /// Drops the oldest contents if there is more than this.
    pub(super) fn drop_oldest(&mut self, bytes_max: u64) -> io::Result<()> {
        if self.bytes() <= bytes_max || self.bytes == 0 {
            return Ok(());
        }
        let mut files = self.files()?;
        files.sort_by_key(|(_, time, _)| *time);
        let mut dropped = 0;
        for (path, _, bytes) in files {
            if self.bytes() <= left_after(bytes_max) {
                break;
            }
            if !self.is_in_use(&path) && std::fs::remove_file(path).is_ok() {
                self.bytes = self.bytes.saturating_sub(bytes);
                dropped += 1;
            }
        }
        tracing::info!(
            dropped,
            bytes_max,
            "the oldest kept contents of files were dropped: there were too many"
        );
        Ok(())
    }

    /// Drops the contents for which `is_kept` is false.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) -> io::Result<()> {
        for (path, _, bytes) in self.files()? {
            let is_kept = path.file_name().and_then(|name| name.to_str()).is_some_and(&is_kept);
            if !is_kept && !self.is_in_use(&path) && std::fs::remove_file(path).is_ok() {
                self.bytes = self.bytes.saturating_sub(bytes);
            }
        }
        Ok(())
    }
}
