//! What the chat needs of the program that it is a part of: a folder, settings, and another connection where one ends.
//!
//! Invariants: the chat knows sessions through the server's client alone; nothing here names a command, a flag, a file of
//! the configuration or a host's socket.

use std::path::PathBuf;

use greenroom::CompactionSettings;
use greenroom::futures_util::future::BoxFuture;
use greenroom_server::Client;
use greenroom_terminal::ColorChoice;
use greenroom_tools::Workspace;

use crate::Opened;

/// The program around the chat.
pub trait Program: Send + Sync + 'static {
    /// Connects again where the connection has ended, and opens this session. A model that was chosen in the chat is named.
    /// `None`: the runtime was in this process, so there is no other one.
    fn reconnect<'a>(
        &'a self,
        session_id: &'a str,
        model: Option<&'a str>,
    ) -> Option<BoxFuture<'a, anyhow::Result<Reconnected>>>;

    /// A connection whose agent answers with another model.
    fn with_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Client, String>>;

    /// A name that no session has yet.
    fn new_session(&self) -> BoxFuture<'_, Result<String, String>>;

    /// Notes the folder in which a session was begun. `false`: nothing was said in it, so it has no log.
    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, anyhow::Result<bool>>;

    /// What the user is told of a session that was begun in another folder.
    fn other_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Option<String>>;

    /// Keeps the configuration files as they are now, if they can be used: they hold where they cannot be used later.
    fn keep_settings(&self);

    /// What the user is told while a host that does not answer is waited for.
    fn still_silent(&self) -> Option<String>;
}

/// A connection in the place of one that has ended.
#[derive(Debug)]
pub struct Reconnected {
    /// The session, open there.
    pub opened: Opened,
    /// What the user should know of that side, a line each.
    pub warnings: Vec<String>,
}

/// Where the chat takes place.
#[derive(Debug)]
pub struct Place {
    /// The folder that the user works in.
    pub folder: PathBuf,
    /// Where the history of prompts is kept.
    pub data_dir: PathBuf,
    /// What the user's files are reached through.
    pub workspace: Workspace,
    /// Whether the user's own commands may run.
    pub may_run: bool,
    /// The user's configuration folder, where custom commands may be.
    pub own_folder: Option<PathBuf>,
    /// Where compactions begin.
    pub compaction: CompactionSettings,
    /// Whether to use colours.
    pub color: ColorChoice,
}

/// Whether the host answers, where that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// Whether it does not answer.
    pub is_silent: bool,
    /// What the user is told.
    pub text: String,
}
