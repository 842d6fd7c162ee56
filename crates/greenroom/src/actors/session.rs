//! The session: the tree and its log, and the only writer of it.
//!
//! Life of a prompt here: it is recorded (or waits in the inbox), the agent is told to begin, its messages are
//! recorded as they come, waiting input joins at boundaries, and when the run is over its end is recorded and
//! the prompt is answered.
//!
//! Invariants: an entry is told to the tracker, broadcast and acknowledged only after it is durable; at most
//! one run and one compaction are open; what a crash left open is closed before anything else is written; only
//! this actor waits for the disk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::compacting::CompactionParams;
use greenroom_kernel::entry::{
    CompactionEnded, CompactionOutcome, CompactionStarted, Delivery, EntryKind, Trigger,
};
use greenroom_kernel::message::{Block, Message};
use greenroom_kernel::path::Live;
use greenroom_kernel::plan::{Plan, PlanOptions, plan};
use greenroom_kernel::run::{Boundary, Size};
use greenroom_kernel::settings::{CompactionSettings, Occasion};
use greenroom_kernel::size::{Estimator, text_tokens};
use greenroom_kernel::usage::{ContextUsage, Measured, Ratio, Window, WindowSource};
use greenroom_kernel::{Entry, EntryId, Failure, RunOutcome, Usage};
use greenroom_store::{Appended, Batch, SessionState as StoredState};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::actors::agent::{AgentActor, AgentArguments};
use crate::actors::compactor::{Compactor, CompactorArguments};
use crate::actors::usage_tracker::{ContextLimits, TrackerArguments, UsageTracker};
use crate::agent::Agent;
use crate::compaction::{CompactOptions, Compacted};
use crate::deps::Deps;
use crate::error::{Error, Result};
use crate::event::{self, Event, EventKind};
use crate::lane::Lane;
use crate::log::{Draft, INBOX_MAX, InboxItem, Log};
use crate::message::{
    AgentMessage, Answer, BeginRun, CompactionOrder, CompactorMessage, MeasureFor, PromptOptions, ReplyTo,
    RunAttempt, RunCompletion, SessionMessage, Summariser, SupervisorMessage, TrackerMessage,
};
use crate::restarts::Restarts;
use crate::session::{Reply, State, Status};
use crate::shared::SessionShared;

mod compaction;
mod first_reply;
mod manual;
mod opening;
mod runs;

use opening::{fixed_tokens, model_warnings};

/// The session actor.
pub(crate) struct Session;

/// What it is started with.
pub(crate) struct SessionArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) supervisor: ActorRef<SupervisorMessage>,
}

/// What it owns.
pub(crate) struct SessionState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    supervisor: ActorRef<SupervisorMessage>,
    myself: ActorRef<SessionMessage>,
    definition: Arc<Agent>,
    lane: Arc<Lane>,
    tools: greenroom_tools::Registry,
    settings: Arc<CompactionSettings>,
    window: Window,
    fixed_tokens: u64,
    log: Log,
    agent: ActorRef<AgentMessage>,
    tracker: ActorRef<TrackerMessage>,
    compactor: Option<ActorRef<CompactorMessage>>,
    run: Option<OpenRun>,
    /// Prompts in the inbox, and who waits for them.
    waiting: HashMap<EntryId, (PromptOptions, ReplyTo<Reply>)>,
    compaction: Option<OpenCompaction>,
    /// Durable events that the agent may not have broadcast yet.
    outgoing: VecDeque<Arc<Event>>,
    restarts: Restarts,
    attempts: u32,
    only_at_window: bool,
    /// A compaction that was asked for while a run was running.
    requested: Option<CompactOptions>,
    /// Whether a message was recorded since the last automatic compaction ended.
    message_since_compaction: bool,
    /// It is to end as soon as nothing is under way.
    is_stopping: bool,
    /// The end of the newest run, until the agent said it.
    completion: Option<RunCompletion>,
    /// Prompts in the inbox whose callers were told that they failed: they never begin, and leave it with the next
    /// append.
    refused: Vec<EntryId>,
    /// The store refused what waits in the inbox: it is tried again after a while, or with the next request.
    is_held: bool,
    /// Whether the timer for that runs.
    tries_again: bool,
    /// How often it was refused one after another.
    refusals: u32,
    /// What nobody knows of the model: said once, when a run begins.
    model_warnings: Vec<String>,
}

