//! What a compaction installs: a model's summary, a hook's, or a cut without one.
//!
//! Invariants: a segment is smaller than what it replaces, and what it keeps follows it. A cut that no summary has
//! read is recorded as a debt.

use super::{Compacting, Effect, Phase, Segment, Supplied};
use crate::entry::{Compaction, CompactionOutcome, EntryKind, EntryRange, PrunedResult};
use crate::path::ActivePath;
use crate::plan::Plan;
use crate::size::{Estimator, entry_tokens};
use crate::summary::{self, SUMMARY_TOKENS_MIN};

/// The most ranges recorded of messages cut without a summary.
const DEBT_RANGES_MAX: usize = 8;

/// The author of the segment's replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// A model.
    Model,
    /// A hook.
    Hook,
    /// None, since no summary is wanted.
    Strategy,
    /// None, since no summary was possible: the cut is a debt.
    Nobody,
    /// The provider, in a form that only its own models read: for all others, the cut is a debt.
    Opaque,
}

impl Compacting {
    pub(super) fn install_supplied(&mut self, supplied: &Supplied) -> Vec<Effect> {
        let Some(mut plan) = self.plan.clone() else { return Vec::new() };
        if let Some(first_kept) = supplied.first_kept.filter(|id| *id != plan.first_kept) {
            match plan.moved_to(&self.params.path, first_kept) {
                Some(moved) => plan = moved,
                None if self.params.at_window => return self.ask_for_summaries(),
                None => {
                    let reason = format!("the hook's first kept entry {first_kept} is not a legal cut");
                    return self.end(CompactionOutcome::Failed { reason }, None);
                }
            }
        }
        let text = summary::supplied(&plan, &supplied.summary);
        let segment = self.segment(&plan, text, Author::Hook).filter(|segment| {
            !supplied.summary.trim().is_empty()
                && (self.is_success(segment.compaction.tokens_after)
                    || self.can_be_sent(segment.compaction.tokens_after))
        });
        match segment {
            Some(segment) => self.install(segment),
            // At the window, something must be done: the hook's decision is ignored.
            None if self.params.at_window => self.ask_for_summaries(),
            None => {
                let reason = "the summary that a hook supplied is empty, or too large".to_owned();
                self.end(CompactionOutcome::Failed { reason }, None)
            }
        }
    }

    /// Installs the truncate fallback as a chosen strategy.
    pub(super) fn install_truncated(&mut self, plan: &Plan) -> Vec<Effect> {
        let cap = self
            .room_for_summary(plan)
            .unwrap_or(u64::MAX)
            .min(self.params.settings.summary_cap(self.params.window));
        let text = self.truncated(plan, cap.max(SUMMARY_TOKENS_MIN));
        match self.segment(plan, text, Author::Strategy) {
            Some(segment)
                if self.is_success(segment.compaction.tokens_after)
                    || self.can_be_sent(segment.compaction.tokens_after) =>
            {
                self.install(segment)
            }
            Some(_) => self.next_rung("the context would still be too large"),
            None => self.next_rung("the context would not get smaller"),
        }
    }

    /// Installs an opaque summary of the provider although no summary of ours could be made: other models cannot read it,
    /// so what it replaces is a debt.
    pub(super) fn install_opaque_alone(&mut self, why: &str) -> Vec<Effect> {
        let Some(plan) = self.plan.clone() else { return Vec::new() };
        let text = self.truncated(&plan, self.params.settings.summary_cap(self.params.window));
        self.unsummarised = Some(why.to_owned());
        let segment = self.segment(&plan, text, Author::Opaque);
        match segment.filter(|segment| self.is_success(segment.compaction.tokens_after)) {
            Some(segment) => self.install(segment),
            None => {
                self.native.clear();
                self.summary_failed(why)
            }
        }
    }

    /// Returns the replacement text without a model's summary.
    pub(super) fn truncated(&self, plan: &Plan, cap_tokens: u64) -> String {
        let wanted = self.params.settings.strategy.wants_summary();
        summary::truncated(plan, cap_tokens, wanted)
    }

    /// Returns why there is no summary by a model.
    pub(super) fn reason(&self) -> String {
        self.unsummarised.clone().unwrap_or_default()
    }

