//! The session: the tree and its log, and the log's only writer.
//!
//! Life cycle of a prompt: it is recorded (or waits in the inbox), the agent is told to start, its messages
//! are recorded as they arrive, queued input joins at boundaries, and after the run its end is recorded and
//! the prompt is answered.
//!
//! - Requests: `prompts`, `manual` (compactions on request, undo, branches, pins), `questions`, `configure` (another definition or
//!   other settings), `rewinding`, `hand_off`.
//! - Runs: `begin`, `runs` and `open_run` (the run in progress), `record` (its messages and its end), `settle` (what follows the
//!   end), `first_reply` (of a key), `fallback`, `children` (sub-agents), `held_back` (input that waits for a person).
//! - Compactions: `compaction`, `open_compaction` (the one in progress), `preparation` (ahead of need), `debt` (facts still to be
//!   summarised).
//! - State: `inbox`, `definition`, `outgoing` (events to publish), `in_use` (what keeps it awake).
//! - Life: `opening`, `life`, `parked` (a run that waits while the session sleeps), `sleeping`.
//! - Storage: `append`; `stored` (changes of a session without actors).
//!
//! Invariants: an entry is passed to the tracker, published and acknowledged only after it is durable, with
//! one exception: the tracker gets the answer that ends a run earlier, because the run's end is recorded with
//! the resulting size. At most one run and one compaction are open; anything that a crash left open is closed
//! before anything else is written; only this actor waits for the disk.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use greenroom_kernel::entry::EntryId;
use greenroom_kernel::log::{Amendment, Log};
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;
use tracing::Span;

use crate::core::deps::Deps;
use crate::core::mail::Outbox;
use crate::core::message::{
    AgentMessage, CompactorMessage, MeasureFor, PromptOptions, ReplyTo, SessionMail, SessionMessage,
    SupervisorMessage, TrackerMessage, add_waiting,
};
use crate::core::ownership;
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use crate::limits::admission::Admitted;
use crate::limits::restarts::Restarts;
use crate::values::error::Result;

mod append;
mod begin;
mod children;
mod compaction;
mod configure;
mod debt;
mod definition;
mod fallback;
mod first_reply;
mod hand_off;
mod held_back;
mod in_use;
mod inbox;
mod life;
mod manual;
mod open_compaction;
mod open_run;
mod opening;
mod outgoing;
pub(crate) mod parked;
mod preparation;
mod prompts;
mod questions;
mod record;
#[cfg(feature = "command-tools")]
mod rewinding;
mod runs;
mod settle;
mod sleeping;
pub(crate) mod stored;

use first_reply::Repeats;
use in_use::InUse;
use inbox::Inbox;
use life::Life;
use open_compaction::OpenCompaction;
use outgoing::Outgoing;
use parked::ParkingPlace;
use questions::Askers;
use runs::Runs;

/// The session actor.
pub(crate) struct Session;

/// The arguments of its start.
pub(crate) struct SessionArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) supervisor: ActorRef<SupervisorMessage>,
    /// The place of its run while it sleeps.
    pub(crate) parking: ParkingPlace,
    /// Whether interrupted work is finished before queued input.
    pub(crate) finishes: bool,
}

