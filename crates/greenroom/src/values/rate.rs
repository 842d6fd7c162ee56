//! Amounts per minute: how long something waits so that a limit per minute is not exceeded.
//!
//! Invariants: waits are in the order of their reservations; unused reservations are returned; an amount larger than a whole
//! minute's starts when nothing else counts any more.

use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// A limit per minute, of tokens or messages. An amount is used at once and is returned evenly.
#[derive(Debug)]
pub(crate) struct Rate {
    /// The limit of all nodes together.
    total: u64,
    /// The part of this node.
    per_minute: u64,
    /// The amount that counts at time `at`; more than a minute's while calls wait.
    used: f64,
    at: Instant,
}

impl Rate {
    pub(crate) fn new(per_minute: u64, now: Instant) -> Self {
        Self { total: per_minute, per_minute, used: 0.0, at: now }
    }

    /// Divides the limit by the number of nodes that share it.
    pub(crate) fn divide(&mut self, nodes: u64, now: Instant) {
        self.advance(now);
        self.per_minute = (self.total / nodes.max(1)).max(1);
    }

    /// Reserves an amount. Returns how long its use must wait.
    pub(crate) fn reserve(&mut self, amount: u64, now: Instant) -> Duration {
        self.advance(now);
        let wait = self.wait(amount);
        self.used += as_f64(amount);
        wait
    }

    /// Uses an amount now.
    ///
    /// # Errors
    /// How long to wait before there is room for it. Then nothing is used.
    pub(crate) fn take(&mut self, amount: u64, now: Instant) -> Result<(), Duration> {
        self.advance(now);
        match self.wait(amount) {
            Duration::ZERO => {
                self.used += as_f64(amount);
                Ok(())
            }
            wait => Err(wait),
        }
    }

    /// Replaces a reservation by the amount that was used.
    pub(crate) fn settle(&mut self, reserved: u64, used: u64, now: Instant) {
        self.advance(now);
        self.used = (self.used + as_f64(used) - as_f64(reserved)).max(0.0);
    }

    fn wait(&self, amount: u64) -> Duration {
        let limit = as_f64(self.per_minute);
        let over = self.used + as_f64(amount).min(limit) - limit;
        Duration::from_secs_f64((over / self.rate()).max(0.0))
    }

    /// The refill rate, per second.
    fn rate(&self) -> f64 {
        as_f64(self.per_minute) / 60.0
    }

    fn advance(&mut self, now: Instant) {
        self.used = (self.used - now.duration_since(self.at).as_secs_f64() * self.rate()).max(0.0);
        self.at = now;
    }
}

#[expect(clippy::cast_precision_loss, reason = "an amount per minute")]
fn as_f64(amount: u64) -> f64 {
    amount as f64
}
