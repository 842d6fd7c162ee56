//! How the simulated server counts what it is sent, and what it says of that.
//!
//! Invariants: what is counted is what the model reads: the messages as they were sent, less the reasoning that the
//! server's template drops, and the server's own text.

use std::sync::Arc;

use greenroom_kernel::{Message, Usage};

use crate::tokens;

/// How much of the reasoning that it is sent a server puts before the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadsReasoning {
    /// All of it.
    #[default]
    All,
    /// That of the turn in progress: after the newest user message.
    Turn,
    /// None of it.
    Nothing,
}

/// How a server counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counting {
    /// How much of the reasoning that it is sent it reads.
    pub reads_reasoning: ReadsReasoning,
    /// Whether a report says how much of the output was reasoning.
    pub reports_reasoning: bool,
    /// Whether a report's input is without the cached tokens.
    pub counts_cached_apart: bool,
    /// The tokens of a text of its own that it puts before every request.
    pub hidden_tokens: u64,
}

impl Default for Counting {
    fn default() -> Self {
        Self {
            reads_reasoning: ReadsReasoning::All,
            reports_reasoning: true,
            counts_cached_apart: false,
            hidden_tokens: 0,
        }
    }
}

impl Counting {
    /// The tokens of these messages of a request, which end with its newest one.
    pub(crate) fn messages(&self, messages: &[Arc<Message>], sizes: &[MessageTokens]) -> u64 {
        let mut is_of_turn = true;
        let mut total = 0;
        for (message, tokens) in messages.iter().zip(sizes).rev() {
            is_of_turn &= !matches!(**message, Message::User(_));
            let is_read = match self.reads_reasoning {
                ReadsReasoning::All => true,
                ReadsReasoning::Turn => is_of_turn,
                ReadsReasoning::Nothing => false,
            };
            total += tokens.content + if is_read { tokens.reasoning } else { 0 };
        }
        total
    }

    /// What the server reports, of what is true.
    pub(crate) fn report(&self, usage: Usage) -> Usage {
        let apart = if self.counts_cached_apart { usage.cached_tokens } else { 0 };
        Usage {
            input_tokens: usage.input_tokens.saturating_sub(apart),
            reasoning_tokens: if self.reports_reasoning { usage.reasoning_tokens } else { 0 },
            ..usage
        }
    }
}

/// The tokens of one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageTokens {
    content: u64,
    reasoning: u64,
}

impl MessageTokens {
    pub(crate) fn of(message: &Message) -> Self {
        Self { content: tokens::message(message), reasoning: tokens::reasoning(message) }
    }
}
