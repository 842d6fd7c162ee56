//! A session as programs hold it: prompts, streams, compactions, and its state.
//!
//! Invariants: a handle is cheap to clone and does not become stale: a request that needs the agent wakes a
//! sleeping session, and a crashed session is reached again after its restart. A handle of a deleted session
//! does not recreate it. Reading a session starts nothing. Dropping the future of a prompt cancels its run.
//! At most `REQUESTS_MAX` requests wait in a session's mailbox; further ones fail at once as busy.

use std::fmt;
use std::sync::Arc;

use greenroom_kernel::Entry;
use greenroom_kernel::entry::{CompactionOutcome, EntryId, InboxDelivery, Metadata, RunId, Sees, Trigger};
use greenroom_kernel::log::Amendment;
use greenroom_kernel::message::Message;
use greenroom_kernel::plan::Plan;
use greenroom_kernel::question::GivenAnswer;
use greenroom_kernel::usage::ContextUsage;
use tokio::sync::oneshot;

use crate::actors::session::stored;
use crate::agent::hooks::input::InputKind;
use crate::agent::{Agent, team};
use crate::api::children::Child;
use crate::api::follow::Follow;
use crate::api::position::Position;
use crate::api::questions::{self, PendingQuestion};
use crate::api::request::{RunRequest, SentInput};
use crate::core::asking;
use crate::core::deps::Deps;
use crate::core::door::Door;
use crate::core::message::{Planned, SessionMail, SessionMessage};
use crate::core::searches::Wanted;
use crate::core::shared::SessionShared;
use crate::core::trace::CalledFrom;
use crate::events::activity::{Activity, InProgress};
use crate::events::bus::{Filter, Subscription};
use crate::events::run_link::RunLink;
use crate::values::compaction::{CompactOptions, Compacted};
use crate::values::error::{Error, Result};
use crate::values::metadata;
use crate::values::prompt::Prompt;
use crate::values::recalled::Recalled;
use crate::values::state::{State, Status};

