//! The spending of one label value by hour and by day, in UTC.
//!
//! Invariants: the hours of the last three days are kept, and 400 days. A day whose hours are all kept is their sum, so
//! that what is counted late is counted once. How much is kept is a number of hours and days with spending, and not an age,
//! so that a clock that was ahead once leaves the sums of the true time in place.

use std::collections::BTreeMap;

use greenroom_kernel::Usage;
use greenroom_kernel::bill::Tally;
use serde::{Deserialize, Serialize};

use crate::limits::spending::Period;

#[cfg(test)]
mod tests;

/// How many hours are kept.
const HOURS: u64 = 72;
/// How many days are kept.
pub(crate) const DAYS: u64 = 400;
const HOURS_OF_DAY: u64 = 24;

/// Sums by hour and by day, each counted from 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    hours: BTreeMap<u64, Tally>,
    days: BTreeMap<u64, Tally>,
}

/// The stored form of sums by number. It is an array, because there are many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rows(Vec<[u64; 11]>);

impl Sums {
    pub(crate) fn new(hours: &Rows, days: &Rows) -> Self {
        Self { hours: hours.read(), days: days.read() }
    }

    /// The stored forms of the hours and the days.
    pub(crate) fn stored(&self) -> (Rows, Rows) {
        (Rows::of(&self.hours), Rows::of(&self.days))
    }

    /// Adds what was spent at a time. Returns whether a day before the newest one has changed, or a day has ended.
    pub(crate) fn add(&mut self, tally: &Tally, at_ms: u64, now_ms: u64) -> bool {
        let hour = at_ms / Period::Hour.ms();
        self.hours.entry(hour).or_default().add(tally);
        // Later hours are those of a clock that was ahead.
        let now = hour.max(now_ms / Period::Hour.ms());
        let newest = self.hours.range(..=now).next_back().map_or(hour, |(newest, _)| *newest);
        let mut has_changed = false;
        // Before their hours are forgotten.
        for (day, sum) in self.ended(newest) {
            has_changed |= self.days.insert(day, sum) != Some(sum);
        }
        keep(&mut self.hours, newest, HOURS);
        keep(&mut self.days, newest / HOURS_OF_DAY, DAYS);
        has_changed
    }

    /// Returns the days before that of the newest hour whose hours are all kept.
    fn ended(&self, newest: u64) -> Vec<(u64, Tally)> {
        let today = newest / HOURS_OF_DAY;
        let mut days: BTreeMap<u64, Tally> = BTreeMap::new();
        for (hour, tally) in &self.hours {
            days.entry(hour / HOURS_OF_DAY).or_default().add(tally);
        }
        let kept_from = newest.saturating_sub(HOURS - 1);
        // Hours of a day that the last addition pushes out were complete until then.
        let is_whole =
            |day: u64| day < today && (day * HOURS_OF_DAY >= kept_from || !self.days.contains_key(&day));
        days.into_iter().filter(|(day, _)| is_whole(*day)).collect()
    }

    /// Returns the sums of the last `count` hours or days, the current one included, oldest first, each with the time
    /// of its beginning in Unix milliseconds. Those without spending are left out.
    pub(crate) fn last(&self, period: Period, count: u64, now_ms: u64) -> Vec<(u64, Tally)> {
        let now = now_ms / period.ms();
        let from = now.saturating_sub(count.saturating_sub(1));
        let all = match period {
            Period::Hour => self.hours.clone(),
            Period::Day => {
                let mut days = self.days.clone();
                let mut open: BTreeMap<u64, Tally> = BTreeMap::new();
                for (hour, tally) in &self.hours {
                    open.entry(hour / HOURS_OF_DAY).or_default().add(tally);
                }
                open.into_iter().for_each(|(day, tally)| match day < now {
                    true => _ = days.entry(day).or_insert(tally),
                    false => _ = days.insert(day, tally),
                });
                days
            }
        };
        all.range(from..=now).map(|(number, tally)| (number * period.ms(), *tally)).collect()
    }

    /// Whether nothing in it is as new as [`DAYS`] days.
    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.last(Period::Day, DAYS, now_ms).is_empty()
    }
}

/// Keeps the last `count` sums up to the newest, and as many after it.
fn keep(sums: &mut BTreeMap<u64, Tally>, newest: u64, count: u64) {
    while sums.range(..=newest).count() as u64 > count {
        sums.pop_first();
    }
    while sums.range(newest + 1..).count() as u64 > count {
        sums.pop_last();
    }
}

impl Rows {
    fn of(sums: &BTreeMap<u64, Tally>) -> Self {
        let row = |(number, tally): (&u64, &Tally)| {
            let Tally { usage, cost_microdollars, calls, runs } = *tally;
            let Usage {
                input_tokens,
                cached_tokens,
                cache_write_tokens,
                cache_write_hour_tokens,
                output_tokens,
                reasoning_tokens,
                estimated_tokens,
            } = usage;
            [
                *number, cost_microdollars, calls, runs, input_tokens, cached_tokens, cache_write_tokens,
                cache_write_hour_tokens, output_tokens, reasoning_tokens, estimated_tokens,
            ]
        };
        Self(sums.iter().map(row).collect())
    }

    fn read(&self) -> BTreeMap<u64, Tally> {
        let sum = |row: &[u64; 11]| {
            let [
                number,
                cost_microdollars,
                calls,
                runs,
                input_tokens,
                cached_tokens,
                cache_write_tokens,
                cache_write_hour_tokens,
                output_tokens,
                reasoning_tokens,
                estimated_tokens,
            ] = *row;
            let usage = Usage {
                input_tokens,
                cached_tokens,
                cache_write_tokens,
                cache_write_hour_tokens,
                output_tokens,
                reasoning_tokens,
                estimated_tokens,
            };
            (number, Tally { usage, cost_microdollars, calls, runs })
        };
        self.0.iter().map(sum).collect()
    }
}
