//! A real process that works on a store on the disk is killed at random moments, again and again: everything
//! acknowledged as durable is there, the sessions are whole, and no tool call was run twice.
//!
//! The process is this test binary itself, started again with [`child`] as its only test.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_kernel::path::{open_calls, path_to, project};
use greenroom_kernel::{RunOutcome, ToolSpec};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, Pace, SeenRequest, Simulator, Summariser,
};
use greenroom_store::faults::Random;
use greenroom_store::{Store, StoreOptions};
use greenroom_tools::{Tool, ToolContext, ToolOutput};

use crate::support::{agent, simulator};

/// The child's working folder; only set for the child.
const DIR: &str = "GREENROOM_CRASH_DIR";
/// The child's seed.
const SEED: &str = "GREENROOM_CRASH_SEED";
/// The number of the child's sessions.
const SESSIONS: u64 = 4;
const WINDOW: u64 = 6_000;

#[expect(clippy::disallowed_methods, reason = "a child of a test has no other way to be told")]
fn told(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn model(seed: u64) -> Simulator {
    let runs = Function(move |_: &SeenRequest, info: CallInfo| {
        let mut random = Random::new(info.seed ^ seed);
        let pace = Pace { chunks: 3, first_ms: random.below(3), between_ms: random.below(2) };
        let said = if random.below(2) == 0 {
            let mut said = Said::default();
            for _ in 0..1 + random.below(2) {
                said = said.and_call("append", &serde_json::json!({ "size": random.below(300) }));
            }
            said
        } else {
            let count = usize::try_from(1 + random.below(300)).unwrap_or(1);
            Said::text("word ".repeat(count))
        };
        said.with_pace(pace)
    });
    simulator(ByPurpose::new(runs, Summariser::Obedient), WINDOW)
}

fn working(dir: &Path) -> Agent {
    agent(WINDOW).add_tool(Append { file: dir.join("effects") })
}

/// A tool with a side effect: a line in a file with the session and the call.
struct Append {
    file: PathBuf,
}

impl Tool for Append {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "append".to_owned(),
            description: "Appends a line.".to_owned(),
            parameters: serde_json::json!({ "type": "object", "properties": { "size": { "type": "integer" } } }),
        }
    }

    fn call(
        &self,
        arguments: serde_json::Value,
        context: ToolContext,
    ) -> futures_util::future::BoxFuture<'static, ToolOutput> {
        let file = self.file.clone();
        Box::pin(async move {
            // One write of a short line is atomic.
            let line = format!("{} {}\n", context.session, context.call_id);
            let mut open = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
            open.write_all(line.as_bytes()).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let size = usize::try_from(arguments["size"].as_u64().unwrap_or(0)).unwrap_or(0);
            ToolOutput::text("result ".repeat(size))
        })
    }
}

/// The process that is killed. It prints everything that was acknowledged as durable.
#[test]
#[ignore = "started by the tests of this module"]
fn child() {
    let Some(dir) = told(DIR).map(PathBuf::from) else { return };
    let seed: u64 = told(SEED).unwrap().parse().unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(async move {
        let model = model(seed);
        let runtime =
            Runtime::builder().provider(model.provider()).data_dir(dir.join("store")).start().await.unwrap();
        let mut events = runtime.subscribe(Filter::all().durable());
        let mut work = Vec::new();
        for number in 0..SESSIONS {
            let session = runtime.open(&format!("s{number}"), &working(&dir)).await.unwrap();
            work.push(tokio::spawn(async move {
                for run in 0_u64.. {
                    let text = format!("prompt {seed} {number} {run} {}", "thing ".repeat(50));
                    let said = if run % 5 == 4 {
                        session
                            .steer(text)
                            .await
                            .map(|sent| format!("steered {} {}", session.id(), sent.entry()))
                    } else {
                        session
                            .prompt(text)
                            .await
                            .map(|reply| format!("replied {} {}", session.id(), reply.run))
                    };
                    match said {
                        Ok(line) => say(&line),
                        Err(error) => say(&format!("error {error}")),
                    }
                }
            }));
        }
        say("ready");
        while let Some(delivery) = events.next().await {
            if let Delivery::Event(event) = delivery {
                say(&format!("event {} {}", event.session, event.seq));
            }
        }
    });
}

/// Prints one line for the parent process, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("@{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn start(dir: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["deaths::processes::child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The acknowledgements that the killed processes received.
#[derive(Default)]
struct Told {
    /// The highest published or acknowledged entry of each session.
    entries: BTreeMap<String, u64>,
    replies: Vec<(String, u64)>,
    lines: u64,
}

