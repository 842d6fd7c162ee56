//! How long a host that nobody is connected to goes on.
//!
//! Invariants: time counts only while nothing is at work; a host whose first client is still to come stays for a while.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// How often a host without clients looks whether something is at work.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a host that nobody has connected to yet stays at least.
const FIRST_CLIENT_WITHIN: Duration = Duration::from_secs(10);

/// A host without clients.
#[derive(Debug)]
pub(super) struct Unused {
    /// How long it stays.
    after: Duration,
    /// How long nothing was at work.
    idle: Duration,
}

impl Unused {
    /// One that stays for so long.
    pub(super) fn new(after: Duration, had_clients: bool) -> Self {
        let after = if had_clients { after } else { after.max(FIRST_CLIENT_WITHIN) };
        Self { after, idle: Duration::ZERO }
    }

    /// How long it is until the next look; `None` where the host is to end.
    pub(super) fn look(&mut self, is_working: bool) -> Option<Duration> {
        if is_working {
            self.idle = Duration::ZERO;
            return Some(LOOK_EVERY);
        }
        let left = self.after.checked_sub(self.idle).filter(|left| !left.is_zero())?;
        Some(LOOK_EVERY.min(left))
    }

    /// Nobody came for so long.
    pub(super) fn passed(&mut self, pause: Duration) {
        self.idle += pause;
    }
}
