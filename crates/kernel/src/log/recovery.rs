//! Closing what a crash left open.
//!
//! Invariants: after a recovery, each call of the path has a result, and each started run and compaction has
//! an end; work that waits for people stays open.

use super::{Draft, Log};
use crate::entry::{CompactionEnded, CompactionOutcome, RunId, RunOutcome};
use crate::message::{ToolCall, ToolResult, Usage};
use crate::path::open_calls;
use crate::run::NOT_BEGUN;
use crate::usage::ContextUsage;

impl Log {
    /// Returns a draft that closes the open calls, run and compaction after a crash; `None` if nothing is
    /// open.
    pub fn recovery(&self, at_ms: u64, context: ContextUsage) -> Option<Box<Draft>> {
        let mut draft = self.draft(at_ms);
        draft.close_calls(&open_calls(&self.path));
        draft.close_compaction(self);
        if let Some(run) = self.head.open_run {
            draft.end_run(run, RunOutcome::Interrupted, context);
            // If the complete answer was recorded, the run has nothing left to do.
            let is_unfinished = self.unanswered().is_some() || !open_calls(&self.path).is_empty();
            draft.set_interrupted(Some(run).filter(|_| is_unfinished));
        }
        (!draft.is_empty()).then_some(draft)
    }

    /// Like [`Self::recovery`], for a session whose run waits for people and continues: calls that have asked
    /// stay open. `runs_alone` tells whether a call's tool runs beside no other.
    pub fn recovery_of_waiting(&self, at_ms: u64, runs_alone: impl Fn(&ToolCall) -> bool) -> Box<Draft> {
        let mut draft = self.draft(at_ms);
        draft.results(self.cut_off_results(runs_alone));
        draft.close_compaction(self);
        draft.expire_questions();
        draft
    }

    /// Returns a draft that ends this run, which waits for people, because it was aborted before anything continued it;
    /// `None` if it does not wait, or a sub-agent works for it, whose session has its own end. A call of which only a hook
    /// has asked has not begun.
    pub fn abort_of_waiting(&self, run: RunId, at_ms: u64, context: ContextUsage) -> Option<Box<Draft>> {
        if self.head.open_run != Some(run) || !self.is_waiting() || !self.children.is_empty() {
            return None;
        }
        let mut draft = self.draft(at_ms);
        let has_not_begun =
            |call: &ToolCall| self.questions.has_asked(&call.id) && !self.questions.may_have_begun(&call.id);
        draft.results(open_calls(&self.path).iter().map(|call| match has_not_begun(call) {
            true => ToolResult::not_run(call, NOT_BEGUN),
            false => ToolResult::interrupted(call),
        }));
        draft.close_compaction(self);
        draft.end_run(run, RunOutcome::Aborted, context);
        Some(draft)
    }

    /// Returns the end of a compaction that no actor performs any more.
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
            waited_ms: 0,
            prepared_ms: None,
            summary_usage: Usage::default(),
            cost_microdollars: None,
            recall: None,
        })
    }
}
