//! The HTTP service under async-openai: one exchange, and everything that it said kept.
//!
//! The library's own way of sending retries by itself, follows redirects and loses the status of most refusals.
//! This service does neither: anything but a 2xx becomes a [`TransportError`] with status, headers and body.
//! An answer is handed on as an event stream that is safe to parse: at most so many bytes, whole lines of valid
//! UTF-8 and bounded length, the last event closed, and a plain JSON answer turned into one event.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, LOCATION};
use tokio::sync::Notify;

/// How much of an error's body is kept, in bytes.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 16 * 1024;
/// How long a refusal's body may take, in milliseconds: the status is known already and must not be lost.
const ERROR_BODY_TIMEOUT_MS: u64 = 5_000;
/// How much of an answer's beginning is kept, to tell what it was if no event is found in it, in bytes.
const SAMPLE_BYTES_MAX: usize = 2 * 1024;

/// How long one line of an event stream may be, in bytes: a server may send all that a model says in one piece.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How far the body may be ahead of the stream's reader, in bytes. The parser between them hands on through a channel
/// without a bound, and an event takes some ten times as much there as on the wire: 64 MiB became 820 MiB.
const AHEAD_BYTES_MAX: usize = 256 * 1024;

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// The server answered, but not with a 2xx.
    #[error("status {status}")]
    Status { status: u16, headers: Box<HeaderMap>, body: String },
    /// A 3xx: not followed, since the key goes only to the host it was given for.
    #[error("a redirect to {location}")]
    Redirect { status: u16, location: String },
    /// A web page instead of an answer.
    #[error("a web page")]
    WebPage { status: u16, body: String },
    /// The answer was larger than the limit.
    #[error("an answer of more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// A line of the answer had no end.
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// No connection, or it broke before the answer began.
    #[error(transparent)]
    Send(reqwest::Error),
}

/// What was seen of one exchange; the stream's reader asks when something is missing.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    state: Mutex<ExchangeState>,
    /// The body is as far ahead as it may be, and asks whether all was read.
    asked: Notify,
    /// All was read: the body goes on.
    read: Notify,
}

#[derive(Debug, Default)]
struct ExchangeState {
    sample: Vec<u8>,
    broken: Option<Break>,
    /// Bytes of it were no text, and were replaced.
    is_repaired: bool,
}

/// Why an answer ended in the middle.
#[derive(Debug, Clone)]
pub(super) enum Break {
    /// The connection broke.
    Connection(String),
    /// The answer was given up for its size.
    Size(String),
}

impl Exchange {
    /// The beginning of the answer's body.
    pub(super) fn sample(&self) -> String {
        String::from_utf8_lossy(&self.lock().sample).into_owned()
    }

    /// Why the answer ended in the middle, if it did.
    pub(super) fn broken(&self) -> Option<Break> {
        self.lock().broken.clone()
    }

    /// Whether bytes of the answer were no text, and were replaced.
    pub(super) fn is_repaired(&self) -> bool {
        self.lock().is_repaired
    }

    /// The next of `chunks`, which come from this exchange's body. Only while it is waited for does the body go on.
    pub(super) async fn next<T>(&self, chunks: &mut BoxStream<'static, T>) -> Option<T> {
        loop {
            tokio::select! {
                biased;
                chunk = chunks.next() => return chunk,
                () = self.asked.notified() => self.read.notify_one(),
            }
        }
    }

    /// Waits until all that was handed on is read.
    async fn all_read(&self) {
        self.asked.notify_one();
        self.read.notified().await;
    }

