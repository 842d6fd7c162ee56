//! A runtime in this process, which holds the store in place of a host.
//!
//! Invariants: an idle host makes room for it, and one in use is named in the error; it ends within
//! [`END_MAX`].

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::{BaseUrl, Provider};
use greenroom::{Agent, Delivery, Engine, EventType, Filter, Runtime, RuntimeBuilder, SessionHandle};
use greenroom_kernel::settings::CompactionSettings;
use greenroom_server::operations::{ClientKind, FOLDER, Hello, PROTOCOL};
use greenroom_server::{Client, Host};
use greenroom_terminal::Screen;
use tokio::time::Instant;

use super::agents::Agents;
use super::connect::{is_free, make_room_by};
use super::stored::tell;
use crate::agent::simulated::Simulated;
use crate::agent::{Made, Server, Stay, check_reachable, config, data_dir, keep_files, kept, warn};
use crate::args::{Global, ModelArgs, ModelsArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{LimitsConfig, ProviderConfig, ServeConfig};
use crate::error::{self, secrets};

/// How many bytes may be on their way to a host in this process.
const PIPE_BYTES: usize = 1 << 16;

/// A runtime with a store, and the requested agent.
///
/// Commands with an agent do not connect to a host in this process: a host reports problems of a client's
/// configuration to that client only, and `rpc` and `serve` promise them as events of sessions.
pub(crate) struct Setup {
    /// The runtime.
    pub(crate) runtime: Runtime,
    /// The agent, without its settings from the configuration, which the runtime adds when it is used.
    pub(crate) agent: Agent,
    /// The configuration of `serve`.
    pub(crate) serve: ServeConfig,
    /// The simulated model, if there is one; it ends with this value.
    pub(super) simulated: Option<Simulated>,
    base_url: BaseUrl,
    /// The user's working folder.
    pub(crate) folder: PathBuf,
}

/// Where the sessions of a runtime are.
pub(crate) enum Storage {
    /// In files, for which this waits while another process has them open.
    Files {
        /// How long.
        wait: Duration,
    },
    /// In a database that other nodes share.
    Shared(Arc<dyn Engine>),
    /// In memory: none is stored.
    Memory,
}

/// Creates the builder of a runtime.
pub(crate) async fn runtime(
    global: &Global,
    provider: Arc<dyn Provider>,
    settings: &ProviderConfig,
    compaction: &CompactionSettings,
    stay: Stay,
) -> Result<Runtime> {
    let builder = builder(provider, settings, stay).compaction(compaction.clone());
    start(global, builder.data_dir(data_dir(global)?)).await
}

fn builder(provider: Arc<dyn Provider>, settings: &ProviderConfig, stay: Stay) -> RuntimeBuilder {
    Runtime::builder()
        .redactor(secrets::redactor().clone())
        .provider(provider)
        .in_flight_max(settings.in_flight_max)
        .tokens_per_minute(settings.tokens_per_minute.unwrap_or(0))
        .silence_max(settings.silence_max())
        .compact_between_runs(stay != Stay::UntilReply)
}

/// Sets the limits of all sessions together, and those by label.
pub(crate) fn limited(builder: RuntimeBuilder, limits: &LimitsConfig) -> RuntimeBuilder {
    limits.of_runtime(builder)
}

pub(crate) async fn start(global: &Global, builder: RuntimeBuilder) -> Result<Runtime> {
    let runtime = keep_files(global, builder)?.start().await?;
    tell(global, runtime.notices())?;
    forget_deleted(global, &runtime);
    Ok(runtime)
}

/// Removes what a session was resumed with when the session is deleted, whoever deletes it: a client, a program or retention.
fn forget_deleted(global: &Global, runtime: &Runtime) {
    let global = global.clone();
    let mut deletions = runtime.subscribe(Filter::all().kinds([EventType::SessionDeleted]));
    tokio::spawn(async move {
        while let Some(delivery) = deletions.next().await {
            if let Delivery::Event(event) = delivery {
                kept::forget(&global, &event.session);
            }
        }
    });
}

/// Connects to this runtime as a client without an agent connects to a host.
pub(super) async fn connect(global: &Global, runtime: &Runtime, kind: ClientKind) -> Result<Client> {
    let host = Host::new(runtime, Agents::new(global), env!("CARGO_PKG_VERSION"));
    let (near, far) = tokio::io::duplex(PIPE_BYTES);
    let (input, output) = tokio::io::split(far);
    tokio::spawn(host.serve(input, output));
    let (input, output) = tokio::io::split(near);
    let client = Client::new(input, output);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    client.call(Hello { protocol: PROTOCOL, version, kind, definition: None }).await?;
    Ok(client)
}

/// Starts a runtime for listing models, and returns it with the agent whose provider is listed. Learned facts
/// come from the store, if there is one that no other process has open; without it, the list still works, so this
/// does not wait for the store as other commands do.
pub(crate) async fn for_models(
    global: &Global,
    args: &ModelsArgs,
    model: Option<&str>,
) -> Result<(Runtime, Agent)> {
    let loaded = config(global)?;
    let config = &loaded.config;
    let server = Server::chosen(&loaded, &args.server, &loaded.own.model, true, &Surroundings::here())?;
    // Learned limits are in our own store, so no server is asked.
    let provider = server.provider(&args.server, args.forget.is_none(), &data_dir(global)?)?;
    let model = model.unwrap_or(&config.model);
    let mut agent = config.with_models(Agent::new(model));
    if let Some(window) = config.window_of(model) {
        agent = agent.context_window(window);
    }
    let dir = data_dir(global)?;
    if dir.exists() {
        match runtime(global, provider.clone(), &server.settings, &config.compaction, Stay::UntilReply).await
        {
            Ok(runtime) => return Ok((runtime, agent)),
            Err(error) if args.forget.is_none() && error::is_store_in_use(&error) => {
                warn(global, "the store is in use, so limits that were learned are not shown")?;
            }
            Err(error) => return Err(error),
        }
    }
    let builder = builder(provider, &server.settings, Stay::UntilReply).compaction(config.compaction.clone());
    Ok((builder.in_memory().start().await?, agent))
}

/// How long a program may take to end, whatever is open.
pub(crate) const END_MAX: Duration = Duration::from_secs(10);

/// Ends a runtime, and the server `beside` it, within [`END_MAX`].
pub(crate) async fn end(runtime: Runtime, beside: impl Future<Output = ()>) -> Result<()> {
    end_by(runtime, Instant::now() + END_MAX, beside).await
}

/// Like [`end`], by this moment: [`END_MAX`] after the request to end.
pub(super) async fn end_by(runtime: Runtime, until: Instant, beside: impl Future<Output = ()>) -> Result<()> {
    let ending = async { tokio::join!(runtime.shutdown(), beside).0 };
    match tokio::time::timeout_at(until, ending).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Err(anyhow::anyhow!(
            "some work did not end within {END_MAX:?}; everything acknowledged is kept, and the rest is closed at \
            the next start"
        )),
    }
}