impl Told {
    fn take(&mut self, line: &str) {
        // The test harness writes to the same stream.
        let Some((_, line)) = line.split_once('@') else { return };
        self.lines += 1;
        let mut words = line.split(' ');
        let (what, session, number) = (words.next().unwrap(), words.next(), words.next());
        let Some((session, number)) = session.zip(number.and_then(|number| number.parse::<u64>().ok()))
        else {
            assert!(what != "error", "the child's run failed: {line}");
            return;
        };
        let highest = self.entries.entry(session.to_owned()).or_default();
        *highest = number.max(*highest);
        if what == "replied" {
            self.replies.push((session.to_owned(), number));
        }
    }
}

/// Starts the child, kills it after `alive`, and records its output.
fn live_and_die(dir: &Path, seed: u64, alive: Duration, told: &mut Told) {
    let mut process = start(dir, seed);
    let lines = BufReader::new(process.stdout.take().unwrap());
    let (send, ready) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        for line in lines.split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.ends_with("@ready") {
                let _ = send.send(());
            }
            all.push(line);
        }
        all
    });
    let _ = ready.recv_timeout(Duration::from_secs(20));
    std::thread::sleep(alive);
    process.kill().unwrap();
    process.wait().unwrap();
    let mut all = reader.join().unwrap();
    // The last line may be cut in the middle.
    if let Some(last) = all.pop().filter(|last| last.starts_with('@') && last.len() > 40) {
        all.push(last);
    }
    for line in all {
        told.take(&line);
    }
}

/// Checks the store of the killed process: everything acknowledged is there, and it is whole.
fn check(dir: &Path, told: &Told, known: &mut HashMap<String, Vec<Entry>>) {
    let (store, _) = Store::open(&StoreOptions::new(dir.join("store"))).unwrap();
    let mut asked: HashMap<(String, String), u64> = HashMap::new();
    // A session may have more than was reported.
    let sessions: BTreeSet<String> = store
        .list()
        .unwrap()
        .into_iter()
        .map(|(session, _)| session)
        .chain(told.entries.keys().cloned())
        .collect();
    for session in &sessions {
        let entries = store.load(session, EntryId(0)).unwrap();
        if let Some(highest) = told.entries.get(session) {
            assert!(
                entries.len() as u64 > *highest,
                "{session} lost entry {highest}; it has {}",
                entries.len()
            );
        }
        let before = known.entry(session.clone()).or_default();
        assert!(entries.starts_with(before), "{session}: its history was changed");
        for entry in &entries {
            for call in entry.kind.as_message().iter().flat_map(|message| message.tool_calls()) {
                *asked.entry((session.clone(), call.id.clone())).or_default() += 1;
            }
        }
        *before = entries;
    }
    for (session, run) in &told.replies {
        let ended = known[session].iter().any(|entry| {
            matches!(&entry.kind, EntryKind::RunEnded { run: of, outcome: RunOutcome::Completed, .. } if of.0 == *run)
        });
        assert!(ended, "{session}: the answer to {run} is not there");
    }
    let effects = std::fs::read_to_string(dir.join("effects")).unwrap_or_default();
    let mut ran: HashMap<(String, String), u64> = HashMap::new();
    for line in effects.lines() {
        let (session, call) = line.split_once(' ').unwrap();
        *ran.entry((session.to_owned(), call.to_owned())).or_default() += 1;
    }
    for (call, times) in ran {
        let asked = asked.get(&call).copied().unwrap_or(0);
        assert!(times <= asked, "{call:?} was asked for {asked} times and ran {times} times");
    }
}

