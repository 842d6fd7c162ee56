//! Entries: the immutable records of a session.
//!
//! Invariants: an entry's id is its position in the session's log (dense, from 0), its parent is an earlier
//! entry, and it is never changed or removed. [`EntryKind::is_on_path`] alone decides which entries are on
//! the path and which are beside it (inbox items, leaf moves, notes about compactions).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::context_usage::ContextUsage;
use crate::failure::Failure;
use crate::files::FileOps;
use crate::message::{AssistantMessage, Block, Message, Usage};
use crate::question::{AskedQuestion, QuestionEnd};
use crate::terms::Terms;

/// The position of an entry in its session's log: dense, from 0. Also the sequence number of its event.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct EntryId(pub u64);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of an agent's run for one prompt: the id of the entry that began it.
pub type RunId = EntryId;

/// One immutable record of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its position in the log.
    pub id: EntryId,
    /// The previous entry on its path; for entries beside the path, the leaf at that time.
    pub parent: Option<EntryId>,
    /// When it was recorded, in unix milliseconds.
    pub at_ms: u64,
    /// Its estimated size in tokens ([`crate::size::entry_tokens`] with the default estimator), counted once,
    /// without reasoning.
    pub tokens: u64,
    /// The estimated size of an answer's readable reasoning, in tokens ([`crate::size::reasoning_tokens`]),
    /// counted once; 0 for all other entries. [`crate::reasoning::ResentReasoning`] decides whether a request
    /// carries it.
    pub reasoning_tokens: u64,
    /// Its id in the file that it was imported from.
    pub origin: Option<String>,
    /// The content of the record.
    pub kind: EntryKind,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A message. The only kind that counts for tool-call pairing.
    Message {
        /// The message, shared with the requests that contain it.
        message: Arc<Message>,
        /// The inbox entry from which it was delivered.
        inbox: Option<EntryId>,
        /// Whether it is a user message that joined the turn in progress: a steer, or a correction sent back
        /// by the program. It begins no turn; the request in progress continues with it.
        steer: bool,
    },
    /// A command that the user ran, shown to the model as a user message.
    Shell(Shell),
    /// A message inserted by a program, shown to the model as a user message.
    Custom(Custom),
    /// The summary of a branch that was left.
    BranchSummary {
        /// The leaf of the branch that was left.
        from: EntryId,
        /// The summary text.
        summary: String,
        /// The files touched on the branch.
        files: FileOps,
    },
    /// A summary that replaces the older part of the path in the model's view.
    Compaction(Box<Compaction>),
    /// The reversal of a compaction, or of a pruning of tool results.
    CompactionUndone {
        /// The id of the compaction or of the prune.
        compaction: EntryId,
    },
    /// An entry that every compaction keeps verbatim, or no longer does.
    Pin {
        /// The entry that is pinned or released.
        entry: EntryId,
        /// Whether it is pinned or released.
        pinned: bool,
    },
    /// A change of the model that answers from here on.
    ModelChange {
        /// The provider's name.
        provider: String,
        /// The model's name at its provider.
        model: String,
    },
    /// A name for an entry, for people; never sent.
    Label {
        /// The entry that is named.
        target: EntryId,
        /// Its name; `None` removes it.
        label: Option<String>,
    },
    /// A program's own record; never sent.
    Note {
        /// The kind of record, chosen by the program.
        kind: String,
        /// Its data, JSON text.
        data: String,
    },
    /// Beside the path: input that waits for the next boundary.
    Inbox {
        /// When it joins the path.
        delivery: Delivery,
        /// The content of the future user message.
        content: Vec<Block>,
        /// The caller's idempotency key.
        key: Option<String>,
        /// The fingerprint of the agent that it was sent to, if that has one.
        fingerprint: Option<String>,
        /// Its requirements besides the content, if any.
        terms: Option<Arc<Terms>>,
    },
    /// Beside the path: inbox items that were withdrawn before they were delivered.
    InboxCleared {
        /// The ids of their inbox entries.
        items: Vec<EntryId>,
    },
    /// Beside the path: the leaf moved to another entry, so that the next one begins a branch.
    LeafMoved {
        /// The new leaf; `None` is the empty path.
        to: Option<EntryId>,
    },
    /// Beside the path: a compaction began.
    CompactionStarted(CompactionStarted),
    /// Beside the path: a compaction ended, with any outcome. Exactly one for every start.
    CompactionEnded(CompactionEnded),
    /// Beside the path: tokens spent for this session by calls that are not its own answers.
    Spent(Spent),
    /// Beside the path: the agent's run for a prompt ended. Exactly one for every run.
    RunEnded {
        /// The run.
        run: RunId,
        /// Its outcome.
        outcome: RunOutcome,
        /// The context's size at that time.
        context: ContextUsage,
    },
    /// Tool results that are shortened from here on, in the model's view.
    Prune(Box<Prune>),
    /// Beside the path: the session's title or one of its labels was set. Never sent.
    Metadata(Metadata),
    /// Beside the path: an agent called as a tool began to work on the call, or ended. Never sent.
    Child(ChildRecord),
    /// A change of the session's agent that answers from here on. Never sent.
    HandOff(HandOff),
    /// Beside the path: the whole of a tool result that was too large for the context. Its message, which
    /// follows, has the head and the tail.
    WholeResult {
        /// The id of the call that it answers.
        call_id: String,
        /// The content of the result.
        content: Vec<Block>,
    },
    /// Beside the path: a call asks a person. The entry's id is the question's.
    Question(Arc<AskedQuestion>),
    /// Beside the path: a question ended. Exactly one for every question.
    QuestionEnded {
        /// The question's entry.
        question: EntryId,
        /// How it ended.
        end: QuestionEnd,
    },
    /// Beside the path: the tool of a call begins, after a hook before the call had asked a person. A call
    /// for which only hooks have asked, without such an entry, has not begun.
    CallStarted {
        /// The call.
        call_id: String,
    },
    /// Beside the path: the requirements of a run besides its prompt's content. It follows the entry that
    /// begins the run; if the prompt waited, its terms are in its inbox entry.
    Terms {
        /// The run.
        run: RunId,
        /// The requirements.
        terms: Arc<Terms>,
    },
}

