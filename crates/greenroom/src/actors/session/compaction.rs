//! Compactions from the session's side: started, installed by compare-and-swap, ended exactly once.
//!
//! Invariants: a compaction is planned once, before its start is recorded; one that finds nothing to do is
//! not recorded at all; one that started has exactly one end in the log.

use std::sync::Arc;

use greenroom_kernel::compacting::{
    Compacting, CompactionParams, Effect, End, NativeSupport, PruneSegment, Segment, SummariserLimits,
};
use greenroom_kernel::entry::{
    CompactionEnded, CompactionOutcome, CompactionStarted, Entry, EntryKind, EntryRange, Trigger,
};
use greenroom_kernel::log::Draft;
use greenroom_kernel::path::ActivePath;
use greenroom_kernel::retry::Retries;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{EntryId, Failure, Usage, due};
use greenroom_provider::NativeCompaction;
use ractor::{Actor, ActorRef};

use super::definition::Definition;
use super::open_compaction::{CompactionRequest, OverflowRequest};
use super::{PAUSE_AFTER_FAILURES, SessionState, debt};
use crate::actors::compactor::{Compactor, CompactorArguments};
use crate::actors::{compaction_hooks, compaction_requests};
use crate::agent::Agent;
use crate::core::message::{
    AgentMessage, CompactionOrder, CompactionWork, CompactorMessage, Effort, MeasureFor, Measurement,
    RunAttempt, Summariser, TrackerMessage, WorkId,
};
use crate::core::trace;
use crate::events::event::EventKind;
use crate::lane::Lane;
use crate::values::compaction::{Compacted, CompactionReport};
use crate::values::error::Result;

/// The reason of a compaction that the session's user aborted.
const ABORTED: &str = "it was aborted";

/// A model that may write summaries, with its limits.
pub(super) struct Writer {
    pub(super) summariser: Summariser,
    pub(super) limits: SummariserLimits,
}
/// How much of the messages cut without a summary one summary reads: this many windows of its model.
const DEBT_WINDOWS: u64 = 4;

/// The cost of a compaction's calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spending {
    pub(super) usage: Usage,
    pub(super) effort: Effort,
}

impl SessionState {
    /// Handles a run's request for a compaction. It joins an open one that a crashed agent requested.
    pub(super) async fn compact_for_run(
        &mut self,
        attempt: RunAttempt,
        trigger: Trigger,
        at_window: bool,
        failed_attempts: u32,
        measured: &Measurement,
    ) {
        if self.current(attempt).is_none() {
            return;
        }
        let trigger = self.trigger_of(trigger);
        let overflow = at_window.then_some(OverflowRequest { trigger, failed_attempts });
        if self.compaction.join(attempt, overflow) {
            return;
        }
        let has_news = self.compaction.has_message_since();
        let is_due = due::is_due(trigger, &measured.size, has_news);
        trace::compaction_wanted(
            self.work_span(),
            &self.shared.id,
            trigger,
            &measured.size,
            is_due,
            has_news,
        );
        if !is_due {
            self.agent.tell(AgentMessage::Compacted { attempt, installed: false, floor: None, why: None });
            return;
        }
        let run = Some(attempt);
        let request =
            CompactionRequest { at_window, failed_attempts, run, ..CompactionRequest::new(trigger) };
        self.start_compaction(request, measured).await;
    }

    /// Starts the compaction that was requested during a run, if it can start now.
    pub(super) fn compact_if_requested(&mut self) {
        if self.is_idle()
            && !self.life.is_stopping()
            && let Some(options) = self.compaction.take_requested()
        {
            self.measure_for(CompactionRequest { options, ..CompactionRequest::new(Trigger::Hook) });
        }
    }

