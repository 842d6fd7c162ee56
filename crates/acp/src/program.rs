//! The interface of the surrounding program: connections, stored sessions, and what is kept for a session.
//!
//! Invariants: nothing here names a command, a flag or a configuration file.

use std::path::{Path, PathBuf};

use greenroom::futures_util::future::BoxFuture;
use greenroom::permissions::Mode;
use greenroom::{ReasoningEffort, SessionSummary};
use greenroom_chat::Chosen;
use greenroom_chat::commands::Custom;
use greenroom_server::Client;
use greenroom_server::operations::SessionPage;

/// The program that contains the agent.
pub trait Program: Send + Sync + 'static {
    /// Connects to the runtime with the agent of a session.
    fn connect<'a>(&'a self, wanted: Wanted<'a>) -> BoxFuture<'a, Result<Connected, Problem>>;

    /// Returns a page of the stored conversations, newest first: of those that were started in this folder, or of all.
    fn sessions<'a>(
        &'a self,
        folder: Option<&'a Path>,
        after: Option<String>,
    ) -> BoxFuture<'a, Result<SessionPage, Problem>>;

    /// Closes the connection of an open session.
    fn close(&self, session_id: &str);

    /// Deletes a stored session.
    fn delete<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<(), Problem>>;

    /// Returns the folder in which a session was started.
    fn folder_of(&self, session: &SessionSummary) -> PathBuf;

    /// Notes the folder of a session that has begun.
    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, ()>;

    /// Keeps what the user chose for a session, so that it is resumed with it.
    fn keep(&self, session_id: &str, chosen: Chosen);
}

/// The session that a connection is for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The folder of the tools: an absolute path.
    pub folder: &'a Path,
    /// The session's id; `None` for a new session.
    pub session_id: Option<&'a str>,
    /// The model that was chosen at the editor.
    pub model: Option<&'a str>,
    /// The MCP servers of the editor.
    pub servers: &'a [Server],
}

/// A connection with the agent of a session.
#[derive(Debug)]
pub struct Connected {
    /// The session's id.
    pub session_id: String,
    /// The connection.
    pub client: Client,
    /// The mode that the user chose for the session before.
    pub mode: Option<Mode>,
    /// The effort with which the session is resumed.
    pub effort: Option<ReasoningEffort>,
    /// The user's and the project's commands, and those for skills.
    pub commands: Vec<Custom>,
    /// Warnings for the user, a line each.
    pub warnings: Vec<String>,
}

/// An MCP server of the editor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Its name at the editor.
    pub name: String,
    /// How it is reached.
    pub kind: ServerKind,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ServerKind {
    /// A program.
    Program { command: PathBuf, args: Vec<String>, env: Vec<(String, String)> },
    /// A service.
    Service { url: String, headers: Vec<(String, String)> },
}

/// Why the program refused something, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// There is no key for the provider.
    NoKey(String),
    /// There is no such session.
    NoSession(String),
    /// The request cannot be understood.
    Invalid(String),
    /// Anything else.
    Other(String),
}
