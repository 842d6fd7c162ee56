//! What all actors of one runtime share: the store, the bus, the providers' lanes, the settings, learned facts about
//! models, the hooks and the clock.
//!
//! Invariants: nothing here belongs to one session, and nothing here is global to the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::{KnownWindows, LimitEvidence, Ratio, Window, is_believable_limit};
use greenroom_provider::ModelSettings;
use greenroom_provider::catalog::{Catalog, ModelInfo};
use greenroom_store::Store;

use crate::agent::Agent;
use crate::bus::Bus;
use crate::error::{ConfigError, Error, Result};
use crate::hooks::Hooks;
use crate::lane::Lane;
use crate::message::SupervisorMessage;

/// What all actors of one runtime share.
pub(crate) struct Deps {
    pub(crate) store: Store,
    pub(crate) bus: Bus,
    pub(crate) lanes: HashMap<String, Arc<Lane>>,
    pub(crate) default_provider: String,
    pub(crate) compaction: RwLock<Arc<CompactionSettings>>,
    pub(crate) learned: Learned,
    /// How models are to answer, whichever agent asks them.
    pub(crate) settings_by_model: BTreeMap<String, ModelSettings>,
    pub(crate) hooks: Hooks,
    pub(crate) clock: Clock,
    pub(crate) idle_after_ms: u64,
    pub(crate) supervisor: OnceLock<ractor::ActorRef<SupervisorMessage>>,
    /// The number of the next request that may be withdrawn.
    pub(crate) tickets: AtomicU64,
    /// Places for requests to open a session. The supervisor's mailbox has no bound of its own.
    pub(crate) opens: tokio::sync::Semaphore,
    pub(crate) probe: Option<Probe>,
}

/// Called with a session's id and the point that one of its actors has come to. For tests.
pub(crate) type Probe = Arc<dyn Fn(&str, &'static str) + Send + Sync>;

impl Deps {
    /// The lane of the provider that serves this agent.
    pub(crate) fn lane(&self, agent: &Agent) -> Option<&Arc<Lane>> {
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
            None => Arc::clone(&self.compaction.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The window of a model, for this agent, whose requests have a fixed part of so many tokens. A learned limit in
    /// which nothing could work locks no session: then it is the provider that refuses.
    pub(crate) fn window(
        &self,
        agent: &Agent,
        provider: &str,
        model: &str,
        settings: &CompactionSettings,
        fixed_tokens: u64,
    ) -> Window {
        let learned = self.learned.limit(provider, model);
        let known = KnownWindows {
            setting: agent.context_window,
            catalog: model_info(provider, model).and_then(|info| info.window_tokens()),
            learned: learned.filter(|limit| settings.feasible(*limit, fixed_tokens).is_ok()),
        };
        Window::resolve(settings, known)
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

/// What the catalogue knows of a model.
pub(crate) fn model_info(provider: &str, model: &str) -> Option<ModelInfo> {
    Catalog::bundled().find(provider, model)
}

/// The time in unix milliseconds, by tokio's clock: it stands still while that one is paused.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    base_ms: u64,
    since: tokio::time::Instant,
}

impl Clock {
    /// The system's time; or, for repeatable runs, time that begins at `base_ms`.
    pub(crate) fn new(base_ms: Option<u64>) -> Self {
        let system = || {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
        };
        Self { base_ms: base_ms.unwrap_or_else(system), since: tokio::time::Instant::now() }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.base_ms + u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// What was learned about models: limits that providers named, and token ratios. Kept in the store.
pub(crate) struct Learned {
    store: Store,
    facts: Mutex<HashMap<String, Option<f64>>>,
    /// What this process has seen of each model.
    seen: Mutex<HashMap<String, SeenLimits>>,
}

/// What one process has seen of a model's limits.
#[derive(Debug, Clone, Copy, Default)]
struct SeenLimits {
    /// The largest request that the provider accepted, in tokens.
    accepted: u64,
    /// The limit that it named last, believed or not.
    named: Option<u64>,
}

impl Learned {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, facts: Mutex::default(), seen: Mutex::default() }
    }

    /// The limit that a provider named last for this model, in tokens.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a u64 below 2^52")]
    pub(crate) fn limit(&self, provider: &str, model: &str) -> Option<u64> {
        self.get(&key("limit", provider, model)).map(|limit| limit as u64).filter(|limit| *limit > 0)
    }

    /// Remembers a limit that a provider named when it refused `sent` tokens, if the limit is believable. Gives whether
    /// the limit is a new one.
    #[expect(clippy::cast_precision_loss, reason = "limits are far below 2^52 tokens")]
    pub(crate) fn learn_limit(&self, provider: &str, model: &str, limit: u64, sent: u64) -> bool {
        let key = key("limit", provider, model);
        if self.limit(provider, model) == Some(limit) {
            return false;
        }
        let evidence = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let SeenLimits { accepted, named } = seen.entry(key.clone()).or_default();
            LimitEvidence { sent, accepted: *accepted, named_before: named.replace(limit) }
        };
        if !is_believable_limit(limit, evidence) {
            tracing::warn!(
                provider,
                model,
                limit,
                ?evidence,
                "a limit that the provider named is not believed"
            );
            return false;
        }
        self.put(key, limit as f64);
        true
    }

    /// The provider accepted a request of so many tokens, by a report that is trusted. A smaller limit no longer holds.
    pub(crate) fn accepted(&self, provider: &str, model: &str, tokens: u64) {
        let key = key("limit", provider, model);
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = seen.entry(key.clone()).or_default();
            seen.accepted = tokens.max(seen.accepted);
        }
        if self.limit(provider, model).is_some_and(|limit| limit < tokens) {
            self.put(key, 0.0);
        }
    }

    pub(crate) fn ratio(&self, provider: &str, model: &str) -> Ratio {
        self.get(&key("ratio", provider, model)).map(Ratio::new).unwrap_or_default()
    }

    /// Remembers a ratio if it moved by 0.01 or more.
    pub(crate) fn learn_ratio(&self, provider: &str, model: &str, ratio: Ratio) {
        let known = self.get(&key("ratio", provider, model)).unwrap_or(1.0);
        if (known - ratio.value()).abs() >= 0.01 {
            self.put(key("ratio", provider, model), ratio.value());
        }
    }

    fn get(&self, key: &str) -> Option<f64> {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fact) = facts.get(key) {
            return *fact;
        }
        let stored = self.store.learned_get(key).ok().flatten();
        let fact = stored.and_then(|bytes| bytes.try_into().ok()).map(f64::from_le_bytes);
        facts.insert(key.to_owned(), fact);
        fact
    }

    fn put(&self, key: String, value: f64) {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), Some(value));
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.learned_put(&key, &value.to_le_bytes()).await {
                tracing::warn!(%error, key, "what was learned could not be stored; it will be learned again");
            }
        });
    }
}

fn key(what: &str, provider: &str, model: &str) -> String {
    format!("{what}/{provider}/{model}")
}
