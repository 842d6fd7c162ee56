//! Sends one request, and sorts the answers to it.
//!
//! Anything but a 2xx becomes a [`TransportError`] with status, headers and body.
//!
//! Invariants: calls to one path differ in their bodies and their own headers alone; a plain JSON answer, and any answer
//! but an event stream where none was asked for, is read as a whole, within the limits of size.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT};
use http::{HeaderMap, Method, StatusCode, Uri};
use hyper::body::{Frame, SizeHint};

use super::Server;
use super::body::{Body, compression};
use super::connection::AGENT;
use crate::dialect::{ERROR_BODY_BYTES_MAX, Encoded};

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
    #[error("{0}")]
    Make(String),
    /// There is no key.
    #[error("{0}")]
    NoKey(String),
    /// No connection, or it broke before the answer began.
    #[error(transparent)]
    Send(Unsent),
}

/// Why a request that was made got no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub(super) struct Unsent {
    /// Whether no connection could be made.
    pub(super) is_connect: bool,
    pub(super) is_timeout: bool,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Unsent {
    /// The connection broke.
    pub(super) fn broken(source: hyper::Error) -> Self {
        Self { is_connect: false, is_timeout: false, source: source.into() }
    }

    /// No connection could be made.
    pub(super) fn unconnected(source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self { is_connect: true, is_timeout: false, source }
    }

    /// No connection was made in time.
    pub(super) fn late(source: tokio::time::error::Elapsed) -> Self {
        Self { is_connect: true, is_timeout: true, source: source.into() }
    }
}

impl From<reqwest::Error> for Unsent {
    fn from(source: reqwest::Error) -> Self {
        Self { is_connect: source.is_connect(), is_timeout: source.is_timeout(), source: source.into() }
    }
}

/// The answer of a server, whose body is still to be read.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) chunks: BoxStream<'static, Result<Bytes, Unsent>>,
}

impl From<reqwest::Response> for Answer {
    fn from(mut response: reqwest::Response) -> Self {
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let chunks = response.bytes_stream().map(|chunk| chunk.map_err(Unsent::from)).boxed();
        Self { status, headers, chunks }
    }
}

/// The maximum number of paths whose requests are kept. Of all settings only the model is part of a path, and a server
/// gets requests for few models.
const TEMPLATES_MAX: usize = 64;

/// A request without the body of a call.
pub(super) struct Template {
    request: reqwest::Request,
    /// The address, and the path and query of it, as a request without a proxy has them.
    pub(super) to: Uri,
    path: Uri,
    /// The headers, with those that the HTTP client would add.
    headers: HeaderMap,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL and the headers may carry a key.
        f.write_str("Template")
    }
}

impl Template {
    fn new(request: reqwest::Request) -> Result<Self, String> {
        let url = request.url();
        let to: Uri = url.as_str().parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
        let path = to.path_and_query().map_or("/", |path| path.as_str());
        let path = path.parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
        let host = match (url.host_str().unwrap_or_default(), url.port()) {
            (host, Some(port)) => format!("{host}:{port}"),
            (host, None) => host.to_owned(),
        };
        let mut headers = request.headers().clone();
        let host = HeaderValue::from_str(&host).map_err(|error| error.to_string())?;
        headers.entry(HOST).or_insert(host);
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        Ok(Self { request, to, path, headers })
    }

    /// Returns the request of one call. The pieces of its body are shared, not copied.
    pub(super) fn with(&self, body: &[Bytes], headers: &HeaderMap) -> http::Request<Pieces> {
        let mut request = http::Request::new(Pieces::from(body.to_vec()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = with_own(&self.headers, headers);
        request
    }

    /// Returns the same for the HTTP client.
    pub(super) fn for_client(&self, body: &[Bytes], headers: &HeaderMap) -> reqwest::Request {
        // Not with `try_clone`, which makes a map of extensions for each.
        let mut request = reqwest::Request::new(Method::POST, self.request.url().clone());
        *request.headers_mut() = with_own(self.request.headers(), headers);
        *request.body_mut() = Some(match body {
            [whole] => whole.clone().into(),
            pieces => reqwest::Body::wrap(Pieces::from(pieces.to_vec())),
        });
        request
    }
}

/// Headers, with those of one call.
fn with_own(headers: &HeaderMap, own: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for (name, value) in own {
        headers.insert(name, value.clone());
    }
    headers
}

/// A body in pieces, whose length is known.
pub(super) struct Pieces(VecDeque<Bytes>);

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self(pieces.into())
    }
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|piece| piece.len() as u64).sum())
    }
}

