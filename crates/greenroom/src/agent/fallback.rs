//! Other models that an agent is answered by when its own fails.
//!
//! Invariants: a fallback has the agent's instructions, tools and limits, and model settings of its own; a run goes over to
//! it in the middle of a step and stays with it; the next run begins with the agent's own model again.

use greenroom_kernel::FailureClass;
use greenroom_provider::ModelSettings;

use crate::agent::Agent;

/// The failures for which another model is asked, where nothing else is said: all that come from the model's server, the
/// key or the model's name ([`FailureClass::Other`]: a model that was withdrawn; but a request that is invalid everywhere,
/// too). What the request itself causes would come again: a filter's refusal, and a context that does not fit.
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

/// A model that is asked when the one before it fails: see [`Agent::fallback`]. A model's name is one, of the agent's
/// own provider.
///
/// ```
/// use greenroom::{Fallback, prelude::*};
/// let agent = Agent::new("gpt-5.5")
///     .fallback("gpt-5.4-mini")
///     .fallback(Fallback::new("qwen3").provider("local").context_window(32_000));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Fallback {
    pub(crate) model: String,
    provider: Option<String>,
    settings: ModelSettings,
    context_window: Option<u64>,
}

impl Fallback {
    /// A model of the agent's own provider.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), provider: None, settings: ModelSettings::default(), context_window: None }
    }

    /// The provider that serves it, by name, where that is another than the agent's.
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// How it is to answer. Of the agent's own settings it has the output limit only: what suits one model may be refused
    /// by another. What is set for a model by name ([`Agent::settings_for`]) and with a prompt holds for it, too.
    #[must_use]
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = self.settings.merged(settings);
        self
    }

    /// Its window in tokens, where neither its server nor the catalogue knows it.
    #[must_use]
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// The same agent, answered by this model.
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
