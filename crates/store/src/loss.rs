//! The lost and the remaining entries of a session, and what is damaged of a store.
//!
//! Invariants: ranges are half-open, and in order.

use std::fmt;

use greenroom_kernel::{Entry, EntryId};

/// How many damaged sessions are named in a message.
const NAMED_MAX: usize = 5;

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

/// What is damaged of a store, and was not accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreDamage {
    /// The sessions that lost entries, ordered by id.
    pub sessions: Vec<String>,
    /// The numbers of the segments that lost entries of unknown sessions, and of those whose damage was found just now,
    /// in order. The sessions that lost entries with the latter are known once the store is opened again, which reads
    /// the whole journal then; but not those of a segment that the disk cannot read.
    pub segments: Vec<u64>,
}

impl StoreDamage {
    /// Whether nothing is damaged.
    pub fn is_none(&self) -> bool {
        self.sessions.is_empty() && self.segments.is_empty()
    }
}

/// A fragment with a subject, for the middle of a sentence.
impl fmt::Display for StoreDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.sessions.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        match self.sessions.len() {
            0 => {}
            1 => write!(f, "session {named} lost entries")?,
            count @ 2..=NAMED_MAX => write!(f, "{count} sessions lost entries: {named}")?,
            count => write!(f, "{count} sessions lost entries: {named} and {} more", count - NAMED_MAX)?,
        }
        let segments = self.segments.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let and = if self.sessions.is_empty() || self.segments.is_empty() { "" } else { "; " };
        match self.segments.len() {
            0 => Ok(()),
            1 => write!(f, "{and}segment {segments} of the journal is damaged"),
            _ => write!(f, "{and}segments {segments} of the journal are damaged"),
        }
    }
}
