//! The reasons that errors carry: why an entry, a pin, metadata or a name is refused.
//!
//! Invariants: each reason completes the text of the error that carries it.

use greenroom_kernel::entry::EntryId;

/// Why no branch can begin at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BranchPointError {
    /// It stands beside the path, as inbox items and ends of runs do.
    #[error("a branch must begin at an entry of a path; entry {entry} stands beside it")]
    BesidePath {
        /// The entry's id.
        entry: EntryId,
    },
    /// The path needs an entry that is not there.
    #[error("the path has no entry {entry}; end it before that entry")]
    MissingParent {
        /// The id of the missing entry.
        entry: EntryId,
    },
    /// A tool call would lose its result.
    #[error("a branch cannot begin between a tool call and its result; take the entry before or after")]
    InsideCall,
}

/// Why an entry cannot be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// It was compacted away, left with a branch, or never was.
    #[error("entry {entry} is not in the active context, so it cannot be pinned")]
    NotActive {
        /// The entry's id.
        entry: EntryId,
    },
    /// It is a tool call, a tool's result, or no message.
    #[error(
        "entry {entry} is not a message that can stand alone: only words can be pinned, not tool calls or their results"
    )]
    NotAlone {
        /// The entry's id.
        entry: EntryId,
    },
    /// Too much would be pinned.
    #[error("pins would take {tokens} tokens, and at most {tokens_max} may be pinned in this window")]
    TooLarge {
        /// All pins with this one, in tokens.
        tokens: u64,
        /// The most that may be pinned, in tokens.
        tokens_max: u64,
    },
}

/// Why a title or a label cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// It says nothing.
    #[error("a session's {what} must not be empty")]
    Empty {
        /// What was to be set.
        what: &'static str,
    },
    /// It is too long.
    #[error("a session's {what} may have at most {bytes_max} bytes, and this one has {bytes}")]
    TooLong {
        /// What was to be set.
        what: &'static str,
        /// How many bytes it has.
        bytes: usize,
        /// The most that it may have.
        bytes_max: usize,
    },
    /// It has a control character, or another one that cannot be seen in a line.
    #[error("a session's {what} must be one line of printable characters")]
    Unprintable {
        /// What was to be set.
        what: &'static str,
    },
    /// The session has as many labels as it may have.
    #[error("a session may have at most {labels_max} labels")]
    TooManyLabels {
        /// The most labels.
        labels_max: usize,
    },
}

/// A name that is none of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} named {name:?}")]
#[non_exhaustive]
pub struct UnknownName {
    /// What was looked for.
    pub what: &'static str,
    /// The name.
    pub name: String,
}
