//! From flags, configuration and environment to a runtime and an agent.
//!
//! Invariants: a flag wins over the environment, and that over the configuration; what is missing is said before
//! anything is opened.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use greenroom::kernel::settings::CompactionSettings;
use greenroom::kernel::{EntryId, EntryKind, Failure, FailureClass};
use greenroom::provider::catalog::Prices;
use greenroom::provider::{BaseUrl, Catalog, OpenAi, OpenAiOptions, Provider, Proxies};
use greenroom::questions::{is_waiting_stored, list_stored};
use greenroom::store::{Notice, Store, StoreError, StoreOptions};
use greenroom::tools::builtin::bash::{self, Containment, Helper};
use greenroom::tools::privacy::Hidden;
use greenroom::tools::{Workspace, builtin};
use greenroom::{
    Agent, LiveSettings, ModelSettings, Order, Runtime, RuntimeBuilder, SessionHandle, SettingsChange,
};
use greenroom_simulator::Pace;

use crate::chat::ask_user::{self, ask_user};
use crate::config::{
    Change, Config, FILE_NAME, LimitsConfig, LiveConfig, Loaded, OPENAI, OPENAI_KEY, Overrides,
    ProviderConfig, ServeConfig, check_variable, load, users_places,
};
use crate::errors::{self, Answered, usage};
use crate::moment;
use crate::options::{Color, Global, ModelArgs, ModelsArgs, ServerArgs};
use crate::prompt::SystemPrompt;
use crate::serve::TOKEN_FILE;
use crate::simulated::{MODEL, Simulated};
use crate::skills::Skills;
use crate::terminal::{Screen, variable};

/// How long a first connection may take before it is left to the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The simulated model's window where none is asked for, in tokens.
const SIMULATED_WINDOW: u64 = 24_000;

/// Whether other processes can read this one's secrets.
static HIDDEN: OnceLock<Hidden> = OnceLock::new();

/// Keeps in mind whether other processes can read this one's secrets, for the day when it runs commands.
pub(crate) fn keep_in_mind(hidden: Hidden) {
    let _ = HIDDEN.set(hidden);
}

/// A runtime with a store, and the agent that was asked for.
pub(crate) struct Setup {
    /// The runtime.
    pub(crate) runtime: Runtime,
    /// The agent, without what the configuration says of it: the runtime adds that, as it is then.
    pub(crate) agent: Agent,
    /// The configuration, and what stands over it.
    pub(crate) settings: Arc<Settings>,
    /// How `serve` listens.
    pub(crate) serve: ServeConfig,
    /// The simulated model, where there is one; it ends with this.
    pub(crate) simulated: Option<Simulated>,
    base_url: BaseUrl,
    /// The folder that the user works in.
    pub(crate) folder: PathBuf,
}

/// The store's directory.
pub(crate) fn data_dir(global: &Global) -> Result<PathBuf> {
    match &global.data_dir {
        Some(dir) => Ok(dir.clone()),
        // It knows the variable, and takes an empty one for none.
        None => Ok(greenroom::env::data_dir()?),
    }
}

/// A folder for file tools, without what is ours: the store with its token, and the user's configuration, which says
/// where keys go and what a run may take.
pub(crate) fn workspace(global: &Global, folder: &Path) -> Result<Workspace> {
    let data_dir = data_dir(global)?;
    // Each part too: it may be a link to another disk.
    let parts = ["journal", "index", TOKEN_FILE].map(|part| data_dir.join(part));
    let configuration = users_places(global.config.as_deref());
    Ok(Workspace::open_without(folder, configuration.into_iter().chain(parts).chain([data_dir]))?)
}

/// The user's configuration folder.
pub(crate) fn own_folder() -> Option<PathBuf> {
    users_places(None).into_iter().find(|place| !place.ends_with(FILE_NAME))
}

