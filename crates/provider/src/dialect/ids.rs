//! The ids of tool calls.
//!
//! Invariants: every call in an answer has an id that no other call in the conversation has.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The ids that are in use.
pub(crate) struct Ids<'a> {
    of_conversation: HashSet<&'a str>,
    own: HashSet<String>,
}

impl<'a> Ids<'a> {
    /// Creates the ids of an answer to a conversation whose calls have these. A server that counts from 0 in every
    /// answer would repeat them.
    pub(crate) fn new(of_conversation: HashSet<&'a str>) -> Self {
        Self { of_conversation, own: HashSet::new() }
    }

    /// Returns this id, or another one if it is taken or empty.
    pub(crate) fn unique(&mut self, id: String) -> String {
        let is_taken = id.is_empty() || self.of_conversation.contains(&*id) || self.own.contains(&id);
        let id = if is_taken { generated_id() } else { id };
        self.own.insert(id.clone());
        id
    }
}

/// Returns an id for a call that came without a usable one. A counter makes it unique in this process, and the time
/// makes it unique beyond.
fn generated_id() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_micros());
    format!("call_{now_us:x}_{:x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}
