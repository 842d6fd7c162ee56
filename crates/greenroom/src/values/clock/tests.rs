//! The changes that the clock follows.

use super::*;

#[test]
fn it_follows_a_clock_that_was_set_and_a_machine_that_slept() {
    let hour = 3_600_000;
    let set = |system_ms| set_by_ms(10 * hour, Duration::from_secs(60), system_ms);
    for (system_ms, expected) in [
        (10 * hour + 60_000, 0),
        // Small adjustments of the system's clock are normal.
        (10 * hour + 60_999, 0),
        (10 * hour + 59_001, 0),
        (11 * hour + 60_000, 3_600_000),
        (9 * hour + 60_000, -3_600_000),
        (0, -36_060_000),
    ] {
        assert_eq!(set(system_ms), expected, "{system_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_with_the_paused_clock_and_from_a_given_time() {
    for clock in [Clock::new(Some(7)), Clock::new(None)] {
        let begun = clock.now_ms();
        tokio::time::advance(Duration::from_secs(100_000)).await;
        assert_eq!(clock.now_ms() - begun, 100_000_000);
    }
    assert_eq!(Clock::new(Some(7)).now_ms(), 7);
    // The clock was changed by a day in the meantime: the start time no longer agrees with the system.
    let mut clock = Clock::new(None);
    clock.base_ms -= 86_400_000;
    assert!(clock.now_ms().abs_diff(system_ms()) < 60_000);
}
