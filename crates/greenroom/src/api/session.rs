//! A session as programs hold it: prompts, streams, compactions, and how it stands.
//!
//! Invariants: a handle is cheap to clone and does not go stale: a session that sleeps is woken by the next
//! request that needs its agent, and one that crashed is reached again when it is restarted. A handle of a deleted
//! session does not make it again. Looking at a session starts nothing. Dropping the future of a prompt cancels its run.
//! At most `REQUESTS_MAX` requests wait in a session's mailbox; more are told at once that it is busy.

use std::fmt;
use std::sync::Arc;

use greenroom_kernel::Entry;
use greenroom_kernel::entry::{CompactionOutcome, Delivery as InboxDelivery, EntryId, Metadata, RunId, Sees};
use greenroom_kernel::log::Amendment;
use greenroom_kernel::message::Message;
use greenroom_kernel::plan::{NothingToCompact, Plan};
use greenroom_kernel::question::GivenAnswer;
use greenroom_kernel::usage::ContextUsage;
use tokio::sync::oneshot;

use crate::actors::session::stored;
use crate::agent::hooks::input::InputKind;
use crate::agent::{Agent, team};
use crate::api::children::Child;
use crate::api::questions::{self, PendingQuestion};
use crate::api::request::{RunRequest, SentInput};
use crate::core::asking;
use crate::core::deps::{Deps, blocking};
use crate::core::door::Door;
use crate::core::message::{SessionMail, SessionMessage};
use crate::core::shared::SessionShared;
use crate::core::trace::CalledFrom;
use crate::events::activity::{Activity, InProgress};
use crate::events::bus::{Filter, Subscription};
use crate::events::run_link::RunLink;
use crate::values::compaction::{CompactOptions, Compacted};
use crate::values::error::{Error, Result};
use crate::values::metadata;
use crate::values::prompt::Prompt;
use crate::values::state::{State, Status};

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
    pub(crate) door: Door,
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionHandle({})", self.door.shared.id)
    }
}

impl SessionHandle {
    pub(crate) fn new(shared: Arc<SessionShared>, deps: Arc<Deps>) -> Self {
        Self { door: Door::new(shared, deps) }
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
        self.door.agent = Some(agent.into());
        self
    }

    /// The session's id.
    pub fn id(&self) -> &str {
        &self.door.shared.id
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
        self.door.shared.abort();
    }

    /// Withdraws everything that waits in the inbox, durably: prompts, steers and follow-ups. Whoever waits for one of
    /// them gets [`Error::Withdrawn`]. The current run goes on. A session that sleeps is not woken. Gives how many inputs
    /// were withdrawn.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::SessionFailed`].
    pub async fn clear_inbox(&self) -> Result<usize> {
        self.door.amend(Amendment::ClearInbox).await
    }

