//! The records of a compaction: its start, its end, and the replaced part.
//!
//! Invariants: the replaced entries stay in the log.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::EntryId;
use crate::carried::{Carried, FactRecall};
use crate::files::FileOps;
use crate::message::{Native, Usage};

/// Why a compaction was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Trigger {
    /// The context reached the trigger.
    Threshold,
    /// The provider refused the request, or silently cut it.
    Overflow,
    /// A person or program asked.
    Manual,
    /// The session continues with a model with a smaller window.
    ModelSwitch,
    /// A hook asked for it.
    Hook,
    /// A branch was left, and its summary comes along. Nothing is replaced.
    Branch,
    /// Another agent of the team takes over, and sees a summary or the newest messages.
    HandOff,
    /// A value that this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Trigger {
    /// Whether it is automatic, so that a failure delays the next one.
    pub fn is_automatic(self) -> bool {
        match self {
            Self::Threshold | Self::Overflow | Self::ModelSwitch | Self::Hook => true,
            Self::Manual | Self::Branch | Self::HandOff | Self::Unknown => false,
        }
    }

    /// Whether its caller handles a failure, so that the context is not cut without a summary instead.
    pub fn may_fail(self) -> bool {
        match self {
            Self::Manual | Self::HandOff => true,
            Self::Threshold
            | Self::Overflow
            | Self::ModelSwitch
            | Self::Hook
            | Self::Branch
            | Self::Unknown => false,
        }
    }
}

/// How a compaction ended. In JSON: `outcome`, and `reason` where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CompactionOutcome {
    /// A summary was installed.
    Completed,
    /// The oldest part was cut without a summary.
    Truncated {
        /// Why there is no summary of a model, as a fragment of a sentence.
        reason: String,
    },
    /// A digest without a model was installed: the user's words and facts, verbatim.
    Digested {
        /// Why there is no summary of a model, as a fragment of a sentence.
        reason: String,
    },
    /// Tool results are sent shorter, and no message was replaced.
    Pruned {
        /// Why no model's summary could be made, as a fragment of a sentence; `None` if none was necessary.
        reason: Option<String>,
    },
    /// There was nothing to compact; the history is as it was.
    Nothing {
        /// Why there was nothing, as a fragment of a sentence.
        reason: String,
    },
    /// It failed; the history is as it was.
    Failed {
        /// Why it failed, as a fragment of a sentence.
        reason: String,
    },
    /// A hook or the user stopped it; the history is as it was.
    Cancelled {
        /// Why it was stopped, as a fragment of a sentence.
        reason: String,
    },
    /// The path had changed when it was to be installed; the history is as it was.
    Superseded,
    /// The actor that ran it died; the history is as it was.
    Interrupted,
    /// A value that this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl CompactionOutcome {
    /// Returns the outcome in snake case.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated { .. } => "truncated",
            Self::Digested { .. } => "digested",
            Self::Pruned { .. } => "pruned",
            Self::Nothing { .. } => "nothing",
            Self::Failed { .. } => "failed",
            Self::Cancelled { .. } => "cancelled",
            Self::Superseded => "superseded",
            Self::Interrupted => "interrupted",
            Self::Unknown => "unknown",
        }
    }

    /// Returns the reason, if there is one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Truncated { reason }
            | Self::Digested { reason }
            | Self::Nothing { reason }
            | Self::Failed { reason }
            | Self::Cancelled { reason } => Some(reason),
            Self::Pruned { reason } => reason.as_deref(),
            Self::Completed | Self::Superseded | Self::Interrupted | Self::Unknown => None,
        }
    }

    /// Whether the context changed.
    pub fn is_installed(&self) -> bool {
        match self {
            Self::Completed | Self::Truncated { .. } | Self::Digested { .. } | Self::Pruned { .. } => true,
            Self::Nothing { .. }
            | Self::Failed { .. }
            | Self::Cancelled { .. }
            | Self::Superseded
            | Self::Interrupted
            | Self::Unknown => false,
        }
    }
}

