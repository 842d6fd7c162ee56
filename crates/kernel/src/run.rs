//! A run: the work of an agent on one prompt, decided step by step.
//!
//! [`Run::on`] takes an event and returns what to do next; the agent actor does it. The loop: measure,
//! compact if due, call the model, record the answer, run its tool calls, record their results, measure
//! again; until an answer calls no tool and the inbox is empty.
//!
//! Invariants: a run ends exactly once, by an [`Effect::End`] or by a record at [`Boundary::End`] that
//! delivers nothing, and nothing comes after that but the end of its last step; each step that starts ends,
//! and at most one is open; every call of a recorded answer gets exactly one recorded result before the next
//! model call or the end of the run; overflow recovery does not count as a retry; no compaction by threshold
//! follows another without a new message or another model between them, since only a size measured at the
//! run's beginning, after a record or for another model starts one.

use crate::due;
use crate::entry::{RunOutcome, Trigger};
use crate::failure::Failure;
use crate::message::{AssistantMessage, Message, StopReason, ToolCall, ToolResult};
use crate::path::Media;
use crate::run::calls::Calls;
use crate::run::recovery::Recovery;

pub use crate::due::Size;
pub use crate::run::recovery::{Fallbacks, is_full};

mod answers;
mod calls;
mod recovery;

#[cfg(test)]
mod tests;

/// Why the calls of a run that was cut off were not run.
pub(crate) const NOT_BEGUN: &str = "it had not begun when the run was cut off";

/// The limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// The maximum number of model calls that end in an answer. With 0, each run ends before its first call. Input that
    /// would join the run after its last one starts a run of its own. The default is 250.
    pub steps_max: u32,
    /// How often the same tool calls may be repeated consecutively. The default is 8.
    pub repeats_max: u32,
    /// How often one model call is retried. The default is 5.
    pub retries_max: u32,
    /// The longest wait for a server that is loading its model, in milliseconds. These waits do not count as
    /// retries. The default is five minutes.
    pub loading_ms_max: u64,
    /// How often one run recovers from an overflow: once per rung. The default is 3.
    pub overflows_max: u32,
    /// How often an answer that a validator rejects is requested again. The default is 2.
    pub rejections_max: u32,
    /// The maximum number of tool calls of one answer that are run; the model is told about the others. The
    /// default is 128.
    pub calls_max: u32,
    /// The maximum total size of the names and arguments of those calls, in bytes. The default is 1 MiB.
    pub call_bytes_max: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            steps_max: 250,
            repeats_max: 8,
            retries_max: 5,
            loading_ms_max: 300_000,
            overflows_max: 3,
            rejections_max: 2,
            calls_max: 128,
            call_bytes_max: 1024 * 1024,
        }
    }
}

/// An event since the last effects.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The prompt is recorded; or an interrupted run continues.
    Begin,
    /// The answer to [`Effect::Measure`].
    Size(Size),
    /// The answer to [`Effect::Count`]: the provider has counted, or cannot.
    Counted,
    /// A compaction ended.
    Compacted {
        /// Whether the context changed.
        installed: bool,
        /// The incompressible part, if even the last rung was not enough.
        floor: Option<Failure>,
        /// Why nothing was installed: a clause for the user. `None` if there was nothing to compact.
        why: Option<String>,
    },
    /// The model answered.
    Answered {
        /// The complete answer, with its usage.
        answer: Box<AssistantMessage>,
        /// As in [`Input::Failed`]: an empty answer is requested again after a wait.
        jitter: u64,
    },
    /// The model call failed.
    Failed {
        /// The failure.
        failure: Failure,
        /// Whether the provider gave too little information to tell why, with an empty stream or a refusal
        /// without a body: with a full window that is an overflow. The provider crate decides which refusals
        /// qualify.
        wordless: bool,
        /// The images to send if this request had too many bytes, by
        /// [`fewer_images`](crate::path::fewer_images).
        fewer_images: Option<Media>,
        /// Whether the request began with a summary in the provider's own form.
        has_native_summary: bool,
        /// The output limit with which the request was sent, in tokens, if it had one: a budget or a hook may set
        /// another than [`Effect::Ask`] did.
        output_tokens_max: Option<u64>,
        /// A number in 0..1000 that spreads waits, so that many sessions do not retry at once.
        jitter: u64,
    },
    /// The program refused the model call, so it was not made.
    Refused {
        /// The reason, for the user.
        reason: String,
    },
    /// The answer to [`Effect::Validate`].
    Validated(Verdict),
    /// The answer to [`Effect::FallBack`].
    FellBack {
        /// The output limit of requests to the other model, in tokens.
        output_tokens_max: Option<u64>,
    },
    /// The wait of an [`Effect::Wait`] is over.
    Waited,
    /// A call of [`Effect::RunTools`] ended.
    ToolEnded(Box<ToolResult>),
    /// An [`Effect::Record`] is durable.
    Recorded {
        /// The number of inbox items that joined the path with it.
        delivered: u32,
    },
    /// The run must end now.
    Abort {
        /// The part of an answer that has arrived.
        partial: Option<Box<AssistantMessage>>,
        /// The ids of the calls of [`Effect::RunTools`] that certainly have not begun, and will not.
        not_begun: Vec<String>,
        /// The cause.
        cause: AbortCause,
    },
}

