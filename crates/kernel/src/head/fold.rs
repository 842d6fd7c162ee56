//! How each entry of a session changes its head.
//!
//! Invariants: the head after an entry is a function of the head before it and of the entry; other decisions
//! of the session's actors (that a run began, the window) are set in the draft, which is appended with the
//! entry.

use std::sync::Arc;

use super::{Head, LoggedState};
use crate::bill::{self, CallCost, CompactionBill};
use crate::entry::{
    ChildStage, CompactionEnded, CompactionOutcome, Entry, EntryKind, HandOff, Metadata, RunOutcome, Sees,
};
use crate::message::{Block, Message, blocks_text};
use crate::path::is_message;
use crate::usage::size_after;

/// The maximum length of the opening in the head, in characters.
const OPENING_CHARS_MAX: usize = 80;

impl Head {
    /// Adds the session's next entry, which was recorded here: the leaf moves to it if it is on the path, and
    /// its cost is added to the bill.
    pub(crate) fn record(&mut self, entry: &Entry, cost: &CallCost) {
        if entry.kind.is_on_path() {
            self.leaf = Some(entry.id);
        }
        self.follow(entry);
        if let Some((usage, cost_microdollars)) = bill::spent(entry) {
            self.total_usage.add(&usage);
            self.cost_microdollars = self.cost_microdollars.saturating_add(cost_microdollars.unwrap_or(0));
        }
        self.bill_compaction(entry, cost);
    }

    /// Adds what an entry records of the cost of a compaction, or what its call saved because of one.
    fn bill_compaction(&mut self, entry: &Entry, cost: &CallCost) {
        let bill = &mut self.compaction_bill;
        match &entry.kind {
            EntryKind::CompactionEnded(ended) => bill.add(&CompactionBill {
                tokens: ended.summary_usage.total_tokens(),
                cost_microdollars: ended.cost_microdollars.unwrap_or(0),
                waited_ms: ended.waited_ms,
                ..CompactionBill::default()
            }),
            EntryKind::Message { .. } if self.saves_tokens > 0 => {
                let saved_tokens = self.saves_tokens;
                if let Some(saved_microdollars) = bill::saved_by_call(entry, saved_tokens, cost) {
                    bill.add(&CompactionBill {
                        saved_tokens,
                        saved_microdollars,
                        ..CompactionBill::default()
                    });
                }
            }
            EntryKind::Compaction(compaction) => {
                self.saves_tokens = compaction.tokens_freed();
            }
            EntryKind::Prune(prune) => {
                self.saves_tokens = prune.tokens_before.saturating_sub(prune.tokens_after);
            }
            EntryKind::CompactionUndone { .. } | EntryKind::LeafMoved { .. } => self.saves_tokens = 0,
            EntryKind::Message { .. }
            | EntryKind::Shell(_)
            | EntryKind::Custom(_)
            | EntryKind::BranchSummary { .. }
            | EntryKind::Pin { .. }
            | EntryKind::ModelChange { .. }
            | EntryKind::Label { .. }
            | EntryKind::Note { .. }
            | EntryKind::Inbox { .. }
            | EntryKind::InboxCleared { .. }
            | EntryKind::CompactionStarted(_)
            | EntryKind::WholeResult { .. }
            | EntryKind::Metadata(_)
            | EntryKind::Child(_)
            | EntryKind::HandOff(_)
            | EntryKind::Question(_)
            | EntryKind::QuestionEnded { .. }
            | EntryKind::CallStarted { .. }
            | EntryKind::Terms { .. }
            | EntryKind::Spent(_)
            | EntryKind::RunEnded { .. } => {}
        }
    }

    /// Adds an entry of another session's log. It was billed there, and a copy has no running work.
    pub(crate) fn import(&mut self, entry: &Entry) {
        self.follow(entry);
        self.open_children.clear();
    }

