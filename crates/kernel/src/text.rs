//! Truncates texts, by bytes or by characters; recognises characters that mislead; reads the text of a panic.
//!
//! Invariants: a text is never cut inside a character; one that is short enough is returned unchanged; a truncated
//! one states how much is missing.

#[cfg(test)]
mod tests;

/// Returns at most about `bytes` bytes of a text: its head (two thirds) and its tail (one third), with a line
/// between them that states how many bytes were cut. That line is in addition to `bytes`.
pub(crate) fn bounded(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - bytes / 3);
    format!("{}{BOUNDED_LEAD}{}{BOUNDED_TAIL}{}", &text[..head], tail - head, &text[tail..])
}

/// The marks around the number of bytes in the place of what was cut out of a text.
const BOUNDED_LEAD: &str = "\n[… ";
const BOUNDED_TAIL: &str = " bytes cut …]\n";

/// Whether a part of this text was cut out by [`bounded`], or it imitates such a text.
pub(crate) fn is_bounded(text: &str) -> bool {
    text.contains(BOUNDED_TAIL)
}

/// Returns at most about `limit` characters of a text: three quarters of them from its beginning and the rest
/// from its end, with a line between them that states how many characters were cut. That line is in addition
/// to `limit`.
pub(crate) fn elide_middle(text: &str, limit: usize) -> String {
    // A text has at least as many bytes as characters.
    if text.len() <= limit {
        return text.to_owned();
    }
    let count = text.chars().count();
    if count <= limit {
        return text.to_owned();
    }
    let (head, tail) = (limit * 3 / 4, limit / 4);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}\n[… {} characters cut …]\n{end}", count - head - tail)
}

/// Returns the words of a text as one line.
pub fn joined_words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first so many characters of a text, with an ellipsis if there are more.
pub fn first_chars(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a character is invisible, or changes how the text around it is shown: direction marks, embeddings, overrides and
/// isolates; zero-width spaces and fillers; soft hyphens; line and paragraph separators; tags and variation selectors without
/// glyphs; the byte order mark. Joiners are not among them: scripts and emoji need them.
pub fn is_misleading(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

/// Whether a character must not be in a name, which is shown in one line: control characters, misleading ones, and joiners.
pub fn is_unprintable(c: char) -> bool {
    c.is_control() || is_misleading(c) || matches!(c, '\u{200c}' | '\u{200d}')
}

/// Returns the message of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}
