//! The items of an answer: the readable text in them, and the attachment that keeps the rest.
//!
//! An attachment is the item as it came, with each readable string replaced by its length in bytes: it holds no text
//! twice, and several pieces of text find their places again.
//!
//! Invariants: filling an attachment with the text that was taken out of it gives the item as it came; and an item
//! that was kept whole is never taken for an attachment, because it has texts where an attachment has numbers.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::dialect::fields::Fields;

/// The kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Reasoning,
    Call,
    /// An item of a tool that the provider runs itself, a compaction, or a kind that this version does not know.
    Other,
}

impl Kind {
    /// Returns the kind of an item with these fields.
    pub(super) fn of(fields: &Fields) -> Self {
        match fields.text_ref("type").as_deref() {
            Some("message") => Self::Message,
            Some("reasoning") => Self::Reasoning,
            Some("function_call") => Self::Call,
            Some(_) | None => Self::Other,
        }
    }

    /// Returns the fields that hold readable text: the text itself, or a list of parts with texts.
    fn readable(self) -> &'static [&'static str] {
        match self {
            Self::Message => &["content"],
            Self::Reasoning => &["summary", "content"],
            Self::Call => &["arguments"],
            Self::Other => &[],
        }
    }

    /// Returns what stands between two pieces of readable text.
    pub(super) fn separator(self) -> &'static str {
        match self {
            Self::Reasoning => "\n\n",
            Self::Message | Self::Call | Self::Other => "",
        }
    }
}

/// The fields of a part that hold its text.
const TEXT_FIELDS: [&str; 2] = ["text", "refusal"];

/// The texts of a part.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Texts<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
}

/// Takes the readable text out of an item, which becomes an attachment.
pub(super) fn take_text(kind: Kind, fields: &mut Fields) -> String {
    let mut text = String::new();
    let mut take = |piece: &str| {
        if !piece.is_empty() && !text.is_empty() {
            text.push_str(kind.separator());
        }
        text.push_str(piece);
        Some(raw(&piece.len()))
    };
    for_each_text(kind, fields, |value| take(&serde_json::from_str::<String>(value.get()).ok()?));
    text
}

/// Fills an attachment with its text. Returns `None` if it is no attachment, or one of another text.
pub(super) fn filled(kind: Kind, mut fields: Fields, text: &str) -> Option<Fields> {
    let (mut rest, mut is_exact, mut pieces) = (text, true, 0);
    for_each_text(kind, &mut fields, |value| {
        let length: usize = serde_json::from_str(value.get()).ok()?;
        pieces += 1;
        let is_first = length == 0 || rest.len() == text.len();
        let after = if is_first { Some(rest) } else { rest.strip_prefix(kind.separator()) };
        let split = after.and_then(|rest| rest.split_at_checked(length));
        is_exact &= split.is_some();
        let (piece, left) = split?;
        rest = left;
        Some(raw(piece))
    });
    (is_exact && pieces > 0 && rest.is_empty()).then_some(fields)
}

/// Whether an item is an attachment, as opposed to one that was kept whole.
pub(super) fn is_attachment(kind: Kind, fields: &Fields) -> bool {
    let is_length = |value: &RawValue| serde_json::from_str::<usize>(value.get()).is_ok();
    let has_length = |part: &&RawValue| {
        let part: Texts<'_> = serde_json::from_str(part.get()).unwrap_or_default();
        part.text.is_some_and(is_length) || part.refusal.is_some_and(is_length)
    };
    kind.readable().iter().filter_map(|name| fields.value(name)).any(|value| {
        match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            Ok(parts) => parts.iter().any(has_length),
            Err(_) => is_length(value),
        }
    })
}

/// Whether a server that stores nothing can use a reasoning item: its encrypted content or its own text is there. It
/// would look up any other item by its id, and refuse the request because it is not found.
pub(super) fn has_reasoning(fields: &Fields) -> bool {
    let has_list = fields.raw("content").is_some_and(|content| content.starts_with('[') && content != "[]");
    has_list || fields.text_ref("encrypted_content").is_some_and(|content| !content.is_empty())
}

/// Replaces the values that hold readable text, in their order. A value for which there is no other stays.
fn for_each_text(kind: Kind, fields: &mut Fields, mut other: impl FnMut(&RawValue) -> Option<Box<RawValue>>) {
    for name in kind.readable() {
        let Some(value) = fields.value(name) else { continue };
        let new = match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
            Ok(parts) => {
                Some(raw(&parts.into_iter().map(|part| with_text(part, &mut other)).collect::<Vec<_>>()))
            }
            Err(_) => other(value),
        };
        if let Some(new) = new {
            fields.set(name, new);
        }
    }
}

fn with_text(part: &RawValue, other: &mut impl FnMut(&RawValue) -> Option<Box<RawValue>>) -> Box<RawValue> {
    let Ok(mut fields) = serde_json::from_str::<Fields>(part.get()) else { return part.to_owned() };
    for name in TEXT_FIELDS {
        if let Some(new) = fields.value(name).and_then(&mut *other) {
            fields.set(name, new);
        }
    }
    fields.into_raw()
}

/// Returns a text, a number or a list as JSON.
pub(super) fn raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    to_raw_value(value).expect("texts, numbers and lists of values are JSON")
}
