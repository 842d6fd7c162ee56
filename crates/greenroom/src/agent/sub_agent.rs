//! Agents as tools of others: how they are declared, and as which tool the model is offered one.
//!
//! Invariants: arguments that cannot be read begin nothing; what a call takes and gives is decided here, and what its
//! work is in `actors/sub_agent.rs`.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::Agent;
use crate::agent::output::OutputForm;
use crate::values::error::Result;

/// How many calls of one sub-agent run at the same time where nothing else is said.
const PARALLEL: usize = 8;
/// An agent that another one may call as a tool, made by [`sub_agent`].
#[derive(Clone)]
pub struct SubAgent {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) parallel: usize,
    pub(crate) input: Input,
    pub(crate) output: Option<OutputForm>,
}

pub(crate) type ReadTask = dyn Fn(&Value) -> Result<String, String> + Send + Sync;

/// What a call takes.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) parameters: Value,
    pub(crate) description: Option<String>,
    /// The task that the arguments are, or what is wrong with them.
    pub(crate) task: Arc<ReadTask>,
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
