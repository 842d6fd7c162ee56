//! The tools of an agent in a session: its own, its sub-agents, hand-offs, `compact` and `recall`.
//!
//! Invariants: tool names are unique. An agent with tools also has `recall`, which reads results that were
//! left out of its context.

use std::sync::Arc;

use greenroom_kernel::prune::RECALL;
use greenroom_tools::Registry;

use crate::actors::compact_tool::CompactTool;
use crate::actors::recall::Recall;
use crate::actors::sub_agent::SubAgentTool;
use crate::agent::Agent;
use crate::agent::team::TransferTool;
use crate::core::deps::Deps;
use crate::values::error::{ConfigError, Result};

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
