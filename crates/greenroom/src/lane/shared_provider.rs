//! A provider that belongs to agents instead of a runtime.
//!
//! Invariants: clones share one queue, so the limits apply to all agents with a clone together; the queue
//! ends with the last clone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greenroom_provider::Provider;

use crate::lane::{IN_FLIGHT_MAX, Lane, LaneLimits, SILENCE_MAX};

/// A provider with its own limits, for [`Agent::own_provider`](crate::Agent::own_provider). Cloning is cheap;
/// clones are the same provider with one queue.
#[derive(Clone)]
#[must_use]
pub struct SharedProvider {
    provider: Arc<dyn Provider>,
    limits: LaneLimits,
    lane: Arc<Lane>,
}

impl SharedProvider {
    /// Creates a shared provider with the default limits of a runtime's provider.
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        let limits =
            LaneLimits { in_flight_max: IN_FLIGHT_MAX, tokens_per_minute: None, silence_max: SILENCE_MAX };
        Self::with(provider, limits)
    }

    /// Returns this provider with a limit on concurrent calls (0 counts as 1), and with a queue of its own.
    pub fn in_flight_max(self, calls: usize) -> Self {
        Self::with(self.provider, LaneLimits { in_flight_max: calls, ..self.limits })
    }

    /// Returns this provider with a limit on tokens per minute, input and output together (0: no limit), and
    /// with a queue of its own. See
    /// [`RuntimeBuilder::tokens_per_minute`](crate::RuntimeBuilder::tokens_per_minute).
    pub fn tokens_per_minute(self, tokens: u64) -> Self {
        let tokens_per_minute = Some(tokens).filter(|tokens| *tokens > 0);
        Self::with(self.provider, LaneLimits { tokens_per_minute, ..self.limits })
    }

    /// Returns this provider with a limit on a model's silence, after which the call fails as timed out
    /// (zero: no limit), and with a queue of its own.
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

/// Two shared providers are equal if they share one queue.
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
