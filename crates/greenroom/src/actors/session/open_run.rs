//! The run in progress: its callers, its output for the reply, and its end.
//!
//! Invariants: each caller gets the run's end once; the run's terms are fixed when it starts.

use std::sync::Arc;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::Entry;
use greenroom_kernel::log::Log;
use greenroom_kernel::message::{Message, StopReason};
use greenroom_kernel::run::Fallbacks;
use greenroom_kernel::unreported::billable;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{EntryId, Failure, RunOutcome, Usage};
use greenroom_provider::ModelSettings;
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::definition::Definition;
use super::first_reply::Successor;
use super::hand_off::PendingHandOff;
use crate::agent::Agent;
use crate::agent::validate::Validators;
use crate::core::mail::Mail;
use crate::core::message::{BeginRun, PendingCall, PromptOptions, ReplyTo, RunAttempt, TrackerMessage};
use crate::core::metrics::{Happened, Metrics};
use crate::core::trace;
use crate::values::compaction::Compacted;
use crate::values::error::Error;
use crate::values::prompt::{CallView, Reply};

#[cfg(test)]
mod tests;

/// The run in progress.
pub(super) struct OpenRun {
    attempt: RunAttempt,
    /// The run's span in the trace, and its start.
    span: Span,
    began: tokio::time::Instant,
    options: Box<PromptOptions>,
    /// The model settings.
    settings: ModelSettings,
    /// The validators besides the agent's own.
    judges: Validators,
    /// The agent at the run's start, and how many of its fallbacks were used.
    agent: Arc<Agent>,
    fell_back: usize,
    waiting: Waiting,
    /// The abort of the caller that it was passed on to.
    successor_aborts: Option<CancellationToken>,
    /// Whether the session was closed during the run: then it is interrupted, and can be resumed.
    is_interrupted: bool,
    /// The instructions of all its requests.
    instructions: RunInstructions,
    told: Told,
    /// Why the last answer was rejected, if that ended the run.
    rejected: Option<String>,
    /// The hand-off that comes before the run continues.
    hand_off: Option<PendingHandOff>,
    /// The transfer whose hand-off could not be made: it is not tried again when the agent dies.
    failed_transfer: Option<EntryId>,
    /// How many hand-offs this run has made.
    hand_offs: u32,
    /// The run's outcome, until its end is recorded.
    closing: Option<Closing>,
}

/// The data of a new run.
pub(super) struct NewRun {
    pub(super) options: Box<PromptOptions>,
    pub(super) settings: ModelSettings,
    pub(super) judges: Validators,
    pub(super) agent: Arc<Agent>,
    pub(super) waiting: Waiting,
    pub(super) instructions: RunInstructions,
}

/// The end of a run that is about to be recorded.
struct Closing {
    outcome: RunOutcome,
    /// The answer that ends the run, which is recorded together with the end; empty if everything is
    /// recorded.
    last: Vec<Arc<Entry>>,
}

/// The callers of a run.
#[derive(Default)]
pub(super) struct Waiting {
    /// The sender of the prompt: without this caller, the run is cancelled.
    caller: Option<ReplyTo<Reply>>,
    /// The callers that wait for the reply, and without whom the run continues.
    joined: Vec<ReplyTo<Reply>>,
}

impl Waiting {
    /// Creates the callers of a prompt from its sender, if there is one.
    pub(super) fn caller(caller: Option<ReplyTo<Reply>>) -> Self {
        Self { caller, joined: Vec::new() }
    }

    /// Creates a caller without whom the run continues.
    pub(super) fn follower(reply: ReplyTo<Reply>) -> Self {
        Self { caller: None, joined: vec![reply] }
    }

    /// Returns the sender of a prompt that is refused.
    pub(super) fn into_caller(self) -> Option<ReplyTo<Reply>> {
        self.caller
    }

    /// Whether the sender of the prompt has gone.
    pub(super) fn is_gone(&self) -> bool {
        self.caller.as_ref().is_some_and(tokio::sync::oneshot::Sender::is_closed)
    }

    /// Returns all callers.
    pub(super) fn into_all(self) -> Vec<ReplyTo<Reply>> {
        self.caller.into_iter().chain(self.joined).collect()
    }
}

