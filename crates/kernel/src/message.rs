//! What is said in a conversation: the three kinds of message that a model can be sent, and their content.
//!
//! Invariants: no type here is recursive (a recursive type could overflow the stack when decoded), and every
//! `match` over content kinds in this crate is exhaustive, so that a new kind must meet its size, its
//! rendering and its storage.

use serde::{Deserialize, Serialize};

pub use crate::image::{Image, ImageError};

/// One message as a model is sent it.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// What the user, or the program in the user's place, says.
    User(Vec<Block>),
    /// What the model answered.
    Assistant(AssistantMessage),
    /// What a tool call gave back.
    ToolResult(ToolResult),
}

impl Message {
    /// A user message of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(vec![Block::Text(text.into())])
    }

    /// The tool calls in it; empty unless it is an assistant message that calls tools.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let parts: &[Part] = match self {
            Self::Assistant(assistant) => &assistant.content,
            Self::User(_) | Self::ToolResult(_) => &[],
        };
        parts.iter().filter_map(Part::as_tool_call)
    }

    /// The role's name as providers write it: `user`, `assistant` or `tool`.
    pub fn role(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Assistant(_) => "assistant",
            Self::ToolResult(_) => "tool",
        }
    }

    /// The model's answer, if it is one: whole, or what came of one.
    pub fn as_answer(&self) -> Option<&AssistantMessage> {
        match self {
            Self::Assistant(answer) => Some(answer),
            Self::User(_) | Self::ToolResult(_) => None,
        }
    }

    /// All plain text in it, joined by newlines; images, reasoning and calls are left out.
    pub fn text(&self) -> String {
        match self {
            Self::User(blocks) => blocks_text(blocks),
            Self::ToolResult(result) => blocks_text(&result.content),
            Self::Assistant(assistant) => assistant.text(),
        }
    }
}

/// The text blocks of `blocks`, joined by newlines.
pub fn blocks_text(blocks: &[Block]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            Block::Image(_) => None,
        })
        .collect();
    texts.join("\n")
}

/// A piece of a user message or of a tool result.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Block {
    /// Plain text, as it was written.
    Text(String),
    /// A picture, inline.
    Image(Image),
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantMessage {
    /// Its parts, in the order in which they came.
    pub content: Vec<Part>,
    /// The provider's name, as in the model catalogue (`openai`, `anthropic` …).
    pub provider: String,
    /// The model that answered, as it was asked for.
    pub model: String,
    /// What the provider reported; `None` if it reported nothing.
    pub usage: Option<Usage>,
    /// Why the answer ended.
    pub stop: StopReason,
    /// The error's text where `stop` is [`StopReason::Error`].
    pub error: Option<String>,
}

impl AssistantMessage {
    /// The text parts, joined.
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Reasoning(_) | Part::OpaqueReasoning { .. } | Part::ToolCall(_) => None,
            })
            .collect::<Vec<_>>()
            .join("")
    }

    /// Whether it counts as an answer. Of one that is not whole, only a part came.
    pub fn is_whole(&self) -> bool {
        !self.stop.is_partial()
    }

    /// The tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(Part::as_tool_call)
    }

    /// How many characters of readable reasoning it has.
    pub fn reasoning_chars(&self) -> usize {
        let chars = |part: &Part| match part {
            Part::Reasoning(text) => text.chars().count(),
            Part::Text(_) | Part::OpaqueReasoning { .. } | Part::ToolCall(_) => 0,
        };
        self.content.iter().map(chars).sum()
    }

    /// Nothing to read and nothing to do: no text and no call. (Reasoning alone is still empty.)
    pub fn is_empty(&self) -> bool {
        self.content.iter().all(|part| match part {
            Part::Text(text) => text.trim().is_empty(),
            Part::Reasoning(_) | Part::OpaqueReasoning { .. } => true,
            Part::ToolCall(_) => false,
        })
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// Text that is meant for the user.
    Text(String),
    /// Reasoning as readable text.
    Reasoning(String),
    /// A provider's own reasoning block (signed or encrypted), which must go back unchanged.
    OpaqueReasoning {
        /// Which dialect it is in; only a provider that speaks it sends it back.
        dialect: String,
        /// The block as it came, usually JSON text.
        data: String,
    },
    /// A request to run a tool.
    ToolCall(ToolCall),
}

impl Part {
    /// The tool call, if it is one.
    pub fn as_tool_call(&self) -> Option<&ToolCall> {
        match self {
            Self::ToolCall(call) => Some(call),
            Self::Text(_) | Self::Reasoning(_) | Self::OpaqueReasoning { .. } => None,
        }
    }
}

