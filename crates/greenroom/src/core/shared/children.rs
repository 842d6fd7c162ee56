//! The sub-agents of a session's run, as the tasks of its calls see them.
//!
//! Invariants: two sub-agents of a run have different ids; a new run forgets those whose work is over.

use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::ChildRecord;

use crate::core::child_work::ChildWork;

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
}

impl Children {
    /// Starts a run.
    pub(super) fn begin_run(&mut self) {
        self.works.retain(|child| !child.is_over());
        self.ids.clear();
        self.count = 0;
    }

    /// Returns the sub-agents in the order of their starts.
    pub(super) fn works(&self) -> &[Arc<ChildWork>] {
        &self.works
    }

    pub(super) fn add(&mut self, child: &Arc<ChildWork>) {
        self.works.push(Arc::clone(child));
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn count_one(&mut self) {
        self.count += 1;
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
