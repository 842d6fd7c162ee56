//! A tool's question, answered in place: a text, a choice by number or arrow keys, several choices, or a form
//! field by field.
//!
//! Invariants: nothing is answered before Enter, and no choice before the user selected it, because a
//! question may appear while the user is typing something else; of approvals, `approval` says what holds. An answer has
//! the type that the question requires; otherwise it is refused here with the reason, and the typed text is kept.

use greenroom::{EntryId, QuestionKind};
use greenroom_kernel::question::QuestionEnd;
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};
use serde_json::{Map, Number, Value};

use super::editor::{Edit, Editor};

mod approval;
#[cfg(test)]
mod tests;

/// For how long a question is new, in milliseconds: nobody reads and answers faster. Who types a text presses the next
/// key within this time.
const MOMENT_MS: u64 = 500;
/// After a character that chooses nothing, characters and Enter choose nothing until this pause, in milliseconds.
const PAUSE_MS: u64 = 1_000;
/// How many choices are visible at once.
const CHOICES_SHOWN: usize = 8;

/// The effect of a key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum AskOutcome {
    /// No answer yet.
    Waits,
    /// The answer.
    Answered(Value),
    /// The answer, which refuses a call; the run ends.
    Refused(Value),
    /// The answer, and from now on edits need none.
    AnsweredForEdits(Value),
    /// The user postponed the question.
    Later,
    /// The user types something else, which belongs to the editor: the question is postponed.
    Typed(String),
    /// Not a key for a question.
    NotMine,
}

impl AskOutcome {
    /// Whether it is an answer, which is sent.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Self::Answered(_) | Self::Refused(_) | Self::AnsweredForEdits(_) => true,
            Self::Waits | Self::Later | Self::Typed(_) | Self::NotMine => false,
        }
    }
}

/// One field of a form.
#[derive(Debug, Clone)]
struct Field {
    name: String,
    description: String,
    /// The type's name in JSON schema.
    kind: String,
    choices: Vec<String>,
    is_required: bool,
    editor: Editor,
}

#[derive(Debug, Clone)]
enum Form {
    Text(Editor),
    Choice {
        choices: Vec<String>,
        several: bool,
        /// The selected choice; none at first.
        at: Option<usize>,
        chosen: Vec<bool>,
    },
    Fields {
        fields: Vec<Field>,
        at: usize,
    },
    /// Any other schema: the user writes JSON.
    Json(Editor),
    Approval(Box<approval::Form>),
}

/// A question being answered.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) id: EntryId,
    /// The call that asks.
    pub(crate) call_id: String,
    tool: String,
    text: String,
    details: Vec<String>,
    form: Form,
    problem: Option<String>,
    /// What was typed for the answer that this chat has sent.
    sent: Option<String>,
    /// When it appeared, in Unix milliseconds.
    since_ms: u64,
    /// When a character was typed last that chooses nothing, in Unix milliseconds.
    stray_ms: Option<u64>,
}

impl Ask {
    /// Creates the view of a tool's question.
    pub(crate) fn new(
        id: EntryId,
        tool: &str,
        text: &str,
        details: Option<&str>,
        kind: &QuestionKind,
    ) -> Self {
        let form = match kind {
            QuestionKind::Choice { choices, several } => Form::Choice {
                choices: choices.clone(),
                several: *several,
                at: None,
                chosen: vec![false; choices.len()],
            },
            QuestionKind::Form { schema } => match fields(schema) {
                Some(fields) => Form::Fields { fields, at: 0 },
                None => Form::Json(Editor::default()),
            },
            QuestionKind::Approval { approval } => {
                Form::Approval(Box::new(approval::Form::new(text, approval)))
            }
            QuestionKind::Text | _ => Form::Text(Editor::default()),
        };
        Self {
            id,
            call_id: String::new(),
            tool: tool.to_owned(),
            text: text.to_owned(),
            details: details.map(|details| details.lines().map(str::to_owned).collect()).unwrap_or_default(),
            form,
            problem: None,
            sent: None,
            since_ms: 0,
            stray_ms: None,
        }
    }

    /// Sets the call that asks.
    pub(crate) fn of_call(mut self, call_id: &str) -> Self {
        call_id.clone_into(&mut self.call_id);
        self
    }

    /// Whether it asks whether a call may run.
    pub(crate) fn is_approval(&self) -> bool {
        matches!(self.form, Form::Approval(_))
    }

    /// Notes that this chat sends what was typed.
    pub(crate) fn sends(&mut self) {
        self.sent = Some(self.typed());
    }

