//! Keys that expire, against a server that accepts one key at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt;
use greenroom_kernel::{FailureClass, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::{HttpProvider, ModelSettings, Provider, ProviderError, Purpose, Request, ServerOptions};

/// A server that accepts requests with this key alone, and what it was asked.
struct Door {
    base_url: String,
    accepted: Arc<Mutex<String>>,
    /// The keys of all requests, with their paths.
    seen: Arc<Mutex<Vec<String>>>,
}

async fn door(accepted: &str) -> Door {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base_url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let (accepted, seen) = (Arc::new(Mutex::new(accepted.to_owned())), Arc::<Mutex<Vec<String>>>::default());
    let (right, all) = (Arc::clone(&accepted), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (right, all) = (Arc::clone(&right), Arc::clone(&all));
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                let is_whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    body.len() >= length.map_or(0, |length| length.parse::<usize>().expect("a number"))
                };
                while !is_whole(&request) {
                    let count = socket.read(&mut buffer).await.expect("a request comes");
                    request.extend_from_slice(&buffer[..count]);
                }
                let text = String::from_utf8_lossy(&request).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                let key = text.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
                let key = key.unwrap_or("none").to_owned();
                let is_right = key == *right.lock();
                all.lock().push(format!("{key} {path}"));
                let (status, kind, body) = if !is_right {
                    (
                        "401 Unauthorized",
                        "application/json",
                        format!(r#"{{"error":{{"message":"bad key {key}"}}}}"#),
                    )
                } else if path.ends_with("models") {
                    ("200 OK", "application/json", r#"{"data":[{"id":"m"}]}"#.to_owned())
                } else {
                    let chunk =
                        r#"{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
                    ("200 OK", "text/event-stream", format!("data: {chunk}\n\ndata: [DONE]\n\n"))
                };
                let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\nconnection: close\r\n");
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                socket.write_all(answer.as_bytes()).await.expect("the client reads");
            });
        }
    });
    Door { base_url, accepted, seen }
}

impl Door {
    fn take_seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }

    fn provider(&self, source: KeySource) -> HttpProvider {
        let base_url = self.base_url.parse().expect("an address");
        let options = ServerOptions { base_url, key_source: Some(source), ..ServerOptions::default() };
        HttpProvider::new(options).expect("usable options")
    }
}

/// A source of the keys `key-1-of-the-test`, `key-2-of-the-test` …, and how many it gave.
fn numbered() -> (KeySource, Arc<AtomicUsize>) {
    let given = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&given);
    let source = KeySource::new(move || {
        let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            tokio::task::yield_now().await;
            Ok(ApiKey::from(key(number)))
        }
    });
    (source, given)
}

fn key(number: usize) -> String {
    format!("key-{number}-of-the-test")
}

async fn asked(provider: &HttpProvider) -> Result<(), ProviderError> {
    let request = Request {
        model: "m".to_owned(),
        system: None,
        messages: vec![Arc::new(Message::user("Hi."))].into(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: String::new(),
    };
    let mut stream = provider.stream(request).await?;
    while let Some(event) = stream.next().await {
        event?;
    }
    Ok(())
}

#[tokio::test]
async fn an_expired_key_is_replaced_once_and_the_request_sent_again() {
    let (source, given) = numbered();
    let door = door(&key(1)).await;
    let provider = door.provider(source);
    asked(&provider).await.expect("the first key");
    asked(&provider).await.expect("the same key");
    assert_eq!(given.load(Ordering::SeqCst), 1);
    *door.accepted.lock() = key(2);
    asked(&provider).await.expect("the second key");
    let first = format!("{} /v1/chat/completions", key(1));
    let second = format!("{} /v1/chat/completions", key(2));
    assert_eq!(door.take_seen(), [&*first, &first, &first, &second]);
    // Ten calls at once that meet an expired key ask for one key.
    *door.accepted.lock() = key(3);
    let calls = futures_util::future::join_all((0..10).map(|_| asked(&provider))).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(given.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_key_that_is_refused_is_asked_for_once() {
    let given = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&given);
    let source = KeySource::new(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok(ApiKey::from("always-the-same-key")) }
    });
    let door = door("another").await;
    let provider = door.provider(source);
    for _ in 0..3 {
        let error = asked(&provider).await.expect_err("it is refused");
        assert_eq!((error.failure.class, error.failure.status), (FailureClass::Auth, Some(401)));
        assert!(!format!("{error:?}").contains("always-the-same-key"), "{error:?}");
    }
    assert_eq!(given.load(Ordering::SeqCst), 2, "the first time, and once because it was refused");
    assert_eq!(door.take_seen().len(), 3, "the same key is not sent again for the same call");
}

