//! The session: the tree and its log, and the only writer of it.
//!
//! Life of a prompt here: it is recorded (or waits in the inbox), the agent is told to begin, its messages are
//! recorded as they come, waiting input joins at boundaries, and when the turn is over its end is recorded and
//! the prompt is answered.
//!
//! Always true: an entry is told to the tracker, broadcast and acknowledged only after it is durable; at most
//! one turn and one compaction are open; what a crash left open is closed before anything else is written; only
//! this actor waits for the disk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::compacting::Brief;
use greenroom_kernel::entry::{
    CompactionEnded, CompactionOutcome, CompactionStarted, Delivery, EntryKind, Trigger,
};
use greenroom_kernel::message::{Block, Message};
use greenroom_kernel::path::Live;
use greenroom_kernel::plan::{Plan, PlanOptions, plan};
use greenroom_kernel::settings::{CompactionSettings, Occasion};
use greenroom_kernel::size::{Estimator, text_tokens};
use greenroom_kernel::turn::{Boundary, Size};
use greenroom_kernel::usage::{ContextUsage, Measured, Ratio, Window, WindowSource};
use greenroom_kernel::{Entry, EntryId, Failure, TurnOutcome, Usage};
use greenroom_store::{Appended, Batch, SessionState as StoredState};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

use crate::actors::agent::{AgentActor, AgentArguments};
use crate::actors::compactor::{Compactor, CompactorArguments};
use crate::actors::usage_tracker::{Gauge, TrackerArguments, UsageTracker};
use crate::agent::Agent;
use crate::deps::Deps;
use crate::error::{Error, Result};
use crate::event::{self, Event, EventKind};
use crate::lane::Lane;
use crate::log::{Draft, INBOX_MAX, InboxItem, Log};
use crate::message::{
    AgentMessage, Answer, BeginTurn, CompactionOrder, CompactorMessage, LastWord, MeasureFor, PromptOptions,
    ReplyTo, SessionMessage, Stamp, Summariser, SupervisorMessage, TrackerMessage, compacted,
};
use crate::restarts::Restarts;
use crate::session::{CompactOptions, Compacted, Reply, State};
use crate::slot::Slot;

mod by_hand;
mod compaction;
mod turns;

/// The session actor.
pub(crate) struct Session;

/// What it is started with.
pub(crate) struct SessionArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) supervisor: ActorRef<SupervisorMessage>,
}

/// What it owns.
pub(crate) struct SessionState {
    deps: Arc<Deps>,
    slot: Arc<Slot>,
    supervisor: ActorRef<SupervisorMessage>,
    myself: ActorRef<SessionMessage>,
    definition: Arc<Agent>,
    lane: Arc<Lane>,
    provider: String,
    model: String,
    tools: greenroom_tools::Registry,
    settings: Arc<CompactionSettings>,
    window: Window,
    fixed_tokens: u64,
    log: Log,
    agent: ActorRef<AgentMessage>,
    tracker: ActorRef<TrackerMessage>,
    compactor: Option<ActorRef<CompactorMessage>>,
    turn: Option<OpenTurn>,
    /// Prompts in the inbox, and who waits for them.
    waiting: HashMap<EntryId, (PromptOptions, ReplyTo<Reply>)>,
    compaction: Option<OpenCompaction>,
    /// Durable events that the agent may not have broadcast yet.
    outgoing: VecDeque<Arc<Event>>,
    restarts: Restarts,
    runs: u32,
    only_at_window: bool,
    /// A compaction that was asked for while a turn was running.
    requested: Option<CompactOptions>,
    /// Whether a message was recorded since the last automatic compaction ended.
    message_since_compaction: bool,
    /// It is to end as soon as nothing is under way.
    is_stopping: bool,
    /// The end of the newest run, until the agent said it.
    last_word: Option<LastWord>,
    /// Prompts in the inbox whose callers were told that they failed: they never begin, and leave it with the next
    /// append.
    refused: Vec<EntryId>,
    /// The store refused what waits in the inbox: it is tried again after a while, or with the next request.
    is_held: bool,
    /// Whether the timer for that runs.
    tries_again: bool,
    /// How often it was refused one after another.
    refusals: u32,
    /// What nobody knows of the model: said once, when a turn begins.
    doubts: Vec<String>,
}

