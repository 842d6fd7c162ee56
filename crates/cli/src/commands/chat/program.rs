//! The program around a chat at a terminal: its connection, its flags and its configuration files.
//!
//! Invariants: the newest connection is used; work on an older one keeps that until it ends.

use std::sync::Arc;

use anyhow::Result;
use greenroom::SessionSummary;
use greenroom::futures_util::FutureExt as _;
use greenroom::futures_util::future::BoxFuture;
use greenroom_chat::{Program, Reconnected};
use greenroom_server::Client;
use greenroom_server::operations::ClientKind;
use parking_lot::Mutex;

use crate::args::{Global, ModelArgs};
use crate::config::Texts;
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
}

impl Around {
    pub(super) fn new(global: &Global, args: &ModelArgs, patience: Patience, link: Link) -> Self {
        let (global, args, link) = (global.clone(), args.clone(), Mutex::new(Arc::new(link)));
        Self { global, args, patience, link, last_valid: Mutex::default() }
    }

    /// Returns the connection, unless work on it continues.
    pub(super) fn into_link(self) -> Option<Link> {
        Arc::into_inner(self.link.into_inner())
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
        let mut args = self.args.clone();
        args.model = model.map(str::to_owned).or(args.model);
        let connecting = async move { self.connect(session_id, &args).await };
        self.link().is_host().then(|| connecting.boxed())
    }

    fn with_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Client, String>> {
        let (link, last_valid) = (self.link(), self.last_valid.lock().clone());
        let connecting = async move {
            link.with_model(&self.global, &self.args, model, &self.patience, last_valid.as_ref()).await
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
