//! An agent's definition as one session uses it: resolved against the runtime's providers, tools and
//! settings.
//!
//! Invariants: it is resolved as a whole, so a session never works with half of a definition; the window is
//! the currently known one.

use std::sync::Arc;

use greenroom_kernel::cost::{CostLimits, RunCost};
use greenroom_kernel::due::ContextLimits;
use greenroom_kernel::message::ToolCall;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::size::{Estimator, text_tokens, tools_tokens};
use greenroom_kernel::usage::{Window, WindowSource};
use greenroom_provider::{ModelSettings, NativeCompaction, ResentReasoning, SettingError, ToolChoice};
use greenroom_tools::Registry;

use crate::agent::Agent;
use crate::agent::shared_tools::AllTools;
use crate::core::deps::Deps;
use crate::core::message::{PromptOptions, RequestHead, Summariser, TrackerConfig};
use crate::lane::Lane;
use crate::values::error::{ConfigError, Result};
use crate::values::model_info::check_price;

#[cfg(test)]
mod tests;

/// A resolved definition.
#[derive(Clone)]
pub(super) struct Definition {
    pub(super) agent: Arc<Agent>,
    pub(super) lane: Arc<Lane>,
    pub(super) tools: Registry,
    pub(super) settings: Arc<CompactionSettings>,
    pub(super) window: Window,
    /// The version of the changeable settings that it was resolved with: see [`Deps::refresh_settings`].
    pub(super) settings_version: u64,
    /// The current instructions: those of the newest run, or those that do not depend on a run.
    instructions: Arc<str>,
    /// The size of the instructions, in estimated tokens.
    instructions_tokens: u64,
    /// The size of the tools, in estimated tokens.
    tools_tokens: u64,
}

/// What a session adds to its definition when its context is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionLimits {
    /// The pinned messages outside the active path, in estimated tokens.
    pub(super) pinned_tokens: u64,
    /// The cost limit of the run in progress.
    pub(super) run_cost: Option<RunCost>,
    /// Whether another session's call started it.
    pub(super) is_sub_agent: bool,
    /// Whether automatic compactions are paused after failures.
    pub(super) is_paused: bool,
    /// Whether a compaction was undone, so the next one waits until the window is nearly full.
    pub(super) only_at_window: bool,
}

impl Definition {
    /// Resolves an agent for a session with this many pinned tokens.
    ///
    /// # Errors
    /// An unknown provider, an unusable tool, or settings that leave no room; or one of these in a fallback,
    /// a sub-agent or a member of its team.
    pub(super) fn resolve(deps: &Arc<Deps>, agent: Arc<Agent>, pinned_tokens: u64) -> Result<Self> {
        let definition = Self::resolve_alone(deps, agent, pinned_tokens)?;
        Self::check_sub_agents(deps, &definition.agent)?;
        Ok(definition)
    }

