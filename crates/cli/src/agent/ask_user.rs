//! The tool with which the model asks the person at the terminal.
//!
//! Invariants: it changes nothing by itself, so a call that a restart interrupted can be run again.

use greenroom::{Question, State};
use greenroom_tools::{FunctionTool, ToolContext, ToolError, tool};
use schemars::JsonSchema;
use serde::Deserialize;

/// The tool's name.
pub(crate) const NAME: &str = "ask_user";

/// Asks the person at the terminal one question, and waits for the answer. Use it only where the work cannot go on without
/// a decision that is theirs, not for what you can find out or may decide yourself. Offer choices where there are a few.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AskUser {
    /// The question, in one line or a few.
    question: String,
    /// What can be chosen, at least two; without it, any text is an answer.
    #[serde(default)]
    choices: Vec<String>,
    /// Whether several of the choices may be chosen.
    #[serde(default)]
    several: bool,
    /// What the person should know before the answer.
    details: Option<String>,
}

/// The tools whose calls wait for approvals, and run when they were approved.
const APPROVED: [&str; 6] = ["bash", "edit", "grep", "list", "read", "write"];

/// Whether a session's run waits only for what our agents ask: answers to this tool, given or not, and approvals.
pub(crate) fn is_all_that_waits(state: &State) -> bool {
    let is_ours = |tool: &String| tool == NAME || APPROVED.contains(&&**tool);
    !state.waiting_tools.is_empty() && state.waiting_tools.iter().all(is_ours)
}

/// Creates the tool.
pub(crate) fn ask_user() -> FunctionTool {
    tool(NAME, |asked: AskUser, context: ToolContext| async move {
        let AskUser { question, choices, several, details } = asked;
        if question.trim().is_empty() || choices.len() == 1 {
            return Err(ToolError::new("give a question, and either no choices or at least two"));
        }
        let mut question = match (choices.is_empty(), several) {
            (true, _) => Question::text(question),
            (false, false) => Question::choice(question, choices),
            (false, true) => Question::choices(question, choices),
        };
        question.details = details;
        let answer = context.ask(question).await?;
        // A text is returned as it is, other values as JSON.
        Ok(answer.value.as_str().map_or_else(|| answer.value.to_string(), str::to_owned))
    })
    .resumable()
}
