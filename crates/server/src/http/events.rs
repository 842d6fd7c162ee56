//! Server-sent events: of one session, of a session and the sub-agents below it, of a label, and of all; and of a prompt,
//! with its outcome at the end.
//!
//! Invariants: a durable event has an `id`, the position behind it, from which a client continues on this server or the
//! next one; transient events have none. A client that reads too slowly gets a `gap` instead of transient events. A
//! connection to which nothing can be written for `request_timeout` is closed, and holds no more memory than its
//! subscription's queue.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::stream::unfold;
use greenroom::{Delivery, Error, Follow, Position, SessionHandle};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval};

use super::Shared;
use super::answers::{HttpProblem, Refusal};
use super::calls::Received;
use super::connections::{Connection, Streaming};
use crate::operations::{LABEL, Right, take_labels};

/// The media type of a stream.
pub(super) const MEDIA_TYPE: &str = "text/event-stream";
/// How many characters of a position that cannot be read are repeated in the error.
const POSITION_CHARS_SHOWN: usize = 200;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The query parameter in place of the header, for clients that cannot set one.
pub(super) const AFTER: &str = "after";
/// The query parameter that selects durable events only.
pub(super) const DURABLE: &str = "durable";
/// The query parameter that adds the sub-agents below the session.
pub(super) const TREE: &str = "tree";

/// How often it is checked whether a session has moved to another node.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// `GET /v1/sessions/{session_id}/events`.
pub(super) async fn of_session(
    State(shared): State<Arc<Shared>>,
    received: Received,
) -> Result<Response, Refusal> {
    received.bearer.check(Right::Read)?;
    let id = received.path.first().map(|(_, id)| id.as_str()).unwrap_or_default();
    if let Some(label) = &received.bearer.within {
        shared.reach(id, label).await?;
    }
    let session = shared.runtime.session(id).await?;
    stream(&shared, |from| session.follow(from), &received, &[DURABLE, TREE]).await
}

/// `GET /v1/events`.
pub(super) async fn of_sessions(
    State(shared): State<Arc<Shared>>,
    received: Received,
) -> Result<Response, Refusal> {
    received.bearer.check(Right::Read)?;
    stream(&shared, |from| shared.runtime.follow(from), &received, &[DURABLE, LABEL]).await
}

async fn stream(
    shared: &Arc<Shared>,
    begin: impl FnOnce(Position) -> Follow,
    received: &Received,
    known: &[&str],
) -> Result<Response, Refusal> {
    let mut query = received.query.clone();
    let mut labels = if known.contains(&LABEL) { take_labels(&mut query)? } else { BTreeMap::new() };
    let (mut is_durable, mut is_tree) = (false, false);
    let mut after = last_event_id(received);
    for (name, value) in query {
        let wrong =
            |_| Refusal::new(StatusCode::BAD_REQUEST, format!("{name}={value:?} is not true or false"));
        match name.as_str() {
            // A client that reconnects sends the header, and the query with which it began.
            AFTER => after = after.or(Some(value)),
            DURABLE => is_durable = value.parse().map_err(wrong)?,
            TREE if known.contains(&TREE) => is_tree = value.parse().map_err(wrong)?,
            _ => {
                return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("there is no parameter {name:?}")));
            }
        }
    }
    if let Some(label) = &received.bearer.within {
        // Another value of the same label belongs to no session of the bearer.
        if labels.get(&label.name).is_some_and(|value| *value != label.value) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "the token is confined to another label"));
        }
        labels.insert(label.name.clone(), label.value.clone());
    }
    let after = position(after)?;
    let place = shared.place()?;
    let is_from_now = after.is_none();
    let mut follow = begin(after.unwrap_or_default());
    for (name, value) in labels {
        follow = follow.label(name, value);
    }
    if is_durable {
        follow = follow.durable();
    }
    if is_tree {
        follow = follow.tree();
    }
    if is_from_now {
        follow = follow.from_now().await?;
    }
    let first = format!("id: {}\n\n", follow.position());
    let session = received.path.first().map(|(_, id)| id.clone());
    Ok(respond(shared, Streamed::new(first, follow, None), &received.connection, Some(place), session))
}

