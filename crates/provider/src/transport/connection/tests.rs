//! How many connections calls take, and when a request is sent a second time.

use std::sync::atomic::AtomicUsize;

use futures_util::StreamExt;
use futures_util::future::join_all;
use greenroom_kernel::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::*;
use crate::transport::HttpProvider;
use crate::{ModelSettings, Provider, Purpose, Request};

#[test]
fn only_a_reused_connection_that_breaks_at_once_was_dead() {
    let almost = BREAKS_WITHIN.saturating_sub(Duration::from_millis(1));
    for (was_opened, after, expected) in [
        (false, Duration::ZERO, true),
        (false, almost, true),
        (false, BREAKS_WITHIN, false),
        (true, Duration::ZERO, false),
    ] {
        assert_eq!(is_stale(was_opened, after), expected, "{was_opened} {after:?}");
    }
}

/// A server that answers only when so many calls are there at once. Gives its URL, and how many connections were made.
async fn server_for(calls: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let (all, connections) = (Arc::new(Barrier::new(calls)), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                let mut request = Vec::new();
                // A request is small, and ends with the brackets of its body.
                while socket.read_buf(&mut request).await.unwrap_or(0) > 0 {
                    if !request.ends_with(b"}}") {
                        continue;
                    }
                    request.clear();
                    all.wait().await;
                    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}]}\n\n\
                        data: [DONE]\n\n";
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
                    let answer = format!("{head}: {}\r\n\r\n{body}", body.len());
                    socket.write_all(answer.as_bytes()).await.expect("the client reads");
                }
            });
        }
    });
    (base_url, connections)
}

async fn ask(provider: &HttpProvider) {
    let request = Request {
        model: "m".to_owned(),
        system: None,
        messages: vec![Arc::new(Message::user("go on"))].into(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: String::new(),
    };
    let mut stream = provider.stream(request).await.expect("a stream");
    while let Some(event) = stream.next().await {
        event.expect("a whole answer");
    }
}

#[tokio::test]
async fn many_calls_at_once_use_the_connections_of_those_before() {
    const CALLS: usize = 100;
    let (base_url, connections) = server_for(CALLS).await;
    let base_url = base_url.parse().expect("a URL");
    let provider =
        HttpProvider::new(ServerOptions { base_url, ..ServerOptions::default() }).expect("good options");
    // A connection is free only a moment after its answer was read, so a round may still make a few. Some round makes none,
    // unless fewer are kept than there are calls: then each round makes new ones.
    for _ in 0..20 {
        let before = connections.load(Ordering::SeqCst);
        join_all((0..CALLS).map(|_| ask(&provider))).await;
        if connections.load(Ordering::SeqCst) == before {
            return;
        }
    }
    panic!("{} connections for {CALLS} calls at once", connections.load(Ordering::SeqCst));
}
