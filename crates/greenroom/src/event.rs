//! What the agents broadcast: the public events.
//!
//! Invariants: an event that comes from the log (a *durable* one) is published only after its entry is
//! durable, has the entry's position as its `seq` and no `n`; all others are best effort and have the `seq` of
//! the durable event before them and an `n` that counts up. Enums here are open-ended: match with a wildcard.

use std::sync::Arc;

use greenroom_kernel::entry::{CompactionEnded, Delivery, Trigger};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{
    Block, Entry, EntryId, EntryKind, Failure, Message, Part, RunId, RunOutcome, StopReason, ToolStatus,
    Usage,
};
use serde::Serialize;

/// The version of the events' JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// One event of a session.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// The session.
    #[serde(rename = "session_id")]
    pub session: Arc<str>,
    /// The position in the session's log: of this event's entry, or of the newest one before it.
    pub seq: u64,
    /// For events beside the log: which one since that entry, from 1. `None` for durable ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// The session whose agent called this one as a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Arc<str>>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Whether it is in the log, and so can be replayed.
    pub fn is_durable(&self) -> bool {
        self.n.is_none()
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// An agent begins to work on a prompt.
    AgentStart {
        /// The run.
        run: RunId,
    },
    /// A step begins: one model call with its tools. What is tried again, after a failure or an overflow, belongs to
    /// the same step.
    StepStart {
        /// The run.
        run: RunId,
        /// Which step of the run, from 1.
        step: u32,
    },
    /// A step is over: its answer and the results of its calls are in the log, or its run ends inside it. A step whose
    /// agent crashes has no end.
    StepEnd {
        /// The run.
        run: RunId,
        /// Which step of the run, from 1.
        step: u32,
    },
    /// The model begins to answer.
    MessageStart {
        /// The run.
        run: RunId,
    },
    /// The model said more.
    MessageDelta {
        /// The run.
        run: RunId,
        /// What.
        delta: Delta,
    },
    /// The model call failed while the model was answering: what it said since `message_start` is void, joins no
    /// conversation, and is not sent back.
    MessageDiscarded {
        /// The run.
        run: RunId,
    },
    /// A message joined the conversation. Durable.
    MessageEnd {
        /// Its entry.
        entry_id: EntryId,
        /// What it is.
        message: MessageView,
    },
    /// A tool call begins.
    ToolStart {
        /// The run.
        run: RunId,
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
        /// One line.
        line: String,
    },
    /// A tool call ended. Its result follows as a message.
    ToolEnd {
        /// The call.
        call_id: String,
        /// The tool.
        name: String,
        /// How it went.
        status: ToolStatus,
        /// How long it took, in milliseconds.
        duration_ms: u64,
    },
    /// The context's size and the bill, after a model call.
    UsageUpdate {
        /// The context's size, which decides about compaction.
        context: ContextUsage,
        /// The model's window in tokens; absent where nothing knows it.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
        /// All tokens of all calls of this session so far: what is billed.
        total_tokens: u64,
        /// What they cost so far, in micro-dollars, as far as prices are known.
        cost_microdollars: u64,
    },
    /// A run ended. Durable.
    RunEnd {
        /// The run.
        run: RunId,
        /// How it ended.
        outcome: &'static str,
        /// Why, where it did not complete.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The failure, where there was one.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// The context's size then.
        context: ContextUsage,
    },
    /// The agent has nothing more to do for this prompt.
    AgentEnd {
        /// The run.
        run: RunId,
        /// How it ended.
        outcome: &'static str,
        /// The model's window in tokens; absent where nothing knows it.
        #[serde(skip_serializing_if = "Option::is_none")]
        context_window: Option<u64>,
        /// The context's size then.
        context: ContextUsage,
    },
    /// A compaction began. Durable.
    CompactionStart {
        /// Its number: what the end names as `started`.
        entry_id: EntryId,
        /// Why.
        trigger: Trigger,
        /// The context then, in tokens.
        tokens_before: u64,
        /// How many messages it had.
        messages_before: u64,
    },
    /// A compaction ended; exactly one for every start. Durable.
    CompactionEnd(CompactionEndView),
    /// A summary was installed. Durable.
    SessionCompacted {
        /// The compaction's entry.
        entry_id: EntryId,
        /// How many tokens the context lost.
        tokens_saved: u64,
    },
    /// A compaction no longer counts. Durable.
    CompactionUndone {
        /// Which.
        compaction: EntryId,
    },
    /// Input waits for the current run. Durable.
    InputQueued {
        /// Its entry.
        entry_id: EntryId,
        /// When it will join.
        delivery: Delivery,
    },
    /// A record of another kind. Durable.
    Recorded {
        /// Its entry.
        entry_id: EntryId,
        /// Which kind.
        kind: &'static str,
    },
    /// A model call failed and is tried again.
    Retry {
        /// The run.
        run: RunId,
        /// Which retry, from 1.
        attempt: u32,
        /// How long it waits first, in milliseconds.
        delay_ms: u64,
        /// Why.
        failure: Failure,
    },
    /// The provider cut the context without a word.
    OverflowDetected {
        /// The run.
        run: RunId,
    },
    /// Something that the user should know.
    Warning {
        /// What, in one line.
        message: String,
    },
    /// The session's actor died and was restarted from the log.
    SessionRestarted {
        /// Why it died.
        reason: String,
    },
    /// The session died too often and was given up. Open it again to resume it.
    SessionFailed {
        /// Why.
        reason: String,
    },
}