/// The turn in progress.
struct OpenTurn {
    stamp: Stamp,
    options: PromptOptions,
    reply: Option<ReplyTo<Reply>>,
    text: String,
    usage: Usage,
    steps: u32,
    /// How it ended, while its end is not yet recorded.
    closing: Option<TurnOutcome>,
}

/// The compaction in progress.
struct OpenCompaction {
    trigger: Trigger,
    at_window: bool,
    rungs_down: u32,
    options: CompactOptions,
    /// The turn that waits for it.
    stamp: Option<Stamp>,
    /// What that turn needs if nothing comes of this one: it was asked for less, by an agent that died.
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
            rungs_down: 0,
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
        arguments.deps.at(&arguments.slot.id, "session/starts");
        Ok(SessionState::open(myself, arguments).await?)
    }

    async fn post_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.at(&state.slot.id, "session/started");
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
        state.slot.activity.fetch_add(1, Ordering::Relaxed);
        let message = if let SessionMessage::Admitted { message, place } = message {
            // It is free again: the message is no longer in the mailbox.
            drop(place);
            *message
        } else {
            message
        };
        state.deps.at(&state.slot.id, message.point());
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
        state.slot.cancel_turn();
        Ok(())
    }
}

impl SessionState {
    /// Reads the log and starts the children.
    async fn open(myself: ActorRef<SessionMessage>, arguments: SessionArguments) -> Result<Self> {
        let SessionArguments { deps, slot, supervisor } = arguments;
        let log = read_log(&deps, &slot.id).await?;
        let definition = slot.agent();
        let lane = deps.lane(&definition).cloned().ok_or_else(|| unknown_provider(&deps, &definition))?;
        let provider = lane.provider.name().to_owned();
        let model = definition.model.clone();
        let tools = crate::sub_agent::tools_of(&deps, &definition)?;
        let settings = deps.settings(&definition);
        let fixed_tokens = fixed_tokens(&definition, &tools);
        let window = deps.window(&definition, &provider, &model, &settings, fixed_tokens);
        if let Some(window) = window.tokens {
            // What is pinned was allowed when the window was thought to be larger: no reason to lock the session.
            settings.feasible(window, fixed_tokens)?;
        }
        let outgoing = match slot.start_broadcast(log.head().entries) {
            Some(from) => missed_events(&deps, &slot, from).await?,
            None => VecDeque::new(),
        };
        let gauge = Gauge {
            provider: provider.clone(),
            model: model.clone(),
            window,
            overhead: fixed_tokens + log.pinned_tokens(),
            settings: Arc::clone(&settings),
            output_tokens_max: deps.output_tokens_max(&definition),
            cost_microdollars_max: definition.cost_microdollars_max,
            resends_reasoning: lane.provider.resends_reasoning(),
            is_sub_agent: slot.parent.is_some(),
            is_paused: log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: log.was_undone(),
        };
        let only_at_window = gauge.only_at_window;
        let doubts = doubts(&gauge);
        let tracker = spawn_tracker(&deps, &slot, &myself, gauge, &log).await?;
        let agent = spawn_agent(&deps, &slot, &myself).await?;
        Ok(Self {
            deps,
            slot,
            supervisor,
            myself,
            definition,
            lane,
            provider,
            model,
            tools,
            settings,
            window,
            fixed_tokens,
            log,
            agent,
            tracker,
            compactor: None,
            turn: None,
            waiting: HashMap::new(),
            compaction: None,
            outgoing,
            restarts: Restarts::default(),
            runs: 0,
            doubts,
            only_at_window,
            requested: None,
            message_since_compaction: true,
            is_stopping: false,
            last_word: None,
            refused: Vec::new(),
            is_held: false,
            tries_again: false,
            refusals: 0,
        })
    }

