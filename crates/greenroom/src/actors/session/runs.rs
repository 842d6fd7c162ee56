//! The runs of a session: the one in progress, and what the next one goes on from.
//!
//! Invariants: at most one is open; each attempt at one has a number of its own, so that news of an earlier attempt is late.

use std::sync::Arc;

use greenroom_kernel::RunId;
use greenroom_kernel::cost::RunCost;
use tracing::Span;

use super::open_run::{ClosingRun, NewRun, OpenRun, RunInstructions};
use crate::core::message::RunAttempt;
use crate::core::running::Running;

/// The runs of a session: the one in progress, and what the next one goes on from.
#[derive(Default)]
pub(super) struct Runs {
    open: Option<OpenRun>,
    /// The instructions of the newest run, since the session was opened.
    instructions: Option<Arc<str>>,
    /// How many runs the session's agents began or went on with: the number of the newest attempt.
    attempts: u32,
    /// What the newest run may cost.
    cost: Option<RunCost>,
    /// The run as the agent handed it over, before the session sleeps, or after.
    handed_over: Option<Box<Running>>,
    /// Whether a run that an earlier process left waits for people, and goes on with an agent like its own only.
    is_left_waiting: bool,
}

impl Runs {
    /// The run in progress.
    pub(super) fn open(&self) -> Option<&OpenRun> {
        self.open.as_ref()
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut OpenRun> {
        self.open.as_mut()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Which run is in progress.
    pub(super) fn id(&self) -> Option<RunId> {
        self.stamp().map(|stamp| stamp.run)
    }

    /// The run in progress, and which attempt at it.
    pub(super) fn stamp(&self) -> Option<RunAttempt> {
        self.open.as_ref().map(OpenRun::stamp)
    }

    /// The run in progress, as it is traced.
    pub(super) fn span(&self) -> Option<&Span> {
        self.open.as_ref().map(OpenRun::span)
    }

    /// Whether the run's end waits for the size that the tracker measures.
    pub(super) fn is_closing(&self) -> bool {
        self.open.as_ref().is_some_and(OpenRun::is_closing)
    }

    /// The open run, if this is about it. Late news ends here.
    pub(super) fn current(&mut self, stamp: RunAttempt) -> Option<&mut OpenRun> {
        self.open.as_mut().filter(|run| run.stamp() == stamp && !run.is_closing())
    }

    /// The run that is open in the log is in progress from now on.
    pub(super) fn begin(&mut self, run: RunId, span: Span, new: NewRun) {
        self.note_instructions(&new.instructions);
        let attempt = self.next_attempt();
        self.open = Some(OpenRun::new(RunAttempt { run, attempt }, span, new));
    }

    /// The number of the attempt that begins.
    pub(super) fn next_attempt(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// Instructions with this text, of so many tokens, as a run has them.
    pub(super) fn instructions(&self, text: Arc<str>, tokens: impl FnOnce(&str) -> u64) -> RunInstructions {
        let is_changed = self.instructions.as_ref().is_some_and(|before| *before != text);
        RunInstructions { changed: is_changed.then(|| tokens(&text)), text }
    }

    /// These are the newest instructions.
    pub(super) fn note_instructions(&mut self, instructions: &RunInstructions) {
        self.instructions = Some(Arc::clone(&instructions.text));
    }

    /// No run is in progress any more.
    pub(super) fn take(&mut self) -> Option<OpenRun> {
        self.open.take()
    }

    /// The run whose end is recorded now, if it is over.
    pub(super) fn take_closing(&mut self) -> Option<ClosingRun> {
        self.open.take_if(|run| run.is_closing())?.close()
    }

    /// What the newest run may cost.
    pub(super) fn cost(&self) -> Option<RunCost> {
        self.cost
    }

    /// Sets what the run that begins may cost. Gives whether that is something else than before.
    pub(super) fn set_cost(&mut self, cost: Option<RunCost>) -> bool {
        std::mem::replace(&mut self.cost, cost) != cost
    }

    /// The agent handed the run over, so that the session may sleep.
    pub(super) fn hand_over(&mut self, running: Box<Running>) {
        self.handed_over = Some(running);
    }

    /// The run as the agent handed it over.
    pub(super) fn handed_over(&self) -> Option<&Running> {
        self.handed_over.as_deref()
    }

    /// The run that an agent is to go on with, or that another begins anew.
    pub(super) fn take_back(&mut self) -> Option<Box<Running>> {
        self.handed_over.take()
    }

    /// Whether a run that an earlier process left waits for people.
    pub(super) fn is_left_waiting(&self) -> bool {
        self.is_left_waiting
    }

    /// Says whether a run that an earlier process left waits for people. Gives whether it was so before.
    pub(super) fn set_left_waiting(&mut self, is_left_waiting: bool) -> bool {
        std::mem::replace(&mut self.is_left_waiting, is_left_waiting)
    }
}
