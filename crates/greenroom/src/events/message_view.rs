//! Messages, as events show them.
//!
//! Invariants: a view is a copy without reasoning and without the bytes of images.

use greenroom_kernel::{Block, Message, Part, StopReason, ToolStatus, Usage};
use serde::{Deserialize, Serialize};

use crate::values::names::names;
use crate::values::prompt::CallView;

names! {
    /// The author of a message.
    pub enum Role ("role") {
        /// The user, or the program in the user's place.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// A tool: the result of a call.
        Tool = "tool",
        /// A command that the user ran.
        Shell = "shell",
        /// A message that a program added.
        Custom = "custom",
        /// The summary of an abandoned branch.
        BranchSummary = "branch_summary",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

/// A message, as events show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct MessageView {
    /// The author of the message.
    pub role: Role,
    /// The message's text.
    pub text: String,
    /// The tool calls in it: id, name, arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallView>,
    /// For an answer: the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For a tool's result: the id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// For a tool's result: the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For a tool's result: how the call ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    /// For an answer: why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// For an answer: the provider's usage report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The number of images.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub images: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

pub(super) fn role_of(message: &Message) -> Role {
    match message {
        Message::User(_) => Role::User,
        Message::Assistant(_) => Role::Assistant,
        Message::ToolResult(_) => Role::Tool,
    }
}

impl MessageView {
    pub(super) fn plain(role: Role, text: String) -> Self {
        Self {
            role,
            text,
            tool_calls: Vec::new(),
            model: None,
            call_id: None,
            tool_name: None,
            status: None,
            stop: None,
            usage: None,
            images: 0,
        }
    }

    pub(super) fn of(message: &Message) -> Self {
        let mut view = Self::plain(role_of(message), message.text());
        let images =
            |blocks: &[Block]| blocks.iter().filter(|block| matches!(block, Block::Image(_))).count();
        match message {
            Message::User(blocks) => view.images = images(blocks),
            Message::ToolResult(result) => {
                view.images = images(&result.content);
                view.call_id = Some(result.call_id.clone());
                view.tool_name = Some(result.tool_name.clone());
                view.status = Some(result.status);
            }
            Message::Assistant(assistant) => {
                view.model = Some(assistant.model.clone());
                view.stop = Some(assistant.stop);
                view.usage = assistant.usage;
                view.tool_calls =
                    assistant.content.iter().filter_map(Part::as_tool_call).map(CallView::from).collect();
            }
        }
        view
    }
}
