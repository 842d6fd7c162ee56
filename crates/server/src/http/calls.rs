//! The routes of the operations: one for each, made from its declaration.
//!
//! Invariants: parameters are in the path, and in the query (`GET`, `DELETE`) or the body; no parameter is in two
//! places. The answer to work is its outcome, unless the client wants a stream of events or no more than its
//! acceptance. A client that disconnects cancels nothing.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use greenroom::{Error, Follow};
use greenroom_kernel::EntryId;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinHandle;

use super::Shared;
use super::access::{Bearer, label_new};
use super::answers::{Refusal, answer};
use super::connections::Connection;
use super::events::{self, Beginning};
use crate::operations::{self, Answer, Call, CallScope, Method, Pairs, Refused, Route, Runs, Verb, Work};

/// The header with an idempotency key.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// The preference for an answer when work is accepted (RFC 7240).
const RESPOND_ASYNC: &str = "respond-async";
/// The path above the routes of operations.
pub(super) const ROOT: &str = "/v1";

/// Whether a request has an idempotency key, in its header or in its body.
pub(super) fn has_key(headers: &HeaderMap, body: &[u8]) -> bool {
    /// The only field that matters here.
    #[derive(serde::Deserialize)]
    struct Keyed {
        key: Option<String>,
    }
    headers.contains_key(IDEMPOTENCY_KEY)
        || serde_json::from_slice::<Keyed>(body).is_ok_and(|keyed| keyed.key.is_some())
}

/// Adds the routes of all operations.
pub(super) fn routes(router: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    operations::methods().into_iter().fold(router, |router, method| {
        let Some(route) = method.route else { return router };
        let verb = match route.verb {
            Verb::Get => MethodFilter::GET,
            Verb::Delete => MethodFilter::DELETE,
            Verb::Post => MethodFilter::POST,
            Verb::Put => MethodFilter::PUT,
        };
        let handler = async move |State(shared): State<Arc<Shared>>, received: Received| {
            call(&shared, method, route, received).await
        };
        router.route(&format!("{ROOT}{}", route.path), on(verb, handler))
    })
}

/// A request, as far as it is the same for all routes.
pub(super) struct Received {
    pub(super) bearer: Arc<Bearer>,
    pub(super) connection: Arc<Connection>,
    /// The parameters in the path.
    pub(super) path: Pairs,
    /// Those in the query.
    pub(super) query: Pairs,
    pub(super) headers: HeaderMap,
    body: Bytes,
}

impl<S: Send + Sync> FromRequest<S> for Received {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let unknown = || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the connection is not known");
        let bearer = parts.extensions.get::<Arc<Bearer>>().map(Arc::clone).ok_or_else(unknown)?;
        let connection = parts.extensions.get::<Arc<Connection>>().map(Arc::clone).ok_or_else(unknown)?;
        let path = match Path::from_request_parts(&mut parts, state).await {
            Ok(Path(path)) => path,
            Err(rejection) => return Err(Refusal::new(rejection.status(), rejection.body_text())),
        };
        let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
        let query = query.map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        let headers = std::mem::take(&mut parts.headers);
        let body = Bytes::from_request(Request::from_parts(parts, body), state).await;
        let body = body.map_err(|rejection| Refusal::new(rejection.status(), rejection.body_text()))?;
        Ok(Self { bearer, connection, path, query, headers, body })
    }
}

impl Received {
    /// The call that the request is.
    fn read(&self, method: &Method, route: &Route) -> Result<Box<dyn Call>, Refusal> {
        if route.verb.has_query() {
            if !self.body.is_empty() {
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request must have no body"));
            }
            return Ok(method.call_of_pairs([self.path.clone(), self.query.clone()].concat())?);
        }
        if let Some((name, _)) = self.query.first() {
            let reason = format!(
                "this route takes its parameters in the body; move {name:?} from the query to the body"
            );
            return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
        }
        let Value::Object(mut params) = self.json()? else {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "the body must be an object"));
        };
        for (name, value) in &self.path {
            if params.insert(name.clone(), value.clone().into()).is_some() {
                let reason = format!("the parameter {name:?} is in the path; remove it from the body");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
            }
        }
        if let Some(key) = self.key()? {
            if !method.takes_key {
                let reason = "this operation cannot be repeated by an Idempotency-Key";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
            }
            if params.insert("key".to_owned(), key.into()).is_some() {
                let reason = "an Idempotency-Key is in the header or, as `key`, in the body, and not in both";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, reason));
            }
        }
        Ok(method.call(Value::Object(params))?)
    }

    /// The body; an object without members if there is none.
    fn json(&self) -> Result<Value, Refusal> {
        if self.body.is_empty() {
            return Ok(Value::Object(serde_json::Map::new()));
        }
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !kind.is_some_and(is_json) {
            let wanted = "the body must be application/json, in UTF-8";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wanted));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.to_string()))
    }

    /// The idempotency key, with or without the quotation marks of a structured field.
    fn key(&self) -> Result<Option<String>, Refusal> {
        let Some(value) = self.headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
        let text = value.to_str().ok().map(|text| {
            let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            inner.unwrap_or(text).to_owned()
        });
        match text {
            Some(text) if !text.is_empty() => Ok(Some(text)),
            Some(_) | None => {
                let reason = "an Idempotency-Key must be visible ASCII characters";
                Err(Refusal::new(StatusCode::BAD_REQUEST, reason))
            }
        }
    }

    /// What the client wants as the answer to work.
    fn wish(&self) -> Wish {
        let lists = |name: HeaderName, wanted: &str| {
            let values = self.headers.get_all(name);
            let mut items =
                values.iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
            items.any(|item| {
                item.split(';').next().is_some_and(|item| item.trim().eq_ignore_ascii_case(wanted))
            })
        };
        if lists(header::ACCEPT, events::MEDIA_TYPE) {
            Wish::Events
        } else if lists(PREFER, RESPOND_ASYNC) {
            Wish::Acceptance
        } else {
            Wish::Outcome
        }
    }
}

