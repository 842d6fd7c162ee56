//! The compactions that no reply has reported yet.
//!
//! Invariants: they are never more than one reply reports; the reply of a completed run reports all of them.

use std::collections::VecDeque;

use crate::entry::{CompactionEnded, EntryKind, RunOutcome};

/// The newest compactions since a run was completed, oldest first. Its reply reported those before.
#[derive(Debug, Clone, Default)]
pub struct UntoldCompactions(VecDeque<CompactionEnded>);

impl UntoldCompactions {
    /// The maximum number of compactions in one reply.
    const MAX: usize = 32;

    /// Applies the session's next entry.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of compactions")]
    pub fn follow(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::CompactionEnded(ended) => {
                if self.0.len() == Self::MAX {
                    self.0.pop_front();
                }
                self.0.push_back((**ended).clone());
            }
            EntryKind::RunEnded { outcome: RunOutcome::Completed, .. } => self.0.clear(),
            _ => {}
        }
    }

    /// The compactions, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &CompactionEnded> {
        self.0.iter()
    }
}
