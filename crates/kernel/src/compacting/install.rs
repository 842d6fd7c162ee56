//! The replacement that a compaction installs: a model's summary, a hook's, or a cut without one.
//!
//! Invariants: a segment is smaller than what it replaces, and what it keeps follows it. A cut that no summary has
//! read is recorded as a debt.

use std::sync::Arc;

use super::{Compacting, Effect, Phase, Rung, Segment, Supplied};
use crate::carried::{Carried, Fact, FactRecall};
use crate::compacting::summaries::to_estimate;
use crate::entry::{Compaction, CompactionOutcome, Entry, EntryId, EntryKind, EntryRange, PrunedResult};
use crate::ledger;
use crate::path::{ActivePath, as_sent, entry_message};
use crate::plan::Plan;
use crate::render::summary_text;
use crate::settings::Strategy;
use crate::size::{Estimator, classes, entry_tokens};
use crate::summary::{self, SUMMARY_TOKENS_MIN};

/// The maximum number of ranges recorded of messages cut without a summary.
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

impl Author {
    /// Whether a digest, or if there is nothing in it a notice, takes the place of a summary.
    fn is_none(self) -> bool {
        match self {
            Self::Model | Self::Hook | Self::Opaque => false,
            Self::Strategy | Self::Nobody => true,
        }
    }
}

impl Compacting {
    pub(super) fn install_supplied(&mut self, supplied: &Supplied) -> Vec<Effect> {
        let Some(mut plan) = self.plan.clone() else { return Vec::new() };
        if let Some(first_kept) = supplied.first_kept.filter(|id| *id != plan.first_kept) {
            match plan.moved_to(&self.params.path, first_kept) {
                Some(moved) => plan = moved,
                None if self.params.at_window => return self.ask_for_summaries(),
                None => {
                    let near = near_places(&Plan::places(&self.params.path), first_kept);
                    let reason =
                        format!("the hook's first kept entry {first_kept} is not a legal cut: {near}");
                    return self.end(CompactionOutcome::Failed { reason }, None);
                }
            }
        }
        let text = summary::supplied(&plan, &supplied.summary);
        let sized = self.sized_segment(&plan, text, Author::Hook, plan.facts_max());
        let tokens_after = sized.segment.compaction.tokens_after;
        let is_empty = supplied.summary.trim().is_empty();
        let is_success = self.is_success(tokens_after) || self.can_be_sent(tokens_after);
        if !is_empty && sized.is_smaller && is_success {
            return self.install(sized.segment);
        }
        // At the window, something must be done: the hook's decision is ignored.
        if self.params.at_window {
            return self.ask_for_summaries();
        }
        let reason = match is_empty {
            true => "the summary that a hook supplied is empty".to_owned(),
            false => self.too_large(&plan, &sized),
        };
        self.end(CompactionOutcome::Failed { reason }, None)
    }

    /// Returns what of a hook's summary and the part that it keeps is too large, with the sizes.
    fn too_large(&self, plan: &Plan, sized: &Sized) -> String {
        let (after, before) = (sized.segment.compaction.tokens_after, self.params.tokens_before);
        let kept = self.tokens_after(plan, 0);
        let most = self.target_tokens().unwrap_or(u64::MAX).min(before.saturating_sub(1));
        let replaced = self.params.replaced_tokens(plan);
        if kept.saturating_add(SUMMARY_TOKENS_MIN) > most {
            return format!(
                "the part that a hook keeps is too large: without a summary the context has {kept} tokens from entry {} on, \
                 and with one it may have at most {most}; a later first kept entry keeps less",
                plan.first_kept
            );
        }
        let (size, room) = match sized.summary_tokens < replaced {
            true => (after.saturating_sub(kept), most - kept),
            false => (sized.summary_tokens, replaced.saturating_sub(1)),
        };
        format!(
            "the summary that a hook supplied is too large: with the user's words and the facts it has {size} tokens, and \
             may have at most {room}"
        )
    }

