//! What a run costs over each vendor's API, in CPU time: the same conversations, with thinking, a tool and the history
//! that is sent back.
//!
//! The baseline is chat completions. The server is the simulator in a separate process and is in no row; the rows take
//! turns, so that other load on the machine affects all of them. There are two tables: one with answers whose events come
//! one at a time, as those of models do, and one with answers that come at once, in which the time to read the events
//! counts the most.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::{Api, HttpProvider, ServerOptions};
use greenroom_kernel::Message;
use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions, Summariser,
};
use greenroom_tests::measure::{argument, cpu_s, figure, is_measuring, ratio, scaled, title};
use schemars::JsonSchema;
use serde::Deserialize;

/// The argument that makes this program the server.
const SERVE: &str = "serve-simulator";
/// The number of conversations at a time.
const IN_FLIGHT: usize = 16;
/// The runs of a conversation. Each has two model calls.
const RUNS: usize = 12;
/// The chunks of an answer.
const CHUNKS: usize = 40;

const APIS: [(&str, Api); 4] = [
    ("chat", Api::Chat),
    ("responses", Api::Responses),
    ("anthropic", Api::Anthropic),
    ("gemini", Api::Gemini),
];

#[derive(Deserialize, JsonSchema)]
struct Look {
    #[expect(dead_code, reason = "only its schema counts")]
    up: String,
}

fn main() {
    if let Some(between_ms) = argument(SERVE) {
        serve(between_ms.parse().expect("milliseconds"));
        return;
    }
    title(
        &format!("a run over each API: {IN_FLIGHT} conversations of {RUNS} runs at a time"),
        "the same runs over chat completions",
    );
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    for (pace, between_ms, conversations, rounds) in
        [("one event at a time", 1, 16, 3), ("at once", 0, 64, 7)]
    {
        println!("\nanswers that come {pace}:\n");
        runtime.block_on(table(between_ms, scaled(conversations).div_ceil(IN_FLIGHT), rounds));
    }
}

/// Thinks, calls a tool, thinks again and answers.
fn reply(request: &SeenRequest, between_ms: u64) -> Answer {
    let has_result = matches!(request.messages.last().map(|last| &**last), Some(Message::ToolResult(_)));
    let said = if has_result {
        Answer::text("The sky is grey, and it will rain before noon. ".repeat(12))
    } else {
        Answer::call("look", &serde_json::json!({ "up": "at the sky" }))
    };
    let pace = Pace { chunks: CHUNKS, first_ms: 0, between_ms };
    said.with_reasoning("The user wants to know about the weather. ".repeat(4)).with_pace(pace)
}

/// Serves answers with so many milliseconds between two events, until the process is killed.
fn serve(between_ms: u64) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let reply = move |request: &SeenRequest, _: CallInfo| reply(request, between_ms);
        let script = ByPurpose::new(Function(reply), Summariser::Obedient);
        let options =
            SimulatorOptions { window: 1_000_000_000, log_capacity: 0, ..SimulatorOptions::new(script) };
        let server = Simulator::new(options).serve().await.expect("a port");
        println!("{}", server.base_url());
        std::future::pending::<()>().await;
    });
}

/// A server in its own process, which ends when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _is_gone_already = self.0.kill();
        let _status = self.0.wait();
    }
}

fn start(between_ms: u64) -> (Server, String) {
    let this = std::env::current_exe().expect("this program has a name");
    let mut child = Command::new(this)
        .arg(format!("{SERVE}={between_ms}"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    let mut base_url = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut base_url).expect("the server says its address");
    (Server(child), base_url.trim().to_owned())
}

async fn table(between_ms: u64, batches: usize, rounds: usize) {
    let (_server, base_url) = start(between_ms);
    let mut builder = Runtime::builder().in_memory();
    for (name, api) in APIS {
        let base_url = base_url.parse().expect("a URL");
        let options = ServerOptions { name: name.to_owned(), api, base_url, ..ServerOptions::default() };
        let provider = HttpProvider::new(options).expect("a provider");
        builder = builder.provider_with(Arc::new(provider), IN_FLIGHT);
    }
    let runtime = Arc::new(builder.start().await.expect("a runtime"));
    let rounds = if is_measuring() { rounds } else { 1 };
    let mut figures = APIS.map(|_| Vec::new());
    // The first round warms up.
    for round in 0..=rounds {
        for ((name, _), figures) in APIS.iter().zip(&mut figures) {
            let before = cpu_s();
            for batch in 0..batches {
                let each = (0..IN_FLIGHT).map(|place| {
                    let (runtime, id) = (Arc::clone(&runtime), format!("{name}-{round}-{batch}-{place}"));
                    tokio::spawn(async move { converse(&runtime, &id, name).await })
                });
                for task in each.collect::<Vec<_>>() {
                    task.await.expect("no conversation panics");
                }
            }
            #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
            let runs = (batches * IN_FLIGHT * RUNS) as f64;
            if round > 0 {
                figures.push((cpu_s() - before) * 1e6 / runs);
            }
        }
    }
    println!("|           | CPU µs/run | ratio, median and range |");
    println!("|-----------|------------|-------------------------|");
    for ((name, _), own) in APIS.iter().zip(&figures) {
        let mut ratios: Vec<f64> =
            own.iter().zip(&figures[0]).map(|(own, chat)| ratio(*own, *chat)).collect();
        ratios.sort_by(f64::total_cmp);
        let mut own = own.clone();
        own.sort_by(f64::total_cmp);
        let (middle, least, most) = (rounds / 2, ratios[0], ratios[rounds - 1]);
        println!("| {name:<9} | {:>10.0} | {:>8.2}  ({least:.2} … {most:.2}) |", own[middle], ratios[middle]);
        if *name != "chat" {
            figure(
                &format!("dialects/run/{name}/{between_ms}ms"),
                own[middle],
                "µs/run",
                Some(ratios[middle]),
            );
        }
    }
}

async fn converse(runtime: &Runtime, id: &str, provider: &str) {
    let agent = Agent::new("bench").provider(provider).context_window(1_000_000_000);
    let agent = agent.tool("look", |_: Look| async move { Ok("Grey, with a little blue in the west.") });
    let session = runtime.open(id, &agent).await.expect("a session");
    for _ in 0..RUNS {
        session.prompt("What will the weather be like?").await.expect("an answer");
    }
    runtime.delete(id).await.expect("it is idle");
}
