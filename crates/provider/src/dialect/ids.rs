//! The ids of tool calls, and the names of tools, as servers accept them.
//!
//! Invariants: every call in an answer has an id that no other call in the conversation has; an id or a name is changed
//! in the same way wherever it is sent.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use greenroom_kernel::Message;

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

/// Returns an id for a call that came without a usable one. A counter makes it unique in this process, and the time
/// makes it unique beyond.
fn generated_id() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_micros());
    format!("call_{now_us:x}_{:x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// The longest name of a tool that servers accept, in bytes.
const TOOL_NAME_BYTES_MAX: usize = 64;

/// Whether a server accepts this byte in the name of a tool.
pub(crate) fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// Returns the name of a tool as servers accept it: a name that the model invented may have characters that a server
/// refuses in the history.
pub(crate) fn sendable_tool_name(name: &str) -> Cow<'_, str> {
    if name.is_empty() {
        return Cow::Borrowed("unknown_tool");
    }
    if name.len() <= TOOL_NAME_BYTES_MAX && name.bytes().all(is_name_byte) {
        return Cow::Borrowed(name);
    }
    let replaced = |c: char| if u8::try_from(c).is_ok_and(is_name_byte) { c } else { '_' };
    Cow::Owned(name.chars().take(TOOL_NAME_BYTES_MAX).map(replaced).collect())
}

/// Returns the id of a call, or of its result, as a server accepts it: with at most so many bytes (40 or more), all
/// allowed.
pub(crate) fn sendable_id(id: &str, bytes_max: usize, is_allowed: fn(u8) -> bool) -> Cow<'_, str> {
    if !id.is_empty() && id.len() <= bytes_max && id.bytes().all(is_allowed) {
        return Cow::Borrowed(id);
    }
    // FNV-1a: it must only be stable and spread well, within one conversation.
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let head: String = id.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
    Cow::Owned(format!("{head}_{hash:016x}"))
}
