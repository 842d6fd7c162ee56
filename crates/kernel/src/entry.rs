//! What is recorded: entries, the immutable records of a session.
//!
//! Invariants: an entry's id is its position in the session's log (dense, from 0), its parent is an earlier
//! entry, and it is never changed or removed. What stands on the path and what stands beside it (inbox items,
//! leaf moves, notes about compactions) is decided by [`EntryKind::is_on_path`] alone.

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
    /// The entry before it on its path; for entries beside the path, the leaf at that time.
    pub parent: Option<EntryId>,
    /// When it was recorded, in unix milliseconds.
    pub at_ms: u64,
    /// Its estimated size in tokens ([`crate::size::entry_tokens`] with the default estimator), counted once. Reasoning is
    /// not in it.
    pub tokens: u64,
    /// The estimated size of an answer's readable reasoning, in tokens ([`crate::size::reasoning_tokens`]), counted once;
    /// 0 for all else. Whether a request carries it, [`crate::reasoning::ResentReasoning`] says.
    pub reasoning_tokens: u64,
    /// Its id in the file that it was imported from.
    pub origin: Option<String>,
    /// What the entry records.
    pub kind: EntryKind,
}

/// What an entry records.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A message. The only kind that counts for tool-call pairing.
    Message {
        /// The message, shared with the requests that it is part of.
        message: Arc<Message>,
        /// The inbox entry that it was delivered from.
        inbox: Option<EntryId>,
        /// Whether it is a user message that joined the turn in progress: a steer, or a correction that the program
        /// sent back. It begins no turn, and the request in progress goes on with it.
        steer: bool,
    },
    /// A command that the user ran, shown to the model as a user message.
    Shell(Shell),
    /// A message that a program put in, shown to the model as a user message.
    Custom(Custom),
    /// What happened on a branch that was left.
    BranchSummary {
        /// The leaf of the branch that was left.
        from: EntryId,
        /// What happened there.
        summary: String,
        /// The files touched there.
        files: FileOps,
    },
    /// The older part of the path replaced, in the model's view, by a summary.
    Compaction(Box<Compaction>),
    /// A compaction, or a pruning of tool results, that no longer counts.
    CompactionUndone {
        /// The id of the compaction or of the prune.
        compaction: EntryId,
    },
    /// An entry that every compaction keeps verbatim, or no longer does.
    Pin {
        /// The entry that is pinned or released.
        entry: EntryId,
        /// Pinned, or released.
        pinned: bool,
    },
    /// From here on another model answers.
    ModelChange {
        /// The provider's name.
        provider: String,
        /// The model's name, as its provider has it.
        model: String,
    },
    /// A name for an entry, for people; never sent.
    Label {
        /// The entry that is named.
        target: EntryId,
        /// Its name; `None` takes it away.
        label: Option<String>,
    },
    /// A program's own record; never sent.
    Note {
        /// What kind of record, chosen by the program.
        kind: String,
        /// Its data, JSON text.
        data: String,
    },
    /// Beside the path: input that waits for the next boundary.
    Inbox {
        /// When it joins the path.
        delivery: Delivery,
        /// The content of the user message to be.
        content: Vec<Block>,
        /// The caller's idempotency key.
        key: Option<String>,
        /// The fingerprint of the agent that it was said to, where that has one.
        fingerprint: Option<String>,
        /// What it asks for besides its words, where it does.
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
    /// Beside the path: a compaction ended, one way or another. Exactly one for every start.
    CompactionEnded(CompactionEnded),
    /// Beside the path: tokens that were spent for this session by calls that are not its own answers.
    Spent(Spent),
    /// Beside the path: the agent's run for a prompt ended. Exactly one for every run.
    RunEnded {
        /// The run that ended.
        run: RunId,
        /// How the run ended.
        outcome: RunOutcome,
        /// The context's size then.
        context: ContextUsage,
    },
    /// Tool results that are sent shorter from here on, in the model's view.
    Prune(Box<Prune>),
    /// Beside the path: the session's title or one of its labels was set. Never sent.
    Metadata(Metadata),
    /// Beside the path: an agent that was called as a tool began to work on the call, or ended. Never sent.
    Child(ChildRecord),
    /// From here on another agent of the session's team answers. Never sent.
    HandOff(HandOff),
    /// Beside the path: the whole of a tool result that was too large for the context. Its message, which follows, has
    /// the head and the tail.
    WholeResult {
        /// The id of the call that it answers.
        call_id: String,
        /// The texts of the result.
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
    /// Beside the path: the tool of a call begins, after a hook before the call had asked a person. A call for which only
    /// hooks have asked, and that has no such entry, has not begun.
    CallStarted {
        /// The call.
        call_id: String,
    },
    /// Beside the path: what a run is held to besides its prompt's words. It follows the entry that begins the run; where
    /// the prompt waited, its terms are with its place in the inbox.
    Terms {
        /// The run.
        run: RunId,
        /// What it is held to.
        terms: Arc<Terms>,
    },
}

impl EntryKind {
    /// A message entry that was not delivered from the inbox.
    pub fn message(message: Message) -> Self {
        Self::Message { message: Arc::new(message), inbox: None, steer: false }
    }

    /// Whether it stands on the path, so that the leaf moves to it. The others are recorded beside it.
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

    /// The message, if it is one.
    pub fn as_message(&self) -> Option<&Arc<Message>> {
        if let Self::Message { message, .. } = self { Some(message) } else { None }
    }

    /// The model's answer, if it is one: whole, or what came of one.
    pub fn as_answer(&self) -> Option<&AssistantMessage> {
        self.as_message()?.as_answer()
    }

    /// Whether it is a model's whole answer.
    pub fn is_whole_answer(&self) -> bool {
        self.as_answer().is_some_and(AssistantMessage::is_whole)
    }

    /// What it records that a prompt asks for besides its words.
    pub fn as_terms(&self) -> Option<&Arc<Terms>> {
        if let Self::Terms { terms, .. } | Self::Inbox { terms: Some(terms), .. } = self {
            Some(terms)
        } else {
            None
        }
    }

    /// The compaction, if it is one.
    pub fn as_compaction(&self) -> Option<&Compaction> {
        if let Self::Compaction(compaction) = self { Some(compaction) } else { None }
    }
}

/// What people know a session by, as one entry sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metadata {
    /// The session's title.
    Title {
        /// The title; `None` takes it away.
        title: Option<String>,
    },
    /// One of the session's labels, such as a tenant.
    Label {
        /// The label's name.
        name: String,
        /// Its value; `None` takes the label away.
        value: Option<String>,
    },
}

