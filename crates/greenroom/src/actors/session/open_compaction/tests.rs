//! One compaction at a time, started and ended only by its own messages.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn attempt(number: u32) -> RunAttempt {
    RunAttempt { run: EntryId(3), number }
}

#[tokio::test]
async fn a_measurement_begins_only_the_request_that_asked_for_it() {
    let mut compaction = OpenCompaction::new(false);
    let first = compaction.measure(CompactionRequest::new(Trigger::Manual));
    assert!(compaction.give_up_measuring().is_some(), "it was aborted");
    let second = compaction.measure(CompactionRequest::new(Trigger::Hook));
    assert!(compaction.measured(first).is_none(), "late news");
    assert_eq!(compaction.measured(second).unwrap().trigger, Trigger::Hook);
    assert!(compaction.is_idle() && compaction.measured(second).is_none());
}

#[tokio::test]
async fn a_compaction_ends_once_and_by_its_own_id() {
    let mut compaction = OpenCompaction::new(false);
    compaction.begin(EntryId(7), CompactionRequest::new(Trigger::Threshold));
    assert!(compaction.of(EntryId(6)).is_none() && compaction.end(EntryId(6)).is_none(), "late news");
    assert_eq!(compaction.running(), Some(EntryId(7)));
    assert!(compaction.give_up_measuring().is_none(), "it runs");
    assert!(compaction.end(EntryId(7)).is_some());
    assert!(compaction.end(EntryId(7)).is_none());
}

#[tokio::test]
#[should_panic(expected = "one compaction at a time")]
async fn a_second_one_cannot_begin() {
    let mut compaction = OpenCompaction::new(false);
    compaction.begin(EntryId(7), CompactionRequest::new(Trigger::Threshold));
    compaction.begin(EntryId(8), CompactionRequest::new(Trigger::Threshold));
}

#[tokio::test]
async fn a_run_joins_what_is_open_and_needs_more_only_where_that_was_asked_for_less() {
    let overflow = OverflowRequest { trigger: Trigger::Overflow, failed_attempts: 1 };
    for (at_window, or_else) in [(false, Some(overflow)), (true, None)] {
        let mut compaction = OpenCompaction::new(false);
        assert!(!compaction.join(attempt(1), Some(overflow)), "none is open");
        let request = CompactionRequest { at_window, ..CompactionRequest::new(Trigger::Threshold) };
        compaction.begin(EntryId(7), request);
        assert!(!compaction.has_run());
        assert!(compaction.join(attempt(2), Some(overflow)));
        assert!(compaction.has_run());
        compaction.detach_run();
        assert!(compaction.join(attempt(3), Some(overflow)));
        let request = compaction.end(EntryId(7)).unwrap();
        assert_eq!((request.run, request.or_else), (Some(attempt(3)), or_else));
    }
}
