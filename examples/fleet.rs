//! A thousand sessions alive at once, over HTTP, with 64 model calls in flight, and one subscriber to them all.
//!
//! The subscriber counts every durable event exactly once: where it was too slow and a gap is reported, it reads
//! what it missed from the logs.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use greenroom::prelude::*;
use greenroom::provider::{OpenAi, OpenAiOptions};
use greenroom_simulator::{CallInfo, Function, Reply as Said, SeenRequest, Simulator, SimulatorOptions};
use tokio::sync::oneshot;

const SESSIONS: usize = 1_000;
const PROMPTS: usize = 2;

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// What.
    up: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Each prompt takes two model calls: one asks for the tool, the next answers.
    let script = Function(|request: &SeenRequest, call: CallInfo| match call.session_call % 2 {
        0 => Said::call("look", &serde_json::json!({ "up": request.last_user_text() })).after_ms(100),
        _ => Said::text("Found it.").after_ms(100),
    });
    let model = Simulator::new(SimulatorOptions { log_capacity: 0, ..SimulatorOptions::new(script) });
    let server = model.serve().await?;
    let options =
        OpenAiOptions { base_url: server.base_url(), prompt_cache_key: Some(true), ..Default::default() };
    let dir = tempfile::tempdir()?;
    let runtime = Runtime::builder()
        .provider_with(Arc::new(OpenAi::new(options)?), 64)
        .data_dir(dir.path())
        .idle_after(Duration::ZERO)
        .start()
        .await?;
    let agent = Agent::new("simulated")
        .context_window(128_000)
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let (all_answered, is_over) = oneshot::channel();
    let counting = tokio::spawn(count(runtime.clone(), is_over));

    let began = Instant::now();
    let agent = Arc::new(agent);
    let open = |number| runtime.open_shared(number, Arc::clone(&agent));
    let names: Vec<String> = (0..SESSIONS).map(|number| format!("agent-{number}")).collect();
    let sessions = try_join_all(names.iter().map(|name| open(name))).await?;
    for _ in 0..PROMPTS {
        try_join_all(sessions.iter().map(|session| session.prompt("the word"))).await?;
    }
    let took = began.elapsed().as_secs_f64();
    let turns = SESSIONS * PROMPTS;
    println!("{} sessions alive, {turns} prompts answered", runtime.live().await?.len());
    println!("{:.0} turns/s, at most {} calls in flight", turns as f64 / took, model.in_flight_max());
    // A prompt is answered after its last event was published: what is not counted yet waits in the queue.
    let _ = all_answered.send(());
    for (event, by_session) in counting.await?? {
        let total: usize = by_session.values().sum();
        println!("  {total:>7} {event:<14} in {:>5} sessions", by_session.len());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS unknown"));
    model.assert_clean();
    Ok(runtime.shutdown().await?)
}

/// How many events there were, by name and session.
type Counts = BTreeMap<&'static str, HashMap<Arc<str>, usize>>;

/// Counts events until all is over and nothing waits any more.
async fn count(runtime: Runtime, mut is_over: oneshot::Receiver<()>) -> Result<Counts> {
    let mut events = runtime.subscribe(Filter::all());
    let mut counts = Counts::new();
    let mut next: HashMap<Arc<str>, u64> = HashMap::new();
    loop {
        let delivery = tokio::select! {
            biased;
            delivery = events.next() => delivery,
            _ = &mut is_over => None,
        };
        let mut came = Vec::new();
        match delivery {
            Some(Delivery::Event(event)) => came.push(Event::clone(&event)),
            Some(Delivery::Gap { from, to, sessions }) => {
                println!("gap: {} events missed; {} logs are read again", to - from, sessions.len());
                for (session, seq) in sessions {
                    came.extend(runtime.replay(&session, seq).await?);
                }
            }
            None => return Ok(counts),
        }
        for event in came {
            let next = next.entry(Arc::clone(&event.session)).or_default();
            if event.is_durable() {
                // What was replayed may come again, live.
                if event.seq < *next {
                    continue;
                }
                assert_eq!(event.seq, *next, "{} lost an event unseen", event.session);
                *next += 1;
            }
            *counts.entry(event.kind.name()).or_default().entry(event.session).or_default() += 1;
        }
    }
}
