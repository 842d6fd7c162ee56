//! The cost of one run, by the length of the history.
//!
//! The first table has the same live context behind ever more older entries that a compaction replaced: it
//! should be flat. The second has no compaction and ever longer live contexts: it shows the actual growth.
//! The sessions take turns, so that other load on the machine affects all of them.

mod canned;

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_store::{Store, StoreOptions};
use greenroom_tests::history;
use greenroom_tests::measure::{figure, median, micros, percentile, ratio, scaled, title};

/// The live part of the sessions of the first table, in messages.
const LIVE: usize = 60;

#[tokio::main]
async fn main() {
    title("one run (prompt, answer, end), by what came before it", "the first row of each table");
    println!("{LIVE} live messages behind older entries that a compaction replaced:");
    table("older entries", &[100, 1_000, 10_000], |older| history::session(older, LIVE)).await;
    println!("live messages, never compacted:");
    table("live messages", &[100, 1_000, 10_000], |live| history::session(0, live)).await;
}

async fn table<F>(column: &str, sizes: &[usize], session: F)
where
    F: Fn(usize) -> (Vec<greenroom_kernel::Entry>, greenroom_kernel::Head),
{
    let dir = tempfile::tempdir().expect("a folder");
    let (disk, _) = Store::open(&StoreOptions::new(dir.path())).expect("a store");
    let on_disk = runs(disk, sizes, &session).await;
    let in_memory = runs(Store::memory(), sizes, &session).await;
    println!("| {column:<13} | disk µs | p90 µs | ratio | memory µs | p90 µs | ratio |");
    println!("|---------------|---------|--------|-------|-----------|--------|-------|");
    for (index, size) in sizes.iter().enumerate() {
        let (disk, memory) = (&on_disk[index], &in_memory[index]);
        println!(
            "| {size:>13} | {:>7.0} | {:>6.0} | {:>5.2} | {:>9.0} | {:>6.0} | {:>5.2} |",
            disk.0,
            disk.1,
            ratio(disk.0, on_disk[0].0),
            memory.0,
            memory.1,
            ratio(memory.0, in_memory[0].0),
        );
        let name = format!("run_cost/{}_{size}", column.replace(' ', "_"));
        figure(&format!("{name}/disk"), disk.0, "µs", Some(ratio(disk.0, on_disk[0].0)));
        figure(&format!("{name}/memory"), memory.0, "µs", Some(ratio(memory.0, in_memory[0].0)));
    }
    println!();
}

/// Returns the median and the 90th percentile of a run in sessions of these sizes, in microseconds.
async fn runs<F>(store: Store, sizes: &[usize], session: &F) -> Vec<(f64, f64)>
where
    F: Fn(usize) -> (Vec<greenroom_kernel::Entry>, greenroom_kernel::Head),
{
    for size in sizes {
        let (entries, head) = session(*size);
        history::append(&store, &format!("s{size}"), &entries, &head).await;
    }
    let runtime = Runtime::builder()
        .provider(Arc::new(canned::Canned))
        .store(store)
        .idle_after(Duration::ZERO)
        .start()
        .await
        .expect("a runtime");
    let agent = Agent::new("bench").instructions("Be brief.").context_window(100_000_000);
    let mut sessions = Vec::new();
    for size in sizes {
        let session = runtime.open(&format!("s{size}"), &agent).await.expect("a session");
        session.prompt("warm up").await.expect("an answer");
        sessions.push((session, Vec::new()));
    }
    for _ in 0..scaled(400) {
        for (session, times) in &mut sessions {
            let began = Instant::now();
            session.prompt("go on").await.expect("an answer");
            times.push(began.elapsed());
        }
    }
    runtime.shutdown().await.expect("an orderly end");
    let figures = |mut times: Vec<Duration>| (micros(median(&mut times)), micros(percentile(&mut times, 90)));
    sessions.into_iter().map(|(_, times)| figures(times)).collect()
}
