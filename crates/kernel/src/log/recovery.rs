//! What a crash left open, and how it is closed.
//!
//! Invariants: after a recovery each call of the path has a result, each run and each compaction that began has its end; what
//! waits for people stays open.

use super::{Draft, Log};
use crate::entry::{CompactionEnded, CompactionOutcome, EntryKind, RunOutcome};
use crate::message::Usage;
use crate::path::open_calls;
use crate::usage::ContextUsage;

impl Log {
    /// What a crash left open, closed: calls without results, the run, the compaction. `None` if nothing is open.
    pub fn recovery(&self, at_ms: u64, context: ContextUsage) -> Option<Box<Draft>> {
        let mut draft = self.draft(at_ms);
        draft.close_calls(open_calls(&self.path));
        draft.close_compaction(self);
        if let Some(run) = self.head.open_run {
            draft.push(EntryKind::RunEnded { run, outcome: RunOutcome::Interrupted, context });
            // Where the whole answer was recorded, nothing is left to be done.
            let is_unfinished = self.unanswered().is_some() || !open_calls(&self.path).is_empty();
            draft.set_interrupted(Some(run).filter(|_| is_unfinished));
        }
        (!draft.is_empty()).then_some(draft)
    }

    /// As [`Self::recovery`], of a session whose run waits for people and goes on: the calls that have asked stay open.
    pub fn recovery_of_waiting(&self, at_ms: u64) -> Box<Draft> {
        let mut draft = self.draft(at_ms);
        draft.close_calls(self.calls_that_asked_nothing());
        draft.close_compaction(self);
        draft.expire_questions();
        draft
    }

    /// The end of a compaction that nobody runs any more.
    pub fn interrupted_compaction(&self) -> Option<CompactionEnded> {
        let (id, started) = self.open_compaction()?;
        Some(CompactionEnded {
            started: id,
            trigger: started.trigger,
            outcome: CompactionOutcome::Interrupted,
            entry: None,
            tokens_before: started.tokens_before,
            tokens_after: started.tokens_before,
            messages_before: started.messages_before,
            messages_after: started.messages_before,
            messages_removed: 0,
            duration_ms: 0,
            summary_usage: Usage::default(),
            cost_microdollars: None,
        })
    }
}