    /// Returns the segment to install; `None` if it would not be smaller than what it replaces.
    pub(super) fn segment(&self, plan: &Plan, text: String, author: Author) -> Option<Box<Segment>> {
        let active = ActivePath::of(&self.params.path);
        let carried = || active.compaction().map(|compaction| compaction.debt.clone()).unwrap_or_default();
        let (debt, outcome) = match author {
            Author::Model => (self.params.debt_left.clone(), CompactionOutcome::Completed),
            // The hook has not read what was cut earlier.
            Author::Hook => (carried(), CompactionOutcome::Completed),
            Author::Strategy => {
                let reason = "no summary is wanted: the strategy is `truncate`".to_owned();
                (carried(), CompactionOutcome::Truncated { reason })
            }
            Author::Nobody | Author::Opaque => {
                let cut = EntryRange { first: plan.first, last: plan.last };
                // Without wanted summaries there is no debt.
                let debt = match self.params.settings.strategy.wants_summary() {
                    true => with_range(carried(), active.compaction(), cut),
                    false => carried(),
                };
                let outcome = match author {
                    Author::Opaque => CompactionOutcome::Completed,
                    Author::Model | Author::Hook | Author::Strategy | Author::Nobody => {
                        CompactionOutcome::Truncated { reason: self.reason() }
                    }
                };
                (debt, outcome)
            }
        };
        let native = match author {
            Author::Model | Author::Opaque => self.native.summary(&text),
            Author::Hook | Author::Strategy | Author::Nobody => None,
        };
        let mut compaction = Compaction {
            base: plan.base,
            previous: None,
            first: Some(plan.first),
            last: Some(plan.last),
            first_kept: Some(plan.first_kept),
            summary: text,
            active_request: plan.active_request.clone(),
            files: plan.files.clone(),
            trigger: self.params.trigger,
            truncated: matches!(author, Author::Strategy | Author::Nobody),
            from_hook: author == Author::Hook,
            is_split_turn: plan.is_split_turn,
            tokens_before: self.params.tokens_before,
            tokens_after: 0,
            messages_before: plan.messages_before,
            messages_removed: plan.messages_removed(),
            duration_ms: 0,
            model: self.summaries.model().to_owned(),
            usage: self.summaries.usage(),
            cost_microdollars: None,
            debt,
            native,
        };
        let kind = EntryKind::Compaction(Box::new(compaction.clone()));
        let native_tokens = compaction.native.as_ref().map(|native| native.tokens);
        let summary_tokens = native_tokens.unwrap_or_else(|| entry_tokens(&kind, Estimator::Classes));
        compaction.tokens_after = self.tokens_after(plan, summary_tokens);
        // Compares estimates; and below the window also with the measured size: at the window the measurement
        // has just been shown to be too low.
        let smaller = summary_tokens < self.params.replaced_tokens(plan)
            && (compaction.tokens_after < self.params.tokens_before || self.params.at_window);
        // A result that is replaced needs no shorter form.
        let kept: Vec<PrunedResult> =
            self.pruned.iter().filter(|result| result.entry >= plan.first_kept).cloned().collect();
        let prune = (!kept.is_empty()).then(|| Box::new(self.prune_of(kept)));
        smaller.then(|| {
            Box::new(Segment {
                base: plan.base,
                first: plan.first,
                last: plan.last,
                first_kept: plan.first_kept,
                prune,
                compaction,
                outcome,
            })
        })
    }

    pub(super) fn install(&mut self, segment: Box<Segment>) -> Vec<Effect> {
        assert!(segment.first <= segment.last && segment.last < segment.first_kept, "the kept part follows");
        self.phase = Phase::Install;
        self.on_its_way = Some(segment.outcome.clone());
        vec![Effect::Install(segment)]
    }
}

/// Returns a debt extended by the current cut, after `base`. If `base` was cut too, the two become one range.
fn with_range(mut debt: Vec<EntryRange>, base: Option<&Compaction>, cut: EntryRange) -> Vec<EntryRange> {
    let ended = base.and_then(|base| base.last);
    match debt.last_mut().filter(|range| Some(range.last) == ended) {
        Some(range) => range.last = cut.last,
        None => debt.push(cut),
    }
    // A summariser that keeps failing must not make the list long: at worst, entries between two ranges are
    // read twice.
    while debt.len() > DEBT_RANGES_MAX {
        let first = debt.remove(0).first;
        debt[0].first = first;
    }
    debt
}