/// What an agent did that was called as a tool. Each start has one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildRecord {
    /// The id of the call.
    pub call_id: String,
    /// The name of the tool, which is the name that the caller has for the agent.
    pub name: String,
    /// The id of the agent's own session.
    pub session: String,
    /// Whether it began or ended.
    pub stage: ChildStage,
}

/// How far an agent has come that was called as a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildStage {
    /// It begins to work.
    Started,
    /// Its work is over.
    Ended {
        /// The start that it ends.
        started: EntryId,
        /// How its work ended.
        outcome: RunOutcome,
    },
}

/// That a conversation goes on with another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandOff {
    /// The name of the agent that answered before.
    pub from: String,
    /// The name of the agent that answers from here on.
    pub to: String,
    /// How much of the conversation before it sees.
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
    /// What the command printed.
    pub output: String,
    /// Its exit code; `None` if it was killed or did not start.
    pub exit_code: Option<i32>,
    /// Whether the user cancelled it.
    pub cancelled: bool,
    /// Whether `output` was cut.
    pub truncated: bool,
    /// Whether the user asked that the model not see it.
    pub excluded: bool,
}

/// A message that a program put in.
#[derive(Debug, Clone, PartialEq)]
pub struct Custom {
    /// What kind of message, chosen by the program.
    pub kind: String,
    /// What the model sees.
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
    /// Whether it came without being asked for, so that a failure holds the next one back.
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
    /// The outcome in snake case.
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

