//! What a run and the caller who watches it tell each other: which run the prompt became, and whether the caller has room
//! for more.
//!
//! Invariants: the run waits only for a caller who streams it and has not read what is there; a caller who went away has
//! all the room there is.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use greenroom_kernel::RunId;
use tokio::sync::Notify;

/// Between a run and its caller.
#[derive(Debug, Default)]
pub(crate) struct RunLink {
    run: OnceLock<RunId>,
    room: OnceLock<Arc<Room>>,
}

impl RunLink {
    /// The run that the prompt became; `None` while it waits.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run.get().copied()
    }

    /// The prompt became this run. Set before the run's first event is published.
    pub(crate) fn begin(&self, run: RunId) {
        let _ = self.run.set(run);
    }

    /// The caller streams the run.
    pub(crate) fn watch(&self, room: Arc<Room>) {
        let _ = self.room.set(room);
    }

    /// Waits until the caller has room for more, if the caller streams the run.
    pub(crate) async fn room(&self) {
        if let Some(room) = self.room.get() {
            room.wait().await;
        }
    }
}

/// How much waits for a reader.
#[derive(Debug, Default)]
pub(crate) struct Room {
    bytes: AtomicUsize,
    bytes_max: usize,
    is_gone: AtomicBool,
    changed: Notify,
}

impl Room {
    /// Room for so many bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    /// So many bytes wait for the reader now.
    pub(crate) fn set(&self, bytes: usize) {
        self.bytes.store(bytes, Ordering::SeqCst);
        if bytes < self.bytes_max {
            self.changed.notify_waiters();
        }
    }

    /// The reader went away.
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
