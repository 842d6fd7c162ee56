//! Changes to what a session works with: its agent, its settings, the limits of its context.
//!
//! Invariants: an unusable definition is not adopted; a run keeps its model; the tracker measures by the
//! current limits.

use std::borrow::Cow;
use std::sync::Arc;

use greenroom_provider::{ModelSettings, ResentReasoning};

use super::definition::{Definition, SessionLimits};
use super::{PAUSE_AFTER_FAILURES, SessionState};
use crate::agent::live_settings::ReloadedSettings;
use crate::agent::{Agent, team};
use crate::core::message::{RunAttempt, TrackerConfig, TrackerMessage};
use crate::core::trace;
use crate::limits::spending::tree::Spends as _;
use crate::values::error::Result;

impl SessionState {
    /// Lets the tracker measure the context for a step of the run, by the current settings.
    pub(super) fn measure_for_step(&mut self, attempt: RunAttempt) {
        self.refresh_settings();
        if *self.definition.counted_with() != self.resent_reasoning() {
            self.limits_changed();
        }
        let (context, reply_to) = (Some(self.log.context()), self.agent.actor().clone());
        self.tracker.tell(TrackerMessage::Measure { attempt, context, reply_to });
    }

    /// The fixed part of every request, in estimated tokens.
    pub(super) fn overhead(&self) -> u64 {
        self.definition.overhead(self.log.pinned_tokens())
    }

    /// Returns which reasoning of earlier answers the next request contains: by the settings of the run in
    /// progress, including its prompt's.
    pub(super) fn resent_reasoning(&self) -> ResentReasoning {
        self.definition.resent_reasoning(&self.request_settings())
    }

    /// Returns the settings of the next request: those of the run in progress, including its prompt's.
    pub(super) fn request_settings(&self) -> Cow<'_, ModelSettings> {
        match self.runs.open() {
            Some(run) => Cow::Borrowed(run.settings()),
            None => Cow::Owned(self.deps.model_settings(&self.definition.agent)),
        }
    }

    pub(super) fn tracker_config(&self) -> TrackerConfig {
        let session = SessionLimits {
            pinned_tokens: self.log.pinned_tokens(),
            run_cost: self.runs.cost(),
            is_sub_agent: self.shared.parent.is_some(),
            is_paused: self.log.head().automatic_compaction_failures >= PAUSE_AFTER_FAILURES,
            only_at_window: self.compaction.only_at_window,
        };
        let of_definition = self.definition.tracker_config(&self.deps, session);
        let config = TrackerConfig { resent: self.resent_reasoning(), ..of_definition };
        self.shared.account().set_limits(config.limits.cost);
        config
    }

    /// Passes the current limits of the context to the tracker.
    pub(super) fn limits_changed(&mut self) {
        if let Some(before) = self.definition.refresh_window(&self.deps, self.log.pinned_tokens()) {
            trace::window_changed(&self.shared.id, &before, &self.definition.window);
        }
        let config = Box::new(self.tracker_config());
        let is_counted_anew = self.definition.set_counted_with(&config.resent);
        let path = is_counted_anew.then(|| self.log.path().to_vec());
        self.tracker.tell(TrackerMessage::Configure { config, path });
    }

    /// Applies settings that have changed since this session's last check. Unusable ones are ignored.
    pub(super) fn refresh_settings(&mut self) {
        let version = self.deps.refresh_settings(&self.definition.agent);
        let warnings = self
            .deps
            .reloaded_of(&self.definition.agent)
            .map(ReloadedSettings::take_warnings)
            .unwrap_or_default();
        for warning in warnings {
            self.warn(warning);
        }
        if version != self.definition.settings_version {
            self.definition.set_settings_version(version);
            trace::settings_changed(&self.shared.id, version);
            let agent = self.shared.agent().unwrap_or_else(|| Arc::clone(&self.definition.agent));
            if let Err(error) = self.configure(agent) {
                self.warn(format!("the changed settings are not used in this session: {error}"));
            }
        }
    }

    /// Applies a changed definition, or changed settings.
    ///
    /// # Errors
    /// The definition is unusable. Then nothing changes.
    pub(super) fn configure(&mut self, agent: Arc<Agent>) -> Result<()> {
        let answering = team::answering(Arc::clone(&agent), self.log.head().agent.as_deref());
        let new = Definition::resolve(&self.deps, answering, self.log.pinned_tokens())?;
        #[cfg(feature = "permissions")]
        if self.runs.is_open() {
            self.shared.set_working(Some(Arc::clone(&self.definition.agent)));
        }
        self.shared.set_agent(&self.deps.bus, Some(agent));
        if !self.runs.is_open() || new.is_same_model(&self.definition) {
            self.definition.set_next(None);
            self.take_definition(new);
            return Ok(());
        }
        // The run keeps its model, and nothing is compacted for another model's window. Settings of the
        // runtime apply at once.
        if new.agent.compaction.is_none() && self.definition.agent.compaction.is_none() {
            self.definition.set_settings(Arc::clone(&new.settings));
            self.limits_changed();
        }
        self.definition.set_next(Some(new));
        Ok(())
    }

    /// Adopts the caller's own agent, if there is one. Only while no work is in progress.
    ///
    /// # Errors
    /// The definition is unusable. Then nothing changes.
    pub(super) fn adopt(&mut self, agent: Option<&Arc<Agent>>) -> Result<()> {
        let known = self.shared.agent();
        match agent.filter(|agent| known.is_none_or(|known| !Arc::ptr_eq(&known, agent))) {
            Some(agent) => self.configure(Arc::clone(agent)),
            None => Ok(()),
        }
    }

    /// Applies the definition that was waiting for the end of the run. Returns whether there was one.
    pub(super) fn take_next_definition(&mut self) -> bool {
        #[cfg(feature = "permissions")]
        self.shared.set_working(None);
        let next = self.definition.take_next();
        let is_other = next.is_some();
        if let Some(next) = next {
            self.take_definition(next);
        }
        is_other
    }

    pub(super) fn take_definition(&mut self, new: Definition) {
        let taken = self.definition.take(new, &self.log);
        self.log.set_cost(self.deps.call_cost(Some(&self.definition.agent)));
        if taken.may_compact {
            // A compaction that failed three times may work with the new definition.
            self.log.forget_failures_above(0);
        }
        self.limits_changed();
        if taken.is_switch {
            self.definition.warn_again();
        }
    }
}
