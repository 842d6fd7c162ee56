//! A session's log as clients read it: pages of entries, by position, with what is lost and what the session does.
//!
//! Invariants: nothing is opened or woken; a damaged session is given with what it has lost; the forms here are the
//! wire's own, and what they carry becomes the kernel's again without loss. Bookkeeping that says nothing to a reader
//! (what was spent, whole tool results beside the cut ones, a run's terms, labels of the session) is left out.

use greenroom::{SessionSummary, State, Status};
use greenroom_kernel::bill::CompactionBill;
use greenroom_kernel::entry::{CompactionOutcome, EntryId, InboxDelivery, RunId, RunOutcome, Sees, Trigger};
use greenroom_kernel::question::{Asker, Question, QuestionEnd};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{Carried, FactRecall, StopReason, ToolStatus, Usage};
use greenroom_store::{Engine, LogPage, Notice, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, CallScope, ImageData, Operation, Performed, Route};

mod conversion;

/// The maximum number of entries of a page.
const LIMIT_MAX: u64 = 1_000;

/// A page of a session's log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadEntries {
    /// The session.
    pub session_id: String,
    /// The position of the first entry; 0 is the beginning.
    #[serde(default)]
    pub from: EntryId,
    /// The maximum number of entries: at most 1000, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Entries of a session, in order, and the session's state.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct EntryPage {
    /// The session's summary.
    pub session: SessionSummary,
    /// The inputs in the inbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<EntryId>,
    /// The entries.
    pub entries: Vec<LoggedEntry>,
    /// The ranges of the whole log that are lost: the first entry, and the one after the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<(EntryId, EntryId)>,
    /// The `from` of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<EntryId>,
    /// Whether the session is live.
    pub is_live: bool,
    /// The session's status, if it is live and the status belongs to this log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The known losses of the store.
    #[serde(flatten)]
    pub losses: StoreLosses,
}

/// The known losses of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreLosses {
    /// Whether the content of a damaged part of the journal is unknown: sessions may be missing, or lack their newest
    /// entries.
    #[serde(default)]
    pub is_uncertain: bool,
    /// Problems that were found when the store was opened and that remain, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

impl StoreLosses {
    /// Those of a runtime's store.
    pub(super) fn of(scope: &CallScope) -> Self {
        let still_holds =
            |notice: &&Notice| notice.is_loss() || matches!(notice, Notice::IndexInMemory { .. });
        // They name sessions, and a confined client's are not told apart from others.
        let told = if scope.within.is_none() { scope.runtime.notices() } else { &[] };
        let notices = told.iter().filter(still_holds).map(ToString::to_string).collect();
        Self {
            is_uncertain: scope.runtime.store().is_some_and(|store| !store.unknown_losses().is_empty()),
            notices,
        }
    }
}

/// One entry of a log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedEntry {
    /// Its position.
    pub id: EntryId,
    /// The entry that it follows on its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<EntryId>,
    /// When it was recorded, in Unix milliseconds.
    pub at_ms: u64,
    /// Its size in the context, in tokens.
    #[serde(default)]
    pub tokens: u64,
    /// As much of it as is reasoning, in tokens.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// Its name in the file that it was imported from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// Its content.
    #[serde(flatten)]
    pub kind: LoggedKind,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are those of the kernel's entries, where they are explained")]
pub enum LoggedKind {
    /// A message of the user.
    User { content: Vec<LoggedBlock>, inbox: Option<EntryId>, is_steer: bool },
    /// An answer of the model.
    Assistant {
        content: Vec<LoggedPart>,
        provider: String,
        model: String,
        usage: Option<Usage>,
        #[serde(default)]
        cost_microdollars: Option<u64>,
        stop: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_raw: Option<String>,
        error: Option<String>,
    },
    /// The result of a tool.
    ToolResult {
        call_id: String,
        tool_name: String,
        content: Vec<LoggedBlock>,
        status: ToolStatus,
        touched: Vec<LoggedTouch>,
    },
    /// A command that the user ran.
    Shell {
        command: String,
        output: String,
        exit_code: Option<i32>,
        cancelled: bool,
        truncated: bool,
        excluded: bool,
    },
    /// A program's message to the model.
    Custom { name: String, content: Vec<LoggedBlock>, display: bool },
    /// A summary of a branch that was left.
    BranchSummary { from: EntryId, summary: String, files: LoggedFiles },
    /// The older part of the path was replaced, in the model's view.
    Compaction(Box<LoggedCompaction>),
    /// A compaction was undone.
    CompactionUndone { compaction: EntryId },
    /// Tool results were shortened, in the model's view.
    Prune { results: Vec<LoggedPruned>, trigger: Trigger, tokens_before: u64, tokens_after: u64 },
    /// An entry is kept by every compaction, or no longer is.
    Pin { entry: EntryId, pinned: bool },
    /// Another model answers from this entry on.
    ModelChange { provider: String, model: String },
    /// The name of an entry.
    Label { target: EntryId, label: Option<String> },
    /// A program's own record.
    Note { name: String, data: String },
    /// The conversation was handed to another agent.
    HandOff { from: String, to: String, sees: Sees },
    /// Input that arrived while the session was busy.
    Inbox { delivery: InboxDelivery, content: Vec<LoggedBlock> },
    /// The conversation continues from another entry.
    LeafMoved { to: Option<EntryId> },
    /// A compaction ended.
    CompactionEnded {
        started: EntryId,
        trigger: Trigger,
        #[serde(flatten)]
        outcome: CompactionOutcome,
        entry: Option<EntryId>,
        tokens_before: u64,
        tokens_after: u64,
        messages_before: u64,
        messages_after: u64,
        messages_removed: u64,
        duration_ms: u64,
        waited_ms: u64,
        prepared_ms: Option<u64>,
        summary_usage: Usage,
        cost_microdollars: Option<u64>,
        recall: Option<FactRecall>,
    },
    /// A run ended.
    RunEnded {
        run: RunId,
        outcome: RunOutcome,
        context: ContextUsage,
        #[serde(default)]
        usage: Usage,
        #[serde(default)]
        cost_microdollars: u64,
        #[serde(default)]
        compaction_bill: CompactionBill,
    },
    /// An agent that was called as a tool began, or ended (`outcome`).
    Child {
        call_id: String,
        name: String,
        session: String,
        started: Option<EntryId>,
        outcome: Option<RunOutcome>,
    },
    /// A question to a person.
    Question {
        run: RunId,
        call_id: String,
        tool: String,
        ordinal: u32,
        asker: Asker,
        question: Question,
        expires_at_ms: Option<u64>,
    },
    /// A question was answered, or is no longer asked.
    QuestionEnded { question: EntryId, end: QuestionEnd },
}

