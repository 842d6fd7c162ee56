//! Digests and marks, as hexadecimal digits.
//!
//! Invariants: a mark cannot be computed without its key, and reveals neither the key nor what is marked.

use ring::{digest, hmac};

/// Returns bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the digest of a text.
pub(crate) fn digest(text: &str) -> String {
    hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

/// Returns the mark of a statement, made with a key.
pub(crate) fn mark(key: &str, statement: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    hex(hmac::sign(&key, statement).as_ref())
}
