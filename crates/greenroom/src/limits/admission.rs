//! The limit on concurrent input of a runtime, over all its sessions.
//!
//! Invariants: each request that no actor has taken yet counts, and so does each input in the inbox of a live
//! session, and each run; a count is returned when the work ends, however it ends. The agents that a run
//! calls are counted and never refused, because the run was accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::values::error::Error;

#[cfg(test)]
mod tests;

/// The count of a runtime's inputs.
#[derive(Debug)]
pub(crate) struct Admission {
    taken: AtomicUsize,
    /// `None`: no limit.
    inputs_max: Option<usize>,
    /// No more input is accepted.
    is_draining: AtomicBool,
    /// Notified when the count is 0.
    emptied: Notify,
}

impl Admission {
    pub(crate) fn new(inputs_max: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            inputs_max,
            is_draining: AtomicBool::new(false),
            emptied: Notify::new(),
        })
    }

    /// Accepts one more input.
    ///
    /// # Errors
    /// [`Error::RuntimeBusy`] at the limit; [`Error::Closed`] if no more input is accepted.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Admitted, Error> {
        if self.is_draining() {
            return Err(Error::Closed);
        }
        let more = |taken: usize| {
            let is_full = self.inputs_max.is_some_and(|max| taken >= max);
            (!is_full).then_some(taken + 1)
        };
        match self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => Ok(Admitted { admission: Arc::clone(self), count: 1 }),
            Err(waiting) => Err(Error::RuntimeBusy { waiting }),
        }
    }

    /// Returns the number of inputs that count, and the limit.
    #[cfg(feature = "metrics")]
    pub(crate) fn counts(&self) -> (usize, Option<usize>) {
        (self.taken.load(Ordering::SeqCst), self.inputs_max)
    }

    /// Whether no more input is accepted.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Stops accepting input, and waits up to `at_most` until the count is 0. Returns how many inputs are
    /// left.
    pub(crate) async fn drain(&self, at_most: Duration) -> usize {
        self.is_draining.store(true, Ordering::SeqCst);
        let empty = async {
            loop {
                let emptied = self.emptied.notified();
                if self.taken.load(Ordering::SeqCst) == 0 {
                    return;
                }
                emptied.await;
            }
        };
        let _ = tokio::time::timeout(at_most, empty).await;
        self.taken.load(Ordering::SeqCst)
    }

    /// Returns a guard for inputs that were accepted elsewhere, initially 0.
    pub(crate) fn held(self: &Arc<Self>) -> Admitted {
        Admitted { admission: Arc::clone(self), count: 0 }
    }
}

/// Inputs that count. Dropping it removes them from the count.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    count: usize,
}

impl Admitted {
    /// Takes over other inputs of the same runtime, which are counted once throughout.
    pub(crate) fn take_over(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }

    /// Sets the number of these inputs, regardless of the limit.
    pub(crate) fn set(&mut self, count: usize) {
        let before = std::mem::replace(&mut self.count, count);
        if count > before {
            self.admission.taken.fetch_add(count - before, Ordering::SeqCst);
        } else if count < before {
            let taken = self.admission.taken.fetch_sub(before - count, Ordering::SeqCst);
            if taken == before - count {
                self.admission.emptied.notify_waiters();
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.set(0);
    }
}
