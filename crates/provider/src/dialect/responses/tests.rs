//! Requests as exact JSON, answers from events, and both together: what came is what is sent again.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, FailureClass, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec,
    ToolStatus, Usage,
};
use serde_json::{Value, json};

use super::*;
use crate::classify::classify;
use crate::dialect::{Asked, Progress, Taken};
use crate::transport::random::Random;
use crate::{ModelSettings, OutputSchema, Purpose, ReasoningEffort, ReplyEvent, ToolChoice};

fn request(messages: Vec<Message>) -> Request {
    Request {
        model: "gpt-5.5".to_owned(),
        system: None,
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".to_owned(),
    }
}

fn sent(request: &Request) -> String {
    let options = ServerOptions::responses("k");
    let encoded = Responses::new(&options).encode(request, &options).expect("it can be written");
    assert_eq!(encoded.path, "responses");
    String::from_utf8(encoded.body).expect("a body is text")
}

fn body(request: &Request) -> Value {
    serde_json::from_str(&sent(request)).expect("a body is JSON")
}

fn answer(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage {
        content,
        provider: "openai".to_owned(),
        model: "m".to_owned(),
        usage: None,
        stop: StopReason::Stop,
        stop_raw: None,
        error: None,
    }
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

fn opaque(data: &str) -> Part {
    Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: data.to_owned() }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn decode(events: &[Value]) -> (Result<AssistantMessage, crate::ProviderError>, Vec<ReplyEvent>, Progress) {
    let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
    let mut shown = VecDeque::new();
    for event in events {
        let taken = decoder.take(&event.to_string(), &mut shown);
        assert!(matches!(taken, Taken::Progress | Taken::Nothing), "{event}: {taken:?}");
    }
    let progress = decoder.progress();
    let asked = Asked { provider: "openai", model: "m", messages: &[] };
    (decoder.finish(&asked, &mut shown), shown.into(), progress)
}

fn added(index: u64, item: &Value) -> Value {
    json!({ "type": "response.output_item.added", "output_index": index, "item": item })
}

fn done(index: u64, item: &Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": index, "item": item })
}

fn delta(kind: &str, index: u64, delta: &str) -> Value {
    json!({ "type": format!("response.{kind}.delta"), "output_index": index, "delta": delta })
}

fn completed() -> Value {
    json!({ "type": "response.completed", "response": { "status": "completed", "output": [],
        "usage": { "input_tokens": 20, "input_tokens_details": { "cached_tokens": 5 }, "output_tokens": 9,
            "output_tokens_details": { "reasoning_tokens": 4 }, "total_tokens": 29 } } })
}

/// The items of an answer that has everything at once.
fn items() -> [Value; 5] {
    [
        json!({ "id": "rs_1", "type": "reasoning", "encrypted_content": "gAAA+/==", "summary": [
            { "type": "summary_text", "text": "One." }, { "type": "summary_text", "text": "Two." } ] }),
        json!({ "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": "commentary",
            "content": [{ "type": "output_text", "annotations": [{ "n": 1.50 }], "text": "First é." },
                { "type": "refusal", "refusal": "Not that." }] }),
        json!({ "id": "ws_1", "type": "web_search_call", "status": "completed", "action": { "query": "x" } }),
        json!({ "id": "rs_2", "type": "reasoning", "encrypted_content": "gBBB", "summary": [] }),
        json!({ "id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "read",
            "arguments": "{\"n\": 1e3}" }),
    ]
}

fn rich() -> Vec<Value> {
    let [reasoning, message, search, hidden, call] = items();
    let summary = |part: u64, text: &str| json!({ "type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": part, "delta": text });
    vec![
        json!({ "type": "response.created", "response": { "status": "in_progress" } }),
        added(0, &json!({ "id": "rs_1", "type": "reasoning", "summary": [] })),
        summary(0, "One."),
        summary(1, "Two."),
        done(0, &reasoning),
        added(1, &json!({ "id": "msg_1", "type": "message", "content": [] })),
        delta("output_text", 1, "First é."),
        delta("refusal", 1, "Not that."),
        done(1, &message),
        done(2, &search),
        done(3, &hidden),
        added(
            4,
            &json!({ "id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "read", "arguments": "" }),
        ),
        delta("function_call_arguments", 4, "{\"n\": "),
        delta("function_call_arguments", 4, "1e3}"),
        done(4, &call),
        completed(),
    ]
}

#[test]
fn an_answer_keeps_every_item_in_its_place() {
    let (decoded, shown, progress) = decode(&rich());
    let decoded = decoded.expect("it is there");
    assert_eq!(
        (progress, decoded.stop, decoded.stop_raw.as_deref()),
        (Progress::Over, StopReason::ToolCalls, Some("completed"))
    );
    let [reasoning, _, search, hidden, _] = items();
    assert_eq!(
        decoded.content,
        vec![
            Part::Reasoning("One.\n\nTwo.".to_owned()),
            opaque(&reasoning.to_string()),
            text("First é."),
            text("Not that."),
            opaque(
                r#"{"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":"commentary","content":[{"type":"output_text","annotations":[{"n":1.5}]},{"type":"refusal"}]}"#
            ),
            Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: search.to_string() },
            opaque(&hidden.to_string()),
            call("call_1", "{\"n\": 1e3}"),
            opaque(r#"{"id":"fc_1","type":"function_call","status":"completed"}"#),
        ]
    );
    let usage = Usage {
        input_tokens: 20,
        cached_tokens: 5,
        output_tokens: 9,
        reasoning_tokens: 4,
        ..Usage::default()
    };
    assert_eq!(decoded.usage, Some(usage));
    let words = |wanted: fn(&ReplyEvent) -> Option<&str>| shown.iter().filter_map(wanted).collect::<String>();
    let texts = words(|event| if let ReplyEvent::Text(text) = event { Some(text) } else { None });
    let thoughts = words(|event| if let ReplyEvent::Reasoning(text) = event { Some(text) } else { None });
    let arguments =
        words(
            |event| if let ReplyEvent::ToolCall { arguments, .. } = event { Some(arguments) } else { None },
        );
    assert_eq!((&*texts, &*thoughts, &*arguments), ("First é.Not that.", "One.\n\nTwo.", "{\"n\": 1e3}"));
}

#[test]
fn what_came_is_sent_again() {
    let (decoded, ..) = decode(&rich());
    let whole = sent(&request(vec![Message::user("go"), Message::Assistant(decoded.expect("it is there"))]));
    let input: Value = serde_json::from_str::<Value>(&whole).expect("it is there")["input"].clone();
    let again = &input.as_array().expect("it is there")[1..];
    assert_eq!(again, items(), "every item is equal");
    for opaque in ["gAAA+/==", "gBBB", "\"phase\":\"commentary\"", "\"arguments\":\"{\\\"n\\\": 1e3}\""] {
        assert!(whole.contains(opaque), "{opaque} in {whole}");
    }
    // A whole response, and one whose items come with its end only, are read in the same way.
    let whole = json!({ "object": "response", "status": "completed", "output": items() });
    let late =
        json!({ "type": "response.completed", "response": { "status": "completed", "output": items() } });
    let streamed = decode(&rich()).0.expect("it is there").content;
    for form in [whole, late] {
        let (decoded, shown, progress) = decode(&[form]);
        assert_eq!((decoded.expect("it is there").content, progress), (streamed.clone(), Progress::Over));
        assert!(shown.len() >= 3, "it is shown: {shown:?}");
    }
}

#[test]
fn an_item_without_its_end_is_not_sent_again() {
    let whole = rich();
    let mut cut = 0;
    for length in 1..whole.len() {
        let (decoded, _, progress) = decode(&whole[..length]);
        assert_eq!(progress, Progress::Open);
        let data: String = decoded
            .expect("it is there")
            .content
            .iter()
            .filter_map(|part| match part {
                Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => Some(data.as_str()),
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | _ => None,
            })
            .collect();
        for (index, mark) in [(0, "rs_1"), (1, "msg_1"), (2, "ws_1"), (3, "rs_2"), (4, "fc_1")] {
            let ended = whole[..length]
                .iter()
                .any(|event| event["type"] == "response.output_item.done" && event["output_index"] == index);
            assert_eq!(data.contains(mark), ended, "{mark} after {length}: {data}");
        }
        cut += 1;
    }
    assert!(cut > 12, "only {cut} ends were tried");
}

#[test]
fn ends_of_answers() {
    let said = json!({ "id": "m", "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "so" }] });
    let check = |end: Value, stop: StopReason, raw: &str| {
        let (decoded, ..) = decode(&[done(0, &said), end]);
        let decoded = decoded.expect("it is there");
        assert_eq!((decoded.stop, decoded.stop_raw.as_deref()), (stop, Some(raw)));
    };
    let incomplete = |reason: &str| {
        json!({ "type": "response.incomplete", "response": { "status": "incomplete",
            "incomplete_details": { "reason": reason } } })
    };
    check(completed(), StopReason::Stop, "completed");
    check(incomplete("max_output_tokens"), StopReason::Length, "max_output_tokens");
    check(incomplete("content_filter"), StopReason::ContentFilter, "content_filter");
    check(incomplete("a_reason_of_tomorrow"), StopReason::Stop, "a_reason_of_tomorrow");
    // Usage without details, and none.
    let bare = json!({ "type": "response.completed", "response": { "usage": { "input_tokens": 3, "output_tokens": 1 } } });
    let usage = Usage { input_tokens: 3, output_tokens: 1, ..Usage::default() };
    assert_eq!(decode(&[bare]).0.expect("it is there").usage, Some(usage));
    let none = json!({ "type": "response.completed", "response": { "usage": null } });
    assert_eq!(decode(&[none]).0.expect("it is there").usage, None);
}

#[test]
fn errors_end_an_answer_with_their_class() {
    let check = |event: Value, expected: FailureClass| {
        let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
        let Taken::Error(body) = decoder.take(&event.to_string(), &mut VecDeque::new()) else {
            panic!("it is an error: {event}");
        };
        assert_eq!(classify(Some(200), &body, None).class, expected, "{body}");
    };
    let failed = |code: &str, message: &str| json!({ "type": "response.failed", "response": { "status": "failed", "error": { "code": code, "message": message } } });
    let words =
        "Your input exceeds the context window of this model. Please adjust your input and try again.";
    check(failed("context_length_exceeded", words), FailureClass::ContextOverflow);
    check(failed("rate_limit_exceeded", "Rate limit reached for gpt-5.5"), FailureClass::RateLimited);
    check(
        failed("server_error", "An error occurred while processing your request."),
        FailureClass::Overloaded,
    );
    check(
        json!({ "type": "error", "code": "server_error", "message": "An error occurred" }),
        FailureClass::Overloaded,
    );
    let nested = json!({ "type": "error", "error": { "type": "invalid_request_error",
        "code": "context_length_exceeded", "message": words } });
    check(nested, FailureClass::ContextOverflow);
    check(
        json!({ "error": { "code": "insufficient_quota", "message": "You exceeded your current quota" } }),
        FailureClass::Quota,
    );
    let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
    let mut shown = VecDeque::new();
    for garbage in ["no", "[]", "{\"a\":1}", "{\"type\":7}"] {
        assert_eq!(decoder.take(garbage, &mut shown), Taken::Unreadable, "{garbage}");
    }
    for unknown in [
        r#"{"type":"response.weather.delta","delta":{"x":1}}"#,
        r#"{"type":"keepalive"}"#,
        r#"{"type":"response.in_progress"}"#,
    ] {
        assert_eq!(decoder.take(unknown, &mut shown), Taken::Nothing, "{unknown}");
    }
    assert!(shown.is_empty() && !decoder.has_output());
}

#[test]
fn a_conversation_is_written_as_the_api_wants_it() {
    let picture = Block::Image(Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() });
    let said = |text: &str| Block::Text(text.to_owned());
    let long = "x".repeat(90);
    let mut request = request(vec![
        Message::User(vec![said("look"), picture.clone(), said("")]),
        Message::Assistant(answer(vec![
            Part::Reasoning("of another".to_owned()),
            text("Two."),
            call(&long, "not json"),
            call("c", ""),
        ])),
        result(&long, vec![said("one"), picture]),
        result("c", vec![said("two")]),
        Message::Assistant(answer(vec![Part::OpaqueReasoning {
            dialect: "anthropic".to_owned(),
            data: "{}".to_owned(),
        }])),
        Message::user("go"),
    ]);
    request.system = Some("Be brief.".to_owned());
    request.tools = Arc::from([ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({ "type": "object" }),
    }]);
    let written = body(&request);
    let id = written["input"][2]["call_id"].as_str().expect("it is there").to_owned();
    assert!(id.len() <= 64, "{id}");
    let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,AAAA" });
    assert_eq!(
        written,
        json!({
            "model": "gpt-5.5",
            "instructions": "Be brief.",
            "input": [
                { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "look" }, image] },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Two." }] },
                { "type": "function_call", "call_id": id, "name": "read", "arguments": "{\"invalid_arguments\":\"not json\"}" },
                { "type": "function_call", "call_id": "c", "name": "read", "arguments": "{}" },
                { "type": "function_call_output", "call_id": id, "output": [{ "type": "input_text", "text": "one" }, image] },
                { "type": "function_call_output", "call_id": "c", "output": "two" },
                { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "go" }] },
            ],
            "tools": [{ "type": "function", "name": "read", "description": "Reads.", "parameters": { "type": "object" }, "strict": false }],
            "store": false,
            "stream": true,
            "prompt_cache_key": "s",
            "include": ["reasoning.encrypted_content"],
        })
    );
}