/// Where the user keeps skills.
fn own_skills() -> Option<PathBuf> {
    own_folder().map(|folder| folder.join("skills"))
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

/// A store that is looked into.
pub(crate) struct Looked {
    pub(crate) store: Store,
    /// Whether another process uses it, and may be at work on its sessions.
    pub(crate) is_in_use: bool,
}

/// Opens the store alone, for looking into it: also one that this user, or nobody, can write, and one that another process
/// uses, as it stands now. What was lost or repaired is said on standard error.
pub(crate) async fn look(global: &Global) -> Result<Looked> {
    let options = StoreOptions::new(data_dir(global)?);
    let open = move || match Store::open(&options) {
        Err(error @ (StoreError::NotPermitted { .. } | StoreError::InUse { .. })) => {
            // Where it cannot even be read, the first error says more.
            Store::open(&StoreOptions { is_read_only: true, ..options }).map_err(|_| error)
        }
        opened => opened,
    };
    let (store, notices) = tokio::task::spawn_blocking(open).await??;
    let is_in_use = notices.iter().any(|notice| matches!(notice, Notice::InUse { .. }));
    // That somebody works in it is no news to them.
    let is_usual =
        |notice: &Notice| is_in_use && matches!(notice, Notice::InUse { .. } | Notice::ReadOnly { .. });
    let notices: Vec<Notice> = notices.into_iter().filter(|notice| !is_usual(notice)).collect();
    tell(global, &notices)?;
    Ok(Looked { store, is_in_use })
}

/// Opens the store alone, for changing something in it. What was lost or repaired is said on standard error.
pub(crate) async fn store(global: &Global) -> Result<Store> {
    let options = StoreOptions::new(data_dir(global)?);
    let (store, notices) = tokio::task::spawn_blocking(move || Store::open(&options)).await??;
    tell(global, &notices)?;
    Ok(store)
}

/// Whether a chat's own tool, and no other, has asked in the run that a session is in.
fn is_asked_by_chat(store: &Store, id: &str) -> Result<bool> {
    let Some(run) = store.head(id)?.and_then(|head| head.open_run) else { return Ok(false) };
    let entries = store.load(id, EntryId(run.0))?;
    let is_others = |kind: &EntryKind| {
        if let EntryKind::Question(asked) = kind { asked.tool != ask_user::NAME } else { false }
    };
    Ok(!entries.iter().any(|entry| is_others(&entry.kind)))
}

/// The label that names the folder in which a session was begun.
pub(crate) const FOLDER: &str = "folder";
/// How many sessions are named where an id's beginning leads to several.
const NAMED_MAX: usize = 5;

/// The id of the stored session that the user means: by its whole id, or by a beginning that no other has.
///
/// # Errors
/// Where several begin like that. One that nobody knows is given back as it is.
pub(crate) fn resolve(store: &Store, given: &str) -> Result<String> {
    if given.is_empty() || store.head(given)?.is_some() {
        return Ok(given.to_owned());
    }
    let after = store.page(Some(given), NAMED_MAX + 1)?;
    let mut ids: Vec<String> =
        after.into_iter().map(|(id, _)| id).take_while(|id| id.starts_with(given)).collect();
    match ids.len() {
        0 => Ok(given.to_owned()),
        1 => Ok(ids.remove(0)),
        count => {
            let more = if count > NAMED_MAX { " and more" } else { "" };
            ids.truncate(NAMED_MAX);
            Err(usage(format!("several sessions begin with {given}: {}{more}", ids.join(", "))))
        }
    }
}

/// As [`resolve`], of a session that is there.
pub(crate) fn resolve_known(store: &Store, given: &str) -> Result<String> {
    let id = resolve(store, given)?;
    if store.head(&id)?.is_none() {
        return Err(StoreError::NotFound { session: id }.into());
    }
    Ok(id)
}

/// The newest session that was begun in this folder.
///
/// # Errors
/// Where there is none.
pub(crate) async fn newest_here(runtime: &Runtime, folder: &Path) -> Result<String> {
    let here = folder.display().to_string();
    let query = runtime.sessions().label(FOLDER, &here).roots().order(Order::Newest).limit(1);
    query.await?.into_iter().next().map(|session| session.id).ok_or_else(|| {
        usage(format!(
            "no session was begun in {here} yet; `greenroom sessions` lists the others, for --session"
        ))
    })
}

/// Says what the store had to say when it was opened, and whether others could have changed it.
fn tell(global: &Global, notices: &[Notice]) -> Result<()> {
    let dir = data_dir(global)?;
    tracing::debug!(dir = %dir.display(), "the store is open");
    if std::fs::metadata(&dir).is_ok_and(|metadata| metadata.mode() & 0o022 != 0) {
        let dir = dir.display();
        warn(
            global,
            &format!(
                "others may write {dir}, and could put something else in the place of the store; run `chmod go-w {dir}`"
            ),
        )?;
    }
    for notice in notices {
        let more = match notice {
            Notice::TailLost { .. } | Notice::Damaged { .. } => "; `greenroom store check` says what is lost",
            Notice::TailCut { .. }
            | Notice::IndexRebuilt { .. }
            | Notice::IndexInMemory { .. }
            | Notice::ReadOnly { .. }
            | Notice::InUse { .. }
            | Notice::SetAside { .. }
            | Notice::ManifestRebuilt { .. } => "",
        };
        warn(global, &format!("{notice}{more}"))?;
    }
    Ok(())
}

/// The exit code of a command that tells of everything in the store: it cannot vouch for that while nobody knows what
/// a damaged part of the journal held.
pub(crate) fn completeness(store: &Store) -> u8 {
    if store.unknown_losses().is_empty() { 0 } else { errors::STORE }
}

/// How long a command goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It ends with a reply: whatever began after that would be interrupted.
    UntilReply,
    /// It waits for more. Edits of the configuration hold while it does; what is wrong with them is told by the events
    /// of a session.
    ForMore,
    /// It waits for more, and nobody need read its sessions' events: what is wrong is also said on standard error.
    Unwatched,
}

