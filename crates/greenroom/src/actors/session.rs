//! The session: the tree and its log, and the only writer of it.
//!
//! Life of a prompt here: it is recorded (or waits in the inbox), the agent is told to begin, its messages are
//! recorded as they come, waiting input joins at boundaries, and when the run is over its end is recorded and
//! the prompt is answered.
//!
//! Invariants: an entry is told to the tracker, broadcast and acknowledged only after it is durable, but for the answer
//! that ends a run, of which the tracker hears before, since its size is recorded with it; at most one run and one
//! compaction are open; what a crash left open is closed before anything else is written; only this actor waits for the
//! disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::cost::RunCost;
use greenroom_kernel::entry::{EntryId, EntryKind, Spender, Spent};
use greenroom_kernel::log::{Amendment, Draft, Log};
use greenroom_kernel::usage::{ContextUsage, Measured};
use greenroom_provider::ResentReasoning;
use greenroom_store::{Appended, Batch};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::agent::live::Live;
use crate::agent::{Agent, team};
use crate::core::deps::Deps;
use crate::core::mail::Outbox;
use crate::core::message::{
    AgentMessage, CompactorMessage, MeasureFor, PromptOptions, RunAttempt, RunCompletion, SessionMail,
    SessionMessage, SupervisorMessage, TrackerConfig, TrackerMessage, tell_all,
};
use crate::core::running::Running;
use crate::core::shared::{Published, SessionShared};
use crate::core::trace;
use crate::events::event::{self, Event, EventKind};
use crate::limits::admission::Admitted;
use crate::limits::restarts::Restarts;
use crate::limits::spending::tree::Spends as _;
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;
use crate::values::state::{State, Status};

mod children;
mod compaction;
mod debt;
mod definition;
mod fallback;
mod first_reply;
mod hand_off;
mod held_back;
mod inbox;
mod manual;
mod open_compaction;
mod opening;
pub(crate) mod parked;
mod questions;
mod runs;
pub(crate) mod stored;

use definition::{Definition, SessionLimits};
use first_reply::Repeats;
use inbox::Inbox;
use open_compaction::OpenCompaction;
use parked::{ParkingPlace, Suspended};
use questions::Askers;
use runs::OpenRun;

/// The session actor.
pub(crate) struct Session;

/// What it is started with.
pub(crate) struct SessionArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) supervisor: ActorRef<SupervisorMessage>,
    /// Where its run is while it sleeps.
    pub(crate) parking: ParkingPlace,
    /// Whether what was interrupted is finished before anything that waits.
    pub(crate) finishes: bool,
}

/// What is said when a draft is durable, besides its events.
#[derive(Default)]
struct AfterAppend {
    /// That the run is over, and its reply.
    then: Option<RunCompletion>,
    /// The run that ends with an answer in this draft.
    ended: Option<RunAttempt>,
}

/// What the session owns.
pub(crate) struct SessionState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    supervisor: ActorRef<SupervisorMessage>,
    parking: ParkingPlace,
    myself: ActorRef<SessionMail>,
    agent: Outbox<AgentMessage>,
    tracker: Outbox<TrackerMessage>,
    compactor: Option<ActorRef<CompactorMessage>>,
    restarts: Restarts,
    definition: Definition,
    /// The definition that holds from the end of the run on: another model, which the run does not know.
    next_definition: Option<Definition>,
    /// What the run in progress may cost.
    run_cost: Option<RunCost>,
    /// The reasoning that the tracker counts as sent back.
    counted_with: ResentReasoning,
    /// The model that answered last, where the one that is to answer now is another.
    left: Option<LeftModel>,
    log: Log,
    inbox: Inbox,
    /// The entry that its log would have had next when this actor opened it, or the actor whose run it took over.
    opened_at: EntryId,
    /// Its part in the inputs of the runtime: those that wait, and the run.
    taken_on: Admitted,
    /// Who said again what was said before.
    repeats: Repeats,
    run: Option<OpenRun>,
    /// Who waits for answers of people.
    askers: Askers,
    /// The instructions of the newest run, since the session was opened.
    instructions: Option<Arc<str>>,
    /// How many runs its agents began or went on with: the number of the newest attempt.
    attempts: u32,
    compaction: OpenCompaction,
    /// Durable events that the agent may not have broadcast yet.
    outgoing: VecDeque<Arc<Event>>,
    /// The end of the newest run, until the agent broadcast it.
    completion: Option<RunCompletion>,
    /// Its life in memory, as it is traced.
    span: Span,
    /// Warnings about the model, given once, when a run begins.
    model_warnings: Vec<String>,
    /// A run that an earlier process left waits for people, and goes on with an agent like its own only.
    is_left_waiting: bool,
    /// It is to end as soon as nothing is under way.
    is_stopping: bool,
    /// It fell asleep in its run, which the supervisor keeps.
    is_asleep: bool,
    /// The timer that looks whether it is idle is running.
    is_watched: bool,
    /// What was interrupted is to be finished before anything that waits.
    finishes: bool,
    /// The reply of what was finished as the session was opened, for whoever asks for it afterwards.
    finished: Option<oneshot::Receiver<Result<Reply>>>,
    /// The run as the agent handed it over, before the session sleeps, or after.
    suspended: Option<Box<Running>>,
}

