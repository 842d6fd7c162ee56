//! Malformed and malicious answers of a provider, as bytes over a socket, through the real client and a whole
//! session. Each ends in a typed outcome, is reported by one end of its run, loses nothing and does not
//! affect later prompts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream::{self, StreamExt};
use greenroom::prelude::*;
use greenroom_kernel::FailureClass::{
    self, Auth, ContentFilter, ContextOverflow, Malformed, Other, OutputLimit, Overloaded, PayloadTooLarge,
    RateLimited, Timeout,
};
use greenroom_kernel::run::RunLimits;
use greenroom_provider::{HttpProvider, ServerOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{agent, store};

/// The expected result of a hostile answer.
#[derive(Debug, Clone, PartialEq)]
enum End {
    /// An answer with this text.
    Answers(&'static str),
    /// The run fails with this class.
    Fails(FailureClass),
    /// It is given up: at a size limit, or at a time limit if that is reached first.
    GivenUp,
}
use End::{Answers, Fails, GivenUp};

/// A server's behaviour on the first request.
struct Case {
    name: &'static str,
    /// The bytes sent first.
    bytes: Vec<u8>,
    /// The bytes then sent repeatedly, until the client disconnects.
    again: Option<Vec<u8>>,
    /// Whether it then keeps the connection open, silently.
    hangs: bool,
    end: End,
}

impl Case {
    fn new(name: &'static str, bytes: impl Into<Vec<u8>>, end: End) -> Self {
        Self { name, bytes: bytes.into(), again: None, hangs: false, end }
    }

    fn flood(name: &'static str, bytes: String, again: &str, end: End) -> Self {
        Self {
            again: Some(again.repeat(1 + 8_192 / again.len()).into_bytes()),
            ..Self::new(name, bytes, end)
        }
    }

    fn hang(name: &'static str, bytes: String, end: End) -> Self {
        Self { hangs: true, ..Self::new(name, bytes, end) }
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

/// Returns a stream of these chunks.
fn sse(chunks: &[&str]) -> String {
    let lines: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    format!("{STREAM}{lines}")
}

/// Returns a stream with one chunk before a regular end.
fn sse_then_end(chunk: &str) -> String {
    sse(&[chunk, r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, "[DONE]"])
}

/// Returns a complete valid stream with this delta.
fn delta(delta: &str) -> String {
    sse_then_end(&format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#))
}

fn with_usage(usage: &str) -> String {
    sse_then_end(&format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"well"}}}}],"usage":{usage}}}"#))
}

fn status(line: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {line}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
}

fn json(body: &str) -> String {
    status("200 OK", "content-type: application/json\r\n", body)
}

