//! The session's published state, and its next work after each message.
//!
//! Invariants: queued input starts only while no work is in progress; the state is published in one place.

use std::sync::Arc;

use greenroom_kernel::log::Log;
use greenroom_kernel::usage::{ContextUsage, Measured};
use tokio_util::sync::CancellationToken;

use super::SessionState;
use crate::core::message::{AgentMessage, SupervisorMessage, tell_all};
use crate::core::shared::Published;
use crate::values::error::{Error, Result};
use crate::values::state::{State, Status};

impl SessionState {
    /// Called after every message: a session without work in progress stops if it should, or starts queued
    /// work.
    pub(super) async fn settle(&mut self) {
        if self.is_awaited() {
            self.compaction.note_awaited();
        }
        self.publish_state();
        self.settle_work().await;
        self.publish_state();
        let rests = self.has_nothing_to_do();
        if rests && !self.runs.is_left_waiting() && !self.life.is_stopping() {
            tell_all(std::mem::take(&mut self.idle_waiters), || Ok(()));
        }
        if self.life.rests(rests) && self.deps.live_sessions_max.is_some() {
            // More sessions may be live than permitted, since each stays while it works.
            let _ = self.supervisor.cast(SupervisorMessage::Rests { id: Arc::clone(&self.shared.id) });
        }
        self.taken_on.set(self.inbox.ready(&self.log).count() + usize::from(self.runs.is_open()));
    }

    async fn settle_work(&mut self) {
        if self.has_repeats_to_answer() {
            Box::pin(self.answer_repeats()).await;
        }
        if self.has_hand_off() {
            Box::pin(self.hand_off_if_ready()).await;
        }
        if !self.is_at_rest() {
            return;
        }
        if !self.log.children().is_empty() {
            Box::pin(self.close_children()).await;
        }
        #[cfg(feature = "command-tools")]
        if !self.rewinds.is_empty() {
            Box::pin(self.waiting_rewinds()).await;
        }
        if self.life.is_stopping() {
            if self.compaction.preparation().is_unsettled() {
                // Its cost is still to be recorded.
                return;
            }
            if self.inbox.may_clear() {
                Box::pin(self.clear_refused()).await;
            }
            // The agent ends with this actor, and would lose unpublished events and unsent replies, so it
            // sends them first.
            self.agent.tell(AgentMessage::FlushEvents);
            return;
        }
        if !self.is_idle() {
            return;
        }
        self.compact_if_requested();
        if self.inbox.next(&self.log).is_some() {
            Box::pin(self.next_prompt()).await;
        } else if self.inbox.may_clear() {
            Box::pin(self.clear_refused()).await;
        }
    }

    /// Publishes the session's state. If a caller starts to wait for work in progress, the lanes are
    /// notified: a summary for which nobody waits has the lowest priority.
    pub(super) fn publish_state(&self) {
        if self.life.is_asleep() {
            // The run and the inbox are with the supervisor, and remain as published.
            return;
        }
        let is_awaited = self.is_awaited();
        let is_summary_awaited = is_awaited && !self.compaction.is_idle();
        let before = self.shared.publish_state(Published {
            status: Some(self.status()),
            is_awaited,
            is_summary_awaited,
            callers_waiting: self.inbox.callers(),
            held_back: Some(Arc::clone(self.inbox.held_back())),
            inbox_agents: Arc::clone(self.inbox.agents()),
        });
        if is_summary_awaited && !before.is_summary_awaited {
            let family = self.shared.family();
            self.deps.lanes.values().for_each(|lane| lane.promote(&family));
            self.definition.lane.promote(&family);
        }
    }

    /// Whether a run, a caller or queued input waits for the session's work.
    fn is_awaited(&self) -> bool {
        self.runs.is_open() || self.compaction.is_awaited() || !self.inbox.is_empty(&self.log)
    }

    fn status(&self) -> Status {
        match (self.compaction.is_idle(), self.runs.open()) {
            (false, _) => Status::Compacting,
            (true, Some(_)) if self.log.questions().open().next().is_some() => Status::Waiting,
            (true, Some(_)) => Status::Working,
            (true, None) if self.runs.is_left_waiting() => Status::Waiting,
            (true, None) => Status::Idle,
        }
    }

    pub(super) fn state(&self) -> State {
        State {
            status: self.status(),
            waiting: self.inbox.waiting(&self.log).count(),
            held_back: self.inbox.held_back().len(),
            is_unanswered: !self.runs.is_open() && self.log.unanswered().is_some(),
            is_held_back: self.is_others(),
            compacts_at: self.tracker_config().limits.compacts_at(),
            ..state_by_log(&self.shared.id, &self.log, self.definition.model(), self.shared.context())
        }
    }

    /// Whether no work is in progress.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.runs.is_open() && self.compaction.is_idle()
    }

    /// Whether new work may start.
    pub(super) fn is_idle(&self) -> bool {
        self.is_at_rest() && !self.runs.is_left_waiting()
    }

    pub(super) fn check_idle(&self, what: &'static str) -> Result<()> {
        if self.is_idle() && !self.life.is_stopping() {
            Ok(())
        } else {
            Err(Error::NotIdle { session: self.shared.id.to_string(), what })
        }
    }

    /// Continues work that waits for people, and closes everything else that a crash left open.
    pub(super) async fn recover(&mut self) {
        self.runs.set_left_waiting(self.log.is_waiting() && !self.may_take_up(None));
        if self.runs.is_left_waiting() {
            if let Some(run) = self.log.head().open_run {
                // An abort is meant for this run, and not for input behind it.
                self.shared.begin_run(run, CancellationToken::new(), self.shared.early_aborts());
            }
            return self.arm_expiry();
        }
        match self.revive_run().await {
            Ok(true) => return self.arm_expiry(),
            Ok(false) => {}
            Err(error) => {
                self.warn(format!("the run that waited for an answer could not continue: {error}"));
            }
        }
        self.close_what_is_open().await;
    }

    pub(super) async fn close_what_is_open(&mut self) {
        if let Some(draft) = self.log.recovery(self.deps.now_ms(), self.estimate())
            && let Err(error) = self.append(draft, None).await
        {
            // This is retried with the next prompt.
            self.warn(format!("work that a crash left open could not be closed: {error}"));
        }
    }

    /// Estimates the context's size from the log alone.
    pub(super) fn estimate(&self) -> ContextUsage {
        let measured = Measured { usage_tokens: 0, trailing_tokens: self.log.head().context_tokens };
        ContextUsage::new(measured, self.definition.window)
    }
}

/// Returns the state of a session without work in progress, by its log, with this model.
pub(super) fn state_by_log(id: &str, log: &Log, model: &str, context: ContextUsage) -> State {
    let bill = log.bill();
    State {
        id: id.to_owned(),
        model: model.to_owned(),
        agent: log.head().agent.clone(),
        entries: log.head().entries,
        context,
        context_window: context.window,
        compacts_at: None,
        compactions: log.head().compactions,
        total_tokens: bill.usage.total_tokens(),
        cost_microdollars: bill.cost_microdollars,
        compaction_bill: bill.compaction,
        estimated_tokens: bill.usage.estimated_tokens,
        status: if log.is_waiting() { Status::Waiting } else { Status::Idle },
        waiting: log.inbox().len(),
        held_back: log.inbox().iter().filter(|item| item.fingerprint.is_some()).count(),
        questions: log.head().questions.len(),
        questions_below: 0,
        waiting_tools: log.asking_calls().into_iter().map(|call| call.name).collect(),
        is_unanswered: log.unanswered().is_some(),
        is_held_back: false,
        lost_from: log.head().lost_from,
    }
}
