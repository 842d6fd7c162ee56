//! The provider against a TCP server that imitates what real servers send.

mod counting;
mod errors_in_streams;
mod refusals;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use greenroom_kernel::{AssistantMessage, FailureClass, Message, Messages, Part, StopReason};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{HttpProvider, OptionsError, ServerOptions};
use crate::dialect::History;
use crate::{Provider, ProviderError, Purpose, ReplyEvent, Request};

/// What the server does after it has read a request.
#[derive(Debug, Clone)]
enum Play {
    /// Sends these bytes and closes.
    Close(String),
    /// Sends these bytes as they are and closes.
    CloseBytes(Vec<u8>),
    /// Sends these bytes, then nothing, and keeps the connection open.
    Hang(String),
    /// Sends these bytes, then a comment every few milliseconds.
    Ping(String),
    /// Announces more bytes than it sends.
    Break(String),
    /// Sends the first bytes, then the second ones again and again until the client closes the connection.
    Flood(String, String),
}

/// The server sends this character as a byte that is not UTF-8.
const INVALID_BYTE: char = '\u{1}';

/// A server that does the same for every connection, with what it has seen.
#[derive(Clone)]
struct Server {
    base_url: String,
    requests: Arc<AtomicUsize>,
    last_request: Arc<Mutex<String>>,
    /// How many connections the client closed while the server held them open.
    gone: Arc<AtomicUsize>,
    /// How many bytes of a flood were sent.
    sent: Arc<AtomicUsize>,
}

async fn serve(play: Play) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = Server {
        base_url: format!("http://{address}/v1"),
        requests: Arc::default(),
        last_request: Arc::default(),
        gone: Arc::default(),
        sent: Arc::default(),
    };
    let seen = server.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(handle(socket, play.clone(), seen.clone()));
        }
    });
    server
}

async fn handle(mut socket: TcpStream, play: Play, seen: Server) {
    let request = read_request(&mut socket).await;
    *seen.last_request.lock().expect("no test panics with the lock") = request;
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let marked = |text: &str| -> Vec<u8> {
        text.bytes().map(|byte| if byte == INVALID_BYTE as u8 { 0xff } else { byte }).collect()
    };
    let (bytes, pings) = match &play {
        Play::CloseBytes(bytes) => (bytes.clone(), false),
        Play::Close(text) | Play::Hang(text) | Play::Break(text) | Play::Flood(text, _) => {
            (marked(text), false)
        }
        Play::Ping(text) => (marked(text), true),
    };
    socket.write_all(&bytes).await.expect("the client reads");
    match play {
        Play::Close(_) | Play::CloseBytes(_) | Play::Break(_) => socket.shutdown().await.expect("it closes"),
        Play::Hang(_) | Play::Ping(_) => {
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            let mut rest = [0; 16];
            loop {
                tokio::select! {
                    read = socket.read(&mut rest) => match read {
                        Ok(0) | Err(_) => break,
                        Ok(_) => {}
                    },
                    _ = ticks.tick(), if pings => {
                        if socket.write_all(b": ping\n\n").await.is_err() {
                            break;
                        }
                    }
                }
            }
            seen.gone.fetch_add(1, Ordering::SeqCst);
        }
        Play::Flood(_, piece) => {
            let pieces = piece.repeat((1 << 14) / piece.len() + 1);
            while socket.write_all(pieces.as_bytes()).await.is_ok() {
                seen.sent.fetch_add(pieces.len(), Ordering::SeqCst);
            }
            seen.gone.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Head and body of one request.
async fn read_request(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = socket.read(&mut buffer).await.expect("a request comes");
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned)
                })
                .and_then(|length| length.parse().ok())
                .unwrap_or(0_usize);
            if body.len() >= length {
                return text;
            }
        }
        assert!(count > 0, "the request ended early");
    }
}

/// A 200 with an event stream, closed by the end of the connection.
fn stream_of(events: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{events}")
}

fn lines(chunks: &[&str]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn refusal(status_line: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status_line}\r\ncontent-length: {length}\r\n{headers}connection: close\r\n\r\n{body}")
}

fn options(base_url: &str) -> ServerOptions {
    ServerOptions {
        name: "test".to_owned(),
        base_url: base_url.parse().expect("a base URL"),
        api_key: Some("secret-key-123".into()),
        first_event_timeout: Duration::from_millis(20_000),
        idle_timeout: Duration::from_millis(20_000),
        ..ServerOptions::default()
    }
}

fn request() -> Request {
    Request {
        model: "m".to_owned(),
        system: None,
        messages: vec![Arc::new(Message::user("hi"))].into(),
        tools: Arc::from([]),
        settings: crate::ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".to_owned(),
    }
}

/// The events of one call, and its end.
type Outcome = (Vec<ReplyEvent>, Result<AssistantMessage, ProviderError>);

async fn call(options: ServerOptions) -> Outcome {
    collect(&HttpProvider::new(options).expect("good options")).await
}

