//! Sessions over the vendors' own APIs: what a vendor wants back comes back as it was, through compactions, restarts and
//! changes between vendors.

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::{Api, HttpProvider, NativeCompaction, ServerOptions};
use greenroom_kernel::random::Random;
use greenroom_kernel::settings::{CompactionSettings, Strategy};
use greenroom_kernel::{Message, Part, StopReason};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions, SimulatorServer,
    Summariser,
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::compaction_fixtures::text;
use crate::support::{agent, store};

mod billing;
mod compaction;
mod counting;
mod features;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Thinks, calls a tool, thinks again and answers.
fn thinks(request: &SeenRequest, info: CallInfo) -> Said {
    let has_result = matches!(request.messages.last().map(|last| &**last), Some(Message::ToolResult(_)));
    let said = if has_result {
        Said::text(text(&format!("answer {}.", info.session_call), 300))
    } else {
        Said::call("look", &serde_json::json!({}))
    };
    said.with_reasoning(format!("thought {}", info.session_call))
}

async fn served(model: &Simulator, name: &str, api: Api) -> (HttpProvider, SimulatorServer) {
    let server = model.serve().await.unwrap();
    let options = ServerOptions {
        name: name.to_owned(),
        api,
        base_url: server.base_url(),
        prompt_cache_key: Some(true),
        ..ServerOptions::default()
    };
    (HttpProvider::new(options).unwrap(), server)
}

fn model(window: u64) -> Simulator {
    let script = ByPurpose::new(Function(thinks), Summariser::Obedient);
    let compaction = Some(NativeCompaction::Readable);
    Simulator::new(SimulatorOptions { window, compaction, ..SimulatorOptions::new(script) })
}

fn looking(window: u64) -> Agent {
    agent(window).tool("look", |_: Nothing| async move { Ok("The sky is grey.") })
}

/// Returns the opaque data of a session's answers.
async fn opaque(runtime: &Runtime) -> Vec<String> {
    let entries = runtime.entries("s", greenroom::EntryId(0)).await.unwrap();
    let answers = entries.iter().filter_map(|entry| entry.kind.as_message()?.as_answer().cloned());
    let data = answers.flat_map(|answer| answer.content).filter_map(|part| match part {
        Part::OpaqueReasoning { data, .. } => Some(data),
        _ => None,
    });
    data.collect()
}

/// Runs through two lives of a store and several compactions; the server refuses every signature that is not its own.
#[tokio::test]
async fn signatures_survive_compactions_and_a_restart() {
    for api in [Api::Anthropic, Api::Responses, Api::Gemini] {
        check_survives(api, None).await;
    }
    // A model whose server refuses thinking after a change of what came before, unless it may be dropped.
    check_survives(Api::Anthropic, Some("claude-opus-5-5")).await;
}

async fn check_survives(api: Api, name: Option<&str>) {
    let window = 6_000;
    let model = model(window);
    let dir = tempfile::tempdir().unwrap();
    let mut kept = 0;
    let mut compactions = 0;
    for life in 0..2 {
        let (provider, _server) = served(&model, "vendor", api).await;
        let runtime =
            Runtime::builder().provider(Arc::new(provider)).data_dir(dir.path()).start().await.unwrap();
        let mut looking = looking(window);
        if let Some(name) = name {
            looking = looking.model(name);
        }
        let session = runtime.open("s", &looking).await.unwrap();
        for run in 0..10 {
            let reply = session.prompt(format!("Look, {life} {run}.")).await.unwrap();
            assert!(reply.text.starts_with("answer "), "{reply:?}");
            compactions += reply.compactions.len();
        }
        let data = opaque(&runtime).await;
        assert!(data.len() >= kept + 20, "{api:?}: each answer has its signature: {}", data.len());
        kept = data.len();
        runtime.shutdown().await.unwrap();
    }
    assert!(compactions >= 2, "{api:?}: {compactions}");
    let requests = model.requests();
    let signed = requests.iter().filter(|logged| {
        let answers = logged.request.messages.iter().filter_map(|message| message.as_answer());
        answers.map(|answer| answer.reasoning_chars()).sum::<usize>() > 0
    });
    assert!(signed.count() >= 20, "thinking is sent back");
    model.assert_clean();
}

