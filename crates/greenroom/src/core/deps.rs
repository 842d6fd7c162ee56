//! The services that all actors of one runtime share: the store, the bus, the providers' lanes, the settings,
//! learned facts about models, the hooks and the clock.
//!
//! Invariants: nothing here belongs to one session, and nothing here is global to the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use greenroom_kernel::bill::CallCost;
use greenroom_kernel::redact::Redactor;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::{KnownWindows, Window};
use greenroom_provider::{ModelInfo, ModelSettings};
use greenroom_store::Engine;
#[cfg(feature = "command-tools")]
use greenroom_tools::rewind::FileHistory;
use parking_lot::RwLock;

use crate::agent::Agent;
use crate::agent::hooks::Hooks;
use crate::agent::live_settings::ReloadedSettings;
use crate::agent::shared_tools::SharedTools;
use crate::core::consumers::Consumers;
use crate::core::message::SupervisorMessage;
use crate::core::metrics::Metrics;
use crate::core::ownership::Heirs;
use crate::core::readiness::Readiness;
use crate::core::searches::Searches;
use crate::core::shared::SessionShared;
use crate::events::bus::Bus;
use crate::lane::learned::Learned;
use crate::lane::{Lane, Turn};
use crate::limits::accounts::Accounts;
use crate::limits::admission::Admission;
use crate::limits::labels::Tenants;
use crate::limits::spending::tree::Ledger;
use crate::limits::waits::Waits;
use crate::values::clock::Clock;
use crate::values::error::{ConfigError, Error};
use crate::values::model_info::{PriceList, call_cost_of, model_info, priced};
use crate::values::retention::Retention;

/// The services of one runtime.
pub(crate) struct Deps {
    pub(crate) store: Arc<dyn Engine>,
    /// How many tasks take over the work of other nodes: see `Runtime::take_over`.
    pub(crate) taking_over: Arc<AtomicUsize>,
    pub(crate) bus: Bus,
    /// Redacts what sessions record, publish and send to summarisers.
    pub(crate) redactor: Redactor,
    pub(crate) lanes: HashMap<String, Arc<Lane>>,
    pub(crate) default_provider: String,
    pub(crate) compaction: RwLock<Arc<CompactionSettings>>,
    /// The source of settings that change while sessions are open.
    pub(crate) live: Option<ReloadedSettings>,
    pub(crate) learned: Learned,
    /// What was spent by all sessions and by label, and the limits.
    pub(crate) accounts: Arc<Accounts>,
    /// The budgets of sessions that call each other.
    pub(crate) ledger: Ledger<SessionShared>,
    /// The maximum depth of sub-agents.
    pub(crate) sub_agent_depth_max: usize,
    /// The tools that sessions share.
    pub(crate) tools: SharedTools,
    /// Prices by model name, for every agent.
    pub(crate) prices: PriceList,
    /// Model settings by model name, for every agent.
    pub(crate) settings_by_model: BTreeMap<String, ModelSettings>,
    pub(crate) hooks: Hooks,
    pub(crate) clock: Clock,
    pub(crate) idle_after_ms: u64,
    /// Whether a compaction that is due after a run starts at once, or with the next run.
    pub(crate) compacts_between_runs: bool,
    pub(crate) supervisor: OnceLock<ractor::ActorRef<SupervisorMessage>>,
    /// Whether the runtime was dropped: no request is accepted any more.
    pub(crate) is_closed: AtomicBool,
    /// Every session that was deleted in this process was created before this time, in Unix milliseconds.
    pub(crate) deleted_before_ms: AtomicU64,
    /// The number of the next request that may be withdrawn.
    pub(crate) tickets: AtomicU64,
    /// Permits for requests to open a session, because the supervisor's mailbox is unbounded.
    pub(crate) opens: tokio::sync::Semaphore,
    /// The limit on concurrent input.
    pub(crate) admission: Arc<Admission>,
    /// The maximum number of live sessions; `None`: no limit.
    pub(crate) live_sessions_max: Option<usize>,
    /// Counts the uses of sessions, to find the least recently used one.
    pub(crate) uses: AtomicU64,
    pub(crate) probe: Option<Probe>,
    /// The waits between sessions.
    pub(crate) waits: Arc<Waits>,
    /// Searches in the logs of sessions.
    pub(crate) searches: Arc<Searches>,
    /// Serialises the deletions of sessions with their descendants.
    pub(crate) deletions: tokio::sync::Mutex<()>,
    pub(crate) consumers: Consumers,
    pub(crate) metrics: Metrics,
    /// The nodes that get this one's sessions when it leaves.
    pub(crate) heirs: Heirs,
    /// Whether the store can be written.
    pub(crate) readiness: Readiness,
    /// Which sessions are kept.
    pub(crate) retention: Retention,
    /// The files that tools change, as they were before.
    #[cfg(feature = "command-tools")]
    pub(crate) files: Option<FileHistory>,
}

