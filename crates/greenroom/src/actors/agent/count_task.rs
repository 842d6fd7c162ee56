//! Lets the provider count the tokens of the next request, when the estimate is too uncertain to decide about a compaction.
//!
//! Invariants: the run waits a bounded time, and continues with the estimate if there is no count; nothing is sent that a
//! `before_model` hook has not seen, so an agent with such a hook does not count.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use greenroom_kernel::run::Input;
use ractor::ActorRef;

use super::{AgentState, request};
use crate::core::mail::Mail;
use crate::core::message::{AgentMessage, RunAttempt, TrackerMessage};
use crate::core::running::RequestForm;

/// How long the run waits for a count.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);

impl AgentState {
    /// Whether the run's provider may be asked to count now.
    pub(super) fn can_count(&mut self, attempt: RunAttempt) -> bool {
        let Some(running) = self.current(attempt) else { return false };
        let agent = Arc::clone(&running.begin.agent);
        let has_context = running.context.is_some();
        has_context
            && agent.hooks.before_model.is_empty()
            && self.deps.lane(&agent).is_some_and(|lane| lane.counts())
    }

    /// Lets the provider count the run's next request.
    pub(super) fn count(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        attempt: RunAttempt,
        form: RequestForm,
    ) {
        let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
        let Some(running) = self.current(attempt) else { return };
        let Some(messages) = running.context.clone() else { return };
        let request = request::of_step(running, &deps, &shared, messages, form);
        running.call += 1;
        let (call, over, agent) = (running.call, running.over.clone(), myself.clone());
        let Some(lane) = deps.lane(&running.begin.agent).cloned() else { return };
        tokio::spawn(async move {
            let asked = async { lane.provider.count_tokens(request).await };
            let asked = AssertUnwindSafe(asked).catch_unwind();
            let answer = tokio::select! {
                biased;
                () = over.cancelled() => return,
                answer = tokio::time::timeout(COUNT_TIMEOUT, asked) => answer,
            };
            let tokens = match answer {
                Ok(Ok(Ok(Some(tokens)))) => Some(tokens),
                Ok(Ok(Ok(None))) => {
                    lane.does_not_count();
                    None
                }
                Ok(Ok(Err(error))) => {
                    tracing::debug!(session = %shared.id, %error, "the provider could not count the tokens of a request");
                    None
                }
                Ok(Err(_)) | Err(_) => {
                    tracing::debug!(session = %shared.id, "the provider did not count the tokens of a request");
                    None
                }
            };
            let _ = agent.cast(AgentMessage::Counted { attempt, call, tokens }.into());
        });
    }

    /// Handles the provider's count: the tracker uses it, and the run measures again.
    pub(super) fn counted(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        attempt: RunAttempt,
        call: u64,
        tokens: Option<u64>,
    ) {
        let Some(running) = self.current(attempt).filter(|running| running.call == call) else { return };
        let counted = running.measured.as_ref().map_or(0, |measured| measured.size.counted);
        // The session asks the tracker to measure after this message.
        let _ = running.begin.tracker.cast(TrackerMessage::Counted { counted, tokens }.into());
        self.input(myself, attempt, Input::Counted);
    }
}
