//! Three conversations replayed, one for each vendor's own API, with the usage as the servers report it: what the
//! session records, by price class and in money, is what the vendor would bill.
//!
//! The bill is computed here from the numbers on the wire alone, by the vendors' rules and the catalogue's prices.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom::EntryId;
use greenroom::prelude::*;
use greenroom::provider::{Api, HttpProvider, ServerOptions};
use greenroom_kernel::Usage;
use greenroom_kernel::entry::EntryKind;
use greenroom_provider::Catalog;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::Nothing;
use crate::support::store;

/// One answer of a conversation, as the server streams it.
#[derive(Debug, Deserialize)]
struct Turn {
    api: String,
    model: String,
    /// What the user says before it; nothing if it follows a call of a tool.
    prompt: Option<String>,
    events: Vec<Value>,
}

/// Serves these answers, one for each request.
async fn replay(turns: &[Turn]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bodies: Vec<String> = turns
        .iter()
        .map(|turn| turn.events.iter().map(|event| format!("data: {event}\n\n")).collect())
        .collect();
    tokio::spawn(async move {
        let mut bodies = bodies.into_iter();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !is_whole(&request) {
                let mut buffer = [0; 4096];
                let count = socket.read(&mut buffer).await.unwrap();
                assert!(count > 0, "a request ended early");
                request.extend_from_slice(&buffer[..count]);
            }
            // It neither lists its models nor counts.
            let path = String::from_utf8_lossy(&request).lines().next().unwrap().to_ascii_lowercase();
            let answer = if path.starts_with("get ") || path.contains("count") {
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
            } else {
                let body = bodies.next().expect("one request for each answer");
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                format!("{head}{body}")
            };
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
        }
    });
    format!("http://{address}/v1")
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.to_ascii_lowercase().lines().find_map(|line| {
        line.strip_prefix("content-length: ").and_then(|length| length.parse::<usize>().ok())
    });
    body.len() >= length.unwrap_or(0)
}

/// Tokens by price class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Classes {
    fresh: u64,
    read: u64,
    written: u64,
    written_for_an_hour: u64,
    output: u64,
    /// The part of the output that is reasoning.
    reasoning: u64,
}

impl Classes {
    fn recorded(usage: &Usage) -> Self {
        Self {
            fresh: usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            read: usage.cached_tokens,
            written: usage.cache_write_tokens - usage.cache_write_hour_tokens,
            written_for_an_hour: usage.cache_write_hour_tokens,
            output: usage.output_tokens,
            reasoning: usage.reasoning_tokens,
        }
    }

    fn add(&mut self, other: Self) {
        self.fresh += other.fresh;
        self.read += other.read;
        self.written += other.written;
        self.written_for_an_hour += other.written_for_an_hour;
        self.output += other.output;
        self.reasoning += other.reasoning;
    }

    fn total(&self) -> u64 {
        self.fresh + self.read + self.written + self.written_for_an_hour + self.output
    }

