//! Pauses between attempts.
//!
//! Invariants: pauses double from 20 ms to 1 s, and each is shortened by up to half at random, so that nodes that lost the
//! same server do not come back in step.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

pub(crate) struct Backoff {
    pause: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { pause: FIRST }
    }

    /// Waits before the next attempt. Returns false, at once, if there is no time for one.
    pub(crate) async fn wait(&mut self, until: Instant) -> bool {
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
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        for (at, pause) in (0..).zip(&pauses) {
            let whole = (FIRST * (1 << at)).min(LONGEST);
            assert!((whole / 2..=whole).contains(pause), "pause {at} is {pause:?}");
        }
        let longest: std::collections::BTreeSet<_> = pauses[6..].iter().collect();
        assert!(longest.len() > 1, "they are random: {pauses:?}");
    }
}