    /// The questions that wait for a person's answer, oldest first. Nothing is started by looking.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn questions(&self) -> Result<Vec<PendingQuestion>> {
        self.door.check_deleted()?;
        questions::of_session(&self.door.deps, &self.door.shared.id).await
    }

    /// Answers a question: with a text, one of its choices, or a JSON value. The answer is durable before this returns,
    /// and counts once. The run that waits goes on: at once where the session has its agent, also when it sleeps; else as
    /// soon as it is opened.
    ///
    /// ```
    /// use greenroom::GivenAnswer;
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// for question in session.questions().await? {
    ///     println!("{}", question.question.text);
    ///     session.answer(question.id, GivenAnswer::from("yes").by("ada")).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::AnswerMisfit`] when the answer does not fit: the question stays open; [`Error::QuestionClosed`] when it was
    /// answered before, expired, or was withdrawn with its run; [`Error::NoQuestion`]; [`Error::Deleted`],
    /// [`Error::Store`].
    pub async fn answer(&self, question: EntryId, answer: impl Into<GivenAnswer>) -> Result<()> {
        self.door.check_deleted()?;
        let answer = answer.into();
        if self.door.shared.agent().is_none() {
            return self.door.amend(Amendment::Answer { question, answer }).await.map(drop);
        }
        self.door.ask(|reply| SessionMessage::Answer { question, answer, reply }).await
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
        self.door.amend(Amendment::Set(metadata)).await.map(drop)
    }

    /// The agent that answers from the next run on. A session that sleeps is not woken.
    ///
    /// # Errors
    /// [`Error::Config`] when the agent cannot work: then the session goes on as it was; [`Error::Deleted`].
    pub async fn set_agent(&self, agent: impl Into<Arc<Agent>>) -> Result<()> {
        self.door.check_deleted()?;
        let agent = agent.into();
        if let Some(lane) = self.door.deps.lane(&agent) {
            lane.served.ask_once().await;
        }
        let awake = self.door.keep_awake();
        if let Some(actor) = self.door.shared.actor() {
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
        stored::check_agent(&self.door.deps, Arc::clone(&agent))?;
        self.door.shared.set_agent(Some(agent));
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
                self.door.shared.agent().ok_or_else(|| Error::NoAgent { session: self.id().to_owned() })?;
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
                | CompactionOutcome::Interrupted
                | CompactionOutcome::Unknown
                | _) => {
                    let reason = outcome.reason().unwrap_or(outcome.as_str()).to_owned();
                    return Err(Error::NotSummarised { to, reason });
                }
            }
        }
        self.door.ask(|reply| SessionMessage::HandOff { to, sees, reply }).await
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

    async fn input(&self, prompt: Prompt, delivery: InboxDelivery) -> Result<SentInput> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let from = CalledFrom::current();
        // An abort that comes while the guards judge is meant for this, too.
        let early_aborts = self.door.early_aborts();
        let kind = match delivery {
            InboxDelivery::Steer => InputKind::Steer,
            InboxDelivery::FollowUp => InputKind::FollowUp,
            InboxDelivery::Prompt | _ => InputKind::Prompt,
        };
        let prompt = self.door.judge(kind, prompt).await?;
        let taken = self
            .door
            .ask(|reply| SessionMessage::Input {
                content: prompt.0,
                delivery,
                early_aborts,
                agent: self.door.agent.clone(),
                from,
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
        self.door
            .ask(|reply| SessionMessage::CompactManually { options, agent: self.door.agent.clone(), reply })
            .await
    }

    /// What [`Self::compact`] would do.
    ///
    /// # Errors
    /// [`Error::NothingToCompact`] with the reason.
    pub async fn plan(&self, options: CompactOptions) -> Result<Plan> {
        let plan: Result<Box<Plan>, NothingToCompact> = self
            .door
            .ask(|reply| SessionMessage::PlanManually { options, agent: self.door.agent.clone(), reply })
            .await?;
        plan.map(|plan| *plan).map_err(Error::NothingToCompact)
    }

    /// Makes the newest active compaction no longer count: the context is what it was before. Only while idle.
    /// Gives the size after.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NothingToUndo`]; [`Error::UndoTooLarge`] if the result would not fit the window.
    pub async fn undo_compaction(&self) -> Result<ContextUsage> {
        self.door.ask(|reply| SessionMessage::Undo { reply }).await
    }

    /// Goes on from another entry: the next prompt begins a branch there. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NoEntry`]; [`Error::BranchPoint`] if no branch can begin there.
    pub async fn branch(&self, to: Option<EntryId>) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Branch { to, reply }).await
    }

    /// As [`Self::branch`], and takes along a summary of what happened on the branch that is left, its own compactions and
    /// files included. It is a compaction of the branch: with its events (trigger `branch`), its retries and its bill, and
    /// [`Self::abort`] cancels it. Input that comes meanwhile waits.
    ///
    /// # Errors
    /// As [`Self::branch`]; [`Error::BranchSummary`] when no summary could be had or it was aborted: then nothing is changed.
    pub async fn branch_with_summary(&self, to: Option<EntryId>) -> Result<()> {
        let done = self
            .door
            .ask(|reply| SessionMessage::BranchWithSummary { to, agent: self.door.agent.clone(), reply })
            .await?;
        match &done.outcome {
            // Nothing: nothing was said on the branch.
            CompactionOutcome::Completed | CompactionOutcome::Nothing { .. } => Ok(()),
            CompactionOutcome::Failed { .. }
            | CompactionOutcome::Cancelled { .. }
            | CompactionOutcome::Truncated { .. }
            | CompactionOutcome::Pruned { .. }
            | CompactionOutcome::Superseded
            | CompactionOutcome::Interrupted
            | CompactionOutcome::Unknown
            | _ => {
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
        let place = self.door.place()?;
        let actor = self.door.actor().await?;
        self.door.send(&actor, place, SessionMessage::CompactAfterRun { options, needs_news: false })
    }

    /// Keeps an entry verbatim through every compaction.
    ///
    /// # Errors
    /// [`Error::Pin`] if it is no message of the active context that can stand alone, or too much is pinned.
    pub async fn pin(&self, entry: EntryId) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Pin { entry, pinned: true, reply }).await
    }

    /// No longer keeps an entry.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn unpin(&self, entry: EntryId) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Pin { entry, pinned: false, reply }).await
    }

    /// Takes over the entries of an import or a fork. Only into an empty session.
    ///
    /// # Errors
    /// [`Error::NotEmpty`].
    pub async fn import(&self, entries: Vec<Arc<Entry>>, leaf: Option<EntryId>) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Import { entries, leaf, reply }).await
    }

    /// The session's state: its status, its context and what waits. Nothing is started by looking: a session that sleeps
    /// is read from its log, and told as it would stand with its agent. One that has no agent in this process is told by
    /// the model that answered last.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::Config`] when its agent cannot work.
    pub async fn state(&self) -> Result<State> {
        self.door.check_deleted()?;
        let mut state = match self.door.look(SessionMessage::State).await {
            Some(state) => state,
            None => {
                let agent = self.door.shared.agent();
                let state = stored::state(&self.door.deps, &self.door.shared, agent).await?;
                // Its run goes on while it sleeps.
                match (self.door.shared.is_suspended(), state.questions) {
                    (false, _) => state,
                    (true, 0) => State { status: Status::Working, is_unanswered: false, ..state },
                    (true, _) => State { status: Status::Waiting, is_unanswered: false, ..state },
                }
            }
        };
        if state.status == Status::Working || state.status == Status::Waiting {
            state.questions_below = asking::below(&self.door.deps, &self.door.shared.id).await?;
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
        stored::context_of(&self.door).await
    }

    /// What goes on in it, as far as its events tell. Nothing is started by looking.
    pub fn activity(&self) -> Activity {
        self.door.shared.current_activity()
    }

    /// What goes on in it that its log does not say yet: for who joins while a run is under way. See [`InProgress`].
    /// Nothing is started by looking: of a session that sleeps, the position is the end of its log.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn in_progress(&self) -> Result<InProgress> {
        self.door.check_deleted()?;
        if let Some(known) = self.door.shared.in_progress() {
            return Ok(known);
        }
        let (store, id) = (self.door.deps.store.clone(), Arc::clone(&self.door.shared.id));
        let head = blocking(&self.door.deps, move || Ok(store.head(&id)?)).await?;
        // It may have been opened while its log was read.
        Ok(self.door.shared.in_progress().unwrap_or_else(|| InProgress {
            seq: head.and_then(|head| head.entries.checked_sub(1)),
            n: 0,
            events: Vec::new(),
        }))
    }

    /// Whether it has actors in memory.
    pub fn is_live(&self) -> bool {
        self.door.shared.actor().is_some()
    }

    /// The agents that its newest run called as tools, in the order of their starts, while this process knows them. The
    /// store knows all that it ever called: [`SessionQuery::children_of`](crate::SessionQuery::children_of).
    pub fn children(&self) -> Vec<Child> {
        let child = |work| Child::new(work, Arc::clone(&self.door.deps));
        self.door.shared.children().into_iter().map(child).collect()
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
        self.door.deps.bus.subscribe(Filter::session(Arc::clone(&self.door.shared.id)))
    }

    /// The events of a run of its own, from now on, at the reader's pace.
    pub(crate) fn subscribe_to_run(&self, link: &Arc<RunLink>) -> Subscription {
        self.door.deps.bus.subscribe_to_run(Filter::session(Arc::clone(&self.door.shared.id)), link)
    }
}
