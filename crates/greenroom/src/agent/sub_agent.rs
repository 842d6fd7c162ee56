//! Sub-agents: the declaration of agents as tools of others.
//!
//! Invariants: invalid arguments start no work; this file defines the input and output of a call,
//! `actors/sub_agent.rs` its work.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::Agent;
use crate::agent::output::OutputForm;
use crate::values::error::Result;

/// How many calls of one sub-agent run concurrently by default.
const PARALLEL: usize = 8;
/// An agent that another one may call as a tool, created by [`sub_agent`].
#[derive(Clone)]
#[must_use]
pub struct SubAgent {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) parallel: usize,
    pub(crate) input: Input,
    pub(crate) output: Option<OutputForm>,
}

pub(crate) type ReadTask = dyn Fn(&Value) -> Result<String, String> + Send + Sync;

/// The input of a call.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) parameters: Value,
    pub(crate) description: Option<String>,
    /// Parses the arguments into the task, or says what is wrong with them.
    pub(crate) task: Arc<ReadTask>,
}

/// Creates a sub-agent with this tool name, for [`Agent::sub_agent`]. It handles each call in a session of
/// its own, whose parent is the caller's session.
///
/// By default, a call takes a text, `task`, and returns the text of the agent's last answer;
/// [`SubAgent::input`] and [`SubAgent::output`] change this. Calls of sub-agents in one answer run
/// concurrently, with each other and with read-only calls. Their instructions should keep them to different
/// files: two that write the same file at the same time overwrite each other's changes.
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
    /// Sets the description for the calling model. The default is the doc comment of the input's type.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets how many calls run concurrently, at least 1; the default is 8. Further calls wait, in the order
    /// in which the model made them.
    pub fn parallel(mut self, calls: usize) -> Self {
        self.parallel = calls.max(1);
        self
    }

    /// Sets the input to a struct instead of `task`. The calling model gets its schema, and an explanation if
    /// arguments do not fit; the sub-agent gets the fields as text, one per line.
    pub fn input<T: DeserializeOwned + JsonSchema + 'static>(mut self) -> Self {
        let (parameters, description) = greenroom_tools::arguments_schema::<T>();
        let task = |arguments: &Value| {
            greenroom_tools::read_arguments::<T>(arguments)?;
            Ok(rendered(arguments))
        };
        self.input = Input { parameters, description, task: Arc::new(task) };
        self
    }

    /// Sets the output to JSON of this type. The sub-agent gets its schema, and an invalid answer is sent
    /// back to it with the reason, as by [`RunRequest::output`](crate::RunRequest::output).
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
    /// The default input, one text.
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

/// Formats arguments for an agent: one field per line; values other than strings as JSON.
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

    /// The called agent.
    pub(crate) fn agent(&self) -> &Arc<Agent> {
        &self.agent
    }
}
