//! The public events.
//!
//! Invariants: an event from the log (a *durable* one) is published only after its entry is durable, and has
//! the entry's position as its `seq` and no `n`; all others are best effort, and have the `seq` of the
//! durable event before them and an `n` that counts from there. A durable event depends only on its log, so
//! it is the same whenever it is read. Enums here are open-ended: match with a wildcard.

use std::sync::Arc;

use greenroom_kernel::entry::{InboxDelivery, Sees, Trigger};
use greenroom_kernel::message::is_no_count;
use greenroom_kernel::question::{Asker, Question, QuestionEnd};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{EntryId, Failure, RunId, RunOutcome, ToolStatus, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::message_view::MessageView;
use crate::events::reasons::{PrefixChange, QueueReason};
use crate::values::compaction::Compacted;
use crate::values::hook::{HookAction, HookPoint};
use crate::values::names::names;
use crate::values::retention::DeletionReason;

#[cfg(test)]
pub(crate) mod tests;
mod weight;

/// One event of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Event {
    /// The session.
    #[serde(rename = "session_id")]
    pub session: Arc<str>,
    /// When the session was created, in Unix milliseconds: later than any deleted session with its id. So a
    /// program that keeps positions can tell which of these sessions they belong to.
    #[serde(default)]
    pub session_created_at_ms: u64,
    /// The position in the session's log: of this event's entry, or of the newest entry before it.
    pub seq: u64,
    /// For transient events: the number since that entry, from 1. `None` for durable ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// When the event happened, in Unix milliseconds by the runtime's clock. A durable one has the time of
    /// its entry, which an import keeps.
    pub at_ms: u64,
    /// The run that was in progress; `None` between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The session whose agent called this one as a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Arc<str>>,
    /// The kind of event, with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Creates an event of the log, at time 0 and without a run: for tests of programs that read events. Its
    /// other fields can be set.
    pub fn new(session: impl Into<Arc<str>>, seq: u64, kind: EventKind) -> Self {
        let session = session.into();
        Self { session, session_created_at_ms: 0, seq, n: None, at_ms: 0, run: None, parent: None, kind }
    }

    /// Whether the event is in the log, and so can be replayed.
    pub fn is_durable(&self) -> bool {
        self.n.is_none()
    }
}