impl Actor for Session {
    type Msg = SessionMail;
    type State = SessionState;
    type Arguments = SessionArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        arguments.deps.probe(&arguments.shared.id, "session/starts");
        Ok(SessionState::open(myself, arguments).await?)
    }

    async fn post_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.probe(&state.shared.id, "session/started");
        let events: Vec<Arc<Event>> = state.outgoing.iter().cloned().collect();
        state.agent.tell(AgentMessage::Broadcast { events, then: None });
        if !state.go_on() {
            state.recover().await;
        }
        if std::mem::take(&mut state.finishes) {
            // It may be done before anybody asks for its reply.
            let (reply, finished) = oneshot::channel();
            state.finish(reply).await;
            state.finished = Some(finished);
        }
        state.settle().await;
        state.send_told();
        state.watch_idleness();
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        mail: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.shared.activity.fetch_add(1, Ordering::Relaxed);
        let SessionMail { message, place } = mail;
        // The message is no longer in the mailbox, so its place there is free again. What becomes of it is counted by then.
        let input = place.and_then(|place| place.input);
        state.deps.probe(&state.shared.id, message.point());
        // It is boxed, since an idle actor must not hold it; and each branch in it has a box of its own, which is no larger
        // than what it does.
        Box::pin(async {
            state.on(message).await;
            state.settle().await;
            state.send_told();
        })
        .await;
        drop(input);
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
                    state.send_told();
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
        if !state.shared.is_suspended() {
            // What waits for people goes on when the session is opened again.
            state.shared.set_closing(true);
            state.shared.cancel_run();
        }
        Ok(())
    }
}

