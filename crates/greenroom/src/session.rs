//! A session as programs hold it: prompts, streams, compactions, and how it stands.
//!
//! Invariants: a handle is cheap to clone and does not go stale: a session that sleeps is woken by the next
//! request that needs its agent, and one that crashed is reached again when it is restarted. A handle of a deleted
//! session does not make it again. Looking at a session starts nothing. Dropping the future of a prompt cancels its run.
//! At most `REQUESTS_MAX` requests wait in a session's mailbox; more are told at once that it is busy.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::Entry;
use greenroom_kernel::entry::{CompactionOutcome, Delivery as InboxDelivery, EntryId, Metadata, RunId, Sees};
use greenroom_kernel::message::{Message, is_no_count};
use greenroom_kernel::plan::{NothingToCompact, Plan};
use greenroom_kernel::question::Answer;
use greenroom_kernel::usage::ContextUsage;
use ractor::ActorRef;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::activity::{Activity, InProgress};
use crate::actors::session::stored;
use crate::admission::MailPlace;
use crate::agent::Agent;
use crate::bus::{Filter, Subscription};
use crate::children::Child;
use crate::compaction::{CompactOptions, Compacted};
use crate::deps::{Deps, blocking};
use crate::error::{Error, Result};
use crate::hooks::input::{self, InputKind};
use crate::message::{
    AmendRequest, Amendment, OpenReason, OpenRequest, ReplyTo, SessionMail, SessionMessage, SupervisorMessage,
};
use crate::metadata;
use crate::names::names;
use crate::prompt::{Prompt, RunRequest, SentInput};
use crate::questions::{self, PendingQuestion};
use crate::run_link::RunLink;
use crate::shared::{KeptAwake, REQUESTS_MAX, SessionShared};
use crate::team;
use crate::waits::Waiting;

/// How often one request wakes a session that is closed as often.
const WAKES_MAX: u32 = 3;

/// A session. Cheap to clone.
///
/// `Runtime::open` gives one with an agent, and `Runtime::session` one of a session that is there already.
///
/// ```
/// # use greenroom::prelude::*;
/// # use greenroom_simulator::{Echo, Simulator};
/// # #[tokio::main] async fn main() -> Result<()> {
/// # let model = Simulator::echo();
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// let session = runtime.open("umbrella", &Agent::new("gpt-5.5")).await?;
/// println!("{}", session.prompt("Umbrella in Oslo?").await?);
///
/// let same = runtime.session("umbrella").await?;
/// assert_eq!(same.state().await?.status, Status::Idle);
/// same.set_agent(&Agent::new("gpt-5.5-mini")).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SessionHandle {
    shared: Arc<SessionShared>,
    pub(crate) deps: Arc<Deps>,
    /// The agent that works for whoever asks by this handle; `None`: the session's.
    agent: Option<Arc<Agent>>,
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
        /// A call of its run waits for a person's answer, or an agent that it called as a tool does.
        Waiting = "waiting",
        /// It compacts its context, for a run or between runs.
        Compacting = "compacting",
    }
}

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct State {
    /// The session's id.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// The name of the agent to which the conversation was handed last; absent where it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
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
    /// The part of `total_tokens` that is our own estimate, since the provider reported nothing, or something that cannot
    /// be. Where it is not 0, the cost is partly an estimate too.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub estimated_tokens: u64,
    /// What the session is doing.
    pub status: Status,
    /// How many inputs wait.
    pub waiting: usize,
    /// How many of these are held back: they are of an earlier process, and begin when the session is resumed with an agent
    /// of the same [fingerprint](crate::Agent::fingerprint), or are withdrawn.
    #[serde(default)]
    pub held_back: usize,
    /// How many questions wait for a person's answer: [`SessionHandle::questions`] lists them.
    #[serde(default)]
    pub questions: usize,
    /// How many questions wait in the sessions of agents that its run called as tools, on all levels:
    /// [`Runtime::questions`](crate::Runtime::questions) lists them with those of all sessions.
    #[serde(default)]
    pub questions_below: usize,
    /// The tools whose calls wait for people, or were answered and wait for a program that goes on with them, in the order
    /// of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_tools: Vec<String>,
    /// Whether the newest prompt has no complete answer: `resume` goes on with it.
    pub is_unanswered: bool,
    /// Whether its run, which was cut off or waits for people, was begun by an agent of another
    /// [fingerprint](crate::Agent::fingerprint) than the session's: it goes on with such an agent only. Known of sessions that
    /// are live.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_held_back: bool,
    /// The first entry that the store has lost, where it is damaged: until that is accepted (`Store::accept_loss`), the
    /// session can be read and takes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
}

