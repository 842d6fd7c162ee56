//! Room: the definition of an agent: its model, instructions, tools, limits, hooks and team.
//!
//! May use `lane` (an agent may have a provider of its own), `limits` and `values`.
//!
//! - What it says: `instructions`, `output` (structured answers), `validate` (the judges of an answer).
//! - What it calls: `shared_tools`, `sub_agent`, `team`, `permissions`, `hooks`.
//! - When it changes: `live_settings`, `fallback` (other models).
//!
//! Invariants: a definition holds no conversation and no connection; one definition serves any number of
//! sessions at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::entry::Sees;
use greenroom_kernel::run::RunLimits;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{FailureClass, ToolSpec};
use greenroom_provider::{ModelPrice, ModelSettings};
use greenroom_tools::{AppState, IntoToolOutput, Registry, Tool, ToolError, ToolFunction};

use crate::agent::fallback::{FALLBACK_ON, Fallback};
use crate::agent::hooks::AgentHooks;
use crate::agent::instructions::{Instructions, InstructionsContext};
use crate::agent::live_settings::{ReloadedSettings, SettingsChange};
use crate::agent::sub_agent::SubAgent;
use crate::agent::team::{HandOffTo, Members};
use crate::agent::validate::Validators;
use crate::lane::shared_provider::SharedProvider;
use crate::limits::spending::microdollars;
use crate::values::error::ConfigError;
use crate::values::model_info::PriceList;

pub(crate) mod fallback;
pub(crate) mod hooks;
pub(crate) mod instructions;
pub(crate) mod live_settings;
pub(crate) mod output;
#[cfg(feature = "permissions")]
pub(crate) mod permissions;
pub(crate) mod shared_tools;
pub(crate) mod sub_agent;
pub(crate) mod team;
pub(crate) mod validate;

/// The default limit of sub-agents that one run may call.
const SUB_AGENTS_MAX: u32 = 64;

/// The definition of an agent.
#[derive(Clone, Debug)]
#[must_use]
pub struct Agent {
    pub(crate) model: String,
    pub(crate) provider: Option<String>,
    /// Its own provider, in place of one of the runtime's.
    pub(crate) own_provider: Option<SharedProvider>,
    /// Identifies the definition for work that outlives its process.
    pub(crate) fingerprint: Option<String>,
    pub(crate) is_window_shown: bool,
    /// The source of its settings that change while sessions are open, in place of the runtime's.
    pub(crate) live: Option<Arc<ReloadedSettings>>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) fallback_on: Arc<[FailureClass]>,
    pub(crate) instructions: Instructions,
    pub(crate) validators: Validators,
    /// Validators of the answers to prompts that name them.
    pub(crate) named_validators: BTreeMap<String, Validators>,
    pub(crate) hooks: AgentHooks,
    pub(crate) tools: Registry,
    #[cfg(feature = "permissions")]
    pub(crate) permissions: Option<permissions::Permissions>,
    pub(crate) state: AppState,
    pub(crate) sub_agents: Vec<SubAgent>,
    pub(crate) sub_agents_max: u32,
    /// The agents to which it may hand the conversation.
    pub(crate) hand_offs: Vec<HandOffTo>,
    /// Its name in its team, and the team.
    pub(crate) team: Option<(String, Arc<Members>)>,
    pub(crate) context_window: Option<u64>,
    pub(crate) windows_by_model: BTreeMap<String, u64>,
    pub(crate) settings: ModelSettings,
    pub(crate) settings_by_model: BTreeMap<String, ModelSettings>,
    pub(crate) prices: PriceList,
    pub(crate) compaction: Option<CompactionSettings>,
    /// Whether its model gets the tool `compact`.
    pub(crate) may_compact: bool,
    pub(crate) limits: RunLimits,
    /// In micro-dollars: for a whole session, and for one run.
    pub(crate) cost_limit: Option<u64>,
    pub(crate) run_cost_limit: Option<u64>,
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) run_timeout: Option<Duration>,
    /// The errors in the definition, which are returned when a session is opened with it.
    pub(crate) problems: Vec<ConfigError>,
}