/// The configuration of a command, and the flags that stand over it.
pub(crate) struct Settings {
    config: LiveConfig,
    model: String,
    window: Option<u64>,
    simulated_window: Option<u64>,
    flags: ModelSettings,
    prompt: Arc<SystemPrompt>,
}

impl Settings {
    /// How sessions are compacted now.
    pub(crate) fn compaction(&self) -> CompactionSettings {
        self.compaction_of(&self.config.config())
    }

    fn compaction_of(&self, config: &Config) -> CompactionSettings {
        let mut compaction = config.compaction.clone();
        if self.window.is_some() {
            // A flag stands above every setting.
            compaction.context_window = None;
        }
        compaction
    }

    /// The model's window, where the flags or the configuration say what it is.
    fn window_of(&self, config: &Config) -> Option<u64> {
        self.window.or_else(|| config.window_of(&self.model))
    }

    /// The agent as the configuration and the flags want it.
    fn adjusted(&self, agent: &Agent, config: &Arc<Config>) -> Agent {
        let (prompt, held) = (Arc::clone(&self.prompt), Arc::clone(config));
        let mut agent = agent.clone().instructions_from(move |_| prompt.text(&held));
        if let Some(window) = self.window_of(config).or(self.simulated_window) {
            agent = agent.context_window(window);
        }
        agent = agent.settings(config.model_settings.clone());
        for (model, of_model) in &config.models {
            agent = agent.settings_for(model, of_model.settings.clone());
        }
        // What was checked when the file was read fits together.
        let of_model = config.models.get(&self.model);
        if let Some(Ok(Some(compaction))) =
            of_model.map(|of_model| of_model.compaction_over(&self.compaction_of(config)))
        {
            agent = agent.compaction(compaction);
        }
        // A flag wins over every file.
        agent = agent.settings_for(&self.model, self.flags.clone()).limits(config.limits.of_run());
        if let Some(limit) = config.limits.cost_usd_max {
            agent = agent.cost_limit_usd(limit);
        }
        if let Some(seconds) = config.limits.tool_timeout_s {
            agent = agent.tool_timeout(Duration::from_secs(seconds));
        }
        agent.run_timeout(config.limits.run_timeout_s.map(Duration::from_secs))
    }

    /// What the runtime is told: first what holds, then what changes.
    fn source(
        self: Arc<Self>,
        stay: Stay,
        color: Color,
    ) -> impl Fn() -> Option<SettingsChange> + Send + Sync + 'static {
        let is_first = AtomicBool::new(true);
        move || {
            let Change { config, warning } = if is_first.swap(false, Ordering::Relaxed) {
                Change { config: Some(self.config.config()), warning: None }
            } else if stay == Stay::UntilReply {
                return None;
            } else {
                self.config.look()?
            };
            if let Some(warning) = warning.as_ref().filter(|_| stay == Stay::Unwatched) {
                // Who closed standard error wants to hear nothing.
                let _ = Screen::stderr(color).line(format!("greenroom: warning: {warning}"));
            }
            let mut change = SettingsChange::default();
            change.settings = config.map(|config| {
                let this = Arc::clone(&self);
                LiveSettings {
                    compaction: self.compaction_of(&config),
                    adjust: Arc::new(move |agent| this.adjusted(agent, &config)),
                }
            });
            change.warning = warning;
            Some(change)
        }
    }
}

