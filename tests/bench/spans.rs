//! The cost of spans and log lines: nothing if there is no subscriber.
//!
//! The first figures are of runs in memory: without a subscriber, with one that is not interested, and with
//! one that receives every span and line and discards it. They take turns, so that other load on the machine
//! affects all of them. The last one is of a disabled span and line, and the share of all of them in a run.

mod canned;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_tests::measure::{figure, median, micros, percentile, ratio, scaled, time_of, title};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// A subscriber that receives everything, counts it and keeps nothing; or one that is not interested.
struct Counter {
    wants: bool,
    count: Arc<AtomicU64>,
}

impl Subscriber for Counter {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        if self.wants { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.wants
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn main() {
    title("spans and log lines of one run (prompt, answer, end)", "no subscriber");
    let count = Arc::new(AtomicU64::new(0));
    let counter = |wants| Dispatch::new(Counter { wants, count: Arc::clone(&count) });
    let mut cases = [
        ("no subscriber", None),
        ("one that wants nothing", Some(false)),
        ("one that takes all", Some(true)),
    ]
    .map(|(name, wants)| (name, wants, Vec::new()));
    for _ in 0..scaled(100) {
        for (_, wants, times) in &mut cases {
            match wants {
                None => times.extend(runs()),
                Some(wants) => {
                    let dispatch = counter(*wants);
                    tracing::dispatcher::with_default(&dispatch, || times.extend(runs()));
                }
            }
        }
    }
    println!("| subscriber             | µs    | p90 µs | ratio |");
    println!("|------------------------|-------|--------|-------|");
    let mut base = 0.0;
    for (name, _, times) in &mut cases {
        let (half, most) = (micros(median(times)), micros(percentile(times, 90)));
        base = if base > 0.0 { base } else { half };
        println!("| {name:<22} | {half:>5.1} | {most:>6.1} | {:>5.2} |", ratio(half, base));
        figure(&format!("spans/{}", name.replace(' ', "_")), half, "µs", Some(ratio(half, base)));
    }
    count.store(0, Ordering::Relaxed);
    let runs_counted = tracing::dispatcher::with_default(&counter(true), || runs().len()) as u64;
    let of_a_run = count.load(Ordering::Relaxed) / runs_counted.max(1);
    const ROUNDS: u32 = 1_000_000;
    let unwanted = time_of(5, || {
        for number in 0..ROUNDS {
            let span = tracing::info_span!("unwanted", number, text = "text");
            tracing::debug!(parent: &span, number, "unwanted");
        }
    });
    let each = micros(unwanted) * 1_000.0 / f64::from(ROUNDS) / 2.0;
    #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
    let share = each / 1_000.0 * of_a_run as f64 / base * 100.0;
    println!("\none that nobody wants: {each:.1} ns; {of_a_run} in a run: {share:.3} % of its time");
}

/// Measures some runs on one thread: a subscriber is set per thread.
fn runs() -> Vec<Duration> {
    let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    executor.block_on(async {
        let provider = Arc::new(canned::Canned);
        let runtime =
            Runtime::builder().provider(provider).in_memory().idle_after(Duration::ZERO).start().await;
        let runtime = runtime.expect("a runtime");
        let agent = Agent::new("bench").instructions("Be brief.").context_window(100_000_000);
        let session = runtime.open("a", &agent).await.expect("a session");
        session.prompt("warm up").await.expect("an answer");
        let mut times = Vec::new();
        for _ in 0..20 {
            let began = Instant::now();
            session.prompt("go on").await.expect("an answer");
            times.push(began.elapsed());
        }
        times
    })
}
