//! The terms of a prompt: between a request, its record in the log, and the run to which they apply.
//!
//! Invariants: a record has all terms of the request except its functions, which are counted; a request takes
//! over the terms that it does not set itself from the record.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::terms::Terms;
use greenroom_provider::{ModelSettings, SettingError};

use crate::agent::Agent;
use crate::agent::output::OutputForm;
use crate::agent::validate::Validators;
use crate::core::message::PromptOptions;
use crate::values::error::{ConfigError, Error, Result};

impl PromptOptions {
    /// Returns the terms to record; `None` if there are none.
    pub(crate) fn terms(&self) -> Option<Arc<Terms>> {
        let settings = (self.settings != ModelSettings::default())
            .then(|| serde_json::to_value(&self.settings).expect("settings are JSON with names as keys"));
        let terms = Terms {
            output: self.form.as_ref().map(OutputForm::terms),
            settings,
            cost_limit: self.cost_limit,
            timeout_ms: self.timeout.map(milliseconds),
            validators: self.validated_by.clone(),
            unnamed_validators: u32::try_from(self.validators.len()).unwrap_or(u32::MAX),
            again: self.again,
        };
        (!terms.is_empty()).then(|| Arc::new(terms))
    }

    /// Takes over the terms that the request does not set. Unnamed validators stay with the program that had
    /// them.
    ///
    /// # Errors
    /// The record has settings or a schema that this version does not know.
    pub(crate) fn take_over(&mut self, terms: &Terms) -> Result<()> {
        let Terms { output, settings, cost_limit, timeout_ms, validators, unnamed_validators: _, again } =
            terms;
        if let (None, Some(output)) = (&self.form, output) {
            self.form = Some(OutputForm::of_terms(output)?);
        }
        if let Some(settings) = settings {
            let recorded: ModelSettings = serde_json::from_value(settings.clone()).map_err(|error| {
                let setting = "those that were recorded with the prompt";
                Error::from(SettingError::new(setting, error.to_string()))
            })?;
            self.settings = recorded.merged(std::mem::take(&mut self.settings));
        }
        self.cost_limit = self.cost_limit.or(*cost_limit);
        self.timeout = self.timeout.or(timeout_ms.map(Duration::from_millis));
        let new: Vec<String> =
            validators.iter().filter(|name| !self.validated_by.contains(name)).cloned().collect();
        self.validated_by.extend(new);
        self.again = self.again.or(*again);
        Ok(())
    }

    /// Returns the validators of the answers besides the agent's own: the form first.
    ///
    /// # Errors
    /// The agent lacks a validator that is named.
    pub(crate) fn judges(&self, agent: &Agent) -> Result<Validators> {
        let mut judges = Validators::default();
        if let Some(form) = &self.form {
            form.demand(&mut judges);
        }
        for name in &self.validated_by {
            judges = judges.and(agent.named_validator(name)?);
        }
        Ok(judges.and(&self.validators))
    }
}

/// Returns the validators that a run requires and that are missing with this agent and this many functions of
/// the request: their names, and how many are unnamed.
pub(crate) fn lacking(terms: &Terms, agent: Option<&Agent>, functions: usize) -> Option<(Vec<String>, u32)> {
    let knows = |name: &&String| agent.is_some_and(|agent| agent.named_validators.contains_key(*name));
    let names: Vec<String> = terms.validators.iter().filter(|name| !knows(name)).cloned().collect();
    let unnamed = terms.unnamed_validators.saturating_sub(u32::try_from(functions).unwrap_or(u32::MAX));
    (!names.is_empty() || unnamed > 0).then_some((names, unnamed))
}

impl Agent {
    /// Returns the validator with this name.
    pub(crate) fn named_validator(&self, name: &str) -> Result<&Validators, ConfigError> {
        self.named_validators.get(name).ok_or_else(|| ConfigError::UnknownValidator {
            wanted: name.to_owned(),
            known: self.named_validators.keys().cloned().collect(),
        })
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
