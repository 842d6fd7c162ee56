//! The state of `top` and the meaning of its keys, without a terminal and without a host.
//!
//! Invariants: actions that end or change something require a confirmation; the selection is kept while lists
//! change; no list of events grows without bound.

use std::collections::{HashMap, HashSet, VecDeque};

use greenroom::{Delta, EventKind};
use greenroom::{Event, LiveSession, Role, Status};
use greenroom_kernel::ToolStatus;
use greenroom_terminal::format;
use greenroom_terminal::input::{KeyCode, KeyEvent, KeyModifiers};
use greenroom_terminal::row::{Look, Row};

use crate::args::Sort;
use crate::host::link::is_one_shot;

#[cfg(test)]
pub(crate) mod tests;

/// How many lines of a session's events are kept.
const LINES_MAX: usize = 500;
/// How much of the streaming text is kept, in bytes.
const TEXT_BYTES_MAX: usize = 2_000;
/// The width of a call, in columns.
const CALL_COLUMNS: usize = 100;

impl Sort {
    const ALL: [Self; 7] =
        [Self::State, Self::Context, Self::Tokens, Self::Cost, Self::Queue, Self::Age, Self::Id];

    fn next(self) -> Self {
        let place = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()]
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Context => "context",
            Self::Tokens => "tokens",
            Self::Cost => "cost",
            Self::Queue => "queue",
            Self::Age => "age",
            Self::Id => "id",
        }
    }
}

/// An action for the caller to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    /// Subscribe to this session's events.
    Watch(String),
    /// End the subscription.
    Leave,
    Abort(String),
    Compact(String),
}

/// A confirmation that an action requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    Abort(String),
    Compact(String),
}

/// The close view of one session.
#[derive(Debug, Default)]
pub(crate) struct Close {
    pub(crate) id: String,
    pub(crate) lines: VecDeque<Row>,
    /// The streaming text.
    pub(crate) text: String,
}

/// The state of the display.
#[derive(Debug)]
pub(crate) struct Model {
    sessions: Vec<LiveSession>,
    /// The short ids that are known, by the whole ones.
    short_ids: HashMap<String, String>,
    pub(crate) sort: Sort,
    pub(crate) is_reversed: bool,
    /// The selected session.
    chosen: Option<String>,
    /// The close view, if one is open.
    pub(crate) close: Option<Close>,
    pub(crate) question: Option<Question>,
    /// The result of an action, until the next key.
    pub(crate) notice: Option<String>,
    pub(crate) now_ms: u64,
}

impl Model {
    pub(crate) fn new(sort: Sort) -> Self {
        Self {
            sessions: Vec::new(),
            short_ids: HashMap::new(),
            sort,
            is_reversed: false,
            chosen: None,
            close: None,
            question: None,
            notice: None,
            now_ms: 0,
        }
    }

    /// Applies a new list of all sessions.
    pub(crate) fn taken(&mut self, sessions: Vec<LiveSession>, now_ms: u64) {
        let place = self.place();
        let is_over =
            |session: &LiveSession| session.state.status == Status::Idle && is_one_shot(&session.labels);
        self.sessions = sessions.into_iter().filter(|session| !is_over(session)).collect();
        self.now_ms = now_ms;
        self.order();
        if self.find(self.chosen.as_deref()).is_none() {
            // If the selected session is gone, the next one is selected.
            let last = self.sessions.len().saturating_sub(1);
            self.chosen =
                self.sessions.get(place.unwrap_or(0).min(last)).map(|session| session.state.id.clone());
        }
    }

    /// Returns sessions in the order of display, with the one-shots that are over.
    pub(crate) fn ordered(&mut self, sessions: Vec<LiveSession>, now_ms: u64) -> &[LiveSession] {
        (self.sessions, self.now_ms) = (sessions, now_ms);
        self.order();
        &self.sessions
    }

    /// Adds short ids, by the whole ones.
    pub(crate) fn know(&mut self, short_ids: HashMap<String, String>) {
        self.short_ids.extend(short_ids);
    }

    /// Returns the ids whose short ones are known.
    pub(crate) fn known_ids(&self) -> HashSet<String> {
        self.short_ids.keys().cloned().collect()
    }

