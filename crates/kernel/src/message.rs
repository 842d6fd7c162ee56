//! The messages of a conversation: the three kinds that can be sent to a model, and their content.
//!
//! Invariants: no type here is recursive (a recursive type could overflow the stack when decoded), and every
//! `match` over content kinds in this crate is exhaustive, so that a new kind must define its size, its
//! rendering and its storage.

use serde::{Deserialize, Serialize};

pub use crate::image::{Image, ImageError};

/// One message as sent to a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A message from the user, or from the program on the user's behalf.
    User(Vec<Block>),
    /// The model's answer.
    Assistant(AssistantMessage),
    /// The result of a tool call.
    ToolResult(ToolResult),
}

impl Message {
    /// Creates a user message with one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(vec![Block::Text(text.into())])
    }

    /// Returns the number of its images.
    pub fn images(&self) -> u64 {
        match self {
            Self::User(blocks) => images_in(blocks),
            Self::ToolResult(result) => images_in(&result.content),
            Self::Assistant(_) => 0,
        }
    }

    /// Whether it has blocks in a provider's own form.
    pub fn has_native(&self) -> bool {
        match self {
            Self::User(blocks) => blocks.iter().any(|block| matches!(block, Block::Native(_))),
            Self::Assistant(_) | Self::ToolResult(_) => false,
        }
    }

    /// Returns the tool calls in it; empty unless it is an assistant message that calls tools.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let parts: &[Part] = match self {
            Self::Assistant(assistant) => &assistant.content,
            Self::User(_) | Self::ToolResult(_) => &[],
        };
        parts.iter().filter_map(Part::as_tool_call)
    }

    /// Returns the role's name as providers write it: `user`, `assistant` or `tool`.
    pub fn role(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Assistant(_) => "assistant",
            Self::ToolResult(_) => "tool",
        }
    }

    /// Returns the model's answer, whole or partial, if it is one.
    pub fn as_answer(&self) -> Option<&AssistantMessage> {
        match self {
            Self::Assistant(answer) => Some(answer),
            Self::User(_) | Self::ToolResult(_) => None,
        }
    }

    /// Returns its plain text, and the calls of an answer with their arguments, one a line.
    pub fn said(&self) -> String {
        let mut text = self.text();
        for call in self.tool_calls() {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("{}({})", call.name, call.arguments));
        }
        text
    }

    /// Returns all plain text in it, joined by newlines; images, reasoning and calls are left out.
    pub fn text(&self) -> String {
        match self {
            Self::User(blocks) => blocks_text(blocks),
            Self::ToolResult(result) => blocks_text(&result.content),
            Self::Assistant(assistant) => assistant.text(),
        }
    }
}

/// Returns the number of images in a content.
pub(crate) fn images_in(blocks: &[Block]) -> u64 {
    blocks.iter().filter(|block| matches!(block, Block::Image(_))).count() as u64
}

/// Returns the text blocks of `blocks`, joined by newlines.
pub fn blocks_text(blocks: &[Block]) -> String {
    let mut texts = blocks.iter().filter_map(|block| match block {
        Block::Text(text) => Some(text.as_str()),
        Block::Image(_) | Block::Native(_) => None,
    });
    let first = texts.next().unwrap_or_default().to_owned();
    texts.fold(first, |text, next| text + "\n" + next)
}

/// A piece of a user message or of a tool result.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Block {
    /// Plain text, unchanged.
    Text(String),
    /// An inline image.
    Image(Image),
    /// A provider's own form of the text directly before it. A request in its dialect carries it in place of that text,
    /// and every other request carries the text.
    Native(Native),
}

