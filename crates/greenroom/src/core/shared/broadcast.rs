//! In which order a session's events are published, and which of them were.
//!
//! Invariants: a durable event is published once, in the order of the log; a transient one has the number of the newest
//! durable one before it, and counts on from there; what began is ended before what ends with it.

use greenroom_kernel::RunId;

use crate::events::activity::{Activity, Tracked};
use crate::events::event::EventKind;
use crate::events::pairs::Pairs;

#[cfg(test)]
mod tests;

/// How far a session's events were published.
#[derive(Debug, Default)]
pub(super) struct Broadcast {
    /// When the session was created, in unix milliseconds; 0 before an actor knew.
    created_at_ms: u64,
    /// The sequence number of the next durable event.
    next: u64,
    /// How many transient events followed the last durable one.
    transient: u64,
    /// What began and has not ended.
    pairs: Pairs,
    /// What goes on.
    tracked: Tracked,
    /// Whether an actor read the log before: then the events before its end were published, or are due.
    was_opened: bool,
    /// Whether the session's actor ended with every event published.
    is_flushed: bool,
}

/// A transient event and its place: the `n`-th after the durable event `seq`.
#[derive(Debug, PartialEq)]
pub(super) struct Placed {
    pub(super) seq: u64,
    pub(super) n: u64,
    pub(super) run: Option<RunId>,
    pub(super) kind: EventKind,
}

/// What goes on that no entry says yet.
#[derive(Debug, PartialEq)]
pub(super) struct Unrecorded {
    /// The newest durable event; `None` before the first.
    pub(super) seq: Option<u64>,
    /// How many transient ones followed it.
    pub(super) n: u64,
    pub(super) run: Option<RunId>,
    /// With their times, in unix milliseconds.
    pub(super) events: Vec<(u64, EventKind)>,
}

impl Broadcast {
    /// Of a session that no actor has read yet. `unpublished` is the first durable event that is still due, where what was
    /// shared of the session before was given up.
    pub(super) fn new(unpublished: Option<u64>) -> Self {
        Self { next: unpublished.unwrap_or(0), was_opened: unpublished.is_some(), ..Self::default() }
    }

    /// The next sequence number to be published: everything below it was.
    pub(super) fn below(&self) -> u64 {
        self.next
    }

    /// The run that is going on, as far as it was told.
    pub(super) fn run(&self) -> Option<RunId> {
        self.pairs.run()
    }

    /// When the session was created, in unix milliseconds; `None` before an actor knew.
    pub(super) fn created_at_ms(&self) -> Option<u64> {
        Some(self.created_at_ms).filter(|created_at_ms| *created_at_ms > 0)
    }

    /// The first durable event that may still be due; `None` where all were published, or nothing was ever read.
    pub(super) fn first_unpublished(&self) -> Option<u64> {
        (self.was_opened && !self.is_flushed).then_some(self.next)
    }

    /// The session ends in order, and every durable event was published.
    pub(super) fn mark_flushed(&mut self) {
        self.is_flushed = true;
    }

    /// The session was read from its log, which has `entries` entries. Gives the first one whose event was not published,
    /// if an actor before this one died before it could be.
    pub(super) fn start(&mut self, entries: u64, created_at_ms: u64) -> Option<u64> {
        let was_flushed = std::mem::take(&mut self.is_flushed);
        // A session that was deleted may have another one of the same id in its place.
        let is_same = self.created_at_ms == 0 || self.created_at_ms == created_at_ms;
        let goes_on = !was_flushed && is_same && self.next <= entries;
        self.created_at_ms = created_at_ms;
        if std::mem::replace(&mut self.was_opened, true) && goes_on {
            return Some(self.next).filter(|next| *next < entries);
        }
        self.goes_on_at(entries);
        None
    }

    /// What goes on, as far as it was published.
    pub(super) fn activity(&self) -> Activity {
        self.tracked.activity()
    }

    /// What goes on that no entry says yet; `None` where no actor has read the log, so that nobody knows how far that is.
    pub(super) fn unrecorded(&self) -> Option<Unrecorded> {
        self.was_opened.then(|| Unrecorded {
            seq: self.next.checked_sub(1),
            n: self.transient,
            run: self.run(),
            events: self.tracked.events(),
        })
    }

    /// A durable event is about to be published. Gives whether it is still due, and what must be published before it.
    pub(super) fn durable(
        &mut self,
        seq: u64,
        run: Option<RunId>,
        kind: &EventKind,
        at_ms: u64,
    ) -> (bool, Option<Placed>) {
        if seq < self.next {
            return (false, None);
        }
        let first = self.pairs.admit(run, kind).first;
        let first = first.map(|(run, kind)| self.place(Some(run), kind));
        self.tracked.follow(kind, || at_ms);
        self.goes_on_at(seq + 1);
        (true, first)
    }

    /// A transient event of this run, or of none, is about to be published. Gives what must be published before it, and the
    /// event, unless what it is about is over.
    pub(super) fn transient(
        &mut self,
        run: Option<RunId>,
        kind: EventKind,
        now_ms: impl FnOnce() -> u64,
    ) -> [Option<Placed>; 2] {
        let admitted = self.pairs.admit(run, &kind);
        let first = admitted.first.map(|(run, kind)| self.place(Some(run), kind));
        let itself = admitted.itself.then(|| {
            self.tracked.follow(&kind, now_ms);
            self.place(run, kind)
        });
        [first, itself]
    }

    fn place(&mut self, run: Option<RunId>, kind: EventKind) -> Placed {
        self.transient += 1;
        Placed { seq: self.next.saturating_sub(1), n: self.transient, run, kind }
    }

    /// Everything below `next` was published.
    fn goes_on_at(&mut self, next: u64) {
        if self.next != next {
            (self.next, self.transient) = (next, 0);
        }
    }
}
