//! The agents of a host's clients, made from their definitions.
//!
//! Invariants: a client's key, tools and folder are only in its own agent; clients with equal definitions
//! share an agent, and clients of the same server with the same key share its queue; a definition is in
//! memory as long as its agent, and written nowhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Result;
use greenroom::futures_util::future::BoxFuture;
use greenroom::provider::{Provider, ProviderError, ReplyStream, Request, ServerOptions};
use greenroom::{Agent, SharedProvider};
use greenroom_kernel::{Failure, FailureClass};
use greenroom_server::operations::{FOLDER, Task};
use greenroom_server::{Defined, Definer, Problem, ProblemKind};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;

use crate::agent::simulated::Simulated;
use crate::agent::skills::Skills;
use crate::agent::{self, ClientSettings, Made, check_reachable, has_some, load_config_or};
use crate::args::{Global, ModelArgs, ServerArgs};
use crate::config::digest::digest;
use crate::config::surroundings::{Handed, Surroundings};
use crate::config::{Loaded, ProviderConfig, Texts};
use crate::error;

/// How many warnings are queued for a slow client.
const NEWS_MAX: usize = 16;
/// How often the files of clients are checked if none of their sessions does.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A client's definition of its agent: the `definition` of `client/hello`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    /// The client's folder and environment.
    pub(super) surroundings: Handed,
    /// The configuration file that the client named, an absolute path; without one, the user's own file and
    /// that of the folder are read.
    #[serde(default)]
    pub(super) config: Option<std::path::PathBuf>,
    /// The last valid texts of the client's own file, or of the one that it named, and of its folder's file;
    /// they are used if those files are invalid now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held: Option<Texts>,
    /// Settings from flags: `NAME=VALUE` each, as for `--set`.
    #[serde(default)]
    pub(super) settings: Vec<String>,
    /// The flags of the commands, by their names with underscores.
    pub(super) model: Box<ModelArgs>,
    /// Whether to report at once if no server listens at the address.
    #[serde(default)]
    pub(super) checks_server: bool,
}

/// Variables that do not affect what an agent may do.
const HARMLESS: [&str; 6] = ["GREENROOM_DATA_DIR", "LANG", "PATH", "TERM", "TMPDIR", "USER"];

impl Definition {
    /// Refuses relative paths, which would be relative to the host's folder.
    fn check(&self) -> Result<()> {
        let folder = ("surroundings.folder", Some(&self.surroundings.folder));
        for (name, path) in [folder, ("config", self.config.as_ref())] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err(error::usage(format!(
                    "the definition: `{name}` is {path:?}; it must be an absolute path, such as `/home/me/work`"
                )));
            }
        }
        Ok(())
    }

    /// Returns the fingerprint of the agent in the store: the same for the same folder, files, flags, server
    /// and key, whatever the model is. It is a digest, so no two definitions share one, and none can be read
    /// from it.
    ///
    /// The digested form names no field of ours, so renaming a field changes no stored fingerprint.
    pub(super) fn fingerprint(&self) -> String {
        let Self { surroundings, config, settings, model, held: _, checks_server: _ } = self;
        let ModelArgs { server, workspace, no_tools, allow_write, allow_shell, sandbox, simulate, .. } =
            &**model;
        let ModelArgs { mode, allow, ask, deny, answers, .. } = &**model;
        let ServerArgs { provider, base_url, api_key_env, is_kept: _ } = server;
        let matters = |name: &str| {
            !HARMLESS.contains(&name) && !name.starts_with("GREENROOM_HOST_") && name != "GREENROOM_MODEL"
        };
        let mut parts = serde_json::json!([
            surroundings.folder,
            surroundings.variables_that(matters),
            config,
            settings,
            [provider, base_url, api_key_env],
            workspace,
            [no_tools, allow_write, allow_shell, simulate],
        ]);
        // Without these flags the digest is that of versions without them.
        if let (Some(mode), Some(parts)) = (sandbox, parts.as_array_mut()) {
            parts.push(serde_json::json!({ "sandbox": mode }));
        }
        let has_rules = [allow, ask, deny].iter().any(|rules| !rules.is_empty());
        if let (true, Some(parts)) = (mode.is_some() || has_rules, parts.as_array_mut()) {
            parts.push(serde_json::json!({ "permissions": [mode, allow, ask, deny, answers] }));
        }
        digest(&parts.to_string())
    }
}

