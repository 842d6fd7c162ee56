//! The ids of the tool calls of an answer.
//!
//! Invariants: every call in an answer has an id that no other call in the conversation has.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use greenroom_kernel::{AssistantMessage, Message, Part};

/// The ids that are in use.
pub(crate) struct Ids<'a> {
    conversation: &'a [Arc<Message>],
    /// The ids of the conversation, once many are looked for.
    of_conversation: Option<HashSet<&'a str>>,
    own: HashSet<String>,
}

/// So many ids are looked for one by one: an answer has few calls, and a conversation may have many.
const ONE_BY_ONE_MAX: usize = 4;

impl<'a> Ids<'a> {
    /// Creates the ids of an answer to a conversation. A server that counts from 0 in every answer would repeat those of its
    /// calls.
    pub(crate) fn new(conversation: &'a [Arc<Message>]) -> Self {
        Self { conversation, of_conversation: None, own: HashSet::new() }
    }

    /// Returns this id, or another one if it is taken or empty.
    pub(crate) fn unique(&mut self, id: String) -> String {
        let is_taken = id.is_empty() || self.own.contains(&id) || self.is_in_conversation(&id);
        let id = if is_taken { generated_id() } else { id };
        self.own.insert(id.clone());
        id
    }

    fn is_in_conversation(&mut self, id: &str) -> bool {
        let calls = self.conversation.iter().flat_map(|message| message.tool_calls());
        let mut ids = calls.map(|call| call.id.as_str());
        if self.own.len() < ONE_BY_ONE_MAX {
            return ids.any(|used| used == id);
        }
        self.of_conversation.get_or_insert_with(|| ids.collect()).contains(id)
    }
}

/// Gives the calls of an answer ids that no other call of the answer or the conversation has. Empty ones, and those that
/// are taken, are replaced.
pub fn make_ids_unique(answer: &mut AssistantMessage, conversation: &[Arc<Message>]) {
    let mut ids = Ids::new(conversation);
    for part in &mut answer.content {
        if let Part::ToolCall(call) = part {
            call.id = ids.unique(std::mem::take(&mut call.id));
        }
    }
}

/// Returns an id for a call that came without a usable one. A counter makes it unique in this process, and the time
/// makes it unique beyond.
fn generated_id() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_micros());
    format!("call_{now_us:x}_{:x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}
