//! A session's log in memory: its live path, its inbox and its head; and drafts of what to append.
//!
//! Invariants: a draft changes nothing until it is durable and committed; ids are dense; what is held is the
//! live context, not the history. Pure: the time is an argument, and the store is somebody else's.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::entry::{
    ChildRecord, ChildStage, CompactionEnded, CompactionOutcome, CompactionStarted, Delivery, Entry, EntryId,
    EntryKind, Metadata, RunOutcome, Sees, Spender, Spent,
};
use greenroom_kernel::head::SessionState;
use greenroom_kernel::message::{Block, Message, ToolCall, ToolResult, blocks_text};
use greenroom_kernel::path::{ActivePath, is_message, open_calls, project};
use greenroom_kernel::prune::{RECALL, capped};
use greenroom_kernel::question::{AnswerError, QuestionEnd, Questions};
use greenroom_kernel::size::{Estimator, entry_reasoning_tokens, entry_tokens};
use greenroom_kernel::terms::Terms;
use greenroom_kernel::usage::{ContextUsage, Window, WindowSource, size_after};
use greenroom_kernel::{Head, Usage};
use greenroom_tools::fits;

use crate::core::message::Amendment;
use crate::limits::bill::Bill;
use crate::values::compaction::Compacted;
use crate::values::error::MetadataError;
use crate::values::metadata::check_labels;
use crate::values::model_info::model_info;

/// The most input that waits in a session's inbox.
pub(crate) const INBOX_MAX: usize = 64;

/// A session's log, as far as it is needed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    head: Arc<Head>,
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

/// The window in which a run ended.
fn window_of(kind: &EntryKind) -> Option<Window> {
    let EntryKind::RunEnded { context, .. } = kind else { return None };
    Some(Window { tokens: context.window, source: context.window_source })
}

/// The newest compactions that ended since a run was completed, oldest first: its reply told those before.
#[derive(Debug, Clone, Default)]
pub(crate) struct UntoldCompactions(VecDeque<CompactionEnded>);

impl UntoldCompactions {
    /// The most that one reply tells.
    const MAX: usize = 32;

    /// Takes note of the session's next entry.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of compactions")]
    pub(crate) fn follow(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::CompactionEnded(ended) => {
                if self.0.len() == Self::MAX {
                    self.0.pop_front();
                }
                self.0.push_back(ended.clone());
            }
            EntryKind::RunEnded { outcome: RunOutcome::Completed, .. } => self.0.clear(),
            _ => {}
        }
    }

    /// As a reply tells them.
    pub(crate) fn told(&self) -> Vec<Compacted> {
        self.0.iter().map(Compacted::from).collect()
    }
}

/// Input that waits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct InboxItem {
    pub(crate) id: EntryId,
    pub(crate) delivery: Delivery,
    pub(crate) content: Vec<Block>,
    pub(crate) fingerprint: Option<String>,
    pub(crate) terms: Option<Arc<Terms>>,
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

/// Why a session is not changed.
#[derive(Debug)]
pub(crate) enum AmendError {
    Metadata(MetadataError),
    Answer(EntryId, AnswerError),
}

impl From<MetadataError> for AmendError {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

/// Entries to append together, and the head after them.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) entries: Vec<Arc<Entry>>,
    pub(crate) head: Head,
    questions: Questions,
    at_ms: u64,
    /// Whether its entries are another log's, which has learned from them what there is to learn.
    pub(crate) is_import: bool,
}