    /// Returns the text that was typed for an answer.
    fn typed(&self) -> String {
        match &self.form {
            Form::Text(editor) | Form::Json(editor) => editor.text(),
            Form::Approval(form) => form.words(),
            Form::Fields { fields, .. } => {
                let texts = fields.iter().map(|field| field.editor.text()).filter(|text| !text.is_empty());
                texts.collect::<Vec<_>>().join("\n")
            }
            Form::Choice { .. } => String::new(),
        }
    }

    /// Returns the text that was typed for an answer, if the question did not end with it. `user` is the name of this
    /// user.
    pub(crate) fn draft(&self, end: Option<&QuestionEnd>, user: Option<&str>) -> String {
        let text = self.typed();
        // The log may have the sent answer without its secrets, so the two are not compared.
        let is_sent = self.sent.as_deref() == Some(&*text);
        let is_answer = match end {
            Some(QuestionEnd::Answered(answer)) if is_sent && answer.by.as_deref() == user => true,
            Some(QuestionEnd::Answered(answer)) => {
                let words = answer.value.get("no").unwrap_or(&answer.value);
                let is_json =
                    |text| serde_json::from_str(text).is_ok_and(|value: Value| value == answer.value);
                match &self.form {
                    Form::Json(_) => is_json(&text),
                    Form::Fields { fields, .. } => object_of(fields).is_ok_and(|value| value == answer.value),
                    Form::Text(_) | Form::Approval(_) | Form::Choice { .. } => {
                        words.as_str().is_some_and(|words| words.trim() == text.trim())
                    }
                }
            }
            Some(QuestionEnd::Expired | QuestionEnd::Withdrawn | _) => false,
            None => is_sent,
        };
        if is_answer { String::new() } else { text }
    }

    /// Notes when it appeared.
    pub(crate) fn appears(&mut self, now_ms: u64) {
        self.since_ms = now_ms;
    }

