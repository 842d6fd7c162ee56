//! Settings that change while sessions are open, for example from a file that the user edits.
//!
//! Invariants: the source is asked before each check of each session, and its answer applies to all sessions
//! from their next check on; a source without news costs one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom_kernel::settings::CompactionSettings;
use parking_lot::{Mutex, RwLock};

use crate::agent::Agent;

#[cfg(test)]
mod tests;

/// A source's answer after a change.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct SettingsChange {
    /// The new settings; `None` keeps the current ones.
    settings: Option<LiveSettings>,
    /// A warning for the user, for example why an edit is not used. The session that asked reports it as a
    /// `warning` event.
    pub warning: Option<String>,
}

/// Settings of sessions.
#[derive(Clone)]
struct LiveSettings {
    /// The compaction settings for agents without their own.
    compaction: CompactionSettings,
    /// Returns an agent with the other settings.
    adjust: Arc<Adjust>,
}

/// Returns an agent with other settings.
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
    /// Creates an answer with new settings: the compaction settings for agents without their own, and a function that
    /// returns an agent with the other settings (limits, budgets, time limits, model settings). It is called after each
    /// change, with the agent with which a session was opened. The agent's model and provider do not change.
    pub fn settings(
        compaction: CompactionSettings,
        adjust: impl Fn(&Agent) -> Agent + Send + Sync + 'static,
    ) -> Self {
        let settings = LiveSettings { compaction, adjust: Arc::new(adjust) };
        Self { settings: Some(settings), warning: None }
    }

    /// Creates an answer that keeps the current settings, with a warning.
    pub fn warning(text: impl Into<String>) -> Self {
        Self { settings: None, warning: Some(text.into()) }
    }

    /// Returns this answer with a warning.
    #[must_use]
    pub fn and_warning(mut self, text: impl Into<String>) -> Self {
        self.warning = Some(text.into());
        self
    }
}

/// Returns the changes since its previous call.
pub(crate) type Source = Arc<dyn Fn() -> Option<SettingsChange> + Send + Sync>;

impl std::fmt::Debug for ReloadedSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadedSettings").field("version", &self.version()).finish_non_exhaustive()
    }
}

/// The source of a runtime's or an agent's settings, and its last answer.
pub(crate) struct ReloadedSettings {
    source: Source,
    adjust: RwLock<Option<Arc<Adjust>>>,
    /// The compaction settings of sessions of the agent with this source; not used for a runtime's source.
    compaction: RwLock<Option<Arc<CompactionSettings>>>,
    /// How often the settings have changed.
    version: AtomicU64,
    /// Warnings that have not been reported.
    warnings: Mutex<Vec<String>>,
}

impl ReloadedSettings {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            adjust: RwLock::new(None),
            compaction: RwLock::new(None),
            version: AtomicU64::new(0),
            warnings: Mutex::default(),
        }
    }

    /// Asks the source. Returns the compaction settings if they are new.
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

    /// Returns the compaction settings for the agent with this source, if the source has set them.
    pub(crate) fn compaction(&self) -> Option<Arc<CompactionSettings>> {
        self.compaction.read().clone()
    }

    /// Notes that the latest settings now apply to all sessions.
    pub(crate) fn took_effect(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the version of the settings: a new number after each change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the agent with the current settings.
    pub(crate) fn adjusted(&self, agent: Arc<Agent>) -> Arc<Agent> {
        let adjust = self.adjust.read().clone();
        let Some(adjust) = adjust else { return agent };
        let mut adjusted = adjust(&agent);
        // A session changes its model or provider only when it is opened with another agent.
        adjusted.model.clone_from(&agent.model);
        adjusted.provider.clone_from(&agent.provider);
        adjusted.own_provider.clone_from(&agent.own_provider);
        adjusted.live.clone_from(&agent.live);
        Arc::new(adjusted)
    }

    /// Returns the unreported warnings, once.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock())
    }
}
