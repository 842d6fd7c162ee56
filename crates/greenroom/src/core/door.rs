//! The way to a session: a place in its mailbox, waking it, asking it, telling it something.
//!
//! Invariants: whoever speaks to a session keeps it awake from before they look for its actor until the actor has heard
//! them. At most `REQUESTS_MAX` requests wait in a session's mailbox; more are told at once that it is busy. A deleted
//! session is not made again.

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
use crate::core::deps::{Deps, blocking};
use crate::core::message::{
    AmendRequest, MailPlace, OpenReason, OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage,
};
use crate::core::shared::{KeptAwake, REQUESTS_MAX, SessionShared};
use crate::limits::waits::Waiting;
use crate::values::error::{Error, Result};
use crate::values::prompt::Prompt;

/// How often one request wakes a session that is closed as often.
const WAKES_MAX: u32 = 3;

/// The way to one session. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) deps: Arc<Deps>,
    /// The agent that works for whoever asks by this door; `None`: the session's.
    pub(crate) agent: Option<Arc<Agent>>,
}

impl Door {
    /// The way to this session, with the agent that it has.
    pub(crate) fn new(shared: Arc<SessionShared>, deps: Arc<Deps>) -> Self {
        Self { shared, deps, agent: None }
    }

    /// The session's id.
    pub(crate) fn id(&self) -> &str {
        &self.shared.id
    }

    /// The first entry that was recorded for the prompt with this key, where there is one: the guards judged that. Where the
    /// agent has no guards, nothing is looked up.
    pub(crate) async fn said_before(&self, key: Option<&str>) -> Result<Option<EntryId>> {
        let agent = self.agent.clone().or_else(|| self.shared.agent());
        let is_guarded = agent.is_some_and(|agent| !agent.hooks.guard_input.is_empty());
        let Some(key) = key.filter(|_| is_guarded) else { return Ok(None) };
        let (store, id, key) = (self.deps.store.clone(), Arc::clone(&self.shared.id), key.to_owned());
        blocking(&self.deps, move || Ok(store.used_key(&id, &key)?)).await
    }

    /// Asks the guards of the session's agent; gives what is to be recorded.
    pub(crate) async fn judge(&self, kind: InputKind, prompt: Prompt) -> Result<Prompt> {
        match self.agent.clone().or_else(|| self.shared.agent()) {
            Some(agent) => input::judge(&agent, &self.shared.id, kind, prompt).await,
            // Whoever takes the input up refuses it.
            None => Ok(prompt),
        }
    }

    /// The caller of a prompt went away.
    pub(crate) fn withdraw(&self, ticket: u64) {
        let message = SessionMessage::Withdraw { ticket };
        let awake = self.keep_awake();
        if let Some(actor) = self.shared.actor() {
            let _ = actor.cast(SessionMail::heard(message, awake));
        } else if self.shared.is_suspended()
            && let Ok(tokio) = tokio::runtime::Handle::try_current()
        {
            // Its run goes on while it sleeps, and is to be cancelled.
            let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
            tokio.spawn(async move { tell(&deps, &shared, message).await });
        }
    }

    pub(crate) async fn ask<T>(&self, message: impl FnOnce(ReplyTo<T>) -> SessionMessage) -> Result<T> {
        let answer = self.request(message).await?;
        self.answered(answer).await
    }

    /// Says something that needs no answer; a session that sleeps is woken.
    pub(crate) async fn tell(&self, message: SessionMessage) -> Result<()> {
        let place = self.place()?;
        let actor = self.actor().await?;
        self.send(&actor, place, message)
    }

    /// Puts a request into the mailbox. Requests of one caller are taken up in this order.
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
        answer.await.map_err(|_| self.gone())?
    }

    /// Asks the session's actor, if it has one: it is not woken.
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

    /// Withdraws what the session asks people.
    pub(crate) async fn withdraw_questions(&self) -> Result<()> {
        self.amend(Amendment::WithdrawQuestions).await.map(drop)
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

    /// How many aborts found no run open so far.
    pub(crate) fn early_aborts(&self) -> u64 {
        self.shared.early_aborts()
    }

    /// The session does not fall asleep before what is given is dropped.
    pub(crate) fn keep_awake(&self) -> KeptAwake {
        self.shared.keep_awake()
    }

    /// A place in the mailbox, if there is one.
    pub(crate) fn place(&self) -> Result<MailPlace> {
        let awake = self.keep_awake();
        let mailbox = Arc::clone(&self.shared.requests)
            .try_acquire_owned()
            .map_err(|_| Error::Busy { session: self.shared.id.to_string(), waiting: REQUESTS_MAX })?;
        let input = if self.shared.parent.is_none() {
            self.deps.admission.admit()?
        } else {
            // The run that called this agent was taken on with all that it does.
            let mut input = self.deps.admission.held();
            input.set(1);
            input
        };
        Ok(MailPlace { _awake: awake, _mailbox: Some(mailbox), input: Some(input) })
    }

    /// A place in the mailbox for a question, as soon as there is one.
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

    /// Whether it is being deleted.
    pub(crate) fn set_deleting(&self, is_deleting: bool) {
        self.shared.set_deleting(is_deleting);
    }

    /// Whoever asks is about to wait for a run of this session.
    ///
    /// # Errors
    /// [`Error::Deadlock`] where the session waits for them.
    pub(crate) fn begin_wait(&self) -> Result<Waiting> {
        self.deps.waits.begin(&self.shared.id)
    }

    /// Why the session's actor does not answer.
    pub(crate) fn gone(&self) -> Error {
        self.shared.gone()
    }

    /// The session's actor; a session that sleeps is woken. Who asks keeps the session awake, from before the question until
    /// the actor has heard what it is sent.
    pub(crate) async fn actor(&self) -> Result<ActorRef<SessionMail>> {
        self.shared.activity.fetch_add(1, Ordering::Relaxed);
        self.shared.mark_used(self.deps.next_use());
        self.check_deleted()?;
        // It may be closed again by the time that it is up.
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
            // Boxed, since few requests wake a session and each would carry the room for it.
            let wake = OpenReason::Wake(Arc::clone(&self.shared));
            Box::pin(open(&self.deps, id, agent, parent, wake)).await?;
        }
        self.shared.actor().ok_or_else(|| self.gone())
    }
}

/// How often a session is woken that cannot be started.
const TELL_ATTEMPTS: u32 = 8;

/// Sends a session a message that nobody outside waits for. One that sleeps is woken. Nobody else would try again: where it
/// cannot be started, those who wait for its run hear so in the end.
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
            // A session that is gone needs it no more.
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

/// How often it is asked for a session that dies before it takes up the request.
const OPEN_ATTEMPTS: u32 = 6;
/// The first wait before it is asked for again.
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
            // The session died before it took up the request; another one takes its place.
            Err(_) => tokio::time::sleep(OPEN_AGAIN_AFTER * 2_u32.pow(attempt)).await,
        }
    }
    Err(Error::Interrupted { session: id.to_string() })
}
