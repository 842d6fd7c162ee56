//! What a session has spent.
//!
//! Invariants: a bill only grows.

use greenroom_kernel::{Head, Usage};

/// What a session has spent so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bill {
    pub(crate) usage: Usage,
    /// In micro-dollars, as far as prices are known.
    pub(crate) cost_microdollars: u64,
}

impl Bill {
    /// What a session with this head has spent: its answers, its summaries, and what others spent for it.
    pub(crate) fn of(head: &Head) -> Self {
        Self { usage: head.total_usage, cost_microdollars: head.cost_microdollars }
    }

    /// What was added to an earlier one.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            usage: self.usage.since(&before.usage),
            cost_microdollars: self.cost_microdollars.saturating_sub(before.cost_microdollars),
        }
    }
}