/// The position in the header, if there is one.
fn last_event_id(received: &Received) -> Option<String> {
    received.headers.get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or("?").to_owned())
}

/// The position that a client names, if it names one.
fn position(named: Option<String>) -> Result<Option<Position>, Refusal> {
    let named = named.filter(|named| !named.is_empty());
    named.map(|text| Position::parse(&text).ok_or(text)).transpose().map_err(|text| {
        let shown: String = text.chars().take(POSITION_CHARS_SHOWN).collect();
        let more = if shown.len() < text.len() { " …" } else { "" };
        let reason = format!("{shown:?}{more} is not a position of these events; use 0 for the beginning");
        Refusal::new(StatusCode::BAD_REQUEST, reason)
    })
}

/// Where the stream of work begins: after the client's position; without one, at the prompt that had the same key
/// before, or now.
#[derive(Debug)]
pub(super) struct Beginning(Option<Position>);

impl Beginning {
    pub(super) fn of(received: &Received) -> Result<Self, Refusal> {
        position(last_event_id(received)).map(Self)
    }

    pub(super) async fn follow(self, session: &SessionHandle, key: Option<&str>) -> Result<Follow, Error> {
        if let Some(position) = self.0 {
            return Ok(session.follow(position));
        }
        // First, so that a prompt that is recorded meanwhile is not missed.
        let from_now = session.follow(Position::default()).from_now().await?;
        let repeated = match key {
            Some(key) => session.position_of_key(key).await?,
            None => None,
        };
        Ok(repeated.map_or(from_now, |position| session.follow(position)))
    }
}

/// Accepted work, whose outcome ends a stream.
pub(super) struct Work {
    pub(super) accepted: Value,
    pub(super) ended: JoinHandle<Result<Value, Error>>,
    pub(super) session: String,
    /// Whether the same request can be sent again, because it has a key.
    pub(super) is_repeatable: bool,
}

/// The answer to a prompt or a compaction as a stream: `accepted`, the session's events from its [`Beginning`] on, and
/// `result` or `problem`.
pub(super) fn of_work(
    shared: &Arc<Shared>,
    follow: Follow,
    work: Work,
    connection: &Arc<Connection>,
    place: Option<OwnedSemaphorePermit>,
) -> Response {
    let first = format!("id: {}\n{}", follow.position(), named("accepted", &work.accepted));
    respond(shared, Streamed::new(first, follow, Some(work)), connection, place, None)
}

struct Streamed {
    first: Option<String>,
    follow: Follow,
    work: Option<Work>,
    /// Whether the last piece was a problem.
    has_failed: bool,
}

/// A stream's next piece.
enum Piece {
    Text(String),
    /// The last one.
    Last(String),
    End,
}

impl Streamed {
    fn new(first: String, follow: Follow, work: Option<Work>) -> Self {
        Self { first: Some(first), follow, work, has_failed: false }
    }

    async fn next(&mut self) -> Piece {
        if let Some(first) = self.first.take() {
            return Piece::Text(first);
        }
        let Some(work) = &mut self.work else {
            let next = self.follow.next_delivery().await;
            return self.piece(next);
        };
        let ended = tokio::select! {
            biased;
            // A runtime that shuts down ends the events, and the work still has an outcome.
            next = self.follow.next_delivery() => match next {
                Ok(None) => (&mut work.ended).await,
                next => return self.piece(next),
            },
            ended = &mut work.ended => ended,
        };
        let session = std::mem::take(&mut work.session);
        let ended = ended.unwrap_or(Err(Error::Interrupted { session }));
        let last = match ended {
            Ok(outcome) => named("result", &outcome),
            Err(error) => self.problem(&error),
        };
        // What was published before the outcome comes before it.
        let mut text = String::new();
        loop {
            let next = self.follow.try_next_delivery().await;
            match self.piece(next) {
                Piece::Text(piece) => text.push_str(&piece),
                Piece::Last(_) | Piece::End => break,
            }
        }
        Piece::Last(text + &last)
    }

