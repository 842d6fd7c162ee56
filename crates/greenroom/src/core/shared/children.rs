//! The agents that a session's run called as tools, as those who work on the calls see them.
//!
//! Invariants: two children of a run have not the same id; a run that begins forgets those whose work is over.

use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::ChildRecord;

use crate::core::child_work::ChildWork;

/// The agents that a run called as tools.
#[derive(Default)]
pub(super) struct Children {
    works: Vec<Arc<ChildWork>>,
    /// The ids that were chosen for their sessions.
    ids: Vec<Arc<str>>,
    /// Those that an earlier attempt at the run, or an earlier process, left waiting for a person: their starts.
    left: Vec<(EntryId, ChildRecord)>,
    /// How many were called, those below included.
    count: u32,
}

impl Children {
    /// A run begins.
    pub(super) fn begin_run(&mut self) {
        self.works.retain(|child| !child.is_over());
        self.ids.clear();
        self.count = 0;
    }

    /// In the order of their starts.
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

    /// Takes an id for a child's session; `false` if another child of the run has it.
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

    /// The agent that was left with this call, and the work on it here, if it was left here.
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
