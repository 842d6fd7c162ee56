//! A bare HTTP client that parses its streams: the baseline for the cost of a provider and a session.

use futures_util::StreamExt;
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;

/// Creates a client that keeps this many connections. It does not support TLS.
pub(crate) fn client(connections: usize) -> reqwest::Client {
    let cryptography = rustls::crypto::ring::default_provider().into();
    let tls = ClientConfig::builder_with_provider(cryptography)
        .with_safe_default_protocol_versions()
        .expect("versions that it knows")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder()
        .pool_max_idle_per_host(connections)
        .tls_backend_preconfigured(tls)
        .build()
        .expect("a client")
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
struct Chunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(alias = "message")]
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
}

#[derive(Deserialize)]
struct ToolCall {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    arguments: String,
}

impl BareAnswer {
    fn take(&mut self, chunk: Chunk) {
        let Some(Choice { delta }) = chunk.choices.into_iter().next() else { return };
        if let Some(more) = delta.content {
            self.text.push_str(&more);
            self.pieces += 1;
        }
        for call in delta.tool_calls {
            self.arguments.push_str(&call.function.arguments);
        }
    }
}

/// Posts a request and reads the answer to its end, streamed or whole.
pub(crate) async fn answer(client: &reqwest::Client, url: &str, body: String) -> BareAnswer {
    let request = client.post(url).header("content-type", "application/json").body(body);
    let response = request.send().await.expect("an answer");
    assert!(response.status().is_success(), "{}", response.status());
    let is_whole = response.headers().get("content-type").is_some_and(|kind| kind == "application/json");
    let (mut unread, mut answer) = (Vec::new(), BareAnswer::default());
    if is_whole {
        let body = response.bytes().await.expect("a whole answer");
        answer.take(serde_json::from_slice(&body).expect("an answer"));
        return answer;
    }
    let mut body = response.bytes_stream();
    while let Some(bytes) = body.next().await {
        unread.extend_from_slice(&bytes.expect("a whole answer"));
        let mut read = 0;
        while let Some(end) = unread[read..].windows(2).position(|bytes| bytes == b"\n\n") {
            let event = &unread[read..read + end];
            read += end + 2;
            let data = event.strip_prefix(b"data: ").expect("data");
            if data == b"[DONE]" {
                continue;
            }
            answer.take(serde_json::from_slice(data).expect("a chunk"));
        }
        unread.drain(..read);
    }
    answer
}
