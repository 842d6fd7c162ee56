//! What the agent broadcasts for the session, until it has: events, and the end of the newest run.
//!
//! Invariants: what the agent may not have broadcast is said again to the one that takes its place.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::message::RunCompletion;
use crate::events::event::Event;

#[cfg(test)]
mod tests;

/// What the agent broadcasts for the session.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Durable events that the agent may not have broadcast yet.
    events: VecDeque<Arc<Event>>,
    /// The end of the newest run, until the agent broadcast it.
    completion: Option<RunCompletion>,
}

impl Outgoing {
    /// With the events that an earlier actor did not live to broadcast.
    pub(super) fn missed(events: VecDeque<Arc<Event>>) -> Self {
        Self { events, completion: None }
    }

    /// These are to be broadcast; all below this sequence number were.
    pub(super) fn add(&mut self, events: &[Arc<Event>], below: u64) {
        self.events.retain(|event| event.seq >= below);
        self.events.extend(events.iter().cloned());
    }

    /// The newest run ended, and its callers are told after its events.
    pub(super) fn complete(&mut self, completion: RunCompletion) -> RunCompletion {
        self.completion.insert(completion).clone()
    }

    /// What an agent is told that takes another's place; all below this sequence number were broadcast.
    pub(super) fn unheard(&self, below: u64) -> (Vec<Arc<Event>>, Option<RunCompletion>) {
        let events = self.events.iter().filter(|event| event.seq >= below).cloned().collect();
        (events, self.completion.clone())
    }
}
