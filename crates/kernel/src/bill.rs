//! The spending of a session, and the cost of a model call.
//!
//! Invariants: a bill only grows; an unknown price adds nothing to it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, EntryKind, Spender, Spent};
use crate::unreported::billable;
use crate::{Head, Message, Usage};

/// Computes the cost of a model call, in micro-dollars, by the names of its provider and its model; `None` if the price is not
/// known. It is a function, so that the kernel needs no catalogue of models.
#[derive(Clone)]
pub struct CallCost(Arc<Of>);

type Of = dyn Fn(&str, &str, &Usage) -> Option<u64> + Send + Sync;

impl CallCost {
    /// Knows no price.
    pub fn unknown() -> Self {
        Self(Arc::new(|_, _, _| None))
    }

    /// Returns the cost of a call.
    pub fn of(&self, provider: &str, model: &str, usage: &Usage) -> Option<u64> {
        (self.0)(provider, model, usage)
    }

    /// Returns the cost of the call that an answer ends.
    pub(crate) fn of_message(&self, message: &Message) -> Option<u64> {
        let answer = message.as_answer()?;
        self.of(&answer.provider, &answer.model, &billable(answer.usage?))
    }
}

impl<F: Fn(&str, &str, &Usage) -> Option<u64> + Send + Sync + 'static> From<F> for CallCost {
    fn from(of: F) -> Self {
        Self(Arc::new(of))
    }
}

impl fmt::Debug for CallCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallCost")
    }
}

/// The spending of a session so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bill {
    /// The tokens of all model calls.
    pub usage: Usage,
    /// The cost in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The part of it that compactions cost, and what they saved.
    pub compaction: CompactionBill,
}

/// The cost and the savings of the compactions of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CompactionBill {
    /// The tokens of their model calls, input and output together.
    pub tokens: u64,
    /// The cost of their model calls, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// How long runs, callers and queued input waited for them, in milliseconds.
    pub waited_ms: u64,
    /// The input that model calls did not send because of them, in tokens: each call counts what the newest compaction
    /// of its context freed.
    pub saved_tokens: u64,
    /// The cost that this input would have had if it had been read from the provider's cache, in micro-dollars, as far
    /// as prices are known.
    pub saved_microdollars: u64,
}

impl CompactionBill {
    /// Adds another bill.
    pub fn add(&mut self, other: &Self) {
        *self = self.zip(other, u64::saturating_add);
    }

    /// Returns the difference to an earlier bill.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.zip(before, u64::saturating_sub)
    }

    fn zip(&self, other: &Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            tokens: of(self.tokens, other.tokens),
            cost_microdollars: of(self.cost_microdollars, other.cost_microdollars),
            waited_ms: of(self.waited_ms, other.waited_ms),
            saved_tokens: of(self.saved_tokens, other.saved_tokens),
            saved_microdollars: of(self.saved_microdollars, other.saved_microdollars),
        }
    }
}

impl Bill {
    /// Returns what a session with this head has spent: its answers, its summaries, and what others spent for
    /// it.
    pub fn of(head: &Head) -> Self {
        let Head { total_usage: usage, cost_microdollars, compaction_bill: compaction, .. } = *head;
        Self { usage, cost_microdollars, compaction }
    }

    /// Whether a part of the cost is estimated, because a server reported no usage, or too little for what was sent.
    pub fn is_estimated(&self) -> bool {
        self.usage.estimated_tokens > 0
    }

    /// Adds another bill.
    pub fn add(&mut self, other: &Self) {
        self.usage.add(&other.usage);
        self.cost_microdollars = self.cost_microdollars.saturating_add(other.cost_microdollars);
        self.compaction.add(&other.compaction);
    }

    /// Returns the difference to an earlier bill.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            usage: self.usage.since(&before.usage),
            cost_microdollars: self.cost_microdollars.saturating_sub(before.cost_microdollars),
            compaction: self.compaction.since(&before.compaction),
        }
    }
}

/// What entries of a log record as spent by their session itself, without what the agents below it spent, and how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The tokens of the model calls.
    pub usage: Usage,
    /// Their cost in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The answers of models in runs, those included that were cut off.
    pub calls: u64,
    /// The runs that ended.
    pub runs: u64,
}

impl Tally {
    /// Returns what these entries count, which were recorded by their own session and not imported. A run of a sub-agent is a
    /// part of its caller's, and does not count.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>, is_sub_agent: bool) -> Self {
        let mut tally = Self::default();
        for entry in entries {
            let is_below =
                matches!(&entry.kind, EntryKind::Spent(Spent { by: Spender::SubAgent { .. }, .. }));
            if let Some((usage, cost_microdollars)) = spent(entry).filter(|_| !is_below) {
                tally.usage.add(&usage);
                tally.cost_microdollars =
                    tally.cost_microdollars.saturating_add(cost_microdollars.unwrap_or(0));
            }
            tally.calls += u64::from(entry.kind.as_answer().is_some());
            let ends_run = matches!(entry.kind, EntryKind::RunEnded { .. });
            tally.runs += u64::from(ends_run && !is_sub_agent);
        }
        tally
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.usage.add(&other.usage);
        self.cost_microdollars = self.cost_microdollars.saturating_add(other.cost_microdollars);
        self.calls += other.calls;
        self.runs += other.runs;
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns what it would have cost, in micro-dollars, to send `tokens` more with the call that an entry records, read from
/// the provider's cache; 0 if the price is not known. `None` if the entry records no call.
pub(crate) fn saved_by_call(entry: &Entry, tokens: u64, cost: &CallCost) -> Option<u64> {
    let answer = entry.kind.as_message()?.as_answer()?;
    answer.usage?;
    let usage = Usage { input_tokens: tokens, cached_tokens: tokens, ..Usage::default() };
    Some(cost.of(&answer.provider, &answer.model, &usage).unwrap_or(0))
}

/// Returns the tokens that an entry adds to its session's bill.
pub fn spent_tokens(entry: &Entry) -> u64 {
    spent(entry).map_or(0, |(usage, _)| usage.total_tokens())
}

/// Returns what an entry records as spent: its tokens, and their cost in micro-dollars if that was known.
pub fn spent(entry: &Entry) -> Option<(Usage, Option<u64>)> {
    match &entry.kind {
        EntryKind::Message { message, cost_microdollars, .. } => {
            Some((billable(message.as_answer()?.usage?), *cost_microdollars))
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
