//! How commands that work in a session use a runtime: through the socket of a host, or of a runtime in this process.
//!
//! Invariants: requests and results are the same in both cases; a runtime in this process ends with the
//! command.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use greenroom::{Agent, Order, SessionSummary, State, Status};
use greenroom_server::Client;
use greenroom_server::operations::{
    ClientKind, FOLDER, GetSession, GetState, ListSessions, ONE_SHOT, SessionFound, SetLabel,
};
use greenroom_terminal::{Screen, time};

use super::connection::{self, Connection, resolve_known};
use super::own::Setup;
use super::{Patience, Reached, Terms, Who, stored};
use crate::agent::simulated::Simulated;
use crate::agent::{self, Stay, ask_user, warn};
use crate::args::{Global, ModelArgs};
use crate::config::Texts;
use crate::config::surroundings::Surroundings;
use crate::error::{self, CliError, usage};
use crate::host;

/// A connection to a runtime, with this command's agent.
pub(crate) type Link = Connection<AgentHere>;

/// The agent of a [`Link`].
pub(crate) struct AgentHere {
    /// The user's working folder.
    pub(crate) folder: PathBuf,
    /// Warnings of the host for the user, a line each.
    pub(crate) warnings: Vec<String>,
    /// The agent, if the runtime is in this process, and its simulated model, which ends with this value.
    own: Option<(Agent, Option<Simulated>)>,
}

impl Link {
    /// Opens a connection for a command of this kind: to a host, which is started if there is none; or to a
    /// runtime in this process if the user wants no host.
    pub(crate) async fn open(
        global: &Global,
        args: &ModelArgs,
        kind: ClientKind,
        patience: &Patience,
        last_valid: Option<&Texts>,
    ) -> Result<Self> {
        let config = agent::load_config_or(global, &Surroundings::here(), last_valid)?.config;
        let (checks_server, patience) = (kind == ClientKind::Run, Some(patience.clone()));
        let who = Who { kind, agent: Some(args), checks_server, patience, last_valid };
        // If peers cannot be identified, this command works in its own process, without a host.
        let is_started = config.host.start && host::check_possible().is_ok();
        let reached = match (global.no_host, is_started) {
            (true, _) => None,
            (false, false) => host::reach_or_free(global, &who).await?,
            (false, true) => Some(host::reach_or_start(global, &who, Terms::of(&config)).await?),
        };
        match reached {
            Some(reached) => Ok(Self::to_host(args, reached)),
            None => Self::in_process(global, args, kind).await,
        }
    }

    /// Like [`Self::open`], with a first request that may be repeated: a host that ends in the meantime is
    /// replaced.
    pub(crate) async fn open_and<T>(
        global: &Global,
        args: &ModelArgs,
        kind: ClientKind,
        patience: &Patience,
        last_valid: Option<&Texts>,
        first: impl AsyncFn(&Self) -> Result<T>,
    ) -> Result<(Self, T)> {
        connection::open_and(async || Self::open(global, args, kind, patience, last_valid).await, first).await
    }

    /// Like [`Self::open_and`], for a session that the user named. No host is started, because a short
    /// command needs none.
    pub(crate) async fn open_once_for(
        global: &Global,
        args: &ModelArgs,
        id: &str,
        patience: &Patience,
    ) -> Result<(Self, String)> {
        let open = async || Self::open_for_once(global, args, patience).await;
        connection::open_and(open, async |link: &Self| resolve_known(&link.client, id).await).await
    }

    async fn open_for_once(global: &Global, args: &ModelArgs, patience: &Patience) -> Result<Self> {
        let patience = Some(patience.clone());
        let who =
            Who { kind: ClientKind::Run, agent: Some(args), checks_server: true, patience, last_valid: None };
        let reached = if global.no_host { None } else { host::reach_or_free(global, &who).await? };
        match reached {
            Some(reached) => Ok(Self::to_host(args, reached)),
            None => Self::in_process(global, args, ClientKind::Run).await,
        }
    }

    fn to_host(args: &ModelArgs, reached: Reached) -> Self {
        let Reached { client, warnings } = reached;
        let folder = if args.no_tools { PathBuf::from(".") } else { args.workspace.clone() };
        let folder = folder.canonicalize().unwrap_or(folder);
        Self { client, own: None, with: AgentHere { folder, warnings, own: None } }
    }

    async fn in_process(global: &Global, args: &ModelArgs, kind: ClientKind) -> Result<Self> {
        let stay = if kind == ClientKind::Run { Stay::UntilReply } else { Stay::ForMore };
        let mut setup = Setup::new(global, args, stay).await?;
        setup.agent = setup.agent.fingerprint(host::fingerprint(global, args)?);
        if kind == ClientKind::Run {
            setup.check_reachable().await?;
        }
        Ok(Self::to_own(setup))
    }

