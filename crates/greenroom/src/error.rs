//! What can go wrong for a program that uses the runtime.

use greenroom_kernel::{Failure, FailureClass};
use greenroom_store::StoreError;

/// A failed request to the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model call failed, and recovery did not help. The session stays usable.
    #[error("{0}")]
    Model(Failure),
    /// The run was interrupted. What had come is kept.
    #[error("the run was aborted")]
    Aborted,
    /// A guard or a budget ended the run.
    #[error("the run was stopped: {reason}")]
    Stopped {
        /// Which, and its limit.
        reason: String,
    },
    /// The agent or the session died while it worked; it can be resumed.
    #[error("session {session} was interrupted; prompt it again to go on")]
    Interrupted {
        /// The session's id.
        session: String,
    },
    /// Too much input waits for this session already.
    #[error("session {session} is busy: {waiting} inputs wait already")]
    Busy {
        /// The session's id.
        session: String,
        /// How many wait.
        waiting: usize,
    },
    /// What was asked for needs an idle session.
    #[error("session {session} is working on a run; wait for it, or abort it, before you {what}")]
    NotIdle {
        /// The session's id.
        session: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The request makes no sense for this session.
    #[error("{0}")]
    Invalid(String),
    /// The answer does not have the form that was asked for.
    #[error("the answer is not the {wanted} that was asked for: {reason}")]
    Output {
        /// The type's name.
        wanted: String,
        /// What is wrong with it.
        reason: String,
        /// The answer's text.
        text: String,
    },
    /// The session crashed too often and was given up.
    #[error("session {session} failed and was stopped: {reason}; open it again to resume it")]
    SessionFailed {
        /// The session's id.
        session: String,
        /// Why.
        reason: String,
    },
    /// Reading or writing the store failed.
    #[error("{0}")]
    Store(std::sync::Arc<StoreError>),
    /// The runtime, the agent or a setting is not usable as it is.
    #[error("{0}")]
    Config(String),
    /// The runtime was shut down.
    #[error("the runtime is shut down")]
    Closed,
}

/// The result of a request to the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same request may succeed later, unchanged.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Model(failure) => failure.class.is_retryable(),
            Self::Interrupted { .. } | Self::Busy { .. } | Self::NotIdle { .. } => true,
            Self::Store(error) => error.is_retryable(),
            Self::Aborted
            | Self::Stopped { .. }
            | Self::Invalid(_)
            | Self::Output { .. }
            | Self::SessionFailed { .. }
            | Self::Config(_)
            | Self::Closed => false,
        }
    }

    /// Whether the context is too large for the model's window, and could not be made small enough.
    pub fn is_context_overflow(&self) -> bool {
        matches!(
            self,
            Self::Model(Failure { class: FailureClass::ContextOverflow | FailureClass::ContextFloor, .. })
        )
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(std::sync::Arc::new(error))
    }
}

impl From<greenroom_kernel::settings::SettingsError> for Error {
    fn from(error: greenroom_kernel::settings::SettingsError) -> Self {
        Self::Config(error.to_string())
    }
}
