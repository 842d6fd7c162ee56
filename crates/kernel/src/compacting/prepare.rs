//! A compaction that is prepared while the conversation continues, and installed when one is due.
//!
//! Life cycle: [`Compacting::prepare`] begins as [`Compacting::begin`] does, and what would be installed is held
//! ([`Effect::Prepared`]); when a compaction is due, [`Compacting::adopt`] takes it over, whether it is still being
//! prepared or held.
//!
//! Invariants: a preparation installs nothing; it is adopted only for the context that it was planned for and what was
//! added to it since, with the same settings and models; what it holds is measured again when it is adopted.

use std::sync::Arc;

use super::{Compacting, CompactionParams, Effect, Phase, Segment};
use crate::entry::{Entry, EntryKind, Trigger};
use crate::path::ActivePath;
use crate::size::{Estimator, entry_tokens};

/// The share of the window that the summary is expected to fill: one part in this many.
const SUMMARY_EXPECTED_SHARE: u64 = 16;

impl Compacting {
    /// Begins a preparation, for a compaction that will be due when the context has `trigger` tokens.
    ///
    /// # Errors
    /// The size of the context, in tokens, before which another attempt is of no use: what would be prepared now would
    /// not be small enough at the trigger, there is nothing to compact, or no summary will be necessary, since enough old
    /// tool results can be left out.
    pub fn prepare(params: CompactionParams, trigger: u64) -> Result<(Self, Vec<Effect>), u64> {
        let tokens = params.tokens_before;
        let (this, effects) = Self::begin(CompactionParams { prepared_for: Some(trigger), ..params });
        let needs_none = !this.prunable_instead().is_empty();
        let Some(plan) = this.plan().filter(|_| this.phase == Phase::Hooks && !needs_none) else {
            // Half of the way, so that few attempts are made.
            return Err(tokens + (trigger.saturating_sub(tokens) / 2).max(1));
        };
        let cap = this.params.settings.summary_cap(this.params.window);
        let summary = cap.min(this.estimate_window() / SUMMARY_EXPECTED_SHARE);
        let after = this.tokens_after(plan, plan.frame_tokens() + summary);
        match after.saturating_sub(this.target_tokens().unwrap_or(u64::MAX)) {
            0 => Ok((this, effects)),
            missing => Err((tokens + missing).min(trigger)),
        }
    }

    /// Takes a preparation over for a compaction that is due now, with these parameters. Returns the next effects; none
    /// while its summaries are awaited. `None` if it is useless for that compaction, which then starts from the beginning.
    pub fn adopt(&mut self, params: &CompactionParams) -> Option<Vec<Effect>> {
        if !self.fits(params) {
            return None;
        }
        let before = std::mem::replace(&mut self.params, params.clone());
        // The plan's debt is the one that its summary reads.
        (self.params.debt, self.params.debt_left) = (before.debt, before.debt_left);
        let messages = ActivePath::of(&self.params.path).messages(&self.params.pinned);
        self.plan.iter_mut().for_each(|plan| plan.messages_before = messages);
        match self.phase {
            Phase::Hooks | Phase::Answers => Some(Vec::new()),
            Phase::Held => {
                let segment = self.held.take()?;
                let segment = self.measured_anew(segment)?;
                Some(self.install(segment))
            }
            Phase::Install | Phase::Over => None,
        }
    }

    /// Whether what is prepared is still what a compaction with these parameters would begin with.
    fn fits(&self, params: &CompactionParams) -> bool {
        let own = &self.params;
        let is_by_size = matches!(params.trigger, Trigger::Threshold | Trigger::Overflow);
        let is_plain = params.keep_recent.is_none() && params.focus.is_none() && params.failed_attempts == 0;
        let last = own.path.len().checked_sub(1);
        let id = |path: &[Arc<Entry>], at: usize| path.get(at).map(|entry| entry.id);
        own.prepared_for.is_some()
            && is_by_size
            && is_plain
            && own.settings == params.settings
            && own.summarisers == params.summarisers
            && own.native == params.native
            && ActivePath::of(&own.path).compaction_id() == ActivePath::of(&params.path).compaction_id()
            // Each entry has one parent, so the paths are equal up to an entry that both have at the same place.
            && last.is_some_and(|last| id(&own.path, last) == id(&params.path, last))
            && id(&own.path, 0) == id(&params.path, 0)
    }

    /// Returns a segment with its sizes in the current context; `None` if the context would still be too large.
    fn measured_anew(&self, mut segment: Box<Segment>) -> Option<Box<Segment>> {
        let plan = self.plan.as_ref()?;
        let compaction = &mut segment.compaction;
        let kind = EntryKind::Compaction(Box::new(compaction.clone()));
        let native_tokens = compaction.native.as_ref().map(|native| native.tokens);
        let summary_tokens = native_tokens.unwrap_or_else(|| entry_tokens(&kind, Estimator::Classes));
        compaction.trigger = self.params.trigger;
        compaction.messages_before = plan.messages_before;
        compaction.tokens_before = self.params.tokens_before;
        compaction.tokens_after = self.tokens_after(plan, summary_tokens);
        let is_smaller = compaction.tokens_after < self.params.tokens_before || self.params.at_window;
        (is_smaller && self.is_success(compaction.tokens_after)).then_some(segment)
    }
}
