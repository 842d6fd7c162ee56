//! The consequences of the settings for a window, in numbers.

use super::*;

fn defaults() -> CompactionSettings {
    CompactionSettings::default()
}

fn triggers(reserve: Option<u64>, threshold: Option<f64>, limit: Option<u64>) -> CompactionSettings {
    CompactionSettings {
        reserve_tokens: reserve,
        threshold,
        auto_compact_token_limit: limit,
        ..CompactionSettings::default()
    }
}

#[test]
fn the_earliest_trigger_that_is_set_wins() {
    let check = |settings: &CompactionSettings, window: u64, due_at: Option<u64>| {
        assert_eq!(settings.trigger_tokens(window), due_at, "window {window} of {settings:?}");
    };
    // More than the window less the reserve, so from one token above it on.
    check(&triggers(Some(16_384), None, None), 200_000, Some(183_617));
    // At the fraction itself.
    check(&triggers(None, Some(0.80), None), 200_000, Some(160_000));
    check(&triggers(None, Some(1.0), None), 200_000, Some(200_000));
    check(&triggers(None, Some(0.333), None), 10, Some(4));
    // At the limit itself, clamped to the window.
    check(&triggers(None, None, Some(50_000)), 200_000, Some(50_000));
    check(&triggers(None, None, Some(500_000)), 200_000, Some(200_000));
    check(&triggers(None, None, None), 200_000, None);
    // With the defaults, 0.80 comes first for windows above 81,920; the reserve below.
    check(&defaults(), 128_000, Some(102_400));
    check(&defaults(), 82_000, Some(65_600));
    check(&defaults(), 81_000, Some(64_617));
    // The reserve is at most a quarter of the window.
    check(&defaults(), 8_000, Some(6_001));
    check(&triggers(Some(16_384), Some(0.5), Some(90_000)), 200_000, Some(90_000));
    check(&triggers(Some(150_000), None, None), 200_000, Some(150_001));
    // Never at nothing.
    check(&defaults(), 0, Some(1));
    check(&triggers(Some(0), None, None), 1_000, Some(1_001));
}

#[test]
fn keep_follows_the_occasion() {
    let check = |set: Option<u64>, window: u64, occasion: Occasion, keep: u64| {
        let settings = CompactionSettings { keep_recent_tokens: set, ..defaults() };
        assert_eq!(settings.keep_recent(window, occasion, 60_000), keep, "{set:?} of {window}, {occasion:?}");
    };
    check(None, 200_000, Occasion::Automatic, 50_000);
    check(None, 200_000, Occasion::Manual, 15_000);
    check(None, 40_000, Occasion::Manual, 10_000);
    check(None, 200_000, Occasion::Emergency, 40_000);
    check(Some(20_000), 200_000, Occasion::Automatic, 20_000);
    check(Some(20_000), 200_000, Occasion::Manual, 20_000);
    check(Some(100_000), 200_000, Occasion::Automatic, 70_000);
    check(Some(100_000), 200_000, Occasion::Emergency, 40_000);
    check(None, 0, Occasion::Automatic, 1);
}

#[test]
fn summaries_are_capped_by_shares_of_the_reserve() {
    assert_eq!((defaults().summary_cap(200_000), defaults().prefix_cap(200_000)), (13_107, 8_192));
    assert_eq!((defaults().summary_cap(8_000), defaults().prefix_cap(8_000)), (1_600, 1_000));
    assert_eq!((defaults().summary_cap(100), defaults().prefix_cap(100)), (256, 160));
    // Without the trigger the cap still has a base.
    assert_eq!(triggers(None, Some(0.8), None).summary_cap(200_000), 13_107);
}

#[test]
fn values_outside_their_range_are_named() {
    let check = |settings: CompactionSettings, key: &str| {
        let error = settings.check().expect_err("it cannot work").to_string();
        assert!(error.starts_with(&format!("{key}: ")), "{error}");
    };
    assert_eq!(defaults().check(), Ok(()));
    for threshold in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
        check(triggers(None, Some(threshold), None), "threshold");
        check(CompactionSettings { soft_threshold: threshold, ..defaults() }, "soft_threshold");
    }
    check(triggers(None, None, Some(0)), "auto_compact_token_limit");
    check(CompactionSettings { context_window: Some(0), ..defaults() }, "context_window");
    check(CompactionSettings { keep_recent_tokens: Some(0), ..defaults() }, "keep_recent_tokens");
    check(CompactionSettings { unknown_window: UnknownWindow::Assume(0), ..defaults() }, "unknown_window");
    check(CompactionSettings { max_request_bytes: 1_023, ..defaults() }, "max_request_bytes");
    assert_eq!(CompactionSettings { max_request_bytes: 1_024, ..defaults() }.check(), Ok(()));
    check(triggers(None, None, Some(182)), "auto_compact_token_limit");
    assert_eq!(triggers(None, None, Some(183)).check(), Ok(()));
    assert_eq!(triggers(None, None, Some(183)).feasible(100_000, 0), Ok(()), "as the limit's own check says");
    let prompt = |text: &str| CompactionSettings { compact_prompt: Some(text.into()), ..defaults() };
    let long = "x".repeat(COMPACT_PROMPT_BYTES_MAX + 1);
    for text in [" ", "{messages} and {messages}", "file:prompts/own.md", " file:x", &long] {
        check(prompt(text), "compact_prompt");
    }
    let added = |text: &str| CompactionSettings { compact_instructions: Some(text.into()), ..defaults() };
    for text in [" ", "After {messages}", "file:prompts/own.md", &long] {
        check(added(text), "compact_instructions");
    }
    assert_eq!(added("Keep the units.").check(), Ok(()));
    for text in ["Sum up {messages} in one line.", "Sum up.", &long[1..]] {
        assert_eq!(prompt(text).check(), Ok(()));
    }
}