/// The run in progress.
struct OpenRun {
    stamp: RunAttempt,
    options: PromptOptions,
    reply: Option<ReplyTo<Reply>>,
    told: Told,
    /// How it ended, while its end is not yet recorded.
    closing: Option<RunOutcome>,
}

/// What a run said so far: what its reply will tell.
#[derive(Default)]
struct Told {
    text: String,
    usage: Usage,
    steps: u32,
}

/// The kind of the note with which a run goes on; its data is the run's id.
const RUN_RESUMED: &str = "run_resumed";

/// The compaction in progress.
struct OpenCompaction {
    trigger: Trigger,
    at_window: bool,
    failed_attempts: u32,
    options: CompactOptions,
    /// The run that waits for it.
    stamp: Option<RunAttempt>,
    /// What that run needs if nothing comes of this one: it was asked for less, by an agent that died.
    or_else: Option<(Trigger, u32)>,
    /// The caller that waits for it.
    reply: Option<ReplyTo<Compacted>>,
    started: Option<EntryId>,
    began: tokio::time::Instant,
    leaving: Option<Leaving>,
}

/// The model that is being left, and its window: it writes the summary.
struct Leaving {
    summariser: Summariser,
    window: u64,
}

impl OpenCompaction {
    /// One that nobody waits for yet.
    fn new(trigger: Trigger) -> Self {
        Self {
            trigger,
            at_window: false,
            failed_attempts: 0,
            options: CompactOptions::default(),
            stamp: None,
            or_else: None,
            reply: None,
            started: None,
            began: tokio::time::Instant::now(),
            leaving: None,
        }
    }
}

impl Actor for Session {
    type Msg = SessionMessage;
    type State = SessionState;
    type Arguments = SessionArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        arguments.deps.at(&arguments.shared.id, "session/starts");
        Ok(SessionState::open(myself, arguments).await?)
    }

    async fn post_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.at(&state.shared.id, "session/started");
        let events: Vec<Arc<Event>> = state.outgoing.iter().cloned().collect();
        state.tell_agent(AgentMessage::Broadcast { events, then: None });
        state.recover().await;
        state.settle().await;
        state.watch_idleness();
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.shared.activity.fetch_add(1, Ordering::Relaxed);
        let message = if let SessionMessage::Admitted { message, place } = message {
            // It is free again: the message is no longer in the mailbox.
            drop(place);
            *message
        } else {
            message
        };
        state.deps.at(&state.shared.id, message.point());
        // The branches are boxed: an idle actor must not hold the largest handler's future.
        Box::pin(async {
            state.on(message).await;
            state.settle().await;
        })
        .await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, reason) => {
                let reason = reason.to_string();
                Box::pin(async {
                    state.child_failed(&child, &reason).await?;
                    state.settle().await;
                    Ok(())
                })
                .await
            }
            SupervisionEvent::ActorTerminated(..)
            | SupervisionEvent::ActorStarted(_)
            | SupervisionEvent::ProcessGroupChanged(_) => Ok(()),
        }
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.shared.cancel_run();
        Ok(())
    }
}

