//! A run as a person sees it: the answer's text, and a line for everything else.
//!
//! Invariants: every answer is shown in full, even if pieces of its stream were missed; a pipe gets an answer
//! only when it is complete, and a terminal marks void text; notes go to a separate screen, so the answer can
//! be piped alone.

use std::collections::HashMap;

use anyhow::Result;
use greenroom::{Delta, Event, EventKind, HookAction, HookPoint, Role, RunItem};
use greenroom_kernel::{FailureClass, ToolStatus};
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, format};

use crate::commands::questions;

/// Faster tool calls are shown without their duration, in milliseconds.
const QUICK_MS: u64 = 500;

/// The columns of a reason why a call was denied.
const REASON_COLUMNS: usize = 500;

/// The message after text that does not count.
const VOID: &str = "  ✗ the answer broke off: the text above is discarded, and the model is asked again";

/// The output of a run.
#[derive(Debug)]
pub(crate) struct View {
    /// The screen for the answer.
    pub(crate) text: Screen,
    /// The screen for everything else, if any.
    pub(crate) notes: Option<Screen>,
    /// The shown part of the streaming answer.
    shown: String,
    /// The descriptions of the calls in progress, by their ids.
    calls: HashMap<String, String>,
}

impl View {
    /// Creates a view on these screens.
    pub(crate) fn new(text: Screen, notes: Option<Screen>) -> Self {
        Self { text, notes, shown: String::new(), calls: HashMap::new() }
    }

    /// Shows an item.
    pub(crate) fn item<R>(&mut self, item: &RunItem<R>) -> Result<()> {
        // The text is in the events, and a complete message replaces missed pieces.
        if let RunItem::Event(event) = item { self.event(event) } else { Ok(()) }
    }

