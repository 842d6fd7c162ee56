//! Room: what an agent is, before it runs: its model, its instructions, its tools, its limits, its hooks, its team.
//!
//! May touch `lane` (an agent may bring a provider of its own), `limits` and `values`.
//!
//! Invariants: a definition holds no conversation and no connection; the same one serves any number of
//! sessions at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::entry::Sees;
use greenroom_kernel::run::RunLimits;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{FailureClass, ToolSpec};
use greenroom_provider::ModelSettings;
use greenroom_tools::{AppState, IntoToolOutput, Registry, Tool, ToolError, ToolFunction};

use crate::agent::fallback::{FALLBACK_ON, Fallback};
use crate::agent::hooks::AgentHooks;
use crate::agent::instructions::{Instructions, InstructionsContext};
use crate::agent::live::{Live, SettingsChange};
use crate::agent::sub_agent::SubAgent;
use crate::agent::team::{HandOffTo, Members};
use crate::agent::validate::Validators;
use crate::lane::shared_provider::SharedProvider;
use crate::limits::spending::microdollars;
use crate::values::error::ConfigError;

pub(crate) mod fallback;
pub(crate) mod hooks;
pub(crate) mod instructions;
pub(crate) mod live;
pub(crate) mod output;
pub(crate) mod shared_tools;
pub(crate) mod sub_agent;
pub(crate) mod team;
pub(crate) mod validate;

/// How many agents one run may call as tools, where nothing else is said.
const SUB_AGENTS_MAX: u32 = 64;

/// The definition of an agent.
#[derive(Clone, Debug)]
pub struct Agent {
    pub(crate) model: String,
    pub(crate) provider: Option<String>,
    /// The provider that it brings with it, in place of one of the runtime's.
    pub(crate) own_provider: Option<SharedProvider>,
    /// What it is made of, for what waits longer than its process lives.
    pub(crate) fingerprint: Option<String>,
    /// Where its settings come from that change while sessions are open, in place of the runtime's.
    pub(crate) live: Option<Arc<Live>>,
    pub(crate) fallbacks: Vec<Fallback>,
    pub(crate) fallback_on: Arc<[FailureClass]>,
    pub(crate) instructions: Instructions,
    pub(crate) validators: Validators,
    /// What judges the answers to prompts that ask for it.
    pub(crate) named_validators: BTreeMap<String, Validators>,
    pub(crate) hooks: AgentHooks,
    pub(crate) tools: Registry,
    pub(crate) state: AppState,
    pub(crate) sub_agents: Vec<SubAgent>,
    pub(crate) sub_agents_max: u32,
    /// To whom it may hand the conversation.
    pub(crate) hand_offs: Vec<HandOffTo>,
    /// Its name in its team, and the team.
    pub(crate) team: Option<(String, Arc<Members>)>,
    pub(crate) context_window: Option<u64>,
    pub(crate) windows_by_model: BTreeMap<String, u64>,
    pub(crate) settings: ModelSettings,
    pub(crate) settings_by_model: BTreeMap<String, ModelSettings>,
    pub(crate) compaction: Option<CompactionSettings>,
    pub(crate) limits: RunLimits,
    /// In micro-dollars: of a session in all, and of one run.
    pub(crate) cost_limit: Option<u64>,
    pub(crate) run_cost_limit: Option<u64>,
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) run_timeout: Option<Duration>,
    /// What is wrong with the definition; told when a session is opened with it.
    pub(crate) problems: Vec<ConfigError>,
}

impl From<&Agent> for Arc<Agent> {
    fn from(agent: &Agent) -> Self {
        Self::new(agent.clone())
    }
}