impl SessionState {
    async fn on(&mut self, message: SessionMessage) {
        match message {
            SessionMessage::Prompt { content, options, reply } => self.prompt(content, options, reply).await,
            SessionMessage::Resume { options, reply } => self.resume(options, reply).await,
            SessionMessage::Input { content, delivery, reply } => self.input(content, delivery, reply).await,
            SessionMessage::Withdraw { ticket } => self.withdraw(ticket).await,
            SessionMessage::CompactManually { options, reply } => self.compact_manually(options, reply),
            SessionMessage::CompactAfterRun { options } => {
                self.requested = Some(options);
            }
            SessionMessage::PlanManually { options, reply } => {
                let _ = reply.send(Ok(self.plan_manually(&options).map(Box::new)));
            }
            SessionMessage::Undo { reply } => {
                let _ = reply.send(self.undo().await);
            }
            SessionMessage::Branch { to, summary, reply } => {
                let _ = reply.send(self.branch(to, summary).await);
            }
            SessionMessage::LeftBranch { to, reply } => {
                let _ = reply.send(self.left_branch(to).await);
            }
            SessionMessage::Bill { usage, cost_microdollars } => {
                let cost_microdollars = Some(cost_microdollars);
                let _ = self.tracker.cast(TrackerMessage::SummaryCalls { usage, cost_microdollars });
            }
            SessionMessage::Pin { entry, pinned, reply } => {
                let _ = reply.send(self.pin(entry, pinned).await);
            }
            SessionMessage::Import { entries, leaf, reply } => {
                let _ = reply.send(self.import(&entries, leaf).await);
            }
            SessionMessage::State(reply) => {
                let _ = reply.send(self.state());
            }
            SessionMessage::Context(reply) => {
                let _ = reply.send(self.log.context());
            }
            SessionMessage::Admitted { message, .. } => Box::pin(self.on(*message)).await,
            SessionMessage::Configure(definition) => {
                self.configure(definition);
            }
            SessionMessage::AbortCompaction => {
                self.shared.abort_is_heard();
                self.abort_compaction();
            }
            SessionMessage::Stop => self.stop(),
            SessionMessage::TryAgain => (self.is_held, self.tries_again) = (false, false),
            SessionMessage::IdleCheck { activity } => self.idle_check(activity),
            SessionMessage::Record { stamp, messages, boundary } => {
                self.record(stamp, messages, boundary).await
            }
            SessionMessage::End { stamp, messages, outcome } => self.end(stamp, messages, outcome).await,
            SessionMessage::Project { stamp } => {
                let messages = self.log.context();
                self.tell_agent(AgentMessage::Context { stamp, messages });
            }
            SessionMessage::Compact { stamp, trigger, at_window, failed_attempts } => {
                self.compact_for_run(stamp, trigger, at_window, failed_attempts);
            }
            SessionMessage::EventsFlushed => self.stop_now(),
            SessionMessage::LimitLearned { provider, model, limit, sent } => {
                if self.deps.learned.learn_limit(&provider, &model, limit, sent) {
                    self.warn(format!(
                        "the provider says that {model} takes {limit} tokens; this is remembered"
                    ));
                    self.limits_changed();
                }
            }
            SessionMessage::Measured { purpose: MeasureFor::RunEnd, size, usage, .. } => {
                self.close_run(&size, usage).await;
            }
            SessionMessage::Measured { purpose: MeasureFor::Compaction, size, usage, ratio } => {
                self.start_compaction(&size, usage, ratio).await;
            }
            SessionMessage::ReplacePathSegment { segment, duration_ms, cost_microdollars } => {
                self.replace_path_segment(*segment, duration_ms, cost_microdollars).await;
            }
            SessionMessage::CompactionOver { end, cost_microdollars } => {
                self.compaction_over(*end, cost_microdollars).await;
            }
        }
    }

    /// Makes a draft durable, and then known: to the log in memory, the tracker and everyone who listens.
    async fn append(&mut self, draft: Draft, key: Option<String>) -> Result<()> {
        self.append_then(draft, key, &mut None).await
    }

