//! Lines that JavaScript writes, and lines that cannot be read.

use serde_json::json;

use super::{check_limits, values};
use crate::{FormatError, LINE_BYTES_MAX};

#[test]
fn half_a_surrogate_pair_is_read_as_a_replacement_character() {
    for (line, expected) in [
        (r#""\ud83d\ude00""#, json!("😀")),
        (r#""a\ud83d""#, json!("a\u{fffd}")),
        (r#""\ude00b""#, json!("\u{fffd}b")),
        (r#""\ud83d\ud83d\ude00""#, json!("\u{fffd}😀")),
        (r#""\\ud83d \ud83d\n""#, json!("\\ud83d \u{fffd}\n")),
        (r#"{"é\ud83d":"\u00e9"}"#, json!({"é\u{fffd}": "é"})),
    ] {
        assert_eq!(values(line).collect::<Vec<_>>(), [Some(expected)], "{line}");
    }
}

#[test]
fn what_cannot_be_read_is_counted() {
    let deep = "[".repeat(100_000);
    let text = format!("\u{feff}1\n\n  \n{{\"a\": \n{deep}\n\"\\u12\"\n\"\\ud83d\\\n\"\\\n2\r\n");
    let read: Vec<_> = values(&text).collect();
    assert_eq!(read, [Some(json!(1)), None, None, None, None, None, Some(json!(2))]);
}

#[test]
fn limits_are_typed() {
    assert_eq!(check_limits(" \n\n"), Err(FormatError::Empty));
    let long = format!("1\n{}\n", "x".repeat(LINE_BYTES_MAX + 1));
    assert_eq!(check_limits(&long), Err(FormatError::LineTooLong { line: 2, bytes: LINE_BYTES_MAX + 1 }));
    let large = "x\n".repeat(33 * 1024 * 1024);
    assert_eq!(check_limits(&large), Err(FormatError::FileTooLarge { bytes: large.len() }));
}
