//! Requests as exact JSON, answers from events, and both together: what came is what is sent again.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::random::Random;
use greenroom_kernel::{
    AssistantMessage, Block, FailureClass, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec,
    ToolStatus, Usage,
};
use serde_json::{Value, json};

use super::*;
use crate::classify::classify;
use crate::dialect::{CallContext, Progress, Taken, error_in_stream};
use crate::{ModelSettings, OutputSchema, ProviderError, Purpose, ReasoningEffort, ReplyEvent, ToolChoice};

fn request(model: &str, messages: Vec<Message>) -> Request {
    Request {
        model: model.to_owned(),
        system: None,
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s1".to_owned(),
    }
}

fn encoded(request: &Request, options: &ServerOptions) -> Encoded {
    Responses::new(options).encode(request, options, &mut History::default()).unwrap()
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(&encoded(request, &ServerOptions::responses("k")).body.concat()).unwrap()
}

/// The items of a request with these messages.
fn input(messages: Vec<Message>) -> Value {
    body(&request("gpt-5", messages))["input"].take()
}

fn answer(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage::new(content, "openai", "gpt-5", StopReason::Stop)
}

fn sent(content: Vec<Part>) -> Value {
    input(vec![Message::Assistant(answer(content))])
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn thought(text: &str) -> Part {
    Part::Reasoning(text.to_owned())
}

fn call(id: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.to_owned(), name: "read".to_owned(), arguments: arguments.to_owned() })
}

fn opaque(data: &str) -> Part {
    Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: data.to_owned() }
}

fn block(data: &str) -> Part {
    Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: data.to_owned() }
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

fn said(text: &str) -> Block {
    Block::Text(text.to_owned())
}

fn picture() -> Block {
    Block::Image(Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() })
}

struct Decoded {
    answer: Result<AssistantMessage, ProviderError>,
    shown: Vec<ReplyEvent>,
    progress: Progress,
}

/// Decodes the data of events, none of which is an error.
fn decode(events: &[String]) -> Decoded {
    let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
    let mut shown = VecDeque::new();
    for event in events {
        let taken = decoder.take(event, &mut shown);
        assert!(matches!(taken, Taken::Progress | Taken::Nothing), "{event}: {taken:?}");
    }
    let progress = decoder.progress();
    let context = CallContext { provider: "openai", model: "gpt-5", purpose: Purpose::Step, messages: &[] };
    Decoded { answer: decoder.finish(&context, &mut shown), shown: shown.into(), progress }
}

fn content(events: &[String]) -> Vec<Part> {
    decode(events).answer.unwrap().content
}

/// An event of the stream.
fn event(kind: &str, fields: &Value) -> String {
    let mut event = json!({ "type": format!("response.{kind}"), "sequence_number": 1 });
    for (name, value) in fields.as_object().unwrap() {
        event[name] = value.clone();
    }
    event.to_string()
}