/// Called with a session's id and the point that one of its actors has reached. For tests.
pub(crate) type Probe = Arc<dyn Fn(&str, &'static str) + Send + Sync>;

impl Deps {
    /// Returns the lane of the provider that serves this agent.
    pub(crate) fn lane<'a>(&'a self, agent: &'a Agent) -> Option<&'a Arc<Lane>> {
        if let Some(own) = &agent.own_provider {
            return Some(own.lane());
        }
        self.lanes.get(agent.provider.as_deref().unwrap_or(&self.default_provider))
    }

    /// Returns what is known about a model, with the prices that this agent and this runtime set.
    pub(crate) fn priced(&self, agent: &Agent, provider: &str, model: &str) -> Option<ModelInfo> {
        priced([&agent.prices, &self.prices], provider, model)
    }

    /// Returns the costs of calls, with the prices that an agent and this runtime set.
    pub(crate) fn call_cost(&self, agent: Option<&Agent>) -> CallCost {
        let own = agent.map(|agent| Arc::clone(&agent.prices)).unwrap_or_default();
        call_cost_of([own, Arc::clone(&self.prices)])
    }

    /// Returns the labels by which a session is counted: those of the session at the top of its calls.
    pub(crate) fn tenants(&self, shared: &Arc<SessionShared>) -> Tenants {
        match shared.parent {
            Some(_) if self.accounts.table().has_names() => {
                let chain = self.ledger.chain(shared);
                chain.last().unwrap_or(shared).tenants()
            }
            Some(_) | None => shared.tenants(),
        }
    }

    /// Returns whose turn a call of this session takes.
    pub(crate) fn turn(&self, shared: &Arc<SessionShared>) -> Turn {
        let family = shared.family();
        let group = self.accounts.table().group(&self.tenants(shared));
        Turn { group: group.unwrap_or_else(|| Arc::clone(&family)), family }
    }

    /// Tells the providers that a session with this agent makes no request for now.
    pub(crate) fn release(&self, session: &str, agent: &Agent) {
        let own = agent.own_provider.as_ref().map(|own| own.lane());
        for lane in self.lanes.values().chain(own) {
            lane.provider.release(session);
        }
    }

    /// Whether there is a limit per minute that nodes would have to share.
    pub(crate) fn has_rates(&self) -> bool {
        self.lanes.values().any(|lane| lane.counts_tokens()) || self.accounts.table().has_names()
    }

    /// Divides all limits per minute by the number of nodes.
    pub(crate) fn share_rates(&self, nodes: u64) {
        self.lanes.values().for_each(|lane| lane.share_rate(nodes));
        self.accounts.share_rates(nodes);
    }

    /// Returns the error for an agent that names an unknown provider.
    pub(crate) fn unknown_provider(&self, agent: &Agent) -> Error {
        let wanted = agent.provider.as_ref().unwrap_or(&self.default_provider).clone();
        let mut known: Vec<String> = self.lanes.keys().cloned().collect();
        known.sort_unstable();
        ConfigError::UnknownProvider { wanted, known }.into()
    }

    /// Returns the current compaction settings for this agent.
    pub(crate) fn settings(&self, agent: &Agent) -> Arc<CompactionSettings> {
        match &agent.compaction {
            Some(own) => Arc::new(own.clone()),
            None => agent
                .live
                .as_ref()
                .and_then(|live| live.compaction())
                .unwrap_or_else(|| Arc::clone(&self.compaction.read())),
        }
    }

    /// Returns the source of this agent's settings that change while sessions are open.
    pub(crate) fn reloaded_of<'a>(&'a self, agent: &'a Agent) -> Option<&'a ReloadedSettings> {
        agent.live.as_deref().or(self.live.as_ref())
    }

    /// Applies changed settings of this agent. Returns their version: a new number after each change.
    pub(crate) fn refresh_settings(&self, agent: &Agent) -> u64 {
        match &agent.live {
            Some(live) => {
                live.refresh();
                live.version()
            }
            None => self.refresh_runtime_settings(),
        }
    }

    /// Like [`Self::refresh_settings`], for all agents without settings of their own.
    pub(crate) fn refresh_runtime_settings(&self) -> u64 {
        let Some(live) = &self.live else { return 0 };
        if let Some(compaction) = live.ask() {
            *self.compaction.write() = Arc::new(compaction);
            live.took_effect();
        }
        live.version()
    }

    /// Returns the window of a model of this lane, for this agent, whose requests have a fixed part of this
    /// many tokens. A learned limit that leaves no room is ignored, so it cannot make a session unusable;
    /// then the provider refuses.
    pub(crate) fn window(
        &self,
        agent: &Agent,
        lane: &Lane,
        model: &str,
        settings: &CompactionSettings,
        fixed_tokens: u64,
    ) -> Window {
        let served = lane.served.find(model).unwrap_or_default();
        let known = KnownWindows {
            setting: agent.window_of(model),
            served: served.window_tokens,
            catalog: model_info(lane.provider.name(), model).and_then(|info| info.window_tokens()),
            trained: served.trained_tokens,
            learned: self.limit(lane, model).filter(|limit| settings.feasible(*limit, fixed_tokens).is_ok()),
        };
        Window::resolve(settings, known)
    }

    /// Returns the limit that this lane's provider named for a model when it refused a request, if it still
    /// holds.
    pub(crate) fn limit(&self, lane: &Lane, model: &str) -> Option<u64> {
        let served = lane.served.find(model).and_then(|served| served.window_tokens);
        self.learned.limit(lane.origin(), model, served, self.now_ms())
    }

    /// Returns the model settings of this agent, without those of a prompt.
    pub(crate) fn model_settings(&self, agent: &Agent) -> ModelSettings {
        agent.settings.clone().merged(self.settings_for(agent, &agent.model))
    }

    /// Returns the model settings for a summary by this model. A model other than the agent's own gets only
    /// the settings for that model, because it may refuse the agent's.
    pub(crate) fn summary_settings(&self, agent: &Agent, model: &str) -> ModelSettings {
        let settings =
            if model == agent.model { self.model_settings(agent) } else { self.settings_for(agent, model) };
        settings.for_summary()
    }

    /// Returns the most output, in tokens, of a summary by this model: the lower of the configured limit and
    /// the model's own, by the server's list or else the catalogue; `None` if neither is known.
    pub(crate) fn summary_output_max(&self, agent: &Agent, lane: &Lane, model: &str) -> Option<u64> {
        let set = agent.settings.clone().merged(self.settings_for(agent, model)).output_tokens_max;
        let served = lane.served.find(model).and_then(|served| served.output_tokens);
        let listed = || model_info(lane.provider.name(), model).and_then(|info| info.output_tokens);
        let limits = [set.or_else(|| lane.provider.output_tokens_max()), served.or_else(listed)];
        limits.into_iter().flatten().min()
    }

    fn settings_for(&self, agent: &Agent, model: &str) -> ModelSettings {
        let of = |known: &BTreeMap<String, ModelSettings>| known.get(model).cloned().unwrap_or_default();
        of(&self.settings_by_model).merged(of(&agent.settings_by_model))
    }

    /// Returns the output limit, in tokens, in an agent's requests: its own, or its provider's.
    pub(crate) fn output_tokens_max(&self, agent: &Agent) -> Option<u64> {
        let of_provider = || self.lane(agent).and_then(|lane| lane.provider.output_tokens_max());
        self.model_settings(agent).output_tokens_max.or_else(of_provider)
    }

    /// Notifies the test's probe, if there is one, that a session's actor has reached this point.
    pub(crate) fn probe(&self, session: &str, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(session, point);
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Returns the creation time for a new session, in Unix milliseconds. It is later than that of any
    /// deleted session, so the time distinguishes two sessions with the same id.
    pub(crate) fn created_at_ms(&self) -> u64 {
        self.now_ms().max(self.deleted_before_ms.load(Ordering::Relaxed))
    }

    /// Notes a deletion: sessions created from now on have a later creation time.
    pub(crate) fn note_deletion(&self, session: &str) {
        self.searches.forget(session);
        #[cfg(feature = "command-tools")]
        crate::core::kept_files::forget(self, session);
        let next = self.created_at_ms() + 1;
        self.deleted_before_ms.fetch_max(next, Ordering::Relaxed);
    }

    /// Returns the number of the next use of a session.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }
}