    async fn on(&mut self, message: SessionMessage) {
        match message {
            SessionMessage::Prompt { content, options, reply } => self.prompt(content, options, reply).await,
            SessionMessage::Resume { options, reply } => self.resume(options, reply).await,
            SessionMessage::Input { content, delivery, reply } => self.input(content, delivery, reply).await,
            SessionMessage::Withdraw { ticket } => self.withdraw(ticket).await,
            SessionMessage::CompactByHand { options, reply } => self.compact_by_hand(options, reply),
            SessionMessage::CompactAfterTurn { options } => {
                self.requested = Some(options);
            }
            SessionMessage::PlanByHand { options, reply } => {
                let _ = reply.send(Ok(self.plan_by_hand(&options).map(Box::new)));
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
            SessionMessage::SubAgentCalls { usage, cost_microdollars } => {
                let cost_microdollars = Some(cost_microdollars);
                let _ = self.tracker.cast(TrackerMessage::SummaryCalls { usage, cost_microdollars });
            }
            SessionMessage::Pin { entry, pinned, reply } => {
                let _ = reply.send(self.pin(entry, pinned).await);
            }
            SessionMessage::Adopt { entries, leaf, reply } => {
                let _ = reply.send(self.adopt(&entries, leaf).await);
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
                self.slot.abort_is_heard();
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
            SessionMessage::Compact { stamp, trigger, at_window, rungs_down } => {
                self.compact_for_turn(stamp, trigger, at_window, rungs_down);
            }
            SessionMessage::LastWordsSaid => self.stop_now(),
            SessionMessage::LimitLearned { provider, model, limit, sent } => {
                if self.deps.learned.learn_limit(&provider, &model, limit, sent) {
                    self.warn(format!(
                        "the provider says that {model} takes {limit} tokens; this is remembered"
                    ));
                    self.gauge_changed();
                }
            }
            SessionMessage::Measured { purpose: MeasureFor::TurnEnd, size, usage, .. } => {
                self.close_turn(&size, usage).await;
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
        then: &mut Option<LastWord>,
    ) -> Result<()> {
        let (total_usage, cost) = self.slot.bill();
        draft.head.total_usage = total_usage;
        draft.head.cost_microdollars = cost;
        if self.log.is_empty() {
            draft.head.created_at_ms = draft.head.updated_at_ms;
            draft.head.provider.clone_from(&self.provider);
            draft.head.model.clone_from(&self.model);
            draft.head.parent_session = self.slot.parent.as_deref().map(str::to_owned);
        }
        draft.head.window = self.window.tokens;
        let entries = draft.entries.clone();
        let batch = Batch {
            entries: entries.iter().map(|entry| Entry::clone(entry)).collect(),
            head: draft.head.clone(),
            key,
            epoch: 0,
        };
        match self.deps.store.append(&self.slot.id, batch).await? {
            Appended::Written { .. } => {}
            Appended::Duplicate { first } => {
                return Err(Error::Invalid(format!(
                    "this idempotency key was used before, for entry {first}; nothing was changed"
                )));
            }
        }
        self.log.commit(draft);
        for entry in &entries {
            if greenroom_kernel::path::is_message(&entry.kind) {
                self.message_since_compaction = true;
                let _ = self.tracker.cast(TrackerMessage::Appended(Arc::clone(entry)));
            }
        }
        let parent = self.slot.parent.as_ref();
        self.refused.retain(|id| self.log.inbox().iter().any(|item| item.id == *id));
        let events: Vec<Arc<Event>> =
            entries.iter().map(|entry| Arc::new(event::durable(&self.slot.id, parent, entry))).collect();
        let below = self.slot.broadcast_below();
        self.outgoing.retain(|event| event.seq >= below);
        self.outgoing.extend(events.iter().cloned());
        if then.is_some() {
            self.last_word.clone_from(then);
        }
        self.tell_agent(AgentMessage::Broadcast { events, then: then.take() });
        Ok(())
    }

    fn tell_agent(&self, message: AgentMessage) {
        // An agent that died is replaced by `child_failed`, which sends anew what matters.
        let _ = self.agent.cast(message);
    }

    fn warn(&self, message: String) {
        tracing::warn!(session = %self.slot.id, "{message}");
        self.slot.publish(&self.deps.bus, EventKind::Warning { message });
    }

    /// The fixed part of every request, in estimated tokens.
    fn overhead(&self) -> u64 {
        self.fixed_tokens + self.log.pinned_tokens()
    }

    fn gauge(&self) -> Gauge {
        Gauge {
            provider: self.provider.clone(),
            model: self.model.clone(),
            window: self.window,
            overhead: self.overhead(),
            settings: Arc::clone(&self.settings),
            output_tokens_max: self.deps.output_tokens_max(&self.definition),
            cost_microdollars_max: self.definition.cost_microdollars_max,
            resends_reasoning: self.lane.provider.resends_reasoning(),
            is_sub_agent: self.slot.parent.is_some(),
            is_paused: self.log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: self.only_at_window,
        }
    }

    /// Tells the tracker what is measured by now.
    fn gauge_changed(&mut self) {
        self.window =
            self.deps.window(&self.definition, &self.provider, &self.model, &self.settings, self.overhead());
        let _ = self.tracker.cast(TrackerMessage::Configure(Box::new(self.gauge())));
    }

    /// Takes over a changed definition, or changed settings.
    fn configure(&mut self, definition: Arc<Agent>) {
        let Some(lane) = self.deps.lane(&definition).cloned() else {
            let error = unknown_provider(&self.deps, &definition);
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
            let summariser = Summariser { lane: Arc::clone(&self.lane), model: self.model.clone() };
            Leaving { summariser, window }
        });
        let is_switch = (&provider, &definition.model) != (&self.provider, &self.model);
        if is_switch || *settings != *self.settings {
            // What failed three times may work now.
            self.log.forgive_failures();
        }
        self.lane = lane;
        self.provider = provider;
        self.model.clone_from(&definition.model);
        self.tools = tools;
        self.settings = settings;
        self.fixed_tokens = fixed_tokens;
        self.definition = definition;
        self.gauge_changed();
        if is_switch {
            self.doubts = doubts(&self.gauge());
        }
        // What the old model could hold may be too much for the new one; the old one can still summarise it.
        if is_switch && leaving.is_some() && self.settings.enabled && self.is_idle() && !self.log.is_empty() {
            self.open_compaction(OpenCompaction { leaving, ..OpenCompaction::new(Trigger::ModelSwitch) });
        }
    }

    fn state(&self) -> State {
        let (usage, cost_microdollars) = self.slot.bill();
        let context = self.slot.context();
        State {
            id: self.slot.id.to_string(),
            model: self.model.clone(),
            entries: self.log.head().entries,
            context,
            context_window: context.window,
            compactions: self.log.head().compactions,
            total_tokens: usage.total_tokens(),
            cost_microdollars,
            status: match (&self.compaction, &self.turn) {
                (Some(_), _) => "compacting",
                (None, Some(_)) => "working",
                (None, None) => "idle",
            },
            waiting: self.inbox().count(),
            is_unanswered: self.turn.is_none() && turns::unanswered(&self.log).is_some(),
        }
    }

    fn is_idle(&self) -> bool {
        self.turn.is_none() && self.compaction.is_none()
    }

    fn check_idle(&self, what: &'static str) -> Result<()> {
        if self.is_idle() && !self.is_stopping {
            Ok(())
        } else {
            Err(Error::NotIdle { session: self.slot.id.to_string(), what })
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
            self.tell_agent(AgentMessage::LastWords);
            return;
        }
        self.compact_if_requested();
        self.next_prompt().await;
    }

    /// Input that waits, without what was refused.
    fn inbox(&self) -> impl Iterator<Item = &InboxItem> {
        self.log.inbox().iter().filter(|item| !self.refused.contains(&item.id))
    }

    /// Ends in order: the turn is interrupted, and the log is whole.
    fn stop(&mut self) {
        self.is_stopping = true;
        // The ends of what is cancelled come back as messages, and then it stops.
        self.slot.cancel_turn();
        self.cancel_compaction("the session is closed");
    }

    fn stop_now(&mut self) {
        if self.is_idle() && self.is_stopping {
            self.slot.all_is_said();
            self.myself.stop(Some("closed".to_owned()));
        }
    }

    /// Looks again after a while whether anything happened.
    fn watch_idleness(&self) {
        let after = self.deps.idle_after_ms;
        if after > 0 {
            let activity = self.slot.activity.load(Ordering::Relaxed);
            self.myself
                .send_after(Duration::from_millis(after), move || SessionMessage::IdleCheck { activity });
        }
    }

    fn idle_check(&self, activity: u64) {
        // This look itself counts as one.
        let now = self.slot.activity.load(Ordering::Relaxed);
        if self.is_idle() && self.inbox().next().is_none() && now <= activity + 1 {
            let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.slot.id) });
        } else {
            self.watch_idleness();
        }
    }

