//! An agent as a tool of another: depth, cost, and that nothing of it outlives its caller.
//!
//! Invariants: when a caller's call is over, however it ended, no run of a session below it is in progress
//! and no request of one is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{EntryKind, RunOutcome, Spender};
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_provider::Catalog;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, ScriptedCall, SeenRequest, Simulator, SimulatorOptions,
    Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::text;
use crate::support::{agent, builder, drain, reopened, runtime, simulator, store};

/// The maximum depth, as documented at `Agent::sub_agent`.
const DEPTH_MAX: usize = 4;

/// Does something.
#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Counts.
#[derive(Deserialize, JsonSchema)]
struct Count {
    /// The next number.
    number: u64,
}

fn last_is_result(request: &SeenRequest) -> bool {
    request.messages.last().is_some_and(|message| message.role() == "tool")
}

/// Delegates every task to a helper if it has one, and is done when that has answered.
fn delegator(request: &SeenRequest, _: CallInfo) -> Said {
    if request.has_tool("helper") && !last_is_result(request) {
        Said::call("helper", &json!({ "task": "help" }))
    } else {
        Said::text("done")
    }
}

/// Returns an agent with a helper, which has a helper, and so on, `levels` deep.
fn nested(levels: usize, deepest: Agent) -> Agent {
    (0..levels)
        .fold(deepest, |helper, _| agent(100_000).sub_agent(sub_agent("helper", helper).describe("Helps.")))
}

/// Returns the sessions below a session, nearest first.
async fn below(runtime: &Runtime, root: &str) -> Vec<String> {
    let sessions = runtime.sessions().await.unwrap();
    let mut found = Vec::new();
    let mut parent = root.to_owned();
    while let Some(child) = sessions.iter().find(|session| session.parent.as_deref() == Some(parent.as_str()))
    {
        let id = &child.id;
        found.push(id.clone());
        parent.clone_from(id);
    }
    found
}

/// Returns the tool results of a session, with their status.
async fn results(runtime: &Runtime, id: &str) -> Vec<(ToolStatus, String)> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let result = |entry: &greenroom_kernel::Entry| match &**entry.kind.as_message()? {
        Message::ToolResult(result) => Some((result.status, entry.kind.as_message()?.text())),
        Message::User(_) | Message::Assistant(_) => None,
    };
    entries.iter().filter_map(result).collect()
}

/// How the runs of a session ended.
async fn outcomes(runtime: &Runtime, id: &str) -> Vec<RunOutcome> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let outcome = |entry: &greenroom_kernel::Entry| match &entry.kind {
        EntryKind::RunEnded { outcome, .. } => Some(outcome.clone()),
        _ => None,
    };
    entries.iter().filter_map(outcome).collect()
}

#[tokio::test(start_paused = true)]
async fn agents_call_agents_at_most_four_deep_whatever_the_length_of_the_session_s_id() {
    for length in [1, 7, 20, 43, 44, 63, 64] {
        let model = simulator(Function(delegator), 100_000);
        let runtime = runtime(&model).await;
        let root = "r".repeat(length);
        let session = runtime.open(&root, &nested(DEPTH_MAX + 3, agent(100_000))).await.unwrap();
        assert_eq!(session.prompt("go").await.unwrap().text, "done");
        let below = below(&runtime, &root).await;
        assert_eq!(below.len(), DEPTH_MAX, "{length}: {below:?}");
        let sessions = runtime.sessions().await.unwrap().len();
        assert_eq!(sessions, DEPTH_MAX + 1, "{length}: nobody else was opened");
        let refused = results(&runtime, below.last().unwrap()).await;
        assert_eq!(refused.len(), 1, "{length}");
        assert_eq!(refused[0].0, ToolStatus::Error, "{length}");
        assert!(refused[0].1.contains("at most 4 levels deep"), "{length}: {}", refused[0].1);
        model.assert_clean();
        runtime.shutdown().await.unwrap();
    }
}

