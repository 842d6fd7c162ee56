//! The ids of tool calls, and the names of tools, as servers accept them.
//!
//! Invariants: an id or a name is changed in the same way wherever it is sent.

use std::borrow::Cow;

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
