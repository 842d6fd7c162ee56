//! The runs of one label value that work at a time.
//!
//! Invariants: slots are granted in the order in which they were asked for; dropping a [`LabelSlot`] frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots for runs.
pub(crate) struct LabelSlots {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A slot. It keeps its account in memory.
pub(crate) struct LabelSlot {
    _slots: Arc<LabelSlots>,
    _permit: OwnedSemaphorePermit,
}

/// A run that waits for a slot.
struct Waiting<'a>(&'a LabelSlots);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LabelSlots {
    pub(crate) fn new(runs_max: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(runs_max.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { free, waiting: AtomicUsize::new(0) })
    }

    /// Waits for a slot. `tell` is called with the position in the queue if there is a wait; 1 is next.
    pub(crate) async fn enter(self: Arc<Self>, tell: impl FnOnce(usize)) -> LabelSlot {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                let position = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
                let _waiting = Waiting(&self);
                tell(position);
                Arc::clone(&self.free).acquire_owned().await.expect("the slots are never closed")
            }
        };
        LabelSlot { _slots: self, _permit: permit }
    }
}
