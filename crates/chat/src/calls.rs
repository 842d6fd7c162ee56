//! Tool calls in a chat: one line each that summarises the result, some lines of the result, and the full text on
//! request.
//!
//! Invariants: the rows of a call are bounded, and written once, when its result is known; the full text of the newest
//! calls is kept, so it can be shown later.

use std::collections::{HashMap, VecDeque};

use greenroom::{CallView, EntryId};
use greenroom_kernel::ToolStatus;
use greenroom_terminal::format;
use greenroom_terminal::row::{Look, Row};
use serde_json::Value;

use self::changes::Changes;
use self::gist::{Gist, Preview};

mod changes;
mod gist;
#[cfg(test)]
mod tests;

/// The maximum number of lines of a change shown at once.
const DIFF_LINES_MAX: usize = 16;
/// A shorter call does not say how long it took, in milliseconds.
const LONG_MS: u64 = 1_000;
/// For how many calls, thoughts and summaries the full text is kept.
const KEPT_MAX: usize = 100;
/// The frames of a spinner.
const WHEEL: [&str; 8] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧"];
/// The duration of a spinner's frame, in milliseconds.
pub(crate) const WHEEL_MS: u64 = 100;

/// Returns the spinner's frame at this time.
pub(crate) fn wheel(now_ms: u64) -> &'static str {
    let step = usize::try_from(now_ms / WHEEL_MS % WHEEL.len() as u64).unwrap_or(0);
    WHEEL.get(step).copied().unwrap_or("·")
}

/// A call whose result is not known yet.
#[derive(Debug, Clone)]
struct Running {
    call_id: String,
    name: String,
    arguments: String,
    started_ms: u64,
    /// The tool's last progress line.
    progress: String,
    /// The changed lines of a file as the tool reports them: their number, and those received.
    told: Option<(usize, Vec<String>)>,
    /// How the call ended, and how long it took, once it has.
    ended: Option<(ToolStatus, u64)>,
    /// Whether it waits for a person.
    asks: bool,
    /// Since when it has run after a person answered, in Unix milliseconds: the wait is not the call's time.
    answered_ms: Option<u64>,
}

/// What a kept text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Call,
    Thought,
    /// The compaction with this entry.
    Summary(EntryId),
}

/// A text that can be shown in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Its number, by which the viewer knows it.
    pub(crate) number: u64,
    origin: Origin,
    /// What its row said.
    head: Row,
    arguments: String,
    changes: Vec<Row>,
    /// `None` for a summary that was not read yet.
    text: Option<String>,
}

impl Kept {
    /// Returns the row above the text.
    pub(crate) fn head(&self) -> &Row {
        &self.head
    }

    /// Returns the full text in rows.
    pub(crate) fn rows(&self, width: usize) -> Vec<Row> {
        let indent = Row::plain("    ");
        let mut rows = Vec::new();
        for line in whole_arguments(&self.arguments, !self.changes.is_empty()) {
            rows.extend(Row::plain(&line).wrap_exactly(width, &indent));
        }
        rows.extend(self.changes.iter().flat_map(|row| row.wrap_exactly(width, &Row::default())));
        let look = match self.origin {
            Origin::Call => Look::DIM,
            Origin::Thought | Origin::Summary(_) => Look::PLAIN,
        };
        match self.text.as_deref() {
            None => rows.push(indent.and("reading it …", Look::DIM)),
            Some("") if self.changes.is_empty() => rows.push(indent.and("no output", Look::DIM)),
            Some(text) => {
                rows.extend(text.lines().flat_map(|line| match self.origin {
                    Origin::Call => Row::new(line, look).wrap_exactly(width, &indent),
                    Origin::Thought | Origin::Summary(_) => {
                        Row::new(line, look).wrap(width, &indent, &indent)
                    }
                }));
            }
        }
        rows
    }
}

/// The calls of a session that this chat has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    /// The arguments of the calls of the newest answer, by their ids: not all of them begin.
    announced: HashMap<String, String>,
    running: Vec<Running>,
    kept: VecDeque<Kept>,
    next_number: u64,
}

