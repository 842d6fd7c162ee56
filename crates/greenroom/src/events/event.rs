//! What the agents broadcast: the public events.
//!
//! Invariants: an event that comes from the log (a *durable* one) is published only after its entry is
//! durable, has the entry's position as its `seq` and no `n`; all others are best effort and have the `seq` of
//! the durable event before them and an `n` that counts up. A durable event is made of its log alone, so that it is the
//! same whenever it is read. Enums here are open-ended: match with a wildcard.

use std::sync::Arc;

use greenroom_kernel::entry::{Delivery, Sees, Trigger};
use greenroom_kernel::message::is_no_count;
use greenroom_kernel::question::{Asker, Question, QuestionEnd};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{EntryId, Failure, RunId, RunOutcome, ToolStatus, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::message_view::MessageView;
use crate::values::compaction::Compacted;
use crate::values::hook::{HookAction, HookPoint};
use crate::values::names::names;

#[cfg(test)]
pub(crate) mod tests;

/// One event of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Event {
    /// The session.
    #[serde(rename = "session_id")]
    pub session: Arc<str>,
    /// When the session was created, in unix milliseconds: later than any other that had its id and was deleted. So a
    /// program that keeps positions knows whether one is of this session, or of the one before it.
    #[serde(default)]
    pub session_created_at_ms: u64,
    /// The position in the session's log: of this event's entry, or of the newest one before it.
    pub seq: u64,
    /// For events beside the log: which one since that entry, from 1. `None` for durable ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// When it happened, in unix milliseconds by the runtime's clock. A durable one has the time of its entry, which an
    /// import keeps.
    pub at_ms: u64,
    /// The run that it belongs to: the one that was going on. `None` between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The session whose agent called this one as a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Arc<str>>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// An event of the log, at 0 of the clock and of no run: for tests of programs that read events. Its other fields can
    /// be set.
    pub fn new(session: impl Into<Arc<str>>, seq: u64, kind: EventKind) -> Self {
        let session = session.into();
        Self { session, session_created_at_ms: 0, seq, n: None, at_ms: 0, run: None, parent: None, kind }
    }

    /// Whether it is in the log, and so can be replayed.
    pub fn is_durable(&self) -> bool {
        self.n.is_none()
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The agent begins to work on a prompt, or goes on with one that was resumed. Ends with `run_end`.
    RunStart,
    /// The agent's instructions are not those of the session's run before. They hold for this whole run.
    InstructionsChanged {
        /// The text.
        text: String,
        /// Its size, in estimated tokens.
        tokens: u64,
    },
    /// A step begins: one model call with its tools. What is tried again, after a failure or an overflow, belongs to
    /// the same step.
    StepStart {
        /// Which step of the run, from 1.
        step: u32,
        /// The model that is asked.
        model: String,
    },
    /// A step is over: its answer and the results of its calls are in the log, or its run ends inside it. A step whose
    /// agent crashes has no end.
    StepEnd {
        /// Which step of the run, from 1.
        step: u32,
    },
    /// The model begins to answer.
    MessageStart,
    /// The model said more.
    MessageDelta {
        /// The new piece of the answer.
        delta: Delta,
    },
    /// The model call failed while the model was answering: what it said since `message_start` is void, joins no
    /// conversation, and is not sent back.
    MessageDiscarded,
    /// A message joined the conversation. Durable.
    MessageEnd {
        /// Its entry.
        entry_id: EntryId,
        /// The message.
        message: MessageView,
        /// The entry of its `input_queued`, where it had waited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queued: Option<EntryId>,
    },
    /// A tool call begins.
    ToolStart {
        /// The call.
        call_id: String,
        /// The tool.
        name: String,
        /// Its arguments, JSON text as the model wrote it.
        arguments: String,
    },
    /// A tool reports progress.
    ToolUpdate {
        /// The call.
        call_id: String,
        /// The tool.
        name: String,
        /// One line.
        line: String,
    },
    /// A tool call ended. Its result follows as a message.
    ToolEnd {
        /// The call.
        call_id: String,
        /// The tool.
        name: String,
        /// How the call ended.
        status: ToolStatus,
        /// How long it took, in milliseconds.
        duration_ms: u64,
    },
    /// An agent that was called as a tool begins to work, in a session of its own. Durable.
    ChildStart {
        /// Its entry: what the end names as `started`.
        entry_id: EntryId,
        /// The call.
        call_id: String,
        /// The tool, which is the name that the caller has for the agent.
        name: String,
        /// The agent's session, whose events have this one as their `parent`.
        child: String,
    },
    /// An agent that was called as a tool has ended; exactly one for every start. Durable.
    ChildEnd {
        /// The entry of its start.
        started: EntryId,
        /// The call.
        call_id: String,
        /// The tool, which is the name that the caller has for the agent.
        name: String,
        /// The agent's session.
        child: String,
        /// How its work ended: in JSON `outcome`, with `reason` and `failure` where there is one.
        #[serde(flatten)]
        outcome: RunOutcome,
    },
    /// The conversation goes on with another agent of the session's team. Durable.
    HandOff {
        /// The name of the agent that answered before.
        from: String,
        /// The name of the agent that answers from here on.
        to: String,
        /// How much of the conversation before it sees.
        sees: Sees,
    },
    /// The context's size and the bill, after a model call.
    UsageUpdate {
        /// The context's size, which decides about compaction.
        context: ContextUsage,
        /// The model's window in tokens; absent where nothing knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
        /// All tokens of all calls of this session so far: what is billed.
        total_tokens: u64,
        /// What they cost so far, in micro-dollars, as far as prices are known.
        cost_microdollars: u64,
        /// The part of `total_tokens` that is our own estimate, since the provider reported nothing, or something that cannot
        /// be. Where it is not 0, the cost is partly an estimate too.
        #[serde(default, skip_serializing_if = "is_no_count")]
        estimated_tokens: u64,
    },
    /// The run ended: the agent has nothing more to do for this prompt. Durable.
    RunEnd {
        /// How it ended: in JSON `outcome`, with `reason` and `failure` where there is one.
        #[serde(flatten)]
        outcome: RunOutcome,
        /// The context's size then, and the model's window.
        context: ContextUsage,
    },
    /// A compaction began. Durable.
    CompactionStart {
        /// Its number: what the end names as `started`.
        entry_id: EntryId,
        /// Why the compaction began.
        trigger: Trigger,
        /// The context then, in tokens.
        tokens_before: u64,
        /// How many messages it had.
        messages_before: u64,
    },
    /// A compaction ended; exactly one for every start. Durable.
    CompactionEnd(Compacted),
    /// A summary was installed. Durable.
    SessionCompacted {
        /// The compaction's entry.
        entry_id: EntryId,
        /// How many tokens the context lost.
        tokens_saved: u64,
    },
    /// Tool results are sent shorter from here on. Durable.
    ResultsPruned {
        /// The prune's entry.
        entry_id: EntryId,
        /// How many results are sent shorter.
        results: u64,
        /// How many tokens the context lost.
        tokens_saved: u64,
    },
    /// A compaction, or a pruning of results, no longer counts. Durable.
    CompactionUndone {
        /// The entry of the compaction or of the prune.
        compaction: EntryId,
    },
    /// Input waits for the current run. Durable.
    InputQueued {
        /// Its entry.
        entry_id: EntryId,
        /// When the input will join the conversation.
        delivery: Delivery,
    },
    /// A tool, or a hook before its call, asks a person, and waits for the answer:
    /// [`SessionHandle::answer`](crate::SessionHandle::answer). Durable.
    QuestionAsked {
        /// The question's id: its entry.
        entry_id: EntryId,
        /// The call.
        call_id: String,
        /// The name of the tool that is called.
        tool: String,
        /// Who asks.
        asker: Asker,
        /// The question: in JSON `text`, `details`, and `kind` with its fields.
        #[serde(flatten)]
        question: Question,
        /// When it expires, in unix milliseconds; absent where it stays open as long as its call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at_ms: Option<u64>,
    },
    /// A question was answered, expired or was withdrawn; exactly one for every question. Durable.
    QuestionEnded {
        /// The question's id.
        question: EntryId,
        /// How it ended: in JSON `outcome`, and of an answer `value` and `by`.
        #[serde(flatten)]
        end: QuestionEnd,
    },
    /// A record that has no event of its own. Durable.
    Recorded {
        /// Its entry.
        entry_id: EntryId,
        /// What was recorded: in JSON `kind`, and the fields of that kind.
        #[serde(flatten)]
        record: Record,
    },
    /// A model call failed and is tried again.
    Retry {
        /// For a summary: the `entry_id` of its compaction's `compaction_start`. `None` for a step of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compaction: Option<EntryId>,
        /// The number of the retry, from 1.
        attempt: u32,
        /// How long it waits first, in milliseconds.
        delay_ms: u64,
        /// The failure that caused the retry.
        failure: Failure,
    },
    /// A model call waits, or need not wait any more. Told when the wait begins, when its reason changes, and when it is
    /// over; not at all where there is no wait.
    QueueUpdate {
        /// The provider that is to be asked.
        provider: String,
        /// For a summary: `true`. Else it is a step of the run.
        is_summary: bool,
        /// What it waits for; with position 0, what it waited for last.
        reason: QueueReason,
        /// The call's place among those that wait: 1 is next, and 0 says that the wait is over.
        position: u64,
        /// How long the call has waited so far, in milliseconds.
        waited_ms: u64,
    },
    /// Nothing more could be had of the model that was asked, and the run goes on with another: see
    /// [`Agent::fallback`](crate::Agent::fallback).
    Fallback {
        /// The provider that is asked from now on.
        provider: String,
        /// The model that is asked from now on.
        model: String,
        /// The last failure of the one before.
        failure: Failure,
    },
    /// A hook of the agent changed, refused, answered or replaced something. A hook that only looks is not told.
    Hook {
        /// Where the hook took part.
        hook: HookPoint,
        /// What it did.
        action: HookAction,
        /// The tool call, where it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<String>,
        /// The tool, where it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The changed arguments, JSON text; or why something was refused or withheld.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// The provider cut the context without a word.
    OverflowDetected,
    /// Something that the user should know.
    Warning {
        /// The warning, in one line.
        message: String,
    },
    /// The session's actor died and was restarted from the log.
    SessionRestarted {
        /// What the actor's failure was.
        reason: String,
    },
    /// The session died too often and was given up. Open it again to resume it.
    SessionFailed {
        /// What its last failure was.
        reason: String,
    },
    /// The session was deleted, and this is the last that is told of it. Opening its id begins another one.
    SessionDeleted,
    /// An event that this version cannot read: its type is one of a newer program's, or something in it is. It is written
    /// as it was read.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown {
        /// The event's type.
        #[serde(rename = "type")]
        name: String,
        /// Its other fields, as they came.
        #[serde(flatten)]
        fields: serde_json::Map<String, Value>,
    },
}

impl EventKind {
    /// The event's type.
    pub fn event_type(&self) -> EventType {
        match self {
            Self::RunStart => EventType::RunStart,
            Self::InstructionsChanged { .. } => EventType::InstructionsChanged,
            Self::StepStart { .. } => EventType::StepStart,
            Self::StepEnd { .. } => EventType::StepEnd,
            Self::MessageStart => EventType::MessageStart,
            Self::MessageDelta { .. } => EventType::MessageDelta,
            Self::MessageDiscarded => EventType::MessageDiscarded,
            Self::MessageEnd { .. } => EventType::MessageEnd,
            Self::ToolStart { .. } => EventType::ToolStart,
            Self::ToolUpdate { .. } => EventType::ToolUpdate,
            Self::ToolEnd { .. } => EventType::ToolEnd,
            Self::ChildStart { .. } => EventType::ChildStart,
            Self::ChildEnd { .. } => EventType::ChildEnd,
            Self::HandOff { .. } => EventType::HandOff,
            Self::UsageUpdate { .. } => EventType::UsageUpdate,
            Self::RunEnd { .. } => EventType::RunEnd,
            Self::CompactionStart { .. } => EventType::CompactionStart,
            Self::CompactionEnd(_) => EventType::CompactionEnd,
            Self::SessionCompacted { .. } => EventType::SessionCompacted,
            Self::ResultsPruned { .. } => EventType::ResultsPruned,
            Self::CompactionUndone { .. } => EventType::CompactionUndone,
            Self::InputQueued { .. } => EventType::InputQueued,
            Self::QuestionAsked { .. } => EventType::QuestionAsked,
            Self::QuestionEnded { .. } => EventType::QuestionEnded,
            Self::Recorded { .. } => EventType::Recorded,
            Self::Retry { .. } => EventType::Retry,
            Self::QueueUpdate { .. } => EventType::QueueUpdate,
            Self::Fallback { .. } => EventType::Fallback,
            Self::Hook { .. } => EventType::Hook,
            Self::OverflowDetected => EventType::OverflowDetected,
            Self::Warning { .. } => EventType::Warning,
            Self::SessionRestarted { .. } => EventType::SessionRestarted,
            Self::SessionFailed { .. } => EventType::SessionFailed,
            Self::SessionDeleted => EventType::SessionDeleted,
            Self::Unknown { .. } => EventType::Unknown,
        }
    }

    /// The event's name: its type, as in its JSON form; `unknown` for [`EventKind::Unknown`].
    pub fn name(&self) -> &'static str {
        self.event_type().as_str()
    }

    /// About how many bytes it holds, for bounded queues.
    pub(crate) fn weight(&self) -> usize {
        const FRAME: usize = 256;
        let held = match self {
            Self::MessageEnd { message, .. } => message.text.len() + message.tool_calls.len() * FRAME,
            Self::MessageDelta { delta, .. } => match delta {
                Delta::Text(text) | Delta::Reasoning(text) | Delta::ToolArguments { text, .. } => text.len(),
            },
            Self::ToolStart { arguments, .. } => arguments.len(),
            Self::ToolUpdate { line, .. } => line.len(),
            Self::InstructionsChanged { text, .. } => text.len(),
            Self::Hook { detail, .. } => detail.as_ref().map_or(0, String::len),
            Self::Recorded { record: Record::Note { data, .. }, .. } => data.len(),
            Self::Unknown { fields, .. } => FRAME * fields.len(),
            Self::QuestionAsked { question, .. } => question.weight(),
            Self::QuestionEnded { end: QuestionEnd::Answered(answer), .. } => answer.weight(),
            Self::RunStart
            | Self::StepStart { .. }
            | Self::StepEnd { .. }
            | Self::MessageStart
            | Self::MessageDiscarded
            | Self::ToolEnd { .. }
            | Self::ChildStart { .. }
            | Self::ChildEnd { .. }
            | Self::HandOff { .. }
            | Self::UsageUpdate { .. }
            | Self::RunEnd { .. }
            | Self::CompactionStart { .. }
            | Self::CompactionEnd(_)
            | Self::SessionCompacted { .. }
            | Self::ResultsPruned { .. }
            | Self::CompactionUndone { .. }
            | Self::InputQueued { .. }
            | Self::QuestionEnded { .. }
            | Self::Recorded { .. }
            | Self::Retry { .. }
            | Self::QueueUpdate { .. }
            | Self::Fallback { .. }
            | Self::OverflowDetected
            | Self::Warning { .. }
            | Self::SessionRestarted { .. }
            | Self::SessionFailed { .. }
            | Self::SessionDeleted => 0,
        };
        FRAME + held
    }
}