    /// Checks the sub-agents of this agent, on all levels.
    fn check_sub_agents(deps: &Arc<Deps>, agent: &Agent) -> Result<()> {
        for sub_agent in &agent.sub_agents {
            let check = || {
                Self::resolve_alone(deps, Arc::clone(sub_agent.agent()), 0)?;
                Self::check_sub_agents(deps, sub_agent.agent())
            };
            check().map_err(|error| ConfigError::SubAgent {
                name: sub_agent.name().to_owned(),
                reason: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// Like [`Self::resolve`], without checking the sub-agents: each is checked once.
    fn resolve_alone(deps: &Arc<Deps>, agent: Arc<Agent>, pinned_tokens: u64) -> Result<Self> {
        if agent.model.trim().is_empty() {
            return Err(ConfigError::NoModel.into());
        }
        let definition = Self::resolve_to_read(deps, agent)?;
        definition.check_room(definition.overhead(pinned_tokens))?;
        for fallback in &definition.agent.fallbacks {
            let refuse =
                |reason: String| ConfigError::Fallback { model: fallback.model.clone(), reason }.into();
            if fallback.model.trim().is_empty() {
                return Err(refuse("a model needs a name".to_owned()));
            }
            let agent = Arc::new(fallback.of(&definition.agent));
            let other =
                Self::resolve_alone(deps, agent, pinned_tokens).map_err(|error| refuse(error.to_string()))?;
            if other.is_same_model(&definition) {
                return Err(refuse("it is the agent's own model".to_owned()));
            }
        }
        for other in definition.agent.others() {
            let name = other.member_name().unwrap_or_default().to_owned();
            Self::resolve_to_read(deps, Arc::new(other))
                .map_err(|error| ConfigError::Team { reason: format!("{name} could not answer: {error}") })?;
        }
        Ok(definition)
    }

    /// Resolves an agent for reading a session's state, for which nothing needs room.
    ///
    /// # Errors
    /// Those of [`Self::resolve`], except missing room.
    pub(super) fn resolve_to_read(deps: &Arc<Deps>, agent: Arc<Agent>) -> Result<Self> {
        let settings_version = deps.refresh_settings(&agent);
        let live = deps.reloaded_of(&agent);
        let agent = live.map(|live| live.adjusted(Arc::clone(&agent))).unwrap_or(agent);
        let lane = deps.lane(&agent).cloned().ok_or_else(|| deps.unknown_provider(&agent))?;
        let AllTools { registry: tools, tokens: tools_tokens } = deps.tools.of(&agent, || {
            let registry = crate::actors::tools_of::tools_of(deps, &agent)?;
            let tokens = tools_tokens(&registry.specs());
            Ok(AllTools { registry, tokens })
        })?;
        let settings = deps.settings(&agent);
        // The text that a function writes is known only when a run starts.
        let instructions = agent.instructions.fixed().cloned().unwrap_or_else(|| Arc::from(""));
        let instructions_tokens = instructions_tokens(&instructions);
        let fixed_tokens = instructions_tokens + tools_tokens;
        let window = deps.window(&agent, &lane, &agent.model, &settings, fixed_tokens);
        let definition = Self {
            agent,
            lane,
            tools,
            settings,
            window,
            settings_version,
            instructions,
            instructions_tokens,
            tools_tokens,
        };
        definition.agent.settings_by_model.values().try_for_each(ModelSettings::check)?;
        definition.agent.prices.iter().try_for_each(|(model, price)| check_price(model, price))?;
        let _ = definition.model_settings(deps, &ModelSettings::default())?;
        Ok(definition)
    }

    /// Sets the instructions of a new run. Returns whether they have changed.
    ///
    /// # Errors
    /// They leave no room in the window, together with the tools and the pinned messages.
    pub(super) fn set_instructions(&mut self, text: &Arc<str>, pinned_tokens: u64) -> Result<bool> {
        if *text == self.instructions {
            return Ok(false);
        }
        let tokens = instructions_tokens(text);
        self.check_room(tokens + self.tools_tokens + pinned_tokens)?;
        self.instructions_tokens = tokens;
        self.instructions = Arc::clone(text);
        Ok(true)
    }

    /// Checks that the session could work with these settings of the runtime.
    ///
    /// # Errors
    /// They leave no room in the window. The check passes for an agent with settings of its own, which
    /// ignores the runtime's.
    pub(super) fn check_settings(
        &self,
        deps: &Deps,
        settings: &CompactionSettings,
        pinned_tokens: u64,
    ) -> Result<()> {
        if self.agent.compaction.is_some()
            || self.agent.live.as_ref().is_some_and(|live| live.compaction().is_some())
        {
            return Ok(());
        }
        let overhead = self.overhead(pinned_tokens);
        if let Some(window) = deps.window(&self.agent, &self.lane, self.model(), settings, overhead).tokens {
            settings.feasible(window, overhead)?;
        }
        Ok(())
    }

    /// Checks that a compaction has room in the window with a fixed part of this many tokens.
    fn check_room(&self, overhead: u64) -> Result<()> {
        if let Some(window) = self.window.tokens {
            self.settings.feasible(window, overhead)?;
        }
        Ok(())
    }

    /// The provider's name.
    pub(super) fn provider(&self) -> &str {
        self.lane.provider.name()
    }

    /// The model's name.
    pub(super) fn model(&self) -> &str {
        &self.agent.model
    }

    /// Returns its own model as a summariser.
    pub(super) fn own_summariser(&self, deps: &Deps) -> Summariser {
        self.summariser(deps, &self.agent.model)
    }

    /// Returns a model of the same provider as a summariser.
    pub(super) fn summariser(&self, deps: &Deps, model: &str) -> Summariser {
        Summariser {
            lane: Arc::clone(&self.lane),
            model: model.to_owned(),
            settings: deps.summary_settings(&self.agent, model),
            agent: Arc::clone(&self.agent),
        }
    }

    /// Returns the model settings for a prompt with settings of its own.
    ///
    /// # Errors
    /// Settings that no server accepts, or that name an unknown tool.
    pub(super) fn model_settings(&self, deps: &Deps, of_prompt: &ModelSettings) -> Result<ModelSettings> {
        let settings = deps.model_settings(&self.agent).merged(of_prompt.clone());
        settings.check()?;
        if let Some(ToolChoice::Tool(name)) = &settings.tool_choice
            && self.tools.get(name).is_none()
        {
            let reason = format!("there is no tool {name:?}");
            return Err(SettingError::new("tool_choice", reason).into());
        }
        Ok(settings)
    }

    /// Whether a call runs beside no other.
    pub(super) fn runs_alone(&self, call: &ToolCall) -> bool {
        self.tools.get(&call.name).is_some_and(|tool| tool.parallel_max().is_none())
    }

    /// Checks that a prompt can be answered with its options.
    ///
    /// # Errors
    /// Those of [`Self::model_settings`], or an unknown validator.
    pub(super) fn check_prompt(&self, deps: &Deps, options: &PromptOptions) -> Result<()> {
        options.judges(&self.agent)?;
        self.model_settings(deps, &options.settings).map(drop)
    }

    /// Whether both use the same model of the same provider.
    pub(super) fn is_same_model(&self, other: &Self) -> bool {
        (self.provider(), self.model()) == (other.provider(), other.model())
    }

    /// The fixed part of every request, in estimated tokens.
    pub(super) fn overhead(&self, pinned_tokens: u64) -> u64 {
        self.instructions_tokens + self.tools_tokens + pinned_tokens
    }

    /// Determines the window again, because a limit was learned or is doubted, the server reports something
    /// else, or more is pinned. Returns whether the window has changed.
    pub(super) fn refresh_window(&mut self, deps: &Deps, pinned_tokens: u64) -> bool {
        let overhead = self.overhead(pinned_tokens);
        let before = self.window;
        self.window = deps.window(&self.agent, &self.lane, self.model(), &self.settings, overhead);
        self.window != before
    }

    /// Returns what every request of the session begins with.
    pub(super) fn request_head(&self, settings: ModelSettings) -> RequestHead {
        RequestHead { system: Arc::clone(&self.instructions), tools: self.tools.specs(), settings }
    }

    /// Returns the provider's own compaction for the session's model.
    pub(super) fn native_compaction(&self) -> Option<NativeCompaction> {
        self.lane.provider.native_compaction(self.model())
    }

    /// Returns which reasoning of earlier answers a request with these settings contains.
    pub(super) fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.lane.provider.resent_reasoning(settings)
    }

    /// Returns the basis of the session's measurements.
    pub(super) fn tracker_config(&self, deps: &Deps, session: SessionLimits) -> TrackerConfig {
        TrackerConfig {
            origin: self.lane.origin().to_owned(),
            model: self.model().to_owned(),
            overhead: self.overhead(session.pinned_tokens),
            resent: self.resent_reasoning(&deps.model_settings(&self.agent)),
            limits: ContextLimits {
                window: self.window,
                settings: Arc::clone(&self.settings),
                output_tokens_max: deps.output_tokens_max(&self.agent),
                cost: CostLimits { session: self.agent.cost_limit, run: session.run_cost },
                is_sub_agent: session.is_sub_agent,
                is_paused: session.is_paused,
                only_at_window: session.only_at_window,
            },
        }
    }

    /// Returns the warning that a server named a limit when it refused a request, and whether this changes
    /// the window: a configured one stays.
    pub(super) fn limit_warning(&self, deps: &Deps, lane: &Lane, model: &str, limit: u64) -> String {
        let says = format!("{} says that {model} accepts {limit} tokens", lane.origin());
        let window = deps.window(&self.agent, lane, model, &self.settings, 0);
        match (window.source, window.tokens) {
            (WindowSource::Setting | WindowSource::CompactionSetting, Some(set)) if set != limit => {
                format!(
                    "{says}; this is not used, because its window is set to {set}: set it to {limit}, or do not set it"
                )
            }
            _ => format!("{says}; this is remembered"),
        }
    }

    /// Returns the warnings about an unknown window.
    pub(super) fn warnings(&self) -> Vec<String> {
        let (model, origin) = (self.model(), self.lane.origin());
        let mut warnings = Vec::new();
        match (self.window.source, self.window.tokens) {
            (WindowSource::Assumed, Some(_)) if self.agent.is_window_shown => {}
            (WindowSource::Assumed, Some(tokens)) => warnings.push(format!(
                "the window of {model} at {origin} is unknown: {tokens} tokens are assumed; set context_window to \
                 what it takes"
            )),
            (WindowSource::Unknown, _) | (WindowSource::Assumed, None) => warnings.push(format!(
                "the window of {model} at {origin} is unknown: nothing is compacted before the provider refuses; \
                 set context_window to what it takes"
            )),
            (WindowSource::Trained, tokens) => warnings.push(format!(
                "{origin} says that {model} was made for {} tokens, and not how many it takes; set context_window to \
                 what it takes",
                tokens.unwrap_or_default()
            )),
            (
                WindowSource::CompactionSetting
                | WindowSource::Setting
                | WindowSource::Server
                | WindowSource::Catalog
                | WindowSource::Learned
                | _,
                _,
            ) => {}
        }
        warnings
    }
}

/// Returns the size of the system prompt, in estimated tokens.
pub(super) fn instructions_tokens(text: &str) -> u64 {
    text_tokens(text, Estimator::Classes)
}
