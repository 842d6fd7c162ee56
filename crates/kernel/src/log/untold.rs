//! The compactions that no reply has told yet.
//!
//! Invariants: there are never more than a reply tells; a run that is completed has told all of them.

use std::collections::VecDeque;

use crate::entry::{CompactionEnded, EntryKind, RunOutcome};

/// The newest compactions that ended since a run was completed, oldest first: its reply told those before.
#[derive(Debug, Clone, Default)]
pub struct UntoldCompactions(VecDeque<CompactionEnded>);

impl UntoldCompactions {
    /// The most that one reply tells.
    const MAX: usize = 32;

    /// Takes note of the session's next entry.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of compactions")]
    pub fn follow(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::CompactionEnded(ended) => {
                if self.0.len() == Self::MAX {
                    self.0.pop_front();
                }
                self.0.push_back(ended.clone());
            }
            EntryKind::RunEnded { outcome: RunOutcome::Completed, .. } => self.0.clear(),
            _ => {}
        }
    }

    /// Them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &CompactionEnded> {
        self.0.iter()
    }
}
