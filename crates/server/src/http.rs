//! HTTP: start, prompt, compact, abort and read sessions.
//!
//! | | |
//! |---|---|
//! | `GET /healthz` | health check |
//! | `GET /sessions`, `POST /sessions` `{session_id}` | list the stored sessions; create or resume one |
//! | `GET /sessions/{id}` | the session's state |
//! | `DELETE /sessions/{id}` | delete the session; whether its bytes are erased, and if not, why |
//! | `POST /sessions/{id}/prompt` `{text}` | the reply |
//! | `POST /sessions/{id}/compact` `{focus?, keep_recent?, force?}` | the outcome of the compaction |
//! | `POST /sessions/{id}/abort` | interrupt the current run |
//! | `GET /questions`, `GET /sessions/{id}/questions` | the open questions to people, of all sessions or of one |
//! | `POST /sessions/{id}/answer` `{question_id, value, by?}` | answer the question, so that the run continues |
//!
//! Invariants: every route requires the bearer token and one of our own host names, and refuses web pages (`guard`); a
//! GET request starts nothing; bodies are JSON and at most [`BODY_BYTES_MAX`]; errors are `application/problem+json`; a
//! client that disconnects does not cancel its run; slow and idle clients do not block others (`connections`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use greenroom::{Agent, Error, Runtime};
use greenroom_store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::operations::{
    self, Abort, Answer, AnswerQuestion, Asked, CompactOutcome, CompactSession, DeleteSession, ListQuestions,
    ListSessions, Operation, PromptSession, Refused, Runs, SessionState, StartSession, Work,
};

use self::connections::{Connection, Connections};
use self::guard::Guard;
pub use self::guard::{TOKEN_CHARS_MIN, TokenError, check_token};

mod connections;
mod guard;
#[cfg(test)]
mod tests;

/// The largest body that is read.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The `Retry-After` of a refused request, in seconds.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The address of the server, and its access control.
#[derive(Clone)]
#[non_exhaustive]
pub struct HttpOptions {
    /// The address to listen on; port 0 takes a free one.
    pub address: SocketAddr,
    /// The token that every request must bear: see [`check_token`].
    pub token: String,
    /// Further names that the `Host` header may have, besides the server's addresses and `localhost`; a name without a
    /// port matches any port.
    pub host_names: Vec<String>,
    /// How many connections may be open, at least 2. Three quarters of them may wait for a run or a compaction. 512 by
    /// default.
    pub connections_max: usize,
    /// How long a request may take to arrive, the head and the body each, and how long a connection may be idle. 30 s
    /// by default.
    pub request_timeout: Duration,
}

impl HttpOptions {
    /// With the defaults.
    pub fn new(address: SocketAddr, token: impl Into<String>) -> Self {
        Self {
            address,
            token: token.into(),
            host_names: Vec::new(),
            connections_max: 512,
            request_timeout: Duration::from_secs(30),
        }
    }
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
    guard: Guard,
    request_timeout: Duration,
    stop: CancellationToken,
    /// Places for requests that wait for a run or a compaction: fewer than connections, so that one can always be
    /// aborted.
    waiting: Arc<Semaphore>,
}

impl HttpServer {
    /// Starts the server. `agent` is the agent of its sessions.
    ///
    /// # Errors
    /// The address cannot be listened on; [`std::io::ErrorKind::InvalidInput`] with a token that [`check_token`]
    /// refuses, with fewer than 2 connections, or without time for a request.
    pub async fn start(runtime: &Runtime, agent: Arc<Agent>, options: HttpOptions) -> std::io::Result<Self> {
        let HttpOptions { address, token, host_names, connections_max, request_timeout } = options;
        let invalid = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, reason);
        check_token(&token).map_err(|error| invalid(error.to_string()))?;
        if connections_max < 2 || request_timeout.is_zero() {
            return Err(invalid("a server needs at least 2 connections, and time for a request".to_owned()));
        }
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let waiting_max = connections_max - connections_max.div_ceil(4);
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            agent,
            guard: Guard::new(token, address, &host_names),
            request_timeout,
            stop: stop.clone(),
            waiting: Arc::new(Semaphore::new(waiting_max.min(Semaphore::MAX_PERMITS))),
        });
        let no_such_route = async || problem(StatusCode::NOT_FOUND, "there is no such route", Value::Null);
        let no_such_method = async || {
            problem(StatusCode::METHOD_NOT_ALLOWED, "the route does not take this method", Value::Null)
        };
        let router = Router::new()
            .route("/healthz", get(async || "ok"))
            .route("/sessions", get(list).post(start))
            .route("/sessions/{id}", get(state).delete(delete))
            .route("/sessions/{id}/prompt", post(prompt))
            .route("/sessions/{id}/compact", post(compact))
            .route("/sessions/{id}/abort", post(abort))
            .route("/questions", get(all_questions))
            .route("/sessions/{id}/questions", get(questions))
            .route("/sessions/{id}/answer", post(give_answer))
            .fallback(no_such_route)
            .method_not_allowed_fallback(no_such_method)
            .layer(from_fn_with_state(Arc::clone(&shared), let_in))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(shared);
        let connections = Connections::new(connections_max, request_timeout);
        let task = tokio::spawn(connections.serve(listener, router, stop.clone()));
        Ok(Self { address, stop, task })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more requests, and waits for those in progress: at most 8 seconds.
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

