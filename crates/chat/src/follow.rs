//! The order of a session's events, also where some were missed and read again.
//!
//! Invariants: every event is given out once, in its order; what comes while missed events are read waits for them; what was
//! told of a run that is joined in its middle is not told again.

use std::sync::Arc;

use greenroom::{Event, InProgress};

#[cfg(test)]
mod tests;

/// What has been heard of a session.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    /// The newest durable event that was given out.
    seen: Option<u64>,
    /// What waits for missed events; `None` where none are read.
    held: Option<Vec<Arc<Event>>>,
    /// What went on when it was joined, which was told then.
    told: Option<InProgress>,
}

impl Follow {
    /// From the event after this one on.
    pub(crate) fn after(seen: Option<u64>) -> Self {
        Self { seen, ..Self::default() }
    }

    /// From the event after what went on already on.
    pub(crate) fn within(told: InProgress) -> Self {
        Self { seen: told.seq, held: None, told: Some(told) }
    }

    /// An event came. Gives it, if it is its turn.
    pub(crate) fn event(&mut self, event: Arc<Event>) -> Option<Arc<Event>> {
        if let Some(held) = &mut self.held {
            held.push(event);
            return None;
        }
        self.is_new(&event).then_some(event)
    }

    /// Events are missing here. Gives from which one on they are to be read, if that is not done already.
    pub(crate) fn gap(&mut self) -> Option<u64> {
        if self.held.is_some() {
            return None;
        }
        self.held = Some(Vec::new());
        Some(self.seen.map_or(0, |seen| seen + 1))
    }

    /// The missed events were read. Gives them, and what waited for them.
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
