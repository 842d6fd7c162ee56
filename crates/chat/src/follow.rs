//! The order of a session's events, including events that were missed and read again.
//!
//! Invariants: every event is returned once, in order; events that arrive while missed ones are read wait for
//! them, and transient ones that are older than what was read are dropped; what is missing again meanwhile is read, too;
//! when a run is joined midway, the events of its snapshot are not returned again.

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
    /// Whether events are missing that may be newer than what is being read.
    misses_more: bool,
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
        Self { seen: told.seq, told: Some(told), ..Self::default() }
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
            self.misses_more = true;
            return None;
        }
        self.held = Some(Vec::new());
        Some(self.next())
    }

    /// Takes the missed events. Returns them and the events that waited for them, and the number to read from next, if
    /// more are missing: then the waiting ones wait on.
    pub(crate) fn missed(&mut self, events: Vec<Event>) -> (Vec<Arc<Event>>, Option<u64>) {
        let misses_more = std::mem::take(&mut self.misses_more);
        let held = if misses_more { None } else { self.held.take() };
        let all = events.into_iter().map(Arc::new).chain(held.unwrap_or_default());
        let given = all.filter(|event| self.is_new(event)).collect();
        (given, misses_more.then(|| self.next()))
    }

    fn next(&self) -> u64 {
        self.seen.map_or(0, |seen| seen + 1)
    }

    fn is_new(&mut self, event: &Event) -> bool {
        if !event.is_durable() {
            let is_past = self.seen.is_some_and(|seen| event.seq < seen);
            return !is_past && !self.told.as_ref().is_some_and(|told| told.contains(event));
        }
        let is_new = self.seen.is_none_or(|seen| event.seq > seen);
        if is_new {
            self.seen = Some(event.seq);
        }
        is_new
    }
}
