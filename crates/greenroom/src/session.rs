//! A session as programs hold it: prompts, streams, compactions, and how it stands.
//!
//! Invariants: a handle is cheap to clone and never goes stale: a session that sleeps is woken by the next
//! request, and one that crashed is reached again when it is restarted. Dropping the future of a prompt cancels
//! its run. At most `REQUESTS_MAX` requests wait in a session's mailbox; more are told at once that it is busy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::entry::{CompactionOutcome, Delivery as InboxDelivery, EntryId};
use greenroom_kernel::message::Message;
use greenroom_kernel::plan::{NothingToCompact, Plan};
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{Entry, Usage};
use greenroom_store::Head;
use ractor::ActorRef;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::agent::Agent;
use crate::bus::{Filter, Subscription};
use crate::compaction::{CompactOptions, Compacted};
use crate::deps::Deps;
use crate::error::{Error, Result};
use crate::hooks::input::{self, InputKind};
use crate::message::{OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage};
use crate::names::names;
use crate::prompt::{Prompt, RunRequest};
use crate::shared::{REQUESTS_MAX, SessionShared};

/// How often one request wakes a session that is closed as often.
const WAKES_MAX: u32 = 3;

/// A session. Cheap to clone.
#[derive(Clone)]
pub struct SessionHandle {
    shared: Arc<SessionShared>,
    pub(crate) deps: Arc<Deps>,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionHandle({})", self.shared.id)
    }
}

names! {
    /// What a session is doing.
    pub enum Status ("status") {
        /// Nothing: it waits for input.
        Idle = "idle",
        /// It works on a run.
        Working = "working",
        /// It compacts its context, for a run or between runs.
        Compacting = "compacting",
    }
}

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The session's id.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// How many entries its log has.
    pub entries: u64,
    /// The context's size.
    pub context: ContextUsage,
    /// The model's window in tokens; absent where nothing knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How many compactions were installed.
    pub compactions: u64,
    /// All tokens of all its calls: what is billed.
    pub total_tokens: u64,
    /// What they cost, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// What the session is doing.
    pub status: Status,
    /// How many inputs wait.
    pub waiting: usize,
    /// Whether the newest prompt has no complete answer: `resume` goes on with it.
    pub is_unanswered: bool,
    /// The first entry that the store has lost, where it is damaged: until that is accepted (`Store::accept_loss`), the
    /// session can be read and takes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
}

/// What the store knows of a session, whether it is live or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// The session's id.
    pub id: String,
    /// The provider that answered last.
    pub provider: String,
    /// The model that answered last.
    pub model: String,
    /// How many entries its log has.
    pub entries: u64,
    /// The entry at which its conversation ends: where the next prompt goes on. `None` where nothing was said.
    pub leaf: Option<EntryId>,
    /// The context's size, in tokens.
    pub context_tokens: u64,
    /// The model's window in tokens; absent where nothing knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How many compactions were installed.
    pub compactions: u64,
    /// What all its calls used, together: what is billed.
    pub usage: Usage,
    /// What they cost, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// How many inputs wait.
    pub waiting: usize,
    /// Whether a run has not ended: one is going on, or was when the process ended.
    pub has_open_run: bool,
    /// When it was created, in unix milliseconds.
    pub created_at_ms: u64,
    /// When it was last appended to, in unix milliseconds.
    pub updated_at_ms: u64,
    /// Its name, for people.
    pub title: Option<String>,
    /// The session whose agent called this one as a tool, or that it was forked from.
    pub parent: Option<String>,
    /// As [`State::lost_from`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
}

impl SessionSummary {
    pub(crate) fn new(id: String, head: Head) -> Self {
        Self {
            id,
            provider: head.provider,
            model: head.model,
            entries: head.entries,
            leaf: head.leaf,
            context_tokens: head.context_tokens,
            context_window: head.window,
            compactions: head.compactions,
            usage: head.total_usage,
            cost_microdollars: head.cost_microdollars,
            waiting: head.inbox.len(),
            has_open_run: head.open_run.is_some(),
            created_at_ms: head.created_at_ms,
            updated_at_ms: head.updated_at_ms,
            title: head.title,
            parent: head.parent_session,
            lost_from: head.lost_from,
        }
    }
}

