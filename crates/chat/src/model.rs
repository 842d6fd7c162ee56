//! The state of the chat: from keys and events to frames and effects.
//!
//! Invariants: nothing here does I/O, and time is an argument; queued input never starts by itself after an
//! interrupt; each row above the region is returned once.

use std::collections::VecDeque;

use greenroom::EntryId;
use greenroom_server::operations::Sent;
use greenroom_terminal::draw::{Frame, Size};
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};
use serde_json::Value;

use super::ask::{Ask, AskOutcome};
use super::calls::{Calls, wheel};
use super::commands::{self, Branching, COMMANDS, Command, Custom, GoingBack, SHEET};
use super::editor::{Edit, Editor};
use super::markdown::Markdown;
use super::notice::Doing;
use super::picker::{Picked, Picker, Purpose};
use super::status::Status;
use super::viewer::Viewer;

mod feed;
mod keys;
mod region;
#[cfg(test)]
mod tests;

/// The maximum number of rows of a sent prompt, and how many rows of a longer one are shown.
const SAID_MAX: usize = 12;
/// How many of the newest lines of a running user command are shown.
const PRINTED_SHOWN: usize = 6;
/// On a lower terminal, no rule is drawn above the editor.
const RULE_ROWS_MIN: usize = 12;
/// Who has refused a call, if it was the user of this chat.
const YOU_REFUSED: &str = "you answered no";
/// How many completions are visible at once.
const COMPLETIONS_SHOWN: usize = 8;

/// How an input relates to runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It starts a run.
    Prompt,
    /// It joins the run in progress.
    Steer,
    /// It follows the run in progress.
    FollowUp,
    /// It was meant for the run in progress, which is another agent's, so it starts its own run after that
    /// one.
    Waits,
}

/// An effect to perform.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Send an input. The result is reported with its `ticket`. Files are mentioned in `names`, which
    /// excludes pasted text. `is_typed` is false for the text of a custom command.
    Send {
        ticket: u64,
        kind: Kind,
        text: String,
        names: String,
        is_typed: bool,
    },
    /// Abort the work in progress, and withdraw queued input.
    Interrupt,
    /// Answer a question.
    Answer {
        id: EntryId,
        value: Value,
    },
    /// Refuse a call, and then abort the work in progress.
    Refuse {
        id: EntryId,
        value: Value,
    },
    /// Run a slash command.
    Command(Command),
    /// Run a user command.
    Shell {
        command: String,
        is_told: bool,
    },
    /// List the files whose names contain this.
    Files(String),
    /// Read the summaries of these compactions, for the viewer.
    Summaries(Vec<EntryId>),
    /// Add a prompt to the history file.
    Remember(String),
    /// Take back the queued input with this entry.
    TakeBack(EntryId),
    /// Let the user edit this text in their editor.
    EditOutside(String),
    /// Attach the clipboard's picture.
    Picture,
    /// Suspend the process.
    Suspend,
    /// Redraw everything.
    Redraw,
    Quit,
    /// Stop the work, then quit.
    StopAndQuit,
}

/// The kind of the last row; an empty row separates different kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Nothing,
    User,
    Answer,
    Call,
    Note,
}

/// An input that has not joined the conversation.
#[derive(Debug, Clone)]
struct Pending {
    ticket: u64,
    kind: Kind,
    text: String,
    /// Its entry, once it was accepted.
    entry: Option<EntryId>,
}

/// Completions for the text before the cursor.
#[derive(Debug, Clone)]
struct Completion {
    /// How much text a completion replaces, in bytes.
    bytes: usize,
    /// The inserted texts and their descriptions.
    items: Vec<(String, String)>,
    at: usize,
    /// Whether the user moved to the marked item.
    is_chosen: bool,
    is_command: bool,
}

/// A compaction in progress.
#[derive(Debug)]
struct Compacting {
    what: String,
    since: u64,
    retry: Option<Retry>,
}

