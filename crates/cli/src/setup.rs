//! From flags, configuration and environment to a runtime and an agent.
//!
//! Invariants: a flag wins over the environment, and that over the configuration; what is missing is said before
//! anything is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::kernel::settings::CompactionSettings;
use greenroom::kernel::{Failure, FailureClass};
use greenroom::provider::{Catalog, OpenAi, OpenAiOptions, Provider};
use greenroom::store::{Store, StoreOptions};
use greenroom::tools::{Workspace, builtin};
use greenroom::{Agent, Runtime};
use greenroom_simulator::Pace;

use crate::config::{Config, load};
use crate::errors::usage;
use crate::moment;
use crate::options::{Global, ModelArgs};
use crate::simulated::{MODEL, Simulated};
use crate::terminal::variable;

/// How long a first connection may take before it is left to the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The simulated model's window where none is asked for, in tokens.
const SIMULATED_WINDOW: u64 = 24_000;

/// A runtime with a store, and the agent that was asked for.
pub(crate) struct Setup {
    /// The runtime.
    pub(crate) runtime: Runtime,
    /// The agent.
    pub(crate) agent: Agent,
    /// How the agent's sessions are compacted.
    pub(crate) compaction: CompactionSettings,
    /// The simulated model, where there is one; it ends with this.
    pub(crate) simulated: Option<Simulated>,
    base_url: String,
}

/// The store's directory.
pub(crate) fn data_dir(global: &Global) -> Result<PathBuf> {
    match &global.data_dir {
        Some(dir) => Ok(dir.clone()),
        None => Ok(greenroom::env::data_dir()?),
    }
}

/// The flag that makes another command find the same store: empty where none is needed.
pub(crate) fn data_dir_flag(global: &Global) -> String {
    match &global.data_dir {
        Some(dir) if variable("GREENROOM_DATA_DIR").is_none_or(|known| *dir != *known) => {
            format!(" --data-dir {}", dir.display())
        }
        Some(_) | None => String::new(),
    }
}

/// Opens the store alone, for looking into it.
pub(crate) async fn store(global: &Global) -> Result<Store> {
    let dir = data_dir(global)?;
    let opened = tokio::task::spawn_blocking(move || Store::open(&StoreOptions::new(dir))).await?;
    let (store, _) = opened?;
    Ok(store)
}

/// Starts a runtime.
pub(crate) async fn runtime(
    global: &Global,
    provider: Arc<dyn Provider>,
    config: &Config,
) -> Result<Runtime> {
    // The provider's own limits are the nearer ones; this one holds for what they do not see.
    let silence_s = config.provider.first_event_timeout_s.max(config.provider.idle_timeout_s);
    let builder = Runtime::builder()
        .provider(provider)
        .data_dir(data_dir(global)?)
        .max_in_flight(config.provider.max_in_flight)
        .silence_max(Duration::from_secs(silence_s))
        .compaction(config.compaction.clone());
    Ok(builder.start().await?)
}

/// A name that no session has yet, such as `demo-20260102-030405`.
pub(crate) async fn new_session(runtime: &Runtime, kind: &str) -> Result<String> {
    let name = format!("{kind}-{}", moment::stamp(moment::now_ms()));
    for number in 1_u32.. {
        let id = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        if runtime.head(&id).await?.is_none() {
            return Ok(id);
        }
    }
    Ok(name)
}

/// The configuration that holds here.
pub(crate) fn config(global: &Global) -> Result<Config> {
    load(global.config.as_deref()).map(|(config, _)| config)
}

impl Setup {
    /// Puts together what `args` ask for.
    pub(crate) async fn new(global: &Global, args: &ModelArgs) -> Result<Self> {
        let config = config(global)?;
        let tools = if args.no_tools { None } else { Some(Workspace::open(&args.workspace)?) };
        let window = args.window.or(config.context_window);
        let simulated = if args.simulate {
            let pace = Pace { chunks: 12, first_ms: 80, between_ms: 15 };
            Some(Simulated::start(window.unwrap_or(SIMULATED_WINDOW), 8, pace).await?)
        } else {
            None
        };
        let provider = match &simulated {
            Some(simulated) => simulated.provider()?,
            None => provider(&config, args)?,
        };
        let base_url = provider.options().base_url.clone();
        let (model, window) = if simulated.is_some() {
            (args.model.as_deref().unwrap_or(MODEL), Some(window.unwrap_or(SIMULATED_WINDOW)))
        } else {
            (args.model.as_deref().unwrap_or(&config.model), window)
        };
        let mut agent = Agent::new(model).instructions(instructions(tools.as_ref(), args));
        if let Some(window) = window {
            if window == 0 {
                return Err(usage("--window must be at least 1 token"));
            }
            agent = agent.context_window(window);
        }
        if let Some(workspace) = tools {
            agent = agent.tools(&registry(workspace, args));
        }
        agent = agent.limits(config.limits.of_run());
        if let Some(limit) = config.limits.cost_microdollars_max() {
            agent = agent.cost_limit_microdollars(limit);
        }
        if let Some(seconds) = config.limits.tool_timeout_s {
            agent = agent.tool_timeout_ms(seconds.saturating_mul(1_000));
        }
        let runtime = runtime(global, provider, &config).await?;
        Ok(Self { runtime, agent, compaction: config.compaction, simulated, base_url })
    }

