//! When a failed model call is tried again, and when it is given up: one rule for runs and for summaries.
//!
//! Invariants: each wait is longer than the last or at its limit; a server that loads its model is waited for without
//! a retry being counted, and never longer than its own limit allows.

use crate::due::OUTPUT_TOKENS_ASSUMED;
use crate::failure::{Failure, FailureClass};

#[cfg(test)]
mod tests;

/// The first wait before a failed call is tried again, in milliseconds.
const BACKOFF_MS: u64 = 500;
/// The longest wait before a failed call is tried again, whatever the provider asks for, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 60_000;
/// The first wait for a server that loads its model, in milliseconds.
const LOADING_MS: u64 = 1_000;
/// The longest wait between two questions to a server that loads its model, in milliseconds.
const LOADING_MS_MAX: u64 = 10_000;

/// The least output that is worth asking for, in tokens.
pub(crate) const OUTPUT_TOKENS_MIN: u64 = 256;

/// The output limit, in tokens, with which a call is made again that was refused for its output limit `now`: what the
/// refusal names, if that is less; else half.
pub(crate) fn lowered_output(now: Option<u64>, named: Option<u64>) -> u64 {
    let named = named.filter(|limit| now.is_none_or(|now| *limit < now));
    named.unwrap_or_else(|| now.unwrap_or(2 * OUTPUT_TOKENS_ASSUMED) / 2).max(OUTPUT_TOKENS_MIN)
}

/// What was tried for one answer, and what still may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    retries_max: u32,
    loading_ms_max: u64,
    /// How often the call was tried again, a loading server aside.
    retries: u32,
    /// How often a loading server was asked again.
    loading_waits: u32,
    /// How long it was waited for, in milliseconds.
    loading_ms: u64,
}

/// A wait, after which the call is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How long to wait, in milliseconds.
    pub delay_ms: u64,
    /// The number of this retry among those of its kind, from 1.
    pub attempt: u32,
}

impl Retries {
    /// Allows so many retries for each answer, and to wait so long for a server that loads its model.
    pub fn new(retries_max: u32, loading_ms_max: u64) -> Self {
        Self { retries_max, loading_ms_max, retries: 0, loading_waits: 0, loading_ms: 0 }
    }

    /// Allows all retries again: an answer came, or another request is made than the one that had them.
    pub fn renew(&mut self) {
        *self = Self::new(self.retries_max, self.loading_ms_max);
    }

    /// The wait after this failure; `None` where the call is given up. `jitter` is a number in 0..1000 by which waits
    /// differ, so that many sessions do not come back at once.
    pub fn next(&mut self, failure: &Failure, jitter: u64) -> Option<Retry> {
        let asked = failure.retry_after_ms.unwrap_or(0);
        // Up to a quarter more.
        let spread = |wait: u64, max: u64| (wait + wait * jitter.min(1000) / 4000).min(max);
        if failure.class == FailureClass::Loading {
            let left = self.loading_ms_max.saturating_sub(self.loading_ms);
            if left == 0 {
                return None;
            }
            let wait = (LOADING_MS << self.loading_waits.min(10)).min(LOADING_MS_MAX).max(asked);
            let delay_ms = spread(wait, BACKOFF_MS_MAX).min(left);
            self.loading_ms += delay_ms;
            self.loading_waits += 1;
            return Some(Retry { delay_ms, attempt: self.loading_waits });
        }
        if self.retries >= self.retries_max {
            return None;
        }
        // A server that asks for less than our own wait, or for none, would have all retries at once.
        let wait = asked.max(BACKOFF_MS << self.retries.min(10)).min(BACKOFF_MS_MAX);
        self.retries += 1;
        Some(Retry { delay_ms: spread(wait, BACKOFF_MS_MAX), attempt: self.retries })
    }
}
