//! From flags, configuration and environment to a runtime and an agent.
//!
//! Invariants: a flag wins over the environment, and that over the configuration; what is missing is said before
//! anything is opened.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::{BaseUrl, Provider, Proxies};
use greenroom::{Agent, Runtime, RuntimeBuilder, SessionHandle};
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{Failure, FailureClass};
use greenroom_store::{Notice, Store, StoreError, StoreOptions};
use greenroom_tools::Workspace;
use tokio::time::Instant;

use self::server::{Server, proxies};
use crate::config::{
    FILE_NAME, LimitsConfig, Loaded, Overrides, ProviderConfig, ServeConfig, load, load_held, users_places,
};
use crate::errors::{self, usage};
use crate::options::{Global, ModelArgs, ModelsArgs};
use crate::serve::TOKEN_FILE;
use crate::simulated::Simulated;
use crate::surroundings::Surroundings;
use crate::terminal::{Screen, variable};
use crate::{completions, host, moment};

pub(crate) use self::made::{Made, has_some, keep_in_mind, skills};
pub(crate) use self::server::confirm;
pub(crate) use self::settings::{ClientSettings, Stay};

mod made;
mod server;
mod settings;
mod trust;

/// How long a first connection may take before it is left to the first call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A runtime with a store, and the agent that was asked for.
pub(crate) struct Setup {
    /// The runtime.
    pub(crate) runtime: Runtime,
    /// The agent, without what the configuration says of it: the runtime adds that, as it is then.
    pub(crate) agent: Agent,
    /// How `serve` listens.
    pub(crate) serve: ServeConfig,
    /// The simulated model, where there is one; it ends with this.
    _simulated: Option<Simulated>,
    base_url: BaseUrl,
    /// The folder that the user works in.
    pub(crate) folder: PathBuf,
}

/// The store's directory.
pub(crate) fn data_dir(global: &Global) -> Result<PathBuf> {
    let dir = match &global.data_dir {
        Some(dir) => dir.clone(),
        // It knows the variable, and takes an empty one for none.
        None => greenroom::env::data_dir()?,
    };
    // A folder that is not there yet has no sessions; one that cannot be there is a mistake.
    let source = match dir.metadata() {
        Ok(found) if !found.is_dir() => ErrorKind::NotADirectory.into(),
        Err(error) if error.kind() != ErrorKind::NotFound => error,
        Ok(_) | Err(_) => return Ok(dir),
    };
    Err(StoreError::Io { action: "keep sessions in", path: dir, source: Arc::new(source) }.into())
}

/// A folder for file tools, without what is ours: the store with its token, and the user's configuration, which says
/// where keys go and what a run may take.
pub(crate) fn workspace(global: &Global, folder: &Path, surroundings: &Surroundings) -> Result<Workspace> {
    let data_dir = data_dir(global)?;
    // Each part too: it may be a link to another disk.
    let parts = ["journal", "index", TOKEN_FILE].map(|part| data_dir.join(part));
    let configuration = users_places(global.config.as_deref(), surroundings);
    let workspace =
        Workspace::open_without(folder, configuration.into_iter().chain(parts).chain([data_dir]))?;
    Ok(match surroundings.umask() {
        Some(umask) => workspace.with_umask(umask),
        None => workspace,
    })
}

/// The user's configuration folder.
pub(crate) fn own_folder() -> Option<PathBuf> {
    folder_of(&Surroundings::here())
}

fn folder_of(surroundings: &Surroundings) -> Option<PathBuf> {
    users_places(None, surroundings).into_iter().find(|place| !place.ends_with(FILE_NAME))
}

