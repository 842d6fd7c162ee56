//! The events, and the end of the newest run, that the agent has yet to publish for the session.
//!
//! Invariants: events that the agent may not have published are sent again to its successor.

use std::collections::VecDeque;

use crate::core::message::RunCompletion;
use crate::events::entry_events::Due;

#[cfg(test)]
mod tests;

/// The agent's unpublished events.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Durable events that the agent may not have published yet.
    events: VecDeque<Due>,
    /// The end of the newest run, until the agent has published it.
    completion: Option<RunCompletion>,
}

impl Outgoing {
    /// Creates the state with the events that an earlier actor did not publish.
    pub(super) fn missed(events: VecDeque<Due>) -> Self {
        Self { events, completion: None }
    }

    /// Adds events to publish; all before `below` were published.
    pub(super) fn add(&mut self, events: &[Due], below: u64) {
        self.events.retain(|event| event.entry.id.0 >= below);
        self.events.extend(events.iter().cloned());
    }

    /// Sets the end of the newest run, whose callers are answered after its events.
    pub(super) fn complete(&mut self, completion: RunCompletion) -> RunCompletion {
        self.completion.insert(completion).clone()
    }

    /// Returns the messages for the agent's successor; all events before `below` were published.
    pub(super) fn unheard(&self, below: u64) -> (Vec<Due>, Option<RunCompletion>) {
        let events = self.events.iter().filter(|event| event.entry.id.0 >= below).cloned().collect();
        (events, self.completion.clone())
    }
}
