//! The agents that a run called as tools, as programs hold them: to watch, steer and abort each.
//!
//! Invariants: an agent is among its caller's children before its start is recorded, and stays until the caller's next
//! run begins; aborting one ends its work alone.

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

/// An agent that a run called as a tool. Cheap to clone; dropping it changes nothing.
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

/// The same work on the same call.
impl PartialEq for Child {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.work, &other.work)
    }
}

impl Child {
    pub(crate) fn new(work: Arc<ChildWork>, deps: Arc<Deps>) -> Self {
        Self { work, deps }
    }

    /// The name that its caller has for it: that of the tool.
    pub fn name(&self) -> &str {
        &self.work.name
    }

    /// The id of the call that it works on.
    pub fn call_id(&self) -> &str {
        &self.work.call_id
    }

    /// The caller's run.
    pub fn run(&self) -> Option<RunId> {
        self.work.run
    }

    /// Its own session: to look at, and to read when the work is over.
    pub fn session(&self) -> SessionHandle {
        SessionHandle::new(Arc::clone(&self.work.shared), Arc::clone(&self.deps))
    }

    /// Whether it still works on the call.
    pub fn is_working(&self) -> bool {
        !self.work.is_over()
    }

    /// Its events, from now on. [`Filter::tree`](crate::Filter::tree) has those of the agents below it, too.
    pub fn subscribe(&self) -> Subscription {
        self.session().subscribe()
    }

    /// Ends its work, and that of the agents below it, in order. The caller's run and its other children go on: the call
    /// ends, and the caller's model reads that the agent was cancelled.
    pub fn abort(&self) {
        self.work.cancel.cancel();
    }

    /// Says something into its work: see [`SessionHandle::steer`].
    ///
    /// # Errors
    /// [`Error::ChildEnded`] when its work is over; else those of [`SessionHandle::steer`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        if !self.is_working() {
            return Err(Error::ChildEnded { session: self.work.shared.id.to_string() });
        }
        self.session().steer(prompt).await
    }

    /// The agents that it called itself, in the order of their starts.
    pub fn children(&self) -> Vec<Self> {
        self.session().children()
    }
}
