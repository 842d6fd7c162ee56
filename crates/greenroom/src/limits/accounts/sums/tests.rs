//! Sums by hour and day, against a plain list of what was spent.

use super::*;

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;
/// The beginning of a day.
const BEGIN: u64 = 19_000 * DAY;

fn tally(cost_microdollars: u64) -> Tally {
    Tally { cost_microdollars, calls: 1, ..Tally::default() }
}

fn costs(sums: &Sums, period: Period, count: u64, now_ms: u64) -> Vec<(u64, u64)> {
    let from = |at: u64| (at - BEGIN) / period.ms();
    sums.last(period, count, now_ms).iter().map(|(at, tally)| (from(*at), tally.cost_microdollars)).collect()
}

#[test]
fn hours_and_days_are_summed_up() {
    let mut sums = Sums::default();
    for (hour, cost) in [(0, 1), (0, 2), (5, 4), (23, 8), (24, 16), (50, 32)] {
        sums.add(&tally(cost), BEGIN + hour * HOUR + 1, BEGIN + hour * HOUR + 1);
    }
    let now = BEGIN + 50 * HOUR + 2;
    assert_eq!(costs(&sums, Period::Hour, 48, now), [(5, 4), (23, 8), (24, 16), (50, 32)]);
    assert_eq!(costs(&sums, Period::Hour, 1, now), [(50, 32)]);
    assert_eq!(costs(&sums, Period::Day, 3, now), [(0, 15), (1, 16), (2, 32)]);
    // What comes late counts for its own day.
    assert!(sums.add(&tally(64), BEGIN + 24 * HOUR, now));
    assert_eq!(costs(&sums, Period::Day, 2, now), [(1, 80), (2, 32)]);
    assert!(!sums.is_expired(now + 399 * DAY) && sums.is_expired(now + 401 * DAY));
}

/// A clock that is years ahead, or was not set, for one addition: what is counted before and after stays.
#[test]
fn a_wrong_clock_displaces_nothing() {
    for wrong in [BEGIN + 800 * DAY, BEGIN + 10 * DAY, 0] {
        let mut sums = Sums::default();
        for day in 0..5 {
            sums.add(&tally(1), BEGIN + day * DAY, BEGIN + day * DAY);
        }
        sums.add(&tally(100), wrong, wrong);
        let now = BEGIN + 4 * DAY + HOUR;
        for cost in [2, 4] {
            sums.add(&tally(cost), now, now);
            let (hours, days) = sums.stored();
            sums = Sums::new(&hours, &days);
        }
        assert_eq!(costs(&sums, Period::Day, 9, now), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 7)], "{wrong}");
        let later = now + DAY;
        sums.add(&tally(8), later, later);
        assert_eq!(costs(&sums, Period::Day, 2, later), [(4, 7), (5, 8)], "{wrong}");
    }
}

/// Random amounts at random times, up to two days late, with pauses of up to three weeks, and stored now and then.
#[test]
fn random_amounts_are_counted_once() {
    let (mut late, mut checked) = (0, 0);
    for seed in 1..=40_u64 {
        let mut random = seed;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (mut sums, mut all, mut now) = (Sums::default(), Vec::new(), BEGIN + 5 * DAY);
        for _ in 0..300 {
            now += match draw(50) {
                0 => draw(21 * DAY),
                1..10 => draw(10 * HOUR),
                _ => draw(HOUR / 2),
            };
            // Late by at most a day and a half: hours are kept long enough.
            let behind = if draw(4) == 0 { draw(36 * HOUR) } else { 0 };
            late += u64::from(behind > DAY);
            let (cost, at) = (draw(1_000), now - behind);
            sums.add(&tally(cost), at, now);
            all.push((at, cost));
            if draw(10) == 0 {
                let (hours, days) = sums.stored();
                sums = Sums::new(&hours, &days);
            }
            for (period, count) in [(Period::Hour, 48), (Period::Day, DAYS)] {
                let (newest, mut expected) = (now / period.ms(), BTreeMap::new());
                for (at, cost) in &all {
                    let number = at / period.ms();
                    if number + count > newest {
                        *expected.entry(number * period.ms()).or_insert(0) += cost;
                    }
                }
                let sums: BTreeMap<u64, u64> = sums
                    .last(period, count, now)
                    .iter()
                    .map(|(at, sum)| (*at, sum.cost_microdollars))
                    .collect();
                assert_eq!(sums, expected, "seed {seed}, {period:?}");
                checked += 1;
            }
        }
    }
    assert!(late > 300 && checked == 24_000, "{late} {checked}");
}
