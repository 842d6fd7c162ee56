//! The interface of the surrounding program: a folder, settings, and another connection when one ends.
//!
//! Invariants: the chat reaches sessions only through the server's client; nothing here names a command, a
//! flag, a configuration file or a host's socket.

use std::path::PathBuf;

use greenroom::futures_util::future::BoxFuture;
use greenroom::permissions::Mode;
use greenroom::{ReasoningEffort, SessionSummary};
use greenroom_server::Client;
use greenroom_terminal::ColorChoice;
use greenroom_terminal::theme::Theme;
use greenroom_tools::Workspace;

use crate::Opened;
use crate::notice::Notify;

/// The program that contains the chat.
pub trait Program: Send + Sync + 'static {
    /// Connects again after the connection has ended, and opens this session. `model` is the model chosen in
    /// the chat. Returns `None` if the runtime was in this process, so there is no other one.
    fn reconnect<'a>(
        &'a self,
        session_id: &'a str,
        model: Option<&'a str>,
    ) -> Option<BoxFuture<'a, anyhow::Result<Reconnected>>>;

    /// Returns the server that answers, for the user: its name and address.
    fn server(&self) -> Option<String>;

    /// Returns models of other providers that the user has keys for. Nobody is asked for them.
    fn other_models(&self) -> Vec<OtherModel>;

    /// Returns a connection whose agent uses another model: one of the same provider, or one of
    /// [`Self::other_models`].
    fn with_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Client, String>>;

    /// Returns a name that no session has yet.
    fn new_session(&self) -> BoxFuture<'_, Result<String, String>>;

    /// Notes the folder of a session. Returns false if the session has no log, because it has no messages.
    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, anyhow::Result<bool>>;

    /// Returns the folder in which a session was started, as it is shown to the user.
    fn folder_of(&self, session: &SessionSummary) -> Option<String>;

    /// Whether a session is a conversation, and no one-shot of a script.
    fn is_conversation(&self, session: &SessionSummary) -> bool;

    /// Whether work goes on when the connection has ended.
    fn outlives(&self) -> bool;

    /// Returns other sessions that work in the folder right now.
    fn at_work<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Vec<SessionSummary>>;

    /// Returns a message for the user if a session that the chat switches to works in another folder, or lacks settings
    /// that it had.
    fn differs<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Option<String>>;

    /// Returns the known parts of the system prompt: the project's instructions, and the list of skills.
    fn prompt_parts(&self) -> Vec<PromptPart>;

    /// Returns the effort of the present session; `None` for the default.
    fn effort(&self) -> Option<ReasoningEffort>;

    /// Keeps what the user chose for the present session, so that it is resumed with it.
    fn keep(&self, session_id: &str, chosen: Chosen);

    /// Returns a connection with the agent of a session; the chat continues there. From now on the session is resumed
    /// with this agent.
    ///
    /// # Errors
    /// The connection failed; a copy has the name of a session that exists.
    fn session<'a>(
        &'a self,
        session_id: &'a str,
        origin: Origin<'a>,
    ) -> BoxFuture<'a, Result<Client, String>>;

    /// Keeps the current configuration files if they are valid. They stay in effect if they become invalid
    /// later.
    fn keep_settings(&self);

    /// Returns a message for the user while a host does not respond.
    fn still_silent(&self) -> Option<String>;
}

/// Where a session that the chat turns to comes from, which decides about its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// It exists, and has the agent that it is resumed with.
    Stored,
    /// It begins now, with the agent of this chat.
    New,
    /// It will be a copy of this session, and has the agent of this chat with what the user chose for the original.
    CopyOf(&'a str),
}

/// What the user chose for a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Chosen {
    /// The model.
    Model(String),
    /// The effort; `None` for the default.
    Effort(Option<ReasoningEffort>),
    /// The mode of its permissions.
    Mode(Mode),
}

/// A connection that replaces an ended one.
#[derive(Debug)]
pub struct Reconnected {
    /// The session, opened through it.
    pub opened: Opened,
    /// Warnings for the user, a line each.
    pub warnings: Vec<String>,
}

/// The chat's environment.
#[derive(Debug)]
pub struct Environment {
    /// The user's working folder.
    pub folder: PathBuf,
    /// The folder of the prompt history.
    pub data_dir: PathBuf,
    /// The access to the user's files.
    pub workspace: Workspace,
    /// The user's configuration folder, which may contain custom commands.
    pub own_folder: Option<PathBuf>,
    /// Whether the user trusts the project, so that its custom commands are offered.
    pub trusts_project: bool,
    /// Whether to use colours.
    pub color: ColorChoice,
    /// Which colours to use.
    pub theme: Theme,
    /// The text of a notification for a user who is not looking at the chat.
    pub notify: Notify,
    /// The files of the project whose instructions the model gets.
    pub instructions: Vec<String>,
    /// What commands of the model can change and reach, in a sentence; `None` if nothing restricts them.
    pub commands: Option<String>,
    /// The skills that the model is offered.
    pub skills: Vec<Skill>,
}

/// A model of another provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherModel {
    /// The name for [`Program::with_model`]: `PROVIDER/MODEL`.
    pub name: String,
    /// The context window in tokens, if it is known.
    pub window: Option<u64>,
}

/// A part of the system prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptPart {
    /// Its name.
    pub name: String,
    /// How many files or skills it is about.
    pub count: Option<u64>,
    /// Its estimated size in tokens.
    pub tokens: u64,
}

/// A skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
}

/// A change of the host's responsiveness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// Whether the host is silent.
    pub is_silent: bool,
    /// The message for the user.
    pub text: String,
}
