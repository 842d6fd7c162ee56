//! The usage tracker: the learned ratio and the context's size. The kernel decides what follows from the size
//! ([`greenroom_kernel::due`]).
//!
//! Invariants: its state is rebuilt from the live path after a restart; the session passes it every entry in
//! order, after it is durable, except the answer that ends a run, which it gets before; if that answer cannot
//! be recorded, it gets the path again; the size in the session's shared state follows every message. Every message
//! costs O(1), whatever the history.

use std::sync::Arc;

use greenroom_kernel::Entry;
use greenroom_kernel::bill::Bill;
use greenroom_kernel::due::ContextLimits;
use greenroom_kernel::usage::{ContextUsage, Tracker, Trust};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::core::deps::Deps;
use crate::core::mail::Mail;
use crate::core::message::{
    AgentMessage, Measurement, SessionMail, SessionMessage, TrackerConfig, TrackerMessage,
};
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;

/// The usage tracker of one session.
pub(crate) struct UsageTracker;

/// The arguments of its start.
pub(crate) struct TrackerArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) session: ActorRef<SessionMail>,
    pub(crate) config: TrackerConfig,
    pub(crate) path: Vec<Arc<Entry>>,
    pub(crate) bill: Bill,
}

pub(crate) struct TrackerState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    session: ActorRef<SessionMail>,
    config: TrackerConfig,
    tracker: Tracker,
    bill: Bill,
}

impl TrackerState {
    fn context(&self) -> ContextUsage {
        self.tracker.context_usage(self.config.limits.window)
    }

    /// Publishes the newest measurement for whoever looks at the session.
    fn publish_size(&self) {
        self.shared.set_measured(self.context(), self.tracker.counting());
    }

    /// As [`Self::publish_size`], with the model that is counted from now on.
    fn publish_with_model(&self) {
        let TrackerConfig { origin, model, .. } = &self.config;
        self.shared.set_counted_model(origin, model, self.context(), self.tracker.counting());
    }

    fn appended(&mut self, entry: &Entry) {
        let trust = self.tracker.appended(entry);
        let Some(answer) = entry.kind.as_answer() else { return self.publish_size() };
        if trust == Trust::Used {
            let input = answer.usage.map_or(0, |usage| usage.input_tokens);
            self.deps.learned.accepted(&self.config.origin, &self.config.model, input);
        }
        self.trusted(trust);
        self.announce();
    }

    /// Uses the provider's count of a request that is about to be sent.
    fn provider_counted(&mut self, counted: u64, tokens: Option<u64>) {
        let trust = self.tracker.provider_counted(counted, tokens);
        tracing::debug!(session = %self.shared.id, counted, tokens, ?trust, "the provider counted");
        self.trusted(trust);
        if trust == Trust::Used {
            self.announce();
        }
    }

    /// Handles the judgement of a report or a count.
    fn trusted(&self, trust: Trust) {
        match trust {
            Trust::Used => {
                let TrackerConfig { origin, model, .. } = &self.config;
                self.deps.learned.learn_ratio(origin, model, self.tracker.ratio());
            }
            Trust::Unusable | Trust::Suspended => {}
            Trust::Contradicted { reported, counted, is_first } => {
                let session = &self.shared.id;
                tracing::debug!(%session, reported, counted, "a usage report is not plausible");
                if is_first {
                    self.warn(reported, counted);
                }
            }
        }
    }

    /// Warns the user, once about reports that are too large and once about those that are too small, that
    /// the provider's reports do not measure the context.
    fn warn(&self, reported: u64, counted: u64) {
        let TrackerConfig { origin, model, .. } = &self.config;
        let reason = if reported < counted {
            "it may leave out a part of what it is sent, as servers do that cut long requests in silence: set \
             context_window to what it takes, or raise the server's own limit. "
        } else {
            ""
        };
        let message = format!(
            "{origin} reports {reported} input tokens for a request to {model} in which about {counted} are counted; \
             {reason}such reports are not believed, and the context's size is estimated"
        );
        self.shared.publish(&self.deps.bus, EventKind::Warning { message });
    }

    fn on(&mut self, message: TrackerMessage) {
        match message {
            TrackerMessage::Appended(entry) => self.appended(&entry),
            TrackerMessage::Rewritten(path) => {
                self.tracker.rewritten(&path);
                self.announce();
            }
            TrackerMessage::Configure { config, path } => {
                let is_switch = (&config.origin, &config.model) != (&self.config.origin, &self.config.model);
                if is_switch {
                    self.tracker.switch_model(self.deps.learned.ratio(&config.origin, &config.model));
                }
                self.tracker.set_frame(config.frame(), path.as_deref().unwrap_or_default());
                self.config = *config;
                if is_switch { self.publish_with_model() } else { self.publish_size() }
            }
            TrackerMessage::Billed(bill) => self.bill = bill,
            TrackerMessage::Counted { counted, tokens } => self.provider_counted(counted, tokens),
            TrackerMessage::Measure { attempt, context, reply_to } => {
                let measured = self.measurement();
                let _ = reply_to.cast(AgentMessage::Sized { attempt, measured, context }.into());
            }
            TrackerMessage::MeasureFor(purpose) => {
                let measured = self.measurement();
                let _ = self.session.cast(SessionMessage::Measured { purpose, measured }.into());
            }
        }
    }

    fn measurement(&self) -> Box<Measurement> {
        let usage = self.context();
        let cost = self.bill.cost_microdollars;
        let mut size = self.config.limits.size(usage.tokens, self.tracker.counted(), cost);
        let compacts_at = self.config.limits.compacts_at();
        size.is_uncertain = compacts_at.is_some_and(|at| self.tracker.is_uncertain(at));
        let used_up = || self.deps.accounts.used_up(&self.deps.tenants(&self.shared), || self.deps.now_ms());
        size.over_budget = size.over_budget.or_else(used_up);
        let ContextLimits { window, settings, .. } = &self.config.limits;
        let trigger_at = window.tokens.and_then(|window| settings.trigger_tokens(window));
        trace::measured(&self.shared.id, &size, window, trigger_at, self.config.limits.full_at());
        Box::new(Measurement { size, usage, ratio: self.tracker.ratio(), hidden: self.tracker.hidden() })
    }

    fn announce(&self) {
        self.publish_size();
        let context = self.context();
        self.shared.publish(
            &self.deps.bus,
            EventKind::UsageUpdate {
                context,
                context_window: context.window,
                total_tokens: self.bill.usage.total_tokens(),
                cost_microdollars: self.bill.cost_microdollars,
                estimated_tokens: self.bill.usage.estimated_tokens,
            },
        );
    }
}

impl Actor for UsageTracker {
    type Msg = Mail<TrackerMessage>;
    type State = TrackerState;
    type Arguments = Box<TrackerArguments>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let TrackerArguments { deps, shared, session, config, path, bill } = *arguments;
        deps.probe(&shared.id, "usage_tracker/starts");
        let ratio = deps.learned.ratio(&config.origin, &config.model);
        let tracker = Tracker::open(&path, config.frame(), ratio);
        let state = TrackerState { deps, shared, session, config, tracker, bill };
        state.publish_with_model();
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        mail: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        mail.each(|message| {
            state.deps.probe(&state.shared.id, message.point());
            state.on(message);
        });
        Ok(())
    }
}