impl EntryKind {
    /// Creates a message entry that was not delivered from the inbox.
    pub fn message(message: Message) -> Self {
        Self::Message { message: Arc::new(message), inbox: None, steer: false }
    }

    /// Whether it is on the path, so that the leaf moves to it. The others are recorded beside it.
    pub fn is_on_path(&self) -> bool {
        match self {
            Self::Message { .. }
            | Self::Shell(_)
            | Self::Custom(_)
            | Self::BranchSummary { .. }
            | Self::Compaction(_)
            | Self::CompactionUndone { .. }
            | Self::Prune(_)
            | Self::Pin { .. }
            | Self::HandOff(_)
            | Self::ModelChange { .. }
            | Self::Label { .. }
            | Self::Note { .. } => true,
            Self::Inbox { .. }
            | Self::InboxCleared { .. }
            | Self::LeafMoved { .. }
            | Self::CompactionStarted(_)
            | Self::CompactionEnded(_)
            | Self::Spent(_)
            | Self::WholeResult { .. }
            | Self::Metadata(_)
            | Self::Child(_)
            | Self::Question(_)
            | Self::QuestionEnded { .. }
            | Self::CallStarted { .. }
            | Self::Terms { .. }
            | Self::RunEnded { .. } => false,
        }
    }

    /// Whether it is a message that joined the turn in progress.
    pub fn is_steer(&self) -> bool {
        matches!(self, Self::Message { steer: true, .. })
    }

    /// Returns the message, if it is one.
    pub fn as_message(&self) -> Option<&Arc<Message>> {
        if let Self::Message { message, .. } = self { Some(message) } else { None }
    }

    /// Returns the model's answer, whole or partial, if it is one.
    pub fn as_answer(&self) -> Option<&AssistantMessage> {
        self.as_message()?.as_answer()
    }

