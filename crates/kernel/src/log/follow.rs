//! How a log follows its entries: read from the store when it is opened, and committed from drafts when they
//! are durable.
//!
//! Invariants: the head agrees with the entries in memory; [`Log::check`] verifies this.

use std::sync::Arc;

use super::draft::missing_before;
use super::{Draft, InboxItem, Log, UntoldCompactions};
use crate::bill::CallCost;
use crate::entry::{ChildStage, Entry, EntryId, EntryKind};
use crate::head::Head;
use crate::message::Message;
use crate::path::{ActivePath, path_within};
use crate::question::Questions;
use crate::redact::Redactor;
use crate::usage::Window;

impl Log {
    /// Creates the log of a session without entries.
    pub fn new(cost: impl Into<CallCost>) -> Self {
        Self::open(Head::default(), &[], &[], cost)
    }

    /// Sets the cost of calls that are recorded from now on.
    pub fn set_cost(&mut self, cost: CallCost) {
        self.cost = cost;
    }

    /// Sets what redacts the entries that are recorded from now on.
    pub fn set_redactor(&mut self, redactor: Redactor) {
        self.redactor = redactor;
    }

    /// The cost of calls.
    pub fn cost(&self) -> &CallCost {
        &self.cost
    }

    /// Opens a log from the store's contents: the entries from `head.active_from` on, and the earlier ones
    /// that the head names, for the inbox, pins and open work.
    pub fn open(head: Head, loaded: &[Arc<Entry>], extra: &[Arc<Entry>], cost: impl Into<CallCost>) -> Self {
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
            cost: cost.into(),
            redactor: Redactor::default(),
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
            sent: None,
        }
    }

    /// Checks that the head and the loaded entries agree.
    ///
    /// # Errors
    /// The first disagreement, as a clause.
    pub fn check(&self) -> Result<(), String> {
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
        if let Some(missing) = missing_before(&self.path) {
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

    /// Commits a draft that has become durable. Returns its entries.
    #[expect(clippy::boxed_local, reason = "a draft is made in a box, and stays there")]
    pub fn commit(&mut self, draft: Box<Draft>) -> Vec<Arc<Entry>> {
        let Draft { entries, head, questions, is_import, .. } = *draft;
        let count = self.head.entries + entries.len() as u64;
        assert_eq!(head.entries, count, "a draft is committed to the log that it was made of");
        if head.run_terms != self.head.run_terms {
            // The terms are recorded as the run starts, or were recorded with the inbox item.
            let waited = self.inbox.iter().find(|item| Some(item.id) == head.run_terms);
            let new = entries.iter().find(|entry| Some(entry.id) == head.run_terms);
            let new = new.and_then(|entry| entry.kind.as_terms());
            self.run_terms = waited.and_then(|item| item.terms.as_ref()).or(new).cloned();
        }
        for entry in &entries {
            self.follow(entry, is_import);
        }
        self.head = head;
        let is_shorter = |entry: &Arc<Entry>| {
            matches!(entry.kind, EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. })
        };
        // Looking for the live part reads the whole path.
        if entries.iter().any(is_shorter) {
            self.forget_history();
        }
        self.questions = questions;
        entries
    }

    /// Applies an entry that has become durable.
    fn follow(&mut self, entry: &Arc<Entry>, is_import: bool) {
        self.untold.follow(&entry.kind);
        self.ran_in = window_of(&entry.kind).or(self.ran_in);
        match &entry.kind {
            EntryKind::Inbox { .. } => self.inbox.extend(InboxItem::of(entry)),
            EntryKind::InboxCleared { items } => self.inbox.retain(|item| !items.contains(&item.id)),
            EntryKind::Message { message, inbox, .. } => {
                if let Some(delivered) = inbox {
                    self.inbox.retain(|item| item.id != *delivered);
                }
                if let Message::ToolResult(result) = &**message {
                    self.waiting_below.retain(|call| *call != result.call_id);
                }
            }
            EntryKind::Pin { entry: target, pinned } => {
                self.pinned.retain(|entry| entry.id != *target);
                let found = self.path.iter().find(|entry| entry.id == *target).filter(|_| *pinned);
                self.pinned.extend(found.cloned());
                self.sent = None;
            }
            // They change how earlier entries are sent.
            EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. } | EntryKind::Prune(_) => {
                self.sent = None;
            }
            EntryKind::Shell(_)
            | EntryKind::Custom(_)
            | EntryKind::BranchSummary { .. }
            | EntryKind::ModelChange { .. }
            | EntryKind::Label { .. }
            | EntryKind::Note { .. }
            | EntryKind::LeafMoved { .. }
            | EntryKind::Spent(_)
            | EntryKind::WholeResult { .. }
            | EntryKind::Metadata(_)
            | EntryKind::HandOff(_)
            | EntryKind::Question(_)
            | EntryKind::QuestionEnded { .. }
            | EntryKind::CallStarted { .. }
            | EntryKind::Terms { .. }
            | EntryKind::RunEnded { .. } => {}
            EntryKind::Child(child) => match &child.stage {
                // A copy has no sub-agents in progress.
                ChildStage::Started if is_import => {}
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
}

/// Returns the window in which a run ended.
fn window_of(kind: &EntryKind) -> Option<Window> {
    let EntryKind::RunEnded { context, .. } = kind else { return None };
    Some(Window { tokens: context.window, source: context.window_source })
}

/// Formats an entry's id for people.
fn shown(id: Option<EntryId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| format!("entry {id}"))
}