impl Setup {
    /// Sets up what `args` request.
    pub(crate) async fn new(global: &Global, args: &ModelArgs, stay: Stay) -> Result<Self> {
        Self::waiting(global, args, stay, Duration::ZERO).await
    }

    /// Sets up what `args` request, in a runtime that stores nothing.
    pub(crate) async fn unstored(global: &Global, args: &ModelArgs) -> Result<Self> {
        Self::on(global, args, Stay::UntilReply, Storage::Memory).await
    }

    /// Like [`Self::new`], and waits up to this time for a store that is in use.
    pub(crate) async fn waiting(
        global: &Global,
        args: &ModelArgs,
        stay: Stay,
        wait: Duration,
    ) -> Result<Self> {
        Self::on(global, args, stay, Storage::Files { wait }).await
    }

    /// Like [`Self::new`], with the sessions in this storage.
    pub(crate) async fn on(global: &Global, args: &ModelArgs, stay: Stay, storage: Storage) -> Result<Self> {
        let made = Made::new(global, args, &Surroundings::here(), None).await?;
        made.file_warnings.iter().chain(&made.warnings).try_for_each(|warning| warn(global, warning))?;
        let Made {
            agent,
            settings,
            provider,
            provider_config,
            serve,
            simulated,
            folder,
            limits,
            retention,
            ..
        } = made;
        let base_url = provider.options().base_url.clone();
        let source = settings.source(stay, global.color);
        let builder = builder(provider, &provider_config, stay).live_settings(source);
        let builder = limited(builder, &limits).spending_by(serve.labels());
        // A command that ends soon, and a chat, delete nothing by the way.
        let builder = match stay {
            Stay::Unwatched => builder.retention(retention.policy()),
            Stay::UntilReply | Stay::ForMore => builder,
        };
        let runtime = match storage {
            Storage::Memory => builder.in_memory().start().await?,
            Storage::Shared(engine) => start(global, builder.engine(engine)).await?,
            Storage::Files { wait } => Self::on_files(global, builder, stay, wait).await?,
        };
        Ok(Self { runtime, agent, serve, simulated, base_url, folder })
    }

    /// Starts the runtime with the store, for which this waits while another process has it open.
    async fn on_files(
        global: &Global,
        builder: RuntimeBuilder,
        stay: Stay,
        wait: Duration,
    ) -> Result<Runtime> {
        let dir = data_dir(global)?;
        if !wait.is_zero() && !is_free(&dir) {
            let line = format!("greenroom: the store is in use; waiting up to {} s for it", wait.as_secs());
            Screen::stderr(global.color).line(line)?;
        }
        let until = Instant::now() + wait;
        let ended = make_room_by(global, until).await?;
        if let Some(process) = ended.filter(|_| stay == Stay::Unwatched) {
            let line = format!(
                "greenroom: the idle host (process {process}) has ended; this process takes its place"
            );
            Screen::stderr(global.color).line(line)?;
        }
        let wait = until.saturating_duration_since(Instant::now());
        start(global, builder.data_dir(dir).wait_for_store(wait)).await
    }

    /// Notes the folder in which a session was started, for searches. A session without messages has no log,
    /// and keeps none.
    pub(crate) async fn note_folder(&self, session: &SessionHandle) -> Result<()> {
        let Some(known) = self.runtime.summary(session.id()).await? else { return Ok(()) };
        if !known.labels.contains_key(FOLDER) {
            // A path that does not fit a label is not searched.
            let _ = session.set_label(FOLDER, self.folder.display().to_string()).await;
        }
        Ok(())
    }

    /// Like [`check_reachable`], for this agent's server.
    pub(crate) async fn check_reachable(&self) -> Result<()> {
        check_reachable(&self.base_url, &Surroundings::here()).await
    }
}

#[cfg(test)]
mod tests;
