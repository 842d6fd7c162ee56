//! The wire form of requests, as exact JSON.

use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus,
};
use serde_json::{Value, json};

use super::{WireStyle, WrittenTools, body, wire_call_id};
use crate::dialect::ids::sendable_tool_name;
use crate::dialect::{History, size_hint};
use crate::settings::ResendReasoning;
use crate::{OutputSchema, Purpose, Request};

const PLAIN: WireStyle<'static> = WireStyle {
    provider: "test",
    max_completion_tokens: false,
    output_tokens_max: None,
    resend_reasoning: ResendReasoning::Never,
    prompt_cache_key: false,
    stream: true,
};

fn request(messages: Vec<Message>) -> Request {
    Request {
        model: "m".to_owned(),
        system: None,
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: Arc::from([]),
        settings: crate::ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s1".to_owned(),
    }
}

fn wire(request: &Request, style: &WireStyle<'_>) -> Value {
    serde_json::from_str(&written(request, style)).expect("a request is JSON")
}

/// The body of a request as text.
fn written(request: &Request, style: &WireStyle<'_>) -> String {
    let pieces =
        body(request, style, &WrittenTools::default(), &mut History::default()).expect("it can be written");
    String::from_utf8(pieces.concat()).expect("JSON is text")
}

#[test]
fn tools_are_written_once_for_each_list() {
    let list = |name: &str| -> Arc<[ToolSpec]> {
        let (description, parameters) = ("reads".to_owned(), json!({ "type": "object" }));
        Arc::from([ToolSpec { name: name.to_owned(), description, parameters }])
    };
    let written = WrittenTools::default();
    let names = ["read", "write"].map(|name| {
        let tools = list(name);
        let [first, second] = [(); 2].map(|()| written.of(&tools).expect("JSON").expect("a list"));
        assert!(Arc::ptr_eq(&first, &second));
        let whole: Value = serde_json::from_str(first.get()).expect("JSON");
        whole[0]["function"]["name"].as_str().expect("a name").to_owned()
    });
    // The first list is gone, and no other one is taken for it.
    assert_eq!(names, ["read", "write"]);
    assert_eq!(written.0.lock().len(), 1);
    assert!(written.of(&Arc::from([])).expect("JSON").is_none());
}

#[test]
fn a_request_s_size_is_known_before_it_is_written() {
    let mut checked = 0;
    for (count, bytes) in [(1, 1), (1, 100_000), (20, 40), (400, 1_000)] {
        let text = || "some words. ".repeat(bytes / 12 + 1);
        let messages = (0..count).map(|number| match number % 3 {
            0 => Message::user(text()),
            1 => assistant(vec![Part::Text(text()), call("c1", "{\"path\":\"a\"}")]),
            _ => result("c1", vec![Block::Text(text())]),
        });
        let request = request(messages.collect());
        let written = written(&request, &PLAIN).len();
        let hint = request.messages.iter().map(|message| size_hint(message)).sum::<usize>();
        assert!(
            hint * 17 / 16 + 200 >= written && hint <= written * 5 / 4 + 512 * count,
            "{count} of {bytes}: {hint} for {written}"
        );
        checked += 1;
    }
    assert_eq!(checked, 4);
}

fn check_messages(messages: Vec<Message>, expected: &Value) {
    let found = wire(&request(messages), &PLAIN);
    assert_eq!(&found["messages"], expected, "{:#}", found["messages"]);
}

fn assistant(content: Vec<Part>) -> Message {
    Message::Assistant(AssistantMessage::new(content, "test", "m", StopReason::Stop))
}

fn call(id: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.to_owned(), name: "read".to_owned(), arguments: arguments.to_owned() })
}

fn result(id: &str, content: Vec<Block>) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.to_owned(),
        tool_name: "read".to_owned(),
        content,
        status: ToolStatus::Ok,
        touched: Vec::new(),
    })
}

fn text(text: &str) -> Block {
    Block::Text(text.to_owned())
}

