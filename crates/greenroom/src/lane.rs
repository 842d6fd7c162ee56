//! A lane: one provider, shared by many sessions.
//!
//! Invariants: at most `in_flight_max` calls are under way, in the order in which they were asked for;
//! summaries hold at most half of the places; a `Retry-After` holds the whole lane back, not one session; a model
//! that says nothing for too long is given up, whatever its provider allows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greenroom_kernel::{Failure, FailureClass};
use greenroom_provider::{Provider, ProviderError, Purpose};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::learned::Learned;
use crate::served::ServedModels;

/// One provider's lane.
pub(crate) struct Lane {
    pub(crate) provider: Arc<dyn Provider>,
    calls: Arc<Semaphore>,
    summaries: Arc<Semaphore>,
    paused_until: Mutex<Option<Instant>>,
    silence_max: Duration,
    /// What the server says of its models.
    pub(crate) served: Arc<ServedModels>,
    /// Whether the newest call did not reach the server.
    is_unreachable: AtomicBool,
    /// Whether the server ever answered, if only with a refusal.
    has_answered: AtomicBool,
}

/// A place in a lane. Dropping it frees the place.
pub(crate) struct Place {
    _call: OwnedSemaphorePermit,
    _summary: Option<OwnedSemaphorePermit>,
}

impl Lane {
    pub(crate) fn new(provider: Arc<dyn Provider>, in_flight_max: usize, silence_max: Duration) -> Self {
        let in_flight_max = in_flight_max.max(1);
        Self {
            served: Arc::new(ServedModels::new(Arc::clone(&provider))),
            is_unreachable: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            provider,
            calls: Arc::new(Semaphore::new(in_flight_max)),
            summaries: Arc::new(Semaphore::new(in_flight_max.div_ceil(2))),
            paused_until: Mutex::new(None),
            silence_max,
        }
    }

    /// Waits for a place, first come, first served. Dropping the future leaves the queue.
    pub(crate) async fn enter(&self, purpose: Purpose) -> Place {
        const OPEN: &str = "a lane's semaphores are never closed";
        // The half first: a summary that waits for its half must not hold a place that a run could use.
        let summary = match purpose {
            Purpose::Summary => Some(Arc::clone(&self.summaries).acquire_owned().await.expect(OPEN)),
            Purpose::Step => None,
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

    /// Waits for the next piece of an answer, but not for ever.
    pub(crate) async fn unless_silent<T>(&self, piece: impl Future<Output = T>) -> Result<T, Failure> {
        if self.silence_max.is_zero() {
            return Ok(piece.await);
        }
        tokio::time::timeout(self.silence_max, piece).await.map_err(|_| {
            let message = format!("the model said nothing for {} s", self.silence_max.as_secs());
            Failure::new(FailureClass::Timeout, message)
        })
    }

    /// To what the facts belong that are learned of this lane's models: the server's address, else the provider's name.
    pub(crate) fn origin(&self) -> &str {
        self.provider.address().unwrap_or_else(|| self.provider.name())
    }

    /// A call ended: takes note of what that says of the server, and completes what the failure says with what was known
    /// of it before.
    pub(crate) fn heard(&self, model: &str, mut failure: Option<&mut ProviderError>, learned: &Learned) {
        if failure.as_ref().is_none_or(|error| error.failure.status.is_some()) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if let Some(error) = failure.as_deref_mut().filter(|error| error.connection_refused)
            && self.has_answered.load(Ordering::Relaxed)
        {
            self.is_unreachable.store(true, Ordering::Relaxed);
            error.failure.class = FailureClass::Loading;
            error.failure.message.push_str("; it had answered before, so it is expected back");
        }
        match failure.as_deref() {
            None if self.is_unreachable.swap(false, Ordering::Relaxed) => {
                learned.reconnected(self.origin());
                self.served.ask_again();
            }
            None if self.served.may_tell_more(model) => self.served.ask_again(),
            None => {}
            Some(error) if error.connection_lost => {
                self.is_unreachable.store(true, Ordering::Relaxed);
            }
            Some(_) => {}
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