impl SessionHandle {
    pub(crate) fn new(shared: Arc<SessionShared>, deps: Arc<Deps>) -> Self {
        Self { shared, deps, agent: None }
    }

    /// The same session, in which this agent does what is asked by this handle: prompts, resumed ones, steers, follow-ups
    /// and compactions. What others asked goes on with theirs, one after the other, so that several people with different
    /// models, keys and tools can share a conversation. A steer or a follow-up joins a run of the same agent (the same
    /// `Arc`); else it waits, and begins a run of its own. After a restart, what still waits begins with the agent of
    /// whoever opens the session, or is held back: see [`Agent::fingerprint`](crate::Agent::fingerprint).
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(runtime: Runtime) -> Result<()> {
    /// let careful = runtime.session("plan").await?.with_agent(&Agent::new("gpt-5.5"));
    /// println!("{}", careful.prompt("What could go wrong?").await?);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_agent(mut self, agent: impl Into<Arc<Agent>>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// The agent that works for whoever asks by this handle, if it is not the session's.
    pub(crate) fn own_agent(&self) -> Option<Arc<Agent>> {
        self.agent.clone()
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
    /// [`Error::RuntimeBusy`], [`Error::DuplicateKey`], [`Error::NoValidator`], [`Error::Deadlock`] in a tool of this session, [`Error::Config`] with settings that no model takes, [`Error::Store`].
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> RunRequest {
        RunRequest::new(self.clone(), Some(prompt.into()))
    }

    /// Goes on with the newest prompt where a crash or an abort left it without a complete answer.
    ///
    /// Its errors: [`Error::NothingToResume`] if it was answered; else those of [`Self::prompt`].
    pub fn resume(&self) -> RunRequest {
        RunRequest::new(self.clone(), None)
    }

    /// Interrupts what is under way: the current run, of whose answer what had come is kept, and no process is left; or
    /// the compaction between runs, which ends as `cancelled`. Where neither is under way, a prompt that was handed over
    /// and has not begun is aborted as soon as it begins, and asks no model.
    ///
    /// What waits in the inbox goes on after it: see [`Self::clear_inbox`]. [`Run::abort`](crate::Run::abort) takes back
    /// one prompt.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Withdraws everything that waits in the inbox, durably: prompts, steers and follow-ups. Whoever waits for one of
    /// them gets [`Error::Withdrawn`]. The current run goes on. A session that sleeps is not woken. Gives how many inputs
    /// were withdrawn.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::SessionFailed`].
    pub async fn clear_inbox(&self) -> Result<usize> {
        self.amend(Amendment::ClearInbox).await
    }

    /// The questions that wait for a person's answer, oldest first. Nothing is started by looking.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn questions(&self) -> Result<Vec<PendingQuestion>> {
        self.check_deleted()?;
        questions::of_session(&self.deps, &self.shared.id).await
    }

    /// Answers a question: with a text, one of its choices, or a JSON value. The answer is durable before this returns,
    /// and counts once. The run that waits goes on: at once where the session has its agent, also when it sleeps; else as
    /// soon as it is opened.
    ///
    /// ```
    /// use greenroom::Answer;
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// for question in session.questions().await? {
    ///     println!("{}", question.question.text);
    ///     session.answer(question.id, Answer::from("yes").by("ada")).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::AnswerMisfit`] when the answer does not fit: the question stays open; [`Error::QuestionClosed`] when it was
    /// answered before, expired, or was withdrawn with its run; [`Error::NoQuestion`]; [`Error::Deleted`],
    /// [`Error::Store`].
    pub async fn answer(&self, question: EntryId, answer: impl Into<Answer>) -> Result<()> {
        self.check_deleted()?;
        let answer = answer.into();
        if self.shared.agent().is_none() {
            return self.amend(Amendment::Answer { question, answer }).await.map(drop);
        }
        self.ask(|reply| SessionMessage::Answer { question, answer, reply }).await
    }

    /// Sets the session's title, durably; an empty one takes it away. A session that sleeps is not woken.
    ///
    /// # Errors
    /// [`Error::Metadata`] when it has more than 512 bytes, or a character that cannot be shown in one line;
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn set_title(&self, title: impl Into<String>) -> Result<()> {
        let title = Some(title.into()).filter(|title| !title.is_empty());
        self.set_metadata(Metadata::Title { title }).await
    }

    /// Sets one of the session's labels, durably: what programs find it by, such as its tenant. It has at most 16. A
    /// session that sleeps is not woken.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(runtime: Runtime, session: SessionHandle) -> Result<()> {
    /// session.set_label("tenant", "42").await?;
    /// session.set_title("Rain in the north").await?;
    /// let of_tenant = runtime.sessions().label("tenant", "42").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Metadata`] when the name has more than 64 bytes or the value more than 256, one of them has a character
    /// that cannot be shown in one line, or there are too many; [`Error::Deleted`], [`Error::Store`].
    pub async fn set_label(&self, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
        self.set_metadata(Metadata::Label { name: name.into(), value: Some(value.into()) }).await
    }

    /// Takes one of the session's labels away, durably.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn remove_label(&self, name: impl Into<String>) -> Result<()> {
        self.set_metadata(Metadata::Label { name: name.into(), value: None }).await
    }

