//! Hand-offs of a conversation from one agent to another: by the model or the program, with all messages, a
//! summary or the last messages.
//!
//! Invariants: nothing leaves the log; the active agent is the same after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::ConfigError;
use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_kernel::entry::EntryKind;
use greenroom_provider::Purpose;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use serde_json::json;

use crate::support::{agent, builder, drain, quiet_injected_panics, runtime, simulator, store};

mod in_runs;
mod narrowed;

/// Returns the answering agent, by its instructions.
fn who(request: &SeenRequest) -> String {
    request.system.clone().unwrap_or_default()
}

/// Each agent hands over on request ("to refunds"), and otherwise answers with its name and how many messages
/// it saw.
fn script(request: &SeenRequest, _: CallInfo) -> Said {
    let asked = request.last_user_text();
    let to = asked.strip_prefix("to ").map(|to| format!("transfer_to_{to}"));
    match to.filter(|to| request.has_tool(to)) {
        Some(tool) => Said::call(&tool, &json!({ "reason": "it is theirs" })),
        None => Said::text(format!("{} saw {}", who(request), request.messages.len())),
    }
}

fn model() -> Simulator {
    simulator(ByPurpose::new(Function(script), Summariser::Obedient), 100_000)
}

fn team(sees: Sees) -> Team {
    let triage = agent(100_000).instructions("triage").hand_off_to("refunds", "Pays back.", sees);
    let refunds = Agent::new("other").context_window(100_000).instructions("refunds");
    let refunds = refunds.hand_off_to("triage", "Anything else.", Sees::All);
    Team::new("triage", triage).member("refunds", refunds)
}

#[tokio::test(start_paused = true)]
async fn the_model_hands_over_in_its_run_and_the_other_goes_on_from_there() {
    let model = model();
    let store = store();
    let start = || builder(&model).engine(store.clone()).start();
    let first = start().await.unwrap();
    let session = first.open("s", &team(Sees::All)).await.unwrap();
    let mut events = first.subscribe(Filter::session("s"));
    assert_eq!(session.prompt("hello").await.unwrap().text, "triage saw 1");
    let reply = session.prompt("to refunds").await.unwrap();
    // hello, its answer, the prompt, the call, its result.
    assert_eq!(reply.text, "refunds saw 5");
    let asked = model.requests();
    let models: Vec<&str> = asked.iter().map(|asked| asked.request.model.as_str()).collect();
    assert_eq!(models, ["simulated", "simulated", "other"]);
    assert!(
        asked[2].request.has_tool("transfer_to_triage") && !asked[2].request.has_tool("transfer_to_refunds")
    );
    let told = drain(&mut events);
    let runs = told.iter().filter(|event| event.kind == EventKind::RunStart).count();
    assert_eq!(runs, 2, "it is the same run");
    let hand_off = told.iter().find(|event| event.kind.name() == "hand_off").unwrap();
    assert!(hand_off.is_durable() && hand_off.run == Some(reply.run));
    let (from, to) = ("triage".to_owned(), "refunds".to_owned());
    assert_eq!(hand_off.kind, EventKind::HandOff { from, to, sees: Sees::All });
    assert_eq!(session.prompt("and?").await.unwrap().text, "refunds saw 7");
    assert_eq!(session.state().await.unwrap().agent.as_deref(), Some("refunds"));
    drop((session, first));

    let second = start().await.unwrap();
    assert_eq!(second.summary("s").await.unwrap().unwrap().agent.as_deref(), Some("refunds"));
    let session = second.open("s", &team(Sees::All)).await.unwrap();
    assert_eq!(session.prompt("again?").await.unwrap().text, "refunds saw 9");
    assert_eq!(session.prompt("to triage").await.unwrap().text, "triage saw 13", "and back again");
    assert_eq!(session.state().await.unwrap().model, "simulated");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_last_messages_are_what_it_sees_and_the_log_keeps_the_rest() {
    // The request in progress has three messages: the prompt, the call and its result.
    for (last, seen) in [(1, 4), (3, 4), (4, 5), (5, 6), (100, 9)] {
        let model = model();
        let runtime = runtime(&model).await;
        let session = runtime.open("s", &team(Sees::Last(last))).await.unwrap();
        for word in ["one", "two", "three"] {
            session.prompt(word).await.unwrap();
        }
        let said = session.prompt("to refunds").await.unwrap().text;
        // The replacement for the rest is a message, too.
        assert_eq!(said, format!("refunds saw {seen}"), "{last}");
        let request = model.requests().last().unwrap().request.clone();
        let is_hidden = !request.messages.iter().any(|message| message.text() == "one");
        assert_eq!(is_hidden, last < 100, "{last}");
        let log = runtime.entries("s", EntryId(0)).await.unwrap();
        assert!(log.iter().filter_map(|entry| entry.kind.as_message()).any(|said| said.text() == "one"));
        if last < 100 {
            session.undo_compaction().await.unwrap();
            assert_eq!(session.prompt("and?").await.unwrap().text, "refunds saw 11", "{last}");
        }
        model.assert_clean();
    }
}

/// The last messages begin with a call and not with its result.
#[tokio::test(start_paused = true)]
async fn a_call_and_its_result_are_seen_together() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let script = |request: &SeenRequest, info: CallInfo| {
        let is_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        if request.last_user_text() == "look" && !is_result {
            Said::call("look", &json!({}))
        } else {
            script(request, info)
        }
    };
    let model = simulator(Function(script), 100_000);
    let runtime = runtime(&model).await;
    let triage = agent(100_000).tool("look", |_: Nothing| async { Ok("seen") });
    let refunds = agent(100_000).instructions("refunds").tool("look", |_: Nothing| async { Ok("seen") });
    let session = runtime.open("s", &Team::new("triage", triage).member("refunds", refunds)).await.unwrap();
    session.prompt("one").await.unwrap();
    session.prompt("look").await.unwrap();
    // The newest two are the result and the answer.
    session.hand_off("refunds", Sees::Last(2)).await.unwrap();
    assert_eq!(session.prompt("and?").await.unwrap().text, "refunds saw 5");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_summary_is_made_before_the_other_answers() {
    let model = model();
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::Summary)).await.unwrap();
    for word in 0..6 {
        session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
    }
    assert!(session.prompt("to refunds").await.unwrap().text.starts_with("refunds saw "));
    let asked = model.requests();
    let summary = asked.iter().find(|asked| asked.request.purpose == Purpose::Summary).unwrap();
    assert_eq!(summary.request.model, "simulated", "by the model that leaves");
    let text: String = summary.request.messages.iter().map(|message| message.text()).collect();
    assert!(text.contains("keep what refunds needs"), "{text}");
    let last = &asked.last().unwrap().request;
    assert!(last.messages.len() < 14 && last.model == "other", "{}", last.messages.len());
    assert!(
        last.messages.iter().any(|message| message.text().contains("to refunds")),
        "the request in progress is there"
    );
    let kinds: Vec<&str> = runtime
        .replay("s", 0)
        .await
        .unwrap()
        .iter()
        .map(|event| event.kind.name())
        .filter(|name| matches!(*name, "compaction_end" | "hand_off"))
        .collect();
    assert_eq!(kinds, ["compaction_end", "hand_off"]);
    model.assert_clean();
}

