//! The configuration of a runtime: its providers, its store, its limits and its hooks.
//!
//! Invariants: nothing is started or opened before [`RuntimeBuilder::start`], and settings that cannot work are refused
//! there before the store is opened.

use std::collections::{BTreeMap, HashMap};
#[cfg(feature = "disk")]
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use greenroom_kernel::redact::Redactor;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_provider::{ModelPrice, ModelSettings, Provider};
use greenroom_store::{Engine, Store};
#[cfg(feature = "disk")]
use greenroom_store::{Notice, StoreError, StoreOptions};
#[cfg(feature = "command-tools")]
use greenroom_tools::rewind::FileHistory;
use parking_lot::RwLock;
use ractor::Actor;

use super::{Runtime, StopOnDrop};
use crate::actors::supervisor::Supervisor;
use crate::agent::hooks::Hooks;
use crate::agent::live_settings::{ReloadedSettings, SettingsChange};
use crate::agent::shared_tools::SharedTools;
use crate::api::{deletion, retention};
use crate::core::deps::Deps;
#[cfg(feature = "command-tools")]
use crate::core::kept_files;
use crate::core::metrics::Metrics;
use crate::core::ownership;
use crate::core::readiness::Readiness;
use crate::core::shared::REQUESTS_MAX;
use crate::events::bus::Bus;
use crate::lane::learned::Learned;
use crate::lane::{IN_FLIGHT_MAX, Lane, LaneLimits, SILENCE_MAX};
use crate::limits::accounts::Accounts;
use crate::limits::admission::Admission;
use crate::limits::labels::{LabelLimit, Table};
use crate::limits::spending::tree::Ledger;
use crate::limits::spending::{Period, microdollars};
use crate::values::clock::Clock;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};
use crate::values::error::{ConfigError, Error, Result};
use crate::values::model_info::{PriceList, check_price};
use crate::values::retention::Retention;

/// The default idle time after which a session sleeps.
const IDLE_AFTER: Duration = Duration::from_secs(600);
/// The default maximum depth of sub-agents.
const SUB_AGENT_DEPTH_MAX: usize = 4;

/// Configures a runtime.
#[derive(Default)]
#[must_use]
pub struct RuntimeBuilder {
    providers: Vec<(Arc<dyn Provider>, Option<usize>)>,
    in_flight_max: Option<usize>,
    tokens_per_minute: Option<u64>,
    inputs_max: Option<usize>,
    live_sessions_max: Option<usize>,
    store: Option<StoreChoice>,
    #[cfg(feature = "disk")]
    wait_for_store: Duration,
    compaction: CompactionSettings,
    settings_by_model: BTreeMap<String, ModelSettings>,
    cost_limits: Vec<(f64, Period)>,
    label_limits: Vec<LabelLimit>,
    prices: PriceList,
    spending_by: Option<Vec<String>>,
    fair_by: Option<String>,
    sub_agent_depth_max: Option<usize>,
    hooks: Hooks,
    clock_base_ms: Option<u64>,
    idle_after: Option<Duration>,
    silence_max: Option<Duration>,
    leaves_compactions_to_runs: bool,
    live: Option<crate::agent::live_settings::Source>,
    retention: Retention,
    redactor: Redactor,
    probe: Option<crate::core::deps::Probe>,
    #[cfg(feature = "command-tools")]
    files: Option<FileHistory>,
}

enum StoreChoice {
    Memory,
    #[cfg(feature = "disk")]
    Dir(PathBuf),
    #[cfg(feature = "disk")]
    Options(Box<StoreOptions>),
    Open(Arc<dyn Engine>),
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeBuilder").finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// The default of [`Self::inputs_max`].
    pub const INPUTS_MAX: usize = 16_384;

