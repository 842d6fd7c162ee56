//! A conversation as programs read it.
//!
//! Invariants: the runtime's own records are not part of it.

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{StopReason, ToolStatus, blocks_text};
use greenroom_kernel::{Message, Part, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// The id by which the call's result refers to it.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments: JSON text.
    pub arguments: String,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Said {
    /// The message's entry.
    pub entry_id: EntryId,
    /// The time in Unix milliseconds.
    pub at_ms: u64,
    /// The author and the content.
    #[serde(flatten)]
    pub speech: Speech,
}

/// The author of a message, and its content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Speech {
    /// The user.
    User {
        /// The text, without images.
        text: String,
        /// Whether it joined the run in progress.
        #[serde(default)]
        is_steer: bool,
    },
    /// The model.
    Assistant {
        /// The text.
        text: String,
        /// The tool calls.
        #[serde(default)]
        tool_calls: Vec<Call>,
        /// The model's name.
        model: String,
        /// Why the answer ended.
        stop: StopReason,
        /// The usage of the call, if the server reported it.
        usage: Option<Usage>,
    },
    /// A tool.
    Tool {
        /// The call that it answers.
        call_id: String,
        /// How the call ended.
        status: ToolStatus,
        /// The result.
        text: String,
    },
    /// A command that the user ran.
    Shell {
        /// The command line.
        command: String,
        /// The command's output.
        text: String,
        /// The exit code; `None` if the command was killed or did not start.
        exit_code: Option<i32>,
    },
    /// A program.
    Custom {
        /// The kind of the message.
        kind: String,
        /// The text that the model sees.
        text: String,
    },
    /// The summary of a branch that was left.
    BranchSummary {
        /// The leaf of that branch.
        from: EntryId,
        /// The summary.
        text: String,
    },
    /// A compaction: from here on, the model sees this summary instead of the older messages.
    Summary {
        /// The first entry that it replaces.
        first: Option<EntryId>,
        /// The last one.
        last: Option<EntryId>,
        /// The summary.
        text: String,
        /// The context before, in tokens.
        tokens_before: u64,
        /// The context after, in tokens; `null` if unknown, as in some imported files.
        tokens_after: Option<u64>,
    },
}

impl Said {
    /// The message of an entry; `None` for the runtime's own records.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other kinds are the runtime's own records")]
    pub fn of(entry: &Entry) -> Option<Self> {
        let speech = match &entry.kind {
            EntryKind::Message { message, steer, .. } => match &**message {
                Message::User(content) => Speech::User { text: blocks_text(content), is_steer: *steer },
                Message::Assistant(answer) => {
                    let calls = answer.content.iter().filter_map(Part::as_tool_call);
                    let call = |call: &greenroom_kernel::ToolCall| Call {
                        call_id: call.id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    };
                    Speech::Assistant {
                        text: answer.text(),
                        tool_calls: calls.map(call).collect(),
                        model: answer.model.clone(),
                        stop: answer.stop,
                        usage: answer.usage,
                    }
                }
                Message::ToolResult(result) => Speech::Tool {
                    call_id: result.call_id.clone(),
                    status: result.status,
                    text: blocks_text(&result.content),
                },
            },
            EntryKind::Shell(shell) => Speech::Shell {
                command: shell.command.clone(),
                text: shell.output.clone(),
                exit_code: shell.exit_code,
            },
            EntryKind::Custom(custom) => {
                Speech::Custom { kind: custom.kind.clone(), text: blocks_text(&custom.content) }
            }
            EntryKind::BranchSummary { from, summary, .. } => {
                Speech::BranchSummary { from: *from, text: summary.clone() }
            }
            EntryKind::Compaction(compaction) => Speech::Summary {
                first: compaction.first,
                last: compaction.last,
                text: compaction.summary.clone(),
                tokens_before: compaction.tokens_before,
                tokens_after: compaction.known_tokens_after(),
            },
            _ => return None,
        };
        Some(Self { entry_id: entry.id, at_ms: entry.at_ms, speech })
    }
}