impl SessionState {
    async fn on(&mut self, message: SessionMessage) {
        match message {
            SessionMessage::Prompt { content, options, reply } => {
                Box::pin(self.prompt(content, options, reply)).await
            }
            SessionMessage::Repeat { first, options, reply } => {
                Box::pin(self.repeat(first, options, reply)).await;
            }
            SessionMessage::Resume { options, reply } => Box::pin(self.resume(options, reply)).await,
            SessionMessage::Finish(reply) => Box::pin(self.finish(reply)).await,
            SessionMessage::Input { content, delivery, early_aborts, agent, from, reply } => {
                let options = PromptOptions { early_aborts, agent, from, ..PromptOptions::default() };
                Box::pin(self.input(content, delivery, Box::new(options), reply)).await;
            }
            SessionMessage::Amend { amendment, reply } => {
                let _ = reply.send(Box::pin(self.amend(amendment)).await);
            }
            SessionMessage::Withdraw { ticket } => Box::pin(self.withdraw(ticket)).await,
            SessionMessage::Answer { question, answer, reply } => {
                let answered = Box::pin(self.amend(Amendment::Answer { question, answer })).await;
                let _ = reply.send(answered.map(drop));
            }
            SessionMessage::Ask(request) => Box::pin(self.ask(*request)).await,
            SessionMessage::AwaitQuestions { stamp, call_id, reply } => {
                self.await_questions(stamp, call_id, reply);
            }
            SessionMessage::CallStarts { stamp, call_id, reply } => {
                let _ = reply.send(Box::pin(self.call_starts(stamp, call_id)).await);
            }
            SessionMessage::ExpireQuestions => Box::pin(self.expire_questions()).await,
            // Something waits for the agent of a run that was handed over.
            SessionMessage::Wake => {
                if self.go_on() {
                    self.watch_idleness();
                }
            }
            SessionMessage::Suspended { stamp, running } => self.suspended(stamp, running),
            SessionMessage::Sleep => self.sleep(),
            SessionMessage::CompactManually { options, agent, reply } => {
                self.compact_manually(options, agent.as_ref(), reply);
            }
            SessionMessage::CompactAfterRun { options, needs_news } => {
                if !needs_news || self.compaction.has_message_since() {
                    self.compaction.request_later(options);
                }
            }
            SessionMessage::PlanManually { options, agent, reply } => {
                // What is under way goes on with its own agent, and is what a plan is about then.
                let adopted = if self.is_idle() { self.adopt(agent.as_ref()) } else { Ok(()) };
                self.refresh_settings();
                let _ = reply.send(adopted.map(|()| self.plan_manually(&options).map(Box::new)));
            }
            SessionMessage::Undo { reply } => {
                let _ = reply.send(Box::pin(self.undo()).await);
            }
            SessionMessage::Branch { to, reply } => {
                let _ = reply.send(Box::pin(self.branch(to)).await);
            }
            SessionMessage::HandOff { to, sees, reply } => {
                let _ = reply.send(Box::pin(self.hand_off(&to, sees)).await);
            }
            SessionMessage::BranchWithSummary { to, agent, reply } => {
                Box::pin(self.branch_with_summary(to, agent.as_ref(), reply)).await;
            }
            SessionMessage::ChildStarted { record, reply } => {
                Box::pin(self.child_started(record, reply)).await
            }
            SessionMessage::ChildEnded { started, outcome, spent } => {
                Box::pin(self.child_ended(started, outcome, spent)).await;
            }
            SessionMessage::Pin { entry, pinned, reply } => {
                let _ = reply.send(Box::pin(self.pin(entry, pinned)).await);
            }
            SessionMessage::Import { entries, leaf, reply } => {
                let _ = reply.send(Box::pin(self.import(&entries, leaf)).await);
            }
            SessionMessage::State(reply) => {
                let _ = reply.send(self.state());
            }
            SessionMessage::Context(reply) => {
                let (messages, resent) = (self.log.shown_context(), self.resent_reasoning());
                let _ =
                    reply.send(messages.iter().map(|message| resent.strip(message).into_owned()).collect());
            }
            SessionMessage::Configure { agent, only_if_idle, reply } => {
                let goes_on = self.is_left_waiting && self.may_take_up(Some(&agent));
                let is_taken = !only_if_idle || goes_on || self.is_idle() && self.inbox.is_empty(&self.log);
                let result = if is_taken { self.configure(agent) } else { Ok(()) };
                if goes_on && result.is_ok() {
                    Box::pin(self.recover()).await;
                }
                match reply {
                    Some(reply) => {
                        let _ = reply.send(result.map(|()| Arc::clone(&self.shared)));
                    }
                    None => {
                        if let Err(error) = result {
                            self.warn(format!("the changed agent is not used: {error}"));
                        }
                    }
                }
            }
            SessionMessage::CheckSettings { settings, reply } => {
                let _ = reply.send(self.definition.check_settings(
                    &self.deps,
                    &settings,
                    self.log.pinned_tokens(),
                ));
            }
            SessionMessage::AbortCompaction => {
                self.shared.abort_is_heard();
                self.abort_compaction();
                if std::mem::take(&mut self.is_left_waiting) {
                    self.shared.end_run();
                    Box::pin(self.close_what_is_open()).await;
                }
            }
            SessionMessage::Stop => self.stop(),
            SessionMessage::TryAgain => self.inbox.timer_fired(),
            SessionMessage::IdleCheck { activity, again } => self.idle_check(activity, again),
            SessionMessage::Record { stamp, messages, boundary } => {
                Box::pin(self.record(stamp, messages, boundary)).await
            }
            SessionMessage::End { stamp, messages, outcome, rejected } => {
                Box::pin(self.end(stamp, messages, outcome, rejected)).await;
            }
            SessionMessage::FallBack { stamp, failure } => Box::pin(self.fall_back(stamp, *failure)).await,
            SessionMessage::Measure { stamp } => {
                if self.current(stamp).is_some() {
                    self.measure_for_step(stamp);
                }
            }
            SessionMessage::Project { stamp } => {
                let messages = self.log.context();
                self.agent.tell(AgentMessage::Context { stamp, messages });
            }
            SessionMessage::Compact { stamp, trigger, at_window, failed_attempts, measured } => {
                Box::pin(self.compact_for_run(stamp, trigger, at_window, failed_attempts, &measured)).await;
            }
            SessionMessage::Spent { stamp, usage, cost_microdollars } => {
                Box::pin(self.calls_spent(stamp, usage, cost_microdollars)).await;
            }
            SessionMessage::EventsFlushed => self.stop_now(),
            SessionMessage::LimitLearned { lane, model, limit, sent } => {
                let served = lane.served.find(&model).and_then(|served| served.window_tokens);
                let (origin, now_ms) = (lane.origin(), self.deps.now_ms());
                let is_new = self.deps.learned.learn_limit(origin, &model, limit, sent, served, now_ms);
                trace::limit_named(&self.shared.id, origin, &model, limit, sent, is_new);
                if is_new {
                    self.warn(self.definition.limit_warning(&self.deps, &lane, &model, limit));
                    self.limits_changed();
                }
                if served.is_some_and(|served| served != limit) {
                    lane.served.ask_again();
                }
            }
            SessionMessage::Measured { purpose, measured } => match purpose {
                MeasureFor::RunEnd => Box::pin(self.close_run(&measured)).await,
                MeasureFor::Compaction(number) => {
                    Box::pin(self.measured_for_compaction(number, &measured)).await
                }
            },
            SessionMessage::ReplacePathSegment { compaction, segment, cost_microdollars } => {
                Box::pin(self.replace_path_segment(compaction, *segment, cost_microdollars)).await;
            }
            SessionMessage::BranchSummarised { compaction, record, cost_microdollars } => {
                Box::pin(self.branch_summarised(compaction, *record, cost_microdollars)).await;
            }
            SessionMessage::PruneResults { compaction, segment, cost_microdollars } => {
                Box::pin(self.prune_results(compaction, *segment, cost_microdollars)).await;
            }
            SessionMessage::CompactionOver { compaction, end, cost_microdollars } => {
                Box::pin(self.compaction_over(compaction, *end, cost_microdollars)).await;
            }
        }
    }

