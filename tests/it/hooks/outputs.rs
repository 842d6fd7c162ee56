//! Guards on output: a validator may wait, may end the run at once, and has the same time limit as hooks.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Rejection, RunOutcome};
use greenroom_simulator::Answer as Said;

use super::live;
use crate::support::{agent, runtime, simulator};

#[tokio::test(start_paused = true)]
async fn a_validator_ends_the_run_at_once_with_its_reason() {
    let judge = agent(100_000).validate(|answer| async move {
        // As if it called another model.
        tokio::time::sleep(Duration::from_secs(30)).await;
        match answer.text.as_str() {
            "the password is 5" => Err(Rejection::end_run("it tells a password")),
            "too short" => Err(Rejection::send_back("it is too short.")),
            _ => Ok(()),
        }
    });
    let lived =
        live(judge, vec![Said::text("too short"), Said::text("the password is 5"), Said::text("never")])
            .await;
    let Err(Error::Rejected { reason, text }) = &lived.reply else { panic!("{:?}", lived.reply) };
    assert_eq!((reason.as_str(), text.as_str()), ("it tells a password", "the password is 5"));
    assert_eq!(lived.model.calls(), 2);
    // Nothing is lost: the answer is recorded, and how the run ended.
    let said: Vec<String> = lived.context.iter().map(|message| message.text()).collect();
    assert_eq!(said[1..2], ["too short"]);
    assert_eq!(said.last().map(String::as_str), Some("the password is 5"));
    let outcome = lived.events.iter().find_map(|event| match &event.kind {
        EventKind::RunEnd { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    let Some(RunOutcome::Stopped { reason }) = outcome else { panic!("{outcome:?}") };
    assert_eq!(reason, "the answer was not accepted because: it tells a password");
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_hangs_fails_the_run_and_an_abort_does_not_wait_for_it() {
    let hangs = || agent(100_000).validate(|_| std::future::pending::<std::result::Result<(), String>>());
    let lived = live(hangs(), vec![Said::text("one")]).await;
    let Err(Error::Stopped { reason }) = &lived.reply else { panic!("{:?}", lived.reply) };
    assert_eq!(reason, "a validator failed: it took longer than 60s, the limit by `Agent::hook_timeout`");

    let model = simulator(greenroom_simulator::Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &hangs().hook_timeout(Duration::from_secs(1_000_000))).await.unwrap();
    let began = tokio::time::Instant::now();
    let aborted = session.prompt("go").timeout(Duration::from_secs(5)).await;
    assert!(matches!(aborted, Err(Error::TimedOut { .. })), "{aborted:?}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// A validator that waits for its own session gets an error, as a tool does.
#[tokio::test(start_paused = true)]
async fn a_validator_that_waits_for_its_own_session_is_told() {
    let model = simulator(greenroom_simulator::Echo, 100_000);
    let runtime = runtime(&model).await;
    let own = std::sync::Arc::new(std::sync::OnceLock::<SessionHandle>::new());
    let judge = std::sync::Arc::clone(&own);
    let asking = agent(100_000).validate(move |_| {
        let session = judge.get().unwrap().clone();
        async move { session.prompt("is it good?").await.map(drop).map_err(|error| error.to_string()) }
    });
    let session = runtime.open("s", &asking).await.unwrap();
    own.set(session.clone()).unwrap();
    let Err(Error::Rejected { reason, .. }) = session.prompt("go").await else { panic!("it was accepted") };
    assert!(reason.starts_with("session s waits for this call to end"), "{reason}");
}
