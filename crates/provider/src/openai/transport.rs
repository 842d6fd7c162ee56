//! The HTTP service under async-openai: sends one request, and makes the response safe to parse.
//!
//! async-openai's own client retries, follows redirects and drops the status of most refusals. This service sends the
//! request as `connection` does, and anything but a 2xx becomes a [`TransportError`] with status, headers and body.
//!
//! Invariants: the body that is handed on is an event stream of bounded size, in whole lines of valid UTF-8 and bounded
//! length, and its last event is closed; a plain JSON answer becomes one event; and the body is never far ahead of
//! the reader.

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

use super::Server;

/// How much of a refusal's body is kept, in bytes.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 16 * 1024;
/// How long a refusal's body may take, in milliseconds. Its status is known already and must not be lost.
const ERROR_BODY_TIMEOUT_MS: u64 = 5_000;
/// How much of an answer's beginning is kept, in bytes, for the error message if there is no event in it.
const SAMPLE_BYTES_MAX: usize = 2 * 1024;

/// The longest line of an event stream, in bytes. A server may send a whole answer in one line.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How far the body may be ahead of the stream's reader, in bytes. The parser between them uses an unbounded channel,
/// where an event takes some ten times as much memory as on the wire: 64 MiB were measured to become 820 MiB.
const READ_AHEAD_BYTES_MAX: usize = 256 * 1024;

/// Why a request got no stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransportError {
    /// The server answered, but not with a 2xx.
    #[error("status {status}")]
    Status { status: u16, headers: Box<HeaderMap>, body: String },
    /// The server answered with a 3xx, which is not followed because the key is only for the host it was given for.
    #[error("a redirect to {location}")]
    Redirect { status: u16, location: String },
    /// A web page instead of an answer.
    #[error("a web page")]
    WebPage { status: u16, body: String },
    /// The answer was larger than the limit.
    #[error("an answer of more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// A line of the answer was longer than the limit.
    #[error("a line of more than {LINE_BYTES_MAX} bytes")]
    LineTooLong,
    /// No connection, or it broke before the answer began.
    #[error(transparent)]
    Send(reqwest::Error),
}

/// What the transport and the stream's reader tell each other about one request and its response.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    state: Mutex<ExchangeState>,
    /// The body waits, because it is as far ahead as it may be.
    body_waits: Notify,
    /// The reader has read everything, so the body continues.
    reader_waits: Notify,
}

#[derive(Debug, Default)]
struct ExchangeState {
    /// The beginning of the body.
    sample: Vec<u8>,
    interruption: Option<Interruption>,
    /// Whether the body had bytes that are not UTF-8 and were replaced.
    had_invalid_utf8: bool,
}

/// Why an answer ended in the middle, with the cause as text.
#[derive(Debug, Clone)]
pub(super) enum Interruption {
    /// The connection broke.
    Connection(String),
    /// The answer was given up because of its size.
    TooLarge(String),
}

impl Exchange {
    /// The beginning of the answer's body.
    pub(super) fn sample(&self) -> String {
        String::from_utf8_lossy(&self.lock().sample).into_owned()
    }

    /// Why the answer ended in the middle, if it did.
    pub(super) fn interruption(&self) -> Option<Interruption> {
        self.lock().interruption.clone()
    }

    /// Whether the answer had bytes that are not UTF-8 and were replaced.
    pub(super) fn had_invalid_utf8(&self) -> bool {
        self.lock().had_invalid_utf8
    }

    /// The next of `chunks`, which come from this exchange's body. A body that waits continues while the reader waits
    /// here.
    pub(super) async fn next<T>(&self, chunks: &mut BoxStream<'static, T>) -> Option<T> {
        loop {
            tokio::select! {
                biased;
                chunk = chunks.next() => return chunk,
                () = self.body_waits.notified() => self.reader_waits.notify_one(),
            }
        }
    }

    /// Waits until the reader has read everything that was handed on.
    async fn wait_until_read(&self) {
        self.body_waits.notify_one();
        self.reader_waits.notified().await;
    }

    /// Adds to the sample, up to its limit.
    fn add_to_sample(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let room = SAMPLE_BYTES_MAX.saturating_sub(state.sample.len());
        state.sample.extend_from_slice(&bytes[..room.min(bytes.len())]);
    }

