//! Copies of files from before tools change them.
//!
//! Invariants: only the user's own file sets it, because it decides what can be brought back.

use greenroom::RuntimeBuilder;
use greenroom::files::{FileHistory, Limits};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

use super::{Wrong, wrong};

/// The folder in the data directory.
const FOLDER: &str = "files";

/// Copies of files from before tools change them, so that `undo` and `/undo` can restore them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RewindConfig {
    /// Whether files are kept.
    pub(crate) enabled: bool,
    /// The maximum size of the kept files of all sessions together, in bytes. Above it, the least recently used
    /// contents are dropped.
    pub(crate) total_bytes_max: u64,
    /// The largest file that is kept, in bytes.
    pub(crate) file_bytes_max: u64,
    /// The maximum size of the files that are kept for one run, in bytes. Further files are not kept.
    pub(crate) run_bytes_max: u64,
}

impl Default for RewindConfig {
    fn default() -> Self {
        let Limits { total_bytes_max, file_bytes_max, run_bytes_max, .. } = Limits::default();
        Self { enabled: true, total_bytes_max, file_bytes_max, run_bytes_max }
    }
}

impl RewindConfig {
    /// Lets a runtime with this data directory keep files. `closed` are places that no rewind touches.
    ///
    /// # Errors
    /// If the folder cannot be opened.
    pub(crate) fn of_runtime(
        &self,
        builder: RuntimeBuilder,
        data_dir: &Path,
        closed: impl IntoIterator<Item = PathBuf>,
    ) -> std::io::Result<RuntimeBuilder> {
        if !self.enabled {
            return Ok(builder);
        }
        let limits = Limits::new(self.total_bytes_max, self.file_bytes_max, self.run_bytes_max);
        let closed = closed.into_iter().chain([data_dir.to_owned()]).collect();
        Ok(builder.keep_files(FileHistory::open(&data_dir.join(FOLDER), limits, closed)?))
    }
}

/// Checks the values of one layer.
pub(super) fn check(config: &RewindConfig) -> Result<(), Wrong> {
    let limits = [
        ("total_bytes_max", config.total_bytes_max),
        ("file_bytes_max", config.file_bytes_max),
        ("run_bytes_max", config.run_bytes_max),
    ];
    for (key, limit) in limits {
        if limit == 0 {
            return wrong(&["rewind", key], "must be at least 1; `rewind.enabled: false` keeps no files");
        }
    }
    if config.file_bytes_max > config.total_bytes_max {
        return wrong(&["rewind", "file_bytes_max"], "must be at most `rewind.total_bytes_max`");
    }
    Ok(())
}