/// The wanted answer to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// The outcome, when it is there.
    Outcome,
    /// The session's events, and then the outcome.
    Events,
    /// That it was accepted.
    Acceptance,
}

async fn call(
    shared: &Arc<Shared>,
    method: Method,
    route: Route,
    received: Received,
) -> Result<Response, Refusal> {
    received.bearer.check(route.right)?;
    let call = received.read(&method, &route)?;
    let wish = received.wish();
    let has_outcome = !method.outcome.is_empty();
    let waits = has_outcome && wish != Wish::Acceptance || method.waits;
    let place = if waits { Some(shared.place()?) } else { None };
    let session = call.session_id().unwrap_or_default().to_owned();
    let is_repeatable = has_key(&received.headers, &received.body);
    let wants_events = has_outcome && wish == Wish::Events;
    let beginning = if wants_events { Some(Beginning::of(&received)?) } else { None };
    // In a task of its own: a client that disconnects cancels nothing.
    let performing = {
        let (shared, session) = (Arc::clone(shared), session.clone());
        tokio::spawn(
            async move { perform(&shared, call, &route, &received.bearer, session, beginning).await },
        )
    };
    let interrupted = || Refusal::from(Error::Interrupted { session: session.clone() });
    let (underway, follow) = match performing.await.map_err(|_| interrupted())?? {
        Done::Answered(value) => return Ok(answer(StatusCode::OK, &value)),
        Done::Underway(underway, follow) => (underway, follow),
    };
    let Underway { accepted, ended } = underway;
    let accepted = accepted.await.map_err(|_| interrupted())??;
    match (wish, follow) {
        (Wish::Events, Some(follow)) => {
            let work = events::Work { accepted, ended, session, is_repeatable };
            Ok(events::of_work(shared, *follow, work, &received.connection, place))
        }
        (Wish::Acceptance, _) => {
            let mut response = answer(StatusCode::ACCEPTED, &accepted);
            response.headers_mut().insert(PREFERENCE_APPLIED, HeaderValue::from_static(RESPOND_ASYNC));
            Ok(response)
        }
        (Wish::Outcome | Wish::Events, _) => {
            let ended = ended.await.map_err(|_| interrupted())?;
            drop(place);
            Ok(answer(StatusCode::OK, &ended.map_err(|error| Refusal::of_recorded(&error, is_repeatable))?))
        }
    }
}

/// What became of a call.
enum Done {
    Answered(Value),
    /// Work that continues, and the events from before it, if they are wanted.
    Underway(Underway, Option<Box<Follow>>),
}

/// Work that continues whoever waits for it.
struct Underway {
    accepted: oneshot::Receiver<Result<Value, Refused>>,
    ended: JoinHandle<Result<Value, Error>>,
}

async fn perform(
    shared: &Shared,
    call: Box<dyn Call>,
    route: &Route,
    bearer: &Bearer,
    session: String,
    beginning: Option<Beginning>,
) -> Result<Done, Refusal> {
    let scope: CallScope = shared.admit(&*call, route, bearer).await?;
    let follow = match (&scope.session, beginning) {
        (Some(session), Some(beginning)) => Some(Box::new(beginning.follow(session, call.key()).await?)),
        _ => None,
    };
    let created =
        call.creates().filter(|created| *created != session || call.access() != operations::Access::Create);
    let created = created.map(str::to_owned).zip(bearer.within.clone());
    let value = match call.perform(scope).await? {
        Answer::Now(value) => value,
        Answer::Later(task) => task.await?,
        Answer::Work(work) => {
            return Ok(Done::Underway(under_way(work, shared.runs.clone(), session), follow));
        }
    };
    if let Some((id, label)) = created {
        label_new(&shared.runtime, &id, &label).await?;
    }
    Ok(Done::Answered(value))
}

fn under_way(work: Work<Value, Value>, runs: Runs, session: String) -> Underway {
    let Work { accepted, outcome, abort } = work;
    let (tell, told) = oneshot::channel();
    let ended = tokio::spawn(async move {
        let run = abort.map(|abort| runs.begin(&session, abort));
        let result = match accepted.await {
            Ok(accepted) => {
                let entry = accepted.get("entry_id").and_then(Value::as_u64).map(EntryId);
                run.into_iter().for_each(|run| runs.accepted(run, entry));
                // A client that is gone need not be told.
                let _ = tell.send(Ok(accepted));
                outcome.await.result
            }
            Err(refused) => {
                let _ = tell.send(Err(refused));
                Err(Error::Interrupted { session })
            }
        };
        run.into_iter().for_each(|run| runs.ended(run));
        result
    });
    Underway { accepted: told, ended }
}

impl Shared {
    /// A place among the requests that wait for a run or a compaction, or that stream events.
    pub(super) fn place(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.waiting).try_acquire_owned().map_err(|_| {
            let detail = "too many requests wait for a run or a compaction, or stream events; try again when one of them \
                          has ended";
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, detail)
        })
    }
}

/// Whether this media type is JSON in UTF-8.
pub(super) fn is_json(media_type: &str) -> bool {
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
