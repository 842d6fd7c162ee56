//! A session's log in memory: its live path, its inbox and its head.
//!
//! Life cycle of an entry: it is pushed into a [`Draft`] of the log, the store appends the draft with the
//! head after it, and then the draft is [committed](Log::commit). [`Log::open`] opens a session from the
//! contents of the store.
//!
//! Invariants: a draft changes nothing until it is durable and committed; ids are dense; the memory contains
//! the live context, not the history; a log that was opened from the store equals the log to which its
//! entries were committed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::bill::{Bill, CallCost};
use crate::entry::{
    ChildRecord, CompactionEnded, CompactionStarted, Entry, EntryId, EntryKind, InboxDelivery,
};
use crate::head::Head;
use crate::message::{Block, Message, ToolCall, ToolResult};
use crate::messages::Messages;
use crate::path::{
    ActivePath, PinnedPath, is_message, is_rewrite_undone, open_calls, pinned_tokens, project,
};
use crate::question::Questions;
use crate::redact::Redactor;
use crate::terms::Terms;
use crate::usage::{Window, WindowSource};

mod amend;
mod context;
mod draft;
mod follow;
mod install;
mod recovery;
#[cfg(test)]
mod tests;
mod untold;

use context::SentContext;

pub use amend::{AmendError, Amendment, LABELS_MAX};
pub use draft::{Draft, Unfit};
pub use install::Installation;
pub use untold::UntoldCompactions;

/// The maximum number of items in a session's inbox.
pub const INBOX_MAX: usize = 64;

/// A session's log in memory, without the history that nothing needs.
#[derive(Debug, Clone)]
pub struct Log {
    head: Arc<Head>,
    /// Returns the cost of a model call.
    cost: CallCost,
    /// Redacts what is recorded.
    redactor: Redactor,
    /// The live path, and at most the path that was live before the newest compaction.
    path: Vec<Arc<Entry>>,
    inbox: VecDeque<InboxItem>,
    /// The pinned messages of the path.
    pinned: Vec<Arc<Entry>>,
    /// The questions of calls without a result.
    questions: Questions,
    /// The compaction in progress.
    compaction: Option<CompactionStarted>,
    /// The sub-agents in progress: the entries and records of their starts.
    children: Vec<(EntryId, ChildRecord)>,
    /// The calls without a result whose sub-agents wait for people.
    waiting_below: Vec<String>,
    /// The compactions that no reply has reported yet.
    untold: UntoldCompactions,
    /// The terms of the newest run.
    run_terms: Option<Arc<Terms>>,
    /// The window in which the newest run ended, if that entry was loaded.
    ran_in: Option<Window>,
    /// The context as it was sent last; `None` if it has to be made anew.
    sent: Option<SentContext>,
}

/// Input that waits in the inbox.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxItem {
    /// The input's entry.
    pub id: EntryId,
    /// When the input joins the path.
    pub delivery: InboxDelivery,
    /// The content of its user message.
    pub content: Vec<Block>,
    /// The fingerprint of the agent for which the input was sent, if it has one.
    pub fingerprint: Option<String>,
    /// The terms of the prompt, if it has any.
    pub terms: Option<Arc<Terms>>,
}

impl InboxItem {
    /// Returns the inbox item that an entry adds, if it adds one.
    fn of(entry: &Entry) -> Option<Self> {
        let EntryKind::Inbox { delivery, content, key: _, fingerprint, terms } = &entry.kind else {
            return None;
        };
        let (content, fingerprint, terms) = (content.clone(), fingerprint.clone(), terms.clone());
        Some(Self { id: entry.id, delivery: *delivery, content, fingerprint, terms })
    }
}

impl Log {
    /// Returns the recorded window, with its source if the newest run ended in this window.
    pub fn window(&self) -> Window {
        let unknown = Window { tokens: self.head.window, source: WindowSource::Unknown };
        self.ran_in.filter(|window| window.tokens == unknown.tokens).unwrap_or(unknown)
    }

    /// The head as of the newest append.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The live path, oldest first.
    pub fn path(&self) -> &[Arc<Entry>] {
        &self.path
    }

    /// The amount that the session has spent: for answers, for summaries, and through other sessions on its
    /// behalf.
    pub fn bill(&self) -> Bill {
        Bill::of(&self.head)
    }

