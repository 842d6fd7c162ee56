//! Stamps and ages.

use std::time::{Duration, UNIX_EPOCH};

use super::{ago, check_clock, stamp};

#[test]
fn stamps() {
    assert_eq!(stamp(1_767_323_045_678), "20260102-030405");
}

#[test]
fn the_past_is_some_time_ago() {
    for (seconds, expect) in
        [(0, "0 s ago"), (61, "1 min ago"), (7_200, "2 h ago"), (90_000, "25 h ago"), (260_000, "3 days ago")]
    {
        assert_eq!(ago(1_000, 1_000 + seconds * 1_000), expect);
    }
    assert_eq!(ago(5_000, 1_000), "0 s ago");
}

#[test]
fn a_clock_that_stands_outside_of_the_calendar_is_refused() {
    let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
    for (now, expect) in [
        (UNIX_EPOCH - Duration::from_nanos(1), Some("before 1970")),
        (at(0), None),
        (at(1_767_323_045), None),
        (at(253_402_300_799), None),
        (at(253_402_300_800), Some("after 9999")),
    ] {
        match (check_clock(now), expect) {
            (Ok(()), None) => {}
            (Err(text), Some(expect)) => assert!(text.contains(expect), "{text}"),
            (found, _) => panic!("{now:?}: {found:?}"),
        }
    }
}
