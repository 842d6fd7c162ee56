//! The open compaction of a session, and the conditions for the next one.
//!
//! Life cycle: a request with a measured context starts at once; another one waits for the measurement it
//! requested. A started compaction has an id, the entry of its start, and every message about it has that id.
//!
//! Invariants: at most one is open; a measurement for another request starts nothing; a compaction ends once,
//! by its own id.

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::log::Installation;
use tracing::Span;

use crate::core::message::{Effort, ReplyTo, RunAttempt};
use crate::values::compaction::{CompactOptions, Compacted};

use super::preparation::Preparation;

#[cfg(test)]
mod tests;

/// A request for a compaction, and its callers.
pub(super) struct CompactionRequest {
    pub(super) trigger: Trigger,
    /// Whether the next request could not be sent otherwise.
    pub(super) at_window: bool,
    /// How many compactions for the same overflow did not help.
    pub(super) failed_attempts: u32,
    pub(super) options: CompactOptions,
    /// The run that waits for it.
    pub(super) run: Option<RunAttempt>,
    /// What the run needs if this compaction does not help, because a crashed agent requested it for less.
    pub(super) or_else: Option<OverflowRequest>,
    /// The caller that waits for it.
    pub(super) reply: Option<ReplyTo<Compacted>>,
    /// Where the new branch starts, for [`Trigger::Branch`].
    pub(super) branch_to: Option<EntryId>,
    pub(super) began: tokio::time::Instant,
    /// Since when a run, a caller or queued input has waited for it.
    pub(super) awaited_since: Option<tokio::time::Instant>,
    /// The compaction's span in the trace, once it has started.
    pub(super) span: Span,
}

/// A run's request at the window's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverflowRequest {
    pub(super) trigger: Trigger,
    pub(super) failed_attempts: u32,
}

impl CompactionRequest {
    /// Creates a request for which nobody waits.
    pub(super) fn new(trigger: Trigger) -> Self {
        Self {
            trigger,
            at_window: false,
            failed_attempts: 0,
            options: CompactOptions::default(),
            run: None,
            or_else: None,
            reply: None,
            branch_to: None,
            began: tokio::time::Instant::now(),
            awaited_since: None,
            span: Span::none(),
        }
    }

    /// Returns its end if it is installed now; `started` is the entry of its start.
    pub(super) fn installation(&self, started: EntryId, effort: Effort) -> Installation {
        let Effort { cost_microdollars, prepared_ms } = effort;
        let (trigger, duration_ms, waited_ms) = (self.trigger, self.duration_ms(), self.waited_ms());
        Installation { started, trigger, duration_ms, waited_ms, prepared_ms, cost_microdollars }
    }

    /// Notes that work waits for it from now on, unless some waits already.
    pub(super) fn note_awaited(&mut self) {
        self.awaited_since.get_or_insert_with(tokio::time::Instant::now);
    }

    /// Returns how long work has waited for it, in milliseconds.
    pub(super) fn waited_ms(&self) -> u64 {
        let waited = self.awaited_since.map(|since| since.elapsed().as_millis());
        waited.map_or(0, |waited| u64::try_from(waited).unwrap_or(u64::MAX))
    }

    /// Returns its duration so far, in milliseconds.
    pub(super) fn duration_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// The open compaction. Its request is boxed, so a session without one does not hold its memory.
enum Open {
    /// It waits for the context's size, with this number of the measurement.
    Measuring { request: Box<CompactionRequest>, measurement: u64 },
    /// Its start is recorded as this entry.
    Running { id: EntryId, request: Box<CompactionRequest> },
}

/// The open compaction, and the conditions for the next one.
pub(super) struct OpenCompaction {
    open: Option<Open>,
    /// The number of the newest measurement.
    measurements: u64,
    /// A compaction that was requested during a run.
    requested: Option<CompactOptions>,
    /// Whether a message was recorded since the last compaction ended.
    message_since: bool,
    preparation: Preparation,
    /// A compaction was undone: the next automatic one waits until the window is nearly full.
    pub(super) only_at_window: bool,
}

impl OpenCompaction {
    /// Creates the state for a session that is opened.
    pub(super) fn new(only_at_window: bool) -> Self {
        Self {
            open: None,
            measurements: 0,
            requested: None,
            message_since: true,
            preparation: Preparation::default(),
            only_at_window,
        }
    }

    /// Whether no compaction is open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// Returns the preparation.
    pub(super) fn preparation(&mut self) -> &mut Preparation {
        &mut self.preparation
    }

