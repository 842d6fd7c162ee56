//! The requests that the simulated Gemini refuses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;

const NEW: &str = "/v1/models/gemini-3-flash:generateContent";
const OLD: &str = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";

fn broken(path: &str, body: &Value) -> Vec<Rule> {
    let parsed = parse(path, FromHeaders { session: None, purpose: None }, body.to_string().as_bytes());
    parsed.broken.into_iter().map(|(rule, _)| rule).collect()
}

/// A conversation with one call and its result.
fn conversation() -> Value {
    let call = json!({ "id": "f1", "name": "read", "args": { "a": 1 } });
    let signed = call_signature(&call);
    json!({ "contents": [
        { "role": "user", "parts": [{ "text": "go" }] },
        { "role": "model", "parts": [
            { "text": "hm", "thought": true },
            { "text": "so" },
            { "text": "", "thoughtSignature": signature("so") },
            { "functionCall": call, "thoughtSignature": signed },
        ] },
        { "role": "user", "parts": [{ "functionResponse": { "id": "f1", "name": "read", "response": { "output": "x" } } }] },
    ] })
}

/// Checks which rules the conversation breaks with this value at this place.
fn check(path: &str, place: &str, value: Value, expected: &[Rule]) {
    let mut body = conversation();
    let (parent, field) = place.rsplit_once('/').unwrap();
    let parent = body.pointer_mut(parent).unwrap_or_else(|| panic!("{place}"));
    match (parent, value) {
        (Value::Array(items), Value::Null) => drop(items.remove(field.parse().unwrap())),
        (Value::Array(items), value) if field == "-" => items.push(value),
        (Value::Array(items), value) => items[field.parse::<usize>().unwrap()] = value,
        (Value::Object(fields), Value::Null) => drop(fields.shift_remove(field).unwrap()),
        (Value::Object(fields), value) => drop(fields.insert(field.to_owned(), value)),
        (other, _) => panic!("{other}"),
    }
    assert_eq!(broken(path, &body), expected, "{place}");
}

#[test]
fn what_the_api_refuses() {
    assert_eq!(broken(NEW, &conversation()), []);
    assert_eq!(broken(OLD, &conversation()), []);
    let (call, text) = ("/contents/1/parts/3", "/contents/1/parts/2");
    let result = "/contents/2/parts/0/functionResponse";
    let at = |start: &str, rest: &str| format!("{start}/{rest}");
    // Signatures.
    check(NEW, &at(call, "thoughtSignature"), Value::Null, &[Rule::AlteredBlock]);
    check(OLD, &at(call, "thoughtSignature"), Value::Null, &[]);
    check(NEW, &at(call, "thoughtSignature"), json!(ANY_SIGNATURE), &[]);
    check(NEW, &at(call, "thoughtSignature"), json!("SimX"), &[Rule::AlteredBlock]);
    check(NEW, &at(call, "functionCall/args"), json!({ "a": 2 }), &[Rule::AlteredBlock]);
    check(NEW, &at(text, "thoughtSignature"), json!(ANY_SIGNATURE), &[Rule::AlteredBlock]);
    check(OLD, "/contents/1/parts/1/text", json!("other"), &[Rule::AlteredBlock]);
    check(OLD, "/contents/1/parts/1/thoughtSignature", json!(signature("so")), &[Rule::AlteredBlock]);
    // Calls of earlier turns need no signature.
    let mut earlier = conversation();
    earlier.pointer_mut(call).unwrap().as_object_mut().unwrap().shift_remove("thoughtSignature");
    earlier["contents"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "role": "user", "parts": [{ "text": "next" }] }));
    assert_eq!(broken(NEW, &earlier), []);
    // Calls and results.
    check(NEW, &at(result, "id"), Value::Null, &[Rule::OrphanResult]);
    check(NEW, &at(result, "name"), json!("list"), &[Rule::OrphanResult]);
    check(NEW, &at(result, "response"), json!("x"), &[Rule::UnknownContent]);
    check(NEW, "/contents/2/parts/-", json!({ "text": "and" }), &[Rule::MisplacedResult]);
    check(NEW, "/contents/1/parts/3", Value::Null, &[Rule::MisplacedResult, Rule::OrphanResult]);
    let picture = json!([{ "inlineData": { "mimeType": "image/png", "data": "AA==" } }]);
    check(NEW, &at(result, "parts"), picture.clone(), &[]);
    check(OLD, &at(result, "parts"), picture, &[Rule::UnknownContent]);
    // Forms.
    check(NEW, "/contents/0", Value::Null, &[Rule::NoUserMessage]);
    check(NEW, "/contents/0/role", json!("assistant"), &[Rule::NoUserMessage, Rule::UnknownRole]);
    check(NEW, "/contents/0/parts", json!([]), &[Rule::EmptyMessage]);
    check(NEW, "/contents/0/parts/0", json!({ "video": 1 }), &[Rule::UnknownContent]);
    check(NEW, "/contents/1/parts/-", json!({ "hologram": 1 }), &[Rule::UnknownContent]);
    check(NEW, "/messages", json!([]), &[Rule::Setting]);
    check(NEW, "/generationConfig", json!({ "responseJsonSchema": {} }), &[Rule::Setting]);
    let both = json!({ "thinkingConfig": { "thinkingLevel": "low", "thinkingBudget": 1 } });
    check(NEW, "/generationConfig", both, &[Rule::Setting]);
    check(NEW, "/toolConfig", json!({ "functionCallingConfig": { "mode": "any" } }), &[Rule::Setting]);
}
