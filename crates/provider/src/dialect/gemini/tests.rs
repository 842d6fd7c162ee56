//! Requests as exact JSON, answers from chunks, and both together: what came is what is sent again.

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
use crate::dialect::{CallContext, Progress, Taken};
use crate::{ModelSettings, OutputSchema, ProviderError, Purpose, ReasoningEffort, ReplyEvent, ToolChoice};

/// A model that signs its calls, and one that does not.
const NEW: &str = "gemini-3-flash-preview";
const OLD: &str = "gemini-2.5-flash";

fn request(model: &str, messages: Vec<Message>) -> Request {
    Request {
        model: model.to_owned(),
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
    Gemini::new(options).encode(request, options, &mut History::default()).unwrap()
}

fn body(request: &Request) -> Value {
    serde_json::from_slice(&encoded(request, &ServerOptions::gemini("k")).body.concat()).unwrap()
}

fn answer(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage::new(content, "google", "m", StopReason::Stop)
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

fn result(id: &str, content: Vec<Block>, status: ToolStatus) -> Message {
    Message::ToolResult(ToolResult {
        call_id: id.to_owned(),
        tool_name: "read".to_owned(),
        content,
        status,
        touched: Vec::new(),
    })
}

fn said(text: &str) -> Block {
    Block::Text(text.to_owned())
}

fn picture() -> Block {
    Block::Image(Image { media_type: "image/png".to_owned(), data: "AAAA".to_owned() })
}

fn spec() -> ToolSpec {
    ToolSpec {
        name: "read".to_owned(),
        description: "Reads.".to_owned(),
        parameters: json!({ "type": "object", "$schema": "x", "properties": { "n": { "const": 1 } } }),
    }
}

struct Decoded {
    answer: Result<AssistantMessage, ProviderError>,
    shown: Vec<ReplyEvent>,
    progress: Progress,
}

/// Decodes chunks as they came.
fn decode_raw(chunks: &[&str]) -> Decoded {
    let mut decoder: Box<dyn Decoder> = Box::<decode::GeminiDecoder>::default();
    let mut shown = VecDeque::new();
    for chunk in chunks {
        let taken = decoder.take(chunk, &mut shown);
        assert!(matches!(taken, Taken::Progress | Taken::Nothing), "{chunk}: {taken:?}");
    }
    let progress = decoder.progress();
    let context = CallContext { provider: "google", model: "m", purpose: Purpose::Step, messages: &[] };
    Decoded { answer: decoder.finish(&context, &mut shown), shown: shown.into(), progress }
}

fn decode(chunks: &[Value]) -> Decoded {
    let chunks: Vec<String> = chunks.iter().map(Value::to_string).collect();
    decode_raw(&chunks.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A chunk with these parts.
fn chunk(parts: &Value) -> String {
    json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "index": 0 }] }).to_string()
}

/// The last chunk of an answer.
fn last(reason: &str) -> String {
    json!({ "candidates": [{ "finishReason": reason }], "usageMetadata": { "promptTokenCount": 9, "candidatesTokenCount": 7 } })
        .to_string()
}

/// The chunks of an answer that has everything at once. The numbers, spaces and escapes of the call's arguments are as
/// the server wrote them.
fn rich() -> Vec<String> {
    let odd_call = concat!(
        r#"{"candidates":[{"content":{"parts":[{"functionCall":{"id":"fc-1","name":"read","#,
        r#""args":{"n": 1e3, "s":"\u00e9"}},"thoughtSignature":"Call+/=="}]}}]}"#
    );
    vec![
        chunk(&json!([{ "text": "Let me ", "thought": true }])),
        chunk(&json!([{ "text": "see.", "thought": true }])),
        chunk(&json!([{ "text": "First ", "thought": false }, { "text": "é\u{1f600}." }])),
        chunk(&json!([{ "text": " Signed.", "thoughtSignature": "Text+/A=" }])),
        chunk(&json!([{ "text": " Plain" }])),
        chunk(
            &json!([{ "executableCode": { "language": "PYTHON", "code": "1+1" }, "thoughtSignature": "Code" }]),
        ),
        chunk(&json!([{ "codeExecutionResult": { "outcome": "OUTCOME_OK", "output": "2" } }])),
        chunk(&json!([{ "text": "Again", "thought": true, "thoughtSignature": "Hm==" }])),
        odd_call.to_owned(),
        chunk(
            &json!([{ "functionCall": { "name": "read", "args": {} } }, { "functionCall": { "name": "list" } }]),
        ),
        chunk(&json!([{ "text": "", "thoughtSignature": "Last" }])),
    ]
}

