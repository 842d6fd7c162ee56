//! Questions of a session as requests for permission, and their answers.
//!
//! Invariants: the whole call is shown as in a chat, with what is invisible escaped; an answer is one that was offered.

use std::path::Path;

use agent_client_protocol::v1::schema::{
    PermissionOption, PermissionOptionKind, ToolCallContent, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use greenroom::{Approval, Question, QuestionKind};
use greenroom_terminal::approvals;
use serde_json::Value;

use crate::calls;

#[cfg(test)]
mod tests;

/// The values of the answers to an approval.
const YES: &str = "yes";
const ALWAYS: &str = "always";
const NO: &str = "no";
/// More choices are answered in the editor's prompt.
const CHOICES_MAX: usize = 9;
/// The width of the lines of an approval, in columns: wide enough to break none.
const WIDTH: usize = 4096;

/// A question with a few answers, as a request for permission.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asking {
    /// The call that asks.
    pub(crate) call: ToolCallUpdate,
    /// The answers.
    pub(crate) options: Vec<PermissionOption>,
}

/// Returns the request for a question; `None` if it needs words.
pub(crate) fn asking(call_id: &str, question: &Question, folder: &Path) -> Option<Asking> {
    match &question.kind {
        QuestionKind::Approval { approval } => Some(approval_of(call_id, &question.text, approval, folder)),
        QuestionKind::Choice { choices, several: false } if choices.len() <= CHOICES_MAX => {
            let option = |(index, choice): (usize, &String)| {
                PermissionOption::new(index.to_string(), choice.clone(), PermissionOptionKind::AllowOnce)
            };
            let options = choices.iter().enumerate().map(option).collect();
            let details = question.details.iter().map(|details| details.clone().into());
            let fields = ToolCallUpdateFields::new()
                .title(question.text.clone())
                .status(ToolCallStatus::Pending)
                .content(details.collect::<Vec<ToolCallContent>>());
            Some(Asking { call: ToolCallUpdate::new(call_id.to_owned(), fields), options })
        }
        _ => None,
    }
}

fn approval_of(call_id: &str, text: &str, approval: &Approval, folder: &Path) -> Asking {
    let mut options =
        vec![PermissionOption::new(YES, "Allow".to_owned(), PermissionOptionKind::AllowOnce)];
    if !approval.rules.is_empty() {
        let name = format!("Allow, and do not ask again for {}", approval.rules.join(", "));
        options.push(PermissionOption::new(ALWAYS, name, PermissionOptionKind::AllowAlways));
    }
    options.push(PermissionOption::new(NO, "Deny".to_owned(), PermissionOptionKind::RejectOnce));
    let lines = approvals::lines(text, approval, true);
    let rows = lines.iter().flat_map(|line| line.rows(WIDTH)).map(|row| row.text());
    let rows: Vec<String> = rows.collect();
    let mut content: Vec<ToolCallContent> = Vec::new();
    content.extend(calls::change(&approval.tool, &approval.arguments, folder, false).map(Into::into));
    content.push(calls::block(&rows.join("\n")).into());
    let fields = ToolCallUpdateFields::new()
        .title(text.lines().next().unwrap_or_default().to_owned())
        .status(ToolCallStatus::Pending)
        .content(content)
        .raw_input(approval.arguments.clone());
    Asking { call: ToolCallUpdate::new(call_id.to_owned(), fields), options }
}

/// Returns the answer of a chosen option.
pub(crate) fn answer(question: &Question, option: &str) -> Option<Value> {
    match &question.kind {
        QuestionKind::Approval { .. } => Some(Value::from(option)),
        QuestionKind::Choice { choices, .. } => {
            let index: usize = option.parse().ok()?;
            choices.get(index).map(|choice| Value::from(choice.as_str()))
        }
        _ => None,
    }
}

/// Whether an answer refuses a call, which ends the run, as in a chat.
pub(crate) fn refuses(question: &Question, value: &Value) -> bool {
    matches!(question.kind, QuestionKind::Approval { .. }) && value == NO
}

/// Returns a question that needs words, as a message of the agent.
pub(crate) fn in_words(question: &Question) -> String {
    let mut text = question.text.clone();
    if let Some(details) = &question.details {
        text.push_str(&format!("\n\n{details}"));
    }
    match &question.kind {
        QuestionKind::Choice { choices, several } => {
            let choices: String = choices.iter().map(|choice| format!("- {choice}\n")).collect();
            let how = if *several { "one or more of these, each in a line of its own" } else { "one of these" };
            text.push_str(&format!("\n\n{choices}\nAnswer with {how}."));
        }
        QuestionKind::Form { schema } => {
            text.push_str(&format!("\n\nAnswer with JSON that matches this schema:\n\n{}", calls::block(&schema.to_string())));
        }
        _ => {}
    }
    text
}

/// Returns the answer that words give.
///
/// # Errors
/// Why they are no answer, for the user.
pub(crate) fn said(question: &Question, words: &str) -> Result<Value, String> {
    let words = words.trim();
    match &question.kind {
        QuestionKind::Choice { choices, several } => {
            let chosen = |line: &str| {
                let line = line.trim().trim_start_matches("- ");
                choices.iter().find(|choice| choice.eq_ignore_ascii_case(line)).map(|choice| Value::from(&**choice))
            };
            let unknown = || format!("Answer with one of these: {}.", choices.join(", "));
            if !several {
                return chosen(words).ok_or_else(unknown);
            }
            let lines = words.lines().filter(|line| !line.trim().is_empty());
            lines.map(|line| chosen(line).ok_or_else(unknown)).collect::<Result<Vec<Value>, String>>().map(Value::from)
        }
        QuestionKind::Form { .. } => {
            serde_json::from_str(words).map_err(|error| format!("The answer must be JSON: {error}."))
        }
        _ => Ok(Value::from(words)),
    }
}