/// A session keeps its depth when a program opens it again by its id, even after everything was closed.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_s_session_that_is_opened_again_is_as_deep_as_before() {
    for closed in [false, true] {
        let model = simulator(Function(delegator), 100_000);
        let store = store();
        let start = || builder(&model).engine(store.clone()).start();
        let runtime = start().await.unwrap();
        let session = runtime.open("root", &nested(DEPTH_MAX + 3, agent(100_000))).await.unwrap();
        session.prompt("go").await.unwrap();
        let levels = below(&runtime, "root").await;
        if closed {
            for id in levels.iter().map(String::as_str).chain(["root"]) {
                runtime.close(id).await.unwrap();
            }
        }
        for (level, id) in levels.iter().enumerate() {
            let before = runtime.sessions().await.unwrap().len();
            let again = runtime.open(id, &nested(DEPTH_MAX + 3, agent(100_000))).await.unwrap();
            again.prompt("again").await.unwrap();
            let opened = runtime.sessions().await.unwrap().len() - before;
            // The session at level 0 has depth one.
            assert_eq!(opened, DEPTH_MAX - (level + 1), "{closed} {level}: {id}");
        }
        model.assert_clean();
    }
}

/// A provider may number the calls of each answer anew. Each call has its own session nevertheless.
#[tokio::test(start_paused = true)]
async fn calls_with_the_same_id_have_sessions_of_their_own() {
    let call = |request: &SeenRequest, info: CallInfo| {
        if request.has_tool("helper") && !last_is_result(request) && request.last_user_text() != "talk" {
            let call = ScriptedCall {
                id: Some("call_0".into()),
                name: "helper".into(),
                arguments: json!({ "task": request.last_user_text() }).to_string(),
            };
            Said { calls: vec![call], ..Said::default() }
        } else {
            Said::text(text(&format!("answer {}", info.session_call), 300))
        }
    };
    let model = simulator(ByPurpose::new(Function(call), Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let boss = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)).describe("Helps."));
    let session = runtime.open("boss", &boss).await.unwrap();
    let mut opened = Vec::new();
    for task in ["first", "second", "third"] {
        session.prompt(task).await.unwrap();
        for _ in 0..6 {
            session.prompt("talk").await.unwrap();
        }
        // The call leaves the context, so its id may be reused.
        let compacted = session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await;
        assert!(compacted.unwrap().entry_id.is_some());
        let sessions = runtime.sessions().await.unwrap();
        opened.push(sessions.len() - 1);
    }
    assert_eq!(opened, [1, 2, 3]);
    for session in runtime.sessions().await.unwrap() {
        let id = session.id;
        if id != "boss" {
            let runs = outcomes(&runtime, &id).await;
            assert_eq!(runs, [RunOutcome::Completed], "{id} was asked once");
        }
    }
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_events_of_a_sub_agent_name_their_parent() {
    let model = simulator(Function(delegator), 100_000);
    let runtime = runtime(&model).await;
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::RunStart, EventType::RunEnd]));
    let session = runtime.open("boss", &nested(1, agent(100_000))).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text, "done");
    let parents: Vec<Option<String>> =
        drain(&mut events).iter().map(|event| event.parent.as_ref().map(ToString::to_string)).collect();
    assert_eq!(parents, [None, Some("boss".into()), Some("boss".into()), None]);
    model.assert_clean();
}

/// The innermost agent's activity when its caller is cancelled.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Busy {
    /// It waits for its model's answer.
    Model,
    /// It waits for a tool, after its first answer.
    Tool,
}

/// How the outermost call ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Abort,
    DropPrompt,
    ToolTimeout,
    Close,
}

/// Counts the running tools, however they end.
struct Inside(Arc<AtomicUsize>);

