//! The reasons in errors: why an entry, a pin, metadata or a name is refused.
//!
//! Invariants: each reason is the text of the error that contains it.

use greenroom_kernel::entry::EntryId;

/// Why no branch can start at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BranchPointError {
    /// The entry is beside the path, like inbox items and ends of runs.
    #[error("a branch must start at an entry on a path, and entry {entry} is not; choose another entry")]
    BesidePath {
        /// The entry's id.
        entry: EntryId,
    },
    /// The path needs an entry that is missing.
    #[error("the path has no entry {entry}; end it before that entry")]
    MissingParent {
        /// The id of the missing entry.
        entry: EntryId,
    },
    /// The entries of an import do not fit together.
    #[error(
        "entry {entry} is out of order; number the entries of an import from 0 in their order, each after its parent"
    )]
    OutOfOrder {
        /// The entry's id.
        entry: EntryId,
    },
    /// A tool call would lose its result.
    #[error("a branch cannot start between a tool call and its result; choose the entry before or after")]
    InsideCall,
}

/// Why an entry cannot be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The entry was compacted away, is on an abandoned branch, or does not exist.
    #[error(
        "entry {entry} is not in the active context, so it cannot be pinned; choose an entry that the model still sees"
    )]
    NotActive {
        /// The entry's id.
        entry: EntryId,
    },
    /// The entry is a tool call, a tool's result, or not a message.
    #[error(
        "entry {entry} is not a message that can stand alone: only words can be pinned, not tool calls or their results"
    )]
    NotAlone {
        /// The entry's id.
        entry: EntryId,
    },
    /// Too much would be pinned.
    #[error(
        "the pins would take {tokens} tokens, and this window allows at most {tokens_max}; pin a shorter message, or unpin others first"
    )]
    TooLarge {
        /// The size of all pinned messages with this one, in tokens.
        tokens: u64,
        /// The maximum that may be pinned, in tokens.
        tokens_max: u64,
    },
}

/// Why a title or a label cannot be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The value is empty.
    #[error("a session's {what} must not be empty")]
    Empty {
        /// The kind of value.
        what: &'static str,
    },
    /// The value is too long.
    #[error("a session's {what} may have at most {bytes_max} bytes, and this one has {bytes}")]
    TooLong {
        /// The kind of value.
        what: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The value has a control character, or another one that is not visible in one line.
    #[error("a session's {what} must be one line of printable characters")]
    Unprintable {
        /// The kind of value.
        what: &'static str,
    },
    /// The session has the maximum number of labels.
    #[error("a session may have at most {labels_max} labels")]
    TooManyLabels {
        /// The maximum.
        labels_max: usize,
    },
}

/// A name that is not one of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} named {name:?}")]
#[non_exhaustive]
pub struct UnknownName {
    /// The kind of name.
    pub what: &'static str,
    /// The name.
    pub name: String,
}