    fn follow(&mut self, entry: &Entry) {
        assert_eq!(entry.id.0, self.entries, "the ids of a log's entries are dense");
        self.entries += 1;
        match &entry.kind {
            EntryKind::Question(_) => self.questions.push(entry.id),
            EntryKind::QuestionEnded { question, .. } => self.questions.retain(|id| id != question),
            EntryKind::Message { message, inbox, .. } => {
                if let Some(item) = inbox {
                    self.inbox.retain(|id| id != item);
                }
                self.follow_message(entry, message);
            }
            EntryKind::Compaction(compaction) => {
                self.active_compaction = Some(entry.id);
                self.last_compaction = Some(entry.id);
                self.compactions += 1;
                self.active_from = compaction.first_kept.unwrap_or(entry.id).min(entry.id);
                self.context_tokens = compaction.tokens_after;
            }
            EntryKind::Inbox { .. } => self.inbox.push(entry.id),
            EntryKind::InboxCleared { items } => self.inbox.retain(|id| !items.contains(id)),
            EntryKind::Pin { entry: target, pinned } => {
                self.pins.retain(|id| id != target);
                if *pinned {
                    self.pins.push(*target);
                }
            }
            EntryKind::ModelChange { provider, model } => {
                (self.provider, self.model) = (provider.as_str().into(), model.as_str().into());
            }
            EntryKind::CompactionStarted(_) => self.open_compaction = Some(entry.id),
            EntryKind::CompactionEnded(ended) => self.follow_compaction_end(ended),
            EntryKind::RunEnded { run, outcome, context, .. } => {
                self.interrupted = matches!(outcome, RunOutcome::Interrupted).then_some(*run);
                self.open_run = None;
                self.run_terms = self.run_terms.filter(|_| !matches!(outcome, RunOutcome::Completed));
                self.state = LoggedState::Idle;
                self.context_tokens = context.tokens;
                self.window = context.window;
            }
            kind if is_message(kind) => self.add_tokens(entry),
            EntryKind::LeafMoved { to } => {
                self.leaf = *to;
                (self.interrupted, self.run_terms) = (None, None);
            }
            EntryKind::Metadata(metadata) => self.follow_metadata(metadata),
            EntryKind::Prune(prune) => self.context_tokens = prune.tokens_after,
            EntryKind::Child(child) => match &child.stage {
                ChildStage::Started => self.open_children.push(entry.id),
                ChildStage::Ended { started, .. } => self.open_children.retain(|id| id != started),
            },
            EntryKind::HandOff(hand_off) => self.follow_hand_off(hand_off),
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

    fn follow_message(&mut self, entry: &Entry, message: &Arc<Message>) {
        if self.opening.is_none()
            && let Message::User(content) = &**message
        {
            self.opening = opening(content).map(Arc::from);
        }
        // A foreign or wrong report is judged as the tracker judges it.
        match size_after(entry, self.context_tokens) {
            Some(reported) => self.context_tokens = reported,
            None => self.add_tokens(entry),
        }
    }

    fn add_tokens(&mut self, entry: &Entry) {
        self.context_tokens = self.context_tokens.saturating_add(entry.tokens);
    }

    fn follow_compaction_end(&mut self, ended: &CompactionEnded) {
        self.open_compaction = None;
        if ended.outcome.is_installed() {
            self.automatic_compaction_failures = 0;
        } else if ended.trigger.is_automatic() && matches!(ended.outcome, CompactionOutcome::Failed { .. }) {
            self.automatic_compaction_failures += 1;
        }
    }

    fn follow_metadata(&mut self, metadata: &Metadata) {
        match metadata {
            Metadata::Title { title } => self.title.clone_from(title),
            Metadata::Label { name, value: Some(value) } => {
                self.labels.insert(name.clone(), value.clone());
            }
            Metadata::Label { name, value: None } => {
                self.labels.remove(name);
            }
        }
    }

    fn follow_hand_off(&mut self, hand_off: &HandOff) {
        self.agent = Some(hand_off.to.clone());
        match hand_off.sees {
            Sees::All => {}
            // It sees the current content of the context, and later messages.
            Sees::Summary | Sees::Last(_) => self.hidden_before = self.hidden_before.max(self.active_from),
        }
    }
}

/// Returns the opening of a message: its first non-empty line, truncated for lists.
fn opening(content: &[Block]) -> Option<String> {
    let text = blocks_text(content);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let words = line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    if line.chars().count() <= OPENING_CHARS_MAX {
        return Some(line).filter(|line| !line.is_empty());
    }
    let cut: String = line.chars().take(OPENING_CHARS_MAX - 1).collect();
    Some(format!("{}…", cut.trim_end()))
}