    /// Makes a draft durable, and then known: to the log in memory, the tracker and everyone who listens.
    async fn append(&mut self, draft: Box<Draft>, key: Option<String>) -> Result<()> {
        self.append_then(draft, key, &mut AfterAppend::default()).await
    }

    /// When the session was created, in unix milliseconds.
    fn created_at_ms(&self) -> u64 {
        self.shared.created_at_ms().unwrap_or_else(|| self.deps.created_at_ms())
    }

    async fn append_then(
        &mut self,
        mut draft: Box<Draft>,
        key: Option<String>,
        after: &mut AfterAppend,
    ) -> Result<()> {
        if self.log.is_empty() {
            let created_at_ms = self.created_at_ms();
            let (provider, model) = (self.definition.provider(), self.definition.model());
            draft.begin(provider, model, self.shared.parent.as_deref(), created_at_ms);
        }
        let (provider, model) = (self.definition.provider(), self.definition.model());
        draft.set_window(provider, model, self.definition.window.tokens);
        let (entries, head) = (draft.entries().to_vec(), draft.take_head());
        let batch = Batch { entries: entries.clone(), head: Arc::clone(&head), key };
        self.send_told();
        let span = trace::append(self.work_span(), &self.shared.id, entries.len());
        let appended =
            self.deps.store.append_of_any_size(&self.shared.id, batch).instrument(span.clone()).await;
        match appended.inspect_err(|_| trace::append_failed(&span))? {
            Appended::Written { .. } => {}
            Appended::Duplicate { first } => {
                let session = self.shared.id.to_string();
                return Err(Error::DuplicateKey { session, first });
            }
        }
        let (bill_before, is_import) = (self.log.bill(), draft.is_import());
        self.log.commit(draft, head);
        let bill = self.log.bill();
        // What a sub-agent spent, it took from the purse itself.
        let below: u64 = entries.iter().filter_map(|entry| spent_below(&entry.kind)).sum();
        let own = bill.cost_microdollars.saturating_sub(bill_before.cost_microdollars).saturating_sub(below);
        self.deps.purse.spend(own, self.deps.now_ms());
        self.deps.ledger.billed(&self.shared, bill, own, below);
        if entries.iter().any(|entry| ends_call(&entry.kind)) {
            self.deps.ledger.release(&self.shared);
        }
        // Of the answer that ends a run, and what it costs, the tracker was told.
        let ended = after.ended.take();
        if bill != bill_before && ended.is_none() {
            self.tracker.tell(TrackerMessage::Billed(bill));
        }
        for entry in &entries {
            self.repeats.follow(&entry.kind);
            if greenroom_kernel::path::is_message(&entry.kind) {
                self.compaction.message_recorded();
                if entry.kind.is_whole_answer() {
                    self.left = None;
                }
                if !is_import && ended.is_none() {
                    self.tracker.tell(TrackerMessage::Appended(Arc::clone(entry)));
                }
            }
        }
        self.inbox.committed(&self.log);
        self.tell_askers(&entries);
        let parent = self.shared.parent.as_ref();
        let mut events: Vec<Arc<Event>> = event::of_entries(
            &self.shared.id,
            parent,
            self.created_at_ms(),
            &entries,
            self.log.head().open_run,
        )
        .map(Arc::new)
        .collect();
        let below = self.shared.broadcast_below();
        self.outgoing.retain(|event| event.seq >= below);
        self.outgoing.extend(events.iter().cloned());
        if after.then.is_some() {
            self.completion.clone_from(&after.then);
        }
        if let Some(stamp) = ended {
            // The step's end comes between the answer and the end of the run.
            let end = events.iter().position(|event| matches!(event.kind, EventKind::RunEnd { .. }));
            let last = events.split_off(end.unwrap_or(events.len()));
            self.agent.tell(AgentMessage::Broadcast { events, then: None });
            let answer = self.log.newest_answer();
            self.agent.tell(AgentMessage::Recorded { stamp, delivered: 0, answer, is_measuring: false });
            events = last;
        }
        self.agent.tell(AgentMessage::Broadcast { events, then: after.then.take() });
        Ok(())
    }

