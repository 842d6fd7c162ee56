//! A session's log in memory: its live path, its inbox and its head.
//!
//! Life of an entry here: it is pushed into a [`Draft`] of the log, the draft is appended to the store with the head after
//! it, and only then [committed](Log::commit). A session is opened from what the store holds by [`Log::open`].
//!
//! Invariants: a draft changes nothing until it is durable and committed; ids are dense; what is held is the live context,
//! not the history; a log that was opened is the same as the one that its entries were committed to.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::bill::{Bill, CallCost};
use crate::entry::{ChildRecord, CompactionEnded, CompactionStarted, Delivery, Entry, EntryId, EntryKind};
use crate::head::Head;
use crate::message::{Block, Message, ToolCall, ToolResult};
use crate::path::{ActivePath, is_message, is_rewrite_undone, open_calls, project};
use crate::question::Questions;
use crate::terms::Terms;
use crate::usage::{Window, WindowSource};

mod amend;
mod draft;
mod follow;
mod install;
mod recovery;
#[cfg(test)]
mod tests;
mod untold;

pub use amend::{AmendError, Amendment, LABELS_MAX};
pub use draft::Draft;
pub use install::Installation;
pub use untold::UntoldCompactions;

/// The most input that waits in a session's inbox.
pub const INBOX_MAX: usize = 64;

/// A session's log, as far as it is needed.
#[derive(Debug, Clone)]
pub struct Log {
    head: Arc<Head>,
    /// What a model call costs.
    cost: CallCost,
    /// The live path, and at most what was live before the newest compaction.
    path: Vec<Arc<Entry>>,
    inbox: VecDeque<InboxItem>,
    pinned: Vec<Arc<Entry>>,
    /// What the calls without a result have asked.
    questions: Questions,
    /// The compaction that has begun and not ended.
    compaction: Option<CompactionStarted>,
    /// The agents that were called as tools and have not ended: their starts.
    children: Vec<(EntryId, ChildRecord)>,
    /// The calls without a result whose agents wait for people.
    waiting_below: Vec<String>,
    /// The compactions that the next reply tells.
    untold: UntoldCompactions,
    /// What the newest run is held to besides its prompt's words.
    run_terms: Option<Arc<Terms>>,
    /// The window in which the newest run ended, as far as it was read.
    ran_in: Option<Window>,
}

/// Input that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxItem {
    /// Its entry.
    pub id: EntryId,
    /// When it joins the path.
    pub delivery: Delivery,
    /// The content of the user message to be.
    pub content: Vec<Block>,
    /// The fingerprint of the agent that it was said to, where that has one.
    pub fingerprint: Option<String>,
    /// What it asks for besides its words, where it does.
    pub terms: Option<Arc<Terms>>,
}

impl InboxItem {
    /// What an entry puts into the inbox, if it does.
    fn of(entry: &Entry) -> Option<Self> {
        let EntryKind::Inbox { delivery, content, key: _, fingerprint, terms } = &entry.kind else {
            return None;
        };
        let (content, fingerprint, terms) = (content.clone(), fingerprint.clone(), terms.clone());
        Some(Self { id: entry.id, delivery: *delivery, content, fingerprint, terms })
    }
}

impl Log {
    /// The window that is recorded, and where the newest run had it from, if it ended in that one.
    pub fn window(&self) -> Window {
        let unknown = Window { tokens: self.head.window, source: WindowSource::Unknown };
        self.ran_in.filter(|window| window.tokens == unknown.tokens).unwrap_or(unknown)
    }

    /// What is known of the session without its entries, as of the newest append.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The live path, oldest first.
    pub fn path(&self) -> &[Arc<Entry>] {
        &self.path
    }

    /// What the session has spent: its answers, its summaries, and what others spent for it.
    pub fn bill(&self) -> Bill {
        Bill::of(&self.head)
    }

    /// What waits to join the path, oldest first.
    pub fn inbox(&self) -> &VecDeque<InboxItem> {
        &self.inbox
    }

    /// What the newest run is held to besides its prompt's words, and the entry that says so.
    pub fn run_terms(&self) -> Option<(EntryId, &Arc<Terms>)> {
        self.head.run_terms.zip(self.run_terms.as_ref())
    }

    /// The agents that were called as tools and have not ended: the starts of their work.
    pub fn children(&self) -> &[(EntryId, ChildRecord)] {
        &self.children
    }

    /// What the calls without a result have asked.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// The calls without a result that have asked a person something, or whose agents have, in their order: they outlive
    /// whoever works on them.
    pub fn asking_calls(&self) -> Vec<ToolCall> {
        if self.head.open_run.is_none() {
            return Vec::new();
        }
        let mut calls = open_calls(&self.path);
        calls.retain(|call| self.goes_on(&call.id));
        calls
    }

