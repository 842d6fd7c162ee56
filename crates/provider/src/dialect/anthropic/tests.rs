//! Requests as exact JSON, answers from events, and both together: what came is what is sent again.

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
use crate::dialect::{CallContext, Progress, Taken};
use crate::{ModelSettings, OutputSchema, Purpose, ReasoningEffort, ReplyEvent, ToolChoice};

fn request(messages: Vec<Message>) -> Request {
    Request {
        model: "claude-opus-4-7".to_owned(),
        system: None,
        messages: messages.into_iter().map(Arc::new).collect(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".to_owned(),
    }
}

fn encoded(request: &Request, options: &ServerOptions) -> Encoded {
    Anthropic::new(options).encode(request, options, &mut History::default()).expect("it can be written")
}

fn body(request: &Request) -> Value {
    let body = encoded(request, &ServerOptions::anthropic("k")).body;
    serde_json::from_slice(&body.concat()).expect("a body is JSON")
}

/// The body without the marks of cache breakpoints.
fn unmarked(mut body: Value) -> Value {
    fn clean(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("cache_control");
                fields.values_mut().for_each(clean);
            }
            Value::Array(items) => items.iter_mut().for_each(clean),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    clean(&mut body);
    body
}

fn answer(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage::new(content, "anthropic", "m", StopReason::Stop)
}

fn call(id: &str, arguments: &str) -> Part {
    Part::ToolCall(ToolCall { id: id.to_owned(), name: "read".to_owned(), arguments: arguments.to_owned() })
}

fn result(id: &str, content: Vec<Block>, status: ToolStatus) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.to_owned(),
        tool_name: "read".to_owned(),
        content,
        status,
        touched: Vec::new(),
    })
}

fn opaque(data: &str) -> Part {
    Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: data.to_owned() }
}

fn block(data: &str) -> Part {
    Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: data.to_owned() }
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

/// Decodes events, and returns the answer, what was shown, and how far the answer came.
fn decode_for(
    purpose: Purpose,
    events: &[Value],
) -> (Result<AssistantMessage, crate::ProviderError>, Vec<ReplyEvent>, Progress) {
    let mut decoder: Box<dyn Decoder> = Box::<decode::AnthropicDecoder>::default();
    let mut shown = VecDeque::new();
    for event in events {
        let taken = decoder.take(&event.to_string(), &mut shown);
        assert!(matches!(taken, Taken::Progress | Taken::Nothing), "{event}: {taken:?}");
    }
    let progress = decoder.progress();
    let context = CallContext { provider: "anthropic", model: "m", purpose, messages: &[] };
    (decoder.finish(&context, &mut shown), shown.into(), progress)
}

/// Decodes the events of a step.
fn decode(events: &[Value]) -> (Result<AssistantMessage, crate::ProviderError>, Vec<ReplyEvent>, Progress) {
    decode_for(Purpose::Step, events)
}

fn start(index: u64, block: &Value) -> Value {
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

fn delta(index: u64, delta: &Value) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": delta })
}

fn stop(index: u64) -> Value {
    json!({ "type": "content_block_stop", "index": index })
}

