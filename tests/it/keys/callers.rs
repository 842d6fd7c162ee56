//! Several callers of one key: each counts once it has started, whoever leaves ends only its own wait, and the abort of
//! the one that holds the work is everybody's.

use std::future::IntoFuture;
use std::time::Duration;

use greenroom::RunRequest;
use greenroom::prelude::*;

use crate::support::{agent, answers_after, runtime};

/// A session whose answers take a minute: `to PROMPT`. It may work already, so that prompts wait in its inbox.
async fn slow(is_busy: bool) -> (Runtime, SessionHandle) {
    let runtime = runtime(&answers_after(60_000, 100_000)).await;
    let session = runtime.open("once", &agent(100_000)).await.unwrap();
    if is_busy {
        session.prompt("before").start().await.unwrap().detach();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    (runtime, session)
}

fn pay(session: &SessionHandle) -> RunRequest {
    session.prompt("pay").once("pay")
}

/// The first caller is dropped before the session has read the second one's prompt, and at moments after that.
#[tokio::test(start_paused = true)]
async fn a_caller_that_has_started_keeps_the_work_alive() {
    for is_busy in [false, true] {
        for moment in 0..12 {
            let (_runtime, session) = slow(is_busy).await;
            let first = pay(&session).start().await.unwrap();
            let second = pay(&session).start().await.unwrap();
            for _ in 0..moment {
                tokio::task::yield_now().await;
            }
            drop(first);
            let reply = second.reply().await;
            assert_eq!(reply.unwrap().text, "to pay", "busy: {is_busy}, moment {moment}");
        }
    }
}

/// The second caller comes at any moment after the first one has gone, also while its run ends.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_is_repeated_while_its_run_ends_is_continued() {
    for is_aborted in [false, true] {
        for moment in 0..24 {
            let (_runtime, session) = slow(false).await;
            let mut first = pay(&session).start().await.unwrap();
            let entry = first.recorded().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if is_aborted {
                first.abort();
            } else {
                drop(first);
            }
            for _ in 0..moment {
                tokio::task::yield_now().await;
            }
            let mut second = pay(&session).start().await.unwrap();
            assert_eq!(second.recorded().await.unwrap(), entry);
            let reply = second.reply().await;
            assert_eq!(reply.unwrap().text, "to pay", "aborted: {is_aborted}, moment {moment}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_s_time_limit_ends_only_its_own_wait() {
    for is_busy in [false, true] {
        for limited in [0, 1] {
            let (_runtime, session) = slow(is_busy).await;
            let mut callers = Vec::new();
            for number in 0..3 {
                let request = pay(&session);
                let request =
                    if number == limited { request.timeout(Duration::from_secs(5)) } else { request };
                callers.push(tokio::spawn(request.into_future()));
            }
            for (number, caller) in callers.into_iter().enumerate() {
                let began = tokio::time::Instant::now();
                let reply = caller.await.unwrap();
                if number == limited {
                    assert!(matches!(reply, Err(Error::TimedOut { .. })), "busy: {is_busy}: {reply:?}");
                    let is_soon = limited != 0 || began.elapsed() < Duration::from_secs(10);
                    assert!(is_soon, "it does not wait for the others");
                } else {
                    assert_eq!(reply.unwrap().text, "to pay", "busy: {is_busy}, limited: {limited}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_abort_of_a_joined_caller_ends_only_its_own_wait() {
    for is_busy in [false, true] {
        for has_joined in [false, true] {
            let (_runtime, session) = slow(is_busy).await;
            let first = pay(&session).start().await.unwrap();
            let mut second = pay(&session).start().await.unwrap();
            if has_joined {
                second.recorded().await.unwrap();
            }
            second.abort();
            let ended = tokio::time::timeout(Duration::from_secs(1), second.reply()).await;
            let ended = ended.expect("it does not wait for the run");
            assert!(matches!(ended, Err(Error::Aborted)), "busy: {is_busy}: {ended:?}");
            assert_eq!(first.reply().await.unwrap().text, "to pay", "busy: {is_busy}");
        }
    }
}