    /// Shows an event.
    #[expect(clippy::wildcard_enum_match_arm, reason = "events are open-ended")]
    pub(crate) fn event(&mut self, event: &Event) -> Result<()> {
        match &event.kind {
            EventKind::MessageStart => self.shown.clear(),
            EventKind::MessageDiscarded => self.discard()?,
            // Output to a pipe cannot be withdrawn, so it waits for the complete answer.
            EventKind::MessageDelta { .. } if !self.text.is_watched() => {}
            EventKind::MessageDelta { delta: Delta::Text(piece), .. } => {
                self.clear_live()?;
                self.shown.push_str(piece);
                self.text.text(piece)?;
            }
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                self.clear_live()?;
                match message.text.strip_prefix(self.shown.as_str()) {
                    Some(rest) => self.text.text(rest)?,
                    None => {
                        self.text.end_text()?;
                        self.text.text(&message.text)?;
                    }
                }
                self.text.end_text()?;
                self.shown.clear();
            }
            EventKind::ToolStart { call_id, name, arguments, .. } => {
                let width = self.notes.as_ref().map_or(100, Screen::width).clamp(30, 120);
                let call = format::call(name, arguments, width - 20);
                self.live(&format!("  · {call} …"))?;
                self.calls.insert(call_id.clone(), call);
            }
            EventKind::ToolUpdate { call_id, line, .. } => {
                let call = self.calls.get(call_id).cloned().unwrap_or_default();
                self.live(&format!("  · {call} … {}", one_line(line, 40)))?;
            }
            EventKind::ToolEnd { call_id, name, status, duration_ms } => {
                let call = self.calls.remove(call_id).unwrap_or_else(|| name.clone());
                let time = match *duration_ms {
                    0..QUICK_MS => String::new(),
                    ms => format!(", {}", format::duration(ms)),
                };
                match status {
                    ToolStatus::Ok => self.note(Look::DIM, &format!("  ✓ {call}{time}"))?,
                    ToolStatus::Error => self.note(Look::WARN, &format!("  ✗ {call}{time}"))?,
                    ToolStatus::Interrupted => self.note(Look::WARN, &format!("  ✗ {call}, interrupted"))?,
                }
            }
            EventKind::Hook { call_id, .. } => {
                let call = call_id.as_ref().and_then(|id| self.calls.get(id)).cloned();
                if let Some(denied) = denied(&event.kind, call.as_deref()) {
                    self.note(Look::WARN, &format!("  {denied}"))?;
                }
            }
            EventKind::QuestionAsked { entry_id, question, .. } => {
                self.note(Look::WARN, &format!("  question {entry_id}: {}", question.text))?;
                let details = question.details.iter().flat_map(|details| details.lines());
                details
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
                    .iter()
                    .try_for_each(|line| self.note(Look::DIM, &format!("    {line}")))?;
                self.note(Look::DIM, &format!("    {}", questions::wanted(&question.kind)))?;
            }
            EventKind::QuestionEnded { question, end } => {
                self.note(Look::DIM, &format!("  question {question} was {}", end.as_str()))?;
            }
            EventKind::CompactionNear { tokens, compacts_at } => {
                self.note(Look::DIM, &format!("  {}", format::compaction_near(*tokens, *compacts_at)))?;
            }
            EventKind::CompactionStart { tokens_before, .. } => {
                let size = format::short(*tokens_before);
                if self.notes.as_ref().is_some_and(Screen::is_terminal) {
                    self.live(&format!("  · compacting {size} …"))?;
                } else {
                    self.note(Look::DIM, &format!("  compacting {size} …"))?;
                }
            }
            EventKind::CompactionEnd(end) => {
                self.note(Look::NOTE, &format!("  {}", format::compaction(end)))?
            }
            // A loading server is asked every ten seconds for minutes: not every attempt is worth a line.
            EventKind::Retry { attempt, failure, .. }
                if failure.class == FailureClass::Loading && !attempt.is_power_of_two() => {}
            EventKind::Retry { failure, .. } if failure.class == FailureClass::Loading => {
                self.discard()?;
                let text = format!("  waiting for the server (Ctrl-C stops it): {failure}");
                self.note(Look::WARN, &one_line(&text, 200))?;
            }
            EventKind::Retry { delay_ms, failure, .. } => {
                self.discard()?;
                let text = format!("  trying again in {}: {failure}", format::duration(*delay_ms));
                // One row for one fact: the next attempt takes its place, and the end says what it was.
                if self.notes.as_ref().is_some_and(Screen::is_terminal) {
                    self.live(&text)?;
                } else {
                    self.note(Look::WARN, &one_line(&text, 200))?;
                }
            }
            EventKind::Fallback { provider, model, failure, .. } => {
                self.discard()?;
                let text = format!("  continuing with {model} of {provider}: {failure}");
                self.note(Look::WARN, &one_line(&text, 200))?;
            }
            EventKind::OverflowDetected => {
                self.note(Look::WARN, "  the server truncated the context silently; compacting")?;
            }
            EventKind::Warning { message } => {
                self.note(Look::WARN, &format!("  {}", one_line(message, 300)))?
            }
            EventKind::SessionRestarted { reason } => {
                self.note(Look::WARN, &format!("  the session was restarted: {}", one_line(reason, 200)))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Marks the shown part of the answer as void.
    fn discard(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.shown).is_empty() {
            self.clear_live()?;
            self.text.end_text()?;
            self.text.line(Row::styled(Look::WARN, VOID))?;
        }
        Ok(())
    }

    /// Shows a line that remains.
    pub(crate) fn note(&mut self, look: Look, text: &str) -> Result<()> {
        if let Some(notes) = &mut self.notes {
            self.text.end_text()?;
            notes.line(Row::styled(look, text))?;
        }
        Ok(())
    }

    fn live(&mut self, text: &str) -> Result<()> {
        if let Some(notes) = &mut self.notes {
            self.text.end_text()?;
            let text = one_line_keeping_indent(text, notes.width());
            notes.live(Row::styled(Look::DIM, text))?;
        }
        Ok(())
    }

    /// Ends an incomplete line.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.clear_live()?;
        self.shown.clear();
        self.calls.clear();
        Ok(self.text.end_text()?)
    }

    fn clear_live(&mut self) -> Result<()> {
        if let Some(notes) = &mut self.notes {
            notes.clear_live()?;
        }
        Ok(())
    }
}

/// Says that the permissions denied a call, and why; `None` for any other event.
pub(crate) fn denied(event: &EventKind, call: Option<&str>) -> Option<String> {
    let EventKind::Hook {
        hook: HookPoint::Permissions,
        action: HookAction::Refused,
        name: Some(name),
        detail: Some(reason),
        ..
    } = event
    else {
        return None;
    };
    Some(format!("{} was denied: {}", call.unwrap_or(name), one_line(reason, REASON_COLUMNS)))
}

fn one_line_keeping_indent(text: &str, width: usize) -> String {
    format!("  {}", one_line(text, width.saturating_sub(3)))
}