    async fn append_then(
        &mut self,
        mut draft: Draft,
        key: Option<String>,
        then: &mut Option<RunCompletion>,
    ) -> Result<()> {
        let (total_usage, cost) = self.shared.bill();
        draft.head.total_usage = total_usage;
        draft.head.cost_microdollars = cost;
        if self.log.is_empty() {
            draft.head.created_at_ms = draft.head.updated_at_ms;
            self.provider().clone_into(&mut draft.head.provider);
            draft.head.model.clone_from(&self.definition.model);
            draft.head.parent_session = self.shared.parent.as_deref().map(str::to_owned);
        }
        draft.head.window = self.window.tokens;
        let entries = draft.entries.clone();
        let batch = Batch {
            entries: entries.iter().map(|entry| Entry::clone(entry)).collect(),
            head: draft.head.clone(),
            key,
            epoch: 0,
        };
        match self.deps.store.append(&self.shared.id, batch).await? {
            Appended::Written { .. } => {}
            Appended::Duplicate { first } => {
                let session = self.shared.id.to_string();
                return Err(Error::DuplicateKey { session, first, outcome: None });
            }
        }
        self.log.commit(draft);
        for entry in &entries {
            if greenroom_kernel::path::is_message(&entry.kind) {
                self.message_since_compaction = true;
                let _ = self.tracker.cast(TrackerMessage::Appended(Arc::clone(entry)));
            }
        }
        let parent = self.shared.parent.as_ref();
        self.refused.retain(|id| self.log.inbox().iter().any(|item| item.id == *id));
        let events: Vec<Arc<Event>> =
            entries.iter().map(|entry| Arc::new(event::durable(&self.shared.id, parent, entry))).collect();
        let below = self.shared.broadcast_below();
        self.outgoing.retain(|event| event.seq >= below);
        self.outgoing.extend(events.iter().cloned());
        if then.is_some() {
            self.completion.clone_from(then);
        }
        self.tell_agent(AgentMessage::Broadcast { events, then: then.take() });
        Ok(())
    }

    /// The name of the provider that is asked.
    fn provider(&self) -> &str {
        self.lane.provider.name()
    }

    fn tell_agent(&self, message: AgentMessage) {
        // An agent that died is replaced by `child_failed`, which sends anew what matters.
        let _ = self.agent.cast(message);
    }

    fn warn(&self, message: String) {
        tracing::warn!(session = %self.shared.id, "{message}");
        self.shared.publish(&self.deps.bus, EventKind::Warning { message });
    }

    /// The fixed part of every request, in estimated tokens.
    fn overhead(&self) -> u64 {
        self.fixed_tokens + self.log.pinned_tokens()
    }

    fn limits(&self) -> ContextLimits {
        ContextLimits {
            provider: self.provider().to_owned(),
            model: self.definition.model.clone(),
            window: self.window,
            overhead: self.overhead(),
            settings: Arc::clone(&self.settings),
            output_tokens_max: self.deps.output_tokens_max(&self.definition),
            cost_microdollars_max: self.definition.cost_microdollars_max,
            resends_reasoning: self.lane.provider.resends_reasoning(),
            is_sub_agent: self.shared.parent.is_some(),
            is_paused: self.log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: self.only_at_window,
        }
    }

    /// Tells the tracker what is measured by now.
    fn limits_changed(&mut self) {
        self.window = self.deps.window(
            &self.definition,
            self.provider(),
            &self.definition.model,
            &self.settings,
            self.overhead(),
        );
        let _ = self.tracker.cast(TrackerMessage::Configure(Box::new(self.limits())));
    }

    /// Takes over a changed definition, or changed settings.
    fn configure(&mut self, definition: Arc<Agent>) {
        let Some(lane) = self.deps.lane(&definition).cloned() else {
            let error = self.deps.unknown_provider(&definition);
            self.warn(format!("the changed agent is not used: {error}"));
            return;
        };
        let provider = lane.provider.name().to_owned();
        let tools = match crate::sub_agent::tools_of(&self.deps, &definition) {
            Ok(tools) => tools,
            Err(error) => {
                self.warn(format!("the changed agent is not used: {error}"));
                return;
            }
        };
        let settings = self.deps.settings(&definition);
        let fixed_tokens = fixed_tokens(&definition, &tools);
        let window = self.deps.window(&definition, &provider, &definition.model, &settings, fixed_tokens);
        let feasible = window
            .tokens
            .map_or(Ok(()), |window| settings.feasible(window, fixed_tokens + self.log.pinned_tokens()));
        if let Err(error) = feasible {
            self.warn(format!("the changed settings are not used: {error}"));
            return;
        }
        let smaller = window.tokens.zip(self.window.tokens).filter(|(new, old)| new < old);
        let leaving = smaller.map(|(_, window)| {
            let summariser =
                Summariser { lane: Arc::clone(&self.lane), model: self.definition.model.clone() };
            Leaving { summariser, window }
        });
        let is_switch = (provider.as_str(), &definition.model) != (self.provider(), &self.definition.model);
        if is_switch || *settings != *self.settings {
            // What failed three times may work now.
            self.log.reset_failures();
        }
        self.lane = lane;
        self.tools = tools;
        self.settings = settings;
        self.fixed_tokens = fixed_tokens;
        self.definition = definition;
        self.limits_changed();
        if is_switch {
            self.model_warnings = model_warnings(&self.limits());
        }
        // What the old model could hold may be too much for the new one; the old one can still summarise it.
        if is_switch && leaving.is_some() && self.settings.enabled && self.is_idle() && !self.log.is_empty() {
            self.open_compaction(OpenCompaction { leaving, ..OpenCompaction::new(Trigger::ModelSwitch) });
        }
    }

