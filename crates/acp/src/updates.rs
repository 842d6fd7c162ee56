//! The events of a session as updates of an ACP session.
//!
//! Invariants: every call that was announced gets an end; a message of the user that the editor has sent is not sent back
//! to it; notices and compactions are told in the client's own form, if it has one, and else as messages and calls.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use agent_client_protocol::v1::schema::{
    ClientCapabilities, CompactionStatus, CompactionUpdate, ContentBlock, ContentChunk, Cost,
    CurrentModeUpdate, MessageId, Notice, NoticeSeverity, SessionUpdate, ToolCall, ToolCallStatus, ToolKind,
    UsageUpdate,
};
use greenroom::{Compacted, Delta, EntryId, Event, EventKind, MessageView, Role};
use greenroom_kernel::entry::{CompactionOutcome, Trigger};
use greenroom_server::operations::{Said, Speech};
use greenroom_terminal::format;

use crate::calls;

#[cfg(test)]
mod tests;

/// How many lines of a call's progress are shown, and after which time they are sent again, in milliseconds.
const PROGRESS_LINES: usize = 20;
const PROGRESS_MS: u64 = 250;

/// What the client can show in a form of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) notices: bool,
    pub(crate) compactions: bool,
    pub(crate) forms: bool,
}

impl Abilities {
    pub(crate) fn of(client: &ClientCapabilities) -> Self {
        let (session, forms) = (client.session.as_ref(), client.elicitation.as_ref());
        Self {
            notices: session.is_some_and(|session| session.notices.is_some()),
            compactions: session.is_some_and(|session| session.compaction.is_some()),
            forms: forms.is_some_and(|known| known.form.is_some()),
        }
    }
}

/// Adds updates to others; a piece of a message joins the piece before it.
pub(crate) fn append(updates: &mut Vec<SessionUpdate>, more: Vec<SessionUpdate>) {
    use SessionUpdate::{AgentMessageChunk as Message, AgentThoughtChunk as Thought};
    for update in more {
        match (updates.last_mut(), &update) {
            (Some(Message(before)), Message(next)) | (Some(Thought(before)), Thought(next))
                if before.message_id == next.message_id =>
            {
                if let (ContentBlock::Text(before), ContentBlock::Text(next)) =
                    (&mut before.content, &next.content)
                {
                    before.text.push_str(&next.text);
                    continue;
                }
                updates.push(update);
            }
            _ => updates.push(update),
        }
    }
}

/// The updates of one session.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    folder: PathBuf,
    pub(crate) abilities: Abilities,
    /// The prompts of this editor whose messages have not come yet.
    pub(crate) prompts: usize,
    /// The number of the message that is streamed.
    message: u64,
    /// How much of its text was sent, in bytes.
    sent: usize,
    /// Whether pieces of it were missed: then the rest is sent once it is complete.
    has_gap: bool,
    /// The calls without results.
    open: HashMap<String, Open>,
}

/// A call without a result.
#[derive(Debug, Default)]
struct Open {
    name: String,
    /// The newest lines of its progress.
    lines: VecDeque<String>,
    /// When they were sent last, in Unix milliseconds.
    sent_ms: u64,
}

impl Updates {
    pub(crate) fn new(folder: PathBuf, abilities: Abilities) -> Self {
        Self { folder, abilities, ..Self::default() }
    }

