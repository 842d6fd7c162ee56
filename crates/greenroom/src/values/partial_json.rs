//! JSON that is still being written, read as far as it has come.
//!
//! Invariants: what is read of a text stays a part of what is read of a longer one: texts grow, lists and objects get
//! more, and nothing that was told is taken back.

use serde_json::Value;

#[cfg(test)]
mod tests;

/// Where a reader stands in the innermost object or list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In an object, before a key or in it.
    Key,
    /// In an object, between a key and its value.
    Colon,
    /// In an object, before a value or in it.
    Value,
    /// In an object, after a value.
    AfterValue,
    /// In a list.
    List,
}

/// The value that the text has come to; `None` where there is none yet. Numbers and words count when they are over.
pub(crate) fn read(text: &str) -> Option<Value> {
    let mut stack: Vec<Place> = Vec::new();
    // Up to where the text can be closed by brackets alone, and which.
    let mut safe: Option<(usize, Vec<Place>)> = None;
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
                        Some(place @ Place::Key) => *place = Place::Colon,
                        Some(place) => {
                            if *place == Place::Value {
                                *place = Place::AfterValue;
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
                stack.push(if byte == b'{' { Place::Key } else { Place::List });
                safe = Some((at + 1, stack.clone()));
            }
            b'}' | b']' => {
                stack.pop()?;
                if let Some(place @ Place::Value) = stack.last_mut() {
                    *place = Place::AfterValue;
                }
                safe = Some((at + 1, stack.clone()));
            }
            b',' => {
                // A number or a word before it is over.
                safe = Some((at, stack.clone()));
                match stack.last_mut() {
                    Some(Place::List) | None => {}
                    Some(place) => *place = Place::Key,
                }
            }
            b':' => {
                if let Some(place @ Place::Colon) = stack.last_mut() {
                    *place = Place::Value;
                }
            }
            _ => {}
        }
    }
    let (until, stack, quote) = match string {
        // A text that is being written counts as far as it has come, a key does not.
        Some(_) if stack.last() != Some(&Place::Key) => (whole_characters(text), stack, "\""),
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
    closed.extend(stack.iter().rev().map(|place| if *place == Place::List { ']' } else { '}' }));
    serde_json::from_str(&closed).ok()
}

/// Up to where an open text has no half of an escape at its end.
fn whole_characters(text: &str) -> usize {
    let bytes = text.as_bytes();
    // The last escape is at most twelve bytes long: two `\uXXXX`, where one is half of a character.
    let tail = bytes.len().saturating_sub(12);
    let mut at = tail;
    // Not in the middle of a run of backslashes that began before.
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
                // The first half of a character that takes two.
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
