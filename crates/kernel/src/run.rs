//! A run: what an agent does for one prompt, decided step by step.
//!
//! [`Run::on`] takes what happened and gives what to do next; the agent actor does it. The loop: measure,
//! compact if due, ask the model, record the answer, run its tool calls, record their results, measure again;
//! until an answer calls no tool and nothing waits in the inbox.
//!
//! Invariants: a run ends exactly once, by an [`Effect::End`] or by a record at [`Boundary::End`] with which
//! nothing was delivered, and nothing comes after that but the end of its last step; each step that starts ends, and
//! at most one is open; every call of a recorded answer gets
//! exactly one recorded result before the next answer is asked for or the run ends; overflow recovery does not
//! count as a retry; no compaction by threshold follows another without a new message between them, since only
//! a size that is asked for at the run's beginning or after a record starts one.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use crate::due;
use crate::entry::{RunOutcome, Trigger};
use crate::failure::{Failure, FailureClass};
use crate::message::{AssistantMessage, Message, Part, StopReason, ToolCall, ToolResult};
use crate::path::Media;
use crate::retry::{OUTPUT_TOKENS_MIN, Retries, Retry, lowered_output};
use crate::usage;

pub use crate::due::Size;

#[cfg(test)]
mod tests;

/// At this share of the window, a wordless refusal is taken for an overflow.
const FULL_SHARE_PERCENT: u64 = 85;
/// Why a call that was cut off is not run.
const CUT_OFF: &str = "the answer ended in the middle of it, before its arguments were whole; send it again in full, in \
                       smaller parts if they are long";

/// A refused call's name is recorded up to this length, in bytes.
const REFUSED_NAME_BYTES_MAX: usize = 64;
/// So many answers in a row may call more tools than one answer may.
const EXCESSES_MAX: u32 = 3;

/// What a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// The most model calls that end in an answer.
    pub steps_max: u32,
    /// The most times that the same tool calls may follow one another.
    pub repeats_max: u32,
    /// How often one model call is tried again.
    pub retries_max: u32,
    /// How long a server is waited for that loads its model, in milliseconds. These waits are no retries.
    pub loading_ms_max: u64,
    /// How often one run recovers from an overflow: once a rung.
    pub overflows_max: u32,
    /// How often an answer that a validator rejects is asked for again.
    pub rejections_max: u32,
    /// The most tool calls of one answer that are run; the model is told of the others.
    pub calls_max: u32,
    /// The most bytes that the names and arguments of those calls have together.
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

/// What happened since the last effects.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The prompt is recorded; or an interrupted run goes on.
    Begin,
    /// The answer to [`Effect::Measure`].
    Size(Size),
    /// A compaction ended.
    Compacted {
        /// Whether the context changed.
        installed: bool,
        /// What is incompressible, where even the last rung was not enough.
        floor: Option<Failure>,
        /// Why nothing was installed: a clause for the user. `None` where there was nothing to compact.
        why: Option<String>,
    },
    /// The model answered.
    Answered {
        /// The whole answer, with what it used.
        answer: Box<AssistantMessage>,
        /// As in [`Input::Failed`]: an answer of nothing is asked for again after a wait.
        jitter: u64,
    },
    /// The model call failed.
    Failed {
        /// What went wrong.
        failure: Failure,
        /// Whether the provider said too little to tell why, by an empty stream or a refusal without a body: with a
        /// full window that is an overflow. Which refusals those are, the provider crate decides.
        wordless: bool,
        /// A number in 0..1000 by which waits differ, so that many sessions do not come back at once.
        jitter: u64,
    },
    /// The answer to [`Effect::Validate`].
    Validated(Verdict),
    /// The wait of an [`Effect::Wait`] is over.
    Waited,
    /// A call of [`Effect::RunTools`] ended.
    ToolEnded(Box<ToolResult>),
    /// An [`Effect::Record`] is durable.
    Recorded {
        /// How many inbox items joined the path with it.
        delivered: u32,
    },
    /// The run is to end now.
    Abort {
        /// What of an answer had come.
        partial: Option<Box<AssistantMessage>>,
        /// Who ends it.
        cause: AbortCause,
    },
}

/// Who ends a run before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbortCause {
    /// The user or the program.
    Asked,
    /// The clock.
    OutOfTime {
        /// How long it was allowed to take, in milliseconds.
        limit_ms: u64,
    },
}

