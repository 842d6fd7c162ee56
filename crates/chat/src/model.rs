//! What the chat is at any moment: from keys and events to what is drawn and what is to be done.
//!
//! Invariants: nothing here reads or writes anything, and time is passed in; what the user typed ahead never begins by
//! itself after an interrupt; each row above is given out once.

use std::collections::VecDeque;

use greenroom::EntryId;
use greenroom_server::operations::Sent;
use greenroom_terminal::draw::{Frame, Size};
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};
use serde_json::Value;

use super::ask::{Ask, Asked};
use super::calls::{Calls, wheel};
use super::commands::{self, Branching, COMMANDS, Command, Custom};
use super::editor::{Edit, Editor};
use super::markdown::Markdown;
use super::picker::{Picked, Picker, Purpose};
use super::status::Status;

mod feed;
mod keys;
#[cfg(test)]
mod tests;

/// How many rows are left to the rest when a block of an answer is long: only its end is seen until it is finished.
const BESIDE_TAIL: usize = 10;
/// How many rows a prompt that was said takes at most, and how many of a longer one are shown.
const SAID_MAX: usize = 12;
/// So many of the newest lines of a command of the user's own are seen while it runs.
const PRINTED_SHOWN: usize = 6;
/// So many completions are seen at once.
const COMPLETIONS_SHOWN: usize = 8;

/// How something is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It begins a run.
    Prompt,
    /// It joins the run in progress.
    Steer,
    /// It comes after the run in progress.
    FollowUp,
    /// It was to join the run in progress or to follow it, and begins one of its own after it: that run is another agent's.
    Waits,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Say something. `ticket` is told when it was taken on, or not. Files are named in `names`: what was pasted names
    /// none. A custom command's text was not typed.
    Send {
        ticket: u64,
        kind: Kind,
        text: String,
        names: String,
        is_typed: bool,
    },
    /// Stop what is going on, and take back what waits.
    Interrupt,
    /// Answer a question.
    Answer {
        id: EntryId,
        value: Value,
    },
    /// A slash command.
    Command(Command),
    /// Run a command of the user's own.
    Shell {
        command: String,
        is_told: bool,
    },
    /// Which files are there, whose names hold this?
    Files(String),
    /// Keep a prompt for the next time.
    Remember(String),
    /// Give the terminal back until the user returns.
    Suspend,
    /// Draw everything anew.
    Redraw,
    Quit,
}

/// What kind of row came last, so that different ones are apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    User,
    Answer,
    Call,
    Note,
}

/// Something that was typed ahead.
#[derive(Debug, Clone)]
struct Pending {
    ticket: u64,
    kind: Kind,
    text: String,
    /// Its entry, when it was taken on.
    entry: Option<EntryId>,
}

/// What can be put in the place of what stands before the cursor.
#[derive(Debug, Clone)]
struct Completion {
    /// How much of the text it replaces, in bytes.
    bytes: usize,
    /// What is inserted, and what it does.
    items: Vec<(String, String)>,
    at: usize,
    /// Whether the user went to the one that is marked.
    is_chosen: bool,
    is_command: bool,
}

/// A command of the user's own that runs.
#[derive(Debug)]
struct Working {
    command: String,
    since: u64,
    /// What it printed last.
    tail: VecDeque<String>,
}

/// The chat.
#[derive(Debug)]
pub(crate) struct Model {
    size: Size,
    now_ms: u64,
    pub(crate) status: Status,
    editor: Editor,
    custom: Vec<Custom>,
    above: Vec<Row>,
    last: Last,
    /// The answer that is coming, and its text so far.
    answer: Option<(Markdown, String)>,
    thinking: Option<(String, u64)>,
    /// The tool whose call is being written.
    writing: Option<String>,
    calls: Calls,
    pending: Vec<Pending>,
    /// What waits in the session's inbox.
    queued: Vec<EntryId>,
    next_ticket: u64,
    /// Since when a run goes on: from the prompt on.
    busy_since: Option<u64>,
    /// The prompt whose run has not begun.
    starts: Option<u64>,
    is_interrupting: bool,
    /// What is being compacted, in tokens, and since when.
    compacting: Option<(String, u64)>,
    /// What a command of the user's own is doing.
    working: Option<Working>,
    asks: Vec<Ask>,
    is_asked_later: bool,
    picker: Option<Picker>,
    completion: Option<Completion>,
    /// The percentage of the window that was announced last.
    announced: f64,
    last_answer: String,
    hint: Option<String>,
    is_leaving: bool,
}