/// The cause of an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortCause {
    /// The user or the program.
    Requested,
    /// The clock.
    OutOfTime {
        /// The time limit, in milliseconds.
        limit_ms: u64,
    },
}

impl AbortCause {
    fn outcome(self) -> RunOutcome {
        match self {
            Self::Requested => RunOutcome::Aborted,
            Self::OutOfTime { limit_ms } => {
                let reason = format!("the run reached its time limit of {}", shown_ms(limit_ms));
                RunOutcome::Stopped { reason }
            }
        }
    }
}

/// Returns a duration as a text: `700 ms`, `1.5 s`, `90 s`.
fn shown_ms(ms: u64) -> String {
    match (ms / 1_000, ms % 1_000) {
        (0, _) => format!("{ms} ms"),
        (seconds, 0) => format!("{seconds} s"),
        (seconds, rest) => format!("{seconds}.{} s", format!("{rest:03}").trim_end_matches('0')),
    }
}

/// The verdict of the program's validators on an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The answer counts.
    Accepted,
    /// The answer is sent back to the model.
    Rejected {
        /// The reason, for the model.
        reason: String,
    },
    /// The answer is rejected, and the run ends.
    Ended {
        /// The reason, for the user.
        reason: String,
    },
    /// A validator failed, so that there is no verdict.
    Failed {
        /// The validator's failure.
        reason: String,
    },
}

/// An instruction to the driver of a [`Run`].
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask for the context's size.
    Measure,
    /// Let the provider count the tokens of the next request, so that the next measurement knows; answer with
    /// [`Input::Counted`].
    Count {
        /// The images that the request has.
        media: Media,
        /// Whether it leaves out what only the provider can read.
        without_opaque: bool,
    },
    /// Compact the context; answer with [`Input::Compacted`].
    Compact {
        /// The reason for the compaction.
        trigger: Trigger,
        /// Whether the next request could not be sent.
        at_window: bool,
        /// The number of rungs of the ladder already tried in this run.
        failed_attempts: u32,
    },
    /// A step begins: its first model call follows.
    StepStarted {
        /// The number of the step in the run, from 1.
        step: u32,
    },
    /// The step is over: its answer and the results of all its calls are recorded, or the run ends inside it.
    StepEnded {
        /// The number of the step in the run, from 1.
        step: u32,
    },
    /// Call the model; answer with [`Input::Answered`] or [`Input::Failed`].
    Ask {
        /// Lower the output limit to this many tokens.
        output_tokens_max: Option<u64>,
        /// The images to send; placeholders replace the others.
        media: Media,
        /// Leave out what only the provider can read, because it refused that.
        without_opaque: bool,
    },
    /// Record these messages.
    Record {
        /// The messages, in the order in which they are recorded.
        messages: Vec<Message>,
        /// Whether waiting input may join the path after them.
        boundary: Boundary,
    },
    /// Run these tool calls.
    RunTools(Vec<ToolCall>),
    /// Let the program judge an answer without tool calls before it is recorded; answer with
    /// [`Input::Validated`].
    Validate {
        /// The answer's text.
        text: String,
        /// The number of answers rejected before it.
        rejections: u32,
    },
    /// Wait, then try again.
    Wait {
        /// The wait, in milliseconds.
        delay_ms: u64,
        /// The number of this retry, from 1; waits for a loading server are counted separately.
        attempt: u32,
        /// Why the last call failed.
        failure: Failure,
    },
    /// Use the next of the other models from now on, as this one failed; answer with [`Input::FellBack`].
    FallBack {
        /// Why this model is given up.
        failure: Failure,
    },
    /// The provider silently truncated the context.
    OverflowDetected,
    /// Cancel everything in progress: model call, tools, compaction, wait.
    Cancel,
    /// Record these messages and the run's end.
    End {
        /// The messages, in the order in which they are recorded.
        messages: Vec<Message>,
        /// The outcome of the run.
        outcome: RunOutcome,
    },
}

