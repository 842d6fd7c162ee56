//! Entries to append together, and the head after them.
//!
//! Invariants: a draft does not change its log; a pushed entry has the next id; a question ends at the latest
//! with its call, before the call's result; a pushed entry contains no value that the log's redactor knows.

use std::sync::Arc;

use super::{InboxItem, Log};
use crate::bill::{Bill, CallCost};
use crate::context_usage::ContextUsage;
use crate::entry::{ChildRecord, ChildStage, Entry, EntryId, EntryKind, RunId, RunOutcome, Spender, Spent};
use crate::head::{Head, LoggedState};
use crate::message::{Block, Message, ToolCall, ToolResult};
use crate::path::{ActivePath, PinnedPath};
use crate::prune::{RECALL, capped};
use crate::question::{QuestionEnd, Questions};
use crate::redact::Redactor;
use crate::terms::Terms;

/// Entries to append together, and the head after them.
#[derive(Debug, Clone)]
pub struct Draft {
    pub(super) entries: Vec<Arc<Entry>>,
    pub(super) head: Arc<Head>,
    pub(super) questions: Questions,
    pub(super) at_ms: u64,
    cost: CallCost,
    redactor: Redactor,
    /// Whether the entries come from another log, whose work in progress is not this log's.
    pub(super) is_import: bool,
}

/// Why entries cannot be imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// The path needs this entry, or ends at it, and it is not among them.
    Missing(EntryId),
    /// This entry's id is not its index, or it comes before its parent.
    OutOfOrder(EntryId),
}

impl Draft {
    /// Creates an empty draft of a log with this head.
    pub(super) fn new(
        head: Arc<Head>,
        questions: &Questions,
        at_ms: u64,
        cost: CallCost,
        redactor: Redactor,
    ) -> Self {
        let questions = questions.clone();
        Self { entries: Vec::new(), head, questions, at_ms, cost, redactor, is_import: false }
    }

    /// The entries pushed so far.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// Whether no entry was pushed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The session's head after these entries.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the head as it is appended with the entries.
    pub fn shared_head(&self) -> Arc<Head> {
        Arc::clone(&self.head)
    }

    /// The head, to change it: a copy of the log's from the first change on.
    pub(super) fn head_mut(&mut self) -> &mut Head {
        Arc::make_mut(&mut self.head)
    }

    /// Whether the entries come from another log.
    pub fn is_import(&self) -> bool {
        self.is_import
    }

    /// The id of the next entry.
    pub fn next_id(&self) -> EntryId {
        EntryId(self.head.entries)
    }

    /// The session's bill after these entries.
    pub fn billed(&self) -> Bill {
        Bill::of(&self.head)
    }

    /// Starts the session with this draft; `created_at_ms` is its creation time in Unix milliseconds.
    pub fn begin(&mut self, provider: &str, model: &str, parent: Option<&str>, created_at_ms: u64) {
        let head = self.head_mut();
        head.created_at_ms = created_at_ms;
        (head.provider, head.model) = (provider.into(), model.into());
        head.parent_session = parent.map(str::to_owned);
    }

    /// Adds an entry and returns its id. A call's result first withdraws the call's open questions.
    pub fn push(&mut self, kind: EntryKind) -> EntryId {
        for question in self.questions.withdrawn_by(&kind) {
            self.end_question(question, QuestionEnd::Withdrawn);
        }
        self.push_alone(kind)
    }

    fn push_alone(&mut self, mut kind: EntryKind) -> EntryId {
        self.redactor.entry(&mut kind);
        if let EntryKind::Message { message, cost_microdollars, .. } = &mut kind {
            *cost_microdollars = self.cost.of_message(message);
        }
        self.record(Entry::recorded(self.next_id(), self.head.leaf, self.at_ms, kind))
    }

    fn record(&mut self, entry: Entry) -> EntryId {
        let id = entry.id;
        let head = Arc::make_mut(&mut self.head);
        head.updated_at_ms = self.at_ms;
        head.record(&entry, &self.cost);
        self.questions.follow(&entry);
        self.entries.push(Arc::new(entry));
        id
    }