fn added(index: u64, item: &str) -> String {
    format!(r#"{{"type":"response.output_item.added","output_index":{index},"item":{item}}}"#)
}

fn done(index: u64, item: &str) -> String {
    format!(r#"{{"type":"response.output_item.done","output_index":{index},"item":{item}}}"#)
}

fn delta(kind: &str, index: u64, part: u64, piece: &str) -> String {
    event(
        &format!("{kind}.delta"),
        &json!({ "output_index": index, "content_index": part, "summary_index": part, "delta": piece }),
    )
}

fn completed(output: &Value) -> String {
    let usage = json!({ "input_tokens": 9, "output_tokens": 7 });
    event("completed", &json!({ "response": { "status": "completed", "output": output, "usage": usage } }))
}

fn incomplete(details: &Value) -> String {
    event("incomplete", &json!({ "response": { "status": "incomplete", "incomplete_details": details } }))
}

const REASONING: &str = r#"{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"First é."},{"type":"summary_text","text":""},{"type":"summary_text","text":"Then."}],"encrypted_content":"gA+/=\u00e9=="}"#;
const COMMENTARY: &str = r#"{"id":"msg_1","type":"message","status":"completed","phase":"commentary","content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"I look."}],"role":"assistant"}"#;
const SEARCH: &str = r#"{"id":"ws_1","type":"web_search_call","status":"completed","action":{"type":"search","query":"x","score":1e-07}}"#;
const CALL: &str = r#"{"id":"fc_1","type":"function_call","status":"completed","arguments":"{ \"n\": 1e3,\"s\":\"\\u00e9\" }","call_id":"call_1","name":"read"}"#;
const FINAL: &str = r#"{"id":"msg_2","type":"message","status":"completed","phase":"final_answer","content":[{"type":"output_text","annotations":[{"type":"url_citation","url":"https://e.x","start_index":0,"end_index":2}],"text":"It is"},{"type":"new_kind","data":[1.50]},{"type":"refusal","refusal":" no."}],"role":"assistant"}"#;
const COMPACTION: &str = r#"{"id":"cmp_1","type":"compaction","encrypted_content":"Zm9v"}"#;
const HIDDEN: &str = r#"{"id":"rs_2","type":"reasoning","summary":[],"encrypted_content":"QUJD"}"#;

/// The events of an answer that has everything at once.
fn rich() -> Vec<String> {
    vec![
        event("created", &json!({ "response": { "id": "resp_1", "status": "in_progress", "error": null } })),
        event("in_progress", &json!({ "response": { "status": "in_progress" } })),
        added(0, r#"{"id":"rs_0","type":"reasoning","summary":[],"encrypted_content":"cut"}"#),
        event("reasoning_summary_part.added", &json!({ "output_index": 0, "summary_index": 0 })),
        delta("reasoning_summary_text", 0, 0, "First"),
        delta("reasoning_summary_text", 0, 0, " é."),
        delta("reasoning_summary_text", 0, 2, "Then."),
        done(0, REASONING),
        added(1, r#"{"id":"msg_0","type":"message","status":"in_progress","content":[],"role":"assistant"}"#),
        delta("output_text", 1, 0, "I "),
        delta("output_text", 1, 0, "look."),
        event("output_text.done", &json!({ "output_index": 1, "content_index": 0, "text": "I look." })),
        done(1, COMMENTARY),
        added(2, r#"{"id":"ws_1","type":"web_search_call","status":"in_progress"}"#),
        event("web_search_call.searching", &json!({ "output_index": 2 })),
        done(2, SEARCH),
        done(3, COMPACTION),
        done(4, HIDDEN),
        added(
            5,
            r#"{"id":"fc_0","type":"function_call","status":"in_progress","arguments":"","call_id":"call_1","name":"read"}"#,
        ),
        delta("function_call_arguments", 5, 0, "{ \"n\": 1e3,"),
        delta("function_call_arguments", 5, 0, "\"s\":\"\\u00e9\" }"),
        done(5, CALL),
        added(6, r#"{"id":"msg_2","type":"message","content":[],"role":"assistant"}"#),
        delta("output_text", 6, 0, "It is"),
        delta("refusal", 6, 2, " no."),
        done(6, FINAL),
        r#"{"type":"keepalive","sequence_number":3}"#.to_owned(),
        event("something_new.delta", &json!({ "delta": { "x": 1 } })),
        completed(&json!([])),
    ]
}

const RICH: [&str; 7] = [REASONING, COMMENTARY, SEARCH, COMPACTION, HIDDEN, CALL, FINAL];

#[test]
fn what_came_is_what_is_sent_again() {
    let Decoded { answer, shown, progress } = decode(&rich());
    let answer = answer.unwrap();
    assert_eq!(progress, Progress::Over);
    assert_eq!((answer.stop, answer.stop_raw.as_deref()), (StopReason::ToolCalls, Some("completed")));
    let readable: Vec<Part> = answer
        .content
        .iter()
        .filter(|part| !matches!(part, Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. }))
        .cloned()
        .collect();
    let arguments = "{ \"n\": 1e3,\"s\":\"\\u00e9\" }";
    let expected =
        [thought("First é.\n\nThen."), text("I look."), call("call_1", arguments), text("It is no.")];
    assert_eq!(readable, expected);
    let blocks = answer.content.iter().filter(|part| matches!(part, Part::OpaqueBlock { .. }));
    assert_eq!(blocks.cloned().collect::<Vec<_>>(), [block(SEARCH), block(COMPACTION)]);
    assert!(answer.content.contains(&opaque(HIDDEN)));
    let (mut thoughts, mut texts, mut calls) = (String::new(), String::new(), String::new());
    for event in shown {
        match event {
            ReplyEvent::Reasoning(piece) => thoughts += &piece,
            ReplyEvent::Text(piece) => texts += &piece,
            ReplyEvent::ToolCall { index, name, arguments } => {
                assert_eq!(index, 0);
                calls += &(name.unwrap_or_default() + &arguments);
            }
            ReplyEvent::ThinkingDropped { .. } | ReplyEvent::Spent(_) | ReplyEvent::Done(_) => {}
        }
    }
    assert_eq!((thoughts.as_str(), texts.as_str()), ("First é.\n\nThen.", "I look.It is no."));
    assert_eq!(calls, format!("read{arguments}"));

    let body = encoded(
        &request("gpt-5", vec![Message::Assistant(answer.clone()), result("call_1", vec![said("ok")])]),
        &ServerOptions::responses("k"),
    );
    let body = String::from_utf8(body.body.concat()).unwrap();
    // Nothing but the escapes in readable text may differ, and here they are the same.
    for item in RICH {
        assert!(body.contains(item), "{item}\nis not in {body}");
    }
    let items: Vec<Value> = RICH.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["input"].as_array().unwrap()[..7], items);

    // Another provider of the same dialect gets the text and the call alone.
    let azure = ServerOptions { name: "azure".to_owned(), ..ServerOptions::responses("k") };
    let other = encoded(&request("gpt-5", vec![Message::Assistant(answer)]), &azure);
    let other: Value = serde_json::from_slice(&other.body.concat()).unwrap();
    let expected = json!([
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
        { "type": "function_call", "call_id": "call_1", "name": "read", "arguments": arguments },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "It is no." }] },
    ]);
    assert_eq!(other["input"], expected);
}

/// Streams of other forms, which give the same content.
#[test]
fn the_same_answer_in_other_forms() {
    let expected = content(&rich());
    let same = |events: &[String]| assert_eq!(content(events), expected, "{events:#?}");
    let list = RICH.join(",");
    let whole = format!(r#"{{"object":"response","status":"completed","output":[{list}],"error":null}}"#);
    let end = format!(r#"{{"type":"response.completed","response":{whole}}}"#);
    let without =
        |kind: &str| -> Vec<String> { rich().into_iter().filter(|event| !event.contains(kind)).collect() };
    let with_end = |mut events: Vec<String>| {
        events.pop();
        events.push(end.clone());
        events
    };
    // A whole response, and a stream with nothing but its end.
    same(&[whole]);
    same(std::slice::from_ref(&end));
    // Without the ends of items, without the beginnings, and without the pieces.
    same(&with_end(without("output_item.done")));
    same(&without("output_item.added"));
    same(&without(".delta"));
    // Without positions, and with positions that are all 0.
    let positions = (0..7).map(|index| format!("\"output_index\":{index},"));
    let replaced = |with: &str| -> Vec<String> {
        let of = |event: String| positions.clone().fold(event, |event, one| event.replace(&one, with));
        rich().into_iter().map(of).collect()
    };
    same(&replaced(""));
    same(&with_end(replaced("")));
    let mixed: Vec<String> = rich()
        .into_iter()
        .zip(replaced(""))
        .map(|(with, bare)| if with.contains("output_item.added") { with } else { bare })
        .collect();
    same(&mixed);
    same(&replaced("\"output_index\":0,"));
    same(&with_end(replaced("\"output_index\":0,")));
    same(&with_end(rich()));
}

#[test]
fn what_is_cut_off_keeps_its_text_alone() {
    let check = |events: &[String], stop: StopReason, raw: &str, expected: &[Part]| {
        let answer = decode(events).answer.unwrap();
        assert_eq!((answer.stop, answer.stop_raw.as_deref()), (stop, Some(raw)), "{events:?}");
        assert_eq!(answer.content, expected, "{events:?}");
    };
    let limit = incomplete(&json!({ "reason": "max_output_tokens" }));
    let message = added(0, r#"{"id":"msg_1","type":"message","content":[],"role":"assistant"}"#);
    let half = delta("output_text", 0, 0, "Half");
    check(
        &[message.clone(), half.clone(), limit.clone()],
        StopReason::Length,
        "max_output_tokens",
        &[text("Half")],
    );
    check(
        &[message.clone(), half.clone(), incomplete(&json!({ "reason": "content_filter" }))],
        StopReason::ContentFilter,
        "content_filter",
        &[text("Half")],
    );
    check(&[half.clone(), incomplete(&json!({ "reason": "new" }))], StopReason::Stop, "new", &[text("Half")]);
    check(&[half.clone(), incomplete(&Value::Null)], StopReason::Length, "incomplete", &[text("Half")]);
    // A call without its end keeps its arguments as they came.
    let begun = added(0, r#"{"type":"function_call","call_id":"call_1","name":"read","arguments":""}"#);
    let arguments = delta("function_call_arguments", 0, 0, "{\"path\": \"a");
    check(
        &[begun, arguments, limit.clone()],
        StopReason::Length,
        "max_output_tokens",
        &[call("call_1", "{\"path\": \"a")],
    );
    // Reasoning without its end has no encrypted content yet.
    let thinking = added(0, r#"{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"cut"}"#);
    check(&[thinking.clone(), limit.clone()], StopReason::Length, "max_output_tokens", &[]);
    let hm = delta("reasoning_text", 0, 0, "Hm");
    check(&[thinking, hm, limit], StopReason::Length, "max_output_tokens", &[thought("Hm")]);
    // An empty message is no content, and one of an unknown kind is.
    let empty = r#"{"id":"msg_1","type":"message","content":[{"type":"output_text","text":""}]}"#;
    let audio = r#"{"id":"msg_1","type":"message","content":[{"type":"output_audio","data":"UQ"}]}"#;
    let end = completed(&json!([]));
    check(&[done(0, empty), end.clone()], StopReason::Stop, "completed", &[opaque(empty)]);
    check(&[done(0, audio), end], StopReason::Stop, "completed", &[block(audio)]);
}

/// A stream that ends after any of its events, or has an event twice, gives no panic, and is over only at its end.
#[test]
fn streams_that_end_at_every_event() {
    let events = rich();
    for count in 0..events.len() {
        let Decoded { answer, progress, .. } = decode(&events[..count]);
        assert_eq!(progress, Progress::Open, "after {count}");
        let answer = answer.unwrap();
        // What was kept can be sent, and reasoning is never last.
        let items = sent(answer.content);
        let last = items.as_array().unwrap().last().map_or("message", |item| item["type"].as_str().unwrap());
        assert_ne!(last, "reasoning", "after {count}");
        let mut doubled = events.clone();
        doubled.insert(count, events[count].clone());
        assert_eq!(decode(&doubled).progress, Progress::Over);
    }
}

#[test]
fn reasoning_goes_only_with_what_followed_it() {
    let parts = content(&[done(0, REASONING), done(1, CALL), done(2, FINAL), completed(&json!([]))]);
    let kinds = |parts: Vec<Part>| -> Vec<String> {
        let items = sent(parts);
        items.as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap().to_owned()).collect()
    };
    let without = |gone: &[usize]| -> Vec<Part> {
        parts.iter().enumerate().filter(|(at, _)| !gone.contains(at)).map(|(_, part)| part.clone()).collect()
    };
    assert_eq!(parts.len(), 6);
    assert_eq!(kinds(without(&[])), ["reasoning", "function_call", "message"]);
    // The call was dropped: its attachment tells.
    assert_eq!(kinds(without(&[2])), ["message"]);
    assert_eq!(kinds(without(&[4])), ["reasoning", "function_call"]);
    // Reasoning without its attachment, an attachment without its reasoning, and both of another dialect.
    assert_eq!(kinds(without(&[1])), ["function_call", "message"]);
    assert_eq!(kinds(without(&[0])), ["function_call", "message"]);
    let foreign = Part::OpaqueReasoning { dialect: "anthropic".to_owned(), data: "{}".to_owned() };
    assert_eq!(kinds(vec![thought("Hm"), foreign, text("Hi")]), ["message"]);
    // The last item, and several in a row.
    assert!(kinds(vec![parts[0].clone(), parts[1].clone()]).is_empty());
    assert_eq!(
        kinds(vec![opaque(HIDDEN), parts[0].clone(), parts[1].clone(), text("Hi"), opaque(HIDDEN)]),
        ["reasoning", "reasoning", "message"]
    );
    // A server that stores nothing cannot find reasoning by its id.
    let bare = r#"{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":null}"#;
    assert_eq!(kinds(vec![opaque(bare), text("Hi")]), ["message"]);
    let bare = REASONING.replace("gA+/=\\u00e9==", "");
    let parts = content(&[done(0, &bare), done(1, COMMENTARY), completed(&json!([]))]);
    assert_eq!(kinds(parts), ["message"]);
    let open =
        r#"{"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"x"}]}"#;
    let parts = content(&[done(0, open), done(1, COMMENTARY), completed(&json!([]))]);
    assert_eq!(kinds(parts), ["reasoning", "message"]);
    // An attachment of another text, which cannot be right.
    assert_eq!(kinds(vec![thought("Other"), without(&[])[1].clone(), text("Hi")]), ["message"]);
}

#[test]
fn a_whole_request() {
    let mut one = request("gpt-5", vec![Message::user("hi")]);
    one.system = Some("Be brief.".to_owned());
    one.tools = Arc::from([ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({ "type": "object" }),
    }]);
    one.output_schema =
        Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema: json!({ "type": "string" }) }));
    one.settings = ModelSettings::new()
        .temperature(0.5)
        .top_p(0.9)
        .reasoning_effort(ReasoningEffort::Low)
        .tool_choice(ToolChoice::Tool("read".to_owned()))
        .parallel_tool_calls(false)
        .stop(["x"])
        .seed(7)
        .output_tokens_max(3)
        .extra("text", json!({ "verbosity": "low" }))
        .extra("reasoning", json!({ "summary": "detailed" }))
        .extra("service_tier", "flex");
    let expected = concat!(
        r#"{"model":"gpt-5","instructions":"Be brief.","#,
        r#""input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}],"#,
        r#""tools":[{"type":"function","name":"read","description":"Reads.","parameters":{"type":"object"},"strict":false}],"#,
        r#""stream":true,"store":false,"include":["reasoning.encrypted_content"],"max_output_tokens":16,"#,
        r#""temperature":0.5,"top_p":0.9,"reasoning":{"effort":"low","summary":"detailed"},"#,
        r#""text":{"format":{"type":"json_schema","name":"answer","schema":{"type":"string"},"strict":true},"verbosity":"low"},"#,
        r#""tool_choice":{"type":"function","name":"read"},"parallel_tool_calls":false,"prompt_cache_key":"s1","#,
        r#""service_tier":"flex"}"#,
    );
    let encoded = encoded(&one, &ServerOptions::responses("k"));
    assert_eq!(encoded.path, "responses");
    assert_eq!(String::from_utf8(encoded.body.concat()).unwrap(), expected);
}

#[test]
fn settings_and_their_fields() {
    let check = |settings: ModelSettings, field: &str, expected: Value| {
        let mut one = request("gpt-5", vec![Message::user("hi")]);
        one.tools = Arc::from([ToolSpec {
            name: "read".to_owned(),
            description: String::new(),
            parameters: json!({}),
        }]);
        one.settings = settings;
        assert_eq!(body(&one).get(field).cloned().unwrap_or_default(), expected, "{field}");
    };
    let settings = ModelSettings::new;
    check(settings().reasoning_effort(ReasoningEffort::None), "reasoning", json!({ "effort": "none" }));
    check(
        settings().reasoning_effort(ReasoningEffort::XHigh),
        "reasoning",
        json!({ "effort": "xhigh", "summary": "auto" }),
    );
    check(settings(), "reasoning", Value::Null);
    check(settings(), "max_output_tokens", Value::Null);
    check(settings().output_tokens_max(500), "max_output_tokens", json!(500));
    for (choice, word) in
        [(ToolChoice::Auto, "auto"), (ToolChoice::None, "none"), (ToolChoice::Required, "required")]
    {
        check(settings().tool_choice(choice), "tool_choice", json!(word));
    }
    // A model that does not reason refuses to include reasoning, and the user may know better.
    let include = |model: &str| body(&request(model, vec![Message::user("hi")])).get("include").cloned();
    assert_eq!(include("gpt-4o"), None);
    assert_eq!(include("gpt-9-new"), Some(json!(["reasoning.encrypted_content"])));
    check(settings().extra("include", json!([])), "include", json!([]));
    // Nothing is said about tools where there are none.
    let mut bare = request("gpt-5", vec![Message::user("hi")]);
    bare.settings = settings().tool_choice(ToolChoice::Required).parallel_tool_calls(true);
    let bare = body(&bare);
    assert_eq!(
        (bare.get("tools"), bare.get("tool_choice"), bare.get("parallel_tool_calls")),
        (None, None, None)
    );
    for field in
        ["input", "instructions", "previous_response_id", "conversation", "max_output_tokens", "tools"]
    {
        assert!(settings().extra(field, 1).check().is_err(), "{field}");
    }
    // The key for the cache is sent at OpenAI and Azure.
    let elsewhere =
        ServerOptions { base_url: "http://localhost:1/v1".parse().unwrap(), ..ServerOptions::responses("k") };
    let elsewhere = encoded(&request("gpt-5", vec![Message::user("hi")]), &elsewhere);
    assert!(!String::from_utf8(elsewhere.body.concat()).unwrap().contains("prompt_cache_key"));
}

#[test]
fn messages_and_their_items() {
    let check = |messages: Vec<Message>, expected: Value| assert_eq!(input(messages), expected);
    let image = json!({ "type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto" });
    check(
        vec![Message::User(vec![said("See"), picture(), said("")])],
        json!([{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "See" }, image] }]),
    );
    check(vec![Message::User(vec![said("")])], json!([]));
    let output =
        |output: Value| json!([{ "type": "function_call_output", "call_id": "c", "output": output }]);
    check(vec![result("c", vec![said("a"), said("b")])], output(json!("a\nb")));
    check(vec![result("c", vec![])], output(json!("(no output)")));
    check(
        vec![result("c", vec![said("a"), picture()])],
        output(json!([{ "type": "input_text", "text": "a" }, image])),
    );
    // Calls of other providers: arguments become an object, and a long id the same one for call and result.
    let long = "x".repeat(80);
    let items = input(vec![
        Message::Assistant(answer(vec![call(&long, "{\"path\": \"a")])),
        result(&long, vec![said("a")]),
    ]);
    assert_eq!(items[0]["arguments"], "{\"invalid_arguments\":\"{\\\"path\\\": \\\"a\"}");
    assert_eq!(items[0]["call_id"], items[1]["call_id"]);
    assert!(items[0]["call_id"].as_str().unwrap().len() <= 64);
    // An answer without content is not sent.
    check(vec![Message::Assistant(answer(vec![opaque(HIDDEN)]))], json!([]));
    check(vec![Message::Assistant(answer(vec![]))], json!([]));
}