    /// Notes that work waits for the open compaction.
    pub(super) fn note_awaited(&mut self) {
        self.request_mut().into_iter().for_each(CompactionRequest::note_awaited);
    }

    /// Whether a run or a caller waits for the open compaction.
    pub(super) fn is_awaited(&self) -> bool {
        self.request().is_some_and(|request| {
            request.run.is_some() || request.reply.is_some() || request.branch_to.is_some()
        })
    }

    fn request(&self) -> Option<&CompactionRequest> {
        self.open.as_ref().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => &**request,
        })
    }

    fn request_mut(&mut self) -> Option<&mut CompactionRequest> {
        self.open.as_mut().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => &mut **request,
        })
    }

    /// Opens a request that waits for a measurement. Returns the measurement's number.
    pub(super) fn measure(&mut self, request: CompactionRequest) -> u64 {
        assert!(self.is_idle(), "one compaction at a time");
        self.measurements += 1;
        let measurement = self.measurements;
        self.open = Some(Open::Measuring { request: Box::new(request), measurement });
        measurement
    }

    /// Returns the number of the awaited measurement, to request it again.
    pub(super) fn awaited_measurement(&self) -> Option<u64> {
        match &self.open {
            Some(Open::Measuring { measurement, .. }) => Some(*measurement),
            Some(Open::Running { .. }) | None => None,
        }
    }

    /// Takes the request that waited for this measurement.
    pub(super) fn measured(&mut self, measurement: u64) -> Option<CompactionRequest> {
        if self.awaited_measurement() == Some(measurement) { self.take() } else { None }
    }

    /// Notes the start of a compaction.
    pub(super) fn begin(&mut self, id: EntryId, request: CompactionRequest) {
        assert!(self.is_idle(), "one compaction at a time");
        self.open = Some(Open::Running { id, request: Box::new(request) });
    }

    /// Returns the started compaction, by the entry of its start.
    pub(super) fn running(&self) -> Option<EntryId> {
        match &self.open {
            Some(Open::Running { id, .. }) => Some(*id),
            Some(Open::Measuring { .. }) | None => None,
        }
    }

    /// Returns the request of this compaction if it is the started one.
    pub(super) fn of(&self, id: EntryId) -> Option<&CompactionRequest> {
        if self.running() == Some(id) { self.request() } else { None }
    }

    /// Ends this compaction if it is the started one. Returns its request.
    pub(super) fn end(&mut self, id: EntryId) -> Option<CompactionRequest> {
        if self.running() == Some(id) { self.take() } else { None }
    }

    /// Drops a request that still waits for its measurement.
    pub(super) fn give_up_measuring(&mut self) -> Option<CompactionRequest> {
        if self.awaited_measurement().is_some() { self.take() } else { None }
    }

    fn take(&mut self) -> Option<CompactionRequest> {
        self.open.take().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => *request,
        })
    }

    /// Lets a run wait for the open compaction. Returns whether there is one. `at_window` is what the run
    /// needs, in case the compaction was requested for less.
    pub(super) fn join(&mut self, run: RunAttempt, at_window: Option<OverflowRequest>) -> bool {
        let Some(request) = self.request_mut() else { return false };
        request.run = Some(run);
        request.or_else = at_window.filter(|_| !request.at_window);
        true
    }

    /// Detaches a run whose agent crashed: the compaction continues without it.
    pub(super) fn detach_run(&mut self) {
        if let Some(request) = self.request_mut() {
            request.run = None;
        }
    }

    /// Whether a run waits for the open compaction.
    pub(super) fn has_run(&self) -> bool {
        self.request().is_some_and(|request| request.run.is_some())
    }

    /// Keeps a request until no other work is in progress.
    pub(super) fn request_later(&mut self, options: CompactOptions) {
        self.requested = Some(options);
    }

    /// Takes the kept request, when no other work is in progress.
    pub(super) fn take_requested(&mut self) -> Option<CompactOptions> {
        self.requested.take()
    }

    /// Notes that a message was recorded.
    pub(super) fn message_recorded(&mut self) {
        self.message_since = true;
    }

    /// Notes the end of a compaction, whatever its outcome.
    pub(super) fn ended(&mut self) {
        self.message_since = false;
    }

    /// Whether a message was recorded since the last compaction: without one, another compaction by threshold
    /// would only repeat it.
    pub(super) fn has_message_since(&self) -> bool {
        self.message_since
    }
}
