//! How long a host without clients stays up.
//!
//! Invariants: time counts only while no work is in progress; a host whose first client has not connected yet stays for
//! a while.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// How often a host without clients checks for work in progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The minimum time for which a host waits for its first client.
const FIRST_CLIENT_WITHIN: Duration = Duration::from_secs(10);

/// A host without clients.
#[derive(Debug)]
pub(super) struct Unused {
    /// How long it stays up.
    after: Duration,
    /// How long no work was in progress.
    idle: Duration,
}

impl Unused {
    /// Creates one that stays up for this long.
    pub(super) fn new(after: Duration, had_clients: bool) -> Self {
        let after = if had_clients { after } else { after.max(FIRST_CLIENT_WITHIN) };
        Self { after, idle: Duration::ZERO }
    }

    /// The time until the next check; `None` if the host is to exit.
    pub(super) fn look(&mut self, is_working: bool) -> Option<Duration> {
        if is_working {
            self.idle = Duration::ZERO;
            return Some(LOOK_EVERY);
        }
        let left = self.after.checked_sub(self.idle).filter(|left| !left.is_zero())?;
        Some(LOOK_EVERY.min(left))
    }

    /// The time is up.
    pub(super) fn passed(&mut self, pause: Duration) {
        self.idle += pause;
    }
}
