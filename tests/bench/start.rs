//! Time to open a store of many sessions: after a clean shutdown, and after its process was killed.
//!
//! There is no baseline: the figures are seconds. Each store is made by a separate process, and opened by
//! another.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom_simulator::Simulator;
use greenroom_store::{Store, StoreOptions};
use greenroom_tests::history;
use greenroom_tests::measure::{argument, figure, in_own_process, scaled, title};

#[tokio::main]
async fn main() {
    let sessions = scaled(100_000);
    if let Some(dir) = argument("make") {
        return make(Path::new(&dir), sessions, argument("end").as_deref() == Some("killed")).await;
    }
    if let Some(dir) = argument("open") {
        return open(Path::new(&dir), sessions).await;
    }
    title(&format!("opening a store of {sessions} sessions, 3 entries each"), "none");
    println!("| after         | store, s | runtime, s | all listed, s | live | first answer, ms | RSS MiB |");
    println!("|---------------|----------|------------|---------------|------|------------------|---------|");
    for end in ["closed", "killed"] {
        let dir = tempfile::tempdir().expect("a folder");
        made(dir.path(), end);
        let figures = in_own_process(&[&format!("open={}", dir.path().display())]);
        let [store_s, runtime_s, listed_s, live, answer_ms, rss] = figures[..] else {
            panic!("six figures, and not {figures:?}")
        };
        println!(
            "| {end:<13} | {store_s:>8.3} | {runtime_s:>10.3} | {listed_s:>13.3} | {live:>4} | {answer_ms:>16.1} | {rss:>7.0} |"
        );
        figure(&format!("start/{end}/store"), store_s, "s", None);
        figure(&format!("start/{end}/listed"), listed_s, "s", None);
        figure(&format!("start/{end}/live_after_listing"), live, "sessions", None);
    }
}

/// Creates a store in another process, which ends in this way.
fn made(dir: &Path, end: &str) {
    let this = std::env::current_exe().expect("this program has a name");
    let mut child = Command::new(this)
        .args(std::env::args().skip(1))
        .args([format!("make={}", dir.display()), format!("end={end}")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    let mut line = String::new();
    let output = child.stdout.take().expect("it is piped");
    BufReader::new(output).read_line(&mut line).expect("it says when it is ready");
    if end == "killed" {
        child.kill().expect("it waits for that");
    }
    let status = child.wait().expect("it ends");
    assert!(line.trim() == "ready" && (end == "killed" || status.success()), "{end}: {line} {status}");
}

async fn make(dir: &Path, sessions: usize, waits: bool) {
    let (store, _) = Store::open(&StoreOptions::new(dir)).expect("a store");
    // This many concurrent appends share each sync of the disk.
    const AT_ONCE: usize = 1_000;
    let (entries, head) = history::session(0, 1);
    for first in (0..sessions).step_by(AT_ONCE) {
        let appends = (first..sessions.min(first + AT_ONCE)).map(|number| {
            let (store, entries, head) = (store.clone(), entries.clone(), head.clone());
            tokio::spawn(async move {
                history::append(&store, &format!("session-{number:06}"), &entries, &head).await;
            })
        });
        for append in join_all(appends).await {
            append.expect("the store takes it");
        }
    }
    if waits {
        println!("ready");
        // It is killed now; if the parent is gone, it ends by itself.
        tokio::time::sleep(Duration::from_secs(60)).await;
    } else {
        store.close().await.expect("an orderly end");
        println!("ready");
    }
}

async fn open(dir: &Path, sessions: usize) {
    let began = Instant::now();
    let (store, notices) = Store::open(&StoreOptions::new(dir)).expect("a store");
    let store_s = began.elapsed();
    assert!(notices.is_empty(), "{notices:?}");
    let model = Simulator::echo();
    let runtime =
        Runtime::builder().provider(model.provider()).store(store).start().await.expect("a runtime");
    let runtime_s = began.elapsed();
    let mut listed = 0;
    let mut query = runtime.sessions().limit(1_000);
    loop {
        let page = query.await.expect("a page");
        listed += page.len();
        let Some(last) = page.last().filter(|_| page.len() == 1_000) else { break };
        query = runtime.sessions().limit(1_000).after(last.cursor());
    }
    let listed_s = began.elapsed();
    assert_eq!(listed, sessions);
    let live = runtime.live().await.expect("it lives").len();
    let asked = Instant::now();
    let agent = Agent::new("simulated");
    let session = runtime.open("session-000001", &agent).await.expect("a session");
    session.prompt("go on").await.expect("an answer");
    let answer_ms = asked.elapsed().as_secs_f64() * 1e3;
    let rss = greenroom_tests::measure::rss_mib();
    let [store_s, runtime_s, listed_s] = [store_s, runtime_s, listed_s].map(|time| time.as_secs_f64());
    runtime.shutdown().await.expect("an orderly end");
    println!("{store_s} {runtime_s} {listed_s} {live} {answer_ms} {rss}");
}