    /// After a run, starts a compaction that is due, so that the next prompt need not wait for it.
    pub(super) async fn compact_if_due(&mut self, measured: &Measurement) {
        let is_free = self.is_idle() && !self.life.is_stopping() && self.inbox.is_empty(&self.log);
        let is_free = is_free && self.deps.compacts_between_runs;
        let trigger = Trigger::Threshold;
        if is_free && due::is_due(trigger, &measured.size, self.compaction.has_message_since()) {
            // Boxed, because it is rare, and otherwise the future of each run's end would have its size.
            Box::pin(self.start_compaction(CompactionRequest::new(trigger), measured)).await;
        } else if self.deps.compacts_between_runs && measured.size.nears.is_some() {
            Box::pin(self.prepare_if_near(measured)).await;
        }
    }

    /// Requests the context's size; the compaction starts when it arrives.
    pub(super) fn measure_for(&mut self, request: CompactionRequest) {
        let measurement = self.compaction.measure(request);
        self.tracker.tell(TrackerMessage::MeasureFor(MeasureFor::Compaction(measurement)));
    }

    /// Handles the size for which a compaction waits.
    pub(super) async fn measured_for_compaction(&mut self, measurement: u64, measured: &Measurement) {
        let Some(request) = self.compaction.measured(measurement) else { return };
        // The run that asked may be over, and a model switch may be to a window that is large enough.
        let is_wanted = request.run.is_none_or(|attempt| self.current(attempt).is_some());
        let is_due = due::is_due(request.trigger, &measured.size, self.compaction.has_message_since());
        // A run whose next request cannot be sent may have waited for a compaction that was not enough for it.
        let cannot_go_on = request.run.is_some() && request.at_window && measured.size.at_window;
        if is_wanted && (is_due || cannot_go_on) && !self.life.is_stopping() {
            self.start_compaction(request, measured).await;
        } else if let Some(attempt) = request.run.filter(|_| is_wanted) {
            // The run waits for an end.
            let (installed, floor, why) = (false, None, None);
            self.agent.tell(AgentMessage::Compacted { attempt, installed, floor, why });
        }
    }

    pub(super) fn compaction_params(
        &self,
        request: &CompactionRequest,
        measured: &Measurement,
    ) -> CompactionParams {
        let size = &measured.size;
        let mut window = self.definition.window.tokens.unwrap_or(size.tokens.max(1));
        let mut known_window = window;
        if request.trigger == Trigger::Overflow {
            // The provider's limit counts, whatever the settings say; if it named none, the refused size does
            // not fit.
            let limit = self.deps.limit(&self.definition.lane, self.definition.model());
            known_window = window.min(limit.unwrap_or(window));
            window = window.min(limit.unwrap_or(size.tokens)).max(1);
        }
        let limits = &self.definition.agent.limits;
        let writers = self.writers(window);
        let native = self.definition.native_compaction().map(|own| NativeSupport {
            summariser: writers.len() - 1,
            is_readable: own == NativeCompaction::Readable,
        });
        CompactionParams {
            path: self.resent_reasoning().sized(self.log.path()).into_owned(),
            settings: CompactionSettings::clone(&self.definition.settings),
            trigger: request.trigger,
            window,
            known_window,
            summarisers: writers.into_iter().map(|writer| writer.limits).collect(),
            retries: Retries::new(limits.retries_max, limits.loading_ms_max),
            overhead: self.overhead().saturating_add(measured.hidden),
            pinned: self.log.head().pins.clone(),
            tokens_before: size.tokens,
            ratio: measured.ratio,
            at_window: request.at_window || (size.at_window && !request.trigger.may_fail()),
            keep_recent: request.options.keep_recent,
            force: request.options.force,
            focus: request.options.focus.clone(),
            failed_attempts: request.failed_attempts,
            debt: Vec::new(),
            debt_left: Vec::new(),
            prepared_for: None,
            native,
        }
    }