names! {
    /// The types of events: what a filter names.
    pub enum EventType ("event") {
        /// See [`EventKind::RunStart`].
        RunStart = "run_start",
        /// See [`EventKind::InstructionsChanged`].
        InstructionsChanged = "instructions_changed",
        /// See [`EventKind::StepStart`].
        StepStart = "step_start",
        /// See [`EventKind::StepEnd`].
        StepEnd = "step_end",
        /// See [`EventKind::MessageStart`].
        MessageStart = "message_start",
        /// See [`EventKind::MessageDelta`].
        MessageDelta = "message_delta",
        /// See [`EventKind::MessageDiscarded`].
        MessageDiscarded = "message_discarded",
        /// See [`EventKind::MessageEnd`].
        MessageEnd = "message_end",
        /// See [`EventKind::ToolStart`].
        ToolStart = "tool_start",
        /// See [`EventKind::ToolUpdate`].
        ToolUpdate = "tool_update",
        /// See [`EventKind::ToolEnd`].
        ToolEnd = "tool_end",
        /// See [`EventKind::ChildStart`].
        ChildStart = "child_start",
        /// See [`EventKind::ChildEnd`].
        ChildEnd = "child_end",
        /// See [`EventKind::HandOff`].
        HandOff = "hand_off",
        /// See [`EventKind::UsageUpdate`].
        UsageUpdate = "usage_update",
        /// See [`EventKind::RunEnd`].
        RunEnd = "run_end",
        /// See [`EventKind::CompactionStart`].
        CompactionStart = "compaction_start",
        /// See [`EventKind::CompactionEnd`].
        CompactionEnd = "compaction_end",
        /// See [`EventKind::SessionCompacted`].
        SessionCompacted = "session_compacted",
        /// See [`EventKind::ResultsPruned`].
        ResultsPruned = "results_pruned",
        /// See [`EventKind::CompactionUndone`].
        CompactionUndone = "compaction_undone",
        /// See [`EventKind::InputQueued`].
        InputQueued = "input_queued",
        /// See [`EventKind::QuestionAsked`].
        QuestionAsked = "question_asked",
        /// See [`EventKind::QuestionEnded`].
        QuestionEnded = "question_ended",
        /// See [`EventKind::Recorded`].
        Recorded = "recorded",
        /// See [`EventKind::Retry`].
        Retry = "retry",
        /// See [`EventKind::QueueUpdate`].
        QueueUpdate = "queue_update",
        /// See [`EventKind::Fallback`].
        Fallback = "fallback",
        /// See [`EventKind::Hook`].
        Hook = "hook",
        /// See [`EventKind::OverflowDetected`].
        OverflowDetected = "overflow_detected",
        /// See [`EventKind::Warning`].
        Warning = "warning",
        /// See [`EventKind::SessionRestarted`].
        SessionRestarted = "session_restarted",
        /// See [`EventKind::SessionFailed`].
        SessionFailed = "session_failed",
        /// See [`EventKind::SessionDeleted`].
        SessionDeleted = "session_deleted",
    }
    /// See [`EventKind::Unknown`]. No filter can name it.
    #[serde(rename = "unknown", skip_deserializing)]
    else Unknown
}

