//! How a runtime is put together: its providers, its store, its limits and its hooks.
//!
//! Invariants: nothing is started or opened before [`RuntimeBuilder::start`], and settings that cannot work are refused
//! there before the store is opened.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use greenroom_kernel::settings::CompactionSettings;
use greenroom_provider::{ModelSettings, Provider};
use greenroom_store::{Notice, Store, StoreError, StoreOptions};
use parking_lot::RwLock;
use ractor::Actor;

use super::{Runtime, StopOnDrop};
use crate::actors::supervisor::Supervisor;
use crate::agent::hooks::Hooks;
use crate::agent::live::{Live, SettingsChange};
use crate::agent::shared_tools::SharedTools;
use crate::api::deletion;
use crate::core::deps::Deps;
use crate::core::shared::REQUESTS_MAX;
use crate::events::bus::Bus;
use crate::lane::learned::Learned;
use crate::lane::{IN_FLIGHT_MAX, Lane, LaneLimits, SILENCE_MAX};
use crate::limits::admission::Admission;
use crate::limits::spending::tree::Ledger;
use crate::limits::spending::{Period, Purse, microdollars};
use crate::values::clock::Clock;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};
use crate::values::error::{ConfigError, Error, Result};

/// How long a session may be idle before it gives its actors back, by default.
const IDLE_AFTER: Duration = Duration::from_secs(600);
/// How deep agents may call agents, by default.
const SUB_AGENT_DEPTH_MAX: usize = 4;

/// How a runtime is put together.
#[derive(Default)]
pub struct RuntimeBuilder {
    providers: Vec<(Arc<dyn Provider>, Option<usize>)>,
    in_flight_max: Option<usize>,
    tokens_per_minute: Option<u64>,
    inputs_max: Option<usize>,
    live_sessions_max: Option<usize>,
    store: Option<StoreChoice>,
    wait_for_store: Duration,
    compaction: CompactionSettings,
    settings_by_model: BTreeMap<String, ModelSettings>,
    cost_limits: Vec<(f64, Period)>,
    sub_agent_depth_max: Option<usize>,
    hooks: Hooks,
    clock_base_ms: Option<u64>,
    idle_after: Option<Duration>,
    silence_max: Option<Duration>,
    leaves_compactions_to_runs: bool,
    live: Option<crate::agent::live::Source>,
    probe: Option<crate::core::deps::Probe>,
}

enum StoreChoice {
    Memory,
    Dir(PathBuf),
    Options(Box<StoreOptions>),
    Open(Store),
}

impl std::fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeBuilder").finish_non_exhaustive()
    }
}

impl RuntimeBuilder {
    /// How many inputs a runtime takes on at the same time where [`Self::inputs_max`] says nothing else.
    pub const INPUTS_MAX: usize = 16_384;

