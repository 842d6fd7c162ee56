//! The harmless form of text from outside: what models, tools, files, servers and configurations say.
//!
//! Invariants: the form has no control character but the line feed and the tab, and nothing that changes the direction
//! of the text around it or hides in it; making it harmless again changes nothing.

use std::borrow::Cow;

/// Whether a terminal would obey a character, or be misled by it, instead of showing it.
///
/// Controls of both sets (C0 and C1, DEL), marks, embeddings, overrides and isolates of direction, blanks and fillers
/// without width, soft hyphens, separators of lines and paragraphs, tags, and the mark of byte order. Joiners stay: scripts
/// and pictures need them.
fn is_hostile(c: char) -> bool {
    let is_layout = matches!(c, '\n' | '\t');
    (c.is_control() && !is_layout)
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{2060}'..='\u{2065}'
                | '\u{3164}'
                | '\u{ffa0}'
                | '\u{e0100}'..='\u{e01ef}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with escapes (`\u{1b}`) for what a terminal would obey or be misled by. A line that ends as Windows ends
/// lines ends with a line feed.
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

/// JSON that means the same, with JSON's own escapes (`\u001b`) for these characters. Outside of its texts JSON has none
/// of them, and within them it escapes C0 already.
pub(crate) fn harmless_json(json: &str) -> Cow<'_, str> {
    // A carriage return between the values of another program's JSON is white space.
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