/// Opens the sessions again in this process: open work is closed once, and the conversation continues.
async fn reopen(dir: &Path, seed: u64) -> (u64, u64) {
    let model = model(seed);
    let runtime =
        Runtime::builder().provider(model.provider()).data_dir(dir.join("store")).start().await.unwrap();
    let (mut interrupted, mut unanswered) = (0, 0);
    for number in 0..SESSIONS {
        let id = format!("s{number}");
        let before = runtime.summary(&id).await.unwrap();
        let session = runtime.open(&id, &working(dir)).await.unwrap();
        let state = session.state().await.unwrap();
        if state.is_unanswered && state.status == Status::Idle {
            unanswered += 1;
            session.resume().await.unwrap();
            assert!(!session.state().await.unwrap().is_unanswered);
        }
        session.prompt("and now?").await.unwrap();
        while session.state().await.unwrap().status != Status::Idle {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let head = runtime.engine().head(&id).await.unwrap().unwrap();
        assert_eq!((head.open_run, head.open_compaction), (None, None));
        let entries: Vec<Arc<Entry>> =
            runtime.entries(&id, EntryId(0)).await.unwrap().into_iter().map(Arc::new).collect();
        interrupted += check_session(&id, &entries, head.leaf);
        let path = path_to(&entries, head.leaf).unwrap();
        assert_eq!(session.context().await.unwrap(), project(&path, &[]), "{id}");
        assert!(before.is_none_or(|before| before.entries < head.entries));
    }
    model.assert_clean();
    runtime.shutdown().await.unwrap();
    (interrupted, unanswered)
}

/// Checks that each call has one result, and each compaction one end. Returns how many results represent a
/// crash.
fn check_session(id: &str, entries: &[Arc<Entry>], leaf: Option<EntryId>) -> u64 {
    let path = path_to(entries, leaf).unwrap();
    assert!(open_calls(&path).is_empty(), "{id}: calls are open");
    let mut open: HashSet<&str> = HashSet::new();
    let mut interrupted = 0;
    for message in path.iter().filter_map(|entry| entry.kind.as_message()) {
        match &**message {
            Message::ToolResult(result) => {
                assert!(
                    open.remove(result.call_id.as_str()),
                    "{id}: a second result, or one without its call"
                );
                interrupted += u64::from(result.status == ToolStatus::Interrupted);
            }
            Message::Assistant(answer) => {
                assert!(open.is_empty(), "{id}: {open:?}");
                open.extend(answer.tool_calls().map(|call| call.id.as_str()));
            }
            Message::User(_) => assert!(open.is_empty(), "{id}: {open:?}"),
        }
    }
    let starts = entries.iter().filter(|entry| matches!(entry.kind, EntryKind::CompactionStarted(_))).count();
    let ends = entries.iter().filter(|entry| matches!(entry.kind, EntryKind::CompactionEnded(_))).count();
    assert_eq!(starts, ends, "{id}: each compaction has one end");
    interrupted
}

/// Counts over all kill cycles.
#[derive(Default, Debug)]
struct Shown {
    lines: u64,
    interrupted: u64,
    unanswered: u64,
    entries: u64,
}

/// Kills and reopens `cycles` times over one directory.
fn cycles(seed: u64, cycles: u64) -> Shown {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let (mut told, mut known, mut shown) = (Told::default(), HashMap::new(), Shown::default());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    for cycle in 0..cycles {
        let alive = Duration::from_millis(1 + random.below(120));
        live_and_die(dir.path(), seed.wrapping_add(cycle), alive, &mut told);
        check(dir.path(), &told, &mut known);
        let (interrupted, unanswered) = tokio.block_on(reopen(dir.path(), seed.wrapping_add(cycle)));
        shown.interrupted += interrupted;
        shown.unanswered += unanswered;
    }
    shown.lines = told.lines;
    shown.entries = known.values().map(|entries| entries.len() as u64).sum();
    shown
}

fn cycles_on_two_threads(seed: u64, each: u64) -> Vec<Shown> {
    let threads: Vec<_> =
        (0..2).map(|thread| std::thread::spawn(move || cycles(seed ^ (thread << 32), each))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panic!("seed {seed}"))).collect()
}

#[test]
fn sixty_kills_lose_nothing_and_run_nothing_twice() {
    let shown = cycles_on_two_threads(7, 30);
    let interrupted: u64 = shown.iter().map(|shown| shown.interrupted).sum();
    let unanswered: u64 = shown.iter().map(|shown| shown.unanswered).sum();
    let lines: u64 = shown.iter().map(|shown| shown.lines).sum();
    assert!(lines > 200, "the child was killed before it did anything: {shown:?}");
    assert!(interrupted > 0 && unanswered > 0, "no kill hit anything: {shown:?}");
}

/// As many kills as the environment requests: for `cargo xtask kills`.
#[test]
#[ignore = "takes minutes"]
#[expect(clippy::print_stdout, reason = "it is run by a person, who reads it")]
fn kills_on_request() {
    let kills: u64 = told("GREENROOM_KILLS").and_then(|kills| kills.parse().ok()).unwrap_or(2_000);
    let began = Instant::now();
    let mut left = kills;
    let mut round = 0;
    while left > 0 {
        // A new directory from time to time: a log of thousands of runs makes each check slow.
        let each = left.div_ceil(2).min(50);
        let shown = cycles_on_two_threads(1_000 + round, each);
        left = left.saturating_sub(2 * each);
        round += 1;
        println!("{} kills left, {:.0} s: {shown:?}", left, began.elapsed().as_secs_f64());
    }
}
