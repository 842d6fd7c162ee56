//! The published state of a session, for readers that do not ask its actor.
//!
//! Invariants: only the session's actor publishes, in one place; the published state is replaced as a whole,
//! at a cost that does not depend on the session's length.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::agent::Agent;
use crate::values::state::Status;

/// A session's state, as its actor published it last. It outlives the actor: the next one continues from it.
#[derive(Clone, Default)]
pub(crate) struct Published {
    /// What the session does; `None` before its first actor.
    pub(crate) status: Option<Status>,
    /// Whether a run, a caller or input waits for the session's work.
    pub(crate) is_awaited: bool,
    /// Whether that work waits for a compaction, which has started.
    pub(crate) is_summary_awaited: bool,
    /// The number of callers that wait for prompts in the inbox until the run has ended.
    pub(crate) callers_waiting: usize,
    /// The inbox items that are held back; `None` before the session's first actor has checked.
    pub(crate) held_back: Option<Arc<HashSet<EntryId>>>,
    /// The senders' own agents, for inbox items that have one.
    pub(crate) inbox_agents: Arc<HashMap<EntryId, Arc<Agent>>>,
}
