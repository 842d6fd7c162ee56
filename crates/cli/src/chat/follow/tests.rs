//! What was missed comes in its place, once.

use std::sync::Arc;

use greenroom::EventKind;

use super::*;

fn event(seq: u64, n: Option<u64>) -> Event {
    let kind = EventKind::Warning { message: String::new() };
    Event { session: Arc::from("s"), seq, n, at_ms: 0, run: None, parent: None, kind }
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
    assert_eq!(follow.gap(), None, "it is being read already");
    for (seq, n) in [(7, None), (7, Some(1)), (8, None)] {
        assert!(follow.event(Arc::new(event(seq, n))).is_none(), "it waits");
    }
    let read = vec![event(5, None), event(6, None), event(7, None)];
    let given = follow.missed(read);
    assert_eq!(seqs(&given), [(5, None), (6, None), (7, None), (7, Some(1)), (8, None)]);
    assert!(follow.event(Arc::new(event(8, None))).is_none());
    assert!(follow.event(Arc::new(event(9, None))).is_some());
}