    /// Adds the entries of another draft of this log, which was not appended.
    pub fn repeat(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            let Entry { kind, tokens, reasoning_tokens, .. } = Entry::clone(entry);
            let (id, parent, at_ms) = (self.next_id(), self.head.leaf, self.at_ms);
            self.record(Entry { id, parent, at_ms, tokens, reasoning_tokens, origin: None, kind });
        }
    }

    /// Adds the entries of another session's log, whose path ends at `leaf`, unchanged. Its unfinished work
    /// and its inbox are not taken over. Returns the path.
    ///
    /// # Errors
    /// The entries do not fit together, or the path lacks one.
    pub fn import(&mut self, entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Result<PinnedPath, Unfit> {
        let count = entries.len() as u64;
        for (entry, id) in entries.iter().zip((0..).map(EntryId)) {
            // A parent that is not among them is missing from the path, or a compaction stands for it.
            let is_later = entry.parent.is_some_and(|parent| parent >= id && parent.0 < count);
            if entry.id != id || is_later {
                return Err(Unfit::OutOfOrder(entry.id));
            }
        }
        if let Some(leaf) = leaf.filter(|leaf| leaf.0 >= count) {
            return Err(Unfit::Missing(leaf));
        }
        entries.iter().for_each(|entry| self.import_one(entry));
        let path = PinnedPath::within(&self.entries, leaf);
        self.withdraw_questions();
        let waiting = std::mem::take(&mut self.head_mut().inbox);
        if !waiting.is_empty() {
            self.push(EntryKind::InboxCleared { items: waiting });
        }
        let head = self.head_mut();
        (head.interrupted, head.leaf) = (None, leaf);
        match missing_before(&path.path) {
            Some(missing) => Err(Unfit::Missing(missing)),
            None => Ok(path),
        }
    }

    fn import_one(&mut self, entry: &Arc<Entry>) {
        self.is_import = true;
        let mut entry = Entry::clone(entry);
        entry.id = self.next_id();
        self.redactor.entry(&mut entry.kind);
        if let EntryKind::Compaction(compaction) = &mut entry.kind {
            // Files of other systems do not link compactions.
            compaction.previous = compaction.previous.or(self.head.last_compaction);
        }
        let head = Arc::make_mut(&mut self.head);
        head.updated_at_ms = self.at_ms;
        head.import(&entry);
        self.questions.follow(&entry);
        self.entries.push(Arc::new(entry));
    }

    /// Adds a message.
    pub fn message(&mut self, message: Message) -> EntryId {
        self.push(EntryKind::message(message))
    }

    /// Adds a message of a run. A message from the program joins the turn in progress. A tool result that is
    /// too large for this window, in tokens, is recorded in full beside the path, and its message has only
    /// the start and the end.
    pub fn message_of_run(&mut self, mut message: Message, window: Option<u64>) -> EntryId {
        let steer = matches!(message, Message::User(_));
        if let Message::ToolResult(result) = &mut message {
            // Before it is cut: the end of the start could be the beginning of a secret.
            self.redactor.result(result, false);
            // The recalled text is in the log already.
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
        self.push(EntryKind::Message {
            message: Arc::new(message),
            inbox: None,
            steer,
            cost_microdollars: None,
        })
    }

    /// Moves an inbox item onto the path, as a `steer` of the turn in progress or as the start of a turn.
    pub fn deliver(&mut self, item: &InboxItem, steer: bool) -> EntryId {
        let message = Arc::new(Message::User(item.content.clone()));
        self.push(EntryKind::Message { message, inbox: Some(item.id), steer, cost_microdollars: None })
    }

    /// Starts a run after the newest entry, for an agent with this fingerprint. `terms` are the prompt's
    /// terms; they are not recorded again if they equal `recorded`.
    pub fn begin_run(
        &mut self,
        run: RunId,
        terms: Option<Arc<Terms>>,
        recorded: Option<(EntryId, Arc<Terms>)>,
        fingerprint: Option<String>,
    ) {
        let run_terms = terms.map(|terms| match recorded {
            Some((entry, recorded)) if *recorded == *terms => entry,
            _ => self.push(EntryKind::Terms { run, terms }),
        });
        let head = self.head_mut();
        head.run_terms = run_terms;
        head.open_run = Some(run);
        head.run_began_with = Bill::of(head);
        head.interrupted = None;
        head.run_fingerprint = fingerprint;
        head.state = LoggedState::Working;
    }

    /// What was spent since the newest run began.
    pub fn bill_of_run(&self) -> Bill {
        Bill::of(&self.head).since(&self.head.run_began_with)
    }

    /// Ends the run.
    pub fn end_run(&mut self, run: RunId, outcome: RunOutcome, context: ContextUsage) {
        let bill = self.bill_of_run();
        self.push(EntryKind::RunEnded { run, outcome, context, bill: Box::new(bill) });
    }

    /// Sets the run that ended unfinished.
    pub fn set_interrupted(&mut self, run: Option<RunId>) {
        self.head_mut().interrupted = run;
    }

    /// Sets a model's window in tokens, if it is the session's model.
    pub fn set_window(&mut self, provider: &str, model: &str, window_tokens: Option<u64>) {
        if self.head.is_model(provider, model) {
            self.head_mut().window = window_tokens;
        }
    }

    /// Rebuilds the head's context from another path, whose context has `tokens` tokens.
    pub fn follow_path(&mut self, path: &[Arc<Entry>], tokens: u64) {
        let active = ActivePath::of(path);
        let compaction = active.compaction_id();
        let first = active.entries().first().map_or(self.next_id(), |entry| entry.id);
        let head = self.head_mut();
        head.active_compaction = compaction;
        head.active_from = compaction.map_or(first, |compaction| compaction.min(first));
        head.context_tokens = tokens;
    }

    /// Like [`Self::follow_path`] for a path on another branch: the agent that answered there continues, and what is
    /// pinned there is kept.
    pub fn follow_branch(&mut self, branch: &PinnedPath, tokens: u64) {
        let PinnedPath { path, pinned } = branch;
        self.follow_path(path, tokens);
        let head = self.head_mut();
        head.agent = newest_hand_off(path);
        head.pins = pinned.iter().map(|entry| entry.id).collect();
    }

    /// Ends the questions whose deadline has passed.
    pub fn expire_questions(&mut self) {
        for question in self.questions.expired(self.at_ms) {
            self.end_question(question, QuestionEnd::Expired);
        }
    }

    /// Withdraws all open questions, because nobody waits for their answers here.
    pub(super) fn withdraw_questions(&mut self) {
        let open: Vec<EntryId> = self.questions.open().map(|known| known.id).collect();
        open.into_iter().for_each(|question| self.end_question(question, QuestionEnd::Withdrawn));
    }

    pub(super) fn end_question(&mut self, question: EntryId, end: QuestionEnd) {
        self.push_alone(EntryKind::QuestionEnded { question, end });
    }

    /// Ends the work of a sub-agent, and adds its spending to the bill.
    pub fn end_child(&mut self, started: EntryId, child: &ChildRecord, outcome: RunOutcome, spent: Bill) {
        let ChildRecord { call_id, name, session, .. } = child.clone();
        let by = Spender::SubAgent { session: session.clone() };
        let Bill { usage, cost_microdollars, compaction: _ } = spent;
        self.push(EntryKind::Spent(Spent { by, usage, cost_microdollars: Some(cost_microdollars) }));
        let stage = ChildStage::Ended { started, outcome };
        self.push(EntryKind::Child(ChildRecord { call_id, name, session, stage }));
    }

    /// Ends a compaction that no actor performs any more.
    pub fn close_compaction(&mut self, log: &Log) {
        if let Some(ended) = log.interrupted_compaction() {
            self.push(EntryKind::CompactionEnded(Box::new(ended)));
        }
    }

    /// Adds an `interrupted` result for each of these calls.
    pub(super) fn close_calls(&mut self, calls: &[ToolCall]) {
        self.results(calls.iter().map(ToolResult::interrupted));
    }

    /// Adds results of calls.
    pub fn results(&mut self, results: impl IntoIterator<Item = ToolResult>) {
        results.into_iter().for_each(|result| _ = self.message(Message::ToolResult(result)));
    }
}

/// Returns the entry that is missing before the first one of a path, unless a compaction replaces the entries
/// before it.
pub(super) fn missing_before(path: &[Arc<Entry>]) -> Option<EntryId> {
    let begins = path.first().and_then(|entry| entry.parent);
    begins.filter(|_| ActivePath::of(path).compaction_id().is_none())
}

/// Returns the agent that answers at the end of a path; `None` if the conversation was never handed to
/// another agent.
fn newest_hand_off(path: &[Arc<Entry>]) -> Option<String> {
    path.iter().rev().find_map(|entry| {
        if let EntryKind::HandOff(hand_off) = &entry.kind { Some(hand_off.to.clone()) } else { None }
    })
}
