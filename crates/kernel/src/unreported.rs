//! What a model call took of which the server does not say it, or says what cannot be: our own count stands in, so that
//! limits in money hold.
//!
//! Invariants: this is the one rule by which a report is replaced on a bill. It looks at money only: by what report the
//! context is measured, [`crate::usage`] decides, which believes far less. A report is replaced only where no way of
//! counting makes it true, so a true report is never added to; what is added is marked as estimated.

use std::sync::Arc;

use crate::message::{AssistantMessage, Block, Message, Part, ToolSpec, Usage};
use crate::reasoning::ResentReasoning;
use crate::size::{
    Estimator, IMAGE_TOKENS, message_tokens, opaque_tokens, reasoning_tokens, text_tokens, tools_tokens,
};
use crate::usage::Ratio;

#[cfg(test)]
mod tests;

/// A report of less than the least that we count, divided by this, cannot be true.
///
/// The least has no tools, no images and no reasoning. Tokenizers differ from our count of a text by a factor of about
/// two, and never by ten.
const LEAST_DIVISOR: u64 = 10;

/// A request, as it was sent.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// The system prompt.
    pub system: &'a str,
    /// The tools that the model may call.
    pub tools: &'a [ToolSpec],
    /// The conversation.
    pub messages: &'a [Arc<Message>],
    /// Which reasoning of earlier answers goes with it.
    pub resent: &'a ResentReasoning,
    /// How many of the server's tokens one of ours is.
    pub ratio: Ratio,
}

/// Our own count of one side of a call, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// What it is likely to have been.
    pub likely: u64,
    /// What it was at the very least, by our own count: the texts alone.
    pub least: u64,
}

impl Sent<'_> {
    /// Our own count of it.
    pub fn count(&self) -> Counted {
        let mut counted = Counted::default();
        let system = text_tokens(self.system, Estimator::Classes);
        let tools = tools_tokens(self.tools);
        for message in self.messages {
            let tokens = message_tokens(message, Estimator::Classes);
            counted.likely = counted.likely.saturating_add(tokens).saturating_add(self.reasoning(message));
            counted.least += tokens.saturating_sub(images(message).saturating_mul(IMAGE_TOKENS));
        }
        let likely = counted.likely.saturating_add(system).saturating_add(tools);
        Counted { likely: self.ratio.apply(likely), least: counted.least.saturating_add(system) }
    }

    /// The reasoning that goes with a message.
    fn reasoning(&self, message: &Message) -> u64 {
        let Message::Assistant(answer) = message else { return 0 };
        let carried = answer.content.iter().filter(|part| self.resent.carries(answer, part));
        carried
            .map(|part| match part {
                Part::Reasoning(text) => text_tokens(text, Estimator::Classes),
                Part::OpaqueReasoning { data, .. } => opaque_tokens(data),
                Part::Text(_) | Part::ToolCall(_) => 0,
            })
            .fold(0, u64::saturating_add)
    }
}

/// Our own count of an answer.
pub fn count_answer(answer: &AssistantMessage) -> Counted {
    if answer.content.is_empty() {
        return Counted::default();
    }
    let message = Message::Assistant(answer.clone());
    let said = if answer.is_empty() { 0 } else { message_tokens(&message, Estimator::Classes) };
    Counted { likely: said.saturating_add(reasoning_tokens(&message)), least: said }
}

/// Our own count of what was streamed of an answer.
pub fn count_streamed(text: &str) -> Counted {
    let tokens = if text.is_empty() { 0 } else { text_tokens(text, Estimator::Classes) };
    Counted { likely: tokens, least: tokens }
}

/// What a call took besides what its report says: nothing, where that can be true.
///
/// Input and output are looked at by themselves. Cached tokens count as input here, since some servers count them apart.
pub fn missing(report: Option<&Usage>, input: Counted, output: Counted) -> Usage {
    let report = report.copied().unwrap_or_default();
    let all_input = report.input_tokens.max(report.cached_tokens.saturating_add(report.cache_write_tokens));
    let input_tokens = missing_of(all_input, input);
    let output_tokens = missing_of(report.output_tokens, output);
    Usage {
        input_tokens,
        output_tokens,
        estimated_tokens: input_tokens.saturating_add(output_tokens),
        ..Usage::default()
    }
}

fn missing_of(reported: u64, counted: Counted) -> u64 {
    let can_be = match reported {
        0 => counted.likely == 0,
        _ => reported.saturating_mul(LEAST_DIVISOR) >= counted.least,
    };
    if can_be { 0 } else { counted.likely.saturating_sub(reported) }
}

fn images(message: &Message) -> u64 {
    let blocks: &[Block] = match message {
        Message::User(blocks) => blocks,
        Message::ToolResult(result) => &result.content,
        Message::Assistant(_) => &[],
    };
    blocks.iter().filter(|block| matches!(block, Block::Image(_))).count() as u64
}
