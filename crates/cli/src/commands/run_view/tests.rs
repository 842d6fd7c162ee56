//! Limits while a prompt is being sent, to a server that does not read it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use greenroom_server::operations::PromptSession;
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_terminal::Interrupts;
use tokio::time::Instant;

use super::{Played, SENT_WITHIN};
use crate::host;

/// Runs a prompt at a server that reads nothing, and returns the elapsed time.
async fn play_silent(timeout: Option<Duration>, interrupts: &Interrupts) -> (Played, Duration) {
    let (near, _far) = tokio::io::duplex(1_000);
    let (input, output) = tokio::io::split(near);
    let client = Client::new(input, output);
    let begun = Instant::now();
    let prompt = PromptSession::new("a", "long ".repeat(1_000));
    let events = client.events_of("a");
    let played =
        super::play(&client, events, prompt, timeout, interrupts, async {}, |_| Ok(())).await.unwrap();
    // The connection has ended: nothing else waits for the unsent data.
    client.closed().await;
    (played, begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_time_holds_while_the_prompt_is_sent() {
    let interrupts = Interrupts::new().unwrap();
    let (played, took) = play_silent(Some(Duration::from_secs(3)), &interrupts).await;
    assert_eq!(took.as_secs(), 3);
    let error = played.reply.unwrap_err();
    assert_eq!(error.kind(), Some(ProblemKind::TimedOut), "{error}");
    assert!(!played.is_accepted && !played.is_interrupted);
}

#[tokio::test(start_paused = true)]
async fn the_first_interruption_holds_while_the_prompt_is_sent() {
    let interrupts = Interrupts::new().unwrap();
    interrupts.interrupt();
    let (played, took) = play_silent(None, &interrupts).await;
    assert_eq!(took.as_secs(), SENT_WITHIN.as_secs());
    let error: ClientError = played.reply.unwrap_err();
    assert!(host::is_silent_client(&error), "{error}");
    assert!(played.is_interrupted && !played.is_accepted);
}
