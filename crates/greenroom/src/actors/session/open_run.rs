//! The run in progress: who waits for it, what it has said, and how it ends.
//!
//! Invariants: each of those who wait for it hears of its end once; what it is held to is settled when it begins.

use std::sync::Arc;

use greenroom_kernel::entry::Entry;
use greenroom_kernel::log::Log;
use greenroom_kernel::message::{Message, StopReason};
use greenroom_kernel::run::Fallbacks;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{EntryId, Failure, RunOutcome, Usage};
use greenroom_provider::ModelSettings;
use ractor::ActorRef;
use tracing::Span;

use super::definition::Definition;
use super::hand_off::PendingHandOff;
use crate::agent::Agent;
use crate::agent::validate::Validators;
use crate::core::mail::Mail;
use crate::core::message::{BeginRun, PendingCall, PromptOptions, ReplyTo, RunAttempt, TrackerMessage};
use crate::core::trace;
use crate::values::compaction::Compacted;
use crate::values::error::Error;
use crate::values::prompt::{CallView, Reply};

#[cfg(test)]
mod tests;

/// The run in progress.
pub(super) struct OpenRun {
    stamp: RunAttempt,
    /// As it is traced, and since when.
    span: Span,
    began: tokio::time::Instant,
    options: Box<PromptOptions>,
    /// How the model is to answer.
    settings: ModelSettings,
    /// What judges the answers besides the agent's own validators.
    judges: Validators,
    /// The agent that the run began with, and how many of its fallbacks were asked for.
    agent: Arc<Agent>,
    fell_back: usize,
    waiting: Waiting,
    /// Whether the session was closed in it: then it is interrupted, and can be resumed.
    is_interrupted: bool,
    /// The instructions of all its requests.
    instructions: RunInstructions,
    told: Told,
    /// Why the last answer was rejected, where that ended the run.
    rejected: Option<String>,
    /// To whom the conversation is to be handed before the run goes on.
    hand_off: Option<PendingHandOff>,
    /// How often it was handed on in this run.
    hand_offs: u32,
    /// How the run ended, while its end is not yet recorded.
    closing: Option<Closing>,
}

/// What a run begins with.
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
    /// The answer that ends the run, which is recorded together with the end; empty where all is recorded.
    last: Vec<Arc<Entry>>,
}

/// Who waits for a run.
#[derive(Default)]
pub(super) struct Waiting {
    /// Who said the prompt: without it, nobody wants the run.
    caller: Option<ReplyTo<Reply>>,
    /// Who waits for the reply, and lets the run go on without them.
    joined: Vec<ReplyTo<Reply>>,
}

impl Waiting {
    /// Who said the prompt, if somebody did.
    pub(super) fn caller(caller: Option<ReplyTo<Reply>>) -> Self {
        Self { caller, joined: Vec::new() }
    }

    /// Somebody who lets the run go on without them.
    pub(super) fn follower(reply: ReplyTo<Reply>) -> Self {
        Self { caller: None, joined: vec![reply] }
    }

    /// Who said the prompt, where it is not taken.
    pub(super) fn into_caller(self) -> Option<ReplyTo<Reply>> {
        self.caller
    }

    /// Whether whoever said the prompt went away.
    pub(super) fn is_gone(&self) -> bool {
        self.caller.as_ref().is_some_and(tokio::sync::oneshot::Sender::is_closed)
    }

    /// All of them.
    pub(super) fn into_all(self) -> Vec<ReplyTo<Reply>> {
        self.caller.into_iter().chain(self.joined).collect()
    }
}

/// The instructions of one run.
#[derive(Clone)]
pub(super) struct RunInstructions {
    pub(super) text: Arc<str>,
    /// Their size in estimated tokens, where they are not those of the run before.
    pub(super) changed: Option<u64>,
}

/// What a run has said so far, for its reply.
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
    run: OpenRun,
    pub(super) outcome: RunOutcome,
    /// The answer that ends it, which is recorded with the end; empty where all is recorded.
    pub(super) last: Vec<Arc<Entry>>,
}

