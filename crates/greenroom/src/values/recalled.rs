//! The results of a search in the logs of sessions.

use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An entry that a search found, with the part of it that matches best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Recalled {
    /// The session.
    pub session: String,
    /// The entry.
    pub entry: EntryId,
    /// When it was recorded, in Unix milliseconds.
    pub at_ms: u64,
    /// Its author: `user`, `assistant`, `tool` or `other`.
    pub role: String,
    /// The character of the entry's text at which `text` begins.
    pub from: usize,
    /// The part of the entry's text that matches best.
    pub text: String,
    /// How well it matches, within its session.
    pub score: f32,
}
