//! One call of an agent by another: a session of its own, made for it, and a run in it.
//!
//! Invariants: the run is over before the call is, however that ends, unless the agent waits for a person and its caller
//! goes away: then the call is left open, and whoever runs it again finds the agent where it was left; the caller's log has its start before the session
//! says anything, and its end with what it cost; no session is deeper than the runtime allows, and no run starts more
//! agents than its own allows, those below counted; a session that dies in the middle goes on, and when it was given up
//! the call says so.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::{ChildRecord, ChildStage, EntryId, RunOutcome};
use greenroom_kernel::{Failure, FailureClass, Message};
use greenroom_tools::{Pauses, ToolContext, ToolOutput};
use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::id::session_id;
use crate::actors::session::stored;
use crate::agent::sub_agent::SubAgent;
use crate::core::child_work::ChildWork;
use crate::core::deps::{Deps, blocking};
use crate::core::door::{Door, open};
use crate::core::handover::Handover;
use crate::core::message::{OpenReason, PromptOptions, SessionMail, SessionMessage, SupervisorMessage};
use crate::core::shared::SessionShared;
use crate::core::trace::CalledFrom;
use crate::limits::waits::Chain;
use crate::values::error::{Error, Result};
use crate::values::prompt::{Prompt, Reply};

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
            if let Err(Error::Waiting { .. }) = &ended {
                call.child.leave();
            }
            call.outcome = outcome(&ended);
            call.is_over = true;
            ended
        }
        Err(error) => Err(error),
    };
    match ended {
        Ok(text) => ToolOutput::text(text),
        Err(Error::Aborted) => ToolOutput::interrupted("the agent was cancelled"),
        Err(Error::Waiting { .. }) => ToolOutput::interrupted("the agent waits for a person"),
        Err(Error::Closed) => ToolOutput::interrupted("the runtime is shut down"),
        Err(error) => ToolOutput::error(format!("the agent failed: {error}")),
    }
}

/// A call that has begun. Its end is recorded when this is dropped, however the call ends: unless it is left, since the
/// agent waits for a person and its caller's run goes on later.
struct Call {
    deps: Arc<Deps>,
    caller: Arc<SessionShared>,
    /// The caller's actor when the call began: one that is closing is reached by nobody else.
    actor: Option<ActorRef<SessionMail>>,
    child: Arc<ChildWork>,
    /// The entry of its start.
    started: Option<EntryId>,
    /// Whether the agent was left by an earlier attempt, or an earlier process.
    is_taken_up: bool,
    /// Cancelled when the call is to end.
    cancel: CancellationToken,
    /// Cancels the agent's run.
    stop: CancellationToken,
    /// What the time limits of the call stand still for.
    pauses: Pauses,
    is_over: bool,
    /// How it ended; aborted while it has not.
    outcome: RunOutcome,
}

impl Call {
    /// Opens a session for the call, and has its start recorded; or the session in which an agent was left with this call.
    async fn begin(deps: &Arc<Deps>, definition: &SubAgent, context: &ToolContext) -> Result<Self> {
        let caller = find(deps, context.session.as_str().into()).await?.ok_or(Error::Aborted)?;
        let left = left_child(&caller, &context.call_id).await;
        let id = match &left {
            Some((_, record)) => Arc::from(record.session.as_str()),
            None => {
                let depth_max = deps.sub_agent_depth_max;
                if caller.ancestors().len() >= depth_max {
                    return Err(Error::TooDeep { depth_max });
                }
                caller.count_child(&deps.ledger)?;
                new_session_id(deps, &caller, &context.call_id).await?
            }
        };
        let parent = Some(Arc::clone(&caller.id));
        let shared = open(deps, id, Arc::clone(&definition.agent), parent, OpenReason::Open).await?;
        match &left {
            Some(_) => deps.ledger.link_again(&shared, &caller),
            None => deps.ledger.link(&shared, &caller),
        }
        let child = Arc::new(ChildWork::new(
            definition.name.clone(),
            context.call_id.clone(),
            caller.open_run(),
            shared,
            context.cancel.child_token(),
        ));
        caller.add_child(&child);
        let actor = caller.actor();
        let mut call = Self {
            deps: Arc::clone(deps),
            caller,
            actor,
            child,
            started: left.as_ref().map(|(started, _)| *started),
            is_taken_up: left.is_some(),
            cancel: context.cancel.clone(),
            stop: CancellationToken::new(),
            pauses: context.questions.pauses().clone(),
            is_over: false,
            outcome: RunOutcome::Aborted,
        };
        if call.started.is_none() {
            let record = ChildRecord {
                call_id: call.child.call_id.clone(),
                name: call.child.name.clone(),
                session: call.child.shared.id.to_string(),
                stage: ChildStage::Started,
            };
            let caller = Door::new(Arc::clone(&call.caller), Arc::clone(deps));
            call.started = Some(caller.ask(|reply| SessionMessage::ChildStarted { record, reply }).await?);
        }
        Ok(call)
    }

    /// Lets the agent work. While it asks a person, the time limits of the call stand still.
    async fn run(&self, definition: &SubAgent, task: String) -> Result<String> {
        tokio::select! {
            biased;
            ended = self.attempts(definition, task) => ended,
            never = self.child.shared.pauses().pause_with(&self.pauses) => match never {},
        }
    }