    /// A provider. The first one serves the agents that name none.
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.push((provider, None));
        self
    }

    /// A provider with its own limit of calls in flight.
    #[must_use]
    pub fn provider_with(mut self, provider: Arc<dyn Provider>, in_flight_max: usize) -> Self {
        self.providers.push((provider, Some(in_flight_max)));
        self
    }

    /// How many model calls each provider gets at a time; 16 where this is not called. 0 counts as 1.
    #[must_use]
    pub fn in_flight_max(mut self, calls: usize) -> Self {
        self.in_flight_max = Some(calls);
        self
    }

    /// The most tokens a minute that each provider is sent and gives back, summaries with the rest; 0, the default: no
    /// limit. A call begins when the limit leaves room for what it is expected to take, which is its context and its
    /// output limit, and counts for what it used once it is answered. Calls that wait for that are told in `queue_update`.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let builder = Runtime::builder().in_flight_max(32).tokens_per_minute(2_000_000);
    /// ```
    #[must_use]
    pub fn tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens_per_minute = Some(tokens).filter(|tokens| *tokens > 0);
        self
    }

    /// How many inputs the runtime takes on at the same time, over all its sessions; 0: no limit. 16,384 by default. What
    /// is under way and what waits in live sessions counts; one more prompt, steer or follow-up is
    /// [`Error::RuntimeBusy`]. Agents that an agent calls as tools count too, and are never refused.
    #[must_use]
    pub fn inputs_max(mut self, inputs: usize) -> Self {
        self.inputs_max = Some(inputs);
        self
    }

    /// How many sessions may be live, which means have actors in memory; 0, the default: no limit. Where there are more,
    /// those with nothing to do that were used least recently fall asleep, before they have been idle for
    /// [`Self::idle_after`]. Sessions at work stay, so there may be more as long as they work.
    #[must_use]
    pub fn live_sessions_max(mut self, sessions: usize) -> Self {
        self.live_sessions_max = Some(sessions).filter(|sessions| *sessions > 0);
        self
    }

    /// The directory of the store; it is created where it is missing.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.store = Some(StoreChoice::Dir(dir.into()));
        self
    }

    /// A store with options of its own.
    #[must_use]
    pub fn store_options(mut self, options: StoreOptions) -> Self {
        self.store = Some(StoreChoice::Options(Box::new(options)));
        self
    }

    /// A store that is open already.
    #[must_use]
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(StoreChoice::Open(store));
        self
    }

    /// Sessions that live in memory and end with the process.
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        self.store = Some(StoreChoice::Memory);
        self
    }

    /// How long a store that another process or another runtime has open is waited for; zero, the default: not at all.
    /// Whoever has it may be about to end, as in a rolling deployment, or be a runtime of this process that was dropped a
    /// moment ago. After that [`Self::start`] is [`StoreError::InUse`], as it is at once without this.
    #[must_use]
    pub fn wait_for_store(mut self, wait: Duration) -> Self {
        self.wait_for_store = wait;
        self
    }

    /// How sessions are compacted, where their agent does not say.
    #[must_use]
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = settings;
        self
    }

    /// How one model is to answer, whichever agent asks it. An agent's own [`Agent::settings_for`] wins over this.
    #[must_use]
    pub fn settings_for(mut self, model: impl Into<String>, settings: ModelSettings) -> Self {
        let known = self.settings_by_model.entry(model.into()).or_default();
        *known = std::mem::take(known).merged(settings);
        self
    }

    /// The most that all sessions together may spend within an hour or a day, in US dollars, as far as prices are known.
    /// Several limits hold side by side. What was spent is kept in the store, so a restart is no new allowance. Runs end as
    /// stopped while a limit is used up. It is looked at before each step, and again when a call has its place at the
    /// provider, which then gets no more output than what is left pays for, and is not made where its input alone may cost
    /// more. Calls of several sessions that are under way at the same time do not know of each other, so that these may go
    /// beyond the limit together.
    ///
    /// ```
    /// use greenroom::{Period, prelude::*};
    /// let builder = Runtime::builder().cost_limit_usd(2.0, Period::Hour).cost_limit_usd(20.0, Period::Day);
    /// ```
    #[must_use]
    pub fn cost_limit_usd(mut self, usd: f64, within: Period) -> Self {
        self.cost_limits.retain(|(_, period)| *period != within);
        self.cost_limits.push((usd, within));
        self
    }

    /// How deep agents may call agents as tools: 1 for agents that call none themselves, 0 for none at all; 4 where this is
    /// not called. It holds for a session whoever opens it. The model that asks for another level reads that there is none.
    #[must_use]
    pub fn sub_agent_depth_max(mut self, levels: usize) -> Self {
        self.sub_agent_depth_max = Some(levels);
        self
    }

    /// A hook before every compaction: it may cancel it or supply the summary.
    #[must_use]
    pub fn before_compact<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(CompactionProposal) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = BeforeCompact> + Send + 'static,
    {
        self.hooks.before_compact.push(crate::agent::hooks::hook(hook));
        self
    }

    /// A hook after every installed compaction.
    #[must_use]
    pub fn after_compact<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(CompactionReport) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = ()> + Send + 'static,
    {
        self.hooks.after_compact.push(crate::agent::hooks::hook(hook));
        self
    }

    /// A hook after every compaction that was not installed.
    #[must_use]
    pub fn compact_failed<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(CompactionReport) -> Fut + Send + Sync + 'static,
        Fut: std::future::Future<Output = ()> + Send + 'static,
    {
        self.hooks.compact_failed.push(crate::agent::hooks::hook(hook));
        self
    }

    /// Time that begins here, in unix milliseconds, and goes on with tokio's clock: for repeatable runs.
    #[must_use]
    pub fn clock_from(mut self, base_ms: u64) -> Self {
        self.clock_base_ms = Some(base_ms);
        self
    }

    /// For tests of what must survive: a function that is called with the session's id and a name whenever one of
    /// its actors starts (`agent/starts` …), takes up a message (`session/record`, `agent/model_over` …) or comes to
    /// a step of an installation (`install/1_accepted` …). It may panic, which is then that actor's panic, or end the process.
    #[must_use]
    pub fn probe(mut self, probe: impl Fn(&str, &'static str) + Send + Sync + 'static) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// How long a session may be idle before it gives its actors back; zero: never. 10 minutes by default.
    #[must_use]
    pub fn idle_after(mut self, idle: Duration) -> Self {
        self.idle_after = Some(idle);
        self
    }

    /// Settings that change while sessions are open, such as a file that its user edits. `source` says what changed since
    /// it was asked last, `None` for nothing; it is asked before each check of each session, so it must be quick: a look
    /// at a file's date, not its contents. What it says first, when the runtime starts, stands over
    /// [`Self::compaction`].
    #[must_use]
    pub fn live_settings(
        mut self,
        source: impl Fn() -> Option<SettingsChange> + Send + Sync + 'static,
    ) -> Self {
        self.live = Some(Arc::new(source));
        self
    }

    /// Whether a compaction that is due when a run has ended begins at once, so that the next prompt need not wait for
    /// it. `true` by default. With `false` it begins with the next run, before its first model call: for programs that
    /// end with the reply, and would interrupt it.
    #[must_use]
    pub fn compact_between_runs(mut self, at_once: bool) -> Self {
        self.leaves_compactions_to_runs = !at_once;
        self
    }

    /// How long a model may say nothing, in a run or a summary, before its call is given up as timed out and tried
    /// again; zero: for ever. 5 minutes by default. Providers may have stricter limits of their own.
    #[must_use]
    pub fn silence_max(mut self, silence: Duration) -> Self {
        self.silence_max = Some(silence);
        self
    }

    /// Opens the store and starts the supervisor.
    ///
    /// # Errors
    /// [`Error::Config`] without a provider or a store, or with settings that cannot work; [`Error::Store`] when
    /// the store cannot be opened.
    pub async fn start(self) -> Result<Runtime> {
        if self.providers.is_empty() {
            return Err(ConfigError::NoProvider.into());
        }
        self.compaction.check()?;
        self.settings_by_model.values().try_for_each(ModelSettings::check)?;
        let mut cost_limits = Vec::new();
        for (usd, period) in self.cost_limits {
            cost_limits.push((microdollars(usd)?, period));
        }
        let (store, notices) = match self.store {
            None => return Err(ConfigError::NoStore.into()),
            Some(StoreChoice::Memory) => (Store::memory(), Vec::new()),
            Some(StoreChoice::Open(store)) => (store, Vec::new()),
            Some(StoreChoice::Dir(dir)) => open_store(StoreOptions::new(dir), self.wait_for_store).await?,
            Some(StoreChoice::Options(options)) => open_store(*options, self.wait_for_store).await?,
        };
        for notice in &notices {
            tracing::warn!("{notice}");
        }
        deletion::finish(&store).await?;
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
        let deps = Arc::new(Deps {
            live: self.live.map(Live::new),
            learned: Learned::new(store.clone()),
            purse: Purse::new(store.clone(), &cost_limits),
            ledger: Ledger::default(),
            sub_agent_depth_max: self.sub_agent_depth_max.unwrap_or(SUB_AGENT_DEPTH_MAX),
            store,
            tools: SharedTools::default(),
            bus: Bus::new(clock.clone()),
            lanes,
            default_provider,
            compaction: RwLock::new(Arc::new(self.compaction)),
            settings_by_model: self.settings_by_model,
            hooks: self.hooks,
            clock,
            idle_after_ms: u64::try_from(idle_after.as_millis()).unwrap_or(u64::MAX),
            compacts_between_runs: !self.leaves_compactions_to_runs,
            supervisor: OnceLock::new(),
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
            deletions: tokio::sync::Mutex::default(),
        });
        deps.refresh_runtime_settings();
        let (supervisor, _) = Actor::spawn(None, Supervisor, Arc::clone(&deps))
            .await
            .map_err(|error| Error::internal("starting the supervisor", &error))?;
        let _ = deps.supervisor.set(supervisor.clone());
        let stop = StopOnDrop { deps: Arc::clone(&deps), supervisor: supervisor.clone() };
        Ok(Runtime { deps, supervisor, notices: Arc::new(notices), _stop: Arc::new(stop) })
    }
}

/// How long it takes before a store that is in use is looked at again.
const STORE_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Opens a store, for which this waits so long at most while it is in use.
async fn open_store(options: StoreOptions, wait: Duration) -> Result<(Store, Vec<Notice>)> {
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
            opened => return Ok(opened?),
        }
    }
}
