//! What can go wrong in this crate: one enum, whose texts are written for a model to read and act upon.

use std::path::PathBuf;

/// An error of the registry, of the workspace, or of a built-in tool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolsError {
    /// Providers accept only letters, digits, `_` and `-`, at most 64 of them.
    #[error("the tool name {name:?} is not 1 to 64 letters, digits, `_` or `-`")]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// Models call a tool with named arguments, in an object.
    #[error(
        "the tool `{name}` takes {found}, and models call a tool with named arguments: take a struct with a field for \
         each of them"
    )]
    NotAnObject {
        /// The tool's name.
        name: String,
        /// What its parameters are instead, with an article.
        found: &'static str,
    },
    /// The workspace's folder cannot be opened.
    #[error("cannot open the workspace {}: {source}", root.display())]
    Workspace {
        /// The folder as given.
        root: PathBuf,
        /// What the system said.
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
        /// What is there instead and looks alike, best first.
        nearest: Vec<String>,
    },
    /// It is of another kind than the tool can use.
    #[error("`{path}` is {found}, not {wanted}")]
    WrongKind {
        /// The path, relative to the workspace.
        path: String,
        /// What it is, with its article.
        found: &'static str,
        /// What it should be, with its article.
        wanted: &'static str,
    },
    /// Git's state and the project's settings are not for tools to change.
    #[error("`{path}` is read-only: `{part}` is protected")]
    Protected {
        /// The path, relative to the workspace.
        path: String,
        /// The component that is protected.
        part: String,
    },
    /// It belongs to the program that runs the agent.
    #[error("`{path}` is closed to tools: it is, or would be, a part of the program that runs you")]
    Closed {
        /// The path, relative to the workspace.
        path: String,
    },
    /// A tool that writes follows no symbolic links.
    #[error("`{path}` is, or goes through, a symbolic link; name the real path to change it")]
    Link {
        /// The path, relative to the workspace.
        path: String,
    },
    /// The call was cancelled, or its future was dropped.
    #[error("cancelled")]
    Cancelled,
    /// The arguments fit the schema but make no sense.
    #[error("{0}")]
    Refused(String),
    /// The operating system refused.
    #[error("`{path}`: {source}")]
    Io {
        /// The path, relative to the workspace.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ToolsError {
    /// The same call may succeed when made again unchanged. Nothing here is of that kind: each error needs
    /// another call, or another workspace.
    pub fn is_retryable(&self) -> bool {
        false
    }

    pub(crate) fn io(path: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::Io { path: path.into(), source: source.into() }
    }
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() { String::new() } else { format!("; did you mean `{}`?", nearest.join("` or `")) }
}
