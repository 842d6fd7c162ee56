//! The usage tracker: the ledger, the learned ratio and the context's size. What follows from the size, the kernel
//! decides ([`greenroom_kernel::due`]).
//!
//! Invariants: what it holds is rebuilt from the live path when it is restarted, and it hears of every entry
//! from the session, in order, after it is durable. Every message costs O(1), whatever the history.

use std::sync::Arc;

use greenroom_kernel::due::ContextLimits;
use greenroom_kernel::message::Message;
use greenroom_kernel::usage::{ContextUsage, Tracker, Trust};
use greenroom_kernel::{Entry, Usage};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::deps::{Deps, model_info};
use crate::event::EventKind;
use crate::message::{AgentMessage, SessionMessage, TrackerMessage};
use crate::shared::SessionShared;

/// What the context of a session is measured with.
#[derive(Debug, Clone)]
pub(crate) struct TrackerConfig {
    pub(crate) provider: String,
    pub(crate) model: String,
    /// The fixed part of every request, in estimated tokens.
    pub(crate) overhead: u64,
    /// Whether the provider is sent the reasoning of earlier answers again.
    pub(crate) resends_reasoning: bool,
    /// By what the kernel decides whether a compaction is due.
    pub(crate) limits: ContextLimits,
}

/// The usage tracker of one session.
pub(crate) struct UsageTracker;

/// What it is started with.
pub(crate) struct TrackerArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) session: ActorRef<SessionMessage>,
    pub(crate) config: TrackerConfig,
    pub(crate) path: Vec<Arc<Entry>>,
    pub(crate) total_usage: Usage,
    pub(crate) cost_microdollars: u64,
}

pub(crate) struct TrackerState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    session: ActorRef<SessionMessage>,
    config: TrackerConfig,
    tracker: Tracker,
    total_usage: Usage,
    cost_microdollars: u64,
}

impl TrackerState {
    fn context(&self) -> ContextUsage {
        self.tracker.context_usage(self.config.limits.window)
    }

    fn appended(&mut self, entry: &Entry) {
        self.tracker.appended(entry.tokens);
        let Some(message) = entry.kind.as_message() else { return };
        let Message::Assistant(answer) = &**message else { return };
        if let Some(usage) = &answer.usage {
            let cost =
                model_info(&answer.provider, &answer.model).and_then(|info| info.cost_microdollars(usage));
            self.bill(usage, cost);
        }
        match self.tracker.reported(message, entry.tokens, self.config.resends_reasoning) {
            Trust::Used => {
                let learned = &self.deps.learned;
                learned.learn_ratio(&self.config.provider, &self.config.model, self.tracker.ratio());
                let input = answer.usage.map_or(0, |usage| usage.input_tokens);
                learned.accepted(&self.config.provider, &self.config.model, input);
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

    fn bill(&mut self, usage: &Usage, cost_microdollars: Option<u64>) {
        self.total_usage.add(usage);
        self.cost_microdollars += cost_microdollars.unwrap_or(0);
        self.shared.set_bill(self.total_usage, self.cost_microdollars);
    }

    fn announce(&self) {
        let context = self.context();
        self.shared.set_context(context);
        self.shared.publish(
            &self.deps.bus,
            EventKind::UsageUpdate {
                context,
                context_window: context.window,
                total_tokens: self.total_usage.total_tokens(),
                cost_microdollars: self.cost_microdollars,
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
        let TrackerArguments { deps, shared, session, config, path, total_usage, cost_microdollars } =
            *arguments;
        deps.at(&shared.id, "usage_tracker/starts");
        let ratio = deps.learned.ratio(&config.provider, &config.model);
        let tracker = Tracker::open(&path, config.overhead, ratio);
        let state = TrackerState { deps, shared, session, config, tracker, total_usage, cost_microdollars };
        state.shared.set_context(state.context());
        state.shared.set_bill(total_usage, cost_microdollars);
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.at(&state.shared.id, message.point());
        match message {
            TrackerMessage::Appended(entry) => state.appended(&entry),
            TrackerMessage::Rewritten(path) => {
                state.tracker.rewritten(&path);
                state.announce();
            }
            TrackerMessage::Configure(config) => {
                if (&config.provider, &config.model) != (&state.config.provider, &state.config.model) {
                    state.tracker.switch_model(state.deps.learned.ratio(&config.provider, &config.model));
                }
                state.tracker.set_overhead(config.overhead);
                state.config = *config;
                state.shared.set_context(state.context());
            }
            TrackerMessage::SummaryCalls { usage, cost_microdollars } => {
                state.bill(&usage, cost_microdollars)
            }
            TrackerMessage::Measure { stamp, reply_to } => {
                let size = state.config.limits.size(state.context().tokens, state.cost_microdollars);
                let _ = reply_to.cast(AgentMessage::Sized { stamp, size });
            }
            TrackerMessage::MeasureFor(purpose) => {
                let usage = state.context();
                let size = state.config.limits.size(usage.tokens, state.cost_microdollars);
                let ratio = state.tracker.ratio();
                let _ = state.session.cast(SessionMessage::Measured { purpose, size, usage, ratio });
            }
        }
        Ok(())
    }
}
