//! Opening, sleeping and waking of sessions, and those that cannot be opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Echo, Function, SeenRequest, Sequence};
use greenroom_store::{Store, StoreError, StoreOptions};
use greenroom_tools::{ToolContext, tool};

use crate::support::{agent, builder, drain, runtime, simulator, store};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_racing_opens_reach_one_actor() {
    let model = simulator(Echo, 100_000);
    let started = Arc::new(AtomicU32::new(0));
    let starts = Arc::clone(&started);
    let runtime = builder(&model)
        .probe(move |_, at| {
            starts.fetch_add(u32::from(at == "session/starts"), Ordering::Relaxed);
        })
        .start()
        .await
        .unwrap();
    let definition = Arc::new(agent(100_000));
    let opens = (0..1000).map(|_| {
        let (runtime, definition) = (runtime.clone(), Arc::clone(&definition));
        tokio::spawn(async move { runtime.open("one", definition).await })
    });
    let sessions: Vec<_> = futures_util::future::join_all(opens).await;
    assert!(sessions.into_iter().all(|session| session.unwrap().is_ok()));
    assert_eq!(runtime.live().await.unwrap(), ["one"]);
    assert_eq!(started.load(Ordering::Relaxed), 1, "actors were started for one session");
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_gives_its_actors_back_and_wakes_with_all_it_knew() {
    let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 100_000);
    let runtime = builder(&model).idle_after(Duration::from_secs(60)).start().await.unwrap();
    let session = runtime.open("sleepy", &agent(100_000)).await.unwrap();
    session.prompt("a").await.unwrap();
    let before = session.state().await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(runtime.live().await.unwrap().is_empty(), "it sleeps");
    assert_eq!(session.state().await.unwrap().context.tokens, before.context.tokens);
    assert_eq!(session.prompt("b").await.unwrap().text, "two");
    assert_eq!(session.context().await.unwrap().len(), 4);
    model.assert_clean();
}

/// A log whose head and entries contradict each other is not used. It can be read, and a fork of it
/// continues.
#[tokio::test(start_paused = true)]
async fn a_log_that_contradicts_itself_is_refused_and_can_be_shown_and_forked() {
    type Break = fn(&mut greenroom_kernel::Head);
    let breaks: [(&str, Break); 5] = [
        ("active compaction", |head| head.active_compaction = Some(EntryId(0))),
        ("path should end", |head| head.leaf = Some(EntryId(1_000))),
        ("is missing from its path", |head| head.active_from = EntryId(2)),
        ("prompts that wait", |head| head.inbox = vec![EntryId(0)]),
        ("open compactions", |head| head.open_compaction = Some(EntryId(0))),
    ];
    for (what, damage) in breaks {
        let store = store();
        let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 100_000);
        let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        let session = runtime.open("s", &agent(100_000)).await.unwrap();
        session.prompt("a").await.unwrap();
        session.prompt("b").await.unwrap();
        runtime.close("s").await.unwrap();
        let mut head = store.head("s").await.unwrap().unwrap();
        let leaf = head.leaf;
        damage(&mut head);
        let batch = greenroom_store::Batch { entries: Vec::new(), head: head.into(), key: None };
        store.append("s", batch).await.unwrap();

        let error = runtime.open("s", &agent(100_000)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("contradicts itself") && text.contains(what), "{what}: {text}");
        assert!(!runtime.replay("s", 0).await.unwrap().is_empty(), "{what}: it is shown");
        let entries = runtime.entries("s", EntryId(0)).await.unwrap();
        assert!(entries.iter().any(|entry| Some(entry.id) == leaf), "{what}: it is exported");
        if what == "path should end" {
            let error = runtime.fork("s", "t", &agent(100_000)).await.unwrap_err();
            assert!(error.to_string().contains("there is no entry 1000"), "{error}");
        }
        let fork = runtime.fork_at("s", "t", leaf.unwrap(), &agent(100_000)).await.unwrap();
        assert_eq!(fork.context().await.unwrap().len(), 4, "{what}");
        assert_eq!(fork.prompt("c").await.unwrap().text, "one", "{what}");
    }
}

