//! Duration of a cancel: from `abort` until the caller has its answer, the end of the run is durable, and no
//! task and no process is left.
//!
//! A function that ignores the cancellation token gets a grace period (250 ms), so that fewer calls end with
//! an unknown effect: its row shows that period.
//!
//! The baseline is a whole ordinary run of the same runtime: a prompt, an immediate answer, its end.

mod canned;

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions,
};
use greenroom_tests::measure::{figure, median, micros, percentile, ratio, scaled, title};
use greenroom_tools::{Workspace, builtin};
use serde_json::json;

/// How long the commands sleep, in seconds: a number that distinguishes them from all other processes.
const SLEEP: &str = "98317";

/// Waits.
#[derive(Deserialize, JsonSchema)]
struct Wait {}

/// The cancelled cases: a name, the prompt, and the event at which it is in progress.
const CASES: [(&str, &str, &str); 4] = [
    ("an answer that streams over HTTP", "stream", "message_delta"),
    ("a function that waits", "function", "tool_update"),
    ("a command with children", "command", "tool_update"),
    ("a compaction's summary", "summary", "compaction_start"),
];

#[tokio::main]
async fn main() {
    let cancels = scaled(500);
    title(
        &format!("cancelling, {cancels} times each, a store on disk"),
        "an ordinary run, from prompt to answer",
    );
    let dir = tempfile::tempdir().expect("a folder");
    let mut ordinary = ordinary_runs(&dir.path().join("baseline"), cancels).await;
    let baseline = micros(median(&mut ordinary));
    println!("| under way                        | median ms | p99 ms | slowest ms | median's ratio |");
    println!("|----------------------------------|-----------|--------|------------|----------------|");
    let row = |what: &str, times: &mut [Duration]| {
        let (half, most, all) = (median(times), percentile(times, 99), percentile(times, 100));
        let [half, most, all] = [half, most, all].map(|time| micros(time) / 1e3);
        println!(
            "| {what:<32} | {half:>9.2} | {most:>6.2} | {all:>10.2} | {:>14.2} |",
            ratio(half * 1e3, baseline)
        );
        let name = format!("cancel/{}", what.replace([' ', ':', '\''], "_"));
        figure(&name, half, "ms", Some(ratio(half * 1e3, baseline)));
    };
    row("nothing: an ordinary run", &mut ordinary);
    for (what, prompt, event) in CASES {
        row(what, &mut cancelled(&dir.path().join(prompt), prompt, event, cancels).await);
    }
    println!();
}

async fn ordinary_runs(dir: &std::path::Path, runs: usize) -> Vec<Duration> {
    let runtime = Runtime::builder().provider(Arc::new(canned::Canned)).data_dir(dir).start().await;
    let runtime = runtime.expect("a runtime");
    let agent = Agent::new("bench").context_window(100_000_000);
    let session = runtime.open("ordinary", &agent).await.expect("a session");
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let began = Instant::now();
        session.prompt("go on").await.expect("an answer");
        times.push(began.elapsed());
    }
    runtime.shutdown().await.expect("an orderly end");
    times
}

/// Cancels a run of `prompt` repeatedly, each time when `event` shows that it is in progress.
async fn cancelled(dir: &std::path::Path, prompt: &str, event: &str, cancels: usize) -> Vec<Duration> {
    let model = model();
    let server = model.serve().await.expect("a port");
    let options = ServerOptions {
        base_url: server.base_url(),
        prompt_cache_key: Some(true),
        ..ServerOptions::default()
    };
    let provider = Arc::new(HttpProvider::new(options).expect("a provider"));
    let runtime = Runtime::builder().provider(provider).data_dir(dir).start().await.expect("a runtime");
    let workspace = Workspace::open(std::env::temp_dir()).expect("a folder");
    let agent = Agent::new("simulated")
        .context_window(100_000)
        .tools(&builtin::files_and_shell(
            workspace,
            builtin::bash::Options {
                sandbox: greenroom_tools::sandbox::Sandbox::off(),
                ..Default::default()
            },
        ))
        .add_tool(tool("wait", |_: Wait, context: ToolContext| {
            context.progress.report("waits");
            std::future::pending::<std::result::Result<String, ToolError>>()
        }));
    let session = runtime.open("cancelled", &agent).await.expect("a session");
    if prompt == "summary" {
        let words = "Something to summarise, again and again. ".repeat(40);
        for _ in 0..20 {
            session.prompt(words.as_str()).await.expect("an answer");
        }
    }
    let mut events = session.subscribe();
    let mut times = Vec::with_capacity(cancels);
    for _ in 0..cancels {
        let work = async {
            if prompt == "summary" {
                let end = session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await;
                end.is_ok_and(|end| end.outcome.as_str() == "cancelled")
            } else {
                matches!(session.prompt(prompt).await, Err(Error::Aborted))
            }
        };
        let abort = async {
            loop {
                match events.next().await {
                    Some(Delivery::Event(seen)) if seen.kind.name() == event => break,
                    Some(_) => {}
                    None => panic!("the session ended"),
                }
            }
            session.abort();
            Instant::now()
        };
        let (was_cancelled, began) = tokio::join!(work, abort);
        while is_left(prompt) {
            tokio::task::yield_now().await;
        }
        times.push(began.elapsed());
        assert!(was_cancelled, "{prompt} ended before it was cancelled");
        // Events left in the queue would be attributed to the next run.
        while events.try_next().is_some() {}
    }
    runtime.shutdown().await.expect("an orderly end");
    assert_eq!(model.in_flight(), 0, "a call is still under way");
    times
}

/// Whether a process of the commands is still alive.
fn is_left(prompt: &str) -> bool {
    if prompt != "command" {
        return false;
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.into_iter().any(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(SLEEP)
    })
}

/// Returns a model that follows instructions and never finishes.
fn model() -> Simulator {
    let forever = Pace { chunks: 100_000, first_ms: 0, between_ms: 5 };
    let runs = Function(move |request: &SeenRequest, _: CallInfo| match request.last_user_text().as_str() {
        "stream" => Said::text("word ".repeat(2_000)).with_pace(forever),
        "function" => Said::call("wait", &json!({})),
        "command" => {
            let command = format!("sleep {SLEEP} & (sleep {SLEEP}; true) | cat & echo ready; wait");
            Said::call("bash", &json!({ "command": command }))
        }
        _ => Said::text("Understood, and noted down for later."),
    });
    let summaries =
        Function(move |_: &SeenRequest, _: CallInfo| Said::text("word ".repeat(2_000)).with_pace(forever));
    Simulator::new(SimulatorOptions {
        log_capacity: 0,
        window: 1_000_000,
        ..SimulatorOptions::new(ByPurpose::new(runs, summaries))
    })
}
