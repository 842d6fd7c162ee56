//! Idempotency keys: a prompt that is repeated with its key is not said again.
//!
//! Invariants: what a repeated key gives comes from the log, so it is the same after a restart.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom::store::Store;
use greenroom_simulator::{Fault, Pace, Reply as Said, Sequence};
use serde_json::json;

use crate::support::{agent, runtime, simulator};

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
    let repeated = session.prompt("a").once("runs").await.unwrap_err();
    assert!(
        matches!(&repeated, Error::DuplicateKey { first, outcome: None, .. } if first.0 == 0),
        "{repeated:?}"
    );
    assert!(repeated.is_retryable() && repeated.to_string().ends_with("its run has not ended yet"));
    running.await.unwrap().unwrap();

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
    let repeated = loop {
        match session.prompt("c").once("drops").await.unwrap_err() {
            Error::DuplicateKey { outcome: None, .. } => tokio::time::sleep(Duration::from_millis(10)).await,
            other => break other,
        }
    };
    assert!(
        matches!(&repeated, Error::DuplicateKey { outcome: Some(RunOutcome::Aborted), .. }),
        "{repeated:?}"
    );
    let resumed = session.resume().await.unwrap();
    assert_eq!(resumed.text, "gone on");
    assert_eq!(session.prompt("c").once("drops").await.unwrap(), resumed);
    model.assert_clean();
}