impl AbortCause {
    fn outcome(self) -> RunOutcome {
        match self {
            Self::Asked => RunOutcome::Aborted,
            Self::OutOfTime { limit_ms } => {
                let reason = format!("the run reached its time limit of {} s", limit_ms.div_ceil(1_000));
                RunOutcome::Stopped { reason }
            }
        }
    }
}

/// What the program's validators say of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The answer counts.
    Accepted,
    /// The answer is sent back to the model.
    Rejected {
        /// The reason, for the model.
        reason: String,
    },
    /// A validator failed, so that nobody can tell.
    Failed {
        /// What the validator's failure was.
        reason: String,
    },
}

/// What who drives a [`Run`] is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask for the context's size.
    Measure,
    /// Compact the context; answer with [`Input::Compacted`].
    Compact {
        /// Why a compaction is due.
        trigger: Trigger,
        /// Whether the next request could not be sent as it is.
        at_window: bool,
        /// How many rungs of the ladder were tried in vain in this run.
        failed_attempts: u32,
    },
    /// A step begins: its model is about to be asked for the first time.
    StepStarted {
        /// Which step of the run, from 1.
        step: u32,
    },
    /// The step is over: its answer and the results of all its calls are recorded, or the run ends inside it.
    StepEnded {
        /// Which step of the run, from 1.
        step: u32,
    },
    /// Ask the model; answer with [`Input::Answered`] or [`Input::Failed`].
    Ask {
        /// Lower the output limit to this many tokens.
        output_tokens_max: Option<u64>,
        /// Which images to send; placeholders stand for the others.
        media: Media,
    },
    /// Record these messages.
    Record {
        /// The messages, in the order in which they are recorded.
        messages: Vec<Message>,
        /// Whether input that waits may join the path after them.
        boundary: Boundary,
    },
    /// Run these tool calls.
    RunTools(Vec<ToolCall>),
    /// Let the program judge an answer that calls no tool, before it is recorded; answer with [`Input::Validated`].
    Validate {
        /// The answer's text.
        text: String,
        /// How many answers were rejected before it.
        rejections: u32,
    },
    /// Wait, then try again.
    Wait {
        /// How long, in milliseconds.
        delay_ms: u64,
        /// The number of this retry, from 1; waits for a loading server are counted by themselves.
        attempt: u32,
        /// Why the last call failed.
        failure: Failure,
    },
    /// The provider cut the context without a word.
    OverflowDetected,
    /// Cancel whatever runs: model call, tools, compaction, wait.
    Cancel,
    /// Record these messages and the run's end.
    End {
        /// The messages, in the order in which they are recorded.
        messages: Vec<Message>,
        /// How the run ended.
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
    /// Steers and follow-ups do; if there are none, the run ends as completed in the same record.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    /// After a compaction the size is only looked at: what could be done about it was done.
    Measuring {
        compacted: bool,
    },
    Compacting {
        emergency: bool,
    },
    Asking,
    Waiting,
    /// The program judges the answer.
    Validating,
    /// A rejected answer is on its way to the log, with what is wrong with it.
    Rejecting,
    Tools,
    Ending,
    Over,
}

/// A run in progress: a state machine without any side effect.
#[derive(Debug, Clone)]
pub struct Run {
    limits: RunLimits,
    /// Whether overflow recovery may compact.
    may_compact: bool,
    phase: Phase,
    /// The context's size before the newest model call.
    size: Size,
    /// How many answers the model gave.
    steps: u32,
    /// Whether the model answered in this context before the run: then it took smaller requests.
    answered_before: bool,
    /// The step that began and is not over.
    open_step: Option<u32>,
    recovery: Recovery,
    calls: Calls,
    validation: Validation,
    /// The abort that came while the last record was on its way.
    aborting: Option<AbortCause>,
    /// How many records are on their way to the log.
    records_pending: u32,
}

