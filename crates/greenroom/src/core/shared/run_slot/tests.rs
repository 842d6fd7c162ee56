//! The target of an abort.

use greenroom_kernel::EntryId;

use super::*;

#[test]
fn an_abort_reaches_the_run_in_progress() {
    let mut slot = RunSlot::default();
    let cancel = CancellationToken::new();
    assert_eq!(slot.open(), None);
    slot.begin(EntryId(3), cancel.clone(), 0);
    assert_eq!((slot.open(), slot.is_cancelled()), (Some(EntryId(3)), false));
    slot.abort();
    assert!(slot.is_cancelled() && cancel.is_cancelled());
    assert_eq!(slot.early_aborts(), 0, "it found the run");
    slot.end();
    assert_eq!((slot.open(), slot.is_cancelled(), slot.cancel()), (None, false, false));
}

#[test]
fn an_abort_before_the_run_reaches_what_was_handed_over_before_it_and_nothing_else() {
    /// The number of aborts before the prompt was handed over, and between then and its start.
    #[track_caller]
    fn check(before: u64, after: u64, is_cancelled: bool) {
        let mut slot = RunSlot::default();
        (0..before).for_each(|_| slot.abort());
        let handed_over = slot.early_aborts();
        (0..after).for_each(|_| slot.abort());
        slot.begin(EntryId(0), CancellationToken::new(), handed_over);
        assert_eq!(slot.is_cancelled(), is_cancelled, "{before} before it and {after} after");
    }
    check(0, 0, false);
    check(3, 0, false);
    check(0, 1, true);
    check(3, 2, true);
}

#[test]
fn a_run_that_ended_is_not_aborted_with_the_next_one() {
    let mut slot = RunSlot::default();
    let first = CancellationToken::new();
    slot.begin(EntryId(0), first.clone(), 0);
    slot.end();
    slot.begin(EntryId(4), CancellationToken::new(), slot.early_aborts());
    slot.abort();
    assert!(slot.is_cancelled() && !first.is_cancelled());
}
