//! The state of a file at one moment: its content's hash and its permission bits.

use std::fs::File;
use std::io::{self, Read, Seek};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contents::ContentsHash;

/// Why the content of a file was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotKept {
    /// The file is larger than the limit.
    TooLarge,
    /// The files of the run together are larger than the limit.
    RunFull,
    /// A command changed it, and no tool had read or written it before.
    Unknown,
    /// It could not be read.
    Unreadable,
    /// It was kept, and dropped when there was too much.
    Dropped,
}

impl NotKept {
    /// Returns the reason, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TooLarge => "it is larger than `rewind.file_bytes_max`",
            Self::RunFull => "the run kept `rewind.run_bytes_max` bytes already",
            Self::Unknown => "a command changed it, and no tool had read it before",
            Self::Unreadable => "it could not be read",
            Self::Dropped => "its old content was dropped, because `rewind.total_bytes_max` was reached",
        }
    }
}

/// The state of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub(crate) enum FileState {
    /// There is none.
    Absent,
    /// A file with the content of this hash.
    File { hash: String, mode: u32 },
    /// A file whose content was not kept, and is not known.
    NotKept { why: NotKept },
}

impl FileState {
    /// The state of a file with this content.
    pub(crate) fn of(content: &[u8], mode: u32) -> Self {
        Self::File { hash: ContentsHash::of(content).into_text(), mode }
    }

    /// Reads the state of a file. It is not kept.
    pub(crate) fn read(file: Option<&File>, mode: u32, bytes_max: u64) -> io::Result<Self> {
        let Some(file) = file else { return Ok(Self::NotKept { why: NotKept::Unreadable }) };
        Ok(match read_all(file, bytes_max)? {
            Some(content) => Self::of(&content, mode),
            None => Self::NotKept { why: NotKept::TooLarge },
        })
    }

    pub(crate) fn hash(&self) -> Option<&str> {
        match self {
            Self::File { hash, .. } => Some(hash),
            Self::Absent | Self::NotKept { .. } => None,
        }
    }

    /// Whether both are known, and the content is the same.
    pub(crate) fn has_content_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Absent, Self::Absent) => true,
            (Self::File { hash, .. }, Self::File { hash: other, .. }) => hash == other,
            (Self::Absent | Self::File { .. } | Self::NotKept { .. }, _) => false,
        }
    }
}

/// Reads a whole file; `None` if it is larger than this.
pub(super) fn read_all(mut file: &File, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    if file.metadata()?.len() > bytes_max {
        return Ok(None);
    }
    file.rewind()?;
    let mut content = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= bytes_max).then_some(content))
}
