//! Agents that work concurrently for another one: watched, steered and aborted one by one, within one budget,
//! and the state after something dies.
//!
//! Invariants: time is paused, so that durations are exact; each start of an agent has one end in its
//! caller's log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{ConfigError, RunOutcome};
use greenroom_kernel::entry::{ChildStage, EntryKind};
use greenroom_kernel::message::Message;
use greenroom_kernel::{EntryId, ToolStatus};
use greenroom_simulator::{
    Answer as Said, CallInfo, Function, ScriptedCall, SeenRequest, Simulator, SimulatorOptions,
};
use serde_json::{Value, json};

use crate::support::{agent, builder, drain, quiet_injected_panics, runtime, simulator, store};

mod deaths;
mod deletes;
mod questions;
mod seeds;

/// Returns a call of a sub-agent.
fn call(id: &str, name: &str, arguments: &Value) -> ScriptedCall {
    ScriptedCall { id: Some(id.into()), name: name.into(), arguments: arguments.to_string() }
}

fn calls(calls: Vec<ScriptedCall>) -> Said {
    Said { calls, ..Said::default() }
}

fn has_result(request: &SeenRequest) -> bool {
    request.messages.last().is_some_and(|message| message.role() == "tool")
}

fn member_info() -> CallInfo {
    CallInfo { call: 0, session_call: 0, seed: 0 }
}

fn is_boss(request: &SeenRequest) -> bool {
    request.session.as_deref() == Some("boss")
}

/// The names that the boss of [`team`] has for its agents.
const MEMBERS: [&str; 3] = ["web", "papers", "code"];

/// Returns a boss that calls each member once, and members that answer their tasks after a second.
fn team_script(request: &SeenRequest, _: CallInfo) -> Said {
    if !is_boss(request) {
        return Said::text(format!("about {}", request.last_user_text())).after_ms(1_000);
    }
    if has_result(request) {
        return Said::text("done");
    }
    calls(MEMBERS.iter().map(|name| call(name, name, &json!({ "task": format!("rust {name}") }))).collect())
}

fn team() -> Agent {
    MEMBERS.iter().fold(agent(100_000), |boss, name| {
        boss.sub_agent(sub_agent(*name, agent(100_000)).describe("Researches."))
    })
}

/// Returns the results of the calls of a session, with their status.
async fn results(runtime: &Runtime, id: &str) -> Vec<(String, ToolStatus, String)> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let result = |entry: &greenroom_kernel::Entry| match &**entry.kind.as_message()? {
        Message::ToolResult(result) => {
            Some((result.call_id.clone(), result.status, entry.kind.as_message()?.text()))
        }
        Message::User(_) | Message::Assistant(_) => None,
    };
    entries.iter().filter_map(result).collect()
}

/// Returns the agents called according to a session's log: the name, and how each ended.
async fn children(runtime: &Runtime, id: &str) -> Vec<(String, Option<RunOutcome>)> {
    let mut found: Vec<(EntryId, String, Option<RunOutcome>)> = Vec::new();
    for entry in runtime.entries(id, EntryId(0)).await.unwrap() {
        let EntryKind::Child(child) = entry.kind else { continue };
        match child.stage {
            ChildStage::Started => found.push((entry.id, child.name, None)),
            ChildStage::Ended { started, outcome } => {
                let begun = found.iter_mut().find(|(id, ..)| *id == started).expect("an end has a start");
                assert!(begun.2.replace(outcome).is_none(), "one end each");
            }
        }
    }
    found.into_iter().map(|(_, name, outcome)| (name, outcome)).collect()
}

#[tokio::test(start_paused = true)]
async fn three_sub_agents_of_a_second_each_take_one_second() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("boss", &team()).await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(session.prompt("go").await.unwrap().text, "done");
    let took = began.elapsed().as_millis();
    assert!((1_000..1_100).contains(&took), "{took} ms");
    assert_eq!(model.in_flight_max(), 3);
    let mut results = results(&runtime, "boss").await;
    results.sort_by(|one, other| one.0.cmp(&other.0));
    let said = |name: &str| (name.to_owned(), ToolStatus::Ok, format!("about rust {name}"));
    assert_eq!(results, [said("code"), said("papers"), said("web")]);
    model.assert_clean();
}