    fn interrupt(&self, why: Interruption) {
        self.lock().interruption = Some(why);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service for one exchange with the server.
#[derive(Debug, Clone)]
pub(super) struct Transport {
    pub(super) server: Arc<Server>,
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
        let response = self.server.execute(request).await.map_err(TransportError::Send)?;
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
            self.exchange.add_to_sample(&chunk);
            if body.len().saturating_add(chunk.len()) > self.response_bytes_max {
                return Err(TransportError::TooLarge { limit_bytes: self.response_bytes_max });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The body as whole lines of valid UTF-8, with an empty line at the end. Otherwise the parser would drop all that
    /// follows an invalid byte, and a last event that is not closed.
    fn event_bytes(&self, response: reqwest::Response) -> BoxStream<'static, Result<Bytes, std::io::Error>> {
        let body = EventBody {
            chunks: response.bytes_stream().boxed(),
            lines: LineBuffer::default(),
            limit_bytes: self.response_bytes_max,
            left_bytes: self.response_bytes_max,
            unread_bytes: 0,
            exchange: Arc::clone(&self.exchange),
            is_over: false,
        };
        stream::unfold(body, |mut body| async move { body.next().await.map(|item| (item, body)) }).boxed()
    }
}

/// The body of an event stream, which is handed on as it arrives.
struct EventBody {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    lines: LineBuffer,
    limit_bytes: usize,
    left_bytes: usize,
    /// How much was handed on since the reader was last known to have read everything.
    unread_bytes: usize,
    exchange: Arc<Exchange>,
    is_over: bool,
}

impl EventBody {
    async fn next(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        while !self.is_over {
            if self.unread_bytes >= READ_AHEAD_BYTES_MAX {
                self.exchange.wait_until_read().await;
                self.unread_bytes = 0;
            }
            let lines = match self.chunks.next().await {
                Some(Ok(chunk)) => self.take(chunk),
                Some(Err(error)) => Err(Interruption::Connection(root_cause(&error))),
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
                    self.exchange.interrupt(why);
                    // The reader gets the cause from the exchange.
                    return Some(Err(std::io::Error::other("the answer broke off")));
                }
            }
        }
        None
    }

    fn take(&mut self, chunk: Bytes) -> Result<Bytes, Interruption> {
        self.exchange.add_to_sample(&chunk);
        self.unread_bytes += chunk.len();
        let too_large = |error: TransportError| Interruption::TooLarge(error.to_string());
        let limit_bytes = self.limit_bytes;
        let left_bytes = self.left_bytes.checked_sub(chunk.len());
        self.left_bytes = left_bytes.ok_or_else(|| too_large(TransportError::TooLarge { limit_bytes }))?;
        let lines = self.lines.take(chunk);
        if self.lines.had_invalid_utf8 {
            self.exchange.lock().had_invalid_utf8 = true;
        }
        if self.lines.partial.len() > LINE_BYTES_MAX {
            return Err(too_large(TransportError::LineTooLong));
        }
        Ok(lines)
    }
}

/// The part of a refusal's body that arrives in time, at most [`ERROR_BODY_BYTES_MAX`].
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
    // Whether or not the body was complete, the part that arrived is kept.
    let _complete = tokio::time::timeout(Duration::from_millis(ERROR_BODY_TIMEOUT_MS), read).await;
    String::from_utf8_lossy(&body).into_owned()
}

/// A whole JSON answer as one event. JSON has line breaks only between its tokens, so they can become spaces.
fn json_as_event(body: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(body.len().saturating_add(8));
    event.extend_from_slice(b"data: ");
    let text = String::from_utf8_lossy(body);
    event.extend(text.trim().bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

/// The text of an error's innermost cause, for the user.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // "Connection refused (os error 111)": the number adds nothing.
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// Collects chunks into whole lines and replaces bytes that are not UTF-8.
///
/// The parser scans everything that it holds again at each piece, so a line in many pieces would take time
/// proportional to the square of its length.
#[derive(Debug, Default)]
struct LineBuffer {
    /// The beginning of a line that has not ended.
    partial: Vec<u8>,
    /// Whether bytes were replaced.
    had_invalid_utf8: bool,
    /// Whether a line was handed on.
    has_begun: bool,
}

impl LineBuffer {
    /// Adds a chunk and returns the lines that it completes, which may be none.
    fn take(&mut self, mut chunk: Bytes) -> Bytes {
        let last_end = chunk.iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
        let ended = chunk.split_to(last_end.map_or(0, |at| at + 1));
        let whole = if self.partial.is_empty() || ended.is_empty() {
            ended
        } else {
            self.partial.extend_from_slice(&ended);
            Bytes::from(std::mem::take(&mut self.partial))
        };
        self.partial.extend_from_slice(&chunk);
        let whole = self.without_mark(whole);
        match String::from_utf8_lossy(&whole) {
            Cow::Borrowed(_) => whole,
            Cow::Owned(repaired) => {
                self.had_invalid_utf8 = true;
                Bytes::from(repaired)
            }
        }
    }
}

impl LineBuffer {
    /// The lines without a mark of byte order in front of the first, in which the parser would panic.
    fn without_mark(&mut self, mut lines: Bytes) -> Bytes {
        const MARK: &[u8] = "\u{feff}".as_bytes();
        if !lines.is_empty() && !std::mem::replace(&mut self.has_begun, true) {
            while lines.starts_with(MARK) {
                lines = lines.split_off(MARK.len());
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests;
