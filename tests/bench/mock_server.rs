//! A model in a separate process, for benchmarks of the cost of calling it: it streams canned answers, and
//! sends them whole if the request does not ask for a stream. It first calls a tool if the request offers one
//! and there is no result yet, and it summarises on request.

use std::borrow::Cow;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use greenroom_tests::measure::argument;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The argument that makes a benchmark the server: the pieces of an answer, the pause after each in
/// microseconds, and whether each chunk has an id of its own.
const SERVE: &str = "serve-mock";

/// The ids of an answer's chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// One for all of them, as most servers send it.
    One,
    /// Each has its own, so that chunks differ in more than their text.
    Own,
}

/// A running server, which ends when this value is dropped.
pub(crate) struct MockServer {
    child: Child,
    /// The URL of its API.
    pub(crate) base_url: String,
}

impl MockServer {
    /// Starts this program again, as a server that answers in this many pieces with this pause after each.
    pub(crate) fn start(pieces: usize, pause: Duration, ids: Ids) -> Self {
        let this = std::env::current_exe().expect("this program has a name");
        let mut child = Command::new(this)
            .arg(format!("{SERVE}={pieces},{},{}", pause.as_micros(), ids == Ids::Own))
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut port = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut port).expect("the server says its port");
        let base_url = format!("http://127.0.0.1:{}/v1", port.trim());
        Self { child, base_url }
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        let _is_gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Serves and never returns, if this process was started as the server.
pub(crate) fn serve_if_asked() {
    let Some(form) = argument(SERVE) else { return };
    let form: Vec<&str> = form.split(',').collect();
    let [pieces, pause, own_ids] = form[..] else { panic!("{SERVE} has three values, not {form:?}") };
    let pieces: usize = pieces.parse().expect("a number of pieces");
    let pause = Duration::from_micros(pause.parse().expect("a number of microseconds"));
    let own_ids: bool = own_ids.parse().expect("true or false");
    let answers: &'static Answers = Box::leak(Box::new(Answers::new(pieces, own_ids)));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a thread").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("it is bound").port());
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket, answers, pause));
        }
    });
}

/// The pieces of each answer, each in a chunk of the body.
struct Answers {
    text: Vec<String>,
    call: Vec<String>,
    summary: Vec<String>,
    /// The text and the call, each as the choice of a whole response.
    whole_text: String,
    whole_call: String,
}

/// The text of every summary.
const SUMMARY: &str = "## Goal\\nA parser.\\n\\n## Constraints & Preferences\\n- (none)\\n\\n## Progress\\n### Done\\n\
    - [x] a line\\n### In Progress\\n- [ ] another\\n### Blocked\\n- (none)\\n\\n## Key Decisions\\n- **Words**: they are \
    short.\\n\\n## Next Steps\\n1. Go on.\\n\\n## Critical Context\\n- (none)";
/// The number in the id of an answer.
const ID: usize = 1_000;
/// The mark of a request for a stream.
const STREAMS: &[u8] = b"\"stream\":true";
/// The start of a request for a summary.
const SUMMARISE: &[u8] = b"You write records of conversations";