/// The answer of these chunks, and a last one.
fn answered(mut chunks: Vec<String>, reason: &str) -> Decoded {
    chunks.push(last(reason));
    decode_raw(&chunks.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn an_answer_keeps_every_part_in_its_place() {
    let decoded = answered(rich(), "STOP");
    assert_eq!(decoded.progress, Progress::Ended);
    let answer = decoded.answer.unwrap();
    let ids: Vec<&str> = answer.tool_calls().map(|call| call.id.as_str()).collect();
    assert!(ids[0] == "fc-1" && ids[1].starts_with("call_") && ids[2] != ids[1], "{ids:?}");
    let list = Part::ToolCall(ToolCall {
        id: ids[2].to_owned(),
        name: "list".to_owned(),
        arguments: "{}".to_owned(),
    });
    assert_eq!(
        answer.content,
        vec![
            thought("Let me see."),
            opaque(r#"{"thought":true}"#),
            text("First é\u{1f600}."),
            text(" Signed."),
            opaque(r#"{"thoughtSignature":"Text+/A="}"#),
            text(" Plain"),
            block(r#"{"executableCode":{"language":"PYTHON","code":"1+1"},"thoughtSignature":"Code"}"#),
            block(r#"{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"2"}}"#),
            thought("Again"),
            opaque(r#"{"thought":true,"thoughtSignature":"Hm=="}"#),
            call("fc-1", "{\"n\": 1e3, \"s\":\"\\u00e9\"}"),
            opaque(r#"{"functionCall":{"id":"fc-1"},"thoughtSignature":"Call+/=="}"#),
            call(ids[1], "{}"),
            list,
            opaque(r#"{"text":"","thoughtSignature":"Last"}"#),
        ]
    );
    assert_eq!((answer.stop, answer.stop_raw.as_deref()), (StopReason::ToolCalls, Some("STOP")));
    let words =
        |wanted: fn(&ReplyEvent) -> Option<&str>| decoded.shown.iter().filter_map(wanted).collect::<String>();
    let texts = words(|event| if let ReplyEvent::Text(text) = event { Some(text) } else { None });
    let thoughts = words(|event| if let ReplyEvent::Reasoning(text) = event { Some(text) } else { None });
    assert_eq!((&*texts, &*thoughts), ("First é\u{1f600}. Signed. Plain", "Let me see.Again"));
    let calls: Vec<usize> = decoded
        .shown
        .iter()
        .filter_map(|event| if let ReplyEvent::ToolCall { index, .. } = event { Some(*index) } else { None })
        .collect();
    assert_eq!(calls, [0, 1, 2]);
}

#[test]
fn what_came_is_sent_again() {
    let answer = answered(rich(), "STOP").answer.unwrap();
    let ids: Vec<String> = answer.tool_calls().map(|call| call.id.clone()).collect();
    let mut messages = vec![Message::user("go"), Message::Assistant(answer)];
    messages.extend(ids.iter().map(|id| result(id, vec![said("out")], ToolStatus::Ok)));
    let sent = encoded(&request(NEW, messages), &ServerOptions::gemini("k")).body.concat();
    let sent = String::from_utf8(sent).unwrap();
    let expected = concat!(
        r#"{"role":"model","parts":[{"thought":true,"text":"Let me see."},"#,
        r#"{"text":"First é😀."},{"thoughtSignature":"Text+/A=","text":" Signed."},{"text":" Plain"},"#,
        r#"{"executableCode":{"language":"PYTHON","code":"1+1"},"thoughtSignature":"Code"},"#,
        r#"{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"2"}},"#,
        r#"{"thought":true,"thoughtSignature":"Hm==","text":"Again"},"#,
        r#"{"functionCall":{"id":"fc-1","name":"read","args":{"n": 1e3, "s":"\u00e9"}},"thoughtSignature":"Call+/=="},"#,
        r#"{"functionCall":{"name":"read","args":{}}},{"functionCall":{"name":"list","args":{}}},"#,
        r#"{"text":"","thoughtSignature":"Last"}]},"#,
        // An id is sent only where the API gave one.
        r#"{"role":"user","parts":[{"functionResponse":{"id":"fc-1","name":"read","response":{"output":"out"}}},"#,
        r#"{"functionResponse":{"name":"read","response":{"output":"out"}}},"#,
    );
    assert!(sent.contains(expected), "{expected}\n is not in \n{sent}");
}

#[test]
fn parts_that_nobody_knows_and_fields_of_another_type() {
    let content = |parts: Value| answered(vec![chunk(&parts)], "STOP").answer.unwrap().content;
    assert_eq!(content(json!([{ "hologram": { "beam": 1.50 } }])), [block(r#"{"hologram":{"beam":1.5}}"#)]);
    assert_eq!(content(json!([{ "text": { "not": "text" } }])), []);
    assert_eq!(
        content(json!(["so", 1, null, {}, { "thought": true }, { "text": "" }, { "text": "so" }])),
        [text("so")]
    );
    assert_eq!(
        content(json!([{ "text": "a", "thoughtSignature": "" }, { "text": "b", "thoughtSignature": 5 }])),
        [text("ab")]
    );
    // A signature alone becomes a part that the API accepts.
    assert_eq!(
        content(json!([{ "thoughtSignature": "S" }])),
        [opaque(r#"{"thoughtSignature":"S","text":""}"#)]
    );
    let named = content(json!([{ "text": "a", "partMetadata": { "k": 1 } }, { "text": "b" }]));
    assert_eq!(named, [text("a"), opaque(r#"{"partMetadata":{"k":1}}"#), text("b")]);
    // An image that the model made.
    let image = json!([{ "inlineData": { "mimeType": "image/png", "data": "AA==" } }]);
    assert_eq!(content(image), [block(r#"{"inlineData":{"mimeType":"image/png","data":"AA=="}}"#)]);
    // Fields of another type, another candidate, and events of kinds unknown today.
    let decoded = decode(&[
        json!({ "heartbeat": 1 }),
        json!({ "candidates": "none", "usageMetadata": [], "promptFeedback": 1 }),
        json!({ "candidates": [{ "index": 1, "content": { "parts": [{ "text": "other" }] } }] }),
        json!({ "candidates": [{ "content": { "parts": [{ "text": "so" }] }, "finishReason": "STOP" }], "error": null,
            "usageMetadata": { "promptTokenCount": "many", "candidatesTokenCount": "3" } }),
    ]);
    let answer = decoded.answer.unwrap();
    assert_eq!((&*answer.content, answer.usage.unwrap().output_tokens), (&[text("so")][..], 3));
}

#[test]
fn ends_of_answers() {
    let so = || vec![chunk(&json!([{ "text": "so" }]))];
    let called = || vec![chunk(&json!([{ "functionCall": { "name": "read", "args": {} } }]))];
    let check = |chunks: Vec<String>, reason: &str, expected: StopReason| {
        let answer = answered(chunks, reason).answer.unwrap();
        assert_eq!((answer.stop, answer.stop_raw.as_deref()), (expected, Some(reason)));
    };
    check(so(), "STOP", StopReason::Stop);
    check(so(), "OTHER", StopReason::Stop);
    check(so(), "A_REASON_OF_TOMORROW", StopReason::Stop);
    check(called(), "STOP", StopReason::ToolCalls);
    check(so(), "MAX_TOKENS", StopReason::Length);
    check(called(), "MAX_TOKENS", StopReason::Length);
    check(Vec::new(), "MAX_TOKENS", StopReason::Length);
    for filter in
        ["SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "IMAGE_SAFETY", "LANGUAGE"]
    {
        check(so(), filter, StopReason::ContentFilter);
        check(Vec::new(), filter, StopReason::ContentFilter);
    }
    let failed = |chunks: &[Value]| decode(chunks).answer.unwrap_err().failure;
    for reason in ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"] {
        let failure =
            failed(&[json!({ "candidates": [{ "finishReason": reason, "finishMessage": "print(read" }] })]);
        assert_eq!(failure.class, FailureClass::Malformed);
        let expected =
            format!("the model wrote a call that the provider could not read: {reason}: print(read");
        assert_eq!(failure.message, expected);
    }
    let missed = failed(&[json!({ "candidates": [{ "finishReason": "MISSING_THOUGHT_SIGNATURE" }] })]);
    assert_eq!(missed.class, FailureClass::Other);
    // A prompt that was blocked.
    let blocked = failed(&[
        json!({ "promptFeedback": { "blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "Not this." }, "usageMetadata": { "promptTokenCount": 4 } }),
    ]);
    assert_eq!(blocked.class, FailureClass::ContentFilter);
    assert_eq!(
        blocked.message,
        "the provider's content filter blocked the prompt: PROHIBITED_CONTENT: Not this."
    );
    let blocked = decode(&[json!({ "promptFeedback": { "blockReason": "SAFETY" } })]);
    assert_eq!(blocked.progress, Progress::Ended);
    assert_eq!(
        blocked.answer.unwrap_err().failure.message,
        "the provider's content filter blocked the prompt: SAFETY"
    );
    // Feedback that blocks nothing.
    let decoded = decode(&[
        json!({ "promptFeedback": { "safetyRatings": [], "blockReason": "BLOCK_REASON_UNSPECIFIED" } }),
    ]);
    assert_eq!(decoded.progress, Progress::Open);
}

#[test]
fn a_stream_may_end_after_every_chunk() {
    let mut whole = rich();
    whole.push(last("STOP"));
    let mut before = 0;
    for length in 1..=whole.len() {
        let decoded = decode_raw(&whole[..length].iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(decoded.progress == Progress::Open, length < whole.len());
        let content = decoded.answer.unwrap().content;
        assert!(content.len() >= before, "a chunk took something away: {content:?}");
        before = content.len();
    }
    assert_eq!(before, 15);
}

#[test]
fn whole_answers_and_lists_of_chunks_are_read_like_streams() {
    let mut chunks = rich();
    chunks.push(last("STOP"));
    // Ids that the decoder made differ, so they are left out.
    let content = |decoded: Decoded| {
        let answer = decoded.answer.unwrap();
        let unnamed = |mut part: Part| {
            if let Part::ToolCall(call) = &mut part {
                call.id.clear();
            }
            part
        };
        (
            answer.content.into_iter().map(unnamed).collect::<Vec<_>>(),
            answer.stop,
            answer.usage,
            decoded.shown,
        )
    };
    let expected = content(decode_raw(&chunks.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!(content(decode_raw(&[&format!("[{}]", chunks.join(",\n"))])), expected);
    let whole = json!({ "candidates": [{ "content": { "parts": [{ "text": "Hm.", "thought": true }, { "text": "So." }] },
        "finishReason": "STOP" }], "usageMetadata": { "promptTokenCount": 3, "candidatesTokenCount": 4 } });
    let decoded = decode(&[whole]);
    let hm = opaque(r#"{"thought":true}"#);
    assert_eq!(decoded.answer.unwrap().content, [thought("Hm."), hm, text("So.")]);
    assert_eq!(decoded.progress, Progress::Ended);
}

#[test]
fn errors_in_a_stream() {
    let error =
        json!({ "error": { "code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE" } });
    let bare = json!({ "code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE" });
    let so = chunk(&json!([{ "text": "so" }]));
    let mut checked = 0;
    for chunks in [
        vec![error.to_string()],
        vec![so.clone(), error.to_string()],
        vec![format!("[{so},{error}]")],
        vec![bare.to_string()],
    ] {
        let mut decoder: Box<dyn Decoder> = Box::<decode::GeminiDecoder>::default();
        let taken = chunks.iter().map(|chunk| decoder.take(chunk, &mut VecDeque::new())).last().unwrap();
        let Taken::Error(body) = taken else { panic!("{chunks:?}: {taken:?}") };
        let failure = crate::dialect::error_in_stream(&body).failure;
        assert_eq!(failure.class, FailureClass::Overloaded, "{body}");
        checked += 1;
    }
    assert_eq!(checked, 4);
    let mut decoder: Box<dyn Decoder> = Box::<decode::GeminiDecoder>::default();
    assert_eq!(decoder.take("Bad gateway", &mut VecDeque::new()), Taken::Unreadable);
}

#[test]
fn tokens_are_counted_as_the_api_means_them() {
    let check =
        |reports: &[Value], expected: Option<[u64; 4]>| {
            let chunks: Vec<Value> =
                reports.iter().map(|report| json!({ "usageMetadata": report })).collect();
            let usage = decode(&chunks).answer.unwrap().usage;
            let expected = expected.map(|[input_tokens, cached_tokens, output_tokens, reasoning_tokens]| {
                Usage { input_tokens, cached_tokens, output_tokens, reasoning_tokens, ..Usage::default() }
            });
            assert_eq!(usage, expected, "{reports:?}");
        };
    check(&[], None);
    check(&[json!({ "promptTokenCount": 0 })], None);
    check(
        &[json!({ "promptTokenCount": 9, "candidatesTokenCount": 7, "totalTokenCount": 16 })],
        Some([9, 0, 7, 0]),
    );
    // Thoughts are not among the candidates' tokens; cached tokens are among the prompt's.
    check(
        &[
            json!({ "promptTokenCount": 900, "cachedContentTokenCount": 800, "candidatesTokenCount": 70, "thoughtsTokenCount": 300, "totalTokenCount": 1_270 }),
        ],
        Some([900, 800, 370, 300]),
    );
    check(
        &[json!({ "promptTokenCount": 9, "toolUsePromptTokenCount": 40, "candidatesTokenCount": 7 })],
        Some([49, 0, 7, 0]),
    );
    // Each chunk reports what it knows.
    check(
        &[
            json!({ "promptTokenCount": 9, "candidatesTokenCount": 1 }),
            json!({ "promptTokenCount": 9, "thoughtsTokenCount": 5 }),
            json!({ "promptTokenCount": 9, "candidatesTokenCount": 12, "thoughtsTokenCount": 5 }),
            json!({}),
        ],
        Some([9, 0, 17, 5]),
    );
}

#[test]
fn refusals_have_their_class_and_wait() {
    let check = |code: u16,
                 status: &str,
                 message: &str,
                 details: Value,
                 class: FailureClass,
                 wait_ms: Option<u64>| {
        let body =
            json!({ "error": { "code": code, "message": message, "status": status, "details": details } });
        for body in [body.to_string(), json!([body]).to_string(), format!("{body:#}")] {
            let failure = classify(Some(code), &body, None);
            assert_eq!(
                (failure.class, failure.retry_after_ms),
                (class, wait_ms),
                "{body}: {}",
                failure.message
            );
        }
    };
    let none = || json!([]);
    let wait =
        |seconds: &str| json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": seconds });
    let quota = |id: &str| {
        json!({ "@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [
            { "quotaMetric": "generativelanguage.googleapis.com/generate_content_requests", "quotaId": id, "quotaValue": "10" }] })
    };
    let info = |reason: &str| json!([{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com" }]);
    let invalid = "INVALID_ARGUMENT";
    // Too much, or not.
    check(
        400,
        invalid,
        "The input token count (2845475) exceeds the maximum number of tokens allowed (1048576).",
        none(),
        FailureClass::ContextOverflow,
        None,
    );
    check(
        400,
        invalid,
        "The input token count exceeds the maximum number of tokens allowed 1048576.",
        none(),
        FailureClass::ContextOverflow,
        None,
    );
    check(
        400,
        invalid,
        "Unable to submit request because the input token count is 1100000 but model only supports up to 1048576. Reduce the input token count and try again.",
        none(),
        FailureClass::ContextOverflow,
        None,
    );
    check(
        400,
        invalid,
        "Request payload size exceeds the limit: 20971520 bytes.",
        none(),
        FailureClass::PayloadTooLarge,
        None,
    );
    check(
        400,
        invalid,
        "Unable to submit request because it has a maxOutputTokens value of 99999 but the supported range is from 1 (inclusive) to 65537 (exclusive). Update the value and try again.",
        none(),
        FailureClass::OutputLimit,
        None,
    );
    // Requests that can never succeed.
    check(
        400,
        invalid,
        "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly.",
        none(),
        FailureClass::Other,
        None,
    );
    check(
        400,
        invalid,
        "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.",
        none(),
        FailureClass::Other,
        None,
    );
    check(
        400,
        invalid,
        "Invalid JSON payload received. Unknown name \"exclusiveMinimum\" at 'tools[0].function_declarations[0].parameters': Cannot find field.",
        none(),
        FailureClass::Other,
        None,
    );
    check(
        400,
        invalid,
        "Function calling with a response mime type: 'application/json' is unsupported",
        none(),
        FailureClass::Other,
        None,
    );
    check(
        400,
        "FAILED_PRECONDITION",
        "User location is not supported for the API use.",
        none(),
        FailureClass::Other,
        None,
    );
    check(
        404,
        "NOT_FOUND",
        "models/gemini-9 is not found for API version v1beta, or is not supported for generateContent.",
        none(),
        FailureClass::Other,
        None,
    );
    // Keys.
    check(
        400,
        invalid,
        "API key not valid. Please pass a valid API key.",
        info("API_KEY_INVALID"),
        FailureClass::Auth,
        None,
    );
    check(
        401,
        "UNAUTHENTICATED",
        "Request had invalid authentication credentials. Expected OAuth 2 access token.",
        info("ACCESS_TOKEN_TYPE_UNSUPPORTED"),
        FailureClass::Auth,
        None,
    );
    check(
        403,
        "PERMISSION_DENIED",
        "Your API key was reported as leaked. Please use another API key.",
        none(),
        FailureClass::Auth,
        None,
    );
    // Not now.
    let exhausted = "RESOURCE_EXHAUSTED";
    let plan = "You exceeded your current quota, please check your plan and billing details. For more information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits.";
    check(
        429,
        exhausted,
        "Resource exhausted. Please try again later. Please refer to https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 for more details.",
        none(),
        FailureClass::RateLimited,
        None,
    );
    check(
        429,
        exhausted,
        "Resource has been exhausted (e.g. check quota).",
        none(),
        FailureClass::RateLimited,
        None,
    );
    let minute = quota("GenerateRequestsPerMinutePerProjectPerModel-FreeTier");
    check(429, exhausted, plan, json!([minute, wait("42s")]), FailureClass::RateLimited, Some(42_000));
    check(429, exhausted, plan, json!([minute, wait("37.018s")]), FailureClass::RateLimited, Some(37_018));
    let tokens = quota("GenerateContentInputTokensPerModelPerMinute-FreeTier");
    check(
        429,
        exhausted,
        &format!("{plan} Please retry in 12.5s."),
        json!([tokens]),
        FailureClass::RateLimited,
        Some(12_500),
    );
    // The day's quota is used up, and no wait of seconds brings it back.
    let day = quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier");
    // The wait is that of the limit for a minute.
    check(429, exhausted, plan, json!([day, wait("42s")]), FailureClass::Quota, None);
    let soon = format!("{plan} Please retry in 42s.");
    check(429, exhausted, &soon, json!([day]), FailureClass::Quota, None);
    check(429, exhausted, plan, none(), FailureClass::Quota, None);
    check(
        500,
        "INTERNAL",
        "An internal error has occurred. Please retry or report in https://developers.generativeai.google/guide/troubleshooting",
        none(),
        FailureClass::Overloaded,
        None,
    );
    check(
        503,
        "UNAVAILABLE",
        "The model is overloaded. Please try again later.",
        none(),
        FailureClass::Overloaded,
        None,
    );
    check(
        504,
        "DEADLINE_EXCEEDED",
        "Deadline expired before operation could complete.",
        none(),
        FailureClass::Timeout,
        None,
    );
    check(499, "CANCELLED", "The operation was cancelled.", none(), FailureClass::Timeout, None);
}

#[test]
fn a_conversation_is_written_as_the_api_wants_it() {
    let foreign =
        |parts| Message::Assistant(AssistantMessage { provider: "openai".to_owned(), ..answer(parts) });
    let of_other = Part::OpaqueReasoning { dialect: "responses".to_owned(), data: "{}".to_owned() };
    let messages = || {
        vec![
            Message::User(vec![said("look"), picture(), said("")]),
            foreign(vec![
                thought("hidden"),
                of_other.clone(),
                text("Two."),
                call("a", r#"{"x": 1}"#),
                call("b", "not json"),
            ]),
            // Results may come in another order than the calls.
            result("b", Vec::new(), ToolStatus::Error),
            result("a", vec![said("one"), picture()], ToolStatus::Ok),
            Message::user("and now"),
            foreign(vec![thought("nothing but thoughts")]),
            Message::user("go"),
        ]
    };
    let image = json!({ "inlineData": { "mimeType": "image/png", "data": "AAAA" } });
    let signature = "skip_thought_signature_validator";
    let expected = |model: &str| {
        let is_new = model == NEW;
        let mut first_call = json!({ "functionCall": { "name": "read", "args": { "x": 1 } } });
        let mut one = json!({ "functionResponse": { "name": "read", "response": { "output": "one" } } });
        let mut then = json!([{ "text": "and now" }, { "text": "go" }]);
        if is_new {
            first_call["thoughtSignature"] = signature.into();
            one["functionResponse"]["parts"] = json!([image]);
        } else {
            then = json!([{ "text": "Images that the tool read returned:" }, image, { "text": "and now" }, { "text": "go" }]);
        }
        json!({
            "systemInstruction": { "parts": [{ "text": "Be brief." }] },
            "tools": [{ "functionDeclarations": [
                { "name": "read", "description": "Reads.", "parametersJsonSchema": spec().parameters }] }],
            "contents": [
                { "role": "user", "parts": [{ "text": "look" }, image] },
                { "role": "model", "parts": [
                    { "text": "Two." },
                    first_call,
                    { "functionCall": { "name": "read", "args": { "invalid_arguments": "not json" } } },
                ] },
                { "role": "user", "parts": [
                    one,
                    { "functionResponse": { "name": "read", "response": { "error": "(no output)" } } },
                ] },
                { "role": "user", "parts": then },
            ],
            "generationConfig": { "thinkingConfig": { "includeThoughts": true } },
        })
    };
    for model in [NEW, OLD] {
        let mut request = request(model, messages());
        request.system = Some("Be brief.".to_owned());
        request.tools = Arc::from([spec()]);
        assert_eq!(body(&request), expected(model), "{model}");
    }
    // A conversation that begins with an answer, as after a compaction.
    let begun = body(&request(NEW, vec![Message::Assistant(answer(vec![text("so")]))]));
    assert_eq!(
        begun["contents"],
        json!([{ "role": "user", "parts": [{ "text": "(continued)" }] }, { "role": "model", "parts": [{ "text": "so" }] }])
    );
}

#[test]
fn signatures_stay_in_their_place_or_are_left_out() {
    let check = |model: &str, parts: Vec<Part>, expected: Value| {
        let sent = body(&request(model, vec![Message::user("go"), Message::Assistant(answer(parts))]));
        let sent = sent["contents"].get(1).map_or(Value::Null, |content| content["parts"].clone());
        assert_eq!(sent, expected, "{model}");
    };
    let so = || json!({ "text": "so" });
    let call_sent = |signature: Option<&str>| {
        let mut sent = json!({ "functionCall": { "name": "read", "args": {} } });
        if let Some(signature) = signature {
            sent["thoughtSignature"] = signature.into();
        }
        sent
    };
    let dummy = Some("skip_thought_signature_validator");
    let signed = || opaque(r#"{"functionCall":{},"thoughtSignature":"Sig="}"#);
    // A call above the limit was dropped, or reasoning was left out: what belonged to it goes too.
    check(NEW, vec![text("so"), signed()], json!([so()]));
    check(NEW, vec![text("so"), opaque(r#"{"thought":true,"thoughtSignature":"Sig="}"#)], json!([so()]));
    check(NEW, vec![opaque(r#"{"thoughtSignature":"Sig="}"#), text("so")], json!([so()]));
    check(NEW, vec![text("so"), opaque("not json")], json!([so()]));
    check(
        NEW,
        vec![call("a", "{}"), signed(), signed(), call("b", "{}")],
        json!([call_sent(Some("Sig=")), call_sent(None)]),
    );
    // Only the first call of a step needs a signature, and only newer models need one.
    check(NEW, vec![call("a", "{}"), call("b", "{}")], json!([call_sent(dummy), call_sent(None)]));
    check(
        NEW,
        vec![call("a", "{}"), call("b", "{}"), signed()],
        json!([call_sent(dummy), call_sent(Some("Sig="))]),
    );
    check(OLD, vec![call("a", "{}"), call("b", "{}")], json!([call_sent(None), call_sent(None)]));
    check(OLD, vec![call("a", "{}"), signed()], json!([call_sent(Some("Sig="))]));
    // A signature that is not base64 would fail the request.
    for bad in ["not base64!", "abcde", "a=bc", "====", "ab=", ""] {
        let data = |fields: Value| opaque(&fields.to_string());
        check(NEW, vec![text("so"), data(json!({ "thoughtSignature": bad }))], json!([so()]));
        let of_call = data(json!({ "functionCall": {}, "thoughtSignature": bad }));
        check(NEW, vec![call("a", "{}"), of_call], json!([call_sent(dummy)]));
        check(NEW, vec![text("so"), data(json!({ "text": "", "thoughtSignature": bad }))], json!([so()]));
        let code = json!({ "executableCode": {}, "thoughtSignature": bad });
        check(NEW, vec![text("so"), block(&code.to_string())], json!([so(), { "executableCode": {} }]));
    }
    for good in ["ab", "abc", "abcd", "ab==", "abc=", "+/-_"] {
        let data = opaque(&json!({ "thoughtSignature": good }).to_string());
        check(NEW, vec![text("so"), data], json!([{ "thoughtSignature": good, "text": "so" }]));
    }
    // Signatures alone are no answer.
    check(NEW, vec![opaque(r#"{"text":"","thoughtSignature":"Sig="}"#)], Value::Null);
}

#[test]
fn settings_are_sent_under_the_apis_names() {
    let check = |model: &str, settings: ModelSettings, expected: Value| {
        let mut request = request(model, vec![Message::user("hi")]);
        request.settings = settings;
        request.tools = Arc::from([spec()]);
        let mut sent = body(&request);
        for field in ["contents", "tools"] {
            sent.as_object_mut().unwrap().remove(field);
        }
        assert_eq!(sent, expected, "{model}");
    };
    let new = ModelSettings::new;
    let thinks = json!({ "includeThoughts": true });
    let config = |config: Value| json!({ "generationConfig": config });
    for plain in
        ["gemini-2.0-flash", "gemini-2.0-flash-001", "gemini-1.5-pro", "gemma-3-27b-it", "tunedModels/mine"]
    {
        check(plain, new(), json!({}));
    }
    for thinking in [
        OLD, NEW, "gemini-2.5-pro", "models/gemini-2.5-pro", "gemini-flash-latest", "gemini-3.1-pro-preview",
        "gemini-4-x",
    ] {
        check(thinking, new(), config(json!({ "thinkingConfig": thinks })));
    }
    let effort = |model: &str, effort: ReasoningEffort, field: &str, value: Value| {
        let expected = config(json!({ "thinkingConfig": { "includeThoughts": true, field: value } }));
        check(model, new().reasoning_effort(effort), expected);
    };
    for (own, level, of_pro, budget) in [
        (ReasoningEffort::None, "minimal", "low", 0),
        (ReasoningEffort::Minimal, "minimal", "low", 512),
        (ReasoningEffort::Low, "low", "low", 1_024),
        (ReasoningEffort::Medium, "medium", "medium", 8_192),
        (ReasoningEffort::High, "high", "high", 24_576),
        (ReasoningEffort::XHigh, "high", "high", 24_576),
    ] {
        effort(NEW, own, "thinkingLevel", level.into());
        effort("gemini-3.1-pro-preview", own, "thinkingLevel", of_pro.into());
        effort(OLD, own, "thinkingBudget", budget.into());
        // The large models cannot stop thinking.
        effort("gemini-2.5-pro", own, "thinkingBudget", budget.max(128).into());
    }
    check(
        NEW,
        new()
            .temperature(0.5)
            .top_p(0.9)
            .output_tokens_max(900)
            .stop(["END"])
            .seed(7)
            .parallel_tool_calls(false),
        config(
            json!({ "temperature": 0.5, "topP": 0.9, "maxOutputTokens": 900, "stopSequences": ["END"], "seed": 7,
            "thinkingConfig": thinks }),
        ),
    );
    let choice = |choice: ToolChoice, expected: Value| {
        let expected = json!({ "toolConfig": { "functionCallingConfig": expected },
            "generationConfig": { "thinkingConfig": thinks } });
        check(NEW, new().tool_choice(choice), expected);
    };
    choice(ToolChoice::Auto, json!({ "mode": "AUTO" }));
    choice(ToolChoice::None, json!({ "mode": "NONE" }));
    choice(ToolChoice::Required, json!({ "mode": "ANY" }));
    choice(ToolChoice::Tool("read".to_owned()), json!({ "mode": "ANY", "allowedFunctionNames": ["read"] }));
    // Without tools there is nothing to choose.
    let mut bare = request(OLD, vec![Message::user("hi")]);
    bare.settings = new().tool_choice(ToolChoice::Required);
    assert_eq!(body(&bare).get("toolConfig"), None);
    // The user's own fields are merged with ours.
    check(
        NEW,
        new()
            .temperature(0.5)
            .extra("generationConfig", json!({ "topK": 5, "thinkingConfig": { "includeThoughts": false } }))
            .extra("safetySettings", json!([])),
        json!({ "generationConfig": { "temperature": 0.5, "topK": 5, "thinkingConfig": { "includeThoughts": false } },
            "safetySettings": [] }),
    );
    // The provider's own limit, where the request names none.
    let options = ServerOptions { output_tokens_max: Some(70), ..ServerOptions::gemini("k") };
    let sent = encoded(&request(NEW, vec![Message::user("hi")]), &options).body.concat();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    assert_eq!(sent["generationConfig"]["maxOutputTokens"], 70);
}

#[test]
fn a_typed_answer_is_asked_for_by_its_schema() {
    let schema = json!({ "type": "object", "properties": {} });
    let check = |model: &str, tools: Vec<ToolSpec>, is_enforced: bool| {
        let mut request = request(model, vec![Message::user("hi")]);
        request.output_schema =
            Some(Arc::new(OutputSchema { name: "answer".to_owned(), schema: schema.clone() }));
        request.tools = tools.into();
        let sent = body(&request);
        let generation = &sent["generationConfig"];
        let in_words = sent["systemInstruction"]["parts"][0]["text"].as_str().unwrap_or_default();
        if is_enforced {
            assert_eq!(
                (&generation["responseMimeType"], &generation["responseJsonSchema"]),
                (&json!("application/json"), &schema)
            );
            assert_eq!(in_words, "");
        } else {
            assert_eq!(
                (generation.get("responseMimeType"), generation.get("responseJsonSchema")),
                (None, None)
            );
            assert!(in_words.ends_with(&schema.to_string()), "{in_words}");
        }
    };
    check(NEW, vec![spec()], true);
    check(NEW, Vec::new(), true);
    check(OLD, Vec::new(), true);
    // Older models refuse a schema beside tools.
    check(OLD, vec![spec()], false);
}

#[test]
fn each_place_has_its_address_and_key() {
    let check = |base: &str, model: &str, stream: bool, path: &str, key: (&str, &str)| {
        let base_url = base.parse().unwrap();
        let options = ServerOptions { base_url, stream, ..ServerOptions::gemini("k") };
        assert_eq!(encoded(&request(model, vec![Message::user("hi")]), &options).path, path);
        let (name, value) = Gemini::new(&options).key_header("k");
        assert_eq!((name.as_str(), &*value), key);
    };
    let (own, bearer) = (("x-goog-api-key", "k"), ("authorization", "Bearer k"));
    let google = crate::GEMINI_BASE_URL;
    check(google, NEW, true, "models/gemini-3-flash-preview:streamGenerateContent?alt=sse", own);
    check(google, NEW, false, "models/gemini-3-flash-preview:generateContent", own);
    check(google, "models/gemini-x", false, "models/gemini-x:generateContent", own);
    check(google, "tunedModels/mine-1", false, "tunedModels/mine-1:generateContent", own);
    check(google, "gemini?x#é", false, "models/gemini%3Fx%23%C3%A9:generateContent", own);
    check("http://localhost:8080/v1beta", "m", false, "models/m:generateContent", own);
    for host in ["aiplatform.googleapis.com", "europe-west1-aiplatform.googleapis.com"] {
        let vertex = format!("https://{host}/v1/projects/p/locations/global/publishers/google");
        check(&vertex, OLD, true, "models/gemini-2.5-flash:streamGenerateContent?alt=sse", bearer);
    }
    let options = ServerOptions::gemini("k");
    assert_eq!(
        (&*options.name, options.api, options.base_url.to_string()),
        ("google", crate::Api::Gemini, google.to_owned())
    );
    assert_eq!(serde_json::to_value(options.api).unwrap(), json!("gemini"));
    let rule = Gemini::new(&options).resent_reasoning(&ModelSettings::new(), &options);
    assert_eq!(
        rule,
        ResentReasoning { readable_of: None, dialect: Some("gemini".to_owned()), opaque_of: None }
    );
}

/// A random conversation in groups: messages that are sent together.
fn conversation(random: &mut Random) -> Vec<Vec<Message>> {
    let mut groups = vec![vec![Message::user("begin")]];
    for turn in 0..random.index(6) + 1 {
        let (mut parts, mut ids) = (Vec::new(), Vec::new());
        for number in 0..random.index(5) + 1 {
            match random.index(8) {
                0 => parts.push(text(["so", " ", "é", ""][random.index(4)])),
                1 => {
                    parts.push(thought("hm"));
                    parts.push(opaque(r#"{"thought":true}"#));
                }
                2 => parts.push(thought("of another")),
                3 => parts.push(opaque(r#"{"text":"","thoughtSignature":"S+/="}"#)),
                4 => parts.push(block(r#"{"executableCode":{"code":"1"}}"#)),
                _ => {
                    let id = format!("call {turn} {number}");
                    parts.push(call(&id, ["{}", "", "no", "{\"a\": 1e3}"][random.index(4)]));
                    match random.index(3) {
                        0 => parts.push(opaque(&format!(
                            r#"{{"functionCall":{{"id":"{id}"}},"thoughtSignature":"S+/="}}"#
                        ))),
                        1 => parts.push(opaque(&format!(r#"{{"functionCall":{{"id":"{id}"}}}}"#))),
                        _ => {}
                    }
                    ids.push(id);
                }
            }
        }
        let mut group = vec![Message::Assistant(answer(parts))];
        // The results come in any order.
        while !ids.is_empty() {
            let id = ids.remove(random.index(ids.len()));
            let content = [vec![], vec![said("out")], vec![said("out"), picture()]][random.index(3)].clone();
            group.push(result(&id, content, [ToolStatus::Ok, ToolStatus::Error][random.index(2)]));
        }
        groups.push(group);
        if random.index(3) > 0 {
            groups.push(vec![Message::User(vec![said(["next", ""][random.index(2)])])]);
        }
    }
    groups
}

/// The parts of all contents, each with its role.
fn parts_of(body: &Value) -> Vec<(String, Value)> {
    let contents = body["contents"].as_array().unwrap();
    let with_role = |content: &Value| {
        let role = content["role"].as_str().unwrap().to_owned();
        content["parts"].as_array().unwrap().clone().into_iter().map(move |part| (role.clone(), part))
    };
    contents.iter().flat_map(with_role).collect()
}

/// Checks what the API refuses: an empty content, calls and results that do not pair, a call without a signature.
fn check_accepted(body: &Value, model: &str) {
    let contents = body["contents"].as_array().unwrap();
    assert_eq!(contents[0]["role"], "user", "{body}");
    let named = |content: Option<&Value>, kind: &str| -> Vec<(Value, Value)> {
        let parts = content.and_then(|content| content["parts"].as_array()).into_iter().flatten();
        parts
            .filter_map(|part| part.get(kind))
            .map(|call| (call["id"].clone(), call["name"].clone()))
            .collect()
    };
    for (at, content) in contents.iter().enumerate() {
        let parts = content["parts"].as_array().unwrap();
        assert!(!parts.is_empty(), "{body}");
        let calls = named(Some(content), "functionCall");
        if !calls.is_empty() {
            assert_eq!(named(contents.get(at + 1), "functionResponse"), calls, "{body}");
            let first = parts.iter().find(|part| part.get("functionCall").is_some()).unwrap();
            assert!(model == OLD || first["thoughtSignature"].is_string(), "{body}");
        }
        let results = named(Some(content), "functionResponse").len();
        assert!(results == 0 || results == parts.len(), "results are not alone: {body}");
    }
}

#[test]
fn a_longer_conversation_begins_with_the_shorter_one() {
    let mut compared = 0;
    for seed in 0..200 {
        let groups = conversation(&mut Random::new(seed));
        for model in [NEW, OLD] {
            let mut before: Option<Value> = None;
            for length in 1..=groups.len() {
                let mut request = request(model, groups[..length].concat());
                request.system = Some("Be brief.".to_owned());
                request.tools = Arc::from([spec()]);
                let sent = body(&request);
                check_accepted(&sent, model);
                if let Some(before) = before.replace(sent.clone()) {
                    let (long, short) = (parts_of(&sent), parts_of(&before));
                    assert_eq!(long[..short.len()], short[..], "seed {seed}, {model}");
                    for field in ["systemInstruction", "tools", "generationConfig"] {
                        assert_eq!(sent[field], before[field], "seed {seed}");
                    }
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 1_500, "{compared}");
}

/// A count is of the same request, in the form in which instructions and tools count.
#[test]
fn a_count_is_asked_for_with_the_whole_request() {
    let mut asked = request(NEW, vec![Message::user("Hi.")]);
    asked.system = Some("Be brief.".to_owned());
    asked.tools = Arc::from([spec()]);
    let options = ServerOptions::gemini("k");
    let gemini = Gemini::new(&options);
    let count = gemini.encode_count(&asked, &options).unwrap().unwrap();
    assert_eq!(count.path, format!("models/{NEW}:countTokens"));
    assert_eq!(gemini.count_field(), "totalTokens");
    let mut whole = body(&asked);
    whole["model"] = format!("models/{NEW}").into();
    let body: Value = serde_json::from_slice(&count.body.concat()).unwrap();
    assert_eq!(body, json!({ "generateContentRequest": whole }));
    // Vertex has the fields at the top.
    let base_url = "https://x-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google";
    let options = ServerOptions { base_url: base_url.parse().unwrap(), ..options };
    let count = Gemini::new(&options).encode_count(&asked, &options).unwrap().unwrap();
    let body: Value = serde_json::from_slice(&count.body.concat()).unwrap();
    assert_eq!(body["systemInstruction"], whole["systemInstruction"]);
    assert_eq!(body["contents"], whole["contents"]);
    assert!(body.get("generateContentRequest").is_none() && body.get("toolConfig").is_none(), "{body}");
}