#[test]
fn reasoning_is_sent_with_the_item_after_it_or_not_at_all() {
    let check = |parts: Vec<Part>, expected: &[&str]| {
        let written = body(&request(vec![Message::user("go"), Message::Assistant(answer(parts))]));
        let kinds: Vec<&str> = written["input"].as_array().expect("it is there")[1..]
            .iter()
            .map(|item| item["type"].as_str().expect("it is there"))
            .collect();
        assert_eq!(kinds, expected, "{written}");
    };
    let thought = || opaque(r#"{"id":"rs","type":"reasoning","encrypted_content":"E","summary":[]}"#);
    let of_call = || opaque(r#"{"id":"fc","type":"function_call"}"#);
    check(vec![thought(), text("so")], &["reasoning", "message"]);
    check(vec![thought(), call("c", "{}"), of_call()], &["reasoning", "function_call"]);
    // What followed was dropped by the runtime.
    check(vec![text("so"), thought()], &["message"]);
    check(vec![text("so"), thought(), of_call()], &["message"]);
    check(vec![thought(), thought()], &[]);
    // Without its content the server would look for what it did not store.
    check(
        vec![opaque(r#"{"id":"rs","type":"reasoning","encrypted_content":null}"#), text("so")],
        &["message"],
    );
    // An attachment whose text was dropped.
    check(
        vec![opaque(r#"{"id":"m","type":"message","content":[{"type":"output_text"}]}"#), call("c", "{}")],
        &["function_call"],
    );
    check(
        vec![
            text("a"),
            text("b"),
            opaque(r#"{"id":"m","type":"message","content":[{"type":"output_text"}]}"#),
        ],
        &["message", "message"],
    );
}

#[test]
fn settings_are_sent_under_the_apis_names() {
    let check = |settings: ModelSettings, expected: Value| {
        let mut request = request(vec![Message::user("hi")]);
        request.settings = settings;
        request.tools = Arc::from([ToolSpec {
            name: "read".to_owned(),
            description: String::new(),
            parameters: json!({}),
        }]);
        let mut written = body(&request);
        for field in ["model", "input", "tools", "stream", "store", "include", "prompt_cache_key"] {
            written.as_object_mut().expect("it is there").remove(field);
        }
        assert_eq!(written, expected);
    };
    let new = ModelSettings::new;
    check(new(), json!({}));
    check(
        new().reasoning_effort(ReasoningEffort::High).output_tokens_max(900).seed(1),
        json!({ "max_output_tokens": 900, "reasoning": { "effort": "high", "summary": "auto" } }),
    );
    check(new().reasoning_effort(ReasoningEffort::None), json!({ "reasoning": { "effort": "none" } }));
    check(
        new()
            .temperature(0.5)
            .top_p(0.9)
            .tool_choice(ToolChoice::Tool("read".into()))
            .parallel_tool_calls(false),
        json!({ "temperature": 0.5, "top_p": 0.9, "tool_choice": { "type": "function", "name": "read" },
            "parallel_tool_calls": false }),
    );
    check(new().tool_choice(ToolChoice::Required), json!({ "tool_choice": "required" }));
    check(
        new()
            .reasoning_effort(ReasoningEffort::Low)
            .extra("reasoning", json!({ "summary": "detailed" }))
            .extra("service_tier", "flex"),
        json!({ "reasoning": { "effort": "low", "summary": "detailed" }, "service_tier": "flex" }),
    );
    let mut typed = request(vec![Message::user("hi")]);
    let schema = json!({ "type": "object", "properties": {} });
    typed.output_schema = Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema: schema.clone() }));
    let format = body(&typed)["text"]["format"].clone();
    assert_eq!((&format["name"], &format["schema"]), (&json!("answer"), &schema));
}

/// A random conversation, in which calls have their results.
fn conversation(random: &mut Random) -> Vec<Message> {
    let mut messages = vec![Message::user("begin")];
    for turn in 0..random.below(6) + 1 {
        let (mut parts, mut ids) = (Vec::new(), Vec::new());
        for number in 0..random.below(5) + 1 {
            match random.below(7) {
                0 => parts.push(text("so")),
                1 => {
                    parts.push(text("é"));
                    parts.push(opaque(r#"{"id":"m","type":"message","content":[{"type":"output_text"}]}"#));
                }
                2 => parts.push(Part::Reasoning("of another".to_owned())),
                3 => parts.push(opaque(r#"{"id":"r","type":"reasoning","encrypted_content":"E"}"#)),
                4 => {
                    let data = r#"{"type":"web_search_call"}"#.to_owned();
                    parts.push(Part::OpaqueBlock { dialect: DIALECT.to_owned(), data });
                }
                _ => {
                    let id = format!("call {turn} {number}");
                    parts.push(call(&id, ["{}", "", "no", "{\"a\": 1e3}"][random.below(4)]));
                    ids.push(id);
                    if random.below(2) == 0 {
                        parts.push(opaque(r#"{"id":"f","type":"function_call"}"#));
                    }
                }
            }
        }
        messages.push(Message::Assistant(answer(parts)));
        messages.extend(ids.iter().map(|id| result(id, vec![Block::Text("out".to_owned())])));
        messages.push(Message::user("next"));
    }
    messages
}

#[test]
fn a_longer_conversation_begins_with_the_shorter_one() {
    let mut compared = 0;
    for seed in 0..400 {
        let messages = conversation(&mut Random::of(seed));
        let mut before: Option<Value> = None;
        for length in 1..=messages.len() {
            let written = body(&request(messages[..length].to_vec()));
            let input = written["input"].as_array().expect("it is there");
            let calls: Vec<&Value> = input
                .iter()
                .filter(|item| item["type"] == "function_call")
                .map(|item| &item["call_id"])
                .collect();
            for item in input.iter().filter(|item| item["type"] == "function_call_output") {
                assert!(calls.contains(&&item["call_id"]), "seed {seed}: {written}");
            }
            if let Some(before) = before.replace(written.clone()) {
                let shorter = before["input"].as_array().expect("it is there");
                assert_eq!(input[..shorter.len()], shorter[..], "seed {seed}");
                compared += 1;
            }
        }
    }
    assert!(compared > 2_000, "{compared}");
}