    /// Returns the updates of an event.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are not shown at an editor")]
    pub(crate) fn event(&mut self, event: &Event) -> Vec<SessionUpdate> {
        match &event.kind {
            EventKind::MessageStart => {
                self.message += 1;
                (self.sent, self.has_gap) = (0, false);
                Vec::new()
            }
            EventKind::MessageDelta { .. } if self.has_gap => Vec::new(),
            EventKind::MessageDelta { delta: Delta::Text(text) } => {
                self.sent += text.len();
                vec![SessionUpdate::AgentMessageChunk(self.chunk(text))]
            }
            EventKind::MessageDelta { delta: Delta::Reasoning(text) } => {
                vec![SessionUpdate::AgentThoughtChunk(self.chunk(text))]
            }
            EventKind::MessageDiscarded if self.sent > 0 => {
                self.notice(NoticeSeverity::Warning, "The answer was interrupted, and begins again.")
            }
            EventKind::MessageEnd { message, .. } => self.message(message),
            EventKind::ToolStart { call_id, name, arguments } => {
                let mut updates = self.announce(call_id, name, arguments, false);
                let status = calls::status(call_id, ToolCallStatus::InProgress);
                updates.push(SessionUpdate::ToolCallUpdate(status));
                updates
            }
            EventKind::ToolUpdate { call_id, line, .. } => self.progress(call_id, line, event.at_ms),
            EventKind::RunEnd { .. } => self.close(),
            EventKind::UsageUpdate { context, context_window: Some(window), cost_microdollars, .. } => {
                #[expect(clippy::cast_precision_loss, reason = "nobody spends 2^53 micro-dollars")]
                let cost = Cost::new(*cost_microdollars as f64 / 1e6, "USD");
                // Without a price the cost is not known.
                let cost = Some(cost).filter(|_| *cost_microdollars > 0);
                vec![SessionUpdate::UsageUpdate(UsageUpdate::new(context.tokens, *window).cost(cost))]
            }
            EventKind::CompactionStart { entry_id, trigger, tokens_before, .. } => {
                self.compacting(*entry_id, *trigger, *tokens_before)
            }
            EventKind::CompactionEnd(end) => self.compacted(end),
            EventKind::ModeChanged { mode } => {
                vec![SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode.clone()))]
            }
            EventKind::Retry { delay_ms, failure, .. } if self.abilities.notices => {
                let title = format!("{failure}; retrying in {}", format::duration(*delay_ms));
                self.notice(NoticeSeverity::Info, &title)
            }
            EventKind::Fallback { model, failure, .. } => {
                self.notice(NoticeSeverity::Warning, &format!("{failure}; continuing with {model}"))
            }
            EventKind::Warning { message } => self.notice(NoticeSeverity::Warning, message),
            EventKind::SessionFailed { reason } => self.notice(NoticeSeverity::Error, reason),
            EventKind::SessionDeleted { .. } => {
                self.notice(NoticeSeverity::Error, "The session was deleted.")
            }
            _ => Vec::new(),
        }
    }

    /// Notes that pieces of the answer may be missing.
    pub(crate) fn gap(&mut self) {
        self.has_gap = true;
    }

    /// Returns the updates of a message of the past.
    pub(crate) fn said(&mut self, said: &Said) -> Vec<SessionUpdate> {
        self.message += 1;
        match &said.speech {
            Speech::User { text, .. } => vec![SessionUpdate::UserMessageChunk(self.chunk(text))],
            Speech::Shell { command, text, .. } => {
                let text = format!("I ran `{command}`:\n\n{}", calls::block(text));
                vec![SessionUpdate::UserMessageChunk(self.chunk(&text))]
            }
            Speech::Assistant { text, tool_calls, .. } => {
                let mut updates = Vec::new();
                if !text.is_empty() {
                    updates.push(SessionUpdate::AgentMessageChunk(self.chunk(text)));
                }
                for call in tool_calls {
                    updates.extend(self.announce(&call.call_id, &call.name, &call.arguments, true));
                }
                updates
            }
            Speech::Tool { call_id, status, text } => {
                let Open { name, .. } = self.open.remove(call_id).unwrap_or_default();
                vec![SessionUpdate::ToolCallUpdate(calls::result(call_id, &name, *status, text))]
            }
            Speech::Summary { tokens_before, tokens_after, text, .. } => {
                let id = format!("compaction-{}", said.entry_id);
                let after = tokens_after.map_or_else(|| "?".to_owned(), format::short);
                let title = format!("Compacted {} to {after} tokens", format::short(*tokens_before));
                self.past_compaction(id, title, text)
            }
            Speech::BranchSummary { .. } | Speech::Custom { .. } => Vec::new(),
        }
    }

    /// Returns updates that end all calls without results.
    pub(crate) fn close(&mut self) -> Vec<SessionUpdate> {
        let failed = |(id, _): (String, Open)| {
            SessionUpdate::ToolCallUpdate(calls::status(&id, ToolCallStatus::Failed))
        };
        self.open.drain().map(failed).collect()
    }

    /// Returns a message for the user.
    pub(crate) fn notice(&self, severity: NoticeSeverity, text: &str) -> Vec<SessionUpdate> {
        if self.abilities.notices {
            let (title, rest) = text.split_once('\n').unwrap_or((text, ""));
            let rest = Some(rest.to_owned()).filter(|rest| !rest.is_empty());
            return vec![SessionUpdate::Notice(Notice::new(severity, title).description(rest))];
        }
        let quoted: String = text.lines().map(|line| format!("\n> {line}")).collect();
        vec![SessionUpdate::AgentMessageChunk(ContentChunk::new(format!("{quoted}\n\n").into()))]
    }

    fn chunk(&self, text: &str) -> ContentChunk {
        ContentChunk::new(text.to_owned().into()).message_id(MessageId::new(self.message.to_string()))
    }

    fn message(&mut self, message: &MessageView) -> Vec<SessionUpdate> {
        match message.role {
            Role::User if self.prompts > 0 => {
                self.prompts -= 1;
                Vec::new()
            }
            Role::User => {
                self.message += 1;
                vec![SessionUpdate::UserMessageChunk(self.chunk(&message.text))]
            }
            Role::Assistant => {
                let mut updates = Vec::new();
                // What was not streamed, or was missed.
                let rest = match self.sent {
                    0 => Some(&*message.text),
                    sent if self.has_gap => message.text.get(sent..),
                    _ => None,
                };
                if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                    updates.push(SessionUpdate::AgentMessageChunk(self.chunk(rest)));
                }
                (self.sent, self.has_gap) = (0, false);
                for call in &message.tool_calls {
                    updates.extend(self.announce(&call.id, &call.name, &call.arguments, false));
                }
                updates
            }
            Role::Tool => {
                let (Some(id), Some(status)) = (&message.call_id, message.status) else { return Vec::new() };
                self.open.remove(id);
                let name = message.tool_name.as_deref().unwrap_or_default();
                vec![SessionUpdate::ToolCallUpdate(calls::result(id, name, status, &message.text))]
            }
            Role::Shell | Role::Custom | Role::BranchSummary | _ => Vec::new(),
        }
    }

    fn announce(&mut self, id: &str, name: &str, arguments: &str, is_past: bool) -> Vec<SessionUpdate> {
        if self.open.contains_key(id) {
            return Vec::new();
        }
        self.open.insert(id.to_owned(), Open { name: name.to_owned(), ..Open::default() });
        vec![SessionUpdate::ToolCall(calls::call(id, name, arguments, &self.folder, is_past))]
    }

    /// Returns the newest lines of a call's progress, not too often. The changes of files are shown as diffs.
    fn progress(&mut self, id: &str, line: &str, now_ms: u64) -> Vec<SessionUpdate> {
        let Some(open) = self.open.get_mut(id).filter(|open| !calls::is_change(&open.name)) else {
            return Vec::new();
        };
        open.lines.push_back(line.to_owned());
        if open.lines.len() > PROGRESS_LINES {
            open.lines.pop_front();
        }
        if now_ms.saturating_sub(open.sent_ms) < PROGRESS_MS {
            return Vec::new();
        }
        open.sent_ms = now_ms;
        let lines: Vec<&str> = open.lines.iter().map(String::as_str).collect();
        vec![SessionUpdate::ToolCallUpdate(calls::progress(id, &lines.join("\n")))]
    }

    fn compacting(&self, started: EntryId, trigger: Trigger, tokens: u64) -> Vec<SessionUpdate> {
        let id = format!("compaction-{started}");
        if self.abilities.compactions {
            let update = CompactionUpdate::new(id, CompactionStatus::InProgress);
            return vec![SessionUpdate::CompactionUpdate(update)];
        }
        let call = ToolCall::new(id, format::compacting(trigger, tokens));
        vec![SessionUpdate::ToolCall(call.kind(ToolKind::Think).status(ToolCallStatus::InProgress))]
    }

    fn compacted(&self, end: &Compacted) -> Vec<SessionUpdate> {
        let Some(started) = end.started else { return Vec::new() };
        let (id, text) = (format!("compaction-{started}"), format::compaction(end));
        if self.abilities.compactions {
            let update = if end.is_installed() {
                CompactionUpdate::new(id, CompactionStatus::Completed).summary(vec![ContentBlock::from(text)])
            } else if matches!(end.outcome, CompactionOutcome::Failed { .. }) {
                CompactionUpdate::new(id, CompactionStatus::Failed).error(text)
            } else {
                CompactionUpdate::new(id, CompactionStatus::Cancelled).error(text)
            };
            return vec![SessionUpdate::CompactionUpdate(update)];
        }
        let status = if end.is_installed() { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
        let mut update = calls::status(&id, status);
        update.fields = update.fields.content(vec![text.into()]);
        vec![SessionUpdate::ToolCallUpdate(update)]
    }

    fn past_compaction(&self, id: String, title: String, summary: &str) -> Vec<SessionUpdate> {
        if self.abilities.compactions {
            let update = CompactionUpdate::new(id, CompactionStatus::Completed);
            let summary = vec![ContentBlock::from(summary.to_owned())];
            return vec![SessionUpdate::CompactionUpdate(update.summary(summary))];
        }
        let call = ToolCall::new(id, title).kind(ToolKind::Think).status(ToolCallStatus::Completed);
        vec![SessionUpdate::ToolCall(call.content(vec![summary.to_owned().into()]))]
    }
}
