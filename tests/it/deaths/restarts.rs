//! An actor that dies is restarted, with increasing waits, three times within a minute; then its session has
//! failed, gives the reason, and can be opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_simulator::Echo;

use crate::support::{agent, builder, drain, quiet_injected_panics, simulator};

#[tokio::test(start_paused = true)]
async fn three_restarts_in_a_minute_then_failed_with_the_reason_then_opened_again() {
    quiet_injected_panics();
    let model = simulator(Echo, 50_000);
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let runtime = builder(&model)
        .probe(move |session, at| {
            let strikes = session == "sick" && at == "session/prompt" && is_broken.load(Ordering::Relaxed);
            assert!(!strikes, "injected: the prompt cannot be read");
        })
        .start()
        .await
        .unwrap();
    let mut events = runtime
        .subscribe(Filter::session("sick").kinds([EventType::SessionRestarted, EventType::SessionFailed]));
    let sick = runtime.open("sick", &agent(50_000)).await.unwrap();
    let well = runtime.open("well", &agent(50_000)).await.unwrap();
    assert_eq!(sick.prompt("before").await.unwrap().text, "before");
    broken.store(true, Ordering::Relaxed);

    let mut down_ms = Vec::new();
    for _ in 0..3 {
        assert!(matches!(sick.prompt("hello").await, Err(Error::Interrupted { .. })));
        let died = tokio::time::Instant::now();
        assert_eq!(well.prompt("I am").await.unwrap().text, "I am");
        let plan = sick.plan(CompactOptions::default()).await;
        assert!(plan.is_ok(), "a request waits until it is back: {plan:?}");
        down_ms.push(died.elapsed().as_millis());
    }
    assert!(down_ms.windows(2).all(|pair| pair[0] < pair[1]), "the wait grows: {down_ms:?}");
    assert!((100..200).contains(&down_ms[0]) && down_ms[2] >= 1_000, "{down_ms:?}");
    assert!(matches!(sick.prompt("hello").await, Err(Error::Interrupted { .. })));
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..2 {
        let error = sick.prompt("hello").await.unwrap_err();
        assert!(
            matches!(&error, Error::SessionFailed { reason, .. } if reason.contains("the prompt cannot be read")),
            "{error}"
        );
    }
    let names: Vec<&str> = drain(&mut events).iter().map(|event| event.kind.name()).collect();
    assert_eq!(names, ["session_restarted", "session_restarted", "session_restarted", "session_failed"]);
    assert_eq!(well.prompt("still").await.unwrap().text, "still");

    broken.store(false, Ordering::Relaxed);
    let again = runtime.open("sick", &agent(50_000)).await.unwrap();
    assert_eq!(again.prompt("after").await.unwrap().text, "after");
    assert_eq!(sick.prompt("the old handle").await.unwrap().text, "the old handle");
    let texts: Vec<String> = again.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["before", "before", "after", "after", "the old handle", "the old handle"]);
    model.assert_clean();
}

/// Restarts that are far apart are not counted together.
#[tokio::test(start_paused = true)]
async fn a_death_now_and_then_never_fails_a_session() {
    quiet_injected_panics();
    let model = simulator(Echo, 50_000);
    let deaths = Arc::new(AtomicU32::new(0));
    let (count, armed) = (Arc::clone(&deaths), Arc::new(AtomicBool::new(false)));
    let is_armed = Arc::clone(&armed);
    let runtime = builder(&model)
        .idle_after(Duration::ZERO)
        .probe(move |_, at| {
            if at == "session/record" && is_armed.swap(false, Ordering::Relaxed) {
                count.fetch_add(1, Ordering::Relaxed);
                panic!("injected now and then");
            }
        })
        .start()
        .await
        .unwrap();
    let session = runtime.open("now-and-then", &agent(50_000)).await.unwrap();
    for run in 0..12 {
        armed.store(true, Ordering::Relaxed);
        assert!(matches!(session.prompt(format!("{run}")).await, Err(Error::Interrupted { .. })));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(session.state().await.unwrap().is_unanswered);
        assert_eq!(session.resume().await.unwrap().text, run.to_string());
    }
    assert_eq!(deaths.load(Ordering::Relaxed), 12);
    model.assert_clean();
}

