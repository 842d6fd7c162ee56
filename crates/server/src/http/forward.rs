//! Forwarding: a request for a session that another node of the cluster runs is sent to that node, over its own HTTP.
//!
//! Invariants: a request goes over at most one hop, so there are no loops; the node that gets it checks the caller's
//! right and label as for a direct request, and trusts the forwarding node's word on the caller only with the cluster's
//! secret; no session is taken from an owner whose lease is valid. What is remembered of an owner is a hint: the node
//! that receives the request decides. No request waits for a node that has lost its lease. A request that may have been
//! carried out is not sent again, unless it has a key. A request that only reads is answered here if the owner cannot
//! be reached.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use greenroom::Error;
use greenroom_store::{Member, Owner, Placement};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;

use super::Shared;
use super::access::{Bearer, same};
use super::answers::{Refusal, problem, store_status};
use super::calls;
use super::leases::{Leases, until_lost};
use crate::operations::{Label, Right};

/// Set by a node that forwards a request: it goes no further.
pub(super) const HOP: HeaderName = HeaderName::from_static("greenroom-hop");
/// The sender of a forwarded request: the right, and after a space the label `NAME:VALUE`, percent-encoded, if there is
/// one.
const PRINCIPAL: HeaderName = HeaderName::from_static("greenroom-principal");
/// In the answer to a node: the name of the node that answered.
pub(super) const NODE: HeaderName = HeaderName::from_static("greenroom-node");
/// The path above that of a session.
const SESSIONS: &str = "/v1/sessions/";
/// How many owners are remembered, and how many idle connections to one node are kept.
const OWNERS_MAX: usize = 10_000;
const IDLE_MAX: usize = 64;
/// How long a node may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the owner is looked up if it changes in the meantime.
const LOOKUPS: usize = 3;

/// The secret by which the nodes of a cluster recognise each other.
pub(super) struct Secret(pub(super) String);

impl Secret {
    /// Whether this token is the cluster's.
    pub(super) fn is(&self, token: &str) -> bool {
        same(token.as_bytes(), self.0.as_bytes())
    }

    /// The bearer of a request that another node has forwarded; `None` if the token is not the cluster's.
    pub(super) fn bearer(&self, token: &str, principal: Option<&str>) -> Option<Result<Bearer, String>> {
        self.is(token).then(|| principal_of(principal.unwrap_or_default()))
    }
}

/// The principal of a request, as a header's value.
fn principal(bearer: &Bearer) -> String {
    let right = bearer.right().as_str();
    match &bearer.within {
        Some(label) => {
            let label = format!("{}:{}", label.name, label.value);
            let label: String = form_urlencoded::byte_serialize(label.as_bytes()).collect();
            format!("{right} {label}")
        }
        None => right.to_owned(),
    }
}

fn principal_of(text: &str) -> Result<Bearer, String> {
    let (right, label) = text.split_once(' ').map_or((text, None), |(right, label)| (right, Some(label)));
    let rights = [Right::Observe, Right::Read, Right::Prompt, Right::Administer];
    let right = rights.into_iter().find(|known| known.as_str() == right);
    let right = right.ok_or_else(|| format!("{text:?} does not name the caller of a forwarded request"))?;
    let label = label.map(|label| {
        let decoded = form_urlencoded::parse(label.as_bytes()).next().map(|(label, _)| label.into_owned());
        decoded.unwrap_or_default().parse::<Label>()
    });
    Ok(Bearer::new(right, label.transpose()?))
}

/// Where a request is answered.
enum Destination {
    Here,
    There(Node),
}

/// Another node.
#[derive(Clone)]
struct Node {
    name: String,
    /// `None` if it serves nothing.
    address: Option<String>,
}

/// Why another node gave no answer.
enum Failure {
    /// Nothing was sent.
    Unreachable(String),
    /// The node may have done what was asked.
    Broken(String),
    /// The node has lost its lease, and may have done what was asked.
    Lost,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) | Self::Broken(reason) => f.write_str(reason),
            Self::Lost => f.write_str("the node has lost its lease"),
        }
    }
}

