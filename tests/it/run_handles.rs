//! Runs as handles: each can be aborted, awaited and streamed by itself, whether it waits, runs or is about
//! to start; and waiting ones can be withdrawn.

use std::future::IntoFuture as _;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::{EntryId, EntryKind};
use greenroom_simulator::{Answer as Said, CallInfo, Echo, Function, Pace, SeenRequest, Simulator};

use crate::support::{agent, builder, drain, runtime, simulator, store};

const WINDOW: u64 = 50_000;

/// Answers with the newest prompt, after a minute.
fn slow() -> Simulator {
    let pace = Pace { chunks: 6, first_ms: 10_000, between_ms: 10_000 };
    let answer = move |request: &SeenRequest, _: CallInfo| {
        Said::text(format!("to {}", request.last_user_text())).with_pace(pace)
    };
    simulator(Function(answer), WINDOW)
}

/// Returns the outcomes of the session's runs, in the order of its log, and what is left open.
async fn ends(runtime: &Runtime, id: &str) -> Vec<String> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let end = |entry: &greenroom_kernel::Entry| match &entry.kind {
        EntryKind::RunEnded { run, outcome, .. } => Some(format!("{run} {}", outcome.as_str())),
        _ => None,
    };
    entries.iter().filter_map(end).collect()
}