fn image() -> Block {
    Block::Image(Image { media_type: "image/png".to_owned(), data: "QUJD".to_owned() })
}

#[test]
fn a_whole_request() {
    let mut request = request(vec![Message::user("hi")]);
    request.system = Some("be brief".to_owned());
    request.settings.output_tokens_max = Some(100);
    request.tools = Arc::from([ToolSpec {
        name: "read".to_owned(),
        description: "reads".to_owned(),
        parameters: json!({"type": "object"}),
    }]);
    request.output_schema =
        Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema: json!({"type": "string"}) }));
    let style = WireStyle { prompt_cache_key: true, ..PLAIN };
    let expected = concat!(
        r#"{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}],"#,
        r#""tools":[{"type":"function","function":{"name":"read","description":"reads","parameters":{"type":"object"}}}],"#,
        r#""max_tokens":100,"#,
        r#""response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"string"},"strict":true}},"#,
        r#""prompt_cache_key":"s1","stream":true,"stream_options":{"include_usage":true}}"#,
    );
    assert_eq!(written(&request, &style), expected);
    // Servers refuse options of a stream where none is asked for.
    let whole =
        expected.replace(r#""stream":true,"stream_options":{"include_usage":true}"#, r#""stream":false"#);
    let style = WireStyle { stream: false, ..style };
    assert_eq!(written(&request, &style), whole);
}

#[test]
fn one_call_at_a_time() {
    let mut request = request(vec![Message::user("hi")]);
    request.settings.parallel_tool_calls = Some(false);
    // Servers refuse it without tools.
    assert!(wire(&request, &PLAIN).get("parallel_tool_calls").is_none());
    let parameters = json!({"type": "object"});
    request.tools =
        Arc::from([ToolSpec { name: "read".to_owned(), description: "reads".to_owned(), parameters }]);
    assert_eq!(wire(&request, &PLAIN)["parallel_tool_calls"], json!(false));
}

#[test]
fn limits_of_the_output() {
    let style = WireStyle { max_completion_tokens: true, output_tokens_max: Some(7), ..PLAIN };
    let found = wire(&request(vec![Message::user("hi")]), &style);
    assert_eq!((&found["max_completion_tokens"], &found["max_tokens"]), (&json!(7), &Value::Null));
    assert_eq!(found.get("tools"), None, "an empty list is refused by some servers");
}

