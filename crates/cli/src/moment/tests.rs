//! Stamps and ages.

use super::{ago, stamp};

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