/// Whether waiting input joins the path after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// No: calls are open.
    None,
    /// Steers do: a batch of tool calls is complete.
    Steps,
    /// Steers do, or, without any, follow-ups; without either, the run ends as completed in the same record.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Measuring(After),
    /// The provider counts.
    Counting,
    Compacting {
        emergency: bool,
    },
    Asking,
    Waiting,
    /// Another model replaces the one that failed.
    FallingBack,
    /// The program judges the answer.
    Validating,
    /// An answer is being recorded after which the next step follows: a rejected one with the reason, or a paused
    /// one.
    Continuing,
    Tools,
    Ending,
    Over,
}

/// What a measurement comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// A record, or the run's begin.
    Record,
    /// A compaction: the size is only checked, because everything possible was done.
    Compaction,
    /// The provider's count, for which it is not asked again.
    Count,
}

/// A run in progress: a state machine without side effects.
#[derive(Debug, Clone)]
pub struct Run {
    limits: RunLimits,
    /// Whether overflow recovery may compact.
    may_compact: bool,
    phase: Phase,
    /// The context's size before the newest model call.
    size: Size,
    /// The number of answers by the model.
    steps: u32,
    /// Whether the model answered in this context before the run: then it accepted smaller requests.
    answered_before: bool,
    /// The open step.
    open_step: Option<u32>,
    recovery: Recovery,
    fallbacks: Fallbacks,
    calls: Calls,
    validation: Validation,
    /// An abort that arrived while the last record was being written.
    aborting: Option<AbortCause>,
    /// The number of records being written.
    records_pending: u32,
}

/// The state of validation by the program.
#[derive(Debug, Clone, Default)]
struct Validation {
    /// Whether answers are validated at all.
    is_on: bool,
    /// The answer being validated.
    answer: Option<AssistantMessage>,
    /// The number of consecutive rejected answers.
    rejections: u32,
    /// Why the last one was rejected, if that ended the run.
    ended_by: Option<String>,
}

impl Run {
    /// Creates a run that has not begun.
    ///
    /// `may_compact` is false if compaction is turned off: then an overflow is reported to the caller.
    /// `output_tokens_max` is the output limit of each request, if there is one.
    pub fn new(limits: RunLimits, may_compact: bool, output_tokens_max: Option<u64>) -> Self {
        Self {
            limits,
            may_compact,
            phase: Phase::New,
            size: Size::default(),
            steps: 0,
            answered_before: false,
            open_step: None,
            recovery: Recovery::new(limits, output_tokens_max),
            fallbacks: Fallbacks::default(),
            calls: Calls::default(),
            validation: Validation::default(),
            aborting: None,
            records_pending: 0,
        }
    }

    /// Enables validation of answers by [`Effect::Validate`] before they count.
    #[must_use]
    pub fn validated(mut self, is_on: bool) -> Self {
        self.validation.is_on = is_on;
        self
    }

    /// Sets the fallback models for when the current one fails.
    #[must_use]
    pub fn with_fallbacks(mut self, fallbacks: Fallbacks) -> Self {
        self.fallbacks = fallbacks;
        self
    }

    /// Sets whether the model has answered in this context before.
    #[must_use]
    pub fn answered_before(mut self, has_answered: bool) -> Self {
        self.answered_before = has_answered;
        self
    }

    /// Resumes the run in the middle of a step: after `steps` answers, of the last of which these calls have
    /// no result yet.
    #[must_use]
    pub fn with_pending(mut self, calls: Vec<ToolCall>, steps: u32) -> Self {
        self.steps = steps;
        self.calls.take_up(calls);
        self
    }