#[tokio::test(start_paused = true)]
async fn an_abort_that_comes_before_the_run_began_aborts_it() {
    for moment in 0..30 {
        let model = slow();
        let runtime = runtime(&model).await;
        let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
        session.prompt("hello").await.unwrap();
        if moment % 3 == 2 {
            // One that must be woken first.
            runtime.close("one").await.unwrap();
        }
        let calls = model.calls();
        let asked = session.clone();
        let mut prompt = Box::pin(asked.prompt("too much").into_future());
        assert!(
            futures_util::poll!(prompt.as_mut()).is_pending(),
            "it is handed over, and nobody has read it"
        );
        let prompt = tokio::spawn(prompt);
        for _ in 0..moment / 3 {
            tokio::task::yield_now().await;
        }
        session.abort();
        let ended = prompt.await.unwrap();
        assert!(matches!(ended, Err(Error::Aborted)), "moment {moment}: {ended:?}");
        assert!(moment >= 3 || model.calls() == calls, "moment {moment}: a model was asked");
        assert_eq!(session.prompt("and now?").await.unwrap().text, "to and now?", "the next one is another");
        let ended = ends(&runtime, "one").await;
        assert_eq!(ended.iter().filter(|end| end.ends_with("aborted")).count(), 1, "{ended:?}");
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_does_not_reach_what_is_said_after_it() {
    let model = simulator(Echo, WINDOW);
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    for round in 0..20 {
        session.abort();
        let text = format!("round {round}");
        assert_eq!(session.prompt(text.clone()).await.unwrap().text, text);
    }
    let steered = {
        session.abort();
        session.steer("steered").await.unwrap()
    };
    assert_eq!(steered.reply().await.unwrap().text, "steered");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_aborted_alone_wherever_it_is() {
    let model = slow();
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    let mut runs = Vec::new();
    for number in 0..4 {
        let mut run = session.prompt(format!("number {number}")).start().await.unwrap();
        run.recorded().await.unwrap();
        runs.push(run);
    }
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(runs[0].id().is_some() && runs[1].id().is_none(), "{runs:?}");
    // One that waits, then the one that runs: the others continue.
    let stop = runs[2].abort_handle();
    stop.abort();
    runs[0].abort();
    // And one that is about to start.
    let late = session.prompt("number 4");
    let stop_late = late.abort_handle();
    stop_late.abort();
    assert!(matches!(late.await, Err(Error::Aborted)));
    let mut replies = Vec::new();
    for run in runs {
        replies.push(run.reply().await.map(|reply| reply.text));
    }
    let texts: Vec<Option<&str>> = replies.iter().map(|reply| reply.as_deref().ok()).collect();
    assert_eq!(texts, [None, Some("to number 1"), None, Some("to number 3")], "{replies:?}");
    assert!(replies.iter().all(|reply| matches!(reply, Ok(_) | Err(Error::Aborted))));
    // Finished runs are not affected.
    stop.abort();
    assert_eq!(session.prompt("number 5").await.unwrap().text, "to number 5");
    assert_eq!(ends(&runtime, "one").await.len(), 4, "two were taken back before they began");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_started_is_streamed_or_detached() {
    let model = slow();
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    let first = session.prompt("one").start().await.unwrap();
    let mut events = session.subscribe();
    let second = session.prompt("two").start().await.unwrap();
    first.detach();
    let mut stream = second.stream();
    assert!(stream.id().is_none());
    let mut text = String::new();
    while let Some(piece) = stream.next_text().await {
        piece.apply(&mut text);
    }
    assert!(stream.id().is_some());
    assert_eq!(text, "to two", "its own run only");
    assert_eq!(stream.reply().await.unwrap().text, "to two");
    let ends = drain(&mut events).iter().filter(|event| event.kind.name() == "run_end").count();
    assert_eq!(ends, 2, "the one that was let go ended too");

    let mut stream = session.prompt("three").stream();
    stream.next().await.unwrap().unwrap();
    stream.abort();
    assert!(matches!(stream.reply().await, Err(Error::Aborted)));
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_is_steered_in_is_awaited_with_the_run_that_takes_it_in() {
    let model = slow();
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    let idle = session.steer("alone").await.unwrap();
    assert_eq!(idle.reply().await.unwrap().text, "to alone", "it begins a run");

    let run = session.prompt("begin").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let left = session.steer("dropped").await.unwrap();
    let steered = session.steer("left").await.unwrap();
    let followed = session.follow_up("right").await.unwrap();
    assert!(left.entry() < steered.entry() && steered.entry() < followed.entry());
    drop(left);
    let (reply, steered, followed) = tokio::join!(run.reply(), steered.reply(), followed.reply());
    let reply = reply.unwrap();
    assert_eq!(reply.text, "to right", "the run goes on with what was said into it");
    assert_eq!(steered.unwrap(), reply);
    assert_eq!(followed.unwrap(), reply);
    assert!(matches!(session.steer("  ").await, Err(Error::EmptyPrompt)));

    // A run that fails or is aborted reports it to all of them.
    let run = session.prompt("again").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let waits = session.follow_up("never heard").await.unwrap();
    session.abort();
    assert!(matches!(run.reply().await, Err(Error::Aborted)));
    assert_eq!(waits.reply().await.unwrap().text, "to never heard", "it waited, and began a run of its own");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_withdrawn_and_the_run_goes_on() {
    let model = slow();
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    assert_eq!(session.clear_inbox().await.unwrap(), 0, "nothing waits");
    let run = session.prompt("begin").start().await.unwrap();
    let waits = session.prompt("waits").once("key").start().await.unwrap();
    let steered = session.steer("steered").await.unwrap();
    let followed = session.follow_up("followed").await.unwrap();
    assert_eq!(session.clear_inbox().await.unwrap(), 3);
    assert!(matches!(waits.reply().await, Err(Error::Withdrawn { .. })));
    assert!(matches!(steered.reply().await, Err(Error::Withdrawn { .. })));
    assert!(matches!(followed.reply().await, Err(Error::Withdrawn { .. })));
    assert_eq!(session.state().await.unwrap().waiting, 0);
    assert_eq!(run.reply().await.unwrap().text, "to begin");
    assert_eq!(model.calls(), 1);
    let again = session.prompt("waits").once("key").await.unwrap();
    assert_eq!(again.text, "to waits", "who says it again wants it");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_a_session_that_crashed_is_withdrawn_without_beginning() {
    let (model, store) = (slow(), store());
    let crashed = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = crashed.open("one", &agent(WINDOW)).await.unwrap();
    for text in ["one", "two", "three"] {
        let mut run = session.prompt(text).start().await.unwrap();
        run.recorded().await.unwrap();
        std::mem::forget(run);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let calls = model.calls();

    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let mut events = runtime.subscribe(Filter::session("one"));
    let session = runtime.session("one").await.unwrap();
    assert_eq!(session.state().await.unwrap().waiting, 2);
    assert_eq!(session.clear_inbox().await.unwrap(), 2);
    assert_eq!(session.state().await.unwrap().waiting, 0);
    assert!(!session.is_live() && runtime.live().await.unwrap().is_empty(), "nothing was woken");
    let told = drain(&mut events);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        told[0].seq + 1,
        store.head("one").await.unwrap().unwrap().entries,
        "it is told with its place in the log"
    );
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(model.calls(), calls, "and nothing began");

    session.set_agent(&agent(WINDOW)).await.unwrap();
    assert_eq!(session.prompt("four").await.unwrap().text, "to four");
    let told = drain(&mut events);
    let seqs: Vec<u64> = told.iter().filter(|event| event.is_durable()).map(|event| event.seq).collect();
    assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no hole, no event twice: {seqs:?}");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_session_is_reached_without_replacing_its_agent() {
    let model = Simulator::new(greenroom_simulator::SimulatorOptions::new(Function(
        |request: &SeenRequest, _: CallInfo| Said::text(request.system.clone().unwrap_or_default()),
    )));
    let runtime = builder(&model).start().await.unwrap();
    assert!(matches!(runtime.session("one").await, Err(Error::NoSession { .. })));
    let one = agent(WINDOW).instructions("ONE");
    runtime.open("one", &one).await.unwrap().prompt("who?").await.unwrap();
    // Live, asleep and held by nobody.
    let same = runtime.session("one").await.unwrap();
    assert_eq!(same.prompt("who?").await.unwrap().text, "ONE");
    runtime.close("one").await.unwrap();
    assert_eq!(same.prompt("who?").await.unwrap().text, "ONE");
    runtime.close("one").await.unwrap();
    drop(same);
    let session = runtime.session("one").await.unwrap();
    let state = session.state().await.unwrap();
    assert_eq!((state.model.as_str(), state.entries), ("simulated", 9), "{state:?}");
    assert_eq!(session.context().await.unwrap().len(), 6);
    session.abort();
    assert_eq!(session.clear_inbox().await.unwrap(), 0);
    for error in [
        session.prompt("who?").await.unwrap_err(),
        session.resume().await.unwrap_err(),
        session.steer("who?").await.unwrap_err(),
        session.plan(CompactOptions::default()).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoAgent { .. }), "{error}");
        assert!(error.to_string().contains("set_agent"), "{error}");
    }
    assert!(runtime.live().await.unwrap().is_empty());

    // An agent that cannot work changes nothing.
    let nowhere = Agent::new("simulated").provider("nowhere");
    assert!(matches!(session.set_agent(&nowhere).await, Err(Error::Config(_))));
    assert!(matches!(session.prompt("who?").await, Err(Error::NoAgent { .. })));
    let two = agent(WINDOW).instructions("TWO");
    session.set_agent(&two).await.unwrap();
    assert!(!session.is_live());
    assert_eq!(session.prompt("who?").await.unwrap().text, "TWO");
    session.set_agent(&one).await.unwrap();
    assert_eq!(session.prompt("who?").await.unwrap().text, "ONE", "of a live one too");
    assert!(matches!(session.set_agent(&nowhere).await, Err(Error::Config(_))));
    assert_eq!(session.prompt("who?").await.unwrap().text, "ONE");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_is_not_made_again_by_an_old_handle() {
    let model = slow();
    let runtime = runtime(&model).await;
    let handle = runtime.open("one", &agent(WINDOW)).await.unwrap();
    handle.prompt("hello").await.unwrap();
    let runs = handle.prompt("runs").start().await.unwrap();
    let waits = handle.prompt("waits").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    runtime.delete("one").await.unwrap();
    assert!(runs.reply().await.is_err());
    let ended = waits.reply().await;
    assert!(matches!(ended, Err(Error::Deleted { .. })), "{ended:?}");

    let is_deleted = |error: Error| assert!(matches!(error, Error::Deleted { .. }), "{error}");
    is_deleted(handle.prompt("again").await.unwrap_err());
    is_deleted(handle.prompt("again").start().await.unwrap_err());
    is_deleted(handle.steer("again").await.unwrap_err());
    is_deleted(handle.resume().await.unwrap_err());
    is_deleted(handle.state().await.unwrap_err());
    is_deleted(handle.context().await.unwrap_err());
    is_deleted(handle.clear_inbox().await.unwrap_err());
    is_deleted(handle.set_agent(&agent(WINDOW)).await.unwrap_err());
    is_deleted(handle.compact(CompactOptions::default()).await.unwrap_err());
    handle.abort();
    assert!(runtime.sessions().await.unwrap().is_empty());
    assert!(matches!(runtime.session("one").await, Err(Error::NoSession { .. })));
    assert!(matches!(runtime.delete("one").await, Err(Error::NoSession { .. })));

    // A new session with the same id is a different one.
    let new = runtime.open("one", &agent(WINDOW)).await.unwrap();
    assert_eq!(new.prompt("new").await.unwrap().text, "to new");
    is_deleted(handle.prompt("again").await.unwrap_err());
    runtime.close("one").await.unwrap();
    is_deleted(handle.prompt("again").await.unwrap_err());
    assert_eq!(new.prompt("newer").await.unwrap().text, "to newer");
    runtime.close("one").await.unwrap();
    // One that sleeps is deleted as well.
    runtime.delete("one").await.unwrap();
    is_deleted(new.prompt("again").await.unwrap_err());
    assert!(runtime.sessions().await.unwrap().is_empty());
    model.assert_clean();
}

/// A delete among prompts and openings, at many moments: whatever exists at the end was opened after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_at_any_moment_leaves_nothing_that_a_handle_brings_back() {
    let model = simulator(Echo, WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let (mut deleted, mut answered) = (0, 0);
    for round in 0..150_u32 {
        let id = format!("s{round}");
        let handle = runtime.open(&id, &agent(WINDOW)).await.unwrap();
        handle.prompt("hello").await.unwrap();
        let mut asking = Vec::new();
        for number in 0..4_u32 {
            let handle = handle.clone();
            asking.push(tokio::spawn(async move {
                for _ in 0..(round % 7) * number {
                    tokio::task::yield_now().await;
                }
                handle.prompt("again").await
            }));
        }
        for _ in 0..round % 11 {
            tokio::task::yield_now().await;
        }
        if round % 2 == 0 {
            runtime.close(&id).await.unwrap();
        }
        runtime.delete(&id).await.unwrap();
        for asked in asking {
            match asked.await.unwrap() {
                Ok(_) => answered += 1,
                Err(Error::Deleted { .. }) => deleted += 1,
                Err(Error::Interrupted { .. } | Error::Aborted) => {}
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert!(matches!(handle.prompt("again").await, Err(Error::Deleted { .. })), "round {round}");
        assert!(runtime.summary(&id).await.unwrap().is_none(), "round {round}: it is there again");
    }
    assert!(deleted > 30, "{deleted} deleted, {answered} answered");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_end_of_its_session_cuts_off_is_interrupted_and_an_aborted_one_is_not() {
    let model = slow();
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    for aborts in [false, true] {
        let run = session.prompt("hello").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if aborts {
            session.abort();
        }
        runtime.close("one").await.unwrap();
        let ended = run.reply().await;
        let is_right = match &ended {
            Err(Error::Aborted) => aborts,
            Err(Error::Interrupted { .. }) => !aborts,
            _ => false,
        };
        assert!(is_right, "aborts: {aborts}: {ended:?}");
    }
    let ends = ends(&runtime, "one").await;
    assert!(ends[0].ends_with("interrupted") && ends[1].ends_with("aborted"), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_time_limit_holds_while_nobody_polls() {
    for is_streamed in [false, true] {
        let model = slow();
        let runtime = runtime(&model).await;
        let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
        let request = session.prompt("hello").timeout(Duration::from_secs(15));
        let (mut run, mut stream) = (None, None);
        if is_streamed {
            let stream = stream.insert(request.stream());
            stream.next().await.expect("it begins").unwrap();
        } else {
            run = Some(request.start().await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(session.state().await.unwrap().status, Status::Idle, "streamed: {is_streamed}");
        assert_eq!(ends(&runtime, "one").await, ["0 aborted"], "streamed: {is_streamed}");
        let said: Vec<_> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
        assert!(said.len() == 2 && !said[1].is_empty(), "what was said is kept: {said:?}");
        let ended = match (run, stream) {
            (Some(run), _) => run.reply().await,
            (None, Some(stream)) => stream.reply().await,
            (None, None) => unreachable!("one of them was started"),
        };
        assert!(matches!(ended, Err(Error::TimedOut { .. })), "streamed: {is_streamed}: {ended:?}");
        model.assert_clean();
    }
}
