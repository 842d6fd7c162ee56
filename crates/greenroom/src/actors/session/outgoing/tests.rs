//! The messages that a crashed agent's successor gets again.

use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, EntryKind};

use super::*;
use crate::core::message::Answer;
use crate::values::error::Error;

fn event(seq: u64) -> Due {
    let kind = EntryKind::InboxCleared { items: Vec::new() };
    Due { entry: Arc::new(Entry::recorded(EntryId(seq), None, 10, kind)), run: None }
}

/// Returns the numbers of the events that are sent again, given that all before `below` were published, and
/// whether the end of a run is.
fn unheard(outgoing: &Outgoing, below: u64) -> (Vec<u64>, bool) {
    let (events, then) = outgoing.unheard(below);
    (events.iter().map(|event| event.entry.id.0).collect(), then.is_some())
}

#[test]
fn what_was_not_broadcast_is_said_again() {
    let mut outgoing = Outgoing::missed([event(1), event(2)].into());
    assert_eq!(unheard(&outgoing, 0), (vec![1, 2], false));
    outgoing.add(&[event(3), event(4)], 2);
    assert_eq!(unheard(&outgoing, 0), (vec![2, 3, 4], false), "what was broadcast is let go of");
    assert_eq!(unheard(&outgoing, 4), (vec![4], false));
    outgoing.add(&[], 5);
    assert_eq!(unheard(&outgoing, 0), (vec![], false));
}

#[test]
fn the_end_of_the_newest_run_is_said_again_and_answered_once() {
    let completion = |error| RunCompletion::new(Box::new(Answer { to: Vec::new(), reply: Err(error) }));
    let mut outgoing = Outgoing::default();
    outgoing.complete(completion(Error::Closed));
    let told = outgoing.complete(completion(Error::Aborted));
    let (_, again) = outgoing.unheard(0);
    let answer = told.take().expect("nobody took it");
    assert!(matches!(answer.reply, Err(Error::Aborted)), "the newest one");
    assert!(again.expect("it is said again").take().is_none(), "both are the same answer");
}