impl Model {
    /// A chat in which nothing was said yet.
    pub(crate) fn new(size: Size, history: &[String], custom: Vec<Custom>) -> Self {
        Self {
            size,
            now_ms: 0,
            status: Status::default(),
            editor: Editor::new(history),
            custom,
            above: Vec::new(),
            last: Last::Nothing,
            answer: None,
            thinking: None,
            writing: None,
            calls: Calls::default(),
            pending: Vec::new(),
            queued: Vec::new(),
            next_ticket: 1,
            busy_since: None,
            starts: None,
            is_interrupting: false,
            compacting: None,
            working: None,
            asks: Vec::new(),
            is_asked_later: false,
            picker: None,
            completion: None,
            announced: 0.0,
            last_answer: String::new(),
            hint: None,
            is_leaving: false,
        }
    }

    /// The time, in unix milliseconds.
    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// The terminal's size.
    pub(crate) fn resize(&mut self, size: Size) {
        self.size = size;
        if let Some((markdown, _)) = &mut self.answer {
            markdown.set_width(size.width());
        }
    }

    /// Whether something moves, so that time alone changes what is seen.
    pub(crate) fn is_moving(&self) -> bool {
        self.busy_since.is_some() || self.compacting.is_some() || self.working.is_some()
    }

    /// Whether a run goes on.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_since.is_some()
    }

    /// A run went on already when this chat began.
    pub(crate) fn joins_run(&mut self) {
        self.busy_since = Some(self.now_ms);
    }

    /// The chat is over: what is above stays, and the rest goes.
    pub(crate) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// The last answer, as the model wrote it.
    pub(crate) fn last_answer(&self) -> &str {
        &self.last_answer
    }

    /// The custom commands, as they are now.
    pub(crate) fn custom(&self) -> &[Custom] {
        &self.custom
    }

    /// Another session is shown from now on.
    pub(crate) fn begin_session(&mut self) {
        let history = std::mem::take(&mut self.editor);
        let (size, now_ms) = (self.size, self.now_ms);
        let (custom, above) = (std::mem::take(&mut self.custom), std::mem::take(&mut self.above));
        let (status, next_ticket) = (std::mem::take(&mut self.status), self.next_ticket);
        *self = Self::new(size, &[], custom);
        (self.editor, self.now_ms, self.above) = (history, now_ms, above);
        (self.next_ticket, self.last) = (next_ticket, Last::Note);
        self.status.git_branch = status.git_branch;
        self.status.model = status.model;
        self.status.effort = status.effort;
    }

    /// Says something in a row of its own.
    pub(crate) fn note(&mut self, look: Look, text: &str) {
        let indent = Row::plain("  ");
        let rows: Vec<Row> = text
            .lines()
            .flat_map(|line| {
                let blank = line.chars().take_while(|c| *c == ' ').count();
                let indent = indent.clone().and(&" ".repeat(blank), Look::PLAIN);
                Row::new(line.trim_start(), look).wrap(self.size.width(), &indent, &indent)
            })
            .collect();
        self.put(Last::Note, rows);
    }

    /// Shows rows that were made elsewhere.
    pub(crate) fn show(&mut self, rows: Vec<Row>) {
        self.put(Last::Note, rows);
    }

    /// How wide rows may be.
    pub(crate) fn width(&self) -> usize {
        self.size.width()
    }

    /// Offers a list.
    pub(crate) fn pick(&mut self, picker: Picker) {
        self.picker = Some(picker);
    }

    /// A command of the user's own begins, or has ended.
    pub(crate) fn works(&mut self, what: Option<&str>) {
        let since = self.now_ms;
        self.working = what.map(|what| Working { command: what.to_owned(), since, tail: VecDeque::new() });
    }

    /// A line that it prints now.
    pub(crate) fn prints(&mut self, line: String) {
        if let Some(working) = &mut self.working {
            working.tail.push_back(line);
            if working.tail.len() > PRINTED_SHOWN {
                working.tail.pop_front();
            }
        }
    }

    /// Files whose names hold what was asked for.
    pub(crate) fn files(&mut self, fragment: &str, files: Vec<String>) {
        if self.typed_file().is_some_and(|typed| typed == fragment) && !files.is_empty() {
            let items = files.into_iter().map(|file| (format!("@{file} "), String::new())).collect();
            self.completion = Some(Completion {
                bytes: fragment.len() + 1,
                items,
                at: 0,
                is_chosen: false,
                is_command: false,
            });
        }
    }

    /// Something that was said was taken on, or was not, and why.
    pub(crate) fn sent(&mut self, ticket: u64, result: Result<Sent, String>) {
        let Some(place) = self.pending.iter().position(|pending| pending.ticket == ticket) else { return };
        match result {
            Ok(Sent { entry_id, waits }) => {
                if let Some(pending) = self.pending.get_mut(place) {
                    pending.entry = Some(entry_id);
                    if waits {
                        pending.kind = Kind::Waits;
                    }
                }
            }
            Err(problem) => {
                let pending = self.pending.remove(place);
                self.starts_not(pending.ticket);
                self.note(Look::BAD, &problem);
                self.editor.give_back(&pending.text);
            }
        }
    }

    /// What had not gone out when the user interrupted: it comes back into the editor, in its order.
    pub(crate) fn taken_back(&mut self, tickets: &[u64]) {
        self.give_back(|pending| tickets.contains(&pending.ticket));
    }

    /// What was typed ahead, and these want back, stands in the editor again.
    fn give_back(&mut self, is_wanted: impl Fn(&Pending) -> bool) {
        let (back, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(is_wanted);
        self.pending = kept;
        back.iter().for_each(|pending| self.starts_not(pending.ticket));
        let texts: Vec<String> = back.into_iter().map(|pending| pending.text).collect();
        self.editor.give_back(&texts.join("\n"));
    }

    /// No run begins with this prompt.
    fn starts_not(&mut self, ticket: u64) {
        if self.starts == Some(ticket) {
            (self.starts, self.busy_since, self.is_interrupting) = (None, None, false);
        }
    }

    /// An answer to a question was refused.
    pub(crate) fn answer_refused(&mut self, id: EntryId, problem: &str) {
        match self.asks.iter_mut().find(|ask| ask.id == id) {
            Some(ask) => ask.refuse(problem),
            None => self.note(Look::BAD, problem),
        }
    }

    /// A question that was open when this chat began.
    pub(crate) fn ask(&mut self, ask: Ask) {
        if !self.asks.iter().any(|known| known.id == ask.id) {
            // It must not take the keys of who is typing something else.
            if self.asks.is_empty() {
                self.is_asked_later = !self.editor.is_empty();
            }
            self.asks.push(ask);
        }
    }

    /// What is to be seen now. The rows above are given out once.
    pub(crate) fn frame(&mut self) -> Frame {
        let width = self.size.width();
        let mut region = self.moving_rows(width);
        if !region.is_empty() && self.last == Last::User {
            region.insert(0, Row::default());
        }
        if self.is_leaving {
            return Frame { above: std::mem::take(&mut self.above), region: Vec::new(), cursor: (0, 0) };
        }
        if !region.is_empty() {
            region.push(Row::default());
        }
        region.extend(self.pending_rows(width));
        let rows_max = (self.size.rows / 2).clamp(1, 12);
        let asked = self.asks.first().filter(|_| !self.is_asked_later);
        let (rows, cursor) = if let Some(picker) = &self.picker {
            picker.layout(width)
        } else if let Some(ask) = asked {
            ask.layout(width)
        } else {
            let layout = self.editor.layout(width, rows_max);
            (layout.rows, layout.cursor)
        };
        if self.last != Last::Nothing && region.is_empty() {
            region.push(Row::default());
        }
        let cursor = (region.len() + cursor.0, cursor.1);
        region.extend(rows);
        if let Some(completion) = &self.completion {
            let first = (completion.at + 1).saturating_sub(COMPLETIONS_SHOWN);
            let items = completion.items.iter().enumerate().skip(first).take(COMPLETIONS_SHOWN);
            for (index, (name, what)) in items {
                let is_chosen = index == completion.at;
                let (mark, look) = if is_chosen { ("  ❯ ", Look::BOLD) } else { ("    ", Look::PLAIN) };
                let slash = if completion.is_command { "/" } else { "" };
                let row = Row::new(mark, Look::NOTE).and(&format!("{slash}{:<14}", name.trim()), look);
                region.push(row.and(&format!(" {what}"), Look::DIM).cut(width));
            }
        }
        let hint = self.hint_row(width);
        region.extend(hint);
        self.status.queued = self.queued.len();
        region.push(self.status.row(width));
        Frame { above: std::mem::take(&mut self.above), region, cursor }
    }

    /// What is coming: the end of the answer, calls under way, and what the chat waits for.
    fn moving_rows(&self, width: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        if let Some((text, since)) = &self.thinking {
            let seconds = self.now_ms.saturating_sub(*since) / 1_000;
            rows.push(Row::new(&format!("  {} thinking {seconds} s", wheel(self.now_ms)), Look::DIM));
            let indent = Row::plain("    ");
            let look = Look { italic: true, ..Look::DIM };
            let text = greenroom_terminal::text::end(text, 400);
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
        if let Some((what, since)) = &self.compacting {
            rows.push(waits(what, *since));
        }
        if let Some(Working { command, since, tail }) = &self.working {
            rows.push(waits(command, *since));
            rows.extend(tail.iter().map(|line| Row::new(&format!("    {line}"), Look::DIM).cut(width)));
        }
        if let Some(since) = self.busy_since {
            if self.is_interrupting {
                rows.push(waits("interrupting", since));
            } else if let Some(tool) = &self.writing {
                rows.push(waits(&format!("writing a call of {tool}"), since));
            } else if rows.is_empty() && self.asks.is_empty() {
                rows.push(waits("waiting for the model", since));
            }
        }
        rows
    }

    /// What was typed ahead, near where it will be heard.
    fn pending_rows(&self, width: usize) -> Vec<Row> {
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
            row.and(&greenroom_terminal::screen::one_line(&pending.text, width), Look::PLAIN).cut(width)
        };
        self.pending.iter().map(row).collect()
    }

    fn hint_row(&self, width: usize) -> Option<Row> {
        if let (None, true, Some(ask)) = (&self.hint, self.is_asked_later, self.asks.first()) {
            let question = greenroom_terminal::screen::one_line(ask.text(), width.saturating_sub(30).max(10));
            let row = Row::new("  ? ", Look::WARN).and(&question, Look::PLAIN);
            return Some(row.and(" · Ctrl-Q comes back to it", Look::DIM).cut(width));
        }
        let text = match &self.hint {
            Some(hint) => hint.as_str(),
            // Esc puts the question off.
            None if !self.asks.is_empty() => return None,
            None if self.is_busy() && !self.editor.is_empty() => "  Enter steers · Alt+Enter: after this",
            None if self.is_busy() => "  Esc interrupts",
            None => return None,
        };
        Some(Row::new(text, Look::DIM).cut(width))
    }

    /// Adds rows above, apart from what is of another kind.
    fn put(&mut self, kind: Last, rows: Vec<Row>) {
        if rows.is_empty() {
            return;
        }
        let is_apart = match (self.last, kind) {
            (Last::Nothing, _) | (Last::Call, Last::Call | Last::Note) | (Last::Note, Last::Note) => false,
            (Last::Answer, Last::Answer) => false,
            (Last::User | Last::Answer | Last::Call | Last::Note, _) => true,
        };
        if is_apart {
            self.above.push(Row::default());
        }
        self.above.extend(rows);
        self.last = kind;
    }
}
