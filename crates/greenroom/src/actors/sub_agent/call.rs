//! A call of a sub-agent: a session created for it, and a run in it.
//!
//! Invariants: the run ends before the call does, however that ends, unless the sub-agent waits for a person
//! when its caller goes away: then the call is left open, and its successor finds the sub-agent where it was
//! left. The caller's log has the sub-agent's start before its session has any messages, and its end with its
//! cost. No session is deeper than the runtime allows, and no run starts more sub-agents than its own limit,
//! including those below. A session that crashes continues; if it finally fails, the call's result says so.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::{ChildRecord, ChildStage, EntryId, RunOutcome};
use greenroom_kernel::{Failure, FailureClass, Head, Message};
use greenroom_tools::{Pauses, ToolContext, ToolOutput};
use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::id::session_id;
use crate::actors::session::stored;
use crate::agent::sub_agent::SubAgent;
use crate::core::child_work::ChildWork;
use crate::core::deps::Deps;
use crate::core::door::{Door, open};
use crate::core::handover::Handover;
use crate::core::message::{OpenReason, PromptOptions, SessionMail, SessionMessage, SupervisorMessage};
use crate::core::shared::SessionShared;
use crate::core::trace::CalledFrom;
use crate::limits::labels::Tenants;
use crate::limits::waits::Chain;
use crate::values::error::{Error, Result};
use crate::values::family;
use crate::values::prompt::{Prompt, Reply};

/// How often the run of one call is resumed after its session crashed. Several crashes within a minute end it
/// earlier.
const RESUMES_MAX: u32 = 8;

/// The wait before the first resumption.
const AGAIN_AFTER: Duration = Duration::from_millis(10);

/// The result of a call whose agent ended with its session, or with that of its caller.
const CUT_OFF: &str = "the agent was cut off before it answered";

/// Performs a task.
pub(super) async fn work(
    deps: &Arc<Deps>,
    definition: &SubAgent,
    task: String,
    context: &ToolContext,
) -> ToolOutput {
    let mut is_closing = false;
    let ended = match SubAgentCall::begin(deps, definition, context).await {
        Ok(mut call) => {
            let ended = call.run(definition, task).await;
            is_closing = call.caller.is_closing();
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
        // When a caller's session ends, that of its agent may end before or after it.
        Err(Error::Aborted) if is_closing => ToolOutput::interrupted(CUT_OFF),
        Err(Error::Aborted) => ToolOutput::interrupted("the agent was cancelled"),
        Err(Error::Waiting { .. }) => ToolOutput::interrupted("the agent waits for a person"),
        Err(Error::Interrupted { .. } | Error::Closed) => ToolOutput::interrupted(CUT_OFF),
        Err(error) => ToolOutput::error(format!("the agent failed: {error}")),
    }
}

/// A call in progress. Dropping it records its end, however the call ends, unless it is left, because the
/// sub-agent waits for a person and its caller's run continues later.
struct SubAgentCall {
    deps: Arc<Deps>,
    caller: Arc<SessionShared>,
    /// The caller's actor when the call started: no other way leads to an actor that is closing.
    actor: Option<ActorRef<SessionMail>>,
    child: Arc<ChildWork>,
    /// The entry of its start.
    started: Option<EntryId>,
    /// Whether an earlier attempt, or an earlier process, left the sub-agent.
    is_taken_up: bool,
    /// Cancelled when the call must end.
    cancel: CancellationToken,
    /// Cancels the sub-agent's run.
    stop: CancellationToken,
    /// What stops the call's time limits.
    pauses: Pauses,
    is_over: bool,
    /// Its outcome; aborted until it has ended.
    outcome: RunOutcome,
}

impl SubAgentCall {
    /// Opens a session for the call, and records its start; or opens the session in which a sub-agent was
    /// left with this call.
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
                caller.count_child(&deps.ledger, &context.call_id)?;
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

    /// Runs the sub-agent. While it asks a person, the call's time limits stop.
    async fn run(&self, definition: &SubAgent, task: String) -> Result<String> {
        tokio::select! {
            biased;
            ended = self.attempts(definition, task) => ended,
            never = self.child.shared.pauses().pause_with(&self.pauses) => match never {},
        }
    }

    /// Runs the sub-agent. A crashed session is resumed, and one that is closed while it waits for a person
    /// is opened again.
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
                // The session crashed after it had recorded the answer.
                Err(Error::NothingToResume { .. }) => return last_answer(&session, definition).await,
                ended => return ended,
            }
            // Other parts may not know of the crash yet.
            tokio::select! {
                biased;
                () = self.child.cancel.cancelled() => {
                    return Err(if was_closed { waiting(&session) } else { Error::Aborted });
                }
                () = tokio::time::sleep(AGAIN_AFTER * 2_u32.pow(attempt)) => {}
            }
            // The session may have crashed before it accepted the task.
            begins = stored::context_of(&session).await?.is_empty();
        }
        Err(Error::Interrupted { session: session.id().to_owned() })
    }

    /// Lets the sub-agent continue: a run that waits continues by itself.
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
            // Closing the session cancels this token.
            cancel: self.stop.child_token(),
            waiting: Chain::current(),
            from: CalledFrom::current(),
            ..PromptOptions::default()
        });
        let handover = Handover { door: session.clone(), prompt: task.map(Prompt::from), options };
        answer(definition, self.until_stopped(handover.reply()).await)
    }

    /// Waits for the end of the sub-agent's run. A cancelled call ends after its run, which ends cleanly,
    /// unless the sub-agent is left.
    async fn until_stopped(
        &self,
        run: impl Future<Output = Result<Reply>> + Send + 'static,
    ) -> Result<Reply> {
        // The run must not end with this call, which may be left.
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

    /// Whether the sub-agent waits for a person while its caller goes away, and its caller's run is not
    /// aborted.
    fn is_to_be_left(&self) -> bool {
        let is_gone =
            self.cancel.is_cancelled() && (self.caller.is_closing() || !self.caller.is_run_cancelled());
        is_gone && self.child.shared.pauses().is_paused()
    }
}

