//! Forwarding: a request for a session that another node of the cluster runs is sent to that node, over its own HTTP.
//!
//! Invariants: a request goes over at most one hop, so there are no loops; the node that gets it checks the caller's right
//! and label as for a direct request, and trusts the forwarding node's word on the caller only with the cluster's secret;
//! no session is taken from an owner whose lease is valid. A request that only reads is answered here if the owner cannot be
//! reached.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use greenroom_store::{Member, Owner, Placement};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Shared;
use super::access::{Bearer, same};
use super::answers::problem;
use crate::operations::{Label, Right};

/// Set by a node that forwards a request: it goes no further.
pub(super) const HOP: HeaderName = HeaderName::from_static("greenroom-hop");
/// Who sent a forwarded request: the right, and after a space the label `NAME:VALUE`, percent-encoded, if there is one.
const PRINCIPAL: HeaderName = HeaderName::from_static("greenroom-principal");
/// The path above that of a session.
const SESSIONS: &str = "/v1/sessions/";
/// How long a node may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// How often the owner is looked up if it changes in the meantime.
const LOOKUPS: usize = 3;

/// The secret by which the nodes of a cluster recognise each other.
pub(super) struct Secret(pub(super) String);

impl Secret {
    /// The bearer of a request that another node has forwarded; `None` if the token is not the cluster's.
    pub(super) fn bearer(&self, token: &str, principal: Option<&str>) -> Option<Result<Bearer, String>> {
        same(token.as_bytes(), self.0.as_bytes()).then(|| principal_of(principal.unwrap_or_default()))
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
    let right = right.ok_or_else(|| format!("{text:?} is no caller of a forwarded request"))?;
    let label = label.map(|label| {
        let decoded = form_urlencoded::parse(label.as_bytes()).next().map(|(label, _)| label.into_owned());
        decoded.unwrap_or_default().parse::<Label>()
    });
    Ok(Bearer::new(right, label.transpose()?))
}

/// Where a request is answered.
enum Place {
    Here,
    /// At another node, whose name and address these are.
    There(String, Option<String>),
}

/// The session that the path names.
fn session_of(path: &str) -> Option<String> {
    let id = path.strip_prefix(SESSIONS)?.split('/').next().filter(|id| !id.is_empty())?;
    let decoded = percent_encoding::percent_decode_str(id).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

impl Shared {
    /// Answers a request at the node that runs its session: `None` if that is this one.
    pub(super) async fn forwarded(&self, head: &Parts, body: &Bytes, bearer: &Bearer) -> Option<Response> {
        let engine = self.runtime.engine();
        let (Some(placement), Some(secret)) = (engine.placement(), &self.cluster) else { return None };
        let id = session_of(head.uri.path())?;
        let is_read = head.method == Method::GET;
        for _ in 0..LOOKUPS {
            let (node, address) = match place(placement, engine.node(), &id, is_read).await {
                Ok(Place::Here) => return None,
                Ok(Place::There(node, address)) => (node, address),
                // The session's own node may be this one, and then the request succeeds.
                Err(error) => {
                    tracing::warn!(session = %id, %error, "the session's owner could not be looked up");
                    return None;
                }
            };
            if head.headers.contains_key(HOP) {
                return Some(problem(
                    StatusCode::MISDIRECTED_REQUEST,
                    format!("the session is run by node {node}"),
                ));
            }
            let sent = match &address {
                Some(address) => send(address, secret, head, body.clone(), bearer).await,
                None => Err("it serves nothing".to_owned()),
            };
            match sent {
                // It has just been given to another node.
                Ok(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {}
                Ok(response) => return Some(response),
                Err(_) if is_read => return None,
                Err(reason) => {
                    let detail = format!(
                        "node {node} runs the session and cannot be reached: {reason}; repeat the request, with its \
                         Idempotency-Key"
                    );
                    return Some(problem(StatusCode::SERVICE_UNAVAILABLE, detail));
                }
            }
        }
        Some(problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "the session is being moved to another node; try again",
        ))
    }

    /// Whether another node runs this session.
    pub(super) async fn is_elsewhere(&self, session: &str) -> bool {
        let engine = self.runtime.engine();
        let Some(placement) = engine.placement() else { return false };
        matches!(placement.owner_of(session).await, Ok(Some(owner)) if owner.node != engine.node())
    }
}

/// Finds the node that answers a request.
async fn place(
    placement: &dyn Placement,
    me: &str,
    session: &str,
    is_read: bool,
) -> Result<Place, greenroom_store::StoreError> {
    let (node, address) = match placement.owner_of(session).await? {
        Some(Owner { node, address, .. }) => (node, address),
        // What is stored can be read anywhere.
        None if is_read => return Ok(Place::Here),
        None => {
            let Member { node, address, .. } = placement.place(session).await?;
            (node, address)
        }
    };
    Ok(if node == me { Place::Here } else { Place::There(node, address) })
}

/// Sends a request to another node, and returns its answer as it comes.
async fn send(
    address: &str,
    secret: &Secret,
    head: &Parts,
    body: Bytes,
    bearer: &Bearer,
) -> Result<Response, String> {
    let host = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(host)).await;
    let connection =
        connecting.map_err(|_| "it does not answer".to_owned())?.map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to another node ended");
        }
    });
    let uri = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = hyper::Request::new(Body::from(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri.parse().map_err(|error: axum::http::uri::InvalidUri| error.to_string())?;
    let headers = request.headers_mut();
    headers.extend(head.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    for hop_by_hop in [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        headers.remove(hop_by_hop);
    }
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    headers.insert(header::HOST, value(host)?);
    headers.insert(header::AUTHORIZATION, value(&format!("Bearer {}", secret.0))?);
    headers.insert(HOP, HeaderValue::from_static("1"));
    headers.insert(PRINCIPAL, value(&principal(bearer))?);
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let mut response = response.map(Body::new);
    response.headers_mut().remove(header::CONNECTION);
    response.headers_mut().remove(header::TRANSFER_ENCODING);
    Ok(response)
}

/// The value of the header that says who sent a forwarded request.
pub(super) fn principal_header(headers: &HeaderMap) -> Option<&str> {
    headers.get(PRINCIPAL)?.to_str().ok()
}