    /// A child died: another takes its place, and goes on from the log.
    async fn child_failed(&mut self, child: &ActorCell, reason: &str) -> Result<(), ActorProcessingErr> {
        tracing::error!(session = %self.slot.id, reason, "an actor of the session died");
        if !self.restarts.allow(tokio::time::Instant::now()) {
            return Err(format!("its actors died too often, last: {reason}").into());
        }
        if child.get_id() == self.agent.get_id() {
            self.agent = spawn_agent(&self.deps, &self.slot, &self.myself).await?;
            let below = self.slot.broadcast_below();
            let events = self.outgoing.iter().filter(|event| event.seq >= below).cloned().collect();
            let then = self.last_word.clone();
            self.tell_agent(AgentMessage::Broadcast { events, then });
            self.warn(format!("the agent died and was restarted: {reason}"));
            self.rerun_turn().await;
        } else if child.get_id() == self.tracker.get_id() {
            let gauge = self.gauge();
            self.tracker = spawn_tracker(&self.deps, &self.slot, &self.myself, gauge, &self.log).await?;
            self.warn(format!("the usage tracker died and was restarted: {reason}"));
            self.tell_agent(AgentMessage::TrackerRestarted { tracker: self.tracker.clone() });
            // Questions of our own that it took with it.
            if self.turn.as_ref().is_some_and(|turn| turn.closing.is_some()) {
                let _ = self.tracker.cast(TrackerMessage::MeasureFor(MeasureFor::TurnEnd));
            }
            if self.compaction.as_ref().is_some_and(|compaction| compaction.started.is_none()) {
                let _ = self.tracker.cast(TrackerMessage::MeasureFor(MeasureFor::Compaction));
            }
        } else if self.compactor.as_ref().is_some_and(|compactor| child.get_id() == compactor.get_id()) {
            self.compactor = None;
            self.warn(format!("the compactor died: {reason}"));
            self.compactor_died(reason).await;
        }
        Ok(())
    }
}