    /// Says at once that nobody answers at the server's address. Whatever is less clear than that is left to the
    /// first call, which tries several times.
    pub(crate) async fn check_reachable(&self) -> Result<()> {
        let is_proxied = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
            .iter()
            .any(|name| variable(name).is_some());
        let Some(address) = address(&self.base_url).filter(|_| !is_proxied) else { return Ok(()) };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await;
        match connected {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let shown = self.base_url.split(['?', '#']).next().unwrap_or_default();
                let text = format!("cannot reach {shown}: connection refused");
                Err(greenroom::Error::Model(Failure::new(FailureClass::Timeout, text)).into())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The host and the port of a URL, as a socket wants them.
fn address(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match scheme {
        _ if has_port => Some(authority.to_owned()),
        "http" => Some(format!("{authority}:80")),
        "https" => Some(format!("{authority}:443")),
        _ => None,
    }
}

/// The server that was asked for.
fn provider(config: &Config, args: &ModelArgs) -> Result<Arc<OpenAi>> {
    let key_variable = args.api_key_env.as_deref().unwrap_or(&config.provider.api_key_env);
    let base_url = args.base_url.as_deref().filter(|url| !url.trim().is_empty());
    let base_url = base_url.unwrap_or(&config.provider.base_url);
    let api_key = variable(key_variable);
    if api_key.is_none() && args.api_key_env.is_some() {
        return Err(usage(format!("the variable {key_variable}, which --api-key-env names, is not set")));
    }
    if api_key.is_none() && base_url == greenroom::provider::openai::OPENAI_BASE_URL {
        return Err(usage(format!(
            "there is no API key: set {key_variable}, or name another server with --base-url, or try --simulate, \
             which needs neither"
        )));
    }
    let options = OpenAiOptions {
        name: catalog_name(&config.provider.catalog, base_url),
        base_url: base_url.to_owned(),
        api_key: api_key.map(Into::into),
        first_event_timeout_ms: config.provider.first_event_timeout_s.saturating_mul(1_000),
        idle_timeout_ms: config.provider.idle_timeout_s.saturating_mul(1_000),
        ..OpenAiOptions::default()
    };
    OpenAi::new(options).map(Arc::new).map_err(|error| usage(error.to_string()))
}

/// The provider's name in the catalogue: the configured one, unless the URL is known as another's.
fn catalog_name(configured: &str, base_url: &str) -> String {
    if configured != "openai" {
        return configured.to_owned();
    }
    let base_url = base_url.trim_end_matches('/');
    let known = Catalog::bundled()
        .providers()
        .iter()
        .find(|provider| provider.base_url.is_some_and(|url| url.trim_end_matches('/') == base_url));
    known.map_or_else(|| configured.to_owned(), |provider| provider.id.to_owned())
}

fn registry(workspace: Workspace, args: &ModelArgs) -> greenroom::tools::Registry {
    if args.allow_shell {
        builtin::files_and_shell(workspace, builtin::bash::Options::default())
    } else if args.allow_write {
        builtin::files(workspace)
    } else {
        builtin::read_only(workspace)
    }
}

fn instructions(workspace: Option<&Workspace>, args: &ModelArgs) -> String {
    let Some(workspace) = workspace else {
        return "You are a helpful assistant. Answer briefly and to the point.".to_owned();
    };
    let may = if args.allow_shell {
        "You may read, search, change and create files in it, and run commands there."
    } else if args.allow_write {
        "You may read, search, change and create files in it."
    } else {
        "You may read and search the files in it, and change nothing."
    };
    format!(
        "You are a careful software engineer who works in the folder {}. {may} Look before you speak; name the \
         files that you rely on; say what you did and what is left. Answer briefly and to the point.",
        workspace.root().display()
    )
}