#[tokio::test]
async fn a_key_is_replaced_when_it_is_old() {
    let (source, given) = numbered();
    let door = door(&key(1)).await;
    let provider = door.provider(source.ttl(Duration::ZERO));
    asked(&provider).await.expect("the first key");
    *door.accepted.lock() = key(2);
    provider.served().await.expect("the list of models needs a key too");
    assert_eq!(given.load(Ordering::SeqCst), 2);
    let seen = door.take_seen();
    assert_eq!(seen, [format!("{} /v1/chat/completions", key(1)), format!("{} /v1/models", key(2))]);
}

#[tokio::test]
async fn a_source_that_fails_says_so() {
    let door = door("k").await;
    for reason in ["the helper said no", "two\nlines"] {
        let provider = door.provider(KeySource::new(move || async move { Err(reason.to_owned()) }));
        let error = asked(&provider).await.expect_err("there is no key");
        assert_eq!(error.failure.class, FailureClass::Auth);
        let expected = format!("there is no API key: {}", reason.replace('\n', " "));
        assert_eq!(error.failure.message, expected);
        assert!(provider.served().await.is_err());
    }
    let provider = door.provider(KeySource::new(|| async { Ok(ApiKey::from("bad\nkey-in-two-lines")) }));
    let error = asked(&provider).await.expect_err("a header cannot have it");
    assert!(error.failure.message.contains("characters"), "{error}");
    assert!(!format!("{error:?}").contains("two-lines"), "{error:?}");
    assert!(door.take_seen().is_empty(), "nothing was sent");
}

/// A source that gives `one`, then what `second` says, then `two`.
fn interrupted(second: fn() -> BoxFuture<'static, Result<ApiKey, String>>) -> Keys {
    let asked = AtomicUsize::new(0);
    Keys::new(Some(KeySource::new(move || match asked.fetch_add(1, Ordering::SeqCst) {
        0 => std::future::ready(Ok(ApiKey::from("one"))).boxed(),
        1 => second(),
        _ => std::future::ready(Ok(ApiKey::from("two"))).boxed(),
    })))
}

#[tokio::test]
async fn a_refresh_that_failed_is_repeated_by_the_next_call() {
    let keys = interrupted(|| std::future::ready(Err("the token service is away".to_owned())).boxed());
    let one = keys.current().await.expect("a key").expect("a source");
    assert_eq!(keys.in_place_of(&one).await, Err("the token service is away".to_owned()));
    assert_eq!(keys.current().await, Ok(Some(one.clone())));
    assert_eq!(keys.in_place_of(&one).await, Ok(Some(ApiKey::from("two"))));
    assert_eq!(keys.current().await, Ok(Some(ApiKey::from("two"))));
}

#[tokio::test]
async fn a_refresh_that_was_cancelled_is_repeated_by_the_next_call() {
    let keys = interrupted(|| std::future::pending().boxed());
    let one = keys.current().await.expect("a key").expect("a source");
    assert!(keys.in_place_of(&one).now_or_never().is_none(), "it waits and is dropped");
    assert_eq!(keys.in_place_of(&one).await, Ok(Some(ApiKey::from("two"))));
}
