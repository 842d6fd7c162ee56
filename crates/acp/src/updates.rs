//! The events of a session as updates of an ACP session.
//!
//! Invariants: every call that was announced gets an end; a message of the user that the editor has sent is not sent back
//! to it; notices and compactions are told in the client's own form, if it has one, and else as messages and calls.

use std::collections::HashMap;
use std::path::PathBuf;

use agent_client_protocol::v1::schema::{
    ClientCapabilities, CompactionStatus, CompactionUpdate, ContentBlock, ContentChunk, Cost, CurrentModeUpdate,
    MessageId, Notice, NoticeSeverity, SessionUpdate, ToolCall, ToolCallStatus, ToolKind, UsageUpdate,
};
use greenroom::{Compacted, Delta, EntryId, Event, EventKind, MessageView, Role};
use greenroom_kernel::entry::{CompactionOutcome, Trigger};
use greenroom_server::operations::{Said, Speech};
use greenroom_terminal::format;

use crate::calls;

#[cfg(test)]
mod tests;

/// What the client can show in a form of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) notices: bool,
    pub(crate) compactions: bool,
}

impl Abilities {
    pub(crate) fn of(client: &ClientCapabilities) -> Self {
        let Some(session) = &client.session else { return Self::default() };
        Self { notices: session.notices.is_some(), compactions: session.compaction.is_some() }
    }
}

/// The updates of one session.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    folder: PathBuf,
    abilities: Abilities,
    /// The prompts of this editor whose messages have not come yet.
    pub(crate) prompts: usize,
    /// The number of the message that is streamed.
    message: u64,
    /// Whether a piece of it was sent.
    has_text: bool,
    /// The names of the calls without results.
    open: HashMap<String, String>,
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
                self.has_text = false;
                Vec::new()
            }
            EventKind::MessageDelta { delta: Delta::Text(text) } => {
                self.has_text = true;
                vec![SessionUpdate::AgentMessageChunk(self.chunk(text))]
            }
            EventKind::MessageDelta { delta: Delta::Reasoning(text) } => {
                vec![SessionUpdate::AgentThoughtChunk(self.chunk(text))]
            }
            EventKind::MessageDiscarded if self.has_text => {
                self.notice(NoticeSeverity::Warning, "The answer was interrupted, and begins again.")
            }
            EventKind::MessageEnd { message, .. } => self.message(message),
            EventKind::ToolStart { call_id, name, arguments } => {
                let mut updates = self.announce(call_id, name, arguments, false);
                let status = calls::status(call_id, ToolCallStatus::InProgress);
                updates.push(SessionUpdate::ToolCallUpdate(status));
                updates
            }
            EventKind::RunEnd { .. } => self.close(),
            EventKind::UsageUpdate { context, context_window: Some(window), cost_microdollars, .. } => {
                #[expect(clippy::cast_precision_loss, reason = "nobody spends 2^53 micro-dollars")]
                let cost = Cost::new(*cost_microdollars as f64 / 1e6, "USD");
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
                let name = self.open.remove(call_id).unwrap_or_default();
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
        let failed = |(id, _): (String, String)| {
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
                // A server that does not stream.
                if !self.has_text && !message.text.is_empty() {
                    updates.push(SessionUpdate::AgentMessageChunk(self.chunk(&message.text)));
                }
                self.has_text = false;
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
        if self.open.insert(id.to_owned(), name.to_owned()).is_some() {
            return Vec::new();
        }
        vec![SessionUpdate::ToolCall(calls::call(id, name, arguments, &self.folder, is_past))]
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
            let status = match &end.outcome {
                outcome if outcome.is_installed() => CompactionStatus::Completed,
                CompactionOutcome::Failed { .. } => CompactionStatus::Failed,
                _ => CompactionStatus::Cancelled,
            };
            let is_installed = end.is_installed();
            let update = CompactionUpdate::new(id, status);
            let update = match is_installed {
                true => update.summary(vec![ContentBlock::from(text)]),
                false => update.error(text),
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
