//! The time of day.
//!
//! Invariants: it goes on with tokio's clock, and stands still while that one is paused; where the system's clock was set
//! meanwhile, or the machine slept, it follows; from a given time on it follows nothing but tokio's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What clocks differ by all the time.
const NOISE_MS: u64 = 1_000;

/// The time in unix milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    base_ms: u64,
    since: tokio::time::Instant,
    /// When the system's time was read; `None` where the time is another.
    read: Option<Instant>,
}

impl Clock {
    /// The system's time; or, for repeatable runs, time that begins at `base_ms`.
    pub(crate) fn new(base_ms: Option<u64>) -> Self {
        let read = base_ms.is_none().then(Instant::now);
        Self { base_ms: base_ms.unwrap_or_else(system_ms), since: tokio::time::Instant::now(), read }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let now_ms = self.base_ms.saturating_add(millis(self.since.elapsed()));
        let set = self.read.map_or(0, |read| set_by_ms(self.base_ms, read.elapsed(), system_ms()));
        now_ms.saturating_add_signed(set)
    }
}

/// By how many milliseconds the system's clock was set, or the machine slept, since it said `base_ms`, while this process
/// counted `running`.
fn set_by_ms(base_ms: u64, running: Duration, system_ms: u64) -> i64 {
    let expected_ms = base_ms.saturating_add(millis(running));
    if system_ms.abs_diff(expected_ms) < NOISE_MS {
        return 0;
    }
    let by = i128::from(system_ms) - i128::from(expected_ms);
    i64::try_from(by).unwrap_or_default()
}

fn system_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
