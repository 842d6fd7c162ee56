//! Why the runtime refused something, as it stands on the wire.
//!
//! Invariants: every error of the runtime has one kind here, so that a client in another process can tell apart what a
//! program that uses the library can.

use std::fmt;

use greenroom::Error;
use greenroom_kernel::Failure;
use greenroom_store::StoreError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why the runtime refused a request, or how its work failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What kind of error it is.
    pub kind: ProblemKind,
    /// The class of the model's failure, as in `failure`; `other` for every other error.
    pub class: String,
    /// What happened, and what to do where that is known.
    pub message: String,
    /// Whether the same request may succeed later, unchanged.
    pub retryable: bool,
    /// What is known of the model's failure, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The model call failed, and recovery did not help.
    Model,
    /// The run was interrupted. What had come is kept.
    Aborted,
    /// A guard, a hook or a budget ended the run.
    Stopped,
    /// The reply did not come in the time that was set.
    TimedOut,
    /// The run waits for a person's answer.
    Waiting,
    /// There is no such session, or it was deleted.
    NoSession,
    /// The branch that was to be left could not be summarised, or that was aborted. Nothing was changed.
    BranchSummary,
    /// There is nothing to compact.
    NothingToCompact,
    /// The session or the runtime is at work and takes no more now.
    Busy,
    /// The session or its process ended while it worked; it can be resumed.
    Interrupted,
    /// The request can never succeed as it is. Nothing was changed by it.
    Invalid,
    /// No session can have this id.
    SessionId,
    /// The session is damaged: it has lost entries.
    Damaged,
    /// Another process uses the store.
    StoreInUse,
    /// Reading or writing the store failed.
    Store,
    /// The host speaks another protocol.
    Version,
    /// The runtime is shut down.
    Closed,
    /// Anything else.
    Other,
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let failure = if let Error::Model(failure) = error { Some(failure.clone()) } else { None };
        Self {
            kind: ProblemKind::of(error),
            class: failure.as_ref().map_or("other", |failure| failure.class.as_str()).to_owned(),
            message: error.to_string(),
            retryable: error.is_retryable(),
            failure,
        }
    }
}

impl Problem {
    /// A problem of this kind that is no error of the runtime.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self { kind, class: "other".to_owned(), message: message.into(), retryable: false, failure: None }
    }
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
            Error::Interrupted { .. } => Self::Interrupted,
            Error::Store(error) => Self::of_store(error),
            Error::Closed => Self::Closed,
            error if error.is_invalid_request() => Self::Invalid,
            _ => Self::Other,
        }
    }

    fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::NotFound { .. } => Self::NoSession,
            StoreError::SessionId { .. } => Self::SessionId,
            StoreError::InUse { .. } => Self::StoreInUse,
            StoreError::Quarantined { .. } | StoreError::Damaged { .. } => Self::Damaged,
            StoreError::Full { .. }
            | StoreError::NotPermitted { .. }
            | StoreError::Io { .. }
            | StoreError::Sequence { .. }
            | StoreError::Head { .. }
            | StoreError::TooLarge { .. }
            | StoreError::Version { .. }
            | StoreError::Record { .. }
            | StoreError::Index { .. }
            | StoreError::Invariant { .. } => Self::Store,
            // Whoever has what is there now can be asked again.
            StoreError::Closed | StoreError::Replaced { .. } => Self::Closed,
        }
    }
}
