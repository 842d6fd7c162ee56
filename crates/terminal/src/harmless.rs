//! The harmless form of text from outside: from models, tools, files, servers and configurations.
//!
//! Invariants: the harmless form has no control characters except line feed and tab, and no characters that
//! change the direction of the surrounding text or are invisible; making text harmless is idempotent.

use std::borrow::Cow;

use greenroom_kernel::text::is_misleading;
use unicode_width::UnicodeWidthChar as _;

/// Whether a terminal would obey a character or show it misleadingly: the control characters of both sets (C0 and C1, DEL)
/// except for layout, and those that mislead.
fn is_hostile(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t')) || is_misleading(c)
}

/// Returns the text with these characters escaped (`\u{1b}`). CR LF becomes LF.
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hostile) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\r' && chars.peek() == Some(&'\n') {
            continue;
        }
        if is_hostile(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// How many combining marks may follow one another; more would cover other text.
const MARKS_MAX: usize = 2;

/// Returns one line of what a person is asked to approve, with everything escaped that is invisible or looks like
/// something else: what [`harmless`] escapes, and line feeds, carriage returns, joiners, variation selectors, blanks
/// that are not the ordinary one, and combining marks that pile up.
pub(crate) fn evident(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut marks = 0;
    for c in line.chars() {
        let is_mark = c.width() == Some(0);
        marks = if is_mark { marks + 1 } else { 0 };
        let is_odd = matches!(
            c,
            '\n' | '\u{34f}' | '\u{200c}' | '\u{200d}' | '\u{2800}' | '\u{fe00}'..='\u{fe0f}'
        ) || matches!(c, '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{1d159}' | '\u{1d173}'..='\u{1d17a}')
            || (c.is_whitespace() && !matches!(c, ' ' | '\t'));
        if is_hostile(c) || is_odd || marks > MARKS_MAX {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns equivalent JSON in which these characters are JSON escapes (`\u001b`). They can occur only inside
/// JSON's strings, where C0 is escaped already.
pub(crate) fn harmless_json(json: &str) -> Cow<'_, str> {
    // A carriage return between the values of another program's JSON is whitespace.
    let is_hostile = |c: char| is_hostile(c) && c != '\r';
    if !json.contains(is_hostile) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_hostile(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
