//! The names of tools: `mcp__SERVER__TOOL`.
//!
//! Invariants: a name is one that every provider accepts, and depends on nothing but the names of its server and its tool:
//! not on what else the server lists.

use sha2::{Digest as _, Sha256};

/// The longest name that providers accept, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether a server can have this name: 1 to 32 letters, digits, `-`, and `_` that are not doubled, so that the names of two
/// servers' tools never look alike; the last character is no `_`.
pub fn is_server_name(name: &str) -> bool {
    let valid = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    (1..=32).contains(&name.len()) && name.chars().all(valid) && !name.contains("__") && !name.ends_with('_')
}

/// Returns the name under which a model calls the tool `tool` of the server `server`. Where it is not that of the tool
/// letter by letter, it ends with a digest of the tool's name: a rule about it never applies to another tool.
pub(crate) fn tool_name(server: &str, tool: &str) -> String {
    let prefix = format!("mcp__{server}__");
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if !tool.is_empty() && tool.chars().all(is_plain) && prefix.len() + tool.len() <= NAME_BYTES_MAX {
        return prefix + tool;
    }
    let plain: String = tool.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let digest: String = Sha256::digest(tool).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let room = NAME_BYTES_MAX - prefix.len() - digest.len() - 1;
    format!("{prefix}{}_{digest}", &plain[..plain.len().min(room)])
}

/// Whether a name matches a pattern, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((tail, middle)) = parts.split_last() else { return true };
    for part in middle {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(tail)
}

#[cfg(test)]
mod tests;
