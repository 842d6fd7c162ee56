//! Repeated attempts, and the pauses between them.
//!
//! Invariants: an attempt follows another one only if patience lasts. What ends without success is in doubt if one of the
//! attempts may have succeeded. Pauses double from 20 ms to 1 s, and each is shortened by up to half at random, so that nodes that lost the
//! same server do not come back in step.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use greenroom_store::StoreError;

use crate::link::Fault;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// The attempts to do something, until its outcome is known or patience has run out.
pub(crate) struct Attempts {
    until: Instant,
    backoff: Backoff,
    /// Whether one of them may have succeeded.
    pub(crate) is_in_doubt: bool,
}

impl Attempts {
    pub(crate) fn new(until: Instant) -> Self {
        Self { until, backoff: Backoff::new(), is_in_doubt: false }
    }

    /// Waits before the next attempt, after one that failed in this way.
    ///
    /// # Errors
    /// If there is none: `Unsuitable` after a refusal for good, or `InDoubt` or `Unavailable` after the last attempt.
    pub(crate) async fn after(&mut self, fault: Fault) -> Result<(), StoreError> {
        let detail = match fault {
            Fault::Refused(detail) | Fault::Taken(detail) => {
                return Err(StoreError::Unsuitable { detail });
            }
            Fault::Unsent(detail) | Fault::Later(detail) => detail,
            Fault::Unanswered(detail) => {
                self.is_in_doubt = true;
                detail
            }
        };
        match (self.backoff.wait(self.until).await, self.is_in_doubt) {
            (true, _) => Ok(()),
            (false, true) => Err(StoreError::InDoubt { detail }),
            (false, false) => Err(StoreError::Unavailable { detail }),
        }
    }
}

pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: FIRST }
    }

    /// Waits before the next attempt. Returns false, at once, if there is no time for one.
    async fn wait(&mut self, until: Instant) -> bool {
        let pause = self.next();
        if Instant::now() + pause >= until {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }

    /// Returns the length of the next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let whole = self.pause;
        self.pause = (whole * 2).min(LONGEST);
        let share = u32::try_from(random() % 1_024).unwrap_or(0);
        whole - whole / 2_048 * share
    }
}

/// Returns a random number. It decides nothing that must not be guessed.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

#[cfg(test)]
mod tests;
