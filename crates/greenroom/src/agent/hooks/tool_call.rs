//! Hooks around a tool call: before the call, they may refuse it, change its arguments or answer in its
//! place; after it, they may replace the output for the model.
//!
//! Invariants: a hook that fails before a call has refused it, and one that fails after it has withheld the
//! output. The result of a call with changed arguments says so, so the model and the log know what was done.
//! Hooks see only calls that would run: calls of unknown tools or with invalid JSON are answered without
//! them.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::RunId;
use greenroom_kernel::question::{GivenAnswer, Question};
use greenroom_tools::{AppState, AskError, Questions, ToolOutput};
use serde_json::Value;

use crate::agent::hooks::has_state;

/// A tool call that is about to run, for a `before_tool` hook.
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
    /// The arguments, as changed by earlier hooks.
    pub arguments: Value,
    /// Whether the tool declares that it changes nothing outside itself.
    pub is_read_only: bool,
    /// Asks people: see [`Self::ask`].
    pub questions: Questions,
    pub(crate) app_state: AppState,
}

/// A `before_tool` hook's decision.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeTool {
    /// Call the tool.
    Continue,
    /// Call the tool with these arguments instead. Its result says so.
    Change(Value),
    /// Do not call the tool. The model reads this reason, a clause without a full stop.
    Refuse(String),
    /// Do not call the tool, and give the model this output instead; for example, from a cache.
    Answer(ToolOutput),
}

/// A finished tool call with its output for the model, for an `after_tool` hook. The output may come from
/// another hook instead of the tool.
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
    /// The arguments of the call, as JSON text.
    pub arguments: String,
    /// The output for the model, as changed by earlier hooks.
    pub output: ToolOutput,
    /// Whether the tool was called; `false` if a hook refused or answered the call, or the tool does not
    /// exist.
    pub was_run: bool,
    /// How long the tool took.
    pub duration: Duration,
    pub(crate) app_state: AppState,
}

impl ToolCallProposal {
    /// Asks a person before the call is run, as [`ToolContext::ask`](greenroom_tools::ToolContext::ask) does
    /// in a tool: the question is durable, and the wait does not count towards the hook's time limit. After a
    /// restart, the call's hooks run again from the first one, their questions get the recorded answers, and
    /// then the tool runs. So a hook that asks must repeat the same question, and its other effects must be
    /// safe to repeat.
    ///
    /// # Errors
    /// [`AskError`]: no answer in time, the run was aborted, or the question cannot be asked.
    pub async fn ask(&self, question: impl Into<Question>) -> Result<GivenAnswer, AskError> {
        self.questions.ask(question.into()).await
    }
}

has_state!(ToolCallProposal ToolCallReport);

/// An `after_tool` hook's decision.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AfterTool {
    /// Keep the output.
    Keep,
    /// Give the model this output instead, and record nothing else.
    Replace(ToolOutput),
}
