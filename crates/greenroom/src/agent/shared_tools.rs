//! All tools of an agent, made once for the sessions that work with the same ones: what a model is told of them takes
//! more memory than the rest of a session that has nothing to do.
//!
//! Invariants: tools live no longer than somebody works with them; an agent that calls or hands over to others shares
//! nothing.

use greenroom_tools::{Registry, WeakRegistry};
use parking_lot::Mutex;

use crate::agent::Agent;
use crate::values::error::Result;

/// All tools of an agent, and how many tokens a model's requests take for them, estimated.
#[derive(Clone)]
pub(crate) struct AllTools {
    pub(crate) registry: Registry,
    pub(crate) tokens: u64,
}

/// The tools that were made last. Most sessions of a program work with the same ones.
#[derive(Default)]
pub(crate) struct SharedTools(Mutex<Option<Made>>);

struct Made {
    /// The agent's own tools.
    own: WeakRegistry,
    all: WeakRegistry,
    tokens: u64,
}

impl SharedTools {
    /// All tools of this agent: those of another session, or the ones that `make` gives.
    ///
    /// # Errors
    /// That of `make`.
    pub(crate) fn of(&self, agent: &Agent, make: impl FnOnce() -> Result<AllTools>) -> Result<AllTools> {
        if !agent.problems.is_empty() || !agent.sub_agents.is_empty() || !agent.hand_offs.is_empty() {
            return make();
        }
        let last = || self.0.lock();
        if let Some(made) = last().as_ref().and_then(|made| made.of(&agent.tools)) {
            return Ok(made);
        }
        // Tools of the program's own say what they are meanwhile, so nothing is locked.
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
