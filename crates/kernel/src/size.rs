//! Estimates the size of a message, before any provider reports it.
//!
//! Two estimators: [`Estimator::Classes`], the default, counted once per entry and stored with it; and
//! [`Estimator::Char4`], the field's common heuristic, for comparison. Every content kind counts: text,
//! calls, nested result blocks, images. Reasoning is counted separately, since a request may or may not carry
//! it: [`crate::reasoning`] has that rule. Only `char4` counts it with its message.
//!
//! Invariants: the same message has the same size, and a larger text never counts less than its prefix by
//! more than one token's worth of rounding.

use serde::{Deserialize, Serialize};

use crate::entry::{ContextPart, Custom, Entry, EntryId, EntryKind, Shell};
use crate::message::{AssistantMessage, Block, Message, Part, ToolSpec};
use crate::render::{branch_summary_text, shell_text, summary_text};

pub mod classes;
pub mod json;

/// The size of an image, in tokens, with either estimator.
pub(crate) const IMAGE_TOKENS: u64 = 1_200;
/// The size of a message's frame (role, separators) with [`Estimator::Classes`], in tokens.
const MESSAGE_TOKENS: u64 = 4;
/// The size of a tool call's frame (id, type) with [`Estimator::Classes`], besides its name and arguments, in
/// tokens.
const CALL_TOKENS: u64 = 8;
/// The number of characters that an image counts as with [`Estimator::Char4`].
const IMAGE_CHARS: u64 = IMAGE_TOKENS * 4;

/// How tokens are estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// One walk over the text by character class.
    #[default]
    Classes,
    /// UTF-16 length / 4, rounded up per message.
    Char4,
}

/// Returns the estimated tokens of a standalone text, such as a system prompt.
pub fn text_tokens(text: &str, estimator: Estimator) -> u64 {
    match estimator {
        Estimator::Classes => classes::tokens(text),
        Estimator::Char4 => utf16_len(text).div_ceil(4),
    }
}

/// Returns the estimated tokens of the tools of a request.
pub fn tools_tokens(specs: &[ToolSpec]) -> u64 {
    let of = |text: &str| text_tokens(text, Estimator::Classes);
    specs.iter().map(|spec| of(&spec.name) + of(&spec.description) + of(&spec.parameters.to_string())).sum()
}

/// Returns the estimated tokens of a message, with [`Estimator::Classes`] without its reasoning.
pub fn message_tokens(message: &Message, estimator: Estimator) -> u64 {
    let mut count = Count::new(estimator);
    match message {
        Message::User(blocks) => count.blocks(blocks),
        Message::ToolResult(result) => count.blocks(&result.content),
        Message::Assistant(answer) => return answer_tokens(answer, estimator),
    }
    count.total()
}

/// As [`message_tokens`], for an answer.
pub(crate) fn answer_tokens(answer: &AssistantMessage, estimator: Estimator) -> u64 {
    let mut count = Count::new(estimator);
    for part in &answer.content {
        match part {
            Part::Text(text) => count.text(text),
            Part::Reasoning(text) | Part::OpaqueReasoning { data: text, .. } => count.reasoning(text),
            Part::OpaqueBlock { data, .. } => count.extra(opaque_tokens(data)),
            Part::ToolCall(call) => {
                count.text(&call.name);
                count.json(&call.arguments);
                count.extra(CALL_TOKENS);
            }
        }
    }
    count.total()
}

/// Returns a bound of a message's estimated tokens without its images, from the lengths of its texts alone: twice their
/// bytes. No text has more tokens.
pub(crate) fn text_tokens_max(message: &Message) -> u64 {
    let of_blocks = |blocks: &[Block]| -> u64 {
        let of_block = |block: &Block| match block {
            Block::Text(text) => bytes_max(text),
            Block::Image(_) | Block::Native(_) => 0,
        };
        blocks.iter().map(of_block).sum()
    };
    match message {
        Message::User(blocks) => MESSAGE_TOKENS + of_blocks(blocks),
        Message::ToolResult(result) => MESSAGE_TOKENS + of_blocks(&result.content),
        Message::Assistant(answer) => answer_tokens_max(answer),
    }
}

/// As [`text_tokens_max`], for an answer.
pub(crate) fn answer_tokens_max(answer: &AssistantMessage) -> u64 {
    let of_part = |part: &Part| match part {
        Part::Text(text) => bytes_max(text),
        Part::Reasoning(_) | Part::OpaqueReasoning { .. } => 0,
        Part::OpaqueBlock { data, .. } => opaque_tokens(data),
        Part::ToolCall(call) => bytes_max(&call.name) + bytes_max(&call.arguments) + CALL_TOKENS,
    };
    MESSAGE_TOKENS + answer.content.iter().map(of_part).sum::<u64>()
}

/// Returns a bound of a text's estimated tokens, from its length alone.
pub(crate) fn bytes_max(text: &str) -> u64 {
    text.len() as u64 * 2
}

