//! `greenroom acp`: sessions for an editor, over the Agent Client Protocol on standard input and output.
//!
//! Invariants: each session works in the folder that the editor names, with the configuration of that folder; runs end
//! with the editor; secrets of the editor's MCP servers are passed as variables, never as settings.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom::futures_util::FutureExt as _;
use greenroom::futures_util::future::BoxFuture;
use greenroom::{Order, SessionSummary};
use greenroom_acp::{Connected, Problem, Program, Server, ServerKind, Wanted};
use greenroom_chat::{Chosen, Skill, commands};
use greenroom_server::operations::{
    ClientKind, DeleteSession, FOLDER, GetSession, ListSessions, SessionPage, StoreLosses,
};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_terminal::{Interrupts, Screen};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::agent::choice::{self, Choice};
use crate::agent::kept::{self, Kept};
use crate::args::{AcpArgs, Answers, Global, LoginArgs, ModelArgs};
use crate::commands::login;
use crate::config::kept_keys;
use crate::config::redact::is_secret;
use crate::config::surroundings::{Surroundings, within};
use crate::config::trusted::FolderTrust;
use crate::error::usage;
use crate::host::link::{Link, is_one_shot};
use crate::host::{Changes, Patience, source};
use crate::{agent, error};

#[cfg(test)]
mod tests;

/// How many sessions a page has.
const PAGE: usize = 50;
/// The longest name of an MCP server.
const NAME_MAX: usize = 32;

/// Serves the editor until it closes standard input, or the command is interrupted.
pub(crate) async fn run(global: &Global, args: &AcpArgs) -> Result<u8> {
    if args.login {
        return login::run(global, &LoginArgs { provider: None, forget: false }).await;
    }
    if global.no_host {
        return Err(usage("`greenroom acp` serves an editor through the host; leave out --no-host"));
    }
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        let text = "greenroom: an editor runs this command, and sends its requests to standard input; \
                    docs/guide/editors.md says how to set it up";
        Screen::stderr(global.color).line(text)?;
    }
    let interrupts = Interrupts::new()?;
    let mut global = global.clone();
    // Relative paths of flags are relative to the folder of this command, not to those of the sessions.
    global.data_dir = Some(std::path::absolute(agent::data_dir(&global)?)?);
    if let Some(config) = &mut global.config {
        *config = std::path::absolute(&*config)?;
    }
    let patience = Patience::to_the_end(&global);
    let args = ModelArgs { answers: Answers::Person, ..args.model.clone() };
    let program = Arc::new(Around(Arc::new(Inner {
        global,
        args,
        patience,
        links: Mutex::default(),
        named: Mutex::default(),
    })));
    let served = greenroom_acp::serve(program, tokio::io::stdin(), tokio::io::stdout());
    tokio::select! {
        biased;
        () = interrupts.next() => Ok(error::INTERRUPTED),
        served = served => served.map(|()| 0).map_err(|reason| anyhow::anyhow!("{reason}")),
    }
}

/// This program around the protocol. Clones are the same.
#[derive(Clone)]
struct Around(Arc<Inner>);

struct Inner {
    global: Global,
    args: ModelArgs,
    patience: Patience,
    /// The connections of the open sessions.
    links: Mutex<HashMap<String, Arc<Link>>>,
    /// The names that were given to new sessions.
    named: Mutex<HashSet<String>>,
}

impl Inner {
    /// Returns this name, or the first one with a number behind it that this process has not given yet.
    fn name(&self, name: String) -> String {
        let mut named = self.named.lock();
        let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
        let mut names = std::iter::once(name.clone()).chain(numbered);
        names.find(|name| named.insert(name.clone())).unwrap_or(name)
    }

    fn link(&self, session_id: &str) -> Option<Arc<Link>> {
        self.links.lock().get(session_id).cloned()
    }