/// Where the user keeps skills.
fn own_skills(surroundings: &Surroundings) -> Option<PathBuf> {
    folder_of(surroundings).map(|folder| folder.join("skills"))
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

/// The flags with which another command asks the same model in the same way: those that were given, ready for a shell.
/// A key in an address is left out.
pub(crate) fn model_flags(global: &Global, args: &ModelArgs) -> String {
    let address = args.server.base_url.as_ref().map(|url| match url.split_once('?') {
        Some((url, _)) => format!("{url}?***"),
        None => url.clone(),
    });
    let given = [
        ("--config", global.config.as_ref().map(|path| path.display().to_string())),
        ("--provider", args.server.provider.clone()),
        ("--base-url", address),
        ("--api-key-env", args.server.api_key_env.clone()),
        ("--model", args.model.clone()),
        ("--window", args.window.map(|tokens| tokens.to_string())),
    ];
    let mut flags = if args.simulate { " --simulate".to_owned() } else { String::new() };
    for (flag, value) in given {
        flags.extend(value.map(|value| format!(" {flag} {}", completions::as_word(&value))));
    }
    flags
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

/// That no session was begun in a folder.
pub(crate) fn none_begun(here: &str) -> anyhow::Error {
    usage(format!("no session was begun in {here} yet; `greenroom sessions` lists the others, for --session"))
}

/// Says what the store had to say when it was opened, and whether others could have changed it.
fn tell(global: &Global, notices: &[Notice]) -> Result<()> {
    tracing::debug!(dir = %data_dir(global)?.display(), "the store is open");
    warn_of_others(global)?;
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

/// Says that others could have changed the store, where they could.
pub(crate) fn warn_of_others(global: &Global) -> Result<()> {
    let dir = data_dir(global)?;
    if std::fs::metadata(&dir).is_ok_and(|metadata| metadata.mode() & 0o022 != 0) {
        let dir = dir.display();
        warn(
            global,
            &format!(
                "others may write {dir}, and could put something else in the place of the store; run `chmod go-w {dir}`"
            ),
        )?;
    }
    Ok(())
}

/// The exit code of a command that tells of everything in the store: it cannot vouch for that while nobody knows what
/// a damaged part of the journal held.
pub(crate) fn completeness(store: &Store) -> u8 {
    if store.unknown_losses().is_empty() { 0 } else { errors::STORE }
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
pub(crate) fn limited(builder: RuntimeBuilder, limits: &LimitsConfig) -> RuntimeBuilder {
    builder
        .inputs_max(limits.inputs_max.unwrap_or(0))
        .live_sessions_max(limits.live_sessions_max.unwrap_or(0))
}

pub(crate) async fn start(global: &Global, builder: RuntimeBuilder) -> Result<Runtime> {
    let runtime = builder.start().await?;
    tell(global, runtime.notices())?;
    Ok(runtime)
}

/// A runtime for looking at models, and the agent whose provider is looked at. What was learned comes from the store,
/// if there is one and nobody else has it open.
pub(crate) async fn for_models(global: &Global, args: &ModelsArgs) -> Result<(Runtime, Agent)> {
    let loaded = config(global)?;
    let config = &loaded.config;
    let server = Server::chosen(&loaded, &args.server, true, &Surroundings::here())?;
    // What is forgotten is in our own store: nobody is asked.
    let provider = server.provider(&args.server, args.forget.is_none(), &data_dir(global)?)?;
    let mut agent = config.with_windows(Agent::new(config.model.as_str()));
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

/// The configuration that holds in these surroundings.
pub(crate) fn load_config(global: &Global, surroundings: &Surroundings) -> Result<Loaded> {
    let overrides = Overrides::read(&global.settings, surroundings)?;
    let explicit = global.config.as_deref();
    let loaded = match load(explicit, overrides.clone()) {
        Err(error) => match &global.held {
            Some(held) => load_held(explicit, overrides, held, &error.to_string()).map_err(|_| error)?,
            None => return Err(error),
        },
        Ok(loaded) => loaded,
    };
    tracing::debug!(files = ?loaded.files, "the configuration was read");
    Ok(loaded)
}

/// Keeps in mind what the configuration files say, if they can be used.
pub(crate) fn hold(global: &mut Global) {
    if let Ok(loaded) = load_config(global, &Surroundings::here()) {
        global.held = Some(loaded.texts());
    }
}

/// The configuration that holds here. What the user must know of it is said on standard error.
pub(crate) fn config(global: &Global) -> Result<Loaded> {
    let loaded = load_config(global, &Surroundings::here())?;
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
        Self::waiting(global, args, stay, Duration::ZERO).await
    }

    /// As [`Self::new`], and waits so long at most for a store that is in use.
    pub(crate) async fn waiting(
        global: &Global,
        args: &ModelArgs,
        stay: Stay,
        wait: Duration,
    ) -> Result<Self> {
        let made = Made::new(global, args, &Surroundings::here()).await?;
        made.file_warnings.iter().chain(&made.warnings).try_for_each(|warning| warn(global, warning))?;
        let Made { agent, settings, provider, provider_config, serve, simulated, folder, limits, .. } = made;
        let base_url = provider.options().base_url.clone();
        let source = settings.source(stay, global.color);
        let builder = builder(global, provider, &provider_config, stay)?.live_settings(source);
        let builder = limited(builder, &limits);
        if !wait.is_zero() && !host::is_free(&data_dir(global)?) {
            let line =
                format!("greenroom: the store is in use; this waits up to {} s for it", wait.as_secs());
            Screen::stderr(global.color).line(line)?;
        }
        let until = Instant::now() + wait;
        let ended = host::make_room_by(global, until).await?;
        if let Some(process) = ended.filter(|_| stay == Stay::Unwatched) {
            let line = format!(
                "greenroom: the host (process {process}) was idle and has ended; this takes its place"
            );
            Screen::stderr(global.color).line(line)?;
        }
        let builder = builder.wait_for_store(until.saturating_duration_since(Instant::now()));
        let runtime = start(global, builder).await?;
        Ok(Self { runtime, agent, serve, _simulated: simulated, base_url, folder })
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

    /// As [`check_reachable`], of this one's server.
    pub(crate) async fn check_reachable(&self) -> Result<()> {
        check_reachable(&self.base_url, &Surroundings::here()).await
    }
}

/// Says at once that nobody answers at the server's address. Whatever is less clear than that is left to the
/// first call, which tries several times.
pub(crate) async fn check_reachable(base_url: &BaseUrl, surroundings: &Surroundings) -> Result<()> {
    let Proxies { http, https, all, no_proxy: _ } = proxies(surroundings);
    if http.or(https).or(all).is_some() {
        return Ok(());
    }
    let address = (base_url.host(), base_url.port());
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await;
    match connected {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            let text = format!("cannot reach {base_url}: connection refused");
            Err(greenroom::Error::Model(Failure::new(FailureClass::Timeout, text)).into())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
