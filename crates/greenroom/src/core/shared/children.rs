//! The sub-agents of a session's run, as the tasks of its calls see them.
//!
//! Invariants: two sub-agents of a run have different ids; a new run forgets those whose work is over; no run calls more
//! sub-agents than it may, those below included, however many call at the same time.

use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::ChildRecord;

use crate::core::child_work::ChildWork;
use crate::core::shared::SessionShared;
use crate::limits::spending::tree::Ledger;
use crate::values::error::Error;

#[cfg(test)]
mod tests;

/// The sub-agents of a run.
#[derive(Default)]
pub(super) struct Children {
    works: Vec<Arc<ChildWork>>,
    /// The ids of their sessions.
    ids: Vec<Arc<str>>,
    /// The starts of those that an earlier attempt at the run, or an earlier process, left waiting for a
    /// person.
    left: Vec<(EntryId, ChildRecord)>,
    /// The number of calls, including those below.
    count: u32,
    /// Calls that are counted, and have not begun.
    reserved: Vec<String>,
}

impl Children {
    /// Starts a run.
    pub(super) fn begin_run(&mut self) {
        self.works.retain(|child| !child.is_over());
        self.ids.clear();
        self.count = 0;
        self.reserved.clear();
    }

    /// Returns the sub-agents in the order of their starts.
    pub(super) fn works(&self) -> &[Arc<ChildWork>] {
        &self.works
    }

    pub(super) fn add(&mut self, child: &Arc<ChildWork>) {
        self.works.push(Arc::clone(child));
    }

    /// Counts a call, if there are fewer than `max`.
    fn count_one(&mut self, max: u32) -> bool {
        let has_room = self.count < max;
        self.count += u32::from(has_room);
        has_room
    }

    fn uncount_one(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Removes the reservation of a call; returns false if there is none.
    fn take_reserved(&mut self, call_id: &str) -> bool {
        let place = self.reserved.iter().position(|reserved| reserved == call_id);
        place.map(|place| self.reserved.swap_remove(place)).is_some()
    }

    /// Reserves an id for a sub-agent's session; returns false if another one of the run has it.
    pub(super) fn take_id(&mut self, id: &Arc<str>) -> bool {
        let is_free = !self.ids.contains(id);
        if is_free {
            self.ids.push(Arc::clone(id));
        }
        is_free
    }

    pub(super) fn set_left(&mut self, left: Vec<(EntryId, ChildRecord)>) {
        self.left = left;
    }

    /// Takes the start of the sub-agent that was left with this call, and the work on it, if it was left in
    /// this process.
    pub(super) fn take_left(
        &mut self,
        call_id: &str,
    ) -> Option<(EntryId, ChildRecord, Option<Arc<ChildWork>>)> {
        let place = self.left.iter().position(|(_, child)| child.call_id == call_id)?;
        let (started, child) = self.left.remove(place);
        let work = self.works.iter().rev().find(|work| *work.shared.id == *child.session).map(Arc::clone);
        Some((started, child, work))
    }
}

/// A call that is counted before it begins. Dropping this counts it no longer, unless it has begun.
pub(crate) struct ReservedChild {
    /// The session, and those above it.
    chain: Vec<Arc<SessionShared>>,
    call_id: String,
}

impl Drop for ReservedChild {
    fn drop(&mut self) {
        if self.chain.first().is_some_and(|session| session.children.lock().take_reserved(&self.call_id)) {
            uncount(&self.chain);
        }
    }
}

impl SessionShared {
    /// Counts the call of a sub-agent before its task starts, because tasks start in any order: the first calls of an
    /// answer come first. Returns `None` if that is not possible, or if the call continues one that was counted.
    pub(crate) fn reserve_child(
        self: &Arc<Self>,
        ledger: &Ledger<Self>,
        call_id: &str,
    ) -> Option<ReservedChild> {
        if self.children.lock().left.iter().any(|(_, child)| child.call_id == call_id) {
            return None;
        }
        let chain = ledger.chain(self);
        count(&chain).ok()?;
        self.children.lock().reserved.push(call_id.to_owned());
        Some(ReservedChild { chain, call_id: call_id.to_owned() })
    }

    /// Counts a sub-agent that is about to be called, here and at each session above, unless the call was reserved.
    ///
    /// # Errors
    /// [`Error::TooManySubAgents`] if the run of one of them may call no more. Then nothing is counted.
    pub(crate) fn count_child(self: &Arc<Self>, ledger: &Ledger<Self>, call_id: &str) -> Result<(), Error> {
        if self.children.lock().take_reserved(call_id) {
            return Ok(());
        }
        count(&ledger.chain(self))
    }
}

/// Counts a call at each of these sessions, the nearest first. What is counted for a moment and then refused above would
/// be refused there for the others, too.
fn count(chain: &[Arc<SessionShared>]) -> Result<(), Error> {
    for (counted, session) in chain.iter().enumerate() {
        let max = session.agent().map_or(u32::MAX, |agent| agent.sub_agents_max);
        if !session.children.lock().count_one(max) {
            uncount(&chain[..counted]);
            return Err(Error::TooManySubAgents { max });
        }
    }
    Ok(())
}

fn uncount(chain: &[Arc<SessionShared>]) {
    chain.iter().for_each(|session| session.children.lock().uncount_one());
}
