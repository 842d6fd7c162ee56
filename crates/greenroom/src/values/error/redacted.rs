//! Errors without secrets, for callers.
//!
//! Invariants: what a program, a provider or a panic says in a reason is redacted; the class of an error stays.

use greenroom_kernel::redact::Redactor;

use super::{ConfigError, Error};

impl Error {
    /// Replaces secrets in what others said.
    pub(crate) fn redacted(mut self, redactor: &Redactor) -> Self {
        match &mut self {
            Self::Model(failure) => redactor.failure(failure),
            Self::InputRefused { reason, .. }
            | Self::Stopped { reason }
            | Self::Rejected { reason, .. }
            | Self::BranchSummary { reason, .. }
            | Self::SessionFailed { reason, .. }
            | Self::Internal { reason, .. }
            | Self::Config(ConfigError::Instructions { reason }) => redactor.all_in(reason),
            #[expect(clippy::wildcard_enum_match_arm, reason = "all others say only what is ours")]
            _ => {}
        }
        self
    }
}
