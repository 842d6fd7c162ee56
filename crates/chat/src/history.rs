//! The prompts of earlier chats, kept in a file.
//!
//! Invariants: only this user can read the file; its size is bounded; a chat works even if it cannot read or
//! write it.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use greenroom_files::{self as files, private};

#[cfg(test)]
mod tests;

/// The file's name in the data directory.
const FILE: &str = "chat_history";
/// How many prompts are kept.
const PROMPTS_MAX: usize = 1_000;
/// Longer prompts are not kept, in bytes.
const PROMPT_BYTES_MAX: usize = 16 * 1024;
/// A larger file is rewritten, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most bytes that are read of it.
const READ_BYTES_MAX: usize = 2 * 4 * 1024 * 1024;

/// The history file.
#[derive(Debug, Clone)]
pub(crate) struct History(PathBuf);

impl History {
    /// The history of this data directory.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join(FILE))
    }

    /// Reads the prompts, the oldest first.
    pub(crate) fn read(&self) -> Vec<String> {
        let opened = files::open(&self.0, true).ok();
        let Some(bytes) = opened.and_then(|(file, _)| files::read_start(file, READ_BYTES_MAX).ok()) else {
            return Vec::new();
        };
        // A damaged line affects no other.
        let text = String::from_utf8_lossy(&bytes);
        // One line of JSON for each prompt, because prompts contain line breaks. A truncated line is skipped.
        let prompts: Vec<String> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let skip = prompts.len().saturating_sub(PROMPTS_MAX);
        prompts.into_iter().skip(skip).collect()
    }

    /// Appends a prompt.
    pub(crate) fn add(&self, prompt: &str) -> io::Result<()> {
        if prompt.trim().is_empty() || prompt.len() > PROMPT_BYTES_MAX {
            return Ok(());
        }
        if fs::metadata(&self.0).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(io::Error::other("the history is not a regular file"));
        }
        let line = format!("{}\n", serde_json::to_string(prompt)?);
        let mut file = private::append(&self.0)?;
        // Also restricts an existing file with other permissions.
        file.set_permissions(fs::Permissions::from_mode(private::FILE_MODE))?;
        // One write, so the lines of two chats do not mix.
        file.write_all(line.as_bytes())?;
        if file.metadata()?.len() > FILE_BYTES_MAX {
            let prompts = self.read();
            let kept = prompts.iter().skip(prompts.len() / 2);
            let text: Vec<String> = kept.map(serde_json::to_string).collect::<Result<_, _>>()?;
            private::replace(&self.0, (text.join("\n") + "\n").as_bytes())?;
        }
        Ok(())
    }
}
