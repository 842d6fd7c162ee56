//! An agent's instructions: a text, or a function that writes the text for each run.
//!
//! Invariants: within a run, the text is identical in every request; a function that panics refuses its run
//! and does not harm the session.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use greenroom_kernel::RunId;
use greenroom_kernel::text::panic_text;
use greenroom_tools::AppState;

use crate::agent::hooks::has_state;

/// The argument of a function that writes instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InstructionsContext {
    /// The session's id.
    pub session: Arc<str>,
    /// The session whose agent called this one as a tool.
    pub parent: Option<Arc<str>>,
    /// The session's title.
    pub title: Option<String>,
    /// The run that starts.
    pub run: RunId,
    /// The provider of the run.
    pub provider: String,
    /// The model of the run.
    pub model: String,
    pub(crate) app_state: AppState,
}

has_state!(InstructionsContext);

/// A text, or a function that writes it.
#[derive(Clone)]
pub(crate) enum Instructions {
    Text(Arc<str>),
    Function(Arc<dyn Fn(&InstructionsContext) -> String + Send + Sync>),
}

impl Default for Instructions {
    fn default() -> Self {
        Self::Text(Arc::from(""))
    }
}

impl fmt::Debug for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => text.fmt(f),
            Self::Function(_) => f.write_str("a function"),
        }
    }
}

impl Instructions {
    /// Returns the text if it does not depend on the run.
    pub(crate) fn fixed(&self) -> Option<&Arc<str>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Function(_) => None,
        }
    }

    /// Returns the text for a run.
    ///
    /// # Errors
    /// The message of the function's panic.
    pub(crate) fn render(&self, context: impl FnOnce() -> InstructionsContext) -> Result<Arc<str>, String> {
        match self {
            Self::Text(text) => Ok(Arc::clone(text)),
            Self::Function(function) => {
                let context = context();
                let written = std::panic::catch_unwind(AssertUnwindSafe(|| function(&context)));
                written.map(Arc::from).map_err(|panic| panic_text(&*panic).to_owned())
            }
        }
    }
}
