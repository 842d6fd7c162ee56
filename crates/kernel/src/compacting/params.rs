//! The parameters of a compaction, and values derived from them alone.
//!
//! Invariants: nothing here changes during a compaction, except for the tool results that it shortens
//! ([`CompactionParams::add_prune`]).

use std::sync::Arc;

use crate::compacting::native::NativeSupport;
use crate::compacting::summaries::to_estimate;
use crate::entry::{Entry, EntryId, EntryKind, EntryRange, Prune, Trigger};
use crate::path::{as_sent, is_message};
use crate::plan::{NothingToCompact, Plan, PlanOptions, plan};
use crate::retry::Retries;
use crate::settings::{CompactOptions, CompactionSettings, Occasion};
use crate::usage::Ratio;

/// How much of what a compaction keeps a preparation keeps at least: one part in this many.
const PREPARED_KEEP_PARTS: u64 = 2;

/// The parameters of a compaction.
#[derive(Debug, Clone)]
pub struct CompactionParams {
    /// The path; it begins at the first kept entry of the newest active compaction, or before it.
    pub path: Vec<Arc<Entry>>,
    /// The current compaction settings.
    pub settings: CompactionSettings,
    /// The reason for the compaction.
    pub trigger: Trigger,
    /// The window to compact for, in tokens: the model's, or less if the provider rejected less.
    pub window: u64,
    /// The model's known window, in tokens, which decides whether a context is permanently too large.
    pub known_window: u64,
    /// The possible summarisers, in order: if one fails, the next one is used. At least one.
    pub summarisers: Vec<SummariserLimits>,
    /// How often one request to a summariser is retried, as in a turn.
    pub retries: Retries,
    /// The fixed part of every request, in tokens.
    pub overhead: u64,
    /// The entries that every compaction keeps: if they are replaced, they are sent in front of the summary.
    pub pinned: Vec<EntryId>,
    /// The current size of the context, in tokens.
    pub tokens_before: u64,
    /// The number of the provider's tokens for each token of our estimate.
    pub ratio: Ratio,
    /// Whether the next request could not be sent: then the truncate fallback may be installed.
    pub at_window: bool,
    /// How much to keep, in tokens, if the caller specifies it.
    pub keep_recent: Option<u64>,
    /// Compact even if little is gained.
    pub force: bool,
    /// Topic for the summary to focus on.
    pub focus: Option<String>,
    /// The number of rungs already tried for this overflow.
    pub failed_attempts: u32,
    /// Messages cut earlier without a summary, read from the log for the next summary: oldest first.
    pub debt: Vec<Arc<Entry>>,
    /// The part of the debt that is too large to be read now: it remains a debt.
    pub debt_left: Vec<EntryRange>,
    /// For a preparation, the size of the context, in tokens, at which the result will be installed.
    pub prepared_for: Option<u64>,
    /// The own compaction of the provider of the session's model; `None` if it has none.
    pub native: Option<NativeSupport>,
}

impl CompactionParams {
    /// Returns the occasion, for [`CompactionSettings::keep_recent`].
    pub(crate) fn occasion(&self) -> Occasion {
        match self.trigger {
            Trigger::Overflow => Occasion::Emergency,
            Trigger::Manual | Trigger::HandOff => Occasion::Manual,
            Trigger::Threshold
            | Trigger::ModelSwitch
            | Trigger::Hook
            | Trigger::Branch
            | Trigger::Unknown => Occasion::Automatic,
        }
    }

    /// Adds to the focus of the request.
    pub(super) fn add_focus(&mut self, focus: &str) {
        let asked = self.focus.as_deref().map(str::trim).filter(|asked| !asked.is_empty());
        self.focus = Some(asked.map_or_else(|| focus.to_owned(), |asked| format!("{asked}; {focus}")));
    }

    /// Returns the options of the request.
    pub fn options(&self) -> CompactOptions {
        CompactOptions { focus: self.focus.clone(), keep_recent: self.keep_recent, force: self.force }
    }

    /// Returns the options for the plan, from the settings, the occasion and the caller's wishes. Every
    /// compaction is first planned with these, and so is a preview.
    pub fn plan_options(&self) -> PlanOptions {
        let mut options =
            PlanOptions::new(&self.settings, self.window, self.occasion(), self.tokens_before, self.overhead);
        options.pinned.clone_from(&self.pinned);
        options.ratio = self.ratio;
        options.keep_max = to_estimate(options.keep_max, self.ratio);
        options.facts_max = to_estimate(options.facts_max, self.ratio);
        options.skills_max = to_estimate(options.skills_max, self.ratio);
        for tokens in [&mut options.words_max.carried, &mut options.words_max.shown] {
            *tokens = to_estimate(*tokens, self.ratio);
        }
        // A preparation leaves room for what is added before the installation.
        let added = self.prepared_for.map_or(0, |then| then.saturating_sub(self.tokens_before));
        let keep_with_added = options.keep_recent.saturating_sub(to_estimate(added, self.ratio));
        options.keep_recent = keep_with_added.max(options.keep_recent / PREPARED_KEEP_PARTS);
        options.keep_recent = options.keep_recent.min(options.keep_max).max(1);
        // After an overflow, a context that fits matters more than the caller's wishes.
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

    /// Checks that a summary could make the context smaller. It applies if any reduction is enough, because the
    /// compaction was requested.
    ///
    /// # Errors
    /// [`NothingToCompact::TooSmall`] if the smallest useful summary is as large as what it would replace.
    pub(super) fn check_gain(&self, plan: &Plan) -> Result<(), NothingToCompact> {
        let asks_model = self.settings.strategy.wants_summary();
        if !self.is_asked_for() || self.at_window || !asks_model {
            return Ok(());
        }
        plan.check_gain()
    }

    /// Whether the compaction was requested, so that any smaller context is a success.
    pub(super) fn is_asked_for(&self) -> bool {
        self.trigger.may_fail() || self.trigger == Trigger::Hook
    }

    /// Returns what a summary replaces, in tokens by our estimate: the segment, and the previous summary.
    pub(super) fn replaced_tokens(&self, plan: &Plan) -> u64 {
        let replaced = |entry: &&Arc<Entry>| {
            Some(entry.id) == plan.base
                || (entry.id >= plan.first && entry.id <= plan.last && is_message(&entry.kind))
        };
        as_sent(&self.path).iter().filter(replaced).map(|entry| entry.tokens).sum()
    }

    /// Whether the next request cannot be sent: then tool results may be shortened.
    pub(super) fn is_over(&self) -> bool {
        // If the window is unknown, the context's size is taken for it.
        self.at_window || self.tokens_before > self.window
    }

    /// Shortens these results from here on, as if that were recorded.
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

/// The limits of one summariser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SummariserLimits {
    /// Its window, in tokens.
    pub window: u64,
    /// The maximum output of one answer, in tokens; `None` if unknown.
    pub output_tokens_max: Option<u64>,
}
