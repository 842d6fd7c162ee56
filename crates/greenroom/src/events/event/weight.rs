//! The sizes of events, for queues that are bounded in bytes.
//!
//! Invariants: a size is an estimate that counts every text of any length.

use greenroom_kernel::question::QuestionEnd;

use super::{Delta, EventKind, Record};

impl EventKind {
    /// Returns the approximate size in bytes, for bounded queues.
    #[doc(hidden)]
    pub fn weight(&self) -> usize {
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
            | Self::PrefixChanged { .. }
            | Self::CompactionNear { .. }
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
            | Self::ModeChanged { .. }
            | Self::OverflowDetected
            | Self::Warning { .. }
            | Self::SessionRestarted { .. }
            | Self::SessionFailed { .. }
            | Self::SessionMoved { .. }
            | Self::SessionDeleted { .. } => 0,
        };
        FRAME + held
    }
}
