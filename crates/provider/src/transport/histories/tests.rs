//! Which histories are kept.

use std::sync::Arc;

use greenroom_kernel::Message;

use super::Histories;
use crate::dialect::History;
use crate::dialect::history::tests::{plain, request};

/// A conversation of about so many bytes.
fn history(bytes: usize) -> History {
    let mut history = History::default();
    let request = request(vec![Arc::new(Message::user("x".repeat(bytes)))]);
    history.write(&request, &request.messages, plain).expect("it can be written");
    history
}

#[test]
fn the_least_recently_used_are_dropped() {
    let mut histories = Histories::new(2_500);
    for session in ["a", "b"] {
        histories.put(session, history(1_000));
    }
    // It is used again.
    let a = histories.take("a");
    assert!(a.size() > 1_000);
    histories.put("a", a);
    histories.put("c", history(1_000));
    let sizes = ["a", "b", "c"].map(|session| histories.take(session).size() > 0);
    assert_eq!(sizes, [true, false, true]);
    assert_eq!((histories.bytes, histories.by_use.len(), histories.by_session.len()), (0, 0, 0));
    // One that is too large by itself is not kept.
    histories.put("large", history(3_000));
    assert_eq!((histories.bytes, histories.take("large").size()), (0, 0));
}
