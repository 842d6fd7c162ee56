//! Counters for operators: what happens in a runtime, in numbers ([`Runtime::metrics`](crate::Runtime::metrics)).
//!
//! Invariants: what a log records is counted when it becomes durable, so it is counted once; everything else is counted
//! where it happens, and nothing by a subscriber, which may miss events. Without the feature `metrics` nothing is counted.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::entry::RunOutcome;
use greenroom_kernel::{Entry, FailureClass, ToolStatus};
use greenroom_provider::Purpose;
use tokio::time::Instant;

#[cfg(feature = "metrics")]
mod families;
#[cfg(feature = "metrics")]
mod names;
#[cfg(all(test, feature = "metrics"))]
mod tests;

#[cfg(feature = "metrics")]
pub(crate) use families::{Census, LaneState};

/// Something that is counted.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "nothing is counted without the feature"))]
pub(crate) enum Happened<'a> {
    /// Entries of a session became durable. The provider and the model are the session's.
    Recorded { entries: &'a [Arc<Entry>], provider: &'a str, model: &'a str },
    /// A run ended, after this time.
    RunEnded { outcome: &'a RunOutcome, took: Duration },
    /// A model call got its slot, after this wait.
    CallEntered { provider: &'a str, waited: Duration },
    /// A model call ended.
    CallEnded { provider: &'a str, model: &'a str, purpose: Purpose, result: CallResult, times: CallTimes },
    /// A failed model call will be repeated.
    Retried { class: FailureClass },
    /// A run continues with another model.
    FellBack,
    /// A tool call ended. The agent has no tool of this name if `tool` is `None`.
    ToolEnded { tool: Option<&'a str>, status: ToolStatus, took: Duration },
    /// The store accepted or refused an append.
    Appended { entries: usize, is_durable: bool, took: Duration },
    /// A session was opened: its log was read, and its actors were started.
    Opened { took: Duration },
    /// An actor crashed and was replaced.
    Restarted(Restarted),
    /// A session crashed too often.
    SessionFailed,
}

/// How a model call ended.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "nothing is counted without the feature"))]
pub(crate) enum CallResult {
    Answered,
    Failed(FailureClass),
    Cancelled,
}

/// When a model call was sent, and when its answer began; `None` if that did not happen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallTimes {
    pub(crate) sent: Option<Instant>,
    pub(crate) first: Option<Instant>,
}

/// The actor that was replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Restarted {
    Session,
    Agent,
    UsageTracker,
    Compactor,
}

/// The counters of a runtime.
#[derive(Default)]
pub(crate) struct Metrics {
    #[cfg(feature = "metrics")]
    families: families::Families,
}

impl Metrics {
    /// Counts what happened.
    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::unused_self, reason = "nothing is counted without the feature")
    )]
    pub(crate) fn count(&self, happened: Happened<'_>) {
        #[cfg(feature = "metrics")]
        self.families.count(happened);
        #[cfg(not(feature = "metrics"))]
        let _ = happened;
    }

    /// Returns everything that was counted, and the current state, in Prometheus' text format.
    #[cfg(feature = "metrics")]
    pub(crate) fn text(&self, census: &Census) -> String {
        self.families.text(census)
    }
}