/// A fork to an existing id changes nothing: neither the other session's log, nor its agent, whether it
/// sleeps or not.
#[tokio::test(start_paused = true)]
async fn a_fork_onto_a_taken_id_changes_nothing() {
    let who = |request: &SeenRequest, _: CallInfo| Said::text(request.system.clone().unwrap_or_default());
    let model = simulator(Function(who), 50_000);
    let runtime = runtime(&model).await;
    let named = |name: &str| agent(50_000).instructions(name);
    runtime.open("a", &named("A")).await.unwrap().prompt("who?").await.unwrap();
    let taken = runtime.open("b", &named("B")).await.unwrap();
    taken.prompt("who?").await.unwrap();
    let named_only = runtime.open("c", &named("C")).await.unwrap();
    named_only.set_title("It has a title, and nothing was said in it").await.unwrap();
    for sleeps in [false, true] {
        for (id, session, own) in [("b", &taken, "B"), ("c", &named_only, "C")] {
            if sleeps {
                runtime.close(id).await.unwrap();
            }
            let before = runtime.entries(id, EntryId(0)).await.unwrap();
            let refused = runtime.fork("a", id, &named("A")).await;
            assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{id}: {refused:?}");
            assert_eq!(runtime.entries(id, EntryId(0)).await.unwrap(), before, "{id}");
            assert_eq!(session.prompt("who?").await.unwrap().text, own, "{id}, sleeps: {sleeps}");
        }
    }
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn two_providers_of_one_name_are_refused() {
    let (one, two) = (simulator(Echo, 50_000), simulator(Echo, 50_000));
    let started = builder(&one).provider(two.provider()).start().await;
    let error = started.err().unwrap();
    assert!(
        matches!(&error, Error::Config(greenroom::ConfigError::DuplicateProvider { name }) if name == "simulator")
    );
    assert!(error.to_string().contains("another name"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_of_a_session_that_is_not_there_is_refused_alike() {
    let model = simulator(Echo, 50_000);
    let runtime = builder(&model).engine(store()).start().await.unwrap();
    let all = async |id: &str| {
        [
            runtime.replay(id, 0).await.map(|events| events.len()),
            runtime.entries(id, EntryId(0)).await.map(|entries| entries.len()),
            runtime.session(id).await.map(|_| 0),
        ]
    };
    for result in all("nobody").await {
        assert!(matches!(&result, Err(Error::NoSession { session }) if session == "nobody"), "{result:?}");
    }
    // An open session without messages exists.
    let _session = runtime.open("s", &agent(50_000)).await.unwrap();
    for result in all("s").await {
        assert!(matches!(result, Ok(0)), "{result:?}");
    }
}

/// By its creation time, on every event and in its summary, although no time passes here.
#[tokio::test(start_paused = true)]
async fn a_session_is_told_from_the_one_that_was_deleted_under_its_name() {
    let model = simulator(Echo, 50_000);
    let runtime = builder(&model).engine(store()).start().await.unwrap();
    let mut created = Vec::new();
    for round in 0..4 {
        let session = runtime.open("s", &agent(50_000)).await.unwrap();
        let mut events = session.subscribe();
        session.prompt("hello").await.unwrap();
        if round % 2 == 1 {
            // It sleeps, is woken, and stays the same.
            runtime.close("s").await.unwrap();
            session.prompt("hello again").await.unwrap();
        }
        let mut told: Vec<u64> = drain(&mut events).iter().map(|event| event.session_created_at_ms).collect();
        let replayed = runtime.replay("s", 0).await.unwrap();
        let summary = runtime.summary("s").await.unwrap().unwrap();
        assert!(told.len() > 5 && replayed.len() >= 3, "{} {}", told.len(), replayed.len());
        told.extend(replayed.iter().map(|event| event.session_created_at_ms));
        assert!(told.iter().all(|told| *told == summary.created_at_ms), "{told:?} {}", summary.created_at_ms);
        created.push(summary.created_at_ms);
        runtime.delete("s").await.unwrap();
    }
    assert!(created.is_sorted_by(|one, next| one < next), "{created:?}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_cannot_work_is_refused_in_a_few_words() {
    let model = simulator(Echo, 50_000);
    let runtime = builder(&model).engine(store()).start().await.unwrap();
    for (wrong, said) in [
        (Agent::new(""), "the agent has no model; pass a model name to `Agent::new`"),
        (
            agent(10),
            "a window of 10 tokens is too small: with these settings compaction needs one of at least 242; ",
        ),
    ] {
        let error = runtime.open("s", &wrong).await.unwrap_err();
        assert!(matches!(error, Error::Config(_)) && error.to_string().starts_with(said), "{error}");
    }
    runtime.open("s", &agent(241)).await.unwrap_err();
    runtime.open("s", &agent(242)).await.unwrap();
}

/// Callers that wait for something in a deleted session are told exactly that: the current run, the queued
/// ones, the run that waits for a person, and repeated prompts.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_in_a_session_that_is_deleted_ends_as_deleted() {
    for asks in [false, true] {
        let pace = greenroom_simulator::Pace { chunks: 2, first_ms: 0, between_ms: 3_600_000 };
        let script = Function(move |_: &SeenRequest, _: CallInfo| match asks {
            true => Said::call("ask", &serde_json::json!({})),
            false => Said::text("for ever and ever").with_pace(pace),
        });
        let model = simulator(script, 100_000);
        let runtime = runtime(&model).await;
        #[derive(Deserialize, JsonSchema)]
        struct Nothing {}
        let asking = tool("ask", |_: Nothing, context: ToolContext| async move {
            Ok(context.ask("Really?").await?.value.to_string())
        });
        let session = runtime.open("doomed", agent(100_000).add_tool(asking.resumable())).await.unwrap();
        let run = session.prompt("one").once("key").start().await.unwrap();
        while model.calls() == 0 || asks && session.questions().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let waiting = session.prompt("two").start().await.unwrap();
        let follow_up = session.follow_up("three").await.unwrap();
        let repeated = session.prompt("one").once("key").start().await.unwrap();
        runtime.delete("doomed").await.unwrap();
        for (what, reply) in [
            ("run", run.reply().await),
            ("prompt", waiting.reply().await),
            ("input", follow_up.reply().await),
            ("repeated prompt", repeated.reply().await),
        ] {
            assert!(
                matches!(&reply, Err(Error::Deleted { session }) if session == "doomed"),
                "asks {asks}, {what}: {reply:?}"
            );
        }
    }
}

/// A compaction, and the summary of a branch, hear it too.
#[tokio::test(start_paused = true)]
async fn a_deletion_during_a_compaction_is_told_to_its_caller() {
    for is_branch in [false, true] {
        let pace = greenroom_simulator::Pace { chunks: 2, first_ms: 0, between_ms: 3_600_000 };
        let summaries = Function(move |_: &SeenRequest, _: CallInfo| Said::text("## Goal").with_pace(pace));
        let model = simulator(ByPurpose::new(Echo, summaries), 100_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("doomed", &agent(100_000)).await.unwrap();
        for word in 0..4 {
            session.prompt(format!("{word} {}", "long ".repeat(2_000))).await.unwrap();
        }
        let asked = model.calls();
        let caller = session.clone();
        let compacting = tokio::spawn(async move {
            match is_branch {
                true => caller.branch_with_summary(Some(EntryId(1))).await,
                false => caller.compact(CompactOptions::default()).await.map(drop),
            }
        });
        while model.calls() == asked {
            tokio::task::yield_now().await;
        }
        runtime.delete("doomed").await.unwrap();
        let told = compacting.await.unwrap();
        assert!(
            matches!(&told, Err(Error::Deleted { session }) if session == "doomed"),
            "{is_branch}: {told:?}"
        );
    }
}

/// Another process has the store for a while: opening waits as long as the program allows, and no longer.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_in_use_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let model = simulator(Echo, 100_000);
    let start =
        |wait_s| builder(&model).data_dir(dir.path()).wait_for_store(Duration::from_secs(wait_s)).start();
    let (held, _) = Store::open(&StoreOptions::new(dir.path())).unwrap();
    for wait_s in [0, 30] {
        let began = tokio::time::Instant::now();
        let refused = start(wait_s).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Store(error) if matches!(**error, StoreError::InUse { .. })),
            "{refused:?}"
        );
        assert_eq!(began.elapsed().as_secs(), wait_s);
        let text = refused.to_string();
        assert!(text.contains("this process, which has it open already; close it there first"), "{text}");
    }
    let starting = tokio::spawn(start(30));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!starting.is_finished());
    drop(held);
    let first = starting.await.unwrap().unwrap();
    // A dropped one holds the store a moment longer.
    drop(first);
    start(30).await.unwrap();
}
