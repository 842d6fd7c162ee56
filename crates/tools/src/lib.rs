//! Tools an agent may call: the trait, the registry, and the built-in ones.
//!
//! The one key decision: **this is the only crate that touches the user's files and starts processes**, so it
//! is the one to audit. File tools are confined to a workspace; every output is capped; every tool declares
//! which files it touched. What is absent: models, sessions, actors.

pub mod background;
pub mod builtin;
mod context;
mod error;
mod function;
pub mod helper;
pub mod origin;
mod output;
mod pauses;
pub mod privacy;
mod process;
mod questions;
mod registry;
mod schema;
mod similar;
mod state;
mod value_schema;
mod workspace;

pub use context::{CompactionRequests, Progress, ToolContext};
pub use error::ToolsError;
pub use function::{
    FunctionTool, IntoToolOutput, ToolError, ToolFunction, arguments_schema, read_arguments, tool,
};
pub use pauses::{PauseGuard, Pauses};
pub use questions::{AskError, Questions, fits};
pub use registry::{Registry, WeakRegistry, panic_text, parse_arguments};
pub use state::{AppState, MissingState};
pub use value_schema::ValueSchema;
pub use workspace::Workspace;

/// The JSON schema of a type, in the form that models are sent.
pub fn schema_of<T: schemars::JsonSchema>() -> serde_json::Value {
    schema::of::<T>().0
}

use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{Block, Image, ToolSpec, ToolStatus, Touch, Touched};

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

    /// Whether it changes nothing outside itself. Neighbouring calls of such tools in one answer run at the same time.
    fn is_read_only(&self) -> bool {
        false
    }

    /// How many calls of it in one answer may run at the same time, beside each other and beside neighbouring calls of
    /// other tools that allow it. `None`: a call runs alone. What changes nothing outside itself has no limit.
    fn parallel_max(&self) -> Option<usize> {
        self.is_read_only().then_some(usize::MAX)
    }

    /// How long one call may take; `None`: as long as the agent allows. It wins over the agent's limit, whichever is
    /// longer.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Whether a call of it may be run again after a restart that cut it off while a person was asked: see
    /// [`FunctionTool::resumable`], which says what such a tool must keep to.
    fn is_resumable(&self) -> bool {
        false
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

/// A successful output of nothing, to which images may be added.
impl Default for ToolOutput {
    fn default() -> Self {
        Self { content: Vec::new(), status: ToolStatus::Ok, touched: Vec::new() }
    }
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

    /// Adds an image after what is there.
    ///
    /// ```
    /// use greenroom_kernel::Image;
    /// use greenroom_tools::{ToolError, ToolOutput};
    ///
    /// fn chart(png: &[u8]) -> Result<ToolOutput, ToolError> {
    ///     Ok(ToolOutput::text("rain by month").image(Image::new(png)?))
    /// }
    /// assert!(chart(b"\x89PNG\r\n\x1a\n").is_ok());
    /// assert!(chart(b"no image").is_err());
    /// ```
    #[must_use]
    pub fn image(mut self, image: Image) -> Self {
        self.content.push(Block::Image(image));
        self
    }

    /// Its text, without the images.
    pub fn content_text(&self) -> String {
        blocks_text(&self.content)
    }

    /// Declares a file that the call touched; `path` is relative to the workspace where it lies inside.
    #[must_use]
    pub fn touching(mut self, path: impl Into<String>, touch: Touch) -> Self {
        self.touched.push(Touched { path: path.into(), touch });
        self
    }
}