/// One call of a provider that may have been called before.
async fn collect(provider: &HttpProvider) -> Outcome {
    let mut stream = match provider.stream(request()).await {
        Ok(stream) => stream,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut events = Vec::new();
    let mut end = None;
    while let Some(item) = stream.next().await {
        assert!(end.is_none(), "nothing follows the end");
        match item {
            Ok(ReplyEvent::Done(message)) => end = Some(Ok(*message)),
            Ok(event) => events.push(event),
            Err(error) => end = Some(Err(error)),
        }
    }
    (events, end.expect("every stream ends with Done or an error"))
}

async fn play(play: Play) -> (Outcome, Server) {
    play_with(play, |options| options).await
}

async fn play_with(play: Play, change: impl FnOnce(ServerOptions) -> ServerOptions) -> (Outcome, Server) {
    let server = serve(play).await;
    let outcome = call(change(options(&server.base_url))).await;
    assert_eq!(server.requests.load(Ordering::SeqCst), 1, "one call is one request");
    (outcome, server)
}

async fn answer(bytes: String) -> AssistantMessage {
    play(Play::Close(bytes)).await.0.1.expect("an answer")
}

async fn failure(bytes: String) -> ProviderError {
    play(Play::Close(bytes)).await.0.1.expect_err("a failure")
}

#[tokio::test]
async fn a_normal_stream() {
    let events = lines(&[
        r#"{"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":null},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"read","arguments":""}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}}"#,
        "[DONE]",
    ]);
    let ((told, end), server) = play(Play::Close(stream_of(&events))).await;
    let message = end.expect("an answer");
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!((message.text().as_str(), message.stop), ("Hello", StopReason::ToolCalls));
    assert_eq!(message.tool_calls().next().map(|call| call.arguments.as_str()), Some("{\"p\":1}"));
    assert_eq!(message.usage.map(|usage| usage.total_tokens()), Some(13));
    assert_eq!((message.provider.as_str(), message.model.as_str()), ("test", "m"));
    let sent = server.last_request.lock().expect("not poisoned").clone();
    assert!(sent.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains("authorization: Bearer secret-key-123\r\n"), "{sent}");
    assert!(sent.contains(r#""stream":true,"stream_options":{"include_usage":true}"#), "{sent}");
}

#[tokio::test]
async fn complete_answers() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    // There is no [DONE], and the finish chunk has the usage.
    let finish = r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;
    let message = answer(stream_of(&lines(&[text, finish]))).await;
    assert_eq!(message.usage.map(|usage| usage.total_tokens()), Some(3));
    // The finish reason is unknown, and no empty line closes the last event.
    let odd = r#"{"choices":[{"delta":{},"finish_reason":"eos_token"}]}"#;
    assert_eq!(answer(stream_of(&format!("{}data: {odd}", lines(&[text])))).await.stop, StopReason::Stop);
    let cut = r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#;
    assert_eq!(answer(stream_of(&lines(&[text, cut, "[DONE]"]))).await.stop, StopReason::Length);
    // After the finish reason neither an error nor silence changes anything.
    let late = r#"{"error":{"message":"late"}}"#;
    assert_eq!(answer(stream_of(&lines(&[text, finish, late]))).await.text(), "hi");
    let short = |options| ServerOptions { idle_timeout: Duration::from_millis(60), ..options };
    let ((_, end), _) = play_with(Play::Hang(stream_of(&lines(&[text, finish]))), short).await;
    assert_eq!(end.expect("it is whole").text(), "hi");
    // Comments are ignored.
    let message = answer(stream_of(&format!(": hello\n\n{}", lines(&[text, finish])))).await;
    assert_eq!(message.text(), "hi");
}

/// Text with invalid bytes is shown as far as it can be read. A call whose arguments have some is an error.
#[tokio::test]
async fn bytes_that_are_not_utf8() {
    let finish = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let text = format!(r#"{{"choices":[{{"delta":{{"content":"a{INVALID_BYTE}b"}}}}]}}"#);
    let call = |path: &str| {
        format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"id":"c","function":{{"name":"read","arguments":"{{\"path\":\"{path}\"}}"}}}}]}}}}]}}"#
        )
    };
    assert_eq!(answer(stream_of(&lines(&[&text, finish]))).await.text(), "a\u{fffd}b");
    let damaged = failure(stream_of(&lines(&[&call(&format!("a{INVALID_BYTE}b")), finish]))).await;
    assert_eq!(damaged.failure.class, FailureClass::Malformed, "{damaged}");
    // The model may have written the replacement character itself, and invalid bytes in the text do not affect a call.
    for chunks in [&[&*call("a\u{fffd}b"), finish][..], &[&text, &call("ab"), finish]] {
        assert_eq!(answer(stream_of(&lines(chunks))).await.tool_calls().count(), 1);
    }
}

#[tokio::test]
async fn plain_json_for_a_stream() {
    let body = "{\n\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": \"hi\"}, \"finish_reason\": \"stop\"}],\n\"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 1}}\n";
    let message = answer(refusal("200 OK", "content-type: application/json\r\n", body)).await;
    assert_eq!((message.text().as_str(), message.usage.map(|usage| usage.total_tokens())), ("hi", Some(3)));
    let error = failure(refusal(
        "200 OK",
        "content-type: application/json\r\n",
        r#"{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}"#,
    ))
    .await;
    assert_eq!(error.failure.class, FailureClass::ContextOverflow);
}

fn whole(options: ServerOptions) -> ServerOptions {
    ServerOptions { stream: false, ..options }
}