    /// Connects with the agent of a session, in its folder.
    async fn open(
        &self,
        session_id: Option<&str>,
        model: Option<&str>,
        global: &mut Global,
        args: &mut ModelArgs,
    ) -> Result<Connected, Problem> {
        let mut kept = None;
        if let Some(id) = session_id {
            let found = source::look(global, async |source| source.exact(id).await).await.map_err(other)?;
            // A session without messages has no log yet.
            if found.flatten().is_none() && self.link(id).is_none() {
                return Err(Problem::NoSession(format!("there is no session {id}")));
            }
            kept = Kept::read(global, id);
        }
        if let Some(kept) = &kept {
            kept.complete(global, args, true);
        }
        if let Some(model) = model {
            args.model = Some(model.to_owned());
        }
        // A key may have been stored since this process began.
        kept_keys::read_again();
        let mut chosen = None;
        match choice::complete(global, args).await.map_err(other)? {
            Choice::NoKey => {
                return Err(Problem::NoKey("there is no API key; `greenroom login` stores one".to_owned()));
            }
            // The editor offers the others.
            Choice::OneOf { address, models } => {
                args.model = models.into_iter().next();
                let model = args.model.as_deref().unwrap_or_default();
                chosen = Some(format!(
                    "{address} lists several models; {model} is used until another one is chosen"
                ));
            }
            Choice::Made | Choice::NotListed { .. } => {}
        }
        let without_effort = args.without_effort();
        let opening =
            Link::open_and(global, &without_effort, ClientKind::Run, &self.patience, None, async |link| {
                let id = match session_id {
                    Some(id) => id.to_owned(),
                    // A session without messages has no log, by which others would know that its name is taken.
                    None => self.name(link.new_session("acp").await?),
                };
                link.check_not_waiting_for_others(&id).await?;
                Ok(id)
            });
        let (link, id) = opening.await.map_err(other)?;
        let mut warnings = link.with.warnings.clone();
        warnings.extend(chosen);
        warnings.extend(kept.as_ref().and_then(|kept| kept.lacking(global)));
        let mode = kept.as_ref().and_then(|kept| kept.chosen_mode(args));
        let is_open = self.link(&id).is_some();
        let keeping = Kept::of(global, args).and_then(|new| {
            let new = match &kept {
                // What was chosen since the session was opened takes precedence over the flags.
                Some(kept) if is_open => new.with_choices_of(kept),
                Some(_) | None => new.with_mode(mode),
            };
            new.write(global, &id)
        });
        if let Err(error) = keeping {
            warnings.push(format!("the session is not resumed with these flags: {error:#}"));
        }
        let here = Surroundings::here();
        let config = agent::load_config(global, &here).map_err(other)?.config;
        let skills = agent::skills(&config, args, Some(&link.with.folder), &here);
        let skills = skills.map(|skills| skills.listed()).unwrap_or_default().into_iter();
        let skills: Vec<Skill> = skills.map(|(name, description)| Skill { name, description }).collect();
        let trust = FolderTrust::of(&config, &link.with.folder, &here);
        let project = Some(&*link.with.folder).filter(|_| trust.is_given() && !args.no_tools);
        let commands = commands::custom(agent::own_folder().as_deref(), project, &skills);
        let client = link.client.clone();
        self.links.lock().insert(id.clone(), Arc::new(link));
        Ok(Connected { session_id: id, client, mode, effort: args.effort, commands, warnings })
    }
}

/// Performs work whose future stays on one thread.
fn apart<'a, T, F>(work: impl FnOnce() -> F + Send + 'static) -> BoxFuture<'a, T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let runtime = tokio::runtime::Handle::current();
    let working = tokio::task::spawn_blocking(move || runtime.block_on(work()));
    async move {
        match working.await {
            Ok(done) => done,
            Err(failed) => std::panic::resume_unwind(failed.into_panic()),
        }
    }
    .boxed()
}

impl Program for Around {
    fn connect<'a>(&'a self, wanted: Wanted<'a>) -> BoxFuture<'a, Result<Connected, Problem>> {
        let Wanted { folder, session_id, model, servers } = wanted;
        let (around, folder) = (Arc::clone(&self.0), folder.to_owned());
        let (session_id, model) = (session_id.map(str::to_owned), model.map(str::to_owned));
        let (settings, variables) = of_servers(servers);
        apart(async move || {
            let (mut global, mut args) = (around.global.clone(), around.args.clone());
            (args.workspace, args.is_workspace_given) = (folder.clone(), true);
            let opening = async {
                let known =
                    agent::load_config(&global, &Surroundings::here()).map_err(other)?.config.mcp_servers;
                // The user's own server of this name takes precedence.
                let new = settings.into_iter().filter(|(name, _)| !known.contains_key(name));
                global.settings.extend(new.map(|(_, setting)| setting));
                around.open(session_id.as_deref(), model.as_deref(), &mut global, &mut args).await
            };
            within(&folder, variables, opening).await
        })
    }

