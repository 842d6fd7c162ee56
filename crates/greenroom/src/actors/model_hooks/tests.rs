//! Permitted and refused changes of a request by hooks.

use std::sync::Arc;

use greenroom_kernel::{AssistantMessage, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec};
use greenroom_provider::{ModelSettings, Purpose, Request, ToolChoice};

use super::{with_messages, with_settings};

fn call(id: &str, name: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() })
}

fn answer(content: Vec<Part>) -> Arc<Message> {
    Arc::new(Message::Assistant(AssistantMessage::new(content, "p", "m", StopReason::Stop)))
}

fn result(call_id: &str, text: &str) -> Arc<Message> {
    let call = ToolCall { id: call_id.into(), name: "look".into(), arguments: "{}".into() };
    Arc::new(Message::ToolResult(ToolResult::synthetic(&call, greenroom_kernel::ToolStatus::Ok, text)))
}

fn user(text: &str) -> Arc<Message> {
    Arc::new(Message::user(text))
}

fn request() -> Request {
    let look = ToolSpec {
        name: "look".into(),
        description: String::new(),
        parameters: serde_json::json!({ "type": "object" }),
    };
    Request {
        model: "m".into(),
        system: None,
        messages: vec![
            user("my number is 5"),
            answer(vec![call("a", "look", r#"{"at":"5"}"#), call("b", "look", "{}")]),
            result("a", "5"),
            result("b", "6"),
        ]
        .into(),
        tools: Arc::from([look]),
        settings: ModelSettings::new().temperature(0.5).output_tokens_max(1_000),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".into(),
    }
}

#[test]
fn texts_may_be_others_where_all_else_is_the_same() {
    let before = Box::new(request());
    let texts = vec![
        user("my number is [number]"),
        answer(vec![call("a", "look", r#"{"at":"[number]"}"#), call("b", "look", "{}")]),
        result("a", "[number]"),
        result("b", "6"),
    ];
    let changed = with_messages(before.clone(), texts.clone()).expect("only texts changed");
    assert_eq!(changed.messages[..], texts);
    let same = with_messages(before.clone(), before.messages.to_vec()).expect("nothing changed");
    assert_eq!(same.messages, before.messages);
}

#[test]
fn nothing_may_be_moved_added_left_out_or_turned_into_something_else() {
    let before = Box::new(request());
    let of = |change: &dyn Fn(&mut Vec<Arc<Message>>)| {
        let mut messages = before.messages.to_vec();
        change(&mut messages);
        with_messages(before.clone(), messages).err()
    };
    let at = |place: usize| {
        Some(format!(
            "a before_model hook changed more than the text of message {place}: its kind, its calls, or what it answers"
        ))
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<Arc<Message>>);
    let cases: [(Change<'_>, Option<String>); 9] = [
        (&|it| drop(it.pop()), Some("a before_model hook returned 3 messages instead of 4".into())),
        (&|it| it.push(user("more")), Some("a before_model hook returned 5 messages instead of 4".into())),
        (&|it| it[0] = result("a", "5"), at(0)),
        (&|it| it[0] = Arc::new(Message::User(Vec::new())), at(0)),
        (&|it| it.swap(2, 3), at(2)),
        (&|it| it[1] = answer(vec![call("a", "look", "{}")]), at(1)),
        (&|it| it[1] = answer(vec![call("b", "look", "{}"), call("a", "look", "{}")]), at(1)),
        (&|it| it[1] = answer(vec![call("a", "other", "{}"), call("b", "look", "{}")]), at(1)),
        (&|it| it[3] = user("6"), at(3)),
    ];
    for (number, (change, refusal)) in cases.iter().enumerate() {
        assert_eq!(of(*change), *refusal, "{number}");
    }
}

#[test]
fn settings_are_merged_checked_and_never_raise_the_output_limit() {
    let with = |settings: ModelSettings| with_settings(Box::new(request()), settings);
    let lower = with(ModelSettings::new().output_tokens_max(10).seed(7)).expect("good settings").settings;
    assert_eq!((lower.temperature, lower.seed, lower.output_tokens_max), (Some(0.5), Some(7), Some(10)));
    let higher = with(ModelSettings::new().output_tokens_max(9_000)).expect("good settings").settings;
    assert_eq!(higher.output_tokens_max, Some(1_000));
    let hot = with(ModelSettings::new().temperature(f64::NAN)).expect_err("no temperature");
    assert!(hot.starts_with("a before_model hook returned settings that no model accepts: "), "{hot}");
    assert!(with(ModelSettings::new().tool_choice(ToolChoice::Tool("look".into()))).is_ok());
    let absent = with(ModelSettings::new().tool_choice(ToolChoice::Tool("dig".into()))).expect_err("no tool");
    assert_eq!(absent, "a before_model hook chose an unknown tool: \"dig\"");
}
