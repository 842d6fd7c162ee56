//! Access to a session: a slot in its mailbox, waking it, asking it, and sending it messages.
//!
//! Invariants: a sender keeps the session awake from before it looks for the actor until the actor has
//! handled the message. At most `REQUESTS_MAX` requests wait in a session's mailbox; further ones fail at
//! once as busy. A deleted session is not recreated.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::log::Amendment;
use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::agent::hooks::input;
use crate::agent::hooks::input::InputKind;
use crate::core::deps::Deps;
use crate::core::message::{
    AmendRequest, MailPlace, OpenReason, OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage,
};
use crate::core::shared::{KeptAwake, REQUESTS_MAX, SessionShared};
use crate::limits::waits::Waiting;
use crate::values::error::{Error, Result};
use crate::values::prompt::Prompt;

/// How often one request wakes a session that keeps closing.
const WAKES_MAX: u32 = 3;

/// Access to one session. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) deps: Arc<Deps>,
    /// The agent for requests through this door; `None` means the session's.
    pub(crate) agent: Option<Arc<Agent>>,
}

impl Door {
    /// Creates access to this session, with its own agent.
    pub(crate) fn new(shared: Arc<SessionShared>, deps: Arc<Deps>) -> Self {
        Self { shared, deps, agent: None }
    }

    /// The session's id.
    pub(crate) fn id(&self) -> &str {
        &self.shared.id
    }

    /// Whether the session's agent has guards of its input.
    pub(crate) fn is_guarded(&self) -> bool {
        let agent = self.agent.clone().or_else(|| self.shared.agent());
        agent.is_some_and(|agent| !agent.hooks.guard_input.is_empty())
    }

    /// Returns the first entry that was recorded for the prompt with this key, if there is one: the guards
    /// have judged that prompt. Without guards, this looks nothing up.
    pub(crate) async fn said_before(&self, key: Option<&str>) -> Result<Option<EntryId>> {
        let Some(key) = key.filter(|_| self.is_guarded()) else { return Ok(None) };
        Ok(self.deps.store.used_key(&self.shared.id, key).await?)
    }

    /// Calls the guards of the session's agent; returns the input to record.
    pub(crate) async fn judge(&self, kind: InputKind, prompt: Prompt) -> Result<Prompt> {
        match self.agent.clone().or_else(|| self.shared.agent()) {
            // Boxed, because few agents have guards, and otherwise each request would have the size of this future.
            Some(agent) if !agent.hooks.guard_input.is_empty() => {
                let judged = Box::pin(input::judge(&agent, &self.shared.id, kind, prompt)).await;
                judged.map_err(|error| error.redacted(&self.deps.redactor))
            }
            // The session refuses input without an agent.
            Some(_) | None => Ok(prompt),
        }
    }

    /// Withdraws a prompt whose caller has gone. Returns whether the session is told.
    pub(crate) fn withdraw(&self, ticket: u64) -> bool {
        let message = SessionMessage::Withdraw { ticket };
        let awake = self.keep_awake();
        if let Some(actor) = self.shared.actor() {
            return actor.cast(SessionMail::heard(message, awake)).is_ok();
        }
        if self.shared.is_suspended()
            && let Ok(tokio) = tokio::runtime::Handle::try_current()
        {
            // Its run continues while it sleeps, and must be cancelled.
            let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
            tokio.spawn(async move { tell(&deps, &shared, message).await });
            return true;
        }
        false
    }

    pub(crate) async fn ask<T>(&self, message: impl FnOnce(ReplyTo<T>) -> SessionMessage) -> Result<T> {
        let answer = self.request(message).await?;
        self.answered(answer).await
    }

    /// Sends a message that needs no answer; a sleeping session is woken.
    pub(crate) async fn tell(&self, message: SessionMessage) -> Result<()> {
        let place = self.place()?;
        let actor = self.actor().await?;
        self.send(&actor, place, message)
    }

    /// Puts a request into the mailbox. Requests of one caller are handled in this order.
    pub(crate) async fn request<T>(
        &self,
        message: impl FnOnce(ReplyTo<T>) -> SessionMessage,
    ) -> Result<oneshot::Receiver<Result<T>>> {
        let place = self.place()?;
        let actor = self.actor().await?;
        let (reply, answer) = oneshot::channel();
        self.send(&actor, place, message(reply))?;
        Ok(answer)
    }

