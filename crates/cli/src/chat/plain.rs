//! The chat without a terminal: plain lines in, plain lines out.
//!
//! Invariants: everything that was said is in the log before it is answered, so leaving in any way loses nothing.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Result;
use greenroom::event::EventKind;
use greenroom::kernel::entry::Trigger;
use greenroom::kernel::size::{Estimator, message_tokens};
use greenroom::kernel::usage::{ContextUsage, WindowSource};
use greenroom::{CompactOptions, Error, Event, RunItem, RunStream, SessionHandle};
use tokio::sync::mpsc;

use super::between::Between;
use crate::files::{self, FileError};
use crate::interrupt::Interrupts;
use crate::options::Global;
use crate::setup::{Settings, Setup};
use crate::terminal::{Screen, Style, one_line};
use crate::text::{self, thousands};
use crate::view::View;
use crate::{errors, picture, run_view};

/// The longest line that is taken from standard input, in bytes.
const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;

const HELP: &str = "  /compact [focus]   replace the older part of the conversation by a summary
  /plan              what /compact would do
  /undo-compact      make the newest compaction no longer count
  /context           what fills the window
  /status            model, tokens, cost
  /continue          go on with a prompt that has no complete answer
  /help              this
  /quit              leave (as do Ctrl-C and Ctrl-D at the prompt)";

/// Talks in plain lines until the input ends.
pub(super) async fn talk(global: &Global, setup: Setup, interrupts: Interrupts, id: &str) -> Result<()> {
    let between = Between::new(&setup.runtime, id);
    let session = setup.runtime.open(id, &setup.agent).await?;
    let view = View::new(Screen::stdout(global.color), Some(Screen::stdout(global.color)));
    let mut chat = Chat { session, view, interrupts, settings: Arc::clone(&setup.settings), between };
    let result = chat.hold().await;
    setup.note_folder(&chat.session).await?;
    setup.runtime.shutdown().await?;
    result?;
    // What was under way was interrupted.
    chat.tell_what_came()?;
    drop(setup.simulated);
    Ok(())
}

struct Chat {
    session: SessionHandle,
    view: View,
    interrupts: Interrupts,
    settings: Arc<Settings>,
    between: Between,
}

impl Chat {
    async fn hold(&mut self) -> Result<()> {
        let is_terminal = std::io::stdin().is_terminal();
        self.welcome().await?;
        let mut lines = lines();
        loop {
            if is_terminal {
                self.view.text.text("› ")?;
            }
            let line = loop {
                tokio::select! {
                    biased;
                    () = self.interrupts.next() => break None,
                    event = self.between.next() => {
                        if self.tell(&event)? && is_terminal {
                            self.view.text.text("› ")?;
                        }
                    }
                    line = lines.recv() => break line,
                }
            };
            let Some(line) = line else {
                if is_terminal {
                    self.view.text.end_text()?;
                }
                return Ok(());
            };
            if is_terminal {
                // The user's own Enter has ended the line.
                self.view.text.forget_text();
            }
            let line = line.map_err(|error| errors::usage(format!("read standard input: {error}")))?;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            match self.act(line).await {
                Ok(true) if self.interrupts.is_ending() => return Ok(()),
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if errors::is_closed_pipe(&error) => return Err(error),
                // A failed request is no reason to leave: the session stays as it is.
                Err(error) => self.view.note(Style::Red, &format!("  {}", errors::line(&error)))?,
            }
        }
    }

    /// Tells what happened between runs. Gives whether there was anything to tell.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all else is told as in a run")]
    fn tell(&mut self, event: &Event) -> Result<bool> {
        match &event.kind {
            // Nobody waits for it before its end.
            EventKind::CompactionStart { .. } => return Ok(false),
            // The command that asked for it says how it went.
            EventKind::CompactionEnd(end) if end.trigger == Trigger::Manual => return Ok(false),
            _ => self.view.event(event)?,
        }
        Ok(true)
    }