/// The agents in use. Clones are the same.
#[derive(Clone)]
pub(super) struct Agents(Arc<Shared>);

struct Shared {
    global: Global,
    known: Mutex<Vec<Known>>,
    lanes: Mutex<Vec<Lane>>,
}

/// An agent in use.
struct Known {
    /// The definition, without the environment and the last valid texts.
    flags: Value,
    surroundings: Surroundings,
    texts: Texts,
    agent: Weak<Agent>,
    settings: Arc<ClientSettings>,
    has_skills: bool,
    /// Whether all MCP servers were connected; otherwise the next client tries again.
    is_complete: bool,
    /// Warnings for the user, except those about the current files.
    warnings: Vec<String>,
    labels: BTreeMap<String, String>,
    news: broadcast::Sender<String>,
}

impl Known {
    /// Whether a new agent would be the same: some edits apply only to new ones.
    fn is_as_new(&self, surroundings: &Surroundings, model: &ModelArgs, loaded: &Loaded) -> bool {
        self.settings.look();
        self.settings.are_as(loaded, model, surroundings)
            && self.skills(surroundings, model, loaded).as_ref().is_some_and(has_some) == self.has_skills
    }

    fn skills(&self, surroundings: &Surroundings, model: &ModelArgs, loaded: &Loaded) -> Option<Skills> {
        let root = self.labels.get(FOLDER).map(Path::new).filter(|_| !model.no_tools);
        agent::skills(&loaded.config, model, root, surroundings)
    }
}

/// A server in use.
struct Lane {
    options: ServerOptions,
    limits: ProviderConfig,
    provider: SharedProvider,
    users: Vec<Weak<Agent>>,
}

/// Values with the lifetime of the agent.
struct Kept {
    /// The simulated model, if there is one.
    _simulated: Option<Simulated>,
    /// The task that checks the files.
    looking: tokio::task::AbortHandle,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

impl Agents {
    /// Creates the agents of a host with this store.
    pub(super) fn new(global: &Global) -> Self {
        Self(Arc::new(Shared { global: global.clone(), known: Mutex::default(), lanes: Mutex::default() }))
    }

