//! An agent made from flags, configuration and environment: for this process, or for a host's client.
//!
//! Invariants: nothing is opened that holds a lock; warnings for the user are returned, and the caller prints
//! them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use greenroom::Agent;
use greenroom::provider::HttpProvider;
use greenroom_simulator::Pace;
use greenroom_tools::builtin::bash::{self, Containment, Helper};
use greenroom_tools::privacy::Hidden;
use greenroom_tools::sandbox::{Sandbox, SandboxMode};
use greenroom_tools::{Workspace, builtin};

use super::ask_user::ask_user;
use super::compaction_hook;
use super::mcp;
use super::permissions::{Offered, granted};
use super::prompt::SystemPrompt;
use super::server::{Server, check_cost};
use super::settings::Settings;
use super::simulated::{MODEL, Simulated};
use super::skills::Skills;
use super::{closed, data_dir, folder_of, load_config_or, named_model, own_skills, workspace};
use crate::args::{Answers, Global, ModelArgs};
use crate::config::surroundings::Surroundings;
use crate::config::trusted::FolderTrust;
use crate::config::{Config, LimitsConfig, LiveConfig, ProviderConfig, RetentionConfig, ServeConfig, Texts};
use crate::error::usage;

/// The default window of the simulated model, in tokens.
pub(crate) const SIMULATED_WINDOW: u64 = 24_000;

/// Whether other processes can read this one's secrets.
static HIDDEN: OnceLock<Hidden> = OnceLock::new();

/// Notes whether other processes can read this one's secrets, for later when it runs commands.
pub(crate) fn keep_in_mind(hidden: Hidden) {
    let _ = HIDDEN.set(hidden);
}

/// An agent with its parts.
pub(crate) struct Made {
    /// The agent, without its settings from the configuration, which are added when it is used.
    pub(crate) agent: Agent,
    /// The configuration, and its overrides.
    pub(crate) settings: Arc<Settings>,
    /// The server that is asked.
    pub(crate) provider: Arc<HttpProvider>,
    /// Its limits.
    pub(crate) provider_config: ProviderConfig,
    /// The limits for all sessions together.
    pub(crate) limits: LimitsConfig,
    /// The configuration of `serve`.
    pub(crate) serve: ServeConfig,
    /// Which sessions `serve` keeps.
    pub(crate) retention: RetentionConfig,
    /// The simulated model, if there is one; it ends with this value.
    pub(crate) simulated: Option<Simulated>,
    /// The user's working folder.
    pub(crate) folder: PathBuf,
    /// Whether the model has a tool that reads skills.
    pub(crate) has_skills: bool,
    /// Whether all MCP servers are connected.
    pub(crate) is_complete: bool,
    /// Warnings for the user, except those about the configuration files, a line each.
    pub(crate) warnings: Vec<String>,
    /// Warnings for the user about the current configuration files, a line each.
    pub(crate) file_warnings: Vec<String>,
}

impl Made {
    /// Makes the agent that `args` request in this environment.
    ///
    /// If the configuration files are invalid now, their last valid texts, `last_valid`, are used.
    pub(crate) async fn new(
        global: &Global,
        args: &ModelArgs,
        surroundings: &Surroundings,
        last_valid: Option<&Texts>,
    ) -> Result<Self> {
        let loaded = load_config_or(global, surroundings, last_valid)?;
        let mut warnings = Vec::new();
        let config = &loaded.config;
        let tools = match args.no_tools {
            true => None,
            false => Some(workspace(global, &surroundings.path(&args.workspace), surroundings)?),
        };
        let named = named_model(args, surroundings);
        let asked = named.clone().unwrap_or_else(|| config.model.clone());
        // A project's file does not choose whom the conversation goes to.
        let own_model = named.as_deref().unwrap_or(&loaded.own.model);
        let server = Server::chosen(&loaded, &args.server, own_model, !args.simulate, surroundings)?;
        let window = args.window.or_else(|| config.window_of(&asked));
        let simulated = if args.simulate {
            let pace = Pace { chunks: 12, first_ms: 80, between_ms: 15 };
            Some(Simulated::start(window.unwrap_or(SIMULATED_WINDOW), 8, pace).await?)
        } else {
            None
        };
        let provider = match &simulated {
            Some(simulated) => simulated.provider()?,
            None => {
                warnings.extend(check_cost(&loaded, &server, args, named.as_deref())?);
                server.provider(&args.server, !args.keyless, &data_dir(global)?)?
            }
        };
        let own_model = if simulated.is_some() { MODEL } else { config.model.as_str() };
        let model = named.as_deref().unwrap_or(own_model);
        if args.window == Some(0) {
            return Err(usage("--window must be at least 1 token"));
        }
        let flags = args.settings();
        flags.check().map_err(|error| usage(error.to_string()))?;
        let root = tools.as_ref().map(|workspace| workspace.root().to_owned());
        let trust = root.as_deref().map(|root| (root, FolderTrust::of(config, root, surroundings)));
        let skills = skills(config, args, root.as_deref(), surroundings);
        let of_skills = skills.iter().flat_map(Skills::warnings).collect();
        let skills = skills.filter(has_some);
        let has_skills = skills.is_some();
        let own_folder = folder_of(surroundings);
        let granted = root
            .as_deref()
            .map(|root| granted(args, &loaded, root, own_folder.as_deref(), surroundings))
            .transpose()?;
        let offered = granted.as_ref().map_or(Offered::Reading, |granted| granted.offered);
        let servers = match root.as_deref().zip(granted.as_ref()) {
            Some((root, granted)) => {
                let servers = mcp::connect(config, root, args.answers, granted, surroundings).await;
                let tools = servers.tools(args.answers, granted);
                Some((servers, tools))
            }
            None => None,
        };
        let said = servers.as_ref().map(|(servers, tools)| servers.instructions(tools)).unwrap_or_default();
        let prompt =
            SystemPrompt::new(trust, args, skills.clone(), offered, surroundings)?.with_servers(said);
        let prompt = Arc::new(prompt);
        let file_warnings = [loaded.warnings.clone(), of_skills, prompt.warnings(config)].concat();
        let (mut agent, mut is_complete) = (Agent::new(model), true);
        if let Some((workspace, granted)) = tools.zip(granted) {
            let rules = granted.permissions.clone();
            let workspace = workspace.passing_over(move |path| rules.hides(path));
            let tools =
                registry(workspace, offered, global, args, config, surroundings, &mut warnings).await?;
            agent = agent.tools(&tools).permissions(granted.permissions);
            warnings.extend(granted.warning);
        }
        if let Some((servers, tools)) = servers {
            warnings.extend(servers.warnings.iter().cloned());
            is_complete = servers.is_complete;
            agent = agent.tools(&tools).state(servers);
        }
        if let Some(skills) = skills {
            agent = agent.add_tool(skills.tool());
        }
        if args.answers == Answers::Person {
            // A chat begins with the window and its source.
            agent = agent.window_is_shown();
        }
        if args.answers == Answers::Person && !args.no_tools {
            agent = agent.add_tool(ask_user());
        }
        if config.model_may_compact && !args.no_tools {
            agent = agent.model_may_compact();
        }
        agent = compaction_hook::add(agent, &config.hooks, surroundings.for_own_commands());
        let settings = Arc::new(Settings {
            config: LiveConfig::new(global.config.as_deref(), &loaded),
            model: model.to_owned(),
            window: args.window,
            simulated_window: simulated.is_some().then_some(SIMULATED_WINDOW),
            flags,
            prompt,
        });
        let folder = root.unwrap_or_else(|| surroundings.folder());
        let Config { serve, limits, retention, .. } = loaded.config;
        Ok(Self {
            agent,
            settings,
            provider,
            provider_config: server.settings,
            limits,
            serve,
            retention,
            simulated,
            folder,
            has_skills,
            is_complete,
            warnings,
            file_warnings,
        })
    }
}

