//! The failures of model calls, in the classes that recovery distinguishes.
//!
//! The provider crate classifies (it sees status and body); the run decides (it sees only the class).

use serde::{Deserialize, Serialize};

/// The kind of a failed model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureClass {
    /// The request is larger than the model's context window.
    ContextOverflow,
    /// More output was asked for than the model can give.
    OutputLimit,
    /// Too many bytes, whatever the tokens: images, usually.
    PayloadTooLarge,
    /// Too many requests or tokens a minute; waiting heals it.
    RateLimited,
    /// This one request is larger than a whole minute's allowance; waiting does not heal it.
    RequestTooLargeForRateLimit,
    /// No credit left, or a spend limit reached.
    Quota,
    /// The key is missing, wrong or not allowed to do this.
    Auth,
    /// The provider is overloaded or failing (5xx); waiting may heal it.
    Overloaded,
    /// Nothing came in time, or the connection could not be made or broke.
    Timeout,
    /// The answer cannot be understood, or ended before it was complete.
    Malformed,
    /// The provider's content filter refused.
    ContentFilter,
    /// Even the smallest context does not fit: what remains cannot be compacted.
    ContextFloor,
    /// The provider refuses content of earlier answers that it sent itself: a signature, encrypted reasoning or its own
    /// compaction. The same request without such content may succeed.
    OpaqueRefused,
    /// The provider cannot read an image, or the model sees none. The same request without the image may succeed.
    ImageRefused,
    /// The server is not ready yet: it loads its model, or starts again. Waiting heals it, minutes perhaps.
    Loading,
    /// Anything else: most often a request that the provider calls invalid. A class of a newer program reads as this one.
    #[serde(other)]
    Other,
}

impl FailureClass {
    /// Returns the class in snake case, as events and `--json` output name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ContextOverflow => "context_overflow",
            Self::OutputLimit => "output_limit",
            Self::PayloadTooLarge => "payload_too_large",
            Self::RateLimited => "rate_limited",
            Self::RequestTooLargeForRateLimit => "request_too_large_for_rate_limit",
            Self::Quota => "quota",
            Self::Auth => "auth",
            Self::Overloaded => "overloaded",
            Self::Timeout => "timeout",
            Self::Malformed => "malformed",
            Self::ContentFilter => "content_filter",
            Self::ContextFloor => "context_floor",
            Self::OpaqueRefused => "opaque_refused",
            Self::ImageRefused => "image_refused",
            Self::Other => "other",
            Self::Loading => "loading",
        }
    }

    /// Whether the failure is independent of the request, so that time, another key or more credit resolves
    /// it.
    pub fn may_pass(self) -> bool {
        self.is_retryable() || matches!(self, Self::Auth | Self::Quota)
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::RateLimited | Self::Overloaded | Self::Timeout | Self::Malformed | Self::Loading => true,
            Self::ContextOverflow
            | Self::OutputLimit
            | Self::PayloadTooLarge
            | Self::RequestTooLargeForRateLimit
            | Self::Quota
            | Self::Auth
            | Self::ContentFilter
            | Self::ContextFloor
            | Self::OpaqueRefused
            | Self::ImageRefused
            | Self::Other => false,
        }
    }
}

impl std::fmt::Display for FailureClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed model call, as the run and the user see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Failure {
    /// The kind of failure.
    pub class: FailureClass,
    /// A description and, if known, the remedy; one line.
    pub message: String,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The limit that the provider named, in tokens.
    pub limit: Option<u64>,
    /// The size of the request that the provider named, in tokens.
    pub requested: Option<u64>,
    /// How long the provider asks us to wait, in milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl Failure {
    /// Creates a failure with a class and a message, and nothing else known.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            status: None,
            limit: None,
            requested: None,
            retry_after_ms: None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