impl Log {
    /// From what the store holds: the entries from `head.active_from` on, the pinned and the waiting ones.
    pub(crate) fn open(head: Head, loaded: &[Arc<Entry>], extra: &[Arc<Entry>]) -> Self {
        let path = path_within(loaded, head.leaf);
        let find = |id: &EntryId| extra.iter().chain(loaded).find(|entry| entry.id == *id).map(Arc::clone);
        let inbox = head.inbox.iter().filter_map(|id| InboxItem::of(&*find(id)?)).collect();
        let pinned = head.pins.iter().filter_map(find).collect();
        let compaction = head.open_compaction.as_ref().and_then(find).and_then(|entry| {
            if let EntryKind::CompactionStarted(started) = &entry.kind { Some(started.clone()) } else { None }
        });
        let child = |id: &EntryId| {
            let entry = find(id)?;
            if let EntryKind::Child(child) = &entry.kind { Some((*id, child.clone())) } else { None }
        };
        let children = head.open_children.iter().filter_map(child).collect();
        let run_terms =
            head.run_terms.as_ref().and_then(find).and_then(|entry| entry.kind.as_terms().cloned());
        let mut untold = UntoldCompactions::default();
        let mut questions = Questions::default();
        let mut ran_in = None;
        for entry in loaded {
            untold.follow(&entry.kind);
            questions.follow(entry);
            ran_in = window_of(&entry.kind).or(ran_in);
        }
        let head = Arc::new(head);
        Self {
            head,
            path,
            inbox,
            pinned,
            questions,
            compaction,
            children,
            waiting_below: Vec::new(),
            untold,
            run_terms,
            ran_in,
        }
    }

    /// The window that is recorded, and where the newest run had it from, if it ended in that one.
    pub(crate) fn window(&self) -> Window {
        let unknown = Window { tokens: self.head.window, source: WindowSource::Unknown };
        self.ran_in.filter(|window| window.tokens == unknown.tokens).unwrap_or(unknown)
    }

