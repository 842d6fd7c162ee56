//! Model providers: the trait, the provider for servers that are reached by HTTP, the model catalogue and the error
//! classifier.
//!
//! The one key decision: **a provider is shaped by what must be kept, not by one API.** What a provider wants back
//! exactly as it sent it is kept beside the readable text, usage distinguishes cached from fresh tokens, and an error
//! keeps its status and body.
//!
//! Invariants: this is the only crate that knows async-openai, and none of its types are public; a call is one HTTP
//! request, because the run decides about retries; and nothing here knows of sessions, actors or compaction.
//!
//! `settings` and `output_schema` belong to a request, `base_url` to a server; `catalog`, `served` and `price` describe models.
//! `classify` and `retry_after` read errors, and `call_ids` makes the ids of an answer's calls unique.
//!
//! [`transport`] reaches servers, and has a `dialect` for each API ([`Api`]): an encoder of requests and a decoder of
//! answers. A provider of your own, with a transport of its own, can use [`classify()`], [`retry_after`] and
//! [`catalog`]. Without the feature `http`, which is on by default, there is no HTTP client in the crate.

#[cfg(feature = "http")]
mod base_url;
mod call_ids;
pub mod catalog;
pub mod classify;
#[cfg(feature = "http")]
mod dialect;
mod output_schema;
mod price;
pub mod retry_after;
pub mod served;
pub mod settings;
#[cfg(feature = "http")]
pub mod transport;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "http")]
pub use self::base_url::{BaseUrl, BaseUrlError};
pub use self::call_ids::make_ids_unique;
pub use self::catalog::{Catalog, ModelInfo};
pub use self::classify::classify;
#[cfg(feature = "http")]
pub use self::dialect::Api;
pub use self::output_schema::OutputSchema;
pub use self::price::{ModelPrice, PriceAbove};
pub use self::served::{Served, ServedModel};
pub use self::settings::{ModelSettings, ReasoningEffort, ResendReasoning, SettingError, ToolChoice};
#[cfg(feature = "http")]
pub use self::transport::{
    ANTHROPIC_BASE_URL, ApiKey, GEMINI_BASE_URL, HttpProvider, KeySource, OPENAI_BASE_URL, OptionsError,
    Poster, Proxies, ServerOptions, ServiceFailure, service_client, service_failure,
};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::BoxStream;
pub use greenroom_kernel::Messages;
pub use greenroom_kernel::reasoning::ResentReasoning;
use greenroom_kernel::{AssistantMessage, Failure, ToolSpec, Usage};

/// One model call.
#[derive(Debug, Clone)]
pub struct Request {
    /// The model's name, as the provider knows it.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation. Every tool call in it has exactly one result, after it and before the next message of
    /// another kind. It is shared, not copied, and reads as a slice.
    pub messages: Messages,
    /// The tools the model may call.
    pub tools: Arc<[ToolSpec]>,
    /// How the model should answer.
    pub settings: ModelSettings,
    /// A schema that the answer's text must follow.
    pub output_schema: Option<Arc<OutputSchema>>,
    /// The purpose of the call.
    pub purpose: Purpose,
    /// The session that the call belongs to, for cache routing, and for scripted models to distinguish
    /// callers.
    pub session: String,
}

/// The purpose of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A step of a run. Its usage determines the size of the session's context.
    Step,
    /// A summary. Its usage is billed but does not affect the size of the session's context.
    Summary,
    /// The provider's own compaction of the conversation, if [`Provider::native_compaction`] says that it has one. The
    /// last message is the instruction for it, for APIs that take one. The answer has the blocks that replace the
    /// conversation in later requests, as opaque blocks, and a text if they are readable.
    Compaction,
}

/// How a provider compacts conversations by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NativeCompaction {
    /// Its summary can be read.
    Readable,
    /// Only its own models can read what it makes.
    Opaque,
}