    fn sessions<'a>(
        &'a self,
        folder: Option<&'a Path>,
        after: Option<String>,
    ) -> BoxFuture<'a, Result<SessionPage, Problem>> {
        if let Some(folder) = folder.filter(|folder| !folder.is_absolute()) {
            let wrong = Problem::Invalid(format!("cwd {}: must be an absolute path", folder.display()));
            return async { Err(wrong) }.boxed();
        }
        let folder = folder.map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned()));
        let labels = folder.map(|folder| (FOLDER.to_owned(), folder.display().to_string()));
        let list = ListSessions {
            limit: Some(PAGE),
            order: Some(Order::Newest),
            labels: labels.into_iter().collect(),
            roots: true,
            after,
            ..ListSessions::default()
        };
        let around = Arc::clone(&self.0);
        apart(async move || {
            let listed =
                source::look(&around.global, async |source| Ok(source.client.call(list.clone()).await?));
            let none = || SessionPage {
                sessions: Vec::new(),
                next: None,
                counts: None,
                losses: StoreLosses::default(),
            };
            let mut page = match listed.await {
                Ok(page) => page.unwrap_or_else(none),
                Err(error) if is_invalid(&error) => return Err(Problem::Invalid(error::line(&error))),
                Err(error) => return Err(other(error)),
            };
            page.sessions.retain(|session| !is_one_shot(&session.labels));
            Ok(page)
        })
    }

    fn close(&self, session_id: &str) {
        self.0.links.lock().remove(session_id);
    }

    fn delete<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, Result<(), Problem>> {
        let (around, session_id) = (Arc::clone(&self.0), session_id.to_owned());
        apart(async move || {
            let was_open = around.links.lock().remove(&session_id).is_some();
            // An editor names a session by its whole id.
            let named = GetSession { session_id: session_id.clone() };
            let is_stored = async |client: &Client| Ok(client.find(named.clone()).await?.is_some());
            let opened = Changes::open_and(&around.global, is_stored).await;
            let (changes, is_stored) = opened.map_err(other)?;
            let delete = DeleteSession { session_id: session_id.clone() };
            let deleted = match is_stored {
                true => changes.client.call(delete).await.map(drop).map_err(|error| other(error.into())),
                // It had no messages yet.
                false if was_open => Ok(()),
                false => Err(Problem::NoSession(format!("there is no session {session_id}"))),
            };
            changes.end().await.map_err(other)?;
            deleted?;
            kept::forget(&around.global, &session_id);
            Ok(())
        })
    }

    fn folder_of(&self, session: &SessionSummary) -> PathBuf {
        session.labels.get(FOLDER).map_or_else(|| PathBuf::from("/"), PathBuf::from)
    }

    fn note_folder<'a>(&'a self, session_id: &'a str) -> BoxFuture<'a, ()> {
        let noting = async move {
            if let Some(link) = self.0.link(session_id) {
                // Without the label the session is not found by its folder.
                let _ = link.note_folder(session_id, Some(false)).await;
            }
        };
        noting.boxed()
    }

    fn keep(&self, session_id: &str, chosen: Chosen) {
        let change = match chosen {
            // The connection with the model has kept it.
            Chosen::Model(_) => return,
            Chosen::Effort(effort) => kept::Change::Effort(effort),
            Chosen::Mode(mode) => kept::Change::Mode(mode),
        };
        // Without it the session is resumed as before.
        if let Err(error) = kept::change(&self.0.global, session_id, change) {
            tracing::warn!("the choice was not stored: {error:#}");
        }
    }
}

/// Returns the settings for MCP servers of the editor, with their names, and the variables that they refer to.
fn of_servers(servers: &[Server]) -> (Vec<(String, String)>, BTreeMap<String, String>) {
    let (mut settings, mut variables) = (Vec::new(), BTreeMap::new());
    let mut referred = |values: &[(String, String)], are_headers: bool| -> BTreeMap<String, String> {
        let mut refer = |(name, value): &(String, String)| {
            let plain_name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            // What is no secret is not redacted, either. A value in this form would be read as a variable's name.
            if !are_headers && !is_secret(&plain_name, value) && !value.starts_with("env:") {
                return (name.clone(), value.clone());
            }
            let variable = format!("ACP_{}_{plain_name}", variables.len() + 1);
            variables.insert(variable.clone(), value.clone());
            (name.clone(), format!("env:{variable}"))
        };
        values.iter().map(&mut refer).collect()
    };
    for server in servers {
        let value = match &server.kind {
            ServerKind::Program { command, args, env } => {
                json!({ "command": command, "args": args, "env": referred(env, false) })
            }
            ServerKind::Service { url, headers } => json!({ "url": url, "headers": referred(headers, true) }),
        };
        let name = free_name(&server_name(&server.name), &settings);
        let parts = value.as_object().into_iter().flatten();
        let set =
            |(key, value): (&String, &Value)| (name.clone(), format!("mcp_servers.{name}.{key}={value}"));
        settings.extend(parts.map(set));
    }
    (settings, variables)
}

/// Returns an editor's name of an MCP server as a name of a setting: letters, digits and hyphens.
fn server_name(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let name: String = name.trim_matches('-').chars().take(NAME_MAX).collect();
    if name.is_empty() { "editor".to_owned() } else { name }
}

/// Returns this name, or, if another server has it, the name with the first free number behind it: an editor's names may
/// differ only in characters that are replaced.
fn free_name(name: &str, settings: &[(String, String)]) -> String {
    let numbered = (2_u64..).map(|number| {
        let end = format!("-{number}");
        let kept: String = name.chars().take(NAME_MAX - end.len()).collect();
        kept + &end
    });
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| settings.iter().all(|(known, _)| known != name)).unwrap_or_default()
}

/// Whether the runtime could not understand a request.
fn is_invalid(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Parameters(_)) => true,
        Some(refused) => refused.kind() == Some(ProblemKind::Invalid),
        None => false,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn other(error: anyhow::Error) -> Problem {
    Problem::Other(error::line(&error))
}
