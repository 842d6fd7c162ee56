//! A bare HTTP client: the baseline for the cost of a provider and a session.
//!
//! It is as lean as a careful loop would be: one client, a request that is made once, each line parsed once into fields
//! that borrow from it, and a body that is written from what is kept.

#![allow(dead_code, reason = "each benchmark uses its part")]

use std::borrow::Cow;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Request, Url};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A client of one address.
#[derive(Clone)]
pub(crate) struct BareClient {
    client: reqwest::Client,
    /// The address of chat completions.
    url: Url,
}

/// Creates a client that keeps this many connections to an API. It does not support TLS.
pub(crate) fn client(connections: usize, base_url: &str) -> BareClient {
    let cryptography = rustls::crypto::ring::default_provider().into();
    let tls = ClientConfig::builder_with_provider(cryptography)
        .with_safe_default_protocol_versions()
        .expect("versions that it knows")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .pool_max_idle_per_host(connections)
        .tls_backend_preconfigured(tls)
        .build()
        .expect("a client");
    BareClient { client, url: format!("{base_url}/chat/completions").parse().expect("a URL") }
}

/// A whole answer.
#[derive(Debug, Default)]
pub(crate) struct BareAnswer {
    pub(crate) text: String,
    /// The number of pieces of text.
    pub(crate) pieces: usize,
    /// The tool call's arguments; empty if there was no call.
    pub(crate) arguments: String,
}

/// The fields that a bare client reads from a chunk, or from a whole answer.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(alias = "message", borrow)]
    delta: Delta<'a>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(default, borrow)]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    arguments: Text<'a>,
}

/// A text that is copied only if it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl BareAnswer {
    fn take(&mut self, chunk: &[u8]) {
        let chunk: Chunk<'_> = serde_json::from_slice(chunk).expect("a chunk");
        let Some(Choice { delta }) = chunk.choices.into_iter().next() else { return };
        if let Some(Text(more)) = delta.content {
            self.text.push_str(&more);
            self.pieces += 1;
        }
        for call in delta.tool_calls {
            self.arguments.push_str(&call.function.arguments.0);
        }
    }

    /// Reads the whole lines of a stream, and returns where the rest begins.
    fn take_lines(&mut self, bytes: &[u8]) -> usize {
        let mut read = 0;
        while let Some(end) = bytes[read..].iter().position(|byte| *byte == b'\n') {
            let line = &bytes[read..read + end];
            read += end + 1;
            if let Some(data) = line.strip_prefix(b"data: ").filter(|data| *data != b"[DONE]") {
                self.take(data);
            }
        }
        read
    }
}

/// Posts a request and reads the answer to its end, streamed or whole.
pub(crate) async fn answer(client: &BareClient, body: impl Into<reqwest::Body>) -> BareAnswer {
    let mut request = Request::new(Method::POST, client.url.clone());
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *request.body_mut() = Some(body.into());
    let mut response = client.client.execute(request).await.expect("an answer");
    assert!(response.status().is_success(), "{}", response.status());
    let is_whole = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let mut answer = BareAnswer::default();
    if is_whole {
        answer.take(&response.bytes().await.expect("a whole answer"));
        return answer;
    }
    let mut unread: Vec<u8> = Vec::new();
    while let Some(bytes) = response.chunk().await.expect("a whole answer") {
        if unread.is_empty() {
            let read = answer.take_lines(&bytes);
            unread.extend_from_slice(&bytes[read..]);
        } else {
            unread.extend_from_slice(&bytes);
            let read = answer.take_lines(&unread);
            unread.drain(..read);
        }
    }
    answer
}

/// A message as it is kept and sent.
#[derive(Debug, Serialize)]
pub(crate) struct Said {
    role: &'static str,
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<SaidCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

#[derive(Debug, Serialize)]
struct SaidCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: SaidFunction,
}

#[derive(Debug, Serialize)]
struct SaidFunction {
    name: &'static str,
    arguments: String,
}

impl Said {
    /// A message of this role with a text.
    pub(crate) fn text(role: &'static str, text: impl Into<String>) -> Self {
        Self { role, content: Some(text.into()), tool_calls: Vec::new(), tool_call_id: None }
    }

    /// A call of the tool `look`.
    pub(crate) fn call(id: &str, arguments: String) -> Self {
        let function = SaidFunction { name: "look", arguments };
        let call = SaidCall { id: id.to_owned(), kind: "function", function };
        Self { role: "assistant", content: None, tool_calls: vec![call], tool_call_id: None }
    }

    /// The result of a call.
    pub(crate) fn result(id: String, text: String) -> Self {
        Self { role: "tool", content: Some(text), tool_calls: Vec::new(), tool_call_id: Some(id) }
    }
}

/// How a loop keeps its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// As values of its own types.
    Structs,
    /// As JSON values, which each call serialises.
    Values,
    /// Each message as serialised text.
    Text,
}

/// The conversation of a loop.
pub(crate) enum Conversation {
    /// See [`Keeps::Structs`].
    Structs(Vec<Said>),
    /// See [`Keeps::Values`].
    Values(Vec<Value>),
    /// See [`Keeps::Text`].
    Text(Vec<String>),
}

/// What comes after the messages.
#[derive(Serialize)]
struct Rest<'a> {
    tools: &'a [Box<RawValue>],
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    prompt_cache_key: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// The tool, serialised once.
pub(crate) fn tools() -> Vec<Box<RawValue>> {
    let tool = r#"{"type":"function","function":{"name":"look","description":"Looks something up.","parameters":{"type":"object","properties":{"up":{"type":"string"}},"required":["up"]}}}"#;
    vec![RawValue::from_string(tool.to_owned()).expect("JSON")]
}

impl Conversation {
    /// Creates an empty one.
    pub(crate) fn new(keeps: Keeps) -> Self {
        match keeps {
            Keeps::Structs => Self::Structs(Vec::new()),
            Keeps::Values => Self::Values(Vec::new()),
            Keeps::Text => Self::Text(Vec::new()),
        }
    }

    /// Adds a message.
    pub(crate) fn push(&mut self, said: Said) {
        match self {
            Self::Structs(kept) => kept.push(said),
            Self::Values(kept) => kept.push(serde_json::to_value(&said).expect("JSON")),
            Self::Text(kept) => kept.push(serde_json::to_string(&said).expect("JSON")),
        }
    }

    /// Writes the body of the next request.
    pub(crate) fn body(&self, tools: &[Box<RawValue>], stream: bool, key: &str) -> Vec<u8> {
        let stream_options = stream.then_some(StreamOptions { include_usage: true });
        let rest = Rest { tools, stream, stream_options, prompt_cache_key: key };
        let mut body = Vec::new();
        if let Self::Text(messages) = self {
            body.reserve(messages.iter().map(|message| message.len() + 1).sum::<usize>() + 1024);
        }
        body.extend_from_slice(br#"{"model":"simulated","messages":"#);
        match self {
            Self::Structs(messages) => serde_json::to_writer(&mut body, messages).expect("JSON"),
            Self::Values(messages) => serde_json::to_writer(&mut body, messages).expect("JSON"),
            Self::Text(messages) => {
                for (index, message) in messages.iter().enumerate() {
                    body.push(if index == 0 { b'[' } else { b',' });
                    body.extend_from_slice(message.as_bytes());
                }
                body.push(b']');
            }
        }
        // Its brace becomes the comma between the fields.
        let brace = body.len();
        serde_json::to_writer(&mut body, &rest).expect("JSON");
        body[brace] = b',';
        body
    }
}