    /// The reason, where there is one.
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
    /// The newest active compaction when this one was planned: where this one's input began.
    pub base: Option<EntryId>,
    /// The compaction before this one in the log, active or not: the chain of the session's history.
    pub previous: Option<EntryId>,
    /// The first entry that it replaces; `None` in an imported one.
    pub first: Option<EntryId>,
    /// The last entry that it replaces; `None` in an imported one.
    pub last: Option<EntryId>,
    /// The first entry that stays verbatim; `None` keeps only what follows this entry.
    pub first_kept: Option<EntryId>,
    /// The summary with its footer, as the model sees it.
    pub summary: String,
    /// The user's request in progress where its message is among those replaced, with the steers that joined it:
    /// verbatim, bounded, and so carried from compaction to compaction until its turn is over.
    pub active_request: Option<String>,
    /// All files touched from the session's start to `last`.
    pub files: FileOps,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// Whether the truncate fallback stands in for a model's summary.
    pub truncated: bool,
    /// Whether a hook supplied it.
    pub from_hook: bool,
    /// Whether the cut lies inside a turn.
    pub is_split_turn: bool,
    /// The context before, in tokens.
    pub tokens_before: u64,
    /// The context after, in tokens, as counted before it was installed.
    pub tokens_after: u64,
    /// How many messages the context had before.
    pub messages_before: u64,
    /// How many messages are replaced.
    pub messages_removed: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// The model that wrote the summary; empty if none did.
    pub model: String,
    /// What its calls used, together.
    pub usage: Usage,
    /// What its calls cost, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
    /// What was cut without a summary, by this compaction or before it, and no summary has read since: oldest first. The
    /// next summary reads it.
    pub debt: Vec<EntryRange>,
}

/// Entries of a path, from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// The first of them.
    pub first: EntryId,
    /// The last of them. The others are found by the parents from here back to `first`.
    pub last: EntryId,
}

/// Tool results that are sent shorter than they were recorded. The log keeps them whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Prune {
    /// What is sent in the place of which result, in the order of the path.
    pub results: Vec<PrunedResult>,
    /// Why the compaction was asked for that it belongs to.
    pub trigger: Trigger,
    /// The context before, in tokens.
    pub tokens_before: u64,
    /// The context after, in tokens, as counted before it was installed.
    pub tokens_after: u64,
}

/// What is sent in the place of a tool result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunedResult {
    /// The result's entry.
    pub entry: EntryId,
    /// The text that is sent: a line that stands for the result, or its head and its tail.
    pub text: String,
    /// Whether the result's images are still sent.
    pub keeps_images: bool,
    /// The size of what is sent, in tokens by the default estimator.
    pub tokens: u64,
}

/// That a compaction began.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionStarted {
    /// Why it began.
    pub trigger: Trigger,
    /// The context then, in tokens.
    pub tokens_before: u64,
    /// How many messages the context had then.
    pub messages_before: u64,
}

/// That a compaction ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CompactionEnded {
    /// The [`EntryKind::CompactionStarted`] that it ends.
    pub started: EntryId,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// How the compaction ended.
    pub outcome: CompactionOutcome,
    /// The compaction entry, where one was installed.
    pub entry: Option<EntryId>,
    /// The context before and after, in tokens. The same where nothing was installed.
    pub tokens_before: u64,
    /// See `tokens_before`.
    pub tokens_after: u64,
    /// How many messages the context had before.
    pub messages_before: u64,
    /// How many messages it has after.
    pub messages_after: u64,
    /// How many messages were replaced.
    pub messages_removed: u64,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// What its model calls used.
    pub summary_usage: Usage,
    /// What its model calls cost, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
}

/// Tokens that were spent for a session by calls that are not its own answers. What a compaction's summaries
/// spent is in its [`CompactionEnded`].
#[derive(Debug, Clone, PartialEq)]
pub struct Spent {
    /// Who spent the tokens.
    pub by: Spender,
    /// The tokens of all its calls together.
    pub usage: Usage,
    /// What the calls cost, in micro-dollars; `None` if the price is not known.
    pub cost_microdollars: Option<u64>,
}

/// Who spends tokens for a session, besides its own agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spender {
    /// An agent that was called as a tool.
    SubAgent {
        /// The id of its session.
        session: String,
    },
    /// The summary of a branch that was left.
    BranchSummary,
    /// Model calls of its own of which the log has no answer, or one without a report that can be true: see
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
    /// The outcome in snake case.
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

    /// Why it did not complete, where a reason is known.
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

/// [`RunOutcome`] as JSON has it.
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
