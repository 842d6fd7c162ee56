//! The runtime: a store, providers and a supervisor; where programs open their sessions.
//!
//! Invariants: a runtime is one value, with no globals and no named actors, so a process may have several;
//! dropping the last clone of it without [`Runtime::shutdown`] loses nothing that was acknowledged.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Notice, Store, StoreError};
use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::api::deletion;
use crate::api::models::{Models, models};
use crate::api::questions::{self, PendingQuestion};
use crate::api::resume::ResumeAll;
use crate::api::session::SessionHandle;
use crate::api::sessions::{self, Order, SessionQuery, SessionSummary};
use crate::core::deps::{Deps, blocking};
use crate::core::door::open;
use crate::core::message::{OpenReason, SupervisorMessage};
use crate::events::activity::LiveSession;
use crate::events::bus::{Filter, Subscription};
use crate::events::entry_events;
use crate::events::event::Event;
use crate::values::error::{BranchPointError, Error, Result};
use crate::values::state::Status;
use builder::RuntimeBuilder;

pub(crate) mod builder;

/// How long a shutdown waits for sessions to end in order.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// A running runtime. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
    notices: Arc<Vec<Notice>>,
    _stop: Arc<StopOnDrop>,
}

/// Stops the actors when the last clone of a runtime is gone: actors do not end by themselves.
struct StopOnDrop {
    deps: Arc<Deps>,
    supervisor: ActorRef<SupervisorMessage>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.deps.bus.close();
        self.supervisor.stop(None);
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("providers", &self.deps.lanes.keys()).finish_non_exhaustive()
    }
}