    /// Installs a digest, or the truncate fallback, as a chosen strategy.
    pub(super) fn install_truncated(&mut self, plan: &Plan) -> Vec<Effect> {
        let cap = self.params.settings.summary_cap(self.params.window);
        let cap = self.room_for_summary(plan).unwrap_or(u64::MAX).min(cap).max(SUMMARY_TOKENS_MIN);
        let text = self.truncated(plan, cap);
        match self.segment(plan, text, Author::Strategy, self.digest_max(plan)) {
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
        let segment = self.segment(&plan, text, Author::Opaque, plan.facts_max());
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
        summary::truncated(plan, cap_tokens, self.params.settings.strategy.wants_summary())
    }

    /// Returns how many tokens of facts (by our estimate) are added to a summary: up to twice as many if that leaves as
    /// much of its cap unused. A summariser that drops much leaves more to the ledger.
    pub(super) fn facts_max_beside(&self, plan: &Plan, text: &str) -> u64 {
        let cap = self.params.settings.summary_cap(self.params.window);
        let said = classes::tokens(summary::without_footer(text));
        let unused = to_estimate(cap, self.params.ratio).saturating_sub(said);
        plan.facts_max() + unused.min(plan.facts_max())
    }

    /// Whether facts take the place of a summary that no model writes.
    pub(super) fn makes_digests(&self) -> bool {
        let settings = &self.params.settings;
        settings.ledger.is_some() && settings.strategy != Strategy::Truncate
    }

    /// Returns how many tokens of facts (by our estimate) take the place of a summary: as many as that may have,
    /// unless only a notice is wanted.
    pub(super) fn digest_max(&self, plan: &Plan) -> u64 {
        if !self.makes_digests() {
            return plan.facts_max();
        }
        let cap = self.params.settings.summary_cap(self.params.window);
        let cap = to_estimate(cap, self.params.ratio);
        // A digest of more than half the size of what it replaces is not worth the cut.
        cap.min(plan.replaced_tokens / 2).max(plan.facts_max())
    }

    /// Returns why there is no summary by a model.
    pub(super) fn reason(&self) -> String {
        self.unsummarised.clone().unwrap_or_default()
    }

    /// Returns the segment to install, with at most `facts_max` tokens of facts by our estimate added to `text`; `None`
    /// if it would not be smaller than what it replaces.
    pub(super) fn segment(
        &self,
        plan: &Plan,
        text: String,
        author: Author,
        facts_max: u64,
    ) -> Option<Box<Segment>> {
        let sized = self.sized_segment(plan, text, author, facts_max);
        sized.is_smaller.then_some(sized.segment)
    }

    /// Returns such a segment, whatever its size.
    fn sized_segment(&self, plan: &Plan, text: String, author: Author, facts_max: u64) -> Sized {
        let active = ActivePath::of(&self.params.path);
        let carried = || active.compaction().map(|compaction| compaction.debt.clone()).unwrap_or_default();
        let Ledger { text, facts, recall, is_shown } = self.with_ledger(plan, text, facts_max);
        let is_digest = author.is_none()
            && self.params.settings.strategy != Strategy::Truncate
            && (is_shown || plan.words.is_shown());
        let cut = |reason: String| match is_digest {
            true => CompactionOutcome::Digested { reason },
            false => CompactionOutcome::Truncated { reason },
        };
        let (debt, outcome) = match author {
            Author::Model => (self.params.debt_left.clone(), CompactionOutcome::Completed),
            // The hook has not read what was cut earlier.
            Author::Hook => (carried(), CompactionOutcome::Completed),
            Author::Strategy => {
                let strategy =
                    if self.params.settings.strategy == Strategy::Digest { "digest" } else { "truncate" };
                (carried(), cut(format!("no summary is wanted: the strategy is `{strategy}`")))
            }
            Author::Nobody | Author::Opaque => {
                let range = EntryRange { first: plan.first, last: plan.last };
                // Without wanted summaries there is no debt.
                let debt = match self.params.settings.strategy.wants_summary() {
                    true => with_range(carried(), active.compaction(), range),
                    false => carried(),
                };
                let outcome = match author {
                    Author::Opaque => CompactionOutcome::Completed,
                    Author::Model | Author::Hook | Author::Strategy | Author::Nobody => cut(self.reason()),
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
            truncated: author.is_none(),
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
            carried: Carried {
                words: plan.words.quotes.clone(),
                words_left: plan.words.left.clone(),
                request_from: plan.words.request_from,
                facts,
                skills: plan.skills.in_use.clone(),
            },
            recall,
        };
        let kind = EntryKind::Compaction(Box::new(compaction.clone()));
        let native_tokens = compaction.native.as_ref().map(|native| native.tokens);
        let summary_tokens = native_tokens.unwrap_or_else(|| entry_tokens(&kind, Estimator::Classes));
        compaction.tokens_after = self.tokens_after(plan, summary_tokens);
        // Compares estimates; and below the window also with the measured size: at the window the measurement
        // has just been shown to be too low.
        let is_smaller = summary_tokens < self.params.replaced_tokens(plan)
            && (compaction.tokens_after < self.params.tokens_before || self.params.at_window);
        // A result that is replaced needs no shorter form.
        let kept: Vec<PrunedResult> =
            self.pruned.iter().filter(|result| result.entry >= plan.first_kept).cloned().collect();
        let prune = (!kept.is_empty()).then(|| Box::new(self.prune_of(kept)));
        let segment = Box::new(Segment {
            base: plan.base,
            first: plan.first,
            last: plan.last,
            first_kept: plan.first_kept,
            prune,
            compaction,
            outcome,
        });
        Sized { segment, summary_tokens, is_smaller }
    }

    /// Looks the facts up in the new context, and adds those that are missing to the summary's text, as long as the
    /// context is a success with them.
    fn with_ledger(&self, plan: &Plan, text: String, facts_max: u64) -> Ledger {
        if self.params.settings.ledger.is_none() {
            return Ledger { text, facts: Vec::new(), recall: None, is_shown: false };
        }
        let active = ActivePath::of(&self.params.path);
        let previous = active.compaction().map_or(&[][..], |compaction| &compaction.carried.facts);
        let replaced: Vec<Arc<Entry>> = plan.history.iter().chain(&plan.turn_prefix).cloned().collect();
        let facts = ledger::carried_on(previous, &replaced);
        let sent = as_sent(&self.params.path);
        let is_sent = |entry: &Entry| entry.id >= plan.first_kept || self.params.pinned.contains(&entry.id);
        let kept: Vec<String> = sent
            .iter()
            .filter(|entry| is_sent(entry))
            .filter_map(|entry| Some(entry_message(&entry.kind)?.said()))
            .collect();
        let found = ledger::recognised(&facts, kept.iter().map(String::as_str).chain([text.as_str()]));
        let room = self.room_for_facts(plan, &text).min(facts_max);
        let chosen = ledger::Facts::ranked(&facts, |index| !found[index]).choose(room);
        let before = found.iter().filter(|found| **found).count() as u64;
        let recall = FactRecall { facts: facts.len() as u64, before, after: before + chosen.len() as u64 };
        let section = ledger::text(&facts, &chosen);
        let text = summary::with_facts(text, &section);
        Ledger { text, facts, recall: Some(recall), is_shown: !chosen.is_empty() }
    }

    /// Returns how many tokens of facts (by our estimate) may be added to this text.
    fn room_for_facts(&self, plan: &Plan, text: &str) -> u64 {
        let size = classes::tokens(&summary_text(text));
        let smaller = plan.replaced_tokens.saturating_sub(size) / 2;
        let now = self.tokens_after(plan, size);
        let target = match self.rung {
            Rung::LastResort => self.room_tokens(),
            Rung::Summarise | Rung::Halve | Rung::Least | Rung::Truncate => {
                self.target_tokens().unwrap_or(u64::MAX).min(self.params.tokens_before)
            }
        };
        let room = to_estimate(target.saturating_sub(now), self.params.ratio);
        // Our count of the parts may be a little below that of the whole.
        smaller.min(room - room / 16)
    }

    pub(super) fn install(&mut self, segment: Box<Segment>) -> Vec<Effect> {
        assert!(segment.first <= segment.last && segment.last < segment.first_kept, "the kept part follows");
        if self.params.prepared_for.is_some() {
            (self.phase, self.held) = (Phase::Held, Some(segment));
            return vec![Effect::Prepared];
        }
        self.phase = Phase::Install;
        self.on_its_way = Some(segment.outcome.clone());
        vec![Effect::Install(segment)]
    }
}

/// A segment and its size.
struct Sized {
    segment: Box<Segment>,
    /// The size of what takes the place of the replaced part, in tokens by our estimate.
    summary_tokens: u64,
    /// Whether it is smaller than what it replaces.
    is_smaller: bool,
}

/// A summary's text with the facts that it lacked.
struct Ledger {
    text: String,
    facts: Vec<Fact>,
    recall: Option<FactRecall>,
    /// Whether facts were added.
    is_shown: bool,
}

/// Names the legal cuts before and after an entry that is none.
fn near_places(places: &[EntryId], entry: EntryId) -> String {
    let after = places.partition_point(|place| *place < entry);
    let before = after.checked_sub(1).and_then(|index| places.get(index));
    match (before, places.get(after)) {
        (Some(before), Some(after)) => format!("the nearest ones are {before} and {after}"),
        (Some(nearest), None) | (None, Some(nearest)) => format!("the nearest one is {nearest}"),
        (None, None) => "there is none".to_owned(),
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
