//! A lane: one provider, shared by many sessions.
//!
//! Always true: at most `max_in_flight` calls are under way, in the order in which they were asked for;
//! summaries hold at most half of the places; a `Retry-After` holds the whole lane back, not one session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_provider::{Provider, Purpose};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// One provider's lane.
pub(crate) struct Lane {
    pub(crate) provider: Arc<dyn Provider>,
    calls: Arc<Semaphore>,
    summaries: Arc<Semaphore>,
    paused_until: Mutex<Option<Instant>>,
}

/// A place in a lane. Dropping it frees the place.
pub(crate) struct Place {
    _call: OwnedSemaphorePermit,
    _summary: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub(crate) fn new(provider: Arc<dyn Provider>, max_in_flight: usize) -> Self {
        let max_in_flight = max_in_flight.max(1);
        Self {
            provider,
            calls: Arc::new(Semaphore::new(max_in_flight)),
            summaries: Arc::new(Semaphore::new(max_in_flight.div_ceil(2))),
            paused_until: Mutex::new(None),
        }
    }

    /// Waits for a place, first come, first served. Dropping the future leaves the queue.
    pub(crate) async fn enter(&self, purpose: Purpose) -> Place {
        const OPEN: &str = "a lane's semaphores are never closed";
        // The half first: a summary that waits for its half must not hold a place that a turn could use.
        let summary = match purpose {
            Purpose::Summary => Some(Arc::clone(&self.summaries).acquire_owned().await.expect(OPEN)),
            Purpose::Turn => None,
        };
        let call = Arc::clone(&self.calls).acquire_owned().await.expect(OPEN);
        loop {
            let until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return Place { _call: call, _summary: summary },
            }
        }
    }

    /// The provider asked everybody to wait.
    pub(crate) fn pause_ms(&self, delay_ms: u64) {
        let until = Instant::now() + Duration::from_millis(delay_ms);
        let mut paused = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        if paused.is_none_or(|now| now < until) {
            *paused = Some(until);
        }
    }
}