impl SessionHandle {
    pub(crate) fn new(shared: Arc<SessionShared>, deps: Arc<Deps>) -> Self {
        Self { shared, deps }
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Says something to the agent: tools run, compactions happen, and the answer is the reply. Await it, or stream
    /// it; see [`RunRequest`] for what can be asked for besides.
    ///
    /// If the session is at work, the prompt waits for its run in the durable inbox. Dropping what is awaited cancels
    /// the run, or takes the prompt out of the inbox.
    ///
    /// Its errors: [`Error::Model`] when the model could not be asked, [`Error::Aborted`], [`Error::Stopped`],
    /// [`Error::TimedOut`], [`Error::Busy`] when too much waits already, [`Error::EmptyPrompt`], [`Error::InputRefused`],
    /// [`Error::DuplicateKey`], [`Error::Deadlock`] in a tool of this session, [`Error::Config`] with settings that no model takes, [`Error::Store`].
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> RunRequest {
        RunRequest::new(self.clone(), Some(prompt.into()))
    }

    /// Goes on with the newest prompt where a crash or an abort left it without a complete answer.
    ///
    /// Its errors: [`Error::NothingToResume`] if it was answered; else those of [`Self::prompt`].
    pub fn resume(&self) -> RunRequest {
        RunRequest::new(self.clone(), None)
    }

    /// Interrupts the current run: what had come of the answer is kept, no process is left. Where no run is
    /// running it leaves the compaction under way, if there is one, which ends as `cancelled`.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Says something into the current run: it joins after the running tool calls. Without a current run it
    /// begins one. Gives the input's entry.
    ///
    /// # Errors
    /// [`Error::Busy`] when too much waits already, [`Error::InputRefused`] by the agent's guards, [`Error::Store`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<EntryId> {
        let prompt = self.judge(InputKind::Steer, prompt.into()).await?;
        self.input(prompt, InboxDelivery::Steer).await
    }

    /// Says something that the agent hears after the current run, in which it then goes on.
    ///
    /// # Errors
    /// As [`Self::steer`].
    pub async fn follow_up(&self, prompt: impl Into<Prompt>) -> Result<EntryId> {
        let prompt = self.judge(InputKind::FollowUp, prompt.into()).await?;
        self.input(prompt, InboxDelivery::FollowUp).await
    }

    /// Asks the guards of the session's agent; gives what is to be recorded.
    pub(crate) async fn judge(&self, kind: InputKind, prompt: Prompt) -> Result<Prompt> {
        input::judge(&self.shared.agent(), &self.shared.id, kind, prompt).await
    }

    async fn input(&self, prompt: Prompt, delivery: InboxDelivery) -> Result<EntryId> {
        self.ask(|reply| SessionMessage::Input { content: prompt.0, delivery, reply }).await
    }

    /// Replaces the older part of the conversation, in the model's view, by a summary. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]. A compaction that finds nothing to do or fails is not an error: see
    /// [`Compacted::outcome`].
    pub async fn compact(&self, options: CompactOptions) -> Result<Compacted> {
        self.ask(|reply| SessionMessage::CompactManually { options, reply }).await
    }

    /// What [`Self::compact`] would do.
    ///
    /// # Errors
    /// [`Error::NothingToCompact`] with the reason.
    pub async fn plan(&self, options: CompactOptions) -> Result<Plan> {
        let plan: Result<Box<Plan>, NothingToCompact> =
            self.ask(|reply| SessionMessage::PlanManually { options, reply }).await?;
        plan.map(|plan| *plan).map_err(Error::NothingToCompact)
    }

    /// Makes the newest active compaction no longer count: the context is what it was before. Only while idle.
    /// Gives the size after.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NothingToUndo`]; [`Error::UndoTooLarge`] if the result would not fit the window.
    pub async fn undo_compaction(&self) -> Result<ContextUsage> {
        self.ask(|reply| SessionMessage::Undo { reply }).await
    }

    /// Goes on from another entry: the next prompt begins a branch there. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NoEntry`]; [`Error::BranchPoint`] if no branch can begin there.
    pub async fn branch(&self, to: Option<EntryId>) -> Result<()> {
        self.ask(|reply| SessionMessage::Branch { to, reply }).await
    }

    /// As [`Self::branch`], and takes along a summary of what happened on the branch that is left, its own compactions and
    /// files included. It is a compaction of the branch: with its events (trigger `branch`), its retries and its bill, and
    /// [`Self::abort`] cancels it. Input that comes meanwhile waits.
    ///
    /// # Errors
    /// As [`Self::branch`]; [`Error::BranchSummary`] when no summary could be had or it was aborted: then nothing is changed.
    pub async fn branch_with_summary(&self, to: Option<EntryId>) -> Result<()> {
        let done = self.ask(|reply| SessionMessage::BranchWithSummary { to, reply }).await?;
        match &done.outcome {
            // Nothing: nothing was said on the branch.
            CompactionOutcome::Completed | CompactionOutcome::Nothing { .. } => Ok(()),
            CompactionOutcome::Failed { .. }
            | CompactionOutcome::Cancelled { .. }
            | CompactionOutcome::Truncated { .. }
            | CompactionOutcome::Pruned { .. }
            | CompactionOutcome::Superseded
            | CompactionOutcome::Interrupted => {
                let reason = done.outcome.reason().unwrap_or("it was interrupted").to_owned();
                Err(Error::BranchSummary { reason })
            }
        }
    }

    /// Compacts when the current run is over, or now if none runs. For hooks and tools, which may not wait.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::SessionFailed`].
    pub async fn compact_after_run(&self, options: CompactOptions) -> Result<()> {
        let place = self.place()?;
        let actor = self.actor().await?;
        self.send(&actor, place, SessionMessage::CompactAfterRun { options, needs_news: false })
    }