names! {
    /// Why a model call waits: see [`EventKind::QueueUpdate`].
    pub enum QueueReason ("reason to wait") {
        /// As many calls as the provider may have are in flight.
        Places = "places",
        /// The limit of tokens a minute is reached.
        Tokens = "tokens",
        /// The provider asked to wait.
        Paused = "paused",
    }
    /// A name that this version does not know: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

/// What an entry records that has no event of its own: see [`EventKind::Recorded`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    /// Input was taken out of the inbox before it was delivered.
    InboxCleared {
        /// The entries of the input, as their `input_queued` named them.
        items: Vec<EntryId>,
    },
    /// An entry was pinned or released.
    Pin {
        /// The entry.
        entry: EntryId,
        /// Whether every compaction keeps the entry verbatim from now on.
        pinned: bool,
    },
    /// From here on another model answers.
    ModelChange {
        /// The provider's name.
        provider: String,
        /// The model.
        model: String,
    },
    /// An entry was given a name.
    Label {
        /// The entry.
        target: EntryId,
        /// The entry's name; `None` takes it away.
        label: Option<String>,
    },
    /// A program's own record.
    Note {
        /// What the program calls this kind of record.
        name: String,
        /// The record's data, JSON text.
        data: String,
    },
    /// The next entry begins a branch.
    LeafMoved {
        /// The entry after which the branch begins; `None` is the beginning of the conversation.
        to: Option<EntryId>,
    },
    /// Tokens were spent by calls that are not the session's own answers.
    Spent {
        /// For an agent that was called as a tool: its session. `None` for the summary of a branch, and for model calls of
        /// the session whose answer is not recorded, or came without a report that can be true.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sub_agent: Option<String>,
        /// What the calls used.
        usage: Usage,
        /// What they cost, in micro-dollars; `None` where the price is not known.
        cost_microdollars: Option<u64>,
    },
    /// The whole of a tool result that was too large for the context was kept.
    WholeResult {
        /// The call that it answers.
        call_id: String,
    },
    /// The tool of a call begins, after a hook before the call had asked a person.
    CallStarted {
        /// The call.
        call_id: String,
    },
    /// What the run that begins is held to besides its prompt's words.
    Terms {
        /// The name of the schema that the answer must fit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        /// How the model is to answer, as far as the prompt says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<Value>,
        /// The most that the run may cost, in micro-dollars.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_limit_microdollars: Option<u64>,
        /// How long the reply may take, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// The agent's validators that judge the answer.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        validators: Vec<String>,
        /// The first entry of the prompt that is said again, under its idempotency key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<EntryId>,
    },
    /// The session's title was set.
    Title {
        /// The title; `None` takes it away.
        title: Option<String>,
    },
    /// One of the session's labels was set.
    SessionLabel {
        /// The label's name.
        name: String,
        /// The label's value; `None` takes it away.
        value: Option<String>,
    },
    /// A record that this version cannot read: a newer program wrote it. It is written as it was read.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown {
        /// The record's kind.
        #[serde(rename = "kind")]
        name: String,
        /// Its other fields, as they came.
        #[serde(flatten)]
        fields: serde_json::Map<String, Value>,
    },
}

/// More of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", content = "text", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delta {
    /// Text for the user.
    Text(String),
    /// Reasoning.
    Reasoning(String),
    /// A tool call being written.
    ToolArguments {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// The tool's name, where this piece carries it.
        name: Option<String>,
        /// More of the arguments' JSON text.
        text: String,
    },
}