/// Strikes at a point of the session `sick` this many times once it is armed.
fn strikes(
    point: &'static str,
    times: &Arc<AtomicU32>,
) -> impl Fn(&str, &'static str) + Send + Sync + 'static {
    let left = Arc::clone(times);
    move |session, at| {
        let is_there = session == "sick" && at == point;
        let one_less = |left: u32| left.checked_sub(1);
        let struck = is_there && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        assert!(!struck, "injected at {at}");
    }
}

/// A failure to start is a typed error for the caller that opens it, and the session can be opened again.
#[tokio::test(start_paused = true)]
async fn an_actor_that_cannot_start_is_a_typed_error_and_can_be_opened_again() {
    quiet_injected_panics();
    for point in ["session/starts", "agent/starts", "usage_tracker/starts"] {
        let times = Arc::new(AtomicU32::new(1));
        let model = simulator(Echo, 50_000);
        let runtime = builder(&model).probe(strikes(point, &times)).start().await.unwrap();
        let refused = runtime.open("sick", &agent(50_000)).await.unwrap_err();
        assert!(
            matches!(&refused, Error::SessionFailed { session, reason } if session == "sick" && reason.contains(point)),
            "{point}: {refused:?}"
        );
        assert!(runtime.live().await.unwrap().is_empty(), "{point}");
        let session = runtime.open("sick", &agent(50_000)).await.unwrap();
        assert_eq!(session.prompt("hello").await.unwrap().text, "hello", "{point}");
    }
}

/// An actor that dies and then cannot start at its first restart: callers are told, and the next request
/// wakes it.
#[tokio::test(start_paused = true)]
async fn a_restart_that_fails_is_told_and_the_session_can_be_reached_again() {
    quiet_injected_panics();
    for point in ["session/starts", "session/started", "agent/starts", "usage_tracker/starts"] {
        let (deaths, failing) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (dies, fails) = (strikes("session/record", &deaths), strikes(point, &failing));
        let model = simulator(Echo, 50_000);
        let both = move |session: &str, at: &'static str| {
            dies(session, at);
            fails(session, at);
        };
        let runtime = builder(&model).probe(both).start().await.unwrap();
        let session = runtime.open("sick", &agent(50_000)).await.unwrap();
        assert_eq!(session.prompt("before").await.unwrap().text, "before", "{point}");
        deaths.store(1, Ordering::Relaxed);
        failing.store(1, Ordering::Relaxed);
        let answer = session.prompt("during").await;
        assert!(matches!(answer, Err(Error::Interrupted { .. })), "{point}: {answer:?}");
        let mut told = 0;
        while let Err(error) = session.state().await {
            assert!(
                matches!(error, Error::SessionFailed { .. } | Error::Interrupted { .. }),
                "{point}: {error:?}"
            );
            told += 1;
            assert!(told < 3, "{point}: it is never reached again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((deaths.load(Ordering::Relaxed), failing.load(Ordering::Relaxed)), (0, 0), "{point}");
        assert_eq!(session.resume().await.unwrap().text, "during", "{point}");
        model.assert_clean();
    }
}

/// A handler that returns an error instead of panicking: a session whose agent dies too often gives up, and
/// is itself restarted.
#[tokio::test(start_paused = true)]
async fn an_error_of_a_handler_restarts_its_session() {
    quiet_injected_panics();
    let times = Arc::new(AtomicU32::new(4));
    let model = simulator(Echo, 50_000);
    let runtime = builder(&model).probe(strikes("agent/sized", &times)).start().await.unwrap();
    let mut events = runtime
        .subscribe(Filter::session("sick").kinds([EventType::SessionRestarted, EventType::SessionFailed]));
    let session = runtime.open("sick", &agent(50_000)).await.unwrap();
    let answer = session.prompt("hello").await;
    assert!(matches!(answer, Err(Error::Interrupted { .. })), "{answer:?}");
    assert!(session.state().await.unwrap().is_unanswered);
    let seen = drain(&mut events);
    assert!(
        matches!(&seen[..], [event] if matches!(&event.kind, EventKind::SessionRestarted { reason }
            if reason.contains("crashed too often") && reason.contains("injected at agent/sized"))),
        "{seen:?}"
    );
    assert_eq!(session.resume().await.unwrap().text, "hello");
    model.assert_clean();
}

/// The caller may be gone before the answer arrives, for any request.
#[tokio::test(start_paused = true)]
async fn answers_that_nobody_waits_for_harm_nobody() {
    let model = simulator(Echo, 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("left", &agent(50_000)).await.unwrap();
    session.prompt("hello").await.unwrap();
    // Polled once, which sends the request, and then dropped.
    macro_rules! asked {
        ($($question:expr),+ $(,)?) => { $({
            let mut question = Box::pin($question.into_future());
            let _ = futures_util::poll!(question.as_mut());
        })+ };
    }
    let entry = greenroom_kernel::EntryId(0);
    let options = CompactOptions::default;
    let definition = agent(50_000);
    for _ in 0..50 {
        asked!(
            session.prompt("a question"),
            session.steer("left"),
            session.follow_up("right"),
            session.state(),
            session.context(),
            session.plan(options()),
            session.compact(options()),
            session.compact_after_run(options()),
            session.undo_compaction(),
            session.pin(entry),
            session.branch(Some(entry)),
            session.resume(),
            runtime.open("left", &definition),
            runtime.open("another", &definition),
            runtime.close("another"),
            runtime.live(),
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.waiting), (Status::Idle, 0), "{state:?}");
    assert_eq!(session.prompt("and now?").await.unwrap().text, "and now?");
    model.assert_clean();
}
