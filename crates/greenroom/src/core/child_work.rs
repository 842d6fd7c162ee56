//! The work of a sub-agent on a call, as its caller's session knows it.
//!
//! Invariants: aborting it ends this work alone; work that waits for a person while its caller is gone is
//! left, not over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_kernel::RunId;
use tokio_util::sync::CancellationToken;

use crate::core::shared::SessionShared;

/// A sub-agent at work on a call, as its caller knows it.
pub(crate) struct ChildWork {
    pub(crate) name: String,
    pub(crate) call_id: String,
    /// The caller's run.
    pub(crate) run: Option<RunId>,
    pub(crate) shared: Arc<SessionShared>,
    /// Aborts this work alone.
    pub(crate) cancel: CancellationToken,
    /// Whether the work waits for a person while its caller is gone: the caller's successor continues it.
    is_left: AtomicBool,
    over: CancellationToken,
}

impl ChildWork {
    pub(crate) fn new(
        name: String,
        call_id: String,
        run: Option<RunId>,
        shared: Arc<SessionShared>,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            name,
            call_id,
            run,
            shared,
            cancel,
            is_left: AtomicBool::new(false),
            over: CancellationToken::new(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Waits until the work here is over.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }

    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }

    pub(crate) fn leave(&self) {
        self.is_left.store(true, Ordering::SeqCst);
    }

    /// Whether the call cannot end because a person is being asked.
    pub(crate) fn waits(&self) -> bool {
        self.is_left() || !self.is_over() && self.shared.pauses().is_paused()
    }

    pub(crate) fn end(&self) {
        self.over.cancel();
    }
}
