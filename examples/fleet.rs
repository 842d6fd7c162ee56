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
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use tokio::sync::oneshot;

const SESSIONS: usize = 1_000;
const PROMPTS: usize = 2;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let slow = Function(|_: &SeenRequest, _: CallInfo| Said::text("It is on page seven.").after_ms(200));
    let model = Simulator::new(SimulatorOptions::new(slow));
    let server = model.serve().await?;
    let provider = HttpProvider::new(ServerOptions { base_url: server.base_url(), ..Default::default() })?;
    let dir = tempfile::tempdir()?;
    let runtime = Runtime::builder()
        .provider_with(Arc::new(provider), 64)
        .data_dir(dir.path())
        .idle_after(Duration::ZERO) // none falls asleep
        .start()
        .await?;
    let (all_answered, is_over) = oneshot::channel();
    let counting = tokio::spawn(count(runtime.clone(), is_over));

    let began = Instant::now();
    let agent = Agent::new("simulated").context_window(128_000);
    let names: Vec<String> = (0..SESSIONS).map(|number| format!("agent-{number}")).collect();
    let sessions = try_join_all(names.iter().map(|name| runtime.open(name, &agent))).await?;
    for _ in 0..PROMPTS {
        try_join_all(sessions.iter().map(|session| session.prompt("Where is the word?").into_future()))
            .await?;
    }
    let (runs, took) = (SESSIONS * PROMPTS, began.elapsed().as_secs_f64());
    println!("{} sessions alive, {runs} prompts answered", runtime.live().await?.len());
    println!("{:.0} runs/s, at most {} calls in flight", runs as f64 / took, model.in_flight_max());
    // A prompt is answered after its last event was published: what is not counted yet waits in the queue.
    let _ = all_answered.send(());
    for (event, by_session) in counting.await?? {
        println!("{:>7} {event} in {} sessions", by_session.values().sum::<usize>(), by_session.len());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("VmRSS: unknown"));
    model.assert_clean();
    Ok(runtime.shutdown().await?)
}

/// The number of events by name and session, after all work has ended and all queues are empty.
async fn count(
    runtime: Runtime,
    mut is_over: oneshot::Receiver<()>,
) -> Result<BTreeMap<&'static str, HashMap<Arc<str>, usize>>> {
    let mut events = runtime.subscribe(Filter::all());
    let mut counts = BTreeMap::<_, HashMap<_, _>>::new();
    let mut next = HashMap::<Arc<str>, u64>::new();
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
                println!("gap: {} events missed, {} logs are read again", to - from, sessions.len());
                for (session, seq) in sessions {
                    came.extend(runtime.replay(&session, seq).await?);
                }
            }
            None => return Ok(counts),
        }
        for event in came {
            let next = next.entry(Arc::clone(&event.session)).or_default();
            // Replayed events may arrive again as live events.
            if event.is_durable() && event.seq < *next {
                continue;
            }
            if event.is_durable() {
                assert_eq!(event.seq, *next, "{} lost an event unseen", event.session);
                *next += 1;
            }
            *counts.entry(event.kind.name()).or_default().entry(event.session).or_default() += 1;
        }
    }
}