    async fn set_metadata(&self, metadata: Metadata) -> Result<()> {
        metadata::check(&metadata)?;
        self.amend(Amendment::Set(metadata)).await.map(drop)
    }

    /// The agent that answers from the next run on. A session that sleeps is not woken.
    ///
    /// # Errors
    /// [`Error::Config`] when the agent cannot work: then the session goes on as it was; [`Error::Deleted`].
    pub async fn set_agent(&self, agent: impl Into<Arc<Agent>>) -> Result<()> {
        self.check_deleted()?;
        let agent = agent.into();
        if let Some(lane) = self.deps.lane(&agent) {
            lane.served.ask_once().await;
        }
        let awake = self.keep_awake();
        if let Some(actor) = self.shared.actor() {
            let (reply, answer) = oneshot::channel();
            let message = SessionMessage::Configure {
                agent: Arc::clone(&agent),
                only_if_idle: false,
                reply: Some(reply),
            };
            if actor.cast(SessionMail::heard(message, awake)).is_ok()
                && let Ok(configured) = answer.await
            {
                return configured.map(drop);
            }
        }
        stored::check_agent(&self.deps, Arc::clone(&agent))?;
        self.shared.set_agent(Some(agent));
        Ok(())
    }

    /// Hands the conversation to another agent of the session's [`Team`](crate::Team), who answers from the next prompt on.
    /// Only while idle. What `sees` leaves out stays in the log: see [`Team`](crate::Team). With [`Sees::Summary`] the
    /// agent that leaves has it written first, with what the other one needs as its focus; [`Self::abort`] cancels that,
    /// and then the conversation stays where it is.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NoMember`] where the team has no such agent; [`Error::NotSummarised`] where the summary
    /// could not be made, so that the conversation stays where it is; [`Error::Aborted`]; [`Error::Store`].
    pub async fn hand_off(&self, to: impl Into<String>, sees: Sees) -> Result<()> {
        let to = to.into();
        if sees == Sees::Summary {
            let agent =
                self.shared.agent().ok_or_else(|| Error::NoAgent { session: self.id().to_owned() })?;
            if agent.member(&to).is_none() {
                return Err(Error::NoMember { name: to });
            }
            let options =
                CompactOptions { focus: Some(team::focus(&to)), force: true, ..CompactOptions::default() };
            let summarised = self.compact(options).await?;
            match summarised.outcome {
                CompactionOutcome::Completed
                | CompactionOutcome::Truncated { .. }
                | CompactionOutcome::Pruned { .. }
                | CompactionOutcome::Nothing { .. } => {}
                CompactionOutcome::Cancelled { .. } => return Err(Error::Aborted),
                // Without a summary the other one would see all of it.
                outcome @ (CompactionOutcome::Failed { .. }
                | CompactionOutcome::Superseded
                | CompactionOutcome::Interrupted) => {
                    let reason = outcome.reason().unwrap_or(outcome.as_str()).to_owned();
                    return Err(Error::NotSummarised { to, reason });
                }
            }
        }
        self.ask(|reply| SessionMessage::HandOff { to, sees, reply }).await
    }

