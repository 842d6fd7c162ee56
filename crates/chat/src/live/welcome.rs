//! The welcome of a chat that opens a session: the session, its work in progress, and the end of its conversation.
//!
//! Invariants: each fact is said once; a session that is opened again after its host's death says only what is new.

use greenroom::permissions::Mode;
use greenroom::{SessionSummary, Status};
use greenroom_kernel::question::Question;
use greenroom_server::operations::SessionPermissions;
use greenroom_terminal::row::Look;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{format, time};

use super::{Done, Opened, PAST_ENTRIES, TerminalChat};
use crate::ask::Ask;
use crate::commands::{Command, Permitting};
use crate::follow::Follow;
use crate::program::Chosen;
use crate::{HELD_COLUMNS, figures};

/// The maximum number of rows of the past that are shown.
const PAST_ROWS: usize = 4_000;
/// The maximum number of columns of a title, and of the list of skills.
pub(super) const TITLE_COLUMNS: usize = 60;
/// How many other sessions at work are named.
const OTHERS_MAX: usize = 3;

impl TerminalChat {
    /// Shows the state of a session and the end of its conversation. `is_back`: the session was open before its host
    /// ended.
    pub(super) fn welcome(&mut self, opened: Opened, is_back: bool) {
        let Opened { backend, events, state, past, in_progress, questions, permissions, .. } = opened;
        let (held_back, summary, copy_of) = (opened.held_back, opened.summary, opened.copy_of);
        (self.backend, self.events) = (backend, events);
        self.model.status.effort = self.program.effort().map(|effort| effort.as_str().to_owned());
        let newest = past.last().map(|event| event.seq).max(state.entries.checked_sub(1));
        let going_on = in_progress.as_ref().map(|told| told.events.clone()).unwrap_or_default();
        self.follow = in_progress.map_or_else(|| Follow::after(newest), Follow::within);
        self.stands(&state);
        self.may(&permissions);
        let title = summary.as_ref().and_then(|summary| summary.shown_title());
        self.title = title.map(|title| one_line(title, TITLE_COLUMNS)).unwrap_or_default();
        if state.entries == 0 && !is_back {
            self.begins(&state, &permissions);
        }
        for event in &past {
            self.model.past(event);
        }
        self.model.past_ends();
        // The past had other models.
        self.stands(&state);
        if state.entries > 0 && !is_back {
            let (entries, id) = (state.entries, self.backend.id().to_owned());
            let is_part = entries > PAST_ENTRIES;
            self.model.keep_newest(PAST_ROWS, is_part, || {
                let entries = format::count(entries, "entry");
                format!("… {entries} in all; only the end is shown. `greenroom show {id}` or /export shows the rest")
            });
            match copy_of {
                Some((title, original)) => {
                    let id = self.backend.id();
                    let text = format!("This is a copy of {title} ({original}); its own id is {id}");
                    self.model.note(Look::DIM, &text);
                }
                None => self.resumed(summary.as_deref()),
            }
        }
        match state.status {
            _ if !going_on.is_empty() => {
                let since = going_on.first().map_or(0, |event| event.at_ms);
                for event in &going_on {
                    // So the elapsed time is shown from its start.
                    self.model.set_now(event.at_ms);
                    self.model.event(event);
                }
                self.model.set_now(time::now_ms());
                self.joins(since, is_back);
            }
            Status::Working | Status::Waiting => {
                self.model.joins_run();
                self.joins(0, is_back);
            }
            Status::Idle | Status::Compacting | Status::Unknown | _ => {}
        }
        // After a host's death, the end of the run has said it.
        if let Some(text) = figures::stands_still(&state).filter(|_| !is_back || state.is_held_back) {
            self.model.note(Look::WARN, &capital(text));
        }
        for input in held_back {
            let text = one_line(&input.text, HELD_COLUMNS);
            self.model.note(Look::WARN, &format!("Held back: {text}"));
        }
        if state.held_back > 0 {
            self.model
                .note(Look::WARN, "/continue starts the input that was held back, /withdraw withdraws it");
        }
        for asked in questions {
            let Question { text, details, kind, .. } = &asked.question;
            let ask = Ask::new(asked.id, &asked.tool, text, details.as_deref(), kind);
            self.model.ask(ask.of_call(&asked.call_id));
        }
        self.look_for_others();
    }

    /// Says with what a new session begins.
    fn begins(&mut self, state: &greenroom::State, permissions: &SessionPermissions) {
        let line = format!("{} · {}", state.model, figures::window_short(&state.context));
        self.model.note(Look::BOLD, &line);
        // Of the last one, a warning tells.
        if let Some(mode) = permissions.mode.filter(|mode| *mode != Mode::Everything) {
            self.model.note(Look::DIM, &format!("{} (Shift+Tab)", capital(mode.meaning())));
        }
        if let Some(commands) = &self.commands {
            self.model.note(Look::DIM, commands);
        }
        let mut found = self.instructions.clone();
        if !self.skills.is_empty() {
            let names: Vec<&str> = self.skills.iter().map(|skill| skill.name.as_str()).collect();
            let names = one_line(&names.join(", "), TITLE_COLUMNS);
            found.push(format!("{}: {names}", format::count(self.skills.len() as u64, "skill")));
        }
        if !found.is_empty() {
            self.model.note(Look::DIM, &found.join(" · "));
        }
        self.model.note(Look::DIM, "? shows the keys, /help the commands");
    }