    /// Returns the short id of a session, or the whole one if it is not known yet.
    pub(crate) fn short_id<'a>(&'a self, id: &'a str) -> &'a str {
        self.short_ids.get(id).map_or(id, String::as_str)
    }

    /// The sessions, in the order of display. A one-shot that is over is not among them.
    pub(crate) fn sessions(&self) -> &[LiveSession] {
        &self.sessions
    }

    /// The index of the selected session.
    pub(crate) fn place(&self) -> Option<usize> {
        let chosen = self.chosen.as_deref()?;
        self.sessions.iter().position(|session| session.state.id == chosen)
    }

    /// Returns the session with this id.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<&LiveSession> {
        self.sessions.iter().find(|session| Some(session.state.id.as_str()) == id)
    }

    /// Handles a key.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other keys mean nothing here")]
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Action> {
        self.notice = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if let Some(question) = self.question.take() {
            let is_yes = matches!(key.code, KeyCode::Char('y' | 'Y')) && !is_control;
            let action = match question {
                Question::Abort(id) => Action::Abort(id),
                Question::Compact(id) => Action::Compact(id),
            };
            return is_yes.then_some(action);
        }
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return Some(Action::Quit),
            KeyCode::Char('q') => return Some(Action::Quit),
            KeyCode::Char('a') => {
                self.ask(Question::Abort);
                if let Some(Question::Abort(id)) = &self.question
                    && self.find(Some(id)).is_some_and(|session| session.state.status == Status::Idle)
                {
                    self.notice = Some(format!("{id} is idle: there is nothing to abort"));
                    self.question = None;
                }
            }
            KeyCode::Char('c') => self.ask(Question::Compact),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace if self.close.is_some() => {
                self.close = None;
                return Some(Action::Leave);
            }
            // Another Esc after leaving the close view does not leave the program.
            KeyCode::Esc => {}
            _ if self.close.is_some() => {}
            KeyCode::Enter | KeyCode::Right => {
                let id = self.chosen.clone().filter(|id| self.find(Some(id)).is_some())?;
                self.close = Some(Close { id: id.clone(), ..Close::default() });
                return Some(Action::Watch(id));
            }
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(10),
            KeyCode::PageUp => self.step(-10),
            KeyCode::Home => self.step(isize::MIN),
            KeyCode::End => self.step(isize::MAX),
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.order();
            }
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.order();
            }
            _ => {}
        }
        None
    }

    /// Applies an event of the session in the close view.
    pub(crate) fn heard(&mut self, event: &Event) {
        let Some(close) = self.close.as_mut().filter(|close| *close.id == *event.session) else { return };
        close.heard(&event.kind);
    }

    /// Notes that some events are missing.
    pub(crate) fn missed(&mut self) {
        if let Some(close) = &mut self.close {
            close.line(Row::new("… some events are missing here", Look::DIM));
        }
    }

    /// Asks for a confirmation about the selected session, or the one in the close view.
    fn ask(&mut self, question: impl FnOnce(String) -> Question) {
        let id = self.close.as_ref().map(|close| close.id.clone()).or_else(|| self.chosen.clone());
        self.question = id.filter(|id| self.find(Some(id)).is_some()).map(question);
    }

    fn step(&mut self, by: isize) {
        let last = self.sessions.len().saturating_sub(1);
        let place = self.place().unwrap_or(0).saturating_add_signed(by).min(last);
        self.chosen = self.sessions.get(place).map(|session| session.state.id.clone());
    }

    fn order(&mut self) {
        let (sort, now_ms) = (self.sort, self.now_ms);
        // The largest values come first; equal ones are in the order of ids.
        self.sessions.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        if sort != Sort::Id {
            self.sessions.sort_by_key(|session| std::cmp::Reverse(rank(session, sort, now_ms)));
        }
        if self.is_reversed {
            self.sessions.reverse();
        }
    }
}

