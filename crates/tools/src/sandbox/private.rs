//! A private folder for the commands of one agent: their `/tmp`, and output that is too long for a result.
//!
//! Invariants: only this user can enter it; it is removed with its last owner. Commands can change what is in
//! `tmp` and in `var-tmp`, and can only read what is in `output`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum amount of output of one command that is kept in a file, in bytes.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How many files with output are kept: the oldest goes first.
const OUTPUTS_MAX: u64 = 16;

/// The folder.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    path: PathBuf,
    outputs: AtomicU64,
}

impl PrivateFolder {
    /// Creates the folder.
    pub(crate) fn create() -> std::io::Result<Self> {
        let builder = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        // `TMPDIR` may name a folder that is not there.
        let parent = std::env::temp_dir().canonicalize().or_else(|_| Path::new("/tmp").canonicalize())?;
        let path = parent.join(format!("greenroom-tools-{}", crate::process::command_id()));
        builder(&path)?;
        let folder = Self { path, outputs: AtomicU64::new(0) };
        for part in [folder.tmp(), folder.var_tmp(), folder.output(), folder.proxy()] {
            builder(&part)?;
        }
        Ok(folder)
    }

    /// Returns the folder that is `/tmp` in a sandbox.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.path.join("tmp")
    }

    /// Returns the folder that is `/var/tmp` in a sandbox.
    pub(crate) fn var_tmp(&self) -> PathBuf {
        self.path.join("var-tmp")
    }

    /// Returns the folder with output.
    pub(crate) fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    /// Returns the folder with the proxy's socket.
    pub(crate) fn proxy(&self) -> PathBuf {
        self.path.join("proxy")
    }

    /// Creates the next file for output, and removes the oldest if there are too many.
    pub(crate) fn next_output(&self) -> std::io::Result<(PathBuf, File)> {
        let number = self.outputs.fetch_add(1, Ordering::Relaxed);
        let name = |number: u64| self.output().join(format!("{number}.txt"));
        if let Some(oldest) = number.checked_sub(OUTPUTS_MAX) {
            let _ = std::fs::remove_file(name(oldest));
        }
        let path = name(number);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok((path, file))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "a private folder could not be removed");
        }
    }
}
