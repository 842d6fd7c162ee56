//! A handle never becomes stale: whatever happened to its session, it reaches it, interrupts it and ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_kernel::message::StopReason;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, Function, Pace, Script, SeenRequest, Simulator, Summariser,
};

use crate::support::{agent, builder, drain, quiet_injected_panics, simulator, store};
use greenroom_store::Engine;

const WINDOW: u64 = 50_000;

/// Answers that take a minute, and summaries as well.
fn slow() -> Simulator {
    let pace = Pace { chunks: 60, first_ms: 1_000, between_ms: 1_000 };
    let runs = Function(move |_: &SeenRequest, _: CallInfo| Said::text("word ".repeat(200)).with_pace(pace));
    let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
        Summariser::Obedient.reply(request, info).with_pace(pace)
    });
    simulator(ByPurpose::new(runs, summaries), WINDOW)
}

/// Returns the stop reason of the newest answer.
async fn newest_stop(runtime: &Runtime, id: &str) -> Option<StopReason> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    entries.iter().rev().find_map(|entry| match entry.kind.as_message().map(|message| &**message) {
        Some(greenroom_kernel::Message::Assistant(answer)) => Some(answer.stop),
        _ => None,
    })
}

/// Puts the session to sleep, in one way or another.
async fn put_to_sleep(runtime: &Runtime, id: &str, closes: bool) {
    if closes {
        runtime.close(id).await.unwrap();
    } else {
        tokio::time::sleep(Duration::from_secs(300)).await;
    }
    assert!(runtime.live().await.unwrap().is_empty(), "it sleeps");
}

