//! The order of a session's events, including events that were missed and read again.
//!
//! Invariants: every event is returned once, in order; events that arrive while missed ones are read wait for
//! them; when a run is joined midway, the events of its snapshot are not returned again.

use std::sync::Arc;

use greenroom::{Event, InProgress};

#[cfg(test)]
mod tests;

/// The position in a session's events.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    /// The newest durable event that was returned.
    seen: Option<u64>,
    /// The events that wait for missed ones; `None` if none are being read.
    held: Option<Vec<Arc<Event>>>,
    /// The snapshot of the work in progress at the time of joining.
    told: Option<InProgress>,
}

impl Follow {
    /// Starts after the durable event with this number.
    pub(crate) fn after(seen: Option<u64>) -> Self {
        Self { seen, ..Self::default() }
    }

    /// Starts after this snapshot of the work in progress.
    pub(crate) fn within(told: InProgress) -> Self {
        Self { seen: told.seq, held: None, told: Some(told) }
    }

    /// Takes an event, and returns it if its turn has come.
    pub(crate) fn event(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        if let Some(held) = &mut self.held {
            held.push(event);
            return None;
        }
        self.is_new(&event).then_some(event)
    }

    /// Notes that events are missing. Returns the first number to read from, unless they are being read
    /// already.
    pub(crate) fn gap(&mut self) -> Option<u64> {
        if self.held.is_some() {
            return None;
        }
        self.held = Some(Vec::new());
        Some(self.seen.map_or(0, |seen| seen + 1))
    }

    /// Takes the missed events. Returns them and the events that waited for them.
    pub(crate) fn missed(&mut self, events: Vec<Event>) -> Vec<Arc<Event>> {
        let held = self.held.take().unwrap_or_default();
        let all = events.into_iter().map(Arc::new).chain(held);
        all.filter(|event| self.is_new(event)).collect()
    }

    fn is_new(&mut self, event: &Event) -> bool {
        if !event.is_durable() {
            return !self.told.as_ref().is_some_and(|told| told.contains(event));
        }
        let is_new = self.seen.is_none_or(|seen| event.seq > seen);
        if is_new {
            self.seen = Some(event.seq);
        }
        is_new
    }
}
