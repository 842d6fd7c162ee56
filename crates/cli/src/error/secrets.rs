//! The secrets of this process: what is never written to a log, an export, an error, a summary or the store.
//!
//! Invariants: there is one redactor for the whole process, so a key that any part learns is unknown nowhere.

use std::sync::LazyLock;

use greenroom::Redactor;

/// Returns what replaces the secrets that are known so far, and what looks like one.
pub(crate) fn redactor() -> &'static Redactor {
    static REDACTOR: LazyLock<Redactor> = LazyLock::new(Redactor::with_shapes);
    &REDACTOR
}

/// Notes a secret by the name that replaces it.
pub(crate) fn note(name: &str, value: &str) {
    redactor().add([(name.to_owned(), value.to_owned())]);
}