    /// Waits for the answer to a request.
    pub(crate) async fn answered<T>(&self, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        let answer = answer.await.map_err(|_| self.gone())?;
        answer.map_err(|error| error.redacted(&self.deps.redactor))
    }

    /// Asks the session's actor if there is one; a sleeping session is not woken.
    pub(crate) async fn look<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> SessionMessage,
    ) -> Option<T> {
        let place = self.question().await.ok()?;
        let actor = self.shared.actor()?;
        let (reply, answer) = oneshot::channel();
        self.send(&actor, place, message(reply)).ok()?;
        answer.await.ok()
    }

    /// Withdraws the session's questions to people.
    pub(crate) async fn withdraw_questions(&self) -> Result<()> {
        self.amend(Amendment::WithdrawQuestions).await.map(drop)
    }

    /// Ends the run that an earlier process left, and that waits for people, unless an actor has continued it.
    pub(crate) fn abort_what_waits(&self) {
        if self.shared.actor().is_some() || self.shared.is_suspended() {
            return;
        }
        let Ok(tasks) = tokio::runtime::Handle::try_current() else { return };
        let door = self.clone();
        tasks.spawn(async move {
            let head = door.deps.store.head(&door.shared.id).await.ok().flatten();
            if let Some(run) = head.filter(|head| !head.questions.is_empty()).and_then(|head| head.open_run)
                && let Err(error) = door.amend(Amendment::AbortWaiting { run }).await
            {
                tracing::warn!(session = door.id(), "its run could not be aborted: {error}");
            }
        });
    }

    pub(crate) async fn amend(&self, amendment: Amendment) -> Result<usize> {
        let supervisor = self.deps.supervisor.get().ok_or(Error::Closed)?;
        let (reply, answer) = oneshot::channel();
        let request = AmendRequest { shared: Arc::clone(&self.shared), amendment, reply };
        supervisor.cast(SupervisorMessage::Amend(request)).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| self.gone())?
    }

    pub(crate) fn check_deleted(&self) -> Result<()> {
        if self.shared.is_deleted() { Err(self.gone()) } else { Ok(()) }
    }

    /// The number of aborts so far that found no open run.
    pub(crate) fn early_aborts(&self) -> u64 {
        self.shared.early_aborts()
    }

    /// Keeps the session awake until the returned guard is dropped.
    pub(crate) fn keep_awake(&self) -> KeptAwake {
        self.shared.keep_awake()
    }

    /// Reserves a slot in the mailbox, if one is free.
    ///
    /// # Errors
    /// [`Error::Closed`] after the runtime was dropped; [`Error::Busy`]; [`Error::RuntimeBusy`].
    pub(crate) fn place(&self) -> Result<MailPlace> {
        if self.deps.is_closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        let awake = self.keep_awake();
        let mailbox = Arc::clone(&self.shared.requests)
            .try_acquire_owned()
            .map_err(|_| Error::Busy { session: self.shared.id.to_string(), waiting: REQUESTS_MAX })?;
        let input = if self.shared.parent.is_none() {
            self.deps.admission.admit()?
        } else {
            // The calling run was accepted with all its sub-agents.
            let mut input = self.deps.admission.held();
            input.set(1);
            input
        };
        Ok(MailPlace { _awake: awake, _mailbox: Some(mailbox), input: Some(input) })
    }

    /// Waits for a slot in the mailbox for a query.
    pub(crate) async fn question(&self) -> Result<MailPlace> {
        let mailbox = Arc::clone(&self.shared.queries).acquire_owned().await;
        let mailbox = Some(mailbox.map_err(|_| Error::Closed)?);
        Ok(MailPlace { _awake: self.keep_awake(), _mailbox: mailbox, input: None })
    }

    pub(crate) fn send(
        &self,
        actor: &ActorRef<SessionMail>,
        place: MailPlace,
        message: SessionMessage,
    ) -> Result<()> {
        actor.cast(SessionMail { message, place: Some(place) }).map_err(|_| self.gone())
    }

    /// Sets whether the session is being deleted.
    pub(crate) fn set_deleting(&self, is_deleting: bool) {
        self.shared.set_deleting(is_deleting);
    }

    /// Registers that the caller starts to wait for a run of this session.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if the session waits for the caller.
    pub(crate) fn begin_wait(&self) -> Result<Waiting> {
        self.deps.waits.begin(&self.shared.id)
    }

    /// Returns why the session's actor does not answer.
    pub(crate) fn gone(&self) -> Error {
        self.shared.gone()
    }

    /// Returns the session's actor; a sleeping session is woken. The caller keeps the session awake, from
    /// before the call until the actor has handled its message.
    pub(crate) async fn actor(&self) -> Result<ActorRef<SessionMail>> {
        self.shared.activity.fetch_add(1, Ordering::Relaxed);
        self.shared.mark_used(self.deps.next_use());
        self.check_deleted()?;
        // The session may be closed again by the time it has started.
        for _ in 0..WAKES_MAX {
            if let Some(actor) = self.shared.actor() {
                return Ok(actor);
            }
            let (id, parent) = (Arc::clone(&self.shared.id), self.shared.parent.clone());
            let agent = self
                .shared
                .agent()
                .or_else(|| self.agent.clone())
                .ok_or_else(|| Error::NoAgent { session: self.shared.id.to_string() })?;
            // Boxed, because few requests wake a session, and otherwise each would have the size of this
            // future.
            let wake = OpenReason::Wake(Arc::clone(&self.shared));
            Box::pin(open(&self.deps, id, agent, parent, wake)).await?;
        }
        self.shared.actor().ok_or_else(|| self.gone())
    }
}