    /// Keeps an entry verbatim through every compaction.
    ///
    /// # Errors
    /// [`Error::Pin`] if it is no message of the active context that can stand alone, or too much is pinned.
    pub async fn pin(&self, entry: EntryId) -> Result<()> {
        self.ask(|reply| SessionMessage::Pin { entry, pinned: true, reply }).await
    }

    /// No longer keeps an entry.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn unpin(&self, entry: EntryId) -> Result<()> {
        self.ask(|reply| SessionMessage::Pin { entry, pinned: false, reply }).await
    }

    /// Takes over the entries of an import or a fork. Only into an empty session.
    ///
    /// # Errors
    /// [`Error::NotEmpty`].
    pub async fn import(&self, entries: Vec<Arc<Entry>>, leaf: Option<EntryId>) -> Result<()> {
        self.ask(|reply| SessionMessage::Import { entries, leaf, reply }).await
    }

    /// The session's state: its status, its context and what waits.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::SessionFailed`].
    pub async fn state(&self) -> Result<State> {
        let place = self.question().await?;
        let actor = self.actor().await?;
        let (reply, answer) = oneshot::channel();
        self.send(&actor, place, SessionMessage::State(reply))?;
        answer.await.map_err(|_| self.gone())
    }

    /// What the model would be sent, the system prompt apart.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::SessionFailed`].
    pub async fn context(&self) -> Result<Vec<Arc<Message>>> {
        let place = self.question().await?;
        let actor = self.actor().await?;
        let (reply, answer) = oneshot::channel();
        self.send(&actor, place, SessionMessage::Context(reply))?;
        answer.await.map_err(|_| self.gone())
    }

    /// Its events, from now on.
    pub fn subscribe(&self) -> Subscription {
        self.deps.bus.subscribe(Filter::session(Arc::clone(&self.shared.id)))
    }

    /// The caller of a prompt went away.
    pub(crate) fn withdraw(&self, ticket: u64) {
        if let Some(actor) = self.shared.actor() {
            let _ = actor.cast(SessionMessage::Withdraw { ticket }.into());
        }
    }

    async fn ask<T>(&self, message: impl FnOnce(ReplyTo<T>) -> SessionMessage) -> Result<T> {
        let answer = self.request(message).await?;
        self.answered(answer).await
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

    /// How it stands, if it is live: it is not woken.
    pub(crate) async fn live_state(&self) -> Option<State> {
        let place = self.question().await.ok()?;
        let actor = self.shared.actor()?;
        let (reply, answer) = oneshot::channel();
        self.send(&actor, place, SessionMessage::State(reply)).ok()?;
        answer.await.ok()
    }

    /// Whether it has actors in memory.
    pub(crate) fn is_live(&self) -> bool {
        self.shared.actor().is_some()
    }

    /// A place in the mailbox, if there is one.
    fn place(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.requests)
            .try_acquire_owned()
            .map_err(|_| Error::Busy { session: self.shared.id.to_string(), waiting: REQUESTS_MAX })
    }

    /// A place in the mailbox for a question, as soon as there is one.
    async fn question(&self) -> Result<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.queries).acquire_owned().await.map_err(|_| Error::Closed)
    }

    fn send(
        &self,
        actor: &ActorRef<SessionMail>,
        place: OwnedSemaphorePermit,
        message: SessionMessage,
    ) -> Result<()> {
        actor.cast(SessionMail { message, place: Some(place) }).map_err(|_| self.gone())
    }

    fn gone(&self) -> Error {
        Error::Interrupted { session: self.shared.id.to_string() }
    }

    /// The session's actor; a session that sleeps is woken.
    async fn actor(&self) -> Result<ActorRef<SessionMail>> {
        self.shared.activity.fetch_add(1, Ordering::Relaxed);
        // It may be closed again by the time that it is up.
        for _ in 0..WAKES_MAX {
            if let Some(actor) = self.shared.actor() {
                return Ok(actor);
            }
            let (id, parent) = (Arc::clone(&self.shared.id), self.shared.parent.clone());
            open(&self.deps, id, self.shared.agent(), parent, false).await?;
        }
        self.shared.actor().ok_or_else(|| self.gone())
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
    resume_failed: bool,
) -> Result<Arc<SessionShared>> {
    if let Some(lane) = deps.lane(&agent) {
        lane.served.ask_once().await;
    }
    let _place = deps.opens.acquire().await.map_err(|_| Error::Closed)?;
    let supervisor = deps.supervisor.get().ok_or(Error::Closed)?;
    for attempt in 0..OPEN_ATTEMPTS {
        let (reply, answer) = oneshot::channel();
        let (id, agent, parent) = (Arc::clone(&id), Arc::clone(&agent), parent.clone());
        let request = OpenRequest { id, agent, parent, resume_failed, reply };
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
