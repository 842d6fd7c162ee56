//! An approval, answered in place: yes, always, no, or no with words for the model.
//!
//! Invariants: one key answers, but no letter and no Enter in the first moment, because the user may be typing
//! something else. A typed answer waits for a moment: if more is typed, all of it was text, which belongs to the
//! editor; if the user leaves the question, the answer is forgotten. The call is shown whole: what does not fit is
//! scrolled, what was not shown is counted, and nothing is approved before the end was on the screen. The dialog is
//! never taller than the room that it is given, so no row of it is off the screen.

use greenroom::Approval;
use greenroom_terminal::approvals;
use greenroom_terminal::input::{KeyCode, KeyEvent};
use greenroom_terminal::row::{Look, Row};
use greenroom_terminal::screen::columns;
use serde_json::{Value, json};

use super::{AskOutcome, MOMENT_MS, edit, typed};
use crate::editor::Editor;

#[cfg(test)]
mod tests;

/// With fewer rows for the call, only the marked answer is shown.
const ROWS_MIN: usize = 3;
/// The maximum number of rows for the user's words.
const WORDS_ROWS: usize = 4;

/// A longer rule is not named beside the answer, in columns.
const RULE_MAX: usize = 40;
/// What stands before a rule beside the answer.
const ALWAYS: &str = "Yes, and do not ask again for ";

/// Why a key does nothing in the first moment.
const NEW: &str = "the question has just appeared; press the key again";

/// What may be answered. The numbers are the same in every dialog, so that fingers can learn them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Yes = 1,
    Always = 2,
    No = 3,
    Words = 4,
}

/// The call in rows of one width.
#[derive(Debug, Clone, Default)]
struct Shown {
    width: usize,
    rows: Vec<Row>,
    /// Which rows were on the screen.
    seen: Vec<bool>,
    /// The first row on the screen, and how many fit.
    first: usize,
    room: usize,
}

impl Shown {
    fn end(&self) -> usize {
        (self.first + self.room).min(self.rows.len())
    }

    fn last_first(&self) -> usize {
        self.rows.len().saturating_sub(self.room.max(1))
    }

    fn unseen(&self) -> usize {
        self.seen.iter().filter(|seen| !**seen).count()
    }

    /// Whether the end was on the screen.
    fn is_read(&self) -> bool {
        self.seen.last().is_some_and(|seen| *seen)
    }
}

/// What was typed a moment ago: an answer, or the beginning of a text.
#[derive(Debug, Clone)]
struct Held {
    text: String,
    at_ms: u64,
    /// Whether it answers if nothing follows.
    answers: bool,
}

/// An approval being answered.
#[derive(Debug, Clone)]
pub(super) struct Form {
    approval: Approval,
    text: String,
    choices: Vec<Choice>,
    /// The marked answer; the first one until the user marks one.
    at: usize,
    is_marked: bool,
    words: Editor,
    held: Option<Held>,
    shown: Shown,
}

impl Form {
    pub(super) fn new(text: &str, approval: &Approval) -> Self {
        let mut choices = vec![Choice::Yes, Choice::Always, Choice::No, Choice::Words];
        if approval.rules.is_empty() {
            choices.retain(|choice| *choice != Choice::Always);
        }
        let (approval, text) = (approval.clone(), text.to_owned());
        let (words, shown) = (Editor::default(), Shown::default());
        Self { approval, text, choices, at: 0, is_marked: false, words, held: None, shown }
    }

    fn marked(&self) -> Option<Choice> {
        self.choices.get(self.at).copied()
    }

    /// Returns the user's words.
    pub(super) fn words(&self) -> String {
        self.words.text()
    }

    /// Whether the call edits a file, which a mode allows.
    pub(super) fn edits(&self) -> bool {
        matches!(self.approval.tool.as_str(), "edit" | "write")
    }

    /// Whether the call was shown to its end, so that it may be approved.
    pub(super) fn is_read(&self) -> bool {
        self.shown.is_read()
    }