/// An abort during the summary ends the run, and the agent does not change.
#[tokio::test(start_paused = true)]
async fn an_abort_while_it_is_summarised_hands_nothing_over() {
    let slow = |request: &SeenRequest, info: CallInfo| {
        greenroom_simulator::Script::reply(&Summariser::Obedient, request, info).after_ms(60_000)
    };
    let model = simulator(ByPurpose::new(Function(script), Function(slow)), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::Summary)).await.unwrap();
    for word in 0..6 {
        session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
    }
    let run = session.prompt("to refunds").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    session.abort();
    let ended = tokio::time::timeout(Duration::from_secs(30), run.reply()).await.expect("an abort is heard");
    assert!(matches!(ended, Err(Error::Aborted)), "{ended:?}");
    assert_eq!(session.state().await.unwrap().agent, None);
    assert!(session.prompt("who?").await.unwrap().text.starts_with("triage"));
    let asked = session.hand_off("refunds", Sees::Summary);
    let (ended, ()) = tokio::join!(asked, async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        session.abort();
    });
    assert!(matches!(ended, Err(Error::Aborted)), "{ended:?}");
    assert!(session.prompt("who?").await.unwrap().text.starts_with("triage"));
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_program_hands_over_between_runs() {
    let model = model();
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::All)).await.unwrap();
    session.prompt("hello").await.unwrap();
    session.hand_off("refunds", Sees::All).await.unwrap();
    assert_eq!(session.prompt("who?").await.unwrap().text, "refunds saw 3");
    let error = session.hand_off("sales", Sees::All).await.unwrap_err();
    assert_eq!(error.to_string(), "the session's team has no agent named \"sales\"");
    assert!(session.hand_off("sales", Sees::Summary).await.is_err());
    let run = session.prompt("go").start().await.unwrap();
    assert!(matches!(session.hand_off("triage", Sees::All).await, Err(Error::NotIdle { .. })));
    run.reply().await.unwrap();
    // A session with one agent cannot hand over.
    let alone = runtime.open("alone", &agent(100_000)).await.unwrap();
    assert!(matches!(alone.hand_off("refunds", Sees::All).await, Err(Error::NoMember { .. })));
    model.assert_clean();
}