#[test]
fn usage_in_all_its_forms() {
    let check =
        |usage: Value, expected: Option<(u64, u64, u64, u64)>| {
            let end = event("completed", &json!({ "response": { "status": "completed", "usage": usage } }));
            let found = decode(&[end]).answer.unwrap().usage;
            let expected = expected.map(|(input_tokens, cached_tokens, output_tokens, reasoning_tokens)| {
                Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens, ..Usage::default() }
            });
            assert_eq!(found, expected, "{usage}");
        };
    let details = |cached: u64| {
        json!({
            "input_tokens": 100, "input_tokens_details": { "cached_tokens": cached },
            "output_tokens": 50, "output_tokens_details": { "reasoning_tokens": 40 }, "total_tokens": 150,
        })
    };
    check(details(60), Some((100, 60, 50, 40)));
    check(details(160), Some((260, 160, 50, 40)));
    check(json!({ "input_tokens": 9, "output_tokens": 7 }), Some((9, 0, 7, 0)));
    check(json!({ "input_tokens": 9, "output_tokens": 7, "input_tokens_details": null }), Some((9, 0, 7, 0)));
    check(
        json!({ "input_tokens": 9, "output_tokens": 7, "output_tokens_details": { "reasoning_tokens": 8 } }),
        Some((9, 0, 7, 7)),
    );
    check(json!({ "input_tokens": 0, "output_tokens": 0 }), None);
    check(json!({ "input_tokens": "?", "output_tokens": null }), None);
    check(json!({ "input_tokens": "9", "output_tokens": 7.0 }), Some((9, 0, 7, 0)));
    check(Value::Null, None);
}