    /// Says which session was resumed.
    fn resumed(&mut self, summary: Option<&SessionSummary>) {
        let title = if self.title.is_empty() { self.backend.id().to_owned() } else { self.title.clone() };
        let mut parts = vec![format!("Resumed {title}")];
        if let Some(summary) = summary {
            parts.push(time::ago(summary.updated_at_ms, time::now_ms()));
            parts.extend(self.program.folder_of(summary));
        }
        self.model.note(Look::DIM, &parts.join(" · "));
    }

    /// Says that the session works already.
    fn joins(&mut self, since_ms: u64, is_back: bool) {
        if is_back {
            return;
        }
        let since = match since_ms {
            0 => String::new(),
            since => format!(" (since {})", format::duration(time::now_ms().saturating_sub(since))),
        };
        self.model.note(Look::NOTE, &format!("This session is working{since}; you have joined it"));
    }

    /// Looks for other sessions that work in the folder.
    fn look_for_others(&self) {
        let (program, id, done) =
            (std::sync::Arc::clone(&self.program), self.backend.id().to_owned(), self.done.clone());
        tokio::spawn(async move {
            let sessions = program.at_work(&id).await;
            if !sessions.is_empty() {
                let _ = done.send(Done::AtWork(sessions));
            }
        });
    }

    /// Says which other sessions work in the folder.
    pub(super) fn others_work(&mut self, sessions: &[SessionSummary]) {
        for session in sessions.iter().take(OTHERS_MAX) {
            let title = one_line(session.shown_title().unwrap_or("no messages yet"), TITLE_COLUMNS);
            let id = &session.id;
            let text = format!("Another session is working in this folder: {title}; /resume {id} joins it");
            self.model.note(Look::WARN, &text);
        }
        let more = sessions.len().saturating_sub(OTHERS_MAX) as u64;
        if more > 0 {
            self.model.note(Look::WARN, &format!("… and {} more", format::count(more, "session")));
        }
    }

    /// Shows the session's mode. If its agent is another one than before, the user's choice is repeated.
    pub(super) fn may(&mut self, permissions: &SessionPermissions) {
        self.modes.opened(permissions.mode);
        self.shows_mode(None);
        if let Some(problem) = &permissions.problem {
            self.model.note(Look::BAD, &format!("Every call is denied: {problem}"));
        }
        if permissions.mode == Some(Mode::Everything) && self.modes.chosen().is_none() {
            self.model.note(Look::WARN, &capital(Mode::Everything.meaning()));
        }
        let is_other = |mode: &Mode| permissions.mode.is_some_and(|now| now != *mode);
        if let Some(mode) = self.modes.chosen().filter(is_other) {
            self.command(Command::Permissions(Permitting::Mode(mode)));
        }
    }

    /// Handles the event of a mode.
    pub(super) fn mode_changed(&mut self, mode: &str) {
        let Ok(mode) = mode.parse::<Mode>() else { return };
        let elsewhere = self.modes.changed(mode);
        self.shows_mode(elsewhere);
    }

    /// Handles the reply that the mode was set.
    pub(super) fn mode_set(&mut self, ticket: u64, now: Option<Mode>) {
        if let Some(mode) = self.modes.accepted(ticket, now) {
            self.program.keep(self.backend.id(), Chosen::Mode(mode));
        }
        self.shows_mode(None);
    }

    /// Handles the reply that the mode was not set.
    pub(super) fn mode_refused(&mut self, ticket: u64) {
        let elsewhere = self.modes.refused(ticket);
        self.shows_mode(elsewhere);
    }

    /// Shows the session's mode, and says if another terminal has changed it.
    fn shows_mode(&mut self, elsewhere: Option<Mode>) {
        self.model.status.mode = self.modes.shown();
        if let Some(mode) = elsewhere {
            let look = if mode == Mode::Everything { Look::BAD } else { Look::WARN };
            let name = mode.as_str().replace('_', " ");
            self.model.note(look, &format!("Mode changed elsewhere to {name}: {}", mode.meaning()));
        }
    }

    /// Updates the status line from the session's state.
    pub(super) fn stands(&mut self, state: &greenroom::State) {
        self.model.status.model.clone_from(&state.model);
        self.model.status.trigger = state.compacts_at.unwrap_or(0);
        self.model.status.cost_microdollars = state.cost_microdollars;
        self.model.status.estimated_tokens = state.estimated_tokens;
        self.model.quiet_context(state.context);
    }
}

/// Returns the text with a capital letter at its start.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