    /// Returns what the vendor bills for one pass of the model, in micro-dollars.
    fn price(self, vendor: &str, model: &str) -> f64 {
        let info = Catalog::bundled().find(vendor, model).unwrap();
        let input = self.fresh + self.read + self.written + self.written_for_an_hour;
        let tier = info.tiers.iter().rfind(|tier| input > tier.above_tokens);
        let prices = tier.map_or(info.prices.unwrap(), |tier| tier.prices);
        let items = [
            (self.fresh, prices.input),
            (self.read, prices.cache_read.unwrap()),
            (self.written, prices.cache_write.unwrap_or(prices.input)),
            // What is kept for an hour costs twice as much as other input.
            (self.written_for_an_hour, 2 * prices.input),
            (self.output, prices.output),
        ];
        items.iter().map(|(tokens, price)| number(*tokens) * number(*price) / 1e6).sum()
    }
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

/// Returns the number at a path, or 0.
fn at(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns the passes of the model within an answer, by the usage reports among its events.
fn passes(turn: &Turn) -> Vec<Classes> {
    // Reports are cumulative: the newest number of each field counts.
    let mut report = Value::Object(serde_json::Map::new());
    for event in &turn.events {
        for path in ["/usage", "/message/usage", "/response/usage", "/usageMetadata"] {
            if let Some(Value::Object(fields)) = event.pointer(path) {
                let known = report.as_object_mut().unwrap();
                known.extend(fields.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
    }
    match turn.api.as_str() {
        "anthropic" => {
            let whole = [report.clone()];
            let iterations = report["iterations"].as_array().map_or(&whole[..], Vec::as_slice);
            let class = |report: &Value| {
                let hour = at(report, "/cache_creation/ephemeral_1h_input_tokens");
                Classes {
                    fresh: at(report, "/input_tokens"),
                    read: at(report, "/cache_read_input_tokens"),
                    written: at(report, "/cache_creation_input_tokens") - hour,
                    written_for_an_hour: hour,
                    output: at(report, "/output_tokens"),
                    reasoning: at(report, "/output_tokens_details/thinking_tokens"),
                }
            };
            iterations.iter().map(class).collect()
        }
        "responses" => {
            let read = at(&report, "/input_tokens_details/cached_tokens");
            let written = at(&report, "/input_tokens_details/cache_write_tokens");
            vec![Classes {
                fresh: at(&report, "/input_tokens") - read - written,
                read,
                written,
                written_for_an_hour: 0,
                output: at(&report, "/output_tokens"),
                reasoning: at(&report, "/output_tokens_details/reasoning_tokens"),
            }]
        }
        "gemini" => {
            let read = at(&report, "/cachedContentTokenCount");
            let thoughts = at(&report, "/thoughtsTokenCount");
            vec![Classes {
                fresh: at(&report, "/promptTokenCount") - read + at(&report, "/toolUsePromptTokenCount"),
                read,
                written: 0,
                written_for_an_hour: 0,
                output: at(&report, "/candidatesTokenCount") + thoughts,
                reasoning: thoughts,
            }]
        }
        other => panic!("no such API: {other}"),
    }
}

/// Replays a conversation and compares the session's bill with the vendor's.
async fn check(vendor: &str, api: Api, turns: &[Turn]) {
    let base_url = replay(turns).await.parse().unwrap();
    let options = ServerOptions { name: vendor.to_owned(), api, base_url, ..ServerOptions::default() };
    let provider = Arc::new(HttpProvider::new(options).unwrap());
    let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
    let model = &turns[0].model;
    let agent = Agent::new(model).tool("look", |_: Nothing| async move { Ok("The sky is grey.") });
    let session = runtime.open("s", &agent).await.unwrap();
    let mut replied = 0;
    for prompt in turns.iter().filter_map(|turn| turn.prompt.as_ref()) {
        let reply = session.prompt(prompt).await.unwrap();
        replied += reply.usage.total_tokens();
    }
    let (mut billed, mut microdollars) = (Classes::default(), 0.0);
    for pass in turns.iter().flat_map(passes) {
        billed.add(pass);
        // Each pass of the model is rounded to a micro-dollar.
        microdollars += pass.price(vendor, model).round();
    }
    let (mut recorded, mut answers) = (Classes::default(), Vec::new());
    for entry in runtime.entries("s", EntryId(0)).await.unwrap() {
        match &entry.kind {
            EntryKind::Spent(spent) => recorded.add(Classes::recorded(&spent.usage)),
            kind => {
                let usage = kind.as_message().and_then(|message| message.as_answer()?.usage);
                recorded.add(Classes::recorded(&usage.unwrap_or_default()));
                answers.extend(usage.map(|usage| usage.input_tokens));
            }
        }
    }
    assert_eq!(recorded, billed, "{vendor}: tokens by price class");
    // The usage of an answer is that of the model's last pass, which measures the context.
    let last = |turn: &Turn| passes(turn).last().map(|pass| pass.total() - pass.output).unwrap();
    assert_eq!(answers, turns.iter().map(last).collect::<Vec<_>>(), "{vendor}");
    let state = session.state().await.unwrap();
    assert_eq!((state.total_tokens, replied), (billed.total(), billed.total()), "{vendor}");
    assert!(
        (number(state.cost_microdollars) - microdollars).abs() < 0.5,
        "{vendor}: {microdollars} {state:?}"
    );
    assert_eq!(state.estimated_tokens, 0, "{vendor}");
    assert!(microdollars > 1_000.0 && billed.read > 0 && billed.reasoning > 0, "{vendor}: {billed:?}");
}

#[tokio::test]
async fn the_bill_is_what_the_vendor_would_bill() {
    let mut conversations = BTreeMap::<String, Vec<Turn>>::new();
    for line in include_str!("../../data/bills.jsonl").lines() {
        let turn: Turn = serde_json::from_str(line).unwrap();
        conversations.entry(turn.api.clone()).or_default().push(turn);
    }
    for (name, vendor, api) in [
        ("anthropic", "anthropic", Api::Anthropic),
        ("responses", "openai", Api::Responses),
        ("gemini", "google", Api::Gemini),
    ] {
        check(vendor, api, &conversations.remove(name).unwrap()).await;
    }
    assert!(conversations.is_empty());
}