/// A failed attempt to reach a model.
#[derive(Debug)]
struct Retry {
    what: String,
    /// When the next one begins, in Unix milliseconds.
    at_ms: u64,
}

/// A running user command.
#[derive(Debug)]
struct Working {
    command: String,
    since: u64,
    /// Its latest output.
    tail: VecDeque<String>,
}

/// The state of the chat.
#[derive(Debug)]
pub(crate) struct Model {
    size: Size,
    now_ms: u64,
    pub(crate) status: Status,
    editor: Editor,
    custom: Vec<Custom>,
    above: Vec<Row>,
    last: Last,
    /// The streaming answer, and its text so far.
    answer: Option<(Markdown, String)>,
    thinking: Option<(String, u64)>,
    /// The tool whose call is being streamed.
    writing: Option<String>,
    calls: Calls,
    pending: Vec<Pending>,
    /// The entries in the session's inbox.
    queued: Vec<EntryId>,
    next_ticket: u64,
    /// When the current run started, measured from its prompt, in Unix milliseconds.
    busy_since: Option<u64>,
    /// The prompt, by its ticket, whose run has not started.
    starts: Option<u64>,
    is_interrupting: bool,
    compacting: Option<Compacting>,
    /// The running user command.
    working: Option<Working>,
    asks: Vec<Ask>,
    is_asked_later: bool,
    picker: Option<Picker>,
    viewer: Option<Viewer>,
    completion: Option<Completion>,
    /// The percentage of the window that was last announced.
    announced: f64,
    last_answer: String,
    hint: Option<String>,
    is_leaving: bool,
    /// Whether the keys are shown below the editor.
    has_sheet: bool,
    /// Whether Ctrl-X was pressed, which Ctrl-E follows.
    has_prefix: bool,
    /// Since when the run has waited for what comes next, in Unix milliseconds.
    waits_since: u64,
    /// Whether work goes on when the chat has left.
    outlives: bool,
    /// The user's name, by which their answers are known.
    user: Option<String>,
    /// Whether a command of this chat moves to another place of the conversation, and says so itself.
    moves_itself: bool,
    returns: bool,
    /// Who has refused a call, so that the run ends, as a clause.
    refused: Option<String>,
    /// The last failed attempt of the run.
    retry: Option<Retry>,
    /// Warnings that came while an answer is streamed, and are shown below it.
    aside: Vec<String>,
}