/// Our own compaction changes what came before thinking that is bound to it: the server drops it, the user is told once,
/// and the session goes on.
#[tokio::test]
async fn dropped_thinking_is_told_once() {
    let window = 6_000;
    let model = model(window);
    let (provider, _server) = served(&model, "vendor", Api::Anthropic).await;
    let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
    let settings = CompactionSettings { strategy: Strategy::Summarize, ..CompactionSettings::default() };
    let session =
        runtime.open("s", &looking(window).model("claude-opus-5-5").compaction(settings)).await.unwrap();
    let mut events = session.subscribe();
    let mut compactions = 0;
    for run in 0..24 {
        let reply = session.prompt(format!("Look, {run}.")).await.unwrap();
        assert!(reply.text.starts_with("answer "), "{reply:?}");
        compactions += reply.compactions.len();
    }
    let warnings: Vec<String> = crate::support::drain(&mut events)
        .iter()
        .filter_map(|event| match &event.kind {
            greenroom::EventKind::Warning { message } => Some(message.clone()),
            _ => None,
        })
        .collect();
    assert!(compactions >= 2, "{compactions}");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("blocks (prefix_binding_mismatch)"), "{warnings:?}");
    // Thinking since the compaction is seen.
    let newest = model.requests().last().unwrap().request.clone();
    let answers = newest.messages.iter().filter_map(|message| message.as_answer());
    assert!(answers.map(|answer| answer.reasoning_chars()).sum::<usize>() > 0);
    model.assert_clean();
}

/// An unknown beta feature is refused, as the vendor does.
#[tokio::test]
async fn an_unknown_beta_feature_is_refused() {
    let model = model(50_000);
    let server = model.serve().await.unwrap();
    for (feature, is_taken) in [("context-1m-2025-08-07", true), ("no-such-feature-2020-01-01", false)] {
        let options = ServerOptions {
            base_url: server.base_url(),
            headers: vec![("anthropic-beta".to_owned(), feature.to_owned())],
            ..ServerOptions::anthropic("k")
        };
        let provider = HttpProvider::new(options).unwrap();
        let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
        let session = runtime.open("s", &looking(50_000)).await.unwrap();
        let answer = session.prompt("Look.").await;
        assert_eq!(answer.is_ok(), is_taken, "{feature}: {answer:?}");
    }
    assert!(!model.violations().is_empty());
}

/// A server that pauses its turn gets the answer back as it is, and continues.
#[tokio::test]
async fn a_paused_turn_continues() {
    let pauses = |request: &SeenRequest, _: CallInfo| match request.messages.len() {
        1 => Said::text("First half, ").with_reasoning("long work").with_finish(StopReason::Paused),
        _ => Said::text("second half."),
    };
    let script = Function(pauses);
    let tolerates = &[greenroom_simulator::Rule::EndsWithAssistant];
    let model = Simulator::new(SimulatorOptions { tolerates, ..SimulatorOptions::new(script) });
    let (provider, _server) = served(&model, "anthropic", Api::Anthropic).await;
    let runtime = Runtime::builder().provider(Arc::new(provider)).engine(store()).start().await.unwrap();
    let session = runtime.open("s", &agent(50_000)).await.unwrap();
    let reply = session.prompt("Go.").await.unwrap();
    assert_eq!((reply.text.as_str(), reply.steps), ("second half.", 2));
    assert_eq!(reply.stop, StopReason::Stop);
    let requests = model.requests();
    let last = requests[1].request.messages.last().unwrap();
    assert_eq!(last.text(), "First half, ");
    model.assert_clean();
}