/// Content in the form of one provider's API, kept exactly as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Native {
    /// The provider that made it, as in the model catalogue.
    pub provider: String,
    /// The name of the API's wire format.
    pub dialect: String,
    /// The blocks or items, each as JSON, in their order.
    pub blocks: Vec<String>,
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantMessage {
    /// Its parts, in the order of arrival.
    pub content: Vec<Part>,
    /// The provider's name, as in the model catalogue (`openai`, `anthropic` …).
    pub provider: String,
    /// The model's name in the request.
    pub model: String,
    /// The provider's usage report, if any.
    pub usage: Option<Usage>,
    /// Why the answer ended.
    pub stop: StopReason,
    /// The provider's own name for why the answer ended; `None` if it gave none, or none was recorded.
    pub stop_raw: Option<String>,
    /// The error's text if `stop` is [`StopReason::Error`].
    pub error: Option<String>,
}

impl AssistantMessage {
    /// Creates an answer without a report of its usage, and without an error.
    pub fn new(
        content: Vec<Part>,
        provider: impl Into<String>,
        model: impl Into<String>,
        stop: StopReason,
    ) -> Self {
        let (provider, model) = (provider.into(), model.into());
        Self { content, provider, model, usage: None, stop, stop_raw: None, error: None }
    }

    /// Returns the text parts, joined.
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter_map(|part| match part {
                Part::Text(text) => Some(text.as_str()),
                Part::Reasoning(_)
                | Part::OpaqueReasoning { .. }
                | Part::OpaqueBlock { .. }
                | Part::ToolCall(_) => None,
            })
            .collect()
    }

    /// Whether it is a whole answer, as opposed to a partial one.
    pub fn is_whole(&self) -> bool {
        !self.stop.is_partial()
    }

    /// Returns the tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.content.iter().filter_map(Part::as_tool_call)
    }

    /// Returns how many characters of readable reasoning it has.
    pub fn reasoning_chars(&self) -> usize {
        let chars = |part: &Part| match part {
            Part::Reasoning(text) => text.chars().count(),
            Part::Text(_) | Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } | Part::ToolCall(_) => 0,
        };
        self.content.iter().map(chars).sum()
    }

    /// Whether it has calls, and nothing else that would make it an answer: without them it is [empty](Self::is_empty).
    pub fn only_calls(&self) -> bool {
        let is_call = |part: &&Part| part.as_tool_call().is_some();
        self.content.iter().any(|part| is_call(&part))
            && self.content.iter().filter(|part| !is_call(part)).all(Part::is_empty)
    }

    /// Whether it has neither text, nor calls, nor opaque content. (Reasoning alone is still empty.)
    pub fn is_empty(&self) -> bool {
        self.content.iter().all(Part::is_empty)
    }
}

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// Text for the user.
    Text(String),
    /// Reasoning as readable text.
    Reasoning(String),
    /// Data that a provider wants back unchanged, but that is not content: a signed or encrypted
    /// reasoning block, or the signature, id or citations of the readable part directly before it.
    OpaqueReasoning {
        /// The dialect; only a provider that uses it sends the data back.
        dialect: String,
        /// The data as received, usually JSON text.
        data: String,
    },
    /// Content without a readable form, which must be sent back unchanged: the call or the result of a tool that
    /// the provider runs itself, or a block of a kind that this version does not know.
    OpaqueBlock {
        /// The dialect; only a provider that uses it sends the block back.
        dialect: String,
        /// The block as received, usually JSON text.
        data: String,
    },
    /// A request to run a tool.
    ToolCall(ToolCall),
}

