//! Sessions that sleep while their run waits: for a person, or for a tool that takes hours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::EventKind;
use greenroom::prelude::*;
use greenroom::{EntryId, EntryKind, QuestionEnd, RunOutcome};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator};
use serde_json::json;

use super::{Effects, Refund, asked, cashier, ends, refunds, started};
use crate::support::{agent, builder, drain, simulator};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns a runtime whose sessions sleep after a minute.
async fn sleepy(model: &Simulator) -> Runtime {
    builder(model).idle_after(Duration::from_secs(60)).start().await.unwrap()
}

/// Returns a tool that works for hours, reports each hour, and counts its runs.
fn long(hours: u32, runs: &Arc<AtomicU32>, ended: &Effects) -> Agent {
    let (runs, ended) = (Arc::clone(runs), ended.clone());
    agent(100_000).run_timeout(None).tool("refund", move |_: Refund, cx: ToolContext| {
        runs.fetch_add(1, Ordering::Relaxed);
        let ended = ended.clone();
        async move {
            for hour in 0..hours {
                tokio::select! {
                    biased;
                    () = cx.cancel.cancelled() => {
                        ended.happen("cancelled");
                        return Ok("cancelled".to_owned());
                    }
                    () = tokio::time::sleep(HOUR) => cx.progress.report(format!("hour {}", hour + 1)),
                }
            }
            ended.happen("done");
            Ok("took long".to_owned())
        }
    })
}

async fn asleep(session: &SessionHandle) {
    for _ in 0..1_000 {
        if !session.is_live() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    panic!("it never sleeps: {:?}", session.state().await);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_waits_for_a_person_sleeps_and_the_answer_wakes_it() {
    let (model, effects) = (cashier(), Effects::default());
    let runtime = sleepy(&model).await;
    // It is not resumable: sleep causes no tool to run again.
    let session = runtime.open("s", &agent(100_000).add_tool(refunds(&effects))).await.unwrap();
    let reply = started(&session, "refund it");
    let question = asked(&session).await;
    asleep(&session).await;
    assert!(runtime.live().await.unwrap().is_empty());
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.questions, state.is_unanswered), (Status::Waiting, 1, false));
    assert!(!session.is_live(), "looking wakes nothing");
    assert!(runtime.unfinished().await.unwrap().is_empty(), "it is at work");
    assert!(!reply.is_finished());
    tokio::time::sleep(30 * 24 * HOUR).await;
    assert!(matches!(session.answer(question.id, "maybe").await, Err(Error::AnswerMisfit { .. })));
    asleep(&session).await;
    session.answer(question.id, "yes").await.unwrap();
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: refunded");
    assert_eq!(effects.seen().len(), 1);
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let outcomes: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::RunEnded { outcome, .. } => Some(outcome.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [RunOutcome::Completed]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_hours_is_run_once_and_its_progress_wakes_nothing() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
    let mut events = session.subscribe();
    let reply = started(&session, "work");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live());
    assert_eq!(session.state().await.unwrap().status, Status::Working);
    tokio::time::sleep(4 * HOUR).await;
    assert!(!session.is_live(), "its progress woke it");
    let updates: Vec<String> = drain(&mut events)
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::ToolUpdate { line, .. } => Some(format!("{line} {:?}", event.run.is_some())),
            _ => None,
        })
        .collect();
    assert_eq!(updates, ["hour 1 true", "hour 2 true", "hour 3 true", "hour 4 true"]);
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: took long");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    model.assert_clean();
}

/// Transient events continue to be counted over sleep.
#[tokio::test(start_paused = true)]
async fn no_event_has_the_place_of_another() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(3, &runs, &ended)).await.unwrap();
    let mut events = session.subscribe();
    let reply = started(&session, "work");
    for _ in 0..6 {
        tokio::time::sleep(HOUR / 4).await;
        session.steer("by the way").await.unwrap();
        asleep(&session).await;
    }
    session.abort();
    let _ = reply.await;
    let mut places: Vec<(u64, Option<u64>)> =
        drain(&mut events).iter().map(|event| (event.seq, event.n)).collect();
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), count, "{places:?}");
}