/// How often the runtime tries to wake a session that cannot be started.
const TELL_ATTEMPTS: u32 = 8;

/// Sends a session a message for which no caller waits. A sleeping session is woken. Nobody else would try
/// again; if the session cannot be started, those that wait for its run finally get the error.
pub(crate) async fn tell(deps: &Arc<Deps>, shared: &Arc<SessionShared>, message: SessionMessage) {
    let door = Door::new(Arc::clone(shared), Arc::clone(deps));
    let awake = door.keep_awake();
    let parking = shared.parking();
    let mut wait = OPEN_AGAIN_AFTER;
    for attempt in 1..=TELL_ATTEMPTS {
        match door.actor().await {
            Ok(actor) => {
                let _ = actor.cast(SessionMail::heard(message, awake));
                return;
            }
            Err(Error::SessionFailed { .. } | Error::Store(_)) if attempt < TELL_ATTEMPTS => {
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
            // A deleted or closed session does not need the message.
            Err(error) => {
                if let (Some(parking), Some(supervisor)) = (parking, deps.supervisor.get()) {
                    let id = Arc::clone(&shared.id);
                    let _ = supervisor.cast(SupervisorMessage::GiveUp { id, parking, error });
                }
                return;
            }
        }
    }
}

/// How often a request is repeated for a session that dies before handling it.
const OPEN_ATTEMPTS: u32 = 6;
/// The wait before the first repetition.
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Asks the supervisor to open or resume a session.
pub(crate) async fn open(
    deps: &Deps,
    id: Arc<str>,
    agent: Arc<Agent>,
    parent: Option<Arc<str>>,
    reason: OpenReason,
) -> Result<Arc<SessionShared>> {
    if let Some(lane) = deps.lane(&agent) {
        lane.served.ask_once().await;
    }
    let _place = deps.opens.acquire().await.map_err(|_| Error::Closed)?;
    let supervisor = deps.supervisor.get().ok_or(Error::Closed)?;
    for attempt in 0..OPEN_ATTEMPTS {
        let (reply, answer) = oneshot::channel();
        let (id, agent, parent) = (Arc::clone(&id), Arc::clone(&agent), parent.clone());
        let request = OpenRequest { id, agent, parent, reason: reason.clone(), reply };
        supervisor.cast(SupervisorMessage::Open(request)).map_err(|_| Error::Closed)?;
        match answer.await {
            Ok(opened) => return opened,
            Err(_) if supervisor.get_status() >= ractor::ActorStatus::Stopping => return Err(Error::Closed),
            // The session died before it handled the request, and is being replaced.
            Err(_) => tokio::time::sleep(OPEN_AGAIN_AFTER * 2_u32.pow(attempt)).await,
        }
    }
    Err(Error::Interrupted { session: id.to_string() })
}
