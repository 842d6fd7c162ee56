//! A conversation with which a test begins.
//!
//! Invariants: every tool call is directly followed by its result, so that the history is one that a session
//! could have.

use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Entry, EntryId, EntryKind, Message, Part, StopReason, ToolCall, ToolResult,
    ToolStatus,
};
use serde_json::Value;

/// A conversation with which a session begins.
///
/// ```
/// # use greenroom::prelude::*;
/// use greenroom_simulator::{Answer, History, ScriptedModel};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// # let model = ScriptedModel::new([Answer::text("On Monday.").expect_user("When?")]);
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// let session = runtime.open("s", &Agent::new("any")).await?;
/// let before = History::new()
///     .user("Where is order 7?")
///     .tool("order", &json!({ "number": 7 }), "shipped")
///     .assistant("It was shipped.");
/// session.import(before.entries(), before.leaf()).await?;
/// assert_eq!(session.prompt("When?").await?.text, "On Monday.");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct History {
    messages: Vec<Message>,
}

impl History {
    /// Creates an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a user message.
    pub fn user(mut self, text: impl Into<String>) -> Self {
        self.messages.push(Message::user(text));
        self
    }

    /// Adds an answer of the model.
    pub fn assistant(mut self, text: impl Into<String>) -> Self {
        self.messages.push(answer(Part::Text(text.into()), StopReason::Stop));
        self
    }

    /// Adds a tool call with its result.
    pub fn tool(mut self, name: impl Into<String>, arguments: &Value, result: impl Into<String>) -> Self {
        let (id, name) = (format!("call_history_{}", self.messages.len()), name.into());
        let call = ToolCall { id: id.clone(), name: name.clone(), arguments: arguments.to_string() };
        self.messages.push(answer(Part::ToolCall(call), StopReason::ToolCalls));
        self.messages.push(Message::ToolResult(ToolResult {
            call_id: id,
            tool_name: name,
            content: vec![Block::Text(result.into())],
            status: ToolStatus::Ok,
            touched: Vec::new(),
        }));
        self
    }

    /// Returns the messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Returns the entries of a log with exactly these messages, for `SessionHandle::import`.
    pub fn entries(&self) -> Vec<Arc<Entry>> {
        (0..)
            .zip(&self.messages)
            .map(|(id, message)| {
                let parent = u64::checked_sub(id, 1).map(EntryId);
                Arc::new(Entry::recorded(EntryId(id), parent, 0, EntryKind::message(message.clone())))
            })
            .collect()
    }

    /// Returns the entry of the newest message, from which the session continues.
    pub fn leaf(&self) -> Option<EntryId> {
        (self.messages.len() as u64).checked_sub(1).map(EntryId)
    }
}

fn answer(part: Part, stop: StopReason) -> Message {
    Message::Assistant(AssistantMessage::new(vec![part], "simulator", "simulated", stop))
}
