//! When a compaction is due, as tables.

use super::*;
use crate::cost::CostLimits;

fn limits(change: impl FnOnce(&mut ContextLimits)) -> ContextLimits {
    let mut limits = ContextLimits {
        window: Window { tokens: Some(10_000), source: WindowSource::Catalog },
        // The reserve is 2,500 and the trigger 7,501: by reserve, which comes before the threshold of 8,000.
        settings: Arc::new(CompactionSettings::default()),
        output_tokens_max: None,
        cost: CostLimits::default(),
        is_sub_agent: false,
        is_paused: false,
        only_at_window: false,
    };
    change(&mut limits);
    limits
}

fn settings(change: impl FnOnce(&mut CompactionSettings)) -> Arc<CompactionSettings> {
    let mut settings = CompactionSettings::default();
    change(&mut settings);
    Arc::new(settings)
}

/// A change of the limits for one row of a table.
type Change = fn(&mut ContextLimits);
/// A size in tokens, whether it is due, and whether it is at the window.
type Row = (u64, bool, bool);

#[test]
fn a_context_is_full_where_no_room_is_left_for_an_answer() {
    let check = |window: Option<u64>, output: Option<u64>, expect: Option<u64>| {
        let limits = limits(|limits| {
            limits.window.tokens = window;
            limits.output_tokens_max = output;
        });
        assert_eq!(limits.full_at(), expect, "window {window:?}, output {output:?}");
    };
    // 4,096 are assumed, and at most a sixteenth is kept free.
    check(Some(200_000), None, Some(195_904));
    check(Some(65_536), None, Some(61_440));
    check(Some(16_000), None, Some(15_000));
    check(Some(16_000), Some(100), Some(15_900));
    check(Some(16_000), Some(8_000), Some(15_000));
    check(Some(0), None, Some(0));
    check(None, Some(100), None);
}

#[test]
fn a_size_is_due_from_the_trigger_on_and_at_the_window_where_it_is_full() {
    let none: Change = |_| {};
    let table: [(&str, Change, &[Row]); 9] = [
        (
            "as it is",
            none,
            &[
                (0, false, false),
                (7_500, false, false),
                (7_501, true, false),
                (9_374, true, false),
                (9_375, true, true),
            ],
        ),
        (
            "off",
            |limits| limits.settings = settings(|it| it.enabled = false),
            &[(9_374, false, false), (9_375, false, true)],
        ),
        ("sub-agent", |limits| limits.is_sub_agent = true, &[(9_374, false, false), (9_375, false, true)]),
        (
            "paused",
            |limits| limits.is_paused = true,
            &[(7_501, false, false), (9_374, false, false), (9_375, true, true)],
        ),
        (
            "paused sub-agent",
            |limits| (limits.is_paused, limits.is_sub_agent) = (true, true),
            &[(9_375, false, true)],
        ),
        (
            "undone",
            |limits| {
                limits.only_at_window = true;
                limits.settings = settings(|it| it.auto_compact_token_limit = Some(2_000));
            },
            &[(2_000, false, false), (7_499, false, false), (7_500, true, false), (9_375, true, true)],
        ),
        (
            "an early trigger",
            |limits| limits.settings = settings(|it| it.auto_compact_token_limit = Some(2_000)),
            &[(1_999, false, false), (2_000, true, false)],
        ),
        (
            "no trigger",
            |limits| limits.settings = settings(|it| (it.reserve_tokens, it.threshold) = (None, None)),
            &[(9_374, false, false), (9_375, false, true), (20_000, false, true)],
        ),
        ("no window", |limits| limits.window.tokens = None, &[(u64::MAX, false, false)]),
    ];
    for (name, change, sizes) in table {
        let limits = limits(change);
        for (tokens, is_due, at_window) in sizes {
            let size = limits.size(*tokens, 7, 0);
            assert_eq!((size.is_due, size.at_window), (*is_due, *at_window), "{name}, {tokens} tokens");
            assert_eq!(
                (size.tokens, size.counted, size.window),
                (*tokens, 7, limits.window.tokens),
                "{name}"
            );
        }
    }
}

