//! The run of a sleeping session: the supervisor keeps it until the session's next actor takes it.
//!
//! Invariants: a run is parked at most once; the session's shared state says so as long as it is parked, and
//! its tools end with it.

use std::sync::Arc;

use greenroom_kernel::entry::EntryId;
use parking_lot::Mutex;

use super::first_reply::Repeats;
use super::in_use::KeptDefinitions;
use super::inbox::Inbox;
use super::open_compaction::OpenCompaction;
use super::questions::Askers;
use super::runs::Runs;
use crate::core::message::tell_all;
use crate::core::shared::SessionShared;
use crate::values::error::Error;

/// The run of a sleeping session, and its callers. Its tools continue in the meantime.
pub(crate) struct Suspended {
    /// Including the open one, as the agent handed it over.
    pub(super) runs: Runs,
    /// None is open; one may have been requested.
    pub(super) compaction: OpenCompaction,
    pub(super) inbox: Inbox,
    pub(super) opened_at: EntryId,
    pub(super) repeats: Repeats,
    pub(super) askers: Askers,
    pub(super) definitions: KeptDefinitions,
}

impl Suspended {
    /// Handles that the session cannot be woken: callers of its run, and of queued input, get the error.
    pub(crate) fn give_up(mut self, error: &Error) {
        if let Some(run) = self.runs.open_mut() {
            tell_all(run.take_callers(), || Err(error.clone()));
        }
        tell_all(self.inbox.into_waiting(), || Err(error.clone()));
        tell_all(self.repeats.into_waiting(), || Err(error.clone()));
    }

    /// Tells the callers of these items that they were withdrawn.
    fn tell_withdrawn(&mut self, session: &str, items: &[EntryId]) {
        for item in items {
            let mut waiting = self.inbox.take_waiting(*item);
            waiting.extend(self.repeats.take_waiting(*item));
            tell_all(waiting, || Err(Error::Withdrawn { session: session.to_owned() }));
        }
    }
}

/// The place for the run of one session. Clones are the same place.
#[derive(Clone, Default)]
pub(crate) struct ParkingPlace(Arc<Mutex<Option<Box<Suspended>>>>);

impl ParkingPlace {
    /// Parks a run, if there is one. Returns whether there is.
    pub(super) fn park(&self, run: Option<Box<Suspended>>) -> bool {
        let mut place = self.0.lock();
        *place = run;
        place.is_some()
    }

    /// Takes the run that continued while the session slept.
    pub(crate) fn take(&self, shared: &SessionShared) -> Option<Box<Suspended>> {
        let run = self.0.lock().take();
        shared.set_suspended(false);
        run
    }

    /// Tells the callers of these items that they were withdrawn from the log of a sleeping session.
    pub(super) fn tell_withdrawn(&self, session: &str, items: &[EntryId]) {
        if let Some(suspended) = self.0.lock().as_mut() {
            suspended.tell_withdrawn(session, items);
        }
    }
}
