//! Hooks around a model call: before the call, they may refuse it, change it or answer in its place; after
//! it, they observe.
//!
//! Invariants: hooks see every request before a provider does, including requests for summaries, and each
//! attempt again. A hook changes nothing that affects the size or the structure of the conversation: not the
//! system prompt, not the tools, and no message's position, kind or calls. A hook that fails before a call
//! has refused it.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::{AssistantMessage, Failure, Message, RunId};
use greenroom_provider::{ModelSettings, Purpose, Request};
use greenroom_tools::AppState;

use crate::agent::hooks::has_state;

/// A model call that is about to be made, for a `before_model` hook.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelCallProposal {
    /// The session's id.
    pub session: Arc<str>,
    /// The run, if the call is a step of one; `None` if it writes a summary.
    pub run: Option<RunId>,
    /// The provider to be asked.
    pub provider: String,
    /// The request, as changed by earlier hooks. [`Request::purpose`] distinguishes steps from summaries.
    pub request: Request,
    pub(crate) app_state: AppState,
}

/// A `before_model` hook's decision. Changes must neither move messages nor affect the measured size of the
/// context. A change of a message's text invalidates the provider's cache from that message on, unless the
/// hook always makes the same change.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum BeforeModel {
    /// Make the call.
    Continue,
    /// Add these settings to the request: they take precedence, except that the output limit is only lowered.
    Settings(ModelSettings),
    /// Send these messages instead: the same number, of the same kinds in the same order, with the same tool
    /// calls and results. The log keeps the original messages; only the provider gets these.
    Messages(Vec<Arc<Message>>),
    /// Do not make the call. A run ends as stopped with this reason; a summary fails with it.
    Refuse(String),
    /// Do not make the call, and use this text as the answer, without tool calls; for example, from a cache.
    /// It has no usage and no cost.
    Answer(String),
}

/// A finished model call, for an `after_model` hook. Cancelled calls are not reported.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelCallReport {
    /// The session's id.
    pub session: Arc<str>,
    /// The run, if the call was a step of one; `None` if it wrote a summary.
    pub run: Option<RunId>,
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The call's purpose.
    pub purpose: Purpose,
    /// The answer with its usage, or the failure.
    pub result: Result<AssistantMessage, Failure>,
    /// Whether the provider was asked; `false` if a hook answered.
    pub was_asked: bool,
    /// How long the call took, with its waits for a slot of the provider, for limits and for budgets.
    pub duration: Duration,
    pub(crate) app_state: AppState,
}

has_state!(ModelCallProposal ModelCallReport);