/// Returns the estimated tokens of an answer's readable reasoning, if a request carries it.
pub(crate) fn reasoning_tokens(answer: &AssistantMessage) -> u64 {
    let tokens = |part: &Part| match part {
        Part::Reasoning(text) => classes::tokens(text),
        Part::Text(_) | Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } | Part::ToolCall(_) => 0,
    };
    answer.content.iter().map(tokens).sum()
}

/// Returns the estimated tokens of opaque data. A signed or encrypted block is base64; its
/// content is about a quarter of it.
pub fn opaque_tokens(data: &str) -> u64 {
    (data.len() as u64).div_ceil(4)
}

/// Returns the estimated tokens of an entry's readable reasoning, as stored with it.
pub fn entry_reasoning_tokens(kind: &EntryKind) -> u64 {
    kind.as_answer().map_or(0, reasoning_tokens)
}

/// Returns the estimated tokens that an entry adds to the context when it is on the path: a message's size, a
/// summary's with its leading sentence, and 0 for entries that are never sent.
pub fn entry_tokens(kind: &EntryKind, estimator: Estimator) -> u64 {
    match kind.context_part() {
        ContextPart::Message(message) => message_tokens(message, estimator),
        ContextPart::Shell(shell) => shell_tokens(shell, estimator),
        ContextPart::Custom(Custom { content, .. }) => {
            let mut count = Count::new(estimator);
            count.blocks(content);
            count.total()
        }
        ContextPart::BranchSummary(summary) => match estimator {
            Estimator::Classes => MESSAGE_TOKENS + classes::tokens(&branch_summary_text(summary)),
            Estimator::Char4 => text_tokens(summary, estimator),
        },
        ContextPart::Compaction(compaction) => match estimator {
            Estimator::Classes => MESSAGE_TOKENS + classes::tokens(&summary_text(&compaction.summary)),
            Estimator::Char4 => text_tokens(&compaction.summary, estimator),
        },
        ContextPart::Mark | ContextPart::Beside => 0,
    }
}

impl Entry {
    /// Creates an entry with its stored sizes.
    pub fn recorded(id: EntryId, parent: Option<EntryId>, at_ms: u64, kind: EntryKind) -> Self {
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let reasoning_tokens = entry_reasoning_tokens(&kind);
        Self { id, parent, at_ms, tokens, reasoning_tokens, origin: None, kind }
    }
}

/// Returns an entry's size with `estimator`: the stored one if it was counted with it.
pub(crate) fn stored_tokens(entry: &Entry, estimator: Estimator) -> u64 {
    match estimator {
        Estimator::Classes => entry.tokens,
        Estimator::Char4 => entry_tokens(&entry.kind, estimator),
    }
}

fn shell_tokens(shell: &Shell, estimator: Estimator) -> u64 {
    match estimator {
        // The comparison counts the bare command and output, whether or not they are sent.
        Estimator::Char4 => (utf16_len(&shell.command) + utf16_len(&shell.output)).div_ceil(4),
        Estimator::Classes if shell.excluded => 0,
        Estimator::Classes => MESSAGE_TOKENS + classes::tokens(&shell_text(shell)),
    }
}

fn utf16_len(text: &str) -> u64 {
    text.chars().map(|c| c.len_utf16() as u64).sum()
}

/// A running count: characters for `char4` (rounded once, at the end), tokens for `classes`.
struct Count {
    estimator: Estimator,
    units: u64,
}

impl Count {
    fn new(estimator: Estimator) -> Self {
        let units = match estimator {
            Estimator::Classes => MESSAGE_TOKENS,
            Estimator::Char4 => 0,
        };
        Self { estimator, units }
    }

    fn text(&mut self, text: &str) {
        self.units += match self.estimator {
            Estimator::Classes => classes::tokens(text),
            Estimator::Char4 => utf16_len(text),
        };
    }

    /// Counts JSON in its compact form, whatever white space the model wrote. Invalid JSON is counted
    /// unchanged.
    fn json(&mut self, json: &str) {
        match self.estimator {
            Estimator::Classes => self.text(json),
            Estimator::Char4 => match serde_json::from_str::<serde_json::Value>(json) {
                Ok(value) => self.text(&json::stringify(&value)),
                Err(_) => self.text(json),
            },
        }
    }

    /// Counts reasoning, readable or not.
    fn reasoning(&mut self, text: &str) {
        match self.estimator {
            Estimator::Classes => {}
            Estimator::Char4 => self.text(text),
        }
    }

    fn blocks(&mut self, blocks: &[Block]) {
        for block in blocks {
            match block {
                Block::Text(text) => self.text(text),
                // The text before it is counted.
                Block::Native(_) => {}
                Block::Image(_) => {
                    self.units += match self.estimator {
                        Estimator::Classes => IMAGE_TOKENS,
                        Estimator::Char4 => IMAGE_CHARS,
                    };
                }
            }
        }
    }

    fn extra(&mut self, tokens: u64) {
        if self.estimator == Estimator::Classes {
            self.units += tokens;
        }
    }

    fn total(&self) -> u64 {
        match self.estimator {
            Estimator::Classes => self.units,
            Estimator::Char4 => self.units.div_ceil(4),
        }
    }
}
