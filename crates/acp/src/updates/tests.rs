//! Tests of `updates`.

use agent_client_protocol::v1::schema::SessionUpdate;
use greenroom::{Event, EventKind};
use serde_json::{Value, json};

use super::{Abilities, Updates, append};

const ABLE: Abilities = Abilities { notices: true, compactions: true, forms: true };

fn updates(abilities: Abilities) -> Updates {
    Updates::new("/project".into(), abilities)
}

/// The updates of these events, in JSON.
fn told(updates: &mut Updates, kinds: &[Value]) -> Vec<Value> {
    let events = kinds.iter().map(|kind| {
        let mut event = json!({ "session_id": "s", "seq": 1, "at_ms": 0 });
        event.as_object_mut().expect("an object").extend(kind.as_object().expect("an object").clone());
        let event: Event = serde_json::from_value(event).expect("an event");
        assert!(!matches!(event.kind, EventKind::Unknown { .. }), "{kind}");
        event
    });
    let updates: Vec<SessionUpdate> =
        events.collect::<Vec<_>>().iter().flat_map(|event| updates.event(event)).collect();
    updates.iter().map(|update| serde_json::to_value(update).expect("JSON")).collect()
}

fn kinds(updates: &[Value]) -> Vec<&str> {
    updates.iter().map(|update| update["sessionUpdate"].as_str().expect("a kind")).collect()
}

fn message(role: &str, text: &str) -> Value {
    json!({ "type": "message_end", "entry_id": 1, "message": { "role": role, "text": text } })
}

fn delta(text: &str) -> Value {
    json!({ "type": "message_delta", "delta": { "kind": "text", "text": text } })
}

#[test]
fn an_answer_is_sent_once_streamed_or_whole() {
    let start = json!({ "type": "message_start" });
    let rows: [(Vec<Value>, &[&str]); 3] = [
        (vec![start.clone(), delta("a"), delta("b"), message("assistant", "ab")], &["a", "b"]),
        (vec![start.clone(), message("assistant", "ab")], &["ab"]),
        (vec![start.clone(), message("assistant", "")], &[]),
    ];
    for (events, expected) in rows {
        let found = told(&mut updates(ABLE), &events);
        let texts: Vec<&str> =
            found.iter().map(|update| update["content"]["text"].as_str().expect("a text")).collect();
        assert_eq!(texts, expected, "{events:?}");
    }
    // Each message has an id of its own.
    let found =
        told(&mut updates(ABLE), &[start.clone(), delta("a"), message("assistant", "a"), start, delta("b")]);
    assert_ne!(found[0]["messageId"], found[1]["messageId"]);
}

/// What was missed is sent once the answer is complete; pieces that are there together are sent as one.
#[test]
fn no_piece_of_an_answer_is_lost_in_a_gap() {
    let mut updates = updates(ABLE);
    let start = json!({ "type": "message_start" });
    let mut found = told(&mut updates, &[start.clone(), delta("one ")]);
    updates.gap();
    found.extend(told(&mut updates, &[delta("three "), message("assistant", "one two three ")]));
    let text = |found: &[Value]| {
        found.iter().map(|update| update["content"]["text"].as_str().expect("a text")).collect::<String>()
    };
    assert_eq!(text(&found), "one two three ");
    // The next answer is streamed again.
    assert_eq!(text(&told(&mut updates, &[start, delta("a")])), "a");
    let piece = |text: &str| SessionUpdate::AgentMessageChunk(updates.chunk(text));
    let thought = SessionUpdate::AgentThoughtChunk(updates.chunk("c"));
    let mut joined = vec![piece("a")];
    append(&mut joined, vec![piece("b"), thought.clone(), thought]);
    let joined = serde_json::to_value(&joined).expect("JSON");
    let texts: Vec<&Value> =
        joined.as_array().expect("a list").iter().map(|update| &update["content"]["text"]).collect();
    assert_eq!(texts, [&json!("ab"), &json!("cc")]);
}

#[test]
fn a_prompt_of_this_editor_is_not_sent_back() {
    let mut updates = updates(ABLE);
    updates.prompts = 1;
    assert_eq!(told(&mut updates, &[message("user", "mine")]), Vec::<Value>::new());
    let found = told(&mut updates, &[message("user", "of another terminal")]);
    assert_eq!(kinds(&found), ["user_message_chunk"]);
}

#[test]
fn each_announced_call_ends() {
    let mut updates = updates(ABLE);
    let call = |id: &str| json!({ "id": id, "name": "bash", "arguments": "{}" });
    let mut answer = message("assistant", "");
    answer["message"]["tool_calls"] = json!([call("a"), call("b")]);
    let start = json!({ "type": "tool_start", "call_id": "a", "name": "bash", "arguments": "{}" });
    let mut result = message("tool", "done");
    result["message"]["call_id"] = json!("a");
    result["message"]["tool_name"] = json!("bash");
    result["message"]["status"] = json!("ok");
    let found = told(&mut updates, &[answer, start, result]);
    assert_eq!(kinds(&found), ["tool_call", "tool_call", "tool_call_update", "tool_call_update"]);
    assert_eq!(found[3]["status"], "completed");
    // The other one never began.
    let rest = updates.close();
    let rest = serde_json::to_value(&rest).expect("JSON");
    assert_eq!((&rest[0]["toolCallId"], &rest[0]["status"]), (&json!("b"), &json!("failed")));
    assert_eq!(updates.close().len(), 0);
}

#[test]
fn the_newest_progress_of_a_call_is_sent_now_and_then() {
    let mut updates = updates(ABLE);
    let start = |id: &str, name: &str| json!({ "type": "tool_start", "call_id": id, "name": name, "arguments": "{}" });
    told(&mut updates, &[start("a", "bash"), start("b", "edit")]);
    let line = |id: &str, number: u64| json!({ "type": "tool_update", "call_id": id, "name": "", "line": format!("line {number}"), "at_ms": 5_000 + number });
    // A line each millisecond, for a second.
    let events: Vec<Value> = (0..1_000).map(|number| line("a", number)).collect();
    let found = told(&mut updates, &events);
    assert_eq!(found.len(), 4, "{found:?}");
    let last = found[3].to_string();
    assert!(last.contains("line 750") && last.contains("line 731") && !last.contains("line 730"), "{last}");
    // Diffs are shown otherwise, and nobody knows of a call that has ended.
    assert_eq!(told(&mut updates, &[line("b", 9_000), line("c", 9_000)]), Vec::<Value>::new());
}

#[test]
fn notices_and_compactions_have_the_form_that_the_client_knows() {
    let warning = json!({ "type": "warning", "message": "careful" });
    let began = json!({
        "type": "compaction_start", "entry_id": 7, "trigger": "threshold", "tokens_before": 9000, "messages_before": 12,
    });
    for (abilities, expected) in [
        (ABLE, ["notice", "compaction_update"]),
        (Abilities::default(), ["agent_message_chunk", "tool_call"]),
    ] {
        let found = told(&mut updates(abilities), &[warning.clone(), began.clone()]);
        assert_eq!(kinds(&found), expected);
        assert!(found[0].to_string().contains("careful"));
    }
}
