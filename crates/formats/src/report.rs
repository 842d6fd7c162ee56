//! A printable report of what a compaction would do to a path, without doing it.
//!
//! Invariants: the same path and options give the same report; the caller provides the names of entries:
//! their ids in the imported file or their numbers.

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::plan::{FileRule, Plan, PlanOptions, plan};
use greenroom_kernel::usage::Measured;
use serde::Serialize;

#[cfg(test)]
mod tests;

/// The effect of a compaction on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanReport {
    /// How many entries the path has.
    pub entries: usize,
    /// The context's size, in tokens: the sum of the next two.
    pub context_tokens: u64,
    /// The part of the size that the provider reported, in tokens.
    pub usage_tokens: u64,
    /// The part of the size that is estimated, in tokens.
    pub trailing_tokens: u64,
    /// The effect of a compaction; `None` if there is nothing to compact.
    pub plan: Option<PlanSummary>,
    /// Why there is nothing to compact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The summary of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanSummary {
    /// The name of the first entry that stays.
    pub first_kept_entry_id: String,
    /// Whether the cut is inside a turn, whose beginning then gets a separate summary.
    pub is_split_turn: bool,
    /// How many messages the history summary replaces.
    pub messages_to_summarize: u64,
    /// How many messages the split turn's summary replaces.
    pub turn_prefix_messages: u64,
    /// The context's size before the compaction, in tokens.
    pub tokens_before: u64,
    /// The context's expected size after the compaction, in tokens, if the summary has a tenth of what it replaces.
    pub tokens_after_estimate: u64,
    /// The maximum size of the context after the compaction, in tokens: the summary is as long as its limit
    /// allows.
    pub tokens_after_max: u64,
    /// Whether an earlier summary would be merged into the new one.
    pub has_previous_summary: bool,
    /// The files read so far and never modified, sorted.
    pub read_files: Vec<String>,
    /// The files modified so far, sorted.
    pub modified_files: Vec<String>,
}

impl PlanReport {
    /// Plans a path of this size. `name` returns an entry's name.
    pub fn new(
        path: &[Arc<Entry>],
        options: &PlanOptions,
        measured: Measured,
        name: impl Fn(EntryId) -> String,
    ) -> Self {
        let options = PlanOptions { tokens_before: measured.tokens(), ..options.clone() };
        // Other systems compact even if the result is no smaller.
        let is_comparison = options.files == FileRule::EveryCall;
        let worth = |plan: Plan| if is_comparison { Ok(plan) } else { plan.check_gain().map(|()| plan) };
        let (plan, reason) = match plan(path, &options).and_then(worth) {
            Ok(plan) => (Some(PlanSummary::new(&plan, name)), None),
            Err(nothing) => (None, Some(nothing.to_string())),
        };
        Self {
            entries: path.len(),
            context_tokens: measured.tokens(),
            usage_tokens: measured.usage_tokens,
            trailing_tokens: measured.trailing_tokens,
            plan,
            reason,
        }
    }
}

impl PlanSummary {
    fn new(plan: &Plan, name: impl Fn(EntryId) -> String) -> Self {
        Self {
            first_kept_entry_id: name(plan.first_kept),
            is_split_turn: plan.is_split_turn,
            messages_to_summarize: plan.messages_to_summarize(),
            turn_prefix_messages: plan.turn_prefix_messages(),
            tokens_before: plan.tokens_before,
            tokens_after_estimate: plan.tokens_after_estimate(),
            tokens_after_max: plan.tokens_after_max(),
            has_previous_summary: plan.previous_summary.is_some(),
            read_files: plan.files.read().map(str::to_owned).collect(),
            modified_files: plan.files.modified().map(str::to_owned).collect(),
        }
    }
}
