//! The lost and the remaining entries of a session.
//!
//! Invariants: ranges are half-open, and in order.

use greenroom_kernel::{Entry, EntryId};

/// The readable entries of a session, and the ids of the others.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Salvaged {
    /// The readable entries, in order.
    pub entries: Vec<Entry>,
    /// The ranges of lost entries: the id of the first, and the id after the last.
    pub lost: Vec<(EntryId, EntryId)>,
}

/// The losses of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The session.
    pub session: String,
    /// The ranges of entries that cannot be read: the id of the first, and the id after the last.
    pub lost: Vec<(EntryId, EntryId)>,
    /// The first lost entry, while the session is quarantined. It may be the entry after the last known one:
    /// then the number of lost entries is unknown.
    pub quarantined_from: Option<EntryId>,
    /// Whether a person accepted a loss of the session, so that it takes entries again.
    pub is_accepted: bool,
}