/// What this node needs to send requests to others: the secret, their connections, and who was found to run what.
pub(super) struct Forwarding {
    secret: Secret,
    client: Client<HttpConnector, Body>,
    owners: Mutex<HashMap<String, Node>>,
    leases: Leases,
}

impl Forwarding {
    pub(super) fn new(secret: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(IDLE_MAX).build(connector);
        Self { secret: Secret(secret), client, owners: Mutex::default(), leases: Leases::default() }
    }

    pub(super) fn leases(&self) -> &Leases {
        &self.leases
    }

    fn remember(&self, session: &str, node: Option<&Node>) {
        let mut owners = self.owners.lock();
        match node {
            None => drop(owners.remove(session)),
            Some(node) => {
                if owners.len() >= OWNERS_MAX {
                    owners.clear();
                }
                owners.insert(session.to_owned(), node.clone());
            }
        }
    }

    /// Sends a request to another node, and returns its answer as it comes, as long as the node has its lease.
    async fn send(
        &self,
        node: &Node,
        head: &Parts,
        body: Bytes,
        bearer: &Bearer,
    ) -> Result<Response, Failure> {
        let mut lost = self.leases.lost(&node.name, node.address.as_deref());
        tokio::select! {
            biased;
            sent = self.exchange(node, head, body, bearer) => Ok(sent?.map(|body| until_lost(body, lost))),
            () = &mut lost => Err(Failure::Lost),
        }
    }

    async fn exchange(
        &self,
        node: &Node,
        head: &Parts,
        body: Bytes,
        bearer: &Bearer,
    ) -> Result<Response, Failure> {
        let unreachable = |reason: &dyn std::fmt::Display| Failure::Unreachable(reason.to_string());
        let address = node.address.as_deref().ok_or_else(|| unreachable(&"it serves nothing"))?;
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = hyper::Request::new(Body::from(body));
        *request.method_mut() = head.method.clone();
        let uri = format!("{}{path}", address.trim_end_matches('/'));
        *request.uri_mut() = uri.parse().map_err(|error: axum::http::uri::InvalidUri| unreachable(&error))?;
        let headers = request.headers_mut();
        headers.extend(head.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
        for own in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::HOST] {
            headers.remove(own);
        }
        let value = |text: &str| HeaderValue::from_str(text).map_err(|error| unreachable(&error));
        headers.insert(header::AUTHORIZATION, value(&format!("Bearer {}", self.secret.0))?);
        headers.insert(HOP, HeaderValue::from_static("1"));
        headers.insert(PRINCIPAL, value(&principal(bearer))?);
        let response = self.client.request(request).await;
        let mut response = response
            .map_err(|error| match error.is_connect() {
                true => Failure::Unreachable(reason(&error)),
                false => Failure::Broken(reason(&error)),
            })?
            .map(Body::new);
        response.headers_mut().remove(header::CONNECTION);
        response.headers_mut().remove(header::TRANSFER_ENCODING);
        Ok(response)
    }
}