#[test]
fn user_messages() {
    check_messages(
        vec![
            Message::User(vec![text("a"), text("b")]),
            Message::User(vec![]),
            Message::User(vec![text("see"), image()]),
        ],
        &json!([
            {"role": "user", "content": "a\nb"},
            {"role": "user", "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            ]},
        ]),
    );
}

#[test]
fn assistant_messages() {
    let opaque = Part::OpaqueReasoning { dialect: "other".to_owned(), data: "{}".to_owned() };
    check_messages(
        vec![
            assistant(vec![Part::Reasoning("hm".to_owned()), Part::Text("yes".to_owned())]),
            assistant(vec![]),
            assistant(vec![Part::Reasoning("only thought".to_owned()), opaque]),
            assistant(vec![call("c1", r#"{"path":"x"}"#)]),
        ],
        &json!([
            {"role": "assistant", "content": "yes"},
            {"role": "assistant", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"x\"}"}},
            ]},
        ]),
    );
}

#[test]
fn reasoning_goes_back_only_where_it_came_from() {
    let messages = vec![assistant(vec![Part::Reasoning("hm".to_owned()), Part::Text("yes".to_owned())])];
    let style = WireStyle { resend_reasoning: ResendReasoning::AsReasoningContent, ..PLAIN };
    let own = wire(&request(messages.clone()), &style);
    assert_eq!(own["messages"][0]["reasoning_content"], "hm");
    let other = wire(&request(messages.clone()), &WireStyle { provider: "another", ..style });
    assert_eq!(other["messages"][0], json!({"role": "assistant", "content": "yes"}));
    // What the model's settings say stands above the provider's option.
    let mut of_model = request(messages);
    of_model.settings = of_model.settings.resend_reasoning(ResendReasoning::AsReasoning);
    let sent = wire(&of_model, &style);
    assert_eq!(sent["messages"][0], json!({"role": "assistant", "content": "yes", "reasoning": "hm"}));
    of_model.settings = of_model.settings.resend_reasoning(ResendReasoning::Never);
    assert_eq!(wire(&of_model, &style)["messages"][0], json!({"role": "assistant", "content": "yes"}));
}

#[test]
fn tool_results() {
    check_messages(
        vec![
            assistant(vec![call("c1", "{}"), call("c2", "{}")]),
            result("c1", vec![text("shot"), image()]),
            result("c2", vec![]),
            Message::user("go on"),
        ],
        &json!([
            {"role": "assistant", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "shot\n[1 image: in the user message after the tool results]"},
            {"role": "tool", "tool_call_id": "c2", "content": "(no output)"},
            {"role": "user", "content": [
                {"type": "text", "text": "The image that the tool read gave:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            ]},
            {"role": "user", "content": "go on"},
        ]),
    );
}

#[test]
fn arguments_are_always_an_object() {
    let check = |arguments: &str, expected: &str| {
        assert_eq!(crate::sendable_arguments(arguments), expected, "{arguments}")
    };
    check(r#"{"a": 1}"#, r#"{"a": 1}"#);
    check("", "{}");
    check(" null ", "{}");
    check(r#"{"path":"sr"#, r#"{"invalid_arguments":"{\"path\":\"sr"}"#);
    check("[1]", r#"{"invalid_arguments":"[1]"}"#);
    check("{} {}", r#"{"invalid_arguments":"{} {}"}"#);
}

#[test]
fn names_and_ids_that_servers_refuse() {
    assert_eq!(sendable_tool_name("functions.read"), "functions_read");
    assert_eq!(sendable_tool_name(""), "unknown_tool");
    assert_eq!(sendable_tool_name(&"é".repeat(100)), "_".repeat(64));
    let long = "call_".repeat(20);
    assert_eq!(wire_call_id(&long), wire_call_id(&long), "call and result must agree");
    assert!(wire_call_id(&long).len() <= 40);
    assert_ne!(wire_call_id(&long), wire_call_id(&format!("{long}x")));
    assert_eq!(wire_call_id("call_1"), "call_1");
}

#[test]
fn texts_that_stand_alone_are_written_without_a_copy() {
    use super::{Cow, UserContent, WireMessage, user_content, wire_assistant, wire_result};

    let request = request(vec![
        Message::user("the prompt"),
        assistant(vec![
            Part::Reasoning("the thought".to_owned()),
            Part::Text("the answer".to_owned()),
            call("a", "{}"),
        ]),
        result("a", vec![Block::Text("the result".to_owned())]),
    ]);
    let rule = ResendReasoning::AsReasoning.rule(PLAIN.provider);
    let mut texts = Vec::new();
    for message in &request.messages {
        match &**message {
            Message::User(blocks) => match user_content(blocks) {
                Some(UserContent::Text(text)) => texts.push(text),
                other => panic!("{other:?}"),
            },
            Message::ToolResult(result) => {
                let WireMessage::Tool { content, .. } = wire_result(result, &mut Vec::new()) else {
                    panic!("a result is a message of its tool");
                };
                texts.push(content);
            }
            Message::Assistant(answer) => match wire_assistant(answer, &rule, ResendReasoning::AsReasoning) {
                Some(WireMessage::Assistant { content, reasoning, .. }) => {
                    texts.extend(reasoning.into_iter().chain(content));
                }
                other => panic!("{other:?}"),
            },
        }
    }
    assert_eq!(texts, ["the prompt", "the thought", "the answer", "the result"]);
    assert!(texts.iter().all(|text| matches!(text, Cow::Borrowed(_))), "{texts:?}");
}
