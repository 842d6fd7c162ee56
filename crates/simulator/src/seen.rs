//! A request as the simulated model sees it, over any transport.
//!
//! Invariants: the conversation is in the kernel's own messages, shared with the caller in-process and with
//! the session's previous request over HTTP, so that examining a request copies nothing.

use std::sync::Arc;

use greenroom_kernel::{Message, ToolSpec};
use greenroom_provider::{ModelSettings, OutputSchema, Purpose};

/// The start of the tag around the transcript of a summary request.
pub(crate) const TRANSCRIPT_TAG: &str = "<conversation";

/// One request to the model.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    /// The requested model's name.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation, without the system prompt. Over HTTP a tool result's name is that of the call that
    /// it answers, and its status is always `Ok`: the protocol carries neither.
    pub messages: Vec<Arc<Message>>,
    /// The tools offered.
    pub tools: Arc<[ToolSpec]>,
    /// The model settings. Over HTTP every field of the body that the simulator does not know is in `extra`.
    pub settings: ModelSettings,
    /// The requested output schema.
    pub output_schema: Option<Arc<OutputSchema>>,
    /// The session it belongs to. Over HTTP: the header `x-greenroom-session`, else `prompt_cache_key`, else
    /// `user`.
    pub session: Option<String>,
    /// Its purpose. Over HTTP: the header `x-greenroom-purpose`, else a summary if there are no tools and the
    /// last message contains a `<conversation` tag.
    pub purpose: Purpose,
    /// Whether a streamed answer is requested; always true in-process.
    pub streamed: bool,
    /// Its size in bytes: the body's over HTTP; in-process the sum of its texts.
    pub bytes: u64,
    /// Its size in tokens, by [`crate::tokens`].
    pub tokens: u64,
    /// The part of `tokens` that matches the start of the session's previous request.
    pub cached_tokens: u64,
}

impl SeenRequest {
    /// Returns the text of the last user message; empty if there is none.
    pub fn last_user_text(&self) -> String {
        self.messages
            .iter()
            .rev()
            .find(|message| matches!(***message, Message::User(_)))
            .map(|message| message.text())
            .unwrap_or_default()
    }

    /// Whether a tool of this name is offered.
    pub fn has_tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Returns the session's name, empty if it has none: the key of per-session state.
    pub fn session_key(&self) -> &str {
        self.session.as_deref().unwrap_or_default()
    }
}
