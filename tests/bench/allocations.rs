//! How often one model call allocates on the provider's side, and how much.
//!
//! The baseline is the same call by a bare HTTP client that only reads the bytes. The server has a process of its own.

mod bare;
mod piece_server;

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use greenroom::kernel::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};
use greenroom::prelude::*;
use greenroom::provider::{OpenAi, OpenAiOptions, Provider, Purpose, Request};
use greenroom_tests::measure::{scaled, title};
use piece_server::{PIECES, PieceServer};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    piece_server::serve_if_asked();
    title(
        &format!("allocations of one model call with an answer of {PIECES} pieces"),
        "a bare HTTP client that reads the same bytes",
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
    runtime.block_on(async {
        println!("| messages sent | bare, allocations | bare, KiB | provider, allocations | provider, KiB |");
        println!("|---------------|-------------------|-----------|-----------------------|---------------|");
        for messages in [1, 100, 1_000] {
            row(messages).await;
        }
    });
}

async fn row(messages: usize) {
    let server = PieceServer::start(Duration::ZERO);
    let base_url = server.base_url.parse().expect("a URL");
    let provider = OpenAi::new(OpenAiOptions { base_url, ..OpenAiOptions::default() }).expect("a provider");
    let client = bare::client(1);
    let url = format!("{}/chat/completions", server.base_url);
    let conversation = conversation(messages);
    let calls = scaled(100);
    let mut counts = [(0, 0); 2];
    // The first of each makes the connection.
    for call in 0..=calls {
        let body = "x".repeat(messages * 1_000);
        let region = Region::new(COUNTED);
        let response = client.post(&url).body(body).send().await.expect("an answer");
        let mut bytes = response.bytes_stream();
        while let Some(piece) = bytes.next().await {
            piece.expect("a whole answer");
        }
        add(&mut counts[0], call, &region);
        let messages = conversation.clone();
        let region = Region::new(COUNTED);
        answer(&provider, messages).await;
        add(&mut counts[1], call, &region);
    }
    let [bare, own] = counts.map(|(count, bytes)| (count / calls, bytes / calls / 1024));
    println!("| {messages:>13} | {:>17} | {:>9} | {:>21} | {:>13} |", bare.0, bare.1, own.0, own.1);
}

/// Adds what a call allocated, unless it was the first.
fn add((count, bytes): &mut (usize, usize), call: usize, region: &Region<'_, System>) {
    if call > 0 {
        let change = region.change();
        *count += change.allocations + change.reallocations;
        *bytes += change.bytes_allocated;
    }
}

/// So many messages of 1,000 bytes: prompts, calls, results and answers in turn.
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
    Message::Assistant(AssistantMessage {
        content: vec![part],
        provider: "openai".to_owned(),
        model: "bench".to_owned(),
        usage: None,
        stop: StopReason::Stop,
        error: None,
    })
}

async fn answer(provider: &OpenAi, messages: Vec<Arc<Message>>) {
    let request = Request {
        model: "bench".to_owned(),
        system: None,
        messages,
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