    /// Whether the head and the entries that were read agree.
    ///
    /// # Errors
    /// The first thing in which they do not, as a clause.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Head { leaf, active_compaction, inbox, pins, open_compaction, open_children, .. } = self.head();
        let Head { questions, run_terms, .. } = self.head();
        let end = self.path.last().map(|entry| entry.id);
        if end != *leaf {
            return Err(format!("its path should end at {} and ends at {}", shown(*leaf), shown(end)));
        }
        let active = ActivePath::of(&self.path).compaction_id();
        if active != *active_compaction {
            let (should, is) = (shown(*active_compaction), shown(active));
            return Err(format!("its active compaction should be {should} and is {is}"));
        }
        let begins = self.path.first().and_then(|entry| entry.parent);
        if let Some(missing) = begins.filter(|_| active.is_none()) {
            return Err(format!("entry {missing} is missing from its path"));
        }
        let found = [
            ("prompts that wait", inbox.len(), self.inbox.len()),
            ("pinned entries", pins.len(), self.pinned.len()),
            ("open compactions", open_compaction.iter().len(), self.compaction.iter().len()),
            ("agents at work", open_children.len(), self.children.len()),
            ("open questions", questions.len(), self.questions.open().count()),
            ("terms of its run", run_terms.iter().len(), self.run_terms.iter().len()),
        ];
        match found.into_iter().find(|(_, should, are)| should != are) {
            Some((what, should, are)) => Err(format!("it should have {should} {what} and has {are}")),
            None => Ok(()),
        }
    }

    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    pub(crate) fn path(&self) -> &[Arc<Entry>] {
        &self.path
    }

    /// What the session has spent: its answers, its summaries, and what others spent for it.
    pub(crate) fn bill(&self) -> Bill {
        Bill::of(&self.head)
    }

    pub(crate) fn inbox(&self) -> &VecDeque<InboxItem> {
        &self.inbox
    }

    /// What the newest run is held to besides its prompt's words, and the entry that says so.
    pub(crate) fn run_terms(&self) -> Option<(EntryId, &Arc<Terms>)> {
        self.head.run_terms.zip(self.run_terms.as_ref())
    }

    /// The agents that were called as tools and have not ended: the starts of their work.
    pub(crate) fn children(&self) -> &[(EntryId, ChildRecord)] {
        &self.children
    }

    /// What the calls without a result have asked.
    pub(crate) fn questions(&self) -> &Questions {
        &self.questions
    }

    /// The calls without a result that have asked a person something, or whose agents have, in their order: they outlive
    /// whoever works on them.
    pub(crate) fn asking_calls(&self) -> Vec<ToolCall> {
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
    pub(crate) fn waits_below(&self, call_id: &str) -> bool {
        self.waiting_below.iter().any(|call| call == call_id)
    }

    /// The agents that work on these calls wait for people.
    pub(crate) fn set_waiting_below(&mut self, calls: Vec<String>) {
        self.waiting_below = calls;
    }

    /// Whether a run is open whose calls wait for people: it outlives whoever works on it.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.asking_calls().is_empty()
    }

    /// The newest answer of the model.
    pub(crate) fn newest_answer(&self) -> Option<EntryId> {
        let is_answer = |entry: &&Arc<Entry>| {
            entry.kind.as_message().is_some_and(|message| matches!(&**message, Message::Assistant(_)))
        };
        self.path.iter().rev().find(is_answer).map(|entry| entry.id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.entries == 0
    }

    /// What the model is sent.
    pub(crate) fn context(&self) -> Vec<Arc<Message>> {
        project(&self.path, &self.pinned)
    }

    /// What the model would be sent, for people and programs: a call that waits for a person has no result yet.
    pub(crate) fn shown_context(&self) -> Vec<Arc<Message>> {
        let mut messages = self.context();
        let waiting = self.asking_calls();
        if waiting.is_empty() {
            return messages;
        }
        let is_answer = |message: &Arc<Message>| matches!(&**message, Message::Assistant(_));
        // Calls of earlier answers may have had the same ids.
        let results = messages.iter().rposition(is_answer).map_or(messages.len(), |answer| answer + 1);
        let has_none = |message: &Message| match message {
            Message::ToolResult(result) => waiting.iter().any(|call| call.id == result.call_id),
            Message::User(_) | Message::Assistant(_) => false,
        };
        let shown = messages.split_off(results).into_iter().filter(|message| !has_none(message));
        messages.extend(shown);
        messages
    }

    /// The size of what is pinned before the live part, in estimated tokens.
    pub(crate) fn pinned_tokens(&self) -> u64 {
        self.pinned_tokens_before(&self.path)
    }

    /// The size of what would be pinned before the live part if this were the path, in estimated tokens.
    pub(crate) fn pinned_tokens_before(&self, path: &[Arc<Entry>]) -> u64 {
        let active = ActivePath::of(path);
        if active.compaction.is_none() {
            // Nothing was replaced, so nothing is sent in front.
            return 0;
        }
        let first = active.entries().first().map(|entry| entry.id);
        let outside = |entry: &&Arc<Entry>| first.is_none_or(|first| entry.id < first);
        self.pinned.iter().filter(outside).map(|entry| entry.tokens).sum()
    }

    /// The size of all that is pinned, in estimated tokens.
    pub(crate) fn pins_tokens(&self) -> u64 {
        self.pinned.iter().map(|entry| entry.tokens).sum()
    }

    /// The compactions that ended since a run was completed.
    pub(crate) fn untold_compactions(&self) -> Vec<Compacted> {
        self.untold.told()
    }

    /// Whether the newest rewrite of the context was an undone compaction.
    pub(crate) fn was_undone(&self) -> bool {
        let rewrite = |entry: &&Arc<Entry>| {
            matches!(
                entry.kind,
                EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. } | EntryKind::Prune(_)
            )
        };
        let newest = self.path.iter().rev().find(rewrite);
        newest.is_some_and(|entry| matches!(entry.kind, EntryKind::CompactionUndone { .. }))
    }

    /// Lets automatic compactions be tried again after failures. Durable with the next append.
    pub(crate) fn reset_failures(&mut self) {
        Arc::make_mut(&mut self.head).automatic_compaction_failures = 0;
    }

    /// Whether the model has answered in this context, or before what a compaction replaced.
    pub(crate) fn has_answers(&self) -> bool {
        let is_answer = |entry: &Arc<Entry>| {
            entry.kind.as_message().is_some_and(|message| match &**message {
                Message::Assistant(answer) => !answer.stop.is_partial(),
                Message::User(_) | Message::ToolResult(_) => false,
            })
        };
        self.head.last_compaction.is_some() || self.path.iter().rev().any(is_answer)
    }

    /// The newest message of the path, if the agent owes an answer to it: a user's message, or tool results.
    pub(crate) fn unanswered(&self) -> Option<EntryId> {
        let newest = self.path.iter().rev().find(|entry| is_message(&entry.kind))?;
        let is_answer = newest.kind.as_message().is_some_and(|message| match &**message {
            Message::Assistant(answer) => !answer.stop.is_partial(),
            Message::User(_) | Message::ToolResult(_) => false,
        });
        (!is_answer).then_some(newest.id)
    }

    /// How many messages the context has.
    pub(crate) fn messages(&self) -> u64 {
        ActivePath::of(&self.path).messages()
    }

    /// An empty draft.
    pub(crate) fn draft(&self, at_ms: u64) -> Box<Draft> {
        let (head, questions) = (Head::clone(&self.head), self.questions.clone());
        Box::new(Draft { entries: Vec::new(), head, questions, at_ms, is_import: false })
    }

    /// Takes over a draft that is durable now.
    pub(crate) fn commit(&mut self, draft: Box<Draft>, head: Arc<Head>) {
        let entries = self.head.entries + draft.entries.len() as u64;
        assert_eq!(head.entries, entries, "a draft is committed to the log that it was made of");
        if head.run_terms != self.head.run_terms {
            // They are recorded as the run begins, or were with what waited.
            let waited = self.inbox.iter().find(|item| Some(item.id) == head.run_terms);
            let new = draft.entries.iter().find(|entry| Some(entry.id) == head.run_terms);
            let new = new.and_then(|entry| entry.kind.as_terms());
            self.run_terms = waited.and_then(|item| item.terms.as_ref()).or(new).cloned();
        }
        for entry in &draft.entries {
            self.untold.follow(&entry.kind);
            self.ran_in = window_of(&entry.kind).or(self.ran_in);
            if let Some(message) = entry.kind.as_message()
                && let Message::ToolResult(result) = &**message
            {
                self.waiting_below.retain(|call| *call != result.call_id);
            }
            match &entry.kind {
                EntryKind::Inbox { .. } => self.inbox.extend(InboxItem::of(entry)),
                EntryKind::InboxCleared { items } => self.inbox.retain(|item| !items.contains(&item.id)),
                EntryKind::Message { inbox: Some(delivered), .. } => {
                    self.inbox.retain(|item| item.id != *delivered);
                }
                EntryKind::Pin { entry: target, pinned } => {
                    self.pinned.retain(|entry| entry.id != *target);
                    if let Some(found) =
                        self.path.iter().find(|entry| entry.id == *target).filter(|_| *pinned)
                    {
                        self.pinned.push(Arc::clone(found));
                    }
                }
                EntryKind::Message { inbox: None, .. }
                | EntryKind::Shell(_)
                | EntryKind::Custom(_)
                | EntryKind::BranchSummary { .. }
                | EntryKind::Compaction(_)
                | EntryKind::CompactionUndone { .. }
                | EntryKind::ModelChange { .. }
                | EntryKind::Label { .. }
                | EntryKind::Note { .. }
                | EntryKind::LeafMoved { .. }
                | EntryKind::Spent(_)
                | EntryKind::Prune(_)
                | EntryKind::WholeResult { .. }
                | EntryKind::Metadata(_)
                | EntryKind::HandOff(_)
                | EntryKind::Question(_)
                | EntryKind::QuestionEnded { .. }
                | EntryKind::CallStarted { .. }
                | EntryKind::Terms { .. }
                | EntryKind::RunEnded { .. } => {}
                EntryKind::Child(child) => match &child.stage {
                    // Nobody works for a copy.
                    ChildStage::Started if draft.is_import => {}
                    ChildStage::Started => self.children.push((entry.id, child.clone())),
                    ChildStage::Ended { started, .. } => self.children.retain(|(id, _)| id != started),
                },
                EntryKind::CompactionStarted(started) => self.compaction = Some(started.clone()),
                EntryKind::CompactionEnded(_) => self.compaction = None,
            }
            if entry.kind.is_on_path() {
                self.path.push(Arc::clone(entry));
            }
        }
        self.head = head;
        self.questions = draft.questions;
        self.forget_history();
    }

    /// Replaces the path, after it was read anew for another leaf or an undone compaction.
    pub(crate) fn replace_path(&mut self, path: Vec<Arc<Entry>>) {
        self.path = path;
        self.forget_history();
    }

    /// Lets go of what is before the live part.
    fn forget_history(&mut self) {
        let start = ActivePath::of(&self.path).start;
        if start > 0 {
            // The newest compaction stands after what it kept, so it stays.
            self.path.drain(..start);
        }
    }

    /// What a crash left open, closed: calls without results, the run, the compaction. `None` if nothing is open.
    pub(crate) fn recovery(&self, at_ms: u64, context: ContextUsage) -> Option<Box<Draft>> {
        let mut draft = self.draft(at_ms);
        draft.close_calls(open_calls(&self.path));
        draft.close_compaction(self);
        if let Some(run) = self.head.open_run {
            draft.push(EntryKind::RunEnded { run, outcome: RunOutcome::Interrupted, context });
            // Where the whole answer was recorded, nothing is left to be done.
            let is_unfinished = self.unanswered().is_some() || !open_calls(&self.path).is_empty();
            draft.head.interrupted = draft.head.interrupted.filter(|_| is_unfinished);
        }
        (!draft.entries.is_empty()).then_some(draft)
    }

    /// As [`Self::recovery`], of a session whose run waits for people and goes on: the calls that have asked stay open.
    pub(crate) fn recovery_of_waiting(&self, at_ms: u64) -> Box<Draft> {
        let mut draft = self.draft(at_ms);
        draft.close_calls(self.calls_that_asked_nothing());
        draft.close_compaction(self);
        draft.expire_questions();
        draft
    }

    /// The calls without a result that have asked nobody anything, nor have their agents.
    pub(crate) fn calls_that_asked_nothing(&self) -> Vec<ToolCall> {
        let mut calls = open_calls(&self.path);
        calls.retain(|call| !self.goes_on(&call.id));
        calls
    }

    /// The calls of the path that have no result.
    pub(crate) fn open_calls(&self) -> Vec<ToolCall> {
        open_calls(&self.path)
    }

    /// The compaction that has begun and not ended, and its start's id.
    pub(crate) fn open_compaction(&self) -> Option<(EntryId, &CompactionStarted)> {
        Some((self.head.open_compaction?, self.compaction.as_ref()?))
    }

    /// The end of a compaction that nobody runs any more.
    pub(crate) fn interrupted_compaction(&self) -> Option<CompactionEnded> {
        let (id, started) = self.open_compaction()?;
        Some(CompactionEnded {
            started: id,
            trigger: started.trigger,
            outcome: CompactionOutcome::Interrupted,
            entry: None,
            tokens_before: started.tokens_before,
            tokens_after: started.tokens_before,
            messages_before: started.messages_before,
            messages_after: started.messages_before,
            messages_removed: 0,
            duration_ms: 0,
            summary_usage: Usage::default(),
            cost_microdollars: None,
        })
    }
}

