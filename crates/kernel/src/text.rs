//! Truncates texts, by bytes or by characters, and reads the text of a panic.
//!
//! Invariants: a text is never cut inside a character; one that is short enough is returned unchanged; a truncated
//! one states how much is missing.

#[cfg(test)]
mod tests;

/// Returns at most about `bytes` bytes of a text: its head (two thirds) and its tail (one third), with a line
/// between them that states how many bytes were cut. That line is in addition to `bytes`.
pub fn bounded(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - bytes / 3);
    format!("{}\n[… {} bytes cut …]\n{}", &text[..head], tail - head, &text[tail..])
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

/// Returns the message of a caught panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}