/// The instructions of one run.
#[derive(Clone)]
pub(super) struct RunInstructions {
    pub(super) text: Arc<str>,
    /// Their size in estimated tokens, if they differ from those of the previous run.
    pub(super) changed: Option<u64>,
}

/// The run's output so far, for its reply.
#[derive(Default, Clone)]
pub(super) struct Told {
    /// The text of the newest answer.
    text: String,
    /// Why the newest answer ended; `None` before the first.
    stop: Option<StopReason>,
    /// The model of the newest answer.
    model: String,
    usage: Usage,
    steps: u32,
    tool_calls: Vec<CallView>,
}

/// A run whose end is about to be recorded.
pub(super) struct ClosingRun {
    run: Box<OpenRun>,
    pub(super) outcome: RunOutcome,
    /// The answer that ends it, which is recorded with the end; empty if everything is recorded.
    pub(super) last: Vec<Arc<Entry>>,
}

impl OpenRun {
    pub(super) fn new(attempt: RunAttempt, span: Span, new: NewRun) -> Self {
        let NewRun { options, settings, judges, agent, waiting, instructions } = new;
        Self {
            attempt,
            span,
            began: tokio::time::Instant::now(),
            options,
            settings,
            judges,
            agent,
            fell_back: 0,
            waiting,
            successor_aborts: None,
            is_interrupted: false,
            instructions,
            told: Told::default(),
            rejected: None,
            hand_off: None,
            failed_transfer: None,
            hand_offs: 0,
            closing: None,
        }
    }

    /// Returns the run and the attempt at it.
    pub(super) fn attempt(&self) -> RunAttempt {
        self.attempt
    }

    /// Returns the run's span in the trace.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// Returns the options of its prompt.
    pub(super) fn options(&self) -> &PromptOptions {
        &self.options
    }

    /// Whether the session was closed during the run.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether its end is about to be recorded.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns the answer that ends the run, until it is recorded.
    pub(super) fn unrecorded(&self) -> Option<&[Arc<Entry>]> {
        let last = &self.closing.as_ref()?.last;
        (!last.is_empty()).then_some(last)
    }