    /// The input that waits to join the path, oldest first.
    pub fn inbox(&self) -> &VecDeque<InboxItem> {
        &self.inbox
    }

    /// The terms of the newest run, and the entry that records them.
    pub fn run_terms(&self) -> Option<(EntryId, &Arc<Terms>)> {
        self.head.run_terms.zip(self.run_terms.as_ref())
    }

    /// The sub-agents in progress: the entries and records of their starts.
    pub fn children(&self) -> &[(EntryId, ChildRecord)] {
        &self.children
    }

    /// The questions of calls without a result.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Returns the calls without a result that have asked a person, or whose sub-agents have, in order. They
    /// outlive the actor that runs them.
    pub fn asking_calls(&self) -> Vec<ToolCall> {
        if self.head.open_run.is_none() {
            return Vec::new();
        }
        let mut calls = open_calls(&self.path);
        calls.retain(|call| self.goes_on(&call.id));
        calls
    }

    /// Whether a call without a result outlives the actor that runs it: it has asked a person, or its
    /// sub-agent waits for one.
    fn goes_on(&self, call_id: &str) -> bool {
        self.questions.has_asked(call_id) || self.waits_below(call_id)
    }

    /// Whether the sub-agent of this call waits for a person.
    pub fn waits_below(&self, call_id: &str) -> bool {
        self.waiting_below.iter().any(|call| call == call_id)
    }

    /// Sets the calls whose sub-agents wait for people.
    pub fn set_waiting_below(&mut self, calls: Vec<String>) {
        self.waiting_below = calls;
    }

    /// Whether a run is open whose calls wait for people. It outlives the actor that performs it.
    pub fn is_waiting(&self) -> bool {
        !self.asking_calls().is_empty()
    }

    /// Returns the newest answer of the model, whether complete or not.
    pub fn newest_answer(&self) -> Option<EntryId> {
        self.path.iter().rev().find(|entry| entry.kind.as_answer().is_some()).map(|entry| entry.id)
    }

    /// Returns the results of the newest answer's calls, in the order of arrival, if neither a prompt nor a hand-off is
    /// newer.
    pub fn newest_results(&self) -> Vec<(EntryId, &ToolResult)> {
        let mut results = Vec::new();
        for entry in self.path.iter().rev() {
            match entry.kind.as_message().map(|message| &**message) {
                Some(Message::ToolResult(result)) => results.push((entry.id, result)),
                Some(Message::Assistant(_)) => break,
                Some(Message::User(_)) if !entry.kind.is_steer() => return Vec::new(),
                Some(Message::User(_)) => {}
                None if matches!(entry.kind, EntryKind::HandOff(_)) => return Vec::new(),
                None => {}
            }
        }
        results.reverse();
        results
    }

    /// Whether nothing was ever recorded.
    pub fn is_empty(&self) -> bool {
        self.head.entries == 0
    }

    /// Returns the messages that are sent to the model. Those of the call before are kept and extended, unless something
    /// changed them.
    pub fn context(&mut self) -> Messages {
        let sent = self.sent.get_or_insert_with(|| SentContext::new(&self.path, &self.pinned));
        sent.extend(&self.path);
        let messages = sent.messages();
        debug_assert_eq!(*messages, *project(&self.path, &self.pinned), "extending is projecting");
        messages
    }

    /// Returns the context as people and programs see it: a call that waits for a person has no result yet.
    pub fn shown_context(&self) -> Vec<Arc<Message>> {
        let mut messages = project(&self.path, &self.pinned);
        let waiting = self.asking_calls();
        if waiting.is_empty() {
            return messages;
        }
        // Calls of earlier answers may have had the same ids.
        let answer = messages.iter().rposition(|message| message.as_answer().is_some());
        let results = answer.map_or(messages.len(), |answer| answer + 1);
        let has_none = |message: &Message| match message {
            Message::ToolResult(result) => waiting.iter().any(|call| call.id == result.call_id),
            Message::User(_) | Message::Assistant(_) => false,
        };
        let shown = messages.split_off(results).into_iter().filter(|message| !has_none(message));
        messages.extend(shown);
        messages
    }

