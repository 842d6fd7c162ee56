//! Idempotency keys: a prompt that is repeated with its key is recorded once.
//!
//! Invariants: the result for a repeated key comes from the log, so it is the same after a restart.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::InputVerdict;
use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, ByPurpose, Fault, Function, Pace, Sequence, Summariser};
use serde_json::json;

use crate::support::{agent, answers_after, builder, runtime, simulator, store};

mod callers;
mod left;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn looker() -> Agent {
    agent(100_000).tool("look", |_: Nothing| async move { Ok("it rains") })
}

#[tokio::test(start_paused = true)]
async fn a_repeated_key_gives_the_first_reply_and_asks_nobody() {
    let script = vec![
        Said::call("look", &json!({})),
        Said::text("it rains"),
        Said::text("something else"),
        Said::text("at last"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &looker()).await.unwrap();
    let first = session.prompt("how is the weather?").once("k").await.unwrap();
    assert_eq!((first.text.as_str(), first.steps), ("it rains", 2));
    session.prompt("and now?").await.unwrap();
    let entries = session.state().await.unwrap().entries;
    assert_eq!(session.prompt("how is the weather?").once("k").await.unwrap(), first);
    assert_eq!(session.state().await.unwrap().entries, entries, "nothing was recorded");
    assert_eq!(model.calls(), 3);
    assert_eq!(session.prompt("and then?").once("another").await.unwrap().text, "at last");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_too_also_where_the_prompt_waited_first() {
    let script = vec![Said::text("one").after_ms(1_000), Said::text("two")];
    let model = simulator(Sequence(script), 100_000);
    let store = store();
    let start = || {
        let builder = Runtime::builder().provider(model.provider()).clock_from(1_700_000_000_000);
        builder.engine(store.clone()).start()
    };
    let one = start().await.unwrap();
    let session = one.open("once", &agent(100_000)).await.unwrap();
    // The second waits in the inbox for the first one's run.
    let (first, second) = tokio::join!(session.prompt("first").once("a"), session.prompt("second").once("b"));
    let (first, second) = (first.unwrap(), second.unwrap());
    drop((session, one));
    let two = start().await.unwrap();
    let session = two.open("once", &agent(100_000)).await.unwrap();
    assert_eq!(session.prompt("second").once("b").await.unwrap(), second);
    assert_eq!(session.prompt("first").once("a").await.unwrap(), first);
    assert_eq!((first.text.as_str(), second.text.as_str(), model.calls()), ("one", "two", 2));
}

/// Returns the texts of the user's messages and of the answers in the context.
async fn said(session: &SessionHandle) -> Vec<String> {
    session.context().await.unwrap().iter().map(|message| message.text()).collect()
}

/// A key is used up by a reply and by nothing else.
#[tokio::test(start_paused = true)]
async fn a_prompt_whose_run_ended_without_a_reply_goes_on_under_its_key() {
    let refused = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
    let script = vec![
        Said::text("late").after_ms(10_000),
        Said::call("look", &json!({})),
        Said::text("x").with_fault(refused),
        Said::text("it rains"),
        Said::text("slow words that come").with_pace(Pace { chunks: 4, first_ms: 10, between_ms: 20_000 }),
        Said::text("gone on"),
        Said::text("too late").after_ms(60_000),
        Said::text("in time"),
        Said::call("look", &json!({})),
        Said::call("look", &json!({})),
        Said::text("after two"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let limits = RunLimits { steps_max: 2, ..RunLimits::default() };
    let session = runtime.open("once", &looker().limits(limits)).await.unwrap();
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("a").once("runs").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut repeated = session.prompt("a").once("runs").start().await.unwrap();
    assert_eq!(repeated.recorded().await.unwrap().0, 0, "the first one's entry, while that runs");
    let first = running.await.unwrap().unwrap();
    assert_eq!((first.text.as_str(), repeated.reply().await.unwrap()), ("late", first.clone()));

    // It failed after a tool call, which is not repeated.
    let failed = session.prompt("b").once("fails").await.unwrap_err();
    assert!(matches!(&failed, Error::Model(failure) if !failure.class.is_retryable()), "{failed:?}");
    let reply = session.prompt("b").once("fails").await.unwrap();
    assert_eq!((reply.text.as_str(), model.calls()), ("it rains", 4));
    assert_eq!(said(&session).await, ["a", "late", "b", "", "it rains", "it rains"]);

    // Its caller went away.
    let given_up = tokio::time::timeout(Duration::from_secs(1), session.prompt("c").once("drops")).await;
    assert!(given_up.is_err());
    // Its run ends; a repetition before that waits for that end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let gone_on = session.prompt("c").once("drops").await.unwrap();
    assert_eq!(gone_on.text, "gone on");
    assert_eq!(session.prompt("c").once("drops").await.unwrap(), gone_on);

    // It timed out.
    let timed = || session.prompt("d").once("late").timeout(Duration::from_secs(5));
    let late = timed().await.unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }) && late.is_retryable(), "{late:?}");
    assert_eq!(timed().await.unwrap().text, "in time");

    // A limit stopped it.
    let stopped = session.prompt("e").once("stops").await.unwrap_err();
    assert!(matches!(stopped, Error::Stopped { .. }), "{stopped:?}");
    assert_eq!(session.prompt("e").once("stops").await.unwrap().text, "after two");
    let users = |texts: Vec<String>| texts.into_iter().filter(|text| text.len() == 1).collect::<String>();
    assert_eq!(users(said(&session).await), "abcde", "each was said once");
    model.assert_clean();
}

/// If the conversation continued, it cannot continue: the recorded prompt is repeated, as often as necessary.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_left_behind_is_said_again_under_its_key() {
    let failing = || {
        let fault = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
        Said::text("x").with_fault(fault)
    };
    let script = vec![failing(), Said::text("one"), failing(), Said::text("two"), Said::text("three")];
    let model = simulator(Sequence(script), 100_000);
    let store = store();
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    let hot = || session.prompt("k?").once("k").settings(ModelSettings::new().temperature(1.0));
    assert!(hot().await.is_err());
    session.prompt("other").await.unwrap();
    assert!(session.prompt("in other words").once("k").await.is_err(), "said again, it failed again");
    session.prompt("another").await.unwrap();
    let reply = session.prompt("in other words").once("k").await.unwrap();
    assert_eq!(reply.text, "three");
    assert_eq!(said(&session).await, ["k?", "other", "one", "k?", "another", "two", "k?", "three"]);
    let temperatures: Vec<_> =
        model.requests().iter().map(|logged| logged.request.settings.temperature).collect();
    assert_eq!(temperatures, [Some(1.0), None, Some(1.0), None, Some(1.0)], "as it was asked for first");
    assert_eq!(session.prompt("k?").once("k").await.unwrap(), reply);
    drop((session, runtime));
    let runtime = builder(&model).engine(store).start().await.unwrap();
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    assert_eq!(session.prompt("k?").once("k").await.unwrap(), reply, "after a restart too");
    model.assert_clean();
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Rain {
    mm: u32,
}

/// A reply without the requested form does not count.
#[tokio::test(start_paused = true)]
async fn a_reply_that_does_not_fit_is_asked_for_again_under_its_key() {
    let model = simulator(Sequence(vec![Said::text("Much."), Said::text(r#"{"mm":7}"#)]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    assert_eq!(session.prompt("rain?").once("k").await.unwrap().text, "Much.");
    for _ in 0..3 {
        assert_eq!(session.prompt("rain?").once("k").output::<Rain>().await.unwrap().value, Rain { mm: 7 });
    }
    assert_eq!(said(&session).await, ["rain?", "Much.", "rain?", r#"{"mm":7}"#]);
    model.assert_clean();
}

/// The key's batch may begin with other entries than the prompt.
#[tokio::test(start_paused = true)]
async fn a_key_that_was_used_as_the_model_changed_gives_its_reply() {
    let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    session.prompt("a").await.unwrap();
    session.set_agent(&Agent::new("another").context_window(100_000)).await.unwrap();
    let first = session.prompt("b").once("k").await.unwrap();
    assert_eq!(session.prompt("b").once("k").await.unwrap(), first);
}

/// The guards check the recorded prompt, and that is recorded once.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_known_asks_no_guard_again() {
    let script = vec![
        Said::text("one"),
        Said::text("x").with_fault(Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() }),
        Said::text("two"),
    ];
    let (model, store) = (simulator(Sequence(script), 100_000), store());
    let asked = Arc::new(AtomicU32::new(0));
    let guarded = |allowed: u32| {
        let asked = Arc::clone(&asked);
        agent(100_000).guard_input(move |_| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            async move {
                if number < allowed { InputVerdict::Accept } else { InputVerdict::Refuse("too many".into()) }
            }
        })
    };
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = runtime.open("once", &guarded(2)).await.unwrap();
    let first = session.prompt("a").once("a").await.unwrap();
    assert_eq!(session.prompt("a").once("a").await.unwrap(), first);
    assert!(session.prompt("b").once("b").await.is_err(), "the model refused it");
    assert_eq!(session.prompt("b").once("b").await.unwrap().text, "two");
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let refused = session.prompt("c").once("c").start().await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::InputRefused { .. }), "{refused:?}");
    drop((session, runtime));
    let runtime = builder(&model).engine(store).start().await.unwrap();
    let session = runtime.open("once", &guarded(0)).await.unwrap();
    assert_eq!(session.prompt("a").once("a").await.unwrap(), first, "after a restart too");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    model.assert_clean();
}

/// The compactions of its run are part of the reply.
#[tokio::test(start_paused = true)]
async fn the_first_reply_tells_its_compactions_again() {
    let runs = Function(|_: &_, _| Said::text("word ".repeat(300)));
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 4_000);
    let runtime = builder(&model).compact_between_runs(false).start().await.unwrap();
    let session = runtime.open("once", &agent(4_000)).await.unwrap();
    let mut told = 0;
    for number in 0..30 {
        let say = || session.prompt(format!("question {number}")).once(format!("{number}"));
        let reply = say().await.unwrap();
        for compaction in &reply.compactions {
            assert!(compaction.started > Some(reply.run), "it began in its run: {compaction:?}");
        }
        told += reply.compactions.len() as u64;
        assert_eq!(say().await.unwrap(), reply);
    }
    assert_eq!(told, session.state().await.unwrap().compactions, "each is told once");
    assert!(told >= 3, "{told} compactions");
    model.assert_clean();
}

/// So are compactions between runs, which the next reply reports.
#[tokio::test(start_paused = true)]
async fn the_first_reply_tells_the_compactions_before_it_again() {
    let runs = Function(|_: &_, _| Said::text("word ".repeat(1_000)));
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    for question in ["one", "two", "three"] {
        session.prompt(question).await.unwrap();
    }
    let compacted =
        session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
    let first = session.prompt("four").once("k").await.unwrap();
    assert_eq!(first.compactions, [compacted]);
    assert_eq!(session.prompt("four").once("k").await.unwrap(), first);
    model.assert_clean();
}

/// A repetition while the first waits in the inbox or runs gets the first one's reply, or its end.
#[tokio::test(start_paused = true)]
async fn a_repeated_key_waits_for_the_first_reply() {
    let script = vec![
        Said::text("one").after_ms(60_000),
        Said::text("two").after_ms(60_000),
        Said::text("three").after_ms(60_000),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    let say = |text: &str, key: &str| session.prompt(text).once(key).into_future();
    let (first, waiting, again, waiting_again) =
        tokio::join!(say("a", "a"), say("b", "b"), say("a", "a"), say("b", "b"));
    let (first, waiting) = (first.unwrap(), waiting.unwrap());
    assert_eq!((first.text.as_str(), waiting.text.as_str()), ("one", "two"));
    assert_eq!((again.unwrap(), waiting_again.unwrap()), (first, waiting));
    assert_eq!(model.calls(), 2);

    // The first is aborted: nobody waits for ever.
    let third = tokio::spawn(say("c", "c"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let repeated = tokio::spawn(say("c", "c"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.abort();
    assert!(matches!(third.await.unwrap(), Err(Error::Aborted)));
    let repeated = repeated.await.unwrap();
    assert!(matches!(&repeated, Err(Error::Aborted)), "{repeated:?}");
    let ends = crate::support::names(&mut events).iter().filter(|name| **name == "run_end").count();
    assert_eq!(ends, 3);
    model.assert_clean();
}

/// The work on a prompt ends with the last of those who wait for it, whoever began it.
#[tokio::test(start_paused = true)]
async fn whoever_goes_away_takes_no_reply_from_another_with_the_same_key() {
    for is_queued in [false, true] {
        let model = answers_after(60_000, 100_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("once", &agent(100_000)).await.unwrap();
        if is_queued {
            session.prompt("before").start().await.unwrap().detach();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // They come in order.
        let ask = |text: &'static str| tokio::spawn(session.prompt(text).once(text).into_future());
        let a_while = || tokio::time::sleep(Duration::from_secs(1));
        let leave = async |asking: tokio::task::JoinHandle<Result<Reply>>| {
            asking.abort();
            assert!(asking.await.is_err());
            a_while().await;
        };
        let [first, second, third] = [ask("pay"), ask("pay"), ask("pay")];
        a_while().await;
        // The one that would be next has gone before.
        leave(second).await;
        leave(first).await;
        let reply = third.await.unwrap();
        assert_eq!(reply.unwrap().text, "to pay", "queued: {is_queued}");
        assert_eq!(model.calls(), 1 + u64::from(is_queued));

        // All go away, in each order.
        for order in [[0, 1], [1, 0]] {
            if is_queued {
                session.prompt("before").start().await.unwrap().detach();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let text = if order[0] == 0 { "in order" } else { "in reverse" };
            let mut asking = [Some(ask(text)), Some(ask(text))];
            a_while().await;
            for at in order {
                leave(asking[at].take().unwrap()).await;
            }
            let state = session.state().await.unwrap();
            assert_eq!((state.status == Status::Idle, state.waiting), (!is_queued, 0), "queued: {is_queued}");
            session.abort();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }

        // The caller that the work was passed on to aborts it for all, as the first one does.
        let first = ask("pass on");
        a_while().await;
        let second = session.prompt("pass on").once("pass on").start().await.unwrap();
        let third = ask("pass on");
        a_while().await;
        leave(first).await;
        second.abort();
        assert!(matches!(second.reply().await, Err(Error::Aborted)), "queued: {is_queued}");
        assert!(matches!(third.await.unwrap(), Err(Error::Aborted)), "queued: {is_queued}");

        // An abort is everybody's.
        let first = session.prompt("stop").once("stop").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let second = ask("stop");
        a_while().await;
        first.abort();
        assert!(matches!(second.await.unwrap(), Err(Error::Aborted)));
        assert!(matches!(first.reply().await, Err(Error::Aborted)));
        model.assert_clean();
    }
}