    /// Marks the run as interrupted when the session is closed, unless it is aborted already.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = !self.options.cancel.is_cancelled();
    }

    /// Forgets the sender of the prompt if that caller has gone.
    pub(super) fn forget_gone_caller(&mut self) {
        self.waiting.caller.take_if(|reply| reply.is_closed());
    }

    /// Replaces the sender of the prompt, who has gone, by another one who waits for the reply. Returns the sender if
    /// it still waits for an answer.
    pub(super) fn pass_on(&mut self, by: Successor) -> Option<ReplyTo<Reply>> {
        self.options.ticket = by.ticket;
        self.successor_aborts = Some(by.cancel);
        self.waiting.caller.replace(by.reply)
    }

    /// Whether the caller that it belongs to has aborted it.
    pub(super) fn is_aborted(&self) -> bool {
        let of_successor = self.successor_aborts.as_ref().is_some_and(CancellationToken::is_cancelled);
        of_successor || self.options.cancel.is_cancelled()
    }

    /// Adds callers that also wait for its reply.
    pub(super) fn join(&mut self, replies: impl IntoIterator<Item = ReplyTo<Reply>>) {
        self.waiting.joined.extend(replies);
    }

    /// Takes the callers that wait for its reply.
    pub(super) fn take_callers(&mut self) -> Vec<ReplyTo<Reply>> {
        std::mem::take(&mut self.waiting).into_all()
    }

    /// Keeps the parts of these messages that the reply will contain.
    pub(super) fn note<'a>(&mut self, messages: impl IntoIterator<Item = &'a Message>) {
        messages.into_iter().for_each(|message| self.told.note(message));
    }

    /// Adds usage of a call that its answer does not report.
    pub(super) fn note_usage(&mut self, usage: &Usage) {
        self.told.usage.add(usage);
    }

    /// Continues with a new agent, as the next attempt. A change of the instructions was reported already.
    pub(super) fn go_on(&mut self, number: u32) {
        self.attempt.number = number;
        self.instructions.changed = None;
    }

    /// Continues with the agent of another definition, as the next attempt.
    pub(super) fn go_on_with(
        &mut self,
        number: u32,
        agent: Arc<Agent>,
        settings: ModelSettings,
        instructions: RunInstructions,
    ) {
        self.attempt.number = number;
        (self.agent, self.fell_back) = (agent, 0);
        (self.settings, self.instructions) = (settings, instructions);
    }

    /// Returns the agent with its next fallback.
    pub(super) fn next_fallback(&mut self) -> Option<Agent> {
        let fallback = self.agent.fallbacks.get(self.fell_back)?;
        self.fell_back += 1;
        Some(fallback.of(&self.agent))
    }

    pub(super) fn hand_off_mut(&mut self) -> &mut Option<PendingHandOff> {
        &mut self.hand_off
    }

    /// Returns the transfer whose hand-off could not be made.
    pub(super) fn failed_transfer(&self) -> Option<EntryId> {
        self.failed_transfer
    }

    /// Notes that the hand-off of this transfer could not be made.
    pub(super) fn note_failed_transfer(&mut self, transfer: EntryId) {
        self.failed_transfer = Some(transfer);
    }

    /// Counts a hand-off. Returns their number.
    pub(super) fn count_hand_off(&mut self) -> u32 {
        self.hand_offs += 1;
        self.hand_offs
    }

    /// Returns the model settings.
    pub(super) fn settings(&self) -> &ModelSettings {
        &self.settings
    }

    pub(super) fn set_settings(&mut self, settings: ModelSettings) {
        self.settings = settings;
    }

    /// Returns the order for its agent.
    pub(super) fn order(
        &self,
        session: &Arc<str>,
        definition: &Definition,
        log: &Log,
        pending: Vec<PendingCall>,
        tracker: ActorRef<Mail<TrackerMessage>>,
    ) -> BeginRun {
        BeginRun {
            attempt: self.attempt,
            span: self.span.clone(),
            agent: Arc::clone(&definition.agent),
            model: definition.model().to_owned(),
            tools: definition.tools.clone(),
            schema: self.options.form.as_ref().map(|form| Arc::clone(&form.schema)),
            validators: definition.agent.validators.and(&self.judges),
            settings: self.settings.clone(),
            fallbacks: Fallbacks {
                left: u32::try_from(self.agent.fallbacks.len() - self.fell_back).unwrap_or(u32::MAX),
                on: Arc::clone(&self.agent.fallback_on),
            },
            instructions: Arc::clone(&self.instructions.text),
            instructions_changed: self.instructions.changed,
            cancel: self.options.cancel.clone(),
            time_limit: self.options.time_limit,
            link: Arc::clone(&self.options.link),
            waiting: self.options.waiting.and(session),
            tracker,
            may_compact: definition.settings.enabled,
            steps: self.told.steps,
            answer: log.newest_answer(),
            answered_before: log.has_answers(),
            is_held: self.hand_off.is_some(),
            is_measuring: self.hand_off.is_none() && pending.is_empty(),
            pending,
            max_request_bytes: definition.settings.max_request_bytes,
        }
    }

    /// Returns the run's end, given its agent's outcome. `suspicion` is a possible reason why its calls did
    /// not end.
    pub(super) fn end(
        &mut self,
        outcome: RunOutcome,
        rejected: Option<String>,
        suspicion: Option<String>,
    ) -> RunOutcome {
        self.rejected = rejected;
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others stay as they are")]
        match outcome {
            RunOutcome::Aborted if self.is_interrupted => RunOutcome::Interrupted,
            RunOutcome::Stopped { reason } => match suspicion {
                Some(suspicion) => RunOutcome::Stopped { reason: format!("{reason}; {suspicion}") },
                None => RunOutcome::Stopped { reason },
            },
            outcome => outcome,
        }
    }

    /// Notes that the run is over: its end is recorded after a measurement of the context, and `last` with
    /// it.
    pub(super) fn start_closing(&mut self, outcome: RunOutcome, last: Vec<Arc<Entry>>) {
        self.closing = Some(Closing { outcome, last });
    }

    /// Takes the run whose end is recorded now; `None` if it is not over.
    pub(super) fn close(mut self: Box<Self>) -> Option<ClosingRun> {
        let Closing { outcome, last } = self.closing.take()?;
        Some(ClosingRun { run: self, outcome, last })
    }
}