    /// Tells the tracker that the context is another one.
    fn context_rewritten(&mut self) {
        self.tracker.tell(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.tell_last_answer();
    }

    /// Lets the tracker measure the context for a step of the run, by the settings that hold now.
    fn measure_for_step(&mut self, stamp: RunAttempt) {
        self.refresh_settings();
        if self.counted_with != self.resent_reasoning() {
            self.limits_changed();
        }
        let (context, reply_to) = (Some(self.log.context()), self.agent.actor().clone());
        self.tracker.tell(TrackerMessage::Measure { stamp, context, reply_to });
    }

    /// What it works on: the run, or the session itself.
    fn work_span(&self) -> &Span {
        self.run_span().unwrap_or(&self.span)
    }

    /// Sends what the handler has said to the agent and the tracker so far. What the tracker answers to the agent comes
    /// after what the agent is told here.
    fn send_told(&mut self) {
        self.agent.send();
        self.tracker.send();
    }

    fn warn(&self, message: String) {
        tracing::warn!(session = %self.shared.id, "{message}");
        self.shared.publish(&self.deps.bus, EventKind::Warning { message });
    }

    /// The fixed part of every request, in estimated tokens.
    fn overhead(&self) -> u64 {
        self.definition.overhead(self.log.pinned_tokens())
    }

    /// Which reasoning of earlier answers the next request carries: that of the run in progress, with what its prompt says.
    fn resent_reasoning(&self) -> ResentReasoning {
        match &self.run {
            Some(run) => self.definition.resent_reasoning(run.settings()),
            None => self.definition.resent_reasoning(&self.deps.model_settings(&self.definition.agent)),
        }
    }

    fn tracker_config(&self) -> TrackerConfig {
        let session = SessionLimits {
            pinned_tokens: self.log.pinned_tokens(),
            run_cost: self.run_cost,
            is_sub_agent: self.shared.parent.is_some(),
            is_paused: self.log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: self.compaction.only_at_window,
        };
        let of_definition = self.definition.tracker_config(&self.deps, session);
        let config = TrackerConfig { resent: self.resent_reasoning(), ..of_definition };
        self.shared.account().set_limits(config.limits.cost);
        config
    }

    /// Tells the tracker by what the context is measured from now on.
    fn limits_changed(&mut self) {
        let before = self.definition.window;
        if self.definition.refresh_window(&self.deps, self.log.pinned_tokens()) {
            trace::window_changed(&self.shared.id, &before, &self.definition.window);
        }
        let config = Box::new(self.tracker_config());
        let is_counted_anew = self.counted_with != config.resent;
        self.counted_with.clone_from(&config.resent);
        let path = is_counted_anew.then(|| self.log.path().to_vec());
        self.tracker.tell(TrackerMessage::Configure { config, path });
    }

    /// Takes over settings that changed since this session looked last. Those that cannot work here are not used.
    fn refresh_settings(&mut self) {
        let version = self.deps.refresh_settings(&self.definition.agent);
        let warnings = self.deps.live_of(&self.definition.agent).map(Live::take_warnings).unwrap_or_default();
        for warning in warnings {
            self.warn(warning);
        }
        if version != self.definition.settings_version {
            self.definition.settings_version = version;
            trace::settings_changed(&self.shared.id, version);
            let agent = self.shared.agent().unwrap_or_else(|| Arc::clone(&self.definition.agent));
            if let Err(error) = self.configure(agent) {
                self.warn(format!("what changed is not used in this session: {error}"));
            }
        }
    }

    /// Takes over a changed definition, or changed settings.
    ///
    /// # Errors
    /// They cannot work. Nothing is changed then.
    fn configure(&mut self, agent: Arc<Agent>) -> Result<()> {
        let answering = team::answering(Arc::clone(&agent), self.log.head().agent.as_deref());
        let new = Definition::resolve(&self.deps, answering, self.log.pinned_tokens())?;
        self.shared.set_agent(Some(agent));
        if self.run.is_none() || new.is_same_model(&self.definition) {
            self.next_definition = None;
            self.take_definition(new);
            return Ok(());
        }
        // The run goes on with its model, and nothing is compacted for the window of another. Settings of the runtime
        // hold at once.
        if new.agent.compaction.is_none() && self.definition.agent.compaction.is_none() {
            self.definition.settings = Arc::clone(&new.settings);
            self.limits_changed();
        }
        self.next_definition = Some(new);
        Ok(())
    }

    /// From now on the session works with the agent of whoever asks, if they brought one. Only while nothing is under way.
    ///
    /// # Errors
    /// It cannot work. Nothing is changed then.
    fn adopt(&mut self, agent: Option<&Arc<Agent>>) -> Result<()> {
        let known = self.shared.agent();
        match agent.filter(|agent| known.is_none_or(|known| !Arc::ptr_eq(&known, agent))) {
            Some(agent) => self.configure(Arc::clone(agent)),
            None => Ok(()),
        }
    }

    /// Takes over what was to hold from the end of the run on. Gives whether there was anything.
    fn take_next_definition(&mut self) -> bool {
        let next = self.next_definition.take();
        let is_other = next.is_some();
        if let Some(next) = next {
            self.take_definition(next);
        }
        is_other
    }

    fn take_definition(&mut self, new: Definition) {
        let old = std::mem::replace(&mut self.definition, new);
        let new = &self.definition;
        let is_switch = !new.is_same_model(&old);
        if is_switch && !self.log.is_empty() {
            // Who answered last, however many were named since.
            let left = self.left.take().unwrap_or_else(|| LeftModel {
                provider: old.provider().to_owned(),
                model: old.model().to_owned(),
                window: old.window.tokens,
            });
            self.left = Some(left).filter(|left| !left.is(new.provider(), new.model()));
        }
        if is_switch || *new.settings != *old.settings {
            // A compaction that failed three times may work with the new definition.
            self.log.reset_failures();
        }
        self.limits_changed();
        if is_switch {
            self.model_warnings = self.definition.warnings();
        }
    }

    fn state(&self) -> State {
        State {
            status: match (self.compaction.is_idle(), &self.run) {
                (false, _) => Status::Compacting,
                (true, Some(_)) if self.log.questions().open().next().is_some() => Status::Waiting,
                (true, Some(_)) => Status::Working,
                (true, None) if self.is_left_waiting => Status::Waiting,
                (true, None) => Status::Idle,
            },
            waiting: self.inbox.waiting(&self.log).count(),
            held_back: self.inbox.held_back().len(),
            is_unanswered: self.run.is_none() && self.log.unanswered().is_some(),
            is_held_back: self.is_others(),
            ..state_by_log(&self.shared.id, &self.log, self.definition.model(), self.shared.context())
        }
    }

    /// Whether nothing is under way.
    fn is_at_rest(&self) -> bool {
        self.run.is_none() && self.compaction.is_idle()
    }

    /// Whether something may begin.
    fn is_idle(&self) -> bool {
        self.is_at_rest() && !self.is_left_waiting
    }

    fn check_idle(&self, what: &'static str) -> Result<()> {
        if self.is_idle() && !self.is_stopping {
            Ok(())
        } else {
            Err(Error::NotIdle { session: self.shared.id.to_string(), what })
        }
    }

    /// Goes on with what waits for people, and closes what else a crash left open.
    async fn recover(&mut self) {
        self.is_left_waiting = self.log.is_waiting() && !self.may_take_up(None);
        if self.is_left_waiting {
            if let Some(run) = self.log.head().open_run {
                // An abort is meant for it, and not for what waits behind it.
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

    async fn close_what_is_open(&mut self) {
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
        ContextUsage::new(measured, self.definition.window)
    }

    /// Whatever was handled: a session with nothing under way ends if it is to end, or goes on with what waits.
    async fn settle(&mut self) {
        self.publish_state();
        self.settle_work().await;
        self.publish_state();
        self.taken_on.set(self.inbox.ready(&self.log).count() + usize::from(self.run.is_some()));
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
        if self.is_stopping {
            if self.inbox.may_clear() {
                Box::pin(self.clear_refused()).await;
            }
            // The agent goes with this actor, and what it has not yet broadcast or answered with it: so it speaks
            // first.
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

    /// Publishes how the session stands. The lanes hear where somebody begins to wait for what is under way: a summary that
    /// nobody waits for lets others go first.
    fn publish_state(&self) {
        if self.is_asleep {
            // The run and the inbox are with the supervisor, and stay as they were published.
            return;
        }
        let is_awaited =
            self.run.is_some() || self.compaction.is_awaited() || !self.inbox.is_empty(&self.log);
        let before = self.shared.publish_state(Published {
            is_awaited,
            callers_waiting: self.inbox.callers(),
            held_back: Some(Arc::clone(self.inbox.held_back())),
            inbox_agents: Arc::clone(self.inbox.agents()),
        });
        if is_awaited && !before.is_awaited && !self.compaction.is_idle() {
            let family = self.shared.family();
            self.deps.lanes.values().for_each(|lane| lane.promote(&family));
            self.definition.lane.promote(&family);
        }
    }

    /// Ends in order: the run is interrupted, and the log is whole.
    fn stop(&mut self) {
        self.go_on();
        self.is_stopping = true;
        // The ends of what is cancelled come back as messages, and then it stops.
        self.interrupt_run();
        self.cancel_compaction("the session is closed");
    }

    fn stop_now(&mut self) {
        if self.is_at_rest() && self.is_stopping {
            self.shared.mark_flushed();
            self.myself.stop(Some("closed".to_owned()));
        }
    }

    /// Checks later whether anything has happened since.
    fn watch_idleness(&mut self) {
        let after = self.deps.idle_after_ms;
        if after > 0 && !std::mem::replace(&mut self.is_watched, true) {
            let activity = self.shared.activity.load(Ordering::Relaxed);
            self.myself.send_after(Duration::from_millis(after), move || {
                SessionMessage::IdleCheck { activity, again: true }.into()
            });
        }
    }

    fn idle_check(&mut self, activity: u64, again: bool) {
        self.is_watched &= !again;
        // This check itself counts as one message.
        let now = self.shared.activity.load(Ordering::Relaxed);
        if self.has_nothing_to_do() && now <= activity + 1 {
            let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.shared.id) });
        } else if !again {
            // The next check is on its way.
        } else if let Some(stamp) = self.stamp_of_waiting().filter(|_| now <= activity + 1) {
            // It may sleep if its run waits for tools alone, which the agent knows.
            self.agent.tell(AgentMessage::Suspend { stamp });
        } else {
            self.watch_idleness();
        }
    }

    /// Whether nothing is under way, nothing waits that may begin, and nothing is in the log that must not begin.
    fn has_nothing_to_do(&self) -> bool {
        self.is_at_rest() && self.inbox.is_empty(&self.log) && !self.inbox.has_refused()
    }

    /// The run that may sleep, as far as the session knows.
    fn stamp_of_waiting(&self) -> Option<RunAttempt> {
        let may_sleep = !self.is_stopping && self.compaction.is_idle() && !self.is_closing();
        self.open_stamp().filter(|_| may_sleep && self.suspended.is_none())
    }

    /// The agent handed the run over, or has something to do.
    fn suspended(&mut self, stamp: RunAttempt, running: Option<Box<Running>>) {
        let may_sleep = self.stamp_of_waiting() == Some(stamp);
        let is_of_run = self.open_stamp() == Some(stamp);
        // One of another attempt is over.
        let Some(running) = running.filter(|_| is_of_run) else {
            self.watch_idleness();
            return;
        };
        self.suspended = Some(running);
        if !may_sleep {
            // Something came up meanwhile, and the run goes on at once.
            self.go_on();
            self.watch_idleness();
            return;
        }
        let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.shared.id) });
    }

