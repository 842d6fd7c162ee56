//! The script that decides the simulated model's answers, and the reply it returns.
//!
//! Invariants: a script is a plain function of the request and of the call's numbers. It does not wait, and
//! knows no transport; delays and faults are part of the reply and are performed by the simulator.

use std::panic::Location;

use greenroom_kernel::{AssistantMessage, Part, StopReason, Usage};

use crate::expect::Expectation;
use crate::fault::Fault;
use crate::seen::SeenRequest;

/// A scripted model: a function from requests to replies.
pub trait Script: Send + Sync + 'static {
    /// Returns the answer to one request. Called only for requests that passed the checker and fit the
    /// window.
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer;
}

impl<S: Script + ?Sized> Script for std::sync::Arc<S> {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        (**self).reply(request, call)
    }
}

/// The numbers of a call, with which a script can vary its replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallInfo {
    /// Its number over all sessions, from 0, including refused ones.
    pub call: u64,
    /// Its number among the session's calls of the same purpose, from 0. Calls that failed because of the
    /// fault plan, the window or the checker do not count: the client retries and gets the same reply.
    pub session_call: u64,
    /// A number for variation, the same for the same simulator seed, session and `session_call`.
    pub seed: u64,
}

/// One reply of the model.
#[derive(Debug, Clone, Default, PartialEq)]
#[must_use]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Readable reasoning, before the text.
    pub reasoning: String,
    /// Tool calls, after the text.
    pub calls: Vec<ScriptedCall>,
    /// The usage to report instead of the true one.
    pub usage: Option<Usage>,
    /// The finish reason instead of the one that follows from the content.
    pub finish: Option<StopReason>,
    /// The timing of the reply.
    pub pace: Pace,
    /// The fault in the reply.
    pub fault: Option<Fault>,
    /// Expectations of the request. Only a [`ScriptedModel`](crate::ScriptedModel) checks them.
    pub expects: Vec<Expectation>,
}

/// A tool call of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedCall {
    /// Its id; `None`: the simulator makes one.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The arguments, as JSON text (or deliberately broken).
    pub arguments: String,
}

/// The timing of a reply. The default is eight chunks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The number of pieces into which the text, and each other part, is split; at least 1.
    pub chunks: usize,
    /// The time before the first piece, in milliseconds.
    pub first_ms: u64,
    /// The time between two pieces, in milliseconds.
    pub between_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { chunks: 8, first_ms: 0, between_ms: 0 }
    }
}

impl Answer {
    /// Creates an answer with this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Creates an answer that is one tool call.
    pub fn call(name: impl Into<String>, arguments: &serde_json::Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    /// Creates a failed answer with this fault. (A fault that requires an answer to spoil gets a short text.)
    pub fn fault(fault: Fault) -> Self {
        Self::text("this answer is only partial").with_fault(fault)
    }

    /// Adds a tool call with these arguments, as JSON.
    pub fn and_call(mut self, name: impl Into<String>, arguments: &serde_json::Value) -> Self {
        self.calls.push(ScriptedCall { id: None, name: name.into(), arguments: arguments.to_string() });
        self
    }

    /// Adds a tool call with raw arguments, valid or not.
    pub fn and_raw_call(mut self, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        self.calls.push(ScriptedCall { id: None, name: name.into(), arguments: arguments.into() });
        self
    }

    /// Sets the reasoning before the answer.
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = reasoning.into();
        self
    }

    /// Sets the reported usage, true or not.
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Sets the finish reason.
    pub fn with_finish(mut self, finish: StopReason) -> Self {
        self.finish = Some(finish);
        self
    }

    /// Sets the timing.
    pub fn with_pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Sets the delay before the first piece, in milliseconds.
    pub fn after_ms(mut self, first_ms: u64) -> Self {
        self.pace.first_ms = first_ms;
        self
    }

    /// Removes the code locations of the expectations: for scripts that come from files.
    pub fn without_locations(mut self) -> Self {
        self.expects.iter_mut().for_each(|expected| expected.location = None);
        self
    }

    /// Expects the newest user message to contain this text.
    #[track_caller]
    pub fn expect_user(mut self, text: impl Into<String>) -> Self {
        self.expects.push(Expectation::user(Location::caller(), text.into()));
        self
    }

    /// Expects a new result of this tool that contains this text.
    #[track_caller]
    pub fn expect_tool_result(mut self, tool: impl Into<String>, text: impl Into<String>) -> Self {
        self.expects.push(Expectation::tool_result(Location::caller(), tool.into(), text.into()));
        self
    }

    /// Expects the agent's instructions to contain this text.
    #[track_caller]
    pub fn expect_instructions(mut self, text: impl Into<String>) -> Self {
        self.expects.push(Expectation::instructions(Location::caller(), text.into()));
        self
    }

    /// Adds a custom expectation of the request. The error is the description of the difference.
    #[track_caller]
    pub fn expect(
        mut self,
        check: impl Fn(&SeenRequest) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.expects.push(Expectation::new(Location::caller(), check));
        self
    }

    /// Replaces or spoils the answer with this fault.
    pub fn with_fault(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }
}

impl From<&AssistantMessage> for Answer {
    /// Converts a recorded answer for replay: text, reasoning, calls with their ids, and the finish reason.
    /// Usage is left out, since it belongs to the original request.
    fn from(message: &AssistantMessage) -> Self {
        let mut reply = Self::default();
        for part in &message.content {
            match part {
                Part::Text(text) => reply.text.push_str(text),
                Part::Reasoning(text) => reply.reasoning.push_str(text),
                Part::ToolCall(call) => reply.calls.push(ScriptedCall {
                    id: Some(call.id.clone()),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                }),
                Part::OpaqueReasoning { .. } | _ => {}
            }
        }
        let is_told = matches!(message.stop, StopReason::Length | StopReason::ContentFilter);
        // The others follow from the content.
        reply.finish = is_told.then_some(message.stop);
        reply
    }
}
