//! The answers of a run: empty ones, ones with calls, and the verdicts of validators.
//!
//! Invariants: the calls of an answer run only once the answer is recorded. An answer without calls ends the run
//! unless a validator sends it back.

use super::{Boundary, Effect, Phase, Run, Verdict};
use crate::entry::RunOutcome;
use crate::failure::{Failure, FailureClass};
use crate::message::{AssistantMessage, Message, StopReason, ToolCall, ToolResult};
use crate::run::calls::cut_call;
use crate::run::recovery::is_full;
use crate::usage;

/// Why an incomplete call is not run.
const CUT_OFF: &str = "the answer ended in the middle of it, before its arguments were whole; send it again in full, in \
                       smaller parts if they are long";

impl Run {
    pub(super) fn answered(&mut self, answer: AssistantMessage, jitter: u64) -> Vec<Effect> {
        // A count that contradicts ours is not trusted here either.
        let reported = answer.usage.map(|usage| usage.input_tokens);
        let input_tokens =
            reported.filter(|tokens| usage::is_believable(*tokens, self.size.counted)).unwrap_or(0);
        let window = self.size.window.unwrap_or(u64::MAX);
        let is_full = self.is_full() || is_full(input_tokens, window);
        // Not a single token arrived, not even of reasoning: there was no room for one.
        let is_wordless =
            answer.content.is_empty() && answer.usage.is_none_or(|usage| usage.output_tokens == 0);
        if answer.is_empty() && answer.stop == StopReason::Length && (is_full || is_wordless) {
            // Nothing fitted beside the input: an overflow that the provider did not report as one.
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
                    None,
                    jitter,
                ),
                // Reasoning used all of it. A lower limit would be worse, so this is not handled like
                // `OutputLimit`. With the same limit the same is likely, at the full price of the output: one more
                // attempt is worth that, because the length of reasoning varies.
                StopReason::Length => {
                    let failure = Failure::new(FailureClass::OutputLimit, match answer.reasoning_chars() {
                        0 => "the output limit was reached before any output: raise it (output_tokens_max)".to_owned(),
                        chars => format!(
                            "the output limit was reached while the model was reasoning ({chars} characters), before \
                             anything was said: raise the limit (output_tokens_max), or ask for less reasoning \
                             (reasoning_effort)"
                        ),
                    });
                    match std::mem::replace(&mut self.recovery.was_cut_short, true) {
                        false => self.retry(failure, jitter),
                        true => self.give_up(failure),
                    }
                }
                // A gateway may convert an empty stream to an empty answer.
                StopReason::Stop
                | StopReason::ToolCalls
                | StopReason::Aborted
                | StopReason::Error
                | StopReason::Paused
                | StopReason::Unknown
                    if is_wordless =>
                {
                    let failure = Failure::new(FailureClass::Malformed, "the model answered nothing");
                    self.failed(failure, true, None, jitter)
                }
                StopReason::Stop | StopReason::ToolCalls | StopReason::Aborted | StopReason::Error | StopReason::Paused | StopReason::Unknown => self.retry(
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
        self.recovery.answered();
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
        if calls.is_empty() && answer.stop == StopReason::Paused {
            let answer = Message::Assistant(answer);
            if let Some(reason) = self.out_of_steps() {
                effects.extend(self.end(vec![answer], RunOutcome::Stopped { reason }));
                return effects;
            }
            self.phase = Phase::Continuing;
            self.records_pending += 1;
            effects.push(Effect::Record { messages: vec![answer], boundary: Boundary::Steps });
            return effects;
        }
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
        // The calls run once the answer with them is durable: see `recorded`.
        effects
    }

    /// Records the run's last answer. Input that could join then starts a run of its own if no step is left for it.
    pub(super) fn conclude(&mut self, answer: Message) -> Vec<Effect> {
        if self.out_of_steps().is_some() {
            return self.end(vec![answer], RunOutcome::Completed);
        }
        self.phase = Phase::Ending;
        self.records_pending += 1;
        vec![Effect::Record { messages: vec![answer], boundary: Boundary::End }]
    }

    /// Handles the verdict on an answer: it counts, or is sent back with the reason.
    pub(super) fn judged(&mut self, verdict: Verdict) -> Vec<Effect> {
        let answer = self.validation.answer.take().expect("an answer is judged while it is held");
        let answer = Message::Assistant(answer);
        match verdict {
            Verdict::Accepted => {
                self.validation.rejections = 0;
                self.conclude(answer)
            }
            Verdict::Failed { reason } => self.end(vec![answer], RunOutcome::Stopped { reason }),
            Verdict::Ended { reason } => {
                let stopped = format!("the answer was not accepted because: {reason}");
                self.validation.ended_by = Some(reason);
                self.end(vec![answer], RunOutcome::Stopped { reason: stopped })
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
                self.phase = Phase::Continuing;
                self.records_pending += 1;
                let messages = vec![answer, Message::user(correction(&reason))];
                vec![Effect::Record { messages, boundary: Boundary::Steps }]
            }
        }
    }
}

/// Returns the message to the model about a rejected answer.
fn correction(reason: &str) -> String {
    format!("Your answer was not accepted: {reason}\nAnswer again, in full.")
}
