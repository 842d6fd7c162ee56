//! Concurrency: subscribers, streams, and compactions beside conversations.
//!
//! The model runs in a separate process. The baseline of each table is stated above it.

mod mock_server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use greenroom::CompactOptions;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, Provider, ServerOptions};
use greenroom_store::Store;
use greenroom_tests::history;
use greenroom_tests::measure::{
    argument, cpu_s, figure, in_own_process, median, micros, percentile, ratio, rss_mib, scaled, title,
};
use mock_server::{Ids, MockServer};

fn main() {
    mock_server::serve_if_asked();
    tokio::runtime::Runtime::new().expect("threads").block_on(measure());
}

async fn measure() {
    if argument("way").is_some() {
        return streams().await;
    }
    fan_out().await;
    println!();
    many_streams();
    println!();
    compactions().await;
}

fn provider(server: &MockServer) -> Arc<dyn Provider> {
    let base_url = server.base_url.parse().expect("a URL");
    Arc::new(HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("a provider"))
}

/// Runs with many subscribers, half of which never read.
async fn fan_out() {
    title(
        "runs of 22 pieces, one a millisecond, heard by subscribers of which half are stalled",
        "one subscriber",
    );
    let server = MockServer::start(22, Duration::from_millis(1), Ids::One);
    let mut rows = Vec::new();
    for subscribers in [1, 100, 1_000] {
        let builder = Runtime::builder().provider(provider(&server)).in_memory();
        let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
        let mut stalled = Vec::new();
        for number in 0..subscribers {
            let mut events = runtime.subscribe(Filter::all());
            if number % 2 == 1 {
                stalled.push(events);
            } else {
                tokio::spawn(async move { while events.next().await.is_some() {} });
            }
        }
        let session = runtime.open("heard", Agent::new("bench")).await.expect("a session");
        session.prompt("warm up").await.expect("an answer");
        rows.push((subscribers, runtime, stalled, session, Vec::new(), 0.0));
    }
    let runs = scaled(300);
    for _ in 0..runs {
        for (_, _, _, session, times, cpu) in &mut rows {
            let (began, before) = (Instant::now(), cpu_s());
            session.prompt("go on").await.expect("an answer");
            times.push(began.elapsed());
            *cpu += cpu_s() - before;
        }
    }
    // The events of such a run: start and end of the run, of the step and of each message, and the pieces.
    const EVENTS: f64 = 33.0;
    println!("| subscribers | median ms | p99 ms | p99's ratio | CPU ms/run | CPU µs for an event |");
    println!("|-------------|-----------|--------|-------------|------------|---------------------|");
    let mut base = None;
    for (subscribers, runtime, _, _, times, cpu) in &mut rows {
        let [half, most] = [median(times), percentile(times, 99)].map(|time| micros(time) / 1e3);
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let cpu_ms = *cpu * 1e3 / runs as f64;
        let (base_most, base_cpu) = *base.get_or_insert((most, cpu_ms));
        let (slower, event_us) = (ratio(most, base_most), (cpu_ms - base_cpu) * 1e3 / EVENTS);
        println!(
            "| {subscribers:>11} | {half:>9.2} | {most:>6.2} | {slower:>11.2} | {cpu_ms:>10.2} | {event_us:>19.1} |"
        );
        let name = format!("crowd/subscribers_{subscribers}");
        figure(&format!("{name}/p99"), most, "ms", Some(slower));
        figure(&format!("{name}/event"), event_us, "µs", None);
        runtime.clone().shutdown().await.expect("an orderly end");
    }
}

/// Sessions that stream at the same time, in a separate process.
fn many_streams() {
    let count = scaled(10_000);
    title(&format!("{count} sessions that stream at the same time, 20 pieces each"), "none");
    let figures = in_own_process(&["way=streams"]);
    let [ended, most_at_once, kib, cpu_us] = figures[..] else { panic!("four figures, and not {figures:?}") };
    println!(
        "| ended  | at once | KiB a stream | CPU µs a piece |\n|--------|---------|--------------|----------------|"
    );
    println!("| {ended:>6} | {most_at_once:>7} | {kib:>12.1} | {cpu_us:>14.1} |");
    figure("crowd/streams/ended", ended, "sessions", Some(ratio(ended, as_f64(count))));
    figure("crowd/streams/memory", kib, "KiB", None);
}

#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

