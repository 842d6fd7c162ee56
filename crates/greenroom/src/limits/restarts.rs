//! The limit on restarts: 3 within 60 seconds, with growing waits.
//!
//! Invariants: pure; the time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// The maximum number of restarts within [`WITHIN`].
pub(crate) const RESTARTS_MAX: usize = 3;
/// The period over which restarts are counted.
const WITHIN: Duration = Duration::from_secs(60);
/// The wait before the first restart.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The recent restarts.
#[derive(Debug, Default)]
pub(crate) struct Restarts(VecDeque<Instant>);

impl Restarts {
    /// Whether another restart is allowed now; if so, it is counted.
    pub(crate) fn allow(&mut self, now: Instant) -> bool {
        self.0.retain(|then| now.duration_since(*then) < WITHIN);
        if self.0.len() >= RESTARTS_MAX {
            return false;
        }
        self.0.push_back(now);
        true
    }

    /// Returns the wait before the restart that was just allowed.
    pub(crate) fn wait(&self) -> Duration {
        let earlier = u32::try_from(self.0.len().saturating_sub(1)).unwrap_or(u32::MAX);
        FIRST_WAIT * 4u32.saturating_pow(earlier.min(5))
    }
}