    /// Tells what happened between runs and was not told yet.
    fn tell_what_came(&mut self) -> Result<()> {
        while let Some(event) = self.between.next_now() {
            self.tell(&event)?;
        }
        Ok(())
    }

    async fn welcome(&mut self) -> Result<()> {
        let state = self.session.state().await?;
        let line = format!("{}, {}. /help lists the commands.", state.model, window(&state.context));
        self.view.note(Style::Bold, &line)?;
        if state.entries > 0 {
            let line = format!(
                "Session {} goes on: {}, {}.",
                state.id,
                picture::fill(&state.context),
                picture::count(state.compactions, "compaction"),
            );
            self.view.note(Style::Dim, &line)?;
        }
        if state.is_unanswered {
            self.view.note(
                Style::Yellow,
                "Its newest prompt has no complete answer: /continue goes on with it.",
            )?;
        }
        Ok(())
    }

    /// Does what a line asks for; `false`: leave.
    async fn act(&mut self, line: &str) -> Result<bool> {
        let Some(command) = line.strip_prefix('/') else {
            let stream = self.session.prompt(line).stream();
            self.run(stream).await?;
            return Ok(true);
        };
        let (command, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match command {
            "compact" => self.compact(rest).await?,
            "plan" => self.plan().await?,
            "context" => self.context().await?,
            "status" => self.status().await?,
            "undo-compact" => {
                let context = self.session.undo_compaction().await?;
                self.view.note(
                    Style::Cyan,
                    &format!("  The compaction was undone: {}", picture::fill(&context)),
                )?;
            }
            "continue" => {
                let stream = self.session.resume().stream();
                self.run(stream).await?;
            }
            "help" | "?" => self.view.note(Style::Dim, HELP)?,
            "quit" | "exit" | "q" => return Ok(false),
            other => {
                let other = one_line(other, 30);
                self.view
                    .note(Style::Yellow, &format!("  There is no command /{other}; /help lists them."))?;
            }
        }
        Ok(true)
    }

    async fn run(&mut self, stream: RunStream) -> Result<()> {
        self.tell_what_came()?;
        if let Some(tokens) = self.between.compacting() {
            let line = format!("  compacting {} …; this waits for it", picture::short(tokens));
            self.view.note(Style::Dim, &line)?;
        }
        let (view, between) = (&mut self.view, &mut self.between);
        let played = run_view::play(stream, &self.interrupts, |item| {
            let is_told = matches!(&item, RunItem::Event(event) if !between.is_new(event));
            if is_told { Ok(()) } else { view.item(item) }
        });
        let played = played.await?;
        self.view.end()?;
        match played.reply {
            Ok(_) => {}
            Err(Error::Aborted) if played.is_interrupted => {
                self.view.note(
                    Style::Yellow,
                    "  Interrupted; what had come is kept. /continue goes on with it.",
                )?;
            }
            Err(error) => return Err(error.into()),
        }
        self.status_line().await
    }

    /// Where a compaction triggers, in tokens.
    fn trigger(&self, context: &ContextUsage) -> u64 {
        let window = context.window.unwrap_or(0);
        self.settings.compaction().trigger_tokens(window).unwrap_or(window)
    }

    async fn status_line(&mut self) -> Result<()> {
        let state = self.session.state().await?;
        let trigger = self.trigger(&state.context);
        let mut parts = vec![
            picture::context(&state.context, trigger, 16),
            format!("{} tokens in all", picture::short(state.total_tokens)),
        ];
        if state.cost_microdollars > 0 {
            parts.push(picture::dollars(state.cost_microdollars));
        }
        parts.push(state.model);
        self.view.note(Style::Dim, &format!("  {}", parts.join(" · ")))
    }

    async fn compact(&mut self, focus: &str) -> Result<()> {
        let focus = (!focus.is_empty()).then(|| focus.to_owned());
        let options = CompactOptions { focus, ..CompactOptions::default() };
        self.view.note(Style::Dim, "  compacting …")?;
        let session = self.session.clone();
        let compacting = session.compact(options);
        tokio::pin!(compacting);
        let compacted = loop {
            tokio::select! {
                biased;
                () = self.interrupts.next() => session.abort(),
                compacted = &mut compacting => break compacted,
            }
        };
        self.interrupts.settle().await;
        self.view.note(Style::Cyan, &indent(&text::compacted(&compacted?)))
    }

    async fn plan(&mut self) -> Result<()> {
        let plan = match self.session.plan(CompactOptions::default()).await {
            Ok(plan) => plan,
            Err(Error::NothingToCompact(reason)) => {
                return self.view.note(Style::Dim, &format!("  No compaction needed: {reason}"));
            }
            Err(error) => return Err(error.into()),
        };
        let split = if plan.is_split_turn { ", cutting a turn" } else { "" };
        let text = format!(
            "  /compact would summarise {} and keep all from entry {} on{split}\n  Tokens: {} → about {}",
            picture::count(plan.messages_removed(), "message"),
            plan.first_kept,
            thousands(plan.tokens_before),
            thousands(plan.tokens_after_estimate),
        );
        self.view.note(Style::Dim, &text)
    }

    async fn context(&mut self) -> Result<()> {
        let state = self.session.state().await?;
        let messages = self.session.context().await?;
        let mut by_role: Vec<(&str, u64, u64)> = Vec::new();
        for message in &messages {
            let role = match message.role() {
                "user" => "you (and the summary)",
                "tool" => "tool results",
                _ => "the agent",
            };
            let tokens = message_tokens(message, Estimator::Classes);
            match by_role.iter_mut().find(|(known, ..)| *known == role) {
                Some((_, count, sum)) => {
                    *count += 1;
                    *sum += tokens;
                }
                None => by_role.push((role, 1, tokens)),
            }
        }
        let trigger = self.trigger(&state.context);
        let mut text = format!("  {}\n", picture::context(&state.context, trigger, 40));
        for (role, count, tokens) in by_role {
            text.push_str(&format!(
                "  {role:<22} {:>9}  about {:>8} tokens\n",
                picture::count(count, "message"),
                thousands(tokens)
            ));
        }
        text.push_str(&format!(
            "  {} tokens as reported, {} estimated since; {}",
            thousands(state.context.usage_tokens),
            thousands(state.context.trailing_tokens),
            window(&state.context),
        ));
        self.view.note(Style::Dim, &text)
    }

    async fn status(&mut self) -> Result<()> {
        let state = self.session.state().await?;
        let text = format!(
            "  session {}, {}\n  {}, {}\n  {} entries, {}, {} tokens in all, {}",
            state.id,
            state.status,
            state.model,
            window(&state.context),
            thousands(state.entries),
            picture::count(state.compactions, "compaction"),
            thousands(state.total_tokens),
            if state.cost_microdollars > 0 {
                picture::dollars(state.cost_microdollars)
            } else {
                "no known cost".to_owned()
            },
        );
        self.view.note(Style::Dim, &text)
    }
}

/// The window, and where it is known from.
pub(super) fn window(context: &ContextUsage) -> String {
    const UNKNOWN: &str = "a window that nothing knows (--window says it)";
    let Some(window) = context.window else { return UNKNOWN.to_owned() };
    let source = match context.window_source {
        WindowSource::CompactionSetting | WindowSource::Setting => "as configured",
        WindowSource::Catalog => "from the model catalogue",
        WindowSource::Learned => "as the provider said when it refused a larger request",
        WindowSource::Server => "as the server says",
        WindowSource::Trained => "as the server says of the model; it may take less",
        WindowSource::Assumed => "assumed: nothing knows this model; --window says it",
        WindowSource::Unknown => return UNKNOWN.to_owned(),
    };
    format!("a window of {} tokens ({source})", thousands(window))
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// Lines from standard input, read by a thread that ends with the process.
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
