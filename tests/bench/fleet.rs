//! A fleet: many concurrent agents, each with several runs of one tool call.
//!
//! The baseline is a loop without a runtime: it makes the same model calls with a bare HTTP client, parses
//! their streams and keeps the messages; no log, no events, no checks. The model runs in a separate process
//! and is in no row. Each row is a separate process too, and the rows take turns. A row whose name ends with
//! `_whole` requests whole answers, as other frameworks do by default, and each of them is compared with the
//! row of ours that requests answers in the same way.
//!
//! The memory of an agent is the peak of the whole process, divided by the agents, which all have a prompt open at once:
//! those whose call waits for its turn hold the request and the task of the call, and the connections count too. What a
//! session holds between its runs is a row of `memory`.
//!
//! A second table has conversations of about 100,000 tokens, of few and of many messages, with calls. They are there, and
//! were sent once, before anything is measured. Its baselines are a loop that keeps its messages as JSON values and
//! serialises them for each call, and one that keeps each message as serialised text.

mod bare;
mod mock_server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bare::{BareAnswer, BareClient, Conversation, Keeps, Said};
use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_kernel::size::{Estimator, entry_tokens};
use greenroom_kernel::{
    AssistantMessage, Block, Entry, EntryId, EntryKind, Message, Part, StopReason, ToolCall, ToolResult,
    ToolStatus,
};
use greenroom_tests::measure::{
    argument, cpu_s, figure, in_own_process, middle, ratio, rss_mib, scaled, title,
};
use mock_server::{Ids, MockServer};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

const RUNS: usize = 5;
/// The pieces of an answer's text.
const PIECES: usize = 22;
const ROUNDS: usize = 5;
/// The number of messages in a large conversation.
const LARGE: [usize; 2] = [50, 2_000];
/// The size of a large conversation's texts, in bytes: about 100,000 tokens.
const LARGE_BYTES: usize = 400_000;
/// The variants of the fleet with large conversations.
const LARGE_WAYS: [&str; 4] = ["values", "text", "memory", "disk"];

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// The variants of the fleet, and how many calls are in flight.
const WAYS: [(&str, usize); 6] =
    [("bare", 64), ("memory", 64), ("disk", 64), ("bare", 1_000), ("memory", 1_000), ("disk", 1_000)];
/// The variants that are measured with another allocator.
const WITH_OTHER_ALLOCATOR: [(&str, usize); 3] = [("bare", 64), ("memory", 64), ("disk", 64)];
/// The same together with other frameworks, whose programs are in the folder given by the argument `peers`.
const BESIDE_PEERS: [(&str, usize); 10] = [
    ("bare", 64),
    ("memory", 64),
    ("disk", 64),
    ("bare_whole", 64),
    ("memory_whole", 64),
    ("disk_whole", 64),
    ("rig", 64),
    ("rig_streaming", 64),
    ("autoagents", 64),
    ("autoagents_streaming", 64),
];

/// The name of this program, which the names of its figures begin with.
const PROGRAM: &str = env!("CARGO_CRATE_NAME");

/// The suffix of our variants that request whole answers.
const WHOLE: &str = "_whole";

/// The figures of a variant: runs per second, CPU time per run in µs, memory in MiB with all sessions alive,
/// growth of the memory per agent in KiB, disk space per run in KiB.
type Figures = [f64; 5];

