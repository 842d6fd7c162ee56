//! The order of a session's published events.
//!
//! Invariants: a durable event is published once, in the order of the log; a transient one has the number of
//! the newest durable event before it, and a count since then; each start has its end before the end of what
//! contains it.

use greenroom_kernel::RunId;

use crate::events::activity::{Activity, Tracked};
use crate::events::event::EventKind;
use crate::events::pairs::Pairs;

#[cfg(test)]
mod tests;

/// The position of a session's published events.
#[derive(Debug, Default)]
pub(super) struct Broadcast {
    /// When the session was created, in Unix milliseconds; 0 before an actor knew.
    created_at_ms: u64,
    /// The sequence number of the next durable event.
    next: u64,
    /// The number of transient events since the last durable one.
    transient: u64,
    /// The starts without an end.
    pairs: Pairs,
    /// The work in progress.
    tracked: Tracked,
    /// Whether an actor read the log before: then the events before its end were published, or are due.
    was_opened: bool,
    /// Whether the session's actor ended with every event published.
    is_flushed: bool,
}

/// The position of a transient event: the `n`-th after the durable event `seq`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) n: u64,
}

/// The end of an answer that is discarded, and its position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Discarded {
    pub(super) place: Place,
    pub(super) run: RunId,
}

/// The work in progress that the log does not contain yet.
#[derive(Debug, PartialEq)]
pub(super) struct Unrecorded {
    /// The newest durable event; `None` before the first.
    pub(super) seq: Option<u64>,
    /// The number of transient events after it.
    pub(super) n: u64,
    pub(super) run: Option<RunId>,
    /// The events, with their times in Unix milliseconds.
    pub(super) events: Vec<(u64, EventKind)>,
}

impl Broadcast {
    /// Creates the state for a session that no actor has read yet. `unpublished` is the first unpublished
    /// durable event of an earlier shared state that was dropped.
    pub(super) fn new(unpublished: Option<u64>) -> Self {
        Self { next: unpublished.unwrap_or(0), was_opened: unpublished.is_some(), ..Self::default() }
    }

    /// The sequence number of the next event to publish: all before it were published.
    pub(super) fn below(&self) -> u64 {
        self.next
    }

    /// The run in progress, as published.
    pub(super) fn run(&self) -> Option<RunId> {
        self.pairs.run()
    }

    /// Returns when the session was created, in Unix milliseconds; `None` before an actor knew.
    pub(super) fn created_at_ms(&self) -> Option<u64> {
        Some(self.created_at_ms).filter(|created_at_ms| *created_at_ms > 0)
    }

    /// Returns the first durable event that may be unpublished; `None` if all were published, or nothing was
    /// ever read.
    pub(super) fn first_unpublished(&self) -> Option<u64> {
        (self.was_opened && !self.is_flushed).then_some(self.next)
    }

    /// Notes that the session ends cleanly, with every durable event published.
    pub(super) fn mark_flushed(&mut self) {
        self.is_flushed = true;
    }

    /// Notes that the session was read from its log, which has `entries` entries. Returns the first one whose
    /// event is unpublished because an earlier actor crashed.
    pub(super) fn start(&mut self, entries: u64, created_at_ms: u64) -> Option<u64> {
        let was_flushed = std::mem::take(&mut self.is_flushed);
        // A new session may have the id of a deleted one.
        let is_same = self.created_at_ms == 0 || self.created_at_ms == created_at_ms;
        let goes_on = !was_flushed && is_same && self.next <= entries;
        self.created_at_ms = created_at_ms;
        if std::mem::replace(&mut self.was_opened, true) && goes_on {
            return Some(self.next).filter(|next| *next < entries);
        }
        self.goes_on_at(entries);
        None
    }

    /// Returns the current activity, as published.
    pub(super) fn activity(&self) -> Activity {
        self.tracked.activity()
    }

    /// Returns the work in progress that the log does not contain yet; `None` if no actor has read the log,
    /// so its end is unknown.
    pub(super) fn unrecorded(&self) -> Option<Unrecorded> {
        self.was_opened.then(|| Unrecorded {
            seq: self.next.checked_sub(1),
            n: self.transient,
            run: self.run(),
            events: self.tracked.events(),
        })
    }

    /// Applies a durable event that is about to be published. Returns whether it is still due, and the end of an
    /// answer to publish before it.
    pub(super) fn durable(
        &mut self,
        seq: u64,
        run: Option<RunId>,
        kind: &EventKind,
        at_ms: u64,
    ) -> (bool, Option<Discarded>) {
        if seq < self.next {
            return (false, None);
        }
        let discarded = self.pairs.admit(run, kind).discarded;
        let discarded = discarded.map(|run| Discarded { place: self.next_place(), run });
        self.tracked.follow(kind, || at_ms);
        self.goes_on_at(seq + 1);
        (true, discarded)
    }

    /// Applies a transient event that is about to be published. Returns the end of an answer to publish before it, and
    /// its own position, unless its subject is over.
    pub(super) fn transient(
        &mut self,
        run: Option<RunId>,
        kind: &EventKind,
        now_ms: impl FnOnce() -> u64,
    ) -> (Option<Discarded>, Option<Place>) {
        let admitted = self.pairs.admit(run, kind);
        let discarded = admitted.discarded.map(|run| Discarded { place: self.next_place(), run });
        let itself = admitted.itself.then(|| {
            self.tracked.follow(kind, now_ms);
            self.next_place()
        });
        (discarded, itself)
    }

    fn next_place(&mut self) -> Place {
        self.transient += 1;
        Place { seq: self.next.saturating_sub(1), n: self.transient }
    }

    /// Notes that all events before `next` were published.
    fn goes_on_at(&mut self, next: u64) {
        if self.next != next {
            (self.next, self.transient) = (next, 0);
        }
    }
}
