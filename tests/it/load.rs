//! The maximum load of a runtime, and how many sessions it keeps in memory.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Activity, Status};
use greenroom_simulator::{Answer as Said, CallInfo, Echo, Function, Pace, SeenRequest};
use serde_json::json;

use crate::support::{agent, builder, simulator};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Answers `done` after a second; if there is a helper, it is called first.
fn slow(request: &SeenRequest, _: CallInfo) -> Said {
    let is_done = request.messages.last().is_some_and(|message| message.role() == "tool");
    if request.has_tool("helper") && !is_done {
        Said::call("helper", &json!({ "task": "help" })).after_ms(1_000)
    } else {
        Said::text("done").after_ms(1_000)
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_has_taken_on_enough_refuses_more_until_some_is_done() {
    let model = simulator(Function(slow), 100_000);
    let runtime = builder(&model).inputs_max(3).start().await.unwrap();
    let boss =
        runtime.open("boss", agent(100_000).sub_agent(sub_agent("helper", agent(100_000)))).await.unwrap();
    let other = runtime.open("other", agent(100_000)).await.unwrap();
    let late = runtime.open("late", agent(100_000)).await.unwrap();
    let mut first = boss.prompt("first").start().await.unwrap();
    let mut second = other.prompt("second").start().await.unwrap();
    first.recorded().await.unwrap();
    second.recorded().await.unwrap();
    // A run counts, and so do those queued behind it.
    let mut waits = other.prompt("third").start().await.unwrap();
    waits.recorded().await.unwrap();
    for _ in 0..3 {
        let refused = late.prompt("fourth").await.unwrap_err();
        assert!(matches!(refused, Error::RuntimeBusy { waiting: 3 }), "{refused:?}");
        assert!(refused.is_retryable() && !refused.is_invalid_request());
        assert!(refused.to_string().contains("3 inputs"), "{refused}");
    }
    let refused = other.steer("hurry").await.map(drop);
    assert!(matches!(refused, Err(Error::RuntimeBusy { .. })), "{refused:?}");
    // Reading the state and aborting do not count as input.
    assert_eq!(late.state().await.unwrap().entries, 0);
    waits.abort();
    assert!(matches!(waits.reply().await, Err(Error::Aborted | Error::Withdrawn { .. })));
    late.prompt("fifth").await.unwrap();
    // The sub-agent of an accepted run was not refused.
    assert_eq!(first.reply().await.unwrap().text, "done");
    second.reply().await.unwrap();
    for number in 0..20 {
        late.prompt(format!("{number}")).await.expect("nothing that is over counts");
    }
    model.assert_clean();
}

/// An input counts once while its session takes it on: one more is accepted as soon as the first is recorded.
/// The session is in the middle of that on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_input_that_is_being_taken_on_counts_once() {
    let pace = Pace { chunks: 1, first_ms: 600_000, between_ms: 0 };
    let says = Function(move |_: &SeenRequest, _: CallInfo| Said::text("done").with_pace(pace));
    let model = simulator(says, 100_000);
    for round in 0..200 {
        let runtime = builder(&model).inputs_max(2).start().await.unwrap();
        let first = runtime.open("first", agent(100_000)).await.unwrap();
        let second = runtime.open("second", agent(100_000)).await.unwrap();
        let mut one = first.prompt("one").start().await.unwrap();
        one.recorded().await.unwrap();
        let mut two = second.prompt("two").start().await.unwrap_or_else(|error| panic!("{round}: {error}"));
        two.recorded().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_nothing_is_refused() {
    let model = simulator(Function(slow), 100_000);
    let runtime = builder(&model).inputs_max(0).start().await.unwrap();
    let session = runtime.open("s", agent(100_000)).await.unwrap();
    let runs: Vec<_> = futures_util::future::join_all((0..40).map(|_| session.prompt("go").start())).await;
    for run in runs {
        run.unwrap().reply().await.unwrap();
    }
    model.assert_clean();
}

/// Prompts a session and leaves it idle.
async fn used(runtime: &Runtime, id: &str) {
    let session = runtime.open(id, agent(100_000)).await.unwrap();
    session.prompt("hello").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn where_too_many_are_live_the_least_recently_used_idle_ones_sleep() {
    let model = simulator(Echo, 100_000);
    let runtime = builder(&model).live_sessions_max(3).idle_after(Duration::ZERO).start().await.unwrap();
    for id in ["a", "b", "c"] {
        used(&runtime, id).await;
    }
    used(&runtime, "a").await;
    assert_eq!(runtime.live().await.unwrap(), ["a", "b", "c"]);
    used(&runtime, "d").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.live().await.unwrap(), ["a", "c", "d"], "b was used before the others");
    // Using its handle wakes it.
    used(&runtime, "b").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.live().await.unwrap(), ["a", "b", "d"]);
    for number in 0..50 {
        used(&runtime, &format!("s{number}")).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.live().await.unwrap().len(), 3);
    model.assert_clean();
}

/// Sessions that worked at the same time stay live for that; when they have ended, most of them sleep.
#[tokio::test(start_paused = true)]
async fn after_a_burst_no_more_are_live_than_permitted() {
    let model = simulator(Function(slow), 100_000);
    let runtime = builder(&model).live_sessions_max(3).idle_after(Duration::ZERO).start().await.unwrap();
    let mut runs = Vec::new();
    for number in 0..40 {
        let session = runtime.open(&format!("s{number}"), agent(100_000)).await.unwrap();
        runs.push(session.prompt("go").start().await.unwrap());
    }
    for run in runs {
        assert_eq!(run.reply().await.unwrap().text, "done");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let live = runtime.live().await.unwrap().len();
    assert!(live <= 3, "{live} are live");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn sessions_at_work_stay_however_many_they_are() {
    let model = simulator(Function(slow), 100_000);
    let runtime = builder(&model).live_sessions_max(2).idle_after(Duration::ZERO).start().await.unwrap();
    let mut runs = Vec::new();
    for number in 0..5 {
        let session = runtime.open(&format!("s{number}"), agent(100_000)).await.unwrap();
        let mut run = session.prompt("go").start().await.unwrap();
        run.recorded().await.unwrap();
        runs.push(run);
    }
    assert_eq!(runtime.live().await.unwrap().len(), 5);
    for run in runs {
        assert_eq!(run.reply().await.unwrap().text, "done");
    }
    used(&runtime, "another").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.live().await.unwrap().len(), 2);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_drains_finishes_what_it_took_on_and_takes_on_no_more() {
    let model = simulator(Function(slow), 100_000);
    let runtime = builder(&model).start().await.unwrap();
    assert_eq!(runtime.drain(Duration::from_secs(1)).await, 0, "there is nothing to do");
    let runtime = builder(&model).start().await.unwrap();
    let helper = sub_agent("helper", agent(100_000));
    let boss = runtime.open("boss", agent(100_000).sub_agent(helper)).await.unwrap();
    let mut runs = Vec::new();
    for number in 0..3 {
        let mut run = boss.prompt(format!("{number}")).start().await.unwrap();
        run.recorded().await.unwrap();
        runs.push(run);
    }
    let (drain, refused) = {
        let (runtime, boss) = (runtime.clone(), boss.clone());
        let drain = tokio::spawn(async move { runtime.drain(Duration::from_secs(3_600)).await });
        tokio::time::sleep(Duration::from_millis(1)).await;
        (drain, boss.prompt("too late").await)
    };
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert_eq!(drain.await.unwrap(), 0);
    for run in runs {
        assert_eq!(run.reply().await.unwrap().text, "done");
    }
    assert!(runtime.unfinished().await.unwrap().is_empty());
    runtime.shutdown().await.unwrap();
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_no_longer_than_it_may() {
    let model =
        simulator(Function(|_: &SeenRequest, _: CallInfo| Said::text("late").after_ms(60_000)), 100_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", agent(100_000)).await.unwrap();
    let mut run = session.prompt("go").start().await.unwrap();
    run.recorded().await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(runtime.drain(Duration::from_secs(5)).await, 1);
    assert_eq!(began.elapsed().as_secs(), 5);
    runtime.shutdown().await.unwrap();
    assert!(run.reply().await.is_err(), "it was interrupted");
}

/// An overview of each session's activity, from its events; reading it wakes none.
#[tokio::test(start_paused = true)]
async fn live_sessions_say_what_they_do() {
    let script = Function(|request: &SeenRequest, _: CallInfo| match request.last_user_text().as_str() {
        _ if request.messages.last().is_some_and(|message| message.role() == "tool") => Said::text("done"),
        "wait" => Said::call("wait", &json!({})),
        text => Said::text(text),
    });
    let model = simulator(script, 100_000);
    let runtime = builder(&model).start().await.unwrap();
    let (go, gone) = tokio::sync::watch::channel(false);
    let waiting = agent(100_000).tool("wait", move |_: Nothing| {
        let mut gone = gone.clone();
        async move {
            let _ = gone.wait_for(|gone| *gone).await;
            Ok("over")
        }
    });
    for id in ["idle", "closed"] {
        runtime.open(id, &waiting).await.unwrap().prompt("hello").await.unwrap();
    }
    runtime.close("closed").await.unwrap();
    let session = runtime.open("works", &waiting).await.unwrap();
    let mut events = session.subscribe();
    let mut run = session.prompt("wait").start().await.unwrap();
    run.recorded().await.unwrap();
    session.follow_up("and then?").await.unwrap();
    while events.next_event().await.unwrap().kind.event_type() != EventType::ToolStart {}
    let live = runtime.live_sessions().await.unwrap();
    let ids: Vec<&str> = live.iter().map(|session| session.state.id.as_str()).collect();
    assert_eq!(ids, ["idle", "works"]);
    assert_eq!((live[0].state.status, live[0].activity.clone()), (Status::Idle, Activity::default()));
    let works = &live[1];
    assert_eq!((works.state.status, works.state.waiting), (Status::Working, 1));
    assert_eq!((works.activity.step, works.activity.tools.as_slice()), (Some(1), &["wait".to_owned()][..]));
    assert!(works.activity.since_ms.is_some() && works.title.as_deref() == Some("wait"), "{works:?}");
    // After a while it gives up its actors, and still exists.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let live = runtime.live_sessions().await.unwrap();
    assert_eq!(
        live.iter().map(|session| (session.state.id.as_str(), session.is_asleep)).collect::<Vec<_>>(),
        [("works", true)]
    );
    assert_eq!(live[0].activity.tools, ["wait"]);
    go.send(true).unwrap();
    run.reply().await.unwrap();
}
