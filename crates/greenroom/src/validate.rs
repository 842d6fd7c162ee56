//! What a program says of an answer before it counts.
//!
//! Invariants: a validator judges, and changes nothing; one that panics ends its run, not its session. Whether an
//! answer is sent back, and how often, is decided by the kernel's run.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use greenroom_kernel::RunId;
use greenroom_kernel::run::Verdict;

use greenroom_tools::panic_text;

/// An answer that a validator judges: one that calls no tool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProposedAnswer {
    /// The session.
    pub session: Arc<str>,
    /// The run.
    pub run: RunId,
    /// The answer's text.
    pub text: String,
    /// How many answers were rejected before it, in this run.
    pub rejections: u32,
}

type Validator = Arc<dyn Fn(&ProposedAnswer) -> Result<(), String> + Send + Sync>;

/// The validators of an agent, or of a prompt, in the order in which they are asked.
#[derive(Clone, Default)]
pub(crate) struct Validators(Vec<Validator>);

impl fmt::Debug for Validators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} validators", self.0.len())
    }
}

impl Validators {
    pub(crate) fn push(
        &mut self,
        validator: impl Fn(&ProposedAnswer) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.0.push(Arc::new(validator));
    }

    /// These, and then those.
    pub(crate) fn and(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).cloned().collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the validators say of an answer: the first rejection decides.
    pub(crate) fn judge(&self, answer: &ProposedAnswer) -> Verdict {
        let judged = std::panic::catch_unwind(AssertUnwindSafe(|| {
            self.0.iter().try_for_each(|validator| validator(answer))
        }));
        match judged {
            Ok(Ok(())) => Verdict::Accepted,
            Ok(Err(reason)) => Verdict::Rejected { reason },
            Err(panic) => {
                Verdict::Failed { reason: format!("a validator panicked: {}", panic_text(&*panic)) }
            }
        }
    }
}
