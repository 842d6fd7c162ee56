//! What an abort reaches: the run in progress, or the prompt that is on its way.
//!
//! Invariants: an abort that finds no run open is not lost: it aborts what was handed over before it and has not begun.

use greenroom_kernel::RunId;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// What an abort reaches.
#[derive(Debug, Default)]
pub(super) struct RunSlot {
    /// The run in progress, or the newest one.
    run: Option<RunId>,
    /// Cancels the run in progress; `None` where none is open.
    open: Option<CancellationToken>,
    /// How often an abort found no run open: a prompt that was handed over before the newest of them, and has not begun,
    /// is aborted by it.
    early_aborts: u64,
    /// Whether the session's actor is about to end: then the run is left and not aborted, and what waits for people stays
    /// open.
    is_closing: bool,
}

impl RunSlot {
    /// A run begins, which `cancel` cancels. It is cancelled at once by an early abort after the first `early_aborts`.
    pub(super) fn begin(&mut self, run: RunId, cancel: CancellationToken, early_aborts: u64) {
        self.run = Some(run);
        if self.early_aborts > early_aborts {
            cancel.cancel();
        }
        self.open = Some(cancel);
    }

    /// No run is open any more.
    pub(super) fn end(&mut self) {
        self.open = None;
    }

    /// The run in progress; `None` where none is open.
    pub(super) fn open(&self) -> Option<RunId> {
        self.run.filter(|_| self.open.is_some())
    }

    /// Cancels the run in progress. Gives whether there is one.
    pub(super) fn cancel(&self) -> bool {
        self.open.as_ref().inspect(|cancel| cancel.cancel()).is_some()
    }

    /// Whether the run in progress is cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.open.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Cancels the run in progress, or else what is on its way.
    pub(super) fn abort(&mut self) {
        if !self.cancel() {
            self.early_aborts += 1;
        }
    }

    /// How many aborts found no run open so far.
    pub(super) fn early_aborts(&self) -> u64 {
        self.early_aborts
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(super) fn set_closing(&mut self, is_closing: bool) {
        self.is_closing = is_closing;
    }
}