/// The session's state: its parts, each with its own fields, and the actors it talks to.
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
    /// Its share of the runtime's accepted input: queued input and the run.
    taken_on: Admitted,
    /// The span of its life in memory.
    span: Span,
    life: Life,
    log: Log,
    /// The next entry of the log when this actor opened it, or when the actor opened it whose run this one
    /// took over.
    opened_at: EntryId,
    definition: InUse,
    runs: Runs,
    inbox: Inbox,
    compaction: OpenCompaction,
    /// Calls that wait for people's answers.
    askers: Askers,
    /// Callers that repeated an idempotency key.
    repeats: Repeats,
    /// Callers that wait until the session is idle; it stays awake for them.
    idle_waiters: Vec<ReplyTo<()>>,
    /// The events that the agent has yet to publish.
    outgoing: Outgoing,
    #[cfg(feature = "command-tools")]
    rewinds: rewinding::WaitingRewinds,
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
        let (events, then) = state.outgoing.unheard(0);
        state.agent.tell(AgentMessage::Broadcast { events, then });
        if !state.go_on() {
            state.recover().await;
        }
        if state.life.is_to_finish() {
            let (reply, finished) = oneshot::channel();
            state.finish(reply).await;
            state.life.set_finished(finished);
        } else if state.life.is_first() {
            Box::pin(state.finish_before_queue()).await;
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
        // The message has left the mailbox, so its slot is free again. Its input counts until the session has
        // settled, which counts the work that came of it.
        if let Some(input) = place.and_then(|place| place.input) {
            state.taken_on.take_over(input);
        }
        state.deps.probe(&state.shared.id, message.point());
        // Boxed, so an idle actor does not hold the future's memory; each branch has its own box, which is no
        // larger than its work requires.
        Box::pin(async {
            state.on(message).await;
            state.settle().await;
            state.send_told();
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
            // Work that waits for people continues when the session is opened again.
            state.shared.set_closing(true);
            state.shared.cancel_run();
        }
        state.deps.release(&state.shared.id, &state.definition.agent);
        if !state.shared.is_suspended() {
            ownership::release(&state.deps, &state.shared.id).await;
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
            SessionMessage::AwaitQuestions { attempt, call_id, reply } => {
                self.await_questions(attempt, call_id, reply);
            }
            SessionMessage::CallStarts { attempt, call_id, reply } => {
                let _ = reply.send(Box::pin(self.call_starts(attempt, call_id)).await);
            }
            SessionMessage::ExpireQuestions => Box::pin(self.expire_questions()).await,
            // Messages wait for the agent of a run that was handed over.
            SessionMessage::Wake => {
                if self.go_on() {
                    self.watch_idleness();
                }
            }
            SessionMessage::Suspended { attempt, running } => self.suspended(attempt, running),
            SessionMessage::Sleep => self.sleep(),
            SessionMessage::CompactManually { trigger, options, agent, reply } => {
                self.compact_manually(trigger, options, agent.as_ref(), reply);
            }
            SessionMessage::CompactAfterRun { options, needs_news } => {
                if !needs_news || self.compaction.has_message_since() {
                    self.compaction.request_later(options);
                }
            }
            SessionMessage::PlanManually { options, agent, reply } => {
                // Work in progress continues with its own agent, and then a plan is about that agent.
                let adopted = if self.is_idle() { self.adopt(agent.as_ref()) } else { Ok(()) };
                self.refresh_settings();
                let _ = reply.send(adopted.map(|()| self.plan_manually(&options).map(Box::new)));
            }
            SessionMessage::Undo { back_to, reply } => {
                let _ = reply.send(Box::pin(self.undo(back_to)).await);
            }
            SessionMessage::Branch { to, reply } => {
                let _ = reply.send(Box::pin(self.branch(to)).await);
            }
            #[cfg(feature = "command-tools")]
            SessionMessage::Rewind { rewind, reply } => {
                Box::pin(self.rewind_in_turn(rewind, reply)).await;
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
                Box::pin(self.child_ended(started, outcome, *spent)).await;
            }
            SessionMessage::Pin { entry, pinned, reply } => {
                let _ = reply.send(Box::pin(self.pin(entry, pinned)).await);
            }
            SessionMessage::Import { entries, leaf, reply } => {
                let _ = reply.send(Box::pin(self.import(&entries, leaf)).await);
            }
            SessionMessage::WhenIdle(reply) => add_waiting(&mut self.idle_waiters, reply),
            SessionMessage::State(reply) => {
                let _ = reply.send(self.state());
            }
            SessionMessage::Context(reply) => {
                let (messages, resent) = (self.log.shown_context(), self.resent_reasoning());
                let _ =
                    reply.send(messages.iter().map(|message| resent.strip(message).into_owned()).collect());
            }
            SessionMessage::Configure { agent, only_if_idle, reply } => {
                let goes_on = self.runs.is_left_waiting() && self.may_take_up(Some(&agent));
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
                if self.runs.set_left_waiting(false) {
                    self.shared.end_run();
                    Box::pin(self.close_what_is_open()).await;
                }
            }
            SessionMessage::Stop => self.stop(),
            SessionMessage::TryAgain => self.inbox.timer_fired(),
            SessionMessage::IdleCheck { activity, again } => self.idle_check(activity, again),
            SessionMessage::Record { attempt, messages, boundary } => {
                Box::pin(self.record(attempt, messages, boundary)).await
            }
            SessionMessage::End { attempt, messages, outcome, rejected } => {
                Box::pin(self.end(attempt, messages, outcome, rejected)).await;
            }
            SessionMessage::FallBack { attempt, failure } => {
                Box::pin(self.fall_back(attempt, *failure)).await
            }
            SessionMessage::Measure { attempt } => {
                if self.current(attempt).is_some() {
                    self.measure_for_step(attempt);
                }
            }
            SessionMessage::Project { attempt } => {
                let messages = self.log.context();
                self.agent.tell(AgentMessage::Context { attempt, messages });
            }
            SessionMessage::Compact { attempt, trigger, at_window, failed_attempts, measured } => {
                Box::pin(self.compact_for_run(attempt, trigger, at_window, failed_attempts, &measured)).await;
            }
            SessionMessage::Nears { attempt, measured } => {
                Box::pin(self.nears_in_run(attempt, &measured)).await;
            }
            SessionMessage::Spent { attempt, usage, cost_microdollars, has_summary } => {
                Box::pin(self.calls_spent(attempt, usage, cost_microdollars, has_summary)).await;
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
            SessionMessage::ReplacePathSegment { compaction, segment, effort } => {
                Box::pin(self.replace_path_segment(compaction, *segment, effort)).await;
            }
            SessionMessage::BranchSummarised { compaction, record, cost_microdollars } => {
                Box::pin(self.branch_summarised(compaction, *record, cost_microdollars)).await;
            }
            SessionMessage::PruneResults { compaction, segment, effort } => {
                Box::pin(self.prune_results(compaction, *segment, effort)).await;
            }
            SessionMessage::CompactionOver { compaction, end, effort } => {
                Box::pin(self.compaction_over(compaction, *end, effort)).await;
            }
            SessionMessage::PreparationOver { number, end, cost_microdollars } => {
                Box::pin(self.preparation_over(number, *end, cost_microdollars)).await;
            }
        }
    }

    /// Notifies the tracker that the context was rewritten.
    fn context_rewritten(&mut self) {
        self.discard_preparation("the context was rewritten");
        self.shared.context_rewritten();
        self.tracker.tell(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.tell_last_answer();
    }

    /// Returns the span of the current work: the run's, or the session's.
    fn work_span(&self) -> &Span {
        self.runs.span().unwrap_or(&self.span)
    }

    /// Sends the messages of this handler to the agent and the tracker. The agent's come first, so a reply of
    /// the tracker to the agent arrives after them.
    fn send_told(&mut self) {
        self.agent.send();
        self.tracker.send();
    }

    fn warn(&self, message: String) {
        tracing::warn!(session = %self.shared.id, "{message}");
        self.shared.publish(&self.deps.bus, EventKind::Warning { message });
    }
}

/// After this many failed automatic compactions in a row, none is tried until something changes.
pub(crate) const PAUSE_AFTER_FAILURES: u32 = 3;
