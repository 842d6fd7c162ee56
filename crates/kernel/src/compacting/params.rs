//! What a compaction is given, and what follows from it alone.
//!
//! Invariants: nothing here changes while a compaction goes on, but for the tool results that it shortens
//! ([`CompactionParams::add_prune`]).

use std::sync::Arc;

use crate::compacting::summaries::to_estimate;
use crate::entry::{Entry, EntryId, EntryKind, EntryRange, Prune, Trigger};
use crate::path::{as_sent, is_message};
use crate::plan::{NothingToCompact, Plan, PlanOptions, plan};
use crate::retry::Retries;
use crate::settings::{CompactOptions, CompactionSettings, Occasion, Strategy};
use crate::usage::Ratio;

/// What a compaction is given.
#[derive(Debug, Clone)]
pub struct CompactionParams {
    /// The path; it begins at the first kept entry of the newest active compaction, or before it.
    pub path: Vec<Arc<Entry>>,
    /// The settings of compaction as they are now.
    pub settings: CompactionSettings,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// The window to compact for, in tokens: the model's, or less where the provider refused less.
    pub window: u64,
    /// The model's window as it is known, in tokens: by it a context is found too large for good.
    pub known_window: u64,
    /// Who may write the summaries, in the order in which they are asked: the next one where one fails. At least one.
    pub summarisers: Vec<SummariserLimits>,
    /// How often one request to a summariser is tried again, as in a turn.
    pub retries: Retries,
    /// The fixed part of every request, in tokens.
    pub overhead: u64,
    /// The entries that every compaction keeps: those that it replaces are sent in front of the summary.
    pub pinned: Vec<EntryId>,
    /// The context now, in tokens.
    pub tokens_before: u64,
    /// What the provider counts for each token that we estimate.
    pub ratio: Ratio,
    /// Whether the next request could not be sent as it is: then the truncate fallback may be installed.
    pub at_window: bool,
    /// How much to keep, in tokens, where the caller says so.
    pub keep_recent: Option<u64>,
    /// Compact also where little is to be gained.
    pub force: bool,
    /// What the summary should attend to.
    pub focus: Option<String>,
    /// The rungs that were tried in vain for this same overflow.
    pub failed_attempts: u32,
    /// What was cut without a summary before, read from the log for the next summary: oldest first.
    pub debt: Vec<Arc<Entry>>,
    /// What of the debt was too much to be read now: it stays a debt.
    pub debt_left: Vec<EntryRange>,
}

impl CompactionParams {
    /// What is being done, for [`CompactionSettings::keep_recent`].
    pub fn occasion(&self) -> Occasion {
        match self.trigger {
            Trigger::Overflow => Occasion::Emergency,
            Trigger::Manual => Occasion::Manual,
            Trigger::Threshold | Trigger::ModelSwitch | Trigger::Hook | Trigger::Branch => {
                Occasion::Automatic
            }
        }
    }

    /// What who asked for it wants.
    pub fn options(&self) -> CompactOptions {
        CompactOptions { focus: self.focus.clone(), keep_recent: self.keep_recent, force: self.force }
    }

    /// What to plan for: the settings, the occasion and what the caller asks for. So plans every compaction at first,
    /// and so is planned what one would do.
    pub fn plan_options(&self) -> PlanOptions {
        let mut options =
            PlanOptions::new(&self.settings, self.window, self.occasion(), self.tokens_before, self.overhead);
        options.keep_max = to_estimate(options.keep_max, self.ratio);
        options.keep_recent = options.keep_recent.min(options.keep_max).max(1);
        // After an overflow, what fits matters more than what was asked for.
        if let Some(keep) = self.keep_recent.filter(|_| self.trigger != Trigger::Overflow) {
            options.keep_recent = keep.max(1);
            options.keep_max = u64::MAX;
        }
        options.force |= self.force || self.at_window;
        // Forced, and too little would be replaced: everything but the last two messages.
        let is_too_little = || plan(&self.path, &options).is_ok_and(|plan| self.check_gain(&plan).is_err());
        if self.force && self.keep_recent.is_none() && is_too_little() {
            options.keep_recent = u64::MAX;
        }
        options
    }

    /// Whether a summary could make the context smaller. It is asked where smaller is enough: where a person or a
    /// program wants the compaction.
    ///
    /// # Errors
    /// [`NothingToCompact::TooSmall`] if the smallest useful summary is as large as what it would replace.
    pub(super) fn check_gain(&self, plan: &Plan) -> Result<(), NothingToCompact> {
        let asks_model = self.settings.strategy == Strategy::Summarize;
        if !self.is_asked_for() || self.at_window || !asks_model {
            return Ok(());
        }
        plan.check_gain()
    }

    /// Whether somebody asked for the compaction, so that any context that is smaller will do.
    pub(super) fn is_asked_for(&self) -> bool {
        matches!(self.trigger, Trigger::Manual | Trigger::Hook)
    }

    /// What a summary replaces, in tokens by our estimate: the segment, and the summary before it.
    pub(super) fn replaced_tokens(&self, plan: &Plan) -> u64 {
        let replaced = |entry: &&Arc<Entry>| {
            Some(entry.id) == plan.base
                || (entry.id >= plan.first && entry.id <= plan.last && is_message(&entry.kind))
        };
        as_sent(&self.path).iter().filter(replaced).map(|entry| entry.tokens).sum()
    }

    /// Whether the next request cannot be sent as it is: then tool results may be shortened.
    pub(super) fn is_over(&self) -> bool {
        // Where nothing knows the window, the context is taken for it.
        self.at_window || self.tokens_before > self.window
    }

    /// Sends these results shorter from here on, as if that were recorded.
    pub(super) fn add_prune(&mut self, prune: Prune) {
        let last = self.path.last().map_or(0, |entry| entry.id.0 + 1);
        let (id, parent) = (EntryId(last), last.checked_sub(1).map(EntryId));
        let kind = EntryKind::Prune(Box::new(prune));
        self.path.push(Arc::new(Entry {
            id,
            parent,
            at_ms: 0,
            tokens: 0,
            reasoning_tokens: 0,
            origin: None,
            kind,
        }));
    }
}

/// What one summariser takes and gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummariserLimits {
    /// Its window, in tokens.
    pub window: u64,
    /// The most output of one answer, in tokens; `None` where nothing knows it.
    pub output_tokens_max: Option<u64>,
}
