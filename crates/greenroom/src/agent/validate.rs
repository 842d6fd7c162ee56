//! Validators: functions of a program that judge an answer before it counts.
//!
//! Invariants: a validator judges, and changes nothing; one that panics or takes too long ends its run, not
//! its session. The kernel's run decides whether an answer is sent back, and how often.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::RunId;
use greenroom_kernel::run::Verdict;
use greenroom_tools::AppState;

use crate::agent::hooks::{AgentHooks, guarded, has_state};
use crate::limits::waits::Chain;

/// An answer for a validator to judge: one without tool calls.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProposedAnswer {
    /// The session's id.
    pub session: Arc<str>,
    /// The run.
    pub run: RunId,
    /// The answer's text.
    pub text: String,
    /// How many answers of this run were rejected before.
    pub rejections: u32,
    pub(crate) app_state: AppState,
}

has_state!(ProposedAnswer);

/// Why an answer does not count, and whether the run continues. A string converts into a reason that sends
/// the answer back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    reason: String,
    ends_run: bool,
}

impl Rejection {
    /// Sends the answer back to the model with this reason, for another answer.
    pub fn send_back(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ends_run: false }
    }

    /// Ends the run at once, with [`Error::Rejected`](crate::Error::Rejected) and this reason.
    pub fn end_run(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ends_run: true }
    }
}

impl<T: Into<String>> From<T> for Rejection {
    fn from(reason: T) -> Self {
        Self::send_back(reason)
    }
}

type Validator = Arc<dyn Fn(ProposedAnswer) -> BoxFuture<'static, Result<(), Rejection>> + Send + Sync>;

/// The validators of an agent or a prompt, in order.
#[derive(Clone, Default)]
pub(crate) struct Validators(Vec<Validator>);

impl fmt::Debug for Validators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} validators", self.0.len())
    }
}

impl Validators {
    pub(crate) fn push<F, Fut, E>(&mut self, validator: F)
    where
        F: Fn(ProposedAnswer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Rejection>,
    {
        self.0.push(Arc::new(move |answer| {
            let judged = validator(answer);
            async move { judged.await.map_err(Into::into) }.boxed()
        }));
    }

    /// Returns these validators followed by `more`.
    pub(crate) fn and(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).cloned().collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls the validators in order; the first rejection decides. Each has the time limit of the agent's hooks.
    pub(crate) async fn judge(
        &self,
        answer: &ProposedAnswer,
        waiting: &Chain,
        of_agent: &AgentHooks,
    ) -> Verdict {
        for validator in &self.0 {
            match guarded(waiting, of_agent.limit(), || validator(answer.clone())).await {
                Ok(Ok(())) => {}
                Ok(Err(Rejection { reason, ends_run: false })) => return Verdict::Rejected { reason },
                Ok(Err(Rejection { reason, ends_run: true })) => return Verdict::Ended { reason },
                Err(problem) => return Verdict::Failed { reason: format!("a validator failed: {problem}") },
            }
        }
        Verdict::Accepted
    }
}
