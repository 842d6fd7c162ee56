//! The runtime: a store, providers and a supervisor; where programs open their sessions.
//!
//! Invariants: a runtime is one value, with no globals and no named actors, so a process may have several;
//! dropping the last clone of it without [`Runtime::shutdown`] loses nothing that was acknowledged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_provider::{ModelSettings, Provider};
use greenroom_store::{Notice, Store, StoreError, StoreOptions};
use parking_lot::RwLock;
use ractor::{Actor, ActorRef};
use tokio::sync::oneshot;

use crate::actors::supervisor::Supervisor;
use crate::agent::Agent;
use crate::agent::hooks::Hooks;
use crate::agent::live::{Live, SettingsChange};
use crate::agent::shared_tools::SharedTools;
use crate::api::deletion;
use crate::api::models::{Models, models};
use crate::api::questions::{self, PendingQuestion};
use crate::api::resume::ResumeAll;
use crate::api::session::SessionHandle;
use crate::api::sessions::{self, Order, SessionQuery, SessionSummary};
use crate::core::deps::{Deps, blocking};
use crate::core::door::open;
use crate::core::message::{OpenReason, SupervisorMessage};
use crate::core::shared::REQUESTS_MAX;
use crate::events::activity::LiveSession;
use crate::events::bus::{Bus, Filter, Subscription};
use crate::events::event::{self, Event};
use crate::lane::learned::Learned;
use crate::lane::{IN_FLIGHT_MAX, Lane, LaneLimits, SILENCE_MAX};
use crate::limits::admission::Admission;
use crate::limits::spending::tree::Ledger;
use crate::limits::spending::{Period, Purse, microdollars};
use crate::values::clock::Clock;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};
use crate::values::error::{BranchPointError, ConfigError, Error, Result};
use crate::values::state::Status;

/// How long a session may be idle before it gives its actors back, by default.
const IDLE_AFTER: Duration = Duration::from_secs(600);
/// How deep agents may call agents, by default.
const SUB_AGENT_DEPTH_MAX: usize = 4;
/// How long a shutdown waits for sessions to end in order.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// A running runtime. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
    notices: Arc<Vec<Notice>>,
    _stop: Arc<StopOnDrop>,
}

/// Stops the actors when the last clone of a runtime is gone: actors do not end by themselves.
struct StopOnDrop {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.deps.bus.close();
        self.supervisor.stop(None);
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("providers", &self.deps.lanes.keys()).finish_non_exhaustive()
    }
}

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

