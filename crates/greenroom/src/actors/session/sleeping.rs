//! A session stops cleanly, or sleeps if no work is in progress, or if its run waits only for tools.
//!
//! Invariants: no message to a session is lost because it sleeps; a run that continues in the meantime is
//! kept with all its state.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::SessionState;
use super::open_compaction::OpenCompaction;
use super::parked::Suspended;
use crate::core::message::{AgentMessage, RunAttempt, SessionMessage, SupervisorMessage};
use crate::core::running::Running;
use crate::core::shared::Published;

impl SessionState {
    /// Stops cleanly: the run is interrupted, and the log is complete.
    pub(super) fn stop(&mut self) {
        self.go_on();
        self.life.stop();
        // The ends of the cancelled work arrive as messages, and then the session stops.
        self.interrupt_run();
        self.cancel_compaction("the session is closed");
        self.discard_preparation("the session is closed");
    }

    pub(super) fn stop_now(&mut self) {
        if self.is_at_rest() && self.life.is_stopping() && !self.compaction.preparation().is_unsettled() {
            self.shared.mark_flushed();
            self.myself.stop(Some("closed".to_owned()));
        }
    }

    /// Checks later whether anything has happened since.
    pub(super) fn watch_idleness(&mut self) {
        let after = self.deps.idle_after_ms;
        if after > 0 && self.life.watch() {
            let activity = self.shared.activity.load(Ordering::Relaxed);
            self.myself.send_after(Duration::from_millis(after), move || {
                SessionMessage::IdleCheck { activity, again: true }.into()
            });
        }
    }

    pub(super) fn idle_check(&mut self, activity: u64, again: bool) {
        if again {
            self.life.watched();
        }
        // This check itself counts as one message.
        let now = self.shared.activity.load(Ordering::Relaxed);
        if self.has_nothing_to_do() && now <= activity + 1 {
            let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.shared.id) });
        } else if !again {
            // The next check is already scheduled.
        } else if self.compaction.preparation().is_open() && self.runs.is_open() {
            // Its cost is recorded before the session sleeps.
            self.discard_preparation("the session falls asleep");
            self.watch_idleness();
        } else if let Some(attempt) = self.attempt_that_waits().filter(|_| now <= activity + 1) {
            // The session may sleep if its run waits only for tools, which the agent knows.
            self.agent.tell(AgentMessage::Suspend { attempt });
        } else {
            self.watch_idleness();
        }
    }

    /// Whether no work is in progress, no queued input may start, and no refused item is in the log.
    pub(super) fn has_nothing_to_do(&self) -> bool {
        self.is_at_rest() && self.inbox.is_empty(&self.log) && !self.inbox.has_refused()
    }

    /// Whether a caller waits until the session is idle.
    fn is_idle_awaited(&self) -> bool {
        self.idle_waiters.iter().any(|waiter| !waiter.is_closed())
    }

    /// Returns the run that may sleep, as far as the session knows.
    fn attempt_that_waits(&self) -> Option<RunAttempt> {
        let may_sleep = !self.life.is_stopping()
            && self.compaction.is_idle()
            && !self.runs.is_closing()
            && !self.is_idle_awaited();
        self.runs.attempt().filter(|_| may_sleep && self.runs.handed_over().is_none())
    }

    /// Handles the agent's reply: the run that it handed over, or `None` if it has something to do.
    pub(super) fn suspended(&mut self, attempt: RunAttempt, running: Option<Box<Running>>) {
        let may_sleep = self.attempt_that_waits() == Some(attempt);
        let is_of_run = self.runs.attempt() == Some(attempt);
        // A run of another attempt is over.
        let Some(running) = running.filter(|_| is_of_run) else {
            self.watch_idleness();
            return;
        };
        self.runs.hand_over(running);
        if !may_sleep {
            // Work arrived in the meantime, and the run continues at once.
            self.go_on();
            self.watch_idleness();
            return;
        }
        let _ = self.supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.shared.id) });
    }

    /// Sleeps, unless work has arrived since the session reported that it is idle. A run that waits only for
    /// its tools is kept for the next actor.
    pub(super) fn sleep(&mut self) {
        let line = self.runs.handed_over().map(|running| running.line.clone());
        let may_sleep = match &line {
            Some(_) => {
                let is_preparing = self.compaction.preparation().is_open();
                self.compaction.is_idle()
                    && !is_preparing
                    && !self.runs.is_closing()
                    && !self.is_idle_awaited()
            }
            None => self.has_nothing_to_do(),
        };
        let shared = Arc::clone(&self.shared);
        if !may_sleep || !shared.fall_asleep(|| self.parking.clone().park(self.suspend())) {
            self.go_on();
            let _ = self.supervisor.cast(SupervisorMessage::StaysAwake { id: Arc::clone(&shared.id) });
            self.watch_idleness();
            return;
        }
        // No sender can reach this actor any more.
        match line {
            None => self.stop(),
            Some(line) => {
                // A task may have sent a message since the agent handed the run over.
                line.wake_if_awaited();
                self.life.stop();
            }
        }
    }

    /// Takes the run that was handed over, with all its state; `None` if there is none.
    fn suspend(&mut self) -> Option<Box<Suspended>> {
        self.runs.handed_over()?;
        assert!(self.runs.is_open(), "a run that was handed over is open");
        // Its callers wait at the supervisor.
        self.shared.publish_state(Published { is_awaited: false, ..self.shared.published() });
        self.life.fall_asleep();
        Some(Box::new(Suspended {
            runs: std::mem::take(&mut self.runs),
            compaction: std::mem::replace(&mut self.compaction, OpenCompaction::new(false)),
            inbox: self.inbox.hand_over(),
            opened_at: self.opened_at,
            repeats: std::mem::take(&mut self.repeats),
            askers: std::mem::take(&mut self.askers),
            definitions: self.definition.kept(),
        }))
    }

    /// Lets the agent continue a run that was handed over. Returns whether there is one.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(running) = self.runs.take_back() else { return false };
        self.agent.tell(AgentMessage::Continue { running, tracker: self.tracker.actor().clone() });
        // Answers and settings from the time of its sleep.
        self.tell_askers_again();
        if let Some(agent) = self.shared.agent().filter(|agent| !Arc::ptr_eq(agent, &self.definition.agent))
            && let Err(error) = self.configure(agent)
        {
            self.warn(format!("the changed agent is not used: {error}"));
        }
        true
    }
}