/// A model's request to run a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The call's id, unique within the context.
    pub id: String,
    /// The tool's name, as the model wrote it.
    pub name: String,
    /// The arguments as JSON text. It may be invalid: models truncate and invent.
    pub arguments: String,
}

/// What a tool call gave back.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The id of the call that it answers.
    pub call_id: String,
    /// The name of the tool that was called.
    pub tool_name: String,
    /// The result: text and images.
    pub content: Vec<Block>,
    /// How the call went.
    pub status: ToolStatus,
    /// The files that the tool touched, as it declared them.
    pub touched: Vec<crate::files::Touched>,
}

impl ToolResult {
    /// A result of one text that stands in the place of what the tool would have given: no tool wrote it.
    pub fn synthetic(call: &ToolCall, status: ToolStatus, text: impl Into<String>) -> Self {
        Self {
            call_id: call.id.clone(),
            tool_name: call.name.clone(),
            content: vec![Block::Text(text.into())],
            status,
            touched: Vec::new(),
        }
    }

    /// The result of a call that was cancelled, or whose process died, before it gave one.
    pub fn interrupted(call: &ToolCall) -> Self {
        let text = "The call was interrupted before it gave a result. Whether it took effect is not known.";
        Self::synthetic(call, ToolStatus::Interrupted, text)
    }

    /// The result of a call that was not run; `reason` is a clause without a full stop.
    pub fn not_run(call: &ToolCall, reason: &str) -> Self {
        Self::synthetic(call, ToolStatus::Error, format!("The call was not run: {reason}."))
    }
}

/// How a tool call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// It did what was asked.
    Ok,
    /// It failed, and says how.
    Error,
    /// It was cancelled, or the process died while it ran: whether it took effect is not known.
    Interrupted,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The answer was complete.
    Stop,
    /// The output limit or the window was reached.
    Length,
    /// It wants tools to be run.
    ToolCalls,
    /// The provider's content filter cut it off.
    ContentFilter,
    /// The user or the program interrupted it.
    Aborted,
    /// The provider failed in the middle.
    Error,
    /// What this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl StopReason {
    /// Whether only a part of the answer came, since the call was interrupted or failed: it answers nothing, and its
    /// report of tokens is not used.
    pub fn is_partial(self) -> bool {
        match self {
            Self::Aborted | Self::Error => true,
            Self::Stop | Self::Length | Self::ToolCalls | Self::ContentFilter | Self::Unknown => false,
        }
    }

    /// What to say of an answer that counts although a limit cut it off; `None` where it is whole, or counts as none.
    pub fn cut_off(self) -> Option<&'static str> {
        match self {
            Self::Length => Some(
                "the answer was cut off: it reached the output limit, or the end of the model's window; what came is kept",
            ),
            Self::ContentFilter => {
                Some("the answer was cut off by the provider's content filter; what came is kept")
            }
            Self::Stop | Self::ToolCalls | Self::Aborted | Self::Error | Self::Unknown => None,
        }
    }
}

/// Token counts of one model call, as the provider reported them, or of several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Usage {
    /// All input tokens, cached ones included.
    pub input_tokens: u64,
    /// The part of the input that was read from the provider's cache.
    pub cached_tokens: u64,
    /// The part of the input that was written to the provider's cache.
    pub cache_write_tokens: u64,
    /// All output tokens, reasoning included.
    pub output_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
    /// The part of input and output that is our own estimate, since the provider reported nothing, or something that
    /// cannot be. Where it is not 0, what the calls cost is partly an estimate too.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub estimated_tokens: u64,
}

/// Whether a count says that there is nothing, so that JSON may leave it out.
pub fn is_no_count(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Input and output together: the size of the context after this call.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The counts since an earlier state of the same sum.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(earlier.input_tokens),
            cached_tokens: self.cached_tokens.saturating_sub(earlier.cached_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_sub(earlier.cache_write_tokens),
            output_tokens: self.output_tokens.saturating_sub(earlier.output_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_sub(earlier.reasoning_tokens),
            estimated_tokens: self.estimated_tokens.saturating_sub(earlier.estimated_tokens),
        }
    }

    /// Adds another call's counts, for bills.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.cache_write_tokens = self.cache_write_tokens.saturating_add(other.cache_write_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(other.reasoning_tokens);
        self.estimated_tokens = self.estimated_tokens.saturating_add(other.estimated_tokens);
    }
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON schema of its arguments, an object schema.
    pub parameters: serde_json::Value,
}
