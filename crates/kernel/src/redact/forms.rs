//! The forms of a value in other texts: as it is, in a URL, in JSON, in base64.
//!
//! Invariants: each form is valid UTF-8 with at least [`VALUE_BYTES_MIN`] bytes; a form in base64 is found
//! wherever the value begins in the encoded bytes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::VALUE_BYTES_MIN;

/// The shortest line of a value with several lines that is a form by itself, in bytes.
const LINE_BYTES_MIN: usize = 16;

/// Returns the forms of a value.
pub(super) fn of(value: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_owned()];
    forms.extend([true, false].map(|is_upper| in_url(value, is_upper)));
    let once = in_json(value);
    forms.extend([in_json(&once), once]);
    for offset in 0..3 {
        let bytes = [&[0_u8; 3][..offset], value.as_bytes()].concat();
        // The first characters also encode what comes before, and the last one what follows.
        let (skipped, whole) = ([0, 2, 3][offset], bytes.len() * 8 / 6);
        let of = |text: String| text.get(skipped..whole).unwrap_or_default().to_owned();
        forms.extend([of(STANDARD_NO_PAD.encode(&bytes)), of(URL_SAFE_NO_PAD.encode(&bytes))]);
    }
    // Tools show lines one by one, with numbers between them. The first and last line of a key are the same for all.
    if value.contains('\n') {
        let lines = value.lines().map(str::trim).filter(|line| !line.starts_with("-----"));
        forms.extend(lines.filter(|line| line.len() >= LINE_BYTES_MIN).map(str::to_owned));
    }
    forms.retain(|form| form.len() >= VALUE_BYTES_MIN);
    forms.into_iter().map(String::into_bytes).collect()
}

fn in_url(value: &str, is_upper: bool) -> String {
    let mut form = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => form.push(byte.into()),
            _ if is_upper => _ = write!(form, "%{byte:02X}"),
            _ => _ = write!(form, "%{byte:02x}"),
        }
    }
    form
}

/// Returns the text as it stands between the quotes of a JSON string.
fn in_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
