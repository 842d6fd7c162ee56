//! Limits that are used up in turn, and sums as text.

use super::*;

#[test]
fn sums_are_written_as_people_write_them() {
    for (microdollars, text) in [
        (0, "$0.00"),
        (1, "$0.000001"),
        (700, "$0.0007"),
        (9_999, "$0.009999"),
        (10_000, "$0.01"),
        (14_999, "$0.01"),
        (500_000, "$0.50"),
        (999_999, "$1.00"),
        (1_000_000, "$1.00"),
        (12_345_678, "$12.35"),
        (u64::MAX, "$18446744073709.55"),
    ] {
        assert_eq!(dollars(microdollars), text, "{microdollars}");
    }
}

#[test]
fn the_first_limit_that_is_used_up_is_named() {
    let none = CostLimits::default();
    assert_eq!((none.used_up(u64::MAX), none.left(5)), (None, None));
    let limits = CostLimits { session: Some(1_000_000), run: Some(RunCost { limit: 200, before: 300 }) };
    assert_eq!((limits.used_up(499), limits.left(499)), (None, Some(1)));
    assert_eq!(limits.used_up(500).as_deref(), Some("the run reached its cost limit of $0.0002"));
    assert_eq!(limits.left(600), Some(0));
    assert_eq!(limits.used_up(1_000_000).as_deref(), Some("the session reached its cost limit of $1.00"));
    let run = CostLimits { session: None, run: Some(RunCost { limit: u64::MAX, before: 7 }) };
    assert_eq!(run.used_up(u64::MAX - 1), None);
    let nothing = CostLimits { session: Some(0), run: None };
    assert!(nothing.used_up(0).is_some());
}