/// One session over two vendors in turn: each gets its own signatures and nothing of the other's.
#[tokio::test]
async fn a_session_changes_between_vendors() {
    let (first, second) = (model(50_000), model(50_000));
    let (anthropic, _one) = served(&first, "anthropic", Api::Anthropic).await;
    let (openai, _two) = served(&second, "openai", Api::Chat).await;
    let builder = Runtime::builder().provider(Arc::new(anthropic)).provider(Arc::new(openai));
    let runtime = builder.engine(store()).start().await.unwrap();
    for round in 0..6 {
        let name = ["anthropic", "openai"][round % 2];
        let session = runtime.open("s", &looking(50_000).provider(name)).await.unwrap();
        let reply = session.prompt(format!("Look, {round}.")).await.unwrap();
        assert!(reply.text.starts_with("answer "), "{reply:?}");
        runtime.close("s").await.unwrap();
    }
    assert_eq!(opaque(&runtime).await.len(), 6, "two answers in each of three rounds are signed");
    let newest = first.requests().last().unwrap().request.clone();
    let answers = newest.messages.iter().filter_map(|message| message.as_answer());
    let thoughts = answers.map(|answer| answer.reasoning_chars()).filter(|chars| *chars > 0).count();
    assert_eq!(thoughts, 5, "its own thoughts, and none of the other's");
    first.assert_clean();
    second.assert_clean();
}

/// The four APIs, each under the name of a provider.
const VENDORS: [(&str, Api); 4] = [
    ("chat", Api::Chat),
    ("responses", Api::Responses),
    ("anthropic", Api::Anthropic),
    ("gemini", Api::Gemini),
];

/// What happened in some conversations.
#[derive(Debug, Default)]
struct Lived {
    runs: usize,
    compactions: usize,
    /// The compactions that a vendor made by itself, as the log has them.
    native: usize,
    undos: usize,
    branches: usize,
    forks: usize,
    restarts: usize,
    /// The requests that the four servers saw.
    requests: usize,
}

impl Lived {
    fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.compactions += other.compactions;
        self.native += other.native;
        self.undos += other.undos;
        self.branches += other.branches;
        self.forks += other.forks;
        self.restarts += other.restarts;
        self.requests += other.requests;
    }
}

/// The models behind the four APIs, and their servers.
struct World {
    models: Vec<Simulator>,
    servers: Vec<SimulatorServer>,
    /// The directory of the store; `None`: it is in memory, and the runtime is never closed.
    dir: Option<tempfile::TempDir>,
}

impl World {
    async fn new(window: u64, on_disk: bool) -> Self {
        let models: Vec<_> = VENDORS.iter().map(|_| model(window)).collect();
        let mut servers = Vec::new();
        for model in &models {
            servers.push(model.serve().await.unwrap());
        }
        Self { models, servers, dir: on_disk.then(|| tempfile::tempdir().unwrap()) }
    }

    async fn runtime(&self) -> Runtime {
        let mut builder = Runtime::builder();
        for ((name, api), server) in VENDORS.iter().zip(&self.servers) {
            let options = ServerOptions {
                name: (*name).to_owned(),
                api: *api,
                base_url: server.base_url(),
                prompt_cache_key: Some(true),
                ..ServerOptions::default()
            };
            builder = builder.provider(Arc::new(HttpProvider::new(options).unwrap()));
        }
        match &self.dir {
            Some(dir) => builder.data_dir(dir.path()).start().await.unwrap(),
            None => builder.engine(store()).start().await.unwrap(),
        }
    }
}