/// The largest answer, in bytes of text, reasoning and arguments: several times what any model can generate.
pub const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A model provider.
///
/// Dropping the future or the stream cancels the call and closes its connection.
pub trait Provider: Send + Sync + 'static {
    /// Returns the provider's name in the model catalogue, such as `openai`.
    fn name(&self) -> &str;

    /// Starts one model call. The stream ends with [`ReplyEvent::Done`] and the whole answer, or with an `Err`;
    /// a stream that ends with neither has failed, too. What was streamed before a failure is shown and then
    /// void: the run repeats the call, if the failure's class says that it may succeed later.
    ///
    /// # Errors
    /// Returns the classified response if the provider answered with something other than a stream. A later
    /// failure is an item of the stream.
    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>>;

    /// Returns the address of the provider's server, as a URL without secrets. Learned facts about a model
    /// belong to it: the same model at another address may be configured differently. `None` if there is no
    /// server.
    fn address(&self) -> Option<&str> {
        None
    }

    /// Requests the list of models that the server serves, with their limits and prices. Empty if it has no
    /// list.
    ///
    /// # Errors
    /// If the server could not be reached, or refused the request. Calls to a model may work nevertheless.
    fn served(&self) -> BoxFuture<'static, Result<Served, ProviderError>> {
        async { Ok(Served::default()) }.boxed()
    }

    /// Returns which reasoning of earlier answers a request with these settings carries, and which therefore
    /// counts as input again. A provider must build its requests by the same rule. By default the settings
    /// alone decide, and no opaque block is sent back: a provider that sends such blocks back names their
    /// dialect.
    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        settings.resend_reasoning.unwrap_or_default().rule(self.name())
    }

    /// Returns how the provider compacts conversations with this model by itself; `None` if it does not, or is not known
    /// to.
    fn native_compaction(&self, _model: &str) -> Option<NativeCompaction> {
        None
    }

    /// Returns how long, by its newest answers, the server's own limits leave no room for another call; `None` if
    /// there is room, or nothing is known. The calls of all sessions wait that long.
    fn limited_for(&self) -> Option<Duration> {
        None
    }

    /// Counts the input tokens of a request, without an answer to it; `None` if the provider does not count, and then it
    /// is not asked again. The count is that which the usage of an answer to the same request reports. It must be free
    /// of charge.
    ///
    /// # Errors
    /// If there is no count, for example because the provider cannot be reached. The call itself may work nevertheless.
    fn count_tokens(&self, _request: Request) -> BoxFuture<'static, Result<Option<u64>, ProviderError>> {
        async { Ok(None) }.boxed()
    }

    /// Forgets what is kept for the next request of a session, to which [`Request::session`] belongs: it sleeps, has ended
    /// or was deleted. A later request of the session is possible, and may cost more.
    fn release(&self, _session: &str) {}

    /// Whether each call of an answer has an id that no other call of the answer or the request's messages has. Otherwise
    /// the runtime replaces ids that are empty or taken.
    fn has_unique_ids(&self) -> bool {
        false
    }

    /// Returns the output limit, in tokens, of a request whose `output_tokens_max` is `None`; `None` if such
    /// a request is sent without a limit. A run must know the limit in order to lower it.
    fn output_tokens_max(&self) -> Option<u64> {
        None
    }
}

/// An answer as it arrives. The stream ends with exactly one [`ReplyEvent::Done`] or one error; a stream that ends
/// with neither is malformed.
pub type ReplyStream = BoxStream<'static, Result<ReplyEvent, ProviderError>>;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ReplyEvent {
    /// The next piece of the text.
    Text(String),
    /// The next piece of the readable reasoning.
    Reasoning(String),
    /// A tool call begins or continues. For display only: `Done` has the whole call.
    ToolCall {
        /// The position of the call among the answer's calls, from 0.
        index: usize,
        /// The tool's name, if this piece carries it.
        name: Option<String>,
        /// The next piece of the arguments' JSON text.
        arguments: String,
    },
    /// The provider did not show some thinking of earlier answers to the model, although the request carried it.
    ThinkingDropped {
        /// The reason, in the provider's own words.
        reason: String,
        /// The number of blocks.
        count: usize,
    },
    /// The usage of a pass of the model within the answer, which the answer's own usage does not include: an answer with
    /// a provider's own tools, or with its own compaction, takes several passes. It is billed like a call of its own.
    Spent(Usage),
    /// The complete answer. Nothing follows it. A provider whose call fails after it began sends an `Err` item
    /// instead. An answer that stops with [`StopReason::Error`](greenroom_kernel::StopReason::Error) or
    /// [`StopReason::Aborted`](greenroom_kernel::StopReason::Aborted) is not complete: the runtime treats it
    /// like such an item, with the class that the words of [`AssistantMessage::error`] have
    /// ([`classify::classify_answer`]), and bills its usage.
    Done(Box<AssistantMessage>),
}

/// A failed model call: its classification ([`Failure`]) and the provider's own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
#[non_exhaustive]
pub struct ProviderError {
    /// The class, the message and the numbers that were read from the body.
    pub failure: Failure,
    /// The body as received, at most its first 16 KiB; empty if there was none.
    pub body: String,
    /// Whether the stream was opened and closed, or broke off, without a single event. Some servers respond
    /// this way to a prompt that is too long, so it is a context overflow if our own estimate is near the
    /// window.
    pub empty_stream: bool,
    /// Whether nothing was listening at the server's address. A server that answered before is expected to
    /// come back.
    pub connection_refused: bool,
    /// Whether the connection failed or broke: the server may have been replaced by another. After a mere
    /// timeout, the server is assumed to be still there.
    pub connection_lost: bool,
}

impl ProviderError {
    /// Creates an error with this classification and the body as received, which may be empty.
    pub fn new(failure: Failure, body: impl Into<String>) -> Self {
        Self {
            failure,
            body: body.into(),
            empty_stream: false,
            connection_refused: false,
            connection_lost: false,
        }
    }

    /// Whether this failure may be a context overflow although nothing in it says so: an empty stream, or a
    /// 400, 413 or 429 with an empty body. It is one if our own estimate is near the window (85 % of it or
    /// more).
    pub fn is_overflow_candidate(&self) -> bool {
        self.empty_stream || is_empty_body_overflow_candidate(self.failure.status, &self.body)
    }
}

/// Whether a refusal has a status that servers use for an overflow (400, 413 or 429) and an empty body. Runs
/// use [`ProviderError::is_overflow_candidate`], which includes empty streams.
pub(crate) fn is_empty_body_overflow_candidate(status: Option<u16>, body: &str) -> bool {
    matches!(status, Some(400 | 413 | 429)) && body.trim().is_empty()
}

/// Returns a tool call's arguments as a JSON object, in the form in which every provider must send them.
///
/// Arguments that are a JSON object are returned unchanged, and missing ones become `{}`. Other text becomes
/// `{"invalid_arguments": "…"}`, because a server that parses the history would reject every further request.
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
