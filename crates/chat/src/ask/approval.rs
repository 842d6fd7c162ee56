//! An approval, answered in place: yes, always, no, or no with words for the model.
//!
//! Invariants: as for every question, nothing is answered before Enter, and no answer is marked before the user
//! marked it. What is shown is bounded, and what is left out is said.

use greenroom::Approval;
use greenroom_terminal::input::{KeyCode, KeyEvent};
use greenroom_terminal::row::{Look, Row};
use serde_json::{Value, json};

use super::{Asked, edit};
use crate::editor::Editor;

/// How many rows of the changes are shown.
const PREVIEW_ROWS: usize = 24;
/// How many parts of a command are listed.
const PARTS_SHOWN: usize = 8;

/// What may be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Yes,
    Always,
    No,
    Words,
}

/// An approval being answered.
#[derive(Debug, Clone)]
pub(super) struct Form {
    approval: Approval,
    choices: Vec<Choice>,
    /// The marked answer; none at first.
    at: Option<usize>,
    words: Editor,
}

impl Form {
    pub(super) fn new(approval: &Approval) -> Self {
        let mut choices = vec![Choice::Yes, Choice::Always, Choice::No, Choice::Words];
        if approval.rules.is_empty() {
            choices.retain(|choice| *choice != Choice::Always);
        }
        Self { approval: approval.clone(), choices, at: None, words: Editor::default() }
    }

    fn marked(&self) -> Option<Choice> {
        self.choices.get(self.at?).copied()
    }

    /// Handles a key; returns `None` for a key that means nothing here.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Asked> {
        let last = self.choices.len() - 1;
        let is_writing = self.marked() == Some(Choice::Words);
        match (key.code, self.at) {
            (KeyCode::Up | KeyCode::BackTab, at) => {
                self.at = Some(at.and_then(|at| at.checked_sub(1)).unwrap_or(last))
            }
            (KeyCode::Down | KeyCode::Tab, at) => {
                self.at = Some(at.filter(|at| *at < last).map_or(0, |at| at + 1))
            }
            (KeyCode::Enter, at) => {
                let choice = self.choices.get(at?)?;
                let words = self.words.text();
                return Some(Asked::Answered(match choice {
                    Choice::Yes => Value::from("yes"),
                    Choice::Always => Value::from("always"),
                    Choice::No => Value::from("no"),
                    Choice::Words if words.trim().is_empty() => return Some(Asked::Waits),
                    Choice::Words => json!({ "no": words }),
                }));
            }
            _ if is_writing => edit(&mut self.words, key),
            (KeyCode::Char(digit @ '1'..='9'), _) => {
                let place = usize::try_from(digit.to_digit(10)?).ok()?.checked_sub(1)?;
                self.at = Some(place).filter(|place| *place <= last).or(self.at);
            }
            _ => return None,
        }
        Some(Asked::Waits)
    }

    /// Handles a paste.
    pub(super) fn paste(&mut self, text: &str) {
        if self.marked() == Some(Choice::Words) {
            self.words.paste(text);
        }
    }

    /// Adds the rows of the form; returns the cursor's position and the hint.
    pub(super) fn layout(&self, rows: &mut Vec<Row>, width: usize) -> ((usize, usize), &'static str) {
        let indent = Row::plain("    ");
        let wrapped = |text: &str, look: Look| Row::new(text, look).wrap(width, &indent, &indent);
        if let Some(why) = &self.approval.why {
            rows.extend(wrapped(&format!("because {why}"), Look::WARN));
        }
        if self.approval.parts.len() > 1 {
            for part in self.approval.parts.iter().take(PARTS_SHOWN) {
                rows.extend(wrapped(&format!("· {part}"), Look::PLAIN));
            }
            let more = self.approval.parts.len().saturating_sub(PARTS_SHOWN);
            if more > 0 {
                rows.push(indent.clone().and(&format!("and {more} more"), Look::DIM));
            }
        }
        match &self.approval.preview {
            Some(preview) => {
                let lines: Vec<&str> = preview.lines().collect();
                for line in lines.iter().take(PREVIEW_ROWS) {
                    let look = match line.chars().next() {
                        Some('+') => Look::GOOD,
                        Some('-') => Look::BAD,
                        Some(_) | None => Look::DIM,
                    };
                    rows.push(indent.clone().and(line, look).cut(width));
                }
                let more = lines.len().saturating_sub(PREVIEW_ROWS);
                if more > 0 {
                    rows.push(indent.clone().and(&format!("⋮ {more} more lines"), Look::DIM));
                }
            }
            // The question's own text shows the command, and the path.
            None if matches!(&*self.approval.tool, "bash" | "read" | "list" | "grep") => {}
            None => {
                let text = self.approval.arguments.to_string();
                rows.extend(wrapped(&text, Look::DIM).into_iter().take(PREVIEW_ROWS));
            }
        }
        if let Some(folder) = &self.approval.folder {
            rows.push(indent.clone().and(&format!("in {folder}"), Look::DIM).cut(width));
        }
        let mut cursor = (rows.len(), 2);
        for (index, choice) in self.choices.iter().enumerate() {
            let is_at = self.at == Some(index);
            if is_at {
                cursor = (rows.len(), 2);
            }
            let text = match choice {
                Choice::Yes => "Yes".to_owned(),
                Choice::Always => format!("Yes, and do not ask again for {}", self.approval.rules.join(", ")),
                Choice::No => "No".to_owned(),
                Choice::Words => "No, and tell the model what to do instead".to_owned(),
            };
            let pointer = if is_at { "  ❯ " } else { "    " };
            let look = if is_at { Look::BOLD } else { Look::PLAIN };
            let row =
                Row::new(pointer, Look::WARN).and(&format!("{}. ", index + 1), Look::DIM).and(&text, look);
            rows.push(row.cut(width));
        }
        if self.marked() == Some(Choice::Words) {
            let layout = self.words.layout(width.saturating_sub(6).max(4), 4);
            cursor = (rows.len() + layout.cursor.0, layout.cursor.1 + 6);
            rows.extend(layout.rows.into_iter().map(|row| Row::plain("      ").then(row)));
        }
        (cursor, "a number or ↑ ↓, then Enter · Esc: later")
    }
}
