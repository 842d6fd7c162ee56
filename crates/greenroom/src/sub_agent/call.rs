//! One call of an agent by another: a session of its own, made for it, and a run in it.
//!
//! Invariants: the run is over before the call is, however that ends; the caller's log has its start before the session
//! says anything, and its end with what it cost; no session is deeper than the runtime allows, and no run starts more
//! agents than its own allows, those below counted; a session that dies in the middle goes on, and when it was given up
//! the call says so.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::entry::{ChildRecord, ChildStage, EntryId, RunOutcome};
use greenroom_kernel::{Failure, FailureClass, Message};
use greenroom_tools::{ToolContext, ToolOutput};
use ractor::ActorRef;
use tokio::sync::oneshot;

use super::SubAgent;
use super::id::session_id;
use crate::children::ChildWork;
use crate::deps::{Deps, blocking};
use crate::error::{Error, Result};
use crate::message::{Bill, OpenReason, SessionMail, SessionMessage, SupervisorMessage};
use crate::prompt::RunRequest;
use crate::session::{SessionHandle, open};
use crate::shared::SessionShared;

/// How often the run of one call is resumed after its session died. One that dies often within a minute is given up
/// before.
const RESUMES_MAX: u32 = 8;

/// The first wait before it is resumed.
const AGAIN_AFTER: Duration = Duration::from_millis(10);
/// A damaged head must not make a circle of sessions.
const ANCESTORS_MAX: usize = 256;

/// Works on a task.
pub(super) async fn work(
    deps: &Arc<Deps>,
    definition: &SubAgent,
    task: String,
    context: &ToolContext,
) -> ToolOutput {
    let ended = match Call::begin(deps, definition, context).await {
        Ok(mut call) => {
            let ended = call.run(definition, task).await;
            call.outcome = outcome(&ended);
            ended
        }
        Err(error) => Err(error),
    };
    match ended {
        Ok(text) => ToolOutput::text(text),
        Err(Error::Aborted) => ToolOutput::interrupted("the agent was cancelled"),
        Err(Error::Closed) => ToolOutput::interrupted("the runtime is shut down"),
        Err(error) => ToolOutput::error(format!("the agent failed: {error}")),
    }
}

/// A call that has begun. Its end is recorded when this is dropped, however the call ends.
struct Call {
    deps: Arc<Deps>,
    caller: Arc<SessionShared>,
    /// The caller's actor when the call began: one that is closing is reached by nobody else.
    actor: Option<ActorRef<SessionMail>>,
    child: Arc<ChildWork>,
    /// The entry of its start.
    started: Option<EntryId>,
    /// How it ended; aborted while it has not.
    outcome: RunOutcome,
}

impl Call {
    /// Opens a session for the call, and has its start recorded.
    async fn begin(deps: &Arc<Deps>, definition: &SubAgent, context: &ToolContext) -> Result<Self> {
        let caller = find(deps, context.session.as_str().into()).await?.ok_or(Error::Aborted)?;
        let depth_max = deps.sub_agent_depth_max;
        if caller.ancestors().len() >= depth_max {
            return Err(Error::TooDeep { depth_max });
        }
        caller.count_child(&deps.ledger)?;
        let id = new_session_id(deps, &caller, &context.call_id).await?;
        let parent = Some(Arc::clone(&caller.id));
        let agent = Arc::clone(&definition.agent);
        let shared = open(deps, id, agent, parent, OpenReason::Open).await?;
        deps.ledger.link(&shared, &caller);
        let child = Arc::new(ChildWork::new(
            definition.name.clone(),
            context.call_id.clone(),
            caller.open_run(),
            shared,
            context.cancel.child_token(),
        ));
        caller.add_child(&child);
        let aborted = RunOutcome::Aborted;
        let actor = caller.actor();
        let mut call = Self { deps: Arc::clone(deps), caller, actor, child, started: None, outcome: aborted };
        let record = ChildRecord {
            call_id: call.child.call_id.clone(),
            name: call.child.name.clone(),
            session: call.child.shared.id.to_string(),
            stage: ChildStage::Started,
        };
        let caller = SessionHandle::new(Arc::clone(&call.caller), Arc::clone(deps));
        call.started = Some(caller.ask(|reply| SessionMessage::ChildStarted { record, reply }).await?);
        Ok(call)
    }

    /// Lets the agent work. A session that dies is resumed.
    async fn run(&self, definition: &SubAgent, task: String) -> Result<String> {
        let session = SessionHandle::new(Arc::clone(&self.child.shared), Arc::clone(&self.deps));
        let mut request = session.prompt(task.clone());
        for attempt in 0..=RESUMES_MAX {
            let ended = self.ask(definition, request).await;
            match ended {
                Err(Error::Interrupted { .. }) if !self.child.cancel.is_cancelled() => {}
                // It died after its answer was recorded, before it could say so.
                Err(Error::NothingToResume { .. }) => return last_answer(&session, definition).await,
                ended => return ended,
            }
            // That it died may not have been heard everywhere.
            tokio::select! {
                biased;
                () = self.child.cancel.cancelled() => return Err(Error::Aborted),
                () = tokio::time::sleep(AGAIN_AFTER * 2_u32.pow(attempt)) => {}
            }
            // It may have died before it took the task on.
            let has_task = !session.context().await?.is_empty();
            request = if has_task { session.resume() } else { session.prompt(task.clone()) };
        }
        Err(Error::Interrupted { session: session.id().to_owned() })
    }

