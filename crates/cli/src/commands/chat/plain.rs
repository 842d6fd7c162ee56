//! The chat without a terminal: plain lines in, plain lines out.
//!
//! Invariants: all input is in the log before it is answered, so nothing is lost however the chat ends.

use std::io::IsTerminal;

use anyhow::Result;
use greenroom::{Error, ModelSettings, RunItem, State};
use greenroom::{EventKind, Record};
use greenroom_chat::commands::{self, Command};
use greenroom_chat::{Backend, HELD_COLUMNS, HowToCompact, NEXT_HOST, figures};
use greenroom_files::{self as files, FileError};
use greenroom_kernel::entry::Trigger;
use greenroom_server::operations::{
    Abort, Accepted, ClientKind, Operation, PromptOutcome, PromptSession, ResumeSession,
};
use greenroom_server::{Events, ProblemKind};
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Interrupts, Look, Row, Screen, format, text};
use tokio::sync::mpsc;

use super::between::{Between, News};
use crate::args::{Global, ModelArgs};
use crate::commands::run_view::{self, Unread};
use crate::commands::view::View;
use crate::config::Texts;
use crate::host::ATTEMPTS;
use crate::host::link::Link;
use crate::host::{self, Patience};
use crate::{agent, error};

/// The longest line of standard input, in bytes.
const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How many columns of a warning are shown.
const WARNING_COLUMNS: usize = 300;

/// An open session, and its events.
pub(super) type Opened = (Backend, Events);

/// Runs the chat in plain lines until the input ends. Returns whether the session exists.
pub(super) async fn talk(
    global: &Global,
    args: ModelArgs,
    link: Link,
    interrupts: Interrupts,
    patience: Patience,
    (backend, events): Opened,
    first: Option<String>,
) -> Result<bool> {
    let view = View::new(Screen::stdout(global.color), Some(Screen::stdout(global.color)));
    let output = Output { view, between: Between::new(events) };
    let (global, mut last_valid) = (global.clone(), None);
    agent::renew(&global, &mut last_valid);
    let mut chat = Chat { global, last_valid, args, link, backend, interrupts, patience, output };
    let result = chat.hold(first).await;
    let noted = chat.link.note_folder(chat.backend.id(), Some(false)).await;
    let Chat { link, mut output, .. } = chat;
    link.end().await?;
    result?;
    // Work in progress in this process was interrupted.
    output.tell_what_came()?;
    match noted {
        // The input is durable anyway.
        Err(error) if host::is_gone(&error) => Ok(true),
        noted => noted,
    }
}

struct Chat {
    global: Global,
    /// The last valid texts of the configuration files.
    last_valid: Option<Texts>,
    args: ModelArgs,
    link: Link,
    backend: Backend,
    interrupts: Interrupts,
    patience: Patience,
    output: Output,
}

/// The output for the user.
struct Output {
    view: View,
    between: Between,
}

impl Output {
    /// Shows an event between runs. Returns whether there was anything to show.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all else is told as in a run")]
    fn tell(&mut self, news: &News) -> Result<bool> {
        let event = match news {
            News::Event(event) => event,
            News::Warning(text) => {
                self.note(Look::WARN, &format!("  {}", one_line(text, WARNING_COLUMNS)))?;
                return Ok(true);
            }
        };
        match &event.kind {
            // Nobody waits for it before its end.
            EventKind::CompactionStart { .. } => return Ok(false),
            // The command that requested it shows its result.
            EventKind::CompactionEnd(end) if end.trigger == Trigger::Manual => return Ok(false),
            EventKind::Recorded { record: Record::LeafMoved { to }, .. } => {
                self.note(Look::NOTE, &format!("  {}", format::branched(*to)))?;
            }
            EventKind::Recorded { .. } => return Ok(false),
            // The session accepts no more input.
            EventKind::SessionDeleted { .. } => {
                return Err(Error::Deleted { session: event.session.to_string() }.into());
            }
            _ => self.view.event(event)?,
        }
        Ok(true)
    }

    /// Shows the events between runs that were not shown yet.
    fn tell_what_came(&mut self) -> Result<()> {
        while let Some(news) = self.between.next_now() {
            self.tell(&news)?;
        }
        Ok(())
    }

    fn note(&mut self, look: Look, text: &str) -> Result<()> {
        self.view.note(look, text)
    }
}