impl EventKind {
    /// The event's name, as in its JSON form.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AgentStart { .. } => "agent_start",
            Self::StepStart { .. } => "step_start",
            Self::StepEnd { .. } => "step_end",
            Self::MessageStart { .. } => "message_start",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageDiscarded { .. } => "message_discarded",
            Self::MessageEnd { .. } => "message_end",
            Self::ToolStart { .. } => "tool_start",
            Self::ToolUpdate { .. } => "tool_update",
            Self::ToolEnd { .. } => "tool_end",
            Self::UsageUpdate { .. } => "usage_update",
            Self::RunEnd { .. } => "run_end",
            Self::AgentEnd { .. } => "agent_end",
            Self::CompactionStart { .. } => "compaction_start",
            Self::CompactionEnd(_) => "compaction_end",
            Self::SessionCompacted { .. } => "session_compacted",
            Self::CompactionUndone { .. } => "compaction_undone",
            Self::InputQueued { .. } => "input_queued",
            Self::Recorded { .. } => "recorded",
            Self::Retry { .. } => "retry",
            Self::OverflowDetected { .. } => "overflow_detected",
            Self::Warning { .. } => "warning",
            Self::SessionRestarted { .. } => "session_restarted",
            Self::SessionFailed { .. } => "session_failed",
        }
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
            Self::AgentStart { .. }
            | Self::StepStart { .. }
            | Self::StepEnd { .. }
            | Self::MessageStart { .. }
            | Self::MessageDiscarded { .. }
            | Self::ToolEnd { .. }
            | Self::UsageUpdate { .. }
            | Self::RunEnd { .. }
            | Self::AgentEnd { .. }
            | Self::CompactionStart { .. }
            | Self::CompactionEnd(_)
            | Self::SessionCompacted { .. }
            | Self::CompactionUndone { .. }
            | Self::InputQueued { .. }
            | Self::Recorded { .. }
            | Self::Retry { .. }
            | Self::OverflowDetected { .. }
            | Self::Warning { .. }
            | Self::SessionRestarted { .. }
            | Self::SessionFailed { .. } => 0,
        };
        FRAME + held
    }
}

/// More of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// A message, as events show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessageView {
    /// `user`, `assistant`, `tool`, `shell`, `custom` or `branch_summary`.
    pub role: &'static str,
    /// Its text.
    pub text: String,
    /// The tools it calls: id, name, arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<CallView>,
    /// For a tool's result: the call it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// For a tool's result: how it went.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    /// For an answer: why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// For an answer: what the provider reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How many images it holds.
    #[serde(skip_serializing_if = "is_zero")]
    pub images: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A tool call, as events show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallView {
    /// The call's id.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments, JSON text.
    pub arguments: String,
}

/// How a compaction ended, as events show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompactionEndView {
    /// The start's `entry_id`.
    pub started: EntryId,
    /// Why it was asked for.
    pub trigger: Trigger,
    /// `completed`, `truncated`, `nothing`, `failed`, `cancelled`, `superseded` or `interrupted`.
    pub outcome: &'static str,
    /// Why, where nothing was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The context before, in tokens.
    pub tokens_before: u64,
    /// The context after, in tokens.
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
    /// What they cost, in micro-dollars, where the price is known.
    pub cost_microdollars: Option<u64>,
}

