//! Tool calls in a chat: one line each, the changes of an edit, and the full text on request.
//!
//! Invariants: the rows of a call are bounded; the full text of the newest calls is kept, so it can be shown
//! later.

use std::collections::VecDeque;

use greenroom_kernel::ToolStatus;
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

#[cfg(test)]
mod tests;

/// The most lines of a change shown at once.
const DIFF_LINES_MAX: usize = 16;
/// How many lines of context surround a change.
const AROUND: usize = 2;
/// For how many calls and thoughts the full text is kept.
const KEPT_MAX: usize = 50;
/// The frames of a spinner.
const WHEEL: [&str; 8] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧"];
/// The duration of a spinner's frame, in milliseconds.
pub(crate) const WHEEL_MS: u64 = 100;

/// Returns the spinner's frame at this time.
pub(crate) fn wheel(now_ms: u64) -> &'static str {
    let step = usize::try_from(now_ms / WHEEL_MS % WHEEL.len() as u64).unwrap_or(0);
    WHEEL.get(step).copied().unwrap_or("·")
}

/// A call in progress.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    pub(crate) call_id: String,
    name: String,
    arguments: String,
    started_ms: u64,
    /// The tool's last progress line.
    progress: String,
    /// The changed lines of a file as the tool reports them: their number, and those received.
    told: Option<(usize, Vec<String>)>,
}

/// A text that can be shown in full.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    call_id: String,
    title: String,
    arguments: String,
    changes: Vec<Row>,
    text: String,
    is_shown: bool,
    /// Whether the call failed and no reason has been shown.
    is_unexplained: bool,
}

/// The calls of a session that this chat has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    running: Vec<Running>,
    kept: VecDeque<Kept>,
}

impl Calls {
    /// Notes that a call has started.
    pub(crate) fn start(&mut self, call_id: &str, name: &str, arguments: &str, now_ms: u64) {
        // A call that is run again after a restart starts twice.
        self.running.retain(|running| running.call_id != call_id);
        self.running.push(Running {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
            started_ms: now_ms,
            progress: String::new(),
            told: None,
        });
    }

    /// Notes a progress line of a call.
    pub(crate) fn update(&mut self, call_id: &str, line: &str) {
        if let Some(running) = self.running.iter_mut().find(|running| running.call_id == call_id) {
            match (&mut running.told, line.strip_prefix("diff ").and_then(|count| count.parse().ok())) {
                (None, Some(count)) if running.name == "write" => running.told = Some((count, Vec::new())),
                (Some((count, lines)), _) if lines.len() < *count => lines.push(line.to_owned()),
                _ => running.progress = line.to_owned(),
            }
        }
    }

    /// Notes that a call has ended, with its duration if known. Returns the rows that remain.
    pub(crate) fn end(
        &mut self,
        call_id: &str,
        name: &str,
        status: ToolStatus,
        duration_ms: Option<u64>,
        width: usize,
    ) -> Vec<Row> {
        let place = self.running.iter().position(|running| running.call_id == call_id);
        let running = place.map(|place| self.running.remove(place));
        let (arguments, told) = running.map(|running| (running.arguments, running.told)).unwrap_or_default();
        let (mark, look, what) = match status {
            ToolStatus::Ok => ("✓", Look::GOOD, ""),
            ToolStatus::Error => ("✗", Look::BAD, " failed"),
            ToolStatus::Interrupted => ("✗", Look::WARN, " interrupted"),
        };
        let time = duration_ms.map(|ms| format!(" {}", format::duration(ms)));
        let after = format!("{what}{}", time.unwrap_or_default());
        let room = width.saturating_sub(5 + after.chars().count()).max(10);
        let title = format::call(name, &arguments, room);
        let mut rows = vec![
            Row::plain("  ").and(mark, look).and(&format!(" {title}"), Look::PLAIN).and(&after, Look::DIM),
        ];
        let changes = match told.filter(|(count, lines)| lines.len() == *count) {
            Some((_, lines)) => lines.iter().map(|line| told_change(line)).collect(),
            None => changes(name, &arguments),
        };
        if status == ToolStatus::Ok {
            rows.extend(changes.iter().take(DIFF_LINES_MAX).map(|row| row.cut(width)));
            if let Some(more) = changes.len().checked_sub(DIFF_LINES_MAX).filter(|more| *more > 0) {
                let more = format::count(more as u64, "more line");
                rows.push(Row::new(&format!("      … {more} · Ctrl-O shows all"), Look::DIM));
            }
        }
        self.keep(call_id, &title, changes, String::new());
        if let Some(kept) = self.kept.back_mut() {
            kept.arguments = arguments;
            kept.is_unexplained = status == ToolStatus::Error;
        }
        rows
    }

    /// Notes the result of a call. If the call failed, returns a row with the reason.
    pub(crate) fn result(&mut self, call_id: &str, text: &str, width: usize) -> Option<Row> {
        let is_newest = self.kept.back().is_some_and(|kept| kept.call_id == call_id);
        let kept = self.kept.iter_mut().rev().find(|kept| kept.call_id == call_id)?;
        text.clone_into(&mut kept.text);
        if !std::mem::take(&mut kept.is_unexplained) {
            return None;
        }
        // The output of a command comes before its exit status.
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let last = lines.clone().next_back().filter(|line| line.starts_with('[') && line.ends_with(']'));
        let reason = last.or_else(|| lines.next())?.trim_matches(['[', ']']);
        // Other rows may separate this one from the call's own.
        let call = if is_newest { String::new() } else { format!("{}: ", kept.title) };
        Some(Row::new(&format!("      {call}{reason}"), Look::DIM).cut(width))
    }