pub(crate) fn main() {
    mock_server::serve_if_asked();
    let agents = scaled(1_000);
    if let Some(way) = argument("way") {
        let in_flight = argument("in_flight").and_then(|number| number.parse().ok()).expect("a number");
        let is_ours = !matches!(way.strip_suffix("_streaming").unwrap_or(&way), "rig" | "autoagents");
        if let (false, Some(dir)) = (is_ours, argument("peers")) {
            println!("{}", peer(&way, in_flight, agents, &dir).map(|figure| figure.to_string()).join(" "));
            return;
        }
        let runtime = tokio::runtime::Runtime::new().expect("threads");
        let messages = argument("messages").and_then(|number| number.parse().ok()).unwrap_or(0);
        let agents = if messages > 0 { scaled(100) } else { agents };
        let figures = runtime.block_on(measured(&way, in_flight, agents, messages));
        println!("{}", figures.map(|figure| figure.to_string()).join(" "));
        return;
    }
    title(
        &format!("{agents} agents, {RUNS} runs each, 2 model calls a run"),
        "a loop over a bare HTTP client that makes the same calls and parses their streams",
    );
    let is_beside_peers = argument("peers").is_some();
    let has_other_allocator = PROGRAM != "fleet";
    let ways: &[(&str, usize)] = match (has_other_allocator, is_beside_peers) {
        (true, _) => &WITH_OTHER_ALLOCATOR,
        (false, true) => &BESIDE_PEERS,
        (false, false) => &WAYS,
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let one = |(way, in_flight): &(&str, usize)| -> Figures {
            let (way, in_flight) = (format!("way={way}"), format!("in_flight={in_flight}"));
            in_own_process(&[&way, &in_flight]).try_into().expect("as many figures as were given")
        };
        rounds.push(ways.iter().map(one).collect::<Vec<_>>());
    }
    println!(
        "|                      | in flight | runs/s | ratio | CPU µs/run | ratio | RSS MiB | KiB/agent |"
    );
    println!(
        "|----------------------|-----------|--------|-------|------------|-------|---------|-----------|"
    );
    for (index, (way, in_flight)) in ways.iter().copied().enumerate() {
        let of = |column: usize| middle(&rounds.iter().map(|round| round[index][column]).collect::<Vec<_>>());
        let against = |column: usize, other: usize| {
            let ratios: Vec<_> =
                rounds.iter().map(|round| ratio(round[index][column], round[other][column])).collect();
            middle(&ratios)
        };
        let (faster, dearer) = (against(0, 0), against(1, 0));
        println!(
            "| {way:<20} | {in_flight:>9} | {:>6.0} | {faster:>5.2} | {:>10.0} | {dearer:>5.2} | {:>7.0} | {:>9.1} |",
            of(0),
            of(1),
            of(2),
            of(3)
        );
        if is_beside_peers {
            tell_peer(way, &|column, of, other| against_way(&rounds, ways, column, of, other));
            continue;
        }
        let name = format!("{PROGRAM}/{way}_{in_flight}");
        figure(&format!("{name}/rate"), of(0), "runs/s", Some(faster));
        figure(&format!("{name}/cpu"), of(1), "µs/run", Some(dearer));
        figure(&format!("{name}/memory"), of(3), "KiB/agent", Some(against(3, 0)));
        if way == "disk" {
            figure(&format!("{name}/disk"), of(4), "KiB/run", None);
        }
        if in_flight == 1_000 {
            // The same variant with 64 in flight is three rows above; the bare loop is the first of each
            // three.
            let fewer = index - 3;
            figure(&format!("{name}/rate_against_64"), of(0), "runs/s", Some(against(0, fewer)));
            let cpu_against_bare =
                against(1, ways.iter().position(|way| *way == ("bare", 1_000)).unwrap_or(0));
            figure(&format!("{name}/cpu_against_bare"), of(1), "µs/run", Some(cpu_against_bare));
        }
    }
    if !is_beside_peers && !has_other_allocator {
        large();
    }
}

/// Measures the fleet with large conversations.
fn large() {
    println!("\n{} agents with about 100,000 tokens each, 64 in flight:", scaled(100));
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut round = Vec::new();
        for messages in LARGE {
            for way in LARGE_WAYS {
                let (way, messages) = (format!("way={way}"), format!("messages={messages}"));
                let figures = in_own_process(&[&way, "in_flight=64", &messages]);
                round.push(Figures::try_from(figures).expect("as many figures as were given"));
            }
        }
        rounds.push(round);
    }
    println!(
        "| messages |        | runs/s | to values | to text | CPU µs/run | to values | to text | KiB/agent |"
    );
    println!(
        "|----------|--------|--------|-----------|---------|------------|-----------|---------|-----------|"
    );
    for (index, (messages, way)) in
        LARGE.iter().flat_map(|messages| LARGE_WAYS.map(|way| (messages, way))).enumerate()
    {
        let of = |column: usize| middle(&rounds.iter().map(|round| round[index][column]).collect::<Vec<_>>());
        let against = |column: usize, other: usize| {
            let other = index / LARGE_WAYS.len() * LARGE_WAYS.len() + other;
            let ratios: Vec<_> =
                rounds.iter().map(|round| ratio(round[index][column], round[other][column])).collect();
            middle(&ratios)
        };
        println!(
            "| {messages:>8} | {way:<6} | {:>6.0} | {:>9.2} | {:>7.2} | {:>10.0} | {:>9.2} | {:>7.2} | {:>9.1} |",
            of(0),
            against(0, 0),
            against(0, 1),
            of(1),
            against(1, 0),
            against(1, 1),
            of(3)
        );
        let name = format!("fleet/large_{messages}/{way}");
        figure(&format!("{name}/rate"), of(0), "runs/s", Some(against(0, 0)));
        figure(&format!("{name}/cpu"), of(1), "µs/run", Some(against(1, 0)));
        figure(&format!("{name}/rate_against_text"), of(0), "runs/s", Some(against(0, 1)));
        figure(&format!("{name}/cpu_against_text"), of(1), "µs/run", Some(against(1, 1)));
    }
}

