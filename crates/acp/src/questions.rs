//! Questions of a session as requests to the editor, and their answers.
//!
//! Invariants: the whole call is shown as in a chat, with what is invisible escaped; an answer is one that was offered.

use std::collections::BTreeMap;
use std::path::Path;

use agent_client_protocol::v1::schema::{
    ElicitationContentValue, ElicitationPropertySchema, ElicitationSchema, MultiSelectItems,
    PermissionOption, PermissionOptionKind, ToolCallContent, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use greenroom::{Approval, Question, QuestionKind};
use greenroom_terminal::approvals;
use serde_json::{Value, json};

use crate::calls;

#[cfg(test)]
mod tests;

/// The values of the answers to an approval.
const YES: &str = "yes";
const ALWAYS: &str = "always";
const NO: &str = "no";
/// The field of a form with one.
const FIELD: &str = "answer";
/// More choices are no options.
const CHOICES_MAX: usize = 9;
/// The width of the lines of an approval, in columns: wide enough to break none.
const WIDTH: usize = 4096;

/// A question as a request to the editor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asking {
    /// One with a few answers, as a request for permission: of the call that asks.
    Permission(ToolCallUpdate, Vec<PermissionOption>),
    /// Any other, as a form, with a message above it.
    Form(ElicitationSchema, String),
}

/// Returns the request for a question; `None` if the next prompt has to answer it. `has_forms`: the editor shows forms.
pub(crate) fn asking(call_id: &str, question: &Question, folder: &Path, has_forms: bool) -> Option<Asking> {
    permission(call_id, question, folder).or_else(|| form(question).filter(|_| has_forms))
}

fn permission(call_id: &str, question: &Question, folder: &Path) -> Option<Asking> {
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
            Some(Asking::Permission(ToolCallUpdate::new(call_id.to_owned(), fields), options))
        }
        QuestionKind::Text
        | QuestionKind::Choice { .. }
        | QuestionKind::Form { .. }
        | QuestionKind::Unknown
        | _ => None,
    }
}

fn approval_of(call_id: &str, text: &str, approval: &Approval, folder: &Path) -> Asking {
    let mut options = vec![PermissionOption::new(YES, "Allow".to_owned(), PermissionOptionKind::AllowOnce)];
    if !approval.rules.is_empty() {
        let name = format!("Allow, and do not ask again for {}", approval.rules.join(", "));
        options.push(PermissionOption::new(ALWAYS, name, PermissionOptionKind::AllowAlways));
    }
    options.push(PermissionOption::new(NO, "Deny".to_owned(), PermissionOptionKind::RejectOnce));
    let lines = approvals::lines(text, approval, true);
    let rows = lines.iter().flat_map(|line| line.rows(WIDTH)).map(|row| row.text());
    let rows: Vec<String> = rows.collect();
    // A diff shows the whole change.
    let change = calls::change(&approval.tool, &approval.arguments, folder, false);
    let content: ToolCallContent = match change {
        Some(change) => change.into(),
        None => calls::block(&rows.join("\n")).into(),
    };
    let content = vec![content];
    // Editors keep the title and the content for the call itself.
    let fields = ToolCallUpdateFields::new()
        .title(calls::title(&approval.tool, &approval.arguments.to_string()))
        .content(content)
        .raw_input(approval.arguments.clone());
    Asking::Permission(ToolCallUpdate::new(call_id.to_owned(), fields), options)
}