    fn state(&self) -> State {
        let (usage, cost_microdollars) = self.shared.bill();
        let context = self.shared.context();
        State {
            id: self.shared.id.to_string(),
            model: self.definition.model.clone(),
            entries: self.log.head().entries,
            context,
            context_window: context.window,
            compactions: self.log.head().compactions,
            total_tokens: usage.total_tokens(),
            cost_microdollars,
            status: match (&self.compaction, &self.run) {
                (Some(_), _) => Status::Compacting,
                (None, Some(_)) => Status::Working,
                (None, None) => Status::Idle,
            },
            waiting: self.inbox().count(),
            is_unanswered: self.run.is_none() && runs::unanswered(&self.log).is_some(),
        }
    }

    fn is_idle(&self) -> bool {
        self.run.is_none() && self.compaction.is_none()
    }

    fn check_idle(&self, what: &'static str) -> Result<()> {
        if self.is_idle() && !self.is_stopping {
            Ok(())
        } else {
            Err(Error::NotIdle { session: self.shared.id.to_string(), what })
        }
    }

    /// Closes what a crash left open.
    async fn recover(&mut self) {
        if let Some(draft) = self.log.recovery(self.deps.now_ms(), self.estimate())
            && let Err(error) = self.append(draft, None).await
        {
            // It is tried again with the next prompt.
            self.warn(format!("what a crash left open could not be closed: {error}"));
        }
    }

    /// The context's size by the log alone.
    fn estimate(&self) -> ContextUsage {
        let measured = Measured { usage_tokens: 0, trailing_tokens: self.log.head().context_tokens };
        ContextUsage::new(measured, self.window)
    }

    /// Whatever was handled: a session with nothing under way ends if it is to end, or goes on with what waits.
    async fn settle(&mut self) {
        if !self.is_idle() {
            return;
        }
        if self.is_stopping {
            // The agent goes with this actor, and what it has not yet broadcast or answered with it: so it speaks
            // first.
            self.tell_agent(AgentMessage::FlushEvents);
            return;
        }
        self.compact_if_requested();
        self.next_prompt().await;
    }

    /// Input that waits, without what was refused.
    fn inbox(&self) -> impl Iterator<Item = &InboxItem> {
        self.log.inbox().iter().filter(|item| !self.refused.contains(&item.id))
    }

    /// Ends in order: the run is interrupted, and the log is whole.
    fn stop(&mut self) {
        self.is_stopping = true;
        // The ends of what is cancelled come back as messages, and then it stops.
        self.shared.cancel_run();
        self.cancel_compaction("the session is closed");
    }

    fn stop_now(&mut self) {
        if self.is_idle() && self.is_stopping {
            self.shared.mark_flushed();
            self.myself.stop(Some("closed".to_owned()));
        }
    }

    /// Looks again after a while whether anything happened.
    fn watch_idleness(&self) {
        let after = self.deps.idle_after_ms;
        if after > 0 {
            let activity = self.shared.activity.load(Ordering::Relaxed);
            self.myself
                .send_after(Duration::from_millis(after), move || SessionMessage::IdleCheck { activity });
        }
    }

    fn idle_check(&self, activity: u64) {
        // This look itself counts as one.
        let now = self.shared.activity.load(Ordering::Relaxed);
        if self.is_idle() && self.inbox().next().is_none() && now <= activity + 1 {
            let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.shared.id) });
        } else {
            self.watch_idleness();
        }
    }
}

/// After this many failed automatic compactions in a row, none is tried until something changes.
pub(crate) const PAUSE_AFTER_FAILURES: u32 = 3;