/// One conversation that changes between the four APIs at random, with compactions, undos, branches, forks and sleeps in
/// between, and, with a store on disk, closed and opened again by a new runtime.
async fn live(seed: u64, on_disk: bool) -> Lived {
    let mut random = Random::new(seed);
    let window = 6_000;
    // In every other conversation the vendors compact by themselves, those that can.
    let strategy = if seed.is_multiple_of(2) { Strategy::Auto } else { Strategy::Summarize };
    let settings = CompactionSettings { strategy, ..CompactionSettings::default() };
    let world = World::new(window, on_disk).await;
    let mut runtime = world.runtime().await;
    let (mut lived, mut id) = (Lived::default(), "s".to_owned());
    for _ in 0..6 + random.below(6) {
        let (name, _) = VENDORS[usize::try_from(random.below(4)).unwrap()];
        let agent = looking(window).provider(name).compaction(settings.clone());
        let session = runtime.open(&id, &agent).await.unwrap();
        for _ in 0..=random.below(3) {
            let reply = session.prompt(format!("Look, {}.", lived.runs)).await.unwrap();
            assert!(reply.text.starts_with("answer "), "seed {seed}: {reply:?}");
            lived.compactions += reply.compactions.len();
            lived.runs += 1;
        }
        if random.below(4) == 0 {
            lived.compactions += usize::from(session.compact(CompactOptions::default()).await.is_ok());
        }
        if random.below(3) == 0 {
            // Nothing to undo is an answer too.
            lived.undos += usize::from(session.undo_compaction().await.is_ok());
        }
        if random.below(4) == 0 {
            let entries = runtime.entries(&id, greenroom::EntryId(0)).await.unwrap();
            let is_answer = |entry: &&greenroom::Entry| {
                entry.kind.as_message().is_some_and(|message| {
                    message.as_answer().is_some_and(|a| a.tool_calls().next().is_none())
                })
            };
            let answers: Vec<_> = entries.iter().filter(is_answer).map(|entry| entry.id).collect();
            let to = answers[usize::try_from(random.below(answers.len() as u64)).unwrap()];
            // A compaction after the run may be in progress.
            lived.branches += usize::from(session.branch(Some(to)).await.is_ok());
        }
        if random.below(4) == 0 {
            // The conversation goes on in the fork.
            let fork = format!("{id}f");
            if runtime.fork(&id, &fork, agent).await.is_ok() {
                lived.forks += 1;
                runtime.close(&id).await.unwrap();
                id = fork;
            }
        }
        if on_disk && random.below(2) == 0 {
            runtime.shutdown().await.unwrap();
            runtime = world.runtime().await;
            lived.restarts += 1;
        } else {
            runtime.close(&id).await.unwrap();
        }
    }
    for model in &world.models {
        model.assert_clean();
        lived.requests += model.requests().len();
    }
    let recorded = compaction::compactions(&runtime, &id).await;
    lived.native = recorded.iter().filter(|compaction| compaction.native.is_some()).count();
    runtime.shutdown().await.unwrap();
    lived
}

#[tokio::test]
async fn every_request_is_accepted_by_every_vendor() {
    let mut lived = Lived::default();
    for seed in 0..CONVERSATIONS {
        lived.add(&live(seed, false).await);
    }
    let Lived { runs, compactions, native, forks, undos, branches, .. } = lived;
    assert!(runs > 400 && compactions > 100 && native > 20, "{lived:?}");
    assert!(forks > 40 && undos > 10 && branches > 40, "{lived:?}");
}

#[tokio::test]
async fn every_request_is_accepted_after_a_restart_too() {
    let mut lived = Lived::default();
    for seed in 500..500 + CONVERSATIONS / 4 {
        lived.add(&live(seed, true).await);
    }
    let Lived { runs, compactions, native, forks, restarts, .. } = lived;
    assert!(runs > 100 && compactions > 25 && native > 3 && forks > 10 && restarts > 25, "{lived:?}");
}

/// More of them, by hand, every third with a store on disk: `GREENROOM_RUNS=2000`, from `GREENROOM_FIRST_SEED` on.
#[tokio::test]
#[ignore = "takes minutes"]
#[expect(clippy::disallowed_methods, reason = "a test reads its numbers from the environment")]
async fn many_conversations() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, count) = (number("GREENROOM_FIRST_SEED", 1_000), number("GREENROOM_RUNS", 2_000));
    let mut lived = Lived::default();
    for seed in first..first + count {
        lived.add(&live(seed, seed.is_multiple_of(3)).await);
    }
    eprintln!("{count} conversations from {first} on: {lived:?}");
}

/// How many conversations the test suite has.
const CONVERSATIONS: u64 = 40;