    /// Returns the models for the summaries: first the configured one, or the session's previous one, if any;
    /// then its own, in case that one fails. `window` is its own window, in tokens.
    pub(super) fn writers(&self, window: u64) -> Vec<Writer> {
        let Self { deps, definition, .. } = self;
        let writer = |summariser: Summariser, window: u64| {
            let Summariser { lane, model, .. } = &summariser;
            // A limit that the provider named takes precedence over settings.
            let window = deps.limit(lane, model).map_or(window, |limit| limit.min(window));
            let output_tokens_max = deps.summary_output_max(&definition.agent, lane, model);
            Writer { limits: SummariserLimits { window, output_tokens_max }, summariser }
        };
        let own = writer(definition.own_summariser(deps), window);
        let first = match definition.settings.summary_model.as_deref() {
            Some(model) if model == definition.model() => None,
            Some(model) => {
                let summariser = definition.summariser(deps, model);
                let known = self.window_of(&summariser.lane, model).unwrap_or(window);
                Some(writer(summariser, known))
            }
            None => self.left_model(window).map(|(summariser, window)| writer(summariser, window)),
        };
        first.into_iter().chain([own]).collect()
    }

    /// Returns the window of a model that is not the session's own, in tokens, by the settings for this
    /// model.
    fn window_of(&self, lane: &Lane, model: &str) -> Option<u64> {
        let Definition { agent, settings, .. } = &*self.definition;
        let context_window = agent.windows_by_model.get(model).copied();
        let settings = CompactionSettings { context_window, ..CompactionSettings::clone(settings) };
        self.deps.window(&Agent::new(model), lane, model, &settings, 0).tokens
    }

    /// Returns the previous model of the session, and its window in tokens, if that is larger than the
    /// current one and the new model has not answered yet: it can still read the whole context.
    fn left_model(&self, window: u64) -> Option<(Summariser, u64)> {
        let left = self.definition.left()?;
        let own = &self.definition.lane;
        let lane =
            if left.provider == own.provider.name() { own } else { self.deps.lanes.get(&left.provider)? };
        let known = left.window.or_else(|| self.window_of(lane, &left.model))?;
        let settings = self.deps.summary_settings(&self.definition.agent, &left.model);
        let agent = Arc::clone(&self.definition.agent);
        let summariser = Summariser { lane: Arc::clone(lane), model: left.model.clone(), settings, agent };
        (known > window).then_some((summariser, known))
    }

    /// Returns the actual trigger of a compaction that a run requested: a model switch, if the previous model
    /// could still read the context.
    fn trigger_of(&self, trigger: Trigger) -> Trigger {
        let window = self.definition.window.tokens.filter(|_| trigger == Trigger::Threshold);
        let is_switch = window.is_some_and(|window| self.left_model(window).is_some());
        if is_switch { Trigger::ModelSwitch } else { trigger }
    }

