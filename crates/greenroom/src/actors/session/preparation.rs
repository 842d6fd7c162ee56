//! Preparing a compaction while the conversation continues.
//!
//! Life cycle: once the context has passed the soft threshold, the compactor prepares the compaction; when one is due, the
//! compactor adopts its preparation, or starts again. A preparation that no compaction uses ends with its cost, which is
//! billed.
//!
//! Invariants: at most one is in progress, and only while no compaction is open; nobody waits for it, and it keeps
//! nothing from ending; it is not repeated before the context is rewritten.

use std::sync::Arc;

use greenroom_kernel::compacting::{Compacting, End};
use greenroom_kernel::entry::Trigger;

use super::SessionState;
use super::open_compaction::CompactionRequest;
use crate::core::message::{
    CompactionOrder, CompactionWork, CompactorMessage, Measurement, RunAttempt, WorkId,
};
use crate::core::trace;
use crate::events::event::EventKind;

/// The preparation of a session's next compaction.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    stage: Stage,
    /// The number of the newest one.
    newest: u64,
    /// Those that were given up, and whose cost is still to be reported.
    unsettled: Vec<u64>,
    /// Whether it was told that a compaction is near.
    is_told: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// It is of no use before the context has this size, in tokens.
    NotBefore(u64),
    /// The compactor works on it, or holds its result.
    Open,
    /// It failed, or was cancelled by a hook.
    Over,
}

impl Preparation {
    /// Whether one may begin in a context of this size, in tokens.
    fn may_begin(&self, tokens: u64) -> bool {
        match self.stage {
            Stage::None => true,
            Stage::NotBefore(from) => tokens >= from,
            Stage::Open | Stage::Over => false,
        }
    }

    /// Opens the next one, and returns its number.
    fn open(&mut self) -> u64 {
        self.stage = Stage::Open;
        self.newest += 1;
        self.newest
    }

    /// Whether the cost of one is still to be reported.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Whether one is open.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Leaves an open one to the compaction that begins. Returns whether there is one.
    pub(super) fn hand_over(&mut self) -> bool {
        std::mem::replace(&mut self.stage, Stage::Over) == Stage::Open
    }

    /// Forgets what the compactor had; it has died.
    pub(super) fn lost(&mut self) {
        self.unsettled.clear();
        if self.stage == Stage::Open {
            self.stage = Stage::Over;
        }
    }

    /// Handles the report of a preparation that no compaction uses.
    fn over(&mut self, number: u64) {
        self.unsettled.retain(|unsettled| *unsettled != number);
        if self.stage == Stage::Open && self.newest == number {
            self.stage = Stage::Over;
        }
    }
}

impl SessionState {
    /// Handles the size of a run's context.
    pub(super) async fn nears_in_run(&mut self, attempt: RunAttempt, measured: &Measurement) {
        if self.current(attempt).is_some() {
            self.prepare_if_near(measured).await;
        }
    }

    /// Reports that a compaction is near, once, and begins to prepare it, if that is possible now.
    pub(super) async fn prepare_if_near(&mut self, measured: &Measurement) {
        let Some(trigger) = measured.size.nears else { return };
        let tokens = measured.size.tokens;
        if !std::mem::replace(&mut self.compaction.preparation().is_told, true) {
            let near = EventKind::CompactionNear { tokens, compacts_at: trigger };
            self.shared.publish(&self.deps.bus, near);
        }
        let settings = &self.definition.settings;
        // A runtime that ends with its run would pay for preparations that it throws away.
        let is_wanted =
            settings.background && settings.strategy.wants_summary() && self.deps.compacts_between_runs;
        let is_possible = self.compaction.is_idle() && !self.life.is_stopping();
        if !is_wanted || !is_possible || !self.compaction.preparation().may_begin(tokens) {
            return;
        }
        let request = CompactionRequest::new(Trigger::Threshold);
        let mut params = self.compaction_params(&request, measured);
        let writers = self.writers(params.window);
        if writers.first().is_none_or(|writer| writer.summariser.lane.has_one_slot()) {
            // The run's own calls would wait for the summary.
            return;
        }
        params.at_window = false;
        (params.debt, params.debt_left) = self.read_debt(params.summarisers[0].window).await;
        let (compacting, effects) = match Compacting::prepare(params, trigger) {
            Ok(begun) => begun,
            Err(from) => {
                self.compaction.preparation().stage = Stage::NotBefore(from);
                return;
            }
        };
        let id = WorkId::Preparation(self.compaction.preparation().open());
        let order = CompactionOrder {
            id,
            adopts: false,
            span: trace::preparation(self.work_span(), &self.shared.id, tokens),
            work: CompactionWork::Replace(Box::new(compacting)),
            effects,
            ratio: measured.ratio,
            doubts_window: self.doubts_window(measured),
            summarisers: writers.into_iter().map(|writer| writer.summariser).collect(),
            agent: Arc::clone(&self.definition.agent),
            head: self.definition.request_head(self.request_settings().into_owned()),
        };
        match self.compactor().await {
            Ok(compactor) => {
                let _ = compactor.cast(CompactorMessage::Begin(Box::new(order)));
            }
            Err(error) => {
                tracing::warn!(session = %self.shared.id, %error, "a compaction could not be prepared");
                self.compaction.preparation().stage = Stage::Over;
            }
        }
    }

    /// Gives an open preparation up, for instance because the context is another one. Another may begin afterwards.
    pub(super) fn discard_preparation(&mut self, reason: &str) {
        let preparation = self.compaction.preparation();
        preparation.is_told = false;
        if std::mem::take(&mut preparation.stage) == Stage::Open {
            let number = preparation.newest;
            preparation.unsettled.push(number);
            let (work, reason) = (WorkId::Preparation(number), reason.to_owned());
            self.tell_compactor(CompactorMessage::Cancel { work, reason });
        }
    }

    /// Bills a preparation that no compaction uses.
    pub(super) async fn preparation_over(&mut self, number: u64, end: End, cost_microdollars: Option<u64>) {
        self.compaction.preparation().over(number);
        let outcome = end.outcome.as_str();
        let reason = end.outcome.reason().unwrap_or_default();
        tracing::debug!(session = %self.shared.id, outcome, reason, "a preparation is not used");
        if end.usage != greenroom_kernel::Usage::default() {
            Box::pin(self.calls_spent(None, end.usage, cost_microdollars, true)).await;
        }
    }
}
