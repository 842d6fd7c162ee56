//! Valid session ids: those that people use for their users and conversations, such as `user:42`,
//! `ada@example.org` or `équipe/été`.
//!
//! Invariants: a valid id can be printed, listed, written into a path of a URL (percent-encoded) and stored
//! unchanged. Two ids are equal if their bytes are: nothing is normalised, and case matters. No file is named
//! after an id.

/// The maximum number of bytes of a session's id.
pub(crate) const BYTES_MAX: usize = 255;

/// Checks an id. The error is a fragment of a sentence.
///
/// # Errors
/// If it is empty or too long; has an invisible character; begins or ends with white space; or is `.` or
/// `..`, which no URL can carry.
pub fn check(id: &str) -> Result<(), &'static str> {
    if id.is_empty() {
        return Err("it is empty");
    }
    if id.len() > BYTES_MAX {
        return Err("it has more than 255 bytes");
    }
    if id.chars().any(|c| crate::text::is_unprintable(c) || is_blank(c)) {
        return Err("it has a control character, or another one that cannot be seen");
    }
    if id.trim() != id {
        return Err("it begins or ends with white space");
    }
    if matches!(id, "." | "..") {
        return Err("it is a path that URLs leave out");
    }
    Ok(())
}

/// Whether a character shows nothing by itself: what joins graphemes, selects a variant, or is an empty pattern. In a text
/// it has a meaning; in an id it makes one that looks like another.
fn is_blank(c: char) -> bool {
    matches!(c, '\u{34f}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}' | '\u{fe00}'..='\u{fe0f}')
}

#[cfg(test)]
mod tests;
