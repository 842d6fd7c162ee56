//! Errors without secrets, for callers.
//!
//! Invariants: what a program, a provider or a panic says in a reason is redacted; the class of an error stays.

use greenroom_kernel::redact::Redactor;

use super::{ConfigError, Error};

impl Error {
    /// Replaces secrets in what others said.
    pub(crate) fn redacted(mut self, redactor: &Redactor) -> Self {
        if let Self::Model(failure) = &mut self {
            redactor.failure(failure);
        }
        if let Self::InputRefused { reason, .. }
        | Self::Stopped { reason }
        | Self::Rejected { reason, .. }
        | Self::BranchSummary { reason, .. }
        | Self::SessionFailed { reason, .. }
        | Self::Internal { reason, .. }
        | Self::Config(ConfigError::Instructions { reason }) = &mut self
        {
            redactor.all_in(reason);
        }
        self
    }
}