/// A text or an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoggedBlock {
    /// A text.
    Text(String),
    /// An image.
    Image(ImageData),
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoggedPart {
    /// Text for the user.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// Data that a provider wants back unchanged, but that is not content: encrypted reasoning, a signature.
    OpaqueReasoning {
        /// The dialect of the provider.
        dialect: String,
        /// The data as received.
        data: String,
    },
    /// Content that only its provider can read.
    OpaqueBlock {
        /// The dialect of the provider.
        dialect: String,
        /// The block as received.
        data: String,
    },
    /// A call.
    ToolCall {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
        /// JSON text.
        arguments: String,
    },
}

/// A file that a tool read or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedTouch {
    /// Its path.
    pub path: String,
    /// Whether it was changed.
    pub is_modified: bool,
}

/// Files that were read and changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedFiles {
    /// Those that were only read.
    pub read: Vec<String>,
    /// Those that were changed.
    pub modified: Vec<String>,
}

/// A compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are those of the kernel's compaction, where they are explained")]
pub struct LoggedCompaction {
    pub base: Option<EntryId>,
    pub previous: Option<EntryId>,
    pub first: Option<EntryId>,
    pub last: Option<EntryId>,
    pub first_kept: Option<EntryId>,
    pub summary: String,
    pub active_request: Option<String>,
    pub files: LoggedFiles,
    pub trigger: Trigger,
    pub truncated: bool,
    pub from_hook: bool,
    pub is_split_turn: bool,
    pub tokens_before: u64,
    pub tokens_after: u64,
    pub messages_before: u64,
    pub messages_removed: u64,
    pub duration_ms: u64,
    pub model: String,
    pub usage: Usage,
    pub cost_microdollars: Option<u64>,
    /// Ranges that have no summary yet: the first entry and the last.
    pub debt: Vec<(EntryId, EntryId)>,
    /// The provider's own form of the summary.
    pub native: Option<LoggedNative>,
    pub carried: Carried,
    pub recall: Option<FactRecall>,
}

/// A summary in the form of one provider's API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedNative {
    /// The provider that made it.
    pub provider: String,
    /// The name of the API's wire format.
    pub dialect: String,
    /// Its blocks or items, each as JSON text, as they came.
    pub blocks: Vec<String>,
    /// Its size in a request, in tokens.
    pub tokens: u64,
}

/// A tool result that was shortened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LoggedPruned {
    /// Its entry.
    pub entry: EntryId,
    /// The text in its place.
    pub text: String,
    /// Whether its images are kept.
    pub keeps_images: bool,
    /// Its size then, in tokens.
    pub tokens: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl EntryPage {
    /// The part of a log from a position on; `None` if there is no such session.
    async fn read(
        store: &dyn Engine,
        id: &str,
        from: EntryId,
        limit: u64,
    ) -> Result<Option<Self>, StoreError> {
        let page = store.entries(id, from, limit).await?;
        Ok(page.map(|LogPage { head, entries, lost, next }| Self {
            waiting: head.inbox.clone(),
            session: SessionSummary::new(id.to_owned(), head),
            entries: entries.iter().filter_map(LoggedEntry::of).collect(),
            lost,
            next,
            is_live: false,
            status: None,
            losses: StoreLosses::default(),
        }))
    }
}

/// The status of a live session, if it has this many entries. A session with other entries may have another status by
/// now.
pub fn status_of(state: &State, entries: u64) -> Option<Status> {
    Some(state.status).filter(|_| state.entries == entries)
}

impl Operation for ReadEntries {
    of_session!("session/entries", Read, Route::read("/sessions/{session_id}/entries"), EntryPage);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let Self { session_id: id, from, limit } = self;
            let limit = limit.unwrap_or(LIMIT_MAX).clamp(1, LIMIT_MAX);
            let live = scope.runtime.session(&id).await?;
            let is_live = live.is_live();
            let state = if is_live { live.state().await.ok() } else { None };
            let read = EntryPage::read(&**scope.runtime.engine(), &id, from, limit).await;
            let page = read.map_err(greenroom::Error::from)?;
            let page = page.ok_or(greenroom::Error::NoSession { session: id })?;
            let status = state.and_then(|state| status_of(&state, page.session.entries));
            Ok(EntryPage { is_live, status, losses: StoreLosses::of(&scope), ..page })
        })))
    }
}
