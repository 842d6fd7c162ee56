//! Changes of a session's agent, and of the mode of its permissions.
//!
//! Invariants: followers hear of a mode in the order of its changes; a mode that is set applies to the run in progress too,
//! whichever agent it has.

use std::sync::Arc;

#[cfg(feature = "permissions")]
use greenroom_policy::Mode;
#[cfg(feature = "permissions")]
use parking_lot::Mutex;

use super::SessionShared;
use crate::agent::Agent;
use crate::events::bus::Bus;
#[cfg(feature = "permissions")]
use crate::events::event::EventKind;

impl SessionShared {
    /// Sets the session's agent. The session's own mode and rules stay under the conditions of
    /// [`Permissions::take_over`](crate::permissions::Permissions::take_over); followers hear of another mode.
    pub(crate) fn set_agent(&self, bus: &Bus, agent: Option<Arc<Agent>>) {
        #[cfg(not(feature = "permissions"))]
        let _ = (bus, std::mem::replace(&mut *self.agent.lock(), agent));
        #[cfg(feature = "permissions")]
        self.publish_change(bus, || {
            let new = agent.as_ref().and_then(|agent| agent.permissions.clone());
            let old = std::mem::replace(&mut *self.agent.lock(), agent);
            let old = old.as_ref().and_then(|agent| agent.permissions.as_ref());
            let mode = new?.take_over(old?, &self.id)?;
            Some(EventKind::ModeChanged { mode: mode.as_str().to_owned() })
        });
    }

    /// Sets the mode of the session's permissions, also for the run in progress. Followers hear of another mode.
    #[cfg(feature = "permissions")]
    pub(crate) fn set_mode(&self, bus: &Bus, mode: Option<Mode>) {
        self.publish_change(bus, || {
            let of = |agent: &Mutex<Option<Arc<Agent>>>| agent.lock().as_ref()?.permissions.clone();
            if let Some(working) = of(&self.working) {
                working.set_mode(&self.id, mode);
            }
            let mode = of(&self.agent)?.set_mode(&self.id, mode)?;
            Some(EventKind::ModeChanged { mode: mode.as_str().to_owned() })
        });
    }

    /// Sets the agent with which the run in progress began; `None`: the session's.
    #[cfg(feature = "permissions")]
    pub(crate) fn set_working(&self, agent: Option<Arc<Agent>>) {
        *self.working.lock() = agent;
    }
}
