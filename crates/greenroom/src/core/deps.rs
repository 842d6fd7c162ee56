//! What all actors of one runtime share: the store, the bus, the providers' lanes, the settings, learned facts about
//! models, the hooks and the clock.
//!
//! Invariants: nothing here belongs to one session, and nothing here is global to the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::{KnownWindows, Window};
use greenroom_provider::ModelSettings;
use greenroom_store::Store;
use parking_lot::RwLock;

use crate::agent::Agent;
use crate::agent::hooks::Hooks;
use crate::agent::live::Live;
use crate::agent::shared_tools::SharedTools;
use crate::core::message::SupervisorMessage;
use crate::core::shared::SessionShared;
use crate::events::bus::Bus;
use crate::lane::Lane;
use crate::lane::learned::Learned;
use crate::limits::admission::Admission;
use crate::limits::spending::Purse;
use crate::limits::spending::tree::Ledger;
use crate::limits::waits::Waits;
use crate::values::clock::Clock;
use crate::values::error::{ConfigError, Error, Result};
use crate::values::model_info::model_info;

/// What all actors of one runtime share.
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) bus: Bus,
    pub(crate) lanes: HashMap<String, Arc<Lane>>,
    pub(crate) default_provider: String,
    pub(crate) compaction: RwLock<Arc<CompactionSettings>>,
    /// Where settings come from that change while sessions are open.
    pub(crate) live: Option<Live>,
    pub(crate) learned: Learned,
    /// What all sessions may spend together.
    pub(crate) purse: Purse,
    /// What sessions may spend that call each other.
    pub(crate) ledger: Ledger<SessionShared>,
    /// How deep agents may call agents.
    pub(crate) sub_agent_depth_max: usize,
    /// The tools that sessions share.
    pub(crate) tools: SharedTools,
    /// How models are to answer, whichever agent asks them.
    pub(crate) settings_by_model: BTreeMap<String, ModelSettings>,
    pub(crate) hooks: Hooks,
    pub(crate) clock: Clock,
    pub(crate) idle_after_ms: u64,
    /// Whether a compaction that is due when a run has ended begins at once, or with the next run.
    pub(crate) compacts_between_runs: bool,
    pub(crate) supervisor: OnceLock<ractor::ActorRef<SupervisorMessage>>,
    /// Every session that was deleted in this process was created before then, in unix milliseconds.
    pub(crate) deleted_before_ms: AtomicU64,
    /// The number of the next request that may be withdrawn.
    pub(crate) tickets: AtomicU64,
    /// Places for requests to open a session. The supervisor's mailbox has no bound of its own.
    pub(crate) opens: tokio::sync::Semaphore,
    /// How much input is taken on at the same time.
    pub(crate) admission: Arc<Admission>,
    /// How many sessions may be live; `None`: no limit.
    pub(crate) live_sessions_max: Option<usize>,
    /// Counts the uses of sessions, so that it is known which one was used least recently.
    pub(crate) uses: AtomicU64,
    pub(crate) probe: Option<Probe>,
    /// Which sessions wait for which others.
    pub(crate) waits: Arc<Waits>,
    /// Whose turn it is to delete a session with those below it.
    pub(crate) deletions: tokio::sync::Mutex<()>,
}