impl Part {
    /// Whether it is no answer by itself.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Reasoning(_) | Self::OpaqueReasoning { .. } => true,
            Self::ToolCall(_) | Self::OpaqueBlock { .. } => false,
        }
    }

    /// Returns the tool call, if it is one.
    pub fn as_tool_call(&self) -> Option<&ToolCall> {
        match self {
            Self::ToolCall(call) => Some(call),
            Self::Text(_) | Self::Reasoning(_) | Self::OpaqueReasoning { .. } | Self::OpaqueBlock { .. } => {
                None
            }
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

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The id of the call that it answers.
    pub call_id: String,
    /// The name of the called tool.
    pub tool_name: String,
    /// The result: text and images.
    pub content: Vec<Block>,
    /// The status of the call.
    pub status: ToolStatus,
    /// The files that the tool touched, as declared.
    pub touched: Vec<crate::files::Touched>,
}

impl ToolResult {
    /// Creates a result of one text that replaces the tool's own: no tool wrote it.
    pub fn synthetic(call: &ToolCall, status: ToolStatus, text: impl Into<String>) -> Self {
        Self {
            call_id: call.id.clone(),
            tool_name: call.name.clone(),
            content: vec![Block::Text(text.into())],
            status,
            touched: Vec::new(),
        }
    }

    /// Creates the result of a call that was cancelled, or whose process died, before it returned one.
    pub fn interrupted(call: &ToolCall) -> Self {
        let text = "The call was interrupted before it gave a result. Whether it took effect is not known.";
        Self::synthetic(call, ToolStatus::Interrupted, text)
    }

    /// Creates the result of a call that was not run; `reason` is a clause without a full stop.
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
    /// The provider paused a long turn of its own tools. The answer continues once it is sent back as it is.
    Paused,
    /// A value that this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl StopReason {
    /// Whether the answer is only partial, since the call was interrupted or failed: it does not count as an
    /// answer, and its usage report is not used.
    pub fn is_partial(self) -> bool {
        match self {
            Self::Aborted | Self::Error => true,
            Self::Stop
            | Self::Length
            | Self::ToolCalls
            | Self::ContentFilter
            | Self::Paused
            | Self::Unknown => false,
        }
    }

    /// Returns the description of an answer that counts although a limit truncated it; `None` if it is whole,
    /// or does not count.
    pub fn cut_off(self) -> Option<&'static str> {
        match self {
            Self::Length => Some(
                "the answer was cut off: it reached the output limit, or the end of the model's window; what came is kept",
            ),
            Self::ContentFilter => {
                Some("the answer was cut off by the provider's content filter; what came is kept")
            }
            Self::Stop | Self::ToolCalls | Self::Aborted | Self::Error | Self::Paused | Self::Unknown => None,
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
    /// The part of `cache_write_tokens` that is kept for an hour, at a higher price.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub cache_write_hour_tokens: u64,
    /// All output tokens, reasoning included.
    pub output_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
    /// The part of input and output that is our own estimate, since the provider reported nothing, or something that
    /// cannot be. Where it is not 0, what the calls cost is partly an estimate too.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub estimated_tokens: u64,
}

/// Whether a count is zero, so that JSON may omit it.
pub fn is_no_count(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Returns input and output together: the size of the context after this call.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Returns the difference to an earlier state of the same sum.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, u64::saturating_sub)
    }

    /// Returns these counts with cached tokens as a part of the input: some servers count them apart, which a report with
    /// more cached tokens than input reveals.
    #[must_use]
    pub fn with_cache_as_input(self) -> Self {
        let apart = self.cached_tokens.saturating_add(self.cache_write_tokens);
        let is_apart = self.cached_tokens > self.input_tokens;
        let input_tokens = self.input_tokens.saturating_add(if is_apart { apart } else { 0 });
        Self { input_tokens, ..self }
    }

    /// Adds another call's counts, for bills.
    pub fn add(&mut self, other: &Self) {
        *self = self.zip(other, u64::saturating_add);
    }

    fn zip(&self, other: &Self, each: fn(u64, u64) -> u64) -> Self {
        Self {
            input_tokens: each(self.input_tokens, other.input_tokens),
            cached_tokens: each(self.cached_tokens, other.cached_tokens),
            cache_write_tokens: each(self.cache_write_tokens, other.cache_write_tokens),
            cache_write_hour_tokens: each(self.cache_write_hour_tokens, other.cache_write_hour_tokens),
            output_tokens: each(self.output_tokens, other.output_tokens),
            reasoning_tokens: each(self.reasoning_tokens, other.reasoning_tokens),
            estimated_tokens: each(self.estimated_tokens, other.estimated_tokens),
        }
    }
}

/// A tool's specification for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// Its description for the model.
    pub description: String,
    /// The JSON schema of its arguments, an object schema.
    pub parameters: serde_json::Value,
}
