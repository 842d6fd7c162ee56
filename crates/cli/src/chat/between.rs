//! What happens in a chat's session while no run is played: compactions between runs, and warnings.
//!
//! Invariants: each event is told once, here or by the run that is played, whichever hears of it first.

use std::sync::Arc;

use greenroom::event::EventKind;
use greenroom::{Delivery, Event, EventType, Filter, Runtime, Subscription};

/// What is told between runs.
const TOLD: [EventType; 5] = [
    EventType::CompactionStart,
    EventType::CompactionEnd,
    EventType::Warning,
    EventType::SessionRestarted,
    EventType::SessionFailed,
];

/// The events of one session between its runs.
#[derive(Debug)]
pub(super) struct Between {
    events: Subscription,
    /// The place of the newest event that was told.
    told: Option<(u64, u64)>,
    /// The size of the context that is being compacted, in tokens.
    compacting: Option<u64>,
}

impl Between {
    /// From now on: before the session is opened, so that nothing of it is missed.
    pub(super) fn new(runtime: &Runtime, session: &str) -> Self {
        let events = runtime.subscribe(Filter::session(session).kinds(TOLD));
        Self { events, told: None, compacting: None }
    }

    /// Waits for the next event that was not told.
    pub(super) async fn next(&mut self) -> Arc<Event> {
        loop {
            match self.events.next().await {
                Some(Delivery::Event(event)) if self.is_new(&event) => return event,
                Some(Delivery::Event(_) | Delivery::Gap { .. }) => {}
                // The runtime ends, and so does the chat.
                None => std::future::pending().await,
            }
        }
    }

    /// The next event that came already and was not told.
    pub(super) fn next_now(&mut self) -> Option<Arc<Event>> {
        while let Some(delivery) = self.events.try_next() {
            if let Delivery::Event(event) = delivery
                && self.is_new(&event)
            {
                return Some(event);
            }
        }
        None
    }

    /// Whether an event is still to be told; from then on it counts as told.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events say nothing of compactions")]
    pub(super) fn is_new(&mut self, event: &Event) -> bool {
        if !TOLD.contains(&event.kind.event_type()) {
            return true;
        }
        let place = (event.seq, event.n.unwrap_or(0));
        if self.told.is_some_and(|told| place <= told) {
            return false;
        }
        self.told = Some(place);
        match &event.kind {
            EventKind::CompactionStart { tokens_before, .. } => self.compacting = Some(*tokens_before),
            EventKind::CompactionEnd(_) => self.compacting = None,
            _ => {}
        }
        true
    }

    /// The size of the context that is being compacted, in tokens, if one is.
    pub(super) fn compacting(&self) -> Option<u64> {
        self.compacting
    }
}