/// What was tried to get the next answer.
#[derive(Debug, Clone)]
struct Recovery {
    /// How often the model was and may be asked again, unchanged, for this answer.
    retries: Retries,
    /// How often this answer's request was too large, and the context was compacted for it.
    overflows: u32,
    /// How often the output limit was lowered for this answer.
    output_lowered: u32,
    /// The output limit that requests carry by themselves, in tokens.
    output_configured: Option<u64>,
    /// The output limit of the next request, in tokens.
    output_tokens_max: Option<u64>,
    /// Which images the next request carries.
    media: Media,
    /// Whether the provider cut the context silently: compact before the next model call.
    must_compact: bool,
    /// The failure that the compaction under way is to recover from.
    last_failure: Option<Failure>,
    /// How often in a row the provider said nothing at all to this request.
    wordless: u32,
    /// Whether that was taken for an overflow, so that the compaction under way may be for nothing.
    suspected: bool,
    /// Whether a compaction for such a suspicion came to nothing.
    suspected_in_vain: bool,
    /// Whether the last resort was taken for it.
    gave_way: bool,
}

/// What the program's validators say of answers.
#[derive(Debug, Clone, Default)]
struct Validation {
    /// Whether answers are judged at all.
    is_on: bool,
    /// The answer that is judged.
    answer: Option<AssistantMessage>,
    /// How many answers were rejected, one after another.
    rejections: u32,
    /// Why the last one was, where that ended the run.
    ended_by: Option<String>,
}

/// The tool calls of the newest answer.
#[derive(Debug, Clone, Default)]
struct Calls {
    /// Those without a recorded result, by their order in the answer.
    open: BTreeMap<usize, ToolCall>,
    /// Whether the open calls were handed out to run.
    are_running: bool,
    /// The last open call, where it is not run, and why.
    refused: Option<(ToolCall, String)>,
    /// How many answers in a row called more tools than one answer may.
    excesses: u32,
    /// What the newest answer called, in order.
    last: Vec<CallSignature>,
    /// How many answers in a row called exactly that.
    repeats: u32,
}

/// By what calls are told to be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CallSignature {
    name: String,
    arguments: String,
}

/// Whether so many tokens fill a window nearly: then a wordless refusal is taken for an overflow.
pub fn is_full(tokens: u64, window: u64) -> bool {
    tokens.saturating_mul(100) >= window.saturating_mul(FULL_SHARE_PERCENT)
}

impl Run {
    /// A run that has not begun.
    ///
    /// `may_compact` is false where compaction is turned off: then an overflow goes to the caller.
    /// `output_tokens_max` is the output limit that each request carries, if it carries one.
    pub fn new(limits: RunLimits, may_compact: bool, output_tokens_max: Option<u64>) -> Self {
        Self {
            limits,
            may_compact,
            phase: Phase::New,
            size: Size::default(),
            steps: 0,
            answered_before: false,
            open_step: None,
            recovery: Recovery {
                retries: Retries::new(limits.retries_max, limits.loading_ms_max),
                overflows: 0,
                output_lowered: 0,
                output_configured: output_tokens_max,
                output_tokens_max,
                media: Media::All,
                must_compact: false,
                last_failure: None,
                wordless: 0,
                suspected: false,
                suspected_in_vain: false,
                gave_way: false,
            },
            calls: Calls::default(),
            validation: Validation::default(),
            aborting: None,
            records_pending: 0,
        }
    }

    /// The same run, whose answers are judged by [`Effect::Validate`] before they count.
    #[must_use]
    pub fn validated(mut self, is_on: bool) -> Self {
        self.validation.is_on = is_on;
        self
    }

    /// The same run, in a context in which the model has answered before, or has not.
    #[must_use]
    pub fn answered_before(mut self, has_answered: bool) -> Self {
        self.answered_before = has_answered;
        self
    }

    /// Why the last answer was rejected, where that ended the run.
    pub fn rejected(&self) -> Option<&str> {
        self.validation.ended_by.as_deref()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Decides what to do next.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        match (self.phase, input) {
            (_, Input::Abort { partial, cause }) => self.abort(partial, cause),
            (_, Input::Recorded { delivered }) if self.records_pending > 0 => self.recorded(delivered),
            (Phase::New, Input::Begin) => self.measure(false),
            (Phase::Measuring { compacted }, Input::Size(size)) => self.measured(size, compacted),
            (Phase::Compacting { emergency }, Input::Compacted { installed, floor, why }) => {
                self.compacted(installed, floor, why.as_deref(), emergency)
            }
            (Phase::Asking, Input::Answered { answer, jitter }) => self.answered(*answer, jitter),
            (Phase::Asking, Input::Failed { failure, wordless, jitter }) => {
                self.failed(failure, wordless, jitter)
            }
            (Phase::Waiting, Input::Waited) => self.ask(),
            (Phase::Validating, Input::Validated(verdict)) => self.judged(verdict),
            (Phase::Tools, Input::ToolEnded(result)) if self.calls.are_running => self.tool_ended(*result),
            // News of what the run no longer waits for.
            (
                _,
                Input::Begin
                | Input::Size(_)
                | Input::Compacted { .. }
                | Input::Answered { .. }
                | Input::Failed { .. }
                | Input::Waited
                | Input::Validated(_)
                | Input::ToolEnded(_)
                | Input::Recorded { .. },
            ) => Vec::new(),
        }
    }