    /// Whether a call without a result outlives whoever works on it: it has asked a person, or its agent waits for one.
    fn goes_on(&self, call_id: &str) -> bool {
        self.questions.has_asked(call_id) || self.waits_below(call_id)
    }

    /// Whether the agent that works on this call waits for a person.
    pub fn waits_below(&self, call_id: &str) -> bool {
        self.waiting_below.iter().any(|call| call == call_id)
    }

    /// The agents that work on these calls wait for people.
    pub fn set_waiting_below(&mut self, calls: Vec<String>) {
        self.waiting_below = calls;
    }

    /// Whether a run is open whose calls wait for people: it outlives whoever works on it.
    pub fn is_waiting(&self) -> bool {
        !self.asking_calls().is_empty()
    }

    /// The newest answer of the model, whole or not.
    pub fn newest_answer(&self) -> Option<EntryId> {
        self.path.iter().rev().find(|entry| entry.kind.as_answer().is_some()).map(|entry| entry.id)
    }

    /// The results of the newest answer's calls, in the order in which they came, if neither a prompt nor a hand-off is newer.
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

    /// What the model is sent.
    pub fn context(&self) -> Vec<Arc<Message>> {
        project(&self.path, &self.pinned)
    }

    /// What the model would be sent, for people and programs: a call that waits for a person has no result yet.
    pub fn shown_context(&self) -> Vec<Arc<Message>> {
        let mut messages = self.context();
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

    /// The size of what is pinned before the live part, in estimated tokens.
    pub fn pinned_tokens(&self) -> u64 {
        self.pinned_tokens_before(&self.path)
    }

    /// The size of what would be pinned before the live part if this were the path, in estimated tokens.
    pub fn pinned_tokens_before(&self, path: &[Arc<Entry>]) -> u64 {
        ActivePath::of(path).pinned_before(&self.pinned).map(|entry| entry.tokens).sum()
    }

    /// The size of all that is pinned, in estimated tokens.
    pub fn pins_tokens(&self) -> u64 {
        self.pinned.iter().map(|entry| entry.tokens).sum()
    }

    /// The compactions that the next reply tells, oldest first.
    pub fn untold_compactions(&self) -> impl Iterator<Item = &CompactionEnded> {
        self.untold.iter()
    }

    /// Whether the newest rewrite of the context was an undone compaction.
    pub fn was_undone(&self) -> bool {
        is_rewrite_undone(&self.path)
    }

    /// Lets automatic compactions be tried again after failures. Durable with the next append.
    pub fn reset_failures(&mut self) {
        Arc::make_mut(&mut self.head).automatic_compaction_failures = 0;
    }

    /// Whether the model has answered in this context, or before what a compaction replaced.
    pub fn has_answers(&self) -> bool {
        self.head.last_compaction.is_some()
            || self.path.iter().rev().any(|entry| entry.kind.is_whole_answer())
    }

    /// The newest message of the path, if the agent owes an answer to it: a user's message, tool results, or what came of an
    /// answer that is not whole.
    pub fn unanswered(&self) -> Option<EntryId> {
        let newest = self.path.iter().rev().find(|entry| is_message(&entry.kind))?;
        (!newest.kind.is_whole_answer()).then_some(newest.id)
    }

    /// How many messages the context has.
    pub fn messages(&self) -> u64 {
        ActivePath::of(&self.path).messages()
    }

    /// An empty draft.
    pub fn draft(&self, at_ms: u64) -> Box<Draft> {
        Box::new(Draft::new(&self.head, &self.questions, at_ms, self.cost))
    }

    /// Replaces the path, after it was read anew for another leaf or an undone compaction.
    pub fn replace_path(&mut self, path: Vec<Arc<Entry>>) {
        self.path = path;
        self.forget_history();
    }

    /// Lets go of what is before the live part.
    fn forget_history(&mut self) {
        let active = ActivePath::of(&self.path);
        // The newest compaction stands after what it kept, unless it kept nothing: it stays in either case.
        let first = active.compaction.map_or(0, |compaction| compaction.min(active.start));
        self.path.drain(..first);
    }

    /// The calls without a result that have asked nobody anything, nor have their agents.
    pub fn calls_that_asked_nothing(&self) -> Vec<ToolCall> {
        let mut calls = open_calls(&self.path);
        calls.retain(|call| !self.goes_on(&call.id));
        calls
    }

    /// The calls of the path that have no result.
    pub fn open_calls(&self) -> Vec<ToolCall> {
        open_calls(&self.path)
    }

    /// The compaction that has begun and not ended, and its start's id.
    pub fn open_compaction(&self) -> Option<(EntryId, &CompactionStarted)> {
        Some((self.head.open_compaction?, self.compaction.as_ref()?))
    }
}