/// The stream of the caller's run reports each agent when it starts; one is aborted there, and the others
/// answer.
#[tokio::test(start_paused = true)]
async fn one_is_aborted_and_the_others_answer() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("boss", &team()).await.unwrap();
    let mut run = session.prompt("go").stream();
    let (mut seen, mut reply) = (Vec::new(), None);
    while let Some(item) = run.next().await {
        match item.unwrap() {
            RunItem::Child(child) => {
                assert!(child.is_working());
                assert_eq!(child.name(), child.call_id(), "the calls are named after their agents here");
                assert_eq!(child.run(), run.id());
                if child.name() == "papers" {
                    child.abort();
                }
                seen.push(child);
            }
            RunItem::Reply(end) => reply = Some(end),
            _ => {}
        }
    }
    assert_eq!(reply.unwrap().text, "done");
    let mut names: Vec<&str> = seen.iter().map(Child::name).collect();
    names.sort_unstable();
    assert_eq!(names, ["code", "papers", "web"]);
    assert!(seen.iter().all(|child| !child.is_working()));
    assert_eq!(session.children().len(), 3, "they are known until the next run begins");
    let error = seen[0].steer("too late").await.unwrap_err();
    assert!(matches!(error, Error::ChildEnded { .. }), "{error}");
    for (id, status, text) in results(&runtime, "boss").await {
        let wanted = if id == "papers" {
            (ToolStatus::Interrupted, "the agent was cancelled".to_owned())
        } else {
            (ToolStatus::Ok, format!("about rust {id}"))
        };
        assert_eq!((status, text), wanted, "{id}");
    }
    let mut ends = children(&runtime, "boss").await;
    ends.sort_by(|one, other| one.0.cmp(&other.0));
    let end = |name: &str, outcome| (name.to_owned(), Some(outcome));
    let (aborted, completed) = (RunOutcome::Aborted, RunOutcome::Completed);
    assert_eq!(ends, [end("code", completed.clone()), end("papers", aborted), end("web", completed)]);
    session.prompt("again").await.unwrap();
    assert!(session.children().iter().all(|child| !seen.contains(child)), "those of the newest run");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_of_their_agent_wait_for_their_turn_in_order() {
    for (parallel, seconds) in [(1, 6), (2, 3), (4, 2), (100, 1)] {
        let script = |request: &SeenRequest, _: CallInfo| {
            if !is_boss(request) {
                return Said::text("found").after_ms(1_000);
            }
            if has_result(request) {
                return Said::text("done");
            }
            let of =
                |number: usize| call(&format!("c{number}"), "web", &json!({ "task": format!("{number}") }));
            calls((0..6).map(of).collect())
        };
        let model = simulator(Function(script), 100_000);
        let runtime = runtime(&model).await;
        let boss = agent(100_000).sub_agent(sub_agent("web", agent(100_000)).parallel(parallel));
        let session = runtime.open("boss", &boss).await.unwrap();
        let mut events = runtime.subscribe(Filter::session("boss"));
        let began = tokio::time::Instant::now();
        session.prompt("go").await.unwrap();
        let took = began.elapsed().as_millis();
        assert!((seconds * 1_000..seconds * 1_000 + 500).contains(&took), "{parallel}: {took} ms");
        assert_eq!(model.in_flight_max(), parallel.min(6), "{parallel}");
        let started: Vec<String> = drain(&mut events)
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::ToolStart { call_id, .. } => Some(call_id.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(started, ["c0", "c1", "c2", "c3", "c4", "c5"], "{parallel}");
        model.assert_clean();
    }
}

/// Sub-agents run concurrently with read-only calls, and not with a writing one.
#[tokio::test(start_paused = true)]
async fn what_only_reads_runs_beside_them_and_what_writes_runs_alone() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let script = |request: &SeenRequest, _: CallInfo| {
        if !is_boss(request) {
            return Said::text("found").after_ms(1_000);
        }
        if has_result(request) {
            return Said::text("done");
        }
        let plain = |name: &str| call(name, name, &json!({}));
        let web = |id: &str| call(id, "web", &json!({ "task": id }));
        calls(vec![web("w1"), plain("read"), web("w2"), plain("write"), web("w3")])
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let second = |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok("slept")
    };
    let boss = agent(100_000)
        .sub_agent(sub_agent("web", agent(100_000)))
        .add_tool(tool("read", second).read_only())
        .add_tool(tool("write", second));
    let session = runtime.open("boss", &boss).await.unwrap();
    let began = tokio::time::Instant::now();
    session.prompt("go").await.unwrap();
    let took = began.elapsed().as_millis();
    // Two agents and the reader together, then the writer, then the last agent.
    assert!((3_000..3_200).contains(&took), "{took} ms");
    model.assert_clean();
}

