//! Tokens per minute: how long a call waits so that a provider's limit is not exceeded.
//!
//! Invariants: calls start in the order of their reservations; unused reservations are returned; a call
//! larger than a whole minute's tokens starts when no other tokens count any more.

use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// A provider's limit of input and output tokens per minute. Tokens are used at once and are returned evenly.
#[derive(Debug)]
pub(super) struct TokenBudget {
    per_minute: u64,
    /// The tokens that count at time `at`; more than a minute's tokens while calls wait.
    used: f64,
    at: Instant,
}

impl TokenBudget {
    pub(super) fn new(per_minute: u64, now: Instant) -> Self {
        Self { per_minute, used: 0.0, at: now }
    }

    /// Reserves tokens for a call. Returns how long the call must wait.
    pub(super) fn reserve(&mut self, tokens: u64, now: Instant) -> Duration {
        self.advance(now);
        let (limit, tokens) = (as_f64(self.per_minute), as_f64(tokens));
        let over = self.used + tokens.min(limit) - limit;
        self.used += tokens;
        Duration::from_secs_f64((over / self.rate()).max(0.0))
    }

    /// Replaces a call's reservation by the tokens it used.
    pub(super) fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.advance(now);
        self.used = (self.used + as_f64(used) - as_f64(reserved)).max(0.0);
    }

    /// The refill rate, in tokens per second.
    fn rate(&self) -> f64 {
        as_f64(self.per_minute) / 60.0
    }

    fn advance(&mut self, now: Instant) {
        self.used = (self.used - now.duration_since(self.at).as_secs_f64() * self.rate()).max(0.0);
        self.at = now;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of tokens")]
fn as_f64(tokens: u64) -> f64 {
    tokens as f64
}