    /// Whether it is a model's whole answer.
    pub fn is_whole_answer(&self) -> bool {
        self.as_answer().is_some_and(AssistantMessage::is_whole)
    }

    /// Returns the recorded requirements of a prompt besides its content.
    pub fn as_terms(&self) -> Option<&Arc<Terms>> {
        if let Self::Terms { terms, .. } | Self::Inbox { terms: Some(terms), .. } = self {
            Some(terms)
        } else {
            None
        }
    }

    /// Returns the compaction, if it is one.
    pub fn as_compaction(&self) -> Option<&Compaction> {
        if let Self::Compaction(compaction) = self { Some(compaction) } else { None }
    }
}

/// The session's metadata for people, as set by one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metadata {
    /// The session's title.
    Title {
        /// The title; `None` removes it.
        title: Option<String>,
    },
    /// One of the session's labels, such as a tenant.
    Label {
        /// The label's name.
        name: String,
        /// Its value; `None` removes the label.
        value: Option<String>,
    },
}

/// The start or the end of an agent called as a tool. Each start has one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRecord {
    /// The id of the call.
    pub call_id: String,
    /// The name of the tool, which is the caller's name for the agent.
    pub name: String,
    /// The id of the agent's own session.
    pub session: String,
    /// Whether it began or ended.
    pub stage: ChildStage,
}

/// The stage of an agent called as a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildStage {
    /// It begins to work.
    Started,
    /// Its work is over.
    Ended {
        /// The start to which this end belongs.
        started: EntryId,
        /// How its work ended.
        outcome: RunOutcome,
    },
}

/// A hand-off of the conversation to another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOff {
    /// The name of the previous agent.
    pub from: String,
    /// The name of the agent that answers from here on.
    pub to: String,
    /// How much of the earlier conversation it sees.
    pub sees: Sees,
}

/// How much of a conversation an agent sees that takes it over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Sees {
    /// Everything that the agent before it saw.
    #[default]
    All,
    /// A summary of it, and the newest messages word for word.
    Summary,
    /// So many of the newest messages. A tool call and its result are kept together.
    Last(u32),
}

/// A command that the user ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Shell {
    /// The command line as it was run.
    pub command: String,
    /// The output of the command.
    pub output: String,
    /// Its exit code; `None` if it was killed or did not start.
    pub exit_code: Option<i32>,
    /// Whether the user cancelled it.
    pub cancelled: bool,
    /// Whether `output` was truncated.
    pub truncated: bool,
    /// Whether the user excluded it from the model's view.
    pub excluded: bool,
}

/// A message inserted by a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Custom {
    /// The kind of message, chosen by the program.
    pub kind: String,
    /// The content for the model.
    pub content: Vec<Block>,
    /// Whether a user interface should show it.
    pub display: bool,
}