/// The kind of an event, with its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The agent starts to work on a prompt, or continues a resumed one. Ends with `run_end`.
    RunStart,
    /// The agent's instructions differ from those of the session's previous run. They apply to this whole
    /// run.
    InstructionsChanged {
        /// The instructions.
        text: String,
        /// Their size, in estimated tokens.
        tokens: u64,
    },
    /// A step starts: one model call with its tools. Retries, after a failure or an overflow, belong to the
    /// same step.
    StepStart {
        /// The number of the step in the run, from 1.
        step: u32,
        /// The model that is called.
        model: String,
    },
    /// A step has ended: its answer and the results of its calls are in the log, or its run ended during the step. If
    /// its agent crashes, a step has no end.
    StepEnd {
        /// The number of the step in the run, from 1.
        step: u32,
    },
    /// The model starts to answer.
    MessageStart,
    /// More of the model's answer.
    MessageDelta {
        /// The new piece of the answer.
        delta: Delta,
    },
    /// The model call failed during the answer: its output since `message_start` is void, joins no
    /// conversation, and is not sent back.
    MessageDiscarded,
    /// A message joined the conversation. Durable.
    MessageEnd {
        /// The message's entry.
        entry_id: EntryId,
        /// The message.
        message: MessageView,
        /// The entry of its `input_queued`, if it was queued.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queued: Option<EntryId>,
    },
    /// A tool call starts.
    ToolStart {
        /// The call's id.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The arguments, as JSON text from the model.
        arguments: String,
    },
    /// A tool reports progress.
    ToolUpdate {
        /// The call's id.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The progress, in one line.
        line: String,
    },
    /// A tool call has ended. Its result follows as a message.
    ToolEnd {
        /// The call's id.
        call_id: String,
        /// The tool's name.
        name: String,
        /// How the call ended.
        status: ToolStatus,
        /// The call's duration, in milliseconds.
        duration_ms: u64,
    },
    /// A sub-agent starts to work, in a session of its own. Durable.
    ChildStart {
        /// The event's entry, which the end names as `started`.
        entry_id: EntryId,
        /// The call's id.
        call_id: String,
        /// The tool's name, which is the caller's name for the sub-agent.
        name: String,
        /// The sub-agent's session, whose events have this one as their `parent`.
        child: String,
    },
    /// A sub-agent has ended; there is exactly one end for every start. Durable.
    ChildEnd {
        /// The entry of its start.
        started: EntryId,
        /// The call's id.
        call_id: String,
        /// The tool's name, which is the caller's name for the sub-agent.
        name: String,
        /// The sub-agent's session.
        child: String,
        /// The result of its work: in JSON `outcome`, with `reason` and `failure` if there is one.
        #[serde(flatten)]
        outcome: RunOutcome,
    },
    /// The conversation continues with another agent of the session's team. Durable.
    HandOff {
        /// The agent that answered before.
        from: String,
        /// The agent that answers from now on.
        to: String,
        /// How much of the earlier conversation the new agent sees.
        sees: Sees,
    },
    /// The context's size and the bill, after a model call.
    UsageUpdate {
        /// The context's size, which decides about compaction.
        context: ContextUsage,
        /// The model's window in tokens; absent if it is unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
        /// The billed tokens of all calls of this session so far.
        total_tokens: u64,
        /// The cost of these tokens so far, in micro-dollars, as far as prices are known.
        cost_microdollars: u64,
        /// The part of `total_tokens` that we estimated, because the provider reported no usage or an
        /// impossible one. If it is not 0, the cost is partly an estimate too.
        #[serde(default, skip_serializing_if = "is_no_count")]
        estimated_tokens: u64,
    },
    /// The run has ended: the agent has nothing more to do for this prompt. Durable.
    RunEnd {
        /// The outcome: in JSON `outcome`, with `reason` and `failure` if there is one.
        #[serde(flatten)]
        outcome: RunOutcome,
        /// The context's size at the end, and the model's window.
        context: ContextUsage,
        /// The cost of the run in micro-dollars, as far as prices are known: its model calls, its summaries, and the
        /// agents that it called, with theirs.
        #[serde(default)]
        cost_microdollars: u64,
        /// Whether a part of that cost is estimated, because a server reported no usage, or too little for what was sent.
        #[serde(default)]
        is_cost_estimated: bool,
    },
    /// The next request does not extend the previous one, which invalidates a provider's prompt cache from that point
    /// on. Not sent after a compaction, an undo or a branch, which rewrite the context on purpose.
    PrefixChanged {
        /// Why it does not.
        reason: PrefixChange,
        /// The number of messages that are the same as before.
        messages_kept: u64,
    },
    /// The context has passed the soft threshold: a compaction is near. Sent once before each compaction.
    CompactionNear {
        /// The context's size, in tokens.
        tokens: u64,
        /// The size at which it will be compacted, in tokens.
        compacts_at: u64,
    },
    /// A compaction has started. Durable.
    CompactionStart {
        /// The event's entry, which the end names as `started`.
        entry_id: EntryId,
        /// Why the compaction started.
        trigger: Trigger,
        /// The context's size at the start, in tokens.
        tokens_before: u64,
        /// The number of its messages.
        messages_before: u64,
    },
    /// A compaction has ended; there is exactly one end for every start. Durable.
    CompactionEnd(Compacted),
    /// A summary was installed. Durable.
    SessionCompacted {
        /// The compaction's entry.
        entry_id: EntryId,
        /// How many tokens smaller the context is.
        tokens_saved: u64,
    },
    /// Tool results are shortened in the model's view from here on. Durable.
    ResultsPruned {
        /// The prune's entry.
        entry_id: EntryId,
        /// The number of shortened results.
        results: u64,
        /// How many tokens smaller the context is.
        tokens_saved: u64,
    },
    /// A compaction, or a pruning of results, was undone. Durable.
    CompactionUndone {
        /// The entry of the compaction or of the prune.
        compaction: EntryId,
    },
    /// Input waits for the current run. Durable.
    InputQueued {
        /// The input's entry.
        entry_id: EntryId,
        /// When the input will join the conversation.
        delivery: InboxDelivery,
    },
    /// A tool, or a hook before its call, has asked a person, and waits for the answer:
    /// [`SessionHandle::answer`](crate::SessionHandle::answer). Durable.
    QuestionAsked {
        /// The question's id: its entry.
        entry_id: EntryId,
        /// The call's id.
        call_id: String,
        /// The name of the called tool.
        tool: String,
        /// The source of the question.
        asker: Asker,
        /// The question: in JSON `text`, `details`, and `kind` with its fields.
        #[serde(flatten)]
        question: Question,
        /// When the question expires, in Unix milliseconds; absent if it stays open as long as its call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at_ms: Option<u64>,
    },
    /// A question was answered, expired or was withdrawn; there is exactly one end for every question.
    /// Durable.
    QuestionEnded {
        /// The question's id.
        question: EntryId,
        /// The question's end: in JSON `outcome`, and for an answer `value` and `by`.
        #[serde(flatten)]
        end: QuestionEnd,
    },
    /// A record without an event of its own. Durable.
    Recorded {
        /// The record's entry.
        entry_id: EntryId,
        /// The record: in JSON `kind`, and the fields of that kind.
        #[serde(flatten)]
        record: Record,
    },
    /// A model call failed and will be retried.
    Retry {
        /// For a summary: the `entry_id` of its compaction's `compaction_start`. `None` for a step of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compaction: Option<EntryId>,
        /// The number of the retry, from 1.
        attempt: u32,
        /// The wait before the retry, in milliseconds.
        delay_ms: u64,
        /// The failure that caused the retry.
        failure: Failure,
    },
    /// A model call waits, or its wait is over. Reported when the wait starts, when its reason changes, and
    /// when it ends; not at all without a wait.
    QueueUpdate {
        /// The provider to be called.
        provider: String,
        /// `true` for a summary, `false` for a step of the run.
        is_summary: bool,
        /// The reason for the wait; with position 0, the last one.
        reason: QueueReason,
        /// The call's position in the queue: 1 is next, and 0 means that the wait is over.
        position: u64,
        /// How long the call has waited so far, in milliseconds.
        waited_ms: u64,
    },
    /// The current model has failed permanently, and the run continues with another model: see
    /// [`Agent::fallback`](crate::Agent::fallback).
    Fallback {
        /// The provider that is used from now on.
        provider: String,
        /// The model that is used from now on.
        model: String,
        /// The last failure of the previous model.
        failure: Failure,
    },
    /// A hook of the agent changed, refused, answered or replaced something. Hooks that only observe are not
    /// reported.
    Hook {
        /// The point at which the hook was called.
        hook: HookPoint,
        /// The hook's action.
        action: HookAction,
        /// The id of the tool call, if it concerns one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call_id: Option<String>,
        /// The name of the tool, if it concerns one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// The changed arguments as JSON text, or why something was refused or withheld.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// The mode of the session's permissions was changed: for its next calls.
    ModeChanged {
        /// The mode from now on, such as `ask`.
        mode: String,
    },
    /// The provider truncated the context silently.
    OverflowDetected,
    /// A warning for the user.
    Warning {
        /// The warning, in one line.
        message: String,
    },
    /// The session's actor crashed and was restarted from the log.
    SessionRestarted {
        /// The actor's failure.
        reason: String,
    },
    /// The session crashed too often. Opening it again resumes it.
    SessionFailed {
        /// The last failure.
        reason: String,
    },
    /// Another node runs the session now and publishes its events. A new request for the session finds that node.
    SessionMoved {
        /// Why.
        reason: String,
    },
    /// The session was deleted; this is its last event. Opening its id creates a new session.
    SessionDeleted {
        /// Why retention deleted it; absent if a person or a program did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<DeletionReason>,
    },
    /// An event that this version cannot read, because its type or a part of it is from a newer program. It
    /// is written as it was read.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown {
        /// Returns the event's type.
        #[serde(rename = "type")]
        name: String,
        /// Its other fields, unchanged.
        #[serde(flatten)]
        fields: serde_json::Map<String, Value>,
    },
}