impl Server {
    /// Returns the request without a body to this path. It is made once.
    pub(super) fn template(&self, path: &str) -> Result<Arc<Template>, String> {
        let mut templates = self.templates.lock();
        if let Some(template) = templates.get(path) {
            return Ok(Arc::clone(template));
        }
        let made = self.dialect.request(&self.client, &self.endpoint, path)?;
        let made = Arc::new(Template::new(made)?);
        if templates.len() >= TEMPLATES_MAX {
            templates.clear();
        }
        templates.insert(path.to_owned(), Arc::clone(&made));
        Ok(made)
    }

    /// Sends a request. Gives the answer, as far as its head has come.
    ///
    /// # Errors
    /// It could not be made, or there is no answer to it.
    pub(super) async fn send(&self, request: &mut Encoded) -> Result<Body, TransportError> {
        let template = self.template(&request.path).map_err(TransportError::Make)?;
        let Encoded { body, headers, .. } = request;
        let key = self.keys.current().await.map_err(TransportError::NoKey)?;
        if let Some(key) = &key {
            self.add_key(key, headers).map_err(TransportError::NoKey)?;
        }
        let mut response = self.execute(&template, body, headers).await?;
        // An access token may have expired before its time. Boxed, because it happens seldom.
        if let (StatusCode::UNAUTHORIZED, Some(refused)) = (response.status, key)
            && let Some(key) =
                Box::pin(self.keys.in_place_of(&refused)).await.map_err(TransportError::NoKey)?
        {
            self.add_key(&key, headers).map_err(TransportError::NoKey)?;
            response = Box::pin(self.execute(&template, body, headers)).await?;
        }
        self.note_limits(&response.headers);
        self.sort(response).await
    }

    /// Whether a response is an answer, and of which kind.
    async fn sort(&self, response: Answer) -> Result<Body, TransportError> {
        let limit_bytes = self.options.response_bytes_max;
        let Answer { status, headers, chunks } = response;
        if status.is_redirection() {
            let location = headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            return Err(TransportError::Redirect { status: status.as_u16(), location: location.to_owned() });
        }
        if !status.is_success() {
            let body = Box::pin(error_body(chunks)).await;
            return Err(TransportError::Status { status: status.as_u16(), headers: Box::new(headers), body });
        }
        let encoding = headers.get(CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        let encoding = encoding.map(str::to_owned);
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default();
        let is_type = |name: &str| {
            let mut parts = content_type.as_bytes().windows(name.len());
            parts.any(|part| part.eq_ignore_ascii_case(name.as_bytes()))
        };
        if is_type("html") {
            let body = Box::pin(error_body(chunks)).await;
            return Err(TransportError::WebPage { status: status.as_u16(), body });
        }
        // Servers that cannot stream may not name the type of their answer, or name another one.
        let is_whole = !self.options.stream && !is_type("event-stream");
        if is_type("json") || is_whole {
            let body = whole_body(chunks, limit_bytes).await?;
            return match compression(&body) {
                Some(encoding) => Err(TransportError::Compressed { encoding: encoding.to_owned() }),
                None => Ok(Body::whole(&body).declared(encoding)),
            };
        }
        Ok(Body::events(chunks, limit_bytes).declared(encoding))
    }
}

/// A whole body.
async fn whole_body(
    mut chunks: BoxStream<'static, Result<Bytes, Unsent>>,
    limit_bytes: usize,
) -> Result<Vec<u8>, TransportError> {
    let mut body = Vec::new();
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
async fn error_body(mut chunks: BoxStream<'static, Result<Bytes, Unsent>>) -> String {
    let mut body = Vec::new();
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
