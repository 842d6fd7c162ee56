//! Tokens a minute: how long a call waits so that a provider's limit is not exceeded.
//!
//! Invariants: calls begin in the order in which they reserve; what was reserved and not used is given back; a call that
//! is larger than a whole minute's tokens begins when nothing else counts any more.

use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// What one provider may be sent, and gives back, in a minute. It is used up at once and comes back evenly.
#[derive(Debug)]
pub(super) struct TokenBudget {
    per_minute: u64,
    /// The tokens that count at `at`: more than a minute's where calls wait.
    used: f64,
    at: Instant,
}

impl TokenBudget {
    pub(super) fn new(per_minute: u64, now: Instant) -> Self {
        Self { per_minute, used: 0.0, at: now }
    }

    /// Reserves tokens for a call. Gives how long it has to wait first.
    pub(super) fn reserve(&mut self, tokens: u64, now: Instant) -> Duration {
        self.advance(now);
        let (limit, tokens) = (as_f64(self.per_minute), as_f64(tokens));
        let over = self.used + tokens.min(limit) - limit;
        self.used += tokens;
        Duration::from_secs_f64((over / self.rate()).max(0.0))
    }

    /// A call that had reserved tokens used so many.
    pub(super) fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.advance(now);
        self.used = (self.used + as_f64(used) - as_f64(reserved)).max(0.0);
    }

    /// Tokens a second.
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
