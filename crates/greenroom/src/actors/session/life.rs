//! The stage of a session's actor: whether it is stopping, sleeps, or must finish interrupted work first.
//!
//! Invariants: an actor that sleeps or is stopping starts no work; at most one timer checks whether it is
//! idle.

use tokio::sync::oneshot;

use crate::values::error::Result;
use crate::values::prompt::Reply;

/// The stage of a session's actor.
#[derive(Default)]
pub(super) struct Life {
    /// The actor stops as soon as no work is in progress.
    is_stopping: bool,
    /// The actor sleeps during its run, which the supervisor keeps.
    is_asleep: bool,
    /// Work was in progress, or waited, after the newest message.
    is_busy: bool,
    /// The timer that checks for idleness is running.
    is_watched: bool,
    /// Interrupted work must be finished before queued input.
    finishes: bool,
    /// No earlier actor of the session is remembered in this process.
    is_first: bool,
    /// The reply of the work that was finished as the session was opened, for the caller that asks for it
    /// afterwards.
    finished: Option<oneshot::Receiver<Result<Reply>>>,
}

impl Life {
    /// Creates the stage of a new actor; `finishes` says whether interrupted work must be finished before
    /// queued input, and `is_first` whether no earlier actor of the session is remembered in this process.
    pub(super) fn new(finishes: bool, is_first: bool) -> Self {
        Self { finishes, is_first, ..Self::default() }
    }

    /// Whether no earlier actor of the session is remembered in this process.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether the actor stops as soon as no work is in progress.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Whether the actor sleeps during its run.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    pub(super) fn fall_asleep(&mut self) {
        self.is_asleep = true;
    }

    /// Notes whether there is work. Returns whether the last of it has just ended.
    pub(super) fn rests(&mut self, has_nothing_to_do: bool) -> bool {
        std::mem::replace(&mut self.is_busy, !has_nothing_to_do) && has_nothing_to_do
    }

    /// Notes that a timer should check for idleness. Returns whether to start one.
    pub(super) fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// Notes that the timer fired.
    pub(super) fn watched(&mut self) {
        self.is_watched = false;
    }

    /// Whether interrupted work must be finished before queued input. Resets the flag.
    pub(super) fn is_to_finish(&mut self) -> bool {
        std::mem::take(&mut self.finishes)
    }

    /// Keeps the reply of interrupted work that is being finished, which may end before a caller asks for it.
    pub(super) fn set_finished(&mut self, finished: oneshot::Receiver<Result<Reply>>) {
        self.finished = Some(finished);
    }

    /// Takes the reply of the work that was finished as the session was opened.
    pub(super) fn take_finished(&mut self) -> Option<oneshot::Receiver<Result<Reply>>> {
        self.finished.take()
    }
}
