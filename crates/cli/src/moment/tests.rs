//! Dates that are easily got wrong.

use super::{ago, rfc3339, stamp};

#[test]
fn moments_are_dates() {
    for (at_ms, expect) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
        (1_767_225_600_001, "2026-01-01T00:00:00.001Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(rfc3339(at_ms), expect);
    }
    assert_eq!(stamp(1_767_323_045_000), "20260102-030405");
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