impl Inside {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Cancels a caller while the agent `levels` below it is in the middle of its work.
async fn check_cancel(levels: usize, busy: Busy, way: Way) {
    let case = format!("{levels} {busy:?} {way:?}");
    let script = move |request: &SeenRequest, info: CallInfo| {
        if request.has_tool("helper") {
            return if last_is_result(request) { Said::text("done") } else { delegator(request, info) };
        }
        match busy {
            Busy::Model => Said::text("never").after_ms(3_600_000),
            Busy::Tool => Said::call("wait", &json!({})),
        }
    };
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(script))
    });
    let runtime = builder(&model).start().await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&inside);
    let worker = agent(100_000).tool("wait", move |_: Nothing| {
        let inside = Inside::new(&count);
        async move {
            let _inside = inside;
            std::future::pending::<std::result::Result<String, greenroom_tools::ToolError>>().await
        }
    });
    let mut boss = nested(levels, worker);
    if way == Way::ToolTimeout {
        boss = boss.tool_timeout(Duration::from_secs(60));
    }
    let session = runtime.open("boss", &boss).await.unwrap();
    session.state().await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut prompt = session.prompt("go").into_future();
    // It is at work.
    assert!(tokio::time::timeout(Duration::from_secs(10), &mut prompt).await.is_err(), "{case}");
    let seen = match busy {
        Busy::Model => model.in_flight(),
        Busy::Tool => inside.load(Ordering::SeqCst),
    };
    assert_eq!(seen, 1, "{case}: the innermost agent is at work");
    let sessions = below(&runtime, "boss").await;
    assert_eq!(sessions.len(), levels, "{case}");
    let at_work = tasks();

    match way {
        Way::Abort => {
            session.abort();
            assert!(matches!(prompt.await, Err(Error::Aborted)), "{case}");
        }
        Way::DropPrompt => {
            drop(prompt);
            while session.state().await.unwrap().status != Status::Idle {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        // The model is told that the call took too long, and continues.
        Way::ToolTimeout => assert_eq!(prompt.await.unwrap().text, "done", "{case}"),
        Way::Close => {
            runtime.close("boss").await.unwrap();
            assert!(matches!(prompt.await, Err(Error::Interrupted { .. } | Error::Aborted)), "{case}");
        }
    }

    // Nothing of it keeps running: checked at once, without any further wait.
    assert_eq!((model.in_flight(), inside.load(Ordering::SeqCst)), (0, 0), "{case}: something is left");
    for id in &sessions {
        assert_eq!(outcomes(&runtime, id).await, [RunOutcome::Aborted], "{case}: {id}");
        let summary = runtime.summary(id).await.unwrap().unwrap();
        assert!(!summary.has_open_run, "{case}: {id}");
    }
    assert!(tasks() < at_work, "{case}: {} tasks of {at_work}", tasks());
    let results = results(&runtime, "boss").await;
    let (status, text) = &results[0];
    match way {
        Way::Abort | Way::DropPrompt | Way::Close => {
            assert_eq!(*status, ToolStatus::Interrupted, "{case}: {text}");
        }
        Way::ToolTimeout => {
            assert_eq!(*status, ToolStatus::Error, "{case}: {text}");
            assert!(text.contains("60"), "{case}: {text}");
        }
    }
    model.assert_clean();
    runtime.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agent_as_a_tool_is_cancelled_with_its_caller() {
    for levels in [1, 3] {
        for busy in [Busy::Model, Busy::Tool] {
            for way in [Way::Abort, Way::DropPrompt, Way::ToolTimeout, Way::Close] {
                check_cancel(levels, busy, way).await;
            }
        }
    }
}

/// However a caller's session ends in an orderly way, its model reads the same about the sub-agent that was at work.
#[tokio::test(start_paused = true)]
async fn what_a_model_reads_of_an_agent_that_was_cut_off() {
    for is_shutdown in [false, true] {
        for levels in [1, 2] {
            let script = |request: &SeenRequest, info: CallInfo| match request.has_tool("helper") {
                true => delegator(request, info),
                false => Said::text("never").after_ms(3_600_000),
            };
            let model = simulator(Function(script), 100_000);
            let runtime = runtime(&model).await;
            let session = runtime.open("boss", &nested(levels, agent(100_000))).await.unwrap();
            session.prompt("go").start().await.unwrap().detach();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(below(&runtime, "boss").await.len(), levels);
            let store = runtime.engine().clone();
            if is_shutdown {
                runtime.shutdown().await.unwrap();
            } else {
                runtime.close("boss").await.unwrap();
            }
            let next = builder(&model).engine(reopened(&store)).start().await.unwrap();
            let read = [(ToolStatus::Interrupted, "the agent was cut off before it answered".to_owned())];
            assert_eq!(results(&next, "boss").await, read, "shutdown {is_shutdown}, {levels}");
        }
    }
}

/// A model with a price in the catalogue.
const MODEL: &str = "gpt-4o";

/// Agents that work for ever: the helper counts, step by step, and its caller calls it again and again.
fn spenders(limit: u64, helper_limit: Option<u64>) -> (Simulator, Agent) {
    // No call equals the previous one, so that no guard against repetition ends it.
    let script = |request: &SeenRequest, info: CallInfo| {
        if request.has_tool("helper") {
            Said::call("helper", &json!({ "task": format!("count from {}", info.session_call) }))
        } else {
            Said::call("count", &json!({ "number": info.session_call }))
        }
    };
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(script))
    });
    let mut helper = Agent::new(MODEL)
        .context_window(100_000)
        .tool("count", |count: Count| async move { Ok(text(&format!("{}", count.number), 100)) });
    if let Some(limit) = helper_limit {
        helper = helper.cost_limit_usd(usd(limit));
    }
    let boss = Agent::new(MODEL)
        .context_window(100_000)
        .cost_limit_usd(usd(limit))
        .sub_agent(sub_agent("helper", helper).describe("Helps."));
    (model, boss)
}

