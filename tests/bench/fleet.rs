//! A fleet: many agents at once, each with several runs of one tool call.
//!
//! The baseline makes the same number of model calls with a bare HTTP client and reads the answers as bytes: no
//! actors, no log, no events, nothing parsed. The CPU time of the simulated model, which runs in this process, is
//! in every row.

mod bare;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::provider::{OpenAi, OpenAiOptions, Provider};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use greenroom_tests::measure::{cpu_s, ratio, rss_mib, scaled, title};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const TURNS: usize = 5;
const IN_FLIGHT: usize = 64;

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// What one way took: runs a second, CPU time a run in µs, memory in MiB with all sessions alive.
type Figures = [f64; 3];

/// The ways in which the fleet is run, each in a process of its own, so that none inherits another's memory.
const WAYS: [&str; 3] = ["bare", "http", "in_process"];

fn main() {
    let agents = scaled(1_000);
    if let Some(way) = std::env::args().find_map(|argument| argument.strip_prefix("way=").map(str::to_owned))
    {
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let figures = runtime.block_on(measured(&way, agents));
        println!("{}", figures.map(|figure| figure.to_string()).join(" "));
        return;
    }
    let what =
        format!("{agents} agents, {TURNS} runs each, 2 model calls a run, {IN_FLIGHT} calls in flight");
    title(&what, "a bare HTTP client that makes the same calls");
    println!("|            | runs/s | ratio | CPU µs/run | ratio | RSS MiB |");
    println!("|------------|---------|-------|-------------|-------|---------|");
    let mut baseline = None;
    for way in WAYS {
        let [runs_per_s, cpu_us, rss_mib] = in_own_process(way);
        let bare = *baseline.get_or_insert([runs_per_s, cpu_us, rss_mib]);
        let (faster, dearer) = (ratio(runs_per_s, bare[0]), ratio(cpu_us, bare[1]));
        println!(
            "| {way:<10} | {runs_per_s:>7.0} | {faster:>5.2} | {cpu_us:>11.0} | {dearer:>5.2} | {rss_mib:>7.0} |"
        );
    }
}

fn in_own_process(way: &str) -> Figures {
    let this = std::env::current_exe().expect("this program has a name");
    let output = std::process::Command::new(this)
        .args(std::env::args().skip(1))
        .arg(format!("way={way}"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("this program runs");
    assert!(output.status.success(), "{way} failed");
    let figures = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> =
        figures.split_whitespace().map(|figure| figure.parse().expect("a number")).collect();
    figures.try_into().expect("three figures")
}

async fn measured(way: &str, agents: usize) -> Figures {
    let model = simulator();
    let server = model.serve().await.expect("a port");
    let (began, cpu) = (Instant::now(), cpu_s());
    let rss_mib = match way {
        "bare" => bare_calls(server.base_url().to_string(), agents).await,
        "http" => {
            let options = OpenAiOptions {
                base_url: server.base_url(),
                prompt_cache_key: Some(true),
                ..OpenAiOptions::default()
            };
            run(Arc::new(OpenAi::new(options).expect("a provider")), agents).await
        }
        _ => run(model.provider(), agents).await,
    };
    model.assert_clean();
    #[expect(clippy::cast_precision_loss, reason = "a few thousand runs")]
    let runs = (agents * TURNS) as f64;
    [runs / began.elapsed().as_secs_f64(), (cpu_s() - cpu) * 1e6 / runs, rss_mib]
}

fn simulator() -> Simulator {
    let script = Function(|_: &SeenRequest, call: CallInfo| match call.session_call % 2 {
        0 => Said::call("look", &json!({ "up": "word" })),
        _ => Said::text("Found it on page seven, third line."),
    });
    Simulator::new(SimulatorOptions { log_capacity: 0, ..SimulatorOptions::new(script) })
}

/// The fleet through the runtime, with a store on disk; gives the memory with all sessions alive.
async fn run(provider: Arc<dyn Provider>, agents: usize) -> f64 {
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = Runtime::builder()
        .provider_with(provider, IN_FLIGHT)
        .data_dir(dir.path())
        .idle_after(Duration::ZERO)
        .start()
        .await
        .expect("a runtime");
    let agent = Agent::new("simulated")
        .instructions("Look things up.")
        .context_window(128_000)
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let agent = Arc::new(agent);
    let each = (0..agents).map(|number| {
        let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
        tokio::spawn(async move {
            let session = runtime.open(&format!("agent-{number}"), agent).await.expect("a session");
            for _ in 0..TURNS {
                session.prompt("Where is the word?").await.expect("an answer");
            }
        })
    });
    for agent in join_all(each).await {
        agent.expect("no agent panics");
    }
    let rss = rss_mib();
    runtime.shutdown().await.expect("an orderly end");
    rss
}

/// The same calls, bare; gives the memory at the end.
async fn bare_calls(base_url: String, agents: usize) -> f64 {
    let client = bare::client(IN_FLIGHT);
    let places = Arc::new(Semaphore::new(IN_FLIGHT));
    let url = format!("{base_url}/chat/completions");
    let each = (0..agents).map(|number| {
        let (client, places, url) = (client.clone(), Arc::clone(&places), url.clone());
        tokio::spawn(async move {
            let mut messages = vec![json!({ "role": "system", "content": "Look things up." })];
            for run in 0..TURNS {
                messages.push(json!({ "role": "user", "content": "Where is the word?" }));
                bare_call(&client, &places, &url, number, &messages).await;
                let id = format!("call_{run}");
                let call = json!({
                    "id": id, "type": "function",
                    "function": { "name": "look", "arguments": "{\"up\":\"word\"}" },
                });
                messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": "word is on page 7" }));
                bare_call(&client, &places, &url, number, &messages).await;
                let found = "Found it on page seven, third line.";
                messages.push(json!({ "role": "assistant", "content": found }));
            }
        })
    });
    for agent in join_all(each).await {
        agent.expect("no agent panics");
    }
    rss_mib()
}

async fn bare_call(
    client: &reqwest::Client,
    places: &Semaphore,
    url: &str,
    number: usize,
    messages: &[Value],
) {
    let _place = places.acquire().await.expect("never closed");
    let tool = json!({
        "type": "function",
        "function": { "name": "look", "description": "Looks something up.", "parameters": {
            "type": "object", "properties": { "up": { "type": "string" } }, "required": ["up"],
        } },
    });
    let body = json!({
        "model": "simulated", "messages": messages, "tools": [tool], "stream": true,
        "stream_options": { "include_usage": true }, "prompt_cache_key": format!("bare-{number}"),
    });
    let request = client.post(url).header("content-type", "application/json").body(body.to_string());
    let response = request.send().await.expect("an answer");
    assert!(response.status().is_success(), "{}", response.status());
    response.bytes().await.expect("a whole answer");
}
