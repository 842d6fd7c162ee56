//! Guards on input: what a user says is judged before it is recorded.
//!
//! Invariants: input that a guard refuses is recorded nowhere and reaches no model; a guard that fails has refused. Guards
//! run where the caller waits, so they hold up nobody else.

use std::sync::Arc;

use greenroom_tools::AppState;

use crate::agent::Agent;
use crate::agent::hooks::{guarded, has_state};
use crate::limits::waits::Chain;
use crate::values::error::{Error, Result};
use crate::values::names::names;
use crate::values::prompt::Prompt;

names! {
    /// How input comes into a session.
    pub enum InputKind ("kind of input") {
        /// A prompt, which begins a run.
        Prompt = "prompt",
        /// Something said into a run: see `SessionHandle::steer`.
        Steer = "steer",
        /// Something that is heard after the run: see `SessionHandle::follow_up`.
        FollowUp = "follow_up",
    }
}

/// Input that is about to be recorded, as a guard is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProposedInput {
    /// The session's id.
    pub session: Arc<str>,
    /// How it comes into the session.
    pub kind: InputKind,
    /// What is said, as the guards before this one left it.
    pub prompt: Prompt,
    /// What the program gave the agent.
    pub app_state: AppState,
}

has_state!(ProposedInput);

/// What a guard decides about input.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum InputVerdict {
    /// It is recorded as it is.
    Accept,
    /// This is recorded in its place, and nothing else: without a telephone number, for one.
    Replace(Prompt),
    /// It is not recorded. Who said it gets [`Error::InputRefused`] with this reason.
    Refuse(String),
}

/// Asks the guards of an agent; gives what is to be recorded.
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
        match guarded(&waiting, hooks.timeout, || guard(input)).await {
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
