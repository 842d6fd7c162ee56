//! A file's text as JSON values, one per line, with limits.
//!
//! Invariants: a line that is not JSON, or is nested deeper than 128 levels, yields one `None`; an empty line
//! yields nothing. Half a surrogate pair, which JavaScript writes and strict JSON parsers reject, is read as
//! U+FFFD.

use serde_json::Value;

use crate::{FILE_BYTES_MAX, FormatError, LINE_BYTES_MAX};

#[cfg(test)]
mod tests;

/// Checks the file's size and the length of its lines.
pub(crate) fn check_limits(text: &str) -> Result<(), FormatError> {
    if text.trim().is_empty() {
        return Err(FormatError::Empty);
    }
    if text.len() > FILE_BYTES_MAX {
        return Err(FormatError::FileTooLarge { bytes: text.len() });
    }
    match text.lines().enumerate().find(|(_, line)| line.len() > LINE_BYTES_MAX) {
        Some((index, line)) => Err(FormatError::LineTooLong { line: index + 1, bytes: line.len() }),
        None => Ok(()),
    }
}

/// Yields the values of the lines that are not empty; `None` for a line that cannot be read.
pub(crate) fn values(text: &str) -> impl Iterator<Item = Option<Value>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().filter(|line| !line.trim().is_empty()).map(value)
}

fn value(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok().or_else(|| serde_json::from_str(&without_lone_surrogates(line)?).ok())
}

/// Returns the line with `\ufffd` for each escaped half of a surrogate pair; `None` if there is no such half.
fn without_lone_surrogates(line: &str) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    let mut replaced = false;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match (escaped_unit(rest), rest.get(6..).and_then(escaped_unit)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
            (Some(0xD800..0xE000), _) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                replaced = true;
                continue;
            }
            (Some(_), _) => 6,
            // A backslash and the character that it escapes.
            (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    replaced.then_some(out)
}

/// Returns the UTF-16 unit that `text` begins with, if it begins with `\uXXXX`.
fn escaped_unit(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}