/// Starts a runtime.
pub(crate) async fn runtime(
    global: &Global,
    provider: Arc<dyn Provider>,
    settings: &ProviderConfig,
    compaction: &CompactionSettings,
    stay: Stay,
) -> Result<Runtime> {
    start(global, builder(global, provider, settings, stay)?.compaction(compaction.clone())).await
}

fn builder(
    global: &Global,
    provider: Arc<dyn Provider>,
    settings: &ProviderConfig,
    stay: Stay,
) -> Result<RuntimeBuilder> {
    // The provider's own limits are the nearer ones; this one holds for what they do not see.
    let silence_s = settings.first_event_timeout_s.max(settings.idle_timeout_s);
    Ok(Runtime::builder()
        .provider(provider)
        .data_dir(data_dir(global)?)
        .in_flight_max(settings.max_in_flight)
        .tokens_per_minute(settings.tokens_per_minute.unwrap_or(0))
        .silence_max(Duration::from_secs(silence_s))
        .compact_between_runs(stay != Stay::UntilReply))
}

/// With the limits of all sessions together.
fn limited(builder: RuntimeBuilder, limits: &LimitsConfig) -> RuntimeBuilder {
    builder
        .inputs_max(limits.inputs_max.unwrap_or(0))
        .live_sessions_max(limits.live_sessions_max.unwrap_or(0))
}

async fn start(global: &Global, builder: RuntimeBuilder) -> Result<Runtime> {
    let runtime = builder.start().await?;
    tell(global, runtime.notices())?;
    Ok(runtime)
}

/// A runtime for looking at models, and the agent whose provider is looked at. What was learned comes from the store,
/// if there is one and nobody else has it open.
pub(crate) async fn for_models(global: &Global, args: &ModelsArgs) -> Result<(Runtime, Agent)> {
    let loaded = config(global)?;
    let config = &loaded.config;
    let server = Server::chosen(config, &args.server, true)?;
    // What is forgotten is in our own store: nobody is asked.
    let provider = server.provider(&args.server, args.forget.is_none())?;
    let mut agent = Agent::new(config.model.as_str());
    if let Some(window) = config.window_of(&config.model) {
        agent = agent.context_window(window);
    }
    let dir = data_dir(global)?;
    if dir.exists() {
        match runtime(global, provider.clone(), &server.settings, &config.compaction, Stay::UntilReply).await
        {
            Ok(runtime) => return Ok((runtime, agent)),
            Err(error) if args.forget.is_none() && errors::is_store_in_use(&error) => {
                warn(global, "the store is in use, so limits that were learned are not shown")?;
            }
            Err(error) => return Err(error),
        }
    }
    let builder = Runtime::builder().provider(provider).in_memory().compaction(config.compaction.clone());
    Ok((builder.start().await?, agent))
}

/// How long a program that was asked to end may take, whatever is open.
pub(crate) const END_MAX: Duration = Duration::from_secs(10);

/// Ends a runtime, and what serves it beside, within [`END_MAX`].
pub(crate) async fn end(runtime: Runtime, beside: impl Future<Output = ()>) -> Result<()> {
    let ending = async { tokio::join!(runtime.shutdown(), beside).0 };
    match tokio::time::timeout(END_MAX, ending).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Err(anyhow::anyhow!(
            "not everything ended within {END_MAX:?}; what was acknowledged is kept, and the rest is closed at the next \
             start"
        )),
    }
}

/// A name that no session has yet, such as `demo-20260102-030405`.
pub(crate) async fn new_session(runtime: &Runtime, kind: &str) -> Result<String> {
    let name = format!("{kind}-{}", moment::stamp(moment::now_ms()));
    for number in 1_u32.. {
        let id = if number == 1 { name.clone() } else { format!("{name}-{number}") };
        if runtime.summary(&id).await?.is_none() {
            return Ok(id);
        }
    }
    Ok(name)
}

/// The configuration that holds here. What the user must know of it is said on standard error.
pub(crate) fn config(global: &Global) -> Result<Loaded> {
    let loaded = load(global.config.as_deref(), Overrides::read(&global.settings)?)?;
    tracing::debug!(files = ?loaded.files, "the configuration was read");
    for warning in &loaded.warnings {
        warn(global, warning)?;
    }
    Ok(loaded)
}