    async fn made(&self, definition: Value) -> Result<Defined> {
        let flags = {
            let mut flags = definition.clone();
            if let Some(flags) = flags.as_object_mut() {
                flags.remove("surroundings");
                flags.remove("held");
            }
            flags
        };
        let definition: Definition = serde_json::from_value(definition)
            .map_err(|error| error::usage(format!("the definition: {error}")))?;
        definition.check()?;
        let fingerprint = definition.fingerprint();
        let Definition { surroundings, config, held, settings, model, checks_server } = definition;
        let surroundings = Surroundings::of(surroundings);
        let global = Global { config, settings, ..self.0.global.clone() };
        let loaded = load_config_or(&global, &surroundings, held.as_ref())?;
        if let Some(defined) = self.known(&flags, &surroundings, &model, &loaded) {
            return Ok(defined);
        }
        let made = Made::new(&global, &model, &surroundings, held.as_ref()).await?;
        let labels: BTreeMap<String, String> =
            [(FOLDER.to_owned(), made.folder.display().to_string())].into();
        if checks_server {
            check_reachable(&made.provider.options().base_url, &surroundings).await?;
        }
        let (news, heard) = broadcast::channel(NEWS_MAX);
        let settings = Arc::new(ClientSettings::new(&made.settings, news.clone()));
        let (source, asked) = (Arc::clone(&settings), Arc::clone(&settings));
        let looking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                asked.look();
            }
        });
        let kept = Kept { _simulated: made.simulated, looking: looking.abort_handle() };
        let provider = || Arc::clone(&made.provider) as Arc<dyn Provider>;
        let agent = self.on_lane(made.provider.options(), &made.provider_config, provider, |provider| {
            let agent = made.agent.own_provider(provider).fingerprint(fingerprint);
            agent.live_settings(move || source.change()).state(kept)
        });
        let known = Known {
            flags,
            surroundings,
            texts: loaded.texts(),
            agent: Arc::downgrade(&agent),
            settings,
            has_skills: made.has_skills,
            is_complete: made.is_complete,
            warnings: made.warnings.clone(),
            labels: labels.clone(),
            news,
        };
        self.0.known.lock().push(known);
        let warnings = [made.file_warnings, made.warnings].concat();
        Ok(Defined { agent, labels, warnings, news: Some(heard) })
    }

    /// Returns the agent with this definition, if there is one that equals a new one.
    fn known(
        &self,
        flags: &Value,
        surroundings: &Surroundings,
        model: &ModelArgs,
        loaded: &Loaded,
    ) -> Option<Defined> {
        let texts = loaded.texts();
        let mut known = self.0.known.lock();
        known.retain(|known| known.agent.strong_count() > 0);
        let same = known.iter().find(|known| {
            known.is_complete
                && known.flags == *flags
                && known.texts == texts
                && known.surroundings.are_like(surroundings)
                && known.is_as_new(surroundings, model, loaded)
        })?;
        let agent = same.agent.upgrade()?;
        let of_skills = same.skills(surroundings, model, loaded).iter().flat_map(Skills::warnings).collect();
        let of_files = [loaded.warnings.clone(), of_skills, same.settings.project_warnings()].concat();
        let (labels, warnings) = (same.labels.clone(), [of_files, same.warnings.clone()].concat());
        Some(Defined { agent, labels, warnings, news: Some(same.news.subscribe()) })
    }

    /// Makes an agent with the queue of this server and key. The lock is held until the agent uses the queue:
    /// a queue without users is dropped, and a concurrent client would get another one.
    fn on_lane(
        &self,
        options: &ServerOptions,
        limits: &ProviderConfig,
        provider: impl FnOnce() -> Arc<dyn Provider>,
        agent: impl FnOnce(&SharedProvider) -> Agent,
    ) -> Arc<Agent> {
        let mut lanes = self.0.lanes.lock();
        for lane in lanes.iter_mut() {
            lane.users.retain(|user| user.strong_count() > 0);
        }
        lanes.retain(|lane| !lane.users.is_empty());
        let known = lanes.iter().position(|lane| lane.options == *options && lane.limits == *limits);
        let at = known.unwrap_or_else(|| {
            let provider = SharedProvider::new(provider())
                .in_flight_max(limits.in_flight_max)
                .tokens_per_minute(limits.tokens_per_minute.unwrap_or(0))
                .silence_max(limits.silence_max());
            let (options, limits) = (options.clone(), limits.clone());
            lanes.push(Lane { options, limits, provider, users: Vec::new() });
            lanes.len() - 1
        });
        let lane = &mut lanes[at];
        let agent = Arc::new(agent(&lane.provider));
        lane.users.push(Arc::downgrade(&agent));
        agent
    }
}

impl Definer for Agents {
    fn define(&self, definition: Value) -> Task<Result<Defined, Problem>> {
        let this = self.clone();
        Box::pin(async move { this.made(definition).await.map_err(|error| problem(&error)) })
    }
}

/// Returns a failure for a client, which reports it and exits with the same code.
fn problem(error: &anyhow::Error) -> Problem {
    if let Some(error) = error.chain().find_map(|cause| cause.downcast_ref::<greenroom::Error>()) {
        return Problem::from(error);
    }
    let kind =
        if error::exit_code(error) == error::USAGE { ProblemKind::Invalid } else { ProblemKind::Other };
    Problem::new(kind, error::line(error))
}

/// The provider of a runtime whose agents all have their own.
pub(crate) struct Nobody;

impl Provider for Nobody {
    fn name(&self) -> &'static str {
        "none"
    }

    fn stream(&self, _: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let failure =
            Failure::new(FailureClass::Other, "this session has no agent: open it with `greenroom chat`");
        Box::pin(async { Err(ProviderError::new(failure, "")) })
    }
}

#[cfg(test)]
mod tests;