/// Returns the median ratio of a column's figures between two variants.
fn against_way(rounds: &[Vec<Figures>], ways: &[(&str, usize)], column: usize, of: &str, other: &str) -> f64 {
    let at = |name: &str| ways.iter().position(|(way, _)| *way == name).expect("it was measured");
    let (of, other) = (at(of), at(other));
    let ratios: Vec<_> = rounds.iter().map(|round| ratio(round[of][column], round[other][column])).collect();
    middle(&ratios)
}

/// Prints how the runtime compares with another framework's row that requests answers in the same way.
fn tell_peer(way: &str, against: &dyn Fn(usize, &str, &str) -> f64) {
    let (name, ours) = match way {
        "rig" => ("peers/whole_against_rig", "disk_whole"),
        "rig_streaming" => ("peers/against_rig_streaming", "disk"),
        "autoagents" => ("peers/whole_against_autoagents", "disk_whole"),
        "autoagents_streaming" => ("peers/against_autoagents_streaming", "disk"),
        _ => return,
    };
    let rate = against(0, ours, way);
    figure(name, rate, "times its runs/s", Some(rate));
    if way == "autoagents" {
        let memory = against(3, "memory_whole", way);
        figure("peers/whole_memory_against_autoagents", memory, "times its memory", Some(memory));
    }
}

/// Runs the fleet of another framework, with its own program.
fn peer(way: &str, in_flight: usize, agents: usize, dir: &str) -> Figures {
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let (program, streams) = match way.strip_suffix("_streaming") {
        Some(program) => (program, true),
        None => (way, false),
    };
    let output = std::process::Command::new(format!("{dir}/{program}-fleet"))
        .args([format!("url={}", server.base_url), format!("agents={agents}"), format!("runs={RUNS}")])
        .args([format!("in_flight={in_flight}"), format!("streams={streams}")])
        .stderr(std::process::Stdio::inherit())
        .output()
        .expect("the program is built: see tests/peers/README.md");
    assert!(output.status.success(), "{way} failed");
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    let figures: Vec<f64> = last.split(' ').map(|figure| figure.parse().expect("a number")).collect();
    let [rate, cpu, memory, of_agent] = figures[..] else { panic!("four figures, and not {figures:?}") };
    [rate, cpu, memory, of_agent, 0.0]
}

async fn measured(way: &str, in_flight: usize, agents: usize, messages: usize) -> Figures {
    let server = MockServer::start(PIECES, Duration::ZERO, Ids::One);
    let rss = rss_mib();
    let (way, streams) = match way.strip_suffix(WHOLE) {
        Some(way) => (way, false),
        None => (way, true),
    };
    let workload = Workload { in_flight, agents, messages, streams };
    let (clock, rss_mib, disk) = match way {
        "bare" => bare_fleet(&server, workload, Keeps::Structs).await,
        "values" => bare_fleet(&server, workload, Keeps::Values).await,
        "text" => bare_fleet(&server, workload, Keeps::Text).await,
        _ => fleet(&server, workload, way == "disk").await,
    };
    let (took, cpu) = clock;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let (runs, agents) = ((agents * RUNS) as f64, agents as f64);
    [runs / took, cpu * 1e6 / runs, rss_mib, (rss_mib - rss) * 1024.0 / agents, disk / 1024.0 / runs]
}

/// What a fleet does.
#[derive(Clone, Copy)]
struct Workload {
    in_flight: usize,
    agents: usize,
    /// The number of messages in each conversation at the beginning; 0 for none.
    messages: usize,
    streams: bool,
}