/// Events in the form that almost all have are read without their other fields; any other form says the same.
#[test]
fn pieces_mean_the_same_in_every_form() {
    let odd = [
        ("output_text.delta", json!({ "output_index": 2, "content_index": 0, "delta": "a\"b\u{1}" })),
        ("output_text.delta", json!({ "output_index": 99, "content_index": 1, "delta": "new" })),
        ("output_text.delta", json!({ "output_index": null, "delta": "no index" })),
        ("output_text.delta", json!({ "output_index": 2.5, "delta": "half an index" })),
        ("output_text.delta", json!({ "delta": null })),
        ("output_text.delta", json!({})),
        ("refusal.delta", json!({ "output_index": 50, "delta": "no" })),
        ("reasoning_text.delta", json!({ "output_index": 51, "content_index": 3, "delta": "hm" })),
        ("reasoning_summary_text.delta", json!({ "output_index": 52, "summary_index": 3, "delta": "hm" })),
        ("function_call_arguments.delta", json!({ "output_index": 53, "delta": "{}" })),
        ("new_kind.delta", json!({ "output_index": 0, "delta": "?" })),
    ];
    let mut checked = 0;
    for (kind, fields) in &odd {
        for place in 1..rich().len() {
            let mut plain = rich();
            let mut whole = fields.clone();
            for name in ["text", "refusal", "arguments"] {
                whole[name] = fields.get("delta").cloned().unwrap_or_default();
            }
            plain.insert(place, event(&kind.replace(".delta", ".done"), &whole));
            plain.insert(place, event(kind, fields));
            let before = format!("{{\"before\":\"{}\",", "x".repeat(80));
            let unlike: Vec<String> = plain.iter().map(|event| event.replacen('{', &before, 1)).collect();
            let (one, other) = (decode(&plain), decode(&unlike));
            // A call without an id gets one of ours.
            let content = |decoded: Result<AssistantMessage, crate::ProviderError>| {
                let mut content = decoded.unwrap().content;
                for part in &mut content {
                    if let Part::ToolCall(call) = part
                        && call.name.is_empty()
                    {
                        call.id.clear();
                    }
                }
                content
            };
            assert_eq!(content(one.answer), content(other.answer), "{kind} {fields} at {place}");
            assert_eq!(one.shown, other.shown, "{kind} {fields} at {place}");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn events_that_are_errors_and_events_that_are_not() {
    let check = |event: &str, expected: Taken| {
        let mut decoder = decode::ResponsesDecoder::default();
        assert_eq!(decoder.take(event, &mut VecDeque::new()), expected, "{event}");
    };
    for event in [
        r#"{"type":"error","sequence_number":2,"error":{"type":"server_error","code":"server_error","message":"m"}}"#,
        r#"{"type":"error","code":"rate_limit_exceeded","message":"m","param":null}"#,
        r#"{"type":"invalid_request_error","message":"m"}"#,
        r#"{"error":{"message":"m"}}"#,
        r#"{"detail":"m"}"#,
    ] {
        check(event, Taken::Error(event.to_owned()));
    }
    let failed = |response: Value| event("failed", &json!({ "response": response }));
    check(
        &failed(json!({ "status": "failed", "error": { "code": "server_error", "message": "m" } })),
        Taken::Error(r#"{"error":{"code":"server_error","message":"m"}}"#.to_owned()),
    );
    let unknown = r#"{"error":{"message":"the response ended with the status failed"}}"#;
    check(&failed(json!({ "status": "failed", "error": null })), Taken::Error(unknown.to_owned()));
    check(r#"{"type":"ping"}"#, Taken::Nothing);
    check(r#"{"type":"response.created","response":{"error":null}}"#, Taken::Nothing);
    check(r#"{"object":"response","status":"queued","output":[]}"#, Taken::Nothing);
    check(r#"{"choices":[]}"#, Taken::Unreadable);
    check("no JSON", Taken::Unreadable);
    // Fields of the wrong form fail no answer.
    for event in [
        r#"{"type":"response.output_item.done","output_index":"?","item":7}"#,
        r#"{"type":"response.output_item.added","output_index":-1,"item":null}"#,
        r#"{"type":"response.output_text.delta","output_index":0.5,"delta":{"x":1}}"#,
        r#"{"type":"response.completed","response":{"status":7,"output":{},"usage":[],"incomplete_details":1}}"#,
    ] {
        let mut decoder = decode::ResponsesDecoder::default();
        let taken = decoder.take(event, &mut VecDeque::new());
        assert!(matches!(taken, Taken::Progress | Taken::Nothing), "{event}: {taken:?}");
    }
}

/// An answer in which the model says that it refuses has ended for that reason, streamed and whole.
#[test]
fn answers_that_refuse() {
    let message = |kind: &str, text: &str| {
        json!({ "type": "message", "role": "assistant", "content": [{ "type": kind, kind: text }] })
            .to_string()
    };
    let check = |events: Vec<String>, said: &str, stop: StopReason| {
        let answer = decode(&events).answer.unwrap();
        assert_eq!((answer.text().as_str(), answer.stop), (said, stop), "{events:?}");
    };
    let refused = message("refusal", "I can't.");
    check(
        vec![
            added(0, r#"{"type":"message","content":[],"role":"assistant"}"#),
            delta("refusal", 0, 0, "I can't."),
            done(0, &refused),
            completed(&json!([])),
        ],
        "I can't.",
        StopReason::ContentFilter,
    );
    let item: Value = serde_json::from_str(&refused).unwrap();
    check(vec![completed(&json!([item]))], "I can't.", StopReason::ContentFilter);
    for text in ["", "a \"refusal\""] {
        let kind = if text.is_empty() { "refusal" } else { "text" };
        let ends =
            vec![done(0, &message("text", "Well.")), done(1, &message(kind, text)), completed(&json!([]))];
        check(ends, &format!("Well.{text}"), StopReason::Stop);
    }
}

#[test]
fn refusals_and_their_classes() {
    use FailureClass::{
        Auth, ContentFilter, ContextOverflow, OpaqueRefused, Other, Overloaded, Quota, RateLimited,
        RequestTooLargeForRateLimit,
    };
    let check = |status: u16, code: &str, message: &str, class: FailureClass, wait_ms: Option<u64>| {
        let body = json!({ "error": { "message": message, "type": "invalid_request_error", "param": null, "code": code } });
        let failure = classify(Some(status), &body.to_string(), None);
        assert_eq!((failure.class, failure.retry_after_ms), (class, wait_ms), "{status} {code} {message}");
    };
    let window =
        "Your input exceeds the context window of this model. Please adjust your input and try again.";
    check(400, "context_length_exceeded", window, ContextOverflow, None);
    check(401, "invalid_api_key", "Incorrect API key provided.", Auth, None);
    check(
        429,
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
        Quota,
        None,
    );
    check(
        429,
        "rate_limit_exceeded",
        "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 1.898s.",
        RateLimited,
        Some(1_898),
    );
    check(
        429,
        "rate_limit_exceeded",
        "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 40000.",
        RequestTooLargeForRateLimit,
        None,
    );
    check(
        500,
        "server_error",
        "The server had an error while processing your request. Sorry about that!",
        Overloaded,
        None,
    );
    check(
        503,
        "server_is_overloaded",
        "Our servers are currently overloaded. Please try again later.",
        Overloaded,
        None,
    );
    check(
        400,
        "invalid_encrypted_content",
        "The encrypted content gAAA...Rg== could not be verified.",
        OpaqueRefused,
        None,
    );
    check(400, "", "Encrypted content is not supported with this model.", Other, None);
    check(
        404,
        "",
        "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
        Other,
        None,
    );
    check(400, "", "No tool output found for function call call_1.", Other, None);
    check(
        400,
        "",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        OpaqueRefused,
        None,
    );
    check(
        400,
        "invalid_prompt",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        ContentFilter,
        None,
    );
    // In the middle of a stream there is no status.
    let in_stream = |code: &str, message: &str, class: FailureClass, wait_ms: Option<u64>| {
        let failed = event(
            "failed",
            &json!({ "response": { "status": "failed", "error": { "code": code, "message": message } } }),
        );
        let nested =
            json!({ "type": "error", "error": { "type": "error", "code": code, "message": message } });
        let flat = json!({ "type": "error", "code": code, "message": message, "param": null });
        for event in [failed, nested.to_string(), flat.to_string()] {
            let mut decoder = decode::ResponsesDecoder::default();
            let Taken::Error(body) = decoder.take(&event, &mut VecDeque::new()) else { panic!("{event}") };
            let failure = error_in_stream(&body).failure;
            assert_eq!((failure.class, failure.retry_after_ms), (class, wait_ms), "{event}");
        }
    };
    in_stream("context_length_exceeded", window, ContextOverflow, None);
    in_stream("rate_limit_exceeded", "Rate limit reached. Please try again in 20ms.", RateLimited, Some(20));
    in_stream(
        "server_error",
        "An error occurred while processing your request. You can retry your request.",
        Overloaded,
        None,
    );
    in_stream("insufficient_quota", "You exceeded your current quota.", Quota, None);
    in_stream("server_is_overloaded", "Our servers are currently overloaded.", Overloaded, None);
    in_stream(
        "invalid_prompt",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        ContentFilter,
        None,
    );
    in_stream("new_code", "Something new.", FailureClass::Malformed, None);
}

/// A random message of a conversation, with the answers of several providers.
fn random_message(random: &mut Random) -> Vec<Message> {
    let pieces: [&[Part]; 6] = [
        &content(&[done(0, REASONING)]),
        &content(&[done(0, COMMENTARY)]),
        &content(&[done(0, SEARCH)]),
        &content(&[done(0, FINAL)]),
        &[text("plain")],
        &[thought("mine"), Part::OpaqueReasoning { dialect: "gemini".to_owned(), data: "{}".to_owned() }],
    ];
    match random.index(3) {
        0 => vec![Message::user("and?")],
        1 => vec![Message::User(vec![said("see"), picture()])],
        _ => {
            let mut parts: Vec<Part> = Vec::new();
            for _ in 0..random.index(5) {
                parts.extend_from_slice(pieces[random.index(pieces.len())]);
                // The runtime may have dropped a part.
                if random.index(4) == 0 {
                    let at = random.index(parts.len());
                    parts.remove(at);
                }
            }
            let id = format!("call_{}", random.index(1_000_000));
            let calls = random.index(2) == 0;
            if calls {
                parts.push(call(&id, "{}"));
            }
            let provider = ["openai", "azure", "anthropic"][random.index(3)].to_owned();
            let mut messages = vec![Message::Assistant(AssistantMessage { provider, ..answer(parts) })];
            messages.extend(calls.then(|| result(&id, vec![said("ok")])));
            messages
        }
    }
}

#[test]
fn a_request_begins_with_the_one_before_it() {
    let (mut requests, mut with_reasoning) = (0, 0);
    for seed in 1..=300_u64 {
        let mut random = Random::new(seed);
        let mut one = request("gpt-5", Vec::new());
        let mut before: Vec<Value> = Vec::new();
        for _ in 0..8 {
            random_message(&mut random).into_iter().for_each(|message| one.messages.push(Arc::new(message)));
            let items = body(&one)["input"].take();
            let items = items.as_array().unwrap();
            assert!(items.starts_with(&before), "seed {seed}: {before:?}\n{items:?}");
            for pair in items.windows(2).filter(|pair| pair[0]["type"] == "reasoning") {
                with_reasoning += 1;
                assert!(pair[1]["role"] != "user", "seed {seed}: {pair:?}");
                assert!(pair[1]["type"] != "function_call_output", "seed {seed}: {pair:?}");
            }
            before.clone_from(items);
            requests += 1;
        }
    }
    assert!(requests >= 2_000 && with_reasoning >= 200, "{requests} {with_reasoning}");
}

/// The request, its answer, and the next request.
#[test]
fn a_compaction_is_asked_for_and_sent_back_as_it_came() {
    let mut asked = request(
        "gpt-5",
        vec![
            Message::user("Hi"),
            Message::Assistant(answer(vec![text("Hello")])),
            Message::user("Write the record."),
        ],
    );
    asked.purpose = Purpose::Compaction;
    asked.system = Some("Be brief.".to_owned());
    let sent = encoded(&asked, &ServerOptions::responses("k"));
    assert_eq!(sent.path, "responses/compact");
    let wire: Value = serde_json::from_slice(&sent.body.concat()).unwrap();
    let expected = json!({
        "model": "gpt-5", "instructions": "Be brief.", "prompt_cache_key": "s1",
        "input": [
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Hello" }] },
        ],
    });
    assert_eq!(wire, expected, "neither tools nor settings, and no instruction of ours");

    let items = [
        r#"{"id":"msg_1","type":"message","role":"user","status":"completed","content":[{"type":"input_text","text":"Hi"}]}"#,
        r#"{"id":"cmp_1","type":"compaction","encrypted_content":"gAAA=="}"#,
    ];
    let arrived = format!(
        r#"{{"id":"resp_1","object":"response.compaction","created_at":1,"output":[{},{}],"usage":{{"input_tokens":139,"output_tokens":438}}}}"#,
        items[0], items[1]
    );
    let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
    assert_eq!(decoder.take(&arrived, &mut VecDeque::new()), Taken::Progress);
    let context =
        CallContext { provider: "openai", model: "gpt-5", purpose: Purpose::Compaction, messages: &[] };
    let answer = decoder.finish(&context, &mut VecDeque::new()).unwrap();
    assert_eq!((answer.stop, answer.usage.map(|usage| usage.output_tokens)), (StopReason::Stop, Some(438)));
    assert_eq!(answer.content, items.map(block), "each item as it came, in order");

    // Only an answer with such an item is a compaction, and a call in it has no result.
    let call = r#"{"id":"fc_1","type":"function_call","call_id":"c","name":"look","arguments":"{}"}"#;
    let compacted = |items: &[&str]| {
        let whole =
            format!(r#"{{"object":"response.compaction","output":[{}],"usage":null}}"#, items.join(","));
        let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
        decoder.take(&whole, &mut VecDeque::new());
        decoder.finish(&context, &mut VecDeque::new()).map_or_else(|_| Vec::new(), |answer| answer.content)
    };
    assert_eq!(compacted(&[call]), []);
    assert_eq!(compacted(&items[..1]), []);
    assert_eq!(compacted(&[items[0], call, items[1]]), items.map(block));

    let native = |provider: &str| {
        Block::Native(greenroom_kernel::Native {
            provider: provider.to_owned(),
            dialect: DIALECT.to_owned(),
            blocks: items.map(str::to_owned).to_vec(),
        })
    };
    let summary = |provider: &str| Message::User(vec![said("the summary"), native(provider), said("files")]);
    let next = encoded(&request("gpt-5", vec![summary("openai")]), &ServerOptions::responses("k")).body;
    let next = String::from_utf8(next.concat()).unwrap();
    assert!(
        next.contains(&format!(r#""input":[{},{},{{"type":"message","role":"user""#, items[0], items[1])),
        "{next}"
    );
    assert!(next.contains("files") && !next.contains("the summary"), "{next}");
    // Another account cannot read it.
    let foreign = input(vec![summary("azure")]);
    assert_eq!(foreign.as_array().map(Vec::len), Some(1));
    assert_eq!(foreign[0]["content"][0]["text"], "the summary");
}

/// xAI answers with one item, which stands for the whole conversation: by its documentation of context compaction.
#[test]
fn xai_compacts_a_conversation_to_one_item() {
    const ITEM: &str = r#"{"type":"compaction","id":"cmp_x","encrypted_content":"xAI+/=="}"#;
    let base_url = "https://api.x.ai/v1".parse().unwrap();
    let options = ServerOptions { name: "xai".to_owned(), base_url, ..ServerOptions::responses("k") };
    let xai = Responses::new(&options);
    assert_eq!(xai.native_compaction("grok-4"), Some(NativeCompaction::Opaque));
    let mut asked = request("grok-4", vec![Message::user("Hi"), Message::user("Write the record.")]);
    asked.purpose = Purpose::Compaction;
    let sent = encoded(&asked, &options);
    assert_eq!(sent.path, "responses/compact");
    let wire: Value = serde_json::from_slice(&sent.body.concat()).unwrap();
    let names: Vec<&String> = wire.as_object().unwrap().keys().collect();
    assert_eq!(names, ["model", "input"], "fields that only OpenAI is known to take are left out");

    let whole = format!(
        r#"{{"id":"r","object":"response.compaction","output":[{ITEM}],"usage":{{"input_tokens":9000,"output_tokens":300}}}}"#
    );
    let mut decoder: Box<dyn Decoder> = Box::<decode::ResponsesDecoder>::default();
    assert_eq!(decoder.take(&whole, &mut VecDeque::new()), Taken::Progress);
    let context =
        CallContext { provider: "xai", model: "grok-4", purpose: Purpose::Compaction, messages: &[] };
    let answer = decoder.finish(&context, &mut VecDeque::new()).unwrap();
    assert_eq!(answer.content, [block(ITEM)]);
    let native = Block::Native(greenroom_kernel::Native {
        provider: "xai".to_owned(),
        dialect: DIALECT.to_owned(),
        blocks: vec![ITEM.to_owned()],
    });
    let next =
        request("grok-4", vec![Message::User(vec![said("the summary"), native]), Message::user("Go on.")]);
    let next = String::from_utf8(encoded(&next, &options).body.concat()).unwrap();
    assert!(next.contains(&format!(r#""input":[{ITEM},"#)) && !next.contains("the summary"), "{next}");
}

/// A count is of the same request, without what the operation does not take.
#[test]
fn a_count_is_asked_for_with_the_fields_that_count() {
    let mut asked = request("gpt-5", vec![Message::user("Hi.")]);
    asked.system = Some("Be brief.".to_owned());
    asked.settings.reasoning_effort = Some(ReasoningEffort::High);
    asked.settings.output_tokens_max = Some(100);
    let options = ServerOptions::responses("k");
    let responses = Responses::new(&options);
    let count = responses.encode_count(&asked, &options).unwrap().unwrap();
    assert_eq!((&*count.path, responses.count_field()), ("responses/input_tokens", "input_tokens"));
    let whole = body(&asked);
    let body: Value = serde_json::from_slice(&count.body.concat()).unwrap();
    let names: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert_eq!(names, ["model", "instructions", "input", "reasoning"]);
    for name in names {
        assert_eq!(body[name], whole[name], "{name}");
    }
}

/// Some gateways leave out of an item's end what came in pieces.
#[test]
fn an_end_without_its_text_keeps_what_came_in_pieces() {
    let events = [
        added(0, r#"{"type":"function_call","call_id":"c","name":"read","arguments":""}"#),
        event("function_call_arguments.delta", &json!({ "output_index": 0, "delta": "{\"p\":1}" })),
        done(0, r#"{"type":"function_call","call_id":"c","name":"read"}"#),
        added(1, r#"{"type":"message","content":[]}"#),
        delta("output_text", 1, 0, "hello"),
        done(1, r#"{"type":"message","content":[]}"#),
        r#"{"type":"response.completed","response":{"status":"completed"}}"#.to_owned(),
    ];
    let content = content(&events);
    let has_call =
        content.iter().any(|part| matches!(part, Part::ToolCall(call) if call.arguments == "{\"p\":1}"));
    assert!(has_call, "{content:?}");
    assert_eq!(content.last(), Some(&Part::Text("hello".into())), "{content:?}");
}
