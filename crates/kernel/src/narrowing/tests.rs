//! Where the context of the next agent starts, and the compaction that says so.

use super::*;
use crate::tests::notation::path;

#[test]
fn the_newest_messages_are_kept_with_their_calls_and_the_request_in_progress() {
    for (drawn, messages, expect) in [
        ("", 1, None),
        ("n", 1, None),
        ("u", 1, None),
        ("u a", 1, Some(1)),
        ("u a", 2, None),
        ("u a", 3, None),
        // At least one: a request is never empty.
        ("u a", 0, Some(1)),
        ("u a u a", u32::MAX, None),
        // Entries that are not messages do not count, and stay with the message before them.
        ("n u a", 2, Some(1)),
        ("n n u n a", 1, Some(4)),
        ("u a n u", 1, Some(3)),
        // Not between a call and its results.
        ("u a r r a", 2, Some(1)),
        ("u a r r a", 3, Some(1)),
        ("u a r r a", 4, Some(1)),
        ("u a u a r r a", 2, Some(3)),
        // With the request in progress, which a result indicates, however few messages are wanted.
        ("u a u a r r", 1, Some(2)),
        ("u a u a r", 4, Some(1)),
        ("u a u t a r", 1, Some(2)),
        ("u t u t a r", 1, Some(2)),
        ("t a r", 1, Some(1)),
        ("r r", 1, None),
        // An answered request is not in progress.
        ("u a u a r a", 1, Some(5)),
    ] {
        assert_eq!(cut(&path(drawn), messages), expect, "{messages} of {drawn}");
    }
}

/// What the next agent of `u:10 a:10 u:10 a:10 u:10 a:10` sees, with this setting, as the first kept entry and the number
/// of hidden messages.
#[track_caller]
fn check(sees: Sees, is_summarised: bool, keep: Option<u64>, expect: Option<(u64, u64)>) {
    let path = path("u:10 a:10 u:10 a:10 u:10 a:10");
    let narrowing = Narrowing {
        pinned: &[],
        path: &path,
        to: "next",
        sees,
        is_summarised,
        previous: None,
        tokens_before: 60,
        settings: &CompactionSettings { keep_recent_tokens: keep, ..CompactionSettings::default() },
        window: Some(1_000),
        resent: &ResentReasoning::default(),
    };
    let seen = narrowing.compaction();
    let kept =
        seen.as_ref().map(|seen| (seen.first_kept.expect("something is kept").0, seen.messages_removed));
    assert_eq!(kept, expect, "{sees:?}, summarised: {is_summarised}, {keep:?}");
    if let Some(seen) = seen {
        assert_eq!((seen.trigger, seen.truncated, seen.from_hook), (Trigger::HandOff, true, false));
        assert_eq!((seen.first, seen.last), (Some(EntryId(0)), Some(EntryId(seen.messages_removed - 1))));
        assert_eq!((seen.tokens_before, seen.messages_before), (60, 6));
        assert!(seen.debt.is_empty() && seen.summary.contains("next"), "{seen:?}");
    }
}

#[test]
fn the_next_agent_sees_what_the_hand_off_says() {
    check(Sees::All, false, Some(1), None);
    check(Sees::All, true, Some(1), None);
    check(Sees::Last(2), false, None, Some((4, 4)));
    check(Sees::Last(2), true, None, Some((4, 4)));
    check(Sees::Last(6), false, None, None);
    // A summary that was made covers the older messages.
    check(Sees::Summary, true, Some(25), None);
    // Otherwise the newest messages remain: as many as fit, and at least one.
    check(Sees::Summary, false, Some(25), Some((4, 4)));
    check(Sees::Summary, false, Some(30), Some((3, 3)));
    check(Sees::Summary, false, Some(1), Some((5, 5)));
    check(Sees::Summary, false, None, None);
}
