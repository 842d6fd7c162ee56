//! Model providers: the trait, the OpenAI-compatible one, the model catalogue, error classes.
//!
//! The one key decision: **a provider is shaped by what must be kept, not by one API.** Opaque reasoning goes
//! back unchanged, usage tells cached from fresh tokens, and an error keeps its status and body. This is the
//! only crate that knows async-openai, and none of its types are public. What is absent: sessions, actors,
//! retries (the run decides about those), and any knowledge of compaction.

mod base_url;
pub mod catalog;
pub mod classify;
pub mod openai;
pub mod retry_after;
pub mod settings;

use std::borrow::Cow;
use std::sync::Arc;

pub use self::base_url::{BaseUrl, BaseUrlError};
pub use self::catalog::{Catalog, ModelInfo};
pub use self::classify::classify;
pub use self::openai::{ApiKey, MaxTokensField, OpenAi, OpenAiOptions, OptionsError, ResendReasoning};
pub use self::settings::{ModelSettings, ReasoningEffort, SettingError, ToolChoice};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use greenroom_kernel::{AssistantMessage, Failure, Message, ToolSpec};

/// One model call.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model's name, as the provider knows it.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation. Every tool call in it has exactly one result, after it and before the next message of
    /// another kind.
    pub messages: Vec<Arc<Message>>,
    /// The tools the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// How the model is to answer.
    pub settings: ModelSettings,
    /// A schema that the answer's text must follow.
    pub output_schema: Option<Arc<OutputSchema>>,
    /// What the call is for.
    pub purpose: Purpose,
    /// The session it belongs to: cache routing, and the key by which scripted models tell callers apart.
    pub session: String,
}

/// A JSON schema for an answer's text.
#[derive(Debug, Clone)]
pub struct OutputSchema {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// The schema.
    pub schema: serde_json::Value,
}

/// What a model call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A step of a run: its usage moves the context size.
    Step,
    /// A summary: it bills, and never moves the context size.
    Summary,
}

/// A model provider.
///
/// Dropping the future or the stream cancels the call and closes its connection.
pub trait Provider: Send + Sync + 'static {
    /// Its name in the model catalogue, such as `openai`.
    fn name(&self) -> &str;

    /// Starts one model call.
    ///
    /// # Errors
    /// What the provider answered instead of a stream, classified. A later failure is an item of the stream.
    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>>;

    /// Whether reasoning of earlier answers is sent back, and so counts as input again.
    fn resends_reasoning(&self) -> bool {
        false
    }

    /// The output limit that a request which names none is sent with, in tokens, if it is sent with any. A run
    /// must know it, since it can lower only a limit that it knows.
    fn output_tokens_max(&self) -> Option<u64> {
        None
    }
}

/// The answer as it comes. Ends with exactly one [`ReplyEvent::Done`] or one error; a stream that ends with
/// neither is malformed.
pub type ReplyStream = BoxStream<'static, Result<ReplyEvent, ProviderError>>;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyEvent {
    /// More text.
    Text(String),
    /// More readable reasoning.
    Reasoning(String),
    /// A tool call begins or goes on. For progress only: the whole call is in `Done`.
    ToolCall {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// The tool's name, where this piece carries it.
        name: Option<String>,
        /// More of the arguments' JSON text.
        arguments: String,
    },
    /// The whole answer.
    Done(Box<AssistantMessage>),
}

/// A failed model call: what it is ([`Failure`]), and what the provider said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct ProviderError {
    /// The class, the message and what was parsed from the body.
    pub failure: Failure,
    /// The body as it came, cut at 16 KiB; empty if there was none.
    pub body: String,
    /// The stream was opened and closed cleanly without a single event. A real server answers so when the
    /// prompt is too long, so it is an overflow if our own estimate is near the window.
    pub empty_stream: bool,
}

impl ProviderError {
    /// An error with what the provider said, or an empty string.
    pub fn new(failure: Failure, body: impl Into<String>) -> Self {
        Self { failure, body: body.into(), empty_stream: false }
    }

    /// Whether this failure says too little to tell, and is a context overflow if our own estimate is near the
    /// window (85 % of it or more): an empty stream, or a 400, 413 or 429 with an empty body.
    pub fn is_overflow_candidate(&self) -> bool {
        self.empty_stream || is_empty_body_overflow_candidate(self.failure.status, &self.body)
    }
}

/// Whether an answer is one of those that a server near its limit gives without a word: 400, 413 or 429 with an
/// empty body. [`ProviderError::is_overflow_candidate`] is the question that a run asks.
pub fn is_empty_body_overflow_candidate(status: Option<u16>, body: &str) -> bool {
    matches!(status, Some(400 | 413 | 429)) && body.trim().is_empty()
}

/// Arguments that are a JSON object go as they are. Anything else is wrapped into one: a server that parses the
/// history would refuse it with a 500, for ever. Every provider sends a call's arguments so.
pub fn sendable_arguments(arguments: &str) -> Cow<'_, str> {
    let trimmed = arguments.trim();
    if trimmed.is_empty() || trimmed == "null" {
        return Cow::Borrowed("{}");
    }
    if trimmed.starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
        return Cow::Borrowed(arguments);
    }
    Cow::Owned(serde_json::json!({ "invalid_arguments": arguments }).to_string())
}
