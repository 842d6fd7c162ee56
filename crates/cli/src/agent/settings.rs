//! The configuration of a running command, and the flags that override it.
//!
//! Invariants: flags take precedence over the environment, and the environment over the files; changes apply
//! from a session's next check on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom::{Agent, ModelSettings, SettingsChange};
use greenroom_kernel::settings::CompactionSettings;
use greenroom_terminal::{ColorChoice, Screen};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::agent::prompt::SystemPrompt;
use crate::args::ModelArgs;
use crate::config::surroundings::Surroundings;
use crate::config::{Change, Config, LiveConfig, Loaded};

/// How long a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stay {
    /// Until a reply: work that starts after it would be interrupted.
    UntilReply,
    /// Until its input ends. Changes of the configuration apply in the meantime; events of a session report
    /// problems with them.
    ForMore,
    /// Until it is stopped, possibly without readers of its sessions' events: problems are also printed to
    /// standard error.
    Unwatched,
}

/// The configuration of a command, and the flags that override it.
pub(crate) struct Settings {
    pub(super) config: LiveConfig,
    pub(super) model: String,
    pub(super) window: Option<u64>,
    pub(super) simulated_window: Option<u64>,
    pub(super) flags: ModelSettings,
    pub(super) prompt: Arc<SystemPrompt>,
}

impl Settings {
    /// Returns the current warnings about the project's files.
    fn project_warnings(&self) -> Vec<String> {
        self.prompt.warnings(&self.config.config())
    }

    fn compaction_of(&self, config: &Config) -> CompactionSettings {
        let mut compaction = config.compaction.clone();
        if self.window.is_some() {
            // A flag takes precedence over every setting.
            compaction.context_window = None;
        }
        compaction
    }

    /// Returns the model's window, if the flags or the configuration set it.
    fn window_of(&self, config: &Config) -> Option<u64> {
        self.window.or_else(|| config.window_of(&self.model))
    }

    /// Returns the agent with the settings of the configuration and the flags.
    fn adjusted(&self, agent: &Agent, config: &Arc<Config>) -> Agent {
        let (prompt, held) = (Arc::clone(&self.prompt), Arc::clone(config));
        let mut agent = agent.clone().instructions_from(move |_| prompt.text(&held));
        if let Some(window) = self.window_of(config).or(self.simulated_window) {
            agent = agent.context_window(window);
        }
        agent = agent.settings(config.model_settings.clone());
        for (model, of_model) in &config.models {
            agent = agent.settings_for(model, of_model.settings.clone());
        }
        agent = config.with_models(agent);
        // The settings were checked together when the file was read.
        let of_model = config.models.get(&self.model);
        if let Some(Ok(Some(compaction))) =
            of_model.map(|of_model| of_model.compaction_over(&self.compaction_of(config)))
        {
            agent = agent.compaction(compaction);
        }
        // Flags take precedence over files.
        agent = agent.settings_for(&self.model, self.flags.clone()).limits(config.limits.of_run());
        if let Some(limit) = config.limits.cost_usd_max {
            agent = agent.cost_limit_usd(limit);
        }
        if let Some(seconds) = config.limits.tool_timeout_s {
            agent = agent.tool_timeout(Duration::from_secs(seconds));
        }
        agent.run_timeout(config.limits.run_timeout_s.map(Duration::from_secs))
    }

    /// Returns the source of the runtime's settings: first the current ones, then changes.
    pub(crate) fn source(
        self: Arc<Self>,
        stay: Stay,
        color: ColorChoice,
    ) -> impl Fn() -> Option<SettingsChange> + Send + Sync + 'static {
        let is_first = AtomicBool::new(true);
        move || {
            let change = if is_first.swap(false, Ordering::Relaxed) {
                Change { config: Some(self.config.config()), warning: None }
            } else if stay == Stay::UntilReply {
                return None;
            } else {
                self.config.look()?
            };
            if let Some(warning) = change.warning.as_ref().filter(|_| stay == Stay::Unwatched) {
                // If standard error is closed, nobody needs the warning.
                let _ = Screen::stderr(color).line(format!("greenroom: warning: {warning}"));
            }
            Some(Arc::clone(&self).told(change))
        }
    }

    fn told(self: Arc<Self>, change: Change) -> SettingsChange {
        let mut told = change.config.map_or_else(SettingsChange::default, |config| {
            let compaction = self.compaction_of(&config);
            SettingsChange::settings(compaction, move |agent| self.adjusted(agent, &config))
        });
        told.warning = change.warning;
        told
    }
}

/// The settings of a host's client. Warnings for its user are sent to that client only, and not to a session,
/// which others can read.
pub(crate) struct ClientSettings {
    settings: Arc<Settings>,
    /// The settings that were not reported yet.
    untold: Mutex<Option<Change>>,
    /// The last reported warnings about the project's files.
    of_project: Mutex<Vec<String>>,
    news: broadcast::Sender<String>,
}

impl ClientSettings {
    pub(crate) fn new(settings: &Arc<Settings>, news: broadcast::Sender<String>) -> Self {
        let held = Change { config: Some(settings.config.config()), warning: None };
        let of_project = Mutex::new(settings.project_warnings());
        Self { settings: Arc::clone(settings), untold: Mutex::new(Some(held)), of_project, news }
    }

    /// Whether the settings are still those of the files and flags, so that a new client can share them.
    pub(crate) fn are_as(&self, loaded: &Loaded, args: &ModelArgs, surroundings: &Surroundings) -> bool {
        *self.settings.config.config() == loaded.config
            && self.settings.prompt.is_as_given(args, surroundings)
    }

    /// Returns the current warnings about the project's files.
    pub(crate) fn project_warnings(&self) -> Vec<String> {
        self.settings.project_warnings()
    }

    /// Checks the files for changes.
    pub(crate) fn look(&self) {
        let warnings = self.settings.project_warnings();
        let mut told = self.of_project.lock();
        for warning in warnings.iter().filter(|warning| !told.contains(warning)) {
            let _ = self.news.send(warning.clone());
        }
        *told = warnings;
        drop(told);
        let mut untold = self.untold.lock();
        let Some(Change { config, warning }) = self.settings.config.look() else { return };
        if let Some(warning) = warning {
            // The receiver may be gone.
            let _ = self.news.send(warning);
        }
        if config.is_some() {
            *untold = Some(Change { config, warning: None });
        }
    }

    /// Returns the changes since the previous call.
    pub(crate) fn change(&self) -> Option<SettingsChange> {
        self.look();
        let change = self.untold.lock().take()?;
        Some(Arc::clone(&self.settings).told(change))
    }
}
