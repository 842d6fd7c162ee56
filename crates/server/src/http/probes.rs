//! The endpoints for operators: probes and metrics.
//!
//! | route | token | answer |
//! |---|---|---|
//! | `GET /healthz` | none | 200: the process answers |
//! | `GET /readyz` | none | 200, or 503 while the server stops or its store cannot be written |
//! | `GET /metrics` | `observe`, without a label | the runtime's metrics |
//!
//! Invariants: an answer without a token tells nothing about sessions, files or errors; the log has the reason.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use greenroom::{Error, Runtime};

use super::Shared;
use super::access::Bearer;
use super::answers::{Refusal, problem};
use crate::operations::Right;

/// The route that tells whether the process answers.
pub(super) const HEALTH: &str = "/healthz";
/// The route that tells whether it takes on work.
pub(super) const READY: &str = "/readyz";
/// The route of the metrics.
pub(super) const METRICS: &str = "/metrics";

/// Whether a request needs no token: load balancers and container platforms have none.
pub(super) fn is_open(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && matches!(path, HEALTH | READY)
}

/// `GET /healthz`.
pub(super) async fn health() -> &'static str {
    "ok"
}

/// `GET /readyz`.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let refuse = |detail: &str| problem(StatusCode::SERVICE_UNAVAILABLE, detail);
    match shared.runtime.ready().await {
        _ if shared.stop.is_cancelled() => refuse("the server is stopping"),
        Ok(()) => "ready".into_response(),
        Err(Error::Closed) => refuse("the server is stopping"),
        // The runtime has logged the reason once.
        Err(_) => refuse("the store cannot be written"),
    }
}

/// `GET /metrics`.
pub(super) async fn metrics(
    State(shared): State<Arc<Shared>>,
    Extension(bearer): Extension<Arc<Bearer>>,
) -> Result<Response, Refusal> {
    bearer.check(Right::Observe)?;
    bearer.check_server()?;
    let kind = [(header::CONTENT_TYPE, Runtime::METRICS_MEDIA_TYPE)];
    Ok((kind, shared.runtime.metrics().await).into_response())
}