/// The request asks for a whole answer, and whatever the server says of its type, it is read as one.
#[tokio::test]
async fn an_answer_that_is_asked_for_as_a_whole() {
    const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
    let chunks = lines(&[r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#, "[DONE]"]);
    for (content_type, body) in [
        ("content-type: application/json\r\n", ANSWER),
        ("content-type: text/plain; charset=utf-8\r\n", ANSWER),
        ("", ANSWER),
        ("", &format!("\u{feff} {ANSWER}\n")),
        // It streams all the same.
        ("content-type: text/event-stream\r\n", &chunks),
    ] {
        let ((told, end), server) =
            play_with(Play::Close(refusal("200 OK", content_type, body)), whole).await;
        assert_eq!(end.expect("an answer").text(), "hi", "{content_type:?}");
        assert_eq!(told, [ReplyEvent::Text("hi".to_owned())], "{content_type:?}");
        let sent = server.last_request.lock().expect("not poisoned").clone();
        assert!(sent.contains(r#""stream":false}"#) && !sent.contains("stream_options"), "{sent}");
        assert!(sent.contains("accept: application/json\r\n"), "{sent}");
    }
}

#[tokio::test]
async fn whole_answers_that_fail() {
    let short = |options| ServerOptions { first_event_timeout: Duration::from_millis(300), ..whole(options) };
    let json =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n{\"choices\":";
    let of = |body: &str| Play::Close(refusal("200 OK", "content-type: application/json\r\n", body));
    let cases: [(Play, FailureClass, bool, &str); 6] = [
        (Play::Hang(String::new()), FailureClass::Timeout, false, "no whole answer from"),
        (Play::Hang(json.to_owned()), FailureClass::Timeout, false, "within 300 ms"),
        (Play::Break(json.to_owned()), FailureClass::Timeout, false, "the connection to"),
        (of(""), FailureClass::Malformed, true, "no event at all"),
        (
            of(r#"{"choices":[{"message"#),
            FailureClass::Malformed,
            false,
            "sent an event that cannot be read: ",
        ),
        (
            of(r#"{"choices":[{"message":{"content":"hi"},"finish_reason":null}]}"#),
            FailureClass::Malformed,
            false,
            "the server stopped before the answer was complete, after 2 characters",
        ),
    ];
    for (case, class, is_silence, expected) in cases {
        let is_short = matches!(case, Play::Hang(_));
        let ((_, end), _) =
            play_with(case.clone(), |options| if is_short { short(options) } else { whole(options) }).await;
        let error = end.expect_err("it failed");
        assert_eq!((error.failure.class, error.empty_stream), (class, is_silence), "{case:?}: {error:?}");
        assert!(error.failure.message.contains(expected), "{case:?}: {error}");
    }
}

/// Text, reasoning, calls, usage and the reason of the end are the same, whether an answer comes in pieces or whole.
#[tokio::test]
async fn a_whole_answer_is_the_streamed_one() {
    // The pieces, the message, the reason of the end, and the usage in both.
    type Row = (&'static [&'static str], &'static str, &'static str, &'static str);
    let rows: &[Row] = &[
        (
            &[r#"{"content":"Hel"}"#, r#"{"content":"lo"}"#],
            r#"{"role":"assistant","content":"Hello"}"#,
            "stop",
            r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}"#,
        ),
        (
            &[r#"{"reasoning_content":"Hm"}"#, r#"{"reasoning_content":"m."}"#, r#"{"content":"Yes"}"#],
            r#"{"content":"Yes","reasoning_content":"Hmm."}"#,
            "length",
            r#"{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":5},
                "completion_tokens_details":{"reasoning_tokens":3}}"#,
        ),
        (
            &[
                r#"{"content":"Look:"}"#,
                r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"read","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"p\":"}}]}"#,
                r#"{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
                r#"{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"list","arguments":"{}"}}]}"#,
            ],
            r#"{"content":"Look:","tool_calls":[
                {"id":"a","type":"function","function":{"name":"read","arguments":"{\"p\":1}"}},
                {"id":"b","type":"function","function":{"name":"list","arguments":"{}"}}]}"#,
            "tool_calls",
            r#"{"prompt_tokens":9,"completion_tokens":4}"#,
        ),
        // Calls without ids and arguments, and with the same index: they are two all the same.
        (
            &[
                r#"{"tool_calls":[{"index":0,"function":{"name":"now","arguments":""}}]}"#,
                r#"{"tool_calls":[{"index":1,"function":{"name":"now","arguments":""}}]}"#,
            ],
            r#"{"content":null,"tool_calls":[
                {"index":0,"function":{"name":"now","arguments":""}},
                {"index":0,"function":{"name":"now"}}]}"#,
            "stop",
            "null",
        ),
        (
            &[r#"{"reasoning":"Hm"}"#, r#"{"refusal":"I will "}"#, r#"{"refusal":"not."}"#],
            r#"{"content":null,"reasoning":"Hm","refusal":"I will not."}"#,
            "content_filter",
            r#"{"prompt_tokens":9,"completion_tokens":4}"#,
        ),
    ];
    for (pieces, message, finish, usage) in rows {
        let of_piece =
            |delta: &&str| format!(r#"{{"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#);
        let mut chunks: Vec<String> = pieces.iter().map(of_piece).collect();
        let usage = usage.replace('\n', "");
        chunks.push(format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{finish}"}}]}}"#));
        chunks.push(format!(r#"{{"choices":[],"usage":{usage}}}"#));
        let streamed = stream_of(&lines(&chunks.iter().map(String::as_str).collect::<Vec<_>>()));
        let body = format!(
            r#"{{"choices":[{{"index":0,"message":{message},"finish_reason":"{finish}"}}],"usage":{usage}}}"#
        );
        let as_whole = refusal("200 OK", "content-type: application/json\r\n", &body);
        let ((told, end), _) = play_with(Play::Close(as_whole), whole).await;
        let (as_whole, streamed) = (end.expect("an answer"), answer(streamed).await);
        assert_eq!(without_ids(as_whole), without_ids(streamed), "{message}");
        assert!(!told.is_empty(), "{message}");
    }
}

/// An answer whose calls have no ids that were made up.
fn without_ids(mut answer: AssistantMessage) -> AssistantMessage {
    for part in &mut answer.content {
        if let greenroom_kernel::Part::ToolCall(call) = part
            && call.id.starts_with("call_")
        {
            call.id.clear();
        }
    }
    answer
}

/// A refusal that is about streaming says what to do. One of a request that asks for a whole answer cannot be.
#[tokio::test]
async fn a_server_that_refuses_to_stream() {
    const ADVICE: &str = "set `stream: false` for this provider";
    for (body, is_about_it) in [
        (
            r#"{"error":{"message":"Your organization must be verified to stream this model. Please go to: https://platform.openai.com/settings/organization/general and click on Verify Organization.","type":"invalid_request_error","param":"stream","code":"unsupported_value"}}"#,
            true,
        ),
        (
            r#"{"error":{"message":"Unsupported value: 'stream' does not support true with this model. Supported values are: false.","type":"invalid_request_error","param":"stream","code":"unsupported_value"}}"#,
            true,
        ),
        (r#"{"error":{"message":"Unrecognized request argument supplied: stream_options"}}"#, true),
        (r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"no"}]}"#, true),
        (r#"{"error":{"message":"a stream of nonsense","param":"messages"}}"#, false),
        (r#"{"error":{"message":"stream this"}}"#, false),
        ("streaming is not supported", false),
    ] {
        let case = Play::Close(refusal("400 Bad Request", "", body));
        for (change, streams) in [(whole as fn(ServerOptions) -> ServerOptions, false), (|it| it, true)] {
            let error = play_with(case.clone(), change).await.0.1.expect_err("it is refused");
            let says = error.failure.message.contains(ADVICE);
            assert_eq!(says, is_about_it && streams, "{streams} {body}: {error}");
            assert!(!error.failure.class.is_retryable(), "{error}");
        }
    }
}

#[tokio::test]
async fn empty_streams() {
    for events in ["", "\n\n", ": ping\n\n", "data: [DONE]\n\n"] {
        let error = failure(stream_of(events)).await;
        assert!(error.empty_stream && error.is_overflow_candidate(), "{events:?}");
        assert_eq!(error.failure.class, FailureClass::Malformed);
        assert_eq!(error.failure.message, "the stream ended with no event at all");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_before_its_first_event_is_silence_too() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    // A chunked body that has none of its chunks or a part of one, one of a known length, and pings.
    for rest in [
        "transfer-encoding: chunked\r\n\r\n", "content-length: 9999\r\n\r\n",
        "content-length: 9999\r\n\r\n: ping\n\n",
    ] {
        let ((told, end), _) = play(Play::Break(format!("{HEAD}{rest}"))).await;
        let error = end.expect_err("it broke");
        assert!(told.is_empty() && error.empty_stream && error.connection_lost, "{rest:?}: {error:?}");
        assert_eq!(error.failure.class, FailureClass::Timeout, "{rest:?}");
    }
    let said = lines(&[r#"{"choices":[{"delta":{"content":"hi"}}]}"#]);
    let ((_, end), _) = play(Play::Break(format!("{HEAD}content-length: 9999\r\n\r\n{said}"))).await;
    assert!(!end.expect_err("it broke").empty_stream, "it said something");
}

#[tokio::test]
async fn errors_inside_a_stream() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    let died = r#"{"error":{"message":"litellm.APIConnectionError: upstream died","type":null,"param":null,"code":"500"}}"#;
    let ((told, end), _) = play(Play::Close(stream_of(&lines(&[text, died])))).await;
    assert_eq!(told, [ReplyEvent::Text("hi".to_owned())], "the events before the error are kept");
    let error = end.expect_err("it failed");
    assert_eq!(error.failure.class, FailureClass::Overloaded, "{error}");
    assert!(error.body.contains("upstream died"));

    let plain = "Prompt sequence length is greater than 4096, perhaps consider using `truncate_sequence`?";
    let error = failure(stream_of(&lines(&[plain, "[DONE]"]))).await;
    assert_eq!((error.failure.class, error.failure.limit), (FailureClass::ContextOverflow, Some(4096)));

    let named = "event: error\ndata: {\"message\":\"Overloaded\",\"type\":\"overloaded_error\"}\n\n";
    assert_eq!(failure(stream_of(named)).await.failure.class, FailureClass::Overloaded);

    let error = failure(stream_of(&lines(&["   at backtrace::line 1", "[DONE]"]))).await;
    assert_eq!(error.failure.class, FailureClass::Malformed);
    assert!(error.body.contains("backtrace") && !error.empty_stream, "{error:?}");

    // Text in the place of events.
    let error = failure(stream_of("the model crashed\n")).await;
    assert!(error.body.contains("crashed") && !error.empty_stream, "{error:?}");
}

#[tokio::test]
async fn incomplete_answers() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    let error = failure(stream_of(&lines(&[text]))).await;
    assert_eq!(error.failure.class, FailureClass::Malformed, "the server may have died");
    assert!(error.failure.message.contains("after 2 characters") && !error.empty_stream, "{error}");
    // A server that says that it is done has ended the answer, without saying why. A call that breaks off has not ended.
    let done = "data: [DONE]\n\n";
    let whole = answer(stream_of(&format!("{}{done}", lines(&[text])))).await;
    assert_eq!((whole.text(), whole.stop), ("hi".to_owned(), StopReason::Stop));
    let call = |arguments: &str| {
        let call = json!({ "index": 0, "id": "a", "function": { "name": "read", "arguments": arguments } });
        let chunk = json!({ "choices": [{ "delta": { "tool_calls": [call] } }] }).to_string();
        stream_of(&format!("{}{done}", lines(&[&chunk])))
    };
    assert_eq!(answer(call(r#"{"path":"a"}"#)).await.stop, StopReason::ToolCalls);
    assert_eq!(failure(call(r#"{"path":"#)).await.failure.class, FailureClass::Malformed);
    let role = r#"{"choices":[{"delta":{"role":"assistant"}}]}"#;
    assert!(!failure(stream_of(&lines(&[role]))).await.empty_stream);
    let broken = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n{}",
        lines(&[text])
    );
    let ((_, end), _) = play(Play::Break(broken)).await;
    let error = end.expect_err("it broke");
    assert_eq!(error.failure.class, FailureClass::Timeout, "{error}");
    assert!(error.failure.message.contains("broke in the middle"), "{error}");
}

/// Nobody asked for it: it is named, and not shown as garbage.
#[tokio::test]
async fn compressed_answers() {
    let head = |more: &str| format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{more}\r\n");
    let cases = [
        (head("content-type: text/event-stream\r\ncontent-encoding: br\r\n"), &b"\x0b\x02\x80"[..], "(br)"),
        (head("content-type: application/json\r\ncontent-encoding: br\r\n"), b"\x0b\x02\x80", "(br)"),
        (head("content-type: application/json\r\ncontent-encoding: gzip\r\n"), b"\x1f\x8b\x08", "(gzip)"),
        // The header is missing.
        (head("content-type: text/event-stream\r\n"), b"\x1f\x8b\x08\x00\x00\x00", "(gzip)"),
        (head("content-type: application/json\r\n"), b"\x28\xb5\x2f\xfd\x04", "(zstd)"),
    ];
    for (head, body, encoding) in cases {
        let bytes = [head.as_bytes(), body].concat();
        let ((_, end), _) = play(Play::CloseBytes(bytes)).await;
        let error = end.expect_err("it cannot be read");
        assert_eq!(error.failure.class, FailureClass::Other, "the next answer would be compressed too");
        assert!(error.failure.message.contains(encoding), "{error}");
    }
    // A proxy may leave the header of a body that it has decompressed.
    let body = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
    for encoding in ["identity", "gzip", "br"] {
        let plain = head(&format!("content-type: application/json\r\ncontent-encoding: {encoding}\r\n"));
        assert_eq!(answer(format!("{plain}{body}")).await.text(), "hi", "{encoding}");
    }
}

/// Reasoning that stands in the text of an answer, streamed and whole.
#[tokio::test]
async fn reasoning_in_the_text() {
    let piece = |text: &str| json!({ "choices": [{ "delta": { "content": text } }] }).to_string();
    let end = r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    let whole = json!({ "choices": [{ "message": { "content": "<think>Hm.</think>\n\nYes." }, "finish_reason": "stop" }] });
    let whole =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{whole}");
    let streamed =
        stream_of(&lines(&[&piece("<thi"), &piece("nk>Hm"), &piece(".</"), &piece("think>\n\nYes."), end]));
    for bytes in [whole, streamed] {
        let ((events, end), _) = play(Play::Close(bytes)).await;
        let answer = end.expect("an answer");
        assert_eq!(answer.content, [Part::Reasoning("Hm.".into()), Part::Text("Yes.".into())]);
        let told: String = events
            .iter()
            .map(|event| match event {
                ReplyEvent::Reasoning(text) => text.to_uppercase(),
                ReplyEvent::Text(text) => text.clone(),
                ReplyEvent::ToolCall { .. }
                | ReplyEvent::ThinkingDropped { .. }
                | ReplyEvent::Spent(_)
                | ReplyEvent::Done(_) => String::new(),
            })
            .collect();
        assert_eq!(told, "HM.Yes.");
    }
    // What is held back because it may be a tag comes before the end.
    let cut = stream_of(&lines(&[&piece("<thin"), end]));
    let ((events, done), _) = play(Play::Close(cut)).await;
    assert_eq!(done.expect("an answer").text(), "<thin");
    assert!(matches!(&events[..], [ReplyEvent::Text(text), ..] if text == "<thin"), "{events:?}");
}

#[tokio::test]
async fn stalls() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    let nothing = r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#;
    // Long enough for the request to arrive on a busy machine.
    const WAIT: Duration = Duration::from_millis(300);
    let first = |options| ServerOptions { first_event_timeout: WAIT, ..options };
    let idle = |options| ServerOptions { idle_timeout: WAIT, ..options };
    let cases = [
        (Play::Hang(String::new()), "no answer from"),
        (Play::Hang(stream_of("")), "no answer from"),
        (Play::Ping(stream_of("")), "no answer from"),
        (Play::Hang(stream_of(&lines(&[nothing]))), "no answer from"),
        (Play::Hang(stream_of(&lines(&[text]))), "nothing new for 300 ms"),
        (Play::Ping(stream_of(&lines(&[text]))), "nothing new for 300 ms"),
    ];
    for (case, expected) in cases {
        let short = if expected.starts_with("no answer") { first } else { idle };
        let ((_, end), server) = play_with(case.clone(), short).await;
        let error = end.expect_err("it stalled");
        assert_eq!(error.failure.class, FailureClass::Timeout);
        assert!(error.failure.message.contains(expected), "{case:?}: {error}");
        closed(&server).await;
    }
}

/// Waits until the server has seen its client go away.
async fn closed(server: &Server) {
    let gone = async {
        while server.gone.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("the connection is closed");
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let text = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    let server = serve(Play::Hang(stream_of(&lines(&[text])))).await;
    let patient = ServerOptions {
        idle_timeout: Duration::from_millis(60_000),
        first_event_timeout: Duration::from_millis(60_000),
        ..options(&server.base_url)
    };
    let mut stream =
        HttpProvider::new(patient).expect("good options").stream(request()).await.expect("it opens");
    assert_eq!(stream.next().await.expect("an event").expect("text"), ReplyEvent::Text("hi".to_owned()));
    drop(stream);
    closed(&server).await;
}

#[tokio::test]
async fn refusals_keep_status_body_and_wait() {
    let check = async |bytes: String, class, status, retry_after_ms| {
        let error = failure(bytes).await;
        let found = (error.failure.class, error.failure.status, error.failure.retry_after_ms);
        assert_eq!(found, (class, Some(status), retry_after_ms), "{error:?}");
        error
    };
    let overflow = r#"{"error":{"code":400,"message":"request (4612 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":4612,"n_ctx":4096}}"#;
    let error =
        check(refusal("400 Bad Request", "", overflow), FailureClass::ContextOverflow, 400, None).await;
    assert_eq!((error.failure.limit, error.failure.requested), (Some(4096), Some(4612)));
    assert_eq!(error.body, overflow);
    check(
        refusal("429 Too Many", "retry-after: 2\r\n", "slow down"),
        FailureClass::RateLimited,
        429,
        Some(2_000),
    )
    .await;
    check(refusal("429 Too Many", "retry-after-ms: 30\r\n", ""), FailureClass::RateLimited, 429, Some(30))
        .await;
    check(refusal("429 Too Many", "", "try again in 20ms"), FailureClass::RateLimited, 429, Some(20)).await;
    check(refusal("503 Busy", "retry-after: 0.5\r\n", ""), FailureClass::Overloaded, 503, Some(500)).await;
    check(refusal("500 Oops", "", "backtrace"), FailureClass::Overloaded, 500, None).await;
    let error = check(refusal("413 Too Large", "", ""), FailureClass::PayloadTooLarge, 413, None).await;
    assert!(error.is_overflow_candidate());
    let huge =
        check(refusal("500 Oops", "", &"x".repeat(100_000)), FailureClass::Overloaded, 500, None).await;
    assert_eq!(huge.body.len(), 16 * 1024);
    let error = check(refusal("401 No", "", "bad key secret-key-123"), FailureClass::Auth, 401, None).await;
    assert!(!format!("{error:?}").contains("secret-key-123"), "{error:?}");
}

/// A large conversation goes out in pieces, of which the server sees nothing.
#[tokio::test]
async fn a_large_request_has_its_size_and_is_what_a_new_one_would_be() {
    let server = serve(Play::Close(stream_of(&lines(&["[DONE]"])))).await;
    let provider = HttpProvider::new(options(&server.base_url)).expect("good options");
    let mut messages: Messages =
        (0..40).map(|number| Arc::new(Message::user(format!("{number} {}", "x".repeat(5_000))))).collect();
    for _ in 0..3 {
        let request = Request { messages: messages.clone(), ..request() };
        let expected = provider.server.dialect.encode(&request, provider.options(), &mut History::default());
        let expected = String::from_utf8(expected.expect("it can be written").body.concat()).expect("text");
        let _answered_with_nothing = provider.stream(request).await;
        let sent = server.last_request.lock().expect("no test panics with the lock").clone();
        let (head, body) = sent.split_once("\r\n\r\n").expect("a request has a head");
        assert!(body == expected, "{} bytes instead of {}", body.len(), expected.len());
        let head = head.to_ascii_lowercase();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(!head.contains("transfer-encoding"), "{head}");
        messages.push(Arc::new(Message::user("y".repeat(5_000))));
    }
    let kept = provider.server.histories.lock().take("s").size();
    assert!(kept > 42 * 5_000, "{kept}");
    // What is released is gone.
    let _answered_with_nothing = provider.stream(Request { messages, ..request() }).await;
    provider.release("s");
    assert_eq!(provider.server.histories.lock().take("s").size(), 0);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let target = serve(Play::Close(stream_of(""))).await;
    let error =
        failure(refusal("307 Moved", &format!("location: {}/x?key=1\r\n", target.base_url), "")).await;
    assert_eq!((error.failure.class, error.failure.status), (FailureClass::Other, Some(307)));
    assert!(
        error.failure.message.contains("redirects to") && !error.failure.message.contains("key=1"),
        "{error}"
    );
    assert_eq!(target.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn web_pages() {
    let page = refusal("200 OK", "content-type: text/html; charset=utf-8\r\n", "<html>log in</html>");
    let error = failure(page).await;
    assert_eq!((error.failure.class, error.failure.status), (FailureClass::Other, Some(200)));
    assert!(!error.failure.class.is_retryable(), "it would answer the same again");
    assert!(error.failure.message.contains("check the base URL"), "{error}");
}

/// An answer without an end is given up and not retried, because a retry would have no end either.
#[tokio::test]
async fn floods() {
    let text = lines(&[r#"{"choices":[{"delta":{"content":"and so on "}}]}"#]);
    let long = lines(&[&format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(1 << 20))]);
    let small = |options| ServerOptions { response_bytes_max: 100_000, ..options };
    let large = |options| options;
    let events = stream_of("");
    let json = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n".to_owned();
    type Change = fn(ServerOptions) -> ServerOptions;
    let cases: [(String, String, Change, &str, usize); 5] = [
        (events.clone(), text, small, "an answer of more than 100000 bytes", 100_000),
        (events.clone(), ": ping\n\n".to_owned(), small, "an answer of more than 100000 bytes", 100_000),
        (json, "[[".to_owned(), small, "an answer of more than 100000 bytes", 100_000),
        (events.clone(), "data: x".repeat(1_000), large, "a line of more than 8388608 bytes", 8 << 20),
        (events, long, large, "an answer of more than 4194304 bytes of text", 4 << 20),
    ];
    for (head, piece, change, expected, limit) in cases {
        let ((_, end), server) = play_with(Play::Flood(head, piece), change).await;
        let error = end.expect_err("the flood has no end");
        assert!(error.failure.message.contains(expected), "{error}");
        assert_eq!(error.failure.class, FailureClass::Other, "{error}");
        assert!(!error.failure.class.is_retryable() && !error.is_overflow_candidate());
        closed(&server).await;
        // Beyond the limit come only the buffers of both ends of the connection.
        let sent = server.sent.load(Ordering::SeqCst);
        assert!((limit..limit + (40 << 20)).contains(&sent), "{expected}: {sent} bytes were sent");
    }
}

#[tokio::test]
async fn an_unreachable_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    drop(listener);
    let error = call(options(&base_url)).await.1.expect_err("no server listens");
    assert_eq!(error.failure.class, FailureClass::Timeout);
    assert_eq!(error.failure.message, format!("cannot reach {base_url}: connection refused"));
    assert!(error.connection_refused);
}

#[test]
fn options_are_checked_and_keep_their_secrets() {
    let check = |options: ServerOptions| HttpProvider::new(options).expect_err("not usable");
    assert_eq!(ServerOptions::default().base_url.to_string(), super::OPENAI_BASE_URL);
    let broken = ServerOptions { api_key: Some("a\nb".into()), ..options("http://x") };
    assert_eq!(check(broken), OptionsError::ApiKey);
    let header = ("bad name".to_owned(), "x".to_owned());
    assert!(matches!(
        check(ServerOptions { headers: vec![header], ..options("http://x") }),
        OptionsError::Header { .. }
    ));
    let header = ("x-api-key".to_owned(), "hidden-value".to_owned());
    let provider = HttpProvider::new(ServerOptions {
        headers: vec![header],
        ..options("http://x/v1/?api-version=hidden-query")
    });
    let shown = format!("{:?}", provider.expect("good options"));
    for secret in ["secret-key-123", "hidden-value", "hidden-query"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn a_query_and_headers_go_with_every_request() {
    let server = serve(Play::Close(stream_of(""))).await;
    let base_url = format!("{}/?api-version=1", server.base_url);
    let headers = vec![("authorization".to_owned(), "Basic x".to_owned())];
    let provider = HttpProvider::new(ServerOptions { headers, ..options(&base_url) }).expect("good options");
    // The second request is made of the first one.
    for _ in 0..2 {
        server.last_request.lock().expect("not poisoned").clear();
        let _empty = collect(&provider).await;
        let sent = server.last_request.lock().expect("not poisoned").clone();
        assert!(sent.starts_with("POST /v1/chat/completions?api-version=1 HTTP/1.1\r\n"), "{sent}");
        assert!(sent.contains("authorization: Basic x\r\n") && !sent.contains("Bearer"), "{sent}");
        assert!(sent.contains("content-type: application/json\r\n"), "{sent}");
        let (head, body) = sent.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{sent}");
        assert!(body.starts_with("{\"model\":") && body.ends_with('}'), "{sent}");
    }
}

#[test]
fn keys_are_taken_out_of_texts() {
    for (key, text, expect) in [
        ("sk-12345678", "no sk-12345678, no xsk-12345678x", "no ***, no x***x"),
        ("abc", "the key abc is wrong: \"abc\" (abc)", "the key *** is wrong: \"***\" (***)"),
        ("abc", "abcd, dabc and \u{e4}abc are others", "abcd, dabc and \u{e4}abc are others"),
        ("a", "a", "***"),
        ("aa", "aa aaa aaaa aa", "*** aaa aaaa ***"),
        ("-", "- a-b", "*** a-b"),
        ("none", "none of it", "*** of it"),
    ] {
        assert_eq!(super::without_key(text, key), expect, "{key}");
    }
}

/// What a server does with one request on a connection that it keeps open.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A whole answer; the connection stays open.
    Answer,
    /// The connection is closed before an answer.
    Close,
    /// The connection is reset before an answer.
    Reset,
    /// The head of an answer and a part of its body, then the connection is closed.
    Partial,
    /// Bytes that are no HTTP, then the connection is closed.
    Garbage,
}

/// A server that does these steps, a list for each connection, and how many requests came to each connection.
async fn serve_steps(connections: &'static [&'static [Step]]) -> (String, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
    let counts = Arc::clone(&seen);
    tokio::spawn(async move {
        for (number, steps) in connections.iter().enumerate() {
            let (mut socket, _) = listener.accept().await.expect("a connection comes");
            counts.lock().expect("no test panics with the lock").push(0);
            let counts = Arc::clone(&counts);
            tokio::spawn(async move {
                let body =
                    lines(&[r#"{"choices":[{"delta":{"content":"yes"},"finish_reason":"stop"}]}"#, "[DONE]"]);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
                for step in *steps {
                    read_request(&mut socket).await;
                    counts.lock().expect("no test panics with the lock")[number] += 1;
                    let bytes = match step {
                        Step::Answer => format!("{head}content-length: {}\r\n\r\n{body}", body.len()),
                        Step::Partial => format!("{head}content-length: 9999\r\n\r\ndata: {{"),
                        Step::Garbage => "what?\r\n\r\n".to_owned(),
                        Step::Close => String::new(),
                        Step::Reset => {
                            socket.set_zero_linger().expect("a socket has the option");
                            return;
                        }
                    };
                    socket.write_all(bytes.as_bytes()).await.expect("the client reads");
                    if !matches!(step, Step::Answer) {
                        return;
                    }
                }
            });
        }
    });
    (base_url, seen)
}

#[tokio::test]
async fn a_reused_connection_that_breaks_before_the_answer_costs_one_request_more() {
    use Step::{Answer, Close, Garbage, Partial, Reset};
    type Row = (&'static [&'static [Step]], bool, &'static [usize]);
    let rows: &[Row] = &[
        // The answer comes over a new connection.
        (&[&[Answer, Close], &[Answer]], true, &[2, 1]),
        (&[&[Answer, Reset], &[Answer]], true, &[2, 1]),
        // The server closed it while it was free.
        (&[&[Answer], &[Answer]], true, &[1, 1]),
        // Once only.
        (&[&[Answer, Close], &[Close], &[Answer]], false, &[2, 1]),
        (&[&[Answer, Reset], &[Reset], &[Answer]], false, &[2, 1]),
        // Something of an answer came.
        (&[&[Answer, Partial], &[Answer]], false, &[2]),
        (&[&[Answer, Garbage], &[Answer]], false, &[2]),
    ];
    for (connections, is_answered, requests) in rows {
        let (base_url, seen) = serve_steps(connections).await;
        let provider = HttpProvider::new(options(&base_url)).expect("good options");
        assert!(collect(&provider).await.1.is_ok(), "{connections:?}");
        let second = collect(&provider).await.1;
        assert_eq!(second.is_ok(), *is_answered, "{connections:?}: {second:?}");
        assert_eq!(*seen.lock().expect("no test panics with the lock"), *requests, "{connections:?}");
    }
    // A connection that was made for the request is not a reused one.
    let fresh: [&'static [&'static [Step]]; 2] = [&[&[Close], &[Answer]], &[&[Reset], &[Answer]]];
    for first in fresh {
        let (base_url, seen) = serve_steps(first).await;
        let provider = HttpProvider::new(options(&base_url)).expect("good options");
        assert!(collect(&provider).await.1.is_err(), "{first:?}");
        assert_eq!(*seen.lock().expect("no test panics with the lock"), [1], "{first:?}");
    }
}

#[tokio::test]
async fn a_model_of_another_api_says_which() {
    let body = r#"{"error":{"message":"This model is only supported in v1/responses and not in v1/chat/completions.","type":"invalid_request_error","param":"model"}}"#;
    let error = failure(refusal("404 Not Found", "content-type: application/json\r\n", body)).await;
    assert!(error.failure.message.ends_with("; set `api: responses` for this provider"), "{error}");
}

/// A call with this answer's head, and how long the next one has to wait.
async fn limited(status: &str, headers: &str) -> (Option<ProviderError>, Option<Duration>) {
    let body = r#"{"error":{"message":"slow down"}}"#;
    let hello = lines(&[r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#, "[DONE]"]);
    let answer = match status {
        "200 OK" => format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n{headers}\r\n{hello}"
        ),
        status => refusal(status, headers, body),
    };
    let server = serve(Play::Close(answer)).await;
    let provider = HttpProvider::new(options(&server.base_url)).expect("good options");
    let error = match provider.stream(request()).await {
        Ok(mut stream) => {
            while let Some(event) = stream.next().await {
                event.expect("a whole answer");
            }
            None
        }
        Err(error) => Some(error),
    };
    (error, provider.limited_for())
}

#[tokio::test]
async fn a_limit_that_is_used_up_makes_the_next_call_wait() {
    let used_up = "x-ratelimit-remaining-tokens: 0\r\nx-ratelimit-reset-tokens: 20s\r\n";
    let (error, wait) = limited("200 OK", used_up).await;
    assert!(error.is_none());
    let wait = wait.expect("nothing remains");
    assert!(wait > Duration::from_secs(15) && wait <= Duration::from_secs(20), "{wait:?}");
    let (_, wait) = limited("200 OK", &used_up.replace("20s", "99h")).await;
    assert!(wait.is_some_and(|wait| wait <= Duration::from_secs(60)), "as long as Retry-After: {wait:?}");
    let (_, wait) = limited("200 OK", &used_up.replace("tokens: 0", "tokens: 12")).await;
    assert_eq!(wait, None);
    // A refusal without Retry-After waits for the reset, and one with it as it says.
    let (error, _) = limited("429 Too Many Requests", used_up).await;
    assert_eq!(error.expect("refused").failure.retry_after_ms, Some(20_000));
    let (error, _) = limited("429 Too Many Requests", &format!("{used_up}retry-after: 3\r\n")).await;
    assert_eq!(error.expect("refused").failure.retry_after_ms, Some(3_000));
    let (error, _) = limited("400 Bad Request", used_up).await;
    assert_eq!(error.expect("refused").failure.retry_after_ms, None);
}
