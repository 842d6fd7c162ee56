//! The refusals of servers of each API, served over HTTP in their original form: see `tests/data/README.md`.

use greenroom_kernel::FailureClass;
use serde::Deserialize;

use super::{Play, call, options, refusal, serve, stream_of};
use crate::{Api, ServerOptions};

/// A line of the data: a refusal with its status, or the events of an answer, and what it means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    server: String,
    status: Option<u16>,
    #[serde(default)]
    headers: serde_json::Map<String, serde_json::Value>,
    body: Option<String>,
    events: Option<Vec<String>>,
    #[serde(flatten)]
    meaning: Meaning,
    #[serde(rename = "origin")]
    _origin: Origin,
}

/// How the body is known.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    Report,
    Documentation,
    Fixture,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Meaning {
    /// The end of an answer that is no failure.
    stop: Option<String>,
    class: Option<FailureClass>,
    is_retryable: Option<bool>,
    wait_ms: Option<u64>,
    limit: Option<u64>,
    requested: Option<u64>,
}

impl Line {
    fn bytes(&self) -> String {
        if let Some(events) = &self.events {
            return stream_of(&events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>());
        }
        let mut headers = String::new();
        if !self.headers.contains_key("content-type") {
            headers.push_str("content-type: application/json\r\n");
        }
        for (name, value) in &self.headers {
            headers.push_str(&format!("{name}: {}\r\n", value.as_str().expect("a header is text")));
        }
        let status = self.status.expect("a refusal has a status");
        refusal(&format!("{status} Refused"), &headers, self.body.as_deref().expect("a refusal has a body"))
    }
}

/// Serves each line to a provider of this API, and shows all lines whose meaning is not the written one.
async fn check(api: Api, lines: &str, lines_min: usize) {
    let mut wrong = Vec::new();
    for line in lines.lines() {
        let read: Line = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let server = serve(Play::Close(read.bytes())).await;
        let end = call(ServerOptions { api, ..options(&server.base_url) }).await.1;
        let found = match end {
            Ok(answer) => Meaning {
                stop: Some(format!("{:?}", answer.stop)),
                class: None,
                is_retryable: None,
                wait_ms: None,
                limit: None,
                requested: None,
            },
            Err(error) => Meaning {
                stop: None,
                class: Some(error.failure.class),
                is_retryable: Some(error.failure.class.is_retryable()),
                wait_ms: error.failure.retry_after_ms,
                limit: error.failure.limit,
                requested: error.failure.requested,
            },
        };
        if found != read.meaning {
            wrong.push(format!("{} {line}\n    is {found:?}", read.server));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.lines().count(), wrong.join("\n"));
    assert!(lines.lines().count() >= lines_min);
}

#[tokio::test]
async fn of_anthropic() {
    check(Api::Anthropic, include_str!("../../../../../tests/data/anthropic_errors.jsonl"), 80).await;
}

#[tokio::test]
async fn of_responses() {
    check(Api::Responses, include_str!("../../../../../tests/data/responses_errors.jsonl"), 70).await;
}

#[tokio::test]
async fn of_gemini() {
    check(Api::Gemini, include_str!("../../../../../tests/data/gemini_errors.jsonl"), 60).await;
}
