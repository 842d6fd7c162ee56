//! Summaries that only the simulated provider can read.
//!
//! Invariants: what was sealed can be opened, and anything else cannot.

use std::fmt::Write as _;

use crate::fault::hash;

/// The name of the in-process provider's own wire format, in which it sends and takes back its compactions.
pub(crate) const DIALECT: &str = "simulator";

/// Returns a text in a form that is not readable.
pub(crate) fn seal(text: &str) -> String {
    let mut sealed = format!("{:016x}", hash(&[text.as_bytes()]));
    for byte in text.bytes() {
        let _ = write!(sealed, "{:02x}", byte ^ 0x5a);
    }
    sealed
}

/// Returns the text that was sealed; `None` if it was altered.
pub(crate) fn open(sealed: &str) -> Option<String> {
    let (head, rest) = sealed.split_at_checked(16)?;
    let byte = |at: usize| Some(u8::from_str_radix(rest.get(at..at + 2)?, 16).ok()? ^ 0x5a);
    let bytes: Option<Vec<u8>> = (0..rest.len()).step_by(2).map(byte).collect();
    let text = String::from_utf8(bytes?).ok()?;
    (format!("{:016x}", hash(&[text.as_bytes()])) == head).then_some(text)
}

#[cfg(test)]
mod tests;