impl Model {
    /// Creates the state of an empty chat.
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
            viewer: None,
            completion: None,
            announced: 0.0,
            last_answer: String::new(),
            hint: None,
            is_leaving: false,
            has_sheet: false,
            has_prefix: false,
            waits_since: 0,
            outlives: false,
            user: None,
            moves_itself: false,
            returns: false,
            refused: None,
            retry: None,
            aside: Vec::new(),
        }
    }

    /// Sets the user's name.
    pub(crate) fn set_user(&mut self, user: Option<String>) {
        self.user = user;
    }

    /// Notes whether a command of this chat moves to another place of the conversation; `returns`: to the one before an
    /// undo.
    pub(crate) fn moves_itself(&mut self, moves: bool, returns: bool) {
        (self.moves_itself, self.returns) = (moves, returns);
    }

    /// Shows a hint until the next key.
    pub(crate) fn hint(&mut self, text: &str) {
        self.hint = Some(format!("  {text}"));
    }

    /// Sets whether work goes on when the chat has left.
    pub(crate) fn set_outlives(&mut self, outlives: bool) {
        self.outlives = outlives;
    }

    /// Sets the time, in Unix milliseconds.
    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Sets the terminal's size.
    pub(crate) fn resize(&mut self, size: Size) {
        self.size = size;
        if let Some((markdown, _)) = &mut self.answer {
            markdown.set_width(size.width());
        }
    }

    /// Whether the frame changes with time alone.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_working() || self.asks.first().is_some_and(|ask| self.is_asking() && ask.is_held())
    }

    /// Whether the first question is shown, so that its answer counts.
    fn is_asking(&self) -> bool {
        !self.asks.is_empty() && !self.is_asked_later && self.picker.is_none() && self.viewer.is_none()
    }

    /// Whether a run, a compaction or a user command is in progress.
    fn is_working(&self) -> bool {
        self.is_busy() || self.compacting.is_some() || self.working.is_some()
    }

    /// Whether a run is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_since.is_some()
    }

    /// Notes that a run was already in progress when this chat started.
    pub(crate) fn joins_run(&mut self) {
        self.busy_since = Some(self.now_ms);
    }

    /// Ends the chat: the rows above remain, the region is removed.
    pub(crate) fn leave(&mut self) {
        self.is_leaving = true;
    }

    /// Returns the last answer, as the model wrote it.
    pub(crate) fn last_answer(&self) -> &str {
        &self.last_answer
    }

    /// Returns the custom commands.
    pub(crate) fn custom(&self) -> &[Custom] {
        &self.custom
    }

    /// Switches to another session.
    pub(crate) fn begin_session(&mut self) {
        let history = std::mem::take(&mut self.editor);
        let (size, now_ms) = (self.size, self.now_ms);
        let (custom, above) = (std::mem::take(&mut self.custom), std::mem::take(&mut self.above));
        let (status, next_ticket) = (std::mem::take(&mut self.status), self.next_ticket);
        let (outlives, user) = (self.outlives, self.user.take());
        *self = Self::new(size, &[], custom);
        (self.editor, self.now_ms, self.above) = (history, now_ms, above);
        (self.next_ticket, self.last) = (next_ticket, Last::Note);
        (self.outlives, self.user) = (outlives, user);
        self.status.git_branch = status.git_branch;
        self.status.model = status.model;
        self.status.effort = status.effort;
    }

    /// Shows a note in a row of its own.
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

    /// Shows rows.
    pub(crate) fn show(&mut self, rows: Vec<Row>) {
        self.put(Last::Note, rows);
    }

    /// Returns the width of rows, in columns.
    pub(crate) fn width(&self) -> usize {
        self.size.width()
    }

    /// Opens a list to choose from.
    pub(crate) fn pick(&mut self, picker: Picker) {
        if let Some(ask) = self.asks.first_mut() {
            ask.leave();
        }
        self.picker = Some(picker);
    }

    /// Notes the start of a user command, or its end (`None`).
    pub(crate) fn works(&mut self, what: Option<&str>) {
        let since = self.now_ms;
        self.working = what.map(|what| Working { command: what.to_owned(), since, tail: VecDeque::new() });
    }

    /// Shows a line of its output.
    pub(crate) fn prints(&mut self, line: String) {
        if let Some(working) = &mut self.working {
            working.tail.push_back(line);
            if working.tail.len() > PRINTED_SHOWN {
                working.tail.pop_front();
            }
        }
    }

    /// Offers the files found for a fragment of a name.
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

    /// Handles the result of sending an input.
    pub(crate) fn sent(&mut self, ticket: u64, result: Result<Sent, String>) {
        let Some(place) = self.pending.iter().position(|pending| pending.ticket == ticket) else {
            // Its session was left before it was accepted.
            if let Err(problem) = result {
                self.note(Look::BAD, &format!("Not sent ({problem}); ↑ brings it back"));
            }
            return;
        };
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

    /// Puts text into the editor, for the user to edit and send; what was typed already comes after it.
    pub(crate) fn write(&mut self, text: &str) {
        self.editor.give_back(text);
    }

    /// Inserts text at the cursor.
    pub(crate) fn insert(&mut self, text: &str) {
        self.editor.insert(text);
    }

    /// Replaces the text in the editor.
    pub(crate) fn replace(&mut self, text: &str) {
        self.editor.replace(text);
    }

    /// Returns inputs that had not been sent at the interrupt to the editor, in order.
    pub(crate) fn taken_back(&mut self, tickets: &[u64]) {
        self.give_back(|pending| tickets.contains(&pending.ticket));
    }

    /// Returns the wanted inputs to the editor.
    fn give_back(&mut self, is_wanted: impl Fn(&Pending) -> bool) {
        let (back, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(is_wanted);
        self.pending = kept;
        back.iter().for_each(|pending| self.starts_not(pending.ticket));
        let texts: Vec<String> = back.into_iter().map(|pending| pending.text).collect();
        self.editor.give_back(&texts.join("\n"));
    }

    /// Notes that no run starts with this prompt.
    fn starts_not(&mut self, ticket: u64) {
        if self.starts == Some(ticket) {
            (self.starts, self.busy_since, self.is_interrupting) = (None, None, false);
        }
    }

    /// Returns the entry of the newest queued input, which can be taken back.
    fn editable(&self) -> Option<EntryId> {
        let newest = self.pending.iter().rev().find(|pending| pending.kind != Kind::Prompt)?;
        newest.entry
    }

    /// Shows why an answer was refused.
    pub(crate) fn answer_refused(&mut self, id: EntryId, problem: &str) {
        self.refused = None;
        match self.asks.iter_mut().find(|ask| ask.id == id) {
            Some(ask) => ask.refuse(problem),
            None => self.note(Look::BAD, problem),
        }
    }

    /// Opens a question.
    pub(crate) fn ask(&mut self, mut ask: Ask) {
        ask.appears(self.now_ms);
        self.calls.asks(&ask.call_id);
        if !self.asks.iter().any(|known| known.id == ask.id) {
            // A question must not take the keys of a user who is typing.
            if self.asks.is_empty() {
                self.is_asked_later = !self.editor.is_empty();
            }
            self.asks.push(ask);
        }
    }

    /// Notes the summary of a compaction.
    pub(crate) fn summary(&mut self, entry: EntryId, text: &str) {
        self.calls.summary(entry, text);
    }

    /// Returns the screen of the viewer, if it is open.
    pub(crate) fn viewed(&mut self) -> Option<Frame> {
        let hint = (!self.asks.is_empty()).then_some("  ? a question waits: Esc closes this");
        Some(self.viewer.as_mut()?.frame(&self.calls, self.size, hint))
    }

    /// Returns the current frame. Each row above the region is returned once.
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
        if self.last != Last::Nothing && region.is_empty() {
            region.push(Row::default());
        }
        if self.size.rows >= RULE_ROWS_MIN {
            region.push(Row::new(&"─".repeat(width), Look::DIM));
        }
        let rows_max = (self.size.rows / 2).clamp(1, 12);
        let hint = self.hint_row(width);
        // Below a question are a hint and the status.
        let room = self.size.rows.saturating_sub(1 + hint.iter().count());
        let asked = self.asks.first_mut().filter(|_| !self.is_asked_later);
        let (rows, cursor) = if let Some(picker) = &self.picker {
            picker.layout(width)
        } else if let Some(ask) = asked {
            ask.layout(width, room)
        } else {
            let layout = self.editor.layout(width, rows_max);
            (layout.rows, layout.cursor)
        };
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
        if self.has_sheet {
            region.extend(sheet(width));
        }
        region.extend(hint);
        self.status.queued = self.queued.len();
        region.push(self.status.row(width));
        Frame { above: std::mem::take(&mut self.above), region, cursor }
    }

    /// Returns what the session does.
    pub(crate) fn doing(&self) -> Doing {
        if !self.asks.is_empty() {
            Doing::Asking
        } else if self.is_busy() || self.compacting.is_some() {
            Doing::Working
        } else {
            Doing::Idle
        }
    }

    /// Adds rows above the region, separated from rows of another kind.
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

/// Returns the most used keys, in a row each.
fn sheet(width: usize) -> Vec<Row> {
    let row = |(keys, what): &(&str, &str)| {
        Row::plain("  ").and(&format!("{keys:<14} "), Look::BOLD).and(what, Look::DIM).cut(width)
    };
    SHEET.iter().map(row).collect()
}
