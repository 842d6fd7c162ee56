//! Sends one request, and sorts the answers to it.
//!
//! async-openai's own service retries, follows redirects and drops the status of most refusals, and its reading of
//! event streams costs more than everything else (docs/adr/0016). So it makes the request (`template`), which is sent as
//! `connection` does. Anything but a 2xx becomes a [`TransportError`] with status, headers and body.
//!
//! Invariants: a plain JSON answer, and any answer but an event stream where none was asked for, is read as a whole,
//! within the limits of size.

use std::time::Duration;

use async_openai::error::OpenAIError;
use bytes::Bytes;
use futures_util::stream::StreamExt;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION};

use super::Server;
use super::body::{Body, compression};

/// How much of a refusal's body is kept, in bytes.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 16 * 1024;
/// How long a refusal's body may take, in milliseconds. Its status is known already and must not be lost.
const ERROR_BODY_TIMEOUT_MS: u64 = 5_000;

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
    /// The answer is compressed, which was not asked for.
    #[error("a compressed answer ({encoding})")]
    Compressed { encoding: String },
    /// The answer was larger than the limit.
    #[error("an answer of more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// The request could not be made.
    #[error(transparent)]
    Make(OpenAIError),
    /// No connection, or it broke before the answer began.
    #[error(transparent)]
    Send(reqwest::Error),
}

impl Server {
    /// Sends a request with this body. Gives the answer, as far as its head has come.
    ///
    /// # Errors
    /// It could not be made, or there is no answer to it.
    pub(super) async fn send(&self, body: Bytes) -> Result<Body, TransportError> {
        let response = self.execute(body).await?;
        self.sort(response).await
    }

    /// Whether a response is an answer, and of which kind.
    async fn sort(&self, response: reqwest::Response) -> Result<Body, TransportError> {
        let limit_bytes = self.options.response_bytes_max;
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
        let encoding = response.headers().get(CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let encoding = encoding.map(str::to_owned);
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
        if content_type.contains("html") {
            let body = error_body(response).await;
            return Err(TransportError::WebPage { status: status.as_u16(), body });
        }
        // Servers that cannot stream may not name the type of their answer, or name another one.
        let is_whole = !self.options.stream && !content_type.contains("event-stream");
        if content_type.contains("json") || is_whole {
            let body = whole_body(response, limit_bytes).await?;
            return match compression(&body) {
                Some(encoding) => Err(TransportError::Compressed { encoding: encoding.to_owned() }),
                None => Ok(Body::whole(&body).declared(encoding)),
            };
        }
        Ok(Body::events(response.bytes_stream(), limit_bytes).declared(encoding))
    }
}

/// A whole body.
async fn whole_body(response: reqwest::Response, limit_bytes: usize) -> Result<Vec<u8>, TransportError> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(TransportError::Send)?;
        if body.len().saturating_add(chunk.len()) > limit_bytes {
            return Err(TransportError::TooLarge { limit_bytes });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
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
