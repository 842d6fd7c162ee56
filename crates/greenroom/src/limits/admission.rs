//! How much input a runtime takes on at the same time, over all its sessions.
//!
//! Invariants: each request that an actor has not taken up yet counts, and so does each input that waits in the inbox of a live
//! session, and each run; what counts is given back when it is over, however it ends. The agents that a run calls are
//! counted and never refused, since the run was taken on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::values::error::Error;

#[cfg(test)]
mod tests;

/// The inputs of a runtime.
#[derive(Debug)]
pub(crate) struct Admission {
    taken: AtomicUsize,
    /// `None`: no limit.
    inputs_max: Option<usize>,
    /// Nothing more is taken on.
    is_draining: AtomicBool,
    /// Told when nothing is left.
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

    /// Takes on one more.
    ///
    /// # Errors
    /// [`Error::RuntimeBusy`] where there are as many as there may be; [`Error::Closed`] where no more are taken on.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Admitted, Error> {
        if self.is_draining.load(Ordering::SeqCst) {
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

    /// Takes on nothing more, and waits until nothing is left, but no longer than `at_most`. Gives how many are left.
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

    /// A number of inputs that were taken on before: none at first.
    pub(crate) fn held(self: &Arc<Self>) -> Admitted {
        Admitted { admission: Arc::clone(self), count: 0 }
    }
}

/// Inputs that count. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    count: usize,
}

impl Admitted {
    /// So many count from now on, whatever the limit is.
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
