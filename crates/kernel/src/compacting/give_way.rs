//! Reductions without a summary: old tool results where they are enough, so that no summary is necessary; and if no
//! summary helps, tool results, then the oldest messages, and finally nothing.
//!
//! Invariants: nothing here asks a model; instead of a summary, the newest content of a file never gives way; the cut is no larger than necessary to reach the target, if the
//! target can be reached; newest results lose their middles, never a whole message; if even the smallest
//! context does not fit, the end lists what is in it.

use std::sync::Arc;

use super::install::Author;
use super::{Compacting, CompactionParams, Effect, Phase, PruneSegment, Rung, Segment};
use crate::compacting::summaries::to_estimate;
use crate::due::answer_room_max;
use crate::entry::{CompactionOutcome, Entry, EntryId, Prune, PrunedResult};
use crate::failure::{Failure, FailureClass};
use crate::path::{ActivePath, as_sent, is_message};
use crate::plan::{Plan, plan};
use crate::prune;
use crate::render::summary_text;
use crate::run::is_full;
use crate::settings::Strategy;
use crate::size::classes;
use crate::summary::SUMMARY_TOKENS_MIN;
use crate::text::bounded;

/// The minimum of the active request that is kept in the tightest window, in bytes.
const REQUEST_BYTES_MIN: usize = 512;
/// The share of the window for which a cut leaves room, so that a digest can replace it: one part in this many.
const DIGEST_SHARE: u64 = 10;

impl Compacting {
    /// Returns why a summary would not help: the reason of the first rung that had one.
    pub(super) fn vain(&self, why: &str) -> String {
        let why = self.vain.as_deref().unwrap_or(why);
        format!("a summary would not help: {why}")
    }

    pub(super) fn end_in_vain(&mut self, why: &str) -> Vec<Effect> {
        let reason = format!("it would not help: {}", self.vain.as_deref().unwrap_or(why));
        // A summariser that was never asked has not failed.
        let outcome = match self.summaries.calls() {
            0 => CompactionOutcome::Nothing { reason },
            _ => CompactionOutcome::Failed { reason },
        };
        self.end(outcome, None)
    }

    /// Leaves out old tool results instead of asking for a summary, if that alone is a success. `None` if it is not, or
    /// if a summary is what was asked for.
    pub(super) fn prune_instead(&mut self) -> Option<Vec<Effect>> {
        let results = self.prunable_instead();
        self.prune(results).then(|| self.install_prune())
    }

    /// Returns the old results that give way instead of a summary; empty if one has to be made.
    pub(super) fn prunable_instead(&self) -> Vec<PrunedResult> {
        let CompactionParams { settings, ratio, .. } = &self.params;
        let is_wanted = settings.prune && settings.strategy != Strategy::Native;
        let is_first = self.rung == Rung::Summarise && self.params.failed_attempts == 0;
        let (true, true, Some(target)) = (is_wanted, is_first, self.target_tokens()) else {
            return Vec::new();
        };
        // The greater of what is reported and what we count, so that the result is below the trigger by both.
        let wanted = self.tokens_now().max(self.params.tokens_before).saturating_sub(target);
        prune::instead_of_summary(&self.params.path, self.estimate_window(), to_estimate(wanted, *ratio))
    }

    /// Starts the last rung. It needs no smaller plan than the previous one: its summary is smaller.
    pub(super) fn last_resort(&mut self, why: String) -> Vec<Effect> {
        self.rung = Rung::LastResort;
        self.last_first_kept = None;
        self.unsummarised = Some(why);
        let mut effects = self.summaries.clear();
        effects.extend(self.native.clear());
        if self.consulted {
            effects.extend(self.give_way());
            return effects;
        }
        effects.extend(match plan(&self.params.path, &self.options()) {
            Ok(least) => {
                self.consulted = true;
                self.plan = Some(least.clone());
                self.phase = Phase::Hooks;
                vec![Effect::Consult(Box::new(least))]
            }
            // Nothing can be cut, so there is nothing for a hook to decide.
            Err(_) => self.give_way(),
        });
        effects
    }

    /// Performs the last resort, with as little loss as possible. First old tool results give way, then as much of the
    /// oldest messages as necessary to reach the target, then the middles of the newest results; and if the
    /// target cannot be reached, whatever is necessary to be sent at all.
    pub(super) fn give_way(&mut self) -> Vec<Effect> {
        let old = prune::old_results(&self.params.path, self.estimate_window());
        if self.prune(old) && self.has_room(self.tokens_now()) {
            return self.install_prune();
        }
        if let Some(segment) = self.least_cut() {
            return self.install(segment);
        }
        if self.shorten() {
            if self.has_room(self.tokens_now()) {
                return self.install_prune();
            }
            if let Some(segment) = self.least_cut() {
                return self.install(segment);
            }
        }
        if !self.pruned.is_empty() && self.can_be_sent(self.tokens_now()) {
            return self.install_prune();
        }
        match self.greatest_cut() {
            Some(segment) => self.install(segment),
            None => self.floor(),
        }
    }