impl Calls {
    /// Notes the calls of an answer.
    pub(crate) fn announce(&mut self, calls: &[CallView]) {
        self.announced = calls.iter().map(|call| (call.id.clone(), call.arguments.clone())).collect();
    }

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
            ended: None,
            asks: false,
            answered_ms: None,
        });
    }

    /// Notes that a call waits for a person.
    pub(crate) fn asks(&mut self, call_id: &str) {
        if let Some(running) = self.running.iter_mut().find(|running| running.call_id == call_id) {
            running.asks = true;
        }
    }

    /// Notes that a call that waited for a person runs from now on.
    pub(crate) fn go_on(&mut self, call_id: &str, now_ms: u64) {
        let waits = |running: &&mut Running| running.asks && running.call_id == call_id;
        if let Some(running) = self.running.iter_mut().find(waits) {
            (running.asks, running.answered_ms) = (false, Some(now_ms));
        }
    }

    /// Notes a progress line of a call.
    pub(crate) fn update(&mut self, call_id: &str, line: &str) {
        if let Some(running) = self.running.iter_mut().find(|running| running.call_id == call_id) {
            let tells = matches!(running.name.as_str(), "write" | "edit");
            match (&mut running.told, line.strip_prefix("diff ").and_then(|count| count.parse().ok())) {
                (None, Some(count)) if tells => running.told = Some((count, Vec::new())),
                (Some((count, lines)), _) if lines.len() < *count => lines.push(line.to_owned()),
                _ => line.clone_into(&mut running.progress),
            }
        }
    }

    /// Notes that a call has ended; its result follows.
    pub(crate) fn end(
        &mut self,
        call_id: &str,
        name: &str,
        status: ToolStatus,
        duration_ms: u64,
        now_ms: u64,
    ) {
        if !self.running.iter().any(|running| running.call_id == call_id) {
            self.start(call_id, name, "", 0);
        }
        if let Some(running) = self.running.iter_mut().find(|running| running.call_id == call_id) {
            let ran_ms = match running.answered_ms {
                _ if running.asks => 0,
                Some(since) => now_ms.saturating_sub(since),
                None => duration_ms,
            };
            running.ended = Some((status, ran_ms));
        }
    }

    /// Notes the result of a call. Returns the rows that remain.
    pub(crate) fn result(
        &mut self,
        call_id: &str,
        name: &str,
        status: ToolStatus,
        text: &str,
        width: usize,
    ) -> Vec<Row> {
        let place = self.running.iter().position(|running| running.call_id == call_id);
        let running = place.map(|place| self.running.remove(place));
        let running = running.unwrap_or_else(|| Running {
            call_id: call_id.to_owned(),
            name: name.to_owned(),
            arguments: self.announced.remove(call_id).unwrap_or_default(),
            started_ms: 0,
            progress: String::new(),
            told: None,
            ended: None,
            asks: false,
            answered_ms: None,
        });
        self.finish(running, status, Some(text), width)
    }

    /// Returns the rows of the calls that have ended without a result, and forgets all calls in progress.
    pub(crate) fn clear(&mut self, width: usize) -> Vec<Row> {
        let running = std::mem::take(&mut self.running);
        let ended =
            running.into_iter().filter_map(|running| running.ended.map(|(status, _)| (running, status)));
        let ended: Vec<(Running, ToolStatus)> = ended.collect();
        ended.into_iter().flat_map(|(running, status)| self.finish(running, status, None, width)).collect()
    }

    /// Returns the rows of a finished call, and keeps its full text.
    fn finish(&mut self, running: Running, status: ToolStatus, text: Option<&str>, width: usize) -> Vec<Row> {
        let Running { name, arguments, told, ended, .. } = running;
        let changes = match told.filter(|(count, lines)| lines.len() == *count) {
            Some((_, lines)) => Changes::told(&lines),
            None => Changes::of_arguments(&name, &arguments, text.and_then(first_line)),
        };
        // A failed call has changed nothing.
        let changes = if status == ToolStatus::Ok { changes } else { Changes::default() };
        let gist = Gist::of(&name, status, text.unwrap_or_default());
        let time = ended.map(|(_, ms)| ms).filter(|ms| *ms >= LONG_MS).map(format::duration);
        let facts = [changes.sum(), Some(gist.text.clone()).filter(|text| !text.is_empty()), time];
        let after: String = facts.into_iter().flatten().map(|fact| format!(" · {fact}")).collect();
        let (mark, look) = mark(status);
        let room = width.saturating_sub(5 + greenroom_terminal::screen::columns(&after)).max(10);
        let title = format::call(&name, &arguments, room);
        let head =
            Row::plain("  ").and(mark, look).and(&format!(" {title}"), Look::PLAIN).and(&after, Look::DIM);
        let changed = changes.rows();
        let mut rows = vec![head.cut(width)];
        rows.extend(changed.iter().take(DIFF_LINES_MAX).map(|row| row.cut(width)));
        if let Some(more) = changed.len().checked_sub(DIFF_LINES_MAX).filter(|more| *more > 0) {
            rows.push(more_row(more as u64, "more line"));
        }
        let (lines, more) = gist.shown();
        if more > 0 && gist.preview == Preview::Last {
            rows.push(more_row(more, "earlier line"));
        }
        rows.extend(lines.iter().map(|line| Row::new(&format!("      {line}"), Look::DIM).cut(width)));
        if more > 0 && gist.preview == Preview::First {
            rows.push(more_row(more, "more line"));
        }
        self.keep(Origin::Call, head, Some(text.unwrap_or_default().to_owned()));
        if let Some(kept) = self.kept.back_mut() {
            (kept.arguments, kept.changes) = (arguments, changed);
        }
        rows
    }

    /// Keeps the model's reasoning.
    pub(crate) fn thought(&mut self, title: &str, text: &str) {
        let head = Row::plain("  ").and("∴", Look::NOTE).and(&format!(" {title}"), Look::PLAIN);
        self.keep(Origin::Thought, head, Some(text.to_owned()));
    }

    /// Keeps a place for the summary of a compaction, which is read when it is to be shown.
    pub(crate) fn compacted(&mut self, entry: EntryId, title: &str) {
        let head = Row::plain("  ").and("≡", Look::NOTE).and(&format!(" {title}"), Look::PLAIN);
        self.keep(Origin::Summary(entry), head, None);
    }

    /// Returns the compactions whose summaries were not read yet.
    pub(crate) fn unread(&self) -> Vec<EntryId> {
        let unread = self.kept.iter().filter(|kept| kept.text.is_none());
        unread
            .filter_map(|kept| match kept.origin {
                Origin::Summary(entry) => Some(entry),
                Origin::Call | Origin::Thought => None,
            })
            .collect()
    }

    /// Notes the summary of a compaction.
    pub(crate) fn summary(&mut self, entry: EntryId, text: &str) {
        let is_it = |kept: &&mut Kept| kept.origin == Origin::Summary(entry);
        if let Some(kept) = self.kept.iter_mut().find(is_it) {
            kept.text = Some(text.to_owned());
        }
    }

    /// Returns the kept texts, the oldest first.
    pub(crate) fn kept(&self) -> &VecDeque<Kept> {
        &self.kept
    }

    /// Returns a row for each call whose result is not known yet.
    pub(crate) fn rows(&self, width: usize, now_ms: u64) -> Vec<Row> {
        let row = |running: &Running| {
            let call = format::call(&running.name, &running.arguments, width.saturating_sub(12).max(10));
            if let Some((status, _)) = running.ended {
                let (mark, look) = mark(status);
                return Row::plain("  ").and(mark, look).and(&format!(" {call}"), Look::PLAIN).cut(width);
            }
            if running.asks {
                let row = Row::plain("  ").and("?", Look::WARN).and(&format!(" {call}"), Look::PLAIN);
                return row.and(" waiting for you", Look::DIM).cut(width);
            }
            let since = running.answered_ms.unwrap_or(running.started_ms);
            let seconds = now_ms.saturating_sub(since) / 1_000;
            let time = if seconds > 0 { format!(" {seconds} s") } else { String::new() };
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

    fn keep(&mut self, origin: Origin, head: Row, text: Option<String>) {
        let number = self.next_number;
        self.next_number += 1;
        let (arguments, changes) = (String::new(), Vec::new());
        self.kept.push_back(Kept { number, origin, head, arguments, changes, text });
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }
}

fn mark(status: ToolStatus) -> (&'static str, Look) {
    match status {
        ToolStatus::Ok => ("✓", Look::GOOD),
        ToolStatus::Error => ("✗", Look::BAD),
        ToolStatus::Interrupted => ("✗", Look::WARN),
    }
}

fn more_row(more: u64, what: &str) -> Row {
    Row::new(&format!("      … {} · Ctrl-O", format::count(more, what)), Look::DIM)
}

/// Returns the number of the line at which a change begins, as the result of `edit` says it.
fn first_line(text: &str) -> Option<usize> {
    let (_, at) = text.split_once(" at line")?;
    let digits: String = at.trim_start_matches(['s', ' ']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
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
