//! The tool calls of an answer: which of them are run, and when the run ends instead.
//!
//! Invariants: a recorded answer holds at most one call more than may be run, and that one is refused; a
//! model that repeats itself, or keeps calling too many tools, ends its run.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use super::{Run, RunLimits};
use crate::message::{AssistantMessage, Part, StopReason, ToolCall};

/// The maximum recorded length of a refused call's name, in bytes.
const REFUSED_NAME_BYTES_MAX: usize = 64;
/// How many consecutive answers may call too many tools.
const EXCESSES_MAX: u32 = 3;

/// The tool calls of the newest answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    /// The calls without a recorded result, by their order in the answer.
    pub(super) open: BTreeMap<usize, ToolCall>,
    /// Whether the open calls were handed out to run.
    pub(super) are_running: bool,
    /// The last open call and the reason, if it is not run.
    pub(super) refused: Option<(ToolCall, String)>,
    /// The number of consecutive answers with too many calls.
    pub(super) excesses: u32,
    /// The calls of the newest answer, in order.
    last: Vec<CallSignature>,
    /// The number of consecutive answers with exactly these calls.
    repeats: u32,
}

/// The identity of a call, for detecting repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallSignature {
    name: String,
    arguments: String,
}

impl Calls {
    /// Takes the calls that were pending when the run was resumed.
    pub(super) fn take_up(&mut self, calls: Vec<ToolCall>) {
        self.open = calls.into_iter().enumerate().collect();
    }
}

impl Run {
    /// Returns why the run must end instead of running these calls, if so.
    pub(super) fn guard(&mut self, calls: &[ToolCall]) -> Option<String> {
        let signature =
            |call: &ToolCall| CallSignature { name: call.name.clone(), arguments: call.arguments.clone() };
        let signature: Vec<CallSignature> = calls.iter().map(signature).collect();
        if signature == self.calls.last {
            self.calls.repeats += 1;
        } else {
            self.calls.repeats = 1;
            self.calls.last = signature;
        }
        if self.calls.repeats > self.limits.repeats_max {
            let name = &calls[0].name;
            return Some(format!("the same call of `{name}` came {} times in a row", self.calls.repeats));
        }
        if self.calls.excesses > EXCESSES_MAX {
            let times = self.calls.excesses;
            return Some(format!("{times} answers in a row called more tools than one answer may"));
        }
        self.out_of_steps()
    }

    /// Returns why the run may take no further step; `None` if it may.
    pub(super) fn out_of_steps(&self) -> Option<String> {
        (self.steps >= self.limits.steps_max)
            .then(|| format!("the run reached its limit of {} steps", self.limits.steps_max))
    }
}

impl RunLimits {
    /// Returns the answer with no more calls than may be run, and one more that is refused with a reason for
    /// the model (a clause without a full stop), if there were more. The calls after that one are dropped, so
    /// that neither the log nor the next request grows with anything that a model writes.
    pub(super) fn within(
        self,
        mut answer: AssistantMessage,
    ) -> (AssistantMessage, Option<(ToolCall, String)>) {
        let size = |call: &ToolCall| (call.name.len() + call.arguments.len()) as u64;
        let (mut taken, mut bytes) = (0_u32, 0_u64);
        let fits = |call: &&ToolCall| {
            (taken, bytes) = (taken + 1, bytes.saturating_add(size(call)));
            taken <= self.calls_max && bytes <= self.call_bytes_max
        };
        let kept = answer.tool_calls().take_while(fits).count();
        let calls = answer.tool_calls().count();
        if kept == calls {
            return (answer, None);
        }
        let bytes: u64 = answer.tool_calls().map(size).sum();
        let (calls_max, bytes_max, more) = (self.calls_max, self.call_bytes_max, calls - kept - 1);
        let reason = format!(
            "one answer may call at most {calls_max} tools, with at most {bytes_max} bytes of arguments together, and \
             this one had {calls} calls with {bytes} bytes; this call and {more} after it were left out, so make them \
             again, fewer at a time"
        );
        let mut position = 0;
        let mut refused = None;
        answer.content.retain_mut(|part| {
            let Part::ToolCall(call) = part else { return true };
            position += 1;
            if position == kept + 1 {
                // Its arguments may be what is too large, and are not used.
                call.name.truncate(call.name.floor_char_boundary(REFUSED_NAME_BYTES_MAX));
                call.arguments = "{}".to_owned();
                refused = Some(call.clone());
            }
            position <= kept + 1
        });
        (answer, refused.map(|call| (call, reason)))
    }
}

/// Returns the call that the end of the answer cut off: its arguments are incomplete, or never began. Its
/// intent is not known, even if a tool without parameters would accept no arguments.
pub(super) fn cut_call(answer: &AssistantMessage) -> Option<&ToolCall> {
    let was_cut = matches!(answer.stop, StopReason::Length | StopReason::ContentFilter);
    let last = answer.content.last().and_then(Part::as_tool_call).filter(|_| was_cut)?;
    serde_json::from_str::<IgnoredAny>(&last.arguments).is_err().then_some(last)
}
