//! Memory cost of sessions: live ones that are idle or have worked, and sleeping ones.
//!
//! Sessions that have worked did so 64 at a time, after others that filled the caches: their row is what a session holds
//! between its runs. What it holds while it works is a part of `fleet`.
//!
//! The baseline of live sessions is four bare actors each, which have no state. Each row is a separate
//! process.

mod canned;
mod mock_server;

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use greenroom_tests::measure::{argument, figure, in_own_process, ratio, rss_mib, scaled, title};
use mock_server::{Ids, MockServer};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many are opened at a time.
const AT_ONCE: usize = 64;
/// The runs of a session that has worked, and how many of them are there before others are measured.
const RUNS: usize = 5;
const WORKED_BEFORE: usize = 200;
/// The number of sessions opened and closed before sleeping sessions are measured, so that caches are full.
const WARM: usize = 2_000;

fn main() {
    // The mock server is another process of this program, with threads of its own.
    mock_server::serve_if_asked();
    measure();
}

#[tokio::main]
async fn measure() {
    if let Some(way) = argument("way") {
        let count = argument("count").and_then(|count| count.parse().ok()).expect("a number");
        let before = Memory::now();
        let (from, held) = match way.as_str() {
            "actors" => (before, actors(count).await),
            "idle" => (before, idle(count).await),
            "waiting" => waiting(count, true).await,
            "worked" => worked(count, ServerOptions::default().histories_bytes_max).await,
            "worked-unkept" => worked(count, 0).await,
            "not-waiting" => waiting(count, false).await,
            _ => sleeping(count).await,
        };
        let [rss, heap] = Memory::now().since(from, count);
        drop(held);
        println!("{rss} {heap}");
        return;
    }
    title("memory of a session", "four bare actors without a state");
    println!(
        "|                         | sessions | RSS, bytes each | allocated, bytes each | ratio of RSS |"
    );
    println!(
        "|-------------------------|----------|-----------------|-----------------------|--------------|"
    );
    for count in [1_000, 20_000].map(scaled) {
        let actors = row("4 bare actors", "actors", count, None);
        let idle = row("live, nothing to do", "idle", count, Some(actors[0]));
        figure(&format!("memory/idle_{count}"), idle[0], "bytes", Some(ratio(idle[0], actors[0])));
    }
    // What the provider keeps of the newest request is a part of it, which the second row does without.
    let count = scaled(1_000);
    let [rss, heap] = row("live, five runs", "worked", count, None);
    figure("memory/worked/rss", rss / 1024.0, "KiB", None);
    figure("memory/worked/allocated", heap / 1024.0, "KiB", None);
    let [rss, heap] = row("… no request is kept", "worked-unkept", count, None);
    figure("memory/worked_unkept/rss", rss / 1024.0, "KiB", None);
    figure("memory/worked_unkept/allocated", heap / 1024.0, "KiB", None);
    // A question's tool stays in memory: its cost is reported next to sessions that sleep and are held in the
    // same way.
    let count = scaled(1_000);
    let asleep = row("asleep, held", "not-waiting", count, None);
    let waiting = row("asleep, a question", "waiting", count, Some(asleep[0]));
    figure("memory/waiting/rss", waiting[0], "bytes", Some(ratio(waiting[0], asleep[0])));
    figure("memory/waiting/allocated", waiting[1], "bytes", Some(ratio(waiting[1], asleep[1])));
    let count = scaled(100_000);
    let [rss, heap] = row("asleep", "asleep", count, None);
    figure("memory/asleep/rss", rss, "bytes", None);
    figure("memory/asleep/allocated", heap, "bytes", None);
}

fn row(name: &str, way: &str, count: usize, baseline: Option<f64>) -> [f64; 2] {
    let figures = in_own_process(&[&format!("way={way}"), &format!("count={count}")]);
    let [rss, heap] = figures[..] else { panic!("two figures, and not {figures:?}") };
    let times = baseline.map_or_else(String::new, |baseline| format!("{:.2}", ratio(rss, baseline)));
    println!("| {name:<23} | {count:>8} | {rss:>15.0} | {heap:>21.0} | {times:>12} |");
    [rss, heap]
}

/// The memory of this process, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    rss: f64,
    allocated: f64,
}

impl Memory {
    fn now() -> Self {
        let stats = COUNTED.stats();
        #[expect(clippy::cast_precision_loss, reason = "less than an exabyte")]
        let allocated = stats.bytes_allocated as f64 - stats.bytes_deallocated as f64;
        Self { rss: rss_mib() * 1024.0 * 1024.0, allocated }
    }

    fn since(self, before: Self, count: usize) -> [f64; 2] {
        #[expect(clippy::cast_precision_loss, reason = "a hundred thousand")]
        let count = count as f64;
        [(self.rss - before.rss) / count, (self.allocated - before.allocated) / count]
    }
}

struct Bare;