#[tokio::test(start_paused = true)]
async fn an_abort_reaches_the_tools_of_a_session_that_sleeps_at_once() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
    let reply = started(&session, "work");
    tokio::time::sleep(Duration::from_secs(600)).await;
    asleep(&session).await;
    let began = tokio::time::Instant::now();
    session.abort();
    assert!(matches!(reply.await.unwrap(), Err(Error::Aborted)));
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(ended.seen(), ["cancelled"]);
    assert_eq!(session.state().await.unwrap().status, Status::Idle);
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_aborts_and_the_run_of_a_sleeping_session_has_its_time_limit() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
    let reply = started(&session, "work");
    tokio::time::sleep(Duration::from_secs(600)).await;
    asleep(&session).await;
    reply.abort();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(ended.seen(), ["cancelled"]);
    assert_eq!(session.state().await.unwrap().status, Status::Idle);

    let limited = long(5, &runs, &ended).run_timeout(Some(2 * HOUR));
    let session = runtime.open("limited", &limited).await.unwrap();
    let ended = session.prompt("work").await;
    assert!(matches!(ended, Err(Error::Stopped { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn input_wakes_it_and_waits_and_it_sleeps_again() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
    let first = started(&session, "work");
    asleep(&session).await;
    let second = started(&session, "and then");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(session.is_live());
    assert_eq!(session.state().await.unwrap().waiting, 1);
    asleep(&session).await;
    assert_eq!(session.clear_inbox().await.unwrap(), 1, "it is not woken for that");
    asleep(&session).await;
    session.set_title("long work").await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().text, "It says: took long");
    assert!(matches!(second.await.unwrap(), Err(Error::Withdrawn { .. })));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// Shut down, closed or deleted while it sleeps: the tools end cleanly, and the run has one end.
#[tokio::test(start_paused = true)]
async fn what_sleeps_is_ended_in_order() {
    for how in ["shutdown", "close", "delete", "drop"] {
        let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
        let runtime = sleepy(&model).await;
        let store = runtime.engine().clone();
        let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
        let reply = started(&session, "work");
        asleep(&session).await;
        match how {
            "shutdown" => runtime.shutdown().await.unwrap(),
            "close" => runtime.close("s").await.unwrap(),
            "delete" => runtime.delete("s").await.unwrap(),
            _ => drop(runtime),
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(ended.seen(), ["cancelled"], "{how}");
        let told = reply.await.unwrap();
        assert!(matches!(told, Err(Error::Interrupted { .. } | Error::Deleted { .. })), "{how}: {told:?}");
        if how == "close" {
            let head = store.head("s").await.unwrap().unwrap();
            assert_eq!((head.open_run, head.interrupted.is_some()), (None, true));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_expires_in_a_session_that_sleeps() {
    let model = cashier();
    let runtime = sleepy(&model).await;
    let agent = agent(100_000).tool("refund", |_: Refund, cx: ToolContext| async move {
        let question = Question::text("Why?").expires_in(10 * HOUR);
        Ok(cx.ask(question).await.map_or_else(|error| error.to_string(), |answer| answer.to_string()))
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let reply = started(&session, "ask");
    asked(&session).await;
    asleep(&session).await;
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: the question expired without an answer");
    assert_eq!(ends(&runtime, "s").await, [QuestionEnd::Expired]);
}

/// A tool that works for an hour asks, and a tool that asked works for an hour: each wakes the session when
/// necessary.
#[tokio::test(start_paused = true)]
async fn a_tool_asks_in_a_session_that_sleeps() {
    let model = cashier();
    let runtime = sleepy(&model).await;
    let agent = agent(100_000).run_timeout(None).tool("refund", |_: Refund, cx: ToolContext| async move {
        let mut answers = Vec::new();
        for number in 0..3 {
            tokio::time::sleep(HOUR).await;
            answers.push(cx.ask(format!("{number}?")).await?.to_string());
        }
        tokio::time::sleep(HOUR).await;
        Ok(answers.join(" "))
    });
    let session = runtime.open("s", &agent).await.unwrap();
    let reply = started(&session, "ask");
    for answer in ["a", "b", "c"] {
        asleep(&session).await;
        let question = loop {
            if let Some(question) = session.questions().await.unwrap().pop() {
                break question;
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
        };
        asleep(&session).await;
        session.answer(question.id, answer).await.unwrap();
    }
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: a b c");
    model.assert_clean();
}

/// The steps of a run continue to be counted over sleep, so that its limits apply.
#[tokio::test(start_paused = true)]
async fn the_limits_of_a_run_hold_over_sleep() {
    let model = simulator(
        Function(|_: &SeenRequest, info: CallInfo| {
            Said::call("refund", &json!({ "euros": info.session_call }))
        }),
        100_000,
    );
    let (ended, runs) = (Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let limited = long(1, &runs, &ended).limits(RunLimits { steps_max: 3, ..RunLimits::default() });
    let session = runtime.open("s", &limited).await.unwrap();
    let stopped = session.prompt("work").await;
    assert!(matches!(stopped, Err(Error::Stopped { .. })), "{stopped:?}");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// A caller that waits for input of a sleeping session is told at once that it was withdrawn.
#[tokio::test(start_paused = true)]
async fn who_waits_hears_that_the_inbox_of_a_sleeping_session_was_cleared() {
    let (model, effects) = (cashier(), Effects::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &agent(100_000).add_tool(refunds(&effects))).await.unwrap();
    let first = started(&session, "refund it");
    let question = asked(&session).await;
    let mut queued = Vec::new();
    for _ in 0..2 {
        let mut run = session.prompt("and then").once("k").start().await.unwrap();
        run.recorded().await.unwrap();
        queued.push(run);
    }
    asleep(&session).await;
    assert_eq!(session.clear_inbox().await.unwrap(), 1);
    for run in queued {
        let heard = tokio::time::timeout(Duration::from_secs(1), run.reply()).await.expect("it hears");
        assert!(matches!(heard, Err(Error::Withdrawn { .. })), "{heard:?}");
    }
    assert!(!session.is_live(), "nothing is woken for that");
    session.answer(question.id, "yes").await.unwrap();
    assert_eq!(first.await.unwrap().unwrap().text, "It says: refunded");
}

/// How a caller leaves a run, or withdraws it.
#[derive(Debug, Clone, Copy)]
enum Leaves {
    Abort,
    Drop,
    Timeout,
    AbortsQueued,
}

/// A run that waits in a sleeping session is left: it ends as aborted, once, together with the work that
/// waits for it.
async fn check_left(agent: &Agent, waits_for_person: bool, leaves: Leaves) {
    let what = format!("{leaves:?}, for a person: {waits_for_person}");
    let model = cashier();
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", agent).await.unwrap();
    let patience = Duration::from_secs(600);
    match leaves {
        Leaves::Abort => {
            let run = session.prompt("go").start().await.unwrap();
            asleep(&session).await;
            run.abort();
            let reply = tokio::time::timeout(patience, run.reply()).await.expect(&what);
            assert!(matches!(reply, Err(Error::Aborted)), "{what}: {reply:?}");
        }
        Leaves::Drop => {
            let run = session.prompt("go").start().await.unwrap();
            asleep(&session).await;
            drop(run);
        }
        Leaves::Timeout => {
            let reply = tokio::time::timeout(patience, session.prompt("go")).await;
            assert!(reply.is_err(), "{what}: {reply:?}");
        }
        Leaves::AbortsQueued => {
            let run = session.prompt("go").start().await.unwrap();
            let queued = session.prompt("go on").start().await.unwrap();
            asleep(&session).await;
            queued.abort();
            let reply = tokio::time::timeout(patience, queued.reply()).await.expect(&what);
            assert!(matches!(reply, Err(Error::Aborted)), "{what}: {reply:?}");
            asleep(&session).await;
            run.abort();
            let reply = tokio::time::timeout(patience, run.reply()).await.expect(&what);
            assert!(matches!(reply, Err(Error::Aborted)), "{what}: {reply:?}");
        }
    }
    tokio::time::sleep(patience).await;
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let outcomes: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::RunEnded { outcome, .. } => Some(outcome.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [RunOutcome::Aborted], "{what}");
    assert!(session.questions().await.unwrap().is_empty(), "{what}");
    assert_eq!(session.state().await.unwrap().waiting, 0, "{what}");
    assert_eq!(model.requests().len(), 1, "{what}: the model is not asked again");
}

#[tokio::test(start_paused = true)]
async fn who_leaves_a_run_of_a_session_that_sleeps_ends_it() {
    for leaves in [Leaves::Abort, Leaves::Drop, Leaves::Timeout, Leaves::AbortsQueued] {
        let effects = Effects::default();
        check_left(&agent(100_000).add_tool(refunds(&effects)), true, leaves).await;
        check_left(&long(5, &Arc::default(), &effects), false, leaves).await;
    }
}

/// A session that dies as it is woken is woken again; if it never starts, waiting callers are told.
#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_woken_is_tried_again_and_then_said() {
    crate::support::quiet_injected_panics();
    for (deaths, is_woken) in [(3, true), (u32::MAX, false)] {
        let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
        let left = Arc::new(AtomicU32::new(0));
        let dying = Arc::clone(&left);
        let probe = move |_: &str, point: &'static str| {
            let is_due = |left: u32| left.checked_sub(1);
            if point == "session/starts"
                && dying.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_due).is_ok()
            {
                panic!("injected at {point}");
            }
        };
        let runtime = builder(&model).idle_after(Duration::from_secs(60)).probe(probe).start().await.unwrap();
        let session = runtime.open("s", &long(1, &runs, &ended)).await.unwrap();
        let reply = started(&session, "work");
        asleep(&session).await;
        left.store(deaths, Ordering::SeqCst);
        let heard = tokio::time::timeout(2 * HOUR, reply).await.expect("it hears").unwrap();
        match heard {
            Ok(reply) => assert!(is_woken, "{reply:?}"),
            Err(error) => assert!(matches!(error, Error::SessionFailed { .. }) && !is_woken, "{error:?}"),
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }
}

/// A session that waits for a person dies as it is started to be closed: its handle still has the agent, so
/// the answer wakes it.
#[tokio::test(start_paused = true)]
async fn an_answer_wakes_a_session_that_died_as_it_was_closed() {
    crate::support::quiet_injected_panics();
    let (model, effects) = (cashier(), Effects::default());
    let dies = Arc::new(AtomicU32::new(0));
    let due = Arc::clone(&dies);
    let probe = move |_: &str, point: &'static str| {
        let is_start = point == "session/starts";
        assert!(!is_start || due.swap(0, Ordering::SeqCst) == 0, "injected at {point}");
    };
    let runtime = builder(&model).idle_after(Duration::from_secs(60)).probe(probe).start().await.unwrap();
    let definition = agent(100_000).add_tool(
        tool("refund", {
            let effects = effects.clone();
            move |args: Refund, cx: ToolContext| super::refund(args, cx, effects.clone())
        })
        .resumable(),
    );
    let session = runtime.open("s", &definition).await.unwrap();
    let reply = started(&session, "refund it");
    let question = asked(&session).await;
    asleep(&session).await;
    dies.store(1, Ordering::SeqCst);
    runtime.close("s").await.unwrap();
    assert_eq!(dies.load(Ordering::SeqCst), 0, "it died");
    assert!(reply.await.unwrap().is_err(), "its process lost the run");
    session.answer(question.id, "yes").await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert_eq!(effects.seen().len(), 1);
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.is_unanswered), (Status::Idle, false));
    model.assert_clean();
}

/// A session at work is not idle, whatever its work waits for; it stays awake for callers that wait, until they go.
#[tokio::test(start_paused = true)]
async fn a_session_is_not_idle_while_its_run_waits() {
    let (model, ended, runs) = (cashier(), Effects::default(), Arc::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &long(5, &runs, &ended)).await.unwrap();
    session.wait_until_idle().await.unwrap();
    let reply = started(&session, "work");
    asleep(&session).await;
    assert!(tokio::time::timeout(HOUR, session.wait_until_idle()).await.is_err(), "its tool runs");
    asleep(&session).await;
    session.wait_until_idle().await.unwrap();
    assert_eq!(reply.await.unwrap().unwrap().text, "It says: took long");
    assert_eq!((session.state().await.unwrap().status, ended.seen().len()), (Status::Idle, 1));

    let (model, effects) = (cashier(), Effects::default());
    let runtime = sleepy(&model).await;
    let session = runtime.open("s", &agent(100_000).add_tool(refunds(&effects))).await.unwrap();
    let reply = started(&session, "refund it");
    asked(&session).await;
    assert!(tokio::time::timeout(24 * HOUR, session.wait_until_idle()).await.is_err(), "a person is asked");
    let waiting = tokio::spawn({
        let session = session.clone();
        async move { session.wait_until_idle().await }
    });
    session.abort();
    waiting.await.unwrap().unwrap();
    assert!(reply.await.unwrap().is_err());
    runtime.shutdown().await.unwrap();
    assert!(matches!(session.wait_until_idle().await, Err(Error::Closed)));
}