    /// Lets the agent work. A session that dies is resumed, and one that is closed while it waits for a person is opened.
    async fn attempts(&self, definition: &SubAgent, task: String) -> Result<String> {
        let session = Door::new(Arc::clone(&self.child.shared), Arc::clone(&self.deps));
        let mut begins = !self.is_taken_up;
        let mut was_closed = false;
        for attempt in 0..=RESUMES_MAX {
            let ended = match begins {
                true => self.ask(definition, &session, Some(&task)).await,
                false => self.go_on(definition, &session).await,
            };
            match ended {
                Err(Error::Waiting { .. }) if !self.cancel.is_cancelled() => was_closed = true,
                Err(Error::Interrupted { .. }) if !self.child.cancel.is_cancelled() => {}
                Err(Error::Closed) if was_closed => return Err(waiting(&session)),
                // It died after its answer was recorded, before it could say so.
                Err(Error::NothingToResume { .. }) => return last_answer(&session, definition).await,
                ended => return ended,
            }
            // That it died may not have been heard everywhere.
            tokio::select! {
                biased;
                () = self.child.cancel.cancelled() => {
                    return Err(if was_closed { waiting(&session) } else { Error::Aborted });
                }
                () = tokio::time::sleep(AGAIN_AFTER * 2_u32.pow(attempt)) => {}
            }
            // It may have died before it took the task on.
            begins = stored::context_of(&session).await?.is_empty();
        }
        Err(Error::Interrupted { session: session.id().to_owned() })
    }

    /// The agent goes on with what it was at: a run that waits goes on by itself.
    async fn go_on(&self, definition: &SubAgent, session: &Door) -> Result<String> {
        match self.ask(definition, session, None).await {
            Err(Error::NotIdle { .. }) => {}
            ended => return ended,
        }
        let (session, stop) = (session.clone(), self.stop.clone());
        let joined = async move {
            let mut reply = std::pin::pin!(session.ask(SessionMessage::Finish));
            tokio::select! {
                biased;
                reply = &mut reply => return reply,
                () = stop.cancelled() => session.shared.abort(),
            }
            reply.await
        };
        answer(definition, self.until_stopped(joined).await)
    }

    async fn ask(&self, definition: &SubAgent, session: &Door, task: Option<&str>) -> Result<String> {
        let options = Box::new(PromptOptions {
            ticket: self.deps.ticket(),
            form: definition.output.clone(),
            // Its session cancels what it is given when it is closed.
            cancel: self.stop.child_token(),
            waiting: Chain::current(),
            from: CalledFrom::current(),
            ..PromptOptions::default()
        });
        let handover = Handover { door: session.clone(), prompt: task.map(Prompt::from), options };
        answer(definition, self.until_stopped(handover.reply()).await)
    }

    /// The agent's run, until it has ended. A call that is cancelled ends after its run, which ends in order; unless the
    /// agent is left.
    async fn until_stopped(
        &self,
        run: impl Future<Output = Result<Reply>> + Send + 'static,
    ) -> Result<Reply> {
        // It must not end with this call, which may be left.
        let mut run = tokio::spawn(Chain::current().scope(run));
        let ended = tokio::select! {
            biased;
            ended = &mut run => ended,
            () = self.child.cancel.cancelled() => {
                if self.is_to_be_left() {
                    return Err(Error::Waiting { session: self.child.shared.id.to_string() });
                }
                self.stop.cancel();
                run.await
            }
        };
        ended.unwrap_or_else(|_| Err(Error::Interrupted { session: self.child.shared.id.to_string() }))
    }

    /// Whether the agent waits for a person while its caller goes away, and its caller's run is not aborted.
    fn is_to_be_left(&self) -> bool {
        let is_gone =
            self.cancel.is_cancelled() && (self.caller.is_closing() || !self.caller.is_run_cancelled());
        is_gone && self.child.shared.pauses().is_paused()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // It is told before it counts as over: whoever looks in between sees that it still works.
        let spent = self.deps.ledger.unlink(&self.child.shared);
        if self.child.is_left() || !self.is_over && self.is_to_be_left() {
            self.child.leave();
            if self.caller.is_closing()
                && let Some(supervisor) = self.deps.supervisor.get()
            {
                let (done, _) = oneshot::channel();
                let _ =
                    supervisor.cast(SupervisorMessage::Close { id: Arc::clone(&self.child.shared.id), done });
            }
            self.child.end();
            return;
        }
        self.stop.cancel();
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
        let awake = self.caller.keep_awake();
        let message = || SessionMessage::ChildEnded { started, outcome: self.outcome.clone(), spent };
        if self.caller.is_suspended()
            && let Ok(tasks) = tokio::runtime::Handle::try_current()
        {
            let caller = Door::new(Arc::clone(&self.caller), Arc::clone(&self.deps));
            let message = message();
            tasks.spawn(async move { caller.tell(message).await });
        } else if let Some(actor) = self.caller.actor().as_ref().or(self.actor.as_ref()) {
            let _ = actor.cast(SessionMail::heard(message(), awake));
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

/// The agent's answer, as the caller's model reads it.
fn answer(definition: &SubAgent, ended: Result<Reply>) -> Result<String> {
    match &definition.output {
        None => Ok(ended?.text),
        Some(form) => Ok(form.value(form.checked(ended)?.text)?.to_string()),
    }
}

fn waiting(session: &Door) -> Error {
    Error::Waiting { session: session.id().to_owned() }
}

/// The agent that was left with this call while it waited for a person, once nobody works on it any more.
async fn left_child(caller: &SessionShared, call_id: &str) -> Option<(EntryId, ChildRecord)> {
    let (started, child, work) = caller.take_left_child(call_id)?;
    if let Some(work) = work {
        work.over().await;
        if !work.is_left() {
            // It has ended meanwhile.
            return None;
        }
    }
    Some((started, child))
}

async fn last_answer(session: &Door, definition: &SubAgent) -> Result<String> {
    let context = stored::context_of(session).await?;
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