    fn saw(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let room = SAMPLE_BYTES_MAX.saturating_sub(state.sample.len());
        state.sample.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    fn broke(&self, why: Break) {
        self.lock().broken = Some(why);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service for one exchange, over the provider's shared client.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    pub(super) client: reqwest::Client,
    pub(super) exchange: Arc<Exchange>,
    pub(super) response_bytes_max: usize,
}

impl tower::Service<HttpRequestFactory> for Transport {
    type Response = reqwest::Response;
    type Error = OpenAIError;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, OpenAIError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenAIError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, factory: HttpRequestFactory) -> Self::Future {
        let transport = self.clone();
        Box::pin(async move {
            let request = factory.build().await?;
            transport.send(request).await.map_err(|error| OpenAIError::Boxed(Box::new(error)))
        })
    }
}

impl Transport {
    async fn send(self, request: reqwest::Request) -> Result<reqwest::Response, TransportError> {
        let response = self.client.execute(request).await.map_err(TransportError::Send)?;
        let status = response.status();
        if status.is_redirection() {
            let location =
                response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            return Err(TransportError::Redirect { status: status.as_u16(), location: location.to_owned() });
        }
        if !status.is_success() {
            let headers = Box::new(response.headers().clone());
            let body = error_body(response).await;
            return Err(TransportError::Status { status: status.as_u16(), headers, body });
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
        if content_type.contains("html") {
            let body = error_body(response).await;
            return Err(TransportError::WebPage { status: status.as_u16(), body });
        }
        let events = if content_type.contains("json") {
            let body = self.whole_body(response).await?;
            stream::iter([Ok(json_as_event(&body))]).boxed()
        } else {
            self.event_bytes(response)
        };
        let mut answer = http::Response::new(reqwest::Body::wrap_stream(events));
        *answer.status_mut() = status;
        Ok(answer.into())
    }

    async fn whole_body(&self, response: reqwest::Response) -> Result<Vec<u8>, TransportError> {
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(TransportError::Send)?;
            self.exchange.saw(&chunk);
            if body.len().saturating_add(chunk.len()) > self.response_bytes_max {
                return Err(TransportError::TooLarge { limit_bytes: self.response_bytes_max });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The body as whole lines of valid UTF-8 that end with an empty one: one bad byte, or a last event that is
    /// not closed, would otherwise hold back all that follows or precedes it.
    fn event_bytes(&self, response: reqwest::Response) -> BoxStream<'static, Result<Bytes, std::io::Error>> {
        let body = EventBody {
            chunks: response.bytes_stream().boxed(),
            lines: WholeLines::default(),
            limit_bytes: self.response_bytes_max,
            left_bytes: self.response_bytes_max,
            ahead_bytes: 0,
            exchange: Arc::clone(&self.exchange),
            is_over: false,
        };
        stream::unfold(body, |mut body| async move { body.next().await.map(|item| (item, body)) }).boxed()
    }
}

/// The body of an event stream, as it comes.
struct EventBody {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    lines: WholeLines,
    limit_bytes: usize,
    left_bytes: usize,
    /// What was handed on and may not have been read.
    ahead_bytes: usize,
    exchange: Arc<Exchange>,
    is_over: bool,
}

impl EventBody {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        while !self.is_over {
            if self.ahead_bytes >= AHEAD_BYTES_MAX {
                self.exchange.all_read().await;
                self.ahead_bytes = 0;
            }
            let lines = match self.chunks.next().await {
                Some(Ok(chunk)) => self.take(chunk),
                Some(Err(error)) => Err(Break::Connection(root_cause(&error))),
                None => {
                    self.is_over = true;
                    Ok(self.lines.take(Bytes::from_static(b"\n\n")))
                }
            };
            match lines {
                Ok(lines) if lines.is_empty() => {}
                Ok(lines) => return Some(Ok(lines)),
                Err(why) => {
                    self.is_over = true;
                    self.exchange.broke(why);
                    // The reader asks the exchange what it was.
                    return Some(Err(std::io::Error::other("the answer broke off")));
                }
            }
        }
        None
    }

    fn take(&mut self, chunk: Bytes) -> Result<Bytes, Break> {
        self.exchange.saw(&chunk);
        self.ahead_bytes += chunk.len();
        let too_large = |error: TransportError| Break::Size(error.to_string());
        let limit_bytes = self.limit_bytes;
        let left_bytes = self.left_bytes.checked_sub(chunk.len());
        self.left_bytes = left_bytes.ok_or_else(|| too_large(TransportError::TooLarge { limit_bytes }))?;
        let lines = self.lines.take(chunk);
        if self.lines.is_repaired {
            self.exchange.lock().is_repaired = true;
        }
        if self.lines.held.len() > LINE_BYTES_MAX {
            return Err(too_large(TransportError::LineTooLong));
        }
        Ok(lines)
    }
}

/// At most [`ERROR_BODY_BYTES_MAX`] of a refusal's body, or what of it came in time.
async fn error_body(response: reqwest::Response) -> String {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    let read = async {
        while let Some(Ok(chunk)) = chunks.next().await {
            let room = ERROR_BODY_BYTES_MAX.saturating_sub(body.len());
            body.extend_from_slice(&chunk[..room.min(chunk.len())]);
            if chunk.len() >= room {
                break;
            }
        }
    };
    // Whether it was whole or cut, what came is kept.
    let _whole = tokio::time::timeout(Duration::from_millis(ERROR_BODY_TIMEOUT_MS), read).await;
    String::from_utf8_lossy(&body).into_owned()
}

/// A whole JSON answer as one event. JSON text holds no line breaks inside its strings, so those between its
/// tokens can become spaces.
fn json_as_event(body: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(body.len().saturating_add(8));
    event.extend_from_slice(b"data: ");
    let text = String::from_utf8_lossy(body);
    event.extend(text.trim().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

/// The innermost cause of an error: what a person wants to read.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // "Connection refused (os error 111)": the number says nothing more.
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// Holds a line back until it ends, and replaces what is not UTF-8. The parser begins anew with all that it holds
/// at each piece that comes, so that a line in many pieces would cost the square of its length.
#[derive(Debug, Default)]
struct WholeLines {
    held: Vec<u8>,
    /// Something was replaced.
    is_repaired: bool,
}

impl WholeLines {
    /// The lines that are whole with this chunk; nothing, if none is.
    fn take(&mut self, mut chunk: Bytes) -> Bytes {
        let last_end = chunk.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
        let ended = chunk.split_to(last_end.map_or(0, |at| at + 1));
        let whole = if self.held.is_empty() || ended.is_empty() {
            ended
        } else {
            self.held.extend_from_slice(&ended);
            Bytes::from(std::mem::take(&mut self.held))
        };
        self.held.extend_from_slice(&chunk);
        match String::from_utf8_lossy(&whole) {
            Cow::Borrowed(_) => whole,
            Cow::Owned(repaired) => {
                self.is_repaired = true;
                Bytes::from(repaired)
            }
        }
    }
}

#[cfg(test)]
mod tests;