impl Close {
    fn line(&mut self, row: Row) {
        if self.lines.len() >= LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(row);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "what else happens is seen in the list")]
    fn heard(&mut self, kind: &EventKind) {
        let (text, look) = match kind {
            EventKind::RunStart => ("a run starts".to_owned(), Look::BOLD),
            EventKind::RunEnd { outcome, .. } => (format!("the run ended: {}", outcome.as_str()), Look::BOLD),
            EventKind::StepStart { step, model } => (format!("step {step}, {model}"), Look::DIM),
            EventKind::MessageStart | EventKind::MessageDiscarded => return self.text.clear(),
            EventKind::MessageDelta { delta: Delta::Text(piece), .. } => {
                self.text.push_str(piece);
                let excess = self.text.len().saturating_sub(TEXT_BYTES_MAX);
                let cut = self.text.ceil_char_boundary(excess);
                self.text.drain(..cut);
                return;
            }
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                self.text.clear();
                if message.text.trim().is_empty() {
                    return;
                }
                (message.text.clone(), Look::PLAIN)
            }
            EventKind::MessageEnd { message, .. } if message.role == Role::User => {
                (format!("› {}", message.text), Look::BOLD)
            }
            EventKind::ToolStart { name, arguments, .. } => {
                (format!("· {}", format::call(name, arguments, CALL_COLUMNS)), Look::PLAIN)
            }
            EventKind::ToolEnd { name, status, duration_ms, .. } => {
                let time = format::duration(*duration_ms);
                match status {
                    ToolStatus::Ok => (format!("✓ {name}, {time}"), Look::DIM),
                    ToolStatus::Error => (format!("✗ {name}, {time}"), Look::WARN),
                    ToolStatus::Interrupted => (format!("✗ {name}, interrupted"), Look::WARN),
                }
            }
            EventKind::QuestionAsked { question, .. } => (format!("? {}", question.text), Look::WARN),
            EventKind::CompactionStart { tokens_before, .. } => {
                (format!("compacting {}", format::short(*tokens_before)), Look::NOTE)
            }
            EventKind::CompactionEnd(end) => (format::compaction(end), Look::NOTE),
            EventKind::Retry { failure, .. } => (format!("trying again: {failure}"), Look::WARN),
            EventKind::Fallback { model, .. } => (format!("continuing with {model}"), Look::WARN),
            EventKind::Warning { message } => (message.clone(), Look::WARN),
            EventKind::SessionRestarted { reason } => {
                (format!("the session was restarted: {reason}"), Look::WARN)
            }
            EventKind::SessionFailed { reason } => (format!("the session failed: {reason}"), Look::BAD),
            EventKind::SessionDeleted { .. } => ("the session was deleted".to_owned(), Look::BAD),
            _ => return,
        };
        for line in text.lines() {
            self.line(Row::new(line, look));
        }
    }
}

/// Returns how long a session has been doing its current work, in milliseconds; for an idle session, the time
/// since its newest entry.
pub(crate) fn age_ms(session: &LiveSession, now_ms: u64) -> Option<u64> {
    let since = session.activity.since_ms.or(session.updated_at_ms)?;
    Some(now_ms.saturating_sub(since))
}

/// Describes a session's activity in a few words.
pub(crate) fn doing(session: &LiveSession) -> String {
    let activity = &session.activity;
    let work = match session.state.status {
        Status::Compacting => "compacting".to_owned(),
        Status::Waiting => "waits for an answer".to_owned(),
        Status::Working => {
            let what = match (activity.queue_position, activity.tools.as_slice()) {
                (Some(position), _) => format!("waits at position {position}"),
                (None, []) => "the model answers".to_owned(),
                (None, tools) => tools.join(", "),
            };
            match activity.step {
                Some(step) => format!("step {step}: {what}"),
                None => what,
            }
        }
        Status::Idle | _ => "idle".to_owned(),
    };
    if session.is_asleep { format!("{work}, asleep") } else { work }
}

/// Returns the sort key of a session; larger ones come first.
fn rank(session: &LiveSession, sort: Sort, now_ms: u64) -> u64 {
    let state = &session.state;
    match sort {
        Sort::State => match state.status {
            Status::Working => 4,
            Status::Compacting => 3,
            Status::Waiting => 2,
            Status::Idle | _ => 1,
        },
        // In hundredths of a percent; sessions with an unknown window come last.
        Sort::Context => match state.context.window {
            Some(window) if window > 0 => state.context.tokens.saturating_mul(10_000) / window,
            Some(_) | None => 0,
        },
        Sort::Tokens => state.total_tokens,
        Sort::Cost => state.cost_microdollars,
        Sort::Queue => state.waiting as u64,
        Sort::Age => age_ms(session, now_ms).unwrap_or(0),
        Sort::Id => 0,
    }
}
