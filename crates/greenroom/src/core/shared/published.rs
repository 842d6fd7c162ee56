//! What a session publishes of itself, for whoever reads it without asking its actor.
//!
//! Invariants: only the session's actor publishes, in one place; what is published is replaced as a whole, and costs the
//! same however long the session is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::agent::Agent;

/// How a session stands, as its actor published it last. It outlives the actor: the session's next one goes on from here.
#[derive(Clone, Default)]
pub(crate) struct Published {
    /// Whether somebody waits for what the session does: a run, a caller, or input.
    pub(crate) is_awaited: bool,
    /// How many callers wait for prompts that stand in the inbox until the run has ended.
    pub(crate) callers_waiting: usize,
    /// What waits in the inbox and is held back; `None` before the session's first actor has looked.
    pub(crate) held_back: Option<Arc<HashSet<EntryId>>>,
    /// The agents of those who said what waits in the inbox, where they brought one.
    pub(crate) inbox_agents: Arc<HashMap<EntryId, Arc<Agent>>>,
}