    fn measure(&mut self, compacted: bool) -> Vec<Effect> {
        self.phase = Phase::Measuring { compacted };
        vec![Effect::Measure]
    }

    fn measured(&mut self, size: Size, compacted: bool) -> Vec<Effect> {
        self.size = size;
        if let Some(reason) = self.size.over_budget.take() {
            return self.end(Vec::new(), RunOutcome::Stopped { reason });
        }
        let must_compact = self.recovery.must_compact && self.may_compact;
        let trigger = if must_compact { Trigger::Overflow } else { Trigger::Threshold };
        // After a compaction the size is only looked at: nothing was said since.
        if due::is_due(trigger, &self.size, !compacted) {
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
        // A retry, and what is asked after an overflow was compacted, belong to the step that is open.
        if self.open_step.is_none() {
            let step = self.steps + 1;
            self.open_step = Some(step);
            effects.push(Effect::StepStarted { step });
        }
        effects.push(Effect::Ask {
            output_tokens_max: self.recovery.output_tokens_max,
            media: self.recovery.media,
        });
        effects
    }

    /// Ends the open step, if there is one.
    fn end_step(&mut self) -> Vec<Effect> {
        self.open_step.take().map(|step| Effect::StepEnded { step }).into_iter().collect()
    }

    /// The step's answer and results are recorded: goes on to the next one.
    fn next_step(&mut self) -> Vec<Effect> {
        let mut effects = self.end_step();
        effects.extend(self.measure(false));
        effects
    }

    fn compacted(
        &mut self,
        installed: bool,
        floor: Option<Failure>,
        why: Option<&str>,
        emergency: bool,
    ) -> Vec<Effect> {
        self.recovery.must_compact = false;
        if std::mem::take(&mut self.recovery.suspected) && !installed {
            // It was no overflow, or cannot be helped: asked again, as after any failure.
            self.recovery.suspected_in_vain = true;
            let said = self.recovery.last_failure.take();
            let failure =
                said.unwrap_or_else(|| Failure::new(FailureClass::Malformed, "the model said nothing"));
            return self.retry(failure, 0);
        }
        if emergency && !installed {
            return self.unrecovered(floor, why);
        }
        // A guess must not keep anything from being tried: then it is the provider that refuses.
        if let Some(floor) = floor.filter(|_| !self.size.is_window_guessed) {
            return self.end(Vec::new(), RunOutcome::Failed(floor));
        }
        if installed {
            // What was measured no longer holds, nor what was lowered for it.
            self.recovery.output_lowered = 0;
            self.recovery.output_tokens_max = self.recovery.output_configured;
            return self.measure(true);
        }
        self.ask()
    }

    /// An overflow that no compaction could help: ends with what is incompressible where our own count shows it, else
    /// with what the provider said and why nothing was compacted.
    fn unrecovered(&mut self, floor: Option<Failure>, why: Option<&str>) -> Vec<Effect> {
        let said = self.recovery.last_failure.take();
        let is_about_bytes =
            said.as_ref().is_some_and(|failure| failure.class == FailureClass::PayloadTooLarge);
        let failure = match (floor.filter(|_| !is_about_bytes), said) {
            (Some(floor), _) => floor,
            (None, Some(mut said)) => {
                said.message.push_str("; ");
                said.message.push_str(why.unwrap_or("there is nothing left to compact"));
                said
            }
            (None, None) => {
                Failure::new(FailureClass::ContextOverflow, "the request is larger than the model's window")
            }
        };
        self.end(Vec::new(), RunOutcome::Failed(failure))
    }

    fn answered(&mut self, answer: AssistantMessage, jitter: u64) -> Vec<Effect> {
        // A count that our own contradicts says nothing here either.
        let reported = answer.usage.map(|usage| usage.input_tokens);
        let input_tokens =
            reported.filter(|tokens| usage::is_believable(*tokens, self.size.counted)).unwrap_or(0);
        let window = self.size.window.unwrap_or(u64::MAX);
        let is_full = self.is_full() || is_full(input_tokens, window);
        // Not a single token came, not even of reasoning: there was no room for one.
        let is_wordless =
            answer.content.is_empty() && answer.usage.is_none_or(|usage| usage.output_tokens == 0);
        if answer.is_empty() && answer.stop == StopReason::Length && (is_full || is_wordless) {
            // Nothing fitted beside the input: an overflow that the provider did not call one.
            let failure = Failure::new(
                FailureClass::ContextOverflow,
                "the model had no room to answer: the context fills its window",
            );
            let mut effects = vec![Effect::OverflowDetected];
            // The request itself was accepted: less output would not make more room.
            effects.extend(self.compact_for(failure));
            return effects;
        }
        if answer.is_empty() {
            return match answer.stop {
                StopReason::ContentFilter => self.failed(
                    Failure::new(
                        FailureClass::ContentFilter,
                        "the provider's content filter refused to answer",
                    ),
                    false,
                    jitter,
                ),
                // Reasoning took it all. A lower limit would be worse, so this is not as `OutputLimit` is.
                StopReason::Length => self.retry(
                    Failure::new(FailureClass::OutputLimit, match answer.reasoning_chars() {
                        0 => "the output limit was reached before anything was said".to_owned(),
                        chars => format!(
                            "the output limit was reached while the model was reasoning ({chars} characters), before \
                             anything was said: raise the limit, or ask for less reasoning"
                        ),
                    }),
                    jitter,
                ),
                // A gateway may make an answer of nothing of a stream of nothing.
                StopReason::Stop | StopReason::ToolCalls | StopReason::Aborted | StopReason::Error
                    if is_wordless =>
                {
                    let failure = Failure::new(FailureClass::Malformed, "the model answered nothing");
                    self.failed(failure, true, jitter)
                }
                StopReason::Stop | StopReason::ToolCalls | StopReason::Aborted | StopReason::Error => self.retry(
                    Failure::new(FailureClass::Malformed, match answer.reasoning_chars() {
                        0 => "the model answered nothing".to_owned(),
                        chars => format!(
                            "the model answered with reasoning only ({chars} characters): if that was the answer, check \
                             the server's reasoning parser"
                        ),
                    }),
                    jitter,
                ),
            };
        }
        self.steps += 1;
        self.recovery.retries.answered();
        self.recovery.wordless = 0;
        self.recovery.suspected_in_vain = false;
        self.recovery.gave_way = false;
        self.recovery.overflows = 0;
        self.recovery.output_lowered = 0;
        self.recovery.output_tokens_max = self.recovery.output_configured;
        let mut effects = Vec::new();
        if input_tokens > window {
            self.recovery.must_compact = true;
            effects.push(Effect::OverflowDetected);
        }
        let (answer, excess) = self.limits.within(answer);
        let calls: Vec<ToolCall> = answer.tool_calls().cloned().collect();
        self.calls.excesses = if excess.is_some() { self.calls.excesses + 1 } else { 0 };
        let cut = || cut_call(&answer).map(|call| (call.clone(), CUT_OFF.to_owned()));
        self.calls.refused = excess.or_else(cut);
        if calls.is_empty() && self.validation.is_on {
            self.phase = Phase::Validating;
            effects.push(Effect::Validate { text: answer.text(), rejections: self.validation.rejections });
            self.validation.answer = Some(answer);
            return effects;
        }
        let message = Message::Assistant(answer);
        if calls.is_empty() {
            effects.extend(self.conclude(message));
            return effects;
        }
        if let Some(reason) = self.guard(&calls) {
            let mut messages = vec![message];
            messages.extend(calls.iter().map(|call| Message::ToolResult(ToolResult::not_run(call, &reason))));
            effects.extend(self.end(messages, RunOutcome::Stopped { reason }));
            return effects;
        }
        self.phase = Phase::Tools;
        self.calls.open = calls.into_iter().enumerate().collect();
        self.calls.are_running = false;
        self.records_pending += 1;
        effects.push(Effect::Record { messages: vec![message], boundary: Boundary::None });
        // The calls run when the answer that asks for them is durable: see `recorded`.
        effects
    }

    /// Records the run's last answer.
    fn conclude(&mut self, answer: Message) -> Vec<Effect> {
        self.phase = Phase::Ending;
        self.records_pending += 1;
        vec![Effect::Record { messages: vec![answer], boundary: Boundary::End }]
    }

    /// The program judged the answer: it counts, or is sent back with what is wrong with it.
    fn judged(&mut self, verdict: Verdict) -> Vec<Effect> {
        let answer = self.validation.answer.take().expect("an answer is judged while it is held");
        let answer = Message::Assistant(answer);
        match verdict {
            Verdict::Accepted => {
                self.validation.rejections = 0;
                self.conclude(answer)
            }
            Verdict::Failed { reason } => {
                self.end(vec![answer], RunOutcome::Failed(Failure::new(FailureClass::Other, reason)))
            }
            Verdict::Rejected { reason } if self.steps >= self.limits.steps_max => {
                self.validation.ended_by = Some(reason);
                let reason = format!("the run reached its limit of {} steps", self.limits.steps_max);
                self.end(vec![answer], RunOutcome::Stopped { reason })
            }
            Verdict::Rejected { reason } if self.validation.rejections >= self.limits.rejections_max => {
                let stopped = match self.validation.rejections {
                    0 => format!("the answer was not accepted because: {reason}"),
                    before => {
                        format!("{} answers were not accepted, the last one because: {reason}", before + 1)
                    }
                };
                self.validation.ended_by = Some(reason);
                self.end(vec![answer], RunOutcome::Stopped { reason: stopped })
            }
            Verdict::Rejected { reason } => {
                self.validation.rejections += 1;
                self.phase = Phase::Rejecting;
                self.records_pending += 1;
                let messages = vec![answer, Message::user(correction(&reason))];
                vec![Effect::Record { messages, boundary: Boundary::Steps }]
            }
        }
    }

    /// Whether a guard ends the run instead of running these calls.
    fn guard(&mut self, calls: &[ToolCall]) -> Option<String> {
        let signature =
            |call: &ToolCall| CallSignature { name: call.name.clone(), arguments: call.arguments.clone() };
        let signature: Vec<CallSignature> = calls.iter().map(signature).collect();
        if signature == self.calls.last {
            self.calls.repeats += 1;
        } else {
            self.calls.repeats = 1;
            self.calls.last = signature;
        }
        if self.calls.repeats > self.limits.repeats_max {
            let name = &calls[0].name;
            return Some(format!("the same call of `{name}` came {} times in a row", self.calls.repeats));
        }
        if self.calls.excesses > EXCESSES_MAX {
            let times = self.calls.excesses;
            return Some(format!("{times} answers in a row called more tools than one answer may"));
        }
        (self.steps >= self.limits.steps_max)
            .then(|| format!("the run reached its limit of {} steps", self.limits.steps_max))
    }

    fn recorded(&mut self, delivered: u32) -> Vec<Effect> {
        self.records_pending -= 1;
        match self.phase {
            Phase::Ending if delivered > 0 => match self.aborting {
                Some(cause) => self.end(Vec::new(), cause.outcome()),
                None => self.next_step(),
            },
            Phase::Rejecting => self.next_step(),
            // Nothing waited: the record ended the run.
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
                    // It is the last.
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
            | Phase::Measuring { .. }
            | Phase::Compacting { .. }
            | Phase::Asking
            | Phase::Waiting
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

    fn is_full(&self) -> bool {
        self.size.window.is_some_and(|window| is_full(self.size.tokens, window))
    }

    fn failed(&mut self, failure: Failure, wordless: bool, jitter: u64) -> Vec<Effect> {
        // A stream without any event, closed or broken; a refusal without a body has a status that says more.
        let is_silence = wordless && matches!(failure.class, FailureClass::Malformed | FailureClass::Timeout);
        self.recovery.wordless = if is_silence { self.recovery.wordless + 1 } else { 0 };
        if wordless && self.is_full() {
            let mut failure = failure;
            failure.class = FailureClass::ContextOverflow;
            return self.overflowed(failure);
        }
        if self.is_suspect() && !self.recovery.suspected_in_vain {
            // A summary shows that the provider takes smaller requests. Nothing is cut for a suspicion.
            return self.compact_for_suspicion(failure, false);
        }
        match failure.class {
            FailureClass::ContextOverflow => self.overflowed(failure),
            FailureClass::PayloadTooLarge => match self.recovery.media.less() {
                Some(less) => {
                    self.recovery.media = less;
                    self.ask()
                }
                None => self.compact_for(failure),
            },
            FailureClass::OutputLimit if self.recovery.output_lowered < 2 => {
                self.recovery.output_lowered += 1;
                let now = self.recovery.output_tokens_max;
                self.recovery.output_tokens_max = Some(lowered_output(now, failure.limit));
                // The model's own limit: it holds for the rest of the run.
                self.recovery.output_configured = self.recovery.output_tokens_max;
                self.ask()
            }
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Malformed
            | FailureClass::Loading => self.retry(failure, jitter),
            FailureClass::OutputLimit
            | FailureClass::RequestTooLargeForRateLimit
            | FailureClass::Quota
            | FailureClass::Auth
            | FailureClass::ContentFilter
            | FailureClass::ContextFloor
            | FailureClass::Other => self.end(Vec::new(), RunOutcome::Failed(failure)),
        }
    }

    /// Whether the provider's silence may mean that the request is too large, whatever the numbers say: it came again, and
    /// the window is a guess, or smaller requests were answered.
    fn is_suspect(&self) -> bool {
        let is_doubtful = self.size.is_window_guessed
            || self.size.window.is_none()
            || self.answered_before
            || self.steps > 0;
        is_doubtful && self.was_silent_again()
    }

    /// Whether the provider said nothing again, and something may still be done about it.
    fn was_silent_again(&self) -> bool {
        self.recovery.wordless > 1 && self.may_compact && self.recovery.overflows < self.limits.overflows_max
    }

    /// Compacts because the provider said nothing again.
    fn compact_for_suspicion(&mut self, failure: Failure, at_window: bool) -> Vec<Effect> {
        let failed_attempts = self.recovery.overflows;
        self.recovery.overflows += 1;
        self.recovery.suspected = true;
        // If it says nothing again, that is not for the first time.
        self.recovery.wordless = 1;
        self.recovery.last_failure = Some(failure);
        self.phase = Phase::Compacting { emergency: true };
        let compact = Effect::Compact { trigger: Trigger::Overflow, at_window, failed_attempts };
        vec![Effect::OverflowDetected, compact]
    }

    /// Waits and asks again, unchanged; or gives up.
    fn retry(&mut self, failure: Failure, jitter: u64) -> Vec<Effect> {
        let Some(Retry { delay_ms, attempt }) = self.recovery.retries.next(&failure, jitter) else {
            if self.was_silent_again() && !self.recovery.gave_way {
                // Before the session is of no use to anybody, something gives way, once. That holds without a doubt too:
                // where nothing was ever answered, it may be an unanswered prompt that is too large.
                self.recovery.gave_way = true;
                return self.compact_for_suspicion(failure, true);
            }
            let mut failure = failure;
            if self.recovery.wordless > 0 {
                failure.message.push_str("; the request may be larger than the server takes");
            }
            return self.end(Vec::new(), RunOutcome::Failed(failure));
        };
        self.phase = Phase::Waiting;
        vec![Effect::Wait { delay_ms, attempt, failure }]
    }

    /// The request is larger than the window. Where less output would make it fit, that is asked for first.
    fn overflowed(&mut self, failure: Failure) -> Vec<Effect> {
        if let Some(room) = self.room_for_output(&failure) {
            self.recovery.output_lowered += 1;
            self.recovery.output_tokens_max = Some(room);
            return self.ask();
        }
        self.compact_for(failure)
    }

    /// The output that fits beside the input, if it is less than what was asked for and worth asking for.
    fn room_for_output(&self, failure: &Failure) -> Option<u64> {
        // Only where the request named an output limit can the sum be what is too large.
        let now = self.recovery.output_tokens_max.filter(|_| self.recovery.output_lowered == 0)?;
        let limit = failure.limit.or(self.size.window)?;
        // Our estimate may be too low; the provider's own number, if it is the sum, is not.
        let said = failure.requested.map_or(0, |requested| requested.saturating_sub(now));
        let room = limit.saturating_sub((self.size.tokens + self.size.tokens / 10).max(said));
        (OUTPUT_TOKENS_MIN..now).contains(&room).then_some(room)
    }

    /// Compacts, a rung lower each time, and asks again; or gives up.
    fn compact_for(&mut self, failure: Failure) -> Vec<Effect> {
        if !self.may_compact || self.recovery.overflows >= self.limits.overflows_max {
            return self.end(Vec::new(), RunOutcome::Failed(failure));
        }
        let failed_attempts = self.recovery.overflows;
        self.recovery.overflows += 1;
        self.recovery.last_failure = Some(failure);
        self.phase = Phase::Compacting { emergency: true };
        vec![Effect::Compact { trigger: Trigger::Overflow, at_window: true, failed_attempts }]
    }

    fn abort(&mut self, partial: Option<Box<AssistantMessage>>, cause: AbortCause) -> Vec<Effect> {
        if self.phase == Phase::Ending {
            // The answer is complete and on its way to the log, which may end the run with it.
            self.aborting = Some(cause);
            return Vec::new();
        }
        let mut messages = Vec::new();
        if let Some(mut partial) = partial.filter(|_| self.phase == Phase::Asking) {
            // Calls that were still being written were never asked for.
            partial.content.retain(|part| part.as_tool_call().is_none());
            partial.stop = StopReason::Aborted;
            if !partial.is_empty() {
                messages.push(Message::Assistant(*partial));
            }
        }
        if let Some(mut judged) = self.validation.answer.take() {
            // Nobody accepted it: a run that is resumed answers anew.
            judged.stop = StopReason::Aborted;
            messages.push(Message::Assistant(judged));
        }
        messages
            .extend(self.calls.open.values().map(|call| Message::ToolResult(ToolResult::interrupted(call))));
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

impl RunLimits {
    /// The answer with no more calls than may be run, and one more that is refused with a reason for the model, if
    /// there were more: a clause without a full stop. The calls after that one are left out, so that neither the log
    /// nor the next request grows with what a model can write down.
    fn within(self, mut answer: AssistantMessage) -> (AssistantMessage, Option<(ToolCall, String)>) {
        let size = |call: &ToolCall| (call.name.len() + call.arguments.len()) as u64;
        let (mut taken, mut bytes) = (0_u32, 0_u64);
        let fits = |call: &&ToolCall| {
            (taken, bytes) = (taken + 1, bytes.saturating_add(size(call)));
            taken <= self.calls_max && bytes <= self.call_bytes_max
        };
        let kept = answer.tool_calls().take_while(fits).count();
        let calls = answer.tool_calls().count();
        if kept == calls {
            return (answer, None);
        }
        let bytes: u64 = answer.tool_calls().map(size).sum();
        let (calls_max, bytes_max, more) = (self.calls_max, self.call_bytes_max, calls - kept - 1);
        let reason = format!(
            "one answer may call at most {calls_max} tools, with at most {bytes_max} bytes of arguments together, and \
             this one had {calls} calls with {bytes} bytes; this call and {more} after it were left out, so make them \
             again, fewer at a time"
        );
        let mut position = 0;
        let mut refused = None;
        answer.content.retain_mut(|part| {
            let Part::ToolCall(call) = part else { return true };
            position += 1;
            if position == kept + 1 {
                // Its arguments may be what is too large, and nothing is done with them.
                call.name.truncate(call.name.floor_char_boundary(REFUSED_NAME_BYTES_MAX));
                call.arguments = "{}".to_owned();
                refused = Some(call.clone());
            }
            position <= kept + 1
        });
        (answer, refused.map(|call| (call, reason)))
    }
}

/// What a model is told of an answer that was rejected.
fn correction(reason: &str) -> String {
    format!("Your answer was not accepted: {reason}\nAnswer again, in full.")
}

/// The call that the answer's end cut off: its arguments are not whole, or never began. What was meant is not
/// known, though a tool without parameters would take nothing for everything.
fn cut_call(answer: &AssistantMessage) -> Option<&ToolCall> {
    let was_cut = matches!(answer.stop, StopReason::Length | StopReason::ContentFilter);
    let last = answer.content.last().and_then(Part::as_tool_call).filter(|_| was_cut)?;
    serde_json::from_str::<IgnoredAny>(&last.arguments).is_err().then_some(last)
}
