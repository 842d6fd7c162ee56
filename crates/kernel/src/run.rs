//! A run: an agent's run for one prompt, decided step by step.
//!
//! [`Run::on`] takes what happened and gives what to do next; the agent actor does it. The loop: measure,
//! compact if due, ask the model, record the answer, run its tool calls, record their results, measure again;
//! until an answer calls no tool and nothing waits in the inbox.
//!
//! Invariants: a run ends exactly once, by an [`Effect::End`] or by a record at [`Boundary::End`] with which
//! nothing was delivered, and nothing comes after that; every call of a recorded answer gets
//! exactly one recorded result before the next answer is asked for or the run ends; overflow recovery does not
//! count as a retry; no compaction by threshold follows another without a new message between them, since only
//! a size that is asked for at the run's beginning or after a record starts one.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use crate::entry::{RunOutcome, Trigger};
use crate::failure::{Failure, FailureClass};
use crate::message::{AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus};
use crate::path::Media;
use crate::usage;

#[cfg(test)]
mod tests;

/// The first wait before a failed call is tried again, in milliseconds.
const BACKOFF_MS: u64 = 500;
/// The longest wait before a failed call is tried again, whatever the provider asks for, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 60_000;
/// At this share of the window, a wordless refusal is taken for an overflow.
const FULL_SHARE_PERCENT: u64 = 85;
/// The least output that is worth asking for.
const OUTPUT_TOKENS_MIN: u64 = 256;
/// What is asked for where a request without a limit of its own was refused for its output, in tokens.
const OUTPUT_TOKENS_ASSUMED: u64 = 4_096;

/// Why a call that was cut off is not run.
const CUT_OFF: &str = "the answer ended in the middle of it, before its arguments were whole; send it again in full, in \
                       smaller parts if they are long";

/// What a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// The most model calls that end in an answer.
    pub steps_max: u32,
    /// The most times that the same tool calls may follow one another.
    pub repeats_max: u32,
    /// How often one model call is tried again.
    pub retries_max: u32,
    /// How often one run recovers from an overflow: once a rung.
    pub overflows_max: u32,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { steps_max: 250, repeats_max: 8, retries_max: 5, overflows_max: 3 }
    }
}

/// The context's size before a call, as the usage tracker sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    /// In tokens.
    pub tokens: u64,
    /// The model's window, where it is known.
    pub window: Option<u64>,
    /// Whether it was assumed, or read out of an error: a larger request may be taken all the same.
    pub is_window_guessed: bool,
    /// Whether a compaction is due.
    pub is_due: bool,
    /// Whether the next request could not be sent as it is.
    pub at_window: bool,
    /// A budget that is used up: which, and how large it was.
    pub over_budget: Option<String>,
}