    /// Plans the compaction now that the size is known, records its start, and passes the plan to the
    /// compactor.
    async fn start_compaction(&mut self, request: CompactionRequest, measured: &Measurement) {
        let mut params = self.compaction_params(&request, measured);
        let summarisers: Vec<Summariser> =
            self.writers(params.window).into_iter().map(|writer| writer.summariser).collect();
        assert_eq!(summarisers.len(), params.summarisers.len(), "each has its limits");
        let tokens = measured.size.tokens;
        (params.debt, params.debt_left) = self.read_debt(params.summarisers[0].window).await;
        let (compacting, effects) = Compacting::begin(params);
        if let [Effect::End(end)] = effects.as_slice()
            && let CompactionOutcome::Nothing { .. } = end.outcome
        {
            let told = self.unchanged(&request, end.outcome.clone(), tokens);
            self.tell_compacted(request, told, None);
            return;
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        // A previous compaction whose end the store refused.
        draft.close_compaction(&self.log);
        let started = CompactionStarted {
            trigger: request.trigger,
            tokens_before: tokens,
            messages_before: self.log.messages(),
        };
        let id = draft.push(EntryKind::CompactionStarted(started.clone()));
        if let Err(error) = self.append(draft, None).await {
            let outcome = CompactionOutcome::Failed { reason: error.to_string() };
            let told = self.unchanged(&request, outcome, tokens);
            self.tell_compacted(request, told, None);
            return;
        }
        let span = trace::compaction(self.work_span(), &self.shared.id, id, &started);
        self.compaction.begin(id, CompactionRequest { span: span.clone(), ..request });
        let work = CompactionWork::Replace(Box::new(compacting));
        let order = CompactionOrder {
            id: WorkId::Compaction(id),
            adopts: self.compaction.preparation().hand_over(),
            span,
            work,
            effects,
            ratio: measured.ratio,
            doubts_window: self.doubts_window(measured),
            summarisers,
            agent: Arc::clone(&self.definition.agent),
            head: self.definition.request_head(self.request_settings().into_owned()),
        };
        self.order(id, order).await;
    }

    /// Whether another silence of the provider may mean that a request is too large.
    pub(super) fn doubts_window(&self, measured: &Measurement) -> bool {
        let size = &measured.size;
        size.is_window_guessed || size.window.is_none() || self.log.has_answers()
    }

    /// Passes a started compaction to the compactor.
    pub(super) async fn order(&mut self, id: EntryId, order: CompactionOrder) {
        self.publish_state();
        match self.compactor().await {
            Ok(compactor) => {
                let _ = compactor.cast(CompactorMessage::Begin(Box::new(order)));
            }
            Err(error) => {
                let outcome = CompactionOutcome::Failed { reason: error.to_string() };
                self.end_compaction(id, outcome, None, Spending::default()).await;
            }
        }
    }

    /// Reads messages that were cut without a summary, for the next summary, and returns the ranges that are
    /// left for a later one: all of them if they cannot be read.
    pub(super) async fn read_debt(&self, summariser_window: u64) -> (Vec<Arc<Entry>>, Vec<EntryRange>) {
        let active = ActivePath::of(self.log.path());
        let debt = active.compaction().map(|compaction| compaction.debt.clone()).unwrap_or_default();
        if debt.is_empty() || !self.definition.settings.strategy.wants_summary() {
            return (Vec::new(), debt);
        }
        let tokens_max = summariser_window.saturating_mul(DEBT_WINDOWS);
        match debt::read(&*self.deps.store, &self.shared.id, &debt, tokens_max).await {
            Ok(read) => read,
            Err(error) => {
                self.warn(format!("messages that were cut without a summary could not be read: {error}"));
                (Vec::new(), debt)
            }
        }
    }

    /// Returns the compactor, which is started when it is first needed.
    pub(super) async fn compactor(&mut self) -> Result<ActorRef<CompactorMessage>> {
        if let Some(compactor) = &self.compactor {
            return Ok(compactor.clone());
        }
        let arguments = CompactorArguments {
            deps: Arc::clone(&self.deps),
            shared: Arc::clone(&self.shared),
            session: self.myself.clone(),
        };
        let (compactor, _) = Actor::spawn_linked(None, Compactor, arguments, self.myself.get_cell())
            .await
            .map_err(|error| super::opening::not_started(&self.shared, "compactor", &error))?;
        self.compactor = Some(compactor.clone());
        Ok(compactor)
    }

    /// Replaces a segment of the path, in the model's view, by its summary: a comparison, then one atomic
    /// append.
    pub(super) async fn replace_path_segment(&mut self, id: EntryId, segment: Segment, effort: Effort) {
        let request = self.compaction.of(id).filter(|_| self.log.accepts(&segment));
        let Some(installation) = request.map(|request| request.installation(id, effort)) else {
            return self.tell_compactor(CompactorMessage::Installed {
                work: WorkId::Compaction(id),
                installed: false,
            });
        };
        self.deps.probe(&self.shared.id, "install/1_accepted");
        let (draft, ended) = self.log.install(self.deps.now_ms(), segment, installation);
        self.install(id, draft, &ended).await;
    }

    /// Shortens tool results in the model's view: a comparison, then one atomic append.
    pub(super) async fn prune_results(&mut self, id: EntryId, segment: PruneSegment, effort: Effort) {
        let request = self.compaction.of(id).filter(|_| self.log.accepts_prune(&segment));
        let Some(installation) = request.map(|request| request.installation(id, effort)) else {
            return self.tell_compactor(CompactorMessage::Installed {
                work: WorkId::Compaction(id),
                installed: false,
            });
        };
        self.deps.probe(&self.shared.id, "install/1_accepted");
        let (draft, ended) = self.log.install_prune(self.deps.now_ms(), segment, installation);
        self.install(id, draft, &ended).await;
    }

    /// Appends a compaction with its end, and reports it.
    async fn install(&mut self, id: EntryId, draft: Box<Draft>, ended: &CompactionEnded) {
        self.deps.probe(&self.shared.id, "install/2_drafted");
        if let Err(error) = self.append(draft, None).await {
            self.tell_compactor(CompactorMessage::Installed {
                work: WorkId::Compaction(id),
                installed: false,
            });
            let outcome = CompactionOutcome::Failed { reason: error.to_string() };
            if let Some(request) = self.compaction.end(id) {
                let told = self.unchanged(&request, outcome, ended.tokens_before);
                self.tell_compacted(request, told, None);
            }
            return;
        }
        self.deps.probe(&self.shared.id, "install/3_durable");
        self.compaction.only_at_window = false;
        self.context_rewritten();
        self.limits_changed();
        self.deps.probe(&self.shared.id, "install/4_measured");
        self.warn_of_loss(ended);
        self.tell_compactor(CompactorMessage::Installed { work: WorkId::Compaction(id), installed: true });
        if let Some(request) = self.compaction.end(id) {
            self.tell_compacted(request, Compacted::from(ended), None);
        }
    }

    /// Warns if messages were cut without a summary although one was wanted.
    fn warn_of_loss(&self, ended: &CompactionEnded) {
        let is_wanted = self.definition.settings.strategy.wants_summary();
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others change nothing here")]
        match &ended.outcome {
            CompactionOutcome::Truncated { reason } | CompactionOutcome::Digested { reason } if is_wanted => {
                let is_digest = matches!(ended.outcome, CompactionOutcome::Digested { .. });
                let digest = if is_digest { "; a digest of them stands in their place" } else { "" };
                self.warn(format!(
                    "the oldest {} messages of the context were cut without a summary ({reason}){digest}; the next summary \
                     that can be made reads them, and undoing the compaction brings them back where they fit",
                    ended.messages_removed
                ));
            }
            CompactionOutcome::Pruned { reason: Some(reason) } => self.warn(format!(
                "tool results are sent shorter to make room ({reason}); the model can read them with `recall`, and undoing \
                 the compaction brings them back where they fit"
            )),
            _ => {}
        }
    }

    /// Aborts the compaction for the session's user. A compaction for which a run waits ends with its run.
    pub(super) fn abort_compaction(&mut self) {
        if self.compaction.has_run() {
            return;
        }
        if let Some(request) = self.compaction.give_up_measuring() {
            let outcome = CompactionOutcome::Cancelled { reason: ABORTED.into() };
            let told = self.unchanged(&request, outcome, self.shared.context().tokens);
            self.tell_compacted(request, told, None);
        } else {
            self.cancel_compaction(ABORTED);
        }
    }

    /// Cancels the compaction in progress. Its end arrives as a message.
    pub(super) fn cancel_compaction(&self, reason: &str) {
        if let Some(compaction) = self.compaction.running() {
            let (work, reason) = (WorkId::Compaction(compaction), reason.to_owned());
            self.tell_compactor(CompactorMessage::Cancel { work, reason });
        }
    }

    pub(super) fn tell_compactor(&self, message: CompactorMessage) {
        if let Some(compactor) = &self.compactor {
            // `child_failed` handles a crashed compactor and ends its compaction.
            let _ = compactor.cast(message);
        }
    }

    /// Handles the end of a compaction that installed nothing.
    pub(super) async fn compaction_over(&mut self, id: EntryId, end: End, effort: Effort) {
        let spending = Spending { usage: end.usage, effort };
        self.end_compaction(id, end.outcome, end.floor, spending).await;
    }

    /// Ends the compaction in progress after the compactor has crashed.
    pub(super) async fn compactor_died(&mut self, reason: &str) {
        self.compaction.preparation().lost();
        if let Some(id) = self.compaction.running() {
            tracing::warn!(session = %self.shared.id, reason, "the compaction was interrupted");
            self.end_compaction(id, CompactionOutcome::Interrupted, None, Spending::default()).await;
        }
    }

    /// Records the end of the compaction in progress, which installed nothing.
    pub(super) async fn end_compaction(
        &mut self,
        id: EntryId,
        outcome: CompactionOutcome,
        floor: Option<Failure>,
        spending: Spending,
    ) {
        let Some(request) = self.compaction.end(id) else { return };
        let ended = CompactionEnded {
            outcome,
            duration_ms: request.duration_ms(),
            waited_ms: request.waited_ms(),
            prepared_ms: spending.effort.prepared_ms,
            summary_usage: spending.usage,
            cost_microdollars: spending.effort.cost_microdollars,
            ..self.log.interrupted_compaction().expect("a compaction that runs is open in the log")
        };
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CompactionEnded(Box::new(ended.clone())));
        if let Err(error) = self.append(draft, None).await {
            self.warn(format!("a compaction's end could not be recorded: {error}"));
        }
        if ended.trigger.is_automatic()
            && self.log.head().automatic_compaction_failures == PAUSE_AFTER_FAILURES
        {
            self.warn(format!(
                "{PAUSE_AFTER_FAILURES} compactions in a row failed; automatic compaction is paused until a manual one \
                 works, the model or the settings change, or the session is opened again"
            ));
        }
        self.limits_changed();
        self.tell_compacted(request, Compacted::from(&ended), floor);
    }