    /// Adds a provider. The first one serves agents that name none.
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.push((provider, None));
        self
    }

    /// Adds a provider with its own limit on concurrent calls.
    pub fn provider_with(mut self, provider: Arc<dyn Provider>, in_flight_max: usize) -> Self {
        self.providers.push((provider, Some(in_flight_max)));
        self
    }

    /// Sets how many model calls each provider gets concurrently; the default is 16. 0 counts as 1.
    pub fn in_flight_max(mut self, calls: usize) -> Self {
        self.in_flight_max = Some(calls);
        self
    }

    /// Sets the limit of tokens per minute for each provider, input and output together, including summaries;
    /// the default, 0, means no limit. A call starts when the limit leaves room for its expected tokens,
    /// which are its context and its output limit; after the answer, its actual usage counts. `queue_update`
    /// events report calls that wait for this.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let builder = Runtime::builder().in_flight_max(32).tokens_per_minute(2_000_000);
    /// ```
    pub fn tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens_per_minute = Some(tokens).filter(|tokens| *tokens > 0);
        self
    }

    /// Sets how many inputs the runtime accepts at the same time, over all its sessions; 0 means no limit,
    /// and the default is 16,384. Work in progress and queued input of live sessions count; further prompts,
    /// steers and follow-ups fail with [`Error::RuntimeBusy`]. Sub-agents count too, and are never refused.
    pub fn inputs_max(mut self, inputs: usize) -> Self {
        self.inputs_max = Some(inputs);
        self
    }

    /// Sets how many sessions may be live, with actors in memory; the default, 0, means no limit. Above the
    /// limit, the least recently used idle sessions sleep before they have been idle for
    /// [`Self::idle_after`]. Working sessions stay live, so the limit may be exceeded while they work.
    pub fn live_sessions_max(mut self, sessions: usize) -> Self {
        self.live_sessions_max = Some(sessions).filter(|sessions| *sessions > 0);
        self
    }

    /// Sets the directory of the store, which is created if it is missing.
    #[cfg(feature = "disk")]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.store = Some(StoreChoice::Dir(dir.into()));
        self
    }

    /// Sets the options of the store.
    #[cfg(feature = "disk")]
    pub fn store_options(mut self, options: StoreOptions) -> Self {
        self.store = Some(StoreChoice::Options(Box::new(options)));
        self
    }

    /// Sets a store that is already open.
    pub fn store(self, store: Store) -> Self {
        self.engine(Arc::new(store))
    }

    /// Sets the storage engine: a store of this process, or a database that several nodes share. It is closed when the
    /// runtime ends.
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> Self {
        self.store = Some(StoreChoice::Open(engine));
        self
    }

    /// Keeps sessions in memory; they end with the process.
    pub fn in_memory(mut self) -> Self {
        self.store = Some(StoreChoice::Memory);
        self
    }

    /// Sets how long to wait for a store that another process or runtime has open; the default is zero. The
    /// other one may be about to end, as in a rolling deployment, or be a runtime of this process that was
    /// just dropped. After this time, [`Self::start`] fails with [`StoreError::InUse`].
    #[cfg(feature = "disk")]
    pub fn wait_for_store(mut self, wait: Duration) -> Self {
        self.wait_for_store = wait;
        self
    }

    /// Sets the compaction settings for agents without their own.
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = settings;
        self
    }

    /// Sets the model settings for one model, for every agent. An agent's own
    /// [`settings_for`](crate::Agent::settings_for) takes precedence.
    pub fn settings_for(mut self, model: impl Into<String>, settings: ModelSettings) -> Self {
        let known = self.settings_by_model.entry(model.into()).or_default();
        *known = std::mem::take(known).merged(settings);
        self
    }

    /// Sets the price of a model, for every agent and provider. It replaces the one in the model catalogue; without
    /// either, a model's calls cost nothing. Calls that are recorded keep their cost.
    ///
    /// ```
    /// use greenroom::{ModelPrice, prelude::*};
    /// let builder = Runtime::builder()
    ///     .price_for("qwen3-coder", ModelPrice { cached_input: Some(0.02), ..ModelPrice::new(0.2, 0.8) });
    /// ```
    pub fn price_for(mut self, model: impl Into<String>, price: ModelPrice) -> Self {
        Arc::make_mut(&mut self.prices).insert(model.into(), price);
        self
    }

    /// Adds a limit on the spending of all sessions together within an hour or a day, in US dollars, as far
    /// as prices are known. Several limits apply together. The spending is kept in the store, so a restart
    /// does not reset it. While a limit is used up, runs end as stopped. Limits are checked before each step,
    /// and again when a call gets its slot at the provider: its output is then limited to what the remaining budget
    /// covers, and the call is not made if its input alone may cost more. Concurrent calls of several sessions do
    /// not reserve budget from each other, so together they may exceed the limit.
    ///
    /// ```
    /// use greenroom::{Period, prelude::*};
    /// let builder = Runtime::builder().cost_limit_usd(2.0, Period::Hour).cost_limit_usd(20.0, Period::Day);
    /// ```
    pub fn cost_limit_usd(mut self, usd: f64, within: Period) -> Self {
        self.cost_limits.retain(|(_, period)| *period != within);
        self.cost_limits.push((usd, within));
        self
    }

    /// Adds limits by label, such as those of each tenant: see [`LabelLimit`]. Limits for a label, or for a value of it,
    /// replace those that were added for the same before.
    pub fn label_limit(mut self, limit: LabelLimit) -> Self {
        self.label_limits.push(limit);
        self
    }

    /// Shares each provider's slots among the values of this label: waiting calls take turns by value first, and then
    /// by session, so that a tenant with many sessions does not delay one with few. Sessions without the label are
    /// treated like those of one more value. Without this, calls take turns by session.
    pub fn fair_by(mut self, label: impl Into<String>) -> Self {
        self.fair_by = Some(label.into());
        self
    }

    /// Sums up what is spent by the values of these labels, in addition to those with a limit; without any label, only
    /// what all sessions spend together. [`Runtime::spending`] reads the sums.
    pub fn spending_by(mut self, labels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.spending_by.get_or_insert_default().extend(labels.into_iter().map(Into::into));
        self
    }

    /// Sets the maximum depth of sub-agents; the default is 4. With 1, sub-agents have none of their own;
    /// with 0, there are none at all. The depth applies to a session however it is opened. A model that calls a
    /// sub-agent beyond this depth is told that it does not exist.
    pub fn sub_agent_depth_max(mut self, levels: usize) -> Self {
        self.sub_agent_depth_max = Some(levels);
        self
    }

    crate::agent::hooks::hook_methods! {
        /// Adds a hook before every compaction, which may cancel it, give it a focus, or supply the summary. One that
        /// panics or takes longer than [`Self::hook_timeout`] is skipped, with a warning. An agent may have hooks of
        /// its own: [`Agent::before_compact`](crate::Agent::before_compact).
        before_compact: CompactionProposal => BeforeCompact,

        /// Adds a hook after every installed compaction.
        after_compact: CompactionReport => (),

        /// Adds a hook after every compaction that was not installed.
        compact_failed: CompactionReport => (),
    }

    /// Sets the time limit of each of the runtime's hooks; the default is 10 s. A run that needs the compaction
    /// waits as long, so a hook that asks a model for the summary needs more than that model usually takes, and
    /// not much more. An agent's hooks have a limit of their own:
    /// [`Agent::hook_timeout`](crate::Agent::hook_timeout).
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.hooks.timeout = timeout;
        self
    }

    /// Sets the start time, in Unix milliseconds; from there, the clock advances with tokio's. For
    /// reproducible runs.
    pub fn clock_from(mut self, base_ms: u64) -> Self {
        self.clock_base_ms = Some(base_ms);
        self
    }

    /// Sets a function for crash tests. It is called with the session's id and a name whenever one of its
    /// actors starts (`agent/starts` …), handles a message (`session/record`, `agent/model_over` …) or
    /// reaches a step of an installation (`install/1_accepted` …). It may panic, which is then the actor's
    /// panic, or end the process.
    pub fn probe(mut self, probe: impl Fn(&str, &'static str) + Send + Sync + 'static) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// Sets the idle time after which a session sleeps, without actors; zero means never. The default is 10
    /// minutes.
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = Some(idle);
        self
    }

    /// Sets the source of settings that change while sessions are open, such as a file that the user edits.
    /// `source` returns the changes since its previous call, or `None`. It is called before each check of
    /// each session, so it must be fast: it may check a file's date, for example, but not read the file. Its
    /// first answer, when the runtime starts, takes precedence over [`Self::compaction`].
    pub fn live_settings(
        mut self,
        source: impl Fn() -> Option<SettingsChange> + Send + Sync + 'static,
    ) -> Self {
        self.live = Some(Arc::new(source));
        self
    }

    /// Sets the retention policy. A minute after the start, and then every hour, sessions that it does not keep are
    /// deleted: see [`Runtime::retain`]. The default keeps all.
    pub fn retention(mut self, policy: Retention) -> Self {
        self.retention = policy;
        self
    }

    /// Sets the redactor, which removes secrets. The default removes nothing.
    ///
    /// Values that it knows are replaced by `[redacted:NAME]` in everything that enters a session: prompts,
    /// instructions, results of tools, answers, reasons of failures. So neither the store, nor events, nor a model gets
    /// them. Texts that look like a secret are replaced in results of tools, except those that [show the user's own
    /// files](greenroom_tools::FunctionTool::shows_own_files), in requests for summaries, in summaries, and in reasons
    /// of failures. Values may be added later, to a clone of the redactor.
    ///
    /// ```
    /// use greenroom::{Redactor, prelude::*};
    /// let redactor = Redactor::with_shapes();
    /// redactor.add([("CRM_TOKEN".to_owned(), "a-long-token-123".to_owned())]);
    /// let builder = Runtime::builder().redactor(redactor);
    /// ```
    pub fn redactor(mut self, redactor: Redactor) -> Self {
        self.redactor = redactor;
        self
    }

    /// Keeps the files that the built-in tools change as they were before, so that
    /// [`SessionHandle::rewind`](crate::SessionHandle::rewind) can bring them back. Only one runtime at a time
    /// may use the folder of a history. The default keeps none.
    ///
    /// ```
    /// use greenroom::files::{FileHistory, Limits};
    /// use greenroom::prelude::*;
    ///
    /// # fn example() -> std::io::Result<()> {
    /// let history = FileHistory::open("data/files".as_ref(), Limits::default(), Vec::new())?;
    /// let builder = Runtime::builder().data_dir("data").keep_files(history);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "command-tools")]
    pub fn keep_files(mut self, history: FileHistory) -> Self {
        self.files = Some(history);
        self
    }

    /// Sets whether a compaction that is due after a run starts at once, so that the next prompt need not
    /// wait for it. The default is `true`. With `false`, it starts with the next run, before its first model
    /// call, and none is prepared in the background: for programs that end after the reply, which would interrupt
    /// both.
    pub fn compact_between_runs(mut self, at_once: bool) -> Self {
        self.leaves_compactions_to_runs = !at_once;
        self
    }

    /// Sets how long a model may be silent, in a run or a summary, before its call fails as timed out and is
    /// retried; zero means no limit. The default is 5 minutes. Providers may have stricter limits of their
    /// own.
    pub fn silence_max(mut self, silence: Duration) -> Self {
        self.silence_max = Some(silence);
        self
    }

    /// Opens the store and starts the supervisor.
    ///
    /// # Errors
    /// [`Error::Config`] without a provider or a store, or with unusable settings; [`Error::Store`] if the
    /// store cannot be opened.
    pub async fn start(self) -> Result<Runtime> {
        if self.providers.is_empty() {
            return Err(ConfigError::NoProvider.into());
        }
        self.compaction.check()?;
        self.settings_by_model.values().try_for_each(ModelSettings::check)?;
        self.prices.iter().try_for_each(|(model, price)| check_price(model, price))?;
        let mut cost_limits = Vec::new();
        for (usd, period) in self.cost_limits {
            cost_limits.push((microdollars(usd)?, period));
        }
        let counted = self.spending_by.as_deref().unwrap_or_default();
        let table = Table::new(&self.label_limits, counted, self.fair_by.as_deref())?;
        let (store, notices): (Arc<dyn Engine>, _) = match self.store {
            None => return Err(ConfigError::NoStore.into()),
            Some(StoreChoice::Memory) => (Arc::new(Store::memory()), Vec::new()),
            Some(StoreChoice::Open(engine)) => (engine, Vec::new()),
            #[cfg(feature = "disk")]
            Some(StoreChoice::Dir(dir)) => open_store(StoreOptions::new(dir), self.wait_for_store).await?,
            #[cfg(feature = "disk")]
            Some(StoreChoice::Options(options)) => open_store(*options, self.wait_for_store).await?,
        };
        deletion::finish(&*store).await?;
        let default_provider = self.providers[0].0.name().to_owned();
        let silence_max = self.silence_max.unwrap_or(SILENCE_MAX);
        let mut lanes = HashMap::new();
        for (provider, own) in self.providers {
            let limits = LaneLimits {
                in_flight_max: own.or(self.in_flight_max).unwrap_or(IN_FLIGHT_MAX),
                tokens_per_minute: self.tokens_per_minute,
                silence_max,
            };
            let name = provider.name().to_owned();
            if lanes.insert(name.clone(), Arc::new(Lane::new(provider, limits))).is_some() {
                return Err(ConfigError::DuplicateProvider { name }.into());
            }
        }
        let idle_after = self.idle_after.unwrap_or(IDLE_AFTER);
        let clock = Clock::new(self.clock_base_ms);
        let is_wanted = self.spending_by.is_some();
        let accounts = Accounts::new(Arc::clone(&store), clock.clone(), table, cost_limits, is_wanted);
        accounts.begin(clock.now_ms()).await?;
        let deps = Arc::new(Deps {
            live: self.live.map(ReloadedSettings::new),
            learned: Learned::read(Arc::clone(&store)).await,
            accounts,
            ledger: Ledger::default(),
            sub_agent_depth_max: self.sub_agent_depth_max.unwrap_or(SUB_AGENT_DEPTH_MAX),
            store,
            tools: SharedTools::default(),
            bus: Bus::new(clock.clone(), self.redactor.clone()),
            redactor: self.redactor,
            lanes,
            default_provider,
            compaction: RwLock::new(Arc::new(self.compaction)),
            settings_by_model: self.settings_by_model,
            prices: self.prices,
            hooks: self.hooks,
            clock,
            idle_after_ms: u64::try_from(idle_after.as_millis()).unwrap_or(u64::MAX),
            compacts_between_runs: !self.leaves_compactions_to_runs,
            taking_over: Arc::default(),
            supervisor: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            deleted_before_ms: AtomicU64::new(0),
            tickets: AtomicU64::new(1),
            opens: tokio::sync::Semaphore::new(REQUESTS_MAX),
            admission: Admission::new(
                Some(self.inputs_max.unwrap_or(Self::INPUTS_MAX)).filter(|inputs| *inputs > 0),
            ),
            live_sessions_max: self.live_sessions_max,
            uses: AtomicU64::new(1),
            probe: self.probe,
            waits: Arc::default(),
            searches: Arc::default(),
            deletions: tokio::sync::Mutex::default(),
            consumers: crate::core::consumers::Consumers::default(),
            metrics: Metrics::default(),
            heirs: ownership::Heirs::default(),
            readiness: Readiness::default(),
            retention: self.retention,
            #[cfg(feature = "command-tools")]
            files: self.files,
        });
        #[cfg(feature = "command-tools")]
        if let Some(files) = &deps.files {
            kept_files::clean(files, &deps.store);
        }
        deps.refresh_runtime_settings();
        let (supervisor, _) = Actor::spawn(None, Supervisor, Arc::clone(&deps))
            .await
            .map_err(|error| Error::internal("starting the supervisor", &error))?;
        let _ = deps.supervisor.set(supervisor.clone());
        ownership::watch(&deps, &supervisor);
        let stop = StopOnDrop { deps: Arc::clone(&deps), supervisor: supervisor.clone() };
        let runtime = Runtime { deps, supervisor, notices: Arc::new(notices), _stop: Arc::new(stop) };
        if !runtime.retention().keeps_all() {
            retention::keep_applying(&runtime);
        }
        Ok(runtime)
    }
}

/// The pause before a store that is in use is tried again.
#[cfg(feature = "disk")]
const STORE_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Opens a store, waiting up to this time while it is in use.
#[cfg(feature = "disk")]
async fn open_store(options: StoreOptions, wait: Duration) -> Result<(Arc<dyn Engine>, Vec<Notice>)> {
    let (options, until) = (Arc::new(options), tokio::time::Instant::now().checked_add(wait));
    loop {
        let tried = Arc::clone(&options);
        // sled may panic on a damaged index; the store catches that on a thread of its own.
        let opened = tokio::task::spawn_blocking(move || Store::open(&tried)).await;
        match opened.map_err(|panic| Error::internal("opening the store", &panic))? {
            Err(StoreError::InUse { .. })
                if until.is_none_or(|until| tokio::time::Instant::now() < until) =>
            {
                tokio::time::sleep(STORE_AGAIN_AFTER).await;
            }
            opened => {
                let (store, notices) = opened?;
                return Ok((Arc::new(store), notices));
            }
        }
    }
}