    /// Falls asleep, unless something has come up since the session said that it is idle. A run that waits for its tools
    /// alone is kept for whoever wakes the session.
    fn sleep(&mut self) {
        let line = self.suspended.as_ref().map(|running| running.line.clone());
        let may_sleep = match &line {
            Some(_) => self.compaction.is_idle() && !self.is_closing(),
            None => self.has_nothing_to_do(),
        };
        let shared = Arc::clone(&self.shared);
        if !may_sleep || !shared.fall_asleep(|| self.parking.clone().park(self.suspend())) {
            self.go_on();
            let _ = self.supervisor.cast(SupervisorMessage::StaysAwake { id: Arc::clone(&shared.id) });
            self.watch_idleness();
            return;
        }
        // Nobody else can reach this actor any more.
        match line {
            None => self.stop(),
            Some(line) => {
                // A task may have said something since the agent handed the run over.
                line.wake_if_awaited();
                self.is_stopping = true;
            }
        }
    }

    /// Gives away the run that was handed over, with all that belongs to it; `None` where there is none.
    fn suspend(&mut self) -> Option<Box<Suspended>> {
        let running = self.suspended.take()?;
        // Whoever waits for it waits at the supervisor.
        self.shared.publish_state(Published { is_awaited: false, ..self.shared.published() });
        self.is_asleep = true;
        Some(Box::new(Suspended {
            running,
            run: self.take_run().expect("a run that was handed over is open"),
            compaction: std::mem::replace(&mut self.compaction, OpenCompaction::new(false)),
            inbox: self.inbox.hand_over(),
            opened_at: self.opened_at,
            repeats: std::mem::take(&mut self.repeats),
            askers: std::mem::take(&mut self.askers),
            definition: self.definition.clone(),
            next_definition: self.next_definition.take(),
            run_cost: self.run_cost,
            instructions: self.instructions.take(),
            attempts: self.attempts,
        }))
    }