impl Answers {
    fn new(pieces: usize, own_ids: bool) -> Self {
        let said_as = |id: usize, text: &str| {
            chunk(&event(id, &format!("\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null")))
        };
        let said = |text: &str| said_as(ID, text);
        let piece = |number| said_as(if own_ids { ID + number } else { ID }, &format!(" word{number}"));
        let mut text: Vec<String> = (0..pieces).map(piece).collect();
        text.push(last("stop"));
        let call = |function: &str| {
            let call = format!("\"delta\":{{\"tool_calls\":[{{\"index\":0,{function}}}]}}");
            chunk(&event(ID, &format!("{call},\"finish_reason\":null")))
        };
        let begin =
            "\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"look\",\"arguments\":\"\"}";
        let arguments = "\"function\":{\"arguments\":\"{\\\"up\\\":\\\"word\\\"}\"}";
        let lines = SUMMARY.split_inclusive("\\n").map(said);
        let summary = lines.chain([last("stop")]).collect();
        let words: String = (0..pieces).map(|number| format!(" word{number}")).collect();
        let whole_call = "\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":\
            {\"name\":\"look\",\"arguments\":\"{\\\"up\\\":\\\"word\\\"}\"}}]";
        Self {
            text,
            summary,
            call: vec![call(begin), call(arguments), last("tool_calls")],
            whole_text: whole_choice(&format!("\"content\":\"{words}\""), "stop"),
            whole_call: whole_choice(whole_call, "tool_calls"),
        }
    }
}

async fn serve(mut socket: TcpStream, answers: &Answers, pause: Duration) {
    socket.set_nodelay(true).expect("a socket has the option");
    let mut request = Vec::new();
    while read_request(&mut socket, &mut request).await {
        let ends = ends(&request);
        if !ends.windows(STREAMS.len()).any(|bytes| bytes == STREAMS) {
            let choice = if wants_a_call(&ends) { &answers.whole_call } else { &answers.whole_text };
            let answer = whole(choice, request.len());
            if socket.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        if socket.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        let chunks = match () {
            () if wants_a_call(&ends) => &answers.call,
            () if ends.windows(SUMMARISE.len()).any(|bytes| bytes == SUMMARISE) => &answers.summary,
            () => &answers.text,
        };
        let (end, chunks) = chunks.split_last().expect("an answer has an end");
        for chunk in chunks {
            if socket.write_all(chunk.as_bytes()).await.is_err() {
                return;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        let end = format!("{end}{}", usage_and_end(request.len(), chunks.len()));
        if socket.write_all(end.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the beginning and the end of a request, which have all that an answer depends on: the time for reading a large
/// request is no merit of the client.
fn ends(request: &[u8]) -> Cow<'_, [u8]> {
    const READ: usize = 4 * 1024;
    if request.len() <= 4 * READ {
        return Cow::Borrowed(request);
    }
    let (_, end) = request.split_at(request.len() - READ);
    Cow::Owned([&request[..READ], end].concat())
}

/// Whether the request offers the tool, and its last message is not a result.
fn wants_a_call(request: &[u8]) -> bool {
    let request = String::from_utf8_lossy(request);
    let role = request.rfind("\"role\":\"").map(|at| &request[at + 8..]);
    request.contains("\"tools\":[") && role.is_some_and(|role| !role.starts_with("tool"))
}

fn event(id: usize, choice: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{id}\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
         \"model\":\"m\",\"choices\":[{{\"index\":0,{choice}}}]}}\n\n"
    )
}

fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// Returns the choice of a whole answer.
fn whole_choice(message: &str, finish_reason: &str) -> String {
    format!(
        "{{\"index\":0,\"message\":{{\"role\":\"assistant\",{message}}},\"finish_reason\":\"{finish_reason}\"}}"
    )
}

/// Returns a response with a whole answer to a request with this many bytes.
fn whole(choice: &str, request_bytes: usize) -> String {
    let body = format!(
        "{{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"m\",\"choices\":[\
         {choice}],\"usage\":{}}}",
        usage(request_bytes, choice.len() / 4)
    );
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
    format!("{head}: {}\r\n\r\n{body}", body.len())
}

/// Returns the usage of a request with this many bytes, as servers report it.
fn usage(request_bytes: usize, output: usize) -> String {
    let input = request_bytes / 4;
    let total = input + output;
    format!("{{\"prompt_tokens\":{input},\"completion_tokens\":{output},\"total_tokens\":{total}}}")
}

/// Returns the last choice of a stream.
fn last(finish_reason: &str) -> String {
    chunk(&event(ID, &format!("\"delta\":{{}},\"finish_reason\":\"{finish_reason}\"")))
}

/// Returns the usage of a request with this many bytes and an answer in this many pieces, and the end of the body.
fn usage_and_end(request_bytes: usize, pieces: usize) -> String {
    let usage = format!(
        "data: {{\"id\":\"chatcmpl-{ID}\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\
         \"choices\":[],\"usage\":{}}}\n\n",
        usage(request_bytes, pieces)
    );
    chunk(&(usage + "data: [DONE]\n\n")) + "0\r\n\r\n"
}

/// Reads one request with its body; `false` when the client has disconnected.
async fn read_request(socket: &mut TcpStream, request: &mut Vec<u8>) -> bool {
    request.clear();
    let mut size = None;
    loop {
        if size.is_none()
            && let Some(head) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n")
        {
            let text = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| length.parse::<usize>().expect("a length"));
            size = Some(head + 4 + length);
            request.reserve((head + 4 + length).saturating_sub(request.len()));
        }
        if size.is_some_and(|size| request.len() >= size) {
            return true;
        }
        if socket.read_buf(request).await.unwrap_or(0) == 0 {
            return false;
        }
    }
}