/// The time of the work, and its CPU time, in seconds.
type Clock = (f64, f64);

/// Runs the fleet through the runtime; returns the memory with all sessions alive, and the bytes on disk.
async fn fleet(server: &MockServer, workload: Workload, on_disk: bool) -> (Clock, f64, f64) {
    let Workload { in_flight, agents, messages, streams } = workload;
    let dir = tempfile::tempdir().expect("a folder");
    let options = ServerOptions {
        base_url: server.base_url.parse().expect("a URL"),
        prompt_cache_key: Some(true),
        stream: streams,
        ..ServerOptions::default()
    };
    let provider = Arc::new(HttpProvider::new(options).expect("a provider"));
    let builder = Runtime::builder().provider_with(provider, in_flight).idle_after(Duration::ZERO);
    let builder = if on_disk { builder.data_dir(dir.path()) } else { builder.in_memory() };
    let runtime = builder.start().await.expect("a runtime");
    let agent = Agent::new("simulated")
        .instructions("Look things up.")
        // Nothing is compacted.
        .context_window(if messages == 0 { 128_000 } else { 1_000_000 })
        .tool("look", |look: Look| async move { Ok(format!("{} is on page 7", look.up)) });
    let agent = Arc::new(agent);
    if messages > 0 {
        let sent_before = (0..agents).map(|number| {
            let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
            tokio::spawn(async move {
                let session = runtime.open(&format!("agent-{number}"), agent).await.expect("a session");
                let entries = entries(messages);
                let leaf = entries.last().map(|entry| entry.id);
                session.import(entries, leaf).await.expect("a session without entries");
                session.prompt("Where is the word?").await.expect("an answer");
                session
            })
        });
        let sessions = join_all(sent_before).await;
        assert!(sessions.iter().all(Result::is_ok), "no agent panics");
    }
    let before = size_of_folder(dir.path());
    let (began, cpu) = (Instant::now(), cpu_s());
    let each = (0..agents).map(|number| {
        let (runtime, agent) = (runtime.clone(), Arc::clone(&agent));
        tokio::spawn(async move {
            let session = runtime.open(&format!("agent-{number}"), agent).await.expect("a session");
            for _ in 0..RUNS {
                let reply = session.prompt("Where is the word?").await.expect("an answer");
                assert_eq!(reply.steps, 2);
            }
        })
    });
    for agent in join_all(each).await {
        agent.expect("no agent panics");
    }
    let (clock, rss) = ((began.elapsed().as_secs_f64(), cpu_s() - cpu), rss_mib());
    runtime.shutdown().await.expect("an orderly end");
    (clock, rss, size_of_folder(dir.path()) - before)
}

/// Returns the space that the files of a folder take, in bytes.
fn size_of_folder(dir: &std::path::Path) -> f64 {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry"));
    let size = |entry: std::fs::DirEntry| match entry.metadata().expect("it exists") {
        folder if folder.is_dir() => size_of_folder(&entry.path()),
        #[expect(clippy::cast_precision_loss, reason = "less than a petabyte")]
        file => std::os::unix::fs::MetadataExt::blocks(&file) as f64 * 512.0,
    };
    entries.map(size).sum()
}

/// Makes the same calls without a runtime; returns the memory at the end.
async fn bare_fleet(server: &MockServer, workload: Workload, keeps: Keeps) -> (Clock, f64, f64) {
    let Workload { in_flight, agents, messages, streams } = workload;
    let bare = Bare {
        client: bare::client(in_flight, &server.base_url),
        places: Semaphore::new(in_flight),
        tools: bare::tools(),
        streams,
    };
    let bare = Arc::new(bare);
    let begun = (0..agents).map(|number| {
        let bare = Arc::clone(&bare);
        tokio::spawn(async move {
            let mut conversation = Conversation::new(keeps);
            conversation.push(Said::text("system", "Look things up."));
            if messages > 0 {
                said(messages).into_iter().for_each(|said| conversation.push(said));
                bare.run(&mut conversation, &format!("bare-{number}"), RUNS).await;
            }
            conversation
        })
    });
    let begun = join_all(begun).await;
    let (began, cpu) = (Instant::now(), cpu_s());
    let each = begun.into_iter().enumerate().map(|(number, conversation)| {
        let bare = Arc::clone(&bare);
        tokio::spawn(async move {
            let mut conversation = conversation.expect("no agent panics");
            for run in 0..RUNS {
                bare.run(&mut conversation, &format!("bare-{number}"), run).await;
            }
            conversation
        })
    });
    let conversations = join_all(each).await;
    assert!(conversations.iter().all(Result::is_ok), "no agent panics");
    ((began.elapsed().as_secs_f64(), cpu_s() - cpu), rss_mib(), 0.0)
}

