//! The ids of sub-agents' sessions.
//!
//! Invariants: `caller..0123456789abcdef`: a valid id, however long the caller's is; the sessions of one
//! caller are adjacent in the order of ids.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::values::family::prefix;

/// Returns the id of the session for a call; `number` counts those of the same call. The digits depend on the
/// caller's whole id.
pub(super) fn session_id(caller: &str, call_id: &str, number: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (caller, call_id, number).hash(&mut hasher);
    format!("{}{:016x}", prefix(caller), hasher.finish())
}
