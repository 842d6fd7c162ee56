//! A run switches to another model, because the current one has failed.
//!
//! Invariants: the session's original definition waits as the next one, and is used again after the run; the
//! log says which model answers before it is called.

use std::sync::Arc;

use greenroom_kernel::Failure;
use greenroom_kernel::entry::EntryKind;
use greenroom_provider::ModelSettings;

use super::SessionState;
use super::definition::Definition;
use crate::agent::Agent;
use crate::core::message::{AgentMessage, RunAttempt};
use crate::values::error::Result;

impl SessionState {
    /// Handles the final failure of the run's model.
    pub(super) async fn fall_back(&mut self, attempt: RunAttempt, failure: Failure) {
        let Some(run) = self.current(attempt) else { return };
        let Some(agent) = run.next_fallback() else { return };
        let of_prompt = run.options().settings.clone();
        // The fallback was checked when the session was opened; settings may have changed since.
        let (definition, settings) = match self.resolve_fallback(agent, &of_prompt) {
            Ok(resolved) => resolved,
            Err(error) => return self.run_broken(&error),
        };
        self.definition.fall_back(definition);
        self.limits_changed();
        for doubt in self.definition.warnings() {
            self.warn(doubt);
        }
        let (provider, model) = (self.definition.provider().to_owned(), self.definition.model().to_owned());
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::ModelChange { provider: provider.clone(), model });
        if !self.append_for_run(draft).await {
            return;
        }
        if let Some(run) = self.current(attempt) {
            run.set_settings(settings.clone());
        }
        let agent = Arc::clone(&self.definition.agent);
        self.agent.tell(AgentMessage::FellBack {
            attempt,
            agent,
            provider,
            settings: Box::new(settings),
            failure: Box::new(failure),
        });
    }

    fn resolve_fallback(
        &self,
        agent: Agent,
        of_prompt: &ModelSettings,
    ) -> Result<(Definition, ModelSettings)> {
        let definition = Definition::resolve(&self.deps, Arc::new(agent), self.log.pinned_tokens())?;
        let settings = definition.model_settings(&self.deps, of_prompt)?;
        Ok((definition, settings))
    }
}
