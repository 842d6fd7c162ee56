//! Import and export of other systems' session files, and a report of what a compaction would do to them.
//!
//! The one key decision: **a file becomes entries and nothing else.** This crate knows other systems' files and the
//! kernel's types. It opens no file, has no clock and stores nothing: the text of a file comes in, and an [`Imported`]
//! or a typed error goes out.
//!
//! Invariants: no text causes a panic; ids are ours, dense and in file order; a parent is an earlier entry, so there
//! are no cycles; a line that is unreadable or of an unknown type is counted and never fatal; what the other program
//! wrote for itself, such as progress, is left out and not counted; and with [`ImportOptions::repair`] every tool call
//! has exactly one result on every path.
//!
//! Reading order: `lines` (text to JSON, with limits), `fields` (JSON that others wrote), `log` (source ids to ours),
//! `calls` (results to calls), `pi`, `claude` and `codex` (one format each), `repair` (broken pairs of calls and results,
//! in any format), [`report`] (a plan, for printing), `timestamp`. Another format is one more module beside `pi`, one
//! more [`Format`], and one more line in `recognise` and [`import`].

mod calls;
mod claude;
mod codex;
mod fields;
mod lines;
mod log;
mod pi;
mod repair;
pub mod report;
mod timestamp;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::path::{is_message, path_to};

pub use pi::export as export_pi;
pub use report::{PlanReport, PlanSummary};
pub use timestamp::rfc3339;

/// The largest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A system's session file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// pi's session files, versions 1 to 3.
    Pi,
    /// Claude Code's session files.
    ClaudeCode,
    /// Codex' session files ("rollouts").
    Codex,
}

impl Format {
    /// Returns the format's name, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pi => "pi",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
        }
    }
}

/// Options of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportOptions {
    /// Whether tool calls and results are repaired, so that the session can continue: every call gets exactly
    /// one result, and results without a call are dropped. Otherwise the file is imported unchanged, for
    /// comparisons.
    pub repair: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { repair: true }
    }
}

/// Why a file was not imported, not even in part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file has no text.
    #[error("the file is empty")]
    Empty,
    /// The file is larger than [`FILE_BYTES_MAX`].
    #[error("the file has {bytes} bytes, more than {FILE_BYTES_MAX}")]
    FileTooLarge {
        /// The size of the file, in bytes.
        bytes: usize,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("line {line} has {bytes} bytes, more than {LINE_BYTES_MAX}")]
    LineTooLong {
        /// The number of the line, from 1.
        line: usize,
        /// The length of the line, in bytes.
        bytes: usize,
    },
    /// The file is in no known format.
    #[error("the session format is not recognised; use a file of Claude Code, Codex or pi")]
    Unrecognised,
}

/// A session read from another system's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The format of the file.
    pub format: Format,
    /// The session's id in its own system, if the file names one. It is untrusted: never use it in a file path.
    pub session_id: Option<String>,
    /// The session's title, if it has one.
    pub title: Option<String>,
    /// All entries of all branches, in the order of the file.
    pub entries: Vec<Arc<Entry>>,
    /// The entry from which the session continues: the newest one of the conversation.
    pub leaf: Option<EntryId>,
    /// How many entries carry a message.
    pub messages: u64,
    /// How many lines were left out because they are unreadable or of an unknown type or role.
    pub skipped: u64,
    /// How many repairs were made.
    pub repaired: u64,
    /// What the user should know about the import, one sentence each.
    pub warnings: Vec<String>,
}

impl Imported {
    /// Returns the entry that had this id in the source.
    pub fn find(&self, origin: &str) -> Option<EntryId> {
        self.entries.iter().find(|entry| entry.origin.as_deref() == Some(origin)).map(|entry| entry.id)
    }

    /// Returns an entry's id in the source; `None` if the source has no ids, or the entry was made by a
    /// repair.
    pub(crate) fn origin_of(&self, id: EntryId) -> Option<&str> {
        let index = usize::try_from(id.0).ok()?;
        self.entries.get(index)?.origin.as_deref()
    }

    /// Returns the name of an entry for printing: its id in the source, or else its number.
    pub fn name_of(&self, id: EntryId) -> String {
        self.origin_of(id).map_or_else(|| id.to_string(), str::to_owned)
    }

    /// Returns the path to the leaf, oldest first.
    pub fn path(&self) -> Vec<Arc<Entry>> {
        self.path_to(self.leaf)
    }

    /// Returns the path to `leaf`, oldest first.
    pub fn path_to(&self, leaf: Option<EntryId>) -> Vec<Arc<Entry>> {
        path_to(&self.entries, leaf).unwrap_or_default()
    }
}

/// Detects the format of a file's text.
///
/// # Errors
/// Fails if the text is empty, too large, or in no known format.
pub(crate) fn recognise(text: &str) -> Result<Format, FormatError> {
    lines::check_limits(text)?;
    if pi::is_pi(text) {
        return Ok(Format::Pi);
    }
    if codex::is_codex(text) {
        return Ok(Format::Codex);
    }
    if claude::is_claude(text) {
        return Ok(Format::ClaudeCode);
    }
    Err(FormatError::Unrecognised)
}

/// Imports a file's text.
///
/// The caller replaces bytes that are not UTF-8, such as the half of a character that a crash left, with
/// `String::from_utf8_lossy`.
///
/// # Errors
/// Fails if the text is empty, too large, or in no known format. Nothing is imported then.
pub fn import(text: &str, options: ImportOptions) -> Result<Imported, FormatError> {
    let mut imported = match recognise(text)? {
        Format::Pi => pi::import(text),
        Format::ClaudeCode => claude::import(text),
        Format::Codex => codex::import(text),
    };
    if options.repair {
        let repaired = repair::repair(&imported.entries, imported.leaf);
        imported.entries = repaired.entries;
        imported.leaf = repaired.leaf;
        imported.repaired = repaired.repairs;
    }
    let messages = imported.entries.iter().filter(|entry| is_message(&entry.kind)).count();
    imported.messages = u64::try_from(messages).unwrap_or(u64::MAX);
    Ok(imported)
}