    fn problem(&self, error: &Error) -> String {
        let problem = match &self.work {
            Some(work) => HttpProblem::of_recorded(error, work.is_repeatable),
            None => HttpProblem::of(error),
        };
        named("problem", &json!(problem))
    }

    fn piece(&mut self, next: Result<Option<Delivery>, Error>) -> Piece {
        let has_failed = std::mem::replace(&mut self.has_failed, next.is_err());
        match next {
            Ok(Some(Delivery::Event(event))) if event.is_durable() => {
                Piece::Text(format!("id: {}\ndata: {}\n\n", self.follow.position(), json!(*event)))
            }
            Ok(Some(Delivery::Event(event))) => Piece::Text(format!("data: {}\n\n", json!(*event))),
            Ok(Some(Delivery::Gap { .. })) => Piece::Text(format!("data: {}\n\n", json!({ "type": "gap" }))),
            Ok(None) => Piece::End,
            Err(error) => {
                let problem = self.problem(&error);
                // One session that cannot be read does not end the stream of the others.
                let continues = matches!(error, Error::Store(_)) && !has_failed;
                if continues { Piece::Text(problem) } else { Piece::Last(problem) }
            }
        }
    }
}

fn named(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// What a stream holds while it is open.
struct Open {
    streamed: Option<Streamed>,
    /// The session whose events these are; `None` for work, and for those of several sessions.
    session: Option<(String, Interval)>,
    shared: Arc<Shared>,
    alive: Duration,
    _streaming: Streaming,
    _place: Option<OwnedSemaphorePermit>,
}

impl Open {
    async fn next(&mut self) -> Option<Bytes> {
        let streamed = self.streamed.as_mut()?;
        let stop = self.shared.stop.clone();
        let piece = tokio::select! {
            biased;
            // Its events come from another node now, to which the client connects again.
            () = moved(&self.shared, self.session.as_mut()) => Piece::End,
            // Work that is interrupted by a stop still has an outcome.
            () = stop.cancelled(), if streamed.work.is_none() => Piece::End,
            piece = streamed.next() => piece,
            () = tokio::time::sleep(self.alive) => Piece::Text(": alive\n\n".to_owned()),
        };
        match piece {
            Piece::Text(text) => Some(text.into()),
            Piece::Last(text) => {
                self.streamed = None;
                Some(text.into())
            }
            Piece::End => None,
        }
    }
}

/// Completes once another node runs the session; not without a cluster, and not for work, which has an outcome here.
async fn moved(shared: &Shared, session: Option<&mut (String, Interval)>) {
    let Some((session, look)) = session else { return std::future::pending().await };
    loop {
        look.tick().await;
        if shared.is_elsewhere(session).await {
            return;
        }
    }
}

fn respond(
    shared: &Arc<Shared>,
    streamed: Streamed,
    connection: &Arc<Connection>,
    place: Option<OwnedSemaphorePermit>,
    session: Option<String>,
) -> Response {
    let open = Open {
        streamed: Some(streamed),
        session: session.filter(|_| shared.forwarding.is_some()).map(|id| (id, interval(LOOK_AGAIN))),
        shared: Arc::clone(shared),
        // Well within the time after which a connection counts as idle.
        alive: shared.request_timeout / 3,
        _streaming: connection.stream(),
        _place: place,
    };
    let pieces =
        unfold(open, async |mut open| open.next().await.map(|piece| (Ok::<_, Infallible>(piece), open)));
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Some proxies hold answers back until they have enough of them.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
