//! Hooks around one tool call: before it they may refuse it, change its arguments or answer in its place; after it they
//! may replace what the model reads.
//!
//! Invariants: a hook that fails before a call has refused it, and one that fails after it has withheld its output. A call
//! that was run with changed arguments says so in its result, so that the model and the log know what was done. Hooks are
//! asked about calls that would run: an unknown tool and arguments that are no JSON are answered without them.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::RunId;
use greenroom_kernel::question::{GivenAnswer, Question};
use greenroom_tools::{AppState, AskError, Questions, ToolOutput};
use serde_json::Value;

use crate::agent::hooks::has_state;

/// A tool call that is about to run, as a `before_tool` hook is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCallProposal {
    /// The session's id.
    pub session: Arc<str>,
    /// The run.
    pub run: RunId,
    /// The call's id.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments, as the hooks before this one left them.
    pub arguments: Value,
    /// Whether the tool says that it changes nothing outside itself.
    pub is_read_only: bool,
    /// How people are asked: see [`Self::ask`].
    pub questions: Questions,
    /// What the program gave the agent.
    pub app_state: AppState,
}

/// What a `before_tool` hook decides.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeTool {
    /// Go on.
    Continue,
    /// Call the tool with these arguments instead. Its result says so.
    Change(Value),
    /// Do not call the tool. The model reads the reason, a clause without a full stop.
    Refuse(String),
    /// Do not call the tool, and give the model this in the place of its output: from a cache, for one.
    Answer(ToolOutput),
}

/// A tool call with what the model is to read of it, as an `after_tool` hook is told of it. That may also be what another
/// hook said in the place of the tool.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCallReport {
    /// The session's id.
    pub session: Arc<str>,
    /// The run.
    pub run: RunId,
    /// The call's id.
    pub call_id: String,
    /// The tool's name.
    pub tool: String,
    /// The arguments with which it was called, as JSON text.
    pub arguments: String,
    /// What the model is to read, as the hooks before this one left it.
    pub output: ToolOutput,
    /// Whether the tool was called; `false` where a hook refused the call or answered it, or there is no such tool.
    pub was_run: bool,
    /// How long the tool took.
    pub duration: Duration,
    /// What the program gave the agent.
    pub app_state: AppState,
}

impl ToolCallProposal {
    /// Asks a person before the call is run, as [`ToolContext::ask`](greenroom_tools::ToolContext::ask) does in a tool:
    /// durably, and without counting for the hook's time limit. After a restart the hooks of the call are run again from
    /// the first one, with the recorded answers given to their questions, and then the tool runs: so a hook that asks must
    /// ask the same again, and what it does besides must bear being done twice.
    ///
    /// # Errors
    /// [`AskError`]: no answer in time, the run was aborted, or the question cannot be asked.
    pub async fn ask(&self, question: impl Into<Question>) -> Result<GivenAnswer, AskError> {
        self.questions.ask(question.into()).await
    }
}

has_state!(ToolCallProposal ToolCallReport);

/// What an `after_tool` hook decides.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AfterTool {
    /// The model reads the output as it is.
    Keep,
    /// The model reads this instead, and nothing else is recorded.
    Replace(ToolOutput),
}
