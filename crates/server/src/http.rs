//! HTTP: every operation, events as they happen, and the description of both.
//!
//! | | |
//! |---|---|
//! | `/v1/…` | the operations, each where its `ROUTE` says (`calls`) |
//! | `GET /v1/events`, `GET /v1/sessions/{session_id}/events` | server-sent events (`events`) |
//! | `GET /openapi.json` | the description of these routes (`openapi`) |
//! | `/v1/sessions/{session_id}/…` of another node | goes there (`forward`), as long as the node has its lease (`leases`) |
//! | `GET /healthz`, `GET /readyz`, `GET /metrics` | for operators (`probes`) |
//!
//! Invariants: every route except the two probes requires a bearer token; all require one of our own host names, and refuse
//! web pages (`guard`); a token reaches what its right and its label permit (`access`); a GET request starts nothing; bodies are JSON and at most 4 MiB
//! (`BODY_BYTES_MAX`); errors are `application/problem+json` (`answers`); a client that disconnects cancels nothing; slow
//! and idle clients do not block others (`connections`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use greenroom::{Agent, Runtime};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::access::Tokens;
pub use self::access::{TOKEN_CHARS_MIN, Token, TokenError, check_token};
use self::answers::{answer, problem};
use self::connections::{Connection, Connections};
use self::forward::{Forwarding, Secret};
pub use self::forward::{NodeAnswer, ask_node};
use self::guard::Guard;
use self::openapi::openapi;
use crate::operations::{OpenConsumers, Right, Runs};

mod access;
mod answers;
mod calls;
mod connections;
mod events;
mod forward;
mod guard;
mod leases;
mod openapi;
mod probes;
#[cfg(test)]
mod tests;

/// The largest body that is read.
pub(crate) const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The address of the server, and its access control.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpOptions {
    /// The address to listen on; port 0 takes a free one.
    pub address: SocketAddr,
    /// The tokens, of which every request must bear one: see [`check_token`].
    pub tokens: Vec<Token>,
    /// Agents by name. A session whose label `agent` has such a name is worked on by that agent, all others by the
    /// server's. If there are any, choosing one, by setting the label, needs the right to administer.
    pub agents: BTreeMap<String, Arc<Agent>>,
    /// Further names that the `Host` header may have, besides the server's addresses and `localhost`; a name without a
    /// port matches any port.
    pub host_names: Vec<String>,
    /// The secret that the nodes of a cluster share: see [`check_token`]. With it, a request for a session that another node
    /// runs is answered there. `None` without a cluster.
    pub cluster_secret: Option<String>,
    /// How many connections may be open, at least 2. Three quarters of them may wait for a run or a compaction, or stream
    /// events. 512 by default.
    pub connections_max: usize,
    /// How long a request may take to arrive, the head and the body each, and how long a connection may be idle or not
    /// read. 30 s by default.
    pub request_timeout: Duration,
}

