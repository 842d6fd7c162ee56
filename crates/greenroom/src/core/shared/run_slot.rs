//! The target of an abort: the run in progress, or the prompt on its way.
//!
//! Invariants: an abort that finds no open run is not lost: it aborts the prompt that was handed over before
//! it and has not started.

use greenroom_kernel::RunId;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// The target of an abort.
#[derive(Debug, Default)]
pub(super) struct RunSlot {
    /// The run in progress, or the newest one.
    run: Option<RunId>,
    /// Cancels the run in progress; `None` if there is none.
    open: Option<CancellationToken>,
    /// The number of aborts that found no open run. The newest of them aborts a prompt that was handed over
    /// before it and has not started.
    early_aborts: u64,
    /// Whether the session's actor is about to end: then the run is left and not aborted, and calls that wait
    /// for people stay open.
    is_closing: bool,
}

impl RunSlot {
    /// Starts a run, which `cancel` cancels. An early abort after the first `early_aborts` cancels it at
    /// once.
    pub(super) fn begin(&mut self, run: RunId, cancel: CancellationToken, early_aborts: u64) {
        self.run = Some(run);
        if self.early_aborts > early_aborts {
            cancel.cancel();
        }
        self.open = Some(cancel);
    }

    /// Notes that no run is open.
    pub(super) fn end(&mut self) {
        self.open = None;
    }

    /// Returns the run in progress; `None` if there is none.
    pub(super) fn open(&self) -> Option<RunId> {
        self.run.filter(|_| self.open.is_some())
    }

    /// Cancels the run in progress. Returns whether there is one.
    pub(super) fn cancel(&self) -> bool {
        self.open.as_ref().inspect(|cancel| cancel.cancel()).is_some()
    }

    /// Whether the run in progress is cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.open.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Aborts the run in progress, or else the prompt on its way.
    pub(super) fn abort(&mut self) {
        if !self.cancel() {
            self.early_aborts += 1;
        }
    }

    /// The number of aborts so far that found no open run.
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
