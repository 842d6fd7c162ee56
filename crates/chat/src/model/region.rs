//! The rows of the region: unfinished work, pending inputs, the hint.
//!
//! Invariants: nothing here changes the state.

use greenroom_terminal::screen::one_line;
use greenroom_terminal::text;

use super::{Compacting, Kind, Look, Model, Pending, Retry, Row, Working, wheel};

/// How many rows are left for the rest when a block of an answer is long: only its end is shown until it is
/// finished.
const BESIDE_TAIL: usize = 10;

impl Model {
    /// Returns the rows of unfinished work: the end of the answer, calls in progress, and the current
    /// activity.
    pub(super) fn moving_rows(&self, width: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some((text, since)) = &self.thinking {
            let seconds = self.now_ms.saturating_sub(*since) / 1_000;
            rows.push(Row::new(&format!("  {} thinking {seconds} s", wheel(self.now_ms)), Look::DIM));
            let indent = Row::plain("    ");
            let look = Look { italic: true, ..Look::DIM };
            let text = text::end(text, 400);
            let thought = Row::new(text, look).wrap(width, &indent, &indent);
            rows.extend(thought.into_iter().rev().take(2).rev());
        }
        if let Some((markdown, _)) = &self.answer {
            let tail = markdown.tail();
            let skip = tail.len().saturating_sub(self.size.rows.saturating_sub(BESIDE_TAIL).max(3));
            rows.extend(tail.into_iter().skip(skip));
        }
        rows.extend(self.calls.rows(width, self.now_ms));
        let wheel = wheel(self.now_ms);
        let waits = |what: &str, since: u64| {
            let seconds = self.now_ms.saturating_sub(since) / 1_000;
            let time = if seconds > 0 { format!(" {seconds} s") } else { String::new() };
            let row = Row::plain("  ").and(wheel, Look::NOTE).and(&format!(" {what}{time}"), Look::DIM);
            row.cut(width)
        };
        let retries = |Retry { what, at_ms }: &Retry| {
            let seconds = at_ms.saturating_sub(self.now_ms).div_ceil(1_000);
            let time = match seconds {
                0 => " · trying again".to_owned(),
                seconds => format!(" · again in {seconds} s"),
            };
            let (lead, indent) = (Row::new(&format!("  {wheel} "), Look::NOTE), Row::plain("    "));
            Row::new(&format!("{what}{time}"), Look::WARN).wrap(width, &lead, &indent)
        };
        if let Some(Compacting { what, since, retry }) = &self.compacting {
            rows.push(waits(what, *since));
            rows.extend(retry.iter().flat_map(retries));
        }
        if let Some(Working { command, since, tail }) = &self.working {
            rows.push(waits(command, *since));
            rows.extend(tail.iter().map(|line| Row::new(&format!("    {line}"), Look::DIM).cut(width)));
        }
        if let Some(began) = self.busy_since {
            // The wait is shown, and not the whole run.
            let since = self.waits_since.max(began);
            if self.is_interrupting {
                rows.push(waits("interrupting", since));
            } else if let Some(retry) = &self.retry {
                rows.extend(retries(retry));
            } else if let Some(tool) = &self.writing {
                rows.push(waits(&format!("writing a call of {tool}"), since));
            } else if rows.is_empty() && self.asks.is_empty() {
                let has_begun = self.answer.as_ref().is_some_and(|(_, received)| !received.is_empty());
                rows.push(waits(if has_begun { "writing" } else { "waiting for the model" }, since));
            }
        }
        rows
    }

    /// Returns the pending inputs, close to the editor.
    pub(super) fn pending_rows(&self, width: usize) -> Vec<Row> {
        let row = |pending: &Pending| {
            let (mark, what) = match pending.kind {
                Kind::Prompt => ("› ", ""),
                Kind::Steer => ("↪ ", "steers: "),
                Kind::FollowUp => ("⧗ ", "next: "),
                Kind::Waits => {
                    ("⧗ ", "waits for the end of this run, which has other tools, another folder or key: ")
                }
            };
            let row = Row::plain("  ").and(mark, Look::WARN).and(what, Look::DIM);
            row.and(&one_line(&pending.text, width), Look::PLAIN).cut(width)
        };
        self.pending.iter().map(row).collect()
    }

    /// Returns what the next key would do, or the question that waits.
    pub(super) fn hint_row(&self, width: usize) -> Option<Row> {
        if let (None, true, Some(ask)) = (&self.hint, self.is_asked_later, self.asks.first()) {
            let question = one_line(ask.text(), width.saturating_sub(30).max(10));
            let row = Row::new("  ? ", Look::WARN).and(&question, Look::PLAIN);
            return Some(row.and(" · Ctrl-Q returns to it · Esc ends the run", Look::DIM).cut(width));
        }
        let text = match &self.hint {
            Some(hint) => hint.as_str(),
            // Esc postpones the question.
            None if !self.asks.is_empty() => return None,
            None if self.is_busy() && !self.editor.is_empty() => "  Enter steers · Alt+Enter: after this",
            None if self.is_working() && self.editable().is_some() => {
                "  Esc interrupts · ↑ takes back what is queued"
            }
            None if self.is_working() => "  Esc interrupts",
            None if self.editable().is_some() => {
                "  Esc takes back the input that is held back · /continue starts it"
            }
            None => return None,
        };
        Some(Row::new(text, Look::DIM).cut(width))
    }
}