/// What happened.
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
    },
    /// The model answered.
    Answered(Box<AssistantMessage>),
    /// The model call failed.
    Failed {
        /// How.
        failure: Failure,
        /// Nothing was said at all: an empty stream, or a refusal without a body. With a full window that is an
        /// overflow.
        wordless: bool,
        /// A number in 0..1000 by which waits differ, so that many sessions do not come back at once.
        jitter: u64,
    },
    /// The wait is over.
    Waited,
    /// A tool call ended.
    ToolEnded(Box<ToolResult>),
    /// An [`Effect::Record`] is durable.
    Recorded {
        /// How many inbox items joined the path with it.
        delivered: u32,
    },
    /// The user or the program interrupts.
    Abort {
        /// What of an answer had come.
        partial: Option<Box<AssistantMessage>>,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask for the context's size.
    Measure,
    /// Compact.
    Compact {
        /// Why.
        trigger: Trigger,
        /// Whether the next request could not be sent as it is.
        at_window: bool,
        /// How many rungs of the ladder were tried in vain in this run.
        failed_attempts: u32,
    },
    /// Ask the model.
    Ask {
        /// Lower the output limit to this many tokens.
        output_tokens_max: Option<u64>,
        /// Which images to send; placeholders stand for the others.
        media: Media,
    },
    /// Record these messages.
    Record {
        /// In this order.
        messages: Vec<Message>,
        /// Whether input that waits may join the path after them.
        boundary: Boundary,
    },
    /// Run these tool calls.
    RunTools(Vec<ToolCall>),
    /// Wait, then try again.
    Wait {
        /// How long, in milliseconds.
        delay_ms: u64,
        /// The how manyeth retry this is, from 1.
        attempt: u32,
        /// Why.
        failure: Failure,
    },
    /// The provider cut the context without a word.
    OverflowDetected,
    /// Cancel whatever runs: model call, tools, compaction, wait.
    Cancel,
    /// Record these messages and the run's end.
    End {
        /// In this order.
        messages: Vec<Message>,
        /// How it ended.
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
    Tools,
    Ending,
    Over,
}

/// A run in progress.
#[derive(Debug, Clone)]
pub struct Run {
    limits: RunLimits,
    /// Whether overflow recovery may compact.
    may_compact: bool,
    phase: Phase,
    size: Size,
    steps: u32,
    retries: u32,
    overflows: u32,
    output_lowered: u32,
    /// The output limit that requests carry by themselves.
    output_configured: Option<u64>,
    output_tokens_max: Option<u64>,
    media: Media,
    /// The provider cut the context silently: compact before the next call.
    must_compact: bool,
    last_failure: Option<Failure>,
    /// Calls without a recorded result, by their order.
    open: BTreeMap<usize, ToolCall>,
    /// Whether the open calls were handed out to run.
    running: bool,
    /// The open call that the answer's end cut off: it is not run.
    cut: Option<ToolCall>,
    /// An abort came while the last record was on its way.
    aborting: bool,
    records_pending: u32,
    last_calls: Vec<(String, String)>,
    repeats: u32,
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
            retries: 0,
            overflows: 0,
            output_lowered: 0,
            output_configured: output_tokens_max,
            output_tokens_max,
            media: Media::All,
            must_compact: false,
            last_failure: None,
            open: BTreeMap::new(),
            running: false,
            cut: None,
            aborting: false,
            records_pending: 0,
            last_calls: Vec::new(),
            repeats: 0,
        }
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// How many answers the model gave.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Decides what to do next.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        if self.phase == Phase::Over {
            return Vec::new();
        }
        match input {
            Input::Abort { partial } => self.abort(partial),
            Input::Begin if self.phase == Phase::New => self.measure(false),
            Input::Size(size) => match self.phase {
                Phase::Measuring { compacted } => self.measured(size, compacted),
                Phase::New
                | Phase::Compacting { .. }
                | Phase::Asking
                | Phase::Waiting
                | Phase::Tools
                | Phase::Ending
                | Phase::Over => Vec::new(),
            },
            Input::Compacted { installed, floor } => match self.phase {
                Phase::Compacting { emergency } => self.compacted(installed, floor, emergency),
                Phase::New
                | Phase::Measuring { .. }
                | Phase::Asking
                | Phase::Waiting
                | Phase::Tools
                | Phase::Ending
                | Phase::Over => Vec::new(),
            },
            Input::Answered(answer) if self.phase == Phase::Asking => self.answered(*answer),
            Input::Failed { failure, wordless, jitter } if self.phase == Phase::Asking => {
                self.failed(failure, wordless, jitter)
            }
            Input::Waited if self.phase == Phase::Waiting => self.ask(),
            Input::ToolEnded(result) if self.phase == Phase::Tools && self.running => {
                self.tool_ended(*result)
            }
            Input::Recorded { delivered } if self.records_pending > 0 => self.recorded(delivered),
            Input::Begin
            | Input::Answered(_)
            | Input::Failed { .. }
            | Input::Waited
            | Input::ToolEnded(_)
            | Input::Recorded { .. } => Vec::new(),
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
        let due = self.size.is_due || (self.must_compact && self.may_compact);
        if due && !compacted {
            let trigger = if self.must_compact { Trigger::Overflow } else { Trigger::Threshold };
            self.phase = Phase::Compacting { emergency: false };
            let at_window = self.size.at_window || self.must_compact;
            return vec![Effect::Compact { trigger, at_window, failed_attempts: 0 }];
        }
        self.ask()
    }

    fn ask(&mut self) -> Vec<Effect> {
        self.phase = Phase::Asking;
        vec![Effect::Ask { output_tokens_max: self.output_tokens_max, media: self.media }]
    }

    fn compacted(&mut self, installed: bool, floor: Option<Failure>, emergency: bool) -> Vec<Effect> {
        self.must_compact = false;
        if emergency && !installed {
            return self.unrecovered(floor);
        }
        // A guess must not keep anything from being tried: then it is the provider that refuses.
        if let Some(floor) = floor.filter(|_| !self.size.is_window_guessed) {
            return self.end(Vec::new(), RunOutcome::Failed(floor));
        }
        if installed {
            // What was measured no longer holds, nor what was lowered for it.
            self.output_lowered = 0;
            self.output_tokens_max = self.output_configured;
            return self.measure(true);
        }
        self.ask()
    }

    /// An overflow that no compaction could help: ends with what is incompressible where our own numbers show it,
    /// else with what the provider said.
    fn unrecovered(&mut self, floor: Option<Failure>) -> Vec<Effect> {
        let is_shown = |floor: &Failure| {
            floor.requested.zip(floor.limit).is_none_or(|(requested, limit)| is_full(requested, limit))
        };
        let said = self.last_failure.take();
        let is_about_bytes =
            said.as_ref().is_some_and(|failure| failure.class == FailureClass::PayloadTooLarge);
        let failure = match (floor.filter(|floor| is_shown(floor) && !is_about_bytes), said) {
            (Some(floor), _) => floor,
            (None, Some(mut said)) => {
                said.message.push_str("; there is nothing left to compact");
                said
            }
            (None, None) => {
                Failure::new(FailureClass::ContextOverflow, "the request is larger than the model's window")
            }
        };
        self.end(Vec::new(), RunOutcome::Failed(failure))
    }

    fn answered(&mut self, answer: AssistantMessage) -> Vec<Effect> {
        // A count that our own belies says nothing here. If the next one says the same, the size that is measured
        // then says it too.
        let reported = answer.usage.map(|usage| usage.input_tokens);
        let input_tokens =
            reported.filter(|tokens| usage::is_plausible(*tokens, self.size.tokens)).unwrap_or(0);
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
                    500,
                ),
                // Reasoning took it all. A lower limit would be worse, so this is not as `OutputLimit` is.
                StopReason::Length => self.retry(
                    Failure::new(
                        FailureClass::OutputLimit,
                        "the output limit was reached before anything was said",
                    ),
                    500,
                ),
                StopReason::Stop | StopReason::ToolCalls | StopReason::Aborted | StopReason::Error => {
                    self.retry(Failure::new(FailureClass::Malformed, "the model answered nothing"), 500)
                }
            };
        }
        self.steps += 1;
        self.retries = 0;
        self.overflows = 0;
        self.output_lowered = 0;
        self.output_tokens_max = self.output_configured;
        let mut effects = Vec::new();
        if input_tokens > window {
            self.must_compact = true;
            effects.push(Effect::OverflowDetected);
        }
        let calls: Vec<ToolCall> = answer.tool_calls().cloned().collect();
        self.cut = cut_call(&answer).cloned();
        let message = Message::Assistant(answer);
        if calls.is_empty() {
            self.phase = Phase::Ending;
            self.records_pending += 1;
            effects.push(Effect::Record { messages: vec![message], boundary: Boundary::End });
            return effects;
        }
        if let Some(reason) = self.guard(&calls) {
            let mut messages = vec![message];
            messages.extend(calls.iter().map(|call| Message::ToolResult(not_run(call, &reason))));
            effects.extend(self.end(messages, RunOutcome::Stopped { reason }));
            return effects;
        }
        self.phase = Phase::Tools;
        self.open = calls.into_iter().enumerate().collect();
        self.running = false;
        self.records_pending += 1;
        effects.push(Effect::Record { messages: vec![message], boundary: Boundary::None });
        // The calls run when the answer that asks for them is durable: see `recorded`.
        effects
    }

    /// Whether a guard ends the run instead of running these calls.
    fn guard(&mut self, calls: &[ToolCall]) -> Option<String> {
        let signature: Vec<(String, String)> =
            calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
        if signature == self.last_calls {
            self.repeats += 1;
        } else {
            self.repeats = 1;
            self.last_calls = signature;
        }
        if self.repeats > self.limits.repeats_max {
            let name = &calls[0].name;
            return Some(format!("the same call of `{name}` came {} times in a row", self.repeats));
        }
        (self.steps >= self.limits.steps_max)
            .then(|| format!("the run reached its limit of {} steps", self.limits.steps_max))
    }

    fn recorded(&mut self, delivered: u32) -> Vec<Effect> {
        self.records_pending -= 1;
        match self.phase {
            Phase::Ending if delivered > 0 && self.aborting => self.end(Vec::new(), RunOutcome::Aborted),
            Phase::Ending if delivered > 0 => self.measure(false),
            // Nothing waited: the record ended the run.
            Phase::Ending => {
                self.phase = Phase::Over;
                Vec::new()
            }
            Phase::Tools if self.records_pending == 0 => {
                if self.open.is_empty() {
                    return self.measure(false);
                }
                if self.running {
                    return Vec::new();
                }
                // The answer is durable, and none of its calls has run yet.
                self.running = true;
                let mut calls: Vec<ToolCall> = self.open.values().cloned().collect();
                let cut = self.cut.take().map(|call| {
                    // It is the last.
                    calls.pop();
                    not_run(&call, CUT_OFF)
                });
                let mut effects = Vec::new();
                if !calls.is_empty() {
                    effects.push(Effect::RunTools(calls));
                }
                effects.extend(cut.map(|result| self.tool_ended(result)).unwrap_or_default());
                effects
            }
            Phase::Tools
            | Phase::New
            | Phase::Measuring { .. }
            | Phase::Compacting { .. }
            | Phase::Asking
            | Phase::Waiting
            | Phase::Over => Vec::new(),
        }
    }

    fn tool_ended(&mut self, result: ToolResult) -> Vec<Effect> {
        let Some(order) =
            self.open.iter().find(|(_, call)| call.id == result.call_id).map(|(order, _)| *order)
        else {
            return Vec::new();
        };
        self.open.remove(&order);
        self.records_pending += 1;
        let boundary = if self.open.is_empty() { Boundary::Steps } else { Boundary::None };
        vec![Effect::Record { messages: vec![Message::ToolResult(result)], boundary }]
    }

    fn is_full(&self) -> bool {
        self.size.window.is_some_and(|window| is_full(self.size.tokens, window))
    }

    fn failed(&mut self, failure: Failure, wordless: bool, jitter: u64) -> Vec<Effect> {
        // Of the refusals that say why by their status alone, only these may mean the size.
        let may_be_size = matches!(failure.status, None | Some(200 | 400 | 413 | 429));
        if wordless && may_be_size && self.is_full() {
            let mut failure = failure;
            failure.class = FailureClass::ContextOverflow;
            return self.overflowed(failure);
        }
        match failure.class {
            FailureClass::ContextOverflow => self.overflowed(failure),
            FailureClass::PayloadTooLarge => match self.media.less() {
                Some(less) => {
                    self.media = less;
                    self.ask()
                }
                None => self.compact_for(failure),
            },
            FailureClass::OutputLimit if self.output_lowered < 2 => {
                self.output_lowered += 1;
                let now = self.output_tokens_max;
                let named = failure.limit.filter(|limit| now.is_none_or(|now| *limit < now));
                let lower = named.unwrap_or_else(|| now.unwrap_or(2 * OUTPUT_TOKENS_ASSUMED) / 2);
                self.output_tokens_max = Some(lower.max(OUTPUT_TOKENS_MIN));
                // The model's own limit: it holds for the rest of the run.
                self.output_configured = self.output_tokens_max;
                self.ask()
            }
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Malformed => self.retry(failure, jitter),
            FailureClass::OutputLimit
            | FailureClass::RequestTooLargeForRateLimit
            | FailureClass::Quota
            | FailureClass::Auth
            | FailureClass::ContentFilter
            | FailureClass::ContextFloor
            | FailureClass::Other => self.end(Vec::new(), RunOutcome::Failed(failure)),
        }
    }

    /// Waits and asks again, unchanged; or gives up.
    fn retry(&mut self, failure: Failure, jitter: u64) -> Vec<Effect> {
        if self.retries >= self.limits.retries_max {
            return self.end(Vec::new(), RunOutcome::Failed(failure));
        }
        let backoff = BACKOFF_MS << self.retries.min(10);
        self.retries += 1;
        self.phase = Phase::Waiting;
        // A server that asks for less than our own wait, or for none, would have all retries at once.
        let wait = failure.retry_after_ms.unwrap_or(0).max(backoff).min(BACKOFF_MS_MAX);
        // Up to a quarter more, so that many do not come back at once.
        let delay_ms = (wait + wait * jitter.min(1000) / 4000).min(BACKOFF_MS_MAX);
        vec![Effect::Wait { delay_ms, attempt: self.retries, failure }]
    }

    /// The request is larger than the window. Where less output would make it fit, that is asked for first.
    fn overflowed(&mut self, failure: Failure) -> Vec<Effect> {
        if let Some(room) = self.room_for_output(&failure) {
            self.output_lowered += 1;
            self.output_tokens_max = Some(room);
            return self.ask();
        }
        self.compact_for(failure)
    }

    /// The output that fits beside the input, if it is less than what was asked for and worth asking for.
    fn room_for_output(&self, failure: &Failure) -> Option<u64> {
        // Only where the request named an output limit can the sum be what is too large.
        let now = self.output_tokens_max.filter(|_| self.output_lowered == 0)?;
        let limit = failure.limit.or(self.size.window)?;
        // Our estimate may be too low; the provider's own number, if it is the sum, is not.
        let said = failure.requested.map_or(0, |requested| requested.saturating_sub(now));
        let room = limit.saturating_sub((self.size.tokens + self.size.tokens / 10).max(said));
        (OUTPUT_TOKENS_MIN..now).contains(&room).then_some(room)
    }

    /// Compacts, a rung lower each time, and asks again; or gives up.
    fn compact_for(&mut self, failure: Failure) -> Vec<Effect> {
        if !self.may_compact || self.overflows >= self.limits.overflows_max {
            return self.end(Vec::new(), RunOutcome::Failed(failure));
        }
        let failed_attempts = self.overflows;
        self.overflows += 1;
        self.last_failure = Some(failure);
        self.phase = Phase::Compacting { emergency: true };
        vec![Effect::Compact { trigger: Trigger::Overflow, at_window: true, failed_attempts }]
    }

    fn abort(&mut self, partial: Option<Box<AssistantMessage>>) -> Vec<Effect> {
        if self.phase == Phase::Ending {
            // The answer is complete and on its way to the log, which may end the run with it.
            self.aborting = true;
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
        messages.extend(self.open.values().map(|call| Message::ToolResult(interrupted(call))));
        let mut effects = vec![Effect::Cancel];
        effects.extend(self.end(messages, RunOutcome::Aborted));
        effects
    }

    fn end(&mut self, messages: Vec<Message>, outcome: RunOutcome) -> Vec<Effect> {
        self.phase = Phase::Over;
        self.open.clear();
        vec![Effect::End { messages, outcome }]
    }
}

/// What stands for the result of a call that was cancelled.
fn interrupted(call: &ToolCall) -> ToolResult {
    result_text(
        call,
        ToolStatus::Interrupted,
        "The call was cancelled. Whether it took effect is not known.".into(),
    )
}

fn not_run(call: &ToolCall, reason: &str) -> ToolResult {
    result_text(call, ToolStatus::Error, format!("The call was not run: {reason}."))
}

/// The call that the answer's end cut off: its arguments are not whole, or never began. What was meant is not
/// known, though a tool without parameters would take nothing for everything.
fn cut_call(answer: &AssistantMessage) -> Option<&ToolCall> {
    let was_cut = matches!(answer.stop, StopReason::Length | StopReason::ContentFilter);
    let last = answer.content.last().and_then(Part::as_tool_call).filter(|_| was_cut)?;
    serde_json::from_str::<IgnoredAny>(&last.arguments).is_err().then_some(last)
}

fn result_text(call: &ToolCall, status: ToolStatus, text: String) -> ToolResult {
    ToolResult {
        call_id: call.id.clone(),
        tool_name: call.name.clone(),
        content: vec![Block::Text(text)],
        status,
        touched: Vec::new(),
    }
}
