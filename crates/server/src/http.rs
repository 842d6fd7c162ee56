//! HTTP: sessions are started, prompted, compacted, aborted and looked at.
//!
//! | | |
//! |---|---|
//! | `GET /healthz` | it answers |
//! | `GET /sessions`, `POST /sessions` `{session_id}` | the stored ones; one is created or resumed |
//! | `GET /sessions/{id}` | how it stands |
//! | `POST /sessions/{id}/prompt` `{text}` | the reply |
//! | `POST /sessions/{id}/compact` `{focus?, keep_recent?, force?}` | how the compaction ended |
//! | `POST /sessions/{id}/abort` | the current run is interrupted |
//!
//! Invariants: every route wants the bearer token, compared in constant time; the `Host` must be one of ours and
//! a foreign `Origin` is refused, so that no web page reaches it; bodies are JSON and at most
//! [`BODY_BYTES_MAX`]; errors are `application/problem+json`; a client that goes away does not cancel its run.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use greenroom::{Agent, CompactOptions, Error, ModelSettings, Runtime, SessionHandle};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// The largest body that is read.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What a client that came too often is asked to wait, in seconds.
const RETRY_AFTER_SECONDS: u32 = 5;

/// Where the server listens, and who may use it.
#[derive(Clone)]
pub struct HttpOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// The token that every request must bear.
    pub token: String,
}

impl std::fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpOptions").field("address", &self.address).finish_non_exhaustive()
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

struct Shared {
    runtime: Runtime,
    agent: Arc<Agent>,
    token: String,
    hosts: Vec<String>,
}

impl HttpServer {
    /// Starts it. `agent` is what sessions are started with.
    ///
    /// # Errors
    /// When the address cannot be listened on; [`std::io::ErrorKind::InvalidInput`] without a token.
    pub async fn start(runtime: &Runtime, agent: Arc<Agent>, options: HttpOptions) -> std::io::Result<Self> {
        if options.token.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "a server needs a token"));
        }
        let listener = TcpListener::bind(options.address).await?;
        let address = listener.local_addr()?;
        let port = address.port();
        let hosts = vec![
            address.to_string(),
            format!("127.0.0.1:{port}"),
            format!("localhost:{port}"),
            format!("[::1]:{port}"),
        ];
        let shared = Arc::new(Shared { runtime: runtime.clone(), agent, token: options.token, hosts });
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/sessions", get(list).post(start))
            .route("/sessions/{id}", get(state))
            .route("/sessions/{id}/prompt", post(prompt))
            .route("/sessions/{id}/compact", post(compact))
            .route("/sessions/{id}/abort", post(abort))
            .fallback(async || problem(StatusCode::NOT_FOUND, "there is no such route", Value::Null))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .layer(from_fn_with_state(Arc::clone(&shared), guard))
            .with_state(shared);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let served = axum::serve(listener, router)
                .with_graceful_shutdown(async move { stopped.cancelled().await });
            if let Err(error) = served.await {
                tracing::error!(%error, "the HTTP server ended");
            }
        });
        Ok(Self { address, stop, task })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests, and waits for those under way.
    pub async fn stop(mut self) {
        self.stop.cancel();
        // A server that panicked has stopped too.
        let _ = (&mut self.task).await;
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Lets nobody in who does not bear the token, and no request that a web page could have made.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match turned_away(&shared, request.headers()) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

fn turned_away(shared: &Shared, headers: &HeaderMap) -> Option<Response> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if !text(header::HOST).is_some_and(|host| shared.hosts.iter().any(|ours| ours == host)) {
        let detail = "the Host header names another server";
        return Some(problem(StatusCode::MISDIRECTED_REQUEST, detail, Value::Null));
    }
    if headers.contains_key(header::ORIGIN) {
        return Some(problem(StatusCode::FORBIDDEN, "requests from web pages are refused", Value::Null));
    }
    let bearer = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
    if !bearer.is_some_and(|token| same(token.as_bytes(), shared.token.as_bytes())) {
        let detail = "the bearer token is missing or wrong";
        let mut refusal = problem(StatusCode::UNAUTHORIZED, detail, Value::Null);
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Some(refusal);
    }
    None
}

/// Compares in a time that does not tell where the difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

type Answer = Result<Response, Refusal>;

/// A refused request's answer, boxed: it is large, and rare.
struct Refusal(Box<Response>);

