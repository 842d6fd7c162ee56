//! Handles keys and pastes.

use std::collections::HashSet;

use greenroom::permissions::Mode;
use greenroom_terminal::screen::one_line;

use super::{
    AskOutcome, Branching, COMMANDS, Command, Completion, Edit, Effect, GoingBack, KeyCode, KeyEvent,
    KeyModifiers, Kind, Look, Model, Pending, Picked, Picker, Purpose, YOU_REFUSED, commands,
};
use crate::commands::{BranchStart, Permitting};
use crate::picker::Item;
use crate::viewer::{Viewed, Viewer};

/// The maximum number of prompts of the history offered.
const HISTORY_OFFERED_MAX: usize = 1_000;
/// The hint after the first Ctrl-C at an empty line.
const LEAVES: &str = "  Press Ctrl-C again to exit; the session is kept";
/// The values of the choices when the chat is left while work is in progress.
const STOP: &str = "stop";
const LEAVE: &str = "leave";
const STAY: &str = "stay";
/// The hint after the first Esc at an empty line.
const GOES_BACK: &str = "  Press Esc again to go back to an earlier prompt";

impl Model {
    /// Handles a key.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        let hint = self.hint.take();
        let had_sheet = std::mem::take(&mut self.has_sheet);
        if let Some(viewer) = &mut self.viewer {
            if viewer.key(key, &self.calls, self.size) == Viewed::Closes {
                self.viewer = None;
            }
            return Vec::new();
        }
        if let Some(picker) = &mut self.picker {
            let purpose = picker.purpose;
            return match picker.key(key) {
                Picked::Waits => Vec::new(),
                Picked::Left => {
                    self.picker = None;
                    Vec::new()
                }
                Picked::Chosen(value) => {
                    self.picker = None;
                    self.picked(purpose, value)
                }
            };
        }
        if !self.is_asked_later
            && let Some(ask) = self.asks.first_mut()
        {
            let outcome = ask.key(key, self.now_ms);
            if let Some(effects) = self.asked(outcome) {
                return effects;
            }
        }
        if let Some(effects) = self.completion_key(key) {
            return effects;
        }
        if key.code == KeyCode::Char('?') && self.editor.is_empty() && !had_sheet {
            self.has_sheet = true;
            return Vec::new();
        }
        if had_sheet && key.code == KeyCode::Esc {
            return Vec::new();
        }
        self.command_key(key, hint.as_deref())
    }

    /// Returns the effects of an answer that was typed a moment ago, once nothing more was typed.
    pub(crate) fn due(&mut self) -> Vec<Effect> {
        let is_asking = self.is_asking();
        let Some(ask) = self.asks.first_mut().filter(|_| is_asking) else { return Vec::new() };
        let outcome = ask.due(self.now_ms);
        self.asked(outcome).unwrap_or_default()
    }

    /// Handles what a key means to the first question; returns `None` if nothing.
    fn asked(&mut self, outcome: AskOutcome) -> Option<Vec<Effect>> {
        let ask = self.asks.first_mut()?;
        let id = ask.id;
        if outcome.is_answer() {
            ask.sends();
        }
        Some(match outcome {
            AskOutcome::Waits => Vec::new(),
            AskOutcome::Refused(value) => {
                self.refused = Some(YOU_REFUSED.to_owned());
                vec![Effect::Refuse { id, value }]
            }
            AskOutcome::AnsweredForEdits(value) => {
                let edits = Command::Permissions(Permitting::Next(Mode::AcceptEdits));
                vec![Effect::Answer { id, value }, Effect::Command(edits)]
            }
            AskOutcome::Answered(value) => vec![Effect::Answer { id, value }],
            AskOutcome::Later => {
                self.is_asked_later = true;
                Vec::new()
            }
            AskOutcome::Typed(text) => {
                self.is_asked_later = true;
                self.editor.insert(&text);
                self.offer();
                self.files_effect()
            }
            AskOutcome::NotMine => return None,
        })
    }

    /// Handles a paste, as one unit.
    pub(crate) fn paste(&mut self, text: &str) -> Vec<Effect> {
        self.hint = None;
        if self.picker.is_some() || self.viewer.is_some() {
            // Neither accepts a paste, and the question below is not meant.
            return Vec::new();
        }
        let mut text = std::borrow::Cow::Borrowed(text);
        if !self.is_asked_later
            && let Some(ask) = self.asks.first_mut()
        {
            let Some(own) = ask.paste(&text) else { return Vec::new() };
            self.is_asked_later = true;
            text = own.into();
        }
        // Terminals paste the path of an image that is dropped on them.
        let path = text.trim().trim_matches(['\'', '"']).replace("\\ ", " ");
        let ending = path.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        let is_picture = !path.contains('\n')
            && path.starts_with('/')
            && matches!(ending.as_str(), "png" | "jpg" | "jpeg" | "gif" | "webp");
        if is_picture {
            let path = path.replace(' ', "\\ ");
            self.editor.insert(&format!("@{path} "));
        } else {
            self.editor.paste(&text);
        }
        self.completion = None;
        Vec::new()
    }

    fn picked(&mut self, purpose: Purpose, value: String) -> Vec<Effect> {
        vec![Effect::Command(match purpose {
            Purpose::History => {
                self.editor.replace(&value);
                return Vec::new();
            }
            Purpose::Resume => Command::Resume(Some(value)),
            Purpose::Model => {
                self.note(Look::DIM, &format!("/model {value}"));
                Command::Model(Some(value))
            }
            Purpose::Effort => {
                self.note(Look::DIM, &format!("/effort {value}"));
                Command::Effort(Some(value))
            }
            Purpose::GoBack(branch) => match (GoingBack::parse("undo", &value), branch) {
                (Ok(back), None) => Command::Undo(back),
                (Ok(back), Some(how)) => Command::Branch(Branching { back, ..how }),
                (Err(_), _) => return Vec::new(),
            },
            Purpose::Branch { summary } => {
                let Some((prompt, after)) = value.split_once(' ') else { return Vec::new() };
                let start = after.parse().map_or(BranchStart::Start, BranchStart::After);
                let prompt = prompt.parse().ok();
                Command::Branch(Branching { start, prompt, summary, ..Branching::default() })
            }
            Purpose::Theme => Command::Theme(Some(value)),
            Purpose::Export => Command::Export(Some(value)),
            Purpose::Leave => {
                return match value.as_str() {
                    STOP => vec![Effect::StopAndQuit],
                    LEAVE => vec![Effect::Quit],
                    _ => Vec::new(),
                };
            }
        })]
    }

    /// Handles the keys of an open completion; returns `None` for other keys.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    fn completion_key(&mut self, key: KeyEvent) -> Option<Vec<Effect>> {
        let completion = self.completion.as_mut()?;
        let last = completion.items.len().saturating_sub(1);
        match key.code {
            KeyCode::Up => {
                completion.at = completion.at.checked_sub(1).unwrap_or(last);
                completion.is_chosen = true;
            }
            KeyCode::Down => {
                completion.at = if completion.at >= last { 0 } else { completion.at + 1 };
                completion.is_chosen = true;
            }
            KeyCode::Esc => self.completion = None,
            KeyCode::Tab => self.accept(),
            KeyCode::Enter if key.modifiers.is_empty() => {
                let is_command = completion.is_command;
                // A name that is written out is meant, although others begin like it.
                let written = self.editor.text();
                let written = written.strip_prefix('/').filter(|_| is_command && !completion.is_chosen);
                if let Some(exact) =
                    completion.items.iter().position(|(name, _)| Some(name.trim()) == written)
                {
                    completion.at = exact;
                }
                let (name, _) = completion.items.get(completion.at)?;
                let takes = COMMANDS.iter().find(|spec| spec.name == name).map_or("", |spec| spec.arguments);
                let needs = takes.starts_with('<');
                // An ambiguous prefix is not a command: Enter only inserts the marked one.
                let is_clear =
                    completion.is_chosen || last == 0 || completion.bytes == name.len() + "/".len();
                let usage = format!("/{name} {takes}");
                self.accept();
                if is_command && !needs && is_clear {
                    return Some(self.enter());
                }
                if is_command && needs && is_clear {
                    self.hint(&usage);
                }
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn accept(&mut self) {
        let Some(Completion { bytes, items, at, is_command, .. }) = self.completion.take() else { return };
        if let Some((text, _)) = items.get(at) {
            let text = if is_command { format!("/{text} ") } else { text.clone() };
            self.editor.complete(bytes, &text);
        }
    }

    /// Returns the mode after the current one. Only a command chooses `everything`.
    fn next_mode(&self) -> Vec<Effect> {
        let next = match self.status.mode {
            Some(Mode::Ask) => Mode::AcceptEdits,
            Some(Mode::AcceptEdits) => Mode::ReadOnly,
            Some(Mode::ReadOnly | Mode::Everything) => Mode::Ask,
            None => return Vec::new(),
        };
        vec![Effect::Command(Command::Permissions(Permitting::Next(next)))]
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most keys mean nothing here")]
    fn command_key(&mut self, key: KeyEvent, hint: Option<&str>) -> Vec<Effect> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let is_alt = key.modifiers.contains(KeyModifiers::ALT);
        let has_prefix = std::mem::take(&mut self.has_prefix);
        let edit = match key.code {
            KeyCode::Char('e') if is_control && has_prefix => return self.edit_outside(),
            KeyCode::Char('x') if is_control => {
                self.has_prefix = true;
                return Vec::new();
            }
            KeyCode::Char('g') if is_control => return self.edit_outside(),
            KeyCode::Char('v') if is_control => return vec![Effect::Picture],
            KeyCode::Char('c') if is_control => return self.cancel(true, hint),
            KeyCode::Esc => return self.cancel(false, hint),
            KeyCode::Char('d') if is_control && self.editor.is_empty() => return self.quit(),
            KeyCode::Up if (is_alt || self.editor.is_empty()) && self.editable().is_some() => {
                return self.editable().map(Effect::TakeBack).into_iter().collect();
            }
            KeyCode::Char('z') if is_control => return vec![Effect::Suspend],
            KeyCode::Char('l') if is_control => return vec![Effect::Redraw],
            KeyCode::Char('r') if is_control => {
                self.search_history();
                return Vec::new();
            }
            KeyCode::Char('q') if is_control => {
                self.is_asked_later = false;
                return Vec::new();
            }
            KeyCode::Char('o') if is_control => {
                self.viewer = Viewer::new(&self.calls);
                if self.viewer.is_none() {
                    self.hint = Some("  no tool call, thought or summary yet".to_owned());
                }
                let unread = self.calls.unread();
                return if unread.is_empty() { Vec::new() } else { vec![Effect::Summaries(unread)] };
            }
            KeyCode::BackTab => return self.next_mode(),
            KeyCode::Enter if is_alt => return self.submit(true),
            KeyCode::Enter if key.modifiers.contains(KeyModifiers::SHIFT) => return self.newline(),
            KeyCode::Char('j') if is_control => return self.newline(),
            KeyCode::Enter => return self.enter(),
            KeyCode::Tab => {
                self.offer();
                if self.completion.as_ref().is_some_and(|completion| completion.items.len() == 1) {
                    self.accept();
                }
                return self.files_effect();
            }
            KeyCode::Char('a') if is_control => Edit::Home,
            KeyCode::Char('e') if is_control => Edit::End,
            KeyCode::Char('b') if is_control => Edit::Left,
            KeyCode::Char('f') if is_control => Edit::Right,
            KeyCode::Char('p') if is_control => Edit::Up,
            KeyCode::Char('n') if is_control => Edit::Down,
            KeyCode::Char('h') if is_control => Edit::Backspace,
            KeyCode::Char('d') if is_control => Edit::Delete,
            KeyCode::Char('k') if is_control => Edit::KillToEnd,
            KeyCode::Char('u') if is_control => Edit::KillToStart,
            KeyCode::Char('w') if is_control => Edit::DeleteWordLeft,
            KeyCode::Char('y') if is_control => Edit::Yank,
            KeyCode::Char('t') if is_control => Edit::Transpose,
            // Terminals send the same code for Ctrl-_, Ctrl-/ and Ctrl-7.
            KeyCode::Char('_' | '/' | '7') if is_control => Edit::Undo,
            KeyCode::Char('b') if is_alt => Edit::WordLeft,
            KeyCode::Char('f') if is_alt => Edit::WordRight,
            KeyCode::Char('d') if is_alt => Edit::DeleteWordRight,
            KeyCode::Backspace if is_alt || is_control => Edit::DeleteWordLeft,
            KeyCode::Backspace => Edit::Backspace,
            KeyCode::Delete => Edit::Delete,
            KeyCode::Left if is_alt || is_control => Edit::WordLeft,
            KeyCode::Right if is_alt || is_control => Edit::WordRight,
            KeyCode::Left => Edit::Left,
            KeyCode::Right => Edit::Right,
            KeyCode::Home => Edit::Home,
            KeyCode::End => Edit::End,
            KeyCode::Up => Edit::Up,
            KeyCode::Down => Edit::Down,
            KeyCode::Char(c) if !is_control && !is_alt => {
                self.editor.insert(c.encode_utf8(&mut [0; 4]));
                self.offer();
                return self.files_effect();
            }
            _ => return Vec::new(),
        };
        self.editor.edit(edit);
        self.offer();
        self.files_effect()
    }

    fn edit_outside(&mut self) -> Vec<Effect> {
        self.completion = None;
        vec![Effect::EditOutside(self.editor.text())]
    }

    fn newline(&mut self) -> Vec<Effect> {
        self.completion = None;
        self.editor.insert("\n");
        Vec::new()
    }

    /// Handles Enter: a line that ends with a backslash continues.
    fn enter(&mut self) -> Vec<Effect> {
        if self.editor.before_cursor().ends_with('\\') {
            self.editor.edit(Edit::Backspace);
            return self.newline();
        }
        self.submit(false)
    }

    /// Submits the text: as input, or as a command.
    fn submit(&mut self, is_follow_up: bool) -> Vec<Effect> {
        self.completion = None;
        let text = self.editor.text();
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Vec::new();
        }
        let typed = self.editor.typed().to_owned();
        // A Markdown image, and text after a space, is not a command.
        if typed.starts_with('!') && !typed.starts_with("![") {
            let command = trimmed.strip_prefix('!').unwrap_or(trimmed);
            let (command, is_told) = match command.strip_prefix('!') {
                Some(command) => (command.trim().to_owned(), false),
                None => (command.trim().to_owned(), true),
            };
            let said = self.editor.submit();
            let mut effects = vec![Effect::Remember(said)];
            if !command.is_empty() {
                effects.push(Effect::Shell { command, is_told });
            }
            return effects;
        }
        // A path is not a command: `/etc/hosts is wrong`.
        let first = trimmed.split_whitespace().next().unwrap_or_default();
        let is_name = first.strip_prefix('/').is_some_and(|name| !name.contains('/') && !name.is_empty());
        let reads_as_command = is_name && !trimmed.contains('\n');
        if reads_as_command && typed.starts_with('/') {
            return match commands::parse(trimmed, &self.custom) {
                Ok(Command::Prompt(text)) => {
                    let said = self.editor.submit();
                    let mut effects = vec![Effect::Remember(said)];
                    effects.extend(self.say(text.clone(), text, is_follow_up, false));
                    effects
                }
                Ok(Command::Quit) => {
                    let said = self.editor.submit();
                    let mut effects = vec![Effect::Remember(said)];
                    effects.extend(self.quit());
                    effects
                }
                Ok(command) => {
                    let said = self.editor.submit();
                    // A list that is left leaves nothing.
                    if !command.picks() {
                        self.note(Look::DIM, said.trim());
                    }
                    vec![Effect::Remember(said), Effect::Command(command)]
                }
                // The text is kept, so it can be corrected.
                Err(problem) => {
                    self.note(Look::WARN, &problem);
                    Vec::new()
                }
            };
        }
        let mut said = self.editor.submit();
        if said.starts_with('!') || (reads_as_command && said.starts_with('/')) {
            // It is not a command when it returns from the history, either.
            said.insert(0, ' ');
        }
        let mut effects = vec![Effect::Remember(said)];
        effects.extend(self.say(trimmed.to_owned(), typed, is_follow_up, true));
        effects
    }

    /// Sends an input: into the run in progress, after it, or to start one.
    fn say(&mut self, text: String, names: String, is_follow_up: bool, is_typed: bool) -> Vec<Effect> {
        let kind = match (self.is_busy(), is_follow_up) {
            (false, _) => Kind::Prompt,
            (true, false) => Kind::Steer,
            (true, true) => Kind::FollowUp,
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.pending.push(Pending { ticket, kind, text: text.clone(), entry: None });
        if kind == Kind::Prompt {
            // From now on, there is work to interrupt.
            (self.busy_since, self.starts, self.is_interrupting) = (Some(self.now_ms), Some(ticket), false);
        }
        vec![Effect::Send { ticket, kind, text, names, is_typed }]
    }

    /// Handles Esc and Ctrl-C: clears a half-typed line, or else interrupts the work, or else leaves the
    /// chat.
    fn cancel(&mut self, is_ctrl_c: bool, hint: Option<&str>) -> Vec<Effect> {
        self.completion = None;
        if !self.editor.is_empty() {
            self.editor.clear();
            self.hint = Some("  cleared; ↑ brings it back".to_owned());
            return Vec::new();
        }
        if self.works_on() {
            if is_ctrl_c && self.is_interrupting {
                self.quit();
            }
            self.is_interrupting = self.is_busy();
            // From now on, this is the reason.
            self.refused.take_if(|who| who != YOU_REFUSED);
            return vec![Effect::Interrupt];
        }
        let (first, effect) = match is_ctrl_c {
            true => (LEAVES, Effect::Quit),
            false => (GOES_BACK, Effect::Command(Command::Branch(Branching::default()))),
        };
        if hint == Some(first) {
            return vec![effect];
        }
        self.hint = Some(first.to_owned());
        Vec::new()
    }

    /// Whether work is in progress that an interrupt ends.
    fn works_on(&self) -> bool {
        self.is_working() || !self.pending.is_empty()
    }

    /// Leaves the chat. If work is in progress, the user is asked what happens to it.
    fn quit(&mut self) -> Vec<Effect> {
        if !self.works_on() {
            return vec![Effect::Quit];
        }
        let item = |value: &str, label: &str, detail: &str| Item {
            value: value.to_owned(),
            label: label.to_owned(),
            detail: detail.to_owned(),
        };
        let mut items = vec![item(STOP, "Stop it and leave", "its work so far is kept")];
        // A command of the user's own runs in this process.
        if self.outlives && self.working.is_none() {
            items.push(item(LEAVE, "Leave it running", "it continues in the background; resume rejoins it"));
        }
        items.push(item(STAY, "Stay", ""));
        let what = match (self.working.is_some() && !self.is_busy(), self.asks.is_empty()) {
            (true, _) => "Your command is still running",
            (false, true) => "The agent is still working",
            (false, false) => "The agent waits for your answer",
        };
        self.pick(Picker::new(Purpose::Leave, what, items));
        Vec::new()
    }

    /// Offers the prompts of the history, the newest first, each once.
    fn search_history(&mut self) {
        let mut seen = HashSet::new();
        let prompts =
            self.editor.history().filter(|text| seen.insert(text.clone())).take(HISTORY_OFFERED_MAX);
        let item = |text: String| Item { label: one_line(&text, 200), detail: String::new(), value: text };
        let items: Vec<Item> = prompts.map(item).collect();
        if items.is_empty() {
            self.hint = Some("  no messages yet".to_owned());
            return;
        }
        let mut picker = Picker::new(Purpose::History, "Earlier prompts", items);
        picker.narrow(&self.editor.text());
        self.pick(picker);
    }

    /// Offers completions for the word before the cursor.
    fn offer(&mut self) {
        self.completion = None;
        let before = self.editor.before_cursor();
        if let Some(typed) = before.strip_prefix('/')
            && !typed.contains(char::is_whitespace)
            && !typed.contains('/')
        {
            let items = commands::completions(typed, &self.custom);
            let bytes = typed.len() + 1;
            if !items.is_empty() {
                self.completion =
                    Some(Completion { bytes, items, at: 0, is_chosen: false, is_command: true });
            }
        }
    }

    /// Returns the typed part of a file name after its `@`.
    pub(super) fn typed_file(&self) -> Option<&str> {
        let before = self.editor.before_cursor();
        // A blank in a name is written `\ `.
        let is_blank = |(place, c): &(usize, char)| {
            c.is_whitespace() && !before.get(..*place).unwrap_or_default().ends_with('\\')
        };
        let blank = before.char_indices().rev().find(is_blank);
        let word = before.get(blank.map_or(0, |(place, c)| place + c.len_utf8())..).unwrap_or_default();
        word.trim_start_matches(['(', '[', '{', '<', '"', '\'', '`']).strip_prefix('@')
    }

    fn files_effect(&self) -> Vec<Effect> {
        self.typed_file().map(|typed| vec![Effect::Files(typed.to_owned())]).unwrap_or_default()
    }
}
