//! Input guards: they check a user's input before it is recorded.
//!
//! Invariants: refused input is not recorded and reaches no model; a guard that fails has refused the input.
//! Guards run in the caller's task, so they delay only the caller.

use std::sync::Arc;

use greenroom_tools::AppState;

use crate::agent::Agent;
use crate::agent::hooks::{guarded, has_state};
use crate::limits::waits::Chain;
use crate::values::error::{Error, Result};
use crate::values::names::names;
use crate::values::prompt::Prompt;

names! {
    /// How input enters a session.
    pub enum InputKind ("kind of input") {
        /// A prompt, which starts a run.
        Prompt = "prompt",
        /// Input for the run in progress: see [`SessionHandle::steer`](crate::SessionHandle::steer).
        Steer = "steer",
        /// Input for after the run: see [`SessionHandle::follow_up`](crate::SessionHandle::follow_up).
        FollowUp = "follow_up",
    }
}

/// The input that a guard checks, before it is recorded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProposedInput {
    /// The session's id.
    pub session: Arc<str>,
    /// How the input enters the session.
    pub kind: InputKind,
    /// The content, as changed by earlier guards.
    pub prompt: Prompt,
    pub(crate) app_state: AppState,
}

has_state!(ProposedInput);

/// A guard's verdict on input.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum InputVerdict {
    /// Record the input unchanged.
    Accept,
    /// Record this instead, and nothing of the original; for example, without a telephone number.
    Replace(Prompt),
    /// Do not record the input. The caller gets [`Error::InputRefused`] with this reason.
    Refuse(String),
}

/// Calls the guards of an agent; returns the input to record.
pub(crate) async fn judge(
    agent: &Agent,
    session: &Arc<str>,
    kind: InputKind,
    mut prompt: Prompt,
) -> Result<Prompt> {
    let hooks = &agent.hooks;
    if hooks.guard_input.is_empty() {
        return Ok(prompt);
    }
    let refused = |reason| Error::InputRefused { session: session.to_string(), reason };
    let waiting = Chain::current();
    for guard in &hooks.guard_input {
        let app_state = agent.state.clone();
        let input = ProposedInput { session: Arc::clone(session), kind, prompt: prompt.clone(), app_state };
        match guarded(&waiting, hooks.limit(), || guard(input)).await {
            Ok(InputVerdict::Accept) => {}
            Ok(InputVerdict::Replace(other)) => prompt = other,
            Ok(InputVerdict::Refuse(reason)) => return Err(refused(reason)),
            Err(problem) => return Err(refused(format!("a guard failed: {problem}"))),
        }
    }
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    Ok(prompt)
}
