//! A session's title and labels.
//!
//! Invariants: each change is an entry of the session's log, and the head has the current values. A head is
//! stored with every append, so sizes are limited: those of one change here, the number of labels by the
//! kernel.

use greenroom_kernel::entry::Metadata;

use crate::values::error::MetadataError;

/// The maximum number of bytes of a title.
pub(crate) const TITLE_BYTES_MAX: usize = 512;
/// The maximum number of bytes of a label's name.
pub(crate) const LABEL_NAME_BYTES_MAX: usize = 64;
/// The maximum number of bytes of a label's value.
pub(crate) const LABEL_VALUE_BYTES_MAX: usize = 256;

/// Checks one change by itself.
pub(crate) fn check(metadata: &Metadata) -> Result<(), MetadataError> {
    match metadata {
        Metadata::Title { title: None } => Ok(()),
        Metadata::Title { title: Some(title) } => check_text("title", title, TITLE_BYTES_MAX),
        Metadata::Label { name, value } => {
            check_text("label's name", name, LABEL_NAME_BYTES_MAX)?;
            match value {
                Some(value) if !value.is_empty() => check_text("label's value", value, LABEL_VALUE_BYTES_MAX),
                Some(_) | None => Ok(()),
            }
        }
    }
}

fn check_text(what: &'static str, text: &str, bytes_max: usize) -> Result<(), MetadataError> {
    if text.trim().is_empty() {
        return Err(MetadataError::Empty { what });
    }
    if text.len() > bytes_max {
        return Err(MetadataError::TooLong { what, bytes: text.len(), bytes_max });
    }
    // Emoji and some scripts use joiners, and a soft hyphen does not change the order of text.
    let is_wanted = |c: &char| !matches!(c, '\u{200c}' | '\u{200d}' | '\u{ad}' | '\u{e0020}'..='\u{e007f}');
    if text.chars().filter(is_wanted).any(greenroom_kernel::text::is_unprintable) {
        return Err(MetadataError::Unprintable { what });
    }
    Ok(())
}
