//! The usage tracker: the learned ratio and the context's size, and with them whether a compaction is due.
//!
//! Invariants: what it holds is rebuilt from the live path when it is restarted, and it hears of every entry
//! from the session, in order, after it is durable. Every message costs O(1), whatever the history.

use std::sync::Arc;

use greenroom_kernel::Entry;
use greenroom_kernel::message::Message;
use greenroom_kernel::run::Size;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::{ContextUsage, Tracker, Trust, Window, WindowSource};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::deps::Deps;
use crate::event::EventKind;
use crate::message::{AgentMessage, Bill, Measurement, SessionMail, SessionMessage, TrackerMessage};
use crate::shared::SessionShared;

/// By what a context is measured: the model, its window, the fixed part, the settings and the budget.
#[derive(Debug, Clone)]
pub(crate) struct ContextLimits {
    pub(crate) provider: String,
    pub(crate) model: String,
    pub(crate) window: Window,
    pub(crate) overhead: u64,
    pub(crate) settings: Arc<CompactionSettings>,
    pub(crate) output_tokens_max: Option<u64>,
    pub(crate) cost_microdollars_max: Option<u64>,
    pub(crate) resends_reasoning: bool,
    /// A sub-agent: nothing compacts before the provider refuses.
    pub(crate) is_sub_agent: bool,
    /// Its compactions kept failing: nothing compacts before the window is full.
    pub(crate) is_paused: bool,
    /// A compaction was undone: wait until the window is nearly full.
    pub(crate) only_at_window: bool,
}

impl ContextLimits {
    /// The context, in tokens, at which the next request could not be sent with room for an answer.
    pub(crate) fn full_at(&self) -> Option<u64> {
        let window = self.window.tokens?;
        let answer = self.output_tokens_max.unwrap_or(4_096).min(window / 16);
        Some(window.saturating_sub(answer))
    }

    fn size(&self, tokens: u64, cost: u64) -> Size {
        let window = self.window.tokens;
        let at_window = self.full_at().is_some_and(|full| tokens >= full);
        let trigger = window.and_then(|window| {
            if self.only_at_window {
                return Some(window.saturating_sub(self.settings.reserve(window)));
            }
            self.settings.trigger_tokens(window)
        });
        // At the window the fallback helps, which needs no model.
        let may = self.settings.enabled && !self.is_sub_agent && (at_window || !self.is_paused);
        let is_due = may && trigger.is_some_and(|trigger| tokens >= trigger);
        let over_budget = self
            .cost_microdollars_max
            .filter(|limit| cost >= *limit)
            .map(|limit| format!("the session reached its cost limit of ${:.2}", f64_dollars(limit)));
        let is_window_guessed = matches!(self.window.source, WindowSource::Learned | WindowSource::Assumed);
        Size { tokens, window, is_window_guessed, is_due, at_window, over_budget }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
fn f64_dollars(microdollars: u64) -> f64 {
    microdollars as f64 / 1_000_000.0
}

/// The usage tracker of one session.
pub(crate) struct UsageTracker;

/// What it is started with.
pub(crate) struct TrackerArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) session: ActorRef<SessionMail>,
    pub(crate) limits: ContextLimits,
    pub(crate) path: Vec<Arc<Entry>>,
    pub(crate) bill: Bill,
}

pub(crate) struct TrackerState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    session: ActorRef<SessionMail>,
    limits: ContextLimits,
    tracker: Tracker,
    bill: Bill,
}

impl TrackerState {
    fn context(&self) -> ContextUsage {
        self.tracker.context_usage(self.limits.window)
    }

    fn appended(&mut self, entry: &Entry) {
        self.tracker.appended(entry.tokens);
        let Some(message) = entry.kind.as_message() else { return };
        let Message::Assistant(answer) = &**message else { return };
        match self.tracker.reported(message, entry.tokens, self.limits.resends_reasoning) {
            Trust::Used => {
                let learned = &self.deps.learned;
                learned.learn_ratio(&self.limits.provider, &self.limits.model, self.tracker.ratio());
                let input = answer.usage.map_or(0, |usage| usage.input_tokens);
                learned.accepted(&self.limits.provider, &self.limits.model, input);
            }
            Trust::Unusable => {}
            Trust::Distrusted { reported, estimated } => {
                tracing::warn!(
                    session = %self.shared.id,
                    reported,
                    estimated,
                    "the provider's report is far from the estimate; it is ignored once"
                );
            }
        }
        self.announce();
    }

    fn measurement(&self) -> Box<Measurement> {
        let usage = self.context();
        let size = self.limits.size(usage.tokens, self.bill.cost_microdollars);
        Box::new(Measurement { size, usage, ratio: self.tracker.ratio() })
    }

    fn announce(&self) {
        let context = self.context();
        self.shared.set_context(context);
        self.shared.publish(
            &self.deps.bus,
            EventKind::UsageUpdate {
                context,
                context_window: context.window,
                total_tokens: self.bill.usage.total_tokens(),
                cost_microdollars: self.bill.cost_microdollars,
            },
        );
    }
}

impl Actor for UsageTracker {
    type Msg = TrackerMessage;
    type State = TrackerState;
    type Arguments = Box<TrackerArguments>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let TrackerArguments { deps, shared, session, limits, path, bill } = *arguments;
        deps.probe(&shared.id, "usage_tracker/starts");
        let ratio = deps.learned.ratio(&limits.provider, &limits.model);
        let tracker = Tracker::open(&path, limits.overhead, ratio);
        let state = TrackerState { deps, shared, session, limits, tracker, bill };
        state.shared.set_context(state.context());
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.probe(&state.shared.id, message.point());
        match message {
            TrackerMessage::Appended(entry) => state.appended(&entry),
            TrackerMessage::Rewritten(path) => {
                state.tracker.rewritten(&path);
                state.announce();
            }
            TrackerMessage::Configure(limits) => {
                if (&limits.provider, &limits.model) != (&state.limits.provider, &state.limits.model) {
                    state.tracker.switch_model(state.deps.learned.ratio(&limits.provider, &limits.model));
                }
                state.tracker.set_overhead(limits.overhead);
                state.limits = *limits;
                state.shared.set_context(state.context());
            }
            TrackerMessage::Billed(bill) => state.bill = bill,
            TrackerMessage::Measure { stamp, reply_to } => {
                let _ = reply_to.cast(AgentMessage::Sized { stamp, measured: state.measurement() });
            }
            TrackerMessage::MeasureFor(purpose) => {
                let measured = state.measurement();
                let _ = state.session.cast(SessionMessage::Measured { purpose, measured }.into());
            }
        }
        Ok(())
    }
}
