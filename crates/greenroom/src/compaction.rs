//! A compaction as programs ask for it, hear of it and have a say in it.
//!
//! Invariants: what `compact` gives, what the hooks are told and what the event `compaction_end` says is one value.

use greenroom_kernel::compacting::Supplied;
use greenroom_kernel::entry::{CompactionEnded, CompactionOutcome, EntryId, Trigger};
use greenroom_kernel::message::Usage;
use serde::{Deserialize, Serialize};

/// How a manual compaction is to be done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactOptions {
    /// What the summary should attend to.
    pub focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens.
    pub keep_recent: Option<u64>,
    /// Compact also where no cut is in reach of what is kept.
    pub force: bool,
}

/// How a compaction ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

impl Compacted {
    /// Whether the context changed. One that did not has its reason in [`Self::outcome`].
    pub fn is_installed(&self) -> bool {
        self.outcome.is_installed()
    }
}

/// What a hook decides before a compaction.
#[derive(Debug, Clone, PartialEq)]
pub enum BeforeCompact {
    /// Go on.
    Continue,
    /// Do not compact, and say why.
    Cancel(String),
    /// Take this summary and ask no model.
    Supply(Supplied),
}
