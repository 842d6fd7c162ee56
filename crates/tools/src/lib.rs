//! Tools an agent may call: the trait, the registry, and the built-in ones.
//!
//! The one key decision: **this is the only crate that touches the user's files and starts processes**, so it
//! is the one to audit. File tools are confined to a workspace; every output is capped; every tool declares
//! which files it touched. What is absent: models, sessions, actors.

pub mod builtin;
mod error;
mod function;
pub mod helper;
mod output;
pub mod privacy;
mod process;
mod registry;
mod schema;
mod similar;
mod workspace;

pub use error::ToolsError;
pub use function::{FunctionTool, IntoToolOutput, Json, ToolError, typed, typed_with};
pub use registry::{Registry, panic_text};
pub use workspace::Workspace;

/// The JSON schema of a type, in the form that models are sent.
pub fn schema_of<T: schemars::JsonSchema>() -> serde_json::Value {
    schema::of::<T>().0
}

use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom_kernel::settings::CompactOptions;
use greenroom_kernel::{Block, ToolSpec, ToolStatus, Touch, Touched};
use tokio_util::sync::CancellationToken;

/// How long a cancelled call may go on, where its tool does not say.
const GRACE: Duration = Duration::from_millis(250);

/// Something an agent may call.
pub trait Tool: Send + Sync + 'static {
    /// Its name, description and parameters, as the model is told.
    fn spec(&self) -> ToolSpec;

    /// Runs it. Failures are outputs with [`ToolStatus::Error`]: the model reads them and goes on.
    ///
    /// `arguments` is any JSON value: the tool checks it. When `context.cancel` fires the call ends soon, and
    /// leaves no task and no process behind; so does dropping the future.
    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput>;

    /// How long a call of it may go on after `context.cancel` fired, to come to its end in order. Then it is dropped,
    /// and the model reads that nobody knows whether it took effect.
    fn grace(&self) -> Duration {
        GRACE
    }

    /// Whether it changes nothing outside itself, so that calls of it may run at the same time.
    fn is_read_only(&self) -> bool {
        false
    }
}

/// What a tool is told about the call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// The session that calls.
    pub session: String,
    /// The id that the model gave the call.
    pub call_id: String,
    /// Fires when the run is aborted.
    pub cancel: CancellationToken,
    /// Where progress goes: lines for people, best effort, never sent to the model.
    pub progress: Progress,
    /// For asking that the session is compacted when the run is over.
    pub compaction: CompactionRequests,
}

/// How a tool or a hook asks for a compaction of its session. It never waits for it.
#[derive(Clone, Default)]
pub struct CompactionRequests(Option<std::sync::Arc<dyn Fn(CompactOptions) + Send + Sync>>);

impl CompactionRequests {
    /// Requests that `sink` gets. The sink must not block.
    pub fn new(sink: impl Fn(CompactOptions) + Send + Sync + 'static) -> Self {
        Self(Some(std::sync::Arc::new(sink)))
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
pub struct Progress(Option<std::sync::Arc<dyn Fn(String) + Send + Sync>>);

impl Progress {
    /// Progress that calls `sink` for each line. The sink must not block.
    pub fn new(sink: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self(Some(std::sync::Arc::new(sink)))
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

/// The output of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// Text and images for the model.
    pub content: Vec<Block>,
    /// Whether it succeeded, failed or was interrupted.
    pub status: ToolStatus,
    /// Which files it touched.
    pub touched: Vec<Touched>,
}

impl ToolOutput {
    /// A successful output of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::Text(text.into())], status: ToolStatus::Ok, touched: Vec::new() }
    }

    /// A failure that the model reads.
    pub fn error(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Error, ..Self::text(text) }
    }

    /// A call that was cancelled: whether it took effect is not known, unless `text` says so.
    pub fn interrupted(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Interrupted, ..Self::text(text) }
    }

    /// Declares a file that the call touched; `path` is relative to the workspace where it lies inside.
    #[must_use]
    pub fn touching(mut self, path: impl Into<String>, touch: Touch) -> Self {
        self.touched.push(Touched { path: path.into(), touch });
        self
    }
}
