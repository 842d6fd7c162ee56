//! The cost of a search in a long session, through the runtime and a store on disk: warm (with its index), and cold (the
//! index is built from the log).
//!
//! The baseline is a scan: the log is read, and its texts are searched for the same words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_kernel::{AssistantMessage, Entry, EntryId, EntryKind, Message, Part, StopReason};
use greenroom_simulator::{Echo, Simulator};
use greenroom_tests::measure::{figure, micros, ratio, scaled, title};

/// The lengths of the sessions, in entries.
const LENGTHS: [u64; 3] = [1_000, 10_000, 100_000];
/// What is searched for: common and rare words.
const QUESTIONS: [&str; 4] = [
    "which port does the staging proxy use",
    "error code of the failed migration",
    "lighthouse7411",
    "the file that configures the retry limit",
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    title("a search in a session, by its length", "a scan of the whole log");
    println!("| entries | scan ms | cold ms | warm ms | warm/scan |");
    println!("|---------|---------|---------|---------|-----------|");
    for entries in LENGTHS {
        let times = runtime.block_on(measured(entries));
        let [scan, cold, warm] = times.map(|time| micros(time) / 1e3);
        println!("| {entries:>7} | {scan:>7.1} | {cold:>7.1} | {warm:>7.2} | {:>9.3} |", ratio(warm, scan));
        figure(&format!("recall/{entries}"), warm, "ms", Some(ratio(warm, scan)));
        figure(&format!("recall/{entries}/cold"), cold, "ms", Some(ratio(cold, scan)));
    }
}

/// Returns how long a scan takes, a first search, and a further one on average.
async fn measured(entries: u64) -> [Duration; 3] {
    let dir = tempfile::tempdir().expect("a folder");
    let model = Simulator::new(greenroom_simulator::SimulatorOptions::new(Echo));
    let agent = Agent::new("any").context_window(2_000_000);
    {
        let runtime = started(&model, dir.path()).await;
        let session = runtime.open("s", &agent).await.expect("it is free");
        session.import(conversation(entries), Some(EntryId(entries - 1))).await.expect("it is empty");
        runtime.shutdown().await.expect("it ends");
    }
    let runtime = started(&model, dir.path()).await;
    let session = runtime.session("s").await.expect("it is stored");
    let began = Instant::now();
    let found = scan(&runtime, QUESTIONS[0]).await;
    let scanned = began.elapsed();
    assert!(found > 0, "the words occur");
    let search = async |question: &str| {
        let began = Instant::now();
        let found = session.recall(question, 8).await.expect("it is searched");
        assert!(!found.is_empty(), "{question}");
        began.elapsed()
    };
    let cold = search(QUESTIONS[0]).await;
    let rounds = u32::try_from(scaled(20)).unwrap_or(20).max(1);
    let mut warm = Duration::ZERO;
    for _ in 0..rounds {
        for question in QUESTIONS {
            warm += search(question).await;
        }
    }
    runtime.shutdown().await.expect("it ends");
    [scanned, cold, warm / (rounds * 4)]
}

async fn started(model: &Simulator, dir: &std::path::Path) -> Runtime {
    Runtime::builder().provider(model.provider()).data_dir(dir).start().await.expect("it starts")
}

/// Reads the log, and counts the entries that have a word of the question.
async fn scan(runtime: &Runtime, question: &str) -> usize {
    let words: Vec<&str> = question.split(' ').filter(|word| word.len() > 4).collect();
    let entries = runtime.entries("s", EntryId(0)).await.expect("it is stored");
    let has = |entry: &Entry| {
        let text = entry.kind.as_message().map(|message| message.text()).unwrap_or_default();
        words.iter().any(|word| text.contains(word))
    };
    entries.iter().filter(|entry| has(entry)).count()
}

/// Returns a conversation of so many messages, with words of very different frequency.
fn conversation(entries: u64) -> Vec<Arc<Entry>> {
    let entry = |id: u64| {
        let text = text(id);
        let message = match id % 2 {
            0 => Message::user(text),
            _ => Message::Assistant(AssistantMessage::new(
                vec![Part::Text(text)],
                "recorded",
                "recorded",
                StopReason::Stop,
            )),
        };
        let parent = id.checked_sub(1).map(EntryId);
        Arc::new(Entry::recorded(EntryId(id), parent, 0, EntryKind::message(message)))
    };
    (0..entries).map(entry).collect()
}

fn text(id: u64) -> String {
    const COMMON: [&str; 12] = [
        "the", "file", "test", "with", "change", "value", "function", "because", "error", "returns", "limit",
        "request",
    ];
    const TOPICS: [&str; 16] = [
        "parser", "migration", "proxy", "staging", "retry", "lighthouse", "ledger", "harbour", "tide",
        "alarm", "berth", "export", "cache", "session", "socket", "port",
    ];
    let mut state = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    };
    let mut words: Vec<String> = Vec::new();
    for _ in 0..40 {
        let word = match next(10) {
            0..=6 => COMMON[usize::try_from(next(12)).expect("small")].to_owned(),
            7 | 8 => TOPICS[usize::try_from(next(16)).expect("small")].to_owned(),
            _ => format!("name{}", next(40_000)),
        };
        words.push(word);
    }
    if id % 1_000 == 411 {
        words.push("lighthouse7411".to_owned());
    }
    words.join(" ")
}