impl Chat {
    /// Performs this line, if there is one, and then those of the input.
    async fn hold(&mut self, mut first: Option<String>) -> Result<()> {
        let is_terminal = std::io::stdin().is_terminal();
        self.welcome().await?;
        let mut lines = lines();
        // Whether the last lost connection was handled.
        let mut is_seen_to = false;
        loop {
            if is_terminal {
                self.output.view.text.text("› ")?;
            }
            let line = loop {
                if let Some(first) = first.take() {
                    break Some(Ok(first));
                }
                tokio::select! {
                    biased;
                    () = self.interrupts.next() => break None,
                    news = self.output.between.next() => {
                        if self.output.tell(&news)? && is_terminal {
                            self.output.view.text.text("› ")?;
                        }
                    }
                    line = lines.recv() => break line,
                    () = self.link.client.closed(), if !is_seen_to => {
                        is_seen_to = true;
                        match self.reconnect().await {
                            Ok(()) => is_seen_to = false,
                            Err(error) => self.output.note(Look::BAD, &format!("  {}", error::line(&error)))?,
                        }
                    }
                }
            };
            let Some(line) = line else {
                if is_terminal {
                    self.output.view.text.end_text()?;
                }
                return Ok(());
            };
            if is_terminal {
                // The user's own Enter has ended the line.
                self.output.view.text.forget_text();
            }
            let line = line.map_err(|error| error::usage(format!("read standard input: {error}")))?;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match self.act(line).await {
                Ok(true) if self.interrupts.is_ending() => return Ok(()),
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if error::is_closed_pipe(&error) || error.is::<Unread>() => return Err(error),
                // The host accepts no more requests.
                Err(error) if host::is_silent(&error) => return Err(error),
                // A failed request does not end the chat: the session is unchanged.
                Err(error) => self.output.note(Look::BAD, &format!("  {}", error::line(&error)))?,
            }
        }
    }

    async fn welcome(&mut self) -> Result<()> {
        let state = self.backend.state().await?;
        let line = format!("{}, {}. /help lists the commands.", state.model, figures::window(&state.context));
        self.output.note(Look::BOLD, &line)?;
        if state.entries > 0 {
            let line = format!("Resumed {}: {}.", state.id, format::fill(&state.context));
            self.output.note(Look::DIM, &line)?;
        }
        self.say_what_waits(&state).await
    }

    /// Says what does not continue by itself.
    async fn say_what_waits(&mut self, state: &State) -> Result<()> {
        if let Some(text) = figures::stands_still(state) {
            self.output.note(Look::WARN, &format!("{}.", text.replacen("its", "Its", 1)))?;
        }
        if state.held_back == 0 {
            return Ok(());
        }
        for input in self.backend.waiting().await? {
            let text = one_line(&input.text, HELD_COLUMNS);
            self.output.note(Look::WARN, &format!("Held back: {text}"))?;
        }
        self.output.note(Look::WARN, "/continue starts the input that was held back, /withdraw withdraws it.")
    }

