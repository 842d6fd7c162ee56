//! The parts of a session's context window, and the tools of its model.
//!
//! Invariants: the parts add up to the context size by which compaction is decided.

use greenroom::ContextUsage;
use greenroom_kernel::render::SUMMARY_LEAD;
use greenroom_kernel::size::{Estimator, message_tokens, opaque_tokens, text_tokens};
use greenroom_kernel::{Block, Message, Part};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, CallScope, Operation, Performed, Reach, Route};

/// The parts of a session's context window.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionContext {
    /// The session.
    pub session_id: String,
}

/// The context, in parts.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ContextParts {
    /// The size of the whole, and the window.
    pub context: ContextUsage,
    /// The parts. Empty ones are omitted.
    pub parts: Vec<ContextPart>,
}

/// One part of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextPart {
    /// The kind of the part.
    pub category: ContextCategory,
    /// The number of messages, calls, results or tools, if they can be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The estimated size in tokens.
    pub tokens: u64,
}

/// The kind of a part of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextCategory {
    /// The instructions, and whatever else the provider counts.
    Instructions,
    /// The definitions of the tools.
    Tools,
    /// The summary of compacted messages.
    Summary,
    /// The user's messages.
    User,
    /// The model's answers.
    Assistant,
    /// The model's reasoning, as far as it is sent back.
    Reasoning,
    /// The tool calls of the model.
    ToolCalls,
    /// The results of tool calls.
    ToolResults,
    /// Images.
    Images,
}

impl ContextCategory {
    /// The kind's name, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Instructions => "instructions and rest",
            Self::Tools => "tool definitions",
            Self::Summary => "summary",
            Self::User => "you",
            Self::Assistant => "the agent",
            Self::Reasoning => "reasoning",
            Self::ToolCalls => "tool calls",
            Self::ToolResults => "tool results",
            Self::Images => "images",
        }
    }
}

impl Operation for SessionContext {
    of_session!("session/context", Read, Route::read("/sessions/{session_id}/context"), ContextParts);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.runtime.session(&self.session_id).await?;
        let (context, messages) = (session.state().await?.context, session.context().await?);
        let tools = scope.runtime.tool_specs(&scope.agent)?;
        let tool_tokens = tools
            .iter()
            .map(|tool| {
                text_tokens(
                    &format!("{}{}{}", tool.name, tool.description, tool.parameters),
                    Estimator::Classes,
                )
            })
            .sum();
        let mut parts = Parts::default();
        parts.add(ContextCategory::Tools, tools.len() as u64, tool_tokens);
        messages.iter().for_each(|message| parts.message(message));
        Ok(Answer::Now(ContextParts { context, parts: parts.of(context.tokens) }))
    }
}

#[derive(Default)]
struct Parts(Vec<ContextPart>);

impl Parts {
    fn add(&mut self, category: ContextCategory, count: u64, tokens: u64) {
        if count == 0 {
            return;
        }
        match self.0.iter_mut().find(|part| part.category == category) {
            Some(part) => {
                part.count = part.count.map(|known| known + count);
                part.tokens += tokens;
            }
            None => self.0.push(ContextPart { category, count: Some(count), tokens }),
        }
    }

    fn message(&mut self, message: &Message) {
        let total = message_tokens(message, Estimator::Classes);
        match message {
            Message::User(blocks) => {
                let is_summary = message.text().starts_with(SUMMARY_LEAD);
                let category = if is_summary { ContextCategory::Summary } else { ContextCategory::User };
                let images = self.images(blocks);
                self.add(category, 1, total.saturating_sub(images));
            }
            Message::ToolResult(result) => {
                let images = self.images(&result.content);
                self.add(ContextCategory::ToolResults, 1, total.saturating_sub(images));
            }
            Message::Assistant(answer) => {
                let (mut rest, mut readable, mut opaque) = (total, 0, 0);
                for part in &answer.content {
                    let (category, tokens) = match part {
                        // The context has only the reasoning that is sent back. It is counted beside the message.
                        Part::OpaqueReasoning { data, .. } => {
                            opaque += opaque_tokens(data);
                            continue;
                        }
                        Part::Reasoning(reasoning) => {
                            readable += text_tokens(reasoning, Estimator::Classes);
                            continue;
                        }
                        Part::ToolCall(call) => {
                            let text = format!("{}{}", call.name, call.arguments);
                            (ContextCategory::ToolCalls, text_tokens(&text, Estimator::Classes))
                        }
                        Part::Text(_) | _ => continue,
                    };
                    let tokens = tokens.min(rest);
                    rest -= tokens;
                    if tokens > 0 {
                        self.add(category, 1, tokens);
                    }
                }
                self.add(ContextCategory::Assistant, 1, rest);
                if readable.max(opaque) > 0 {
                    self.add(ContextCategory::Reasoning, 1, readable.max(opaque));
                }
            }
        }
    }

    /// Counts the images, and returns how many tokens they take.
    fn images(&mut self, blocks: &[Block]) -> u64 {
        let images: Vec<Block> =
            blocks.iter().filter(|block| matches!(block, Block::Image(_))).cloned().collect();
        if images.is_empty() {
            return 0;
        }
        let count = images.len() as u64;
        let tokens = message_tokens(&Message::User(images), Estimator::Classes);
        self.add(ContextCategory::Images, count, tokens);
        tokens
    }

    /// The parts of a context of this size. A difference to the provider's count is spread over all of them; the
    /// remainder counts as instructions.
    fn of(mut self, total: u64) -> Vec<ContextPart> {
        let sum: u64 = self.0.iter().map(|part| part.tokens).sum();
        if sum > total {
            let mut rest = total;
            for part in &mut self.0 {
                part.tokens = (u128::from(part.tokens) * u128::from(total) / u128::from(sum.max(1)))
                    .try_into()
                    .unwrap_or(0);
                rest -= part.tokens;
            }
            if let Some(part) = self.0.first_mut() {
                part.tokens += rest;
            }
        } else if sum < total {
            let tokens = total - sum;
            self.0.push(ContextPart { category: ContextCategory::Instructions, count: None, tokens });
        }
        self.0.sort_by_key(|part| part.category);
        self.0
    }
}

/// The tools of the caller's agent.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListTools {}

/// Tools.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct ToolsListed {
    /// The tools, by name.
    pub tools: Vec<ToolSummary>,
}

/// A tool's definition, as the model receives it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolSummary {
    /// The tool's name.
    pub name: String,
    /// The tool's description.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

impl Operation for ListTools {
    operation!("agent/tools", Route::read_within(Reach::Agent, "/tools"), ToolsListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let specs = scope.runtime.tool_specs(&scope.agent)?;
        let tools = specs.iter().map(|tool| ToolSummary {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone(),
        });
        Ok(Answer::Now(ToolsListed { tools: tools.collect() }))
    }
}