#[test]
fn a_window_is_guessed_where_nobody_said_it() {
    use WindowSource::{Assumed, Catalog, CompactionSetting, Learned, Server, Setting, Trained, Unknown};
    for (source, guessed) in [
        (CompactionSetting, false),
        (Setting, false),
        (Catalog, false),
        (Learned, true),
        (Assumed, true),
        (Unknown, false),
        (Server, false),
        (Trained, true),
    ] {
        let size = limits(|limits| limits.window.source = source).size(1, 1, 0);
        assert_eq!(size.is_window_guessed, guessed, "{source:?}");
    }
}

#[test]
fn a_budget_is_used_up_when_it_is_reached() {
    let limits = limits(|limits| limits.cost.session = Some(1_234_567));
    assert_eq!(limits.size(1, 1, 1_234_566).over_budget, None);
    let said = "the session reached its cost limit of $1.23";
    assert_eq!(limits.size(1, 1, 1_234_567).over_budget.as_deref(), Some(said));
    assert_eq!(limits.size(1, 1, u64::MAX).over_budget.as_deref(), Some(said));
}

#[test]
fn only_what_follows_from_the_size_waits_for_it() {
    // Trigger, whether the size is due, whether there is a new message since the last one; and the result.
    let table = [
        (Trigger::Threshold, false, false, false),
        (Trigger::Threshold, false, true, false),
        (Trigger::Threshold, true, false, false),
        (Trigger::Threshold, true, true, true),
        (Trigger::ModelSwitch, false, false, false),
        (Trigger::ModelSwitch, false, true, false),
        (Trigger::ModelSwitch, true, false, true),
        (Trigger::Overflow, false, false, true),
        (Trigger::Manual, false, false, true),
        (Trigger::Hook, false, false, true),
    ];
    for (trigger, due, has_news, expect) in table {
        let size = Size { is_due: due, ..Size::default() };
        assert_eq!(is_due(trigger, &size, has_news), expect, "{trigger:?}, due {due}, news {has_news}");
    }
}

#[test]
fn a_compaction_begins_at_one_size() {
    let check = |expect: Option<u64>, change: fn(&mut ContextLimits)| {
        let limits = limits(change);
        assert_eq!(limits.compacts_at(), expect, "{limits:?}");
        for tokens in [7_500, 7_501, 9_374, 9_375, 9_376, 10_000] {
            let is_due = expect.is_some_and(|at| tokens >= at);
            assert_eq!(limits.size(tokens, tokens, 0).is_due, is_due, "{tokens} of {limits:?}");
        }
    };
    check(Some(7_501), |_| {});
    check(Some(7_500), |limits| limits.only_at_window = true);
    check(Some(9_375), |limits| limits.is_paused = true);
    check(None, |limits| limits.is_sub_agent = true);
    check(None, |limits| limits.window.tokens = None);
    check(None, |limits| limits.settings = settings(|settings| settings.enabled = false));
}

#[test]
fn the_soft_threshold_is_passed_between_it_and_the_trigger() {
    let check = |soft: Option<u64>, change: fn(&mut ContextLimits)| {
        let limits = limits(change);
        for tokens in (0..10_000).step_by(50) {
            let trigger = limits.compacts_at().filter(|at| tokens < *at);
            let expect = trigger.filter(|_| soft.is_some_and(|soft| tokens >= soft));
            assert_eq!(limits.size(tokens, tokens, 0).nears, expect, "{tokens} of {limits:?}");
        }
    };
    // At most 0.8 of the trigger of 7,501.
    check(Some(6_000), |_| {});
    check(Some(5_000), |limits| limits.settings = settings(|settings| settings.soft_threshold = 0.5));
    check(Some(1_600), |limits| limits.settings = settings(|it| it.auto_compact_token_limit = Some(2_000)));
    check(None, |limits| limits.is_paused = true);
    check(None, |limits| limits.only_at_window = true);
    check(None, |limits| limits.is_sub_agent = true);
    check(None, |limits| limits.window.tokens = None);
    check(None, |limits| limits.settings = settings(|settings| settings.enabled = false));
}