/// One line on standard error that the user must see.
pub(crate) fn warn(global: &Global, text: &str) -> Result<()> {
    Ok(Screen::stderr(global.color).line(format!("greenroom: warning: {text}"))?)
}

impl Setup {
    /// Puts together what `args` ask for.
    pub(crate) async fn new(global: &Global, args: &ModelArgs, stay: Stay) -> Result<Self> {
        let loaded = config(global)?;
        let config = &loaded.config;
        let server = Server::chosen(config, &args.server, !args.simulate)?;
        let tools = if args.no_tools { None } else { Some(workspace(global, &args.workspace)?) };
        let model = args.model().unwrap_or_else(|| config.model.clone());
        let window = args.window.or_else(|| config.window_of(&model));
        let simulated = if args.simulate {
            let pace = Pace { chunks: 12, first_ms: 80, between_ms: 15 };
            Some(Simulated::start(window.unwrap_or(SIMULATED_WINDOW), 8, pace).await?)
        } else {
            None
        };
        let provider = match &simulated {
            Some(simulated) => simulated.provider()?,
            None => {
                if let Some(warning) = check_cost(&loaded, &server, args)? {
                    warn(global, &warning)?;
                }
                server.provider(&args.server, true)?
            }
        };
        let base_url = provider.options().base_url.clone();
        let own_model = if simulated.is_some() { MODEL } else { config.model.as_str() };
        let named = args.model();
        let model = named.as_deref().unwrap_or(own_model);
        if args.window == Some(0) {
            return Err(usage("--window must be at least 1 token"));
        }
        let flags = args.settings();
        flags.check().map_err(|error| usage(error.to_string()))?;
        let root = tools.as_ref().map(|workspace| workspace.root().to_owned());
        // Without a skill at the start there is no tool that reads one.
        let skills = Some(Skills::new(own_skills().as_deref(), root.as_deref()))
            .filter(|skills| !args.no_tools && config.skills && !skills.offer().is_empty());
        let prompt = Arc::new(SystemPrompt::new(root.as_deref(), args, skills.clone()));
        for warning in prompt.warnings(config) {
            warn(global, &warning)?;
        }
        let mut agent = Agent::new(model);
        if let Some(workspace) = tools {
            agent = agent.tools(&registry(global, workspace, args).await?);
        }
        if let Some(skills) = skills {
            agent = agent.add_tool(skills.tool());
        }
        if args.asks && !args.no_tools {
            agent = agent.add_tool(ask_user());
        }
        let settings = Arc::new(Settings {
            config: LiveConfig::new(global.config.as_deref(), &loaded),
            model: model.to_owned(),
            window: args.window,
            simulated_window: simulated.is_some().then_some(SIMULATED_WINDOW),
            flags,
            prompt,
        });
        let source = Arc::clone(&settings).source(stay, global.color);
        let builder = builder(global, provider, &server.settings, stay)?.live_settings(source);
        let builder = limited(builder, &config.limits);
        let runtime = start(global, builder).await?;
        let folder = match root {
            Some(root) => root,
            None => std::env::current_dir().unwrap_or_default(),
        };
        Ok(Self { runtime, agent, settings, serve: loaded.config.serve, simulated, base_url, folder })
    }

    /// The session that the user goes on with: the one that is named, the newest of this folder, or a new one.
    pub(crate) async fn session_id(&self, named: Option<&str>, goes_on: bool, kind: &str) -> Result<String> {
        match named {
            Some(id) => Ok(id.to_owned()),
            None if goes_on => newest_here(&self.runtime, &self.folder).await,
            None => new_session(&self.runtime, kind).await,
        }
    }

    /// Notes the folder in which a session was begun, for those who look for it there. One in which nothing was said
    /// stays without a log.
    pub(crate) async fn note_folder(&self, session: &SessionHandle) -> Result<()> {
        let Some(known) = self.runtime.summary(session.id()).await? else { return Ok(()) };
        if !known.labels.contains_key(FOLDER) {
            // A path that no label can hold is looked for by nobody.
            let _ = session.set_label(FOLDER, self.folder.display().to_string()).await;
        }
        Ok(())
    }