/// After this many failed automatic compactions in a row, none is tried until something changes.
pub(crate) const PAUSE_AFTER_FAILURES: u32 = 3;

/// What nobody knows of the model, and what that means.
fn doubts(gauge: &Gauge) -> Vec<String> {
    let (model, provider) = (&gauge.model, &gauge.provider);
    let mut doubts = Vec::new();
    match (gauge.window.source, gauge.window.tokens) {
        (WindowSource::Assumed, Some(tokens)) => doubts.push(format!(
            "nothing knows the window of {model} at {provider}: {tokens} tokens are assumed; set context_window to \
             what it takes"
        )),
        (WindowSource::Unknown, _) | (WindowSource::Assumed, None) => doubts.push(format!(
            "nothing knows the window of {model} at {provider}: nothing is compacted before the provider refuses; \
             set context_window to what it takes"
        )),
        (
            WindowSource::CompactionSetting
            | WindowSource::Setting
            | WindowSource::Catalog
            | WindowSource::Learned,
            _,
        ) => {}
    }
    let has_price = || {
        let info = crate::deps::model_info(provider, model);
        info.is_some_and(|info| info.prices.is_some())
    };
    if gauge.cost_microdollars_max.is_some() && !has_price() {
        doubts.push(format!(
            "nothing knows the price of {model} at {provider}: its calls do not count towards the cost limit"
        ));
    }
    doubts
}

