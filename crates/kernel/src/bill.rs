//! What a session has spent, and what a model call costs.
//!
//! Invariants: a bill only grows; an unknown price adds nothing to it.

use crate::entry::{Entry, EntryKind};
use crate::{Head, Usage};

/// The cost of a model call, in micro-dollars, by the names of its provider and its model; `None` if the
/// price is not known. It is a plain function, so that the kernel needs no catalogue of models.
pub type CallCost = fn(provider: &str, model: &str, usage: &Usage) -> Option<u64>;

/// What a session has spent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bill {
    /// The tokens of all model calls.
    pub usage: Usage,
    /// The cost in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
}

impl Bill {
    /// Returns what a session with this head has spent: its answers, its summaries, and what others spent for
    /// it.
    pub fn of(head: &Head) -> Self {
        Self { usage: head.total_usage, cost_microdollars: head.cost_microdollars }
    }

    /// Returns the difference to an earlier bill.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            usage: self.usage.since(&before.usage),
            cost_microdollars: self.cost_microdollars.saturating_sub(before.cost_microdollars),
        }
    }
}

/// Returns what an entry records as spent: its tokens, and their cost in micro-dollars if that is known.
pub(crate) fn spent(entry: &Entry, cost: CallCost) -> Option<(Usage, Option<u64>)> {
    match &entry.kind {
        EntryKind::Message { message, .. } => {
            let answer = message.as_answer()?;
            let usage = answer.usage?;
            Some((usage, cost(&answer.provider, &answer.model, &usage)))
        }
        EntryKind::CompactionEnded(ended) => Some((ended.summary_usage, ended.cost_microdollars)),
        EntryKind::Spent(spent) => Some((spent.usage, spent.cost_microdollars)),
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
        | EntryKind::RunEnded { .. } => None,
    }
}
