//! Missed events are returned in order, once.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use greenroom::EventKind;

use super::*;

fn event(seq: u64, n: Option<u64>) -> Event {
    let kind = EventKind::Warning { message: String::new() };
    let mut event = Event::new("s", seq, kind);
    event.n = n;
    event
}

fn seqs(events: &[Arc<Event>]) -> Vec<(u64, Option<u64>)> {
    events.iter().map(|event| (event.seq, event.n)).collect()
}

#[test]
fn missed_events_come_before_what_came_meanwhile_and_nothing_comes_twice() {
    let mut follow = Follow::after(Some(3));
    assert!(follow.event(Arc::new(event(3, None))).is_none(), "it was seen before");
    assert!(follow.event(Arc::new(event(4, None))).is_some());
    assert_eq!(follow.gap(), Some(5));
    for (seq, n) in [(7, None), (7, Some(1)), (8, None)] {
        assert!(follow.event(Arc::new(event(seq, n))).is_none(), "it waits");
    }
    let read = vec![event(5, None), event(6, None), event(7, None)];
    let (given, next) = follow.missed(read);
    assert_eq!(seqs(&given), [(5, None), (6, None), (7, None), (7, Some(1)), (8, None)]);
    assert_eq!(next, None);
    assert!(follow.event(Arc::new(event(8, None))).is_none());
    assert!(follow.event(Arc::new(event(9, None))).is_some());
}

/// A run that has ended does not begin again: its beginning is transient, and its end was read.
#[test]
fn transient_events_that_are_older_than_what_was_read_are_dropped() {
    let mut follow = Follow::after(Some(3));
    assert_eq!(follow.gap(), Some(4));
    for (seq, n) in [(4, None), (4, Some(1)), (5, None), (5, Some(1)), (6, None), (6, Some(1))] {
        assert!(follow.event(Arc::new(event(seq, n))).is_none(), "it waits");
    }
    let (given, _) = follow.missed(vec![event(4, None), event(5, None), event(6, None)]);
    assert_eq!(seqs(&given), [(4, None), (5, None), (6, None), (6, Some(1))]);
}

#[test]
fn what_is_missing_again_meanwhile_is_read_too() {
    let mut follow = Follow::after(Some(3));
    assert_eq!(follow.gap(), Some(4));
    assert!(follow.event(Arc::new(event(5, None))).is_none());
    assert_eq!(follow.gap(), None, "it is being read already");
    assert!(follow.event(Arc::new(event(9, None))).is_none());
    let (given, next) = follow.missed(vec![event(4, None), event(5, None)]);
    assert_eq!((seqs(&given), next), (vec![(4, None), (5, None)], Some(6)));
    let (given, next) = follow.missed(vec![event(6, None), event(7, None), event(8, None)]);
    assert_eq!(seqs(&given), [(6, None), (7, None), (8, None), (9, None)]);
    assert_eq!(next, None);
}

#[test]
fn what_was_told_of_a_run_that_is_joined_is_not_told_again() {
    let told = serde_json::json!({ "seq": 5, "n": 2, "events": [] });
    let mut follow = Follow::within(serde_json::from_value(told).unwrap());
    for (seq, n, is_new) in
        [(5, None, false), (5, Some(1), false), (5, Some(2), false), (5, Some(3), true), (6, None, true)]
    {
        assert_eq!(follow.event(Arc::new(event(seq, n))).is_some(), is_new, "{seq} {n:?}");
    }
}