impl Agent {
    /// How long a run may take where nothing else is said: four hours.
    pub const RUN_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);

    /// An agent that answers with this model, without instructions or tools.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            provider: None,
            own_provider: None,
            fingerprint: None,
            live: None,
            fallbacks: Vec::new(),
            fallback_on: FALLBACK_ON.into(),
            instructions: Instructions::default(),
            validators: Validators::default(),
            named_validators: BTreeMap::new(),
            hooks: AgentHooks::default(),
            tools: Registry::default(),
            state: AppState::default(),
            sub_agents: Vec::new(),
            sub_agents_max: SUB_AGENTS_MAX,
            hand_offs: Vec::new(),
            team: None,
            context_window: None,
            windows_by_model: BTreeMap::new(),
            settings: ModelSettings::default(),
            settings_by_model: BTreeMap::new(),
            compaction: None,
            limits: RunLimits::default(),
            cost_limit: None,
            run_cost_limit: None,
            tool_timeout: None,
            run_timeout: Some(Self::RUN_TIMEOUT),
            problems: Vec::new(),
        }
    }

    /// The same agent, answering with another model.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// let careful = Agent::new("gpt-5.5").instructions("Answer in one line.");
    /// let quick = careful.clone().model("gpt-5.5-mini");
    /// # drop(quick);
    /// ```
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = model.into();
        self
    }

    /// Its instructions: the system prompt. They go with every request and are never part of the log.
    #[must_use]
    pub fn instructions(mut self, text: impl Into<String>) -> Self {
        self.instructions = Instructions::Text(text.into().into());
        self
    }

    /// Instructions that a function writes when a run begins. Within the run they stay the same to the byte, so that a
    /// provider's cache holds; where they differ from those of the session's run before, the event
    /// `instructions_changed` says so. Their size counts with the fixed part of every request. The function must not
    /// block: no session's other work goes on meanwhile. Where it panics, the run is refused.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5")
    ///     .instructions_from(|to| format!("You help in the conversation {}. Be brief.", to.session));
    /// ```
    #[must_use]
    pub fn instructions_from(
        mut self,
        write: impl Fn(&InstructionsContext) -> String + Send + Sync + 'static,
    ) -> Self {
        self.instructions = Instructions::Function(Arc::new(write));
        self
    }

    /// The provider that serves its model, by name, where the runtime has several.
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        (self.provider, self.own_provider) = (Some(name.into()), None);
        self
    }

    /// A provider that the agent brings with it, whatever the runtime has: for programs whose users each have a server or
    /// a key of their own. The agents that it calls as tools have their own, too, or one of the runtime's.
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
    #[must_use]
    pub fn own_provider(mut self, provider: &SharedProvider) -> Self {
        self.own_provider = Some(provider.clone());
        self
    }

    /// A short text that stands for what this agent is made of: its tools, folder, server and key. It is stored with what is
    /// said to the agent and waits, and must not tell a secret.
    ///
    /// In sessions that an agent with a fingerprint opens, what an earlier process left waiting is *held back*: it begins
    /// when somebody resumes the session with an agent of the same fingerprint, and never with another one, so that no
    /// words reach tools that they were not meant for, and none are acted on unasked. Without a fingerprint, it begins as
    /// the session is opened, unless it was said to an agent that had one.
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
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: impl Into<String>) -> Self {
        self.fingerprint = Some(fingerprint.into());
        self
    }

    /// Settings of this agent that change while sessions are open, in place of the runtime's: see
    /// [`RuntimeBuilder::live_settings`](crate::RuntimeBuilder::live_settings). Copies of the agent share the source.
    #[must_use]
    pub fn live_settings(
        mut self,
        source: impl Fn() -> Option<SettingsChange> + Send + Sync + 'static,
    ) -> Self {
        self.live = Some(Arc::new(Live::new(Arc::new(source))));
        self
    }

    /// Another model that answers when this one fails, and then the next, in the order in which they are named. What waiting
    /// may heal is tried again first ([`RunLimits::retries_max`]), a timeout once; not at all where the provider asks for more
    /// than ten seconds or loads its model. The run goes on where it was, with the event `fallback`, and is compacted first where the other's window is
    /// smaller; the next run begins with the agent's own model again.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").fallback("gpt-5.4-mini");
    /// ```
    #[must_use]
    pub fn fallback(mut self, fallback: impl Into<Fallback>) -> Self {
        self.fallbacks.push(fallback.into());
        self
    }

    /// The failures for which the fallbacks are asked, in place of all but a filter's refusal and a context that does not fit.
    #[must_use]
    pub fn fallback_on(mut self, classes: impl IntoIterator<Item = FailureClass>) -> Self {
        self.fallback_on = classes.into_iter().collect();
        self
    }

    /// A tool made of an `async` function of one struct of arguments: [`tool`](greenroom_tools::tool) says what a
    /// function may take and return. Its description and its arguments' schema come from the argument type: its doc
    /// comment and its fields. Use [`Self::add_tool`] to say more of the tool.
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
    #[must_use]
    pub fn tool<Shape, Function, Output>(self, name: &str, function: Function) -> Self
    where
        Function: ToolFunction<Shape> + Send + Sync + 'static,
        Function::Arguments: serde::de::DeserializeOwned + schemars::JsonSchema,
        Function::Future: Future<Output = Result<Output, ToolError>> + Send + 'static,
        Output: IntoToolOutput,
    {
        self.add_tool(greenroom_tools::tool(name, function))
    }

    /// A tool of any kind: one that [`tool`](greenroom_tools::tool) makes of a function, or a type of one's own. A second
    /// tool of the same name, and a tool that cannot be called, are refused when a session is opened; a built-in tool is
    /// replaced in its [`Registry`] with [`Registry::insert`], before [`Self::tools`].
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
    #[must_use]
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

    /// A value that all tools of this agent can use, found by its type: a connection pool, a client, a configuration.
    /// One of the same type is replaced. Agents that this one calls as tools have their own.
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
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.state = self.state.with(value);
        self
    }

    /// Its tools, by name, as the model is told of them. Sub-agents are not among them.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").tools(&builtin::read_only(greenroom_tools::Workspace::open(".").unwrap()));
    /// assert!(agent.tool_specs().iter().any(|tool| tool.name == "read"));
    /// ```
    pub fn tool_specs(&self) -> Arc<[ToolSpec]> {
        self.tools.specs()
    }

    /// All tools of a registry, besides those it has. A name that both have is refused when a session is opened, unless it
    /// is the same tool.
    #[must_use]
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

    /// Another agent, as a tool: it works on each call in a session of its own, and its last answer is the result. It is
    /// cancelled with the call, and its events carry this session's id as their parent. [`sub_agent`](crate::sub_agent)
    /// makes one, and says what can be said of it. What it spends counts towards this agent's limits, and its run ends
    /// with this one's.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let critic = Agent::new("gpt-5.5").instructions("Say what is wrong with it.");
    /// let agent = Agent::new("gpt-5.5").sub_agent(sub_agent("critic", critic).describe("Finds mistakes in a text."));
    /// ```
    #[must_use]
    pub fn sub_agent(mut self, sub_agent: SubAgent) -> Self {
        self.sub_agents.push(sub_agent);
        self
    }

    /// Another agent of its [`Team`](crate::Team) to whom it may hand the conversation: its model is offered a tool
    /// `transfer_to_<name>`. `description` says what the other one is for, and `sees` how much of the conversation that one
    /// sees. The run goes on with the other agent's model, instructions and tools, and the session with it.
    #[must_use]
    pub fn hand_off_to(
        mut self,
        name: impl Into<String>,
        description: impl Into<String>,
        sees: Sees,
    ) -> Self {
        self.hand_offs.push(HandOffTo { name: name.into(), description: description.into(), sees });
        self
    }

    /// The most agents that one run may call as tools in all, those that they call themselves included; 64 where this is
    /// not called. The model that asks for another one reads that there are no more.
    #[must_use]
    pub fn sub_agents_max(mut self, calls: u32) -> Self {
        self.sub_agents_max = calls;
        self
    }

    /// The model's window in tokens, where the catalogue does not know it or is wrong.
    #[must_use]
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// The window of one model in tokens, wherever this agent asks it: as its own model (unless
    /// [`Self::context_window`] says otherwise), as a fallback, or for summaries.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let own = CompactionSettings { summary_model: Some("small".into()), ..CompactionSettings::default() };
    /// let agent = Agent::new("gpt-5.5").compaction(own).context_window_for("small", 8_192);
    /// ```
    #[must_use]
    pub fn context_window_for(mut self, model: impl Into<String>, tokens: u64) -> Self {
        self.windows_by_model.insert(model.into(), tokens);
        self
    }

    /// What is set for the window of a model that this agent asks, in tokens.
    pub(crate) fn window_of(&self, model: &str) -> Option<u64> {
        let own = self.context_window.filter(|_| model == self.model);
        own.or_else(|| self.windows_by_model.get(model).copied())
    }

    /// How its model is to answer. What is said for one model ([`Self::settings_for`]) wins over this, and what is said
    /// with a prompt over both. The calls that write summaries take of these what does not break them: neither stop
    /// texts, nor tool choices, nor the seed; and they ask for no more output than the output limit allows.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").settings(ModelSettings::new().reasoning_effort(ReasoningEffort::Low));
    /// ```
    #[must_use]
    pub fn settings(mut self, settings: ModelSettings) -> Self {
        self.settings = self.settings.merged(settings);
        self
    }

    /// How one model is to answer, where this agent asks it.
    #[must_use]
    pub fn settings_for(mut self, model: impl Into<String>, settings: ModelSettings) -> Self {
        let known = self.settings_by_model.entry(model.into()).or_default();
        *known = std::mem::take(known).merged(settings);
        self
    }

    /// The most output one answer may have, in tokens. A summary has no more either.
    #[must_use]
    pub fn output_tokens_max(mut self, tokens: u64) -> Self {
        self.settings.output_tokens_max = Some(tokens);
        self
    }

    /// How its sessions are compacted; the runtime's settings where this is not called.
    #[must_use]
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = Some(settings);
        self
    }

    /// What one run may take.
    #[must_use]
    pub fn limits(mut self, limits: RunLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The most that one session may cost in all, in US dollars, its sub-agents included. Limits are looked at before each
    /// model call: what a call may cost at most must be left. Where little is left, its output limit is lowered to what is
    /// paid for; a call whose input alone may cost more is not made, and the run ends as stopped. What our own count says of
    /// the input is taken with a margin of a quarter, so a limit is passed only where a server counts more than that, or
    /// gives more output than it was asked for. Calls of a model without a known price count nothing, with a warning; those of
    /// which the server reports no usage, or one that cannot be, count by our own estimate.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").cost_limit_usd(5.0).run_cost_limit_usd(0.5);
    /// ```
    #[must_use]
    pub fn cost_limit_usd(mut self, usd: f64) -> Self {
        self.cost_limit = self.checked_limit(usd);
        self
    }

    /// The most that one run may cost, in US dollars, its sub-agents included; see [`Self::cost_limit_usd`]. A prompt may have
    /// a lower one ([`RunRequest::cost_limit_usd`](crate::RunRequest::cost_limit_usd)).
    #[must_use]
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

    /// How long one tool call may take, where the tool has no limit of its own; without either, as long as its run.
    #[must_use]
    pub fn tool_timeout(mut self, timeout: Duration) -> Self {
        self.tool_timeout = Some(timeout);
        self
    }

    /// How long one run may take, its model calls, tools and compactions together; `None`: as long as it wants.
    /// [`Self::RUN_TIMEOUT`] where this is not called. A run that takes longer ends as stopped; what had come is kept.
    #[must_use]
    pub fn run_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.run_timeout = timeout;
        self
    }
}
