//! Answers: JSON, or a problem (RFC 9457) with the runtime's own code for the error.
//!
//! Invariants: every error has a status, a kind and a detail; an answer with 429 or 503 says when to try again.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use greenroom::Error;
use greenroom_kernel::Failure;
use greenroom_store::StoreError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::operations::Refused;
use crate::problem::{Problem, ProblemKind};

/// The `Retry-After` of a refused request, in seconds, if nothing better is known.
const RETRY_AFTER_SECONDS: u64 = 5;

/// A request that failed.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct HttpProblem {
    /// `about:blank`: `kind` says more than a type would.
    #[serde(rename = "type")]
    type_uri: String,
    /// The name of the status.
    title: String,
    /// The status.
    status: u16,
    /// A description and, if known, the remedy.
    detail: String,
    /// The kind of the error.
    kind: ProblemKind,
    /// The class of the model's failure, as in `failure`; `other` for all other errors.
    class: String,
    /// Whether the same request may succeed later, unchanged.
    retryable: bool,
    /// When to try again, in milliseconds, if that is known; `Retry-After` says it in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The model's failure, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl HttpProblem {
    fn new(status: StatusCode, problem: Problem) -> Self {
        let Problem { kind, class, message, retryable, retry_after_ms, failure } = problem;
        let title = status.canonical_reason().unwrap_or("Error").to_owned();
        let type_uri = "about:blank".to_owned();
        let status = status.as_u16();
        Self { type_uri, title, status, detail: message, kind, class, retryable, retry_after_ms, failure }
    }

    /// An error of the runtime.
    pub(super) fn of(error: &Error) -> Self {
        let mut problem = Problem::from(error);
        if let Error::Store(store) = error
            && let StoreError::Quarantined { session, .. } | StoreError::Damaged { session, .. } = &**store
        {
            let remedy = format!(
                "; in a store of files, `greenroom store accept-loss {session}` lets the session continue without what is lost"
            );
            problem.message.push_str(&remedy);
        }
        Self::new(status_of(error), problem)
    }

    /// The failure of work that was recorded before, and may be continued by another process. Without a key, the same
    /// request would be other work.
    pub(super) fn of_recorded(error: &Error, is_repeatable: bool) -> Self {
        let mut problem = Self::of(error);
        if problem.status == StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            problem.retryable &= is_repeatable;
            problem.detail.push_str(
                "; what was sent is recorded, and may still be answered: read the session, or repeat the request with its \
                 Idempotency-Key",
            );
        }
        problem
    }

    fn into_answer(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(json!(&self).to_string()));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            let seconds = self.retry_after_ms.map_or(RETRY_AFTER_SECONDS, |wait_ms| wait_ms.div_ceil(1_000));
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A refused request's answer, boxed: it is large, and rare.
#[derive(Debug)]
pub(super) struct Refusal(Box<Response>);

impl Refusal {
    /// A request that the server itself refuses.
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self(Box::new(problem(status, detail)))
    }
}

impl Refusal {
    /// As [`HttpProblem::of_recorded`].
    pub(super) fn of_recorded(error: &Error, is_repeatable: bool) -> Self {
        Self(Box::new(HttpProblem::of_recorded(error, is_repeatable).into_answer()))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(Box::new(HttpProblem::of(&error).into_answer()))
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::UnknownMethod(reason) | Refused::Parameters(reason) => {
                Self::new(StatusCode::BAD_REQUEST, reason)
            }
            Refused::Problem(problem) => {
                let is_forbidden = problem.kind == ProblemKind::Forbidden;
                let status = if is_forbidden { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST };
                Self(Box::new(HttpProblem::new(status, *problem).into_answer()))
            }
            Refused::Failed(error) => error.into(),
        }
    }
}

/// A problem of the server's own.
pub(super) fn problem(status: StatusCode, detail: impl Into<String>) -> Response {
    let kind = match status {
        StatusCode::UNAUTHORIZED => ProblemKind::Unauthorized,
        StatusCode::FORBIDDEN => ProblemKind::Forbidden,
        StatusCode::TOO_MANY_REQUESTS => ProblemKind::Busy,
        StatusCode::SERVICE_UNAVAILABLE => ProblemKind::Closed,
        _ if status.is_server_error() => ProblemKind::Other,
        _ => ProblemKind::Invalid,
    };
    let is_retryable = matches!(kind, ProblemKind::Busy | ProblemKind::Closed);
    let problem = Problem { retryable: is_retryable, ..Problem::new(kind, detail) };
    HttpProblem::new(status, problem).into_answer()
}

/// An answer in JSON.
pub(super) fn answer(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// A client error (4xx) only if the request itself can never succeed, or not in the session's present state.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
fn status_of(error: &Error) -> StatusCode {
    match error {
        Error::Model(_)
        | Error::NotSummarised { .. }
        | Error::BranchSummary { .. }
        | Error::Output { .. } => StatusCode::BAD_GATEWAY,
        Error::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
        Error::Busy { .. } | Error::LabelLimit { .. } => StatusCode::TOO_MANY_REQUESTS,
        Error::RuntimeBusy { .. } | Error::Closed | Error::Interrupted { .. } => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Error::NotIdle { .. }
        | Error::DuplicateKey { .. }
        | Error::Aborted
        | Error::Withdrawn { .. }
        | Error::Stopped { .. }
        | Error::Waiting { .. }
        | Error::QuestionClosed { .. } => StatusCode::CONFLICT,
        Error::NoSession { .. } | Error::Deleted { .. } | Error::NoQuestion { .. } => StatusCode::NOT_FOUND,
        error if error.is_invalid_request() => StatusCode::BAD_REQUEST,
        Error::Store(store) => store_status(store),
        // And variants of later versions of the library.
        Error::SessionFailed { .. } | _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
pub(super) fn store_status(error: &StoreError) -> StatusCode {
    match error {
        StoreError::SessionId { .. } | StoreError::TooLarge { .. } => StatusCode::BAD_REQUEST,
        StoreError::NotFound { .. } => StatusCode::NOT_FOUND,
        StoreError::Quarantined { .. } | StoreError::Damaged { .. } | StoreError::UnknownLoss { .. } => {
            StatusCode::CONFLICT
        }
        StoreError::Elsewhere { .. } => StatusCode::MISDIRECTED_REQUEST,
        StoreError::Closed
        | StoreError::Fenced { .. }
        | StoreError::LeaseLost
        | StoreError::Unavailable { .. }
        | StoreError::InDoubt { .. } => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