    /// The question's text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Shows why the answer was refused.
    pub(crate) fn refuse(&mut self, problem: &str) {
        (self.problem, self.sent) = (Some(problem.to_owned()), None);
    }

    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent, now_ms: u64) -> AskOutcome {
        let is_new = now_ms.saturating_sub(self.since_ms) < MOMENT_MS;
        self.problem = None;
        if key.code == KeyCode::Esc {
            self.leave();
            return AskOutcome::Later;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd' | 'z'))
        {
            self.leave();
            return AskOutcome::NotMine;
        }
        match &mut self.form {
            Form::Text(editor) | Form::Json(editor) if key.code != KeyCode::Enter => {
                edit(editor, key);
                AskOutcome::Waits
            }
            Form::Text(editor) => match editor.text() {
                text if text.trim().is_empty() => AskOutcome::Waits,
                text => AskOutcome::Answered(Value::from(text)),
            },
            Form::Json(editor) => match serde_json::from_str(&editor.text()) {
                Ok(value) => AskOutcome::Answered(value),
                Err(error) => {
                    self.problem = Some(format!("not valid JSON: {error}"));
                    AskOutcome::Waits
                }
            },
            Form::Choice { choices, several, at, chosen } => {
                let types = typed(key).is_some();
                let stray = self.stray_ms.filter(|_| types || key.code == KeyCode::Enter);
                let is_stray = stray.is_some_and(|stray| now_ms.saturating_sub(stray) < PAUSE_MS);
                let asked = match is_stray {
                    true => None,
                    false => choose(choices, *several, at, chosen, key),
                };
                self.stray_ms = stray.filter(|_| is_stray);
                asked.unwrap_or_else(|| {
                    if types {
                        // What was typed before it was a text, too.
                        (*at, self.stray_ms) = (None, Some(now_ms));
                    }
                    self.problem = Some("a number or ↑ ↓ chooses; Esc for something else".to_owned());
                    AskOutcome::Waits
                })
            }
            Form::Approval(form) => form.key(key, now_ms, is_new).unwrap_or_else(|problem| {
                self.problem = Some(problem);
                AskOutcome::Waits
            }),
            Form::Fields { fields, at } => match fill(fields, at, key) {
                Ok(asked) => asked,
                Err(problem) => {
                    self.problem = Some(problem);
                    AskOutcome::Waits
                }
            },
        }
    }

    /// Returns the answer that was typed a moment ago, once it is certain that nothing follows.
    pub(crate) fn due(&mut self, now_ms: u64) -> AskOutcome {
        let Form::Approval(form) = &mut self.form else { return AskOutcome::Waits };
        form.due(now_ms).unwrap_or(Ok(AskOutcome::Waits)).unwrap_or_else(|problem| {
            self.problem = Some(problem);
            AskOutcome::Waits
        })
    }

    /// Notes that the user leaves the question: an answer that was typed a moment ago does not count.
    pub(crate) fn leave(&mut self) {
        if let Form::Approval(form) = &mut self.form {
            form.leave();
        }
    }

    /// Whether a typed answer waits until it is certain that nothing follows.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.form, Form::Approval(form) if form.is_held())
    }

    /// Handles a paste. Returns the text that belongs to the editor.
    pub(crate) fn paste(&mut self, text: &str) -> Option<String> {
        match &mut self.form {
            Form::Text(editor) | Form::Json(editor) => editor.paste(text),
            Form::Fields { fields, at } => {
                if let Some(field) = fields.get_mut(*at) {
                    field.editor.paste(text);
                }
            }
            Form::Approval(form) => return form.paste(text),
            Form::Choice { .. } => {}
        }
        None
    }

    /// Returns the rows that remain when the question has ended. `user` is the name of this user. Of an approval, the
    /// row of its call tells.
    pub(crate) fn ended(&self, end: &QuestionEnd, user: Option<&str>, width: usize) -> Vec<Row> {
        let is_mine = |by: &Option<String>| by.is_none() || by.as_deref() == user;
        match (&self.form, end) {
            (Form::Approval(_), QuestionEnd::Withdrawn) => return Vec::new(),
            (Form::Approval(_), QuestionEnd::Answered(answer)) if is_mine(&answer.by) => return Vec::new(),
            (_, _) => {}
        }
        let indent = Row::plain("    ");
        let mut rows = Row::new(&self.text, Look::BOLD).wrap(width, &Row::new("  ? ", Look::WARN), &indent);
        let text = match end {
            QuestionEnd::Answered(answer) => {
                let value = match &answer.value {
                    Value::String(text) => text.clone(),
                    Value::Object(no) if matches!(self.form, Form::Approval(_)) => {
                        let words = no.get("no").and_then(Value::as_str).unwrap_or_default();
                        format!("no: {words}")
                    }
                    value @ (Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::Array(_)
                    | Value::Object(_)) => value.to_string(),
                };
                let by = answer.by.as_ref().filter(|_| !is_mine(&answer.by));
                let by = by.map(|by| format!(" (by {by})")).unwrap_or_default();
                format!("{value}{by}")
            }
            QuestionEnd::Expired => "expired without an answer".to_owned(),
            QuestionEnd::Withdrawn | _ => "withdrawn".to_owned(),
        };
        rows.extend(Row::new(&text, Look::PLAIN).wrap(width, &Row::new("  → ", Look::GOOD), &indent));
        rows
    }

    /// Returns the question with its editor, and the cursor's position. An approval has at most `room` rows.
    pub(crate) fn layout(&mut self, width: usize, room: usize) -> (Vec<Row>, (usize, usize)) {
        let (indent, none) = (Row::plain("    "), Row::default());
        if let Form::Approval(form) = &mut self.form {
            let problem = self.problem.as_ref().map(|problem| Row::new(problem, Look::BAD));
            let edits =
                if form.edits() && form.is_read() { " · Shift+Tab: yes, and accept all edits" } else { "" };
            let hint = format!("Enter or a number{edits} · Esc: later");
            let hint = Row::new(&hint, Look::DIM);
            let foot = problem.into_iter().chain([hint]).map(|row| indent.clone().then(row).cut(width));
            return form.layout(width, room, foot.collect());
        }
        let mark = Row::new("  ? ", Look::WARN);
        let mut rows = Row::new(&self.text, Look::BOLD).wrap(width, &mark, &indent);
        for line in &self.details {
            rows.extend(Row::new(line, Look::DIM).wrap(width, &indent, &indent));
        }
        let mut cursor = (rows.len(), 0);
        let write = |editor: &Editor, rows: &mut Vec<Row>| {
            let layout = editor.layout(width.saturating_sub(2).max(4), 6);
            let at = (rows.len() + layout.cursor.0, layout.cursor.1 + 2);
            rows.extend(layout.rows.into_iter().map(|row| Row::plain("  ").then(row)));
            at
        };
        let hint = match &self.form {
            Form::Text(editor) => {
                cursor = write(editor, &mut rows);
                "Enter answers · Esc: later"
            }
            Form::Json(editor) => {
                cursor = write(editor, &mut rows);
                "JSON; Enter answers · Esc: later"
            }
            Form::Approval(_) => "",
            Form::Choice { choices, several, at, chosen } => {
                let first = at.map_or(0, |at| (at + 1).saturating_sub(CHOICES_SHOWN));
                cursor = (rows.len(), 2);
                for (index, choice) in choices.iter().enumerate().skip(first).take(CHOICES_SHOWN) {
                    let is_at = *at == Some(index);
                    if is_at {
                        cursor = (rows.len(), 2);
                    }
                    let tick = match (several, chosen.get(index)) {
                        (true, Some(true)) => "☑ ",
                        (true, _) => "☐ ",
                        (false, _) => "",
                    };
                    let pointer = if is_at { "  ❯ " } else { "    " };
                    let look = if is_at { Look::BOLD } else { Look::PLAIN };
                    let row = Row::new(pointer, Look::WARN)
                        .and(&format!("{tick}{}. ", index + 1), Look::DIM)
                        .and(choice, look);
                    rows.push(row.cut(width));
                }
                if *several {
                    "numbers or ↑ ↓ and Space, then Enter · Esc: later"
                } else {
                    "a number or ↑ ↓, then Enter · Esc: later"
                }
            }
            Form::Fields { fields, at } => {
                for (index, field) in fields.iter().enumerate() {
                    let need = if field.is_required { "" } else { ", may be left empty" };
                    let what = if field.choices.is_empty() {
                        field.kind.clone()
                    } else {
                        format!("one of {}", field.choices.join(", "))
                    };
                    let name = Row::plain("    ").and(&field.name, Look::BOLD);
                    let name = name.and(&format!(" ({what}{need}) {}", field.description), Look::DIM);
                    if index == *at {
                        rows.extend(name.wrap(width, &none, &indent));
                        cursor = write(&field.editor, &mut rows);
                    } else if index < *at {
                        let row = Row::plain("    ").and(&field.name, Look::BOLD);
                        rows.push(row.and(&format!(": {}", field.editor.text()), Look::PLAIN).cut(width));
                    }
                }
                "Enter: next · ↑ back · Esc: later"
            }
        };
        if let Some(problem) = &self.problem {
            rows.extend(Row::new(problem, Look::BAD).wrap(width, &indent, &indent));
        }
        let hint = format!("{hint} · asked by {}", self.tool);
        rows.push(indent.and(&hint, Look::DIM).cut(width));
        (rows, cursor)
    }
}

