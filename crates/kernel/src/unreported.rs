//! Usage that a server does not report, or reports implausibly: our own count replaces it, so that cost
//! limits hold.
//!
//! Invariants: this is the one rule by which a report is replaced on a bill. It is about money only:
//! [`crate::usage`] decides which report measures the context, and trusts far less. A report is replaced only
//! if no way of counting makes it true, so a true report is never increased; additions are marked as
//! estimated. A report that is too large for its request is billed as it is, because a server charges for text of
//! its own and for tools that it runs; only a count that no call can have is disregarded.

use crate::message::{AssistantMessage, Message, Part, ToolSpec, Usage};
use crate::messages::Messages;
use crate::reasoning::ResentReasoning;
use crate::size::{
    Estimator, IMAGE_TOKENS, answer_tokens, answer_tokens_max, bytes_max, message_tokens, opaque_tokens,
    reasoning_tokens, text_tokens, tools_tokens,
};
use crate::usage::Ratio;

#[cfg(test)]
mod tests;

/// A report below our least count divided by this cannot be true.
///
/// The least count excludes tools, images and reasoning. Tokenizers differ from our count of a text by a
/// factor of about two, and never by ten.
const LEAST_DIVISOR: u64 = 10;

/// The largest count of one side of a call that is billed, in tokens: ten times the largest window of a model.
const TOKENS_MAX: u64 = 100_000_000;

/// Returns a report as it is billed: without counts that no call can have, which would use up every limit. They count
/// as not reported. The report itself is unchanged, so that the tracker can warn about it.
pub fn billable(mut report: Usage) -> Usage {
    if all_input(&report) > TOKENS_MAX {
        report = Usage {
            input_tokens: 0,
            cached_tokens: 0,
            cache_write_tokens: 0,
            cache_write_hour_tokens: 0,
            ..report
        };
    }
    if report.output_tokens.max(report.reasoning_tokens) > TOKENS_MAX {
        report = Usage { output_tokens: 0, reasoning_tokens: 0, ..report };
    }
    report
}

/// A request as sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// The tools that the model may call.
    pub tools: &'a [ToolSpec],
    /// The conversation.
    pub messages: &'a Messages,
    /// Which reasoning of earlier answers is sent with it.
    pub resent: &'a ResentReasoning,
    /// The number of the server's tokens for one of ours.
    pub ratio: Ratio,
}

/// Our own count of one side of a call, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The likely count.
    pub likely: u64,
    /// The minimum count: the texts alone.
    pub least: u64,
}

impl Counted {
    pub(crate) fn plus(self, other: Self) -> Self {
        let Self { likely, least } = other;
        Self { likely: self.likely.saturating_add(likely), least: self.least.saturating_add(least) }
    }
}

impl Sent<'_> {
    /// Returns our own count of the request for a check of this report, as [`missing`] takes it. A report that is true
    /// whatever the count is needs none, and the conversation is not read.
    pub fn count_for(&self, report: &Usage) -> Counted {
        let least_max = self.messages.text_tokens_max().saturating_add(bytes_max(self.system));
        let reported = all_input(report);
        let is_true = reported > 0 && can_be(reported, least_max);
        if is_true { Counted::default() } else { self.count() }
    }

    /// Returns our own count of the request.
    pub fn count(&self) -> Counted {
        let system = text_tokens(self.system, Estimator::Classes);
        let tools = tools_tokens(self.tools);
        let counted = self.messages.counted(self.resent, |message| {
            let tokens = message_tokens(message, Estimator::Classes);
            Counted {
                likely: tokens.saturating_add(self.reasoning(message)),
                least: tokens.saturating_sub(message.images().saturating_mul(IMAGE_TOKENS)),
            }
        });
        let likely = counted.likely.saturating_add(system).saturating_add(tools);
        Counted { likely: self.ratio.apply(likely), least: counted.least.saturating_add(system) }
    }

    /// Returns the reasoning that is sent with a message.
    fn reasoning(&self, message: &Message) -> u64 {
        let Message::Assistant(answer) = message else { return 0 };
        let carried = answer.content.iter().filter(|part| self.resent.carries(answer, part));
        carried
            .map(|part| match part {
                Part::Reasoning(text) => text_tokens(text, Estimator::Classes),
                Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => opaque_tokens(data),
                Part::Text(_) | Part::ToolCall(_) => 0,
            })
            .fold(0, u64::saturating_add)
    }
}

/// Returns our own count of an answer.
pub fn count_answer(answer: &AssistantMessage) -> Counted {
    if answer.content.is_empty() {
        return Counted::default();
    }
    let said = if answer.is_empty() { 0 } else { answer_tokens(answer, Estimator::Classes) };
    Counted { likely: said.saturating_add(reasoning_tokens(answer)), least: said }
}

/// Returns our own count of an answer for a check of this report, as [`missing`] takes it. A report that is true
/// whatever the count is needs none, and the answer is not read.
pub fn count_answer_for(answer: &AssistantMessage, report: &Usage) -> Counted {
    let reported = report.output_tokens;
    let is_true = reported > 0 && can_be(reported, answer_tokens_max(answer));
    if is_true { Counted::default() } else { count_answer(answer) }
}

/// Returns our own count of the streamed part of an answer.
pub fn count_streamed(text: &str) -> Counted {
    let tokens = if text.is_empty() { 0 } else { text_tokens(text, Estimator::Classes) };
    Counted { likely: tokens, least: tokens }
}

/// Returns the usage of a call that is missing in its report: nothing if the report can be true.
///
/// Input and output are checked separately.
pub fn missing(report: Option<&Usage>, input: Counted, output: Counted) -> Usage {
    let report = report.copied().unwrap_or_default();
    let input_tokens = missing_of(all_input(&report), input);
    let output_tokens = missing_of(report.output_tokens, output);
    Usage {
        input_tokens,
        output_tokens,
        estimated_tokens: input_tokens.saturating_add(output_tokens),
        ..Usage::default()
    }
}

/// Returns the input of a report. Cached tokens count as input here, since some servers count them separately.
fn all_input(report: &Usage) -> u64 {
    report.input_tokens.max(report.cached_tokens.saturating_add(report.cache_write_tokens))
}

/// Whether so many tokens can be a true report of what has at least `least`.
fn can_be(reported: u64, least: u64) -> bool {
    reported.saturating_mul(LEAST_DIVISOR) >= least
}

fn missing_of(reported: u64, counted: Counted) -> u64 {
    let can_be = match reported {
        0 => counted.likely == 0,
        _ => can_be(reported, counted.least),
    };
    if can_be { 0 } else { counted.likely.saturating_sub(reported) }
}
