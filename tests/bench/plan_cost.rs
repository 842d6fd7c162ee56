//! The cost of planning a compaction and of opening a session, by the length of the history.
//!
//! The live context is the same in all rows. A session holds its live part only, and plans over that;
//! `greenroom compact FILE --dry-run` has the whole path.

mod canned;

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_kernel::plan::{PlanOptions, plan};
use greenroom_kernel::settings::{CompactionSettings, Occasion};
use greenroom_store::{Store, StoreOptions};
use greenroom_tests::history;
use greenroom_tests::measure::{figure, median, micros, ratio, scaled, time_of, title};

/// The live part of every session, in messages.
const LIVE: usize = 200;
/// The first one has nothing but its live part.
const SIZES: [usize; 4] = [0, 1_000, 10_000, 100_000];

#[tokio::main]
async fn main() {
    title(&format!("planning and opening, {LIVE} live messages behind older ones"), "the first row");
    let dir = tempfile::tempdir().expect("a folder");
    let (store, _) = Store::open(&StoreOptions::new(dir.path())).expect("a store");
    let options = PlanOptions::new(&CompactionSettings::default(), 16_000, Occasion::Automatic, 12_000, 500);
    let mut rows = Vec::new();
    for older in SIZES {
        let (entries, head) = history::session(older, LIVE);
        history::append(&store, &format!("s{older}"), &entries, &head).await;
        let whole = history::path(entries);
        let held = &whole[older..];
        let planned = plan(held, &options).expect("there is something to compact");
        assert_eq!(planned.first_kept, plan(&whole, &options).expect("the same").first_kept);
        let runs = scaled(2_000);
        time_of(runs, || plan(held, &options)); // warms up
        let on_held = time_of(runs, || plan(held, &options));
        let on_whole = time_of(runs, || plan(&whole, &options));
        rows.push((older, micros(on_held), micros(on_whole), 0.0));
    }
    for (row, open) in rows.iter_mut().zip(openings(store).await) {
        row.3 = micros(open);
    }
    println!("| older entries | plan µs | ratio | plan, whole path µs | ratio | open µs | ratio |");
    println!("|---------------|---------|-------|---------------------|-------|---------|-------|");
    for (older, held, whole, open) in &rows {
        let first = rows[0];
        println!(
            "| {older:>13} | {held:>7.1} | {:>5.2} | {whole:>19.1} | {:>5.2} | {open:>7.0} | {:>5.2} |",
            ratio(*held, first.1),
            ratio(*whole, first.2),
            ratio(*open, first.3),
        );
        let name = format!("plan_cost/{older}");
        figure(&format!("{name}/plan"), *held, "µs", Some(ratio(*held, rows[1].1)));
        figure(&format!("{name}/open"), *open, "µs", Some(ratio(*open, first.3)));
    }
}

/// Measures how long a sleeping session takes to report its state: its actors start and read its log.
async fn openings(store: Store) -> Vec<Duration> {
    let runtime =
        Runtime::builder().provider(Arc::new(canned::Canned)).store(store).start().await.expect("a runtime");
    let agent = Agent::new("bench").context_window(100_000_000);
    let mut times = vec![Vec::new(); SIZES.len()];
    for _ in 0..scaled(100) {
        for (older, times) in SIZES.iter().zip(&mut times) {
            let id = format!("s{older}");
            let began = Instant::now();
            let session = runtime.open(&id, &agent).await.expect("a session");
            let state = session.state().await.expect("a state");
            times.push(began.elapsed());
            assert!(state.context.tokens > 0, "{id} has a live context");
            runtime.close(&id).await.expect("it sleeps");
        }
    }
    runtime.shutdown().await.expect("an orderly end");
    times.iter_mut().map(|times| median(times)).collect()
}