#[test]
fn what_cannot_work_in_a_window_says_why() {
    let kept = |keep| CompactionSettings { keep_recent_tokens: Some(keep), ..defaults() };
    // The trigger is at 160,000: half of what lies above the fixed part may stay, if it is 128 tokens at least.
    for overhead in [10_000, 112_000, 159_744] {
        assert_eq!(defaults().feasible(200_000, overhead), Ok(()));
    }
    let error = defaults().feasible(200_000, 159_745).expect_err("there is no room");
    assert_eq!(
        error,
        SettingsError::NoRoom {
            trigger: 160_000,
            target: 159_872,
            window: 200_000,
            overhead: 159_745,
            needed: 128
        }
    );
    for number in ["160000", "159872", "200000", "159745", "128"] {
        assert!(error.to_string().contains(number), "{error}");
    }
    assert!(defaults().feasible(200_000, u64::MAX).is_err());
    // The kept part shrinks automatically, whether configured or not.
    assert_eq!(kept(500_000).feasible(200_000, 100_000), Ok(()));
    let mut limited = triggers(None, None, Some(10_000));
    limited.keep_recent_tokens = Some(10_000);
    assert_eq!(limited.feasible(200_000, 2_000), Ok(()));
    assert!(limited.feasible(200_000, 9_900).is_err());
    // A disabled compaction needs no room.
    assert_eq!(CompactionSettings { enabled: false, ..defaults() }.feasible(200_000, 190_000), Ok(()));
    assert_eq!(triggers(None, None, None).feasible(200_000, 190_000), Ok(()));
    assert!(CompactionSettings { threshold: Some(2.0), ..defaults() }.feasible(200_000, 0).is_err());
}

/// The kept part is the rest of the target: 0.7 of the trigger, less the fixed part, less the summary's cap
/// or a third. If the fixed part is large, half of the range above it counts.
#[test]
fn what_may_be_kept_follows_from_the_trigger() {
    let check = |settings: &CompactionSettings, window: u64, overhead: u64, keep_max: u64| {
        assert_eq!(settings.keep_max(window, overhead), keep_max, "{window} {overhead} of {settings:?}");
    };
    let limited = |limit| triggers(Some(16_384), Some(0.8), Some(limit));
    check(&defaults(), 200_000, 12_000, 112_000 - 12_000 - 13_107);
    check(&limited(200_000), 1_000_000, 10_000, 140_000 - 10_000 - 13_107);
    check(&limited(30_000), 200_000, 6_000, 15_000 - 5_000);
    check(&triggers(None, Some(0.2), None), 64_000, 0, 8_960 - 2_986);
    check(&defaults(), 8_000, 500, 4_200 - 500 - 1_233);
    check(&defaults(), 4_000, 300, 2_100 - 300 - 600);
    check(&defaults(), 8_000, 4_001, 1_000 - 333);
    check(&defaults(), 8_000, 9_000, 0);
    check(&triggers(None, None, None), 8_000, 0, 5_600 - 1_600);
}

#[test]
fn settings_are_read_as_they_are_written() {
    let read = |json: &str| serde_json::from_str::<CompactionSettings>(json);
    let good = |json: &str| read(json).unwrap_or_else(|error| panic!("{json}: {error}"));
    assert_eq!(good("{}"), defaults());
    assert_eq!(good(r#"{"threshold": null}"#).trigger_tokens(200_000), Some(183_617));
    assert_eq!(
        good(r#"{"model_auto_compact_token_limit": 9000}"#),
        good(r#"{"auto_compact_token_limit": 9000}"#)
    );
    assert_eq!(good(r#"{"unknown_window": "disable"}"#).unknown_window, UnknownWindow::Disable);
    assert_eq!(good(r#"{"unknown_window": 64000}"#).unknown_window, UnknownWindow::Assume(64_000));
    assert_eq!(good(r#"{"strategy": "truncate", "cut": "nearest"}"#).strategy, Strategy::Truncate);
    for bad in [r#"{"treshold": 0.8}"#, r#"{"unknown_window": "off"}"#, r#"{"cut": "near"}"#] {
        assert!(read(bad).is_err(), "{bad}");
    }
    for settings in [defaults(), triggers(None, None, Some(1)), good(r#"{"unknown_window": "disable"}"#)] {
        let json = serde_json::to_string(&settings).expect("settings are plain data");
        assert_eq!(good(&json), settings);
    }
}