    /// Says something into the current run: it joins after the running tool calls. Without a current run it
    /// begins one. What is given has the input's entry, and can be awaited for the reply of the run that takes it in.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// let steered = session.steer("Only in the north, please.").await?;
    /// println!("it is entry {}", steered.entry());
    /// println!("{}", steered.reply().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Busy`] when too much waits already, [`Error::InputRefused`] by the agent's guards, [`Error::Store`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        self.input(prompt.into(), InboxDelivery::Steer).await
    }

    /// Says something that the agent hears after the current run, in which it then goes on. As [`Self::steer`] otherwise.
    ///
    /// # Errors
    /// As [`Self::steer`].
    pub async fn follow_up(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        self.input(prompt.into(), InboxDelivery::FollowUp).await
    }

    /// Asks the guards of the session's agent; gives what is to be recorded.
    pub(crate) async fn judge(&self, kind: InputKind, prompt: Prompt) -> Result<Prompt> {
        match self.own_agent().or_else(|| self.shared.agent()) {
            Some(agent) => input::judge(&agent, &self.shared.id, kind, prompt).await,
            // Whoever takes the input up refuses it.
            None => Ok(prompt),
        }
    }

    /// The first entry that was recorded for the prompt with this key, where there is one: the guards judged that. Where the
    /// agent has no guards, nothing is looked up.
    pub(crate) async fn said_before(&self, key: Option<&str>) -> Result<Option<EntryId>> {
        let agent = self.own_agent().or_else(|| self.shared.agent());
        let is_guarded = agent.is_some_and(|agent| !agent.hooks.guard_input.is_empty());
        let Some(key) = key.filter(|_| is_guarded) else { return Ok(None) };
        let (store, id, key) = (self.deps.store.clone(), Arc::clone(&self.shared.id), key.to_owned());
        blocking(&self.deps, move || Ok(store.used_key(&id, &key)?)).await
    }

    async fn input(&self, prompt: Prompt, delivery: InboxDelivery) -> Result<SentInput> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        // An abort that comes while the guards judge is meant for this, too.
        let early_aborts = self.early_aborts();
        let kind = match delivery {
            InboxDelivery::Steer => InputKind::Steer,
            InboxDelivery::FollowUp => InputKind::FollowUp,
            InboxDelivery::Prompt => InputKind::Prompt,
        };
        let prompt = self.judge(kind, prompt).await?;
        let taken = self
            .ask(|reply| SessionMessage::Input {
                content: prompt.0,
                delivery,
                early_aborts,
                agent: self.own_agent(),
                reply,
            })
            .await?;
        Ok(SentInput::new(self.clone(), taken))
    }

    /// Replaces the older part of the conversation, in the model's view, by a summary. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]. A compaction that finds nothing to do or fails is not an error: see
    /// [`Compacted::outcome`].
    pub async fn compact(&self, options: CompactOptions) -> Result<Compacted> {
        self.ask(|reply| SessionMessage::CompactManually { options, agent: self.own_agent(), reply }).await
    }

    /// What [`Self::compact`] would do.
    ///
    /// # Errors
    /// [`Error::NothingToCompact`] with the reason.
    pub async fn plan(&self, options: CompactOptions) -> Result<Plan> {
        let plan: Result<Box<Plan>, NothingToCompact> = self
            .ask(|reply| SessionMessage::PlanManually { options, agent: self.own_agent(), reply })
            .await?;
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
        let done = self
            .ask(|reply| SessionMessage::BranchWithSummary { to, agent: self.own_agent(), reply })
            .await?;
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

    /// The session's state: its status, its context and what waits. Nothing is started by looking: a session that sleeps
    /// is read from its log, and told as it would stand with its agent. One that has no agent in this process is told by
    /// the model that answered last.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::Config`] when its agent cannot work.
    pub async fn state(&self) -> Result<State> {
        self.check_deleted()?;
        let mut state = match self.look(SessionMessage::State).await {
            Some(state) => state,
            None => {
                let agent = self.shared.agent();
                let state = stored::state(&self.deps, &self.shared, agent).await?;
                // Its run goes on while it sleeps.
                match (self.shared.is_suspended(), state.questions) {
                    (false, _) => state,
                    (true, 0) => State { status: Status::Working, is_unanswered: false, ..state },
                    (true, _) => State { status: Status::Waiting, is_unanswered: false, ..state },
                }
            }
        };
        if state.status == Status::Working || state.status == Status::Waiting {
            state.questions_below = questions::below(&self.deps, &self.shared.id).await?;
            if state.questions_below > 0 {
                state.status = Status::Waiting;
            }
        }
        Ok(state)
    }

    /// What the model would be sent, the system prompt apart. A call that waits for a person's answer has no result in it
    /// yet. Nothing is started by looking.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn context(&self) -> Result<Vec<Arc<Message>>> {
        self.check_deleted()?;
        match self.look(SessionMessage::Context).await {
            Some(context) => Ok(context),
            None => stored::context(&self.deps, &self.shared.id, self.shared.agent()).await,
        }
    }

    /// What goes on in it, as far as its events tell. Nothing is started by looking.
    pub fn activity(&self) -> Activity {
        self.shared.current_activity()
    }

    /// What goes on in it that its log does not say yet: for who joins while a run is under way. See [`InProgress`].
    /// Nothing is started by looking: of a session that sleeps, the position is the end of its log.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn in_progress(&self) -> Result<InProgress> {
        self.check_deleted()?;
        if let Some(known) = self.shared.in_progress() {
            return Ok(known);
        }
        let (store, id) = (self.deps.store.clone(), Arc::clone(&self.shared.id));
        let head = blocking(&self.deps, move || Ok(store.head(&id)?)).await?;
        // It may have been opened while its log was read.
        Ok(self.shared.in_progress().unwrap_or_else(|| InProgress {
            seq: head.and_then(|head| head.entries.checked_sub(1)),
            n: 0,
            events: Vec::new(),
        }))
    }

    /// Whether it has actors in memory.
    pub fn is_live(&self) -> bool {
        self.shared.actor().is_some()
    }

    /// The agents that its newest run called as tools, in the order of their starts, while this process knows them. The
    /// store knows all that it ever called: [`SessionQuery::children_of`](crate::SessionQuery::children_of).
    pub fn children(&self) -> Vec<Child> {
        let child = |work| Child::new(work, Arc::clone(&self.deps));
        self.shared.children().into_iter().map(child).collect()
    }

    /// Those of one run.
    pub(crate) fn children_of(&self, run: RunId) -> Vec<Child> {
        self.children().into_iter().filter(|child| child.run() == Some(run)).collect()
    }

    /// The one that works in this session.
    pub(crate) fn child(&self, session: &str) -> Option<Child> {
        self.children().into_iter().rev().find(|child| child.session().id() == session)
    }

    /// Its events, from now on.
    pub fn subscribe(&self) -> Subscription {
        self.deps.bus.subscribe(Filter::session(Arc::clone(&self.shared.id)))
    }

    /// The events of a run of its own, from now on, at the reader's pace.
    pub(crate) fn subscribe_to_run(&self, link: &Arc<RunLink>) -> Subscription {
        self.deps.bus.subscribe_to_run(Filter::session(Arc::clone(&self.shared.id)), link)
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
    async fn look<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> SessionMessage) -> Option<T> {
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

    async fn amend(&self, amendment: Amendment) -> Result<usize> {
        let supervisor = self.deps.supervisor.get().ok_or(Error::Closed)?;
        let (reply, answer) = oneshot::channel();
        let request = AmendRequest { shared: Arc::clone(&self.shared), amendment, reply };
        supervisor.cast(SupervisorMessage::Amend(request)).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| self.gone())?
    }

    fn check_deleted(&self) -> Result<()> {
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
    fn place(&self) -> Result<MailPlace> {
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
    async fn question(&self) -> Result<MailPlace> {
        let mailbox = Arc::clone(&self.shared.queries).acquire_owned().await;
        let mailbox = Some(mailbox.map_err(|_| Error::Closed)?);
        Ok(MailPlace { _awake: self.keep_awake(), _mailbox: mailbox, input: None })
    }

    fn send(&self, actor: &ActorRef<SessionMail>, place: MailPlace, message: SessionMessage) -> Result<()> {
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
    async fn actor(&self) -> Result<ActorRef<SessionMail>> {
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
                .or_else(|| self.own_agent())
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
    let handle = SessionHandle::new(Arc::clone(shared), Arc::clone(deps));
    let awake = handle.keep_awake();
    let mut wait = OPEN_AGAIN_AFTER;
    for attempt in 1..=TELL_ATTEMPTS {
        match handle.actor().await {
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
                if let Some(suspended) = shared.take_suspended() {
                    tracing::error!(session = %shared.id, %error, "a session that slept in its run cannot be woken");
                    suspended.give_up(&error);
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