    /// Says that this session waits for an answer, or was answered and waits for its program, before it is opened. The tool
    /// that asked is another program's, unless it is that of a chat (`may_ask`): with our agent the call could not go on,
    /// and the answer would be lost to it.
    pub(crate) async fn check_not_waiting(&self, id: &str, may_ask: bool) -> Result<()> {
        let store = self.runtime.store();
        let is_open = !list_stored(store, id, moment::now_ms())?.is_empty();
        if !is_open && !is_waiting_stored(store, id)? || (may_ask && is_asked_by_chat(store, id)?) {
            return Ok(());
        }
        self.runtime.clone().shutdown().await?;
        let session = id.to_owned();
        Err(if is_open { greenroom::Error::Waiting { session }.into() } else { Answered { session }.into() })
    }

    /// Says at once that nobody answers at the server's address. Whatever is less clear than that is left to the
    /// first call, which tries several times.
    pub(crate) async fn check_reachable(&self) -> Result<()> {
        let Proxies { http, https, all, no_proxy: _ } = proxies();
        if http.or(https).or(all).is_some() {
            return Ok(());
        }
        let address = (self.base_url.host(), self.base_url.port());
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await;
        match connected {
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let text = format!("cannot reach {}: connection refused", self.base_url);
                Err(greenroom::Error::Model(Failure::new(FailureClass::Timeout, text)).into())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// The server that is asked.
struct Server {
    /// Its name in the configuration; `None` for an address that the user gave without one.
    name: Option<String>,
    settings: ProviderConfig,
    base_url: BaseUrl,
}

impl Server {
    /// The one that was asked for: by a flag, else by the environment, else by the configuration.
    fn chosen(config: &Config, args: &ServerArgs, may_ask_environment: bool) -> Result<Self> {
        let name = args.provider.as_deref().unwrap_or(&config.provider);
        let (settings, base_url) = config.provider(name)?;
        let given = args.base_url.clone().filter(|url| !url.trim().is_empty());
        let may_ask_environment = may_ask_environment && given.is_none() && args.provider.is_none();
        let (given, what) = match given {
            None if may_ask_environment => (variable("OPENAI_BASE_URL"), "OPENAI_BASE_URL"),
            given => (given, "--base-url"),
        };
        let Some(given) = given else {
            return Ok(Self {
                name: Some(name.to_owned()),
                settings: settings.clone(),
                base_url: base_url.clone(),
            });
        };
        let base_url = given.parse().map_err(|error| usage(format!("{what}: {error}")))?;
        // The key of a configured provider goes to its own address only, whoever chose that provider.
        let settings =
            ProviderConfig { api_key_env: Some(OPENAI_KEY.to_owned()), catalog: None, ..settings.clone() };
        Ok(Self { name: None, settings, base_url })
    }

    fn catalog_name(&self) -> String {
        self.settings.catalog_name(self.name.as_deref().unwrap_or(OPENAI), &self.base_url)
    }

    fn provider(&self, args: &ServerArgs, needs_key: bool) -> Result<Arc<OpenAi>> {
        if let Some(name) = &args.api_key_env {
            check_variable(name).map_err(|reason| usage(format!("--api-key-env {reason}")))?;
        }
        let key_variable = args.api_key_env.as_deref().or(self.settings.api_key_env.as_deref());
        let api_key = key_variable.and_then(variable);
        if let Some(key_variable) = key_variable.filter(|_| api_key.is_none() && needs_key) {
            let asks_openai = self.base_url == OpenAiOptions::default().base_url;
            match &self.name {
                _ if args.api_key_env.is_some() => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which --api-key-env names, is not set"
                    )));
                }
                _ if asks_openai => {
                    return Err(usage(format!(
                        "there is no API key: set {key_variable}, or name another server with --base-url, or try \
                         --simulate, which needs neither"
                    )));
                }
                Some(name) if name != OPENAI => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which the provider {name} names, is not set"
                    )));
                }
                Some(_) | None => {}
            }
        }
        let options = OpenAiOptions {
            name: self.catalog_name(),
            base_url: self.base_url.clone(),
            api_key: api_key.map(Into::into),
            proxies: Some(proxies()),
            first_event_timeout: Duration::from_secs(self.settings.first_event_timeout_s),
            idle_timeout: Duration::from_secs(self.settings.idle_timeout_s),
            resend_reasoning: self.settings.resend_reasoning,
            ..OpenAiOptions::default()
        };
        OpenAi::new(options).map(Arc::new).map_err(|error| usage(error.to_string()))
    }
}

