//! The runtime's errors in their wire form.
//!
//! Invariants: each error of the runtime has one kind here, so that a client in another process can tell apart the same
//! errors as a program that uses the library.

use std::fmt;

use greenroom::Error;
use greenroom_kernel::Failure;
use greenroom_store::StoreError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The reason why the runtime refused a request, or why its work failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The kind of the error.
    pub kind: ProblemKind,
    /// The class of the model's failure, as in `failure`; `other` for all other errors.
    pub class: String,
    /// A description and, if known, the remedy.
    pub message: String,
    /// Whether the same request may succeed later, unchanged.
    pub retryable: bool,
    /// When to try again, in milliseconds, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The model's failure, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// The model call failed, and recovery did not help.
    Model,
    /// The run was interrupted. Partial output is kept.
    Aborted,
    /// A guard, a hook or a budget ended the run.
    Stopped,
    /// The reply did not arrive within the time limit.
    TimedOut,
    /// The run waits for a person's answer.
    Waiting,
    /// The session does not exist, or it was deleted.
    NoSession,
    /// The branch summary failed or was aborted. Nothing was changed.
    BranchSummary,
    /// There is nothing to compact.
    NothingToCompact,
    /// The session or the runtime is busy and accepts no more now.
    Busy,
    /// The sessions with this label got as many messages as they may within a minute. `retry_after_ms` says when the
    /// next one is accepted.
    Limited,
    /// The session or its process ended during the work, which can be resumed.
    Interrupted,
    /// The request is invalid as it is. Nothing was changed.
    Invalid,
    /// The request bears no valid token.
    Unauthorized,
    /// The token does not permit the request.
    Forbidden,
    /// The session id is invalid.
    SessionId,
    /// The session is damaged: entries are lost.
    Damaged,
    /// Another process uses the store.
    StoreInUse,
    /// Reading or writing the store failed.
    Store,
    /// The host speaks another protocol.
    Version,
    /// The runtime is shut down.
    Closed,
    /// Anything else. A kind of a newer server reads as this one.
    #[serde(other)]
    Other,
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let failure = if let Error::Model(failure) = error { Some(failure.clone()) } else { None };
        Self {
            kind: ProblemKind::of(error),
            class: failure.as_ref().map_or("other", |failure| failure.class.as_str()).to_owned(),
            message: error.to_string(),
            // Nothing was accepted, and another process, or another node, serves its sessions.
            retryable: error.is_retryable() || matches!(error, Error::Closed),
            retry_after_ms: retry_after_ms(error),
            failure,
        }
    }
}

impl Problem {
    /// A problem of this kind without an error of the runtime.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            class: "other".to_owned(),
            message: message.into(),
            retryable: false,
            retry_after_ms: None,
            failure: None,
        }
    }
}

fn retry_after_ms(error: &Error) -> Option<u64> {
    let Error::LabelLimit { retry_after, .. } = error else { return None };
    Some(u64::try_from(retry_after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

impl ProblemKind {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
    fn of(error: &Error) -> Self {
        match error {
            Error::Model(_) => Self::Model,
            Error::Aborted => Self::Aborted,
            Error::Stopped { .. } => Self::Stopped,
            Error::TimedOut { .. } => Self::TimedOut,
            Error::Waiting { .. } => Self::Waiting,
            Error::NoSession { .. } | Error::Deleted { .. } => Self::NoSession,
            Error::BranchSummary { .. } => Self::BranchSummary,
            Error::NothingToCompact(_) => Self::NothingToCompact,
            Error::Busy { .. } | Error::RuntimeBusy { .. } | Error::NotIdle { .. } => Self::Busy,
            Error::LabelLimit { .. } => Self::Limited,
            Error::Interrupted { .. } => Self::Interrupted,
            Error::Store(error) => Self::of_store(error),
            Error::Closed => Self::Closed,
            error if error.is_invalid_request() => Self::Invalid,
            _ => Self::Other,
        }
    }

    fn of_store(error: &StoreError) -> Self {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others are faults of the store")]
        match error {
            StoreError::NotFound { .. } => Self::NoSession,
            StoreError::SessionId { .. } => Self::SessionId,
            StoreError::Backup { .. } => Self::Invalid,
            StoreError::Cancelled => Self::Aborted,
            StoreError::InUse { .. } => Self::StoreInUse,
            StoreError::Quarantined { .. }
            | StoreError::Damaged { .. }
            | StoreError::UnknownLoss { .. }
            | StoreError::DamagedStore { .. } => Self::Damaged,
            // A client that has the current state can ask again.
            StoreError::Closed | StoreError::Replaced { .. } => Self::Closed,
            _ => Self::Store,
        }
    }
}
