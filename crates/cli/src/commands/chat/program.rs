//! The program around a chat at a terminal: its connection, its flags and its configuration files.
//!
//! Invariants: the newest connection is used; work on an older one keeps that until it ends.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use greenroom::futures_util::FutureExt as _;
use greenroom::futures_util::future::BoxFuture;
use greenroom::internal::Catalog;
use greenroom::permissions::Mode;
use greenroom::{ReasoningEffort, SessionSummary};
use greenroom_chat::{Chosen, Opened, Origin, OtherModel, Program, PromptPart, Reconnected};
use greenroom_server::operations::{ClientKind, FOLDER, GetSession, SetPermissions, StartSession};
use greenroom_server::{Client, ClientError};
use parking_lot::Mutex;

use crate::agent::choice;
use crate::agent::kept::{self, Kept};
use crate::args::{Global, ModelArgs, ServerArgs};
use crate::commands::sessions::shown_folder;
use crate::config::surroundings::Surroundings;
use crate::config::{Texts, kept_keys};
use crate::error::usage;
use crate::host::ATTEMPTS;
use crate::host::link::{Link, is_one_shot};
use crate::host::{self, Patience};
use crate::{agent, error};

/// The chat's access to this program.
pub(super) struct Around {
    /// The flags of the agent of the present session.
    flags: Mutex<(Global, ModelArgs)>,
    patience: Patience,
    link: Mutex<Arc<Link>>,
    /// The connection with the agent of the present session, whose model may be another one than the link's.
    client: Mutex<Client>,
    /// The last valid texts of the configuration files.
    last_valid: Mutex<Option<Texts>>,
}

impl Around {
    pub(super) fn new(global: &Global, args: &ModelArgs, patience: Patience, link: Link) -> Self {
        let (flags, client) = (Mutex::new((global.clone(), args.clone())), Mutex::new(link.client.clone()));
        Self { flags, patience, link: Mutex::new(Arc::new(link)), client, last_valid: Mutex::default() }
    }

    /// Returns the connection, unless work on it continues.
    pub(super) fn into_link(self) -> Option<Link> {
        Arc::into_inner(self.link.into_inner())
    }

    fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link.lock())
    }

    fn client(&self) -> Client {
        self.client.lock().clone()
    }

    /// Uses this connection from now on.
    fn turn_to(&self, link: Link) {
        *self.client.lock() = link.client.clone();
        *self.link.lock() = Arc::new(link);
    }

    fn flags(&self) -> (Global, ModelArgs) {
        self.flags.lock().clone()
    }

    async fn connect(&self, session_id: &str, global: &Global, args: &ModelArgs) -> Result<Reconnected> {
        let kept = Kept::read(global, session_id);
        let mode = kept.and_then(|kept| kept.chosen_mode(args));
        let last_valid = self.last_valid.lock().clone();
        let mut attempt = 1;
        loop {
            let last_valid = last_valid.as_ref();
            let args = args.without_effort();
            let link = Link::open(global, &args, ClientKind::Chat, &self.patience, last_valid).await?;
            match open_with(&link.client, session_id, mode).await {
                Ok(opened) => {
                    let warnings = link.with.warnings.clone();
                    self.turn_to(link);
                    return Ok(Reconnected { opened, warnings });
                }
                Err(error) if attempt < ATTEMPTS && error.is_gone() => attempt += 1,
                Err(error) => {
                    link.end().await?;
                    return Err(error.into());
                }
            }
        }
    }

    /// Reads the name of a model, which may begin with that of a provider of the configuration, such as
    /// `anthropic/claude-sonnet-5`: then that provider answers from now on.
    fn named<'a>(&self, global: &Global, args: &mut ModelArgs, model: &'a str) -> Result<&'a str> {
        let Some((provider, name)) = model.split_once('/') else { return Ok(model) };
        let loaded = agent::load_config(global, &Surroundings::here())?;
        // Many servers have models with a stroke in their names.
        if !loaded.own.providers.contains_key(provider) || name.is_empty() {
            return Ok(model);
        }
        if !self.link().is_host() {
            return Err(usage(
                "the provider can be changed only with a host; exit, and start again with --provider",
            ));
        }
        args.simulate = false;
        args.server = ServerArgs { provider: Some(provider.to_owned()), ..ServerArgs::default() };
        args.window = None;
        Ok(name)
    }

    /// Returns a connection with the agent of another session.
    async fn connect_for(&self, session_id: &str) -> Result<Client> {
        let (global_now, now) = self.flags();
        let Some(kept) = Kept::read(&global_now, session_id) else { return Ok(self.client()) };
        // What a session keeps is that of the present one.
        let mut global = Global { config: None, ..global_now.clone() };
        global.settings.retain(|setting| !kept::is_kept(setting));
        let mut args = ModelArgs { answers: now.answers, ..ModelArgs::bare() };
        if now.is_workspace_given {
            args.workspace.clone_from(&now.workspace);
        }
        args.is_workspace_given = now.is_workspace_given;
        kept.complete(&mut global, &mut args, true);
        if !args.is_workspace_given && !args.no_tools {
            args.workspace = self.tools_folder(session_id).await.unwrap_or(args.workspace);
        }
        let mode = kept.chosen_mode(&args);
        let has_same_files = global.config == global_now.config;
        let is_same = has_same_files && global.settings == global_now.settings && is_same_agent(&args, &now)?;
        let client = if is_same || !self.link().is_host() {
            self.flags.lock().1.effort = args.effort;
            self.client()
        } else {
            let last_valid = self.last_valid.lock().clone().filter(|_| has_same_files);
            let agent = args.without_effort();
            let link =
                Link::open(&global, &agent, ClientKind::Chat, &self.patience, last_valid.as_ref()).await?;
            let client = link.client.clone();
            self.turn_to(link);
            *self.last_valid.lock() = last_valid;
            *self.flags.lock() = (global, args);
            client
        };
        set_mode(&client, session_id, mode).await?;
        Ok(client)
    }

    /// Returns a message if the tools of a session work in another folder than this chat.
    async fn folder_differs(link: &Link, args: &ModelArgs, session_id: &str) -> Option<String> {
        if args.workspace.is_absolute() && !args.is_workspace_given {
            let folder = shown_folder(&args.workspace.display().to_string());
            return Some(format!(
                "the tools of session {session_id} work in {folder}; ! and @ stay in this folder"
            ));
        }
        link.other_folder(args, session_id).await
    }

    /// Returns the folder of a session's tools, if it is another one than this chat's.
    async fn tools_folder(&self, session_id: &str) -> Option<PathBuf> {
        let found = self.link().client.call(GetSession { session_id: session_id.to_owned() }).await.ok()?;
        let folder = PathBuf::from(found.session.labels.get(FOLDER)?);
        let here = std::env::current_dir().and_then(|here| here.canonicalize()).ok()?;
        (folder.is_dir() && folder != here).then_some(folder)
    }

    /// Begins to keep what a session of this chat is resumed with, with the choices that were kept for a session: for
    /// itself, or for the one that it copies.
    fn begin(&self, session_id: &str, choices_of: &str) -> Result<()> {
        let (global, args) = self.flags();
        let kept = Kept::of(&global, &args)?;
        match Kept::read(&global, choices_of) {
            Some(before) => kept.with_choices_of(&before).write(&global, session_id),
            None => kept.write(&global, session_id),
        }
    }
}

/// Whether flags make the same agent.
fn is_same_agent(one: &ModelArgs, other: &ModelArgs) -> Result<bool> {
    Ok(serde_json::to_value(one.without_effort())? == serde_json::to_value(other.without_effort())?)
}

/// Opens a session, in the mode that the user chose for it.
pub(super) async fn open_with(
    client: &Client,
    session_id: &str,
    mode: Option<Mode>,
) -> Result<Opened, ClientError> {
    set_mode(client, session_id, mode).await?;
    greenroom_chat::open(client.clone(), session_id).await
}

async fn set_mode(client: &Client, session_id: &str, mode: Option<Mode>) -> Result<(), ClientError> {
    if mode.is_some() {
        client.call(StartSession { session_id: session_id.to_owned() }).await?;
        client
            .call(SetPermissions { session_id: session_id.to_owned(), mode, ..SetPermissions::default() })
            .await?;
    }
    Ok(())
}

