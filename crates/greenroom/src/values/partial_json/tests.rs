//! Every prefix of a text gives a part of the whole, and nothing is withdrawn.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::{Value, json};

use super::read;

/// Whether `part` could have been known of `whole` earlier.
fn is_part(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::String(part), Value::String(whole)) => whole.starts_with(part),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() <= whole.len() && part.iter().zip(whole).all(|(part, whole)| is_part(part, whole))
        }
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| is_part(part, whole)))
        }
        _ => part == whole,
    }
}

#[test]
fn every_beginning_is_a_part_of_the_whole() {
    let wholes = [
        json!({ "name": "Oslo \"the\" city\n\\", "rain": 12.5, "days": [1, 22, 333], "more": { "a": null, "b": [true, {}] } }),
        json!(["ä€😀", "", { "k": "v", "list": [[], [[]]] }, false]),
        json!("only a text with 😀 and \\ and \u{7}"),
        json!({ "a": "x", "b": {} }),
    ];
    let mut read_of_beginnings = 0;
    for whole in &wholes {
        let escaped = whole.to_string().replace('😀', "\\ud83d\\ude00").replace('ä', "\\u00e4");
        for text in [whole.to_string(), serde_json::to_string_pretty(whole).unwrap(), escaped] {
            let mut before: Option<Value> = None;
            for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                let Some(now) = read(&text[..end]) else {
                    assert!(before.is_none(), "taken back at {end} of {text}");
                    continue;
                };
                assert!(is_part(&now, whole), "{} gives {now}", &text[..end]);
                assert!(before.is_none_or(|before| is_part(&before, &now)), "taken back at {end} of {text}");
                read_of_beginnings += 1;
                before = Some(now);
            }
            assert_eq!(before.as_ref(), Some(whole), "{text}");
        }
    }
    assert!(read_of_beginnings > 700, "{read_of_beginnings}");
}

#[test]
fn a_text_grows_and_a_number_comes_when_it_is_over() {
    for (text, value) in [
        ("", None),
        ("  ", None),
        ("12", Some(json!(12))),
        ("{", Some(json!({}))),
        (r#"{"na"#, Some(json!({}))),
        (r#"{"name":"#, Some(json!({}))),
        (r#"{"name":"Os"#, Some(json!({ "name": "Os" }))),
        (r#"{"name":"Os\"#, Some(json!({ "name": "Os" }))),
        (r#"{"name":"Os\u00e"#, Some(json!({ "name": "Os" }))),
        (r#"{"n":12"#, Some(json!({}))),
        (r#"{"n":12,"#, Some(json!({ "n": 12 }))),
        (r#"{"n":12}"#, Some(json!({ "n": 12 }))),
        (r#"[1, 2"#, Some(json!([1]))),
        ("]", None),
    ] {
        assert_eq!(read(text), value, "{text}");
    }
}