impl Runtime {
    /// A runtime that is put together by hand.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Creates or resumes a session. If it is live already, this reaches the same one, with this agent from its
    /// next run on; with an agent that cannot work, this is an error and the session goes on as it was.
    ///
    /// The agent is an `&Agent`, which is copied, an [`Agent`], or an `Arc<Agent>` that many sessions share.
    ///
    /// # Errors
    /// [`Error::Config`] when the agent, its provider or its settings cannot work; [`Error::Store`] when the id is
    /// not usable or the log cannot be read.
    pub async fn open(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let shared = open(&self.deps, Arc::from(id), agent.into(), None, OpenReason::Open).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// As [`Self::open`], where others may be at work in the session: a run in progress and what waits keep their agents,
    /// and this agent is taken at once only where the session does nothing. What is asked of the handle is done with this
    /// agent, as with [`SessionHandle::with_agent`].
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let hers = runtime.join("plan", Agent::new("gpt-5.5").instructions("You help Ada.")).await?;
    /// let his = runtime.join("plan", Agent::new("gpt-5.5").instructions("You help Bob.")).await?;
    /// println!("{}", hers.prompt("What is first?").await?);
    /// println!("{}", his.prompt("And then?").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn join(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let agent = agent.into();
        let shared = open(&self.deps, Arc::from(id), Arc::clone(&agent), None, OpenReason::Join).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)).with_agent(agent))
    }

    /// A session that is there already, live or stored. Nothing is started, and no agent is replaced.
    ///
    /// What needs no agent works at once: looking at it, aborting it, clearing its inbox. A prompt in a session that no
    /// program gave an agent to in this process is [`Error::NoAgent`]: see [`SessionHandle::set_agent`].
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn session(&self, id: &str) -> Result<SessionHandle> {
        if let Some(known) = self.held(id).await? {
            return Ok(known);
        }
        let head = self.head(id).await?.ok_or_else(|| no_session(id))?;
        let (id, parent) = (Arc::from(id), head.parent_session.map(Arc::from));
        let shared = self.ask(|reply| SupervisorMessage::Attach { id, parent, reply }).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// A session that is live, or that somebody holds.
    pub(crate) async fn held(&self, id: &str) -> Result<Option<SessionHandle>> {
        let known = self.ask(|reply| SupervisorMessage::Find { id: Arc::from(id), reply }).await?;
        Ok(known.map(|shared| SessionHandle::new(shared, Arc::clone(&self.deps))))
    }

    /// A copy of a session under another id: its active context goes on there; the original stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::NotEmpty`] when the new id is taken: then nothing is changed.
    pub async fn fork(&self, from: &str, to: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let head = self.head(from).await?.ok_or_else(|| no_session(from))?;
        self.fork_to_leaf(from, to, head.leaf, agent.into()).await
    }

    /// As [`Self::fork`], with the path that ends at an entry: also of a session whose log cannot be opened.
    ///
    /// # Errors
    /// As [`Self::fork`]; [`Error::BranchPoint`] when no path ends at that entry.
    pub async fn fork_at(
        &self,
        from: &str,
        to: &str,
        at: EntryId,
        agent: impl Into<Arc<Agent>>,
    ) -> Result<SessionHandle> {
        self.fork_to_leaf(from, to, Some(at), agent.into()).await
    }

    async fn fork_to_leaf(
        &self,
        from: &str,
        to: &str,
        leaf: Option<EntryId>,
        agent: Arc<Agent>,
    ) -> Result<SessionHandle> {
        if self.head(to).await?.is_some_and(|taken| taken.entries > 0) {
            return Err(Error::NotEmpty { session: to.to_owned() });
        }
        let entries = self.entries(from, EntryId(0)).await?;
        if let Some(entry) = leaf {
            let at = entries.binary_search_by_key(&entry, |entry| entry.id);
            let at = at.map_err(|_| Error::NoEntry { entry, entries: entries.len() as u64 })?;
            if !entries[at].kind.is_on_path() {
                return Err(Error::BranchPoint(BranchPointError::BesidePath { entry }));
            }
        }
        let session = self.open(to, agent).await?;
        session.import(entries.into_iter().map(Arc::new).collect(), leaf).await?;
        Ok(session)
    }

    /// Events, from now on.
    pub fn subscribe(&self, filter: Filter) -> Subscription {
        self.deps.bus.subscribe(filter)
    }

    /// A session's durable events from a position on, from its log.
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn replay(&self, id: &str, from_seq: u64) -> Result<Vec<Event>> {
        let session: Arc<str> = Arc::from(id);
        let Some(head) = self.head(id).await? else { return self.none_of_empty(id).await };
        let mut entries = self.entries(id, EntryId(from_seq)).await?;
        // What was appended since the head was read belongs to the next replay.
        entries.retain(|entry| entry.id.0 < head.entries);
        let parent = head.parent_session.map(Arc::from);
        Ok(event::of_entries(&session, parent.as_ref(), head.created_at_ms, &entries, head.open_run)
            .collect())
    }

    /// The sessions in the store: all of them, in the order of their ids, where nothing else is asked for. No log is read,
    /// and none is woken.
    ///
    /// Its errors: [`Error::Store`].
    pub fn sessions(&self) -> SessionQuery {
        SessionQuery::new(self.clone())
    }

    /// The sessions with work that was taken on and is not done, by their heads: after a crash or a shutdown, what
    /// [`Self::resume_all`] would finish. The oldest comes first. Nothing is opened.
    ///
    /// Its errors: [`Error::Store`].
    pub fn unfinished(&self) -> SessionQuery {
        self.sessions().unfinished().order(Order::Oldest)
    }

    /// Finishes what the end of a process left, as soon as it is awaited: in every unfinished session the run that was
    /// interrupted goes on, and then what waits behind it begins. `agent` says who does it; `None` leaves a session as it
    /// is. 16 sessions at a time, see [`ResumeAll::at_once`].
    ///
    /// A prompt is answered once. A tool call that was under way when the process ended is told to the model as
    /// interrupted; whether to call it again is the model's decision.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let agent = std::sync::Arc::new(Agent::new("gpt-5.5"));
    /// for resumed in runtime.resume_all(move |_| Some(agent.clone())).at_once(4).await? {
    ///     match resumed.result {
    ///         Ok(reply) => println!("{}: {reply}", resumed.session.id()),
    ///         Err(error) => eprintln!("{}: {error}", resumed.session.id()),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Its errors: [`Error::Store`] when the store cannot be read. What a session failed with is in its
    /// [`Resumed::result`](crate::Resumed::result).
    pub fn resume_all<A: Into<Arc<Agent>>>(
        &self,
        mut agent: impl FnMut(&SessionSummary) -> Option<A> + Send + 'static,
    ) -> ResumeAll {
        ResumeAll::new(self.clone(), Box::new(move |session| agent(session).map(Into::into)))
    }

    /// The questions that wait for a person's answer, in all sessions: those of a session together, oldest first. Only
    /// heads and the questions themselves are read; nothing is opened. [`SessionHandle::answer`] answers them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn questions(&self) -> Result<Vec<PendingQuestion>> {
        let mut pending = Vec::new();
        for session in self.sessions().with_questions().await? {
            pending.extend(questions::of_session(&self.deps, &session.id).await?);
        }
        Ok(pending)
    }

    /// What the store knows of one session; `None` where nothing was ever said in it. No log is read.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn summary(&self, id: &str) -> Result<Option<SessionSummary>> {
        Ok(self.head(id).await?.map(|head| SessionSummary::new(id.to_owned(), head)))
    }

    /// A session's entries from a position on.
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn entries(&self, id: &str, from: EntryId) -> Result<Vec<Entry>> {
        let stored = id.to_owned();
        match self.read(move |store| store.load(&stored, from)).await {
            Err(Error::Store(error)) if matches!(*error, StoreError::NotFound { .. }) => {
                self.none_of_empty(id).await
            }
            read => read,
        }
    }

    /// Nothing, of a session that somebody holds and in which nothing was said yet.
    async fn none_of_empty<T>(&self, id: &str) -> Result<Vec<T>> {
        self.session(id).await.map(|_| Vec::new())
    }

    /// A session's compactions, oldest first: each is an entry of that kind. Undone ones and those of branches that
    /// were left are among them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn compactions(&self, id: &str) -> Result<Vec<Entry>> {
        let id = id.to_owned();
        self.read(move |store| {
            let mut chain = Vec::new();
            let mut next = store.head(&id)?.and_then(|head| head.last_compaction);
            while let Some(at) = next {
                let Some(entry) = store.get(&id, &[at])?.pop() else { break };
                // Each points to an earlier one; a damaged log must not make a circle.
                let previous = entry.kind.as_compaction().and_then(|compaction| compaction.previous);
                next = previous.filter(|previous| *previous < at);
                chain.push(entry);
            }
            chain.reverse();
            Ok(chain)
        })
        .await
    }

    /// Deletes a session and all its entries, and the sessions below it: those of the agents that its agent called as
    /// tools, and of those that they called. They are closed first. What a crash cuts off is finished when the store is
    /// opened again. A handle that is still held gets [`Error::Deleted`]
    /// from then on, whatever becomes of the id. Its bytes stay in the store's files until more than half
    /// of a file is deleted; `runtime.store().reclaim()` removes them at once.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Store`].
    pub async fn delete(&self, id: &str) -> Result<()> {
        let (runtime, id) = (self.clone(), id.to_owned());
        // Half of it is not done where the caller goes away.
        let deleted = tokio::spawn(async move { deletion::delete(&runtime, &id).await });
        deleted.await.unwrap_or_else(|panic| Err(Error::internal("deleting a session", &panic)))
    }

    /// Deletes one session, and none below it.
    pub(crate) async fn delete_alone(&self, id: &str) -> Result<()> {
        self.ask(|reply| SupervisorMessage::Delete { id: Arc::from(id), reply }).await?
    }

    /// The ids of the sessions below one, callers before those whom they called.
    pub(crate) async fn stored_tree(&self, id: &str) -> Result<Vec<String>> {
        let (store, id) = (self.deps.store.clone(), id.to_owned());
        let read = move || Ok(sessions::tree(&store, &id)?.into_iter().map(|(id, _)| id).collect());
        blocking(&self.deps, read).await
    }

    /// Ends a session's actors in order; its run is interrupted. The next request wakes it from its log.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn close(&self, id: &str) -> Result<()> {
        let (done, ended) = oneshot::channel();
        let message = SupervisorMessage::Close { id: Arc::from(id), done };
        self.supervisor.cast(message).map_err(|_| Error::Closed)?;
        let _ = ended.await;
        Ok(())
    }

    /// The ids of the sessions whose actors are live.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn live(&self) -> Result<Vec<String>> {
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(live.iter().map(ToString::to_string).collect())
    }

    /// The sessions that are live, or sleep in the middle of a run, by id: how each stands and what it does. Nothing is
    /// opened or woken by looking.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let session = runtime.open("umbrella", &Agent::new("gpt-5.5")).await?;
    /// session.prompt("Umbrella in Oslo?").await?;
    /// for session in runtime.live_sessions().await? {
    ///     println!("{}: {:?}, step {:?}", session.state.id, session.state.status, session.activity.step);
    /// }
    /// # assert_eq!(runtime.live_sessions().await?.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Store`].
    pub async fn live_sessions(&self) -> Result<Vec<LiveSession>> {
        let mut sessions = Vec::new();
        for id in self.at_work().await? {
            let session = match self.session(&id).await {
                Ok(session) => session,
                Err(Error::Closed) => return Err(Error::Closed),
                // It was deleted meanwhile, or nothing was said in it and it is closed.
                Err(_) => continue,
            };
            let Ok(state) = session.state().await else { continue };
            let summary = self.summary(&id).await?;
            sessions.push(LiveSession {
                activity: session.activity(),
                is_asleep: !session.is_live(),
                title: summary.as_ref().and_then(|known| known.shown_title().map(str::to_owned)),
                parent: summary.as_ref().and_then(|known| known.parent.clone()),
                updated_at_ms: summary.as_ref().map(|known| known.updated_at_ms),
                labels: summary.map(|known| known.labels).unwrap_or_default(),
                state,
            });
        }
        sessions.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        Ok(sessions)
    }

    /// The ids of the sessions that are live, or sleep in the middle of a run.
    pub(crate) async fn at_work(&self) -> Result<HashSet<String>> {
        let suspended = self.ask(SupervisorMessage::Suspended).await?;
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(suspended.iter().chain(&live).map(ToString::to_string).collect())
    }

    /// The sessions in which something is under way or waits and may begin, awake or asleep.
    pub(crate) async fn awaited(&self) -> Result<HashSet<String>> {
        let awaited = self.ask(SupervisorMessage::Awaited).await?;
        Ok(awaited.iter().map(ToString::to_string).collect())
    }

    /// The ids of the sessions in which a run or a compaction goes on. One that waits for a person's answer is not among
    /// them: its questions are in its log.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Store`].
    pub async fn working(&self) -> Result<Vec<String>> {
        let mut working = Vec::new();
        for id in self.at_work().await? {
            let status = match self.session(&id).await {
                Ok(session) => session.state().await.map(|state| state.status),
                Err(error) => Err(error),
            };
            match status {
                Ok(Status::Working | Status::Compacting) => working.push(id),
                Ok(Status::Idle | Status::Waiting | Status::Unknown) => {}
                // It was deleted meanwhile, or cannot be read, and then nothing goes on in it.
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_) => {}
            }
        }
        working.sort_unstable();
        Ok(working)
    }

    /// Changes how sessions are compacted, where their agent does not say; at the next check of each.
    ///
    /// # Errors
    /// [`Error::Config`] with settings that cannot work; the old ones stay.
    pub async fn set_compaction(&self, settings: CompactionSettings) -> Result<()> {
        settings.check()?;
        let settings = Arc::new(settings);
        let (reply, answers) = oneshot::channel();
        let check = SupervisorMessage::CheckSettings { settings: Arc::clone(&settings), reply };
        self.supervisor.cast(check).map_err(|_| Error::Closed)?;
        for answer in answers.await.map_err(|_| Error::Closed)? {
            // A session that is gone by now has no objection.
            answer.await.unwrap_or(Ok(()))?;
        }
        *self.deps.compaction.write() = settings;
        let (reply, done) = oneshot::channel();
        self.supervisor.cast(SupervisorMessage::Reconfigure(reply)).map_err(|_| Error::Closed)?;
        done.await.map_err(|_| Error::Closed)
    }

    /// The models of an agent's provider, with their windows, output limits and prices, and where each comes from. The
    /// server is asked for its list; no model is.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn models(&self, agent: &Agent) -> Result<Models> {
        models(&self.deps, agent).await
    }

    /// Forgets the limit that a model's server named when it refused a request. Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn forget_limit(&self, agent: &Agent, model: &str) -> Result<bool> {
        let lane = self.deps.lane(agent).ok_or_else(|| self.deps.unknown_provider(agent))?;
        Ok(self.deps.learned.forget_limit(lane.origin(), model).await?)
    }

    /// What the store had to say when it was opened: repairs and losses.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The store, for tools that look into it.
    pub fn store(&self) -> &Store {
        &self.deps.store
    }

    /// Takes on no more input, and waits until all that was taken on is done, what waits in inboxes with it: but no longer
    /// than `at_most`. Gives how many inputs are left; [`Self::shutdown`] interrupts them, and [`Self::resume_all`] finishes
    /// them after the next start. What is said from now on is [`Error::Closed`].
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let left = runtime.drain(std::time::Duration::from_secs(30)).await;
    /// if left > 0 {
    ///     eprintln!("{left} inputs are finished after the next start");
    /// }
    /// runtime.shutdown().await?;
    /// # Ok(()) }
    /// ```
    pub async fn drain(&self, at_most: Duration) -> usize {
        self.deps.admission.drain(at_most).await
    }

    /// Ends everything in order: runs are interrupted with what had come, logs are whole, the store is closed.
    ///
    /// # Errors
    /// [`Error::Store`] when the store cannot be closed properly; nothing acknowledged is lost even then.
    pub async fn shutdown(self) -> Result<()> {
        let (done, ended) = oneshot::channel();
        if self.supervisor.cast(SupervisorMessage::Shutdown(done)).is_ok() {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await;
        }
        self.deps.bus.close();
        self.supervisor.stop(None);
        self.deps.purse.flush().await;
        Ok(self.deps.store.clone().close().await?)
    }

    /// Asks the supervisor.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> SupervisorMessage) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.supervisor.cast(message(reply)).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    pub(crate) fn deps(&self) -> &Arc<Deps> {
        &self.deps
    }

    async fn head(&self, id: &str) -> Result<Option<Head>> {
        let id = id.to_owned();
        self.read(move |store| store.head(&id)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let store = self.deps.store.clone();
        blocking(&self.deps, move || Ok(read(&store)?)).await
    }
}

fn no_session(id: &str) -> Error {
    Error::NoSession { session: id.to_owned() }
}
