//! The forms of a value in other texts: as it is, in a URL, in JSON, in base64.
//!
//! Invariants: each form is valid UTF-8 with at least [`VALUE_BYTES_MIN`] bytes; a form in base64 is found
//! wherever the value begins in the encoded bytes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::VALUE_BYTES_MIN;

/// The shortest line of a value with several lines that is a form by itself, in bytes.
const LINE_BYTES_MIN: usize = 16;

/// Returns the forms of a value.
pub(super) fn of(value: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![value.to_owned()];
    for kept in KEPT_IN_URLS {
        forms.extend([true, false].map(|is_upper| in_url(value, kept, is_upper)));
    }
    // In the body of a form, a blank is a plus sign.
    let blanks: Vec<String> = forms.iter().filter(|form| form.contains("%20")).cloned().collect();
    forms.extend(blanks.iter().map(|form| form.replace("%20", "+")));
    let once = in_json(value);
    for is_escaped in ESCAPED_IN_JSON {
        for is_upper in [true, false] {
            let form = escaped_in_json(&once, is_escaped, is_upper);
            forms.extend([form.replace('/', "\\/"), form]);
        }
    }
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
    let mut seen = BTreeSet::new();
    forms.retain(|form| form.len() >= VALUE_BYTES_MIN && seen.insert(form.clone()));
    forms.into_iter().map(String::into_bytes).collect()
}

/// What encoders leave as it is in a URL, beside letters, digits and `-._~`: nothing (RFC 3986), Python's `quote`,
/// JavaScript's `encodeURIComponent` and `encodeURI`, and forms.
const KEPT_IN_URLS: [&[u8]; 5] = [b"", b"/", b"!'()*", b";,/?:@&=+$#!'()*", b"*"];

fn in_url(value: &str, kept: &[u8], is_upper: bool) -> String {
    let mut form = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => form.push(byte.into()),
            _ if kept.contains(&byte) => form.push(byte.into()),
            _ if is_upper => _ = write!(form, "%{byte:02X}"),
            _ => _ = write!(form, "%{byte:02x}"),
        }
    }
    form
}

/// Whether an encoder of JSON writes a character as `\u0026`, although it need not.
type IsEscaped = fn(char) -> bool;

/// The characters that encoders of JSON also escape: none; those that are special in HTML (Go), also in attributes; those
/// that are not ASCII (Python, PHP); and both.
const ESCAPED_IN_JSON: [IsEscaped; 6] = [
    |_| false,
    |c| matches!(c, '&' | '<' | '>'),
    |c| matches!(c, '&' | '<' | '>' | '\''),
    |c| !c.is_ascii(),
    |c| !c.is_ascii() || matches!(c, '&' | '<' | '>'),
    |c| !c.is_ascii() || matches!(c, '&' | '<' | '>' | '\''),
];

fn escaped_in_json(json: &str, is_escaped: IsEscaped, is_upper: bool) -> String {
    let mut form = String::new();
    for c in json.chars() {
        match c {
            c if !is_escaped(c) => form.push(c),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| push_unit(&mut form, *unit, is_upper)),
        }
    }
    form
}

fn push_unit(form: &mut String, unit: u16, is_upper: bool) {
    let _ = match is_upper {
        true => write!(form, "\\u{unit:04X}"),
        false => write!(form, "\\u{unit:04x}"),
    };
}

/// Returns the text as it stands between the quotes of a JSON string.
fn in_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