#[expect(clippy::cast_precision_loss, reason = "small sums")]
fn usd(microdollars: u64) -> f64 {
    microdollars as f64 / 1e6
}

/// Returns the costs of the sub-agents of a session, call by call.
async fn spent_below(runtime: &Runtime, id: &str) -> Vec<u64> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let spent = |entry: &greenroom_kernel::Entry| match &entry.kind {
        EntryKind::Spent(spent) if matches!(spent.by, Spender::SubAgent { .. }) => spent.cost_microdollars,
        _ => None,
    };
    entries.iter().filter_map(spent).collect()
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_spends_no_more_than_its_caller_has_left() {
    assert!(Catalog::bundled().find("openai", MODEL).is_some());
    let limit = 20_000;
    let (model, boss) = spenders(limit, None);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("boss", &boss).await.unwrap();
    let end = session.prompt("go").await;
    assert!(matches!(&end, Err(Error::Stopped { reason }) if reason.contains("cost limit")), "{end:?}");
    let spent = session.state().await.unwrap().cost_microdollars;
    assert!((limit / 2..=limit).contains(&spent), "{spent} of {limit}");
    let helpers = spent_below(&runtime, "boss").await;
    assert!(helpers[0] > limit / 2, "the first one spends the most: {helpers:?}");
    let helper = &below(&runtime, "boss").await[0];
    let stopped = outcomes(&runtime, helper).await;
    assert!(
        matches!(&stopped[..], [RunOutcome::Stopped { reason }] if reason.contains("cost limit")),
        "{stopped:?}"
    );
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_s_own_lower_limit_holds() {
    let (limit, own) = (40_000, 10_000);
    let (model, boss) = spenders(limit, Some(own));
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("boss", &boss).await.unwrap();
    let end = session.prompt("go").await;
    assert!(matches!(&end, Err(Error::Stopped { reason }) if reason.contains("cost limit")), "{end:?}");
    let helpers = spent_below(&runtime, "boss").await;
    assert!(helpers.len() >= 3, "{helpers:?}");
    let (last, earlier) = helpers.split_last().unwrap();
    for spent in earlier {
        assert!((own / 2..=own).contains(spent), "{helpers:?}");
    }
    assert!(*last <= own, "{helpers:?}");
    model.assert_clean();
}

/// The cost of a cancelled sub-agent is on its caller's bill.
#[tokio::test(start_paused = true)]
async fn a_cancelled_sub_agent_s_cost_is_its_caller_s() {
    let script = |request: &SeenRequest, _: CallInfo| {
        if request.has_tool("helper") {
            Said::call("helper", &json!({ "task": "count" }))
        } else {
            Said::call("wait", &json!({}))
        }
    };
    let model = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(Function(script))
    });
    let runtime = builder(&model).start().await.unwrap();
    let helper = Agent::new(MODEL).context_window(100_000).tool("wait", |_: Nothing| {
        std::future::pending::<std::result::Result<String, greenroom_tools::ToolError>>()
    });
    let boss =
        Agent::new(MODEL).context_window(100_000).sub_agent(sub_agent("helper", helper).describe("Helps."));
    let session = runtime.open("boss", &boss).await.unwrap();
    let prompt = session.prompt("go");
    let abort = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        session.abort();
    };
    let (end, ()) = tokio::join!(prompt, abort);
    assert!(matches!(end, Err(Error::Aborted)), "{end:?}");
    let helper = &below(&runtime, "boss").await[0];
    let own = runtime.summary(helper).await.unwrap().unwrap();
    assert!(own.cost_microdollars > 0);
    assert_eq!(spent_below(&runtime, "boss").await, [own.cost_microdollars]);
    model.assert_clean();
}
