//! The messages at the end of a host.

use serde_json::{Value, json};

use super::Unanswered;

/// What is told after these messages: to the host, and from it (`true`).
fn check(messages: &[(bool, Value)], told: &[Value]) {
    let mut unanswered = Unanswered::default();
    for (is_heard, message) in messages {
        let line = message.to_string();
        if *is_heard { unanswered.hears(line.as_bytes()) } else { unanswered.asks(line.as_bytes()) }
    }
    // The texts are for people.
    let without_text = |line: String| {
        fn strip(value: &mut Value) {
            if let Some(object) = value.as_object_mut() {
                object.remove("message");
                object.values_mut().for_each(strip);
            }
            value.as_array_mut().into_iter().flatten().for_each(strip);
        }
        let mut value: Value = serde_json::from_str(&line).expect("what is told is JSON");
        strip(&mut value);
        value
    };
    let lines: Vec<Value> = unanswered.host_ended().into_iter().map(without_text).collect();
    assert_eq!(lines, told, "{messages:?}");
    assert!(unanswered.host_ended().is_empty(), "it is told once");
}

fn asks(id: &Value, method: &str) -> (bool, Value) {
    (false, json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "session_id": "a" } }))
}

fn answers(id: &Value, result: &Value) -> (bool, Value) {
    (true, json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

fn closed(id: &Value) -> Value {
    let data = json!({ "kind": "closed", "class": "other", "retryable": false });
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32000, "data": data } })
}

#[test]
fn what_is_open_is_told_once_and_nothing_else() {
    let one = || asks(&json!(1), "session/prompt");
    check(&[], &[]);
    check(&[one()], &[closed(&json!(1))]);
    check(&[asks(&json!("x"), "session/list"), one()], &[closed(&json!("x")), closed(&json!(1))]);
    check(&[asks(&json!("x"), "session/list"), answers(&json!("x"), &json!({}))], &[]);
    check(&[asks(&Value::Null, "no/such")], &[closed(&Value::Null)]);
    // A notification has no answer.
    check(&[(false, json!({ "jsonrpc": "2.0", "method": "session/prompt" }))], &[]);
    check(&[(false, json!("nonsense")), (true, json!(7))], &[]);
    // Work that was taken on has an outcome.
    let taken = answers(&json!(1), &json!({ "accepted": true, "entry_id": 4 }));
    let error = json!({ "kind": "interrupted", "class": "other", "retryable": false });
    let params = json!({ "error": error, "session_id": "a", "entry_id": 4, "request_id": 1 });
    let cut_off = json!({ "jsonrpc": "2.0", "method": "session/prompt_result", "params": params });
    check(&[one(), taken.clone()], std::slice::from_ref(&cut_off));
    let of = |method: &str, id: u64| {
        (true, json!({ "jsonrpc": "2.0", "method": method, "params": { "request_id": id } }))
    };
    check(&[one(), taken.clone(), of("session/prompt_result", 1)], &[]);
    check(&[one(), taken.clone(), of("session/prompt_result", 2), of("event", 1)], &[cut_off]);
    check(&[one(), (true, json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32000 } }))], &[]);
    // A batch is answered by one array: what is left of it.
    let batch = |ids: &[u64]| {
        let asks = |id: &u64| json!({ "jsonrpc": "2.0", "id": id, "method": "session/list" });
        (false, ids.iter().map(asks).collect())
    };
    check(&[batch(&[1, 2])], &[json!([closed(&json!(1)), closed(&json!(2))])]);
    let all = json!([{ "id": 1, "result": {} }, { "id": 2, "result": {} }]);
    check(&[batch(&[1, 2]), one(), (true, all)], &[closed(&json!(1))]);
}

#[test]
fn a_request_that_is_too_long_is_answered_where_its_host_ends() {
    let mut unanswered = Unanswered::default();
    unanswered.asks_too_much(format!(r#"{{"id":3,"method":"m","params":"{}"#, "x".repeat(9_000)).as_bytes());
    unanswered.asks_too_much(b"nonsense");
    unanswered.asks_too_much(br#"{"id":4,"method":"m","params":"x"#);
    unanswered.hears(br#"{"id":3,"error":{"code":-32600}}"#);
    let lines = unanswered.host_ended();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line: Value = serde_json::from_str(&lines[0]).expect("a line of JSON");
    assert_eq!((&line["id"], &line["error"]["data"]["kind"]), (&json!(4), &json!("closed")));
}
