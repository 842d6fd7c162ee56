//! Models that answer when the agent's own model fails.
//!
//! Invariants: a fallback has the agent's instructions, tools and limits, and model settings of its own; a
//! run switches to it in the middle of a step and keeps it; the next run starts with the agent's own model
//! again.

use greenroom_kernel::FailureClass;
use greenroom_provider::ModelSettings;

use crate::agent::Agent;

/// The default failures after which a fallback is asked: all failures of the model's server, the key or the
/// model's name. [`FailureClass::Other`] is included for withdrawn models, although it also covers requests
/// that are invalid everywhere. Failures that the request itself causes would recur, so they are excluded: a
/// filter's refusal, and a context that does not fit.
pub(crate) const FALLBACK_ON: &[FailureClass] = &[
    FailureClass::RateLimited,
    FailureClass::RequestTooLargeForRateLimit,
    FailureClass::Quota,
    FailureClass::Auth,
    FailureClass::Overloaded,
    FailureClass::Timeout,
    FailureClass::Malformed,
    FailureClass::Loading,
    FailureClass::Other,
];

/// A model that is asked when the one before it fails: see [`Agent::fallback`]. A string converts into a
/// fallback of the agent's own provider.
///
/// ```
/// use greenroom::{Fallback, prelude::*};
/// let agent = Agent::new("gpt-5.5")
///     .fallback("gpt-5.4-mini")
///     .fallback(Fallback::new("qwen3").provider("local").context_window(32_000));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Fallback {
    pub(crate) model: String,
    provider: Option<String>,
    settings: ModelSettings,
    context_window: Option<u64>,
}

impl Fallback {
    /// Creates a fallback to a model of the agent's own provider.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), provider: None, settings: ModelSettings::default(), context_window: None }
    }

    /// Sets the provider that serves the model, by name, if it is not the agent's.
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Sets the model settings. A fallback inherits only the output limit of the agent's own settings,
    /// because other settings may not suit its model. Settings for a model by name ([`Agent::settings_for`])
    /// and those of a prompt apply to it, too.
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = self.settings.merged(settings);
        self
    }

    /// Sets the window in tokens, for a model whose window neither its server nor the catalogue knows.
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// Returns the agent with this model.
    pub(crate) fn of(&self, agent: &Agent) -> Agent {
        let output_tokens_max = agent.settings.output_tokens_max;
        let settings = ModelSettings { output_tokens_max, ..ModelSettings::default() };
        Agent {
            model: self.model.clone(),
            provider: self.provider.clone().or_else(|| agent.provider.clone()),
            own_provider: agent.own_provider.clone().filter(|_| self.provider.is_none()),
            settings: settings.merged(self.settings.clone()),
            context_window: self.context_window,
            fallbacks: Vec::new(),
            ..agent.clone()
        }
    }
}

impl<T: Into<String>> From<T> for Fallback {
    fn from(model: T) -> Self {
        Self::new(model)
    }
}