    /// Keeps the model's reasoning.
    pub(crate) fn thought(&mut self, title: &str, text: &str) {
        self.keep("", title, Vec::new(), text.to_owned());
    }

    /// Returns the full text of the newest call or thought that was not expanded yet; `None` if there is
    /// none.
    pub(crate) fn expand(&mut self, width: usize) -> Option<Vec<Row>> {
        let kept = self.kept.iter_mut().rev().find(|kept| !kept.is_shown)?;
        kept.is_shown = true;
        let mut rows = vec![Row::new(&format!("  ▾ {}", kept.title), Look::BOLD)];
        let indent = Row::plain("    ");
        let is_changing = !kept.changes.is_empty();
        for line in whole_arguments(&kept.arguments, is_changing) {
            rows.extend(Row::plain(&line).wrap_exactly(width, &indent));
        }
        rows.extend(kept.changes.iter().flat_map(|row| row.wrap_exactly(width, &Row::default())));
        let lines = kept.text.lines();
        rows.extend(lines.flat_map(|line| Row::new(line, Look::DIM).wrap_exactly(width, &indent)));
        if kept.text.is_empty() && kept.changes.is_empty() {
            rows.push(indent.and("no output yet", Look::DIM));
        }
        Some(rows)
    }

    /// Returns a row for each call in progress.
    pub(crate) fn rows(&self, width: usize, now_ms: u64) -> Vec<Row> {
        let row = |running: &Running| {
            let seconds = now_ms.saturating_sub(running.started_ms) / 1_000;
            let time = if seconds > 0 { format!(" {seconds} s") } else { String::new() };
            let call = format::call(&running.name, &running.arguments, width.saturating_sub(12).max(10));
            let mut row = Row::plain("  ")
                .and(wheel(now_ms), Look::NOTE)
                .and(&format!(" {call}"), Look::PLAIN)
                .and(&time, Look::DIM);
            if !running.progress.is_empty() {
                row.push(&format!(" … {}", running.progress), Look::DIM);
            }
            row.cut(width)
        };
        self.running.iter().map(row).collect()
    }

    /// Forgets all calls in progress.
    pub(crate) fn clear(&mut self) {
        self.running.clear();
    }

    fn keep(&mut self, call_id: &str, title: &str, changes: Vec<Row>, text: String) {
        let (call_id, title) = (call_id.to_owned(), title.to_owned());
        self.kept.push_back(Kept {
            call_id,
            title,
            arguments: String::new(),
            changes,
            text,
            is_shown: false,
            is_unexplained: false,
        });
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }
}

/// Returns the arguments of a call in full, since a call's title may be truncated. Texts that a change shows
/// are left out.
fn whole_arguments(arguments: &str, is_changing: bool) -> Vec<String> {
    let Ok(Value::Object(arguments)) = serde_json::from_str::<Value>(arguments) else {
        return arguments.lines().map(str::to_owned).collect();
    };
    let is_shown = |name: &str| !is_changing || !matches!(name, "old" | "new" | "content");
    let mut lines = Vec::new();
    for (name, value) in arguments.iter().filter(|(name, _)| is_shown(name)) {
        match value.as_str() {
            Some(text) => {
                let mut text = text.lines();
                lines.push(format!("{name}: {}", text.next().unwrap_or_default()));
                lines.extend(text.map(|line| format!("  {line}")));
            }
            None => lines.push(format!("{name}: {value}")),
        }
    }
    lines
}

/// Formats a line of a change as the tool reported it.
fn told_change(line: &str) -> Row {
    let (mark, text) = line.split_at(line.chars().next().map_or(0, char::len_utf8));
    let look = match mark {
        "-" => Look::BAD,
        "+" => Look::GOOD,
        _ => Look::DIM,
    };
    Row::new(&format!("      {mark} {text}"), look)
}

/// Returns the removed and added lines that can be read from the call's arguments.
fn changes(name: &str, arguments: &str) -> Vec<Row> {
    let Ok(arguments) = serde_json::from_str::<Value>(arguments) else { return Vec::new() };
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let (old, new) = match name {
        "edit" => (text("old"), text("new")),
        "write" => (Some(""), text("content")),
        _ => return Vec::new(),
    };
    let (Some(old), Some(new)) = (old, new) else { return Vec::new() };
    let diff = TextDiff::from_lines(old, new);
    let mut rows = Vec::new();
    for (index, group) in diff.grouped_ops(AROUND).iter().enumerate() {
        if index > 0 {
            rows.push(Row::new("      ⋮", Look::DIM));
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let (mark, look) = match change.tag() {
                ChangeTag::Delete => ("-", Look::BAD),
                ChangeTag::Insert => ("+", Look::GOOD),
                ChangeTag::Equal => (" ", Look::DIM),
            };
            rows.push(Row::new(&format!("      {mark} {}", change.value().trim_end_matches('\n')), look));
        }
    }
    rows
}
