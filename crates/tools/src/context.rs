//! What a tool is told about its call: the session, cancellation, progress, and the application's state.
//!
//! Invariants: nothing here waits; what a tool reports or requests goes to a sink that must not block.

use std::sync::Arc;

use greenroom_kernel::settings::CompactOptions;
use tokio_util::sync::CancellationToken;

use crate::state::{AppState, MissingState};

/// What a tool is told about its call. A test of a tool makes one with [`ToolContext::new`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ToolContext {
    /// The session that calls.
    pub session: String,
    /// The id that the model gave the call.
    pub call_id: String,
    /// Fires when the run is aborted, or the call has taken too long.
    pub cancel: CancellationToken,
    /// Where progress goes: lines for people, best effort, never sent to the model.
    pub progress: Progress,
    /// For asking that the session is compacted when the run is over.
    pub compaction: CompactionRequests,
    /// What the program gave the agent for its tools.
    pub app_state: AppState,
}

impl ToolContext {
    /// The context of a call that nobody cancels, without state.
    pub fn new(session: impl Into<String>, call_id: impl Into<String>) -> Self {
        Self { session: session.into(), call_id: call_id.into(), ..Self::default() }
    }

    /// The context with what [`Self::state`] gives.
    #[must_use]
    pub fn with_state(mut self, state: AppState) -> Self {
        self.app_state = state;
        self
    }

    /// The agent's state of this type.
    ///
    /// # Errors
    /// The agent was given none. The text names the type, for whoever reads the call's result.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, MissingState> {
        self.app_state.get()
    }
}

/// How a tool or a hook asks for a compaction of its session. It never waits for it.
#[derive(Clone, Default)]
pub struct CompactionRequests(Option<Arc<dyn Fn(CompactOptions) + Send + Sync>>);

impl CompactionRequests {
    /// Requests that `sink` gets. The sink must not block.
    pub fn new(sink: impl Fn(CompactOptions) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// Asks for a compaction when the current run is over, or now if none runs. Of several requests the last one
    /// counts; one after which no message came since the last compaction is dropped.
    pub fn request(&self, options: CompactOptions) {
        if let Some(sink) = &self.0 {
            sink(options);
        }
    }
}

impl std::fmt::Debug for CompactionRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompactionRequests")
    }
}

/// Where a tool's progress goes.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(String) + Send + Sync>>);

impl Progress {
    /// Progress that calls `sink` for each line. The sink must not block.
    pub fn new(sink: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// Reports one line of progress, for people.
    pub fn report(&self, line: impl Into<String>) {
        if let Some(sink) = &self.0 {
            sink(line.into());
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}