/// A loop without a runtime.
struct Bare {
    client: BareClient,
    places: Semaphore,
    tools: Vec<Box<RawValue>>,
    streams: bool,
}

impl Bare {
    /// Makes the calls of one run.
    async fn run(&self, conversation: &mut Conversation, key: &str, run: usize) {
        conversation.push(Said::text("user", "Where is the word?"));
        let called = self.call(conversation, key).await;
        let look: Look = serde_json::from_str(&called.arguments).expect("arguments");
        let id = format!("call_{run}");
        conversation.push(Said::call(&id, called.arguments));
        conversation.push(Said::result(id, format!("{} is on page 7", look.up)));
        let answer = self.call(conversation, key).await;
        assert_eq!(answer.pieces, if self.streams { PIECES } else { 1 });
        conversation.push(Said::text("assistant", answer.text));
    }

    async fn call(&self, conversation: &Conversation, key: &str) -> BareAnswer {
        let _place = self.places.acquire().await.expect("never closed");
        bare::answer(&self.client, conversation.body(&self.tools, self.streams, key)).await
    }
}

/// The text of a message of a large conversation.
fn words(number: usize, bytes: usize) -> String {
    const WORDS: [&str; 8] = ["the", "parser", "reads", "each", "\"line\"", "once,", "and\n", "ends"];
    let mut text = format!("{number}:");
    for word in (0..).map(|word| WORDS[(word * 5 + number) % WORDS.len()]) {
        if text.len() >= bytes {
            return text;
        }
        text.push(' ');
        text.push_str(word);
    }
    text
}

/// The arguments of a call with about so many bytes.
fn arguments(number: usize, bytes: usize) -> String {
    serde_json::json!({ "up": words(number, bytes) }).to_string()
}

/// A large conversation as a loop keeps it: a prompt, a call, its result and an answer in turn.
fn said(messages: usize) -> Vec<Said> {
    let bytes = LARGE_BYTES / messages;
    let message = |number: usize| match number % 4 {
        0 => Said::text("user", words(number, bytes)),
        1 => Said::call(&format!("call_of_{number}"), arguments(number, bytes)),
        2 => Said::result(format!("call_of_{}", number - 1), words(number, bytes)),
        _ => Said::text("assistant", words(number, bytes)),
    };
    (0..messages / 4 * 4).map(message).collect()
}

/// The same conversation as the entries of a log.
fn entries(messages: usize) -> Vec<Arc<Entry>> {
    let bytes = LARGE_BYTES / messages;
    let answer = |part: Part, stop: StopReason| {
        Message::Assistant(AssistantMessage::new(vec![part], "openai", "simulated", stop))
    };
    let message = |number: usize| match number % 4 {
        0 => Message::user(words(number, bytes)),
        1 => {
            let call = ToolCall {
                id: format!("call_of_{number}"),
                name: "look".to_owned(),
                arguments: arguments(number, bytes),
            };
            answer(Part::ToolCall(call), StopReason::ToolCalls)
        }
        2 => Message::ToolResult(ToolResult {
            call_id: format!("call_of_{}", number - 1),
            tool_name: "look".to_owned(),
            content: vec![Block::Text(words(number, bytes))],
            status: ToolStatus::Ok,
            touched: Vec::new(),
        }),
        _ => answer(Part::Text(words(number, bytes)), StopReason::Stop),
    };
    let entry = |number: usize| {
        let kind = EntryKind::message(message(number));
        let id = EntryId(number as u64);
        let parent = id.0.checked_sub(1).map(EntryId);
        let tokens = entry_tokens(&kind, Estimator::Classes);
        Arc::new(Entry {
            id,
            parent,
            at_ms: 1_700_000_000_000,
            tokens,
            reasoning_tokens: 0,
            origin: None,
            kind,
        })
    };
    (0..messages / 4 * 4).map(entry).collect()
}
