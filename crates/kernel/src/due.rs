//! When a compaction is due: the one rule, for all who ask.
//!
//! The usage tracker keeps the numbers, [`ContextLimits::size`] makes a [`Size`] of them, and [`is_due`] says whether
//! a compaction begins: before a model call, after a run, and when the model is switched.
//!
//! Invariants: nothing compacts by itself while compaction is turned off; what a person or a program asks for, and
//! what follows an overflow, is always due; by threshold, a compaction follows another only after something was said.

use std::sync::Arc;

use crate::context_usage::{Window, WindowSource};
use crate::cost::CostLimits;
use crate::entry::Trigger;
use crate::settings::CompactionSettings;

#[cfg(test)]
mod tests;

/// The output of one answer where a request names no limit, in tokens.
pub(crate) const OUTPUT_TOKENS_ASSUMED: u64 = 4_096;
/// The most of a window that is kept free for one answer: one part in this many.
const ANSWER_SHARE: u64 = 16;

/// The context's size before a model call, and what follows from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    /// The context's size in tokens, as far as the provider's reports are believed.
    pub tokens: u64,
    /// The context's size by our own count alone, in estimated tokens: what a report is judged by.
    pub counted: u64,
    /// The model's window in tokens; `None` where nothing knows it.
    pub window: Option<u64>,
    /// Whether the window was assumed, or read out of an error: a larger request may be taken all the same.
    pub is_window_guessed: bool,
    /// Whether the trigger is reached, and a compaction may begin by itself.
    pub is_due: bool,
    /// Whether the next request could not be sent as it is, with room for an answer.
    pub at_window: bool,
    /// The budget that is used up: which one, and how large it was.
    pub over_budget: Option<String>,
}

/// By what a context is measured: its window, the settings, the budget and what holds compactions back.
#[derive(Debug, Clone)]
pub struct ContextLimits {
    /// The model's window.
    pub window: Window,
    /// The settings of compaction.
    pub settings: Arc<CompactionSettings>,
    /// The output limit that requests carry, in tokens, if they carry one.
    pub output_tokens_max: Option<u64>,
    /// What the session and the run in progress may cost.
    pub cost: CostLimits,
    /// Whether it is a sub-agent's context: nothing compacts before the provider refuses.
    pub is_sub_agent: bool,
    /// Whether automatic compactions kept failing: nothing compacts before the window is full.
    pub is_paused: bool,
    /// Whether a compaction was undone: nothing compacts before the window is full, the reserve apart.
    pub only_at_window: bool,
}

impl ContextLimits {
    /// The context, in tokens, at which the next request could not be sent with room for an answer; `None` where
    /// nothing knows the window.
    pub fn full_at(&self) -> Option<u64> {
        let window = self.window.tokens?;
        let answer = self.output_tokens_max.unwrap_or(OUTPUT_TOKENS_ASSUMED).min(answer_room_max(window));
        Some(window.saturating_sub(answer))
    }

    /// What a context of `tokens` tokens means, which by our own count alone has `counted`, in a session that has cost
    /// `cost_microdollars` so far.
    pub fn size(&self, tokens: u64, counted: u64, cost_microdollars: u64) -> Size {
        let window = self.window.tokens;
        let at_window = self.full_at().is_some_and(|full| tokens >= full);
        let trigger = window.and_then(|window| {
            if self.only_at_window {
                return Some(window.saturating_sub(self.settings.reserve(window)));
            }
            self.settings.trigger_tokens(window)
        });
        // At the window a pause must not hold it back: the truncate fallback needs no model.
        let may = self.settings.enabled && !self.is_sub_agent && (at_window || !self.is_paused);
        let is_due = may && trigger.is_some_and(|trigger| tokens >= trigger);
        let over_budget = self.cost.used_up(cost_microdollars);
        let is_window_guessed = matches!(
            self.window.source,
            WindowSource::Learned | WindowSource::Assumed | WindowSource::Trained
        );
        Size { tokens, counted, window, is_window_guessed, is_due, at_window, over_budget }
    }
}

/// Whether a compaction begins now for this reason, in a context of this size.
///
/// `has_news` says whether a message was recorded since the last compaction ended.
pub fn is_due(trigger: Trigger, size: &Size, has_news: bool) -> bool {
    match trigger {
        // One that was not enough must not be followed by the next at once.
        Trigger::Threshold => size.is_due && has_news,
        Trigger::ModelSwitch => size.is_due,
        Trigger::Overflow | Trigger::Manual | Trigger::Hook | Trigger::Branch => true,
    }
}

/// The most that is kept free for one answer in this window, in tokens.
pub(crate) fn answer_room_max(window: u64) -> u64 {
    window / ANSWER_SHARE
}