    /// Returns the smallest cut that reaches the target, with room for a digest if there is such a cut; `None` if
    /// there is none.
    pub(super) fn least_cut(&self) -> Option<Box<Segment>> {
        let least = plan(&self.params.path, &self.least_options()).ok()?;
        let cap = self.params.settings.summary_cap(self.params.window);
        let places = Plan::places(&self.params.path);
        let fits = |place: &EntryId, reserve: u64| {
            let Some(plan) = least.moved_to(&self.params.path, *place) else { return false };
            let size = classes::tokens(&summary_text(&self.truncated(&plan, cap)));
            size < self.params.replaced_tokens(&plan)
                && self.has_room(self.tokens_after(&plan, size + reserve))
        };
        let digest = if self.makes_digests() { cap.min(self.params.window / DIGEST_SHARE) } else { 0 };
        [digest, 0].into_iter().find_map(|reserve| {
            // The later the cut, the less is kept.
            let first = places.partition_point(|place| !fits(place, reserve));
            let plan = least.moved_to(&self.params.path, *places.get(first)?)?;
            let facts_max = self.digest_max(&plan);
            let segment = self.segment(&plan, self.truncated(&plan, cap), Author::Nobody, facts_max)?;
            self.has_room(segment.compaction.tokens_after).then_some(segment)
        })
    }

    /// Returns the cut that keeps as little as is legal, if the rest can be sent. What is too large next to the
    /// newest messages gives way: the facts, then the user's words and the skills, and then the middle of the active request, which
    /// may be large because of steers that joined it.
    pub(super) fn greatest_cut(&self) -> Option<Box<Segment>> {
        let mut least = plan(&self.params.path, &self.least_options()).ok()?;
        let cap = self.params.settings.summary_cap(self.params.window);
        // Even the previous summary may be too much.
        let room = self.room_for_summary(&least).unwrap_or(cap).min(cap).max(SUMMARY_TOKENS_MIN);
        let request = least.active_request.clone().unwrap_or_default();
        let mut bytes_max = request.len();
        let mut facts_max = self.digest_max(&least);
        loop {
            let segment = self.segment(&least, self.truncated(&least, room), Author::Nobody, facts_max);
            if let Some(segment) = segment.filter(|segment| self.can_be_sent(segment.compaction.tokens_after))
            {
                return Some(segment);
            }
            if facts_max > 0 {
                facts_max = 0;
            } else if !least.carried_text().is_empty() {
                least.hide_carried();
            } else if bytes_max <= REQUEST_BYTES_MIN {
                return None;
            } else {
                bytes_max = (bytes_max / 2).max(REQUEST_BYTES_MIN);
                least.active_request = Some(bounded(&request, bytes_max));
            }
        }
    }

    /// Leaves out the middles of the newest results, once. Returns whether that made anything smaller.
    pub(super) fn shorten(&mut self) -> bool {
        if std::mem::replace(&mut self.shortened, true) {
            return false;
        }
        let ratio = self.params.ratio;
        let room = to_estimate(self.room_tokens().saturating_sub(self.params.overhead), ratio);
        let all = active_tokens(&self.params.path);
        let from = |first: EntryId| prune::results_tokens(&self.params.path, first);
        // If the rest leaves half of the room, nothing else has to give way.
        let first = EntryId(0);
        let beside = all.saturating_sub(from(first));
        let (first, budget) = match room.saturating_sub(beside) {
            budget if budget >= room / 2 => (first, budget),
            // Otherwise only the newest are shortened, with room for a summary beside them.
            _ => {
                let least = plan(&self.params.path, &self.least_options());
                let first = least.map_or(first, |plan| plan.first_kept);
                let sent = as_sent(&self.params.path);
                let is_kept = |entry: &&Arc<Entry>| entry.id >= first && is_message(&entry.kind);
                let kept: u64 = sent.iter().filter(is_kept).map(|entry| entry.tokens).sum();
                (first, (room - room / 4).saturating_sub(kept - from(first)))
            }
        };
        let middles = prune::middles(&self.params.path, first, budget);
        self.prune(middles)
    }

    /// Shortens the newest results if a compaction was requested for a context that does not fit its window,
    /// and nothing can be summarised.
    pub(super) fn shorten_alone(&mut self, why: &str) -> Option<Vec<Effect>> {
        if !self.params.is_over() || !self.shorten() {
            return None;
        }
        self.unsummarised = Some(why.to_owned());
        Some(self.install_prune())
    }