impl fmt::Display for CompactionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The older part of a path, replaced in the model's view. The replaced entries stay in the log.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// The newest active compaction when this one was planned: the start of this one's input.
    pub base: Option<EntryId>,
    /// The previous compaction in the log, active or not: the chain of the session's history.
    pub previous: Option<EntryId>,
    /// The first entry that it replaces; `None` in an imported one.
    pub first: Option<EntryId>,
    /// The last entry that it replaces; `None` in an imported one.
    pub last: Option<EntryId>,
    /// The first entry that stays verbatim; `None` keeps only what follows this entry.
    pub first_kept: Option<EntryId>,
    /// The summary with its footer, as the model sees it.
    pub summary: String,
    /// The user's request in progress if its message is among those replaced, with the steers that joined it:
    /// verbatim, bounded, and so carried from compaction to compaction until its turn is over.
    pub active_request: Option<String>,
    /// All files touched from the session's start to `last`.
    pub files: FileOps,
    /// The reason for the compaction.
    pub trigger: Trigger,
    /// Whether a digest or the truncate fallback replaces a model's summary.
    pub truncated: bool,
    /// Whether a hook supplied it.
    pub from_hook: bool,
    /// Whether the cut is inside a turn.
    pub is_split_turn: bool,
    /// The context's size before, in tokens.
    pub tokens_before: u64,
    /// The context's size after, in tokens, as counted before it was installed; 0 if unknown, as in some imported files.
    pub tokens_after: u64,
    /// The number of messages in the context before.
    pub messages_before: u64,
    /// The number of replaced messages.
    pub messages_removed: u64,
    /// Its duration, in milliseconds.
    pub duration_ms: u64,
    /// The model that wrote the summary; empty if none did.
    pub model: String,
    /// The total usage of its calls.
    pub usage: Usage,
    /// The cost of its calls, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
    /// The ranges cut without a summary, by this compaction or earlier ones, that no summary has read since:
    /// oldest first. The next summary reads them.
    pub debt: Vec<EntryRange>,
    /// The provider's own form of the summary, for requests in its dialect; the summary serves all others.
    pub native: Option<NativeSummary>,
    /// The user's own words and the facts of the ledger.
    pub carried: Carried,
    /// How many of the facts are in the new context; `None` without a ledger.
    pub recall: Option<FactRecall>,
}

impl Compaction {
    /// Returns the context's size after, in tokens; `None` if unknown.
    pub fn known_tokens_after(&self) -> Option<u64> {
        Some(self.tokens_after).filter(|after| *after > 0)
    }

    /// Returns how many tokens it freed: what each later call saves. 0 if unknown.
    pub(crate) fn tokens_freed(&self) -> u64 {
        self.known_tokens_after().map_or(0, |after| self.tokens_before.saturating_sub(after))
    }
}

/// A summary in the form of one provider's API, which made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeSummary {
    /// Its blocks or items, exactly as they came.
    pub native: Native,
    /// The size of the compaction in a request that carries it, in tokens by our estimate.
    pub tokens: u64,
}

/// A range of entries of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// The first entry.
    pub first: EntryId,
    /// The last entry. The others are found through the parents from here back to `first`.
    pub last: EntryId,
}

/// Tool results that are sent shorter than recorded. The log keeps the originals.
#[derive(Debug, Clone, PartialEq)]
pub struct Prune {
    /// The replacements, in the order of the path.
    pub results: Vec<PrunedResult>,
    /// The reason for the compaction that it belongs to.
    pub trigger: Trigger,
    /// The context's size before, in tokens.
    pub tokens_before: u64,
    /// The context's size after, in tokens, as counted before it was installed.
    pub tokens_after: u64,
}

/// The replacement for a tool result in requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedResult {
    /// The result's entry.
    pub entry: EntryId,
    /// The text that is sent: one line, or the result's head and tail.
    pub text: String,
    /// Whether the result's images are still sent.
    pub keeps_images: bool,
    /// The size of the replacement, in tokens by the default estimator.
    pub tokens: u64,
}

/// The start of a compaction.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionStarted {
    /// The reason.
    pub trigger: Trigger,
    /// The context's size at that time, in tokens.
    pub tokens_before: u64,
    /// The number of messages in the context at that time.
    pub messages_before: u64,
}

/// The end of a compaction.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionEnded {
    /// The [`EntryKind::CompactionStarted`](crate::entry::EntryKind::CompactionStarted) to which this end belongs.
    pub started: EntryId,
    /// The reason for the compaction.
    pub trigger: Trigger,
    /// The outcome of the compaction.
    pub outcome: CompactionOutcome,
    /// The compaction entry, if one was installed.
    pub entry: Option<EntryId>,
    /// The context's size before and after, in tokens. The same if nothing was installed.
    pub tokens_before: u64,
    /// See `tokens_before`.
    pub tokens_after: u64,
    /// The number of messages in the context before.
    pub messages_before: u64,
    /// The number of messages after.
    pub messages_after: u64,
    /// The number of replaced messages.
    pub messages_removed: u64,
    /// Its duration, in milliseconds.
    pub duration_ms: u64,
    /// How long a run, a caller or queued input waited for it, in milliseconds.
    pub waited_ms: u64,
    /// How long it was prepared before it started, in milliseconds; `None` if it was not.
    pub prepared_ms: Option<u64>,
    /// The usage of its model calls.
    pub summary_usage: Usage,
    /// The cost of its model calls, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
    /// How many of the facts in what was replaced are in the new context; `None` if nothing was replaced, or
    /// without a ledger.
    pub recall: Option<FactRecall>,
}
