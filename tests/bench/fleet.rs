//! A fleet: many concurrent agents, each with several runs of one tool call.
//!
//! The baseline is a loop without a runtime: it makes the same model calls with a bare HTTP client, parses
//! their streams and keeps the messages; no log, no events, no checks. The model runs in a separate process
//! and is in no row. Each row is a separate process too, and the rows take turns. A row whose name ends with
//! `_whole` requests whole answers, as other frameworks do by default, and each of them is compared with the
//! row of ours that requests answers in the same way.

mod bare;
mod mock_server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_tests::measure::{
    argument, cpu_s, figure, in_own_process, middle, ratio, rss_mib, scaled, title,
};
use mock_server::{Ids, MockServer};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const RUNS: usize = 5;
/// The pieces of an answer's text.
const PIECES: usize = 22;
const ROUNDS: usize = 3;

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// The variants of the fleet, and how many calls are in flight.
const WAYS: [(&str, usize); 6] =
    [("bare", 64), ("memory", 64), ("disk", 64), ("bare", 1_000), ("memory", 1_000), ("disk", 1_000)];
/// The same together with other frameworks, whose programs are in the folder given by the argument `peers`.
const BESIDE_PEERS: [(&str, usize); 10] = [
    ("bare", 64),
    ("memory", 64),
    ("disk", 64),
    ("bare_whole", 64),
    ("memory_whole", 64),
    ("disk_whole", 64),
    ("rig", 64),
    ("rig_streaming", 64),
    ("autoagents", 64),
    ("autoagents_streaming", 64),
];

/// The suffix of our variants that request whole answers.
const WHOLE: &str = "_whole";

/// The figures of a variant: runs per second, CPU time per run in µs, memory in MiB with all sessions alive,
/// memory per agent in KiB.
type Figures = [f64; 4];

fn main() {
    mock_server::serve_if_asked();
    let agents = scaled(1_000);
    if let Some(way) = argument("way") {
        let in_flight = argument("in_flight").and_then(|number| number.parse().ok()).expect("a number");
        let is_ours = matches!(way.strip_suffix(WHOLE).unwrap_or(&way), "bare" | "memory" | "disk");
        if let (false, Some(dir)) = (is_ours, argument("peers")) {
            println!("{}", peer(&way, in_flight, agents, &dir).map(|figure| figure.to_string()).join(" "));
            return;
        }
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let figures = runtime.block_on(measured(&way, in_flight, agents));
        println!("{}", figures.map(|figure| figure.to_string()).join(" "));
        return;
    }
    title(
        &format!("{agents} agents, {RUNS} runs each, 2 model calls a run"),
        "a loop over a bare HTTP client that makes the same calls and parses their streams",
    );
    let is_beside_peers = argument("peers").is_some();
    let ways: &[(&str, usize)] = if is_beside_peers { &BESIDE_PEERS } else { &WAYS };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let one = |(way, in_flight): &(&str, usize)| -> Figures {
            let (way, in_flight) = (format!("way={way}"), format!("in_flight={in_flight}"));
            in_own_process(&[&way, &in_flight]).try_into().expect("as many figures as were given")
        };
        rounds.push(ways.iter().map(one).collect::<Vec<_>>());
    }
    println!(
        "|                      | in flight | runs/s | ratio | CPU µs/run | ratio | RSS MiB | KiB/agent |"
    );
    println!(
        "|----------------------|-----------|--------|-------|------------|-------|---------|-----------|"
    );
    for (index, (way, in_flight)) in ways.iter().copied().enumerate() {
        let of = |column: usize| middle(&rounds.iter().map(|round| round[index][column]).collect::<Vec<_>>());
        let against = |column: usize, other: usize| {
            let ratios: Vec<_> =
                rounds.iter().map(|round| ratio(round[index][column], round[other][column])).collect();
            middle(&ratios)
        };
        let (faster, dearer) = (against(0, 0), against(1, 0));
        println!(
            "| {way:<20} | {in_flight:>9} | {:>6.0} | {faster:>5.2} | {:>10.0} | {dearer:>5.2} | {:>7.0} | {:>9.1} |",
            of(0),
            of(1),
            of(2),
            of(3)
        );
        if is_beside_peers {
            tell_peer(way, &|column, of, other| against_way(&rounds, ways, column, of, other));
            continue;
        }
        let name = format!("fleet/{way}_{in_flight}");
        figure(&format!("{name}/rate"), of(0), "runs/s", Some(faster));
        figure(&format!("{name}/cpu"), of(1), "µs/run", Some(dearer));
        figure(&format!("{name}/memory"), of(3), "KiB/agent", Some(against(3, 0)));
        if in_flight == 1_000 {
            // The same variant with 64 in flight is three rows above; the bare loop is the first of each
            // three.
            let fewer = index - 3;
            figure(&format!("{name}/rate_against_64"), of(0), "runs/s", Some(against(0, fewer)));
            let cpu_against_bare =
                against(1, ways.iter().position(|way| *way == ("bare", 1_000)).unwrap_or(0));
            figure(&format!("{name}/cpu_against_bare"), of(1), "µs/run", Some(cpu_against_bare));
        }
    }
}

/// Returns the median ratio of a column's figures between two variants.
fn against_way(rounds: &[Vec<Figures>], ways: &[(&str, usize)], column: usize, of: &str, other: &str) -> f64 {
    let at = |name: &str| ways.iter().position(|(way, _)| *way == name).expect("it was measured");
    let (of, other) = (at(of), at(other));
    let ratios: Vec<_> = rounds.iter().map(|round| ratio(round[of][column], round[other][column])).collect();
    middle(&ratios)
}