/// What to look for.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Query {
    /// The topic.
    topic: String,
    /// How many sources are enough.
    sources: u32,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Findings {
    urls: Vec<String>,
}

#[tokio::test(start_paused = true)]
async fn typed_input_and_output_are_checked_on_both_sides() {
    let script = |request: &SeenRequest, info: CallInfo| {
        if is_boss(request) {
            return match info.session_call {
                0 => Said::call("web", &json!({ "topic": "rust" })),
                1 => Said::call("web", &json!({ "topic": "rust\nactors", "sources": 2 })),
                _ => Said::text("done"),
            };
        }
        assert_eq!(request.output_schema.as_ref().unwrap().name, "Findings");
        match info.session_call {
            0 => Said::text("I found something."),
            _ => Said::text("```json\n{ \"urls\": [ \"a\", \"b\" ] }\n```"),
        }
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let boss =
        agent(100_000).sub_agent(sub_agent("web", agent(100_000)).input::<Query>().output::<Findings>());
    let session = runtime.open("boss", &boss).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text, "done");
    let offered = &model.requests()[0].request.tools;
    let web = offered.iter().find(|tool| tool.name == "web").unwrap();
    assert_eq!(web.description, "What to look for.");
    assert_eq!(web.parameters["required"], json!(["topic", "sources"]));
    let results = results(&runtime, "boss").await;
    assert_eq!(results[0].1, ToolStatus::Error);
    assert!(results[0].2.contains("missing field `sources`"), "{}", results[0].2);
    assert_eq!((results[1].1, results[1].2.as_str()), (ToolStatus::Ok, r#"{"urls":["a","b"]}"#));
    let below = runtime.sessions().children_of("boss").await.unwrap();
    assert_eq!(below.len(), 1, "arguments that cannot be read begin nothing");
    let said = runtime.session(&below[0].id).await.unwrap().context().await.unwrap();
    assert_eq!(said[0].text(), "topic:\nrust\nactors\n\nsources: 2");
    assert_eq!(said.len(), 4, "it was asked again");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_has_the_form_is_the_calls_error() {
    let script = |request: &SeenRequest, _: CallInfo| match (is_boss(request), has_result(request)) {
        (true, false) => Said::call("web", &json!({ "task": "look" })),
        (true, true) => Said::text("done"),
        (false, _) => Said::text("no json"),
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let boss = agent(100_000).sub_agent(sub_agent("web", agent(100_000)).output::<Findings>());
    let session = runtime.open("boss", &boss).await.unwrap();
    assert_eq!(session.prompt("go").await.unwrap().text, "done");
    let results = results(&runtime, "boss").await;
    assert_eq!(results[0].1, ToolStatus::Error);
    assert!(results[0].2.contains("does not fit the schema \"Findings\""), "{}", results[0].2);
    model.assert_clean();
}

/// A filter of a tree has the events of all sessions below, including later ones, and names call and agent.
#[tokio::test(start_paused = true)]
async fn a_tree_is_watched_as_one_and_its_starts_and_ends_are_replayed() {
    let script = |request: &SeenRequest, _: CallInfo| {
        if request.has_tool("helper") && !has_result(request) {
            Said::call("helper", &json!({ "task": request.last_user_text() }))
        } else {
            Said::text("done").after_ms(1_000)
        }
    };
    let model = simulator(Function(script), 100_000);
    let store = store();
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let middle = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
    let boss = agent(100_000).sub_agent(sub_agent("helper", middle));
    let session = runtime.open("boss", &boss).await.unwrap();
    let other = runtime.open("other", &boss).await.unwrap();
    let mut all = runtime.subscribe(Filter::tree("boss").kinds([EventType::RunStart, EventType::RunEnd]));
    let mut starts =
        runtime.subscribe(Filter::tree("boss").kinds([EventType::ChildStart, EventType::ChildEnd]));
    let (first, second) = tokio::join!(session.prompt("go"), async {
        let run = other.prompt("go").start().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        // In the middle of it, the innermost agent is at work; a late subscriber receives its events too.
        let mut late = runtime.subscribe(Filter::tree("boss"));
        let reply = run.reply().await;
        let sessions: std::collections::BTreeSet<_> =
            drain(&mut late).iter().map(|event| event.session.to_string()).collect();
        assert_eq!(sessions.len(), 3, "{sessions:?}");
        reply
    });
    assert_eq!((first.unwrap().text, second.unwrap().text), ("done".to_owned(), "done".to_owned()));
    let told = drain(&mut all);
    assert_eq!(told.len(), 6);
    assert!(told.iter().all(|event| !event.session.starts_with("other")));
    let live = drain(&mut starts);
    assert_eq!(
        live.iter().map(|event| event.kind.name()).collect::<Vec<_>>(),
        ["child_start", "child_start", "child_end", "child_end"]
    );
    let EventKind::ChildStart { name, child, call_id, .. } = &live[0].kind else { panic!("{:?}", live[0]) };
    assert_eq!((name.as_str(), live[0].session.as_ref()), ("helper", "boss"));
    assert_eq!(told[0].run, live[0].run, "they belong to the caller's run");
    assert!(!call_id.is_empty());
    assert_eq!(live[1].session.as_ref(), child.as_str(), "the middle one called the innermost");
    let is_child = |event: &Event| matches!(event.kind.name(), "child_start" | "child_end");
    let of_boss: Vec<Event> =
        live.iter().filter(|event| &*event.session == "boss").map(|event| Event::clone(event)).collect();
    for _ in 0..2 {
        let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        let mut replayed = runtime.replay("boss", 0).await.unwrap();
        replayed.retain(is_child);
        assert_eq!(replayed, of_boss);
    }
    model.assert_clean();
}

const MODEL: &str = "gpt-4o";

fn priced(script: impl greenroom_simulator::Script + 'static) -> Simulator {
    Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 100_000,
        ..SimulatorOptions::new(script)
    })
}

#[expect(clippy::cast_precision_loss, reason = "small sums")]
fn usd(microdollars: u64) -> f64 {
    microdollars as f64 / 1e6
}

/// Counts.
#[derive(Deserialize, JsonSchema)]
struct Count {
    number: u64,
}

/// Four agents at work at once, each of which would count for ever.
fn spenders() -> (Simulator, Agent) {
    let script = |request: &SeenRequest, info: CallInfo| {
        if is_boss(request) {
            let of = |number: usize| {
                call(&format!("c{number}"), "helper", &json!({ "task": format!("{number}") }))
            };
            return calls((0..4).map(of).collect());
        }
        Said::call("count", &json!({ "number": info.session_call })).after_ms(100)
    };
    let helper = Agent::new(MODEL)
        .context_window(100_000)
        .tool("count", |count: Count| async move { Ok(format!("{} {}", count.number, "more ".repeat(100))) });
    let boss = Agent::new(MODEL).context_window(100_000).sub_agent(sub_agent("helper", helper));
    (priced(Function(script)), boss)
}

/// Returns the cost of the most expensive call of a session, in micro-dollars.
async fn costliest(runtime: &Runtime) -> u64 {
    let mut most = 0;
    for session in runtime.sessions().await.unwrap() {
        for entry in runtime.entries(&session.id, EntryId(0)).await.unwrap() {
            let Some(Message::Assistant(answer)) = entry.kind.as_message().map(|message| &**message) else {
                continue;
            };
            let info = greenroom_provider::Catalog::bundled().find("openai", MODEL).unwrap();
            most = most.max(info.cost_microdollars(&answer.usage.unwrap()).unwrap());
        }
    }
    most
}

/// Four that each check before they call together spend what their caller may spend, and no more.
#[tokio::test(start_paused = true)]
async fn four_at_once_spend_together_what_their_caller_may_spend() {
    for limit in [5_000, 20_000, 60_000] {
        for of_run in [false, true] {
            let (model, boss) = spenders();
            let boss =
                if of_run { boss.run_cost_limit_usd(usd(limit)) } else { boss.cost_limit_usd(usd(limit)) };
            let runtime = builder(&model).start().await.unwrap();
            let session = runtime.open("boss", &boss).await.unwrap();
            let end = session.prompt("go").await;
            assert!(
                matches!(&end, Err(Error::Stopped { reason }) if reason.contains("cost limit")),
                "{end:?}"
            );
            let spent = session.state().await.unwrap().cost_microdollars;
            let one = costliest(&runtime).await;
            assert!(spent <= limit && spent + 2 * one > limit, "{spent} of {limit}, a call costs {one}");
            let below = runtime.sessions().children_of("boss").await.unwrap();
            assert!(below.len() >= 4, "{}", below.len());
            let sum: u64 = below.iter().map(|session| session.cost_microdollars).sum();
            assert!(sum < spent && spent - sum < limit / 2 + one, "{sum} of {spent}");
            model.assert_clean();
        }
    }
}

/// A run calls at most this many agents in all, including those below, and the model is told that there are
/// no more.
#[tokio::test(start_paused = true)]
async fn a_run_calls_no_more_agents_than_it_may() {
    let script = |request: &SeenRequest, _: CallInfo| {
        if has_result(request) || !request.has_tool("helper") {
            return Said::text("done");
        }
        let of = |number: usize| call(&format!("c{number}"), "helper", &json!({ "task": "help" }));
        calls((0..3).map(of).collect())
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let middle = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
    let boss = agent(100_000).sub_agent(sub_agent("helper", middle).parallel(1)).sub_agents_max(7);
    let session = runtime.open("boss", &boss).await.unwrap();
    for runs in 1..=2 {
        assert_eq!(session.prompt("go").await.unwrap().text, "done");
        let below = runtime.sessions().await.unwrap().len() - 1;
        assert_eq!(below, 7 * runs, "the next run may call as many");
    }
    let sessions = runtime.sessions().await.unwrap();
    let mut refused = 0;
    for session in &sessions {
        for (_, status, text) in results(&runtime, &session.id).await {
            if status == ToolStatus::Error {
                assert!(text.contains("the run has called 7 agents"), "{text}");
                refused += 1;
            }
        }
    }
    // Three of the boss with three each are twelve, of which two agents of the third could not be called; in
    // the third the excess calls were refused.
    assert!(refused >= 4, "{refused}");
    model.assert_clean();
}

/// Of the calls of an answer, the first ones may be run, in whatever order their tasks are answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_calls_of_an_answer_are_those_beyond_the_limit() {
    for parallel in [1, 2].into_iter().chain([8; 20]) {
        let script = |request: &SeenRequest, _: CallInfo| {
            if has_result(request) || !request.has_tool("helper") {
                return Said::text("done").after_ms(3);
            }
            let of = |number: usize| call(&format!("c{number}"), "helper", &json!({ "task": "help" }));
            calls((0..5).map(of).collect())
        };
        let model = simulator(Function(script), 100_000);
        let runtime = runtime(&model).await;
        let helper = sub_agent("helper", agent(100_000)).parallel(parallel);
        let boss = agent(100_000).sub_agent(helper).sub_agents_max(3);
        let session = runtime.open("boss", &boss).await.unwrap();
        session.prompt("go").await.unwrap();
        let mut refused: Vec<String> = Vec::new();
        for (id, status, _) in results(&runtime, "boss").await {
            if status == ToolStatus::Error {
                refused.push(id);
            }
        }
        assert_eq!(refused, ["c3", "c4"], "{parallel} at a time");
        model.assert_clean();
    }
}

/// The depth limit applies to ids of every length and every character that the store accepts.
#[tokio::test(start_paused = true)]
async fn a_depth_holds_for_ids_of_every_length() {
    let script = |request: &SeenRequest, _: CallInfo| {
        if request.has_tool("helper") && !has_result(request) {
            Said::call("helper", &json!({ "task": "help" }))
        } else {
            Said::text("done")
        }
    };
    let mut seed = 0x5EED_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let letters = ["A", "x", "0", ".", "_", "-", "/", " ", "é", "日", "𝔄"];
    let mut cases = 0;
    for depth_max in 0..=3 {
        for length in (1..=64).chain(250..=255) {
            let mut id = String::new();
            while id.len() < length {
                let letter = letters[random(letters.len())];
                id.push_str(if id.len() + letter.len() <= length { letter } else { "x" });
            }
            let model = simulator(Function(script), 100_000);
            let runtime = builder(&model).sub_agent_depth_max(depth_max).start().await.unwrap();
            let deep = (0..6)
                .fold(agent(100_000), |helper, _| agent(100_000).sub_agent(sub_agent("helper", helper)));
            let Ok(session) = runtime.open(&id, &deep).await else { continue };
            assert_eq!(session.prompt("go").await.unwrap().text, "done", "{id}");
            let sessions = runtime.sessions().await.unwrap();
            assert_eq!(sessions.len(), depth_max + 1, "{id}: {sessions:?}");
            let tree = runtime.sessions().tree(&id).await.unwrap();
            assert_eq!(tree.len(), depth_max, "{id}: all below it are found");
            model.assert_clean();
            cases += 1;
        }
    }
    assert!(cases > 200, "{cases}");
}

/// A message to one of them joins its work.
#[tokio::test(start_paused = true)]
async fn one_is_steered() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let script = |request: &SeenRequest, _: CallInfo| {
        if is_boss(request) {
            return team_script(request, member_info());
        }
        let is_steered = request.messages.iter().any(|message| message.text() == "Only of today.");
        match has_result(request) || is_steered {
            true => Said::text(format!("steered: {is_steered}")),
            false => Said::call("wait", &json!({})),
        }
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let member = agent(100_000).tool("wait", |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok("waited")
    });
    let boss =
        MEMBERS.iter().fold(agent(100_000), |boss, name| boss.sub_agent(sub_agent(*name, member.clone())));
    let session = runtime.open("boss", &boss).await.unwrap();
    let run = session.prompt("go").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let children = run.children();
    assert_eq!(children.len(), 3);
    let web = children.iter().find(|child| child.name() == "web").unwrap();
    web.steer("Only of today.").await.unwrap();
    assert_eq!(run.reply().await.unwrap().text, "done");
    for (id, _, text) in results(&runtime, "boss").await {
        assert_eq!(text, format!("steered: {}", id == "web"), "{id}");
    }
    model.assert_clean();
}

/// An agent that could not be called is found when a session is opened, at any depth, and not by the model.
#[tokio::test(start_paused = true)]
async fn agents_that_could_not_be_called_are_refused_when_a_session_is_opened() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let lost = || agent(100_000).provider("nowhere");
    let small = || agent(1_000).instructions("word ".repeat(2_000));
    let table = [
        (
            agent(100_000).sub_agent(sub_agent("web", lost())),
            "the sub-agent web is invalid: the runtime has no provider",
        ),
        (agent(100_000).sub_agent(sub_agent("web", small())), "the sub-agent web is invalid: "),
        (
            agent(100_000).sub_agent(sub_agent("web", agent(100_000).sub_agent(sub_agent("deep", lost())))),
            "the sub-agent web is invalid: the sub-agent deep is invalid: the runtime has no provider",
        ),
        (
            team().sub_agent(sub_agent("web", agent(100_000))),
            "the sub-agent web is invalid: another tool of the agent has the same name",
        ),
    ];
    for (agent, expected) in table {
        let error = runtime.open("boss", &agent).await.unwrap_err();
        assert!(matches!(&error, Error::Config(ConfigError::SubAgent { .. })), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(model.requests().is_empty());
    runtime.open("boss", &team()).await.unwrap().prompt("go").await.unwrap();
}