fn error(line: &str, message: &str) -> String {
    status(line, "", &format!(r#"{{"error":{{"message":"{message}","type":"odd","code":null}}}}"#))
}

fn good() -> String {
    delta(r#"{"content":"fine"}"#)
}

fn calls(count: usize, name: &str, arguments: &str, id: &str) -> String {
    let mut chunks = String::new();
    for index in 0..count {
        chunks.push_str(&format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":{index},\"id\":\"{id}{index}\",\
             \"function\":{{\"name\":\"{name}\",\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
        ));
    }
    format!(
        "{STREAM}{chunks}data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"tool_calls\"}}]}}\n\n\
         data: [DONE]\n\n"
    )
}

#[expect(clippy::too_many_lines, reason = "it is one table")]
fn cases() -> Vec<Case> {
    let text = r#"{"choices":[{"index":0,"delta":{"content":"half"}}]}"#;
    let much = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}"#, "much ".repeat(4_000));
    let deep = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count));
    vec![
        // No HTTP, or unusual HTTP.
        Case::new("closes at once", "", Fails(Timeout)),
        Case::new("no HTTP", "\0\u{1}\u{2}hello\r\n\r\n", Fails(Timeout)),
        Case::new("HTTP 1.0", good().replacen("HTTP/1.1", "HTTP/1.0", 1), Answers("fine")),
        Case::new("continue first", format!("HTTP/1.1 100 Continue\r\n\r\n{}", good()), Answers("fine")),
        Case::new("status 99999", good().replacen("200", "99999", 1), Fails(Timeout)),
        Case::new("status 600", status("600 Odd", "", ""), Fails(Other)),
        Case::new("no content", "HTTP/1.1 204 No Content\r\n\r\n", Fails(Malformed)),
        Case::new("redirect", status("302 Found", "location: http://192.0.2.1/\r\n", ""), Fails(Other)),
        Case::new(
            "two lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 9\r\n\r\nhello",
            Fails(Timeout),
        ),
        Case::new("length too large", json("{}").replacen("length: 2", "length: 999", 1), Fails(Timeout)),
        Case::new(
            "chunks of no size",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
            Fails(Timeout),
        ),
        Case::new(
            "chunk of 2^63",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8000000000000000\r\nhello\r\n",
            Fails(Timeout),
        ),
        Case::new(
            "gzip that is none",
            status("200 OK", "content-encoding: gzip\r\n", "not gzip at all"),
            Fails(Malformed),
        ),
        Case::new(
            "a header of 1 MB",
            status("200 OK", &format!("x: {}\r\n", "y".repeat(1_000_000)), "{}"),
            Fails(Timeout),
        ),
        Case::new("10,000 headers", status("200 OK", &"x: y\r\n".repeat(10_000), "{}"), Fails(Timeout)),
        Case::hang("silent", String::new(), Fails(Timeout)),
        Case::hang("silent after headers", STREAM.to_owned(), Fails(Timeout)),
        Case::hang("silent in the middle", sse(&[text]), Fails(Timeout)),
        // Bodies that are not a stream.
        Case::new(
            "a web page",
            status("200 OK", "content-type: text/html\r\n", "<html>Sign in</html>"),
            Fails(Other),
        ),
        Case::new("an empty body", json(""), Fails(Malformed)),
        Case::new("null", json("null"), Fails(Malformed)),
        Case::new("an array", json("[1,2]"), Fails(Malformed)),
        Case::new("half an object", json(r#"{"choices":[{"message":"#), Fails(Malformed)),
        Case::new("deep arrays", json(&deep(100_000)), Fails(Malformed)),
        Case::new(
            "an error with 200",
            json(r#"{"error":{"message":"overloaded","code":529}}"#),
            Fails(Overloaded),
        ),
        Case::new("no choices", json(r#"{"choices":[]}"#), Fails(Malformed)),
        Case::new(
            "not streamed",
            json(r#"{"choices":[{"message":{"content":"fine"},"finish_reason":"stop"}]}"#),
            Answers("fine"),
        ),
        // Invalid streams.
        Case::new("comments alone", format!("{STREAM}: hi\n\n: hi\n\n"), Fails(Malformed)),
        Case::new("only an end", sse(&["[DONE]"]), Fails(Malformed)),
        Case::new("broken JSON", sse_then_end("{\"choices\":[{"), Fails(Malformed)),
        Case::new("a chunk of null", sse(&["null", "[DONE]"]), Fails(Malformed)),
        Case::new("a chunk of text", sse(&["the engine is restarting", "[DONE]"]), Fails(Malformed)),
        Case::new(
            "deep chunk",
            sse_then_end(&format!(r#"{{"choices":{}}}"#, deep(100_000))),
            Fails(Malformed),
        ),
        Case::new("choices null", sse(&[r#"{"choices":null}"#, "[DONE]"]), Fails(Malformed)),
        Case::new("an end in the middle", sse(&[text]), Fails(Malformed)),
        Case::new(
            "an error in the middle",
            sse(&[text, r#"{"error":{"message":"The server is overloaded","code":503}}"#]),
            Fails(Overloaded),
        ),
        Case::new(
            "not UTF-8",
            [
                sse(&[]).into_bytes(),
                b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xff\xfe".to_vec(),
                b"\"}}]}\n\n".to_vec(),
            ]
            .concat(),
            Fails(Malformed),
        ),
        Case::new("carriage returns", good().replace("\n\n", "\r\r"), Answers("fine")),
        Case::new("a mark of byte order", good().replacen("data:", "\u{feff}data:", 1), Answers("fine")),
        Case::new("two ends", format!("{}data: [DONE]\n\ndata: {text}\n\n", good()), Answers("fine")),
        // Unusual deltas.
        Case::new("content of a number", delta(r#"{"content":7}"#), Fails(Malformed)),
        Case::new("content of nothing", delta(r#"{"content":null}"#), Fails(Malformed)),
        Case::new("white space", delta(r#"{"content":" \n "}"#), Fails(Malformed)),
        Case::new("reasoning alone", delta(r#"{"reasoning":"hm"}"#), Fails(Malformed)),
        Case::new("NUL", delta(r#"{"content":"a\u0000b"}"#), Answers("a\0b")),
        Case::new("half a surrogate", delta(r#"{"content":"a\ud800b"}"#), Answers("a\u{fffd}b")),
        Case::new(
            "another choice",
            sse_then_end(r#"{"choices":[{"index":1,"delta":{"content":"no"}}]}"#),
            Fails(Malformed),
        ),
        Case::new("an odd finish", good().replace("\"stop\"", "\"because\""), Answers("fine")),
        Case::new(
            "filtered",
            good().replace("\"stop\"", "\"content_filter\"").replace("fine", ""),
            Fails(ContentFilter),
        ),
        Case::new(
            "no room",
            good().replace("\"stop\"", "\"length\"").replace("fine", " "),
            Fails(OutputLimit),
        ),
        // Implausible usage.
        Case::new(
            "negative usage",
            with_usage(r#"{"prompt_tokens":-5,"completion_tokens":-1}"#),
            Answers("well"),
        ),
        Case::new(
            "a fraction of usage",
            with_usage(r#"{"prompt_tokens":1.5,"completion_tokens":2.5}"#),
            Answers("well"),
        ),
        Case::new(
            "10^30 tokens",
            with_usage(r#"{"prompt_tokens":1e30,"completion_tokens":1e30}"#),
            Answers("well"),
        ),
        Case::new(
            "usage in words",
            with_usage(r#"{"prompt_tokens":"many","completion_tokens":"few"}"#),
            Answers("well"),
        ),
        Case::new(
            "2^64-1 tokens",
            with_usage(r#"{"prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}"#),
            Answers("well"),
        ),
        Case::new("a usage of lists", with_usage("[1,2]"), Answers("well")),
        // Calls that cannot be run: the model is told, and answers.
        Case::new("a call of nothing", calls(1, "", "{}", "c"), Answers("fine")),
        Case::new("an unknown tool", calls(1, "rm", "{}", "c"), Answers("fine")),
        Case::new("a name that steers", calls(1, "\\u001b[2J", "{}", "c"), Answers("fine")),
        Case::new("arguments that are none", calls(1, "note", "not json", "c"), Answers("fine")),
        Case::new("deep arguments", calls(1, "note", &deep(50_000), "c"), Answers("fine")),
        Case::new(
            "no ids",
            calls(3, "note", "{}", "").replace("\"id\":\"0\",", "").replace("\"id\":\"1\",", ""),
            Answers("fine"),
        ),
        Case::new("an id of 100 kB", calls(1, "note", "{}", &"i".repeat(100_000)), Answers("fine")),
        Case::new(
            "index 2^64-1",
            calls(1, "note", "{}", "c")
                .replace("\"tool_calls\":[{\"index\":0", "\"tool_calls\":[{\"index\":18446744073709551615"),
            Answers("fine"),
        ),
        Case::new(
            "index -1",
            calls(1, "note", "{}", "c")
                .replace("\"tool_calls\":[{\"index\":0", "\"tool_calls\":[{\"index\":-1"),
            Answers("fine"),
        ),
        Case::new(
            "index in words",
            calls(1, "note", "{}", "c")
                .replace("\"tool_calls\":[{\"index\":0", "\"tool_calls\":[{\"index\":\"7\""),
            Answers("fine"),
        ),
        Case::new("20,000 calls", calls(20_000, "note", "{}", "c"), Answers("fine")),
        // Excessive data.
        Case::flood("endless text", sse(&[]), &format!("data: {much}\n\n"), GivenUp),
        Case::flood(
            "an endless line",
            format!("{STREAM}data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\""),
            "abcdefgh",
            GivenUp,
        ),
        Case::flood("endless comments", STREAM.to_owned(), ": wait\n\n", GivenUp),
        Case::flood(
            "endless nothing",
            STREAM.to_owned(),
            "data: {\"choices\":[{\"index\":0,\"delta\":{}}]}\n\n",
            GivenUp,
        ),
        Case::flood("an endless refusal", "HTTP/1.1 500 Odd\r\n\r\n".to_owned(), "sorry ", Fails(Overloaded)),
        // Refusals.
        Case::new("400 without a word", status("400 Bad Request", "", ""), Fails(Other)),
        Case::new(
            "a page of 500",
            status("500 Odd", "content-type: text/html\r\n", "<html>oops</html>"),
            Fails(Overloaded),
        ),
        Case::new(
            "wait for ever",
            error("429 Too Many Requests", "slow down").replacen(
                "\r\n",
                "\r\nretry-after: 99999999999999999999\r\n",
                1,
            ),
            Fails(RateLimited),
        ),
        Case::new(
            "wait for less than nothing",
            error("429 Too Many Requests", "slow down").replacen("\r\n", "\r\nretry-after: -5\r\n", 1),
            Fails(RateLimited),
        ),
        Case::new("a key that is wrong", error("401 Unauthorized", "bad key secret-key-123"), Fails(Auth)),
        Case::new(
            "too many bytes, and no image to leave out",
            error("413 Payload Too Large", "too large"),
            Fails(PayloadTooLarge),
        ),
        Case::new(
            "a window of 5 tokens",
            error(
                "400 Bad Request",
                "This model's maximum context length is 5 tokens. However, your messages resulted in 9 tokens.",
            ),
            Fails(ContextOverflow),
        ),
        Case::new(
            "a window of 10^12 tokens",
            error(
                "400 Bad Request",
                "This model's maximum context length is 1000000000000 tokens. However, your messages resulted in 2000000000000 tokens.",
            ),
            Fails(ContextOverflow),
        ),
    ]
}

/// Returns a server that plays the case on the first call and on every request for its list of models, and
/// answers well from then on. Only calls are counted.
async fn serve(case: &Case) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let (seen, bytes, again, hangs) =
        (Arc::clone(&requests), case.bytes.clone(), case.again.clone(), case.hangs);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (bytes, again, seen) = (bytes.clone(), again.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let is_call = read_request(&mut socket).await.starts_with("POST ");
                if is_call && seen.fetch_add(1, Ordering::SeqCst) > 0 {
                    let _ = socket.write_all(good().as_bytes()).await;
                    let _ = socket.shutdown().await;
                    return;
                }
                if socket.write_all(&bytes).await.is_err() {
                    return;
                }
                if let Some(again) = again {
                    while socket.write_all(&again).await.is_ok() {}
                }
                if hangs {
                    let mut rest = [0; 64];
                    while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
                }
                let _ = socket.shutdown().await;
            });
        }
    });
    (url, requests)
}

async fn read_request(socket: &mut TcpStream) -> String {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 65_536]);
    loop {
        let count = socket.read(&mut buffer).await.unwrap_or(0);
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0_usize) {
                return text;
            }
        }
        if count == 0 {
            return text;
        }
    }
}

/// Takes anything.
#[derive(Deserialize, JsonSchema)]
struct Anything {}

/// Returns how the case differs from the expectation; nothing if it does not.
async fn play(case: Case) -> Option<String> {
    let (url, requests) = serve(&case).await;
    let options = ServerOptions {
        name: "hostile".into(),
        base_url: url.parse().unwrap(),
        api_key: Some("secret-key-123".into()),
        first_event_timeout: std::time::Duration::from_secs(4),
        idle_timeout: std::time::Duration::from_secs(3),
        ..ServerOptions::default()
    };
    let provider = HttpProvider::new(options).unwrap();
    let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
    let limits = RunLimits { retries_max: 0, ..RunLimits::default() };
    let agent = agent(50_000).limits(limits).tool("note", |_: Anything| async { Ok("noted".to_owned()) });
    let session = runtime.open("attacked", &agent).await.unwrap();
    let first = session.prompt("first prompt").await;
    let end = match &first {
        Ok(reply) => format!("{:?}", reply.text),
        Err(Error::Model(failure)) => format!("{:?}", failure.class),
        Err(other) => format!("not typed: {other:?}"),
    };
    let expected = match &case.end {
        Answers(text) => format!("{text:?}"),
        Fails(class) => format!("{class:?}"),
        GivenUp if end == "Other" => "Other".to_owned(),
        GivenUp => "Timeout".to_owned(),
    };
    let mut wrong = Vec::new();
    if end != expected {
        wrong.push(format!("it came to {end} and not to {expected}: {first:?}"));
    }
    let second = session.prompt("second prompt").await;
    if !second.as_ref().is_ok_and(|reply| reply.text == "fine") {
        wrong.push(format!("the next prompt: {second:?}"));
    }
    let seen = runtime.replay("attacked", 0).await.unwrap();
    let ends: Vec<_> = seen.iter().filter(|event| event.kind.name() == "run_end").collect();
    if ends.len() != 2 {
        wrong.push(format!("{} ends of two runs", ends.len()));
    }
    if seen.iter().any(|event| format!("{event:?}").contains("secret-key-123")) {
        wrong.push("an event tells the key".to_owned());
    }
    let context = session.context().await.unwrap();
    let prompts = context.iter().filter(|message| message.role() == "user").count();
    let calls: usize = context.iter().map(|message| message.tool_calls().count()).sum();
    let results = context.iter().filter(|message| message.role() == "tool").count();
    if prompts != 2 || calls != results {
        wrong.push(format!("{prompts} prompts, {calls} calls and {results} results are on the record"));
    }
    if requests.load(Ordering::SeqCst) < 2 {
        wrong.push("the case was not played".to_owned());
    }
    let state = session.state().await.unwrap();
    if (state.status, state.waiting) != (Status::Idle, 0) || state.context.tokens > 50_000 {
        wrong.push(format!("{state:?}"));
    }
    runtime.shutdown().await.unwrap();
    (!wrong.is_empty())
        .then(|| format!("{}: {}", case.name, wrong.join("; ").chars().take(600).collect::<String>()))
}

#[tokio::test]
async fn each_hostile_answer_has_a_typed_end_and_harms_nothing_after_it() {
    let cases = cases();
    let count = cases.len();
    assert!(count >= 75, "{count}");
    let wrong: Vec<String> =
        stream::iter(cases).map(play).buffer_unordered(6).filter_map(std::future::ready).collect().await;
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