    /// The agent goes on with a run that was handed over. Gives whether there is one.
    fn go_on(&mut self) -> bool {
        let Some(running) = self.suspended.take() else { return false };
        self.agent.tell(AgentMessage::Continue { running, tracker: self.tracker.actor().clone() });
        // What was answered, withdrawn or set while it slept.
        self.tell_askers_again();
        let session = self.shared.id.to_string();
        tell_all(self.inbox.take_withdrawn(&self.log), || Err(Error::Withdrawn { session: session.clone() }));
        if let Some(agent) = self.shared.agent().filter(|agent| !Arc::ptr_eq(agent, &self.definition.agent))
            && let Err(error) = self.configure(agent)
        {
            self.warn(format!("the changed agent is not used: {error}"));
        }
        true
    }
}

/// The model that answered last in a session that goes on with another.
struct LeftModel {
    provider: String,
    model: String,
    /// Its window in tokens, where the session knows what was set for it.
    window: Option<u64>,
}

impl LeftModel {
    /// The model that is left where a session is opened with this definition.
    fn of(log: &Log, definition: &Definition) -> Option<Self> {
        let head = log.head();
        if log.is_empty() {
            return None;
        }
        let left = Self { provider: head.provider.clone(), model: head.model.clone(), window: head.window };
        if !left.is(definition.provider(), definition.model()) {
            return Some(left);
        }
        // The switch was recorded, and then nobody answered.
        let path = log.path();
        let change = path.iter().rposition(|entry| matches!(entry.kind, EntryKind::ModelChange { .. }))?;
        let newest =
            path.iter().rposition(|entry| entry.kind.is_whole_answer()).filter(|newest| *newest < change)?;
        let answer = path[newest].kind.as_answer()?;
        Some(Self { provider: answer.provider.clone(), model: answer.model.clone(), window: None })
    }