/// Prints how the runtime compares with another framework's row that requests answers in the same way.
fn tell_peer(way: &str, against: &dyn Fn(usize, &str, &str) -> f64) {
    let (name, ours) = match way {
        "rig" => ("peers/whole_against_rig", "disk_whole"),
        "rig_streaming" => ("peers/against_rig_streaming", "disk"),
        "autoagents" => ("peers/whole_against_autoagents", "disk_whole"),
        "autoagents_streaming" => ("peers/against_autoagents_streaming", "disk"),
        _ => return,
    };
    let rate = against(0, ours, way);
    figure(name, rate, "times its runs/s", Some(rate));
    if way == "autoagents" {
        let memory = against(3, "memory_whole", way);
        figure("peers/whole_memory_against_autoagents", memory, "times its memory", Some(memory));
    }
}

/// Runs the fleet of another framework, with its own program.
fn peer(way: &str, in_flight: usize, agents: usize, dir: &str) -> Figures {
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let (program, streams) = match way.strip_suffix("_streaming") {
        Some(program) => (program, true),
        None => (way, false),
    };
    let output = std::process::Command::new(format!("{dir}/{program}-fleet"))
        .args([format!("url={}", server.base_url), format!("agents={agents}"), format!("runs={RUNS}")])
        .args([format!("in_flight={in_flight}"), format!("streams={streams}")])
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("the program is built: see tests/peers/README.md");
    assert!(output.status.success(), "{way} failed");
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    let figures: Vec<f64> = last.split(' ').map(|figure| figure.parse().expect("a number")).collect();
    figures.try_into().expect("four figures")
}

async fn measured(way: &str, in_flight: usize, agents: usize) -> Figures {
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let (began, cpu, rss) = (Instant::now(), cpu_s(), rss_mib());
    let (way, streams) = match way.strip_suffix(WHOLE) {
        Some(way) => (way, false),
        None => (way, true),
    };
    let rss_mib = match way {
        "bare" => bare_fleet(&server, in_flight, agents, streams).await,
        _ => fleet(&server, in_flight, agents, way == "disk", streams).await,
    };
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let (runs, agents) = ((agents * RUNS) as f64, agents as f64);
    [
        runs / began.elapsed().as_secs_f64(),
        (cpu_s() - cpu) * 1e6 / runs,
        rss_mib,
        (rss_mib - rss) * 1024.0 / agents,
    ]
}

/// Runs the fleet through the runtime; returns the memory with all sessions alive.
async fn fleet(server: &MockServer, in_flight: usize, agents: usize, on_disk: bool, stream: bool) -> f64 {
    let dir = tempfile::tempdir().expect("a folder");
    let options = ServerOptions {
        base_url: server.base_url.parse().expect("a URL"),
        prompt_cache_key: Some(true),
        stream,
        ..ServerOptions::default()
    };
    let provider = Arc::new(HttpProvider::new(options).expect("a provider"));
    let builder = Runtime::builder().provider_with(provider, in_flight).idle_after(Duration::ZERO);
    let builder = if on_disk { builder.data_dir(dir.path()) } else { builder.in_memory() };
    let runtime = builder.start().await.expect("a runtime");
    let agent = Agent::new("simulated")
        .instructions("Look things up.")
        .context_window(128_000)
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let agent = Arc::new(agent);
    let each = (0..agents).map(|number| {
        let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
        tokio::spawn(async move {
            let session = runtime.open(&format!("agent-{number}"), agent).await.expect("a session");
            for _ in 0..RUNS {
                let reply = session.prompt("Where is the word?").await.expect("an answer");
                assert_eq!(reply.steps, 2);
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

/// Makes the same calls without a runtime; returns the memory at the end.
async fn bare_fleet(server: &MockServer, in_flight: usize, agents: usize, streams: bool) -> f64 {
    let client = bare::client(in_flight);
    let places = Arc::new(Semaphore::new(in_flight));
    let url: Arc<str> = format!("{}/chat/completions", server.base_url).into();
    let each = (0..agents).map(|number| {
        let (client, places, url) = (client.clone(), Arc::clone(&places), Arc::clone(&url));
        tokio::spawn(async move {
            let mut messages = vec![json!({ "role": "system", "content": "Look things up." })];
            for run in 0..RUNS {
                messages.push(json!({ "role": "user", "content": "Where is the word?" }));
                let called = bare_call(&client, &places, &url, (number, streams), &messages).await;
                let look: Look = serde_json::from_str(&called.arguments).expect("arguments");
                let id = format!("call_{run}");
                let call = json!({
                    "id": id, "type": "function",
                    "function": { "name": "look", "arguments": called.arguments },
                });
                messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
                let result = format!("{} is on page 7", look.up);
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": result }));
                let answer = bare_call(&client, &places, &url, (number, streams), &messages).await;
                assert_eq!(answer.pieces, if streams { PIECES } else { 1 });
                messages.push(json!({ "role": "assistant", "content": answer.text }));
            }
            messages
        })
    });
    let conversations = join_all(each).await;
    assert!(conversations.iter().all(Result::is_ok), "no agent panics");
    rss_mib()
}

async fn bare_call(
    client: &reqwest::Client,
    places: &Semaphore,
    url: &str,
    (number, streams): (usize, bool),
    messages: &[Value],
) -> bare::BareAnswer {
    let _place = places.acquire().await.expect("never closed");
    let tool = json!({
        "type": "function",
        "function": { "name": "look", "description": "Looks something up.", "parameters": {
            "type": "object", "properties": { "up": { "type": "string" } }, "required": ["up"],
        } },
    });
    let mut body = json!({
        "model": "simulated", "messages": messages, "tools": [tool], "stream": streams,
        "prompt_cache_key": format!("bare-{number}"),
    });
    if streams {
        body["stream_options"] = json!({ "include_usage": true });
    }
    bare::answer(client, url, body.to_string()).await
}