impl OpenRun {
    pub(super) fn new(stamp: RunAttempt, span: Span, new: NewRun) -> Self {
        let NewRun { options, settings, judges, agent, waiting, instructions } = new;
        Self {
            stamp,
            span,
            began: tokio::time::Instant::now(),
            options,
            settings,
            judges,
            agent,
            fell_back: 0,
            waiting,
            is_interrupted: false,
            instructions,
            told: Told::default(),
            rejected: None,
            hand_off: None,
            hand_offs: 0,
            closing: None,
        }
    }

    /// Which attempt at which run.
    pub(super) fn stamp(&self) -> RunAttempt {
        self.stamp
    }

    /// As it is traced.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// What its prompt asks for.
    pub(super) fn options(&self) -> &PromptOptions {
        &self.options
    }

    /// Whether the session was closed in it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Whether its end waits for being recorded.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// The answer that ends the run, while it is not recorded.
    pub(super) fn unrecorded(&self) -> Option<&[Arc<Entry>]> {
        let last = &self.closing.as_ref()?.last;
        (!last.is_empty()).then_some(last)
    }

    /// The session is closed in it: it is interrupted, unless it is aborted already.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = !self.options.cancel.is_cancelled();
    }

    /// Forgets whoever said the prompt, if they went away.
    pub(super) fn forget_gone_caller(&mut self) {
        self.waiting.caller.take_if(|reply| reply.is_closed());
    }

    /// Others wait for its reply too.
    pub(super) fn join(&mut self, replies: impl IntoIterator<Item = ReplyTo<Reply>>) {
        self.waiting.joined.extend(replies);
    }

    /// Those who wait for its reply. From now on nobody does.
    pub(super) fn take_callers(&mut self) -> Vec<ReplyTo<Reply>> {
        std::mem::take(&mut self.waiting).into_all()
    }

    /// Keeps what the reply will contain of these messages.
    pub(super) fn note<'a>(&mut self, messages: impl IntoIterator<Item = &'a Message>) {
        messages.into_iter().for_each(|message| self.told.note(message));
    }

    /// Keeps what a call used besides what its answer says.
    pub(super) fn note_usage(&mut self, usage: &Usage) {
        self.told.usage.add(usage);
    }

    /// Another agent goes on with it, as the next attempt. It was said already where the instructions changed.
    pub(super) fn go_on(&mut self, attempt: u32) {
        self.stamp.attempt = attempt;
        self.instructions.changed = None;
    }

    /// The agent of another definition goes on with it, as the next attempt.
    pub(super) fn go_on_with(
        &mut self,
        attempt: u32,
        agent: Arc<Agent>,
        settings: ModelSettings,
        instructions: RunInstructions,
    ) {
        self.stamp.attempt = attempt;
        (self.agent, self.fell_back) = (agent, 0);
        (self.settings, self.instructions) = (settings, instructions);
    }

    /// The agent as its next fallback answers for it.
    pub(super) fn next_fallback(&mut self) -> Option<Agent> {
        let fallback = self.agent.fallbacks.get(self.fell_back)?;
        self.fell_back += 1;
        Some(fallback.of(&self.agent))
    }

    pub(super) fn hand_off_mut(&mut self) -> &mut Option<PendingHandOff> {
        &mut self.hand_off
    }

    /// Counts a hand-off. Gives how many there were.
    pub(super) fn count_hand_off(&mut self) -> u32 {
        self.hand_offs += 1;
        self.hand_offs
    }

    /// How its model is asked.
    pub(super) fn settings(&self) -> &ModelSettings {
        &self.settings
    }

    pub(super) fn set_settings(&mut self, settings: ModelSettings) {
        self.settings = settings;
    }

    /// What its agent is told to begin with.
    pub(super) fn order(
        &self,
        session: &Arc<str>,
        definition: &Definition,
        log: &Log,
        pending: Vec<PendingCall>,
        tracker: ActorRef<Mail<TrackerMessage>>,
    ) -> BeginRun {
        BeginRun {
            stamp: self.stamp,
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

    /// How the run ends that its agent says ended so. `suspicion` is what may have kept its calls from their end.
    pub(super) fn end(
        &mut self,
        outcome: RunOutcome,
        rejected: Option<String>,
        suspicion: Option<String>,
    ) -> RunOutcome {
        self.rejected = rejected;
        match outcome {
            RunOutcome::Aborted if self.is_interrupted => RunOutcome::Interrupted,
            RunOutcome::Stopped { reason } => match suspicion {
                Some(suspicion) => RunOutcome::Stopped { reason: format!("{reason}; {suspicion}") },
                None => RunOutcome::Stopped { reason },
            },
            outcome @ (RunOutcome::Completed
            | RunOutcome::Aborted
            | RunOutcome::Failed(_)
            | RunOutcome::Interrupted
            | RunOutcome::Unknown
            | _) => outcome,
        }
    }

    /// The run is over: its end is recorded when the context was measured, and `last` with it.
    pub(super) fn start_closing(&mut self, outcome: RunOutcome, last: Vec<Arc<Entry>>) {
        self.closing = Some(Closing { outcome, last });
    }

    /// The run whose end is recorded now; `None` where it is not over.
    pub(super) fn close(mut self) -> Option<ClosingRun> {
        let Closing { outcome, last } = self.closing.take()?;
        Some(ClosingRun { run: self, outcome, last })
    }
}

impl ClosingRun {
    /// Which attempt at which run.
    pub(super) fn stamp(&self) -> RunAttempt {
        self.run.stamp
    }

    /// That it ended, for its trace.
    pub(super) fn trace(&self, session: &str) {
        let OpenRun { span, told, began, stamp, .. } = &self.run;
        trace::run_ended(span, session, stamp.run, &self.outcome, told.steps, &told.usage, began.elapsed());
    }

    /// The failure after which it is still to be done, and what waits behind it too: it may pass, and nobody heard of it who
    /// could ask again.
    pub(super) fn passing_failure(&self) -> Option<&Failure> {
        match &self.outcome {
            RunOutcome::Failed(failure) if self.run.options.is_left && failure.class.may_pass() => {
                Some(failure)
            }
            RunOutcome::Failed(_)
            | RunOutcome::Completed
            | RunOutcome::Aborted
            | RunOutcome::Stopped { .. }
            | RunOutcome::Interrupted
            | RunOutcome::Unknown
            | _ => None,
        }
    }

    /// Cancels what still works for it.
    pub(super) fn cancel(&self) {
        self.run.options.cancel.cancel();
    }

    /// Those who wait for it, and what they hear. `gone` says why, where the session ends or `is_deleting`.
    pub(super) fn reply(
        &mut self,
        context: ContextUsage,
        compactions: Vec<Compacted>,
        gone: impl FnOnce() -> Error,
        is_deleting: bool,
    ) -> (Vec<ReplyTo<Reply>>, Result<Reply, Error>) {
        let run = &mut self.run;
        let result = match &self.outcome {
            RunOutcome::Completed => {
                Ok(std::mem::take(&mut run.told).reply(run.stamp.run, context, compactions))
            }
            // A sub-agent's run is aborted when the session above it is deleted.
            RunOutcome::Aborted if !is_deleting => Err(Error::Aborted),
            RunOutcome::Failed(failure) => Err(Error::Model(failure.clone())),
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
    /// Keeps what the reply will contain.
    pub(super) fn note(&mut self, message: &Message) {
        if let Message::Assistant(answer) = message {
            self.text = answer.text();
            self.stop = Some(answer.stop);
            self.model.clone_from(&answer.model);
            self.steps += 1;
            self.tool_calls.extend(answer.tool_calls().map(CallView::from));
            if let Some(usage) = &answer.usage {
                self.usage.add(usage);
            }
        }
    }

    /// Whether the newest answer is whole, and calls no tool.
    pub(super) fn is_whole(&self) -> bool {
        let is_open = |stop| matches!(stop, StopReason::ToolCalls | StopReason::Paused);
        self.stop.is_some_and(|stop| !stop.is_partial() && !is_open(stop))
    }

    /// The reply, when the run has ended with a context of this size.
    pub(super) fn reply(self, run: EntryId, context: ContextUsage, compactions: Vec<Compacted>) -> Reply {
        // A run that is completed has an answer.
        let stop = self.stop.unwrap_or(StopReason::Stop);
        let Self { text, model, usage, steps, tool_calls, .. } = self;
        Reply { text, stop, model, run, context, usage, steps, compactions, tool_calls }
    }
}
