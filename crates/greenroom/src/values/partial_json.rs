//! Reads incomplete JSON while it is being streamed.
//!
//! Invariants: the value read from a text remains part of the value read from a longer one: strings grow,
//! lists and objects get more items, and nothing is withdrawn.

use serde_json::Value;

#[cfg(test)]
mod tests;

/// The reader's position in the innermost object or list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// In an object, before or in a key.
    Key,
    /// In an object, between a key and its value.
    Colon,
    /// In an object, before or in a value.
    Value,
    /// In an object, after a value.
    AfterValue,
    /// In a list.
    List,
}

/// Returns the value of the text so far; `None` if there is none yet. Numbers and literals count when they
/// are complete.
pub(crate) fn read(text: &str) -> Option<Value> {
    let mut stack: Vec<Expected> = Vec::new();
    // The longest prefix that brackets alone can complete, and those brackets.
    let mut safe: Option<(usize, Vec<Expected>)> = None;
    let mut string: Option<usize> = None;
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        if string.is_some() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => {
                    string = None;
                    match stack.last_mut() {
                        Some(expected @ Expected::Key) => *expected = Expected::Colon,
                        Some(expected) => {
                            if *expected == Expected::Value {
                                *expected = Expected::AfterValue;
                            }
                            safe = Some((at + 1, stack.clone()));
                        }
                        None => safe = Some((at + 1, Vec::new())),
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => string = Some(at),
            b'{' | b'[' => {
                stack.push(if byte == b'{' { Expected::Key } else { Expected::List });
                safe = Some((at + 1, stack.clone()));
            }
            b'}' | b']' => {
                stack.pop()?;
                if let Some(expected @ Expected::Value) = stack.last_mut() {
                    *expected = Expected::AfterValue;
                }
                safe = Some((at + 1, stack.clone()));
            }
            b',' => {
                // The number or literal before it is complete.
                safe = Some((at, stack.clone()));
                match stack.last_mut() {
                    Some(Expected::List) | None => {}
                    Some(expected) => *expected = Expected::Key,
                }
            }
            b':' => {
                if let Some(expected @ Expected::Colon) = stack.last_mut() {
                    *expected = Expected::Value;
                }
            }
            _ => {}
        }
    }
    let (until, stack, quote) = match string {
        // An incomplete string counts as far as it goes; an incomplete key does not.
        Some(_) if stack.last() != Some(&Expected::Key) => (whole_characters(text), stack, "\""),
        Some(_) | None => match serde_json::from_str(text) {
            Ok(value) => return Some(value),
            Err(_) => {
                let (until, stack) = safe?;
                (until, stack, "")
            }
        },
    };
    let mut closed = text[..until].to_owned();
    closed.push_str(quote);
    closed.extend(stack.iter().rev().map(|expected| if *expected == Expected::List { ']' } else { '}' }));
    serde_json::from_str(&closed).ok()
}

/// Returns the length of an open string without an incomplete escape at its end.
fn whole_characters(text: &str) -> usize {
    let bytes = text.as_bytes();
    // The last escape is at most twelve bytes long: two `\uXXXX` of a surrogate pair.
    let tail = bytes.len().saturating_sub(12);
    let mut at = tail;
    // Not inside a run of backslashes that started earlier.
    while at > 0 && bytes[at - 1] == b'\\' {
        at -= 1;
    }
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        let length = match bytes.get(at + 1) {
            Some(b'u') => {
                let hex = text.get(at + 2..at + 6).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                // The first half of a surrogate pair.
                if hex.is_some_and(|code| (0xd800..0xdc00).contains(&code)) { 12 } else { 6 }
            }
            Some(_) => 2,
            None => 1 + bytes.len(),
        };
        if at + length > bytes.len() {
            return at;
        }
        at += length;
    }
    bytes.len()
}