impl Drop for SubAgentCall {
    fn drop(&mut self) {
        // The end is reported before the work counts as over, so an observer in between sees that it is still
        // working.
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
            // The session has no messages, so nothing of it is kept.
            if let Some(supervisor) = self.deps.supervisor.get() {
                let _ = supervisor.cast(SupervisorMessage::Idle { id: Arc::clone(&self.child.shared.id) });
            }
        }
    }
}

impl SubAgentCall {
    /// Reports the end to the caller's session. If that has no actor, it reads the end from the sub-agent's
    /// log when it is opened.
    fn tell_end(&self, started: EntryId, spent: Bill) {
        let awake = self.caller.keep_awake();
        let message =
            || SessionMessage::ChildEnded { started, outcome: self.outcome.clone(), spent: Box::new(spent) };
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

/// Returns the outcome of the work, for the caller's log.
fn outcome(ended: &Result<String>) -> RunOutcome {
    match ended {
        Ok(_) => RunOutcome::Completed,
        Err(Error::Aborted) => RunOutcome::Aborted,
        Err(Error::Interrupted { .. } | Error::Closed) => RunOutcome::Interrupted,
        Err(Error::Model(failure)) => RunOutcome::Failed(Box::new(failure.clone())),
        Err(Error::Stopped { reason }) => RunOutcome::Stopped { reason: reason.clone() },
        Err(error) => RunOutcome::Failed(Box::new(Failure::new(FailureClass::Other, error.to_string()))),
    }
}

/// Returns the sub-agent's answer, as the caller's model reads it.
fn answer(definition: &SubAgent, ended: Result<Reply>) -> Result<String> {
    match &definition.output {
        None => Ok(ended?.text),
        Some(form) => Ok(form.value(form.checked(ended)?.text)?.to_string()),
    }
}

fn waiting(session: &Door) -> Error {
    Error::Waiting { session: session.id().to_owned() }
}

/// Returns the sub-agent that was left with this call while it waited for a person, once no task works on it.
async fn left_child(caller: &SessionShared, call_id: &str) -> Option<(EntryId, ChildRecord)> {
    let (started, child, work) = caller.take_left_child(call_id)?;
    if let Some(work) = work {
        work.over().await;
        if !work.is_left() {
            // It has ended in the meantime.
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

/// Returns the ids of the sessions above one whose caller is `parent`, nearest first.
pub(crate) async fn ancestors(deps: &Deps, parent: Option<String>) -> Result<Arc<[Arc<str>]>> {
    let above = family::above(&*deps.store, parent).await?;
    Ok(above.into_iter().map(|(id, _)| id.into()).collect())
}

/// Returns the labels by which a session with this head is counted: those of its top-level session.
pub(crate) async fn tenants(deps: &Deps, shared: &SessionShared, head: &Head) -> Result<Tenants> {
    let table = deps.accounts.table();
    let parent = shared.ancestors().first().filter(|_| table.has_names()).map(ToString::to_string);
    Ok(table.tenants(&family::top_labels(&*deps.store, parent, &head.labels).await?))
}

/// Returns an id that no session has. A call's id is not sufficient, because a provider may reuse it after
/// the call has left the context, or within one answer.
async fn new_session_id(deps: &Deps, caller: &Arc<SessionShared>, call_id: &str) -> Result<Arc<str>> {
    let mut number = 0_u64;
    loop {
        let id: Arc<str> = session_id(&caller.id, call_id, number).into();
        if deps.store.head(&id).await?.is_none() && caller.take_child_id(&id) {
            return Ok(id);
        }
        number += 1;
    }
}