impl Program for Around {
    fn reconnect<'a>(
        &'a self,
        session_id: &'a str,
        model: Option<&'a str>,
    ) -> Option<BoxFuture<'a, Result<Reconnected>>> {
        // They have the model that was chosen here.
        let (global, args) = self.flags();
        let _ = model;
        let connecting = async move { self.connect(session_id, &global, &args).await };
        self.link().is_host().then(|| connecting.boxed())
    }

    fn server(&self) -> Option<String> {
        let (global, args) = self.flags();
        choice::server_shown(&global, &args)
    }

    fn other_models(&self) -> Vec<OtherModel> {
        let here = Surroundings::here();
        let (global, args) = self.flags();
        let Ok(loaded) = agent::load_config(&global, &here) else { return Vec::new() };
        // Without a host, the runtime has one provider.
        if !self.link().is_host() {
            return Vec::new();
        }
        // `greenroom login` may have been used meanwhile.
        kept_keys::read_again();
        let now = choice::server_name(&loaded, &args, &here);
        let config = loaded.config;
        let mut found = Vec::new();
        for (name, provider) in config.providers.iter().filter(|(name, _)| Some(*name) != now.as_ref()) {
            let has_key = choice::has_key(&config, name, &here);
            let Some(url) = provider.base_url.as_ref().filter(|_| has_key) else { continue };
            let catalog = provider.catalog_name(name, url);
            let models = Catalog::bundled().models().iter().filter(|model| model.provider == catalog);
            found.extend(models.filter(|model| model.tools).map(|model| OtherModel {
                name: format!("{name}/{}", model.model),
                window: model.context_tokens,
            }));
        }
        found
    }

    fn with_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Client, String>> {
        let (link, last_valid) = (self.link(), self.last_valid.lock().clone());
        let connecting = async move {
            let (global, mut args) = self.flags();
            let model = self.named(&global, &mut args, model)?;
            let agent = args.without_effort();
            let client = link.with_model(&global, &agent, model, &self.patience, last_valid.as_ref()).await?;
            args.model = Some(model.to_owned());
            self.flags.lock().1 = args;
            *self.client.lock() = client.clone();
            Ok(client)
        };
        connecting.map(|client: Result<Client>| client.map_err(|error| error::line(&error))).boxed()
    }

    fn new_session(&self) -> BoxFuture<'_, Result<String, String>> {
        let link = self.link();
        async move { link.new_session("chat").await.map_err(|error| error::line(&error)) }.boxed()
    }

    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        let link = self.link();
        async move {
            match link.note_folder(session_id, Some(false)).await {
                // The input is durable anyway.
                Err(error) if host::is_gone(&error) => Ok(true),
                noted => noted,
            }
        }
        .boxed()
    }

    fn folder_of(&self, session: &SessionSummary) -> Option<String> {
        let folder = session.labels.get(FOLDER)?;
        let home = greenroom_terminal::screen::variable("HOME");
        let rest = home.and_then(|home| folder.strip_prefix(home.trim_end_matches('/')).map(str::to_owned));
        Some(match rest {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("~{rest}"),
            Some(_) | None => folder.clone(),
        })
    }

    fn is_conversation(&self, session: &SessionSummary) -> bool {
        !is_one_shot(&session.labels)
    }

    fn outlives(&self) -> bool {
        self.link().is_host()
    }

    fn at_work<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Vec<SessionSummary>> {
        let link = self.link();
        async move { link.at_work(session_id).await }.boxed()
    }

    fn differs<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Option<String>> {
        let (link, (global, args)) = (self.link(), self.flags());
        async move {
            let lacking = Kept::read(&global, session_id).and_then(|kept| kept.lacking(&global));
            let folder = Self::folder_differs(&link, &args, session_id).await;
            let told: Vec<String> = [folder, lacking].into_iter().flatten().collect();
            (!told.is_empty()).then(|| told.join("\n"))
        }
        .boxed()
    }

    fn prompt_parts(&self) -> Vec<PromptPart> {
        let (global, args) = self.flags();
        agent::prompt::parts(&global, &args, &self.link().with.folder)
    }

    fn effort(&self) -> Option<ReasoningEffort> {
        self.flags.lock().1.effort
    }

    fn keep(&self, session_id: &str, chosen: Chosen) {
        if let Chosen::Effort(effort) = chosen {
            self.flags.lock().1.effort = effort;
        }
        let global = self.flags().0;
        let kept = match chosen {
            // The server may be another one, too.
            Chosen::Model(_) => self.begin(session_id, session_id),
            Chosen::Effort(effort) => kept::change(&global, session_id, kept::Change::Effort(effort)),
            Chosen::Mode(mode) => kept::change(&global, session_id, kept::Change::Mode(mode)),
        };
        // Without it the session is resumed as before.
        if let Err(error) = kept {
            tracing::warn!("the choice was not stored: {error:#}");
        }
    }

    fn session<'a>(
        &'a self,
        session_id: &'a str,
        origin: Origin<'a>,
    ) -> BoxFuture<'a, Result<Client, String>> {
        let connecting = async move {
            match origin {
                Origin::Stored => return self.connect_for(session_id).await,
                Origin::New => self.begin(session_id, session_id)?,
                Origin::CopyOf(original) => {
                    self.link().check_free(session_id).await?;
                    self.begin(session_id, original)?;
                }
            }
            Ok(self.client())
        };
        connecting.map(|client: Result<Client>| client.map_err(|error| error::line(&error))).boxed()
    }

    fn keep_settings(&self) {
        agent::renew(&self.flags().0, &mut self.last_valid.lock());
    }

    fn still_silent(&self) -> Option<String> {
        host::still_silent(&self.flags().0)
    }
}
