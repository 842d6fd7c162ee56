//! The tool with which an agent gives a task to a sub-agent.
//!
//! Invariants: the tool holds the runtime weakly, so a session's tools do not keep it alive.

use std::sync::Weak;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_tools::{Tool, ToolContext, ToolOutput};
use serde_json::Value;

use crate::agent::sub_agent::SubAgent;
use crate::core::deps::Deps;

mod call;
mod id;

pub(crate) use call::{ancestors, tenants};

/// How long the run of a cancelled call may take to end cleanly, before the call stops waiting for it.
const GRACE: Duration = Duration::from_secs(5);

/// Returns the description of a sub-agent that has none of its own.
fn described(name: &str) -> String {
    format!("Gives a task to the agent {name:?}, who sees only the task and answers with the result.")
}

pub(crate) struct SubAgentTool {
    pub(crate) deps: Weak<Deps>,
    pub(crate) definition: SubAgent,
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

    /// Its run ends cleanly, after a grace period for the tools of that run.
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
