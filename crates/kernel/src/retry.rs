//! When a failed model call is retried, and when it is given up: one rule for runs and for summaries.
//!
//! Invariants: each wait is longer than the last or at its limit; waits for a server that is loading its
//! model are not counted as retries, and never exceed their own limit.

use crate::due::OUTPUT_TOKENS_ASSUMED;
use crate::failure::{Failure, FailureClass};

#[cfg(test)]
mod tests;

/// The first wait before a retry, in milliseconds.
const BACKOFF_MS: u64 = 500;
/// The longest wait before a retry, whatever the provider requests, in milliseconds.
pub const BACKOFF_MS_MAX: u64 = 60_000;
/// The first wait for a server that is loading its model, in milliseconds.
const LOADING_MS: u64 = 1_000;
/// The longest wait between two attempts at a server that is loading its model, in milliseconds.
const LOADING_MS_MAX: u64 = 10_000;

/// The minimum output that is worth requesting, in tokens.
pub(crate) const OUTPUT_TOKENS_MIN: u64 = 256;

/// Returns the output limit, in tokens, for the retry of a call that was rejected for its output limit `now`:
/// the limit named in the refusal, if that is lower; otherwise half.
pub(crate) fn lowered_output(now: Option<u64>, named: Option<u64>) -> u64 {
    let named = named.filter(|limit| now.is_none_or(|now| *limit < now));
    named.unwrap_or_else(|| now.unwrap_or(2 * OUTPUT_TOKENS_ASSUMED) / 2).max(OUTPUT_TOKENS_MIN)
}

/// The retries for one answer: used and remaining.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retries {
    retries_max: u32,
    loading_ms_max: u64,
    /// The number of retries, not counting those for a loading server.
    retries: u32,
    /// The number of attempts at a loading server.
    loading_waits: u32,
    /// The total wait for it, in milliseconds.
    loading_ms: u64,
}

/// A wait before a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The wait, in milliseconds.
    pub delay_ms: u64,
    /// The number of this retry among those of its kind, from 1.
    pub attempt: u32,
}

impl Retries {
    /// Allows this many retries for each answer, and this long a wait for a server that is loading its model.
    pub fn new(retries_max: u32, loading_ms_max: u64) -> Self {
        Self { retries_max, loading_ms_max, retries: 0, loading_waits: 0, loading_ms: 0 }
    }

    /// Restores all retries: an answer arrived, or the request has changed.
    pub fn renew(&mut self) {
        *self = Self::new(self.retries_max, self.loading_ms_max);
    }

    /// Returns the wait after this failure; `None` if the call is given up. `jitter` is a number in 0..1000
    /// that spreads waits, so that many sessions do not retry at once.
    pub fn next(&mut self, failure: &Failure, jitter: u64) -> Option<Retry> {
        // The limit comes first: a server may ask for any number.
        let asked = failure.retry_after_ms.unwrap_or(0).min(BACKOFF_MS_MAX);
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
        // A server that asks for a shorter wait than ours, or for none, would get all retries at once.
        let wait = asked.max(BACKOFF_MS << self.retries.min(10)).min(BACKOFF_MS_MAX);
        self.retries += 1;
        Some(Retry { delay_ms: spread(wait, BACKOFF_MS_MAX), attempt: self.retries })
    }
}