/// A handle of a session. Cloning is cheap.
///
/// [`Runtime::open`](crate::Runtime::open) opens a session with an agent;
/// [`Runtime::session`](crate::Runtime::session) returns a handle of an existing session.
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

    /// Returns a handle of the same session whose requests use this agent: prompts, resumes, steers,
    /// follow-ups and compactions. Requests through other handles use theirs, one after the other, so several
    /// people with different models, keys and tools can share a conversation. A steer or a follow-up joins a
    /// run of the same agent (the same `Arc`); otherwise it waits, and starts its own run. After a restart,
    /// waiting input starts with the agent with which the session is opened, or is held back: see
    /// [`Agent::fingerprint`](crate::Agent::fingerprint).
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

    /// Sends a prompt to the agent, which calls tools and compacts as needed; the reply is its answer. Await the
    /// request, or stream it; see [`RunRequest`] for its options.
    ///
    /// If the session is working, the prompt waits for its run in the durable inbox. Dropping the future
    /// cancels the run, or withdraws the prompt from the inbox.
    ///
    /// Errors of the request: [`Error::Model`] if the model call failed, [`Error::Aborted`],
    /// [`Error::Stopped`], [`Error::TimedOut`], [`Error::Busy`] if too much input waits,
    /// [`Error::EmptyPrompt`], [`Error::InputRefused`], [`Error::RuntimeBusy`], [`Error::DuplicateKey`],
    /// [`Error::NoValidator`], [`Error::Deadlock`] in a tool of this session, [`Error::Config`] for settings
    /// that no model accepts, [`Error::Store`].
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> RunRequest {
        RunRequest::new(self.clone(), Some(prompt.into()))
    }

    /// Continues the newest prompt if a crash or an abort left it without a complete answer. If its run continued when
    /// the session was opened, as one whose question was answered in the meantime does, the request waits for its
    /// reply.
    ///
    /// Errors of the request: [`Error::NothingToResume`] if the prompt was answered; otherwise those of
    /// [`Self::prompt`].
    pub fn resume(&self) -> RunRequest {
        RunRequest::new(self.clone(), None)
    }

    /// Aborts the work in progress: the current run, whose partial answer is kept and whose processes are
    /// ended; or the compaction between runs, which ends as `cancelled`. Without either, a prompt that was
    /// submitted but has not started is aborted as soon as it starts, without a model call. A run that waits for a
    /// person is also aborted where no process has continued it yet: soon after this returns, its question is
    /// withdrawn, and its tool is not run again. Where a sub-agent waits for a person, open the session first.
    ///
    /// Input in the inbox starts afterwards: see [`Self::clear_inbox`]. [`Run::abort`](crate::Run::abort)
    /// aborts one prompt.
    pub fn abort(&self) {
        self.door.shared.abort();
        self.door.abort_what_waits();
    }

    /// Withdraws all input in the inbox, durably: prompts, steers and follow-ups. Callers that wait for one
    /// of them get [`Error::Withdrawn`]. The current run continues. A sleeping session is not woken. Returns
    /// how many inputs were withdrawn.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::SessionFailed`].
    pub async fn clear_inbox(&self) -> Result<usize> {
        self.door.amend(Amendment::ClearInbox { only: None }).await
    }

    /// Withdraws one input, by the entry with which it was accepted, as [`Self::clear_inbox`] withdraws all. Returns
    /// false if it does not wait: it has joined a run, or was withdrawn before.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::SessionFailed`].
    pub async fn withdraw(&self, entry: EntryId) -> Result<bool> {
        Ok(self.door.amend(Amendment::ClearInbox { only: Some(entry) }).await? > 0)
    }

    /// Returns the questions that wait for a person's answer, oldest first. This starts nothing.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn questions(&self) -> Result<Vec<PendingQuestion>> {
        self.door.check_deleted()?;
        questions::of_session(&self.door.deps, &self.door.shared.id).await
    }

    /// Answers a question: with a text, one of its choices, or a JSON value. The answer is durable before
    /// this returns, and is accepted once. The waiting run continues at once if the session has its agent,
    /// even if it sleeps; otherwise as soon as the session is opened.
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
    /// [`Error::AnswerMisfit`] if the answer is invalid, in which case the question stays open;
    /// [`Error::QuestionClosed`] if it was answered before, expired, or was withdrawn with its run;
    /// [`Error::NoQuestion`]; [`Error::Deleted`], [`Error::Store`].
    pub async fn answer(&self, question: EntryId, answer: impl Into<GivenAnswer>) -> Result<()> {
        self.door.check_deleted()?;
        let answer = answer.into();
        if self.door.shared.agent().is_none() {
            return self.door.amend(Amendment::Answer { question, answer }).await.map(drop);
        }
        self.door.ask(|reply| SessionMessage::Answer { question, answer, reply }).await
    }

    /// Sets the session's title, durably; an empty title removes it. A sleeping session is not woken.
    ///
    /// # Errors
    /// [`Error::Metadata`] if the title has more than 512 bytes, or a character that cannot be shown in one
    /// line; [`Error::Deleted`], [`Error::Store`].
    pub async fn set_title(&self, title: impl Into<String>) -> Result<()> {
        let title = Some(title.into()).filter(|title| !title.is_empty());
        self.set_metadata(Metadata::Title { title }).await
    }

    /// Sets one of the session's labels, durably. Programs find sessions by their labels, for example by
    /// tenant. A session has at most 16. A sleeping session is not woken.
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
    /// [`Error::Metadata`] if the name has more than 64 bytes or the value more than 256, one of them has a
    /// character that cannot be shown in one line, or there are too many labels; [`Error::Deleted`],
    /// [`Error::Store`].
    pub async fn set_label(&self, name: impl Into<String>, value: impl Into<String>) -> Result<()> {
        self.set_metadata(Metadata::Label { name: name.into(), value: Some(value.into()) }).await
    }

    /// Removes one of the session's labels, durably.
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

    /// Sets the agent that answers from the next run on. A sleeping session is not woken.
    ///
    /// # Errors
    /// [`Error::Config`] if the agent is unusable; the session is then unchanged. [`Error::Deleted`].
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
        self.door.shared.set_agent(&self.door.deps.bus, Some(agent));
        Ok(())
    }

    /// Returns the permissions of the session's agent; `None` if every call runs, or no program has provided an agent.
    #[cfg(feature = "permissions")]
    pub fn permissions(&self) -> Option<crate::agent::permissions::Permissions> {
        self.door.shared.agent()?.permissions.clone()
    }

    /// Sets the mode of the session's permissions for its next calls; `None`: that of the agent. It applies as long as the
    /// session's agent is in memory, and after that to an agent that takes the session over and begins in the same mode.
    /// Followers of the session receive [`EventKind::ModeChanged`](crate::EventKind::ModeChanged) if it is another mode
    /// than before. Does nothing where [`Self::permissions`] returns `None`.
    #[cfg(feature = "permissions")]
    pub fn set_mode(&self, mode: Option<greenroom_policy::Mode>) {
        self.door.shared.set_mode(&self.door.deps.bus, mode);
    }

    /// Hands the conversation to another agent of the session's [`Team`](crate::Team), which answers from the
    /// next prompt on. Only while idle. Messages that `sees` leaves out stay in the log: see
    /// [`Team`](crate::Team). With [`Sees::Summary`], the current agent first writes a summary that focuses
    /// on what the other agent needs; [`Self::abort`] cancels it, and then nothing is handed over.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NoMember`] if the team has no such agent; [`Error::NotSummarised`] if the
    /// summary could not be made, and then nothing is handed over; [`Error::Aborted`]; [`Error::Store`].
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
            let summarised = self.compact_for(Trigger::HandOff, options).await?;
            #[expect(clippy::wildcard_enum_match_arm, reason = "nothing was installed")]
            match summarised.outcome {
                CompactionOutcome::Completed
                | CompactionOutcome::Truncated { .. }
                | CompactionOutcome::Digested { .. }
                | CompactionOutcome::Pruned { .. }
                | CompactionOutcome::Nothing { .. } => {}
                CompactionOutcome::Cancelled { .. } => return Err(Error::Aborted),
                // Without a summary, the other agent would see everything.
                outcome => {
                    let reason = outcome.reason().unwrap_or(outcome.as_str()).to_owned();
                    return Err(Error::NotSummarised { to, reason });
                }
            }
        }
        self.door.ask(|reply| SessionMessage::HandOff { to, sees, reply }).await
    }

    /// Sends input into the current run: it joins the run after the tool calls in progress. Without a current
    /// run, it starts one. The result has the input's entry, and its reply is that of the run that receives
    /// the input.
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
    /// [`Error::Busy`] if too much input waits, [`Error::InputRefused`] by the agent's guards,
    /// [`Error::Store`].
    pub async fn steer(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        self.input(prompt.into(), InboxDelivery::Steer).await
    }

    /// Sends input for the end of the current run, which then continues with it. Otherwise like [`Self::steer`].
    ///
    /// # Errors
    /// Those of [`Self::steer`].
    pub async fn follow_up(&self, prompt: impl Into<Prompt>) -> Result<SentInput> {
        self.input(prompt.into(), InboxDelivery::FollowUp).await
    }

    async fn input(&self, prompt: Prompt, delivery: InboxDelivery) -> Result<SentInput> {
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let from = CalledFrom::current();
        // An abort that arrives while the guards run is meant for this input, too.
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

    /// Waits until the session is idle: no run or compaction is in progress, and no input waits. A compaction
    /// may begin by itself right after a reply; this waits for its end, too. A run that waits for a person is
    /// in progress. Input that is held back is not waited for.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(session: SessionHandle) -> Result<()> {
    /// println!("{}", session.prompt("Collect the figures.").await?);
    /// session.wait_until_idle().await?;
    /// session.compact(CompactOptions::default()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the session is closed meanwhile, or restarted after a failure; [`Error::Deleted`];
    /// [`Error::Closed`] after the runtime was shut down.
    pub async fn wait_until_idle(&self) -> Result<()> {
        self.door.ask(SessionMessage::WhenIdle).await
    }

    /// Replaces the older part of the conversation, in the model's view, by a summary. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::Deleted`] if the session is deleted meanwhile. A compaction that finds nothing to
    /// do or fails is not an error: see [`Compacted::outcome`].
    pub async fn compact(&self, options: CompactOptions) -> Result<Compacted> {
        self.compact_for(Trigger::Manual, options).await
    }

    async fn compact_for(&self, trigger: Trigger, options: CompactOptions) -> Result<Compacted> {
        let agent = self.door.agent.clone();
        let done =
            self.door.ask(|reply| SessionMessage::CompactManually { trigger, options, agent, reply }).await?;
        self.unless_deleted(done)
    }

    /// Returns the result of a compaction, unless the session's deletion ended it.
    fn unless_deleted(&self, done: Compacted) -> Result<Compacted> {
        let is_cut_off = !done.outcome.is_installed() && self.door.shared.is_deleting();
        if is_cut_off { Err(self.door.shared.gone()) } else { Ok(done) }
    }

    /// Returns what [`Self::compact`] would do now.
    ///
    /// # Errors
    /// [`Error::NothingToCompact`] with the reason.
    pub async fn plan(&self, options: CompactOptions) -> Result<Plan> {
        let plan: Planned = self
            .door
            .ask(|reply| SessionMessage::PlanManually { options, agent: self.door.agent.clone(), reply })
            .await?;
        plan.map(|plan| *plan).map_err(Error::NothingToCompact)
    }

    /// Undoes the newest active compaction, which restores the previous context. Only while idle. Returns the
    /// context's size afterwards.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NothingToUndo`]; [`Error::UndoTooLarge`] if the result would not fit the
    /// window.
    pub async fn undo_compaction(&self) -> Result<ContextUsage> {
        self.door.ask(|reply| SessionMessage::Undo { back_to: None, reply }).await
    }

    /// Undoes all compactions from the newest back to the one that installed this entry, at once. Only while idle. Returns
    /// the context's size afterwards.
    ///
    /// # Errors
    /// Those of [`Self::undo_compaction`]; [`Error::NothingToUndo`] also if this compaction is not on the current path, or
    /// was undone before. Nothing is changed then.
    pub async fn undo_compactions_to(&self, entry: EntryId) -> Result<ContextUsage> {
        self.door.ask(|reply| SessionMessage::Undo { back_to: Some(entry), reply }).await
    }

    /// Returns the pinned messages of the current path, oldest first.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn pins(&self) -> Result<Vec<Entry>> {
        self.door.check_deleted()?;
        let (store, id) = (&self.door.deps.store, &self.door.shared.id);
        let Some(head) = store.head(id).await? else { return Ok(Vec::new()) };
        let mut pins = head.pins;
        pins.sort_unstable();
        Ok(store.get(id, &pins).await?)
    }

    /// Continues after another entry: the next prompt starts a branch there. Only while idle.
    ///
    /// # Errors
    /// [`Error::NotIdle`]; [`Error::NoEntry`]; [`Error::BranchPoint`] if no branch can start there.
    pub async fn branch(&self, to: Option<EntryId>) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Branch { to, reply }).await
    }

    /// Like [`Self::branch`], with a summary of the abandoned branch, including its own compactions and
    /// files. The summary is a compaction of the branch: with its events (trigger `branch`), its retries and
    /// its bill, and [`Self::abort`] cancels it. Input that arrives in the meantime waits.
    ///
    /// # Errors
    /// Those of [`Self::branch`]; [`Error::BranchSummary`] if the summary could not be made or was aborted:
    /// then nothing is changed.
    pub async fn branch_with_summary(&self, to: Option<EntryId>) -> Result<()> {
        let done = self
            .door
            .ask(|reply| SessionMessage::BranchWithSummary { to, agent: self.door.agent.clone(), reply })
            .await?;
        let done = self.unless_deleted(done)?;
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others made no summary")]
        match &done.outcome {
            // `Nothing`: the branch has no messages.
            CompactionOutcome::Completed | CompactionOutcome::Nothing { .. } => Ok(()),
            _ => {
                let reason = done.outcome.reason().unwrap_or("it was interrupted").to_owned();
                Err(Error::BranchSummary { reason })
            }
        }
    }

    /// Requests a compaction after the current run, or now if none is in progress. For hooks and tools, which
    /// must not wait.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::SessionFailed`].
    pub async fn compact_after_run(&self, options: CompactOptions) -> Result<()> {
        let place = self.door.place()?;
        let actor = self.door.actor().await?;
        self.door.send(&actor, place, SessionMessage::CompactAfterRun { options, needs_news: false })
    }

    /// Keeps an entry verbatim through every compaction, wherever it is on the path.
    ///
    /// # Errors
    /// [`Error::Pin`] if the entry is not a message of the active context that can stand alone, or too much
    /// is pinned.
    pub async fn pin(&self, entry: EntryId) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Pin { entry, pinned: true, reply }).await
    }

    /// Unpins an entry.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn unpin(&self, entry: EntryId) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Pin { entry, pinned: false, reply }).await
    }

    /// Adds the entries of an import or a fork to an empty session. Their ids count from 0 in the order of the entries,
    /// and each entry comes after its parent. The path that ends at `leaf` becomes the context; without a leaf it is
    /// empty, and the entries are only kept in the log.
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::BranchPoint`] if the ids are others, a parent does not come before its child, or
    /// the leaf or another entry of its path is missing: then nothing is kept.
    pub async fn import(&self, entries: Vec<Arc<Entry>>, leaf: Option<EntryId>) -> Result<()> {
        self.door.ask(|reply| SessionMessage::Import { entries, leaf, reply }).await
    }

    /// Returns the session's state: its status, its context and its queue. This starts nothing: the state of
    /// a sleeping session is read from its log, as it would be with its agent. If the session has no agent in
    /// this process, the state is that with the last model.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`], [`Error::Config`] if its agent cannot work.
    pub async fn state(&self) -> Result<State> {
        self.door.check_deleted()?;
        let mut state = match self.door.look(SessionMessage::State).await {
            Some(state) => state,
            None => {
                let agent = self.door.shared.agent();
                let state = stored::state(&self.door.deps, &self.door.shared, agent).await?;
                // Its run continues while it sleeps.
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

    /// Returns the context as the model would get it, without the system prompt. A call that waits for a
    /// person's answer has no result yet. This starts nothing.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn context(&self) -> Result<Vec<Arc<Message>>> {
        stored::context_of(&self.door).await
    }

    /// Searches the session's log for the words of `query`, best first: messages, results and commands on the current
    /// path, whether or not the model still sees them. At most `limit` entries. This starts nothing. (The model has the
    /// tool `recall` for what was compacted away.)
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn recall(&self, query: &str, limit: usize) -> Result<Vec<Recalled>> {
        self.door.check_deleted()?;
        let (deps, id) = (&self.door.deps, &self.door.shared.id);
        let wanted = Wanted::by_program(query.to_owned(), limit);
        deps.searches.find(&*deps.store, id, &wanted).await
    }

    /// Returns the current activity, as published in events. This starts nothing.
    pub fn activity(&self) -> Activity {
        self.door.shared.current_activity()
    }

    /// Returns the work in progress that the log does not contain yet, for a program that joins during a run.
    /// See [`InProgress`]. This starts nothing: for a sleeping session, the position is the end of its log.
    ///
    /// # Errors
    /// [`Error::Deleted`], [`Error::Store`].
    pub async fn in_progress(&self) -> Result<InProgress> {
        self.door.check_deleted()?;
        if let Some(known) = self.door.shared.in_progress() {
            return Ok(known);
        }
        let head = self.door.deps.store.head(&self.door.shared.id).await?;
        // The session may have been opened while its log was read.
        Ok(self.door.shared.in_progress().unwrap_or_else(|| InProgress {
            seq: head.and_then(|head| head.entries.checked_sub(1)),
            n: 0,
            events: Vec::new(),
        }))
    }

    /// Whether the session has actors in memory.
    pub fn is_live(&self) -> bool {
        self.door.shared.actor().is_some()
    }

    /// Whether this session was deleted. Another one may have its id.
    pub fn is_deleted(&self) -> bool {
        self.door.shared.is_deleted()
    }

    /// Returns the sub-agents of the session's newest run, in order of start, as long as this process knows
    /// them. The store has all sub-agents that the session ever called:
    /// [`SessionQuery::children_of`](crate::SessionQuery::children_of).
    pub fn children(&self) -> Vec<Child> {
        let child = |work| Child::new(work, Arc::clone(&self.door.deps));
        self.door.shared.children().into_iter().map(child).collect()
    }

    /// Returns the sub-agents of one run.
    pub(crate) fn children_of(&self, run: RunId) -> Vec<Child> {
        self.children().into_iter().filter(|child| child.run() == Some(run)).collect()
    }

    /// Returns the sub-agent with this session.
    pub(crate) fn child(&self, session: &str) -> Option<Child> {
        self.children().into_iter().rev().find(|child| child.session().id() == session)
    }

    /// Subscribes to the session's events from now on.
    pub fn subscribe(&self) -> Subscription {
        self.door.deps.bus.subscribe(Filter::session(Arc::clone(&self.door.shared.id)))
    }

    /// Follows the session from a position on: its durable events, past and future, and the transient events of what is in
    /// progress, as one stream. A reader that joins during a run gets the answer so far; a reader that was too slow for
    /// the transient events gets the work in progress again, from its `step_start`. This does not wake the session.
    pub fn follow(&self, from: Position) -> Follow {
        Follow::one(&self.door.deps, &self.door.shared.id, from)
    }

    /// Returns the position before the events of the prompt with this idempotency key, for [`Self::follow`]; `None` if
    /// no prompt had it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn position_of_key(&self, key: &str) -> Result<Option<Position>> {
        let (store, id) = (&self.door.deps.store, &self.door.shared.id);
        let Some(first) = store.used_key(id, key).await? else { return Ok(None) };
        let head = store.head(id).await?;
        Ok(head.map(|head| Position::before(id, head.created_at_ms, first.0)))
    }

    /// Subscribes to the events of the caller's own run from now on, at the reader's pace.
    pub(crate) fn subscribe_to_run(&self, link: &Arc<RunLink>) -> Subscription {
        self.door.deps.bus.subscribe_to_run(Filter::session(Arc::clone(&self.door.shared.id)), link)
    }
}
