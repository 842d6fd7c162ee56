//! The files that a conversation read and modified, cumulatively over all compactions.
//!
//! Invariants: a path is in at most one of the two sets. A file that was read and later modified is modified
//! only; a deleted file counts as modified. Both sets are sorted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The operation of a tool on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// The file was only read.
    Read,
    /// It was created, changed or deleted.
    Modified,
}

/// One file that a tool touched, as declared with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// The path as given to the tool, relative to the workspace if the file is inside it.
    pub path: String,
    /// The operation.
    pub touch: Touch,
}

/// The files read and modified so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileOps {
    read: BTreeSet<String>,
    modified: BTreeSet<String>,
}

impl FileOps {
    /// Creates the sets from two lists, such as a recorded compaction's.
    pub fn new(
        read: impl IntoIterator<Item = impl Into<String>>,
        modified: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let mut ops = Self::default();
        for path in modified {
            ops.record(path, Touch::Modified);
        }
        for path in read {
            ops.record(path, Touch::Read);
        }
        ops
    }

    /// Records one operation.
    pub fn record(&mut self, path: impl Into<String>, touch: Touch) {
        let path = path.into();
        match touch {
            Touch::Modified => {
                self.read.remove(&path);
                self.modified.insert(path);
            }
            Touch::Read => {
                if !self.modified.contains(&path) {
                    self.read.insert(path);
                }
            }
        }
    }

    /// Adds all operations of another set.
    pub fn merge(&mut self, other: &Self) {
        for path in &other.modified {
            self.record(path.clone(), Touch::Modified);
        }
        for path in &other.read {
            self.record(path.clone(), Touch::Read);
        }
    }

    /// Returns the files read and never modified, sorted.
    pub fn read(&self) -> impl ExactSizeIterator<Item = &str> {
        self.read.iter().map(String::as_str)
    }

    /// Returns the modified files, sorted.
    pub fn modified(&self) -> impl ExactSizeIterator<Item = &str> {
        self.modified.iter().map(String::as_str)
    }

    /// Whether no file was touched.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.modified.is_empty()
    }
}