/// When an inbox item joins the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delivery {
    /// After the last result of the running batch of tool calls, into the current run.
    Steer,
    /// After the current run, which then goes on with it.
    FollowUp,
    /// After the current run, as a prompt of its own.
    Prompt,
}

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
    /// The session goes on with a model of a smaller window.
    ModelSwitch,
    /// A hook asked for it.
    Hook,
    /// A branch was left, and its summary comes along. Nothing is replaced.
    Branch,
    /// What this version does not know: a newer program wrote it. It is read, and never recorded.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Trigger {
    /// Whether it is automatic, so that a failure delays the next one.
    pub fn is_automatic(self) -> bool {
        match self {
            Self::Threshold | Self::Overflow | Self::ModelSwitch | Self::Hook => true,
            Self::Manual | Self::Branch | Self::Unknown => false,
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
        /// Why no model's summary stands there, as a fragment of a sentence.
        reason: String,
    },
    /// Tool results are sent shorter, and no message was replaced.
    Pruned {
        /// Why no model's summary was made, as a fragment of a sentence.
        reason: String,
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
    /// What this version does not know: a newer program wrote it. It is read, and never recorded.
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
            | Self::Pruned { reason }
            | Self::Nothing { reason }
            | Self::Failed { reason }
            | Self::Cancelled { reason } => Some(reason),
            Self::Completed | Self::Superseded | Self::Interrupted | Self::Unknown => None,
        }
    }

    /// Whether the context changed.
    pub fn is_installed(&self) -> bool {
        match self {
            Self::Completed | Self::Truncated { .. } | Self::Pruned { .. } => true,
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
    /// Whether the truncate fallback replaces a model's summary.
    pub truncated: bool,
    /// Whether a hook supplied it.
    pub from_hook: bool,
    /// Whether the cut is inside a turn.
    pub is_split_turn: bool,
    /// The context's size before, in tokens.
    pub tokens_before: u64,
    /// The context's size after, in tokens, as counted before it was installed.
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
    /// The [`EntryKind::CompactionStarted`] to which this end belongs.
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
    /// The usage of its model calls.
    pub summary_usage: Usage,
    /// The cost of its model calls, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
}

/// Tokens spent for a session by calls that are not its own answers. The usage of a compaction's summaries is
/// in its [`CompactionEnded`].
#[derive(Debug, Clone, PartialEq)]
pub struct Spent {
    /// The spender.
    pub by: Spender,
    /// The total tokens of its calls.
    pub usage: Usage,
    /// The cost of the calls, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
}

/// A spender of tokens for a session besides its own agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spender {
    /// An agent called as a tool.
    SubAgent {
        /// The id of its session.
        session: String,
    },
    /// The summary of a branch that was left.
    BranchSummary,
    /// The session's own model calls without an answer in the log, or without a plausible report: see
    /// [`unreported`](crate::unreported).
    Calls,
}

/// How an agent's run for a prompt ended. In JSON: `outcome`, and `reason` and `failure` where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "RunOutcomeJson", into = "RunOutcomeJson")]
#[non_exhaustive]
pub enum RunOutcome {
    /// The model answered without asking for more tools.
    Completed,
    /// The user or the program interrupted it; what had come is kept.
    Aborted,
    /// It could not go on.
    Failed(Failure),
    /// The process or the agent died while it ran.
    Interrupted,
    /// A guard ended it: too many steps, the same call over and over, or a budget.
    Stopped {
        /// Which guard, and its limit.
        reason: String,
    },
    /// What this version does not know: a newer program wrote it. It is read, and never recorded.
    Unknown,
}

impl RunOutcome {
    /// Returns the outcome in snake case.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::Failed(_) => "failed",
            Self::Interrupted => "interrupted",
            Self::Stopped { .. } => "stopped",
            Self::Unknown => "unknown",
        }
    }

    /// Returns why it did not complete, if a reason is known.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Completed | Self::Aborted | Self::Interrupted | Self::Unknown => None,
            Self::Failed(failure) => Some(&failure.message),
            Self::Stopped { reason } => Some(reason),
        }
    }
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The JSON form of [`RunOutcome`].
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct RunOutcomeJson {
    #[schemars(extend("enum" = ["completed", "aborted", "failed", "interrupted", "stopped"]))]
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl From<RunOutcome> for RunOutcomeJson {
    fn from(outcome: RunOutcome) -> Self {
        let (name, reason) = (outcome.as_str().to_owned(), outcome.reason().map(str::to_owned));
        let failure = if let RunOutcome::Failed(failure) = outcome { Some(failure) } else { None };
        Self { outcome: name, reason, failure }
    }
}

impl TryFrom<RunOutcomeJson> for RunOutcome {
    type Error = String;

    fn try_from(json: RunOutcomeJson) -> Result<Self, String> {
        let RunOutcomeJson { outcome, reason, failure } = json;
        match outcome.as_str() {
            "completed" => Ok(Self::Completed),
            "aborted" => Ok(Self::Aborted),
            "failed" => failure.map(Self::Failed).ok_or_else(|| "a failed run without its `failure`".into()),
            "interrupted" => Ok(Self::Interrupted),
            "stopped" => Ok(Self::Stopped { reason: reason.unwrap_or_default() }),
            _ => Ok(Self::Unknown),
        }
    }
}
