//! A compaction as programs ask for it, hear of it and have a say in it.
//!
//! Invariants: what `compact` gives, what the hooks are told and what the event `compaction_end` says is one value.

use std::sync::Arc;

use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::entry::{CompactionEnded, CompactionOutcome, Entry, EntryId, Trigger};
use greenroom_kernel::message::Usage;
use greenroom_kernel::plan::Plan;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_tools::CompactionRequests;
use serde::{Deserialize, Serialize};

pub use greenroom_kernel::settings::CompactOptions;

/// How a compaction ended. Not every one changes the context: there may have been nothing to do, or no summary to be had.
/// [`is_installed`](Self::is_installed) tells, and [`outcome`](Self::outcome) says why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[must_use = "it may have changed nothing: see `is_installed`"]
#[non_exhaustive]
pub struct Compacted {
    /// The `entry_id` of its `compaction_start`; `None` where there was nothing to do, so that none was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<EntryId>,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// How it ended, and why where nothing was installed.
    #[serde(flatten)]
    pub outcome: CompactionOutcome,
    /// The compaction's entry, where one was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    /// The context before, in tokens.
    pub tokens_before: u64,
    /// The context after, in tokens; the same as before where nothing was installed.
    pub tokens_after: u64,
    /// How many messages it had before.
    pub messages_before: u64,
    /// How many messages it has after.
    pub messages_after: u64,
    /// How many messages were replaced.
    pub messages_removed: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What its model calls used.
    pub summary_usage: Usage,
    /// What they cost, in micro-dollars; `None` where the price is not known.
    pub cost_microdollars: Option<u64>,
}

impl From<&CompactionEnded> for Compacted {
    fn from(ended: &CompactionEnded) -> Self {
        Self {
            started: Some(ended.started),
            trigger: ended.trigger,
            outcome: ended.outcome.clone(),
            entry_id: ended.entry,
            tokens_before: ended.tokens_before,
            tokens_after: ended.tokens_after,
            messages_before: ended.messages_before,
            messages_after: ended.messages_after,
            messages_removed: ended.messages_removed,
            duration_ms: ended.duration_ms,
            summary_usage: ended.summary_usage,
            cost_microdollars: ended.cost_microdollars,
        }
    }
}

/// Compactions as a reply tells them.
pub(crate) fn told_compactions<'a>(ended: impl IntoIterator<Item = &'a CompactionEnded>) -> Vec<Compacted> {
    ended.into_iter().map(Compacted::from).collect()
}

impl Compacted {
    /// Why nothing was installed, as a clause for the run that needed it; `None` where something was, or where there was
    /// nothing to do.
    pub(crate) fn why_not(&self) -> Option<String> {
        match &self.outcome {
            CompactionOutcome::Cancelled { reason } => {
                Some(format!("the compaction was cancelled: {reason}"))
            }
            CompactionOutcome::Failed { reason } => Some(format!("the compaction failed: {reason}")),
            CompactionOutcome::Superseded | CompactionOutcome::Interrupted => {
                Some("the compaction was interrupted".to_owned())
            }
            CompactionOutcome::Nothing { .. }
            | CompactionOutcome::Completed
            | CompactionOutcome::Truncated { .. }
            | CompactionOutcome::Pruned { .. }
            | CompactionOutcome::Unknown
            | _ => None,
        }
    }

    /// Whether the context changed. One that did not has its reason in [`Self::outcome`].
    pub fn is_installed(&self) -> bool {
        self.outcome.is_installed()
    }
}

/// A compaction that is planned and has not begun to summarise, as a `before_compact` hook is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionProposal {
    /// The session's id.
    pub session: Arc<str>,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// What who asked for it wants: the focus, how much to keep, and `force`. The defaults where nobody said anything.
    pub options: CompactOptions,
    /// The session's settings as they are now.
    pub settings: Arc<CompactionSettings>,
    /// What is to be summarised and what is kept.
    pub plan: Arc<Plan>,
    /// For asking for another compaction, later.
    pub compaction: CompactionRequests,
}

/// A compaction that is over, as an `after_compact` or `compact_failed` hook is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionReport {
    /// The session's id.
    pub session: Arc<str>,
    /// How it ended.
    pub end: Compacted,
    /// The entry that was installed, with the summary; `None` where nothing was.
    pub entry: Option<Arc<Entry>>,
    /// What who asked for it wanted.
    pub options: CompactOptions,
    /// The session's settings as they were at its end.
    pub settings: Arc<CompactionSettings>,
    /// For asking for another compaction. A request after which no message came is dropped, so that a hook which always
    /// asks for one is no loop.
    pub compaction: CompactionRequests,
}

/// What a hook decides before a compaction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeCompact {
    /// Go on.
    Continue,
    /// Do not compact, and say why.
    Cancel(String),
    /// Take this summary and ask no model.
    Supply(Supplied),
}
