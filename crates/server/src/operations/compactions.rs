//! Operations on what compactions did, and on the messages that they keep.

use greenroom::{CompactionDetails, CompactionRecord};
use greenroom_kernel::EntryId;
use greenroom_kernel::entry::Entry;
use greenroom_kernel::path::entry_message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, CallScope, Operation, Performed, Refused, Route, Verb};

/// The maximum amount of text of a pinned message in a list, in characters.
const PIN_CHARS_MAX: usize = 200;

/// Lists what each compaction of a session did: failed and undone ones, and those of other branches included.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListCompactions {
    /// The session.
    pub session_id: String,
}

/// The compactions of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CompactionsListed {
    /// The compactions, oldest first.
    pub compactions: Vec<CompactionRecord>,
}

impl Operation for ListCompactions {
    of_session!(
        "session/compactions",
        Read,
        Route::read("/sessions/{session_id}/compactions"),
        CompactionsListed
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let compactions = scope.runtime.compaction_records(&self.session_id).await?;
        Ok(Answer::Now(CompactionsListed { compactions }))
    }
}

/// Returns what one compaction replaced, by what, and what is missing.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowCompaction {
    /// The session.
    pub session_id: String,
    /// The number of the compaction: 1 is the oldest. By default the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl Operation for ShowCompaction {
    of_session!(
        "session/compaction",
        Read,
        Route::read("/sessions/{session_id}/compaction"),
        CompactionDetails
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { session_id, number } = self;
        let count = scope.runtime.compaction_records(&session_id).await?.len() as u64;
        let details = scope.runtime.compaction_details(&session_id, number.unwrap_or(count)).await?;
        details.map(Answer::Now).ok_or_else(|| {
            Refused::Parameters(match (count, number) {
                (0, _) | (_, None) => format!("session {session_id} has no compactions"),
                (1, Some(number)) => {
                    format!("session {session_id} has 1 compaction, and no number {number}")
                }
                (_, Some(number)) => {
                    format!("session {session_id} has {count} compactions, and no number {number}")
                }
            })
        })
    }
}

/// Keeps a message verbatim through every compaction, or stops to keep it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PinEntry {
    /// The session.
    pub session_id: String,
    /// The message's entry: of the user, or an answer of the model without tool calls, in the current context.
    pub entry_id: EntryId,
    /// Whether to keep it; `false` unpins it.
    #[serde(default = "yes")]
    pub pinned: bool,
}

fn yes() -> bool {
    true
}

impl Operation for PinEntry {
    of_session!("session/pin", Open, Route::prompt(Verb::Post, "/sessions/{session_id}/pins"), PinsListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let session = scope.session()?;
        match self.pinned {
            true => session.pin(self.entry_id).await?,
            false => session.unpin(self.entry_id).await?,
        }
        Ok(Answer::Now(PinsListed::of(session.pins().await?)))
    }
}

/// Lists the pinned messages.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListPins {
    /// The session.
    pub session_id: String,
}

/// The pinned messages of a session.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PinsListed {
    /// The messages, oldest first.
    pub pins: Vec<Pinned>,
}

/// A pinned message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pinned {
    /// The message's entry.
    pub entry_id: EntryId,
    /// Its author: `user` or `assistant`.
    pub role: String,
    /// The beginning of its text.
    pub text: String,
    /// Its size, in tokens.
    pub tokens: u64,
}

impl PinsListed {
    fn of(entries: Vec<Entry>) -> Self {
        let pinned = |entry: Entry| {
            let message = entry_message(&entry.kind)?;
            let text = message.text().chars().take(PIN_CHARS_MAX).collect();
            let role = message.role().to_owned();
            Some(Pinned { entry_id: entry.id, role, text, tokens: entry.tokens })
        };
        Self { pins: entries.into_iter().filter_map(pinned).collect() }
    }
}

impl Operation for ListPins {
    of_session!("session/pins", Read, Route::read("/sessions/{session_id}/pins"), PinsListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let pins = scope.runtime.session(&self.session_id).await?.pins().await?;
        Ok(Answer::Now(PinsListed::of(pins)))
    }
}
