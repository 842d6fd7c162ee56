//! The deadlines of a stream, without a socket and with a clock that is moved by hand where time may be paused.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, Stream};
use tokio::time::{Instant, sleep};

use super::*;
use crate::openai::{OpenAi, OpenAiOptions};

const FIRST: Duration = Duration::from_secs(20);
const IDLE: Duration = Duration::from_secs(3);

fn reader(chunks: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static, first: Duration) -> Reader {
    let options = OpenAiOptions {
        base_url: "http://localhost/v1".parse().expect("a URL"),
        first_event_timeout: first,
        idle_timeout: IDLE,
        ..OpenAiOptions::default()
    };
    let server = OpenAi::new(options).expect("good options").server;
    Reader::new(Body::events(chunks, usize::MAX), deadline_after(first), String::new(), Vec::new(), server)
}

fn text(text: &str) -> Bytes {
    Bytes::from(format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"))
}

/// Chunks, each after a wait, and then silence.
fn after(waits: Vec<(Duration, Bytes)>) -> impl Stream<Item = reqwest::Result<Bytes>> + Send {
    let chunks = stream::iter(waits).then(|(wait, chunk)| async move {
        sleep(wait).await;
        Ok(chunk)
    });
    chunks.chain(stream::pending())
}

/// How many pieces came, and when the stream failed.
async fn failed(mut reader: Reader) -> (usize, Duration, String) {
    let began = Instant::now();
    let mut pieces = 0;
    loop {
        match reader.next().await.expect("it ends with an error") {
            Ok(_) => pieces += 1,
            Err(error) => return (pieces, began.elapsed(), error.failure.message),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_piece_moves_the_deadline_and_silence_does_not() {
    let second = Duration::from_secs(1);
    // Each piece comes in time, all of them take longer than any limit.
    let waits = vec![(2 * second, text("a")); 30];
    let (pieces, took, message) = failed(reader(after(waits), FIRST)).await;
    assert_eq!((pieces, took), (30, 60 * second + IDLE), "{message}");
    assert!(message.contains("nothing new for 3 s"), "{message}");
    // The first piece may take longer than the others; one that comes late counts as none.
    let (pieces, took, _) = failed(reader(after(vec![(19 * second, text("a"))]), FIRST)).await;
    assert_eq!((pieces, took), (1, 19 * second + IDLE));
    let (pieces, took, message) = failed(reader(after(vec![(21 * second, text("a"))]), FIRST)).await;
    assert_eq!((pieces, took), (0, FIRST));
    assert!(message.contains("no answer from") && message.contains("within 20 s"), "{message}");
    // Pings and roles move nothing.
    let role = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n");
    let waits = [text("a"), Bytes::from_static(b": ping\n\n"), role].map(|chunk| (second, chunk)).to_vec();
    let (pieces, took, _) = failed(reader(after(waits), FIRST)).await;
    assert_eq!((pieces, took), (1, second + IDLE));
}

/// The clock is the real one: paused time stands still while there is something to do.
#[tokio::test]
async fn pings_that_come_without_a_pause_do_not_hold_the_deadline_up() {
    let limit = Duration::from_millis(50);
    let pings = stream::repeat_with(|| Ok(Bytes::from_static(b": ping\n\n")));
    let (pieces, took, message) = failed(reader(pings, limit)).await;
    assert_eq!(pieces, 0);
    assert!(took >= limit && message.contains("within 50 ms"), "{message}");
}