fn unknown_provider(deps: &Deps, definition: &Agent) -> Error {
    let wanted = definition.provider.as_deref().unwrap_or(&deps.default_provider);
    let mut known: Vec<&str> = deps.lanes.keys().map(String::as_str).collect();
    known.sort_unstable();
    Error::Config(format!("the runtime has no provider named {wanted:?}; it has {}", known.join(", ")))
}

/// The system prompt and the tools, in estimated tokens.
fn fixed_tokens(definition: &Agent, tools: &greenroom_tools::Registry) -> u64 {
    let specs: u64 = tools
        .specs()
        .iter()
        .map(|spec| {
            let schema = spec.parameters.to_string();
            [&spec.name, &spec.description, &schema]
                .iter()
                .map(|text| text_tokens(text, Estimator::Classes))
                .sum::<u64>()
        })
        .sum();
    text_tokens(&definition.instructions, Estimator::Classes) + specs
}

/// The events of entries that an earlier actor made durable and did not live to broadcast.
async fn missed_events(deps: &Deps, slot: &Slot, from: u64) -> Result<VecDeque<Arc<Event>>> {
    let (store, id) = (deps.store.clone(), Arc::clone(&slot.id));
    let read = move || -> Result<Vec<Entry>> { Ok(store.load(&id, EntryId(from))?) };
    let entries = blocking(deps, read).await?;
    Ok(entries.iter().map(|entry| Arc::new(event::durable(&slot.id, slot.parent.as_ref(), entry))).collect())
}

/// Reads from the store, where it may block on a disk on a thread that may.
async fn blocking<T: Send + 'static>(
    deps: &Deps,
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if deps.store.is_memory() {
        return read();
    }
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(panic) => Err(Error::Config(format!("reading the log failed: {panic}"))),
    }
}

async fn read_log(deps: &Deps, id: &Arc<str>) -> Result<Log> {
    let (store, id) = (deps.store.clone(), Arc::clone(id));
    let read = move || -> Result<Log> {
        let Some(head) = store.head(&id)? else { return Ok(Log::default()) };
        let entries = shared(store.load(&id, head.live_from)?);
        let mut others: Vec<EntryId> = head.inbox.iter().chain(&head.pins).copied().collect();
        others.extend(head.active_compaction);
        others.extend(head.open_compaction);
        others.retain(|entry| *entry < head.live_from);
        let extra = shared(store.get(&id, &others)?);
        Ok(Log::open(head, &entries, &extra))
    };
    blocking(deps, read).await
}

fn shared(entries: Vec<Entry>) -> Vec<Arc<Entry>> {
    entries.into_iter().map(Arc::new).collect()
}

async fn spawn_agent(
    deps: &Arc<Deps>,
    slot: &Arc<Slot>,
    session: &ActorRef<SessionMessage>,
) -> Result<ActorRef<AgentMessage>> {
    let arguments =
        AgentArguments { deps: Arc::clone(deps), slot: Arc::clone(slot), session: session.clone() };
    let (actor, _) = Actor::spawn_linked(None, AgentActor, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(slot, "agent", &error))?;
    Ok(actor)
}

async fn spawn_tracker(
    deps: &Arc<Deps>,
    slot: &Arc<Slot>,
    session: &ActorRef<SessionMessage>,
    gauge: Gauge,
    log: &Log,
) -> Result<ActorRef<TrackerMessage>> {
    let arguments = Box::new(TrackerArguments {
        deps: Arc::clone(deps),
        slot: Arc::clone(slot),
        session: session.clone(),
        gauge,
        path: log.path().to_vec(),
        total_usage: log.head().total_usage,
        cost_microdollars: log.head().cost_microdollars,
    });
    let (actor, _) = Actor::spawn_linked(None, UsageTracker, arguments, session.get_cell())
        .await
        .map_err(|error| not_started(slot, "usage tracker", &error))?;
    Ok(actor)
}

fn not_started(slot: &Slot, actor: &str, error: &ractor::SpawnErr) -> Error {
    let reason = format!("its {actor} could not be started: {error}");
    Error::SessionFailed { session: slot.id.to_string(), reason }
}
