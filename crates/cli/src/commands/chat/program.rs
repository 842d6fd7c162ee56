//! The program around a chat at a terminal: its connection, its flags and its configuration files.
//!
//! Invariants: the newest connection is used; work on an older one keeps that until it ends.

use std::sync::Arc;

use anyhow::Result;
use greenroom::SessionSummary;
use greenroom::futures_util::FutureExt as _;
use greenroom::futures_util::future::BoxFuture;
use greenroom::provider::Catalog;
use greenroom_chat::{OtherModel, Program, Reconnected};
use greenroom_server::Client;
use greenroom_server::operations::ClientKind;
use parking_lot::Mutex;

use crate::args::{Global, ModelArgs, ServerArgs};
use crate::config::Texts;
use crate::config::surroundings::Surroundings;
use crate::host::link::{ATTEMPTS, Link};
use crate::host::{self, Patience};
use crate::{agent, error};

/// The chat's access to this program.
pub(super) struct Around {
    global: Global,
    args: ModelArgs,
    patience: Patience,
    link: Mutex<Arc<Link>>,
    /// The last valid texts of the configuration files.
    last_valid: Mutex<Option<Texts>>,
    /// The provider that was chosen with a model.
    provider: Mutex<Option<String>>,
}

impl Around {
    pub(super) fn new(global: &Global, args: &ModelArgs, patience: Patience, link: Link) -> Self {
        let (global, args, link) = (global.clone(), args.clone(), Mutex::new(Arc::new(link)));
        Self { global, args, patience, link, last_valid: Mutex::default(), provider: Mutex::default() }
    }

    /// Returns the connection, unless work on it continues.
    pub(super) fn into_link(self) -> Option<Link> {
        Arc::into_inner(self.link.into_inner())
    }

    /// Returns the flags for this model, and the provider if its name says one: `PROVIDER/MODEL`.
    fn args_for(&self, model: &str) -> (ModelArgs, Option<String>) {
        let mut args = self.args.clone();
        args.model = Some(model.to_owned());
        let config = agent::load_config(&self.global, &Surroundings::here());
        let is_known =
            |name: &str| config.as_ref().is_ok_and(|loaded| loaded.config.providers.contains_key(name));
        let Some((provider, model)) = model.split_once('/').filter(|(name, _)| is_known(name)) else {
            return (args, None);
        };
        args.model = Some(model.to_owned());
        args.server = ServerArgs { provider: Some(provider.to_owned()), ..ServerArgs::default() };
        (args, Some(provider.to_owned()))
    }

    fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link.lock())
    }

    async fn connect(&self, session_id: &str, args: &ModelArgs) -> Result<Reconnected> {
        let last_valid = self.last_valid.lock().clone();
        let mut attempt = 1;
        loop {
            let last_valid = last_valid.as_ref();
            let link = Link::open(&self.global, args, ClientKind::Chat, &self.patience, last_valid).await?;
            match greenroom_chat::open(link.client.clone(), session_id).await {
                Ok(opened) => {
                    let warnings = link.warnings.clone();
                    *self.link.lock() = Arc::new(link);
                    return Ok(Reconnected { opened, warnings });
                }
                Err(error) if attempt < ATTEMPTS && host::is_gone_client(&error) => attempt += 1,
                Err(error) => {
                    link.end().await?;
                    return Err(error.into());
                }
            }
        }
    }
}

impl Program for Around {
    fn reconnect<'a>(
        &'a self,
        session_id: &'a str,
        model: Option<&'a str>,
    ) -> Option<BoxFuture<'a, Result<Reconnected>>> {
        let args = model.map_or_else(|| self.args.clone(), |model| self.args_for(model).0);
        let connecting = async move { self.connect(session_id, &args).await };
        self.link().is_host().then(|| connecting.boxed())
    }

    fn other_models(&self) -> Vec<OtherModel> {
        let here = Surroundings::here();
        let Ok(loaded) = agent::load_config(&self.global, &here) else { return Vec::new() };
        // Without a host, the runtime has one provider.
        if !self.link().is_host() {
            return Vec::new();
        }
        let config = loaded.config;
        let now = self.provider.lock().clone().or_else(|| self.args.server.provider.clone());
        let now = now.unwrap_or_else(|| config.provider.clone());
        let mut found = Vec::new();
        for (name, provider) in config.providers.iter().filter(|(name, _)| **name != now) {
            let has_key = provider.key_command.is_some()
                || provider.api_key_env.as_deref().is_some_and(|key| here.variable(key).is_some());
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
            let (args, provider) = self.args_for(model);
            let model = args.model.clone().unwrap_or_default();
            let connected =
                link.with_model(&self.global, &args, &model, &self.patience, last_valid.as_ref()).await?;
            *self.provider.lock() = provider;
            Ok::<_, anyhow::Error>(connected)
        };
        connecting.map(|client| client.map_err(|error| error::line(&error))).boxed()
    }

    fn new_session(&self) -> BoxFuture<'_, Result<String, String>> {
        let link = self.link();
        async move { link.new_session("chat").await.map_err(|error| error::line(&error)) }.boxed()
    }

    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<bool>> {
        let link = self.link();
        async move {
            match link.note_folder(session_id).await {
                // The input is durable anyway.
                Err(error) if host::is_gone(&error) => Ok(true),
                noted => noted,
            }
        }
        .boxed()
    }

    fn folder_of(&self, session: &SessionSummary) -> Option<String> {
        let folder = session.labels.get(agent::FOLDER)?;
        let home = greenroom_terminal::screen::variable("HOME");
        let rest = home.and_then(|home| folder.strip_prefix(home.trim_end_matches('/')).map(str::to_owned));
        Some(match rest {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("~{rest}"),
            Some(_) | None => folder.clone(),
        })
    }

    fn outlives(&self) -> bool {
        self.link().is_host()
    }

    fn at_work<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Vec<SessionSummary>> {
        let link = self.link();
        async move { link.at_work(session_id).await }.boxed()
    }

    fn other_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Option<String>> {
        let link = self.link();
        async move { link.other_folder(&self.args, session_id).await }.boxed()
    }

    fn keep_settings(&self) {
        agent::renew(&self.global, &mut self.last_valid.lock());
    }

    fn still_silent(&self) -> Option<String> {
        host::still_silent(&self.global)
    }
}
