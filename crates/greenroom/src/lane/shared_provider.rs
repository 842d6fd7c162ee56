//! A provider that agents bring with them.
//!
//! Invariants: its clones share one queue, so its limits hold for all agents that have it together; it goes when the last of
//! them does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greenroom_provider::Provider;

use crate::lane::{IN_FLIGHT_MAX, Lane, LaneLimits, SILENCE_MAX};

/// A provider, with its own limits, that agents bring with them: see [`Agent::own_provider`](crate::Agent::own_provider).
/// Cheap to clone; clones are the same provider, with one queue.
#[derive(Clone)]
pub struct SharedProvider {
    provider: Arc<dyn Provider>,
    limits: LaneLimits,
    lane: Arc<Lane>,
}

impl SharedProvider {
    /// A provider with the limits that a runtime's provider has by default.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        let limits =
            LaneLimits { in_flight_max: IN_FLIGHT_MAX, tokens_per_minute: None, silence_max: SILENCE_MAX };
        Self::with(provider, limits)
    }

    /// The same provider, which gets so many calls at a time (0 counts as 1); with a queue of its own.
    #[must_use]
    pub fn in_flight_max(self, calls: usize) -> Self {
        Self::with(self.provider, LaneLimits { in_flight_max: calls, ..self.limits })
    }

    /// The same provider, which is sent and gives back at most so many tokens a minute; 0: no limit. With a queue of its
    /// own. See [`RuntimeBuilder::tokens_per_minute`](crate::RuntimeBuilder::tokens_per_minute).
    #[must_use]
    pub fn tokens_per_minute(self, tokens: u64) -> Self {
        let tokens_per_minute = Some(tokens).filter(|tokens| *tokens > 0);
        Self::with(self.provider, LaneLimits { tokens_per_minute, ..self.limits })
    }

    /// The same provider, whose models may say nothing for so long before a call is given up; zero: for ever. With a queue
    /// of its own.
    #[must_use]
    pub fn silence_max(self, silence: Duration) -> Self {
        Self::with(self.provider, LaneLimits { silence_max: silence, ..self.limits })
    }

    fn with(provider: Arc<dyn Provider>, limits: LaneLimits) -> Self {
        let lane = Arc::new(Lane::new(Arc::clone(&provider), limits));
        Self { provider, limits, lane }
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }
}

/// Two are equal that have one queue.
impl PartialEq for SharedProvider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lane, &other.lane)
    }
}

impl Eq for SharedProvider {}

impl fmt::Debug for SharedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedProvider({})", self.provider.name())
    }
}
