//! An approval in lines: the reason, the whole command or change, the parts that need the
//! approval, the folder, and the rules that `always` adds.
//!
//! Invariants: nothing of the call is left out or shortened; what is invisible or misleading is escaped; text of the
//! call stands behind a bar at the left, so it cannot be taken for the dialog's own.

use greenroom::Approval;
use serde_json::Value;

use crate::harmless::evident;
use crate::{Look, Row};

#[cfg(test)]
mod tests;

/// Precedes a line of the call.
const BAR: &str = "│ ";
/// Precedes the rest of a line that does not fit.
const BAR_ON: &str = "┊ ";
/// Shorter arguments are shown in one line; in bytes.
const ONE_LINE_BYTES: usize = 100;

/// A line of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    text: Row,
    /// Whether it is text of the call.
    is_quoted: bool,
}

impl Line {
    fn own(text: &str, look: Look) -> Self {
        Self { text: Row::new(&evident(text), look), is_quoted: false }
    }

    fn quoted(text: &str, look: Look) -> Self {
        Self { text: Row::new(&evident(text), look), is_quoted: true }
    }

    /// Returns the line in rows of at most `width` columns, where a character fits into one. Nothing is left out.
    pub fn rows(&self, width: usize) -> Vec<Row> {
        if !self.is_quoted {
            return self.text.wrap_exactly(width, &Row::default());
        }
        let rows = self.text.wrap_exactly(width.saturating_sub(2), &Row::default());
        let bar = |index: usize| if index == 0 { BAR } else { BAR_ON };
        let rows = rows.into_iter().enumerate();
        rows.map(|(index, row)| Row::new(bar(index), Look::DIM).then(row)).collect()
    }
}

/// Returns the question `text` and everything that an approval of the call means; the rules that "always" adds only if
/// `has_rules`.
pub fn lines(text: &str, approval: &Approval, has_rules: bool) -> Vec<Line> {
    let Approval { tool, arguments, folder, why, parts, rules, preview, .. } = approval;
    let mut lines: Vec<Line> = text.split('\n').map(|line| Line::own(line, Look::BOLD)).collect();
    if let Some(why) = why {
        lines.push(Line::own(&format!("because {why}"), Look::WARN));
    }
    let command = arguments.get("command").and_then(Value::as_str).filter(|_| tool == "bash");
    let is_shown = |part: &str| !part.contains('\n') && text.contains(part);
    match (preview, command) {
        (Some(preview), _) => lines.extend(preview.lines().map(changed)),
        (None, Some(command)) => {
            if !is_shown(command.trim()) {
                let characters = crate::format::count(command.chars().count() as u64, "character");
                let count = crate::format::count(command.split('\n').count() as u64, "line");
                let what = format!("the whole command ({characters} in {count}):");
                lines.push(Line::own(&what, Look::DIM));
                lines.extend(command.split('\n').map(|line| Line::quoted(line, Look::PLAIN)));
            }
            let mut others = arguments.clone();
            if let Some(others) = others.as_object_mut() {
                others.remove("command");
            }
            if others.as_object().is_some_and(|others| !others.is_empty()) {
                lines.push(Line::quoted(&others.to_string(), Look::DIM));
            }
        }
        (None, None) => lines.extend(given(arguments).split('\n').map(|line| Line::quoted(line, Look::DIM))),
    }
    let is_all = |part: &String| command.is_some_and(|command| part.trim() == command.trim());
    if !parts.iter().all(|part| is_all(part) || is_shown(part)) {
        lines.push(Line::own(&format!("needs the approval ({}):", parts.len()), Look::DIM));
        lines.extend(parts.iter().map(|part| Line::quoted(part, Look::PLAIN)));
    }
    if let Some(folder) = folder {
        lines.push(Line::own(&format!("in {folder}"), Look::DIM));
    }
    let rules = rules.iter().filter(|_| has_rules);
    lines.extend(rules.map(|rule| Line::own(&format!("\"always\" allows {rule}"), Look::DIM)));
    lines
}

/// Returns a line of a change.
fn changed(line: &str) -> Line {
    let look = match line.chars().next() {
        Some('+') => Look::GOOD,
        Some('-') => Look::BAD,
        Some(_) | None => Look::DIM,
    };
    Line::quoted(line, look)
}

fn given(arguments: &Value) -> String {
    let text = match arguments {
        // They were too long, and are a text that says so.
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            arguments.to_string()
        }
    };
    match text.len() <= ONE_LINE_BYTES {
        true => text,
        false => serde_json::to_string_pretty(arguments).unwrap_or(text),
    }
}