impl Runtime {
    /// A runtime that is put together by hand.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Creates or resumes a session. If it is live already, this reaches the same one, with this agent from its
    /// next run on; with an agent that cannot work, this is an error and the session goes on as it was.
    ///
    /// The agent is an `&Agent`, which is copied, an [`Agent`], or an `Arc<Agent>` that many sessions share.
    ///
    /// # Errors
    /// [`Error::Config`] when the agent, its provider or its settings cannot work; [`Error::Store`] when the id is
    /// not usable or the log cannot be read.
    pub async fn open(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let shared = open(&self.deps, Arc::from(id), agent.into(), None, OpenReason::Open).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// As [`Self::open`], where others may be at work in the session: a run in progress and what waits keep their agents,
    /// and this agent is taken at once only where the session does nothing. What is asked of the handle is done with this
    /// agent, as with [`SessionHandle::with_agent`].
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
    /// As [`Self::open`].
    pub async fn join(&self, id: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let agent = agent.into();
        let shared = open(&self.deps, Arc::from(id), Arc::clone(&agent), None, OpenReason::Join).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)).with_agent(agent))
    }

    /// A session that is there already, live or stored. Nothing is started, and no agent is replaced.
    ///
    /// What needs no agent works at once: looking at it, aborting it, clearing its inbox. A prompt in a session that no
    /// program gave an agent to in this process is [`Error::NoAgent`]: see [`SessionHandle::set_agent`].
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn session(&self, id: &str) -> Result<SessionHandle> {
        if let Some(known) = self.held(id).await? {
            return Ok(known);
        }
        let head = self.head(id).await?.ok_or_else(|| no_session(id))?;
        let (id, parent) = (Arc::from(id), head.parent_session.map(Arc::from));
        let shared = self.ask(|reply| SupervisorMessage::Attach { id, parent, reply }).await?;
        Ok(SessionHandle::new(shared, Arc::clone(&self.deps)))
    }

    /// A session that is live, or that somebody holds.
    pub(crate) async fn held(&self, id: &str) -> Result<Option<SessionHandle>> {
        let known = self.ask(|reply| SupervisorMessage::Find { id: Arc::from(id), reply }).await?;
        Ok(known.map(|shared| SessionHandle::new(shared, Arc::clone(&self.deps))))
    }

    /// A copy of a session under another id: its active context goes on there; the original stays as it is.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::NotEmpty`] when the new id is taken: then nothing is changed.
    pub async fn fork(&self, from: &str, to: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        let head = self.head(from).await?.ok_or_else(|| no_session(from))?;
        self.fork_to_leaf(from, to, head.leaf, agent.into()).await
    }

    /// As [`Self::fork`], with the path that ends at an entry: also of a session whose log cannot be opened.
    ///
    /// # Errors
    /// As [`Self::fork`]; [`Error::BranchPoint`] when no path ends at that entry.
    pub async fn fork_at(
        &self,
        from: &str,
        to: &str,
        at: EntryId,
        agent: impl Into<Arc<Agent>>,
    ) -> Result<SessionHandle> {
        self.fork_to_leaf(from, to, Some(at), agent.into()).await
    }

    async fn fork_to_leaf(
        &self,
        from: &str,
        to: &str,
        leaf: Option<EntryId>,
        agent: Arc<Agent>,
    ) -> Result<SessionHandle> {
        if self.head(to).await?.is_some_and(|taken| taken.entries > 0) {
            return Err(Error::NotEmpty { session: to.to_owned() });
        }
        let entries = self.entries(from, EntryId(0)).await?;
        if let Some(entry) = leaf {
            let at = entries.binary_search_by_key(&entry, |entry| entry.id);
            let at = at.map_err(|_| Error::NoEntry { entry, entries: entries.len() as u64 })?;
            if !entries[at].kind.is_on_path() {
                return Err(Error::BranchPoint(BranchPointError::BesidePath { entry }));
            }
        }
        let session = self.open(to, agent).await?;
        session.import(entries.into_iter().map(Arc::new).collect(), leaf).await?;
        Ok(session)
    }

    /// Events, from now on.
    pub fn subscribe(&self, filter: Filter) -> Subscription {
        self.deps.bus.subscribe(filter)
    }

    /// A session's durable events from a position on, from its log.
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn replay(&self, id: &str, from_seq: u64) -> Result<Vec<Event>> {
        let session: Arc<str> = Arc::from(id);
        let Some(head) = self.head(id).await? else { return self.none_of_empty(id).await };
        let mut entries = self.entries(id, EntryId(from_seq)).await?;
        // What was appended since the head was read belongs to the next replay.
        entries.retain(|entry| entry.id.0 < head.entries);
        let parent = head.parent_session.map(Arc::from);
        Ok(entry_events::of_entries(&session, parent.as_ref(), head.created_at_ms, &entries, head.open_run)
            .collect())
    }

    /// The sessions in the store: all of them, in the order of their ids, where nothing else is asked for. No log is read,
    /// and none is woken.
    ///
    /// Its errors: [`Error::Store`].
    pub fn sessions(&self) -> SessionQuery {
        SessionQuery::new(self.clone())
    }

    /// The sessions with work that was taken on and is not done, by their heads: after a crash or a shutdown, what
    /// [`Self::resume_all`] would finish. The oldest comes first. Nothing is opened.
    ///
    /// Its errors: [`Error::Store`].
    pub fn unfinished(&self) -> SessionQuery {
        self.sessions().unfinished().order(Order::Oldest)
    }

    /// Finishes what the end of a process left, as soon as it is awaited: in every unfinished session the run that was
    /// interrupted goes on, and then what waits behind it begins. `agent` says who does it; `None` leaves a session as it
    /// is. 16 sessions at a time, see [`ResumeAll::at_once`].
    ///
    /// A prompt is answered once. A tool call that was under way when the process ended is told to the model as
    /// interrupted; whether to call it again is the model's decision.
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
    /// Its errors: [`Error::Store`] when the store cannot be read. What a session failed with is in its
    /// [`Resumed::result`](crate::Resumed::result).
    pub fn resume_all<A: Into<Arc<Agent>>>(
        &self,
        mut agent: impl FnMut(&SessionSummary) -> Option<A> + Send + 'static,
    ) -> ResumeAll {
        ResumeAll::new(self.clone(), Box::new(move |session| agent(session).map(Into::into)))
    }

    /// The questions that wait for a person's answer, in all sessions: those of a session together, oldest first. Only
    /// heads and the questions themselves are read; nothing is opened. [`SessionHandle::answer`] answers them.
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

    /// What the store knows of one session; `None` where nothing was ever said in it. No log is read.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn summary(&self, id: &str) -> Result<Option<SessionSummary>> {
        Ok(self.head(id).await?.map(|head| SessionSummary::new(id.to_owned(), head)))
    }

    /// A session's entries from a position on.
    ///
    /// # Errors
    /// [`Error::NoSession`] where nothing was ever said in it and nobody holds it; [`Error::Store`].
    pub async fn entries(&self, id: &str, from: EntryId) -> Result<Vec<Entry>> {
        let stored = id.to_owned();
        match self.read(move |store| store.load(&stored, from)).await {
            Err(Error::Store(error)) if matches!(*error, StoreError::NotFound { .. }) => {
                self.none_of_empty(id).await
            }
            read => read,
        }
    }

    /// Nothing, of a session that somebody holds and in which nothing was said yet.
    async fn none_of_empty<T>(&self, id: &str) -> Result<Vec<T>> {
        self.session(id).await.map(|_| Vec::new())
    }

    /// A session's compactions, oldest first: each is an entry of that kind. Undone ones and those of branches that
    /// were left are among them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn compactions(&self, id: &str) -> Result<Vec<Entry>> {
        let id = id.to_owned();
        self.read(move |store| {
            let mut chain = Vec::new();
            let mut next = store.head(&id)?.and_then(|head| head.last_compaction);
            while let Some(at) = next {
                let Some(entry) = store.get(&id, &[at])?.pop() else { break };
                // Each points to an earlier one; a damaged log must not make a circle.
                let previous = entry.kind.as_compaction().and_then(|compaction| compaction.previous);
                next = previous.filter(|previous| *previous < at);
                chain.push(entry);
            }
            chain.reverse();
            Ok(chain)
        })
        .await
    }

    /// Deletes a session and all its entries, and the sessions below it: those of the agents that its agent called as
    /// tools, and of those that they called. They are closed first. What a crash cuts off is finished when the store is
    /// opened again. A handle that is still held gets [`Error::Deleted`]
    /// from then on, whatever becomes of the id. Its bytes stay in the store's files until more than half
    /// of a file is deleted; `runtime.store().reclaim()` removes them at once.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Store`].
    pub async fn delete(&self, id: &str) -> Result<()> {
        let (runtime, id) = (self.clone(), id.to_owned());
        // Half of it is not done where the caller goes away.
        let deleted = tokio::spawn(async move { deletion::delete(&runtime, &id).await });
        deleted.await.unwrap_or_else(|panic| Err(Error::internal("deleting a session", &panic)))
    }

    /// Deletes one session, and none below it.
    pub(crate) async fn delete_alone(&self, id: &str) -> Result<()> {
        self.ask(|reply| SupervisorMessage::Delete { id: Arc::from(id), reply }).await?
    }

    /// The ids of the sessions below one, callers before those whom they called.
    pub(crate) async fn stored_tree(&self, id: &str) -> Result<Vec<String>> {
        let (store, id) = (self.deps.store.clone(), id.to_owned());
        let read = move || Ok(sessions::tree(&store, &id)?.into_iter().map(|(id, _)| id).collect());
        blocking(&self.deps, read).await
    }

    /// Ends a session's actors in order; its run is interrupted. The next request wakes it from its log.
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

    /// The ids of the sessions whose actors are live.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn live(&self) -> Result<Vec<String>> {
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(live.iter().map(ToString::to_string).collect())
    }

    /// The sessions that are live, or sleep in the middle of a run, by id: how each stands and what it does. Nothing is
    /// opened or woken by looking.
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
                // It was deleted meanwhile, or nothing was said in it and it is closed.
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

    /// The ids of the sessions that are live, or sleep in the middle of a run.
    pub(crate) async fn at_work(&self) -> Result<HashSet<String>> {
        let suspended = self.ask(SupervisorMessage::Suspended).await?;
        let live = self.ask(SupervisorMessage::Live).await?;
        Ok(suspended.iter().chain(&live).map(ToString::to_string).collect())
    }

    /// The sessions in which something is under way or waits and may begin, awake or asleep.
    pub(crate) async fn awaited(&self) -> Result<HashSet<String>> {
        let awaited = self.ask(SupervisorMessage::Awaited).await?;
        Ok(awaited.iter().map(ToString::to_string).collect())
    }

    /// The ids of the sessions in which a run or a compaction goes on. One that waits for a person's answer is not among
    /// them: its questions are in its log.
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
                // It was deleted meanwhile, or cannot be read, and then nothing goes on in it.
                Err(Error::Closed) => return Err(Error::Closed),
                Err(_) => {}
            }
        }
        working.sort_unstable();
        Ok(working)
    }

    /// Changes how sessions are compacted, where their agent does not say; at the next check of each.
    ///
    /// # Errors
    /// [`Error::Config`] with settings that cannot work; the old ones stay.
    pub async fn set_compaction(&self, settings: CompactionSettings) -> Result<()> {
        settings.check()?;
        let settings = Arc::new(settings);
        let (reply, answers) = oneshot::channel();
        let check = SupervisorMessage::CheckSettings { settings: Arc::clone(&settings), reply };
        self.supervisor.cast(check).map_err(|_| Error::Closed)?;
        for answer in answers.await.map_err(|_| Error::Closed)? {
            // A session that is gone by now has no objection.
            answer.await.unwrap_or(Ok(()))?;
        }
        *self.deps.compaction.write() = settings;
        let (reply, done) = oneshot::channel();
        self.supervisor.cast(SupervisorMessage::Reconfigure(reply)).map_err(|_| Error::Closed)?;
        done.await.map_err(|_| Error::Closed)
    }

    /// The models of an agent's provider, with their windows, output limits and prices, and where each comes from. The
    /// server is asked for its list; no model is.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn models(&self, agent: &Agent) -> Result<Models> {
        models(&self.deps, agent).await
    }

    /// Forgets the limit that a model's server named when it refused a request. Returns whether there was one.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown provider; [`Error::Store`].
    pub async fn forget_limit(&self, agent: &Agent, model: &str) -> Result<bool> {
        let lane = self.deps.lane(agent).ok_or_else(|| self.deps.unknown_provider(agent))?;
        Ok(self.deps.learned.forget_limit(lane.origin(), model).await?)
    }

    /// What the store had to say when it was opened: repairs and losses.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The store, for tools that look into it.
    pub fn store(&self) -> &Store {
        &self.deps.store
    }

    /// Takes on no more input, and waits until all that was taken on is done, what waits in inboxes with it: but no longer
    /// than `at_most`. Gives how many inputs are left; [`Self::shutdown`] interrupts them, and [`Self::resume_all`] finishes
    /// them after the next start. What is said from now on is [`Error::Closed`].
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
        self.deps.admission.drain(at_most).await
    }

    /// Ends everything in order: runs are interrupted with what had come, logs are whole, the store is closed.
    ///
    /// # Errors
    /// [`Error::Store`] when the store cannot be closed properly; nothing acknowledged is lost even then.
    pub async fn shutdown(self) -> Result<()> {
        let (done, ended) = oneshot::channel();
        if self.supervisor.cast(SupervisorMessage::Shutdown(done)).is_ok() {
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await;
        }
        self.deps.bus.close();
        self.supervisor.stop(None);
        self.deps.purse.flush().await;
        Ok(self.deps.store.clone().close().await?)
    }

    /// Asks the supervisor.
    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> SupervisorMessage) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.supervisor.cast(message(reply)).map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)
    }

    pub(crate) fn deps(&self) -> &Arc<Deps> {
        &self.deps
    }

    async fn head(&self, id: &str) -> Result<Option<Head>> {
        let id = id.to_owned();
        self.read(move |store| store.head(&id)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T> {
        let store = self.deps.store.clone();
        blocking(&self.deps, move || Ok(read(&store)?)).await
    }
}

fn no_session(id: &str) -> Error {
    Error::NoSession { session: id.to_owned() }
}
