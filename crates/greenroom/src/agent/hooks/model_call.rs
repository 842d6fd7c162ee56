//! Hooks around one model call: before it they may refuse it, change it or answer in its place; after it they observe.
//!
//! Invariants: no request goes to a provider that the hooks have not seen, requests for summaries included, and each
//! attempt is seen again. A hook changes nothing of which the size or the form of the conversation depends: not the
//! system prompt, not the tools, and no message's place, kind or calls. One that fails before a call has refused it.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::{AssistantMessage, Failure, Message, RunId};
use greenroom_provider::{ModelSettings, Purpose, Request};
use greenroom_tools::AppState;

use crate::agent::hooks::has_state;

/// A model call that is about to be made, as a `before_model` hook is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelCallProposal {
    /// The session's id.
    pub session: Arc<str>,
    /// The run, where the call is a step of one; `None` where it writes a summary.
    pub run: Option<RunId>,
    /// The provider that is to be asked.
    pub provider: String,
    /// The request, as the hooks before this one left it. [`Request::purpose`] tells steps from summaries.
    pub request: Request,
    /// What the program gave the agent.
    pub app_state: AppState,
}

/// What a `before_model` hook decides. What it may change neither moves the conversation's messages nor touches what
/// their size was measured with; a change of the messages' text costs the provider's cache from that message on, unless
/// the hook always changes it the same way.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeModel {
    /// Go on.
    Continue,
    /// Ask with these settings besides: what they set wins, except that the output limit is only lowered.
    Settings(ModelSettings),
    /// Send these messages instead: as many, of the same kinds in the same order, with the same tool calls and results.
    /// The log keeps what was said; only the provider is sent this.
    Messages(Vec<Arc<Message>>),
    /// Do not ask. A run ends as stopped with the reason; a summary fails with it.
    Refuse(String),
    /// Do not ask, and take this text for the answer, which calls no tool: from a cache, for one. It has no usage and no
    /// cost.
    Answer(String),
}

/// A model call that is over, as an `after_model` hook is told of it. A call that was cancelled is not told.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelCallReport {
    /// The session's id.
    pub session: Arc<str>,
    /// The run, where the call was a step of one; `None` where it wrote a summary.
    pub run: Option<RunId>,
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// What the call was for.
    pub purpose: Purpose,
    /// The answer with its usage, or why there is none.
    pub result: Result<AssistantMessage, Failure>,
    /// Whether the provider was asked; `false` where a hook answered.
    pub was_asked: bool,
    /// How long it took.
    pub duration: Duration,
    /// What the program gave the agent.
    pub app_state: AppState,
}

has_state!(ModelCallProposal ModelCallReport);
