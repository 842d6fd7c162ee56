//! Installing a compaction: a check against the current path, then one draft with the compaction's end and
//! its changes.
//!
//! Invariants: a compaction is installed only on the path that it was planned for. Its end comes first, so
//! its consequences are reported after it, and names the installed entry.

use std::sync::Arc;

use super::{Draft, Log};
use crate::compacting::{PruneSegment, Segment};
use crate::entry::{CompactionEnded, Entry, EntryId, EntryKind, Trigger};
use crate::path::ActivePath;

/// The data of a compaction's end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Installation {
    /// The entry of the compaction's start.
    pub started: EntryId,
    /// Why the compaction started.
    pub trigger: Trigger,
    /// The compaction's duration, in milliseconds.
    pub duration_ms: u64,
    /// How long a run, a caller or queued input waited for it, in milliseconds.
    pub waited_ms: u64,
    /// How long it was prepared before it started, in milliseconds; `None` if it was not.
    pub prepared_ms: Option<u64>,
    /// The cost of its model calls, in micro-dollars; `None` if the price is unknown.
    pub cost_microdollars: Option<u64>,
}

impl Log {
    /// Whether a segment may still be replaced: its base is the newest active compaction, it starts with the
    /// first active entry, and it ends directly before the first kept one.
    pub fn accepts(&self, segment: &Segment) -> bool {
        let active = ActivePath::of(&self.path);
        let place = |id: EntryId| place(active.entries(), id);
        active.compaction_id() == segment.base
            && place(segment.first) == Some(0)
            && place(segment.last).is_some_and(|last| place(segment.first_kept) == Some(last + 1))
    }

    /// Whether results may still be shortened: the base is the newest active compaction, and all these
    /// results are active.
    pub fn accepts_prune(&self, segment: &PruneSegment) -> bool {
        let active = ActivePath::of(&self.path);
        let is_active = |id: EntryId| place(active.entries(), id).is_some();
        active.compaction_id() == segment.base
            && segment.prune.results.iter().all(|result| is_active(result.entry))
    }

    /// Replaces a segment of the path, in the model's view, by its summary. Returns the draft and the
    /// compaction's end.
    pub fn install(
        &self,
        at_ms: u64,
        mut segment: Segment,
        installation: Installation,
    ) -> (Box<Draft>, CompactionEnded) {
        let Installation { started, trigger, duration_ms, waited_ms, prepared_ms, cost_microdollars } =
            installation;
        let compaction = &mut segment.compaction;
        compaction.previous = self.head.last_compaction;
        (compaction.duration_ms, compaction.cost_microdollars) = (duration_ms, cost_microdollars);
        let start = self.path.iter().position(|entry| Some(entry.id) == compaction.first_kept);
        let start = start.unwrap_or(self.path.len());
        let after = ActivePath { path: &self.path, compaction: Some(0), start };
        let mut draft = self.draft(at_ms);
        let entry = EntryId(draft.next_id().0 + 1 + u64::from(segment.prune.is_some()));
        let ended = CompactionEnded {
            started,
            trigger,
            outcome: segment.outcome,
            entry: Some(entry),
            tokens_before: compaction.tokens_before,
            tokens_after: compaction.tokens_after,
            messages_before: compaction.messages_before,
            messages_after: after.messages(&self.head.pins),
            messages_removed: compaction.messages_removed,
            duration_ms,
            waited_ms,
            prepared_ms,
            summary_usage: compaction.usage,
            cost_microdollars,
            recall: compaction.recall,
        };
        draft.push(EntryKind::CompactionEnded(Box::new(ended.clone())));
        if let Some(prune) = segment.prune {
            draft.push(EntryKind::Prune(prune));
        }
        let pushed = draft.push(EntryKind::Compaction(Box::new(segment.compaction)));
        assert_eq!(pushed, entry, "the end names the compaction's entry");
        (draft, ended)
    }

    /// Shortens tool results in the model's view. Returns the draft and the compaction's end.
    pub fn install_prune(
        &self,
        at_ms: u64,
        segment: PruneSegment,
        installation: Installation,
    ) -> (Box<Draft>, CompactionEnded) {
        let Installation { started, trigger, duration_ms, waited_ms, prepared_ms, cost_microdollars } =
            installation;
        let PruneSegment { prune, messages, outcome, usage, base: _ } = segment;
        let mut draft = self.draft(at_ms);
        let ended = CompactionEnded {
            started,
            trigger,
            outcome,
            entry: Some(EntryId(draft.next_id().0 + 1)),
            tokens_before: prune.tokens_before,
            tokens_after: prune.tokens_after,
            messages_before: messages,
            messages_after: messages,
            messages_removed: 0,
            duration_ms,
            waited_ms,
            prepared_ms,
            summary_usage: usage,
            cost_microdollars,
            recall: None,
        };
        draft.push(EntryKind::CompactionEnded(Box::new(ended.clone())));
        draft.push(EntryKind::Prune(Box::new(prune)));
        (draft, ended)
    }
}

/// Returns an entry's index in a path, whose ids are ascending.
fn place(entries: &[Arc<Entry>], id: EntryId) -> Option<usize> {
    entries.binary_search_by_key(&id, |entry| entry.id).ok()
}
