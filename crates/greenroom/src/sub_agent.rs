//! An agent as a tool of another: called with a task, it works on it in a session of its own.
//!
//! Invariants: its session's id follows from the caller's and the call's, so a call names one session; it ends
//! with the call that began it; its events carry the caller's session as their parent; it is no deeper than
//! [`DEPTH_MAX`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::entry::{Spender, Spent};
use greenroom_tools::{Registry, Tool, ToolContext, ToolOutput};

use crate::agent::{Agent, SubAgent};
use crate::deps::Deps;
use crate::error::{ConfigError, Error, Result};
use crate::message::{SessionMessage, SupervisorMessage};
use crate::session::{SessionHandle, open};
use crate::shared::SessionShared;
use tokio::sync::oneshot;

/// How deep agents may call agents.
const DEPTH_MAX: usize = 4;

/// All tools of an agent: its own, and the agents it may call.
pub(crate) fn tools_of(deps: &Arc<Deps>, agent: &Agent) -> Result<Registry> {
    if let Some(problem) = agent.problems.first() {
        return Err(problem.clone().into());
    }
    let mut tools = agent.tools.clone();
    for sub_agent in &agent.sub_agents {
        let tool = SubAgentTool { deps: Arc::downgrade(deps), definition: sub_agent.clone() };
        tools.insert(tool).map_err(|error| ConfigError::tool(&error))?;
    }
    Ok(tools)
}

struct SubAgentTool {
    deps: Weak<Deps>,
    definition: SubAgent,
}

impl Tool for SubAgentTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.definition.name.clone(),
            description: self.definition.description.clone(),
            parameters: serde_json::json!({
                "type": "object",
                "properties": { "task": { "type": "string", "description": "What it is to do, with all that it needs to know." } },
                "required": ["task"],
                "additionalProperties": false,
            }),
        }
    }

    /// Its tools may change what they like, so calls of it do not run beside others.
    fn is_read_only(&self) -> bool {
        false
    }

    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let (deps, definition) = (self.deps.upgrade(), self.definition.clone());
        async move {
            let Some(task) = arguments.get("task").and_then(|task| task.as_str()).map(str::to_owned) else {
                return ToolOutput::error(
                    "The argument `task` is missing: a text that says what is to be done.",
                );
            };
            let Some(deps) = deps else { return ToolOutput::error("The runtime is shut down.") };
            match work(&deps, &definition, task, &context).await {
                Ok(text) => ToolOutput::text(text),
                Err(Error::Aborted) => ToolOutput::interrupted("The agent was cancelled."),
                Err(error) => ToolOutput::error(format!("The agent failed: {error}")),
            }
        }
        .boxed()
    }
}

async fn work(
    deps: &Arc<Deps>,
    definition: &SubAgent,
    task: String,
    context: &ToolContext,
) -> Result<String> {
    let depth = context.session.matches("..").count();
    if depth >= DEPTH_MAX {
        return Err(Error::TooDeep { depth_max: DEPTH_MAX });
    }
    let id: Arc<str> = session_id(&context.session, &context.call_id).into();
    let caller_id: Arc<str> = context.session.as_str().into();
    let caller = find(deps, &caller_id).await?;
    let agent = within_budget(&definition.agent, caller.as_deref());
    let shared = open(deps, Arc::clone(&id), agent, Some(caller_id), true).await?;
    let before = shared.bill();
    let session = SessionHandle::new(Arc::clone(&shared), Arc::clone(deps));
    let result = tokio::select! {
        biased;
        // Dropping the prompt's future cancels its run.
        () = context.cancel.cancelled() => Err(Error::Aborted),
        reply = session.prompt(task) => reply.map(|reply| reply.text),
    };
    // What it spent is spent by its caller too.
    if let Some(actor) = caller.and_then(|caller| caller.actor()) {
        let after = shared.bill();
        let spent = Spent {
            by: Spender::SubAgent { session: shared.id.to_string() },
            usage: after.usage.since(&before.usage),
            cost_microdollars: Some(after.cost_microdollars.saturating_sub(before.cost_microdollars)),
        };
        let _ = actor.cast(SessionMessage::Spent(spent).into());
    }
    result
}

async fn find(deps: &Deps, id: &Arc<str>) -> Result<Option<Arc<SessionShared>>> {
    let supervisor = deps.supervisor.get().ok_or(Error::Closed)?;
    let (reply, found) = oneshot::channel();
    supervisor.cast(SupervisorMessage::Find { id: Arc::clone(id), reply }).map_err(|_| Error::Closed)?;
    found.await.map_err(|_| Error::Closed)
}

/// The agent, with no more to spend than its caller has left.
fn within_budget(agent: &Arc<Agent>, caller: Option<&SessionShared>) -> Arc<Agent> {
    let left = caller.and_then(|caller| {
        let spent = caller.bill().cost_microdollars;
        Some(caller.agent().cost_microdollars_max?.saturating_sub(spent))
    });
    match left {
        Some(left) if agent.cost_microdollars_max.is_none_or(|own| left < own) => {
            let mut limited = Agent::clone(agent);
            limited.cost_microdollars_max = Some(left);
            Arc::new(limited)
        }
        Some(_) | None => Arc::clone(agent),
    }
}

/// `caller..0123456789abcdef`: within the length that session ids may have.
fn session_id(caller: &str, call_id: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (caller, call_id).hash(&mut hasher);
    let short: String = caller.chars().take(44).collect();
    format!("{short}..{:016x}", hasher.finish())
}