#[tokio::test(start_paused = true)]
async fn after_a_sleep_an_abort_and_a_caller_that_goes_away_still_interrupt() {
    for closes in [false, true] {
        let model = slow();
        let runtime = builder(&model).idle_after(Duration::from_secs(60)).start().await.unwrap();
        let session = runtime.open("sleepy", &agent(WINDOW)).await.unwrap();
        session.prompt("one").await.unwrap();
        for round in 0..2 {
            put_to_sleep(&runtime, "sleepy", closes).await;
            let aborted = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                session.abort();
            };
            let (end, ()) = tokio::join!(session.prompt("two"), aborted);
            assert!(matches!(end, Err(Error::Aborted)), "closes: {closes}, round {round}: {end:?}");

            put_to_sleep(&runtime, "sleepy", closes).await;
            let gone = tokio::time::timeout(Duration::from_secs(10), session.prompt("three")).await;
            assert!(gone.is_err());
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                session.state().await.unwrap().status,
                Status::Idle,
                "closes: {closes}, round {round}"
            );
            assert_eq!(newest_stop(&runtime, "sleepy").await, Some(StopReason::Aborted));
            assert_eq!(model.in_flight(), 0);
        }
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_handle_does_not_bring_the_old_agent_back() {
    let model = simulator(Echo, WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let old = runtime.open("one", &agent(WINDOW).instructions("Be old.")).await.unwrap();
    old.prompt("hello").await.unwrap();
    runtime.close("one").await.unwrap();
    let other = Agent::new("another").context_window(WINDOW).instructions("Be new.");
    let new = runtime.open("one", &other).await.unwrap();
    new.prompt("hello").await.unwrap();
    for handle in [&old, &new, &old] {
        handle.prompt("and now?").await.unwrap();
        assert_eq!(handle.state().await.unwrap().model, "another");
    }
    let entries = runtime.entries("one", EntryId(0)).await.unwrap();
    let switches =
        entries.iter().filter(|entry| matches!(entry.kind, greenroom_kernel::EntryKind::ModelChange { .. }));
    assert_eq!(switches.count(), 1, "the model was switched once");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_is_said_into_a_session_is_the_entry_that_is_given() {
    let model = simulator(Echo, WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    session.prompt("hello").await.unwrap();
    // The switch is recorded before the prompt.
    let session = runtime.open("one", &Agent::new("another").context_window(WINDOW)).await.unwrap();
    let id = session.steer("steered").await.unwrap().entry();
    let entries = runtime.entries("one", id).await.unwrap();
    let text = entries[0].kind.as_message().map(|message| message.text());
    assert_eq!(text.as_deref(), Some("steered"), "{:?}", entries[0]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_a_manual_compaction() {
    for after_ms in [0, 10_000] {
        let model = slow();
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
        for _ in 0..4 {
            session.prompt("thing ".repeat(300)).await.unwrap();
        }
        let aborted = async {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            session.abort();
            session.abort();
        };
        let options = CompactOptions { force: true, keep_recent: Some(100), focus: None };
        let (end, ()) = tokio::join!(session.compact(options.clone()), aborted);
        assert_eq!(end.unwrap().outcome.as_str(), "cancelled", "after {after_ms} ms");
        assert_eq!(model.in_flight(), 0);
        assert_eq!(
            session.compact(options).await.unwrap().outcome.as_str(),
            "completed",
            "another one works"
        );
        model.assert_clean();
    }
}

/// A session is closed at every moment of a compaction: the report of the close always arrives, and it can be
/// opened again.
#[tokio::test(start_paused = true)]
async fn a_close_at_any_moment_of_a_compaction_ends() {
    let mut outcomes = std::collections::BTreeSet::new();
    for moment in 0..160 {
        let runs = Function(|_: &SeenRequest, _: CallInfo| Said::text("word ".repeat(300)));
        let model = simulator(ByPurpose::new(runs, Summariser::Obedient), WINDOW);
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
        for _ in 0..3 {
            session.prompt("thing ".repeat(300)).await.unwrap();
        }
        let asked = session.clone();
        let options = CompactOptions { force: true, keep_recent: Some(100), focus: None };
        let compaction = tokio::spawn(async move { asked.compact(options).await });
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        let closed = tokio::time::timeout(Duration::from_secs(600), runtime.close("one")).await;
        assert!(closed.is_ok(), "moment {moment}: it is never closed");
        outcomes.insert(match compaction.await.unwrap() {
            Ok(end) => end.outcome.as_str(),
            Err(Error::Interrupted { .. }) => "gone",
            Err(error) => panic!("moment {moment}: {error}"),
        });
        assert!(runtime.live().await.unwrap().is_empty(), "moment {moment}");
        let again = tokio::time::timeout(Duration::from_secs(600), session.prompt("and now?")).await;
        again.unwrap_or_else(|_| panic!("moment {moment}: it cannot be opened again")).unwrap();
        model.assert_clean();
    }
    // The yields decide only where a store answers at once.
    let is_memory = store().as_store().is_some();
    assert!(!is_memory || outcomes.contains("completed") && outcomes.len() > 1, "{outcomes:?}");
}

/// One that is closed while it is being opened does not stay open.
#[tokio::test(start_paused = true)]
async fn a_close_at_any_moment_of_an_opening_holds() {
    let model = simulator(Echo, WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let definition = Arc::new(agent(WINDOW));
    for moment in 0..40 {
        let (opener, definition) = (runtime.clone(), Arc::clone(&definition));
        let opened = tokio::spawn(async move { opener.open("one", definition).await });
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        let (first, second) = tokio::join!(runtime.close("one"), runtime.close("one"));
        first.and(second).unwrap();
        let live = runtime.live().await.unwrap();
        let session = opened.await.unwrap().unwrap();
        // Requests after the close are a different matter.
        assert!(moment == 0 || live.is_empty(), "moment {moment}: {live:?}");
        session.prompt("hello").await.unwrap();
        runtime.delete("one").await.unwrap();
        assert!(runtime.summary("one").await.unwrap().is_none(), "moment {moment}");
    }
    model.assert_clean();
}

/// A session whose actor dies at startup: however early its death is reported, it is restarted, then given up
/// with the reason; it can be closed, and works when the cause is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_as_it_begins_is_not_missed() {
    quiet_injected_panics();
    let rounds = (0..30).map(|round| tokio::spawn(sick_as_it_begins(round)));
    for round in futures_util::future::join_all(rounds).await {
        round.unwrap();
    }
}

async fn sick_as_it_begins(round: u32) {
    let model = simulator(Echo, WINDOW);
    let (sick, deaths) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
    let (is_sick, count) = (Arc::clone(&sick), Arc::clone(&deaths));
    let runtime = builder(&model)
        .probe(move |_, at| {
            if at == "session/started" && is_sick.load(Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
                panic!("injected as it begins");
            }
        })
        .start()
        .await
        .unwrap();
    let mut events =
        runtime.subscribe(Filter::all().kinds([EventType::SessionRestarted, EventType::SessionFailed]));
    let patience = Duration::from_secs(30);
    let opened = tokio::time::timeout(patience, runtime.open("one", &agent(WINDOW))).await;
    let opened = opened.unwrap_or_else(|_| panic!("round {round}: opening never ends"));
    if round.is_multiple_of(3) {
        // Three restarts, with increasing waits.
        for name in ["session_restarted", "session_restarted", "session_restarted", "session_failed"] {
            let next = tokio::time::timeout(patience, events.next()).await;
            match next.unwrap_or_else(|_| panic!("round {round}: no {name}")) {
                Some(Delivery::Event(event)) => assert_eq!(event.kind.name(), name, "round {round}"),
                other => panic!("round {round}: {other:?}"),
            }
        }
        assert_eq!(deaths.load(Ordering::Relaxed), 4, "round {round}");
        if let Ok(session) = opened {
            let error = session.prompt("hello").await.unwrap_err();
            let says_why = error.to_string().contains("as it begins");
            assert!(matches!(error, Error::SessionFailed { .. }) && says_why, "{error}");
        }
    }
    sick.store(false, Ordering::Relaxed);
    let closed = tokio::time::timeout(patience, runtime.close("one")).await;
    assert!(closed.is_ok(), "round {round}: closing never ends");
    let again = tokio::time::timeout(patience, runtime.open("one", &agent(WINDOW))).await;
    let session = again.unwrap_or_else(|_| panic!("round {round}: no second opening")).unwrap();
    assert_eq!(session.prompt("hello").await.unwrap().text, "hello");
    model.assert_clean();
}

/// An agent dies with the answer in its hands: its replacement delivers it.
#[tokio::test(start_paused = true)]
async fn an_answer_survives_the_agent_that_was_to_give_it() {
    quiet_injected_panics();
    for strike in 1..=7 {
        let model = simulator(Echo, WINDOW);
        let hits = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&hits);
        let runtime = builder(&model)
            .probe(move |_, at| {
                let strikes = at == "agent/broadcast" && count.fetch_add(1, Ordering::Relaxed) + 1 == strike;
                assert!(!strikes, "injected in broadcast {strike}");
            })
            .start()
            .await
            .unwrap();
        let mut events = runtime.subscribe(Filter::all().kinds([EventType::RunEnd]));
        let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
        for text in ["one", "two"] {
            let reply = session.prompt(text).await;
            assert_eq!(reply.unwrap_or_else(|error| panic!("{strike}: {error}")).text, text);
        }
        assert!(hits.load(Ordering::Relaxed) >= strike, "{strike} was never reached");
        assert_eq!(drain(&mut events).len(), 2, "{strike}: each run ends once");
        model.assert_clean();
    }
}

/// A session that crashed in a run, with prompts that wait behind it.
async fn crashed(model: &Simulator, store: &Arc<dyn Engine>) {
    let runtime = builder(model).engine(store.clone()).start().await.unwrap();
    let session = runtime.open("crashed", &agent(WINDOW)).await.unwrap();
    for text in ["one", "two", "three"] {
        let mut submitted = session.prompt(text).start().await.unwrap();
        submitted.recorded().await.unwrap();
        // A caller that goes away would withdraw its prompt.
        std::mem::forget(submitted);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(model.calls(), 1, "the first one's run is open");
}

#[tokio::test(start_paused = true)]
async fn looking_at_a_session_starts_nothing() {
    let (model, store) = (slow(), store());
    crashed(&model, &store).await;
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let entries = store.head("crashed").await.unwrap().unwrap().entries;
    let calls = model.calls();
    for _ in 0..3 {
        let state = runtime.session("crashed").await.unwrap().state().await.unwrap();
        assert_eq!((state.status, state.waiting, state.is_unanswered), (Status::Idle, 2, true), "{state:?}");
        assert!(matches!(runtime.session("nobody").await, Err(Error::NoSession { .. })));
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(runtime.live().await.unwrap().is_empty());
    assert!(!runtime.session("crashed").await.unwrap().is_live());
    assert_eq!(store.head("crashed").await.unwrap().unwrap().entries, entries, "nothing is written");
    assert!(store.head("nobody").await.unwrap().is_none());
    assert_eq!(model.calls(), calls, "no model is asked");

    // Opening it finishes the interrupted run, and the prompts that wait.
    runtime.open("crashed", &agent(WINDOW)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(model.calls(), calls + 3);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_sleeps_is_told_as_it_would_stand_awake() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let agent = Arc::new(agent(WINDOW).instructions("Be brief."));
    let session = runtime.open("a", Arc::clone(&agent)).await.unwrap();
    assert_eq!(runtime.session("a").await.unwrap().state().await.unwrap().entries, 0, "it is live, if empty");
    for text in ["one", "two"] {
        session.prompt(text.repeat(300)).await.unwrap();
        let live = session.state().await.unwrap();
        put_to_sleep(&runtime, "a", true).await;
        let asleep = runtime.session("a").await.unwrap().state().await.unwrap();
        assert!(runtime.live().await.unwrap().is_empty());
        assert_eq!(asleep, live);
        session.plan(CompactOptions::default()).await.unwrap();
        assert!(session.is_live());
        assert_eq!(session.state().await.unwrap(), asleep, "and so it stands when it is woken");
    }
}

#[tokio::test(start_paused = true)]
async fn prompts_that_are_submitted_are_recorded_in_order_and_refused_at_once() {
    let model = slow();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("busy", &agent(WINDOW)).await.unwrap();
    let mut submitted = Vec::new();
    for number in 0..65 {
        submitted.push(session.prompt(format!("prompt {number}")).start().await.unwrap());
    }
    let mut newest = None;
    for prompt in &mut submitted {
        let entry = prompt.recorded().await.unwrap();
        assert!(Some(entry) > newest, "{entry:?} after {newest:?}");
        let stored = runtime.entries("busy", entry).await.unwrap();
        assert_eq!(stored.first().map(|stored| stored.id), Some(entry), "it is in the log");
        newest = Some(entry);
    }
    let mut refused = session.prompt("one too many").start().await.unwrap();
    assert!(matches!(refused.recorded().await, Err(Error::Busy { waiting: 64, .. })));
    assert!(matches!(refused.reply().await, Err(Error::Busy { .. })), "the reply says the same");
    assert!(matches!(session.prompt(" ").start().await, Err(Error::EmptyPrompt)));

    // Dropping it withdraws it.
    drop(submitted.pop());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(session.state().await.unwrap().waiting, 63);
    let first = submitted.swap_remove(0);
    assert!(first.reply().await.is_ok());
}

/// The runtime is dropped while a handle lives: nothing resumes the session, and nobody is told to try again.
#[tokio::test(start_paused = true)]
async fn requests_after_the_runtime_was_dropped_say_so() {
    for is_live in [true, false] {
        let model = simulator(Echo, WINDOW);
        let runtime = builder(&model).start().await.unwrap();
        let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
        session.prompt("one").await.unwrap();
        if !is_live {
            runtime.close("s").await.unwrap();
        }
        drop(runtime);
        for wait in [0, 0, 1_000] {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let prompted = session.prompt("two").await;
            assert!(matches!(prompted, Err(Error::Closed)), "live: {is_live}: {prompted:?}");
            let steered = session.steer("two").await.map(drop);
            assert!(matches!(steered, Err(Error::Closed)), "live: {is_live}: {steered:?}");
        }
        assert_eq!(session.state().await.unwrap().waiting, 0, "its log can be read");
    }
}