    fn is(&self, provider: &str, model: &str) -> bool {
        (self.provider.as_str(), self.model.as_str()) == (provider, model)
    }
}

/// What an entry puts on the bill for calls of another session, in micro-dollars.
fn spent_below(kind: &EntryKind) -> Option<u64> {
    let EntryKind::Spent(spent) = kind else { return None };
    spent.cost_microdollars.filter(|_| matches!(spent.by, Spender::SubAgent { .. }))
}

/// Whether what a model call cost is on the bill with it: it is an answer, what had come of one, or what is known of a call
/// that has no answer.
fn ends_call(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Spent(Spent { by: Spender::Calls, .. })) || kind.as_answer().is_some()
}

/// How a session with nothing under way stands, as far as its log says; `model` answers in it.
fn state_by_log(id: &str, log: &Log, model: &str, context: ContextUsage) -> State {
    let bill = log.bill();
    State {
        id: id.to_owned(),
        model: model.to_owned(),
        agent: log.head().agent.clone(),
        entries: log.head().entries,
        context,
        context_window: context.window,
        compactions: log.head().compactions,
        total_tokens: bill.usage.total_tokens(),
        cost_microdollars: bill.cost_microdollars,
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

/// After this many failed automatic compactions in a row, none is tried until something changes.
pub(crate) const PAUSE_AFTER_FAILURES: u32 = 3;
