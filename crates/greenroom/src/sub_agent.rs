//! An agent as a tool of another: called with a task, it works on it in a session of its own.
//!
//! Invariants: each call has a session of its own, made for it; its run is over before the call is, however that
//! ends; what it spent is on its caller's bill; its events carry the caller's session as their parent; no session is
//! deeper than [`DEPTH_MAX`], whoever opens it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::ToolSpec;
use greenroom_kernel::entry::{Spender, Spent};
use greenroom_kernel::prune::RECALL;
use greenroom_tools::{Registry, Tool, ToolContext, ToolOutput};

use crate::agent::{Agent, SubAgent};
use crate::deps::{Deps, blocking};
use crate::error::{ConfigError, Error, Result};
use crate::message::{OpenReason, SessionMessage, SupervisorMessage};
use crate::recall::Recall;
use crate::session::{SessionHandle, open};
use crate::shared::SessionShared;
use tokio::sync::oneshot;

/// How deep agents may call agents.
const DEPTH_MAX: u8 = 4;
/// How long the run of a cancelled call may take to end in order, before it is left to end by itself.
const GRACE: Duration = Duration::from_secs(5);
/// How much of its caller's id a session's id begins with, in bytes: two dots and 16 digits follow.
const CALLER_BYTES_MAX: usize = 44;

/// All tools of an agent: its own, the agents it may call, and the one that reads what was left out of the context.
pub(crate) fn tools_of(deps: &Arc<Deps>, agent: &Agent) -> Result<Registry> {
    if let Some(problem) = agent.problems.first() {
        return Err(problem.clone().into());
    }
    let mut tools = agent.tools.clone();
    for sub_agent in &agent.sub_agents {
        let tool = SubAgentTool { deps: Arc::downgrade(deps), definition: sub_agent.clone() };
        tools.insert(tool).map_err(|error| ConfigError::tool(&error))?;
    }
    // Results may be left out of the context, and this is how the model reads them all the same.
    if !tools.is_empty() && tools.get(RECALL).is_none() {
        tools.insert(Recall { deps: Arc::downgrade(deps) }).map_err(|error| ConfigError::tool(&error))?;
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

    /// Its run ends in order, and the tools of that run have their own moment before it.
    fn grace(&self) -> Duration {
        GRACE
    }

    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let (deps, definition) = (self.deps.upgrade(), self.definition.clone());
        async move {
            let Some(task) = arguments.get("task").and_then(|task| task.as_str()).map(str::to_owned) else {
                return ToolOutput::error(
                    "the argument `task` is missing: a text that says what is to be done",
                );
            };
            let Some(deps) = deps else { return ToolOutput::error("the runtime is shut down") };
            match work(&deps, &definition, task, &context).await {
                Ok(text) => ToolOutput::text(text),
                Err(Error::Aborted) => ToolOutput::interrupted("the agent was cancelled"),
                Err(error) => ToolOutput::error(format!("the agent failed: {error}")),
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
    let caller = find(deps, context.session.as_str().into()).await?.ok_or(Error::Aborted)?;
    if caller.depth() >= DEPTH_MAX {
        return Err(Error::TooDeep { depth_max: DEPTH_MAX.into() });
    }
    let id = new_session_id(deps, &caller.id, &context.call_id).await?;
    let agent = within_budget(&definition.agent, &caller);
    let shared = open(deps, id, agent, Some(Arc::clone(&caller.id)), OpenReason::Open).await?;
    let session = SessionHandle::new(Arc::clone(&shared), Arc::clone(deps));
    let _bill = BillOnDrop { caller, shared };
    // A cancelled run ends in order, and the call ends after it.
    session.prompt(task).until(context.cancel.child_token()).await.map(|reply| reply.text)
}

/// Puts what a sub-agent spent on its caller's bill, however the call ends.
struct BillOnDrop {
    caller: Arc<SessionShared>,
    shared: Arc<SessionShared>,
}

impl Drop for BillOnDrop {
    fn drop(&mut self) {
        let Some(actor) = self.caller.actor() else { return };
        let bill = self.shared.bill();
        let spent = Spent {
            by: Spender::SubAgent { session: self.shared.id.to_string() },
            usage: bill.usage,
            cost_microdollars: Some(bill.cost_microdollars),
        };
        let _ = actor.cast(SessionMessage::Spent(spent).into());
    }
}

async fn find(deps: &Deps, id: Arc<str>) -> Result<Option<Arc<SessionShared>>> {
    let supervisor = deps.supervisor.get().ok_or(Error::Closed)?;
    let (reply, found) = oneshot::channel();
    supervisor.cast(SupervisorMessage::Find { id, reply }).map_err(|_| Error::Closed)?;
    found.await.map_err(|_| Error::Closed)
}

/// The depth of a session below `parent`, from the heads of the sessions above it, which are durable: so it is the
/// same whoever opens the session again. Counts no further than [`DEPTH_MAX`], nor past a session that was deleted.
pub(crate) async fn depth(deps: &Deps, parent: Option<String>) -> Result<u8> {
    if parent.is_none() {
        return Ok(0);
    }
    let store = deps.store.clone();
    blocking(deps, move || {
        let (mut depth, mut above) = (0, parent);
        while let Some(session) = above.filter(|_| depth < DEPTH_MAX) {
            depth += 1;
            above = store.head(&session)?.and_then(|head| head.parent_session);
        }
        Ok(depth)
    })
    .await
}

/// The agent, with no more to spend than its caller has left.
fn within_budget(agent: &Arc<Agent>, caller: &SessionShared) -> Arc<Agent> {
    let Some(left) = caller.cost_left() else { return Arc::clone(agent) };
    if agent.cost_limit.is_some_and(|own| own <= left) {
        return Arc::clone(agent);
    }
    let mut limited = Agent::clone(agent);
    limited.cost_limit = Some(left);
    Arc::new(limited)
}

/// An id that no session has. The id of a call is not enough to make one: a provider may use it again when the call
/// has left the context.
async fn new_session_id(deps: &Deps, caller: &Arc<str>, call_id: &str) -> Result<Arc<str>> {
    let (store, caller, call_id) = (deps.store.clone(), Arc::clone(caller), call_id.to_owned());
    blocking(deps, move || {
        let mut number = 0_u64;
        loop {
            let id = session_id(&caller, &call_id, number);
            if store.head(&id)?.is_none() {
                return Ok(id.into());
            }
            number += 1;
        }
    })
    .await
}

/// `caller..0123456789abcdef`: within the length that session ids may have, however long the caller's is. The digits are
/// made of the whole of the caller's id.
fn session_id(caller: &str, call_id: &str, number: u64) -> String {
    let mut hasher = DefaultHasher::new();
    (caller, call_id, number).hash(&mut hasher);
    let end = (0..=CALLER_BYTES_MAX.min(caller.len())).rev().find(|end| caller.is_char_boundary(*end));
    format!("{}..{:016x}", caller[..end.unwrap_or(0)].trim_end(), hasher.finish())
}
