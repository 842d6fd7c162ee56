//! The events that subscribers received: one that stays, and one that leaves and comes back at any moment.
//!
//! Invariants: both have the same durable events, each consistent with its entry, without gaps; every run
//! that an agent began has one end.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom::Role;
use greenroom::internal::of_entries;
use greenroom::prelude::*;
use greenroom_kernel::RunId;

use super::record::Record;

/// The durable events of one session, as received by one subscriber.
#[derive(Debug, Default)]
pub(crate) struct Stream(Vec<Arc<Event>>);

impl Stream {
    /// Takes the next event, or a known one.
    pub(crate) fn take(&mut self, event: &Arc<Event>, records: &BTreeMap<String, Record>) {
        let at = usize::try_from(event.seq).expect("a log in memory");
        match self.0.get(at) {
            Some(known) => assert_eq!(known, event, "told otherwise the second time"),
            None => {
                assert_eq!(at, self.0.len(), "a hole before {event:?}");
                let record = records.get(&*event.session).map_or(&[][..], Record::entries);
                let entry = record.get(at);
                let entry = entry.unwrap_or_else(|| panic!("published before it was durable: {event:?}"));
                // Later entries determine which run an entry belongs to: see `check_told`.
                let entries = std::slice::from_ref(entry);
                let says = of_entries(&event.session, None, event.session_created_at_ms, entries, event.run);
                assert_eq!(says.collect::<Vec<_>>(), [(**event).clone()], "not what its entry says");
                self.0.push(Arc::clone(event));
            }
        }
    }

    /// Returns the position at which a returning subscriber continues.
    pub(crate) fn next(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn events(&self) -> &[Arc<Event>] {
        &self.0
    }
}

/// Checks that the received events are a prefix of all events, and all of them if `is_whole`.
pub(crate) fn check_told(session: &str, told: &[Arc<Event>], all: &[Event], is_whole: bool) {
    let differs = told.iter().zip(all).position(|(told, event)| **told != *event);
    assert_eq!(differs, None, "{session}: this event was told otherwise");
    assert!(told.len() <= all.len(), "{session}: more was told than happened");
    if is_whole {
        assert_eq!(told.len(), all.len(), "{session}: how many durable events were told");
    }
}

/// The runs of one session that began in one life, and their ends.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    run: Option<RunId>,
    is_answering: bool,
    /// The next durable event.
    next: Option<u64>,
}

impl Ends {
    pub(crate) fn take(&mut self, event: &Event) {
        let text = serde_json::to_string(event).expect("an event is JSON");
        assert_eq!(
            serde_json::from_str::<Event>(&text).expect("what was written"),
            *event,
            "it reads back as another"
        );
        if event.is_durable() {
            assert!(
                self.next.is_none_or(|next| next == event.seq),
                "a hole or a repetition in the events: {event:?}"
            );
            self.next = Some(event.seq + 1);
        }
        if self.run.is_some() {
            assert_eq!(
                event.run, self.run,
                "an event that does not belong to the run that is going on: {event:?}"
            );
        }
        match &event.kind {
            EventKind::RunStart => {
                assert!(event.run.is_some(), "a run without its id: {event:?}");
                assert_eq!(
                    std::mem::replace(&mut self.run, event.run),
                    None,
                    "a run begins in another: {event:?}"
                );
            }
            EventKind::RunEnd { .. } => {
                // A run interrupted by a crash began in another life.
                assert!(
                    self.run.take().is_none_or(|begun| event.run == Some(begun)),
                    "another run ends: {event:?}"
                );
                assert!(!self.is_answering, "a run ends in the middle of an answer: {event:?}");
            }
            EventKind::MessageStart => {
                assert!(!std::mem::replace(&mut self.is_answering, true), "an answer in another: {event:?}");
            }
            EventKind::MessageDiscarded => {
                assert!(std::mem::take(&mut self.is_answering), "no answer is discarded: {event:?}");
            }
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                self.is_answering = false;
            }
            _ => {}
        }
    }

    /// Checks that everything ended.
    pub(crate) fn check_all_ended(&self, session: &str) {
        assert_eq!((self.run, self.is_answering), (None, false), "{session}: what began and did not end");
    }
}