/// A branch from before a hand-off continues with the agent at that point, and a fork with the one at its
/// end.
#[tokio::test(start_paused = true)]
async fn a_branch_and_a_fork_go_on_with_who_answered_there() {
    let model = model();
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::All)).await.unwrap();
    session.prompt("hello").await.unwrap();
    let before = runtime.summary("s").await.unwrap().unwrap().leaf.unwrap();
    session.prompt("to refunds").await.unwrap();
    let forked = runtime.fork("s", "copy", &team(Sees::All)).await.unwrap();
    assert!(forked.prompt("who?").await.unwrap().text.starts_with("refunds"));
    let early = runtime.fork_at("s", "early", before, &team(Sees::All)).await.unwrap();
    assert!(early.prompt("who?").await.unwrap().text.starts_with("triage"));
    session.branch(Some(before)).await.unwrap();
    assert_eq!(session.prompt("who?").await.unwrap().text, "triage saw 3");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn agents_that_hand_a_conversation_to_and_fro_are_stopped() {
    let to_and_fro = |request: &SeenRequest, info: CallInfo| {
        let to = if who(request) == "triage" { "transfer_to_refunds" } else { "transfer_to_triage" };
        Said::call(to, &json!({ "reason": format!("{}", info.call) }))
    };
    let model = simulator(Function(to_and_fro), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &team(Sees::All)).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(600), session.prompt("go")).await.unwrap();
    assert!(matches!(&ended, Err(Error::Stopped { reason }) if reason.contains("8 times")), "{ended:?}");
    assert_eq!(model.requests().len(), 9);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_team_in_which_nobody_could_answer_is_refused() {
    let model = model();
    let runtime = runtime(&model).await;
    let lost = Team::new("a", agent(100_000).hand_off_to("b", "Is not there.", Sees::All));
    let twice = Team::new("a", agent(100_000)).member("a", agent(100_000));
    let nowhere = Team::new("a", agent(100_000)).member("b", agent(100_000).provider("nobody"));
    let odd =
        Team::new("a", agent(100_000).hand_off_to("b c", "Odd.", Sees::All)).member("b c", agent(100_000));
    for (team, wanted) in [
        (lost, "a hands off to \"b\", and the agents are a"),
        (twice, "two agents named \"a\""),
        (nowhere, "b could not answer: the runtime has no provider named \"nobody\""),
        (odd, "transfer_to_b c"),
    ] {
        let error = runtime.open("s", &team).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let alone = agent(100_000).hand_off_to("b", "Is in no team.", Sees::All);
    let error = runtime.open("s", &alone).await.unwrap_err();
    assert!(matches!(&error, Error::Config(ConfigError::Team { .. })), "{error}");
}

/// Whatever dies during a hand-off, the conversation continues with one of the two, and its log is whole.
#[tokio::test(start_paused = true)]
async fn a_death_in_the_middle_leaves_the_conversation_with_one_of_them() {
    quiet_injected_panics();
    let mut handed = 0;
    for sees in [Sees::All, Sees::Summary, Sees::Last(2)] {
        for point in [
            "session/record", "session/measured", "usage_tracker/measure", "agent/begin", "agent/recorded",
            "agent/tool_over", "compactor/begin", "usage_tracker/measure_for",
        ] {
            let model = model();
            let armed = Arc::new(AtomicU32::new(0));
            let left = Arc::clone(&armed);
            let runtime = builder(&model)
                .probe(move |_, at| {
                    let is_struck = at == point
                        && left
                            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                            .is_ok();
                    assert!(!is_struck, "injected at {at}");
                })
                .start()
                .await
                .unwrap();
            let session = runtime.open("s", &team(sees)).await.unwrap();
            for word in 0..4 {
                session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
            }
            armed.store(1, Ordering::SeqCst);
            let ended = tokio::time::timeout(Duration::from_secs(3_600), session.prompt("to refunds")).await;
            let ended = ended.unwrap_or_else(|_| panic!("{sees:?} {point}: it hangs"));
            tokio::time::sleep(Duration::from_secs(10)).await;
            armed.store(0, Ordering::SeqCst);
            if ended.is_err() {
                let _ = session.resume().await;
            }
            let answering = session.state().await.unwrap().agent;
            let text = session.prompt("who?").await.unwrap().text;
            assert!(text.starts_with(answering.as_deref().unwrap_or("triage")), "{sees:?} {point}: {text}");
            handed += usize::from(answering.is_some());
            let log = runtime.entries("s", EntryId(0)).await.unwrap();
            let count = log.iter().filter(|entry| matches!(entry.kind, EntryKind::HandOff(_))).count();
            assert!(count <= 1, "{sees:?} {point}: {count}");
            model.assert_clean();
        }
    }
    assert!(handed >= 16, "{handed}");
}

/// Messages hidden from the other agent cannot be read with `recall` either; later ones can.
#[tokio::test(start_paused = true)]
async fn what_is_not_to_be_seen_is_not_recalled() {
    for sees in [Sees::Last(1), Sees::Summary, Sees::All] {
        let script = |request: &SeenRequest, _: CallInfo| {
            let last = request.messages.last().map(|message| message.text()).unwrap_or_default();
            match request.last_user_text().strip_prefix("read ") {
                Some(entry) if last.starts_with("read ") => {
                    Said::call("recall", &json!({ "entry": entry.parse::<u64>().unwrap() }))
                }
                Some(_) => Said::text(last),
                None => Said::text("word ".repeat(4_000)),
            }
        };
        let model = simulator(ByPurpose::new(Function(script), Summariser::Obedient), 40_000);
        let runtime = runtime(&model).await;
        let tool = |agent: Agent| agent.tool("look", |(): ()| async { Ok("nothing") });
        let team = Team::new("triage", tool(agent(40_000).instructions("triage")))
            .member("refunds", tool(agent(40_000).instructions("refunds")));
        let session = runtime.open("s", &team).await.unwrap();
        for word in ["the first secret", "two", "three"] {
            session.prompt(word).await.unwrap();
        }
        assert!(session.prompt("read 0").await.unwrap().text.contains("the first secret"), "it is its own");
        session.hand_off("refunds", sees).await.unwrap();
        let told = session.prompt("read 0").await.unwrap().text;
        assert_eq!(told.contains("the first secret"), sees == Sees::All, "{sees:?}: {told}");
        let newest = session.state().await.unwrap().entries;
        session.prompt("the newest").await.unwrap();
        let told = session.prompt(format!("read {newest}")).await.unwrap().text;
        assert!(told.contains("the newest"), "{sees:?}: {told}");
        // That remains true after a restart, and when the context is compacted once more.
        let _ = session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
        let told = session.prompt("read 0").await.unwrap().text;
        assert_eq!(told.contains("the first secret"), sees == Sees::All, "{sees:?}: {told}");
        model.assert_clean();
    }
}

/// If no summary is possible, the other agent sees no more than it would have seen beside one.
#[tokio::test(start_paused = true)]
async fn without_a_summary_nothing_more_is_seen() {
    let broken = |failed: bool| {
        let runs = Function(|request: &SeenRequest, info: CallInfo| match request.last_user_text() {
            text if text.starts_with("to ") => script(request, info),
            text if text == "who?" => script(request, info),
            _ => Said::text("word ".repeat(4_000)),
        });
        let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
            use greenroom_simulator::Script as _;
            if failed {
                Said::fault(greenroom_simulator::Fault::ServerError(500))
            } else {
                Summariser::Obedient.reply(request, info)
            }
        });
        simulator(ByPurpose::new(runs, summaries), 40_000)
    };
    for by_model in [false, true] {
        let mut seen = Vec::new();
        for failed in [false, true] {
            let model = broken(failed);
            let runtime = runtime(&model).await;
            let session = runtime.open("s", &team(Sees::Summary)).await.unwrap();
            for word in ["one", "two", "three", "four", "five"] {
                session.prompt(word).await.unwrap();
            }
            if by_model {
                session.prompt("to refunds").await.unwrap();
            } else {
                let handed = session.hand_off("refunds", Sees::Summary).await;
                assert_eq!(matches!(handed, Err(Error::NotSummarised { .. })), failed, "{handed:?}");
                assert_eq!(session.state().await.unwrap().agent.is_some(), !failed);
            }
            let last = model.requests().last().unwrap().request.clone();
            seen.push(last.messages.iter().any(|message| message.text() == "one"));
        }
        assert!(!by_model || seen == [false, false], "{seen:?}");
    }
}

fn warnings(events: &mut greenroom::Subscription) -> Vec<String> {
    let warning = |event: Arc<Event>| match &event.kind {
        EventKind::Warning { message } => Some(message.clone()),
        _ => None,
    };
    drain(events).into_iter().filter_map(warning).collect()
}
