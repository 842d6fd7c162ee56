//! The spending within the last hour or day, compared with a limit.
//!
//! Invariants: old spending leaves the period part by part; if the clock was set back, spending is added to the newest part.
//! What was recorded by a clock that was more than a period ahead counts as spent now.

use greenroom_kernel::cost::dollars;
use serde::{Deserialize, Serialize};

use super::Period;

/// The number of parts of a period.
const PARTS: usize = 60;

/// A clock before this time, the beginning of 2026 in Unix milliseconds, was not set yet, and is not followed.
const CLOCK_SET_FROM_MS: u64 = 1_767_225_600_000;

/// The spending within one period, in parts, in micro-dollars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) period: Period,
    /// The limit.
    pub(crate) limit: u64,
    spent: Spent,
}

/// The stored form: the number of the newest part, counted from 1970, and the parts; the newest is last, and parts without
/// spending before the first one are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spent(u64, Vec<u64>);

impl Window {
    /// Creates the window of a limit, with what was stored.
    pub(crate) fn new(limit: u64, period: Period, mut spent: Spent) -> Self {
        spent.1.truncate(PARTS);
        let missing = PARTS - spent.1.len();
        spent.1.splice(0..0, std::iter::repeat_n(0, missing));
        Self { period, limit, spent }
    }

    /// The stored form.
    pub(crate) fn stored(&self) -> Spent {
        let Spent(newest, parts) = &self.spent;
        Spent(*newest, parts.iter().copied().skip_while(|part| *part == 0).collect())
    }

    /// Corrects the time of what was recorded by a clock that was ahead.
    pub(crate) fn follow_clock(&mut self, now_ms: u64) {
        let now = now_ms / self.part_ms();
        if now_ms >= CLOCK_SET_FROM_MS && self.spent.0 > now + PARTS as u64 {
            self.spent.0 = now;
        }
    }

    pub(crate) fn add(&mut self, microdollars: u64, at_ms: u64) {
        let now = at_ms / self.part_ms();
        let Spent(newest, parts) = &mut self.spent;
        let passed = usize::try_from(now.saturating_sub(*newest)).unwrap_or(PARTS).min(PARTS);
        parts.rotate_left(passed);
        parts[PARTS - passed..].fill(0);
        *newest = now.max(*newest);
        parts[PARTS - 1] = parts[PARTS - 1].saturating_add(microdollars);
    }

    /// Whether the limit is used up.
    pub(crate) fn is_used_up(&self, now_ms: u64) -> bool {
        self.sum(now_ms) >= self.limit
    }

    /// What is left of the limit, in micro-dollars.
    pub(crate) fn left(&self, now_ms: u64) -> u64 {
        self.limit.saturating_sub(self.sum(now_ms))
    }

    /// Says that `whose` limit is used up, or too low for any call.
    pub(crate) fn reached(&self, whose: &str, now_ms: u64) -> String {
        let limit = format!("cost limit of {} {}", dollars(self.limit), self.period.words());
        if self.sum(now_ms) == 0 {
            return format!("{whose} has a {limit}, which is below the cost of one call");
        }
        let minutes = self.free_in_ms(now_ms).div_ceil(60_000);
        format!("{whose} reached its {limit}; part of it is free again within {}", in_words(minutes))
    }

    fn part_ms(&self) -> u64 {
        self.period.ms() / PARTS as u64
    }

    /// Returns the spending within the period before now.
    fn sum(&self, now_ms: u64) -> u64 {
        self.counting(now_ms).iter().fold(0, |sum, part| sum.saturating_add(*part))
    }

    /// Returns the parts that count now.
    fn counting(&self, now_ms: u64) -> &[u64] {
        let passed = (now_ms / self.part_ms()).saturating_sub(self.spent.0);
        &self.spent.1[usize::try_from(passed).unwrap_or(PARTS).min(PARTS)..]
    }

    /// Returns when the oldest part that counts leaves the period.
    fn free_in_ms(&self, now_ms: u64) -> u64 {
        let until = self.counting(now_ms).iter().position(|part| *part > 0).unwrap_or(0) as u64;
        (until + 1) * self.part_ms() - now_ms % self.part_ms()
    }
}

/// Formats minutes: `23 hours 37 minutes`.
fn in_words(minutes: u64) -> String {
    let part = |count: u64, unit: &str| match count {
        0 => None,
        1 => Some(format!("1 {unit}")),
        _ => Some(format!("{count} {unit}s")),
    };
    let parts = [part(minutes / 60, "hour"), part(minutes % 60, "minute")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
