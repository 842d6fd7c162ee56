//! The runs of a session: the one in progress, and the state that carries over to the next one.
//!
//! Invariants: at most one is open; each attempt has its own number, so messages about an earlier attempt are
//! late.

use std::sync::Arc;

use greenroom_kernel::RunId;
use greenroom_kernel::cost::RunCost;
use tracing::Span;

use super::open_run::{ClosingRun, NewRun, OpenRun, RunInstructions};
use crate::core::message::RunAttempt;
use crate::core::running::Running;

/// The runs of a session: the one in progress, and the state that carries over to the next one.
#[derive(Default)]
pub(super) struct Runs {
    /// Boxed, so an idle session does not hold its memory.
    open: Option<Box<OpenRun>>,
    /// The instructions of the newest run since the session was opened.
    instructions: Option<Arc<str>>,
    /// The number of attempts by the session's agents, which is the number of the newest one.
    attempts: u32,
    /// The cost limit of the newest run.
    cost: Option<RunCost>,
    /// The run as the agent handed it over, before or after the session's sleep.
    handed_over: Option<Box<Running>>,
    /// Whether a run that an earlier process left waits for people, and continues only with an agent like its
    /// own.
    is_left_waiting: bool,
}

impl Runs {
    /// Returns the run in progress.
    pub(super) fn open(&self) -> Option<&OpenRun> {
        self.open.as_deref()
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut OpenRun> {
        self.open.as_deref_mut()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the id of the run in progress.
    pub(super) fn id(&self) -> Option<RunId> {
        self.attempt().map(|attempt| attempt.run)
    }

    /// Returns the run in progress and the attempt at it.
    pub(super) fn attempt(&self) -> Option<RunAttempt> {
        self.open().map(OpenRun::attempt)
    }

    /// Returns the span of the run in progress.
    pub(super) fn span(&self) -> Option<&Span> {
        self.open().map(OpenRun::span)
    }

    /// Whether the run's end waits for a measurement.
    pub(super) fn is_closing(&self) -> bool {
        self.open().is_some_and(OpenRun::is_closing)
    }

    /// Returns the open run if the message is about it. Late messages are dropped here.
    pub(super) fn current(&mut self, attempt: RunAttempt) -> Option<&mut OpenRun> {
        self.open_mut().filter(|run| run.attempt() == attempt && !run.is_closing())
    }

    /// Makes the run that is open in the log the run in progress.
    pub(super) fn begin(&mut self, run: RunId, span: Span, new: NewRun) {
        self.note_instructions(&new.instructions);
        let number = self.next_attempt();
        self.open = Some(Box::new(OpenRun::new(RunAttempt { run, number }, span, new)));
    }

    /// Returns the number of the next attempt.
    pub(super) fn next_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// Returns the instructions of a run, with their size if they have changed.
    pub(super) fn instructions(&self, text: Arc<str>, tokens: impl FnOnce(&str) -> u64) -> RunInstructions {
        let is_changed = self.instructions.as_ref().is_some_and(|before| *before != text);
        RunInstructions { changed: is_changed.then(|| tokens(&text)), text }
    }

    /// Notes the newest instructions.
    pub(super) fn note_instructions(&mut self, instructions: &RunInstructions) {
        self.instructions = Some(Arc::clone(&instructions.text));
    }

    /// Takes the run in progress.
    pub(super) fn take(&mut self) -> Option<Box<OpenRun>> {
        self.open.take()
    }

    /// Takes the run whose end is recorded now, if it is over.
    pub(super) fn take_closing(&mut self) -> Option<ClosingRun> {
        self.open.take_if(|run| run.is_closing())?.close()
    }

    /// Returns the cost limit of the newest run.
    pub(super) fn cost(&self) -> Option<RunCost> {
        self.cost
    }

    /// Sets the cost limit of the new run. Returns whether it has changed.
    pub(super) fn set_cost(&mut self, cost: Option<RunCost>) -> bool {
        std::mem::replace(&mut self.cost, cost) != cost
    }

    /// Keeps the run that the agent handed over, so the session may sleep.
    pub(super) fn hand_over(&mut self, running: Box<Running>) {
        self.handed_over = Some(running);
    }

    /// Returns the run that the agent handed over.
    pub(super) fn handed_over(&self) -> Option<&Running> {
        self.handed_over.as_deref()
    }

    /// Takes the run that was handed over, for an agent to continue.
    pub(super) fn take_back(&mut self) -> Option<Box<Running>> {
        self.handed_over.take()
    }

    /// Whether a run that an earlier process left waits for people.
    pub(super) fn is_left_waiting(&self) -> bool {
        self.is_left_waiting
    }

    /// Sets whether a run that an earlier process left waits for people. Returns the previous value.
    pub(super) fn set_left_waiting(&mut self, is_left_waiting: bool) -> bool {
        std::mem::replace(&mut self.is_left_waiting, is_left_waiting)
    }
}
