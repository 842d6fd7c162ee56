//! An actor that dies is started again, after a wait that grows, three times within a minute; then its session has
//! failed, says why, and can be opened again.

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
    let mut events =
        runtime.subscribe(Filter::session("sick").named(&["session_restarted", "session_failed"]));
    let sick = runtime.open("sick", &agent(50_000)).await.unwrap();
    let well = runtime.open("well", &agent(50_000)).await.unwrap();
    assert_eq!(sick.prompt("before").await.unwrap().text, "before");
    broken.store(true, Ordering::Relaxed);

    let mut down_ms = Vec::new();
    for _ in 0..3 {
        assert!(matches!(sick.prompt("hello").await, Err(Error::Interrupted { .. })));
        let died = tokio::time::Instant::now();
        assert_eq!(well.prompt("I am").await.unwrap().text, "I am");
        assert!(sick.state().await.is_ok(), "a request waits until it is back");
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
    for turn in 0..12 {
        armed.store(true, Ordering::Relaxed);
        assert!(matches!(session.prompt(format!("{turn}")).await, Err(Error::Interrupted { .. })));
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(session.state().await.unwrap().is_unanswered);
        assert_eq!(session.resume().await.unwrap().text, turn.to_string());
    }
    assert_eq!(deaths.load(Ordering::Relaxed), 12);
    model.assert_clean();
}
