//! How the simulated server counts the tokens of its input, and what it reports.
//!
//! Invariants: the count is that of what the model reads: the messages as sent, without reasoning that the
//! server's template drops, plus the server's own text.

use std::sync::Arc;

use greenroom_kernel::{Message, Usage};

use crate::tokens;

/// How much of the received reasoning a server passes to the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadsReasoning {
    /// All of it.
    #[default]
    All,
    /// That of the current turn: after the newest user message.
    Turn,
    /// It counts nothing.
    Nothing,
}

/// How a server counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counting {
    /// How much of the received reasoning it reads.
    pub reads_reasoning: ReadsReasoning,
    /// Whether a report contains the part of the output that was reasoning.
    pub reports_reasoning: bool,
    /// Whether a report's input excludes the cached tokens.
    pub counts_cached_apart: bool,
    /// The tokens of the server's own text before every request.
    pub hidden_tokens: u64,
    /// How many tokens it counts for a hundred by [`crate::tokens`].
    pub percent: u64,
}

impl Default for Counting {
    fn default() -> Self {
        Self {
            reads_reasoning: ReadsReasoning::All,
            reports_reasoning: true,
            counts_cached_apart: false,
            hidden_tokens: 0,
            percent: 100,
        }
    }
}

impl Counting {
    /// Returns the tokens of these messages of a request, which end with its newest one.
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

    /// Converts a number of tokens to that of the server's own tokens.
    pub(crate) fn scaled(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.percent) / 100
    }

    /// Converts the true usage to what the server reports.
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