/// Returns the character that a key types.
fn typed(key: KeyEvent) -> Option<char> {
    let is_plain = !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
    key.code.as_char().filter(|_| is_plain)
}

/// Handles the keys of a list of choices; returns `None` for other keys.
fn choose(
    choices: &[String],
    several: bool,
    at: &mut Option<usize>,
    chosen: &mut [bool],
    key: KeyEvent,
) -> Option<AskOutcome> {
    let last = choices.len().saturating_sub(1);
    match (key.code, *at) {
        (KeyCode::Up | KeyCode::BackTab, now) => {
            *at = Some(now.and_then(|now| now.checked_sub(1)).unwrap_or(last));
        }
        (KeyCode::Down | KeyCode::Tab, now) => {
            *at = Some(now.filter(|now| *now < last).map_or(0, |now| now + 1));
        }
        (KeyCode::Home, _) => *at = Some(0),
        (KeyCode::End, _) => *at = Some(last),
        (KeyCode::Char(' '), Some(now)) if several => toggle(chosen, now),
        (KeyCode::Char(digit @ '0'..='9'), now) => {
            let digit = digit.to_digit(10).and_then(|digit| usize::try_from(digit).ok())?;
            // With many choices, a second digit extends the number: 4 and 2 select choice 42.
            let longer = now.map(|now| (now + 1) * 10 + digit).filter(|number| *number <= choices.len());
            let number = longer.unwrap_or(digit);
            let place = number.checked_sub(1).filter(|place| *place <= last)?;
            *at = Some(place);
            if several && choices.len() < 10 {
                toggle(chosen, place);
            }
        }
        (KeyCode::Enter, _) if several => {
            let values = choices.iter().zip(chosen.iter()).filter(|(_, is_chosen)| **is_chosen);
            let values: Vec<Value> = values.map(|(choice, _)| Value::from(choice.as_str())).collect();
            return (!values.is_empty()).then(|| AskOutcome::Answered(Value::from(values)));
        }
        (KeyCode::Enter, now) => {
            let choice = choices.get(now?)?;
            return Some(AskOutcome::Answered(Value::from(choice.as_str())));
        }
        (KeyCode::Char(_), _) => return None,
        _ => {}
    }
    Some(AskOutcome::Waits)
}

