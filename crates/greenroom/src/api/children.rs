//! Handles of a run's sub-agents: to watch, steer and abort each.
//!
//! Invariants: a sub-agent is among its caller's children before its start is recorded, and remains until the
//! caller's next run starts; aborting one ends its work alone.

use std::fmt;
use std::sync::Arc;

use greenroom_kernel::RunId;

use crate::api::request::SentInput;
use crate::api::session::SessionHandle;
use crate::core::child_work::ChildWork;
use crate::core::deps::Deps;
use crate::events::bus::Subscription;
use crate::values::error::{Error, Result};
use crate::values::prompt::Prompt;

/// A sub-agent of a run. Cloning is cheap; dropping has no effect.
///
/// ```
/// # use greenroom::prelude::*;
/// # async fn example(session: SessionHandle) -> Result<()> {
/// let mut run = session.prompt("Research rust actors.").stream();
/// while let Some(item) = run.next().await {
///     if let RunItem::Child(child) = item? {
///         println!("{} works in session {}", child.name(), child.session().id());
///         if child.name() == "gossip" {
///             child.abort();
///         }
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Child {
    work: Arc<ChildWork>,
    deps: Arc<Deps>,
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child")
            .field("name", &self.name())
            .field("session", &self.work.shared.id)
            .finish_non_exhaustive()
    }
}

/// Two handles are equal if they refer to the same work on the same call.
impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.work, &other.work)
    }
}

impl Child {
    pub(crate) fn new(work: Arc<ChildWork>, deps: Arc<Deps>) -> Self {
        Self { work, deps }
    }

    /// Returns the agent's name for its caller: the name of the tool.
    pub fn name(&self) -> &str {
        &self.work.name
    }

    /// Returns the id of the call that it works on.
    pub fn call_id(&self) -> &str {
        &self.work.call_id
    }

    /// Returns the caller's run.
    pub fn run(&self) -> Option<RunId> {
        self.work.run
    }

    /// Returns its session: to read its state, and its log when the work has ended.
    pub fn session(&self) -> SessionHandle {
        SessionHandle::new(Arc::clone(&self.work.shared), Arc::clone(&self.deps))
    }

    /// Whether it still works on the call.
    pub fn is_working(&self) -> bool {
        !self.work.is_over()
    }

    /// Subscribes to its events from now on. [`Filter::tree`](crate::Filter::tree) includes the agents below
    /// it, too.
    pub fn subscribe(&self) -> Subscription {
        self.session().subscribe()
    }

    /// Aborts the sub-agent's work and that of the agents below it, and lets each end cleanly. The caller's run and its
    /// other sub-agents continue: the call ends, and its result tells the caller's model that the agent was cancelled.
    pub fn abort(&self) {
        self.work.cancel.cancel();
    }

    /// Sends input into its run: see [`SessionHandle::steer`].
    ///
    /// # Errors
    /// [`Error::ChildEnded`] if its work has ended; otherwise those of [`SessionHandle::steer`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        if !self.is_working() {
            return Err(Error::ChildEnded { session: self.work.shared.id.to_string() });
        }
        self.session().steer(prompt).await
    }

    /// Returns its own sub-agents, in the order of their starts.
    pub fn children(&self) -> Vec<Self> {
        self.session().children()
    }
}
