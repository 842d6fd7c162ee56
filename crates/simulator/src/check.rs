//! Checks every request, so that a test fails if the runtime sends one that a strict provider would reject.
//!
//! Invariants: the checker knows nothing of the runtime; its rules are those of the strictest providers in
//! use. It reports all errors, not only the first one.

use std::collections::HashSet;

use greenroom_kernel::{Block, Message};
use greenroom_provider::{ModelSettings, Purpose, ToolChoice};

use crate::seen::SeenRequest;

/// One rule that a request broke.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The number of the call, from 0, over all sessions.
    pub call: u64,
    /// The session it came from.
    pub session: Option<String>,
    /// The rule that was broken.
    pub rule: Rule,
    /// The cause and its location, for people.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let session = self.session.as_deref().unwrap_or("-");
        write!(f, "call {} of session {session}: {}: {}", self.call, self.rule.text(), self.detail)
    }
}

/// The rules for requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The body is not JSON, or not of the protocol's form.
    NotJson,
    /// A role that the protocol does not have.
    UnknownRole,
    /// A piece of content that the protocol does not have.
    UnknownContent,
    /// A system prompt that is not the first message.
    SystemNotFirst,
    /// A second system prompt.
    SecondSystem,
    /// A system prompt, user message or answer without content.
    EmptyMessage,
    /// The conversation has no user message.
    NoUserMessage,
    /// The last message is an answer: there is nothing to reply to.
    EndsWithAssistant,
    /// A tool result that answers no call.
    OrphanResult,
    /// A tool result that does not directly follow the answer with its call.
    MisplacedResult,
    /// A second result for the same call.
    SecondResult,
    /// A tool call without a result.
    CallWithoutResult,
    /// Two calls of one answer with the same id, or a call without one.
    CallId,
    /// Arguments of a call that are not JSON.
    ArgumentsNotJson,
    /// A tool's name that is not 1 to 64 letters, digits, `_` or `-`.
    ToolName,
    /// Two tools with the same name.
    SecondTool,
    /// A tool whose parameters are not an object schema.
    ToolParameters,
    /// An output limit of zero.
    OutputLimit,
    /// A setting that servers reject: a value outside its range, or a tool that is not offered.
    Setting,
    /// A block that must come back as it was sent, and was changed or moved.
    AlteredBlock,
}

impl Rule {
    /// Rules that OpenAI and most servers do not enforce, and that clients in other languages break.
    pub const ACCEPTED_BY_SERVERS: &[Self] =
        &[Self::SystemNotFirst, Self::SecondSystem, Self::NoUserMessage, Self::EndsWithAssistant];

    /// Returns the rule in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::NotJson => "the body is not a chat-completions request",
            Self::UnknownRole => "unknown role",
            Self::UnknownContent => "unknown content",
            Self::SystemNotFirst => "the system prompt is not the first message",
            Self::SecondSystem => "a second system prompt",
            Self::EmptyMessage => "an empty message",
            Self::NoUserMessage => "no user message",
            Self::EndsWithAssistant => "the last message is an answer",
            Self::OrphanResult => "a tool result without its call",
            Self::MisplacedResult => "a tool result that is not directly after its call",
            Self::SecondResult => "a second result for one call",
            Self::CallWithoutResult => "a tool call without its result",
            Self::CallId => "a doubled or missing call id",
            Self::ArgumentsNotJson => "arguments that are not JSON",
            Self::ToolName => "a tool name that is not allowed",
            Self::SecondTool => "two tools of the same name",
            Self::ToolParameters => "tool parameters that are not an object schema",
            Self::OutputLimit => "an output limit of zero",
            Self::Setting => "a setting that servers refuse",
            Self::AlteredBlock => "a block that was changed",
        }
    }
}

/// A broken rule, and where.
pub(crate) type Broken = (Rule, String);

/// Returns all violations in `request`. Arguments and tool names of the first `known` messages are skipped:
/// they were already checked in the session's previous request.
pub(crate) fn check(request: &SeenRequest, known: usize) -> Vec<Broken> {
    let mut broken = Vec::new();
    if request.system.as_ref().is_some_and(|text| text.trim().is_empty()) {
        broken.push((Rule::EmptyMessage, "the system prompt".to_owned()));
    }
    if request.settings.output_tokens_max == Some(0) {
        broken.push((Rule::OutputLimit, "max_tokens".to_owned()));
    }
    check_settings(request, &mut broken);
    check_tools(request, &mut broken);
    check_contents(request, known, &mut broken);
    check_pairs(&request.messages, &mut broken);
    if !request.messages.iter().any(|message| matches!(**message, Message::User(_))) {
        broken.push((Rule::NoUserMessage, format!("{} messages", request.messages.len())));
    }
    // A conversation that is compacted is not replied to.
    let is_replied_to = request.purpose != Purpose::Compaction;
    if is_replied_to && matches!(request.messages.last().map(|last| &**last), Some(Message::Assistant(_))) {
        broken.push((Rule::EndsWithAssistant, format!("message {}", request.messages.len() - 1)));
    }
    broken
}