fn toggle(chosen: &mut [bool], place: usize) {
    if let Some(is_chosen) = chosen.get_mut(place) {
        *is_chosen = !*is_chosen;
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
fn fill(fields: &mut [Field], at: &mut usize, key: KeyEvent) -> Result<AskOutcome, String> {
    match key.code {
        KeyCode::Up | KeyCode::BackTab => *at = at.saturating_sub(1),
        KeyCode::Enter | KeyCode::Tab => {
            let Some(field) = fields.get(*at) else { return Ok(AskOutcome::Waits) };
            value_of(field)?;
            if *at + 1 < fields.len() {
                *at += 1;
                return Ok(AskOutcome::Waits);
            }
            return object_of(fields).map(AskOutcome::Answered);
        }
        _ => {
            if let Some(field) = fields.get_mut(*at) {
                edit(&mut field.editor, key);
            }
        }
    }
    Ok(AskOutcome::Waits)
}

/// Returns the answer that the fields make.
fn object_of(fields: &[Field]) -> Result<Value, String> {
    let mut object = Map::new();
    for field in fields {
        if let Some(value) = value_of(field)? {
            object.insert(field.name.clone(), value);
        }
    }
    Ok(Value::Object(object))
}

/// Converts the text of a field into the field's type.
fn value_of(field: &Field) -> Result<Option<Value>, String> {
    let text = field.editor.text();
    let text = text.trim();
    let name = &field.name;
    if text.is_empty() {
        return if field.is_required { Err(format!("{name} is required")) } else { Ok(None) };
    }
    if !field.choices.is_empty() {
        let chosen = field.choices.iter().find(|choice| choice.eq_ignore_ascii_case(text));
        return match chosen {
            Some(choice) => Ok(Some(Value::from(choice.as_str()))),
            None => Err(format!("{name} must be one of {}", field.choices.join(", "))),
        };
    }
    let value = match field.kind.as_str() {
        "string" => Some(Value::from(text)),
        "boolean" => match text.to_ascii_lowercase().as_str() {
            "y" | "yes" | "true" => Some(Value::from(true)),
            "n" | "no" | "false" => Some(Value::from(false)),
            _ => return Err(format!("{name} must be yes or no")),
        },
        "integer" => text.parse::<i64>().ok().map(Value::from),
        "number" => text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
        _ => serde_json::from_str(text).ok(),
    };
    match value {
        Some(value) => Ok(Some(value)),
        None => Err(format!("{name} must be of type {}", field.kind)),
    }
}

/// Returns the fields of an object schema; `None` for other schemas.
fn fields(schema: &Value) -> Option<Vec<Field>> {
    let properties = schema.get("properties")?.as_object()?;
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let fields: Vec<Field> = properties
        .iter()
        .map(|(name, property)| {
            let text = |name: &str| property.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let kind = match property.get("type") {
                Some(Value::String(kind)) => kind.clone(),
                // An optional field: the type, or null.
                Some(Value::Array(kinds)) => {
                    let kind = kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null");
                    kind.unwrap_or("JSON").to_owned()
                }
                _ => "JSON".to_owned(),
            };
            let choices = property.get("enum").and_then(Value::as_array);
            let choices = choices.map(|choices| choices.iter().filter_map(Value::as_str).map(str::to_owned));
            Field {
                description: text("description"),
                kind,
                choices: choices.map(Iterator::collect).unwrap_or_default(),
                is_required: required.contains(&name.as_str()),
                name: name.clone(),
                editor: Editor::default(),
            }
        })
        .collect();
    (!fields.is_empty()).then_some(fields)
}

/// Handles the keys of a single-line field.
#[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
fn edit(editor: &mut Editor, key: KeyEvent) {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    let edit = match key.code {
        KeyCode::Char('a') if is_control => Edit::Home,
        KeyCode::Char('e') if is_control => Edit::End,
        KeyCode::Char('u') if is_control => Edit::KillToStart,
        KeyCode::Char('k') if is_control => Edit::KillToEnd,
        KeyCode::Char('w') if is_control => Edit::DeleteWordLeft,
        KeyCode::Char('y') if is_control => Edit::Yank,
        KeyCode::Char(c) if !is_control => {
            editor.insert(c.encode_utf8(&mut [0; 4]));
            return;
        }
        KeyCode::Left => Edit::Left,
        KeyCode::Right => Edit::Right,
        KeyCode::Home => Edit::Home,
        KeyCode::End => Edit::End,
        KeyCode::Backspace => Edit::Backspace,
        KeyCode::Delete => Edit::Delete,
        _ => return,
    };
    editor.edit(edit);
}