    /// Shortens these results from here on. Returns whether there are any.
    pub(super) fn prune(&mut self, results: Vec<PrunedResult>) -> bool {
        if results.is_empty() {
            return false;
        }
        let names = |entry: EntryId| results.iter().any(|result| result.entry == entry);
        self.pruned.retain(|before| !names(before.entry));
        self.params.add_prune(self.prune_of(results.clone()));
        self.pruned.extend(results);
        self.pruned.sort_by_key(|result| result.entry);
        true
    }

    pub(super) fn prune_of(&self, results: Vec<PrunedResult>) -> Prune {
        let (trigger, tokens_before) = (self.params.trigger, self.params.tokens_before);
        Prune { results, trigger, tokens_before, tokens_after: self.tokens_now() }
    }

    /// Returns the size of the context with the results as they would be sent, in tokens.
    pub(super) fn tokens_now(&self) -> u64 {
        self.params.overhead + self.params.ratio.apply(active_tokens(&self.params.path))
    }

    /// Whether a context of this size reaches the target, whoever requested the compaction.
    pub(super) fn has_room(&self, tokens: u64) -> bool {
        tokens <= self.room_tokens()
    }

    /// Returns the largest context that reaches the target, in tokens. If the provider rejected an already
    /// compacted request, its window is smaller than known: half of it, each time.
    pub(super) fn room_tokens(&self) -> u64 {
        let CompactionParams { window, overhead, .. } = self.params;
        let room = self.params.settings.target_tokens(window, overhead).saturating_sub(overhead);
        overhead + (room >> self.params.failed_attempts.min(8))
    }

    /// Whether a context can be sent at the window although it is above the trigger, which is better than
    /// nothing: it must leave room for an answer, or the next request would be at the window again.
    pub(super) fn can_be_sent(&self, tokens: u64) -> bool {
        let window = self.params.window;
        let room = (self.params.settings.reserve(window) / 2).max(answer_room_max(window));
        self.params.at_window && tokens < window.saturating_sub(room)
    }

    pub(super) fn install_prune(&mut self) -> Vec<Effect> {
        let outcome = CompactionOutcome::Pruned { reason: self.unsummarised.clone() };
        let active = ActivePath::of(&self.params.path);
        let (base, messages) = (active.compaction_id(), active.messages(&self.params.pinned));
        let prune = self.prune_of(self.pruned.clone());
        self.phase = Phase::Install;
        self.on_its_way = Some(outcome.clone());
        vec![Effect::InstallPrune(Box::new(PruneSegment {
            base,
            prune,
            messages,
            usage: self.summaries.usage(),
            outcome,
        }))]
    }

    /// Even the smallest context is too large. If our own count shows that, the end lists what is in it;
    /// otherwise the provider has to refuse, whatever it reported before.
    pub(super) fn floor(&mut self) -> Vec<Effect> {
        let CompactionParams { known_window: window, overhead, .. } = self.params;
        let newest: u64 = match plan(&self.params.path, &self.least_options()) {
            Ok(plan) => {
                let is_kept = |entry: &&Arc<Entry>| entry.id >= plan.first_kept && is_message(&entry.kind);
                as_sent(&self.params.path).iter().filter(is_kept).map(|entry| entry.tokens).sum()
            }
            Err(_) => active_tokens(&self.params.path),
        };
        let requested = overhead.saturating_add(newest);
        if !is_full(requested, window) {
            let reason = format!(
                "nothing is left to compact: by our own count, what is kept has {requested} tokens in a window of \
                 {window}"
            );
            return self.end(CompactionOutcome::Failed { reason }, None);
        }
        let message = format!(
            "the context cannot be made small enough for the window of {window} tokens: the system prompt, tools and \
             instructions have {overhead} tokens and the newest messages, which are kept, {newest}; shorten them, or \
             use a model with a larger window"
        );
        let mut failure = Failure::new(FailureClass::ContextFloor, message.clone());
        failure.limit = Some(window);
        failure.requested = Some(requested);
        self.end(CompactionOutcome::Failed { reason: message }, Some(failure))
    }
}

/// Returns the size of the active messages and the previous summary as sent, in tokens by our own count.
pub(super) fn active_tokens(path: &[Arc<Entry>]) -> u64 {
    let path = as_sent(path);
    let active = ActivePath::of(&path);
    let summary = active.compaction.map_or(0, |index| path[index].tokens);
    let messages = active.entries().iter().filter(|entry| is_message(&entry.kind));
    messages.map(|entry| entry.tokens).sum::<u64>() + summary
}
