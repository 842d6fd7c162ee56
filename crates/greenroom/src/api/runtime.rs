//! The runtime: a store, providers and a supervisor, with which programs open their sessions.
//!
//! Invariants: a runtime is one value, with no globals and no named actors, so a process may have several;
//! dropping the last clone of it without [`Runtime::shutdown`] loses nothing that was acknowledged.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_kernel::compactions::{self, CompactionDetails, CompactionRecord};
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{Entry, EntryId, Head, ToolSpec};
use greenroom_store::{Engine, Notice, Store, StoreError};
use ractor::{ActorRef, ActorStatus};
use tokio::sync::oneshot;

use crate::actors::tools_of::tools_of;
use crate::agent::Agent;
use crate::api::consumer::Consumer;
use crate::api::consumers;
use crate::api::deletion;
use crate::api::follow::Follow;
use crate::api::models::{Models, models};
use crate::api::position::Position;
use crate::api::questions::{self, PendingQuestion};
use crate::api::resume::ResumeAll;
use crate::api::session::SessionHandle;
use crate::api::sessions::{Order, SessionQuery, SessionSummary};
use crate::api::spending::SpendingQuery;
use crate::core::deps::Deps;
use crate::core::door::open;
use crate::core::message::{OpenReason, SupervisorMessage};
use crate::core::ownership;
use crate::core::searches::Wanted;
use crate::events::activity::LiveSession;
use crate::events::bus::{Filter, Subscription};
use crate::events::entry_events;
use crate::events::event::Event;
use crate::values::error::{Error, Result};
use crate::values::family;
use crate::values::recalled::Recalled;
use crate::values::retention::DeletionReason;
use crate::values::state::Status;
use builder::RuntimeBuilder;

pub(crate) mod builder;

/// How long a shutdown waits for consumers, after the last session has ended.
const CONSUMERS_TIMEOUT: Duration = Duration::from_secs(8);
/// How long a shutdown then waits for their supervisor.
const SUPERVISOR_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a shutdown waits for sessions to end cleanly.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// A running runtime. Cloning is cheap. It ends with its last clone: session handles that outlive it refuse requests
/// ([`Error::Closed`]), and they, runs and consumers keep the store open until they are dropped.
#[derive(Clone)]
pub struct Runtime {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
    notices: Arc<Vec<Notice>>,
    _stop: Arc<StopOnDrop>,
}

/// Stops the actors when the last clone of a runtime is dropped, because actors do not end by themselves.
struct StopOnDrop {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.deps.is_closed.store(true, Ordering::SeqCst);
        self.deps.bus.close();
        self.supervisor.stop(None);
    }
}

/// A runtime that others hold, or that has ended.
pub(crate) struct WeakRuntime {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
    notices: Arc<Vec<Notice>>,
    stop: Weak<StopOnDrop>,
}

