//! Agents as tools of others: how they are declared, and as which tool the model is offered one.
//!
//! Invariants: arguments that cannot be read begin nothing; what a call takes and gives is decided here, and what its
//! work is in `sub_agent/call.rs`.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::prune::RECALL;
use greenroom_tools::{Registry, Tool, ToolContext, ToolOutput};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::Agent;
use crate::deps::Deps;
use crate::error::{ConfigError, Result};
use crate::output::OutputForm;
use crate::recall::Recall;
use crate::team::TransferTool;

mod call;
mod id;

pub(crate) use call::ancestors;
pub(crate) use id::prefix;

/// How many calls of one sub-agent run at the same time where nothing else is said.
const PARALLEL: usize = 8;
/// How long the run of a cancelled call may take to end in order, before it is left to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// An agent that another one may call as a tool, made by [`sub_agent`].
#[derive(Clone)]
pub struct SubAgent {
    name: String,
    description: Option<String>,
    agent: Arc<Agent>,
    parallel: usize,
    input: Input,
    output: Option<OutputForm>,
}

type ReadTask = dyn Fn(&Value) -> Result<String, String> + Send + Sync;

/// What a call takes.
#[derive(Clone)]
struct Input {
    parameters: Value,
    description: Option<String>,
    /// The task that the arguments are, or what is wrong with them.
    task: Arc<ReadTask>,
}

/// An agent that another one may call as a tool, by this name: for [`Agent::sub_agent`]. It works on each call in a
/// session of its own, whose parent is the caller's session.
///
/// A call takes a `task`, a text, and gives the text of the agent's last answer; [`SubAgent::input`] and
/// [`SubAgent::output`] say otherwise. Calls of sub-agents in one answer run at the same time, beside each other and
/// beside calls that only read. What files they touch is for their instructions to say: two that write the same file at
/// the same time overwrite each other.
///
/// ```
/// use greenroom::prelude::*;
///
/// /// Searches the web.
/// #[derive(Deserialize, JsonSchema)]
/// struct Query {
///     /// What to look for.
///     topic: String,
///     /// How many sources are enough.
///     sources: u32,
/// }
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Findings {
///     urls: Vec<String>,
/// }
///
/// let web = Agent::new("gpt-5.5-mini").instructions("Search, and say where you found it.");
/// let boss = Agent::new("gpt-5.5")
///     .sub_agent(sub_agent("web", web).parallel(4).input::<Query>().output::<Findings>())
///     .sub_agent(sub_agent("critic", Agent::new("gpt-5.5")).describe("Finds what is wrong with a text."));
/// ```
pub fn sub_agent(name: impl Into<String>, agent: impl Into<Arc<Agent>>) -> SubAgent {
    SubAgent {
        name: name.into(),
        description: None,
        agent: agent.into(),
        parallel: PARALLEL,
        input: Input::text(),
        output: None,
    }
}

impl SubAgent {
    /// What the calling model is told that the agent is for. Without it, that is the doc comment of the input's type.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// How many calls of it run at the same time, at least 1; 8 where this is not called. Calls beyond it wait for their
    /// turn, in the order in which the model made them.
    #[must_use]
    pub fn parallel(mut self, calls: usize) -> Self {
        self.parallel = calls.max(1);
        self
    }

    /// A call takes a struct instead of a `task`. The calling model is given its schema, and reads what is wrong with
    /// arguments that do not fit; the agent reads its fields, one a line.
    #[must_use]
    pub fn input<T: DeserializeOwned + JsonSchema + 'static>(mut self) -> Self {
        let (parameters, description) = greenroom_tools::arguments_schema::<T>();
        let task = |arguments: &Value| {
            greenroom_tools::read_arguments::<T>(arguments)?;
            Ok(rendered(arguments))
        };
        self.input = Input { parameters, description, task: Arc::new(task) };
        self
    }

    /// A call gives JSON of this type. The agent is given its schema, and an answer that cannot be read is sent back to it
    /// with the reason, as by [`RunRequest::output`](crate::RunRequest::output).
    #[must_use]
    pub fn output<T: DeserializeOwned + JsonSchema + 'static>(mut self) -> Self {
        self.output = Some(OutputForm::of::<T>());
        self
    }
}

