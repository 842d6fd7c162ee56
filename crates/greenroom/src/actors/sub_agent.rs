//! The tools of an agent in a session, including its sub-agents.
//!
//! Invariants: tool names are unique. An agent with tools also has `recall`, which reads results that were
//! left out of its context.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::prune::RECALL;
use greenroom_tools::{Registry, Tool, ToolContext, ToolOutput};
use serde_json::Value;

use crate::actors::compact_tool::CompactTool;
use crate::actors::recall::Recall;
use crate::agent::Agent;
use crate::agent::sub_agent::SubAgent;
use crate::agent::team::TransferTool;
use crate::core::deps::Deps;
use crate::values::error::{ConfigError, Result};

mod call;
mod id;

pub(crate) use call::{ancestors, tenants};
pub(crate) use id::prefix;

/// How long the run of a cancelled call may take to end in order, before the call stops waiting for it.
const GRACE: Duration = Duration::from_secs(5);

/// Returns all tools of an agent: its own, its sub-agents, `compact` and `recall`.
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
    if agent.may_compact {
        let tool = CompactTool { deps: Arc::downgrade(deps) };
        tools.insert(tool).map_err(|error| ConfigError::tool(&error))?;
    }
    // Results may be left out of the context, and the model reads them with this tool.
    if !tools.is_empty() && tools.get(RECALL).is_none() {
        tools.insert(Recall { deps: Arc::downgrade(deps) }).map_err(|error| ConfigError::tool(&error))?;
    }
    Ok(tools)
}

/// Returns the description of a sub-agent that has none of its own.
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

    /// Its run ends in order, after a grace period for the tools of that run.
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
