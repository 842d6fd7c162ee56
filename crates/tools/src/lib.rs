//! Tools that an agent may call: the trait, the registry, and the built-in tools.
//!
//! The one key decision: **this is the only crate through which a model reaches files and processes**, so it is
//! the one to audit. File tools are confined to a workspace; every output is capped; every tool declares
//! which files it touched. What is absent: models, sessions, actors.
//!
//! | part | modules |
//! |---|---|
//! | what a tool is | `function`, `schema`, `value_schema`, `registry`, `context` with `state`, `questions` and `pauses`, `output`, `error`, `similar` |
//! | files | `builtin`, `workspace`, `rewind` |
//! | processes | `process`, `helper`, `sandbox`, `privacy` (no secrets for commands), `origin` (whose process it is) |
//! | processes of the user, not of a model | `printed` (a command that prints a key), `server_process`, `editor`, `background` |
//! | tests | `by_hand` |

#[cfg(feature = "command-tools")]
pub mod background;
#[cfg(feature = "command-tools")]
pub mod builtin;
#[cfg(all(test, feature = "command-tools"))]
mod by_hand;
mod context;
#[cfg(feature = "command-tools")]
pub mod editor;
mod error;
mod function;
#[cfg(feature = "command-tools")]
pub mod helper;
#[cfg(feature = "command-tools")]
pub mod origin;
mod output;
mod pauses;
#[cfg(feature = "command-tools")]
pub mod printed;
#[cfg(feature = "command-tools")]
pub mod privacy;
#[cfg(feature = "command-tools")]
mod process;
mod questions;
mod registry;
#[cfg(feature = "command-tools")]
pub mod rewind;
#[cfg(feature = "command-tools")]
pub mod sandbox;
mod schema;
#[cfg(feature = "command-tools")]
pub mod server_process;
mod similar;
mod state;
mod value_schema;
#[cfg(feature = "command-tools")]
mod workspace;

pub use context::{CompactionRequests, Progress, ToolContext};
pub use error::ToolsError;
pub use function::{
    FunctionTool, IntoToolOutput, ToolError, ToolFunction, arguments_schema, read_arguments, tool,
};
pub use output::lines_left_out;
pub use pauses::{PauseGuard, Pauses};
pub use questions::{AskError, Questions, fits};
pub use registry::{Registry, WeakRegistry, parse_arguments};
pub use state::{AppState, MissingState};
pub use value_schema::ValueSchema;
#[cfg(feature = "command-tools")]
pub use workspace::Workspace;

/// Components that tools may read but not change, anywhere in a path: the state of version control, through which
/// commands could be run later, and the project's settings, which apply to the agent itself.
pub const PROTECTED: [&str; 4] = [".git", ".hg", ".jj", "greenroom.yaml"];

use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{Block, Image, ToolSpec, ToolStatus, Touch, Touched};

/// The default time that a cancelled call may take to shut down.
const GRACE: Duration = Duration::from_millis(250);

/// A tool that an agent may call.
pub trait Tool: Send + Sync + 'static {
    /// Returns the name, description and parameters sent to the model.
    fn spec(&self) -> ToolSpec;

    /// Runs the tool. Failures are outputs with [`ToolStatus::Error`]: the model reads them and continues.
    ///
    /// `arguments` is any JSON value: the tool validates it. When `context.cancel` fires the call must end
    /// soon, and leave no task and no process behind; the same holds when the future is dropped.
    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput>;

    /// How long a call may take to shut down after `context.cancel` fired. After that it is dropped, and the
    /// model is told that its effect is unknown.
    fn grace(&self) -> Duration {
        GRACE
    }

    /// Whether the tool changes nothing outside itself. Consecutive calls of such tools in one answer run
    /// concurrently.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns how many calls of this tool in one answer may run concurrently with each other and with
    /// neighbouring calls of other tools that allow it. `None`: a call runs alone. Read-only tools have no
    /// limit.
    fn parallel_max(&self) -> Option<usize> {
        self.is_read_only().then_some(usize::MAX)
    }

    /// Returns the time limit of one call. `None`: the agent's limit applies. It overrides the agent's limit,
    /// even if it is longer.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Checks the arguments of a call before a person is asked to approve it. The error, a clause for the model, says what
    /// is wrong with them.
    ///
    /// # Errors
    /// The tool cannot read the arguments.
    fn check(&self, _arguments: &serde_json::Value) -> Result<(), String> {
        Ok(())
    }

    /// Returns what a call would change, for a person who is asked to approve it: lines that begin with `+`, `-` or
    /// a blank. It changes nothing itself. It is read again once the call was approved: a call whose text is another one by
    /// then does not run. `None`: there is nothing to show but the arguments.
    fn preview(&self, _arguments: &serde_json::Value) -> BoxFuture<'static, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    /// Whether its results are the user's own files, word for word. Texts in them that look like a secret are kept, or
    /// the model could not work with these files; in other results they are replaced, if the runtime does so.
    fn shows_own_files(&self) -> bool {
        false
    }

    /// Whether a call means something else, or does harm, if a word of its arguments is another one: it runs the words,
    /// searches for them, or writes them to files. Such a call does not run if a secret in its arguments was replaced.
    /// By default, this holds for tools that change the user's own files.
    fn needs_exact_arguments(&self) -> bool {
        self.shows_own_files() && !self.is_read_only()
    }

    /// Whether a call may be run again after a restart that interrupted it while a person was asked; see
    /// [`FunctionTool::resumable`] for the rules that such a tool must follow.
    fn is_resumable(&self) -> bool {
        false
    }
}

/// The output of a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// Text and images for the model.
    pub content: Vec<Block>,
    /// Whether the call succeeded, failed or was interrupted.
    pub status: ToolStatus,
    /// The files that the call touched.
    pub touched: Vec<Touched>,
}

/// A successful, empty output, to which images may be added.
impl Default for ToolOutput {
    fn default() -> Self {
        Self { content: Vec::new(), status: ToolStatus::Ok, touched: Vec::new() }
    }
}

impl ToolOutput {
    /// Returns an output with these parts.
    pub fn new(content: Vec<Block>, status: ToolStatus, touched: Vec<Touched>) -> Self {
        Self { content, status, touched }
    }

    /// Returns a successful output with one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::Text(text.into())], status: ToolStatus::Ok, touched: Vec::new() }
    }

    /// Returns a failure that the model reads.
    pub fn error(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Error, ..Self::text(text) }
    }

    /// Returns the output of a cancelled call: its effect is unknown unless `text` says otherwise.
    pub fn interrupted(text: impl Into<String>) -> Self {
        Self { status: ToolStatus::Interrupted, ..Self::text(text) }
    }

    /// Appends an image.
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

    /// Returns the text, without images.
    pub fn content_text(&self) -> String {
        blocks_text(&self.content)
    }

    /// Declares a file that the call touched; `path` is relative to the workspace if the file is inside it.
    #[must_use]
    pub fn touching(mut self, path: impl Into<String>, touch: Touch) -> Self {
        self.touched.push(Touched { path: path.into(), touch });
        self
    }
}
