//! The time of day.
//!
//! Invariants: the clock advances with tokio's clock, and is paused with it; it follows changes of the
//! system's clock and the machine's sleep. A clock with a given start time follows only tokio's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Smaller differences between the clocks are normal.
const NOISE_MS: u64 = 1_000;

/// The time in Unix milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    base_ms: u64,
    since: tokio::time::Instant,
    /// When the system's time was read; `None` for a given start time.
    read: Option<Instant>,
}

impl Clock {
    /// Creates a clock of the system's time, or, for reproducible runs, one that starts at `base_ms`.
    pub(crate) fn new(base_ms: Option<u64>) -> Self {
        let read = base_ms.is_none().then(Instant::now);
        Self { base_ms: base_ms.unwrap_or_else(system_ms), since: tokio::time::Instant::now(), read }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let now_ms = self.base_ms.saturating_add(millis(self.since.elapsed()));
        let Some(read) = self.read else { return now_ms };
        let system_ms = system_ms();
        // Reading clocks takes time: whether the system's was set is asked only if the two differ.
        if system_ms.abs_diff(now_ms) < NOISE_MS {
            return now_ms;
        }
        now_ms.saturating_add_signed(set_by_ms(self.base_ms, read.elapsed(), system_ms))
    }
}

/// Returns by how many milliseconds the system's clock was changed, or the machine slept, since it read
/// `base_ms`, given that this process counted `running`.
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
