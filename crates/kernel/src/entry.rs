//! Entries: the immutable records of a session.
//!
//! Invariants: an entry's id is its position in the session's log (dense, from 0), its parent is an earlier
//! entry, and it is never changed or removed. `EntryKind::context_part` alone decides which entries have text for
//! the model, which are on the path without any, and which are beside it (inbox items, leaf moves, notes about
//! compactions).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bill::Bill;
use crate::context_usage::ContextUsage;
use crate::files::FileOps;
use crate::message::{AssistantMessage, Block, Message, Usage};
use crate::question::{AskedQuestion, QuestionEnd};
use crate::terms::Terms;

pub use compaction::{
    Compaction, CompactionEnded, CompactionOutcome, CompactionStarted, EntryRange, NativeSummary, Prune,
    PrunedResult, Trigger,
};
pub use run_outcome::RunOutcome;

mod compaction;
mod run_outcome;

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
    /// When it was recorded, in Unix milliseconds.
    pub at_ms: u64,
    /// Its estimated size in tokens ([`crate::size::entry_tokens`] with the default estimator), counted once,
    /// without reasoning.
    pub tokens: u64,
    /// The estimated size of an answer's readable reasoning, in tokens (`size::reasoning_tokens`),
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
        /// The cost of the call that an answer ends, in micro-dollars, by the prices of that time; `None` if the
        /// price was not known, and for other messages.
        cost_microdollars: Option<u64>,
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
        delivery: InboxDelivery,
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
    CompactionEnded(Box<CompactionEnded>),
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
        /// The spending during the run, with its summaries and the agents that it called.
        bill: Box<Bill>,
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
        Self::Message { message: Arc::new(message), inbox: None, steer: false, cost_microdollars: None }
    }

    /// Returns what it is in the model's context.
    pub(crate) fn context_part(&self) -> ContextPart<'_> {
        match self {
            Self::Message { message, .. } => ContextPart::Message(message),
            Self::Shell(shell) => ContextPart::Shell(shell),
            Self::Custom(custom) => ContextPart::Custom(custom),
            Self::BranchSummary { summary, .. } => ContextPart::BranchSummary(summary),
            Self::Compaction(compaction) => ContextPart::Compaction(compaction),
            Self::CompactionUndone { .. }
            | Self::Prune(_)
            | Self::Pin { .. }
            | Self::HandOff(_)
            | Self::ModelChange { .. }
            | Self::Label { .. }
            | Self::Note { .. } => ContextPart::Mark,
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
            | Self::RunEnded { .. } => ContextPart::Beside,
        }
    }

    /// Whether it is on the path, so that the leaf moves to it. The others are recorded beside it.
    pub fn is_on_path(&self) -> bool {
        !matches!(self.context_part(), ContextPart::Beside)
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
    pub(crate) fn as_terms(&self) -> Option<&Arc<Terms>> {
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

/// What an entry is in the model's context.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContextPart<'a> {
    /// A message.
    Message(&'a Arc<Message>),
    /// A command of the user, which may be excluded.
    Shell(&'a Shell),
    /// A message inserted by a program.
    Custom(&'a Custom),
    /// The summary of a branch.
    BranchSummary(&'a str),
    /// A summary in place of the older part of the path.
    Compaction(&'a Compaction),
    /// Nothing of its own: it is on the path, and may change how other entries are sent.
    Mark,
    /// Nothing: it is beside the path.
    Beside,
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
#[schemars(rename = "Delivery")]
#[non_exhaustive]
pub enum InboxDelivery {
    /// After the last result of the running batch of tool calls, into the current run.
    Steer,
    /// After the current run, which then continues with it.
    FollowUp,
    /// After the current run, as a prompt of its own.
    Prompt,
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
