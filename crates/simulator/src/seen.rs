//! A request as the simulated model sees it, whichever way it came.
//!
//! Invariants: the conversation is in the kernel's own messages, shared with the caller in-process and with
//! the session's previous request over HTTP, so that looking at a request copies nothing.

use std::sync::Arc;

use greenroom_kernel::{Message, ToolSpec};
use greenroom_provider::{ModelSettings, OutputSchema, Purpose};

/// The beginning of the tag around the transcript of a summary request.
pub(crate) const TRANSCRIPT_TAG: &str = "<conversation";

/// One request to the model.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    /// The model's name, as it was asked for.
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The conversation, without the system prompt. Over HTTP a tool result's name is that of the call that it
    /// answers, and its status is always `Ok`: the protocol carries neither.
    pub messages: Vec<Arc<Message>>,
    /// The tools offered.
    pub tools: Arc<[ToolSpec]>,
    /// How it is to be answered. Over HTTP every field of the body that the simulator does not know is in `extra`.
    pub settings: ModelSettings,
    /// The schema asked for.
    pub output_schema: Option<Arc<OutputSchema>>,
    /// The session it belongs to. Over HTTP: the header `x-greenroom-session`, else `prompt_cache_key`, else
    /// `user`.
    pub session: Option<String>,
    /// What it is for. Over HTTP: the header `x-greenroom-purpose`, else a summary if there are no tools and
    /// the last message holds a `<conversation` tag.
    pub purpose: Purpose,
    /// Whether the answer is wanted as a stream; always true in-process.
    pub streamed: bool,
    /// Its size: the body's over HTTP; in-process the sum of its texts.
    pub bytes: u64,
    /// Its size by [`crate::tokens`].
    pub tokens: u64,
    /// The part of `tokens` that is the same as at the start of the session's previous request.
    pub cached_tokens: u64,
}

impl SeenRequest {
    /// The text of the last user message; empty if there is none.
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

    /// The session's name, empty if it has none: what per-session state is kept by.
    pub fn session_key(&self) -> &str {
        self.session.as_deref().unwrap_or_default()
    }
}