    /// Returns why the last answer was rejected, if that ended the run.
    pub fn rejected(&self) -> Option<&str> {
        self.validation.ended_by.as_deref()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it waits only for its tool calls.
    pub fn is_waiting_for_calls(&self) -> bool {
        self.phase == Phase::Tools
            && self.calls.are_running
            && self.records_pending == 0
            && !self.calls.open.is_empty()
    }

    /// Handles an input and returns the next effects.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        match (self.phase, input) {
            (_, Input::Abort { partial, not_begun, cause }) => self.abort(partial, &not_begun, cause),
            (_, Input::Recorded { delivered }) if self.records_pending > 0 => self.recorded(delivered),
            (Phase::New, Input::Begin) if !self.calls.open.is_empty() => self.take_up_calls(),
            (Phase::New, Input::Begin) => self.measure(After::Record),
            (Phase::Measuring(after), Input::Size(size)) => self.measured(size, after),
            (Phase::Counting, Input::Counted) => self.measure(After::Count),
            (Phase::Compacting { emergency }, Input::Compacted { installed, floor, why }) => {
                self.compacted(installed, floor, why.as_deref(), emergency)
            }
            (Phase::Asking, Input::Answered { answer, jitter }) => self.answered(*answer, jitter),
            (
                Phase::Asking,
                Input::Failed {
                    failure,
                    wordless,
                    fewer_images,
                    has_native_summary,
                    output_tokens_max,
                    jitter,
                },
            ) => {
                self.recovery.has_native_summary = has_native_summary;
                self.recovery.output_sent = output_tokens_max;
                self.failed(failure, wordless, fewer_images, jitter)
            }
            (Phase::Waiting, Input::Waited) => self.ask(),
            (Phase::FallingBack, Input::FellBack { output_tokens_max }) => self.fell_back(output_tokens_max),
            (Phase::Asking, Input::Refused { reason }) => {
                self.end(Vec::new(), RunOutcome::Stopped { reason })
            }
            (Phase::Validating, Input::Validated(verdict)) => self.judged(verdict),
            (Phase::Tools, Input::ToolEnded(result)) if self.calls.are_running => self.tool_ended(*result),
            // Late news that the run no longer waits for.
            (
                _,
                Input::Begin
                | Input::Size(_)
                | Input::Counted
                | Input::Compacted { .. }
                | Input::Answered { .. }
                | Input::Failed { .. }
                | Input::Waited
                | Input::FellBack { .. }
                | Input::Refused { .. }
                | Input::Validated(_)
                | Input::ToolEnded(_)
                | Input::Recorded { .. },
            ) => Vec::new(),
        }
    }

    /// Continues the calls that were pending when the run was resumed.
    fn take_up_calls(&mut self) -> Vec<Effect> {
        let step = self.steps.max(1);
        self.phase = Phase::Tools;
        self.open_step = Some(step);
        self.calls.are_running = true;
        vec![Effect::StepStarted { step }, Effect::RunTools(self.calls.open.values().cloned().collect())]
    }

    fn measure(&mut self, after: After) -> Vec<Effect> {
        self.phase = Phase::Measuring(after);
        vec![Effect::Measure]
    }

    fn measured(&mut self, size: Size, after: After) -> Vec<Effect> {
        self.size = size;
        if let Some(reason) = self.size.over_budget.take() {
            return self.end(Vec::new(), RunOutcome::Stopped { reason });
        }
        if self.open_step.is_none()
            && let Some(reason) = self.out_of_steps()
        {
            return self.end(Vec::new(), RunOutcome::Stopped { reason });
        }
        let must_compact = self.recovery.must_compact && self.may_compact;
        if self.size.is_uncertain && after == After::Record && !must_compact {
            self.phase = Phase::Counting;
            let Recovery { media, without_opaque, .. } = self.recovery;
            return vec![Effect::Count { media, without_opaque }];
        }
        let trigger = if must_compact { Trigger::Overflow } else { Trigger::Threshold };
        // After a compaction the size is only checked: there is no new message since.
        if due::is_due(trigger, &self.size, after != After::Compaction) {
            self.phase = Phase::Compacting { emergency: false };
            let at_window = self.size.at_window || must_compact;
            return vec![Effect::Compact { trigger, at_window, failed_attempts: 0 }];
        }
        self.ask()
    }

    fn ask(&mut self) -> Vec<Effect> {
        assert!(self.calls.open.is_empty(), "the model is asked only when each call has its result");
        self.phase = Phase::Asking;
        let mut effects = Vec::new();
        // A retry, and a call after an overflow was compacted, belong to the open step.
        if self.open_step.is_none() {
            let step = self.steps + 1;
            self.open_step = Some(step);
            effects.push(Effect::StepStarted { step });
        }
        effects.push(Effect::Ask {
            output_tokens_max: self.recovery.output_tokens_max,
            media: self.recovery.media,
            without_opaque: self.recovery.without_opaque,
        });
        effects
    }

    /// Ends the open step, if there is one.
    fn end_step(&mut self) -> Vec<Effect> {
        self.open_step.take().map(|step| Effect::StepEnded { step }).into_iter().collect()
    }

    /// Continues with the next step, once the step's answer and results are recorded.
    fn next_step(&mut self) -> Vec<Effect> {
        let mut effects = self.end_step();
        effects.extend(self.measure(After::Record));
        effects
    }

    fn recorded(&mut self, delivered: u32) -> Vec<Effect> {
        self.records_pending -= 1;
        match self.phase {
            Phase::Ending if delivered > 0 => match self.aborting {
                Some(cause) => self.end(Vec::new(), cause.outcome()),
                None => self.next_step(),
            },
            Phase::Continuing => self.next_step(),
            // No input was waiting: the record ended the run.
            Phase::Ending => {
                self.phase = Phase::Over;
                self.end_step()
            }
            Phase::Tools if self.records_pending == 0 => {
                if self.calls.open.is_empty() {
                    return self.next_step();
                }
                if self.calls.are_running {
                    return Vec::new();
                }
                // The answer is durable, and none of its calls has run yet.
                assert!(self.open_step.is_some(), "calls run within a step");
                self.calls.are_running = true;
                let mut calls: Vec<ToolCall> = self.calls.open.values().cloned().collect();
                let refused = self.calls.refused.take().map(|(call, reason)| {
                    // It is the last one.
                    calls.pop();
                    ToolResult::not_run(&call, &reason)
                });
                let mut effects = Vec::new();
                if !calls.is_empty() {
                    effects.push(Effect::RunTools(calls));
                }
                effects.extend(refused.map(|result| self.tool_ended(result)).unwrap_or_default());
                effects
            }
            Phase::Tools
            | Phase::New
            | Phase::Measuring(_)
            | Phase::Counting
            | Phase::Compacting { .. }
            | Phase::Asking
            | Phase::Waiting
            | Phase::FallingBack
            | Phase::Validating
            | Phase::Over => Vec::new(),
        }
    }

    fn tool_ended(&mut self, result: ToolResult) -> Vec<Effect> {
        let Some(order) =
            self.calls.open.iter().find(|(_, call)| call.id == result.call_id).map(|(order, _)| *order)
        else {
            return Vec::new();
        };
        self.calls.open.remove(&order);
        self.records_pending += 1;
        let boundary = if self.calls.open.is_empty() { Boundary::Steps } else { Boundary::None };
        vec![Effect::Record { messages: vec![Message::ToolResult(result)], boundary }]
    }

    fn abort(
        &mut self,
        partial: Option<Box<AssistantMessage>>,
        not_begun: &[String],
        cause: AbortCause,
    ) -> Vec<Effect> {
        if self.phase == Phase::Ending {
            // The answer is complete and being recorded, which may end the run with it.
            self.aborting = Some(cause);
            return Vec::new();
        }
        let mut messages = Vec::new();
        if let Some(mut partial) = partial.filter(|_| self.phase == Phase::Asking) {
            // Incomplete calls were never requested.
            partial.content.retain(|part| part.as_tool_call().is_none());
            partial.stop = StopReason::Aborted;
            if !partial.is_empty() {
                messages.push(Message::Assistant(*partial));
            }
        }
        if let Some(mut judged) = self.validation.answer.take() {
            // It was not accepted: a resumed run answers again.
            judged.stop = StopReason::Aborted;
            messages.push(Message::Assistant(judged));
        }
        // Calls that an earlier process left may have begun there.
        let are_known = self.phase == Phase::Tools && !self.calls.are_running;
        let result = |call: &ToolCall| match are_known || not_begun.contains(&call.id) {
            true => ToolResult::not_run(call, NOT_BEGUN),
            false => ToolResult::interrupted(call),
        };
        messages.extend(self.calls.open.values().map(|call| Message::ToolResult(result(call))));
        let mut effects = vec![Effect::Cancel];
        effects.extend(self.end(messages, cause.outcome()));
        effects
    }

    fn end(&mut self, messages: Vec<Message>, outcome: RunOutcome) -> Vec<Effect> {
        assert!(self.phase != Phase::Over, "a run ends once");
        self.phase = Phase::Over;
        self.calls.open.clear();
        let mut effects = self.end_step();
        effects.push(Effect::End { messages, outcome });
        effects
    }
}
