//! The rules that the user added with the answer "always", in a file of their own beside the configuration.
//!
//! Invariants: a rule applies to the folder in which it was added; the file is replaced as a whole, so a reader sees
//! the old one or the new one; two processes that add rules lose none; only its owner can read it, and the agent's
//! tools cannot.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use greenroom_files::{self as files, private};
use serde::{Deserialize, Serialize};

use crate::config::folder::make_room;

/// The file's name, in the folder of the user's configuration.
pub(crate) const FILE: &str = "permissions.yaml";
/// The largest file that is read, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// What the file begins with.
const HEAD: &str = "# What you allowed with the answer \"always\", by folder. You may edit it: remove a rule to be asked again.\n";

/// The answers for one folder.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    path: PathBuf,
    folder: String,
}

/// A version of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    /// The rules whose calls run, by folder.
    #[serde(default)]
    allow: BTreeMap<String, Vec<String>>,
}

impl Answers {
    /// Creates the answers for a workspace.
    pub(crate) fn new(own_folder: &Path, workspace: &Path) -> Self {
        Self { path: own_folder.join(FILE), folder: workspace.display().to_string() }
    }

    /// Returns the file, for people.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns what tells one version of the file from another; `None` if there is no file.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let metadata = std::fs::metadata(&self.path).ok()?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Some(Stamp { file: (metadata.dev(), metadata.ino()), bytes: metadata.len(), modified, changed })
    }

    /// Returns the rules of all folders.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of_all(own_folder: &Path) -> Result<BTreeMap<String, Vec<String>>> {
        Ok(Self::new(own_folder, Path::new("")).all()?.allow)
    }

    /// Returns the rules of the folder.
    ///
    /// # Errors
    /// The file cannot be read, as a sentence without a full stop.
    pub(crate) fn read(&self) -> Result<Vec<String>, String> {
        let mut all = self.all().map_err(|error| format!("{error:#}"))?;
        Ok(all.allow.remove(&self.folder).unwrap_or_default())
    }

    /// Adds rules for the folder.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(crate) fn add(&self, rules: &[String]) -> Result<()> {
        let _lock = make_room(&self.path)?;
        let mut all = self.all()?;
        let known = all.allow.entry(self.folder.clone()).or_default();
        known.extend(rules.iter().filter(|rule| !known.contains(rule)).cloned().collect::<Vec<_>>());
        let failed = || format!("write {}", self.path.display());
        let text = format!("{HEAD}{}", serde_norway::to_string(&all).with_context(failed)?);
        private::replace(&self.path, text.as_bytes()).with_context(failed)
    }

    fn all(&self) -> Result<Remembered> {
        let bytes = match files::read(&self.path, BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(Remembered::default()),
            Err(error) => return Err(error).with_context(|| format!("read {}", self.path.display())),
        };
        let text = String::from_utf8(bytes).with_context(|| format!("read {}", self.path.display()))?;
        if text.lines().all(|line| line.trim().is_empty() || line.starts_with('#')) {
            return Ok(Remembered::default());
        }
        serde_norway::from_str(&text).with_context(|| format!("{} is not valid", self.path.display()))
    }
}