/// The session that a request is for: the one in its path, or that of the body that begins one.
fn session_of(head: &Parts, body: &[u8]) -> Option<String> {
    /// The only field that matters here.
    #[derive(serde::Deserialize)]
    struct Named {
        session_id: String,
    }
    if head.uri.path() == SESSIONS.trim_end_matches('/') && head.method == Method::POST {
        return serde_json::from_slice::<Named>(body).ok().map(|named| named.session_id);
    }
    let id = head.uri.path().strip_prefix(SESSIONS)?.split('/').next().filter(|id| !id.is_empty())?;
    let decoded = percent_encoding::percent_decode_str(id).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

impl Shared {
    /// Answers a request at the node that runs its session, which may be this one: then `here` answers it.
    pub(super) async fn at_its_node(
        &self,
        head: &Parts,
        body: &Bytes,
        bearer: &Bearer,
        here: Next,
    ) -> Response {
        for _ in 0..LOOKUPS {
            if let Some(answered) = self.forwarded(head, body, bearer).await {
                return answered;
            }
            let request = Request::from_parts(head.clone(), Body::from(body.clone()));
            let answered = here.clone().run(request).await;
            // Unless another node has claimed the session meanwhile. With its key, the request is carried out once.
            let is_elsewhere = answered.status() == StatusCode::MISDIRECTED_REQUEST;
            if !is_elsewhere || !calls::has_key(&head.headers, body) || head.headers.contains_key(HOP) {
                return answered;
            }
        }
        moving()
    }

    /// Answers a request at another node that runs its session: `None` if that is this one.
    async fn forwarded(&self, head: &Parts, body: &Bytes, bearer: &Bearer) -> Option<Response> {
        let engine = self.runtime.engine();
        let (Some(placement), Some(forwarding)) = (engine.placement(), &self.forwarding) else { return None };
        let id = session_of(head, body).filter(|id| !placement.holds(id))?;
        let is_read = head.method == Method::GET;
        let is_hop = head.headers.contains_key(HOP);
        let mut cached = forwarding.owners.lock().get(&id).filter(|_| !is_hop).cloned();
        for _ in 0..LOOKUPS {
            let was_cached = cached.is_some();
            let found = match cached.take() {
                Some(node) => Ok(Destination::There(node)),
                None => place(placement, engine.node(), &id, is_read).await,
            };
            let node = match found {
                Ok(Destination::Here) => return None,
                Ok(Destination::There(node)) => node,
                // This node has nothing of the session without the storage either, and would wait for it as long again.
                Err(error) if store_status(&error) == StatusCode::SERVICE_UNAVAILABLE => {
                    return Some(Refusal::from(Error::from(error)).into_response());
                }
                // The request itself is wrong, which is said here.
                Err(_) => return None,
            };
            let name = &node.name;
            if is_hop {
                let detail = format!("the session runs on node {name}");
                return Some(problem(StatusCode::MISDIRECTED_REQUEST, detail));
            }
            // A client that gives up does not leave behind an owner that does not answer.
            forwarding.remember(&id, None);
            let sent = forwarding.send(&node, head, body.clone(), bearer).await;
            if let Err(failure) = &sent {
                tracing::warn!(session = %id, node = name, %failure, "a request could not be forwarded");
            }
            let is_unsent = matches!(sent, Err(Failure::Unreachable(_)));
            match sent {
                // It has just been given to another node.
                Ok(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {}
                Ok(response) => {
                    forwarding.remember(&id, Some(&node));
                    return Some(response);
                }
                Err(Failure::Unreachable(_)) if was_cached => {}
                Err(Failure::Lost) if is_read || calls::has_key(&head.headers, body) => {}
                Err(Failure::Lost) => {
                    let detail = format!(
                        "node {name}, which ran the session, has lost its lease; the request may have been carried \
                         out: read the session before you repeat it"
                    );
                    return Some(problem(StatusCode::SERVICE_UNAVAILABLE, detail));
                }
                Err(_) if is_read => return None,
                Err(Failure::Unreachable(reason) | Failure::Broken(reason)) => {
                    let remedy = match calls::has_key(&head.headers, body) {
                        true => "repeat the request with its key",
                        false if is_unsent => "nothing was sent: repeat the request",
                        false => {
                            "the request may have been carried out: read the session before you repeat it"
                        }
                    };
                    let detail =
                        format!("node {name} runs the session and cannot be reached: {reason}; {remedy}");
                    return Some(problem(StatusCode::SERVICE_UNAVAILABLE, detail));
                }
            }
        }
        Some(moving())
    }

    /// Whether another node runs this session.
    pub(super) async fn is_elsewhere(&self, session: &str) -> bool {
        let engine = self.runtime.engine();
        let Some(placement) = engine.placement().filter(|placement| !placement.holds(session)) else {
            return false;
        };
        matches!(placement.owner_of(session).await, Ok(Some(owner)) if owner.node != engine.node())
    }
}

/// The answer where the owner changes with each look-up.
fn moving() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "the session is being moved to another node; try again")
}

