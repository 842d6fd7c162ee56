//! Idempotency keys: a prompt that is repeated with its key is not said again.
//!
//! Invariants: what a repeated key gives comes from the log, so it is the same after a restart.

use std::future::IntoFuture;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::store::Store;
use greenroom_simulator::{Answer as Said, ByPurpose, Fault, Function, Pace, Sequence, Summariser};
use serde_json::json;

use crate::support::{agent, builder, runtime, simulator};

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
    let store = Store::memory();
    let start = || {
        let builder = Runtime::builder().provider(model.provider()).clock_from(1_700_000_000_000);
        builder.store(store.clone()).start()
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

#[tokio::test(start_paused = true)]
async fn a_prompt_without_a_reply_says_where_it_is_and_how_its_run_ended() {
    let refused = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
    let script = vec![
        Said::text("late").after_ms(10_000),
        Said::text("x").with_fault(refused),
        Said::text("slow words that come").with_pace(Pace { chunks: 4, first_ms: 10, between_ms: 20_000 }),
        Said::text("gone on"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("a").once("runs").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut repeated = session.prompt("a").once("runs").start().await.unwrap();
    assert_eq!(repeated.recorded().await.unwrap().0, 0, "the first one's entry, while that runs");
    let first = running.await.unwrap().unwrap();
    assert_eq!((first.text.as_str(), repeated.reply().await.unwrap()), ("late", first.clone()));

    let failed = session.prompt("b").once("fails").await.unwrap_err();
    let Error::Model(failure) = failed else { panic!("{failed:?}") };
    let repeated = session.prompt("b").once("fails").await.unwrap_err();
    let Error::DuplicateKey { outcome: Some(RunOutcome::Failed(told)), first, .. } = &repeated else {
        panic!("{repeated:?}")
    };
    assert_eq!(told, &failure);
    assert!(!repeated.is_retryable());
    let said = runtime.entries("once", *first).await.unwrap();
    assert_eq!(said[0].kind.as_message().unwrap().text(), "b", "`first` is the prompt's entry");

    // One that was given up, and then resumed: its reply is that of the run that went on.
    let given_up = tokio::time::timeout(Duration::from_secs(1), session.prompt("c").once("drops")).await;
    assert!(given_up.is_err());
    let repeated = session.prompt("c").once("drops").await.unwrap_err();
    assert!(
        matches!(&repeated, Error::DuplicateKey { outcome: Some(RunOutcome::Aborted), .. }),
        "{repeated:?}"
    );
    let resumed = session.resume().await.unwrap();
    assert_eq!(resumed.text, "gone on");
    assert_eq!(session.prompt("c").once("drops").await.unwrap(), resumed);
    model.assert_clean();
}

/// The compactions of its run are a part of the reply.
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

/// One that is said again while the first waits in the inbox or runs gets the first one's reply, or its end.
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
    assert!(
        matches!(&repeated, Err(Error::DuplicateKey { outcome: Some(RunOutcome::Aborted), .. })),
        "{repeated:?}"
    );
    let ends = crate::support::names(&mut events).iter().filter(|name| **name == "run_end").count();
    assert_eq!(ends, 3);
    model.assert_clean();
}
