//! How far a session's actor is in its life: whether it is to end, sleeps, or has something to finish first.
//!
//! Invariants: an actor that fell asleep or is to end begins nothing; at most one timer looks whether it is idle.

use tokio::sync::oneshot;

use crate::values::error::Result;
use crate::values::prompt::Reply;

/// How far a session's actor is in its life.
#[derive(Default)]
pub(super) struct Life {
    /// It is to end as soon as nothing is under way.
    is_stopping: bool,
    /// It fell asleep in its run, which the supervisor keeps.
    is_asleep: bool,
    /// The timer that looks whether it is idle is running.
    is_watched: bool,
    /// What was interrupted is to be finished before anything that waits.
    finishes: bool,
    /// The reply of what was finished as the session was opened, for whoever asks for it afterwards.
    finished: Option<oneshot::Receiver<Result<Reply>>>,
}

impl Life {
    /// Of an actor that is started; `finishes` where what was interrupted is finished before anything that waits.
    pub(super) fn new(finishes: bool) -> Self {
        Self { finishes, ..Self::default() }
    }

    /// Whether it is to end as soon as nothing is under way.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Whether it fell asleep in its run.
    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    pub(super) fn fall_asleep(&mut self) {
        self.is_asleep = true;
    }

    /// A timer is to look whether it is idle. Gives whether one is to be started.
    pub(super) fn watch(&mut self) -> bool {
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// The timer fired.
    pub(super) fn watched(&mut self) {
        self.is_watched = false;
    }

    /// Whether what was interrupted is to be finished before anything that waits. It is said once.
    pub(super) fn is_to_finish(&mut self) -> bool {
        std::mem::take(&mut self.finishes)
    }

    /// What was interrupted is being finished. It may be done before anybody asks for its reply.
    pub(super) fn set_finished(&mut self, finished: oneshot::Receiver<Result<Reply>>) {
        self.finished = Some(finished);
    }

    /// The reply of what was finished as the session was opened.
    pub(super) fn take_finished(&mut self) -> Option<oneshot::Receiver<Result<Reply>>> {
        self.finished.take()
    }
}