/// Called with a session's id and the point that one of its actors has come to. For tests.
pub(crate) type Probe = Arc<dyn Fn(&str, &'static str) + Send + Sync>;

impl Deps {
    /// The lane of the provider that serves this agent.
    pub(crate) fn lane<'a>(&'a self, agent: &'a Agent) -> Option<&'a Arc<Lane>> {
        if let Some(own) = &agent.own_provider {
            return Some(own.lane());
        }
        self.lanes.get(agent.provider.as_deref().unwrap_or(&self.default_provider))
    }

    /// That this agent names a provider that is not there.
    pub(crate) fn unknown_provider(&self, agent: &Agent) -> Error {
        let wanted = agent.provider.as_ref().unwrap_or(&self.default_provider).clone();
        let mut known: Vec<String> = self.lanes.keys().cloned().collect();
        known.sort_unstable();
        ConfigError::UnknownProvider { wanted, known }.into()
    }

    /// The settings that hold for this agent now.
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

    /// Where this agent's settings come from that change while sessions are open.
    pub(crate) fn live_of<'a>(&'a self, agent: &'a Agent) -> Option<&'a Live> {
        agent.live.as_deref().or(self.live.as_ref())
    }

    /// Takes over settings of this agent that changed. Gives which hold: another number after each change.
    pub(crate) fn refresh_settings(&self, agent: &Agent) -> u64 {
        match &agent.live {
            Some(live) => {
                live.refresh();
                live.version()
            }
            None => self.refresh_runtime_settings(),
        }
    }

    /// As [`Self::refresh_settings`], for all agents that have no settings of their own.
    pub(crate) fn refresh_runtime_settings(&self) -> u64 {
        let Some(live) = &self.live else { return 0 };
        if let Some(compaction) = live.ask() {
            *self.compaction.write() = Arc::new(compaction);
            live.took_effect();
        }
        live.version()
    }

    /// The window of a model of this lane, for this agent, whose requests have a fixed part of so many tokens. A learned
    /// limit in which nothing could work locks no session: then it is the provider that refuses.
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

    /// The limit that this lane's provider named for a model when it refused a request, if it still holds.
    pub(crate) fn limit(&self, lane: &Lane, model: &str) -> Option<u64> {
        let served = lane.served.find(model).and_then(|served| served.window_tokens);
        self.learned.limit(lane.origin(), model, served, self.now_ms())
    }

    /// How this agent's model is to answer, prompts apart.
    pub(crate) fn model_settings(&self, agent: &Agent) -> ModelSettings {
        agent.settings.clone().merged(self.settings_for(agent, &agent.model))
    }

    /// How a summary is asked for with this agent's settings. A model that is not its own takes only what is said for
    /// that model: what suits the one may be refused by the other.
    pub(crate) fn summary_settings(&self, agent: &Agent, model: &str) -> ModelSettings {
        let settings =
            if model == agent.model { self.model_settings(agent) } else { self.settings_for(agent, model) };
        settings.for_summary()
    }

    /// The most output, in tokens, that a summary by this model may have: what is set for this agent's answers, and what
    /// the model gives by its server's word or the catalogue's. `None` where nothing says.
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

    /// The output limit, in tokens, that an agent's requests carry: its own, or its provider's.
    pub(crate) fn output_tokens_max(&self, agent: &Agent) -> Option<u64> {
        let of_provider = || self.lane(agent).and_then(|lane| lane.provider.output_tokens_max());
        self.model_settings(agent).output_tokens_max.or_else(of_provider)
    }

    /// Tells the test's probe, if there is one, that a session's actor has come to this point.
    pub(crate) fn probe(&self, session: &str, point: &'static str) {
        if let Some(probe) = &self.probe {
            probe(session, point);
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// When a session is created that is created now, in unix milliseconds: later than any that was deleted, so that the
    /// time tells two sessions of one id apart.
    pub(crate) fn created_at_ms(&self) -> u64 {
        self.now_ms().max(self.deleted_before_ms.load(Ordering::Relaxed))
    }

    /// A session was deleted: whatever is created from now on is created later than it was.
    pub(crate) fn note_deletion(&self) {
        let next = self.created_at_ms() + 1;
        self.deleted_before_ms.fetch_max(next, Ordering::Relaxed);
    }

    /// The number of a use of a session.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }
}

/// Runs a read of the store: where it may wait for a disk, on a thread that may.
pub(crate) async fn blocking<T: Send + 'static>(
    deps: &Deps,
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if deps.store.is_memory() {
        return read();
    }
    match tokio::task::spawn_blocking(read).await {
        Ok(result) => result,
        Err(panic) => Err(Error::internal("reading the store", &panic)),
    }
}