    /// Marks an answer. Returns whether there is such a one.
    fn mark(&mut self, choice: Choice) -> bool {
        let place = self.choices.iter().position(|known| *known == choice);
        self.is_marked |= place.is_some();
        self.at = place.unwrap_or(self.at);
        place.is_some()
    }

    /// Forgets which answer was marked.
    fn unmark(&mut self) {
        (self.at, self.is_marked) = (0, false);
    }

    /// Handles a key at this time. `is_new`: the question has just appeared.
    ///
    /// # Errors
    /// Why the key does nothing, for the user.
    pub(super) fn key(&mut self, key: KeyEvent, now_ms: u64, is_new: bool) -> Result<AskOutcome, String> {
        // An answer is held until it counts, however late the next key is handled.
        let is_recent = |held: &Held| held.answers || now_ms.saturating_sub(held.at_ms) < MOMENT_MS;
        let held = self.held.take().filter(is_recent);
        match typed(key) {
            Some(c) if self.marked() != Some(Choice::Words) => self.typed(c, held, now_ms, is_new),
            Some(_) | None => self.pressed(key, is_new),
        }
    }

    /// Handles a character outside of the user's words. `held` was typed a moment before.
    fn typed(
        &mut self,
        c: char,
        held: Option<Held>,
        now_ms: u64,
        is_new: bool,
    ) -> Result<AskOutcome, String> {
        let choice = match c {
            'y' | 'Y' => Some(Choice::Yes),
            'n' | 'N' => Some(Choice::No),
            c => self.choices.iter().copied().find(|choice| Some(*choice as u32) == c.to_digit(10)),
        };
        // A key that is held down repeats. Space after an answer that was refused shows more of the call.
        let scrolls = |held: &Held| c == ' ' && !held.answers;
        let is_text = held.as_ref().is_some_and(|held| !held.text.ends_with(c) && !scrolls(held));
        let text = held.map(|held| held.text).unwrap_or_default() + c.encode_utf8(&mut [0; 4]);
        let outcome = match choice {
            None if c == ' ' && !is_text => {
                self.scroll(1);
                return Ok(AskOutcome::Waits);
            }
            Some(Choice::Words) if !is_text => {
                self.mark(Choice::Words);
                return Ok(AskOutcome::Waits);
            }
            Some(choice) if !is_text => {
                if is_new && c.is_alphabetic() {
                    Err(NEW.to_owned())
                } else {
                    self.mark(choice);
                    self.answer().map(|_| AskOutcome::Waits)
                }
            }
            Some(_) | None => {
                self.unmark();
                return Ok(AskOutcome::Typed(text));
            }
        };
        self.held = Some(Held { text, at_ms: now_ms, answers: outcome.is_ok() });
        outcome
    }

