//! The number of restarts, and the waits before them.

use super::*;

/// Checks the waits before the restarts after crashes at these times, in milliseconds; `None` means no
/// restart.
#[track_caller]
fn check(deaths: &[(u64, Option<u64>)]) {
    let (began, mut restarts) = (Instant::now(), Restarts::default());
    for (at_ms, wait_ms) in deaths {
        let allowed = restarts.allow(began + Duration::from_millis(*at_ms)).then(|| restarts.wait());
        assert_eq!(allowed, wait_ms.map(Duration::from_millis), "at {at_ms}");
    }
}

#[test]
fn the_fourth_death_within_a_minute_is_the_last() {
    check(&[(0, Some(100)), (1_000, Some(400)), (2_000, Some(1_600)), (3_000, None), (59_999, None)]);
}

#[test]
fn a_death_is_forgotten_after_a_minute() {
    check(&[(0, Some(100)), (1_000, Some(400)), (2_000, Some(1_600)), (60_000, Some(1_600)), (60_500, None)]);
    check(&[(0, Some(100)), (60_000, Some(100)), (120_000, Some(100))]);
    // A refused restart does not count.
    check(&[(0, Some(100)), (0, Some(400)), (0, Some(1_600)), (30_000, None), (60_000, Some(100))]);
}