/// How a message begins: its first line that says something, cut to what fits into a list.
fn opening(content: &[Block]) -> Option<String> {
    const CHARS_MAX: usize = 80;
    let text = blocks_text(content);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let words = line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    if line.chars().count() <= CHARS_MAX {
        return Some(line).filter(|line| !line.is_empty());
    }
    let cut: String = line.chars().take(CHARS_MAX - 1).collect();
    Some(format!("{}…", cut.trim_end()))
}

/// An entry's id for people.
fn shown(id: Option<EntryId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| format!("entry {id}"))
}

/// The part of the path to `leaf` that is within `entries` (sorted by id).
pub(crate) fn path_within(entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Vec<Arc<Entry>> {
    let mut path = Vec::new();
    let mut next = leaf;
    while let Some(id) = next {
        let Ok(index) = entries.binary_search_by_key(&id, |entry| entry.id) else { break };
        path.push(Arc::clone(&entries[index]));
        next = entries[index].parent.filter(|parent| *parent < id);
    }
    path.reverse();
    path
}

impl Draft {
    /// The id of the entry that is pushed next.
    pub(crate) fn next_id(&self) -> EntryId {
        EntryId(self.head.entries)
    }

    /// What the session will have spent.
    pub(crate) fn billed(&self) -> Bill {
        Bill::of(&self.head)
    }

    /// The context is rebuilt from another path, which has so many tokens.
    pub(crate) fn follow_path(&mut self, path: &[Arc<Entry>], tokens: u64) {
        let active = ActivePath::of(path);
        let compaction = active.compaction_id();
        let first = active.entries().first().map_or(self.next_id(), |entry| entry.id);
        self.head.active_compaction = compaction;
        self.head.active_from = compaction.map_or(first, |compaction| compaction.min(first));
        self.head.context_tokens = tokens;
    }

    /// The session begins with this draft; `created_at_ms` is when it was created, in unix milliseconds.
    pub(crate) fn begin(&mut self, provider: &str, model: &str, parent: Option<&str>, created_at_ms: u64) {
        self.head.created_at_ms = created_at_ms;
        provider.clone_into(&mut self.head.provider);
        model.clone_into(&mut self.head.model);
        self.head.parent_session = parent.map(str::to_owned);
    }

    /// Changes the session, in whose inbox these items wait. Gives how many of them are withdrawn.
    ///
    /// # Errors
    /// The session would have too many labels, or the answer is not taken.
    pub(crate) fn amend(&mut self, amendment: Amendment, waiting: Vec<EntryId>) -> Result<usize, AmendError> {
        Ok(match amendment {
            Amendment::Answer { question, answer } => {
                let now_ms = self.at_ms;
                let end = self.questions.answer(question, answer, now_ms, fits);
                let end = end.map_err(|error| AmendError::Answer(question, error))?;
                self.end_question(question, end);
                0
            }
            Amendment::WithdrawQuestions => {
                self.withdraw_questions();
                0
            }
            Amendment::Set(metadata) => {
                self.push(EntryKind::Metadata(metadata));
                check_labels(&self.head.labels)?;
                0
            }
            Amendment::ClearInbox if waiting.is_empty() => 0,
            Amendment::ClearInbox => {
                let withdrawn = waiting.len();
                self.push(EntryKind::InboxCleared { items: waiting });
                withdrawn
            }
        })
    }

    /// Adds an entry, and gives its id. What a call has asked ends with the call's result at the latest.
    pub(crate) fn push(&mut self, kind: EntryKind) -> EntryId {
        for question in self.questions.withdrawn_by(&kind) {
            self.end_question(question, QuestionEnd::Withdrawn);
        }
        self.push_alone(kind)
    }

    /// Ends the questions whose time has passed.
    pub(crate) fn expire_questions(&mut self) {
        for question in self.questions.expired(self.at_ms) {
            self.end_question(question, QuestionEnd::Expired);
        }
    }

    /// Ends all open questions, as nobody waits for their answers here.
    pub(crate) fn withdraw_questions(&mut self) {
        let open: Vec<EntryId> = self.questions.open().map(|known| known.id).collect();
        open.into_iter().for_each(|question| self.end_question(question, QuestionEnd::Withdrawn));
    }

    pub(crate) fn end_question(&mut self, question: EntryId, end: QuestionEnd) {
        self.push_alone(EntryKind::QuestionEnded { question, end });
    }

    fn push_alone(&mut self, kind: EntryKind) -> EntryId {
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let reasoning_tokens = entry_reasoning_tokens(&kind);
        self.push_sized(kind, tokens, reasoning_tokens)
    }

    /// Adds the entries of another draft of this log, which was not appended.
    pub(crate) fn repeat(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            self.push_sized(entry.kind.clone(), entry.tokens, entry.reasoning_tokens);
        }
    }

    fn push_sized(&mut self, kind: EntryKind, tokens: u64, reasoning_tokens: u64) -> EntryId {
        let id = EntryId(self.head.entries);
        let (parent, at_ms) = (self.head.leaf, self.at_ms);
        let entry = Entry { id, parent, at_ms, tokens, reasoning_tokens, origin: None, kind };
        self.head.entries += 1;
        self.head.updated_at_ms = self.at_ms;
        if entry.kind.is_on_path() {
            self.head.leaf = Some(id);
        }
        self.follow(&entry);
        self.bill(&entry);
        self.entries.push(Arc::new(entry));
        id
    }

    /// Adds an entry of another log as it is, its place apart: its id must be the next one.
    pub(crate) fn import(&mut self, entry: &Arc<Entry>) {
        self.is_import = true;
        let mut entry = Entry::clone(entry);
        entry.id = EntryId(self.head.entries);
        if let EntryKind::Compaction(compaction) = &mut entry.kind {
            // Other systems' files keep no such chain.
            compaction.previous = compaction.previous.or(self.head.last_compaction);
        }
        self.head.entries += 1;
        self.head.updated_at_ms = self.at_ms;
        self.follow(&entry);
        self.head.open_children.clear();
        self.entries.push(Arc::new(entry));
    }

    /// Adds a message.
    pub(crate) fn message(&mut self, message: Message) -> EntryId {
        self.push(EntryKind::message(message))
    }

    /// Adds a message of a run: what the program says in it joins the turn in progress. A tool result that is too large
    /// for this window, in tokens, is kept whole beside the path, and its message has the head and the tail.
    pub(crate) fn message_of_run(&mut self, mut message: Message, window: Option<u64>) -> EntryId {
        let steer = matches!(message, Message::User(_));
        if let Message::ToolResult(result) = &mut message {
            // What was recalled is in the log already.
            let whole = (result.tool_name != RECALL).then(|| self.next_id());
            if let Some(short) = capped(result, window, whole) {
                let content = std::mem::replace(&mut result.content, short);
                if whole.is_some() {
                    let content =
                        content.into_iter().filter(|block| matches!(block, Block::Text(_))).collect();
                    self.push(EntryKind::WholeResult { call_id: result.call_id.clone(), content });
                }
            }
        }
        self.push(EntryKind::Message { message: Arc::new(message), inbox: None, steer })
    }

    /// Brings waiting input onto the path, as a `steer` of the turn in progress or as the beginning of a turn.
    pub(crate) fn deliver(&mut self, item: &InboxItem, steer: bool) -> EntryId {
        let message = Arc::new(Message::User(item.content.clone()));
        self.push(EntryKind::Message { message, inbox: Some(item.id), steer })
    }

    /// Ends the work of an agent that was called as a tool, and puts what it spent on the bill.
    pub(crate) fn end_child(
        &mut self,
        started: EntryId,
        child: &ChildRecord,
        outcome: RunOutcome,
        spent: Bill,
    ) {
        let ChildRecord { call_id, name, session, .. } = child.clone();
        let by = Spender::SubAgent { session: session.clone() };
        let Bill { usage, cost_microdollars } = spent;
        self.push(EntryKind::Spent(Spent { by, usage, cost_microdollars: Some(cost_microdollars) }));
        let stage = ChildStage::Ended { started, outcome };
        self.push(EntryKind::Child(ChildRecord { call_id, name, session, stage }));
    }

    /// Ends a compaction that nobody runs any more.
    pub(crate) fn close_compaction(&mut self, log: &Log) {
        if let Some(ended) = log.interrupted_compaction() {
            self.push(EntryKind::CompactionEnded(ended));
        }
    }

    /// Gives each of these calls an interrupted result.
    pub(crate) fn close_calls(&mut self, calls: Vec<ToolCall>) {
        for call in calls {
            self.message(Message::ToolResult(ToolResult::interrupted(&call)));
        }
    }

    /// Adds what an entry says was spent. An imported entry was paid for where it comes from.
    fn bill(&mut self, entry: &Entry) {
        let (usage, cost_microdollars) = match &entry.kind {
            EntryKind::Message { message, .. } => {
                let Message::Assistant(answer) = &**message else { return };
                let Some(usage) = answer.usage else { return };
                let info = model_info(&answer.provider, &answer.model);
                (usage, info.and_then(|info| info.cost_microdollars(&usage)))
            }
            EntryKind::CompactionEnded(ended) => (ended.summary_usage, ended.cost_microdollars),
            EntryKind::Spent(spent) => (spent.usage, spent.cost_microdollars),
            EntryKind::Shell(_)
            | EntryKind::Custom(_)
            | EntryKind::BranchSummary { .. }
            | EntryKind::Compaction(_)
            | EntryKind::CompactionUndone { .. }
            | EntryKind::Pin { .. }
            | EntryKind::ModelChange { .. }
            | EntryKind::Label { .. }
            | EntryKind::Note { .. }
            | EntryKind::Inbox { .. }
            | EntryKind::InboxCleared { .. }
            | EntryKind::LeafMoved { .. }
            | EntryKind::CompactionStarted(_)
            | EntryKind::Prune(_)
            | EntryKind::WholeResult { .. }
            | EntryKind::Metadata(_)
            | EntryKind::Child(_)
            | EntryKind::HandOff(_)
            | EntryKind::Question(_)
            | EntryKind::QuestionEnded { .. }
            | EntryKind::CallStarted { .. }
            | EntryKind::Terms { .. }
            | EntryKind::RunEnded { .. } => return,
        };
        self.head.total_usage.add(&usage);
        let cost = self.head.cost_microdollars.saturating_add(cost_microdollars.unwrap_or(0));
        self.head.cost_microdollars = cost;
    }

    /// Keeps the head in step with an entry.
    fn follow(&mut self, entry: &Entry) {
        self.questions.follow(entry);
        let head = &mut self.head;
        match &entry.kind {
            EntryKind::Question(_) => head.questions.push(entry.id),
            EntryKind::QuestionEnded { question, .. } => head.questions.retain(|id| id != question),
            EntryKind::Message { message, inbox, .. } => {
                if let Some(item) = inbox {
                    head.inbox.retain(|id| id != item);
                }
                if head.opening.is_none()
                    && let Message::User(content) = &**message
                {
                    head.opening = opening(content);
                }
                let counted = head.context_tokens.saturating_add(entry.tokens);
                // A foreign or mistaken report is judged as the tracker judges it.
                head.context_tokens = size_after(entry, head.context_tokens).unwrap_or(counted);
            }
            EntryKind::Compaction(compaction) => {
                head.active_compaction = Some(entry.id);
                head.last_compaction = Some(entry.id);
                head.compactions += 1;
                head.active_from = compaction.first_kept.unwrap_or(entry.id).min(entry.id);
                head.context_tokens = compaction.tokens_after;
            }
            EntryKind::Inbox { .. } => head.inbox.push(entry.id),
            EntryKind::InboxCleared { items } => head.inbox.retain(|id| !items.contains(id)),
            EntryKind::Pin { entry: target, pinned } => {
                head.pins.retain(|id| id != target);
                if *pinned {
                    head.pins.push(*target);
                }
            }
            EntryKind::ModelChange { provider, model } => {
                head.provider.clone_from(provider);
                head.model.clone_from(model);
            }
            EntryKind::CompactionStarted(_) => head.open_compaction = Some(entry.id),
            EntryKind::CompactionEnded(ended) => {
                head.open_compaction = None;
                if ended.outcome.is_installed() {
                    head.automatic_compaction_failures = 0;
                } else if ended.trigger.is_automatic()
                    && matches!(ended.outcome, CompactionOutcome::Failed { .. })
                {
                    head.automatic_compaction_failures += 1;
                }
            }
            EntryKind::RunEnded { run, outcome, context } => {
                head.interrupted = matches!(outcome, RunOutcome::Interrupted).then_some(*run);
                head.open_run = None;
                head.run_terms = head.run_terms.filter(|_| !matches!(outcome, RunOutcome::Completed));
                head.state = SessionState::Idle;
                head.context_tokens = context.tokens;
                head.window = context.window;
            }
            kind if is_message(kind) => {
                head.context_tokens = head.context_tokens.saturating_add(entry.tokens);
            }
            EntryKind::LeafMoved { to } => {
                head.leaf = *to;
                (head.interrupted, head.run_terms) = (None, None);
            }
            EntryKind::Metadata(Metadata::Title { title }) => head.title.clone_from(title),
            EntryKind::Metadata(Metadata::Label { name, value: Some(value) }) => {
                head.labels.insert(name.clone(), value.clone());
            }
            EntryKind::Metadata(Metadata::Label { name, value: None }) => {
                head.labels.remove(name);
            }
            EntryKind::Prune(prune) => head.context_tokens = prune.tokens_after,
            EntryKind::Child(child) => match &child.stage {
                ChildStage::Started => head.open_children.push(entry.id),
                ChildStage::Ended { started, .. } => head.open_children.retain(|id| id != started),
            },
            EntryKind::HandOff(hand_off) => {
                head.agent = Some(hand_off.to.clone());
                match hand_off.sees {
                    Sees::All => {}
                    // It sees what the context holds now, and what comes.
                    Sees::Summary | Sees::Last(_) => {
                        head.hidden_before = head.hidden_before.max(head.active_from);
                    }
                }
            }
            EntryKind::WholeResult { .. }
            | EntryKind::CallStarted { .. }
            | EntryKind::Terms { .. }
            | EntryKind::Shell(_)
            | EntryKind::Custom(_)
            | EntryKind::BranchSummary { .. }
            | EntryKind::CompactionUndone { .. }
            | EntryKind::Label { .. }
            | EntryKind::Spent(_)
            | EntryKind::Note { .. } => {}
        }
    }
}