/// Checks access, and reads the body.
async fn let_in(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let Some(connection) = request.extensions().get::<Arc<Connection>>().map(Arc::clone) else {
        return problem(StatusCode::INTERNAL_SERVER_ERROR, "the connection is not known", Value::Null);
    };
    let refusal = shared.guard.turned_away(request.uri(), request.headers(), connection.local);
    if let Some(refusal) = refusal {
        return refusal;
    }
    let _work = connection.work();
    let (parts, body) = request.into_parts();
    let head = Request::from_parts(parts.clone(), Body::empty());
    let body = Bytes::from_request(Request::from_parts(parts, body), &());
    let (status, detail) = tokio::select! {
        body = body => match body.map_err(|rejection| rejection.status()) {
            Ok(body) => return next.run(head.map(|_| Body::from(body))).await,
            Err(status @ StatusCode::PAYLOAD_TOO_LARGE) => {
                (status, format!("the body has more than {BODY_BYTES_MAX} bytes"))
            }
            Err(status) => (status, "the body could not be read".to_owned()),
        },
        () = tokio::time::sleep(shared.request_timeout) => {
            (StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {:?}", shared.request_timeout))
        }
        () = shared.stop.cancelled() => (StatusCode::SERVICE_UNAVAILABLE, "the server is stopping".to_owned()),
    };
    let mut refusal = problem(status, &detail, Value::Null);
    // The rest of the body cannot be told from the next request.
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

type Reply = Result<Response, Refusal>;

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

/// A session's id in the path.
struct SessionId(String);

impl<S: Send + Sync> FromRequestParts<S> for SessionId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(id)) => Ok(Self(id)),
            Err(rejection) => Err(Refusal::new(rejection.status(), &rejection.body_text())),
        }
    }
}

async fn list(State(shared): State<Arc<Shared>>, query: Query<Vec<(String, String)>>) -> Reply {
    let list = ListSessions::from_pairs(query.0).map_err(Refused::Parameters).map_err(refusal)?;
    shared.ask(list).await
}

