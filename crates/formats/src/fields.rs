//! Reads the fields of JSON values that another program wrote.
//!
//! Invariants: a field that is missing, or of another type, is empty, false or zero, and never an error.

use greenroom_kernel::message::Image;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// Returns a text field.
pub(crate) fn str_of<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

/// Returns a text field; empty if it has none.
pub(crate) fn text(value: &Value, field: &str) -> String {
    str_of(value, field).unwrap_or_default().to_owned()
}

/// Returns a text field that has text.
pub(crate) fn filled<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    str_of(value, field).filter(|text| !text.trim().is_empty())
}

/// Whether a field is `true`.
pub(crate) fn flag(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the items of a field that is a list.
pub(crate) fn items<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Returns a field that counts tokens.
pub(crate) fn count(value: &Value, field: &str) -> u64 {
    value.get(field).map_or(0, tokens)
}

/// Reads a count of tokens, which JavaScript may have written as a float. Anything else is 0.
pub(crate) fn tokens(value: &Value) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is not a count saturates, for want of a better value"
    )]
    let whole = |float: f64| float as u64;
    value.as_u64().or_else(|| value.as_f64().map(whole)).unwrap_or(0)
}

/// Reads an image from a URL that contains it: `data:image/png;base64,…`. `None` for other URLs.
pub(crate) fn image_of_url(url: &str) -> Option<Image> {
    let (media_type, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    Image::from_base64(media_type, data).ok()
}

/// Whether a text consists of sections of these tags only: `<tag>…</tag>`.
pub(crate) fn is_only_sections(text: &str, tags: &[&str]) -> bool {
    let mut rest = text.trim();
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let after = tags.iter().find_map(|tag| {
            let section = rest.strip_prefix('<')?.strip_prefix(tag)?.strip_prefix('>')?;
            Some(section.split_once(&format!("</{tag}>"))?.1)
        });
        let Some(after) = after else { return false };
        rest = after.trim_start();
    }
    true
}
