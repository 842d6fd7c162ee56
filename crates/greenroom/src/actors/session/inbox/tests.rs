//! Callers of queued input: answered once, refused once, retried with growing waits.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom_kernel::entry::InboxDelivery;
use greenroom_kernel::message::Block;
use tokio::sync::oneshot;

use super::*;
use crate::core::message::tell_all;
use crate::values::error::{Error, Result};

/// A log whose inbox has this many prompts, as entries 0, 1, ….
fn log(items: u64) -> Log {
    let mut log = Log::new(greenroom_kernel::bill::CallCost::unknown());
    let mut draft = log.draft(1);
    for item in 0..items {
        let content = vec![Block::Text(item.to_string())];
        draft.push(EntryKind::Inbox {
            delivery: InboxDelivery::Prompt,
            content,
            key: None,
            fingerprint: None,
            terms: None,
        });
    }
    log.commit(draft);
    log
}

fn caller(ticket: u64) -> (Caller, oneshot::Receiver<Result<Reply>>) {
    let (reply, answer) = oneshot::channel();
    (Caller { options: Box::new(PromptOptions { ticket, ..PromptOptions::default() }), reply }, answer)
}

fn waiting(inbox: &Inbox, log: &Log) -> Vec<u64> {
    inbox.waiting(log).map(|item| item.id.0).collect()
}

#[test]
fn a_withdrawn_item_never_begins_and_leaves_the_log_with_the_next_append() {
    let (mut log, mut inbox) = (log(2), Inbox::default());
    let (first, _answer) = caller(7);
    inbox.wait_for(EntryId(0), first);
    assert_eq!(inbox.of_ticket(8), None, "nobody has this ticket");
    assert_eq!(inbox.of_ticket(7), Some(EntryId(0)));
    inbox.refuse(EntryId(0));
    assert_eq!(inbox.take_waiting(EntryId(0)).len(), 1);
    assert_eq!(inbox.of_ticket(7), None, "it is gone");
    assert_eq!(waiting(&inbox, &log), [1]);
    assert_eq!(inbox.next(&log).unwrap().id, EntryId(1));

    let mut draft = log.draft(2);
    inbox.clear_refused(&mut draft);
    log.commit(draft);
    inbox.committed(&log);
    assert_eq!(log.inbox().len(), 1);
    let mut draft = log.draft(3);
    inbox.clear_refused(&mut draft);
    assert!(draft.is_empty(), "it is cleared once");
}

#[test]
fn the_callers_and_followers_of_an_item_are_told_once() {
    let mut inbox = Inbox::default();
    let (one, first) = caller(1);
    let (two, mut second) = caller(2);
    let (follower, follows) = oneshot::channel();
    let (other, mut follows_other) = oneshot::channel();
    inbox.wait_for(EntryId(0), one);
    inbox.follow(EntryId(0), follower);
    inbox.wait_for(EntryId(2), two);
    inbox.follow(EntryId(1), other);
    let mut awaited = inbox.awaited();
    awaited.sort();
    assert_eq!(awaited, [EntryId(0), EntryId(2)]);
    tell_all(inbox.take_waiting(EntryId(0)), || Err(Error::Aborted));
    for mut answer in [first, follows] {
        assert!(answer.try_recv().unwrap().is_err());
    }
    assert!(second.try_recv().is_err() && follows_other.try_recv().is_err(), "they still wait");
    assert!(inbox.take_caller(EntryId(0)).is_none() && inbox.take_waiting(EntryId(0)).is_empty());
    tell_all(inbox.into_waiting(), || Err(Error::Aborted));
    assert!(second.try_recv().unwrap().is_err() && follows_other.try_recv().unwrap().is_err());
}

#[test]
fn refused_input_is_held_and_the_waits_double_to_a_minute() {
    let (log, mut inbox) = (log(1), Inbox::default());
    let mut waits = Vec::new();
    for _ in 0..9 {
        waits.push(inbox.hold(&log).unwrap().as_secs());
        assert!(inbox.next(&log).is_none(), "it is held");
        assert_eq!(inbox.hold(&log), None, "one timer at a time");
        inbox.timer_fired();
        assert!(inbox.next(&log).is_some());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    inbox.delivered();
    assert_eq!(inbox.hold(&log).unwrap().as_secs(), 1, "it begins anew after a success");
    inbox.release();
    assert!(inbox.next(&log).is_some(), "a request tries at once");
}

#[test]
fn nothing_is_held_where_nothing_waits() {
    let (log, mut inbox) = (log(0), Inbox::default());
    assert!(inbox.is_empty(&log));
    assert_eq!(inbox.hold(&log), None);
    assert!(!inbox.is_held && !inbox.has_timer);
}

#[test]
fn what_was_refused_is_cleared_as_soon_as_the_store_takes_that() {
    let (mut log, mut inbox) = (log(1), Inbox::default());
    assert!(!inbox.may_clear());
    inbox.refuse(EntryId(0));
    assert!(inbox.is_empty(&log) && inbox.may_clear());
    assert_eq!(inbox.hold(&log).unwrap().as_secs(), 1, "the store refuses");
    assert!(!inbox.may_clear() && inbox.has_refused());
    inbox.timer_fired();
    assert!(inbox.may_clear());
    let mut draft = log.draft(2);
    inbox.clear_refused(&mut draft);
    log.commit(draft);
    inbox.committed(&log);
    assert!(!inbox.may_clear() && !inbox.has_refused());
}

#[test]
fn the_next_actor_has_no_timer_of_the_one_before() {
    let (log, mut inbox) = (log(1), Inbox::default());
    inbox.hold(&log).unwrap();
    let mut next = inbox.hand_over();
    assert_eq!(next.next(&log).unwrap().id, EntryId(0), "it is tried at once");
    assert_eq!(next.hold(&log).unwrap().as_secs(), 2, "by a timer of its own");
}