impl From<&Agent> for Arc<Agent> {
    fn from(agent: &Agent) -> Self {
        Self::new(agent.clone())
    }
}

impl Agent {
    /// The default time limit of a run: four hours.
    pub const RUN_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);

    /// Creates an agent with this model, without instructions or tools.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            provider: None,
            own_provider: None,
            fingerprint: None,
            is_window_shown: false,
            live: None,
            fallbacks: Vec::new(),
            fallback_on: FALLBACK_ON.into(),
            instructions: Instructions::default(),
            validators: Validators::default(),
            named_validators: BTreeMap::new(),
            hooks: AgentHooks::default(),
            tools: Registry::default(),
            #[cfg(feature = "permissions")]
            permissions: None,
            state: AppState::default(),
            sub_agents: Vec::new(),
            sub_agents_max: SUB_AGENTS_MAX,
            hand_offs: Vec::new(),
            team: None,
            context_window: None,
            windows_by_model: BTreeMap::new(),
            settings: ModelSettings::default(),
            settings_by_model: BTreeMap::new(),
            prices: PriceList::default(),
            compaction: None,
            may_compact: false,
            limits: RunLimits::default(),
            cost_limit: None,
            run_cost_limit: None,
            tool_timeout: None,
            run_timeout: Some(Self::RUN_TIMEOUT),
            problems: Vec::new(),
        }
    }

    /// Sets the model.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// let careful = Agent::new("gpt-5.5").instructions("Answer in one line.");
    /// let quick = careful.clone().model("gpt-5.5-mini");
    /// # drop(quick);
    /// ```
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Sets the instructions: the system prompt. They are part of every request, and never part of the log.
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = Instructions::Text(text.into().into());
        self
    }

    /// Sets a function that generates the instructions when a run starts. Within the run they are identical in
    /// every request, so a provider's cache remains valid; if they differ from those of the session's
    /// previous run, the event `instructions_changed` reports them. Their size is part of the fixed part of
    /// every request. The function must not block, because the session's other work waits for it. If it
    /// panics, the run is refused.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5")
    ///     .instructions_from(|to| format!("You help in the conversation {}. Be brief.", to.session));
    /// ```
    pub fn instructions_from(
        mut self,
        write: impl Fn(&InstructionsContext) -> String + Send + Sync + 'static,
    ) -> Self {
        self.instructions = Instructions::Function(Arc::new(write));
        self
    }

    /// Sets its permissions: which tool calls run, ask a person, or are denied. They judge each call after the
    /// hooks, with the arguments that the hooks left. Without permissions, every call runs. Its sub-agents have
    /// their own.
    #[cfg(feature = "permissions")]
    pub fn permissions(mut self, permissions: permissions::Permissions) -> Self {
        self.permissions = Some(permissions);
        self
    }

    /// Sets the provider of its model, by name, if the runtime has several.
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        (self.provider, self.own_provider) = (Some(name.into()), None);
        self
    }

    /// Sets a provider that belongs to the agent instead of the runtime, for programs whose users each have
    /// their own server or key. Its sub-agents have their own, too, or one of the runtime's.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let (ours, theirs) = (Simulator::echo(), Simulator::echo());
    /// # let runtime = Runtime::builder().provider(ours.provider()).in_memory().start().await?;
    /// use greenroom::SharedProvider;
    /// let provider = SharedProvider::new(theirs.provider()).in_flight_max(4);
    /// let agent = Agent::new("gpt-5.5").own_provider(&provider);
    /// println!("{}", runtime.open("umbrella", agent).await?.prompt("Umbrella in Oslo?").await?);
    /// # Ok(()) }
    /// ```
    pub fn own_provider(mut self, provider: &SharedProvider) -> Self {
        self.own_provider = Some(provider.clone());
        self
    }

    /// Sets a short text that identifies the agent's capabilities: its tools, folder, server and key. It is
    /// stored with queued input for the agent, and must not contain secrets.
    ///
    /// If an agent with a fingerprint opens a session, input that an earlier process left in its inbox is
    /// *held back*: it starts only when the session is resumed with an agent with the same fingerprint. So no
    /// input reaches tools for which it was not meant, and no input is processed without a request. Without a
    /// fingerprint, the input starts when the session is opened, after the run that was interrupted before it, unless it
    /// was meant for an agent with a fingerprint.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let agent = Agent::new("gpt-5.5").fingerprint("editor, may write in /home/ada/plan");
    /// let session = runtime.open("plan", agent).await?;
    /// if session.state().await?.held_back > 0 {
    ///     println!("{}", session.resume().await?);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Declares that the program shows the user the model's window and its source ([`State`](crate::State)). Then
    /// no warning says that the window is assumed.
    pub fn window_is_shown(mut self) -> Self {
        self.is_window_shown = true;
        self
    }

    /// Sets the source of this agent's settings that change while sessions are open, in place of the
    /// runtime's: see [`RuntimeBuilder::live_settings`](crate::RuntimeBuilder::live_settings). Copies of the
    /// agent share the source.
    pub fn live_settings(
        mut self,
        source: impl Fn() -> Option<SettingsChange> + Send + Sync + 'static,
    ) -> Self {
        self.live = Some(Arc::new(ReloadedSettings::new(Arc::new(source))));
        self
    }

    /// Adds a model that answers when the previous one fails; fallbacks are used in order. Temporary failures
    /// are retried first ([`RunLimits::retries_max`]), a timeout once; there are no retries if the provider
    /// asks for a wait of more than ten seconds or is loading its model. The run continues with the event
    /// `fallback`, after a compaction if the other window requires it; the next run starts with the agent's
    /// own model again.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").fallback("gpt-5.4-mini");
    /// ```
    pub fn fallback(mut self, fallback: impl Into<Fallback>) -> Self {
        self.fallbacks.push(fallback.into());
        self
    }

    /// Sets the failures after which the fallbacks are used. The default is all, except a filter's refusal
    /// and a context that does not fit.
    pub fn fallback_on(mut self, classes: impl IntoIterator<Item = FailureClass>) -> Self {
        self.fallback_on = classes.into_iter().collect();
        self
    }

    /// Adds a tool from an `async` function with one struct of arguments; [`tool`](greenroom_tools::tool)
    /// describes the permitted arguments and results. The description and the schema come from the argument
    /// type's doc comment and fields. [`Self::add_tool`] has more options.
    ///
    /// ```
    /// use greenroom::prelude::*;
    ///
    /// /// Current weather for one city.
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Weather {
    ///     /// City name, e.g. "Oslo"
    ///     city: String,
    /// }
    ///
    /// let agent = Agent::new("gpt-5.5")
    ///     .tool("weather", |asked: Weather| async move { Ok(format!("{}: 12 °C, rain", asked.city)) });
    /// ```
    pub fn tool<Shape, Function, Output>(self, name: &str, function: Function) -> Self
    where
        Function: ToolFunction<Shape> + Send + Sync + 'static,
        Function::Arguments: serde::de::DeserializeOwned + schemars::JsonSchema,
        Function::Future: Future<Output = Result<Output, ToolError>> + Send + 'static,
        Output: IntoToolOutput,
    {
        self.add_tool(greenroom_tools::tool(name, function))
    }

    /// Adds a tool of any kind: one that [`tool`](greenroom_tools::tool) makes from a function, or a type of
    /// your own. Opening a session refuses a second tool with the same name, and a tool that cannot be
    /// called. To replace a built-in tool, use [`Registry::insert`] on its [`Registry`], before
    /// [`Self::tools`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use greenroom::prelude::*;
    /// # #[derive(Deserialize, JsonSchema)] struct Weather { city: String }
    /// let agent = Agent::new("gpt-5.5").add_tool(
    ///     tool("weather", |asked: Weather| async move { Ok(format!("{}: rain", asked.city)) })
    ///         .describe("Current weather for one city.")
    ///         .read_only()
    ///         .timeout(Duration::from_secs(5)),
    /// );
    /// ```
    pub fn add_tool(mut self, tool: impl Tool) -> Self {
        let tool: Arc<dyn Tool> = Arc::new(tool);
        let name = tool.spec().name;
        if self.tools.get(&name).is_some() {
            self.problems.push(ConfigError::DuplicateTool { name });
        } else if let Err(error) = self.tools.insert_shared(tool) {
            self.problems.push(ConfigError::tool(&error));
        }
        self
    }

    /// Adds a value for all tools of this agent, which they find by its type: a connection pool, a client, or
    /// a configuration, for example. A value of the same type is replaced. Sub-agents have their own values.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// struct Stock(Vec<&'static str>);
    /// # #[derive(Deserialize, JsonSchema)] struct Look { title: String }
    ///
    /// let agent = Agent::new("gpt-5.5").state(Stock(vec!["Dune"])).tool(
    ///     "look",
    ///     |look: Look, context: ToolContext| async move {
    ///         let stock = context.state::<Stock>()?;
    ///         Ok(stock.0.contains(&look.title.as_str()))
    ///     },
    /// );
    /// ```
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state = self.state.with(value);
        self
    }

    /// Returns the specifications of its own tools as the model gets them, by name: without sub-agents, hand-offs,
    /// `compact` and `recall`, which [`Runtime::tool_specs`](crate::Runtime::tool_specs) adds.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// # #[derive(Deserialize, JsonSchema)] struct Weather { city: String }
    /// let agent = Agent::new("gpt-5.5").tool("weather", |asked: Weather| async move { Ok(asked.city) });
    /// assert_eq!(agent.tool_specs()[0].name, "weather");
    /// ```
    pub fn tool_specs(&self) -> Arc<[ToolSpec]> {
        self.tools.specs()
    }

    /// Adds all tools of a registry. Opening a session refuses a name that both have, unless it is the same
    /// tool.
    pub fn tools(mut self, tools: &Registry) -> Self {
        let is_other = |name: &String| match (self.tools.get(name), tools.get(name)) {
            (Some(mine), Some(other)) => !Arc::ptr_eq(mine, other),
            _ => false,
        };
        if let Some(name) = tools.specs().iter().map(|spec| spec.name.clone()).find(is_other) {
            self.problems.push(ConfigError::DuplicateTool { name });
        }
        self.tools.merge(tools);
        self
    }

    /// Adds another agent as a tool. It handles each call in a session of its own, and its last answer is the
    /// result. It is cancelled with the call, and its events have this session's id as their parent.
    /// [`sub_agent`](crate::sub_agent) creates one, and describes its options. Its spending counts towards
    /// this agent's limits, and its run ends with this one's.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let critic = Agent::new("gpt-5.5").instructions("Say what is wrong with it.");
    /// let agent = Agent::new("gpt-5.5").sub_agent(sub_agent("critic", critic).describe("Finds mistakes in a text."));
    /// ```
    pub fn sub_agent(mut self, sub_agent: SubAgent) -> Self {
        self.sub_agents.push(sub_agent);
        self
    }

    /// Adds another agent of its [`Team`](crate::Team) to which it may hand the conversation: its model gets
    /// a tool `transfer_to_<name>`. `description` says what the other agent is for, and `sees` how much of
    /// the conversation it sees. The run continues with the other agent's model, instructions and tools, and
    /// so does the session.
    pub fn hand_off_to(
        mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        sees: Sees,
    ) -> Self {
        self.hand_offs.push(HandOffTo { name: name.into(), description: description.into(), sees });
        self
    }

    /// Sets how many sub-agents one run may call in all, including theirs; the default is 64. A model that
    /// calls another sub-agent is told that the limit is reached.
    pub fn sub_agents_max(mut self, calls: u32) -> Self {
        self.sub_agents_max = calls;
        self
    }

    /// Gives the model a tool `compact`, with which it reports that a part of its work is done and lists facts to
    /// remember from it. The conversation is then compacted after the run, unless its context fills less than 40 % of
    /// the window or there is no new message since the last compaction. The listed facts are carried over verbatim.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").model_may_compact();
    /// ```
    pub fn model_may_compact(mut self) -> Self {
        self.may_compact = true;
        self
    }

    /// Sets the model's window in tokens, if the catalogue is missing it or wrong.
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// Sets the window of one model in tokens, wherever this agent uses it: as its own model (unless
    /// [`Self::context_window`] sets another window), as a fallback, or for summaries.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let own = CompactionSettings { summary_model: Some("small".into()), ..CompactionSettings::default() };
    /// let agent = Agent::new("gpt-5.5").compaction(own).context_window_for("small", 8_192);
    /// ```
    pub fn context_window_for(mut self, model: impl Into<String>, tokens: u64) -> Self {
        self.windows_by_model.insert(model.into(), tokens);
        self
    }

    /// Returns the configured window of a model that this agent uses, in tokens.
    pub(crate) fn window_of(&self, model: &str) -> Option<u64> {
        let own = self.context_window.filter(|_| model == self.model);
        own.or_else(|| self.windows_by_model.get(model).copied())
    }

    /// Sets the model settings. Those for one model ([`Self::settings_for`]) take precedence, and those of a
    /// prompt over both. Calls for summaries use these settings without stop texts, tool choice and seed,
    /// which would break them; the output limit applies to them, too.
    ///
    /// ```
    /// use greenroom::{ReasoningEffort, prelude::*};
    /// let agent = Agent::new("gpt-5.5").settings(ModelSettings::new().reasoning_effort(ReasoningEffort::Low));
    /// ```
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = self.settings.merged(settings);
        self
    }

    /// Sets the model settings for one model, wherever this agent uses it.
    pub fn settings_for(mut self, model: impl Into<String>, settings: ModelSettings) -> Self {
        let known = self.settings_by_model.entry(model.into()).or_default();
        *known = std::mem::take(known).merged(settings);
        self
    }

    /// Sets the price of a model, wherever this agent uses it; it takes precedence over
    /// [`RuntimeBuilder::price_for`](crate::RuntimeBuilder::price_for).
    pub fn price_for(mut self, model: impl Into<String>, price: ModelPrice) -> Self {
        Arc::make_mut(&mut self.prices).insert(model.into(), price);
        self
    }

    /// Sets the output limit of one answer, in tokens. It applies to summaries, too.
    pub fn output_tokens_max(mut self, tokens: u64) -> Self {
        self.settings.output_tokens_max = Some(tokens);
        self
    }

    /// Sets the compaction settings of its sessions; the default is the runtime's.
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = Some(settings);
        self
    }

    /// Sets the limits of a run.
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the cost limit of one session in total, in US dollars, including its sub-agents. Limits are
    /// checked before each model call: the call's maximum cost must be left. If little is left, the call's
    /// output limit is lowered accordingly; if its input alone may cost more, the call is not made, and the
    /// run ends as stopped. Our own count of the input gets a margin of a quarter, so a limit is exceeded
    /// only if a server counts more than that, or produces more output than requested. Calls of a model
    /// without a known price count as 0, with a warning; calls without a plausible usage report count by our
    /// own estimate.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").cost_limit_usd(5.0).run_cost_limit_usd(0.5);
    /// ```
    pub fn cost_limit_usd(mut self, usd: f64) -> Self {
        self.cost_limit = self.checked_limit(usd);
        self
    }

    /// Sets the cost limit of one run, in US dollars, including its sub-agents; see
    /// [`Self::cost_limit_usd`]. A prompt may have a lower limit
    /// ([`RunRequest::cost_limit_usd`](crate::RunRequest::cost_limit_usd)).
    pub fn run_cost_limit_usd(mut self, usd: f64) -> Self {
        self.run_cost_limit = self.checked_limit(usd);
        self
    }

    fn checked_limit(&mut self, usd: f64) -> Option<u64> {
        match microdollars(usd) {
            Ok(limit) => Some(limit),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// Sets the time limit of a tool call, for tools without their own. Without either, the limit is that of
    /// the run.
    pub fn tool_timeout(mut self, timeout: Duration) -> Self {
        self.tool_timeout = Some(timeout);
        self
    }

    /// Sets the time limit of a run, including its model calls, tools and compactions; `None` means no limit.
    /// The default is [`Self::RUN_TIMEOUT`]. A run that takes longer ends as stopped, and its partial output
    /// is kept.
    pub fn run_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.run_timeout = timeout;
        self
    }
}
