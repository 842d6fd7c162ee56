//! Settings that change while sessions are open: a file that its user edits, for one.
//!
//! Invariants: the source is asked before each check of each session, and its answer holds for all sessions from the
//! next check of each; a source that has nothing new costs one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_kernel::settings::CompactionSettings;
use parking_lot::{Mutex, RwLock};

use crate::agent::Agent;

#[cfg(test)]
mod tests;

/// What a source of settings says when something changed.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct SettingsChange {
    /// The settings that hold from now on; `None`: those before stay.
    pub settings: Option<LiveSettings>,
    /// What the user must know: the reason why an edit is not used, for one. The session that asked tells it as an event
    /// `warning`.
    pub warning: Option<String>,
}

/// Settings of sessions.
#[derive(Clone)]
pub struct LiveSettings {
    /// How sessions are compacted, where their agent does not say.
    pub compaction: CompactionSettings,
    /// Gives an agent with the other settings: limits, budgets, time limits, how its models are to answer. It is called
    /// with the agent that a session was opened with, each time that the settings changed. Its model and its provider
    /// stay those of the agent.
    pub adjust: Arc<Adjust>,
}

/// Gives an agent with other settings.
pub(crate) type Adjust = dyn Fn(&Agent) -> Agent + Send + Sync;

impl std::fmt::Debug for SettingsChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SettingsChange")
            .field("settings", &self.settings)
            .field("warning", &self.warning)
            .finish()
    }
}

impl std::fmt::Debug for LiveSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSettings").field("compaction", &self.compaction).finish_non_exhaustive()
    }
}

impl SettingsChange {
    /// Settings that hold from now on.
    pub fn settings(
        compaction: CompactionSettings,
        adjust: impl Fn(&Agent) -> Agent + Send + Sync + 'static,
    ) -> Self {
        let settings = LiveSettings { compaction, adjust: Arc::new(adjust) };
        Self { settings: Some(settings), warning: None }
    }

    /// The settings before stay, and this is said.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { settings: None, warning: Some(text.into()) }
    }

    /// As this, and this is said too.
    #[must_use]
    pub fn and_warning(mut self, text: impl Into<String>) -> Self {
        self.warning = Some(text.into());
        self
    }
}

/// Says what changed since it was asked last.
pub(crate) type Source = Arc<dyn Fn() -> Option<SettingsChange> + Send + Sync>;

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// The source of a runtime's settings or an agent's, and what it said last.
pub(crate) struct Live {
    source: Source,
    adjust: RwLock<Option<Arc<Adjust>>>,
    /// How sessions of the agent are compacted that has this source; not used for a runtime's.
    compaction: RwLock<Option<Arc<CompactionSettings>>>,
    /// How often the settings changed.
    version: AtomicU64,
    /// What is still to be said.
    warnings: Mutex<Vec<String>>,
}

impl Live {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            adjust: RwLock::new(None),
            compaction: RwLock::new(None),
            version: AtomicU64::new(0),
            warnings: Mutex::default(),
        }
    }

    /// Asks the source. Gives the compaction settings, where they are new.
    pub(crate) fn ask(&self) -> Option<CompactionSettings> {
        let SettingsChange { settings, warning } = (self.source)()?;
        if let Some(warning) = warning {
            self.warnings.lock().push(warning);
        }
        let LiveSettings { compaction, adjust } = settings?;
        if let Err(error) = compaction.check() {
            let warning = format!("the changed settings are not used: {error}");
            self.warnings.lock().push(warning);
            return None;
        }
        *self.adjust.write() = Some(adjust);
        Some(compaction)
    }

    /// Asks the source of an agent's settings.
    pub(crate) fn refresh(&self) {
        if let Some(compaction) = self.ask() {
            *self.compaction.write() = Some(Arc::new(compaction));
            self.took_effect();
        }
    }

    /// How sessions of the agent that has this source are compacted, where it said so.
    pub(crate) fn compaction(&self) -> Option<Arc<CompactionSettings>> {
        self.compaction.read().clone()
    }

    /// What the source said last is known to all from now on.
    pub(crate) fn took_effect(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Which settings hold: another number after each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The agent with the settings that hold now.
    pub(crate) fn adjusted(&self, agent: Arc<Agent>) -> Arc<Agent> {
        let adjust = self.adjust.read().clone();
        let Some(adjust) = adjust else { return agent };
        let mut adjusted = adjust(&agent);
        // Another model or provider is the session's to choose, by opening it with another agent.
        adjusted.model.clone_from(&agent.model);
        adjusted.provider.clone_from(&agent.provider);
        adjusted.own_provider.clone_from(&agent.own_provider);
        adjusted.live.clone_from(&agent.live);
        Arc::new(adjusted)
    }

    /// What is to be said, once.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }
}