    /// Opens a connection to a runtime in this process that stores nothing.
    pub(crate) async fn unstored(global: &Global, args: &ModelArgs) -> Result<Self> {
        let setup = Setup::unstored(global, args).await?;
        setup.check_reachable().await?;
        Ok(Self::to_own(setup))
    }

    fn to_own(setup: Setup) -> Self {
        let Setup { runtime, agent, simulated, folder, .. } = setup;
        let client = Client::in_process(&runtime, agent.clone());
        // The warnings were printed already.
        let with = AgentHere { folder, warnings: Vec::new(), own: Some((agent, simulated)) };
        Self { client, own: Some(runtime), with }
    }

    /// Prints the warnings to standard error.
    pub(crate) fn say_warnings(&self, global: &Global) -> Result<()> {
        self.with.warnings.iter().try_for_each(|warning| warn(global, warning))
    }

    /// Returns a message about the tools' folder if the session was started in another one.
    pub(crate) async fn other_folder(&self, args: &ModelArgs, session_id: &str) -> Option<String> {
        if args.no_tools {
            return None;
        }
        // Errors are reported by the next request.
        let known = self.client.call(GetSession { session_id: session_id.to_owned() }).await.ok()?;
        let here = self.with.folder.display().to_string();
        let begun = known.session.labels.get(FOLDER).filter(|begun| **begun != here)?;
        Some(format!("session {session_id} was started in {begun}; its tools work in {here} now"))
    }

    /// Prints [`Self::other_folder`] to standard error.
    pub(crate) async fn say_folder(&self, global: &Global, args: &ModelArgs, session_id: &str) -> Result<()> {
        if let Some(text) = self.other_folder(args, session_id).await {
            Screen::stderr(global.color).line(format!("greenroom: {text}"))?;
        }
        Ok(())
    }

    /// Returns the session to continue: the named one, the newest of this folder, or a new one.
    pub(crate) async fn session_id(&self, named: Option<&str>, goes_on: bool, kind: &str) -> Result<String> {
        match named {
            Some(id) => Ok(id.to_owned()),
            None if goes_on => newest_here(&self.client, &self.with.folder).await,
            None => self.new_session(kind).await,
        }
    }

    /// Returns a name that no session has yet, such as `run-20260102-030405`.
    pub(crate) async fn new_session(&self, kind: &str) -> Result<String> {
        match self.is_host() {
            // Others may start a session in the same second.
            true => new_name(&self.client, &format!("{}-{}", stamped(kind), std::process::id())).await,
            false => new_session(&self.client, kind).await,
        }
    }

    /// Checks that no session has this name, so that a copy can have it.
    ///
    /// # Errors
    /// [`NotEmpty`](greenroom::Error::NotEmpty) if there is one.
    pub(crate) async fn check_free(&self, session_id: &str) -> Result<()> {
        match self.client.find(GetSession { session_id: session_id.to_owned() }).await? {
            Some(_) => Err(greenroom::Error::NotEmpty { session: session_id.to_owned() }.into()),
            None => Ok(()),
        }
    }

    /// Notes the folder in which a session was started, for searches, and whether it is a one-shot of `run` or a
    /// conversation; `None` leaves that as it is. Returns false if the session has no messages, and so no log.
    pub(crate) async fn note_folder(&self, session_id: &str, is_one_shot: Option<bool>) -> Result<bool> {
        let found = self.client.find(GetSession { session_id: session_id.to_owned() }).await?;
        let Some(SessionFound { session: known, .. }) = found else { return Ok(false) };
        if !known.labels.contains_key(FOLDER) {
            let label = SetLabel {
                session_id: session_id.to_owned(),
                name: FOLDER.to_owned(),
                value: Some(self.with.folder.display().to_string()),
            };
            // A path that does not fit a label is not searched.
            let _ = self.client.call(label).await;
        }
        if let Some(is_one_shot) = is_one_shot.filter(|is| known.labels.contains_key(ONE_SHOT) != *is) {
            let (session_id, name) = (session_id.to_owned(), ONE_SHOT.to_owned());
            let label = SetLabel { session_id, name, value: is_one_shot.then(|| "run".to_owned()) };
            // Without the label it is listed with the conversations.
            let _ = self.client.call(label).await;
        }
        Ok(true)
    }

