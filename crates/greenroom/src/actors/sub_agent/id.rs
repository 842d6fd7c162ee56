//! The ids of sub-agents' sessions.
//!
//! Invariants: `caller..0123456789abcdef`: a valid id, however long the caller's is; the sessions of one
//! caller are adjacent in the order of ids.

use std::hash::{DefaultHasher, Hash, Hasher};

/// How much of the caller's id the session's id contains, in bytes, before two dots and 16 digits.
const CALLER_BYTES_MAX: usize = 44;

/// Returns the id of the session for a call; `number` counts those of the same call. The digits depend on the
/// caller's whole id.
pub(super) fn session_id(caller: &str, call_id: &str, number: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (caller, call_id, number).hash(&mut hasher);
    format!("{}{:016x}", prefix(caller), hasher.finish())
}

/// Returns the prefix of the ids of this session's sub-agents.
pub(crate) fn prefix(caller: &str) -> String {
    let end = (0..=CALLER_BYTES_MAX.min(caller.len())).rev().find(|end| caller.is_char_boundary(*end));
    format!("{}..", caller[..end.unwrap_or(0)].trim_end())
}
