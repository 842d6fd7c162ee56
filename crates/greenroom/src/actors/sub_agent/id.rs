//! The ids of sub-agents' sessions.
//!
//! Invariants: `caller..0123456789abcdef`: an id that the store takes, however long the caller's is; the sessions below
//! one session stand next to each other in the order of ids.

use std::hash::{DefaultHasher, Hash, Hasher};

/// How much of its caller's id a session's id begins with, in bytes: two dots and 16 digits follow.
const CALLER_BYTES_MAX: usize = 44;

/// The id of the session for a call; `number` counts those of the same call. The digits are made of the whole of the
/// caller's id.
pub(super) fn session_id(caller: &str, call_id: &str, number: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (caller, call_id, number).hash(&mut hasher);
    format!("{}{:016x}", prefix(caller), hasher.finish())
}

/// How the ids of all sessions begin whose agents this session's agent called.
pub(crate) fn prefix(caller: &str) -> String {
    let end = (0..=CALLER_BYTES_MAX.min(caller.len())).rev().find(|end| caller.is_char_boundary(*end));
    format!("{}..", caller[..end.unwrap_or(0)].trim_end())
}