async fn streams() {
    const PIECES: usize = 20;
    let count = scaled(10_000);
    let server = MockServer::start(PIECES, Duration::from_millis(500), Ids::One);
    let builder = Runtime::builder().provider_with(provider(&server), count).in_memory();
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Arc::new(Agent::new("bench"));
    let sessions: Vec<SessionHandle> = stream::iter(0..count)
        .map(|number| {
            let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
            async move { runtime.open(&format!("s{number}"), agent).await.expect("a session") }
        })
        .buffer_unordered(64)
        .collect()
        .await;
    let (rss, cpu) = (rss_mib(), cpu_s());
    let (mut at_once, mut most_at_once, mut most_rss) = (0_usize, 0, rss);
    let mut events = runtime.subscribe(Filter::all().kinds([
        EventType::MessageStart,
        EventType::MessageDiscarded,
        EventType::StepEnd,
    ]));
    let counter = tokio::spawn(async move {
        while let Some(event) = events.next_event().await {
            match event.kind.event_type() {
                EventType::MessageStart => at_once += 1,
                EventType::StepEnd => at_once = at_once.saturating_sub(1),
                _ => {}
            }
            if at_once > most_at_once {
                most_at_once = at_once;
                if at_once % 500 == 0 || at_once == count {
                    most_rss = most_rss.max(rss_mib());
                }
            }
        }
        (most_at_once, most_rss)
    });
    let runs = sessions.iter().map(|session| {
        let session = session.clone();
        tokio::spawn(async move { session.prompt("go on").await.is_ok() })
    });
    let ended = join_all(runs).await.into_iter().filter(|ended| matches!(ended, Ok(true))).count();
    let (cpu, after) = (cpu_s() - cpu, rss_mib());
    runtime.shutdown().await.expect("an orderly end");
    let (most_at_once, most_rss) = counter.await.expect("the counter does not panic");
    let kib = (most_rss.max(after) - rss) * 1024.0 / as_f64(most_at_once);
    println!("{ended} {most_at_once} {kib} {}", cpu * 1e6 / as_f64(count * PIECES));
}

/// Conversations, alone and beside sessions that are compacted.
async fn compactions() {
    let (talking, compacting) = (scaled(100).max(16), scaled(1_000));
    title(
        &format!("{talking} sessions that talk, beside {compacting} that are compacted, 16 calls in flight"),
        "the same sessions alone, 8 calls in flight",
    );
    /// The minimum duration of the conversations, so that each has enough runs.
    const LEAST: Duration = Duration::from_secs(2);
    let server = MockServer::start(22, Duration::from_millis(1), Ids::One);
    // The duration of the compactions determines how long the others are measured alone.
    let (mut beside, took, installed) = talk(&server, 16, talking, compacting, LEAST).await;
    let (mut alone, _, _) = talk(&server, 8, talking, 0, took.max(LEAST)).await;
    println!("|        | runs | median ms | p99 ms | p99's ratio |");
    println!("|--------|------|-----------|--------|-------------|");
    let [alone_p99, beside_p99] = [&mut alone, &mut beside].map(|times| micros(percentile(times, 99)) / 1e3);
    for (name, times, p99) in [("alone", &mut alone, alone_p99), ("beside", &mut beside, beside_p99)] {
        let half = micros(median(times)) / 1e3;
        let runs = times.len();
        println!("| {name:<6} | {runs:>4} | {half:>9.1} | {p99:>6.1} | {:>11.2} |", ratio(p99, alone_p99));
    }
    println!("{installed} of {compacting} were compacted in {:.1} s", took.as_secs_f64());
    figure("crowd/beside_compactions/p99", beside_p99, "ms", Some(ratio(beside_p99, alone_p99)));
    figure(
        "crowd/compacted/all",
        as_f64(installed),
        "sessions",
        Some(ratio(as_f64(installed), as_f64(compacting))),
    );
}

/// Returns the times of the runs, the duration of the compactions, and how many of them were installed.
async fn talk(
    server: &MockServer,
    in_flight: usize,
    talking: usize,
    compacting: usize,
    at_least: Duration,
) -> (Vec<Duration>, Duration, usize) {
    let store = Store::memory();
    let (entries, head) = history::session(0, 100);
    for number in 0..compacting {
        history::append(&store, &format!("long-{number}"), &entries, &head).await;
    }
    let builder = Runtime::builder().provider_with(provider(server), in_flight).store(store);
    let runtime = builder.idle_after(Duration::ZERO).start().await.expect("a runtime");
    let agent = Arc::new(Agent::new("bench").context_window(32_000));
    let over = Arc::new(AtomicBool::new(false));
    let talkers = (0..talking).map(|number| {
        let (runtime, agent, over) = (runtime.clone(), Arc::clone(&agent), Arc::clone(&over));
        tokio::spawn(async move {
            let session = runtime.open(&format!("talks-{number}"), agent).await.expect("a session");
            let mut times = Vec::new();
            // The first run waits for all connections.
            session.prompt("hello").await.expect("an answer");
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                session.prompt("go on").await.expect("an answer");
                times.push(began.elapsed());
            }
            times
        })
    });
    let talkers: Vec<_> = talkers.collect();
    let began = Instant::now();
    let compactions = (0..compacting).map(|number| {
        let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
        tokio::spawn(async move {
            let session = runtime.open(&format!("long-{number}"), agent).await.expect("a session");
            let options = CompactOptions { keep_recent: Some(2_000), ..CompactOptions::default() };
            let compacted = session.compact(options).await.expect("a compaction");
            compacted.entry_id.is_some()
        })
    });
    let compacted = join_all(compactions).await;
    let installed = compacted.into_iter().filter(|compacted| matches!(compacted, Ok(true))).count();
    let took = began.elapsed();
    tokio::time::sleep(at_least.saturating_sub(took)).await;
    over.store(true, Ordering::Relaxed);
    let times = join_all(talkers).await;
    runtime.shutdown().await.expect("an orderly end");
    (times.into_iter().flat_map(|times| times.expect("nobody panics")).collect(), took, installed)
}