impl HttpOptions {
    /// With the defaults. The bearer of `token` may do everything.
    pub fn new(address: SocketAddr, token: impl Into<String>) -> Self {
        Self {
            address,
            tokens: vec![Token { secret: token.into(), right: Right::Administer, within: None }],
            agents: BTreeMap::new(),
            host_names: Vec::new(),
            cluster_secret: None,
            connections_max: 512,
            request_timeout: Duration::from_secs(30),
        }
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    consumers: OpenConsumers,
}

struct Shared {
    runtime: Runtime,
    agent: Arc<Agent>,
    /// Agents by name.
    agents: Arc<BTreeMap<String, Arc<Agent>>>,
    guard: Guard,
    /// How requests are forwarded to other nodes; `None` without a cluster.
    forwarding: Option<Forwarding>,
    request_timeout: Duration,
    stop: CancellationToken,
    /// Places for requests that wait for a run or a compaction, or that stream events: fewer than connections, so that a
    /// run can always be aborted.
    waiting: Arc<Semaphore>,
    /// The runs that were begun here.
    runs: Runs,
    /// The consumers that were read a short while ago.
    consumers: OpenConsumers,
    /// Held while a confined bearer claims the id of a new session.
    claiming: tokio::sync::Mutex<()>,
}

impl HttpServer {
    /// Starts the server. `agent` is the agent of its sessions.
    ///
    /// # Errors
    /// The address cannot be listened on; [`std::io::ErrorKind::InvalidInput`] with a token that [`check_token`]
    /// refuses or that is there twice, with fewer than 2 connections, or without time for a request.
    pub async fn start(runtime: &Runtime, agent: Arc<Agent>, options: HttpOptions) -> std::io::Result<Self> {
        let HttpOptions {
            address,
            tokens,
            agents,
            host_names,
            cluster_secret,
            connections_max,
            request_timeout,
        } = options;
        let invalid = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, reason);
        if let Some(secret) = &cluster_secret {
            check_token(secret)
                .map_err(|error| invalid(format!("the cluster's secret is not used: {error}")))?;
            if tokens.iter().any(|token| token.secret == *secret) {
                return Err(invalid("the cluster's secret is a token, too; they must differ".to_owned()));
            }
        }
        let tokens = Tokens::new(tokens).map_err(invalid)?;
        if connections_max < 2 || request_timeout.is_zero() {
            return Err(invalid("a server needs at least 2 connections, and time for a request".to_owned()));
        }
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let waiting_max = connections_max - connections_max.div_ceil(4);
        let consumers = OpenConsumers::new(stop.clone());
        let shared = Arc::new(Shared {
            runtime: runtime.clone(),
            agent,
            agents: Arc::new(agents),
            guard: Guard::new(tokens, cluster_secret.clone().map(Secret), address, &host_names),
            forwarding: cluster_secret.map(Forwarding::new),
            request_timeout,
            stop: stop.clone(),
            waiting: Arc::new(Semaphore::new(waiting_max.min(Semaphore::MAX_PERMITS))),
            runs: Runs::default(),
            consumers: consumers.clone(),
            claiming: tokio::sync::Mutex::default(),
        });
        let no_such_route = async || problem(StatusCode::NOT_FOUND, "there is no such route");
        let no_such_method =
            async || problem(StatusCode::METHOD_NOT_ALLOWED, "the route does not take this method");
        let router = calls::routes(Router::new())
            .route(probes::HEALTH, get(probes::health))
            .route(probes::READY, get(probes::ready))
            .route(probes::METRICS, get(probes::metrics))
            .route("/openapi.json", get(async || answer(StatusCode::OK, &openapi())))
            .route("/v1/events", get(events::of_sessions))
            .route("/v1/sessions/{session_id}/events", get(events::of_session))
            .fallback(no_such_route)
            .method_not_allowed_fallback(no_such_method)
            .layer(from_fn_with_state(Arc::clone(&shared), let_in))
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(Arc::clone(&shared));
        if let Some(forwarding) = &shared.forwarding {
            tokio::spawn(forwarding.leases().clone().watch(Arc::clone(runtime.engine()), stop.clone()));
        }
        let connections = Connections::new(connections_max, request_timeout);
        let task = tokio::spawn(connections.serve(listener, router, stop.clone()));
        Ok(Self { address, stop, task, consumers })
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
        // The runtime would wait for them.
        self.consumers.close();
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
        return problem(StatusCode::INTERNAL_SERVER_ERROR, "the connection is not known");
    };
    if probes::is_open(request.method(), request.uri().path()) {
        return match shared.guard.check_place(request.uri(), request.headers(), connection.local) {
            // Neither has a body, and the connection counts as a stranger's.
            Ok(()) => next.run(request.map(|_| Body::empty())).await,
            Err(refusal) => *refusal,
        };
    }
    let bearer = match shared.guard.let_in(request.uri(), request.headers(), connection.local) {
        Ok(bearer) => bearer,
        Err(refusal) => return *refusal,
    };
    let _work = connection.work();
    let (mut parts, body) = request.into_parts();
    if !shared.guard.is_node(&parts.headers) {
        forward::remove_claims(&mut parts.headers);
    }
    parts.extensions.insert(Arc::clone(&bearer));
    let head = parts.clone();
    let body = Bytes::from_request(Request::from_parts(parts, body), &());
    let (status, detail) = tokio::select! {
        body = body => match body.map_err(|rejection| rejection.status()) {
            Ok(body) => {
                let mut answer = shared.at_its_node(&head, &body, &bearer, next).await;
                forward::sign(&head.headers, shared.runtime.engine().node(), &mut answer);
                return answer;
            }
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
    let mut refusal = problem(status, detail);
    // The rest of the body cannot be told from the next request.
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}