    /// Returns the result of a compaction that changed nothing and recorded no end.
    pub(super) fn unchanged(
        &self,
        request: &CompactionRequest,
        outcome: CompactionOutcome,
        tokens: u64,
    ) -> Compacted {
        let messages = self.log.messages();
        Compacted {
            started: None,
            trigger: request.trigger,
            outcome,
            entry_id: None,
            tokens_before: tokens,
            tokens_after: tokens,
            messages_before: messages,
            messages_after: messages,
            messages_removed: 0,
            duration_ms: 0,
            waited_ms: 0,
            prepared_ms: None,
            summary_usage: Usage::default(),
            cost_microdollars: None,
            recall: None,
        }
    }

    /// Reports the end of a compaction to the run, the hooks and the caller.
    pub(super) fn tell_compacted(
        &mut self,
        request: CompactionRequest,
        told: Compacted,
        floor: Option<Failure>,
    ) {
        self.compaction.ended();
        if told.started.is_some() {
            trace::compaction_ended(&request.span, &self.shared.id, &told);
        }
        if let Some(attempt) = request.run {
            let installed = told.entry_id.is_some();
            match request.or_else.filter(|_| !installed && self.current(attempt).is_some()) {
                Some(OverflowRequest { trigger, failed_attempts }) => {
                    let run = Some(attempt);
                    self.measure_for(CompactionRequest {
                        at_window: true,
                        failed_attempts,
                        run,
                        ..CompactionRequest::new(trigger)
                    });
                }
                None => {
                    let why = told.why_not();
                    self.agent.tell(AgentMessage::Compacted {
                        attempt,
                        installed,
                        floor: floor.map(Box::new),
                        why,
                    });
                }
            }
        }
        let concerns_hooks =
            told.trigger != Trigger::Branch && !matches!(told.outcome, CompactionOutcome::Nothing { .. });
        if !self.deps.hooks.is_empty() && concerns_hooks {
            let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
            let entry = self.log.path().iter().find(|entry| Some(entry.id) == told.entry_id).cloned();
            let report = CompactionReport {
                session: Arc::clone(&self.shared.id),
                end: told.clone(),
                entry,
                options: request.options.clone(),
                settings: Arc::clone(&self.definition.settings),
                compaction: compaction_requests::requests_to(&self.myself),
            };
            tokio::spawn(async move {
                for message in compaction_hooks::ended(&deps.hooks, report).await {
                    shared.publish(&deps.bus, EventKind::Warning { message });
                }
            });
        }
        if let Some(reply) = request.reply {
            let _ = reply.send(Ok(told));
        }
    }
}