/// Returns the form of a question.
fn form(question: &Question) -> Option<Asking> {
    let field =
        |schema: Value| json!({ "type": "object", "properties": { FIELD: schema }, "required": [FIELD] });
    let schema = match &question.kind {
        QuestionKind::Text => field(json!({ "type": "string" })),
        QuestionKind::Choice { choices, several: false } => {
            field(json!({ "type": "string", "enum": choices }))
        }
        QuestionKind::Choice { choices, several: true } => {
            let items = json!({ "type": "string", "enum": choices });
            field(json!({ "type": "array", "items": items, "minItems": 1 }))
        }
        QuestionKind::Form { schema } => schema.clone(),
        QuestionKind::Approval { .. } | QuestionKind::Unknown | _ => return None,
    };
    let schema: ElicitationSchema = serde_json::from_value(schema).ok()?;
    let is_other = |field: &ElicitationPropertySchema| {
        if let ElicitationPropertySchema::Array(several) = field {
            return matches!(several.items, MultiSelectItems::Other(_));
        }
        matches!(field, ElicitationPropertySchema::Other(_))
    };
    let is_shown = !schema.properties.is_empty() && !schema.properties.values().any(is_other);
    let details = question.details.iter().map(|details| format!("\n\n{details}"));
    let message = question.text.clone() + &details.collect::<String>();
    is_shown.then_some(Asking::Form(schema, message))
}

/// Returns the answer of a form.
pub(crate) fn filled(
    question: &Question,
    content: Option<BTreeMap<String, ElicitationContentValue>>,
) -> Option<Value> {
    let content = serde_json::to_value(content?).ok()?;
    match &question.kind {
        QuestionKind::Form { .. } => Some(content),
        QuestionKind::Text | QuestionKind::Choice { .. } => content.get(FIELD).cloned(),
        QuestionKind::Approval { .. } | QuestionKind::Unknown | _ => None,
    }
}

/// Returns the answer of a chosen option.
pub(crate) fn answer(question: &Question, option: &str) -> Option<Value> {
    match &question.kind {
        QuestionKind::Approval { approval } => {
            let is_offered =
                option == YES || option == NO || (option == ALWAYS && !approval.rules.is_empty());
            is_offered.then(|| Value::from(option))
        }
        QuestionKind::Choice { choices, .. } => {
            let index: usize = option.parse().ok()?;
            choices.get(index).map(|choice| Value::from(choice.as_str()))
        }
        QuestionKind::Text | QuestionKind::Form { .. } | QuestionKind::Unknown | _ => None,
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
            let numbered = choices.iter().enumerate();
            let choices: String =
                numbered.map(|(index, choice)| format!("{}. {choice}\n", index + 1)).collect();
            let how =
                if *several { "one or more of these, with commas between them" } else { "one of these" };
            text.push_str(&format!("\n\n{choices}\nAnswer with {how}."));
        }
        QuestionKind::Form { schema } => {
            text.push_str(&format!(
                "\n\nAnswer with JSON that matches this schema:\n\n{}",
                calls::block(&schema.to_string())
            ));
        }
        QuestionKind::Text | QuestionKind::Approval { .. } | QuestionKind::Unknown | _ => {}
    }
    text
}

/// Returns the answer that words give; `None` if they are no valid one.
pub(crate) fn said(question: &Question, words: &str) -> Option<Value> {
    let words = words.trim();
    match &question.kind {
        QuestionKind::Choice { choices, several } => {
            // A choice, or its number.
            let chosen = |word: &str| {
                let word = word.trim().trim_start_matches("- ").trim_end_matches('.');
                let numbered =
                    word.parse().ok().and_then(|number: usize| choices.get(number.checked_sub(1)?));
                let named = choices.iter().find(|choice| choice.eq_ignore_ascii_case(word));
                named.or(numbered).map(|choice| Value::from(&**choice))
            };
            if !several {
                return chosen(words);
            }
            let words = words.split(['\n', ',']).filter(|word| !word.trim().is_empty());
            let chosen: Option<Vec<Value>> = words.map(chosen).collect();
            chosen.filter(|chosen| !chosen.is_empty()).map(Value::from)
        }
        QuestionKind::Form { .. } => serde_json::from_str(words).ok(),
        QuestionKind::Text | QuestionKind::Approval { .. } | QuestionKind::Unknown | _ => {
            Some(Value::from(words))
        }
    }
}