async fn start(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Reply {
    let StartSession { session_id } = read(&headers, &body)?;
    shared.perform(StartSession { session_id: session_id.clone() }).await?;
    shared.ask(SessionState { session_id }).await
}

async fn state(State(shared): State<Arc<Shared>>, SessionId(session_id): SessionId) -> Reply {
    shared.ask(SessionState { session_id }).await
}

async fn delete(State(shared): State<Arc<Shared>>, SessionId(session_id): SessionId) -> Reply {
    shared.ask(DeleteSession { session_id }).await
}

async fn abort(State(shared): State<Arc<Shared>>, SessionId(session_id): SessionId) -> Reply {
    shared.ask(Abort::current(session_id)).await
}

async fn prompt(
    State(shared): State<Arc<Shared>>,
    SessionId(id): SessionId,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    let prompt: PromptSession = of_session(id, read(&headers, &body)?)?;
    Ok(answer(&shared.work(prompt).await?))
}

async fn compact(
    State(shared): State<Arc<Shared>>,
    SessionId(id): SessionId,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    let params = if body.is_empty() { json!({}) } else { read(&headers, &body)? };
    let compact: CompactSession = of_session(id, params)?;
    let ended: CompactOutcome = shared.work(compact).await?;
    let mut body = json!(ended.compacted);
    body["installed"] = ended.installed.into();
    Ok(answer(&body))
}

async fn all_questions(State(shared): State<Arc<Shared>>) -> Reply {
    shared.ask(ListQuestions { session_id: None }).await
}

async fn questions(State(shared): State<Arc<Shared>>, SessionId(id): SessionId) -> Reply {
    shared.ask(ListQuestions { session_id: Some(id) }).await
}

async fn give_answer(
    State(shared): State<Arc<Shared>>,
    SessionId(id): SessionId,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    let given: AnswerQuestion = of_session(id, read(&headers, &body)?)?;
    shared.ask(given).await
}

/// An operation's parameters: the body's, and the session that the path names.
fn of_session<O: Operation>(id: String, mut params: Value) -> Result<O, Refusal> {
    let Some(object) = params.as_object_mut() else {
        return Err(refusal(Refused::Parameters("the body must be an object".to_owned())));
    };
    if object.insert("session_id".to_owned(), id.into()).is_some() {
        return Err(refusal(Refused::Parameters(
            "the path names the session, and the body must not".to_owned(),
        )));
    }
    operations::parameters(params).map_err(refusal)
}

impl Shared {
    /// Executes an operation, and returns its answer.
    async fn ask<O: Operation>(&self, operation: O) -> Reply {
        let output = match self.perform(operation).await? {
            Answer::Now(output) => output,
            Answer::Later(task) => task.await.map_err(refusal)?,
            Answer::Work(work) => work.accepted.await.map_err(refusal)?,
        };
        Ok(answer(&output))
    }

    /// Executes an operation that is work, and waits for its outcome.
    async fn work<O: Operation>(&self, operation: O) -> Result<O::Outcome, Refusal> {
        let _place = place(self)?;
        let session = operation.session_id().unwrap_or_default().to_owned();
        let interrupted = || Error::Interrupted { session };
        let Answer::Work(Work { accepted, outcome, .. }) = self.perform(operation).await? else {
            return Err(refused(interrupted()));
        };
        // In a task of its own: a client that disconnects does not cancel it.
        let ended = tokio::spawn(async move {
            accepted.await?;
            Ok::<_, Refused>(outcome.await.result?)
        });
        ended.await.unwrap_or_else(|_| Err(interrupted().into())).map_err(refusal)
    }

    async fn perform<O: Operation>(&self, operation: O) -> Result<Answer<O::Output, O::Outcome>, Refusal> {
        let mut asked = Asked {
            runtime: self.runtime.clone(),
            agent: Arc::clone(&self.agent),
            has_agent: true,
            session: None,
            runs: Runs::default(),
        };
        if let Some(id) = operation.session_id() {
            asked.open(O::ACCESS, id).await.map_err(refused)?;
        }
        operation.perform(asked).await.map_err(refusal)
    }
}

fn refusal(refused: Refused) -> Refusal {
    match refused {
        Refused::UnknownMethod(reason) | Refused::Parameters(reason) => {
            Refusal::new(StatusCode::BAD_REQUEST, &reason)
        }
        // Only a host returns these.
        Refused::Problem(problem) => Refusal::new(StatusCode::BAD_REQUEST, &problem.message),
        Refused::Failed(error) => self::refused(error),
    }
}

/// A place among the requests that wait for a run or a compaction.
fn place(shared: &Shared) -> Result<OwnedSemaphorePermit, Refusal> {
    Arc::clone(&shared.waiting).try_acquire_owned().map_err(|_| {
        let detail = "too many requests wait for a run or a compaction; try again when one of them has ended";
        let mut response =
            problem(StatusCode::TOO_MANY_REQUESTS, detail, json!({ "class": "other", "retryable": true }));
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
        Refusal(Box::new(response))
    })
}

fn read<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<T, Refusal> {
    if !headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).is_some_and(is_json) {
        let wanted = "the body must be application/json, in UTF-8";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wanted));
    }
    serde_json::from_slice(body).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, &error.to_string()))
}

/// Whether this media type is JSON in UTF-8.
fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    let is_read = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            ["utf-8", "utf8", "us-ascii"].iter().any(|known| value.eq_ignore_ascii_case(known))
        }
        Some(_) | None => true,
    };
    is_json && parts.all(is_read)
}

fn answer(value: &impl Serialize) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json!(value).to_string()).into_response()
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
fn refused(error: Error) -> Refusal {
    let (status, class) = match &error {
        Error::Model(failure) => (StatusCode::BAD_GATEWAY, failure.class.as_str()),
        Error::Busy { .. } => (StatusCode::TOO_MANY_REQUESTS, "other"),
        Error::RuntimeBusy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "other"),
        Error::NotIdle { .. }
        | Error::DuplicateKey { .. }
        | Error::Aborted
        | Error::Stopped { .. }
        | Error::Waiting { .. }
        | Error::QuestionClosed { .. } => (StatusCode::CONFLICT, "other"),
        Error::NoSession { .. } | Error::Deleted { .. } | Error::NoQuestion { .. } => {
            (StatusCode::NOT_FOUND, "other")
        }
        error if error.is_invalid_request() => (StatusCode::BAD_REQUEST, "other"),
        Error::Closed => (StatusCode::SERVICE_UNAVAILABLE, "other"),
        Error::Store(store) => (store_status(store), "other"),
        // And variants of later versions of the library.
        Error::Interrupted { .. } | Error::Output { .. } | Error::SessionFailed { .. } | _ => {
            (StatusCode::INTERNAL_SERVER_ERROR, "other")
        }
    };
    let more = json!({ "class": class, "retryable": error.is_retryable() });
    let mut response = problem(status, &error.to_string(), more);
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS.into());
    }
    Refusal(Box::new(response))
}

/// A client error (4xx) only if the request itself can never succeed.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
fn store_status(error: &StoreError) -> StatusCode {
    match error {
        StoreError::SessionId { .. } | StoreError::TooLarge { .. } => StatusCode::BAD_REQUEST,
        StoreError::NotFound { .. } => StatusCode::NOT_FOUND,
        StoreError::Quarantined { .. } => StatusCode::CONFLICT,
        StoreError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
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
