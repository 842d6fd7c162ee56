//! When a compaction is due: the one rule for all callers.
//!
//! The usage tracker keeps the numbers, [`ContextLimits::size`] converts them to a [`Size`], and [`is_due`]
//! decides whether a compaction begins: before a model call, after a run, and when the model is switched.
//!
//! Invariants: nothing compacts automatically while compaction is turned off; a requested compaction, and one
//! after an overflow, is always due; by threshold, a compaction follows another only after a new message.

use std::sync::Arc;

use crate::cost::CostLimits;
use crate::entry::Trigger;
use crate::retry::OUTPUT_TOKENS_MIN;
use crate::settings::CompactionSettings;
use crate::window::{Window, WindowSource};

#[cfg(test)]
mod tests;

/// The assumed output of one answer if a request has no limit, in tokens.
pub(crate) const OUTPUT_TOKENS_ASSUMED: u64 = 4_096;
/// The maximum share of a window that is kept free for one answer: one part in this many.
const ANSWER_SHARE: u64 = 16;

/// The context's size before a model call, and its consequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Size {
    /// The context's size in tokens, based on the provider's reports as far as they are plausible.
    pub tokens: u64,
    /// The context's size by our own count alone, in estimated tokens, against which reports are checked.
    pub counted: u64,
    /// The model's window in tokens; `None` if unknown.
    pub window: Option<u64>,
    /// Whether the window was assumed, or read from an error: a larger request may still be accepted.
    pub is_window_guessed: bool,
    /// Whether the trigger is reached and an automatic compaction may begin.
    pub is_due: bool,
    /// Whether the next request could not be sent with room for an answer.
    pub at_window: bool,
    /// Once the soft threshold is reached, and until the trigger is: the trigger, in tokens.
    pub nears: Option<u64>,
    /// Whether the estimated part is so large that the trigger may or may not be reached: a provider that counts is
    /// asked. [`Tracker::is_uncertain`](crate::usage::Tracker::is_uncertain) decides it.
    pub is_uncertain: bool,
    /// The budget that is used up: its name and size.
    pub over_budget: Option<String>,
}

impl Size {
    /// Returns the output that the window leaves beside this much input, in tokens; `None` if the window is not
    /// known, or if that is too little to be worth requesting.
    pub fn output_room(&self, input_tokens: u64) -> Option<u64> {
        let window = self.window.filter(|_| !self.is_window_guessed)?;
        window.checked_sub(input_tokens).filter(|room| *room >= OUTPUT_TOKENS_MIN)
    }
}

/// The limits of a context: its window, the settings, the budget and what prevents compactions.
#[derive(Debug, Clone)]
pub struct ContextLimits {
    /// The model's window.
    pub window: Window,
    /// The settings of compaction.
    pub settings: Arc<CompactionSettings>,
    /// The output limit of requests, in tokens, if they have one.
    pub output_tokens_max: Option<u64>,
    /// The cost limits of the session and the current run.
    pub cost: CostLimits,
    /// Whether it is a sub-agent's context: nothing compacts before the provider refuses.
    pub is_sub_agent: bool,
    /// Whether automatic compactions kept failing: nothing compacts before the window is full.
    pub is_paused: bool,
    /// Whether a compaction was undone: nothing compacts before the window is full, except for the reserve.
    pub only_at_window: bool,
}

impl ContextLimits {
    /// Returns the size of the context, in tokens, at which the next request could not be sent with room for
    /// an answer; `None` if the window is unknown.
    pub fn full_at(&self) -> Option<u64> {
        let window = self.window.tokens?;
        let answer = self.output_tokens_max.unwrap_or(OUTPUT_TOKENS_ASSUMED).min(answer_room_max(window));
        Some(window.saturating_sub(answer))
    }

    /// Returns the size of the context, in tokens, at which an automatic compaction begins; `None` if none does.
    pub fn compacts_at(&self) -> Option<u64> {
        if !self.settings.enabled || self.is_sub_agent {
            return None;
        }
        let window = self.window.tokens?;
        let trigger = if self.only_at_window {
            window.saturating_sub(self.settings.reserve(window))
        } else {
            self.settings.trigger_tokens(window)?
        };
        // At the window a pause must not prevent it: the truncate fallback needs no model.
        let paused_until = self.full_at().filter(|_| self.is_paused);
        Some(trigger.max(paused_until.unwrap_or(0)))
    }

    /// Returns the size of the context, in tokens, from which on a compaction is prepared: the soft threshold, with room
    /// to the trigger; `None` if none is.
    fn nears_at(&self) -> Option<u64> {
        let (window, trigger) = (self.window.tokens?, self.compacts_at()?);
        let is_regular = !self.is_paused && !self.only_at_window;
        is_regular.then(|| self.settings.soft_tokens(window, trigger))
    }

    /// Evaluates a context of `tokens` tokens, and of `counted` by our own count alone, in a session that has
    /// cost `cost_microdollars` so far.
    pub fn size(&self, tokens: u64, counted: u64, cost_microdollars: u64) -> Size {
        let window = self.window.tokens;
        let at_window = self.full_at().is_some_and(|full| tokens >= full);
        let is_due = self.compacts_at().is_some_and(|trigger| tokens >= trigger);
        let is_near = !is_due && self.nears_at().is_some_and(|soft| tokens >= soft);
        let over_budget = self.cost.used_up(cost_microdollars);
        let is_window_guessed = matches!(
            self.window.source,
            WindowSource::Learned | WindowSource::Assumed | WindowSource::Trained
        );
        Size {
            tokens,
            counted,
            window,
            is_window_guessed,
            is_due,
            at_window,
            nears: self.compacts_at().filter(|_| is_near),
            is_uncertain: false,
            over_budget,
        }
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
        Trigger::Overflow | Trigger::Manual | Trigger::Hook | Trigger::Branch | Trigger::HandOff => true,
        // Nothing asks for one.
        Trigger::Unknown => false,
    }
}

/// Returns the most that is kept free for one answer in this window, in tokens.
pub(crate) fn answer_room_max(window: u64) -> u64 {
    window / ANSWER_SHARE
}
