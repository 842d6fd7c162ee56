//! The compaction of a session that is open, and what decides whether the next one may begin.
//!
//! Life: a request that comes with a measured context begins at once; one that does not waits for the measurement it
//! asked for. A compaction that began has an id, the entry of its start, and every message about it names that id.
//!
//! Invariants: at most one is open; a measurement that another request asked for begins nothing; a compaction ends
//! once, by its own id.

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::log::Installation;
use tracing::Span;

use crate::core::message::{ReplyTo, RunAttempt};
use crate::values::compaction::{CompactOptions, Compacted};

#[cfg(test)]
mod tests;

/// What is asked of a compaction, and who waits for it.
pub(super) struct CompactionRequest {
    pub(super) trigger: Trigger,
    /// Whether the next request could not be sent as it is.
    pub(super) at_window: bool,
    /// How many compactions for the same overflow did not help.
    pub(super) failed_attempts: u32,
    pub(super) options: CompactOptions,
    /// The run that waits for it.
    pub(super) run: Option<RunAttempt>,
    /// What that run needs if nothing comes of this one: it was asked for less, by an agent that died.
    pub(super) or_else: Option<OverflowRequest>,
    /// The caller that waits for it.
    pub(super) reply: Option<ReplyTo<Compacted>>,
    /// Where the branch begins that is to be gone to, with [`Trigger::Branch`].
    pub(super) branch_to: Option<EntryId>,
    pub(super) began: tokio::time::Instant,
    /// As it is traced, once it has begun.
    pub(super) span: Span,
}

/// What a run asks for at the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverflowRequest {
    pub(super) trigger: Trigger,
    pub(super) failed_attempts: u32,
}

impl CompactionRequest {
    /// A request that nobody waits for.
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
            span: Span::none(),
        }
    }

    /// How it ends where it is installed now; its start is this entry.
    pub(super) fn installation(&self, started: EntryId, cost_microdollars: Option<u64>) -> Installation {
        let (trigger, duration_ms) = (self.trigger, self.duration_ms());
        Installation { started, trigger, duration_ms, cost_microdollars }
    }

    /// How long it has taken so far, in milliseconds.
    pub(super) fn duration_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// Which compaction is open.
enum Open {
    /// It waits for the context's size, asked for by this number.
    Measuring { request: CompactionRequest, measurement: u64 },
    /// Its start is recorded as this entry.
    Running { id: EntryId, request: CompactionRequest },
}

/// The open compaction, and what is known for the next one.
pub(super) struct OpenCompaction {
    open: Option<Open>,
    /// The number of the newest measurement that was asked for.
    measurements: u64,
    /// A compaction that was asked for during a run.
    requested: Option<CompactOptions>,
    /// Whether a message was recorded since the last compaction ended.
    message_since: bool,
    /// A compaction was undone: the next automatic one waits until the window is nearly full.
    pub(super) only_at_window: bool,
}

impl OpenCompaction {
    /// For a session that is opened.
    pub(super) fn new(only_at_window: bool) -> Self {
        Self { open: None, measurements: 0, requested: None, message_since: true, only_at_window }
    }

    /// Whether no compaction is open.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// Whether somebody waits for the compaction that is open: a run or a caller.
    pub(super) fn is_awaited(&self) -> bool {
        self.request().is_some_and(|request| {
            request.run.is_some() || request.reply.is_some() || request.branch_to.is_some()
        })
    }

    fn request(&self) -> Option<&CompactionRequest> {
        self.open.as_ref().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => request,
        })
    }

    fn request_mut(&mut self) -> Option<&mut CompactionRequest> {
        self.open.as_mut().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => request,
        })
    }

    /// Opens a request that waits for a measurement. Gives the measurement's number.
    pub(super) fn measure(&mut self, request: CompactionRequest) -> u64 {
        assert!(self.is_idle(), "one compaction at a time");
        self.measurements += 1;
        let measurement = self.measurements;
        self.open = Some(Open::Measuring { request, measurement });
        measurement
    }

    /// The measurement that is awaited, to ask for it again.
    pub(super) fn awaited_measurement(&self) -> Option<u64> {
        match &self.open {
            Some(Open::Measuring { measurement, .. }) => Some(*measurement),
            Some(Open::Running { .. }) | None => None,
        }
    }

    /// A measurement came: gives the request that waited for it.
    pub(super) fn measured(&mut self, measurement: u64) -> Option<CompactionRequest> {
        if self.awaited_measurement() == Some(measurement) { self.take() } else { None }
    }

    /// A compaction began: its start is this entry.
    pub(super) fn begin(&mut self, id: EntryId, request: CompactionRequest) {
        assert!(self.is_idle(), "one compaction at a time");
        self.open = Some(Open::Running { id, request });
    }

    /// The compaction that runs, by the entry of its start.
    pub(super) fn running(&self) -> Option<EntryId> {
        match &self.open {
            Some(Open::Running { id, .. }) => Some(*id),
            Some(Open::Measuring { .. }) | None => None,
        }
    }

    /// The request of this compaction, if it is the one that runs.
    pub(super) fn of(&self, id: EntryId) -> Option<&CompactionRequest> {
        if self.running() == Some(id) { self.request() } else { None }
    }

    /// Ends this compaction, if it is the one that runs. Gives its request.
    pub(super) fn end(&mut self, id: EntryId) -> Option<CompactionRequest> {
        if self.running() == Some(id) { self.take() } else { None }
    }

    /// Gives up a request that still waits for its measurement.
    pub(super) fn give_up_measuring(&mut self) -> Option<CompactionRequest> {
        if self.awaited_measurement().is_some() { self.take() } else { None }
    }

    fn take(&mut self) -> Option<CompactionRequest> {
        self.open.take().map(|open| match open {
            Open::Measuring { request, .. } | Open::Running { request, .. } => request,
        })
    }

    /// A run waits for the open compaction, if there is one. Gives whether there is. `at_window` is what the run needs
    /// in case the compaction was asked for less.
    pub(super) fn join(&mut self, run: RunAttempt, at_window: Option<OverflowRequest>) -> bool {
        let Some(request) = self.request_mut() else { return false };
        request.run = Some(run);
        request.or_else = at_window.filter(|_| !request.at_window);
        true
    }

    /// The agent died whose run waits: the compaction goes on without it.
    pub(super) fn detach_run(&mut self) {
        if let Some(request) = self.request_mut() {
            request.run = None;
        }
    }

    /// Whether a run waits for the open compaction.
    pub(super) fn has_run(&self) -> bool {
        self.request().is_some_and(|request| request.run.is_some())
    }

    /// A compaction is to begin when nothing else is under way.
    pub(super) fn request_later(&mut self, options: CompactOptions) {
        self.requested = Some(options);
    }

    /// The compaction that is to begin now that nothing else is under way.
    pub(super) fn take_requested(&mut self) -> Option<CompactOptions> {
        self.requested.take()
    }

    /// A message was recorded.
    pub(super) fn message_recorded(&mut self) {
        self.message_since = true;
    }

    /// A compaction ended, however it did.
    pub(super) fn ended(&mut self) {
        self.message_since = false;
    }

    /// Whether a message was recorded since the last compaction: without one, another by threshold would repeat it.
    pub(super) fn has_message_since(&self) -> bool {
        self.message_since
    }
}
