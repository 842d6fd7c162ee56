//! This node's data about the sessions that it owns.
//!
//! Invariants: one operation of a session that writes goes on at a time. A session that was lost stays lost until it is
//! claimed again: no append goes through in between.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// A session that this node owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    /// The node's incarnation that owns it.
    pub(crate) incarnation: i64,
    pub(crate) epoch: i64,
    /// The number of its entries that are acknowledged.
    pub(crate) entries: i64,
    /// The number of its entries that its row counts.
    pub(crate) before: i64,
    /// What its row shows to lists, as [`Work::shown`](crate::batch::Work::shown); `None` if that is not known.
    pub(crate) shown: Option<u64>,
    /// The partition of its entries.
    pub(crate) part: i64,
    /// The newest connection when all this was last compared with the tables.
    pub(crate) checked: u64,
}

/// A session, as this node knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// Not asked yet, or given back.
    #[default]
    Unknown,
    Owned(Owned),
    /// It may be this node's, and a write to it may still be on its way.
    Doubt,
    /// It was this node's, and belongs to another one, or to none.
    Lost,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    turn: Arc<Turn<()>>,
}

impl Slot {
    pub(crate) fn state(&self) -> State {
        *self.state.lock()
    }

    pub(crate) fn set(&self, state: State) {
        *self.state.lock() = state;
    }

    /// Notes that a write begins. If what is returned is dropped before its end, the session is in doubt.
    pub(crate) fn doubt_unless_ended(self: &Arc<Self>) -> Doubt {
        Doubt(Some(Arc::clone(self)))
    }

    /// Waits until no other operation writes to the session.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }
}

/// A write that has begun.
pub(crate) struct Doubt(Option<Arc<Slot>>);

impl Doubt {
    /// Notes that the outcome is known.
    pub(crate) fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.set(State::Doubt);
        }
    }
}

/// All sessions that this node owns or has lost, and those that it is asking for.
#[derive(Debug, Default)]
pub(crate) struct Slots(Mutex<HashMap<String, Arc<Slot>>>);

impl Slots {
    pub(crate) fn of(&self, session: &str) -> Arc<Slot> {
        let mut slots = self.0.lock();
        match slots.get(session) {
            Some(slot) => Arc::clone(slot),
            None => Arc::clone(slots.entry(session.to_owned()).or_default()),
        }
    }

    /// What this node knows of the session.
    pub(crate) fn state(&self, session: &str) -> State {
        self.0.lock().get(session).map_or(State::Unknown, |slot| slot.state())
    }

    /// Forgets the session if nothing is known of it and nobody else uses the slot.
    pub(crate) fn done(&self, session: &str, slot: Arc<Slot>) {
        let mut slots = self.0.lock();
        if slot.state() == State::Unknown && Arc::strong_count(&slot) == 2 {
            slots.remove(session);
        }
        drop(slot);
    }

    /// The number of sessions that are remembered.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests;
