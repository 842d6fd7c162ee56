//! Compactions in the API: requests, hooks and results.
//!
//! Invariants: the result of `compact`, the hooks and the event `compaction_end` have the same data.

use std::sync::Arc;

use greenroom_kernel::carried::FactRecall;
use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::entry::{CompactionEnded, CompactionOutcome, Entry, EntryId, Trigger};
use greenroom_kernel::message::Usage;
use greenroom_kernel::plan::Plan;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_tools::CompactionRequests;
use serde::{Deserialize, Serialize};

pub use greenroom_kernel::settings::CompactOptions;

/// The result of a compaction. It may leave the context unchanged: because there was nothing to do, or
/// because no summary could be made. [`is_installed`](Self::is_installed) tells which, and
/// [`outcome`](Self::outcome) has the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[must_use = "it may have changed nothing: see `is_installed`"]
#[non_exhaustive]
pub struct Compacted {
    /// The `entry_id` of its `compaction_start`; `None` if there was nothing to do, and so no such event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<EntryId>,
    /// Why the compaction started.
    pub trigger: Trigger,
    /// How the compaction ended, and the reason if nothing was installed.
    #[serde(flatten)]
    pub outcome: CompactionOutcome,
    /// The entry of the installed compaction, if one was installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    /// The context's size before, in tokens.
    pub tokens_before: u64,
    /// The context's size after, in tokens; unchanged if nothing was installed.
    pub tokens_after: u64,
    /// The number of messages before.
    pub messages_before: u64,
    /// The number of messages after.
    pub messages_after: u64,
    /// The number of replaced messages.
    pub messages_removed: u64,
    /// The duration, in milliseconds.
    pub duration_ms: u64,
    /// How long a run, a caller or queued input waited for it, in milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
    /// How long it was prepared in the background before it started, in milliseconds; `None` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_ms: Option<u64>,
    /// The usage of its model calls.
    pub summary_usage: Usage,
    /// The cost of its model calls, in micro-dollars; `None` if the price is unknown.
    pub cost_microdollars: Option<u64>,
    /// How many of the facts in what was replaced are in the new context: without the ledger (`before`), and with it
    /// (`after`). `None` if nothing was replaced, or without a ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<FactRecall>,
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
            waited_ms: ended.waited_ms,
            prepared_ms: ended.prepared_ms,
            summary_usage: ended.summary_usage,
            cost_microdollars: ended.cost_microdollars,
            recall: ended.recall,
        }
    }
}

/// Returns the compactions for a reply.
pub(crate) fn told_compactions<'a>(ended: impl IntoIterator<Item = &'a CompactionEnded>) -> Vec<Compacted> {
    ended.into_iter().map(Compacted::from).collect()
}

impl Compacted {
    /// Returns why nothing was installed, as a clause for the run that needed it; `None` if a compaction was
    /// installed, or there was nothing to do.
    pub(crate) fn why_not(&self) -> Option<String> {
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others are no failures")]
        match &self.outcome {
            CompactionOutcome::Cancelled { reason } => {
                Some(format!("the compaction was cancelled: {reason}"))
            }
            CompactionOutcome::Failed { reason } => Some(format!("the compaction failed: {reason}")),
            CompactionOutcome::Superseded | CompactionOutcome::Interrupted => {
                Some("the compaction was interrupted".to_owned())
            }
            _ => None,
        }
    }

    /// Whether the context changed. If not, [`Self::outcome`] has the reason.
    pub fn is_installed(&self) -> bool {
        self.outcome.is_installed()
    }
}

/// A planned compaction, before its summary, as a `before_compact` hook gets it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionProposal {
    /// The session's id.
    pub session: Arc<str>,
    /// Why the compaction is due.
    pub trigger: Trigger,
    /// The options of the request: the focus, how much to keep, and `force`; the defaults if there was no
    /// request.
    pub options: CompactOptions,
    /// The session's current settings.
    pub settings: Arc<CompactionSettings>,
    /// The part to summarise, and the part to keep.
    pub plan: Arc<Plan>,
    /// The entries with which the kept part may begin, oldest first: those that
    /// [`Supplied::first_kept`] may name. An early one may keep too much.
    pub cuts: Arc<[EntryId]>,
    /// Requests another compaction, later.
    pub compaction: CompactionRequests,
}

/// A finished compaction, as an `after_compact` or `compact_failed` hook gets it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompactionReport {
    /// The session's id.
    pub session: Arc<str>,
    /// The result.
    pub end: Compacted,
    /// The installed entry with the summary; `None` if nothing was installed.
    pub entry: Option<Arc<Entry>>,
    /// The options of the request.
    pub options: CompactOptions,
    /// The session's settings at its end.
    pub settings: Arc<CompactionSettings>,
    /// Requests another compaction. A request is ignored unless new messages have arrived, so a hook cannot
    /// loop.
    pub compaction: CompactionRequests,
}

/// A hook's decision before a compaction.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeCompact {
    /// Compact as planned.
    Continue,
    /// Do not compact, for this reason.
    Cancel(String),
    /// Compact as planned, with this focus for the summary in addition to that of the request.
    Focus(String),
    /// Use this summary instead of asking a model. One that is empty, or that leaves the context too large, fails the
    /// compaction with a reason that has the sizes; at the window, a model is asked instead.
    Supply(Supplied),
    /// Go on as if the hook were not there: it could not decide, for this reason, which becomes a warning.
    Skip(String),
}