impl WeakRuntime {
    /// Returns the runtime; `None` once its last clone was dropped.
    pub(crate) fn upgrade(&self) -> Option<Runtime> {
        let _stop = self.stop.upgrade()?;
        let Self { deps, supervisor, notices, .. } = self;
        let (deps, supervisor, notices) = (Arc::clone(deps), supervisor.clone(), Arc::clone(notices));
        Some(Runtime { deps, supervisor, notices, _stop })
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("providers", &self.deps.lanes.keys()).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Returns a builder for a runtime.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Creates or resumes a session. If it is already live, returns a handle of the same one, which uses this
    /// agent from its next run on; if the agent is unusable, returns an error and leaves the session
    /// unchanged.
    ///
    /// The agent is an `&Agent`, which is copied, an [`Agent`], or an `Arc<Agent>` that many sessions share.
    ///
    /// # Errors
    /// [`Error::Config`] if the agent, its provider or its settings are unusable; [`Error::Store`] if the id
    /// is invalid or the log cannot be read.
    pub async fn open(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let shared = open(&self.deps, Arc::from(id), agent.into(), None, OpenReason::Open).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// Like [`Self::open`], for a session that others may be using: a run in progress and queued input
    /// keep their agents, and the session adopts this agent at once only if it is idle. Requests through the
    /// handle use this agent, as with [`SessionHandle::with_agent`].
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let hers = runtime.join("plan", Agent::new("gpt-5.5").instructions("You help Ada.")).await?;
    /// let his = runtime.join("plan", Agent::new("gpt-5.5").instructions("You help Bob.")).await?;
    /// println!("{}", hers.prompt("What is first?").await?);
    /// println!("{}", his.prompt("And then?").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn join(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let agent = agent.into();
        let shared = open(&self.deps, Arc::from(id), Arc::clone(&agent), None, OpenReason::Join).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)).with_agent(agent))
    }

    /// Returns a handle of an existing session, live or stored. This starts nothing, and replaces no agent.
    ///
    /// Operations without an agent work at once: reading the session, aborting it, clearing its inbox. A
    /// prompt fails with [`Error::NoAgent`] if no program has given the session an agent in this process: see
    /// [`SessionHandle::set_agent`].
    ///
    /// # Errors
    /// [`Error::NoSession`] if the session has no messages and no handle; [`Error::Store`].
    pub async fn session(&self, id: &str) -> Result<SessionHandle> {
        if let Some(known) = self.held(id).await? {
            return Ok(known);
        }
        let head = self.head(id).await?.ok_or_else(|| no_session(id))?;
        let (id, parent) = (Arc::from(id), head.parent_session.map(Arc::from));
        let shared = self.ask(|reply| SupervisorMessage::Attach { id, parent, reply }).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// Returns a handle of a session that is live, or that has other handles.
    pub(crate) async fn held(&self, id: &str) -> Result<Option<SessionHandle>> {
        let known = self.ask(|reply| SupervisorMessage::Find { id: Arc::from(id), reply }).await?;
        Ok(known.map(|shared| SessionHandle::new(shared, Arc::clone(&self.deps))))
    }

    /// Subscribes to events from now on.
    pub fn subscribe(&self, filter: Filter) -> Subscription {
        self.deps.bus.subscribe(filter)
    }

    /// Returns a session's durable events from a position on, from its log.
    ///
    /// # Errors
    /// [`Error::NoSession`] if the session has no messages and no handle; [`Error::Store`].
    pub async fn replay(&self, id: &str, from_seq: u64) -> Result<Vec<Event>> {
        let session: Arc<str> = Arc::from(id);
        let Some(head) = self.head(id).await? else { return self.none_of_empty(id).await };
        let mut entries = self.entries(id, EntryId(from_seq)).await?;
        // Entries that were appended after the head was read belong to the next replay.
        entries.retain(|entry| entry.id.0 < head.entries);
        let parent = head.parent_session.map(Arc::from);
        Ok(entry_events::of_entries(&session, parent.as_ref(), head.created_at_ms, &entries, head.open_run)
            .collect())
    }

    /// Follows all sessions from a position on, as one stream: their durable events, past and future, also those of
    /// sessions that sleep, that begin later, and that a subscription missed; and the transient events of what is in
    /// progress. A program that stores the text of [`Follow::position`] continues there in its next process.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// # let session = runtime.open("a", &Agent::new("m")).await?;
    /// # session.set_label("tenant", "acme").await?;
    /// # session.prompt("Hello").await?;
    /// # let mut stored = String::from("0");
    /// let from = Position::parse(&stored).expect("it is a position");
    /// let mut events = runtime.follow(from).label("tenant", "acme").durable();
    /// # let mut count = 0;
    /// while let Some(event) = events.next().await? {
    ///     println!("{} {} {}", event.session, event.seq, event.kind.name());
    ///     stored = events.position().to_string();
    /// #   count += 1;
    /// #   if count > 2 { break; }
    /// }
    /// # assert!(count > 2 && stored.len() > 2);
    /// # Ok(()) }
    /// ```
    pub fn follow(&self, from: Position) -> Follow {
        Follow::all(&self.deps, from)
    }

    /// Opens the consumer with this name, which reads the durable events of all sessions and stores its position: see
    /// [`Consumer`]. A new one begins with the oldest events.
    ///
    /// # Errors
    /// [`ConfigError::ConsumerInUse`](crate::ConfigError) and `ConsumerName`; [`Error::Store`].
    pub async fn consumer(&self, name: &str) -> Result<Consumer> {
        Consumer::open(&self.deps, name).await
    }

    /// Returns a query for the sessions in the store; by default all of them, in the order of their ids. It
    /// reads no logs and wakes no sessions.
    ///
    /// Errors of the query: [`Error::Store`].
    pub fn sessions(&self) -> SessionQuery {
        SessionQuery::new(self.clone())
    }

    /// Returns a query for what was spent by hour or day: by all sessions together, or by the values of a label. By
    /// default it is the current day of all sessions. The spending of deleted sessions is included. Spending from
    /// before a session got a label, or from when the label had another value, does not count for the new value.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// let runtime = Runtime::builder().provider(model.provider()).in_memory().spending_by(["tenant"]).start().await?;
    /// let session = runtime.open("a", &Agent::new("m")).await?;
    /// session.set_label("tenant", "north").await?;
    /// session.prompt("Hello").await?;
    /// for day in runtime.spending().by("tenant").last(7).await? {
    ///     println!("{:?}: {} micro-dollars in {} runs", day.value, day.cost_microdollars, day.runs);
    /// }
    /// # assert_eq!(runtime.spending().of("tenant", "north").await?[0].runs, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// Errors of the query: [`Error::Config`] if the runtime does not count by this label
    /// ([`RuntimeBuilder::spending_by`]); [`Error::Store`].
    pub fn spending(&self) -> SpendingQuery {
        SpendingQuery::new(self.clone())
    }

    /// Returns a query for the sessions with unfinished work, by their heads: after a crash or a shutdown,
    /// those that [`Self::resume_all`] would finish. The oldest comes first. Nothing is opened.
    ///
    /// Errors of the query: [`Error::Store`].
    pub fn unfinished(&self) -> SessionQuery {
        self.sessions().unfinished().order(Order::Oldest)
    }

    /// Finishes the work that was interrupted when a process ended, once it is awaited: in every unfinished
    /// session, the interrupted run continues, and then the input behind it starts. `agent` chooses the agent
    /// of each session; `None` leaves a session unchanged. 16 sessions are resumed concurrently, see
    /// [`ResumeAll::at_once`].
    ///
    /// A prompt is answered once. The model is told that a tool call in progress at the end of the process
    /// was interrupted, and decides whether to repeat it.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let agent = std::sync::Arc::new(Agent::new("gpt-5.5"));
    /// for resumed in runtime.resume_all(move |_| Some(agent.clone())).at_once(4).await? {
    ///     match resumed.result {
    ///         Ok(reply) => println!("{}: {reply}", resumed.session.id()),
    ///         Err(error) => eprintln!("{}: {error}", resumed.session.id()),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Errors of the request: [`Error::Store`] if the store cannot be read. A session's own error is in its
    /// [`Resumed::result`](crate::Resumed::result).
    pub fn resume_all<A: Into<Arc<Agent>>>(
        &self,
        mut agent: impl FnMut(&SessionSummary) -> Option<A> + Send + 'static,
    ) -> ResumeAll {
        ResumeAll::new(self.clone(), Box::new(move |session| agent(session).map(Into::into)))
    }

    /// Returns the questions that wait for a person's answer, in all sessions, grouped by session, oldest
    /// first. Only heads and the questions themselves are read; nothing is opened. [`SessionHandle::answer`]
    /// answers them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn questions(&self) -> Result<Vec<PendingQuestion>> {
        let mut pending = Vec::new();
        for session in self.sessions().with_questions().await? {
            pending.extend(questions::of_session(&self.deps, &session.id).await?);
        }
        Ok(pending)
    }

    /// Returns the stored summary of one session; `None` if it has no messages. No log is read.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn summary(&self, id: &str) -> Result<Option<SessionSummary>> {
        Ok(self.head(id).await?.map(|head| SessionSummary::new(id.to_owned(), head)))
    }

    /// Returns a session's entries from a position on.
    ///
    /// # Errors
    /// [`Error::NoSession`] if the session has no messages and no handle; [`Error::Store`].
    pub async fn entries(&self, id: &str, from: EntryId) -> Result<Vec<Entry>> {
        match self.deps.store.load(id, from).await {
            Err(StoreError::NotFound { .. }) => self.none_of_empty(id).await,
            read => Ok(read?),
        }
    }

    /// Returns an empty list for a session with a handle and without messages.
    async fn none_of_empty<T>(&self, id: &str) -> Result<Vec<T>> {
        self.session(id).await.map(|_| Vec::new())
    }

    /// Returns what each compaction of a session did, oldest first: those that failed, were undone, or are on abandoned
    /// branches included. This reads the whole log.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Store`].
    pub async fn compaction_records(&self, id: &str) -> Result<Vec<CompactionRecord>> {
        let (entries, leaf) = self.whole(id).await?;
        Ok(compactions::list(&entries, leaf, &self.deps.call_cost(None)))
    }

    /// Returns the details of one compaction: the replaced part, the summary, and the missing facts. `number` is that
    /// of [its record](CompactionRecord::number); `None` if there is no such compaction. This reads the whole log.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Store`].
    pub async fn compaction_details(&self, id: &str, number: u64) -> Result<Option<CompactionDetails>> {
        let (entries, leaf) = self.whole(id).await?;
        Ok(compactions::details(&entries, leaf, number, &self.deps.call_cost(None)))
    }

    /// Returns all entries of a session, and its leaf.
    async fn whole(&self, id: &str) -> Result<(Vec<Arc<Entry>>, Option<EntryId>)> {
        let entries = self.entries(id, EntryId(0)).await?;
        let leaf = self.head(id).await?.and_then(|head| head.leaf);
        Ok((entries.into_iter().map(Arc::new).collect(), leaf))
    }

    /// Searches the logs of all sessions for the words of `query`, best first: messages, results and commands on the
    /// current path of each session, whether or not the model still sees them. At most `limit` entries. A session's
    /// search takes memory for an index, which is kept for a while.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn recall(&self, query: &str, limit: usize) -> Result<Vec<Recalled>> {
        let wanted = Wanted::by_program(query.to_owned(), limit);
        self.deps.searches.find_in_all(&*self.deps.store, &wanted).await
    }

    /// Deletes a session and all its entries, and the sessions of its sub-agents on all levels. They are
    /// closed first. If a crash interrupts this, it is finished when the store is opened again. Remaining
    /// handles get [`Error::Deleted`] from then on, even if the id is used again. The session's bytes remain
    /// in the store's files until more than half of a file is deleted; [`Store::reclaim`] removes
    /// them at once.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Store`].
    pub async fn delete(&self, id: &str) -> Result<()> {
        // What was spent stays, although the log goes.
        self.deps.accounts.flush().await;
        let (runtime, id) = (self.clone(), id.to_owned());
        // The deletion completes even if the caller is dropped.
        let deleted = tokio::spawn(async move { deletion::delete(&runtime, &id).await });
        deleted.await.unwrap_or_else(|panic| Err(Error::internal("deleting a session", &panic)))
    }

    /// Deletes one session without the sessions of its sub-agents.
    pub(crate) async fn delete_alone(&self, id: &str) -> Result<()> {
        self.ask(|reply| SupervisorMessage::Delete { id: Arc::from(id), reply }).await??;
        consumers::forget_session(&self.deps, id).await;
        Ok(())
    }

    /// Deletes one session without the sessions of its sub-agents, if it has no actors and this many entries. Returns
    /// whether it did.
    pub(crate) async fn delete_unused_alone(
        &self,
        id: &str,
        entries: u64,
        reason: DeletionReason,
    ) -> Result<bool> {
        let held = Arc::from(id);
        let unused = |reply| SupervisorMessage::DeleteUnused { id: held, entries, reason, reply };
        let is_deleted = self.ask(unused).await??;
        if is_deleted {
            consumers::forget_session(&self.deps, id).await;
        }
        Ok(is_deleted)
    }

    /// Returns the ids of the sessions below a session, callers before their sub-agents.
    pub(crate) async fn stored_tree(&self, id: &str) -> Result<Vec<String>> {
        Ok(family::below(&*self.deps.store, id).await?.into_iter().map(|(id, _)| id).collect())
    }

    /// Stops a session's actors cleanly; its run is interrupted. The next request wakes it from its log.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn close(&self, id: &str) -> Result<()> {
        let (done, ended) = oneshot::channel();
        let message = SupervisorMessage::Close { id: Arc::from(id), done };
        self.supervisor.cast(message).map_err(|_| Error::Closed)?;
        let _ = ended.await;
        Ok(())
    }

    /// Returns the ids of the live sessions.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn live(&self) -> Result<Vec<String>> {
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(live.iter().map(ToString::to_string).collect())
    }

    /// Returns the sessions that are live, or that sleep during a run, in the order of their ids, with their
    /// states and activities. Nothing is opened or woken.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let session = runtime.open("umbrella", &Agent::new("gpt-5.5")).await?;
    /// session.prompt("Umbrella in Oslo?").await?;
    /// for session in runtime.live_sessions().await? {
    ///     println!("{}: {:?}, step {:?}", session.state.id, session.state.status, session.activity.step);
    /// }
    /// # assert_eq!(runtime.live_sessions().await?.len(), 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Store`].
    pub async fn live_sessions(&self) -> Result<Vec<LiveSession>> {
        let mut sessions = Vec::new();
        for id in self.at_work().await? {
            let session = match self.session(&id).await {
                Ok(session) => session,
                Err(Error::Closed) => return Err(Error::Closed),
                // The session was deleted in the meantime, or has no messages and is closed.
                Err(_) => continue,
            };
            let Ok(state) = session.state().await else { continue };
            let summary = self.summary(&id).await?;
            sessions.push(LiveSession {
                activity: session.activity(),
                is_asleep: !session.is_live(),
                title: summary.as_ref().and_then(|known| known.shown_title().map(str::to_owned)),
                parent: summary.as_ref().and_then(|known| known.parent.clone()),
                updated_at_ms: summary.as_ref().map(|known| known.updated_at_ms),
                labels: summary.map(|known| known.labels).unwrap_or_default(),
                state,
            });
        }
        sessions.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        Ok(sessions)
    }

    /// Returns the ids of the sessions that are live, or that sleep during a run.
    pub(crate) async fn at_work(&self) -> Result<HashSet<String>> {
        let suspended = self.ask(SupervisorMessage::Suspended).await?;
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(suspended.iter().chain(&live).map(ToString::to_string).collect())
    }

    /// Returns the sessions with work in progress, or with queued input that may start, awake or asleep.
    pub(crate) async fn awaited(&self) -> Result<HashSet<String>> {
        let awaited = self.ask(SupervisorMessage::Awaited).await?;
        Ok(awaited.iter().map(ToString::to_string).collect())
    }

    /// Returns the ids of the sessions in which a run or a compaction is in progress, without those that wait
    /// for a person's answer: their questions are in their logs.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::Store`].
    pub async fn working(&self) -> Result<Vec<String>> {
        let mut working = Vec::new();
        for id in self.at_work().await? {
            let status = match self.session(&id).await {
                Ok(session) => session.state().await.map(|state| state.status),
                Err(error) => Err(error),
            };
            match status {
                Ok(Status::Working | Status::Compacting) => working.push(id),
                Ok(Status::Idle | Status::Waiting | Status::Unknown) => {}
                // The session was deleted in the meantime, or cannot be read, so it does no work.
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_) => {}
            }
        }
        working.sort_unstable();
        Ok(working)
    }

    /// Changes the compaction settings for agents without their own, from the next check of each session on.
    ///
    /// # Errors
    /// [`Error::Config`] for unusable settings; the old ones remain.
    pub async fn set_compaction(&self, settings: CompactionSettings) -> Result<()> {
        settings.check()?;
        let settings = Arc::new(settings);
        let (reply, answers) = oneshot::channel();
        let check = SupervisorMessage::CheckSettings { settings: Arc::clone(&settings), reply };
        self.supervisor.cast(check).map_err(|_| Error::Closed)?;
        for answer in answers.await.map_err(|_| Error::Closed)? {
            // A session that is gone has no objection.
            answer.await.unwrap_or(Ok(()))?;
        }
        *self.deps.compaction.write() = settings;
        let (reply, done) = oneshot::channel();
        self.supervisor.cast(SupervisorMessage::Reconfigure(reply)).map_err(|_| Error::Closed)?;
        done.await.map_err(|_| Error::Closed)
    }

    /// Returns the models of an agent's provider, with their windows, output limits and prices, and the
    /// source of each. The server is asked for its list; no model is called.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn models(&self, agent: &Agent) -> Result<Models> {
        models(&self.deps, agent).await
    }

    /// Returns the specifications of all tools that the model of a session with this agent gets, by name: the agent's
    /// own tools, its sub-agents and hand-offs, `compact` and `recall`.
    ///
    /// # Errors
    /// [`Error::Config`] if two tools have one name.
    pub fn tool_specs(&self, agent: &Agent) -> Result<Arc<[ToolSpec]>> {
        Ok(tools_of(&self.deps, agent)?.specs())
    }

    /// Forgets the limit that a model's server named when it refused a request. Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn forget_limit(&self, agent: &Agent, model: &str) -> Result<bool> {
        let lane = self.deps.lane(agent).ok_or_else(|| self.deps.unknown_provider(agent))?;
        Ok(self.deps.learned.forget_limit(lane.origin(), model).await?)
    }

    /// Returns the store's notices from when it was opened: repairs and losses.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The storage engine, for tools that inspect it.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.deps.store
    }

    /// The storage engine as a store of this process, in files or in memory; `None` for any other engine.
    pub fn store(&self) -> Option<&Store> {
        self.deps.store.as_store()
    }

    /// The redactor, which removes secrets: see [`RuntimeBuilder::redactor`].
    pub fn redactor(&self) -> &greenroom_kernel::redact::Redactor {
        &self.deps.redactor
    }

    /// Returns whether the runtime accepts input and its store can be written: for readiness probes. A store that has
    /// refused an append is tried again with a small write.
    ///
    /// # Errors
    /// [`Error::Closed`] after [`Self::drain`] or [`Self::shutdown`] was called; [`Error::Store`] if the store cannot
    /// be written.
    pub async fn ready(&self) -> Result<()> {
        if self.deps.admission.is_draining() || self.supervisor.get_status() >= ActorStatus::Stopping {
            return Err(Error::Closed);
        }
        if let Some(placement) = self.deps.store.placement() {
            placement.check()?;
        }
        Ok(self.deps.readiness.check(&*self.deps.store, self.deps.now_ms()).await?)
    }

    /// Stops accepting input, and waits up to `at_most` until all accepted input is done, including queued
    /// input. Returns how many inputs are left; [`Self::shutdown`] interrupts them, and [`Self::resume_all`]
    /// finishes them after the next start. Further input fails with [`Error::Closed`].
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let left = runtime.drain(std::time::Duration::from_secs(30)).await;
    /// if left > 0 {
    ///     eprintln!("{left} inputs are finished after the next start");
    /// }
    /// runtime.shutdown().await?;
    /// # Ok(()) }
    /// ```
    pub async fn drain(&self, at_most: Duration) -> usize {
        ownership::leave(&self.deps).await;
        self.deps.admission.drain(at_most).await
    }

    /// Shuts everything down cleanly: runs are interrupted, partial output is kept, logs are completed, open consumers
    /// process the last events (they have 8 seconds), and the store is closed.
    ///
    /// # Errors
    /// [`Error::Store`] if the store cannot be closed properly; even then, nothing acknowledged is lost.
    pub async fn shutdown(self) -> Result<()> {
        ownership::leave(&self.deps).await;
        let (done, ended) = oneshot::channel();
        if self.supervisor.cast(SupervisorMessage::Shutdown(done)).is_ok() {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await;
        }
        self.deps.bus.close();
        // With the reports of the sessions' ends, their spans end, too.
        let _ = self.supervisor.stop_and_wait(None, Some(SUPERVISOR_TIMEOUT)).await;
        let late = self.deps.consumers.ended(CONSUMERS_TIMEOUT).await;
        if !late.is_empty() {
            tracing::warn!(consumers = ?late, "the runtime ended before these consumers had processed all events");
        }
        self.deps.accounts.end().await;
        Ok(self.deps.store.close().await?)
    }

    /// Asks the supervisor.
    pub(super) async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> SupervisorMessage,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.supervisor.cast(message(reply)).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    /// Returns this runtime without keeping it.
    pub(crate) fn weak(&self) -> WeakRuntime {
        let Self { deps, supervisor, notices, _stop } = self;
        let (deps, supervisor, notices) = (Arc::clone(deps), supervisor.clone(), Arc::clone(notices));
        WeakRuntime { deps, supervisor, notices, stop: Arc::downgrade(_stop) }
    }

    pub(crate) fn deps(&self) -> &Arc<Deps> {
        &self.deps
    }

    pub(crate) async fn head(&self, id: &str) -> Result<Option<Head>> {
        Ok(self.deps.store.head(id).await?)
    }
}

pub(crate) fn no_session(id: &str) -> Error {
    Error::NoSession { session: id.to_owned() }
}