    async fn ask(&self, definition: &SubAgent, request: RunRequest) -> Result<String> {
        // A cancelled run ends in order, and the call ends after it.
        let request = request.until(self.child.cancel.clone());
        match &definition.output {
            None => Ok(request.await?.text),
            Some(form) => {
                let reply = form.checked(request.with_form(form).await)?;
                Ok(form.value(reply.text)?.to_string())
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // It is told before it counts as over: whoever looks in between sees that it still works.
        let spent = self.deps.ledger.unlink(&self.child.shared);
        if let Some(started) = self.started {
            self.tell_end(started, spent);
        }
        self.child.end();
        if self.started.is_none() {
            // Nothing was said in it, so nothing of it is kept.
            if let Some(supervisor) = self.deps.supervisor.get() {
                let _ = supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.child.shared.id) });
            }
        }
    }
}

impl Call {
    /// Tells the caller's session. One that has no actor any more reads the end from the child's log when it is opened.
    fn tell_end(&self, started: EntryId, spent: Bill) {
        let message = || SessionMessage::ChildEnded { started, outcome: self.outcome.clone(), spent };
        if self.caller.is_suspended()
            && let Ok(tasks) = tokio::runtime::Handle::try_current()
        {
            let caller = SessionHandle::new(Arc::clone(&self.caller), Arc::clone(&self.deps));
            let message = message();
            tasks.spawn(async move { caller.tell(message).await });
        } else if let Some(actor) = self.caller.actor().as_ref().or(self.actor.as_ref()) {
            let _ = actor.cast(message().into());
        }
    }
}

/// How the work ended, for the caller's log.
fn outcome(ended: &Result<String>) -> RunOutcome {
    match ended {
        Ok(_) => RunOutcome::Completed,
        Err(Error::Aborted) => RunOutcome::Aborted,
        Err(Error::Interrupted { .. } | Error::Closed) => RunOutcome::Interrupted,
        Err(Error::Model(failure)) => RunOutcome::Failed(failure.clone()),
        Err(Error::Stopped { reason }) => RunOutcome::Stopped { reason: reason.clone() },
        Err(error) => RunOutcome::Failed(Failure::new(FailureClass::Other, error.to_string())),
    }
}

async fn last_answer(session: &SessionHandle, definition: &SubAgent) -> Result<String> {
    let context = session.context().await?;
    let answer = context.iter().rev().find_map(|message| match &**message {
        Message::Assistant(answer) => Some(answer.text()),
        Message::User(_) | Message::ToolResult(_) => None,
    });
    let answer = answer.ok_or_else(|| Error::Interrupted { session: session.id().to_owned() })?;
    match &definition.output {
        None => Ok(answer),
        Some(form) => form.value(answer).map(|value| value.to_string()),
    }
}

async fn find(deps: &Deps, id: Arc<str>) -> Result<Option<Arc<SessionShared>>> {
    let supervisor = deps.supervisor.get().ok_or(Error::Closed)?;
    let (reply, found) = oneshot::channel();
    supervisor.cast(SupervisorMessage::Find { id, reply }).map_err(|_| Error::Closed)?;
    found.await.map_err(|_| Error::Closed)
}

/// The sessions above one whose parent is `parent`, the nearest first, by their heads, which are durable: so they are the
/// same whoever opens the session again. Not past a session that was deleted.
pub(crate) async fn ancestors(deps: &Deps, parent: Option<String>) -> Result<Arc<[Arc<str>]>> {
    let Some(parent) = parent else { return Ok(Arc::from([])) };
    let store = deps.store.clone();
    blocking(deps, move || {
        let mut above: Vec<Arc<str>> = vec![parent.into()];
        while above.len() < ANCESTORS_MAX
            && let Some(next) = store.head(&above[above.len() - 1])?.and_then(|head| head.parent_session)
        {
            above.push(next.into());
        }
        Ok(above.into())
    })
    .await
}

/// An id that no session has. The id of a call is not enough to make one: a provider may use it again when the call
/// has left the context, or in the same answer.
async fn new_session_id(deps: &Deps, caller: &Arc<SessionShared>, call_id: &str) -> Result<Arc<str>> {
    let (store, caller, call_id) = (deps.store.clone(), Arc::clone(caller), call_id.to_owned());
    blocking(deps, move || {
        let mut number = 0_u64;
        loop {
            let id: Arc<str> = session_id(&caller.id, &call_id, number).into();
            if store.head(&id)?.is_none() && caller.take_child_id(&id) {
                return Ok(id);
            }
            number += 1;
        }
    })
    .await
}