/// Whether there is a skill. Without one at the start, the agent has no tool that reads them.
pub(crate) fn has_some(skills: &Skills) -> bool {
    !skills.offer().is_empty()
}

/// Returns the skills for an agent in this folder, if they are enabled.
pub(crate) fn skills(
    config: &Config,
    args: &ModelArgs,
    root: Option<&Path>,
    surroundings: &Surroundings,
) -> Option<Skills> {
    let is_wanted = !args.no_tools && config.skills;
    let trusted = |root| (root, FolderTrust::of(config, root, surroundings));
    is_wanted.then(|| Skills::new(own_skills(surroundings).as_deref(), root.map(trusted)))
}

async fn registry(
    workspace: Workspace,
    offered: Offered,
    global: &Global,
    args: &ModelArgs,
    config: &Config,
    surroundings: &Surroundings,
    warnings: &mut Vec<String>,
) -> Result<greenroom_tools::Registry> {
    Ok(match offered {
        Offered::All => {
            let closed = commands_closed(global, surroundings)?;
            let sandbox = config.sandbox.sandbox(args.sandbox, workspace.root(), closed, surroundings);
            builtin::files_and_shell(workspace, shell(sandbox, surroundings, warnings).await?)
        }
        Offered::Files => builtin::files(workspace),
        Offered::Reading => builtin::read_only(workspace),
    })
}

/// Returns our own files and sockets, which no command may reach.
fn commands_closed(global: &Global, surroundings: &Surroundings) -> Result<Vec<PathBuf>> {
    let mut closed = closed(global, surroundings)?;
    // The socket of a host may be elsewhere if the store's path is long.
    if let Ok(elsewhere) = std::fs::read_link(data_dir(global)?.join("host.sock")) {
        closed.push(elsewhere);
    }
    Ok(closed)
}

/// Returns the options for running commands. Missing protections of the user are warnings.
async fn shell(
    sandbox: Sandbox,
    surroundings: &Surroundings,
    warnings: &mut Vec<String>,
) -> Result<bash::Options> {
    if let Some(Hidden::NotAll(reason)) = HIDDEN.get() {
        warnings.push(format!(
            "commands can read the environment variables of greenroom, including keys: {reason}"
        ));
    }
    let helper = Helper::this_program();
    if let Err(error) = &helper {
        warnings.push(format!(
            "commands have all of your rights, and keep running if greenroom is killed: {error}"
        ));
    }
    let (checked, has_helper) = (sandbox.clone(), helper.is_ok());
    let (containment, protection) =
        tokio::task::spawn_blocking(move || (Containment::detect(), checked.check(has_helper))).await?;
    let is_isolated = match &protection {
        Ok(protection) => {
            warnings.extend(protection.gaps().into_iter().map(str::to_owned));
            protection.mode() == SandboxMode::Bubblewrap
        }
        // Each command is refused with this.
        Err(reason) => {
            warnings.push(reason.clone());
            true
        }
    };
    if !is_isolated && containment == Containment::ProcessTree {
        warnings.push(
            "this system grants no PID namespace (`unshare --pid`), so commands see your other programs: \
            they can end them, and read their environment variables, including keys"
                .to_owned(),
        );
    }
    let environment = surroundings.for_commands();
    Ok(bash::Options {
        containment: Some(containment),
        helper: helper.ok(),
        inherits_environment: environment.is_none(),
        environment: environment.unwrap_or_default(),
        umask: surroundings.umask(),
        sandbox,
        ..bash::Options::default()
    })
}
