//! Limits that are used up in turn, and sums as text.

use super::*;
use crate::usage::{Measured, Window, WindowSource};

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

#[test]
fn what_the_server_reported_is_taken_as_it_is_and_our_own_count_with_a_margin() {
    for (usage_tokens, trailing_tokens, expected) in
        [(0, 0, 0), (1_000, 0, 1_000), (0, 574, 718), (1_000, 100, 1_125), (u64::MAX, 9, u64::MAX)]
    {
        let window = Window { tokens: None, source: WindowSource::Unknown };
        let context = ContextUsage::new(Measured { usage_tokens, trailing_tokens }, window);
        assert_eq!(input_tokens_max(&context), expected, "{usage_tokens} {trailing_tokens}");
    }
}

/// Checks a call whose input costs 1,000 and whose output costs 10 per token.
fn check_admission(output_tokens: u64, (left, reserved, is_shared): (u64, u64, bool), expected: Admission) {
    let price = CallPrice { input_microdollars: 1_000, output_per_million: 10_000_000 };
    let admission = admit(price, output_tokens, Left { microdollars: left, reserved, is_shared });
    assert_eq!(admission, expected, "{output_tokens} of output with {left}, {reserved} reserved");
    if let Admission::Ask { output_tokens_max } = admission {
        assert!(price.with_output(output_tokens_max) <= left - reserved, "{left} {reserved}");
    }
}

#[test]
fn a_call_is_made_only_with_what_is_left() {
    let ask = |output_tokens_max| Admission::Ask { output_tokens_max };
    check_admission(16_000, (u64::MAX, 0, false), ask(16_000));
    check_admission(16_000, (161_000, 0, false), ask(16_000));
    check_admission(16_000, (160_999, 0, false), ask(15_999));
    check_admission(16_000, (1_640, 0, false), ask(64));
    check_admission(16_000, (1_639, 0, false), Admission::Refuse);
    check_admission(16_000, (999, 0, false), Admission::Refuse);
    check_admission(16_000, (0, 0, false), Admission::Refuse);
    // A small request gets little.
    check_admission(5, (1_050, 0, false), ask(5));
    check_admission(5, (1_049, 0, false), Admission::Refuse);
    // With others at work it waits rather than being cut short.
    check_admission(16_000, (100_000, 50_000, true), ask(1_150));
    check_admission(16_000, (100_000, 88_761, true), Admission::Wait);
    check_admission(16_000, (100_000, 88_760, true), ask(1_024));
    check_admission(16_000, (100_000, 200_000, true), Admission::Wait);
    // One of several leaves something to the others if possible.
    check_admission(16_000, (1_000_000, 0, true), ask(16_000));
    check_admission(16_000, (100_000, 0, true), ask(2_400));
    check_admission(16_000, (20_000, 0, true), ask(1_900));
}

#[test]
fn output_that_costs_nothing_is_not_limited() {
    let price = CallPrice { input_microdollars: 5, output_per_million: 0 };
    let left = Left { microdollars: 5, reserved: 0, is_shared: false };
    assert_eq!(admit(price, 100, left), Admission::Ask { output_tokens_max: 100 });
    assert_eq!(admit(price, 100, Left { microdollars: 4, ..left }), Admission::Refuse);
}

#[test]
fn a_refusal_names_the_limit_that_leaves_the_least() {
    let limits = CostLimits { session: Some(10_000), run: Some(RunCost { limit: 200, before: 300 }) };
    let expected = "the run reached its cost limit of $0.0002: $0.0001 is left, and the input of the next call alone \
                    may cost $0.007";
    assert_eq!(limits.refusal(400, 7_000).as_deref(), Some(expected));
    let limits = CostLimits { session: Some(450), ..limits };
    let reason = limits.refusal(400, 7_000).unwrap_or_default();
    assert!(reason.starts_with("the session reached its cost limit of $0.00045: "), "{reason}");
    assert_eq!(CostLimits::default().refusal(0, 1), None);
}