impl CompactionEndView {
    fn of(ended: &CompactionEnded) -> Self {
        Self {
            started: ended.started,
            trigger: ended.trigger,
            outcome: ended.outcome.as_str(),
            reason: ended.outcome.reason().map(str::to_owned),
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

/// The event of a recorded entry: every entry has exactly one.
pub fn durable(session: &Arc<str>, parent: Option<&Arc<str>>, entry: &Entry) -> Event {
    let entry_id = entry.id;
    let recorded = |kind: &'static str| EventKind::Recorded { entry_id, kind };
    let kind = match &entry.kind {
        EntryKind::Message { message, .. } => {
            EventKind::MessageEnd { entry_id, message: MessageView::of(message) }
        }
        EntryKind::Shell(shell) => {
            EventKind::MessageEnd { entry_id, message: MessageView::plain("shell", shell.output.clone()) }
        }
        EntryKind::Custom(custom) => EventKind::MessageEnd {
            entry_id,
            message: MessageView::plain("custom", greenroom_kernel::message::blocks_text(&custom.content)),
        },
        EntryKind::BranchSummary { summary, .. } => {
            EventKind::MessageEnd { entry_id, message: MessageView::plain("branch_summary", summary.clone()) }
        }
        EntryKind::Compaction(compaction) => EventKind::SessionCompacted {
            entry_id,
            tokens_saved: compaction.tokens_before.saturating_sub(compaction.tokens_after),
        },
        EntryKind::CompactionUndone { compaction } => EventKind::CompactionUndone { compaction: *compaction },
        EntryKind::CompactionStarted(started) => EventKind::CompactionStart {
            entry_id,
            trigger: started.trigger,
            tokens_before: started.tokens_before,
            messages_before: started.messages_before,
        },
        EntryKind::CompactionEnded(ended) => EventKind::CompactionEnd(CompactionEndView::of(ended)),
        EntryKind::RunEnded { run, outcome, context } => EventKind::RunEnd {
            run: *run,
            outcome: outcome.as_str(),
            reason: outcome_reason(outcome),
            failure: if let RunOutcome::Failed(failure) = outcome { Some(failure.clone()) } else { None },
            context: *context,
        },
        EntryKind::Inbox { delivery, .. } => EventKind::InputQueued { entry_id, delivery: *delivery },
        EntryKind::InboxCleared { .. } => recorded("inbox_cleared"),
        EntryKind::Pin { .. } => recorded("pin"),
        EntryKind::ModelChange { .. } => recorded("model_change"),
        EntryKind::Label { .. } => recorded("label"),
        EntryKind::Note { .. } => recorded("note"),
        EntryKind::LeafMoved { .. } => recorded("leaf_moved"),
        EntryKind::Spent(_) => recorded("spent"),
    };
    Event { session: Arc::clone(session), seq: entry.id.0, n: None, parent: parent.cloned(), kind }
}

fn outcome_reason(outcome: &RunOutcome) -> Option<String> {
    match outcome {
        RunOutcome::Completed | RunOutcome::Aborted | RunOutcome::Interrupted => None,
        RunOutcome::Failed(failure) => Some(failure.message.clone()),
        RunOutcome::Stopped { reason } => Some(reason.clone()),
    }
}

impl MessageView {
    fn plain(role: &'static str, text: String) -> Self {
        Self {
            role,
            text,
            tool_calls: Vec::new(),
            call_id: None,
            status: None,
            stop: None,
            usage: None,
            images: 0,
        }
    }

    fn of(message: &Message) -> Self {
        let mut view = Self::plain(message.role(), message.text());
        let images =
            |blocks: &[Block]| blocks.iter().filter(|block| matches!(block, Block::Image(_))).count();
        match message {
            Message::User(blocks) => view.images = images(blocks),
            Message::ToolResult(result) => {
                view.images = images(&result.content);
                view.call_id = Some(result.call_id.clone());
                view.status = Some(result.status);
            }
            Message::Assistant(assistant) => {
                view.stop = Some(assistant.stop);
                view.usage = assistant.usage;
                view.tool_calls = assistant
                    .content
                    .iter()
                    .filter_map(Part::as_tool_call)
                    .map(|call| CallView {
                        id: call.id.clone(),
                        name: call.name.clone(),
                        arguments: call.arguments.clone(),
                    })
                    .collect();
            }
        }
        view
    }
}