impl EventKind {
    /// Returns the event's name: its type, as in JSON; `unknown` for [`EventKind::Unknown`].
    pub fn name(&self) -> &'static str {
        self.event_type().as_str()
    }
}

names! {
    /// The types of events, for filters.
    pub enum EventType ("event") of EventKind {
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
        /// See [`EventKind::PrefixChanged`].
        PrefixChanged = "prefix_changed",
        /// See [`EventKind::CompactionNear`].
        CompactionNear = "compaction_near",
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
        /// See [`EventKind::ModeChanged`].
        ModeChanged = "mode_changed",
        /// See [`EventKind::OverflowDetected`].
        OverflowDetected = "overflow_detected",
        /// See [`EventKind::Warning`].
        Warning = "warning",
        /// See [`EventKind::SessionRestarted`].
        SessionRestarted = "session_restarted",
        /// See [`EventKind::SessionFailed`].
        SessionFailed = "session_failed",
        /// See [`EventKind::SessionMoved`].
        SessionMoved = "session_moved",
        /// See [`EventKind::SessionDeleted`].
        SessionDeleted = "session_deleted",
    }
    /// See [`EventKind::Unknown`]. No filter can name it.
    #[serde(rename = "unknown", skip_deserializing)]
    else Unknown
}

/// The record of an entry without an event of its own: see [`EventKind::Recorded`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Record {
    /// Input was withdrawn from the inbox before it was delivered.
    InboxCleared {
        /// The entries of the input, as their `input_queued` named them.
        items: Vec<EntryId>,
    },
    /// An entry was pinned or unpinned.
    Pin {
        /// The entry.
        entry: EntryId,
        /// Whether every compaction keeps the entry verbatim from now on.
        pinned: bool,
    },
    /// Another model answers from here on.
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
        /// The entry's name; `None` removes it.
        label: Option<String>,
    },
    /// A program's own record.
    Note {
        /// The program's name for this kind of record.
        name: String,
        /// The record's data, as JSON text.
        data: String,
    },
    /// The next entry starts a branch.
    LeafMoved {
        /// The entry after which the branch starts; `None` is the start of the conversation.
        to: Option<EntryId>,
    },
    /// Tokens were spent by calls other than the session's own answers.
    Spent {
        /// For a sub-agent: its session. `None` for the summary of a branch, and for model calls of the
        /// session whose answer is not recorded, or had no plausible usage report.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sub_agent: Option<String>,
        /// The usage of the calls.
        usage: Usage,
        /// The cost of the calls, in micro-dollars; `None` if the price is unknown.
        cost_microdollars: Option<u64>,
    },
    /// The full text of a tool result that was too large for the context was kept.
    WholeResult {
        /// The id of the call.
        call_id: String,
    },
    /// The tool of a call starts, after a hook before the call had asked a person.
    CallStarted {
        /// The call's id.
        call_id: String,
    },
    /// The terms of the new run, besides its prompt's text.
    Terms {
        /// The name of the schema for the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
        /// The model settings of the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<Value>,
        /// The limit of the run's cost, in micro-dollars.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_limit_microdollars: Option<u64>,
        /// The time limit of the reply, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// The agent's validators for this prompt.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        validators: Vec<String>,
        /// The first entry of the prompt that is repeated by its idempotency key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<EntryId>,
    },
    /// The session's title was set.
    Title {
        /// The title; `None` removes it.
        title: Option<String>,
    },
    /// One of the session's labels was set.
    SessionLabel {
        /// The label's name.
        name: String,
        /// The label's value; `None` removes it.
        value: Option<String>,
    },
    /// A record that this version cannot read: a newer program wrote it. It is written as it was read.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown {
        /// The record's kind.
        #[serde(rename = "kind")]
        name: String,
        /// Its other fields, unchanged.
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
    /// A tool call as it is streamed.
    ToolArguments {
        /// The index of the call in the answer, from 0.
        index: usize,
        /// The tool's name, if this piece has it.
        name: Option<String>,
        /// More of the arguments' JSON text.
        text: String,
    },
}
