//! Growth while a runtime works: memory, descriptors, tasks, and the disk.
//!
//! Sessions talk, use a tool, are compacted, sleep, wake, and are deleted after a while and replaced. So the
//! number and the age of the sessions stay constant, and any growth is a leak.
//!
//! The load is limited, so that other work can continue beside it: few calls are in flight, and the model is
//! slow.

mod mock_server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_tests::measure::{argument, figure, is_measuring, open_descriptors, ratio, rss_mib, title};
use mock_server::{Ids, MockServer};

/// The number of sessions at the same time.
const SESSIONS: u64 = 200;
/// The number of runs after which a session is deleted.
const RUNS_EACH: u64 = 100;
/// The number of model calls in flight.
const IN_FLIGHT: usize = 8;
/// How long the model waits after each piece of an answer.
const PAUSE: Duration = Duration::from_millis(1);
/// The first part of the time, in which caches fill, is excluded from the comparison.
const WARM: f64 = 0.2;

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// A sample: seconds since the start, memory in MiB, descriptors, tasks, the disk in MiB, and runs so far.
type Sample = [f64; 6];
const COLUMNS: [&str; 6] = ["s", "RSS MiB", "descriptors", "tasks", "disk MiB", "runs"];

fn main() {
    mock_server::serve_if_asked();
    tokio::runtime::Runtime::new().expect("threads").block_on(measure());
}

async fn measure() {
    let minutes: f64 = argument("minutes").map_or(0.5, |text| text.parse().expect("a number of minutes"));
    let time = if is_measuring() { Duration::from_secs_f64(minutes * 60.0) } else { Duration::from_secs(1) };
    title(
        &format!(
            "{SESSIONS} sessions at work for {} s, {IN_FLIGHT} calls in flight; each is deleted after {RUNS_EACH} runs",
            time.as_secs()
        ),
        "the same runtime when its caches were full",
    );
    let server = MockServer::start(22, PAUSE, Ids::One);
    let dir = tempfile::tempdir().expect("a folder");
    let options =
        ServerOptions { base_url: server.base_url.parse().expect("a URL"), ..ServerOptions::default() };
    let runtime = Runtime::builder()
        .provider_with(Arc::new(HttpProvider::new(options).expect("a provider")), IN_FLIGHT)
        .data_dir(dir.path())
        .idle_after(Duration::from_millis(500))
        .start()
        .await
        .expect("a runtime");
    let (over, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let agent = Agent::new("bench")
        .context_window(32_000)
        .instructions("Look things up.")
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7. ", look.up).repeat(40)) });
    let agent = Arc::new(agent);
    let workers = (0..SESSIONS).map(|number| {
        let worker = Worker {
            runtime: runtime.clone(),
            agent: Arc::clone(&agent),
            over: Arc::clone(&over),
            runs: Arc::clone(&runs),
        };
        tokio::spawn(worker.work(number))
    });
    let workers: Vec<_> = workers.collect();
    let samples = sampled(time, dir.path(), &runs).await;
    over.store(true, Ordering::Relaxed);
    for worker in join_all(workers).await {
        worker.expect("no worker panics");
    }
    runtime.shutdown().await.expect("an orderly end");
    tell(&samples);
}

struct Worker {
    runtime: Runtime,
    agent: Arc<Agent>,
    over: Arc<AtomicBool>,
    runs: Arc<AtomicU64>,
}

impl Worker {
    async fn work(self, number: u64) {
        for life in 0_u64.. {
            let id = format!("session-{number}-{life}");
            // The first lives end at different times, so that the later ones do too.
            let until = if life == 0 { RUNS_EACH * (number + 1) / SESSIONS } else { RUNS_EACH };
            for run in 0..until.max(1) {
                if self.over.load(Ordering::Relaxed) {
                    return;
                }
                let agent = Arc::clone(&self.agent);
                let session = self.runtime.open(&id, agent).await.expect("a session");
                session.prompt("Where is the word?").await.expect("an answer");
                self.runs.fetch_add(1, Ordering::Relaxed);
                drop(session);
                if run % 20 == number % 20 {
                    // Long enough to fall asleep.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
            self.runtime.delete(&id).await.expect("it was there");
        }
    }
}

async fn sampled(time: Duration, dir: &Path, runs: &AtomicU64) -> Vec<Sample> {
    let began = Instant::now();
    let every = (time / 120).max(Duration::from_millis(100));
    let mut samples = Vec::new();
    while began.elapsed() < time {
        tokio::time::sleep(every).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let [descriptors, tasks, disk, runs] =
            [open_descriptors() as u64, tasks as u64, disk_bytes(dir), runs.load(Ordering::Relaxed)]
                .map(|count| count as f64);
        let disk = disk / (1024.0 * 1024.0);
        samples.push([began.elapsed().as_secs_f64(), rss_mib(), descriptors, tasks, disk, runs]);
    }
    samples
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => disk_bytes(&entry.path()),
            Ok(about) => about.len(),
            // It was deleted meanwhile.
            Err(_) => 0,
        })
        .sum()
}

/// Compares the last tenth of the time with the first tenth after the caches filled.
fn tell(samples: &[Sample]) {
    for sample in samples {
        if is_measuring() {
            println!("sample\t{}", sample.map(|value| format!("{value:.2}")).join("\t"));
        }
    }
    let end = samples.last().expect("there are samples")[0];
    let most = |from: f64, until: f64, column: usize| {
        let values = samples.iter().filter(|sample| sample[0] >= from * end && sample[0] <= until * end);
        values.map(|sample| sample[column]).fold(0.0, f64::max)
    };
    println!("|             | after {:.0} % of the time | at the end | ratio |", WARM * 100.0);
    println!("|-------------|------------------------|------------|-------|");
    for (column, name) in COLUMNS.into_iter().enumerate().filter(|(column, _)| (1..5).contains(column)) {
        let (before, after) = (most(WARM, WARM + 0.2, column), most(0.8, 1.0, column));
        println!("| {name:<11} | {before:>22.1} | {after:>10.1} | {:>5.2} |", ratio(after, before));
        let what = name.split(' ').next().unwrap_or(name).to_lowercase();
        figure(&format!("growth/{what}"), after, name, Some(ratio(after, before)));
    }
    println!("{} runs", samples.last().expect("there are samples")[5]);
}
