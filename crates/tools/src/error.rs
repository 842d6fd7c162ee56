//! The error type of this crate. Its texts are written for a model to read and act upon.

use std::path::PathBuf;

/// An error of the registry, of the workspace, or of a built-in tool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// Providers accept only letters, digits, `_` and `-`, at most 64 characters.
    #[error("the tool name {name:?} is not 1 to 64 letters, digits, `_` or `-`")]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// Models call a tool with an object of named arguments.
    #[error(
        "the tool `{name}` takes {found}, but models call tools with named arguments: use a struct with a field for \
         each of them"
    )]
    NotAnObject {
        /// The tool's name.
        name: String,
        /// The actual type of the parameters, with an article.
        found: &'static str,
    },
    /// The workspace's folder cannot be opened.
    #[error("cannot open the workspace {}: {source}", root.display())]
    Workspace {
        /// The folder as given.
        root: PathBuf,
        /// The error reported by the system.
        source: std::io::Error,
    },
    /// The path, or a symbolic link on it, leads outside the workspace.
    #[error("`{path}` leads outside the workspace; only files inside it can be used")]
    Outside {
        /// The path as given.
        path: String,
    },
    /// There is no file or folder at the path.
    #[error("`{path}` does not exist{}", suggestion(nearest))]
    NotFound {
        /// The path, relative to the workspace.
        path: String,
        /// Similar names that do exist, best match first.
        nearest: Vec<String>,
    },
    /// The path is of a kind that the tool cannot use.
    #[error("`{path}` is {found}, not {wanted}")]
    WrongKind {
        /// The path, relative to the workspace.
        path: String,
        /// The actual kind, with its article.
        found: &'static str,
        /// The required kind, with its article.
        wanted: &'static str,
    },
    /// Tools must not change git's state or the project's settings.
    #[error("`{path}` is read-only: `{part}` is protected")]
    Protected {
        /// The path, relative to the workspace.
        path: String,
        /// The component that is protected.
        part: String,
    },
    /// The path belongs to the program that runs the agent.
    #[error("`{path}` is not accessible to tools: it belongs, or would belong, to the program that runs you")]
    Closed {
        /// The path, relative to the workspace.
        path: String,
    },
    /// Tools that write do not follow symbolic links.
    #[error("`{path}` is, or goes through, a symbolic link; name the real path to change it")]
    Link {
        /// The path, relative to the workspace.
        path: String,
    },
    /// The call was cancelled, or its future was dropped.
    #[error("cancelled")]
    Cancelled,
    /// The arguments fit the schema but are not valid.
    #[error("{0}")]
    Refused(String),
    /// The operating system reported an error.
    #[error("`{path}`: {source}")]
    Io {
        /// The path, relative to the workspace.
        path: String,
        /// The error reported by the system.
        source: std::io::Error,
    },
}

impl ToolsError {
    /// Whether the same call may succeed when repeated unchanged. Always false: each error requires another
    /// call or another workspace.
    pub fn is_retryable(&self) -> bool {
        false
    }

    #[cfg(feature = "command-tools")]
    pub(crate) fn io(path: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.into(), source: source.into() }
    }
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean `{}`?", nearest.join("` or `")) }
}