    /// Returns the other sessions that were started in the folder and work right now.
    pub(crate) async fn at_work(&self, session_id: &str) -> Vec<SessionSummary> {
        let labels = [(FOLDER.to_owned(), self.with.folder.display().to_string())].into();
        let list = ListSessions { labels, unfinished: true, working: true, ..ListSessions::default() };
        // Nothing depends on it, so an error is not worth a message.
        let listed = self.client.call(list).await.map(|page| page.sessions).unwrap_or_default();
        let mut found = Vec::new();
        for session in listed.into_iter().filter(|session| session.has_open_run && session.id != session_id) {
            let state = self.client.call(GetState { session_id: session.id.clone() }).await;
            if state.is_ok_and(|state| state.status == Status::Working) {
                found.push(session);
            }
        }
        found
    }

    /// Opens a connection with the same agent and another model.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(crate) async fn with_model(
        &self,
        global: &Global,
        args: &ModelArgs,
        model: &str,
        patience: &Patience,
        last_valid: Option<&Texts>,
    ) -> Result<Client> {
        if let (Some(runtime), Some((agent, _))) = (self.runtime(), &self.with.own) {
            return Ok(Client::in_process(runtime, agent.clone().model(model)));
        }
        let args = ModelArgs { model: Some(model.to_owned()), ..args.clone() };
        let patience = Some(patience.clone());
        let who =
            Who { kind: ClientKind::Chat, agent: Some(&args), checks_server: false, patience, last_valid };
        let reached = host::reach(global, &who).await?;
        Ok(reached.ok_or_else(|| usage("the host has ended"))?.client)
    }

    /// Like [`Self::check_not_waiting`], for a chat: it can answer the questions of its own tool, and
    /// continues with the answers.
    pub(crate) async fn check_not_waiting_for_others(&self, session_id: &str) -> Result<()> {
        match self.client.call(GetState { session_id: session_id.to_owned() }).await {
            Ok(state) if ask_user::is_all_that_waits(&state) => Ok(()),
            Ok(_) | Err(_) => self.check_not_waiting(session_id).await,
        }
    }

    /// Checks, before a session is opened, that it does not wait for an answer. The tool that asked belongs
    /// to another program, because none of ours asks: with our agent the call could not continue, and would
    /// lose the answer.
    pub(crate) async fn check_not_waiting(&self, session_id: &str) -> Result<()> {
        let session = session_id.to_owned();
        match self.client.find(GetState { session_id: session.clone() }).await? {
            Some(state @ State { status: Status::Waiting, questions: 0, questions_below: 0, .. }) => {
                Err(answered(&session, ask_user::is_all_that_waits(&state)).into())
            }
            Some(State { status: Status::Waiting, .. }) => Err(greenroom::Error::Waiting { session }.into()),
            Some(_) | None => Ok(()),
        }
    }
}

/// Whether the session with these labels is a one-shot of `run`.
pub(crate) fn is_one_shot(labels: &BTreeMap<String, String>) -> bool {
    labels.contains_key(ONE_SHOT)
}

/// Returns a name that no session has yet, such as `run-20260102-030405`, for the only process that starts sessions.
pub(crate) async fn new_session(client: &Client, kind: &str) -> Result<String> {
    new_name(client, &stamped(kind)).await
}

fn stamped(kind: &str) -> String {
    format!("{kind}-{}", time::stamp(time::now_ms()))
}

/// Returns this name, or the first one with a number behind it that no session has.
async fn new_name(client: &Client, name: &str) -> Result<String> {
    for number in 1_u32.. {
        let id = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        if client.find(GetSession { session_id: id.clone() }).await?.is_none() {
            return Ok(id);
        }
    }
    Ok(name.to_owned())
}

/// Returns the newest session that was started in this folder.
///
/// # Errors
/// There is none.
async fn newest_here(client: &Client, folder: &Path) -> Result<String> {
    let here = folder.display().to_string();
    let list = ListSessions {
        limit: Some(1),
        order: Some(Order::Newest),
        labels: [(FOLDER.to_owned(), here.clone())].into(),
        roots: true,
        ..ListSessions::default()
    };
    let found = client.call(list).await?.sessions.into_iter().next();
    found.map(|session| session.id).ok_or_else(|| stored::none_begun(&here))
}

/// Returns the error that a session's run continues when the program opens it whose tool has asked a person;
/// with `by_chat`, the tool is that of a chat.
fn answered(session: &str, by_chat: bool) -> CliError {
    let text = if by_chat {
        format!(
            "the run of session {session} was answered, and continues in a chat at a terminal: `greenroom resume \
            {session}`"
        )
    } else {
        format!(
            "the run of session {session} waits for the program whose tool asked a question; that program continues \
            the run when it opens the session, and here the answer would be lost"
        )
    };
    CliError::new(error::WAITING, text)
}