impl Refusal {
    fn new(status: StatusCode, detail: &str) -> Self {
        Self(Box::new(problem(status, detail, Value::Null)))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    text: String,
    /// A second prompt with the same key is not said again.
    key: Option<String>,
    /// How the model is to answer this one.
    #[serde(default)]
    settings: ModelSettings,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Compact {
    focus: Option<String>,
    /// How much to keep, in tokens.
    keep_recent: Option<u64>,
    force: bool,
}

async fn list(State(shared): State<Arc<Shared>>) -> Answer {
    let sessions = shared.runtime.sessions().await.map_err(refused)?;
    Ok(answer(&json!({ "sessions": sessions })))
}

async fn start(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Answer {
    let Start { session_id } = read(&headers, &body)?;
    let session = open(&shared, &session_id).await?;
    Ok(answer(&json!(session.state().await.map_err(refused)?)))
}

async fn state(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Answer {
    let session = known(&shared, &id).await?;
    Ok(answer(&json!(session.state().await.map_err(refused)?)))
}

async fn prompt(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let Prompt { text, key, settings } = read(&headers, &body)?;
    let session = open(&shared, &id).await?;
    // In a task of its own: a client that goes away does not cancel it.
    let mut prompt = session.prompt(text).settings(settings);
    if let Some(key) = key {
        prompt = prompt.once(key);
    }
    let reply = tokio::spawn(prompt.into_future()).await;
    let reply = reply.unwrap_or(Err(Error::Interrupted { session: id })).map_err(refused)?;
    Ok(answer(&json!(reply)))
}

async fn compact(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let Compact { focus, keep_recent, force } =
        if body.is_empty() { Compact::default() } else { read(&headers, &body)? };
    let session = known(&shared, &id).await?;
    let options = CompactOptions { focus, keep_recent, force };
    let compacted = tokio::spawn(async move { session.compact(options).await }).await;
    let compacted = compacted.unwrap_or(Err(Error::Interrupted { session: id })).map_err(refused)?;
    Ok(answer(&json!(compacted)))
}

async fn abort(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Answer {
    known(&shared, &id).await?.abort();
    Ok(answer(&json!({ "session_id": id })))
}

async fn open(shared: &Shared, id: &str) -> Result<SessionHandle, Refusal> {
    shared.runtime.open(id, Arc::clone(&shared.agent)).await.map_err(refused)
}

/// A session that is there, live or stored.
async fn known(shared: &Shared, id: &str) -> Result<SessionHandle, Refusal> {
    let is_live = || async { shared.runtime.live().await.is_ok_and(|live| live.iter().any(|one| one == id)) };
    if shared.runtime.summary(id).await.map_err(refused)?.is_none() && !is_live().await {
        return Err(Refusal::new(StatusCode::NOT_FOUND, &format!("there is no session {id:?}")));
    }
    open(shared, id).await
}

fn read<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, Refusal> {
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "application/json"));
    if !is_json {
        let wanted = "the body must be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wanted));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, &error.to_string()))
}

fn answer(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
fn refused(error: Error) -> Refusal {
    let (status, class) = match &error {
        Error::Model(failure) => (StatusCode::BAD_GATEWAY, failure.class.as_str()),
        Error::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "other"),
        Error::NotIdle { .. } | Error::DuplicateKey { .. } | Error::Aborted | Error::Stopped { .. } => {
            (StatusCode::CONFLICT, "other")
        }
        Error::NoSession { .. } => (StatusCode::NOT_FOUND, "other"),
        error if error.is_invalid_request() => (StatusCode::BAD_REQUEST, "other"),
        Error::Closed => (StatusCode::SERVICE_UNAVAILABLE, "other"),
        Error::Store(store) if !store.is_retryable() => (StatusCode::BAD_REQUEST, "other"),
        // And what a later version of the library may add.
        Error::Interrupted { .. }
        | Error::Output { .. }
        | Error::SessionFailed { .. }
        | Error::Store(_)
        | _ => (StatusCode::INTERNAL_SERVER_ERROR, "other"),
    };
    let more = json!({ "class": class, "retryable": error.is_retryable() });
    let mut response = problem(status, &error.to_string(), more);
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
    }
    Refusal(Box::new(response))
}

/// RFC 9457.
fn problem(status: StatusCode, detail: &str, more: Value) -> Response {
    let mut value = json!({
        "type": "about:blank", "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail,
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