    /// Handles another key than a character, and all keys of the user's words.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    fn pressed(&mut self, key: KeyEvent, is_new: bool) -> Result<AskOutcome, String> {
        const MEANINGLESS: &str = "a number, y or n answers; Esc for something else";
        let last = self.choices.len() - 1;
        let is_writing = self.marked() == Some(Choice::Words);
        match key.code {
            KeyCode::PageDown => self.scroll(1),
            KeyCode::PageUp => self.scroll(-1),
            KeyCode::End if !is_writing => self.shown.first = self.shown.last_first(),
            KeyCode::Home if !is_writing => self.shown.first = 0,
            KeyCode::Up => {
                (self.at, self.is_marked) = (self.at.checked_sub(1).unwrap_or(last), true);
            }
            KeyCode::Down | KeyCode::Tab => {
                self.at = if self.at < last { self.at + 1 } else { 0 };
                self.is_marked = true;
            }
            KeyCode::Enter if is_new && !self.is_marked => return Err(NEW.to_owned()),
            KeyCode::Enter => return self.answer(),
            KeyCode::BackTab if self.edits() => {
                self.mark(Choice::Yes);
                return Ok(match self.answer()? {
                    AskOutcome::Answered(value) => AskOutcome::AnsweredForEdits(value),
                    asked => asked,
                });
            }
            _ if is_writing => edit(&mut self.words, key),
            KeyCode::Backspace => self.unmark(),
            _ => return Err(MEANINGLESS.to_owned()),
        }
        Ok(AskOutcome::Waits)
    }

    /// Scrolls the call by pages.
    fn scroll(&mut self, pages: isize) {
        let shown = &mut self.shown;
        // One row of the last page stays, for orientation.
        let page = shown.room.saturating_sub(1).max(1);
        let by = isize::try_from(page).unwrap_or(isize::MAX).saturating_mul(pages);
        shown.first = shown.first.saturating_add_signed(by).min(shown.last_first().max(shown.first));
    }

    /// Forgets what was typed a moment ago, because the user leaves the question.
    pub(super) fn leave(&mut self) {
        if self.held.take().is_some() {
            self.unmark();
        }
    }

    /// Whether a typed answer waits for its moment.
    pub(super) fn is_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.answers)
    }

    /// Returns the typed answer, once nothing more was typed for a moment.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<Result<AskOutcome, String>> {
        let is_due = |held: &mut Held| held.answers && now_ms.saturating_sub(held.at_ms) >= MOMENT_MS;
        self.held.take_if(is_due).map(|_| self.answer())
    }

    /// Returns the marked answer, unless it approves what was not shown to its end.
    fn answer(&self) -> Result<AskOutcome, String> {
        let words = self.words.text();
        let value = match self.marked() {
            Some(Choice::Yes | Choice::Always) if !self.shown.is_read() => {
                return Err(match self.shown.room {
                    0 => "the terminal is too small to show the call; enlarge it, or answer no".to_owned(),
                    _ => format!(
                        "{} rows of the call were not shown: Space shows more; End, then Enter approves",
                        self.shown.unseen()
                    ),
                });
            }
            Some(Choice::Yes) => Value::from("yes"),
            Some(Choice::Always) => Value::from("always"),
            Some(Choice::No) => return Ok(AskOutcome::Refused(Value::from("no"))),
            Some(Choice::Words) if words.trim().is_empty() => return Ok(AskOutcome::Waits),
            Some(Choice::Words) => json!({ "no": words }),
            None => return Ok(AskOutcome::Waits),
        };
        Ok(AskOutcome::Answered(value))
    }

    /// Handles a paste. Returns the text that belongs to the editor.
    pub(super) fn paste(&mut self, text: &str) -> Option<String> {
        let held = self.held.take();
        if self.marked() == Some(Choice::Words) {
            self.words.paste(text);
            return None;
        }
        self.unmark();
        Some(held.map(|held| held.text).unwrap_or_default() + text)
    }

    /// Returns the dialog in at most `room` rows, with the cursor's position, and remembers what of the call it shows.
    /// `foot` is what follows the answers: a problem, the hint.
    pub(super) fn layout(&mut self, width: usize, room: usize, foot: Vec<Row>) -> (Vec<Row>, (usize, usize)) {
        if self.shown.width != width {
            // The rows are others now. What was shown in other rows must be shown again.
            // The answer names a rule that fits beside it.
            let has_rules = rules_beside(&self.approval, width).is_none();
            let lines = approvals::lines(&self.text, &self.approval, has_rules);
            let lead =
                |index: usize| if index == 0 { Row::new("  ? ", Look::WARN) } else { Row::plain("    ") };
            let lead = |index: usize| if width < 30 { Row::default() } else { lead(index) };
            let rows = lines.iter().flat_map(|line| line.rows(width.saturating_sub(lead(0).width())));
            let rows: Vec<Row> = rows.enumerate().map(|(index, row)| lead(index).then(row)).collect();
            self.shown = Shown { width, seen: vec![false; rows.len()], rows, first: 0, room: 0 };
        }
        let mut is_short = false;
        let (mut answers, _) = self.answers(width, is_short);
        let mut foot = foot;
        let call = self.shown.rows.len();
        let mut free = room.saturating_sub(answers.len() + foot.len());
        if call > free {
            // A row says how much there is.
            if free < ROWS_MIN + 1 {
                is_short = true;
                (answers, _) = self.answers(width, is_short);
                foot.truncate(room.saturating_sub(answers.len()).min(1));
            }
            free = room.saturating_sub(answers.len() + foot.len() + 1);
        }
        let shown = &mut self.shown;
        shown.room = free.min(call);
        shown.first = shown.first.min(shown.last_first());
        let (first, end) = (shown.first, shown.end());
        shown.seen.iter_mut().take(end).skip(first).for_each(|seen| *seen = true);
        let mut rows: Vec<Row> = shown.rows.iter().take(end).skip(first).cloned().collect();
        if call > free && room > answers.len() + foot.len() {
            let text = match (shown.is_read(), shown.unseen()) {
                (false, unseen) => format!("⋮ {unseen} of {call} rows not seen · Space: more · End: the end"),
                (true, 0) => format!("⋮ rows {} to {end} of {call} · PgUp PgDn Home End", first + 1),
                (true, unseen) => format!("⋮ {unseen} rows before were not seen · PgUp PgDn Home End"),
            };
            rows.push(Row::new(&text, Look::WARN).cut(width));
        }
        // What may be answered depends on what is shown now.
        let (answers, at) = self.answers(width, is_short);
        let cursor = (rows.len() + at.0, at.1);
        rows.extend(answers);
        rows.extend(foot);
        (rows, cursor)
    }

    /// Returns the rows of the answers, or only the marked one, with the cursor's position.
    fn answers(&self, width: usize, is_short: bool) -> (Vec<Row>, (usize, usize)) {
        let mut rows = Vec::new();
        let mut cursor = (0, 2);
        let mark = if is_short { "❯ " } else { "  ❯ " };
        for (index, choice) in self.choices.iter().enumerate() {
            let is_at = self.at == index;
            if is_short && !is_at {
                continue;
            }
            if is_at {
                cursor = (rows.len(), 2);
            }
            let text = match choice {
                Choice::Yes | Choice::Always if !self.shown.is_read() => {
                    let what = if *choice == Choice::Yes { "Yes" } else { "Always" };
                    format!("{what} (scroll to the end first)")
                }
                Choice::Yes => "Yes".to_owned(),
                Choice::Always => {
                    let rules = rules_beside(&self.approval, width).unwrap_or("what is listed above");
                    format!("{ALWAYS}{rules}")
                }
                Choice::No => "No, and stop".to_owned(),
                Choice::Words => "No, and tell the model what to do instead".to_owned(),
            };
            let pointer = if is_at { mark } else { "    " };
            let look = if is_at { Look::BOLD } else { Look::PLAIN };
            let row = Row::new(pointer, Look::WARN)
                .and(&format!("{}. ", *choice as u32), Look::DIM)
                .and(&text, look);
            rows.push(row.cut(width));
        }
        if self.marked() == Some(Choice::Words) {
            let rows_max = if is_short { 1 } else { WORDS_ROWS };
            let layout = self.words.layout(width.saturating_sub(6).max(4), rows_max);
            if is_short {
                rows.clear();
            }
            cursor = (rows.len() + layout.cursor.0, layout.cursor.1 + 6);
            rows.extend(layout.rows.into_iter().map(|row| Row::plain("      ").then(row)));
        }
        (rows, cursor)
    }
}

/// Returns the rule of an approval, if there is only one, and it fits beside the answer in this width.
fn rules_beside(approval: &Approval, width: usize) -> Option<&str> {
    let room = width.saturating_sub("    2. ".len() + ALWAYS.len()).min(RULE_MAX);
    match &*approval.rules {
        [rule] if columns(rule) <= room => Some(rule),
        _ => None,
    }
}
