//! Allocations of one model call on the provider's side, and of one whole run: count and size.
//!
//! The baseline is the same call by a bare HTTP client that parses the stream. The server runs in a separate
//! process.

mod bare;
mod mock_server;

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, Provider, Purpose, Request, ServerOptions};
use greenroom_kernel::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};
use greenroom_tests::measure::{figure, ratio, scaled, title};
use mock_server::{Ids, MockServer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// The pieces of one answer.
const PIECES: usize = 200;
/// The maximum number of allocations per run: the count varies little from build to build, so more is a
/// mistake.
const RUN_MAX: [(&str, usize); 2] = [("memory", 400), ("disk", 500)];

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    mock_server::serve_if_asked();
    title(
        &format!("allocations of one model call with an answer of {PIECES} pieces"),
        "a bare HTTP client that parses the same stream",
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(async {
        println!("| messages sent | bare, allocations | bare, KiB | provider, allocations | provider, KiB |");
        println!("|---------------|-------------------|-----------|-----------------------|---------------|");
        for messages in [1, 100, 1_000] {
            row(messages).await;
        }
        println!("\n| one run: 2 calls, 1 tool | allocations | KiB |");
        println!("|--------------------------|-------------|-----|");
        let bare = run("bare").await;
        for way in ["bare", "memory", "disk"] {
            let (count, kib) = if way == "bare" { bare } else { run(way).await };
            println!("| {way:<24} | {count:>11} | {kib:>3} |");
            let max = RUN_MAX.iter().find(|(other, _)| *other == way).map_or(usize::MAX, |(_, max)| *max);
            assert!(
                count <= max,
                "a run {way} allocates {count} times, and at most {max} times are expected"
            );
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let (count, bare) = (count as f64, bare.0 as f64);
            figure(&format!("allocations/run/{way}"), count, "allocations", Some(ratio(count, bare)));
        }
    });
}

async fn row(messages: usize) {
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let base_url = server.base_url.parse().expect("a URL");
    let provider =
        HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("a provider");
    let client = bare::client(1, &server.base_url);
    let conversation = conversation(messages);
    let calls = scaled(100);
    let mut counts = [(0, 0); 2];
    // The first of each opens the connection.
    for call in 0..=calls {
        let body = "x".repeat(messages * 1_000);
        let region = Region::new(COUNTED);
        std::hint::black_box(bare::answer(&client, body).await);
        add(&mut counts[0], call, &region);
        let messages = conversation.clone();
        let region = Region::new(COUNTED);
        answer(&provider, messages).await;
        add(&mut counts[1], call, &region);
    }
    let [bare, own] = counts.map(|(count, bytes)| (count / calls, bytes / calls / 1024));
    println!("| {messages:>13} | {:>17} | {:>9} | {:>21} | {:>13} |", bare.0, bare.1, own.0, own.1);
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let (bare, own) = (bare.0 as f64, own.0 as f64);
    figure(&format!("allocations/call/{messages}"), own, "allocations", Some(ratio(own, bare)));
}

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// Returns what one run of two calls with an answer of 22 pieces and a tool allocates: the count, and the
/// size in KiB.
async fn run(way: &str) -> (usize, usize) {
    const PIECES: usize = 22;
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let runs = scaled(200);
    let mut counts = (0, 0);
    if way == "bare" {
        let client = bare::client(1, &server.base_url);
        for run in 0..=runs {
            let region = Region::new(COUNTED);
            for body in [r#"{"messages":[{"role":"user"}],"tools":[]}"#, r#"{"messages":[{"role":"tool"}]}"#]
            {
                std::hint::black_box(bare::answer(&client, body).await);
            }
            add(&mut counts, run, &region);
        }
        return (counts.0 / runs, counts.1 / runs / 1024);
    }
    let base_url = server.base_url.parse().expect("a URL");
    let provider =
        HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("a provider");
    let dir = tempfile::tempdir().expect("a folder");
    let builder = Runtime::builder().provider(Arc::new(provider)).idle_after(Duration::ZERO);
    let builder = if way == "disk" { builder.data_dir(dir.path()) } else { builder.in_memory() };
    let runtime = builder.start().await.expect("a runtime");
    let agent = Agent::new("bench")
        .context_window(128_000)
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let agent = Arc::new(agent);
    // Few runs in each session, so that the growth of a conversation is not counted.
    const RUNS_EACH: usize = 5;
    for run in 0..=runs.div_ceil(RUNS_EACH) {
        let session = runtime.open(&format!("s{run}"), Arc::clone(&agent)).await.expect("a session");
        session.prompt("Where is the word?").await.expect("an answer");
        for _ in 0..RUNS_EACH {
            let region = Region::new(COUNTED);
            session.prompt("Where is the word?").await.expect("an answer");
            add(&mut counts, run, &region);
        }
    }
    runtime.shutdown().await.expect("an orderly end");
    let runs = runs.div_ceil(RUNS_EACH) * RUNS_EACH;
    (counts.0 / runs, counts.1 / runs / 1024)
}

/// Adds a call's allocations, unless it was the first.
fn add((count, bytes): &mut (usize, usize), call: usize, region: &Region<'_, System>) {
    if call > 0 {
        let change = region.change();
        *count += change.allocations + change.reallocations;
        *bytes += change.bytes_allocated;
    }
}

/// Returns this many messages of 1,000 bytes: prompts, calls, results and answers in turn.
fn conversation(messages: usize) -> Vec<Arc<Message>> {
    let text = || "x".repeat(900);
    let message = |number: usize| match number % 4 {
        0 => Message::user(text()),
        1 => assistant(Part::ToolCall(ToolCall {
            id: format!("call_{number}"),
            name: "look".to_owned(),
            arguments: format!("{{\"up\":\"{}\"}}", text()),
        })),
        2 => Message::ToolResult(ToolResult {
            call_id: format!("call_{}", number - 1),
            tool_name: "look".to_owned(),
            content: vec![Block::Text(text())],
            status: ToolStatus::Ok,
            touched: Vec::new(),
        }),
        _ => assistant(Part::Text(text())),
    };
    (0..messages).map(|number| Arc::new(message(number))).collect()
}

fn assistant(part: Part) -> Message {
    Message::Assistant(AssistantMessage::new(vec![part], "openai", "bench", StopReason::Stop))
}

async fn answer(provider: &HttpProvider, messages: Vec<Arc<Message>>) {
    let request = Request {
        model: "bench".to_owned(),
        system: None,
        messages: messages.into(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: String::new(),
    };
    let mut stream = provider.stream(request).await.expect("a stream");
    while let Some(event) = stream.next().await {
        event.expect("a whole answer");
    }
}