impl ClosingRun {
    /// Returns the run and the attempt at it.
    pub(super) fn attempt(&self) -> RunAttempt {
        self.run.attempt
    }

    /// Records its end in the trace and in the metrics.
    pub(super) fn trace(&self, session: &str, metrics: &Metrics) {
        let OpenRun { span, told, began, attempt, .. } = &*self.run;
        let took = began.elapsed();
        trace::run_ended(span, session, attempt.run, &self.outcome, told.steps, &told.usage, took);
        metrics.count(Happened::RunEnded { outcome: &self.outcome, took });
    }

    /// Returns the failure after which the run, and the input behind it, remain to be done: the failure may
    /// pass, and there was no caller to retry.
    pub(super) fn passing_failure(&self) -> Option<&Failure> {
        #[expect(clippy::wildcard_enum_match_arm, reason = "nothing remains to be done after the others")]
        match &self.outcome {
            RunOutcome::Failed(failure) if self.run.options.is_left && failure.class.may_pass() => {
                Some(failure)
            }
            _ => None,
        }
    }

    /// Cancels the remaining work of the run.
    pub(super) fn cancel(&self) {
        self.run.options.cancel.cancel();
    }

    /// Returns its callers, and their result. `gone` is the error if the session ends or `is_deleting`.
    pub(super) fn reply(
        &mut self,
        ended_with: (ContextUsage, Bill),
        compactions: Vec<Compacted>,
        gone: impl FnOnce() -> Error,
        is_deleting: bool,
    ) -> (Vec<ReplyTo<Reply>>, Result<Reply, Error>) {
        let run = &mut self.run;
        let result = match &self.outcome {
            RunOutcome::Completed => {
                Ok(std::mem::take(&mut run.told).reply(run.attempt.run, ended_with, compactions))
            }
            // A sub-agent's run is aborted when the session above it is deleted.
            RunOutcome::Aborted if !is_deleting => Err(Error::Aborted),
            RunOutcome::Failed(failure) => Err(Error::Model((**failure).clone())),
            RunOutcome::Stopped { reason } => Err(match run.rejected.take() {
                Some(reason) => Error::Rejected { reason, text: std::mem::take(&mut run.told.text) },
                None => Error::Stopped { reason: reason.clone() },
            }),
            RunOutcome::Aborted | RunOutcome::Interrupted | RunOutcome::Unknown | _ => Err(gone()),
        };
        (run.take_callers(), result)
    }
}

impl Told {
    /// Keeps the parts of a message that the reply will contain.
    pub(super) fn note(&mut self, message: &Message) {
        if let Message::Assistant(answer) = message {
            self.text = answer.text();
            self.stop = Some(answer.stop);
            self.model.clone_from(&answer.model);
            self.steps += 1;
            self.tool_calls.extend(answer.tool_calls().map(CallView::from));
            if let Some(usage) = &answer.usage.map(billable) {
                self.usage.add(usage);
            }
        }
    }

    /// Whether the newest answer is complete and calls no tool.
    pub(super) fn is_whole(&self) -> bool {
        let is_open = |stop| matches!(stop, StopReason::ToolCalls | StopReason::Paused);
        self.stop.is_some_and(|stop| !stop.is_partial() && !is_open(stop))
    }

    /// Returns the reply of a run that ended with a context of this size, and has spent this.
    pub(super) fn reply(
        self,
        run: EntryId,
        (context, bill): (ContextUsage, Bill),
        compactions: Vec<Compacted>,
    ) -> Reply {
        // A completed run has an answer.
        let stop = self.stop.unwrap_or(StopReason::Stop);
        let Self { text, model, usage, steps, tool_calls, .. } = self;
        Reply {
            text,
            stop,
            model,
            run,
            context,
            usage,
            cost_microdollars: bill.cost_microdollars,
            is_cost_estimated: bill.is_estimated(),
            steps,
            compactions,
            compaction_bill: bill.compaction,
            tool_calls,
        }
    }
}