/// Finds the node that answers a request.
async fn place(
    placement: &dyn Placement,
    me: &str,
    session: &str,
    is_read: bool,
) -> Result<Destination, greenroom_store::StoreError> {
    let (name, address) = match placement.owner_of(session).await? {
        Some(Owner { node, address, .. }) => (node, address),
        // What is stored can be read anywhere.
        None if is_read => return Ok(Destination::Here),
        None => {
            let Member { node, address, .. } = placement.place(session).await?;
            (node, address)
        }
    };
    Ok(if name == me { Destination::Here } else { Destination::There(Node { name, address }) })
}

/// How a node of a cluster answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeAnswer {
    /// It takes requests, and knows the secret if one was given.
    Ready,
    /// It answers, but is not ready: the reason.
    NotReady(String),
    /// It does not know the cluster's secret.
    OtherSecret,
    /// It is another node than the one that was expected: its name.
    OtherNode(String),
    /// It gave no answer: the reason.
    None(String),
}

/// Asks the node of this name, at the address that it announces, whether it is ready, and whether it has the cluster's
/// secret.
pub async fn ask_node(name: &str, address: &str, secret: Option<&str>) -> NodeAnswer {
    let forwarding = Forwarding::new(secret.unwrap_or_default().to_owned());
    let ask = async |path: &str| {
        let mut request = hyper::Request::new(Body::empty());
        let uri = format!("{}{path}", address.trim_end_matches('/'));
        *request.uri_mut() = uri.parse().map_err(|error: axum::http::uri::InvalidUri| error.to_string())?;
        if let Some(secret) = secret.filter(|_| path != super::probes::READY) {
            let bearer =
                HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|error| error.to_string())?;
            request.headers_mut().insert(header::AUTHORIZATION, bearer);
            request.headers_mut().insert(PRINCIPAL, HeaderValue::from_static("read"));
        }
        let answer = tokio::time::timeout(CONNECT * 2, forwarding.client.request(request)).await;
        let answer = answer.map_err(|_| "it does not answer in time".to_owned())?;
        answer.map_err(|error| reason(&error))
    };
    match ask(super::probes::READY).await.map(|answer| answer.status()) {
        Err(reason) => return NodeAnswer::None(reason),
        Ok(status) if !status.is_success() => return NodeAnswer::NotReady(format!("its answer is {status}")),
        Ok(_) if secret.is_none() => return NodeAnswer::Ready,
        Ok(_) => {}
    }
    let answer = match ask("/v1/sessions?limit=1").await {
        Err(reason) => return NodeAnswer::None(reason),
        Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => return NodeAnswer::OtherSecret,
        Ok(answer) => answer,
    };
    match answer.headers().get(NODE).and_then(|node| node.to_str().ok()) {
        Some(other) if other != name => NodeAnswer::OtherNode(other.to_owned()),
        // Without a name, it is a node of an earlier version, or has a name that no header can carry.
        Some(_) | None => NodeAnswer::Ready,
    }
}

/// Says what went wrong, with its cause.
fn reason(error: &hyper_util::client::legacy::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

/// Tells another node, if the request is one's, who has answered.
pub(super) fn sign(request: &HeaderMap, node: &str, answer: &mut Response) {
    if let Ok(node) = HeaderValue::from_str(node)
        && request.contains_key(PRINCIPAL)
    {
        answer.headers_mut().insert(NODE, node);
    }
}

/// Removes what only a node may say, from a request of somebody else.
pub(super) fn remove_claims(headers: &mut HeaderMap) {
    headers.remove(HOP);
    headers.remove(PRINCIPAL);
}

/// The value of the header that says who sent a forwarded request.
pub(super) fn principal_header(headers: &HeaderMap) -> Option<&str> {
    headers.get(PRINCIPAL)?.to_str().ok()
}
