//! Counts the tokens of a text for the simulated model.
//!
//! Deliberately not the runtime's estimator: a real provider counts with a tokenizer that the runtime does
//! not have, and the runtime's learned ratio has to learn the difference. Invariants: the count depends on
//! the text alone, and a text's count is at most the sum of its parts' counts.
//!
//! One token is: up to 5 ASCII letters of a word, up to 3 digits, up to 2 punctuation marks, up to 16
//! characters of white space, up to 2 letters of another alphabet, or one CJK character. A symbol or emoji is
//! two tokens. A single space between two other runs is free.

use greenroom_kernel::{Block, Message, Part, ToolSpec};

/// Tokens around every message.
pub(crate) const MESSAGE_OVERHEAD: u64 = 4;
/// Tokens around every tool call.
pub(crate) const CALL_OVERHEAD: u64 = 6;
/// Tokens around every tool's description.
pub(crate) const TOOL_OVERHEAD: u64 = 8;
/// Tokens of one image, whatever its size.
pub(crate) const IMAGE: u64 = 1_024;
/// Tokens that begin the answer; part of every request.
pub(crate) const REPLY_PRIMER: u64 = 3;

/// Returns the number of tokens in `text`.
pub fn count(text: &str) -> u64 {
    let mut total = 0;
    pieces(text, |_, tokens| {
        total += tokens;
        true
    });
    total
}

/// Returns the longest beginning of `text` that has at most `tokens_max` tokens.
pub fn prefix(text: &str, tokens_max: u64) -> &str {
    let mut total = 0;
    let mut end = 0;
    pieces(text, |piece_end, tokens| {
        total += tokens;
        if total <= tokens_max {
            end = piece_end;
        }
        total <= tokens_max
    });
    &text[..end]
}

/// Returns the tokens of one message of a request, without the reasoning that is sent with it.
pub fn message(message: &Message) -> u64 {
    let content: u64 = match message {
        Message::User(content) => blocks(content),
        Message::ToolResult(result) => blocks(&result.content),
        Message::Assistant(assistant) => assistant
            .content
            .iter()
            .map(|part| match part {
                Part::Text(text) => count(text),
                Part::ToolCall(call) => CALL_OVERHEAD + count(&call.name) + count(&call.arguments),
                Part::Reasoning(_) | Part::OpaqueReasoning { .. } | _ => 0,
            })
            .sum(),
    };
    MESSAGE_OVERHEAD + content
}

/// Returns the tokens of the reasoning that is sent with a message.
pub fn reasoning(message: &Message) -> u64 {
    let Message::Assistant(answer) = message else { return 0 };
    let tokens = |part: &Part| match part {
        Part::Reasoning(text) | Part::OpaqueReasoning { data: text, .. } => count(text),
        Part::Text(_) | Part::ToolCall(_) | _ => 0,
    };
    answer.content.iter().map(tokens).sum()
}

/// Returns the tokens of the part of a request before the conversation: system prompt and tools.
pub fn head(system: Option<&str>, tools: &[ToolSpec]) -> u64 {
    let system = system.map_or(0, |text| MESSAGE_OVERHEAD + count(text));
    let tools: u64 = tools
        .iter()
        .map(|tool| {
            TOOL_OVERHEAD + count(&tool.name) + count(&tool.description) + count(&tool.parameters.to_string())
        })
        .sum();
    REPLY_PRIMER + system + tools
}

fn blocks(blocks: &[Block]) -> u64 {
    blocks
        .iter()
        .map(|block| match block {
            Block::Text(text) => count(text),
            Block::Image(_) => IMAGE,
            Block::Native(_) | _ => 0,
        })
        .sum()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Word,
    Digit,
    Punctuation,
    Space,
    Letter,
    Cjk,
    Symbol,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            'a'..='z' | 'A'..='Z' => Self::Word,
            '0'..='9' => Self::Digit,
            ' ' | '\t' | '\n' | '\r' => Self::Space,
            _ if c.is_ascii_punctuation() => Self::Punctuation,
            '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' => Self::Cjk,
            '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}' => Self::Cjk,
            _ if c.is_whitespace() => Self::Space,
            _ if c.is_alphanumeric() => Self::Letter,
            _ => Self::Symbol,
        }
    }

    /// Returns the most characters in one piece.
    fn characters_max(self) -> u32 {
        match self {
            Self::Word => 5,
            Self::Digit => 3,
            Self::Punctuation | Self::Letter => 2,
            Self::Space => 16,
            Self::Cjk | Self::Symbol => 1,
        }
    }
}

/// Splits `text` into pieces and calls `each` with every piece's end (in bytes) and its tokens, until it
/// returns `false`.
fn pieces(text: &str, mut each: impl FnMut(usize, u64) -> bool) {
    let mut class = Class::Space;
    let mut characters = 0;
    // Only a single blank is free, so a piece of white space records whether it is one.
    let mut is_blank = false;
    let cost = |class: Class, characters: u32, is_blank: bool| match class {
        Class::Space => u64::from(characters > 1 || !is_blank),
        Class::Symbol => 2,
        Class::Word | Class::Digit | Class::Punctuation | Class::Letter | Class::Cjk => 1,
    };
    for (at, c) in text.char_indices() {
        let next = Class::of(c);
        if characters > 0 && (next != class || characters == class.characters_max()) {
            if !each(at, cost(class, characters, is_blank)) {
                return;
            }
            characters = 0;
        }
        if characters == 0 {
            class = next;
            is_blank = c == ' ';
        }
        characters += 1;
    }
    if characters > 0 {
        each(text.len(), cost(class, characters, is_blank));
    }
}

#[cfg(test)]
mod tests;