impl fmt::Debug for SubAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubAgent")
            .field("name", &self.name)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

impl Input {
    /// One text.
    fn text() -> Self {
        let parameters = serde_json::json!({
            "type": "object",
            "properties": { "task": { "type": "string", "description": "What it is to do, with all that it needs to know." } },
            "required": ["task"],
            "additionalProperties": false,
        });
        let task = |arguments: &Value| match arguments.get("task").and_then(Value::as_str) {
            Some(task) if !task.trim().is_empty() => Ok(task.to_owned()),
            Some(_) | None => {
                Err("the argument `task` is missing: a text that says what is to be done".to_owned())
            }
        };
        Self { parameters, description: None, task: Arc::new(task) }
    }
}

/// Arguments as an agent reads them: one field a line, and what is no single word or number as JSON.
fn rendered(arguments: &Value) -> String {
    let Some(fields) = arguments.as_object().filter(|fields| !fields.is_empty()) else {
        return "Do what you are for.".to_owned();
    };
    let line = |(name, value): (&String, &Value)| match value {
        Value::String(text) if text.contains('\n') => format!("{name}:\n{text}\n"),
        Value::String(text) => format!("{name}: {text}"),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            format!("{name}: {value}")
        }
    };
    fields.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// All tools of an agent: its own, the agents it may call, and the one that reads what was left out of the context.
pub(crate) fn tools_of(deps: &Arc<Deps>, agent: &Agent) -> Result<Registry> {
    if let Some(problem) = agent.problems.first() {
        return Err(problem.clone().into());
    }
    let mut tools = agent.tools.clone();
    for sub_agent in &agent.sub_agents {
        if tools.get(&sub_agent.name).is_some() {
            let reason = "another tool of the agent has the same name".to_owned();
            return Err(ConfigError::SubAgent { name: sub_agent.name.clone(), reason }.into());
        }
        let tool = SubAgentTool { deps: Arc::downgrade(deps), definition: sub_agent.clone() };
        tools.insert(tool).map_err(|error| ConfigError::tool(&error))?;
    }
    for to in &agent.hand_offs {
        if agent.team.is_none() {
            let reason =
                format!("an agent that hands off to {:?} is in no team; put both into a `Team`", to.name);
            return Err(ConfigError::Team { reason }.into());
        }
        tools.insert(TransferTool(to.clone())).map_err(|error| ConfigError::tool(&error))?;
    }
    // Results may be left out of the context, and this is how the model reads them all the same.
    if !tools.is_empty() && tools.get(RECALL).is_none() {
        tools.insert(Recall { deps: Arc::downgrade(deps) }).map_err(|error| ConfigError::tool(&error))?;
    }
    Ok(tools)
}

impl SubAgent {
    /// The name of its tool.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The agent that is called.
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }
}

/// What a model is told of an agent that nothing was said of.
fn described(name: &str) -> String {
    format!("Gives a task to the agent {name:?}, who sees only the task and answers with the result.")
}

struct SubAgentTool {
    deps: Weak<Deps>,
    definition: SubAgent,
}

impl Tool for SubAgentTool {
    fn spec(&self) -> ToolSpec {
        let SubAgent { name, description, input, .. } = &self.definition;
        ToolSpec {
            name: name.clone(),
            description: description
                .clone()
                .or_else(|| input.description.clone())
                .unwrap_or_else(|| described(name)),
            parameters: input.parameters.clone(),
        }
    }

    fn parallel_max(&self) -> Option<usize> {
        Some(self.definition.parallel)
    }

    /// Its run ends in order, and the tools of that run have their own moment before it.
    fn grace(&self) -> Duration {
        GRACE
    }

    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let task = (self.definition.input.task)(&arguments);
        let (deps, definition) = (self.deps.upgrade(), self.definition.clone());
        async move {
            match (task, deps) {
                (Err(wrong), _) => ToolOutput::error(wrong),
                (Ok(_), None) => ToolOutput::interrupted("the runtime is shut down"),
                (Ok(task), Some(deps)) => call::work(&deps, &definition, task, &context).await,
            }
        }
        .boxed()
    }
}