/// Whether `name` is a valid tool name: 1 to 64 of `A-Z a-z 0-9 _ -`.
pub(crate) fn is_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn check_settings(request: &SeenRequest, broken: &mut Vec<Broken>) {
    // The limit has a rule of its own, and a server may know more fields than ours.
    let settings =
        ModelSettings { output_tokens_max: None, extra: serde_json::Map::new(), ..request.settings.clone() };
    if let Err(error) = settings.check() {
        broken.push((Rule::Setting, error.to_string()));
    }
    let says_something_of_tools = settings.tool_choice.is_some() || settings.parallel_tool_calls.is_some();
    if says_something_of_tools && request.tools.is_empty() {
        broken.push((Rule::Setting, "tool_choice or parallel_tool_calls without tools".to_owned()));
    }
    if let Some(ToolChoice::Tool(name)) = &settings.tool_choice
        && !request.has_tool(name)
    {
        broken.push((Rule::Setting, format!("tool_choice: {name:?} is not offered")));
    }
}

fn check_tools(request: &SeenRequest, broken: &mut Vec<Broken>) {
    for (index, tool) in request.tools.iter().enumerate() {
        if !is_tool_name(&tool.name) {
            broken.push((Rule::ToolName, format!("tool {:?}", tool.name)));
        }
        if request.tools[..index].iter().any(|other| other.name == tool.name) {
            broken.push((Rule::SecondTool, tool.name.clone()));
        }
        let is_object = tool.parameters.get("type").is_none_or(|kind| kind == "object");
        if !tool.parameters.is_object() || !is_object {
            broken.push((Rule::ToolParameters, tool.name.clone()));
        }
    }
}

fn check_contents(request: &SeenRequest, known: usize, broken: &mut Vec<Broken>) {
    for (index, message) in request.messages.iter().enumerate().skip(known) {
        let is_empty = match &**message {
            Message::User(blocks) => !blocks.iter().any(|block| match block {
                Block::Text(text) => !text.trim().is_empty(),
                Block::Image(_) | _ => true,
            }),
            Message::Assistant(assistant) => assistant.is_empty(),
            // A tool may return nothing; every provider accepts that.
            Message::ToolResult(_) => false,
        };
        if is_empty {
            broken.push((Rule::EmptyMessage, format!("message {index} ({})", message.role())));
        }
        for call in message.tool_calls() {
            if !is_tool_name(&call.name) {
                broken.push((Rule::ToolName, format!("call {:?} in message {index}", call.name)));
            }
            if serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_err() {
                let start: String = call.arguments.chars().take(80).collect();
                broken
                    .push((Rule::ArgumentsNotJson, format!("call {} in message {index}: {start}", call.id)));
            }
        }
    }
}

/// Checks that every call has exactly one result, directly after its answer.
fn check_pairs(messages: &[std::sync::Arc<Message>], broken: &mut Vec<Broken>) {
    // Calls of the answer that the current run of results belongs to, and those already answered.
    let mut open: Vec<&str> = Vec::new();
    let mut answered: Vec<&str> = Vec::new();
    // Calls whose run of results ended without theirs: misplaced if it still comes, missing if not.
    let mut left: Vec<(usize, &str)> = Vec::new();
    let mut earlier: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        match &**message {
            Message::ToolResult(result) => {
                let id = result.call_id.as_str();
                if let Some(at) = open.iter().position(|open| *open == id) {
                    open.remove(at);
                    answered.push(id);
                } else if let Some(at) = left.iter().position(|(_, left)| *left == id) {
                    left.remove(at);
                    broken.push((Rule::MisplacedResult, format!("message {index}, call {id}")));
                } else if answered.contains(&id) || earlier.contains(id) {
                    broken.push((Rule::SecondResult, format!("message {index}, call {id}")));
                } else {
                    broken.push((Rule::OrphanResult, format!("message {index}, call {id}")));
                }
            }
            Message::User(_) | Message::Assistant(_) => {
                left.extend(open.drain(..).map(|id| (index, id)));
                earlier.extend(answered.drain(..));
                for call in message.tool_calls() {
                    if call.id.is_empty() || open.contains(&call.id.as_str()) {
                        broken.push((Rule::CallId, format!("message {index}, call {:?}", call.id)));
                    }
                    open.push(&call.id);
                }
            }
        }
    }
    left.extend(open.into_iter().map(|id| (messages.len(), id)));
    for (index, id) in left {
        broken.push((Rule::CallWithoutResult, format!("call {id}, no result before message {index}")));
    }
}

#[cfg(test)]
mod tests;
