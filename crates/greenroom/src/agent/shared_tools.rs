//! The complete tools of an agent, created once for all sessions with the same tools: their descriptions take
//! more memory than the rest of an idle session.
//!
//! Invariants: tools live only as long as a session uses them; an agent with sub-agents, hand-offs or `compact`
//! shares nothing.

use greenroom_tools::{Registry, WeakRegistry};
use parking_lot::Mutex;

use crate::agent::Agent;
use crate::values::error::Result;

/// All tools of an agent, and the estimated tokens that they add to a request.
#[derive(Clone)]
pub(crate) struct AllTools {
    pub(crate) registry: Registry,
    pub(crate) tokens: u64,
}

/// The tools that were created last. Most sessions of a program use the same ones.
#[derive(Default)]
pub(crate) struct SharedTools(Mutex<Option<Made>>);

struct Made {
    /// The agent's own tools.
    own: WeakRegistry,
    all: WeakRegistry,
    tokens: u64,
}

impl SharedTools {
    /// Returns all tools of this agent: those of another session, or new ones from `make`.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn of(&self, agent: &Agent, make: impl FnOnce() -> Result<AllTools>) -> Result<AllTools> {
        let has_more = !agent.sub_agents.is_empty() || !agent.hand_offs.is_empty() || agent.may_compact;
        if has_more || !agent.problems.is_empty() {
            return make();
        }
        let last = || self.0.lock();
        if let Some(made) = last().as_ref().and_then(|made| made.of(&agent.tools)) {
            return Ok(made);
        }
        // A program's own tools are asked for their descriptions, so no lock is held.
        let made = make()?;
        let (own, all) = (agent.tools.downgrade(), made.registry.downgrade());
        *last() = Some(Made { own, all, tokens: made.tokens });
        Ok(made)
    }
}

impl Made {
    fn of(&self, own: &Registry) -> Option<AllTools> {
        self.own.upgrade().filter(|known| known.is_same(own))?;
        Some(AllTools { registry: self.all.upgrade()?, tokens: self.tokens })
    }
}
