//! The link between a run and the caller that watches it: which run the prompt became, and whether the caller
//! has room for more events.
//!
//! Invariants: a run waits only for a caller that streams it and has unread events; a caller that has gone
//! never makes it wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use greenroom_kernel::RunId;
use tokio::sync::Notify;

/// The link between a run and its caller.
#[derive(Debug, Default)]
pub(crate) struct RunLink {
    run: OnceLock<RunId>,
    room: OnceLock<Arc<Room>>,
}

impl RunLink {
    /// Returns the run that the prompt became; `None` while the prompt waits.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run.get().copied()
    }

    /// Sets the run that the prompt became. Called before the run's first event is published.
    pub(crate) fn begin(&self, run: RunId) {
        let _ = self.run.set(run);
    }

    /// Registers that the caller streams the run.
    pub(crate) fn watch(&self, room: Arc<Room>) {
        let _ = self.room.set(room);
    }

    /// Waits until the caller has room for more events, if it streams the run.
    pub(crate) async fn room(&self) {
        if let Some(room) = self.room.get() {
            room.wait().await;
        }
    }
}

/// The unread bytes of a reader, and their limit.
#[derive(Debug, Default)]
pub(crate) struct Room {
    bytes: AtomicUsize,
    bytes_max: usize,
    is_gone: AtomicBool,
    changed: Notify,
}

impl Room {
    /// Creates room for this many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// Sets how many bytes are unread.
    pub(crate) fn set(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::SeqCst);
        if bytes < self.bytes_max {
            self.changed.notify_waiters();
        }
    }

    /// Notes that the reader has gone.
    pub(crate) fn leave(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            let has_room = self.bytes.load(Ordering::SeqCst) < self.bytes_max;
            if has_room || self.is_gone.load(Ordering::SeqCst) {
                return;
            }
            changed.await;
        }
    }
}
