//! Session files of other systems, read into our own entries and written from them, and what a compaction would
//! do to them.
//!
//! The one key decision: **a file becomes entries and nothing else.** This crate knows other systems' files and
//! the kernel's types; it opens no file, has no clock, and stores nothing. A file's text comes in, an
//! [`Imported`] goes out, all of it or a typed error.
//!
//! Always true, whatever the text: no panic; ids are ours, dense and in file order; a parent is an earlier entry,
//! so there are no cycles; a line of an unknown type or that cannot be read is counted, never fatal; and with
//! [`ImportOptions::repair`] every tool call has exactly one result on every path.
//!
//! Reading order: `lines` (text to JSON, with limits), `log` (source ids to ours), `pi` (one format),
//! `repair` (what is broken in any of them), [`report`] (a plan, to print). A further format is one more module
//! beside `pi`, one more [`Format`], and one more line in [`recognise`] and [`import`].

mod lines;
mod log;
mod pi;
mod repair;
pub mod report;
mod timestamp;

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod random;

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::path::{is_message, path_to};

pub use pi::export as export_pi;
pub use report::{PlanReport, PlanSummary};

/// The largest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A system's session file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// pi's session files, versions 1 to 3.
    Pi,
}

impl Format {
    /// Its name, as it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pi => "pi",
        }
    }
}

/// How to import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportOptions {
    /// Whether what is broken is repaired, so that the session can go on: every tool call gets exactly one
    /// result, results without a call are dropped. Without it the file is taken as read, for comparison.
    pub repair: bool,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { repair: true }
    }
}

/// Why a file cannot be imported. Nothing of it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// It is larger than [`FILE_BYTES_MAX`].
    #[error("the file has {bytes} bytes, more than {FILE_BYTES_MAX}")]
    FileTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// One of its lines is longer than [`LINE_BYTES_MAX`].
    #[error("line {line} has {bytes} bytes, more than {LINE_BYTES_MAX}")]
    LineTooLong {
        /// Which, counted from 1.
        line: usize,
        /// Its length.
        bytes: usize,
    },
    /// It is in no format that is known here.
    #[error("the file is in no known session format")]
    Unrecognised,
}

/// A session read from another system's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// Which format it was in.
    pub format: Format,
    /// The session's id in its own system, if the file names one. Not to be trusted as a part of a path.
    pub session_id: Option<String>,
    /// The session's title, if it has one.
    pub title: Option<String>,
    /// All entries of all branches, in the order of the file.
    pub entries: Vec<Arc<Entry>>,
    /// Where the session goes on: its newest entry.
    pub leaf: Option<EntryId>,
    /// How many entries carry a message.
    pub messages: u64,
    /// How many lines were left out: of an unknown type or role, or not readable.
    pub skipped: u64,
    /// How many repairs were made.
    pub repaired: u64,
    /// What a person should know of it, one sentence each.
    pub warnings: Vec<String>,
}

impl Imported {
    /// The entry that had this id in the source.
    pub fn find(&self, origin: &str) -> Option<EntryId> {
        self.entries.iter().find(|entry| entry.origin.as_deref() == Some(origin)).map(|entry| entry.id)
    }

    /// An entry's id in the source; `None` where the source has no ids, or the entry was made by a repair.
    pub fn origin_of(&self, id: EntryId) -> Option<&str> {
        let index = usize::try_from(id.0).ok()?;
        self.entries.get(index)?.origin.as_deref()
    }

    /// How an entry is called when printed: by its id in the source, else by its number.
    pub fn name_of(&self, id: EntryId) -> String {
        self.origin_of(id).map_or_else(|| id.to_string(), str::to_owned)
    }

    /// The path to the leaf, oldest first.
    pub fn path(&self) -> Vec<Arc<Entry>> {
        self.path_to(self.leaf)
    }

    /// The path to `leaf`, oldest first.
    pub fn path_to(&self, leaf: Option<EntryId>) -> Vec<Arc<Entry>> {
        path_to(&self.entries, leaf).unwrap_or_default()
    }
}

/// Which format a file's text is in.
///
/// # Errors
/// It is empty, too large, or in none that is known.
pub fn recognise(text: &str) -> Result<Format, FormatError> {
    lines::check_limits(text)?;
    if pi::is_pi(text) {
        return Ok(Format::Pi);
    }
    Err(FormatError::Unrecognised)
}

/// Imports a file's text. Bytes that are not UTF-8, such as a character that a crash cut in two, are the
/// caller's to replace (`String::from_utf8_lossy`).
///
/// # Errors
/// The text is empty, too large, or in no known format; then nothing is imported.
pub fn import(text: &str, options: ImportOptions) -> Result<Imported, FormatError> {
    let mut imported = match recognise(text)? {
        Format::Pi => pi::import(text),
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