/// The events of a whole answer with these blocks, which end for this reason.
fn events(blocks: Vec<Value>, reason: &str) -> Vec<Value> {
    let mut events = vec![
        json!({ "type": "message_start", "message": { "content": [], "usage": { "input_tokens": 9, "output_tokens": 1 } } }),
        json!({ "type": "ping" }),
    ];
    events.extend(blocks);
    events.push(json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": { "output_tokens": 7 } }));
    events.push(json!({ "type": "message_stop" }));
    events
}

/// An answer that has everything at once, in the order in which it came.
fn rich() -> Vec<Value> {
    vec![
        start(0, &json!({ "type": "thinking", "thinking": "", "signature": "" })),
        delta(0, &json!({ "type": "thinking_delta", "thinking": "Let me " })),
        delta(0, &json!({ "type": "thinking_delta", "thinking": "see." })),
        delta(0, &json!({ "type": "signature_delta", "signature": "EqQB+/x" })),
        delta(0, &json!({ "type": "signature_delta", "signature": "yz==" })),
        stop(0),
        start(1, &json!({ "type": "text", "text": "" })),
        delta(1, &json!({ "type": "text_delta", "text": "First é\u{1f600}." })),
        delta(1, &json!({ "type": "citations_delta", "citation": { "type": "page_location", "n": 1.50 } })),
        delta(1, &json!({ "type": "citations_delta", "citation": { "cited_text": "a ] b" } })),
        stop(1),
        start(2, &json!({ "type": "redacted_thinking", "data": "Redacted+/==" })),
        stop(2),
        start(3, &json!({ "type": "thinking", "thinking": "", "signature": "" })),
        delta(3, &json!({ "type": "signature_delta", "signature": "Only==" })),
        stop(3),
        start(4, &json!({ "type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {} })),
        delta(4, &json!({ "type": "input_json_delta", "partial_json": "{\"query\": " })),
        delta(4, &json!({ "type": "input_json_delta", "partial_json": "\"x\"}" })),
        stop(4),
        start(
            5,
            &json!({ "type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{ "encrypted_content": "Enc/+" }] }),
        ),
        stop(5),
        start(6, &json!({ "type": "text", "text": "", "citations": null })),
        delta(6, &json!({ "type": "text_delta", "text": "Second." })),
        stop(6),
        start(
            7,
            &json!({ "type": "tool_use", "id": "toolu_1", "name": "read", "input": {}, "caller": { "type": "direct" } }),
        ),
        delta(7, &json!({ "type": "input_json_delta", "partial_json": "" })),
        delta(7, &json!({ "type": "input_json_delta", "partial_json": "{\"n\": 1e3, " })),
        delta(7, &json!({ "type": "input_json_delta", "partial_json": "\"s\":\"\\u00e9\"}" })),
        stop(7),
    ]
}

#[test]
fn an_answer_keeps_every_block_in_its_place() {
    let (decoded, shown, progress) = decode(&events(rich(), "tool_use"));
    let decoded = decoded.expect("it is there");
    assert_eq!(progress, Progress::Over);
    assert_eq!(
        decoded.content,
        vec![
            Part::Reasoning("Let me see.".to_owned()),
            opaque(r#"{"type":"thinking","signature":"EqQB+/xyz=="}"#),
            text("First é\u{1f600}."),
            opaque(
                r#"{"type":"text","citations":[{"type":"page_location","n":1.5},{"cited_text":"a ] b"}]}"#
            ),
            opaque(r#"{"type":"redacted_thinking","data":"Redacted+/=="}"#),
            opaque(r#"{"type":"thinking","signature":"Only==","thinking":""}"#),
            block(r#"{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query": "x"}}"#),
            block(
                r#"{"type":"web_search_tool_result","tool_use_id":"srv_1","content":[{"encrypted_content":"Enc/+"}]}"#
            ),
            text("Second."),
            call("toolu_1", "{\"n\": 1e3, \"s\":\"\\u00e9\"}"),
            opaque(r#"{"type":"tool_use","caller":{"type":"direct"}}"#),
        ]
    );
    assert_eq!((decoded.stop, decoded.stop_raw.as_deref()), (StopReason::ToolCalls, Some("tool_use")));
    let usage = Usage { input_tokens: 9, output_tokens: 7, ..Usage::default() };
    assert_eq!(decoded.usage, Some(usage));
    let words = |wanted: fn(&ReplyEvent) -> Option<&str>| shown.iter().filter_map(wanted).collect::<String>();
    let texts = words(|event| if let ReplyEvent::Text(text) = event { Some(text) } else { None });
    let thoughts = words(|event| if let ReplyEvent::Reasoning(text) = event { Some(text) } else { None });
    let arguments =
        words(
            |event| if let ReplyEvent::ToolCall { arguments, .. } = event { Some(arguments) } else { None },
        );
    assert_eq!((&*texts, &*thoughts), ("First é\u{1f600}.Second.", "Let me see."));
    assert_eq!(arguments, "{\"n\": 1e3, \"s\":\"\\u00e9\"}");
}

/// Events in the form that almost all have are read without their fields; any other form says the same.
#[test]
fn pieces_mean_the_same_in_every_form() {
    let odd = [
        json!({ "type": "text_delta", "text": null }),
        json!({ "type": "text_delta", "text": "a\"b\u{1}" }),
        json!({ "type": "text_delta", "text": "a", "thinking": "b" }),
        json!({ "type": "text_delta", "thinking": "b" }),
        json!({ "type": "text_delta", "text": "a", "new": [1] }),
        json!({ "type": "text_delta" }),
        json!({ "text": "without a type" }),
        json!({ "type": "input_json_delta", "partial_json": "{}" }),
        json!({ "type": "thinking_delta", "thinking": "" }),
    ];
    let mut checked = 0;
    for index in [0, 2, 6, 99] {
        for odd in &odd {
            let mut plain = events(rich(), "tool_use");
            let place = plain.len() - 3;
            plain.insert(place, delta(index, odd));
            let unlike: Vec<Value> = plain
                .iter()
                .map(|event| {
                    let text = event.to_string().replacen('{', "{\"before\":0,", 1);
                    serde_json::from_str(&text).expect("it is JSON")
                })
                .collect();
            let ((one, shown, _), (other, other_shown, _)) = (decode(&plain), decode(&unlike));
            assert_eq!(one.expect("an answer"), other.expect("an answer"), "{odd} at {index}");
            assert_eq!(shown, other_shown, "{odd} at {index}");
            checked += 1;
        }
    }
    assert_eq!(checked, 36);
}

/// Checks that the answer of these events is sent again as these blocks, byte for byte.
fn check_sent_again(blocks: Vec<Value>, reason: &str, expected: &str) {
    let (decoded, ..) = decode(&events(blocks, reason));
    let request = request(vec![Message::user("go"), Message::Assistant(decoded.expect("it is there"))]);
    let sent = encoded(&request, &ServerOptions::anthropic("k")).body.concat();
    let sent = String::from_utf8(sent).expect("it is there");
    let expected = format!(r#"{{"role":"assistant","content":{expected}}}"#);
    assert!(sent.contains(&expected), "{expected}\n is not in \n{sent}");
}

#[test]
fn what_came_is_sent_again() {
    check_sent_again(
        rich(),
        "tool_use",
        concat!(
            r#"[{"type":"thinking","signature":"EqQB+/xyz==","thinking":"Let me see."},"#,
            r#"{"type":"text","citations":[{"type":"page_location","n":1.5},{"cited_text":"a ] b"}],"text":"First é😀."},"#,
            r#"{"type":"redacted_thinking","data":"Redacted+/=="},"#,
            r#"{"type":"thinking","signature":"Only==","thinking":""},"#,
            r#"{"type":"server_tool_use","id":"srv_1","name":"web_search","input":{"query": "x"}},"#,
            r#"{"type":"web_search_tool_result","tool_use_id":"srv_1","content":[{"encrypted_content":"Enc/+"}]},"#,
            r#"{"type":"text","text":"Second."},"#,
            r#"{"type":"tool_use","caller":{"type":"direct"},"id":"toolu_1","name":"read","input":{"n": 1e3, "s":"\u00e9"}}]"#,
        ),
    );
    // A compaction by the provider comes whole in one event, and is a block like any other.
    let compaction = json!({ "type": "compaction", "content": "What happened so far.", "signature": "Sig==", "tool_changes": [] });
    check_sent_again(
        vec![start(0, &compaction), stop(0)],
        "compaction",
        r#"[{"type":"compaction","content":"What happened so far.","signature":"Sig==","tool_changes":[]}]"#,
    );
    // A kind of block and of delta that nobody knows today.
    let strange = vec![
        start(0, &json!({ "type": "hologram", "beam": "a", "n": 1 })),
        delta(0, &json!({ "type": "beam_delta", "beam": "b" })),
        delta(0, &json!({ "type": "n_delta", "n": 2 })),
        stop(0),
    ];
    check_sent_again(strange, "end_turn", r#"[{"type":"hologram","beam":"ab","n":2}]"#);
}

#[test]
fn a_block_without_its_end_is_not_sent_again() {
    let whole = events(rich(), "tool_use");
    let mut cut = 0;
    for length in 1..whole.len() {
        let (decoded, _, progress) = decode(&whole[..length]);
        let ended = whole[..length].iter().any(|event| event["type"] == "message_delta");
        assert_eq!(progress == Progress::Open, !ended, "after {length}");
        let decoded = decoded.expect("it is there");
        let stopped = |wanted: u64| {
            whole[..length]
                .iter()
                .any(|event| event["type"] == "content_block_stop" && event["index"] == wanted)
        };
        let data: String = decoded
            .content
            .iter()
            .filter_map(|part| match part {
                Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => Some(data.as_str()),
                Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | _ => None,
            })
            .collect();
        for (index, mark) in [
            (0, "EqQB"),
            (1, "cited_text"),
            (2, "Redacted"),
            (3, "Only"),
            (4, "web_search\""),
            (5, "Enc"),
            (7, "caller"),
        ] {
            assert_eq!(data.contains(mark), stopped(index), "{mark} after {length}: {data}");
        }
        cut += 1;
    }
    assert!(cut > 30, "only {cut} ends were tried");
}

#[test]
fn ends_of_answers() {
    let check = |blocks: Vec<Value>, reason: &str, expected: StopReason| {
        let (decoded, ..) = decode(&events(blocks, reason));
        let decoded = decoded.expect("it is there");
        assert_eq!((decoded.stop, decoded.stop_raw.as_deref()), (expected, Some(reason)));
    };
    let said = || vec![start(0, &json!({ "type": "text", "text": "so" })), stop(0)];
    let called = || {
        vec![
            start(0, &json!({ "type": "tool_use", "id": "t", "name": "read", "input": { "a": 1 } })),
            stop(0),
        ]
    };
    check(said(), "end_turn", StopReason::Stop);
    check(said(), "stop_sequence", StopReason::Stop);
    check(said(), "a_reason_of_tomorrow", StopReason::Stop);
    check(said(), "tool_use", StopReason::Stop);
    check(called(), "end_turn", StopReason::ToolCalls);
    check(called(), "max_tokens", StopReason::Length);
    check(said(), "max_tokens", StopReason::Length);
    check(said(), "model_context_window_exceeded", StopReason::Length);
    check(said(), "pause_turn", StopReason::Paused);
    check(said(), "refusal", StopReason::ContentFilter);
    check(Vec::new(), "refusal", StopReason::ContentFilter);
    let (failed, ..) = decode(&events(Vec::new(), "model_context_window_exceeded"));
    assert_eq!(failed.expect_err("it fails").failure.class, FailureClass::ContextOverflow);
    // A call that came whole, and one without any input.
    let (decoded, ..) = decode(&events(called(), "tool_use"));
    assert_eq!(decoded.expect("it is there").content, vec![call("t", r#"{"a":1}"#)]);
    let bare =
        vec![start(0, &json!({ "type": "tool_use", "id": "t", "name": "read", "input": {} })), stop(0)];
    let (decoded, ..) = decode(&events(bare, "tool_use"));
    assert_eq!(decoded.expect("it is there").content, vec![call("t", "")]);
}

#[test]
fn whole_answers_are_read_like_streams() {
    let whole = json!({
        "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "S==" },
            { "type": "text", "text": "So." },
            { "type": "tool_use", "id": "t", "name": "read", "input": { "a": 1 } },
        ],
        "usage": { "input_tokens": 3, "output_tokens": 4 },
    });
    let (decoded, shown, progress) = decode(&[whole]);
    let decoded = decoded.expect("it is there");
    assert_eq!((progress, decoded.stop, shown.len()), (Progress::Over, StopReason::ToolCalls, 3));
    let thinking = opaque(r#"{"type":"thinking","signature":"S=="}"#);
    let expected = vec![Part::Reasoning("Hm.".to_owned()), thinking, text("So."), call("t", r#"{"a":1}"#)];
    assert_eq!(decoded.content, expected);
}

#[test]
fn usage_is_the_newest_of_each_count() {
    let check = |reports: &[Value], expected: Option<(u64, u64, u64, u64, u64, u64)>| {
        let mut all = vec![json!({ "type": "message_start", "message": { "usage": reports[0] } })];
        let later = reports[1..].iter().map(
            |usage| json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": usage }),
        );
        all.extend(later);
        let usage = decode(&all).0.expect("it is there").usage;
        let counts = usage.map(|usage| {
            (
                usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens,
                usage.cache_write_hour_tokens, usage.output_tokens, usage.reasoning_tokens,
            )
        });
        assert_eq!(counts, expected, "{reports:?}");
    };
    check(&[json!({})], None);
    check(&[json!({ "input_tokens": 0, "output_tokens": 0 })], None);
    check(
        &[json!({ "input_tokens": 5, "output_tokens": 1 }), json!({ "output_tokens": 20 })],
        Some((5, 0, 0, 0, 20, 0)),
    );
    // What was read from the cache and written to it is input too.
    check(
        &[
            json!({ "input_tokens": 10, "cache_read_input_tokens": 1200, "cache_creation_input_tokens": 300, "output_tokens": 1 }),
            json!({ "input_tokens": null, "output_tokens": 400, "output_tokens_details": { "thinking_tokens": 210 } }),
        ],
        Some((1510, 1200, 300, 0, 400, 210)),
    );
    check(
        &[json!({ "input_tokens": 10, "output_tokens": 1,
            "cache_creation": { "ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 50 } })],
        Some((160, 0, 150, 50, 1, 0)),
    );
    // Some servers count the input at the end only.
    check(
        &[
            json!({ "input_tokens": 0, "output_tokens": 0 }),
            json!({ "input_tokens": 77, "output_tokens": 8 }),
        ],
        Some((77, 0, 0, 0, 8, 0)),
    );
    // A compaction by the provider is in the iterations only.
    check(
        &[
            json!({ "input_tokens": 0, "output_tokens": 0 }),
            json!({ "output_tokens": 0, "iterations": [{ "type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500 }] }),
        ],
        Some((180_000, 0, 0, 0, 3_500, 0)),
    );
}

#[test]
fn an_optional_field_of_another_type_counts_as_absent() {
    for other in [json!(false), json!(7), json!("none"), json!([]), json!({}), json!(null)] {
        let usage = json!({ "input_tokens": "5", "output_tokens": 2.0, "cache_read_input_tokens": "?",
            "cache_creation": other, "output_tokens_details": other, "iterations": other });
        let start = json!({ "type": "message_start", "message": { "usage": usage } });
        let piece = json!({ "type": "content_block_delta", "index": 0,
            "delta": { "type": "text_delta", "text": "yes" } });
        let end = json!({ "type": "message_delta", "delta": { "stop_reason": other }, "usage": other,
            "input_transformations": other, "stop_reason": other });
        let begun = json!({ "type": "content_block_start", "index": "0",
            "content_block": { "type": "text", "text": "" } });
        let answer = decode(&[start, begun, piece, end, json!({ "type": "message_stop" })]).0;
        let answer = answer.unwrap_or_else(|error| panic!("{other}: {error}"));
        assert_eq!(&*answer.content, &[text("yes")][..], "{other}");
        let usage = answer.usage.map(|usage| (usage.input_tokens, usage.output_tokens));
        assert_eq!(usage, Some((5, 2)), "{other}");
    }
}

/// An answer's usage is that of the model's last pass; those before it are told, to be billed.
#[test]
fn each_pass_of_the_model_is_told() {
    let check = |report: Value, expected: (u64, u64), told: &[(u64, u64)]| {
        let all = [
            json!({ "type": "message_start", "message": { "usage": { "input_tokens": 0, "output_tokens": 0 } } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": report }),
        ];
        let (answer, events, _) = decode(&all);
        let counts = |usage: &Usage| (usage.input_tokens, usage.output_tokens);
        let usage = answer.expect("it is there").usage.expect("it was reported");
        assert_eq!(counts(&usage), expected, "{report}");
        let passes = events.iter().filter_map(|event| {
            if let ReplyEvent::Spent(usage) = event { Some(counts(usage)) } else { None }
        });
        assert_eq!(passes.collect::<Vec<_>>(), told, "{report}");
    };
    let pass = |kind: &str, input: u64, output: u64| json!({ "type": kind, "input_tokens": input, "output_tokens": output });
    let with = |input: u64, output: u64, passes: Value| json!({ "input_tokens": input, "output_tokens": output, "iterations": passes });
    check(
        with(23_000, 1_000, json!([pass("compaction", 180_000, 3_500), pass("message", 23_000, 1_000)])),
        (23_000, 1_000),
        &[(180_000, 3_500)],
    );
    // With a provider's own tools the report is the sum of the passes.
    check(
        with(9_062, 141, json!([pass("message", 31, 52), pass("message", 9_031, 89)])),
        (9_031, 89),
        &[(31, 52)],
    );
    check(with(50, 5, json!([pass("message", 50, 5)])), (50, 5), &[]);
    check(with(50, 5, json!([])), (50, 5), &[]);
    // A list that lacks a pass.
    check(with(90, 9, json!([pass("message", 50, 5)])), (90, 9), &[]);
}

#[test]
fn errors_end_an_answer() {
    let mut decoder: Box<dyn Decoder> = Box::<decode::AnthropicDecoder>::default();
    let mut shown = VecDeque::new();
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    assert_eq!(decoder.take(error, &mut shown), Taken::Error(error.to_owned()));
    for garbage in ["no", "[]", "{\"a\":1}", "{\"type\":7}"] {
        assert_eq!(decoder.take(garbage, &mut shown), Taken::Unreadable, "{garbage}");
    }
    for unknown in [
        r#"{"type":"ping"}"#,
        r#"{"type":"weather","is":{"fine":[1]}}"#,
        r#"{"type":"content_block_delta","index":9,"delta":{"type":"text_delta","text":"x"}}"#,
    ] {
        assert_eq!(decoder.take(unknown, &mut shown), Taken::Nothing, "{unknown}");
    }
    assert!(shown.is_empty() && !decoder.has_output());
}

#[test]
fn error_bodies_have_their_class() {
    let check = |status: u16, kind: &str, message: &str, expected: FailureClass| {
        let body =
            json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": "req_1" });
        assert_eq!(
            classify(Some(status), &body.to_string(), None).class,
            expected,
            "{status} {kind}: {message}"
        );
    };
    check(
        400,
        "invalid_request_error",
        "prompt is too long: 215000 tokens > 200000 maximum",
        FailureClass::ContextOverflow,
    );
    check(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 190000 + 21000 > 200000, decrease input length or `max_tokens` and try again",
        FailureClass::ContextOverflow,
    );
    check(413, "request_too_large", "Request exceeds the maximum size", FailureClass::PayloadTooLarge);
    check(529, "overloaded_error", "Overloaded", FailureClass::Overloaded);
    check(500, "api_error", "Internal server error", FailureClass::Overloaded);
    check(
        429,
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 40,000 input tokens per minute",
        FailureClass::RateLimited,
    );
    check(401, "authentication_error", "invalid x-api-key", FailureClass::Auth);
    check(
        403,
        "permission_error",
        "Your API key does not have permission to use the specified resource",
        FailureClass::Auth,
    );
    check(
        400,
        "invalid_request_error",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits.",
        FailureClass::Quota,
    );
    check(
        400,
        "invalid_request_error",
        "messages.3.content.0: Invalid `signature` in `thinking` block",
        FailureClass::OpaqueRefused,
    );
    // In a stream the status is 200.
    check(200, "overloaded_error", "Overloaded", FailureClass::Overloaded);
}

#[test]
fn a_conversation_is_written_as_the_api_wants_it() {
    let picture = Block::Image(Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() });
    let said = |text: &str| Block::Text(text.to_owned());
    let foreign = |part| AssistantMessage { provider: "openai".to_owned(), ..answer(vec![part]) };
    let mut request = request(vec![
        Message::User(vec![said("look"), picture.clone(), said("  \n")]),
        Message::Assistant(answer(vec![
            Part::Reasoning("unsigned".to_owned()),
            text("Two."),
            call("a.b/1", r#"{"x": 1}"#),
            call("c", "not json"),
        ])),
        result("a.b/1", vec![said("one"), picture], ToolStatus::Ok),
        result("c", Vec::new(), ToolStatus::Error),
        Message::user("and now"),
        Message::Assistant(foreign(text(" "))),
        Message::Assistant(foreign(Part::OpaqueReasoning {
            dialect: "responses".to_owned(),
            data: "{}".to_owned(),
        })),
        Message::user("go"),
    ]);
    request.system = Some("Be brief.".to_owned());
    request.tools = Arc::from([ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({ "type": "object" }),
    }]);
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } });
    let id = sendable(&request);
    assert_eq!(
        body(&request),
        json!({
            "model": "claude-opus-4-7",
            "max_tokens": 32_000,
            "tools": [{ "name": "read", "description": "Reads.", "input_schema": { "type": "object" } }],
            "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": [
                    { "type": "text", "text": "look" },
                    { "type": "image", "source": image["source"], "cache_control": { "type": "ephemeral" } },
                ] },
                { "role": "assistant", "content": [
                    { "type": "text", "text": "Two." },
                    { "type": "tool_use", "id": id, "name": "read", "input": { "x": 1 } },
                    { "type": "tool_use", "id": "c", "name": "read", "input": { "invalid_arguments": "not json" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": id, "content": [{ "type": "text", "text": "one" }, image] },
                    { "type": "tool_result", "tool_use_id": "c", "content": [], "is_error": true },
                    { "type": "text", "text": "and now" },
                    { "type": "text", "text": "go", "cache_control": { "type": "ephemeral" } },
                ] },
            ],
            "stream": true,
        })
    );
}

/// The id of the first call of a request, which is not the one that was recorded.
fn sendable(request: &Request) -> String {
    let sent = body(request)["messages"][1]["content"][1]["id"].as_str().expect("it is there").to_owned();
    assert!(sent.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{sent}");
    sent
}

#[test]
fn an_attachment_is_not_sent_without_its_part() {
    let check = |parts: Vec<Part>, expected: Value| {
        let request = request(vec![Message::user("go"), Message::Assistant(answer(parts))]);
        let sent = body(&request);
        let sent = sent["messages"].get(1).map_or(Value::Null, |message| message["content"].clone());
        assert_eq!(sent, expected);
    };
    let so = || json!({ "type": "text", "text": "so" });
    // The thinking was left out, or a call above the limit was dropped.
    check(vec![opaque(r#"{"type":"thinking","signature":"S"}"#), text("so")], json!([so()]));
    check(vec![text("so"), opaque(r#"{"type":"tool_use","caller":{}}"#)], json!([so()]));
    check(vec![text("so"), opaque("not json"), opaque("{}")], json!([so()]));
    check(vec![opaque(r#"{"type":"text","citations":[1]}"#)], Value::Null);
    let cited = json!({ "type": "text", "citations": [1], "text": "so" });
    check(vec![text("so"), opaque(r#"{"type":"text","citations":[1]}"#)], json!([cited]));
}

#[test]
fn settings_are_sent_under_the_apis_names() {
    let check = |model: &str, settings: ModelSettings, expected: Value| {
        let mut request = request(vec![Message::user("hi")]);
        request.model = model.to_owned();
        request.settings = settings;
        request.tools = Arc::from([ToolSpec {
            name: "read".to_owned(),
            description: String::new(),
            parameters: json!({}),
        }]);
        let mut sent = body(&request);
        for field in ["model", "messages", "tools", "stream"] {
            sent.as_object_mut().expect("it is there").remove(field);
        }
        assert_eq!(sent, expected, "{model}");
    };
    let new = ModelSettings::new;
    let effort = |effort| new().reasoning_effort(effort);
    let adaptive = json!({ "type": "adaptive", "display": "summarized" });
    check("claude-opus-4-7", new(), json!({ "max_tokens": 32_000 }));
    check(
        "claude-opus-4-7",
        effort(ReasoningEffort::High).temperature(0.5).output_tokens_max(900),
        json!({ "max_tokens": 900, "thinking": adaptive, "output_config": { "effort": "high" } }),
    );
    check(
        "claude-fable-5",
        effort(ReasoningEffort::None).temperature(0.5).top_p(0.9),
        json!({ "max_tokens": 32_000, "thinking": { "type": "disabled" }, "temperature": 0.5, "top_p": 0.9 }),
    );
    let budget = |tokens: u64| json!({ "type": "enabled", "budget_tokens": tokens });
    for model in [
        "claude-sonnet-4-5-20250929", "claude-opus-4-20250514", "claude-opus-4-1",
        "claude-3-7-sonnet-latest", "anthropic.claude-haiku-4-5-v1:0",
    ] {
        let limit = 32_000;
        check(
            model,
            effort(ReasoningEffort::Medium),
            json!({ "max_tokens": limit, "thinking": budget(10_000) }),
        );
    }
    check(
        "claude-sonnet-4-5",
        effort(ReasoningEffort::High).output_tokens_max(4_000),
        json!({ "max_tokens": 4_000, "thinking": budget(2_000) }),
    );
    check(
        "claude-sonnet-4-5",
        effort(ReasoningEffort::High).output_tokens_max(1_500),
        json!({ "max_tokens": 1_500 }),
    );
    check("claude-3-5-haiku-20241022", new(), json!({ "max_tokens": 8_192 }));
    check("claude-3-opus-20240229", new(), json!({ "max_tokens": 4_096 }));
    check(
        "claude-opus-4-7",
        effort(ReasoningEffort::Low)
            .tool_choice(ToolChoice::Required)
            .parallel_tool_calls(false)
            .stop(["END"]),
        json!({ "max_tokens": 32_000, "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "stop_sequences": ["END"] }),
    );
    check(
        "claude-opus-4-7",
        new().tool_choice(ToolChoice::Tool("read".into())),
        json!({ "max_tokens": 32_000,
        "tool_choice": { "type": "tool", "name": "read" } }),
    );
    check(
        "claude-opus-4-7",
        new().tool_choice(ToolChoice::None),
        json!({ "max_tokens": 32_000,
        "tool_choice": { "type": "none" } }),
    );
    check(
        "claude-opus-4-7",
        new().parallel_tool_calls(false),
        json!({ "max_tokens": 32_000,
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": true } }),
    );
    // The user's own fields are merged with ours.
    check(
        "claude-opus-4-7",
        effort(ReasoningEffort::Low)
            .extra("thinking", json!({ "display": "omitted" }))
            .extra("top_k", 5)
            .seed(1),
        json!({ "max_tokens": 32_000, "thinking": { "type": "adaptive", "display": "omitted" },
            "output_config": { "effort": "low" }, "top_k": 5 }),
    );
}

/// A model that binds its thinking ignores what no longer fits, instead of refusing the request.
#[test]
fn bound_thinking_may_be_dropped_by_the_server() {
    let thought =
        vec![Part::Reasoning("hm".to_owned()), opaque(r#"{"type":"thinking","signature":"S"}"#), text("so")];
    let check = |model: &str,
                 parts: Vec<Part>,
                 settings: ModelSettings,
                 expected: Value,
                 beta: Option<&str>| {
        let mut request =
            request(vec![Message::user("go"), Message::Assistant(answer(parts)), Message::user("on")]);
        request.model = model.to_owned();
        request.settings = settings;
        let headers = vec![("Anthropic-Beta".to_owned(), "mine".to_owned())];
        let sent = encoded(&request, &ServerOptions { headers, ..ServerOptions::anthropic("k") });
        let body: Value = serde_json::from_slice(&sent.body.concat()).expect("a body is JSON");
        assert_eq!(body.get("thinking").cloned().unwrap_or_default(), expected, "{model}");
        assert_eq!(sent.headers.get(BETA).map(|value| value.to_str().expect("it is text")), beta, "{model}");
    };
    let drops = |kind: Value| {
        let mut thinking = kind;
        thinking["block_binding"] = json!({ "prefix_mismatch_behavior": "drop_block" });
        thinking
    };
    let beta = Some("mine,thinking-binding-controls-2026-08-01");
    let (none, high) = (ModelSettings::new(), ModelSettings::new().reasoning_effort(ReasoningEffort::High));
    let adaptive = json!({ "type": "adaptive", "display": "summarized" });
    check("claude-opus-5-5", thought.clone(), none.clone(), drops(json!({ "type": "adaptive" })), beta);
    check("claude-fable-5-1-20260801", thought.clone(), high.clone(), drops(adaptive.clone()), beta);
    // Without thinking to send there is nothing to drop; other models bind nothing.
    check("claude-opus-5-5", vec![text("so")], none.clone(), Value::Null, None);
    check("claude-opus-4-7", thought.clone(), none, Value::Null, None);
    check("claude-opus-4-7", thought, high, adaptive, None);
}

#[test]
fn a_typed_answer_is_asked_for_by_its_schema() {
    let mut request = request(vec![Message::user("hi")]);
    let schema = json!({ "type": "object", "properties": {} });
    request.output_schema =
        Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema: schema.clone() }));
    assert_eq!(
        body(&request)["output_config"],
        json!({ "format": { "type": "json_schema", "schema": schema } })
    );
}

#[test]
fn each_place_has_its_address_and_key() {
    let check = |base: &str, model: &str, stream: bool, path: &str, key: (&str, &str), has_model: bool| {
        let base_url = base.parse().expect("it is there");
        let options = ServerOptions { base_url, stream, ..ServerOptions::anthropic("k") };
        let mut request = request(vec![Message::user("hi")]);
        request.model = model.to_owned();
        let sent = encoded(&request, &options);
        assert_eq!(sent.path, path);
        let (name, value) = Anthropic::new(&options).key_header("k");
        assert_eq!((name.as_str(), &*value), key);
        let body: Value = serde_json::from_slice(&sent.body.concat()).expect("it is there");
        assert_eq!(
            (body.get("model").is_some(), body.get("anthropic_version").is_none()),
            (has_model, has_model)
        );
    };
    let (own, bearer) = (("x-api-key", "k"), ("authorization", "Bearer k"));
    check("https://api.anthropic.com/v1", "claude-x", true, "messages", own, true);
    check("https://name.services.ai.azure.com/anthropic/v1", "claude-x", true, "messages", own, true);
    for host in [
        "bedrock-runtime.eu-west-1.amazonaws.com",
        "bedrock-runtime.cn-north-1.amazonaws.com.cn",
        "bedrock-mantle.eu-west-1.api.aws",
    ] {
        check(&format!("https://{host}/anthropic/v1"), "claude-x", true, "messages", bearer, true);
    }
    let vertex =
        "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic/models";
    check(vertex, "claude-x@1", true, "claude-x@1:streamRawPredict", bearer, false);
    check(vertex, "claude-x@1", false, "claude-x@1:rawPredict", bearer, false);
}

/// A random conversation, in which calls have their results.
fn conversation(random: &mut Random) -> Vec<Message> {
    let mut messages = vec![Message::user("begin")];
    for turn in 0..random.index(6) + 1 {
        let mut parts = Vec::new();
        let mut ids = Vec::new();
        for number in 0..random.index(5) + 1 {
            match random.index(7) {
                0 => parts.push(text(["so", " ", "é"][random.index(3)])),
                1 => {
                    parts.push(Part::Reasoning("hm".to_owned()));
                    parts.push(opaque(r#"{"type":"thinking","signature":"S+/"}"#));
                }
                2 => parts.push(Part::Reasoning("of another".to_owned())),
                3 => parts.push(opaque(r#"{"type":"redacted_thinking","data":"R"}"#)),
                4 => parts.push(block(r#"{"type":"server_tool_use","id":"s","name":"n","input":{}}"#)),
                _ => {
                    let id = format!("call {turn} {number}");
                    parts.push(call(&id, ["{}", "", "no", "{\"a\": 1e3}"][random.index(4)]));
                    ids.push(id);
                }
            }
        }
        messages.push(Message::Assistant(answer(parts)));
        for id in ids {
            messages.push(result(
                &id,
                vec![Block::Text(["", "out"][random.index(2)].to_owned())],
                ToolStatus::Ok,
            ));
        }
        if random.index(3) > 0 {
            messages.push(Message::User(vec![Block::Text(["next", " "][random.index(2)].to_owned())]));
        }
    }
    messages
}

/// Whether one body begins with another: everything before the messages is equal, each message but the last is equal,
/// and the last one's content begins with that of the other.
fn begins(longer: &Value, shorter: &Value) -> bool {
    let (long, short) = (
        longer["messages"].as_array().expect("it is there"),
        shorter["messages"].as_array().expect("it is there"),
    );
    let last = short.len() - 1;
    let (long_last, short_last) = (&long[last]["content"], &short[last]["content"]);
    let content = short_last.as_array().expect("it is there");
    long[..last] == short[..last]
        && long[last]["role"] == short[last]["role"]
        && long_last.as_array().expect("it is there")[..content.len()] == content[..]
        && ["system", "tools", "model", "max_tokens"].iter().all(|field| longer[field] == shorter[field])
}

#[test]
fn a_longer_conversation_begins_with_the_shorter_one() {
    let mut compared = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let messages = conversation(&mut random);
        let mut before: Option<Value> = None;
        for length in 1..=messages.len() {
            let mut request = request(messages[..length].to_vec());
            request.system = Some("Be brief.".to_owned());
            let sent = body(&request);
            let marks = sent.to_string().matches("cache_control").count();
            assert!((1..=3).contains(&marks), "{marks} marks in {sent}");
            check_pairs(&sent);
            let sent = unmarked(sent);
            if let Some(before) = before.replace(sent.clone()) {
                assert!(begins(&sent, &before), "seed {seed}:\n{sent}\ndoes not begin with\n{before}");
                compared += 1;
            }
        }
    }
    assert!(compared > 2_000, "{compared}");
}

/// A breakpoint is written to the cache for a price. The messages of a summary's request are never sent again.
#[test]
fn the_messages_of_a_summary_s_request_are_not_cached() {
    for (purpose, expected) in [(Purpose::Step, 1), (Purpose::Summary, 0), (Purpose::Compaction, 1)] {
        let mut request = request(vec![
            Message::user("a transcript"),
            Message::Assistant(answer(vec![text("Hello")])),
            Message::user("Write."),
        ]);
        if purpose != Purpose::Compaction {
            request.messages = request.messages.iter().take(1).cloned().collect();
        }
        request.purpose = purpose;
        let marks = body(&request)["messages"].to_string().matches("cache_control").count();
        assert_eq!(marks, expected, "{purpose:?}");
    }
}

/// Checks what the API refuses: blank text, an empty message, results that are not first, a role twice in a row.
fn check_pairs(sent: &Value) {
    let mut last_role = "assistant";
    for message in sent["messages"].as_array().expect("it is there") {
        let role = message["role"].as_str().expect("it is there");
        assert_ne!(role, last_role, "{sent}");
        last_role = role;
        let content = message["content"].as_array().expect("it is there");
        assert!(!content.is_empty(), "{sent}");
        let mut results_are_over = false;
        for block in content {
            let is_result = block["type"] == "tool_result";
            assert!(!(is_result && results_are_over), "a result after something else: {sent}");
            results_are_over |= !is_result;
            assert!(block["text"].as_str().is_none_or(|text| !text.trim().is_empty()), "blank text: {sent}");
        }
    }
}

const COMPACTED: &str = r#"{"type":"compaction","content":"The goal: g","signature":"EuYB=="}"#;

/// The request, its answer, and the next request: by the documentation of on-demand compaction.
#[test]
fn a_compaction_is_asked_for_and_sent_back_as_it_came() {
    let mut asked = request(vec![
        Message::user("Hi"),
        Message::Assistant(answer(vec![text("Hello")])),
        Message::user("Write the record."),
    ]);
    asked.purpose = Purpose::Compaction;
    asked.settings.extra.insert("context_management".to_owned(), json!({ "edits": [] }));
    let wire = unmarked(body(&asked));
    assert_eq!(wire["compaction"], json!({ "type": "summarize", "instructions": "Write the record." }));
    assert!(wire.get("context_management").is_none(), "the API refuses the two together");
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Hi" }] },
        { "role": "assistant", "content": [{ "type": "text", "text": "Hello" }] },
    ]);
    assert_eq!(wire["messages"], messages, "the instruction is no message");
    let beta = |request: &Request| {
        let headers = encoded(request, &ServerOptions::anthropic("k")).headers;
        headers.get(BETA).map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(beta(&asked).as_deref(), Some(COMPACTION));
    // An instruction that is too long for the API: its own serves.
    let last = asked.messages.len() - 1;
    asked.messages.replace_from(last, vec![Arc::new(Message::user("x".repeat(16_385)))]);
    assert_eq!(body(&asked)["compaction"], json!({ "type": "summarize" }));

    let block: Value = serde_json::from_str(COMPACTED).expect("JSON");
    let arrived = events(vec![start(0, &block), stop(0)], "compaction");
    let (answer, ..) = decode_for(Purpose::Compaction, &arrived);
    let answer = answer.expect("it is whole");
    assert_eq!((answer.stop, answer.text()), (StopReason::Stop, "The goal: g".to_owned()));
    let blocks: Vec<String> = answer
        .content
        .iter()
        .filter_map(|part| if let Part::OpaqueBlock { data, .. } = part { Some(data.clone()) } else { None })
        .collect();
    assert_eq!(blocks, [COMPACTED]);
    // The same block in an answer to the user is no text.
    let (step, ..) = decode(&arrived);
    let step = step.expect("it is whole");
    assert_eq!((step.stop, step.text()), (StopReason::Paused, String::new()));
    // There may be no summary at all.
    let (none, ..) = decode_for(Purpose::Compaction, &events(vec![], "max_tokens"));
    let none = none.expect("it is an answer");
    assert_eq!((none.stop, none.content), (StopReason::Length, vec![]));

    let native = |dialect: &str| {
        Block::Native(greenroom_kernel::Native {
            provider: "anthropic".to_owned(),
            dialect: dialect.to_owned(),
            blocks: blocks.clone(),
        })
    };
    let summary = |native: Block| {
        vec![
            Message::User(vec![
                Block::Text("the summary".to_owned()),
                native,
                Block::Text("files".to_owned()),
            ]),
            Message::user("Go on."),
        ]
    };
    let next = request(summary(native(DIALECT)));
    let bytes = encoded(&next, &ServerOptions::anthropic("k")).body.concat();
    let bytes = String::from_utf8(bytes).expect("JSON is text");
    assert!(bytes.contains(&format!(r#""content":[{COMPACTED},{{"type":"text","text":"files""#)), "{bytes}");
    assert!(!bytes.contains("the summary"), "{bytes}");
    assert_eq!(beta(&next).as_deref(), Some(COMPACTION));
    // Another API's form is not sent, and the text is.
    let foreign = request(summary(native("responses")));
    let texts = unmarked(body(&foreign))["messages"][0]["content"].clone();
    assert_eq!(texts[0]["text"], "the summary");
    assert_eq!(beta(&foreign), None);
}

#[test]
fn models_and_places_that_compact_by_themselves() {
    let can = |base: &str, model: &str| {
        let options =
            ServerOptions { base_url: base.parse().expect("a URL"), ..ServerOptions::anthropic("k") };
        Anthropic::new(&options).native_compaction(model)
    };
    let readable = Some(NativeCompaction::Readable);
    for (base, model, expected) in [
        ("https://api.anthropic.com/v1", "claude-opus-4-6", readable),
        ("https://api.anthropic.com/v1", "claude-sonnet-5", readable),
        ("https://api.anthropic.com/v1", "claude-opus-4-5", None),
        ("https://x.services.ai.azure.com/anthropic/v1", "claude-opus-5-5", readable),
        ("https://bedrock-runtime.us-east-1.amazonaws.com/anthropic/v1", "claude-opus-5-5", None),
        ("https://bedrock-mantle.us-east-1.api.aws/anthropic/v1", "claude-opus-5-5", None),
    ] {
        assert_eq!(can(base, model), expected, "{base} {model}");
    }
}

/// A count is of the same request, without what the operation does not take.
#[test]
fn a_count_is_asked_for_with_the_fields_that_count() {
    let mut asked = request(vec![Message::user("Hi.")]);
    asked.system = Some("Be brief.".to_owned());
    asked.tools = Arc::from([ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({ "type": "object" }),
    }]);
    asked.settings.reasoning_effort = Some(ReasoningEffort::High);
    asked.settings.stop = Some(vec!["x".to_owned()]);
    let options = ServerOptions { prompt_cache_key: Some(true), ..ServerOptions::anthropic("k") };
    let anthropic = Anthropic::new(&options);
    let count = anthropic.encode_count(&asked, &options).expect("it can be written").expect("it counts");
    assert_eq!((&*count.path, anthropic.count_field()), ("messages/count_tokens", "input_tokens"));
    let whole = body(&asked);
    let body: Value = serde_json::from_slice(&count.body.concat()).expect("a body is JSON");
    let names: Vec<&String> = body.as_object().expect("an object").keys().collect();
    assert_eq!(names, ["model", "tools", "system", "messages", "thinking", "output_config"]);
    for name in names {
        assert_eq!(body[name], whole[name], "{name}");
    }
    // Features that the request needs, its count needs too.
    let mut compacted = request(vec![Message::User(vec![Block::Native(greenroom_kernel::Native {
        provider: "anthropic".to_owned(),
        dialect: DIALECT.to_owned(),
        blocks: vec![COMPACTED.to_owned()],
    })])]);
    compacted.model = "claude-opus-4-7".to_owned();
    let count = anthropic.encode_count(&compacted, &options).expect("it can be written").expect("it counts");
    assert_eq!(count.headers[BETA], COMPACTION);
    for place in [
        "https://bedrock-runtime.eu-west-1.amazonaws.com/anthropic/v1",
        "https://x-aiplatform.googleapis.com/v1",
    ] {
        let options = ServerOptions { base_url: place.parse().expect("a URL"), ..options.clone() };
        let count = Anthropic::new(&options).encode_count(&asked, &options).expect("it can be written");
        assert!(count.is_none(), "{place}");
    }
}

/// The server says in an answer which thinking of the request the model did not see, perhaps twice.
#[test]
fn dropped_thinking_is_reported_by_its_reason() {
    let drop = |reason: &str| json!({ "type": "thinking_dropped", "path": "messages.1.content.0", "reason": reason });
    let check = |at_start: Option<Value>, at_end: Option<Value>, expect: &[(&str, usize)]| {
        let mut events =
            events(vec![start(0, &json!({ "type": "text", "text": "Hi" })), stop(0)], "end_turn");
        if let Some(changes) = at_start {
            events[0]["message"]["input_transformations"] = changes;
        }
        if let Some(changes) = at_end {
            let end = events.iter_mut().find(|event| event["type"] == "message_delta").expect("an end");
            end["input_transformations"] = changes;
        }
        let (answer, shown, _) = decode(&events);
        assert_eq!(answer.expect("an answer").text(), "Hi");
        let told: Vec<(String, usize)> = shown
            .into_iter()
            .filter_map(|event| match event {
                ReplyEvent::ThinkingDropped { reason, count } => Some((reason, count)),
                ReplyEvent::Text(_)
                | ReplyEvent::Reasoning(_)
                | ReplyEvent::ToolCall { .. }
                | ReplyEvent::Spent(_)
                | ReplyEvent::Done(_) => None,
            })
            .collect();
        let expect: Vec<(String, usize)> =
            expect.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
        assert_eq!(told, expect);
    };
    check(None, None, &[]);
    check(Some(json!([])), None, &[]);
    check(Some(json!([drop("a"), drop("b"), drop("a")])), None, &[("a", 2), ("b", 1)]);
    // The newest list counts.
    check(Some(json!([drop("a")])), Some(json!([drop("a"), drop("c")])), &[("a", 1), ("c", 1)]);
    check(Some(json!([drop("a")])), Some(json!([])), &[]);
    // Changes of other kinds, and those without a reason.
    let allowed = json!({ "type": "thinking_mismatch_allowed", "reason": "a" });
    check(Some(json!([allowed, { "type": "thinking_dropped" }])), None, &[("", 1)]);
}

/// Events of unknown kinds may use the names of known fields for something else.
#[test]
fn events_of_other_kinds_fail_no_answer() {
    let rows = [
        (r#"{"type":"ping","message":"still here"}"#, true),
        (r#"{"type":"queue_update","message":"position 3"}"#, true),
        (r#"{"type":"progress","content":"searching"}"#, true),
        (r#"{"type":"progress","delta":["x"],"content_block":7}"#, true),
        (r#"{"type":"content_block_delta","index":0,"delta":"lost"}"#, false),
        (r#"{"type":"message","content":"lost"}"#, false),
        (r#"{"message":"no type"}"#, false),
    ];
    for (event, is_ignored) in rows {
        let mut decoder = decode::AnthropicDecoder::default();
        let taken = decoder.take(event, &mut VecDeque::new());
        assert_eq!(taken, if is_ignored { Taken::Nothing } else { Taken::Unreadable }, "{event}");
    }
}

#[test]
fn absurd_counts_of_what_was_cached_do_not_overflow() {
    let created = json!({ "ephemeral_5m_input_tokens": u64::MAX, "ephemeral_1h_input_tokens": u64::MAX });
    let usage = json!({ "input_tokens": 1, "cache_creation": created });
    let event = json!({ "type": "message_start", "message": { "usage": usage } }).to_string();
    let mut decoder = decode::AnthropicDecoder::default();
    assert_eq!(decoder.take(&event, &mut VecDeque::new()), Taken::Progress);
}