impl Actor for Bare {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

type Held = Box<dyn std::any::Any>;

async fn actors(count: usize) -> Held {
    let mut all = Vec::new();
    for _ in 0..count {
        let (parent, _) = Actor::spawn(None, Bare, ()).await.expect("an actor");
        for _ in 0..3 {
            all.push(Actor::spawn_linked(None, Bare, (), parent.get_cell()).await.expect("an actor").0);
        }
        all.push(parent);
    }
    Box::new(all)
}

async fn idle(count: usize) -> Held {
    let builder = Runtime::builder().provider(Arc::new(canned::Canned)).in_memory();
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Arc::new(Agent::new("bench"));
    let sessions: Vec<SessionHandle> = stream::iter(0..count)
        .map(|number| {
            let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
            async move { runtime.open(&format!("session-{number:06}"), agent).await.expect("a session") }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    Box::new((runtime, sessions))
}

/// Opens sessions that answered one prompt and sleep; also returns the memory before them.
async fn sleeping(count: usize) -> (Memory, Held) {
    let dir = tempfile::tempdir().expect("a folder");
    let builder = Runtime::builder().provider(Arc::new(canned::Canned)).data_dir(dir.path());
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Arc::new(Agent::new("bench"));
    let live_and_sleep = async |numbers: std::ops::Range<usize>| {
        stream::iter(numbers)
            .for_each_concurrent(AT_ONCE, |number| {
                let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
                async move {
                    let id = format!("session-{number:06}");
                    let session = runtime.open(&id, agent).await.expect("a session");
                    session.prompt("go on").await.expect("an answer");
                    runtime.close(&id).await.expect("it sleeps");
                }
            })
            .await;
    };
    live_and_sleep(0..WARM).await;
    let before = Memory::now();
    live_and_sleep(WARM..WARM + count).await;
    assert!(runtime.live().await.expect("it lives").is_empty(), "all sleep");
    (before, Box::new((runtime, dir)))
}

/// Opens sessions that sleep and are held by their handles; with `waits`, each is in the middle of a run
/// whose tool has asked a person.
async fn waiting(count: usize, waits: bool) -> (Memory, Held) {
    let model = Simulator::new(SimulatorOptions {
        log_capacity: 0,
        ..SimulatorOptions::new(Function(move |request: &SeenRequest, _: CallInfo| {
            let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
            if waits && !has_result { Said::call("ask", &serde_json::json!({})) } else { Said::text("yes") }
        }))
    });
    let builder = Runtime::builder().provider(model.provider()).in_memory();
    let runtime = builder.idle_after(Duration::from_millis(200)).start().await.expect("a runtime");
    let ask = |(): (), cx: ToolContext| async move { Ok(cx.ask("May I?").await?.to_string()) };
    let agent = Arc::new(Agent::new("bench").context_window(100_000).tool("ask", ask));
    let live = async |numbers: std::ops::Range<usize>| -> Vec<SessionHandle> {
        let all = stream::iter(numbers).map(|number| {
            let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
            async move {
                let session = runtime.open(&format!("session-{number:06}"), agent).await.expect("a session");
                if waits {
                    session.prompt("go on").start().await.expect("a run").detach();
                } else {
                    session.prompt("go on").await.expect("an answer");
                }
                session
            }
        });
        let sessions: Vec<SessionHandle> = all.buffer_unordered(AT_ONCE).collect().await;
        while !runtime.live().await.expect("it lives").is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        sessions
    };
    let warm = live(0..WARM).await;
    let before = Memory::now();
    let sessions = live(WARM..WARM + count).await;
    let asked = runtime.questions().await.expect("they are listed").len();
    assert_eq!(asked, if waits { WARM + count } else { 0 }, "each waits for an answer");
    (before, Box::new((runtime, warm, sessions)))
}

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// Opens sessions that make some runs of two model calls over HTTP, and stay live; also returns the memory before them.
async fn worked(count: usize, histories_bytes_max: usize) -> (Memory, Held) {
    let server = MockServer::start(22, Duration::ZERO, Ids::One);
    let base_url = server.base_url.parse().expect("a URL");
    let options = ServerOptions { base_url, histories_bytes_max, ..ServerOptions::default() };
    let provider = Arc::new(HttpProvider::new(options).expect("a provider"));
    let builder = Runtime::builder().provider_with(provider, AT_ONCE).in_memory();
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Agent::new("simulated")
        .instructions("Look things up.")
        .context_window(128_000)
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let agent = Arc::new(agent);
    let work = async |numbers: std::ops::Range<usize>| {
        stream::iter(numbers)
            .for_each_concurrent(AT_ONCE, |number| {
                let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
                async move {
                    let session =
                        runtime.open(&format!("session-{number:06}"), agent).await.expect("a session");
                    for _ in 0..RUNS {
                        session.prompt("Where is the word?").await.expect("an answer");
                    }
                }
            })
            .await;
    };
    work(0..WORKED_BEFORE).await;
    let before = Memory::now();
    work(WORKED_BEFORE..WORKED_BEFORE + count).await;
    assert_eq!(runtime.live().await.expect("it lives").len(), WORKED_BEFORE + count, "all stay live");
    (before, Box::new((runtime, server)))
}
