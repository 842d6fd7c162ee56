//! Limits in dollars over time, and invalid amounts.

use super::window::Window;
use super::*;

const MINUTE: u64 = 60_000;
const NOW: u64 = 1_700_000_000_000;

#[test]
fn dollars_that_are_no_sum_are_refused() {
    for (usd, expect) in [(0.0, Some(0)), (0.5, Some(500_000)), (1e-7, Some(0)), (1e30, Some(u64::MAX))] {
        assert_eq!(microdollars(usd).ok(), expect, "{usd}");
    }
    for usd in [-0.01, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(matches!(microdollars(usd), Err(ConfigError::CostLimit { .. })), "{usd}");
    }
}

/// Adds amounts, each at a minute, and checks whether the limit is used up at other minutes, also after it was stored.
#[track_caller]
fn check(limit: u64, period: Period, amounts: &[(u64, u64)], used_up: &[(u64, bool)]) {
    let mut window = Window::new(limit, period, Default::default());
    amounts.iter().for_each(|(amount, minute)| window.add(*amount, NOW + minute * MINUTE));
    let text = serde_json::to_string(&window.stored()).expect("it can be written");
    let restored = Window::new(limit, period, serde_json::from_str(&text).expect("it can be read"));
    assert_eq!(restored, window, "{text}");
    for (minute, expected) in used_up {
        assert_eq!(restored.is_used_up(NOW + minute * MINUTE), *expected, "minute {minute}");
    }
}

#[test]
fn what_was_spent_leaves_the_period() {
    check(1_000, Period::Hour, &[], &[(0, false)]);
    check(1_000, Period::Hour, &[(600, 0), (399, 10)], &[(10, false)]);
    let hour = [(600, 0), (399, 10), (1, 20)];
    check(1_000, Period::Hour, &hour, &[(20, true), (59, true), (61, false), (2_000_000_000, false)]);
    let day = [(999, 60), (999, 120), (999, 180), (999, 240), (999, 300), (5, 360)];
    check(5_000, Period::Day, &day, &[(360, true), (60 + 23 * 60, true), (60 + 25 * 60, false)]);
    // The clock was set back.
    check(1_000, Period::Hour, &[(1, 600), (999, 0)], &[(600, true)]);
    // A limit of 0 allows nothing.
    check(0, Period::Day, &[], &[(0, true)]);
}

/// What was recorded by a clock that was ahead counts as spent when the clock is right again, and not for years.
#[test]
fn a_limit_survives_a_clock_that_was_ahead() {
    let now = 1_800_000_000_000;
    let ahead = now + 800 * 24 * 60 * MINUTE;
    for (wrong, unset) in [(ahead, false), (ahead, true)] {
        let mut window = Window::new(1_000, Period::Day, Default::default());
        window.add(1_000, wrong);
        if unset {
            // A clock that starts in 1970 is not followed.
            window.follow_clock(5 * MINUTE);
            assert!(window.is_used_up(wrong));
        }
        window.follow_clock(now);
        assert!(window.is_used_up(now) && !window.is_used_up(now + 25 * 60 * MINUTE));
    }
    // An hour ahead is within the period.
    let mut window = Window::new(1_000, Period::Day, Default::default());
    window.add(1_000, now + 60 * MINUTE);
    let before = window.clone();
    window.follow_clock(now);
    assert_eq!(window, before);
}

#[test]
fn a_used_up_limit_says_when_a_part_of_it_is_free() {
    let mut window = Window::new(1_000, Period::Hour, Default::default());
    [(600, 0), (400, 20)].iter().for_each(|(amount, minute)| window.add(*amount, NOW + minute * MINUTE));
    let said = window.reached("the label tenant=north", NOW + 20 * MINUTE);
    let expected =
        "the label tenant=north reached its cost limit of $0.001 an hour; part of it is free again within ";
    let minutes = said.strip_prefix(expected).and_then(|rest| rest.strip_suffix(" minutes"));
    let minutes: u64 = minutes.and_then(|minutes| minutes.parse().ok()).expect("a number of minutes");
    assert!((39..=41).contains(&minutes), "{said}");
    assert_eq!(window.left(NOW + 61 * MINUTE), 600);
}

/// Checks what is said of a limit at minutes after something was spent, or not.
#[track_caller]
fn check_said(limit: u64, period: Period, spent: u64, said: &[(u64, &str)]) {
    // The beginning of a part of any period.
    let now = NOW - NOW % Period::Day.ms();
    let mut window = Window::new(limit, period, Default::default());
    window.add(spent, now);
    for (minute, expected) in said {
        assert_eq!(window.reached("the runtime", now + minute * MINUTE), *expected, "minute {minute}");
    }
}

#[test]
fn a_limit_that_no_call_fits_promises_nothing() {
    let nothing = "the runtime has a cost limit of $0.00 an hour, which is below the cost of one call";
    check_said(0, Period::Hour, 0, &[(0, nothing), (90, nothing)]);
    let small = "the runtime has a cost limit of $0.0001 a day, which is below the cost of one call";
    // What was spent has left the period.
    check_said(100, Period::Day, 0, &[(0, small)]);
    check_said(100, Period::Day, 100, &[(3_000, small)]);
    let reached = "the runtime reached its cost limit of $0.0001 a day; part of it is free again within ";
    for (minute, expected) in [
        (0, "24 hours"),
        (23, "23 hours 37 minutes"),
        (1_376, "1 hour 4 minutes"),
        (1_380, "1 hour"),
        (1_439, "1 minute"),
    ] {
        check_said(100, Period::Day, 100, &[(minute, &format!("{reached}{expected}"))]);
    }
}

#[test]
fn a_damaged_form_counts_what_can_be_read() {
    let spent = |text: &str| serde_json::from_str(text).expect("it can be read");
    assert!(!Window::new(10, Period::Hour, spent("[0, []]")).is_used_up(NOW));
    let long = format!("[{}, {:?}]", NOW / MINUTE, vec![1; 200]);
    assert_eq!(Window::new(1_000, Period::Hour, spent(&long)).left(NOW), 940);
}