    /// Performs a line of input; returns false to leave. If the host ends before it has accepted the input,
    /// another one is asked.
    async fn act(&mut self, line: &str) -> Result<bool> {
        // The key makes the prompt idempotent after a broken connection.
        let key = greenroom_chat::new_key();
        let mut attempt = 1;
        loop {
            if self.link.client.is_closed() {
                self.reconnect().await?;
            }
            match self.attempt(line, &key).await {
                Err(error) if attempt < ATTEMPTS && host::is_gone(&error) => {
                    attempt += 1;
                    self.reconnect().await?;
                    if line.starts_with("/undo") {
                        // It may have been performed.
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    async fn attempt(&mut self, line: &str, key: &str) -> Result<bool> {
        let session_id = self.backend.id().to_owned();
        if !line.starts_with('/') {
            let key = Some(key.to_owned());
            self.run(PromptSession { key, ..PromptSession::new(session_id, line) }).await?;
            return Ok(true);
        }
        let command = match commands::parse(line, &[]) {
            Ok(command) => command,
            Err(wrong) => {
                self.output.note(Look::WARN, &format!("  {}", one_line(&wrong, WARNING_COLUMNS)))?;
                return Ok(true);
            }
        };
        #[expect(clippy::wildcard_enum_match_arm, reason = "all others need a terminal, as the table says")]
        match command {
            Command::Compact(how) => self.compact(how).await?,
            Command::Told(told) => {
                let text = told.answer(&self.backend).await?;
                self.output.note(Look::DIM, &indent(&text))?;
            }
            Command::Context => self.context().await?,
            Command::Status => {
                let (state, mode) = (self.backend.state().await?, self.backend.permissions().await?.mode);
                let server = agent::choice::server_shown(&self.global, &self.args);
                let status = figures::status(&state, &self.link.with.folder, server.as_deref(), mode);
                self.output.note(Look::DIM, &indent(&status))?;
            }
            Command::UndoCompact(number) => {
                let context = self.backend.undo_compaction(number).await?;
                let text = format!("  The compaction was undone: {}", format::fill(&context));
                self.output.note(Look::NOTE, &text)?;
            }
            Command::Undo(back) => {
                let scope = back.scope.unwrap_or_default();
                let rewound = self.backend.rewind(None, scope, back, false).await?;
                for (look, line) in figures::rewound(&rewound) {
                    self.output.note(look, &indent(&line))?;
                }
            }
            Command::Continue => {
                let settings = ModelSettings::default();
                self.run(ResumeSession { session_id, settings, output_schema: None }).await?;
            }
            Command::Prompt(text) => {
                let key = Some(key.to_owned());
                self.run(PromptSession { key, ..PromptSession::new(session_id, text) }).await?;
            }
            Command::Help => self.rows(&commands::plain_help(self.output.view.text.width()))?,
            Command::Quit => return Ok(false),
            _ => {
                let name = one_line(line.split_whitespace().next().unwrap_or_default(), 30);
                let text =
                    format!("  {name} needs a chat at a terminal; /help lists the commands available here.");
                self.output.note(Look::WARN, &text)?;
            }
        }
        Ok(true)
    }

    /// Connects to another host after this one has ended, and continues the session there.
    async fn reconnect(&mut self) -> Result<()> {
        if !self.link.is_host() {
            anyhow::bail!("the connection to the runtime ended");
        }
        self.output.tell_what_came()?;
        self.output.note(Look::WARN, &format!("  {NEXT_HOST}"))?;
        let id = self.backend.id().to_owned();
        let opening = async {
            let (global, args, patience) = (&self.global, &self.args, &self.patience);
            let open = async |link: &Link| Ok(Backend::open(link.client.clone(), &id).await?);
            Link::open_and(global, args, ClientKind::Chat, patience, self.last_valid.as_ref(), open).await
        };
        let (link, (backend, events)) = tokio::select! {
            biased;
            () = self.interrupts.next() => return Err(Error::Aborted.into()),
            opened = opening => opened?,
        };
        for warning in &link.with.warnings {
            self.output.note(Look::WARN, &format!("  {warning}"))?;
        }
        (self.link, self.backend) = (link, backend);
        agent::renew(&self.global, &mut self.last_valid);
        self.output.between = Between::new(events);
        let state = self.backend.state().await?;
        self.say_what_waits(&state).await
    }

    /// Shows a run, of a prompt or a continuation, to its end.
    async fn run<O>(&mut self, work: O) -> Result<()>
    where
        O: Operation<Output = Accepted, Outcome = PromptOutcome>,
    {
        agent::renew(&self.global, &mut self.last_valid);
        // Before what came is shown: an event that comes in the meantime is shown with the run.
        let events = self.link.client.events_of(self.backend.id());
        self.output.tell_what_came()?;
        let Output { view, between } = &mut self.output;
        if let Some(tokens) = between.compacting() {
            let line = format!("  compacting {} …; waiting for it", format::short(tokens));
            view.note(Look::DIM, &line)?;
        }
        let (link, id) = (&self.link, self.backend.id());
        let noting = async {
            // It is noted again when the chat ends.
            let _ = link.note_folder(id, Some(false)).await;
        };
        let played = run_view::play(&link.client, events, work, None, &self.interrupts, noting, |item| {
            let is_told = matches!(&item, RunItem::Event(event) if !between.is_new(event));
            if is_told { Ok(()) } else { view.item(item) }
        });
        let played = played.await?;
        view.end()?;
        let is_cut_off = played.is_cut_off();
        match played.reply {
            Ok(_) => {}
            Err(_) if is_cut_off => {
                let text = "  The host exited before the answer was complete; finished steps are kept. /continue resumes it.";
                return view.note(Look::WARN, text);
            }
            Err(error) if played.is_interrupted && error.kind() == Some(ProblemKind::Aborted) => {
                let text = "  Interrupted. Everything above is kept; /continue to resume.";
                view.note(Look::WARN, text)?;
            }
            Err(error) => return Err(error.into()),
        }
        self.status_line().await
    }

    async fn status_line(&mut self) -> Result<()> {
        let state = self.backend.state().await?;
        let mut parts = vec![
            format::context(&state.context, state.compacts_at.or(state.context.window).unwrap_or(0), 16),
            format!("{} tokens in all", format::short(state.total_tokens)),
        ];
        if state.cost_microdollars > 0 {
            parts.push(format::about(format::cents(state.cost_microdollars), state.estimated_tokens));
        }
        parts.push(state.model);
        self.output.note(Look::DIM, &format!("  {}", parts.join(" · ")))
    }

    async fn compact(&mut self, how: HowToCompact) -> Result<()> {
        self.output.note(Look::DIM, "  compacting …")?;
        let compacting = self.backend.compact(how);
        tokio::pin!(compacting);
        let compacted = loop {
            tokio::select! {
                biased;
                () = self.interrupts.next() => {
                    let abort = Abort::current(self.backend.id());
                    // Without a connection there is nothing to wait for.
                    let _ = self.link.client.call(abort).await;
                }
                compacted = &mut compacting => break compacted,
            }
        };
        self.interrupts.settle().await;
        self.output.note(Look::NOTE, &indent(&text::compacted(&compacted?)))
    }

    async fn context(&mut self) -> Result<()> {
        let parts = self.backend.context().await?;
        let trigger = self.backend.state().await?.compacts_at.unwrap_or(0);
        let of_prompt = agent::prompt::parts(&self.global, &self.args, &self.link.with.folder);
        let rows = figures::context(&parts, &of_prompt, trigger, self.output.view.text.width());
        self.rows(&rows)
    }

    fn rows(&mut self, rows: &[Row]) -> Result<()> {
        let text: Vec<String> = rows.iter().map(|row| row.text().trim_end().to_owned()).collect();
        self.output.note(Look::DIM, &text.join("\n"))
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Starts a thread that reads lines from standard input until the process ends.
fn lines() -> mpsc::Receiver<Result<String, FileError>> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        while let Some(line) = files::read_line(&mut input, LINE_BYTES_MAX).transpose() {
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
