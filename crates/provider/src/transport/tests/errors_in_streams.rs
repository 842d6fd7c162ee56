//! Errors in the middle of an answer over each API: at every place, before the output and after it.

use greenroom_kernel::{FailureClass, Part, StopReason};

use super::{Outcome, Play, ReplyEvent, call, options, serve, stream_of};
use crate::{Api, ServerOptions};

/// An answer of one API, and the errors that its servers send within answers.
struct Stream {
    api: Api,
    /// The data of each event.
    events: &'static [&'static str],
    /// The number of events after which the answer has ended. What follows changes nothing.
    ends_after: usize,
    /// Errors as the API sends them, and their classes.
    errors: &'static [(&'static str, FailureClass)],
}

const STREAMS: [Stream; 4] = [
    Stream {
        api: Api::Chat,
        events: &[
            r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"Hm."}}]}"#,
            r#"{"choices":[{"delta":{"content":"Hel"}}]}"#,
            r#"{"choices":[{"delta":{"content":"lo"}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}"#,
        ],
        ends_after: 5,
        errors: &[
            (
                r#"{"error":{"message":"The engine is overloaded.","type":"server_error","code":503}}"#,
                FailureClass::Overloaded,
            ),
            (
                r#"{"error":{"message":"Rate limit reached for requests","code":"rate_limit_exceeded"}}"#,
                FailureClass::RateLimited,
            ),
        ],
    },
    Stream {
        api: Api::Responses,
        events: &[
            r#"{"type":"response.created","response":{"status":"in_progress","output":[]}}"#,
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","summary":[]}}"#,
            r#"{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"Hm."}"#,
            r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","summary":[{"type":"summary_text","text":"Hm."}]}}"#,
            r#"{"type":"response.output_item.added","output_index":1,"item":{"type":"message","content":[]}}"#,
            r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"Hel"}"#,
            r#"{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"lo"}"#,
            r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello"}]}}"#,
            r#"{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":9,"output_tokens":4}}}"#,
        ],
        ends_after: 9,
        errors: &[
            (
                r#"{"type":"error","error":{"type":"server_error","code":"server_is_overloaded","message":"Our servers are currently overloaded. Please try again later."}}"#,
                FailureClass::Overloaded,
            ),
            (
                r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"Rate limit reached for gpt-5. Please try again in 2s."}}}"#,
                FailureClass::RateLimited,
            ),
        ],
    },
    Stream {
        api: Api::Anthropic,
        events: &[
            r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm."}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"S"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hel"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"lo"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}"#,
            r#"{"type":"message_stop"}"#,
        ],
        ends_after: 11,
        errors: &[
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                FailureClass::Overloaded,
            ),
            (
                r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your rate limit."}}"#,
                FailureClass::RateLimited,
            ),
        ],
    },
    Stream {
        api: Api::Gemini,
        events: &[
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Hm.","thought":true}]}}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Hel"}]}}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"lo"}]}}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":9,"candidatesTokenCount":4}}"#,
        ],
        ends_after: 4,
        errors: &[
            (
                r#"{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}"#,
                FailureClass::Overloaded,
            ),
            (
                r#"{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}"#,
                FailureClass::RateLimited,
            ),
        ],
    },
];

/// Serves these events.
async fn play(api: Api, events: &[&str]) -> Outcome {
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let server = serve(Play::Close(stream_of(&events))).await;
    call(ServerOptions { api, ..options(&server.base_url) }).await
}

/// What the user has read of an answer.
fn read(told: &[ReplyEvent]) -> String {
    let mut read = String::new();
    for event in told {
        if let ReplyEvent::Text(text) | ReplyEvent::Reasoning(text) = event {
            read.push_str(text);
        }
    }
    read
}

#[tokio::test]
async fn an_error_ends_an_answer_wherever_it_comes() {
    let mut checked = 0;
    for Stream { api, events, ends_after, errors } in STREAMS {
        let (told, whole) = play(api, events).await;
        let whole = whole.unwrap_or_else(|error| panic!("{api:?}: {error}"));
        assert_eq!((read(&told).as_str(), whole.stop), ("Hm.Hello", StopReason::Stop), "{api:?}");
        assert!(matches!(&whole.content[0], Part::Reasoning(text) if text == "Hm."), "{api:?}");
        for place in 0..=events.len() {
            for (error, class) in errors {
                let mut with_error = events.to_vec();
                with_error.insert(place, error);
                let (told, end) = play(api, &with_error).await;
                let shown = read(&told);
                if place >= ends_after {
                    let answer = end.unwrap_or_else(|error| panic!("{api:?} at {place}: {error}"));
                    assert_eq!((answer.text().as_str(), answer.stop), ("Hello", StopReason::Stop));
                } else {
                    let failure = end.expect_err("the answer is not whole").failure;
                    assert_eq!(failure.class, *class, "{api:?} at {place}: {}", failure.message);
                    // What came before the error was told, and nothing that came after it.
                    let (before, _) = play(api, &events[..place]).await;
                    assert_eq!(shown, read(&before), "{api:?} at {place}");
                }
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 2 * (7 + 10 + 13 + 5));
}

/// A server that cuts its text in UTF-16 sends halves of a character in two pieces. Each is shown as a replacement.
#[tokio::test]
async fn half_a_character_costs_no_answer() {
    for Stream { api, events, .. } in STREAMS {
        let halved = |event: &&str| {
            let event = event.replace(r#""Hel""#, r#""Hel\ud83d""#);
            event.replace(r#""lo""#, r#""\ude00lo \ud83d\ude00\\ud800\"""#)
        };
        let halved: Vec<String> = events.iter().map(halved).collect();
        let (told, whole) = play(api, &halved.iter().map(String::as_str).collect::<Vec<_>>()).await;
        whole.unwrap_or_else(|error| panic!("{api:?}: {error}"));
        assert_eq!(read(&told), "Hm.Hel\u{fffd}\u{fffd}lo \u{1f600}\\ud800\"", "{api:?}");
    }
}