    /// The size of the pinned messages before the live part, in estimated tokens.
    pub fn pinned_tokens(&self) -> u64 {
        pinned_tokens(&self.path, &self.pinned)
    }

    /// The pinned messages of the path, in the order in which they were pinned.
    pub fn pinned(&self) -> &[Arc<Entry>] {
        &self.pinned
    }

    /// The size of all pinned messages of the path, in estimated tokens.
    pub fn pins_tokens(&self) -> u64 {
        self.pinned.iter().map(|entry| entry.tokens).sum()
    }

    /// The compactions that no reply has reported yet, oldest first.
    pub fn untold_compactions(&self) -> impl Iterator<Item = &CompactionEnded> {
        self.untold.iter()
    }

    /// Whether the newest rewrite of the context was the undoing of a compaction.
    pub fn was_undone(&self) -> bool {
        is_rewrite_undone(&self.path)
    }

    /// Lowers the number of automatic compactions that failed in a row to at most `max`, which ends a pause. This becomes
    /// durable with the next append.
    pub fn forget_failures_above(&mut self, max: u32) {
        if self.head.automatic_compaction_failures > max {
            Arc::make_mut(&mut self.head).automatic_compaction_failures = max;
        }
    }

    /// Whether the model has answered in this context, or in the part that a compaction replaced.
    pub fn has_answers(&self) -> bool {
        self.head.last_compaction.is_some()
            || self.path.iter().rev().any(|entry| entry.kind.is_whole_answer())
    }

    /// Returns the newest message of the path if the agent has not answered it completely: a user's message,
    /// tool results, or an incomplete answer.
    pub fn unanswered(&self) -> Option<EntryId> {
        let newest = self.path.iter().rev().find(|entry| is_message(&entry.kind))?;
        (!newest.kind.is_whole_answer()).then_some(newest.id)
    }

    /// The number of messages in the context.
    pub fn messages(&self) -> u64 {
        ActivePath::of(&self.path).messages(&self.head.pins)
    }

    /// Creates an empty draft.
    pub fn draft(&self, at_ms: u64) -> Box<Draft> {
        Box::new(Draft::new(
            Arc::clone(&self.head),
            &self.questions,
            at_ms,
            self.cost.clone(),
            self.redactor.clone(),
        ))
    }

    /// Replaces the path after it was read again, because the leaf moved or a compaction was undone.
    pub fn replace_path(&mut self, path: PinnedPath) {
        PinnedPath { path: self.path, pinned: self.pinned } = path;
        self.sent = None;
        self.forget_history();
    }

    /// Drops the path before the live part.
    fn forget_history(&mut self) {
        let active = ActivePath::of(&self.path);
        // The newest compaction comes after the entries it kept, unless it kept none. It stays in either
        // case.
        let first = active.compaction.map_or(0, |compaction| compaction.min(active.start));
        if first > 0 {
            self.path.drain(..first);
            self.sent = None;
        }
    }

    /// Returns results for the calls without one that have asked nobody, and whose sub-agents have asked nobody: their
    /// tools are not run again. A call cannot have begun if one before it still waits for a person, and one of the two, or
    /// an open call between them, `runs_alone`.
    pub fn cut_off_results(&self, runs_alone: impl Fn(&ToolCall) -> bool) -> Vec<ToolResult> {
        let (mut waits, mut is_behind) = (false, false);
        let mut results = Vec::new();
        for call in open_calls(&self.path) {
            let is_alone = runs_alone(&call);
            is_behind |= waits && is_alone;
            if !self.goes_on(&call.id) {
                results.push(match is_behind {
                    true => ToolResult::not_run(&call, "it had not begun when its process ended"),
                    false => ToolResult::interrupted(&call),
                });
            }
            let is_asking = self.questions.of_call(&call.id).any(|known| known.end.is_none());
            waits |= is_asking;
            is_behind |= is_asking && is_alone;
        }
        results
    }

    /// Returns the calls of the path without a result.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        open_calls(&self.path)
    }

    /// Returns the compaction in progress and the id of its start.
    pub fn open_compaction(&self) -> Option<(EntryId, &CompactionStarted)> {
        Some((self.head.open_compaction?, self.compaction.as_ref()?))
    }
}