/// The proxies that the environment names. Libraries do not find them there: their addresses may hold passwords, so
/// they are hidden.
fn proxies() -> Proxies {
    let either = |upper: &str| variable(upper).or_else(|| variable(&upper.to_lowercase()));
    Proxies {
        http: either("HTTP_PROXY"),
        https: either("HTTPS_PROXY"),
        all: either("ALL_PROXY"),
        no_proxy: either("NO_PROXY"),
    }
}

/// What a project's file chose must not get around the limit of cost that the user set: it would, with a model whose
/// price nobody knows. Where the user set none, a dearer model than theirs is worth a line, which is given.
fn check_cost(loaded: &Loaded, server: &Server, args: &ModelArgs) -> Result<Option<String>> {
    let (own, config) = (&loaded.own, &loaded.config);
    let catalog = server.catalog_name();
    let own_catalog = match &server.name {
        Some(_) if args.server.provider.is_none() => {
            let (settings, url) = own.provider(&own.provider)?;
            settings.catalog_name(&own.provider, url)
        }
        Some(_) | None => catalog.clone(),
    };
    let main = |config: &Config| args.model().unwrap_or_else(|| config.model.clone());
    let summaries = |config: &Config| config.compaction.summary_model.clone().unwrap_or_else(|| main(config));
    let prices = |catalog: &str, model: &str| Catalog::bundled().lookup(catalog, model)?.prices;
    for (theirs, ours) in [(main(config), main(own)), (summaries(config), summaries(own))] {
        if (&theirs, &catalog) == (&ours, &own_catalog) {
            continue;
        }
        match (prices(&catalog, &theirs), prices(&own_catalog, &ours)) {
            (None, Some(_)) if own.limits.cost_usd_max.is_some() => {
                return Err(usage(format!(
                    "{FILE_NAME} chooses the model {theirs} at {catalog}, whose price is not known, so that your \
                     limits.cost_usd_max would not hold; pass --model and --provider, or choose it in your own file"
                )));
            }
            (Some(new), Some(old)) if config.limits.cost_usd_max.is_none() && is_dearer(&new, &old) => {
                return Ok(Some(format!(
                    "{FILE_NAME} chooses the model {theirs}, which costs {} for a million tokens in and out, where \
                     yours, {ours}, costs {}; limits.cost_usd_max bounds what a session may cost",
                    shown(&new),
                    shown(&old)
                )));
            }
            (Some(_) | None, Some(_) | None) => {}
        }
    }
    Ok(None)
}

fn is_dearer(new: &Prices, old: &Prices) -> bool {
    new.input > old.input || new.output > old.output
}

/// Prices in dollars.
#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 microdollars")]
fn shown(prices: &Prices) -> String {
    format!("${:.2} and ${:.2}", prices.input as f64 / 1e6, prices.output as f64 / 1e6)
}

async fn registry(
    global: &Global,
    workspace: Workspace,
    args: &ModelArgs,
) -> Result<greenroom::tools::Registry> {
    if args.allow_shell {
        Ok(builtin::files_and_shell(workspace, shell(global).await?))
    } else if args.allow_write {
        Ok(builtin::files(workspace))
    } else {
        Ok(builtin::read_only(workspace))
    }
}

/// How commands are run. What does not protect the user here is said on standard error.
async fn shell(global: &Global) -> Result<bash::Options> {
    if let Some(Hidden::NotAll(reason)) = HIDDEN.get() {
        warn(
            global,
            &format!("commands can read the variables that greenroom was started with, keys too: {reason}"),
        )?;
    }
    let helper = Helper::this_program();
    if let Err(error) = &helper {
        warn(
            global,
            &format!("commands keep all of your rights, and go on if greenroom is killed: {error}"),
        )?;
    }
    let containment = tokio::task::spawn_blocking(Containment::detect).await?;
    if containment == Containment::ProcessTree {
        warn(
            global,
            "this system grants no PID namespace (`unshare --pid`), so commands see your other programs: they can end \
             them, and read the variables that those were started with, keys too",
        )?;
    }
    Ok(bash::Options { containment: Some(containment), helper: helper.ok(), ..bash::Options::default() })
}

#[cfg(test)]
mod tests;
