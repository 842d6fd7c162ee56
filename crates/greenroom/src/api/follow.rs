//! Following sessions: what happened before, what is in progress, and what happens now, as one stream.
//!
//! Invariants: every durable event of a followed session is returned once, in the order of its log, whatever a
//! subscription missed; a transient event is returned only after all durable ones before it and before all later ones; a
//! [`Position`] is enough to continue in another process, and tells a session from a deleted one of the same id. At most
//! one session's log is in memory, besides the subscription's queue. The position's watermark follows [`Passed`], never
//! the events that were returned: a log is read up to its end, which is ahead of what waits in the subscription, and of
//! what other nodes have recorded since they were looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::Engine;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::api::position::{From, Position, Seen};
use crate::api::sessions::SessionSummary;
use crate::api::within::{has_labels, is_below, sessions_within};
use crate::core::deps::Deps;
use crate::core::message::SupervisorMessage;
use crate::events::activity::InProgress;
use crate::events::bus::{Delivery, Filter, Subscription};
use crate::events::entry_events;
use crate::events::event::{Event, EventKind, Record};
use crate::values::error::Result;
use crate::values::family;

/// The maximum number of sessions of which it is remembered whether they have the labels.
const MEMBERS_MAX: usize = 4_096;
/// How often the sessions of other nodes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How many entries are read first when the place in a log is found by time.
const TAIL: u64 = 64;

/// The events of one session or of several, past, present and future: see [`SessionHandle::follow`] and
/// [`Runtime::follow`].
///
/// [`SessionHandle::follow`]: crate::SessionHandle::follow
/// [`Runtime::follow`]: crate::Runtime::follow
#[must_use]
pub struct Follow {
    /// When sessions of other nodes are looked at next; `None` if this process runs all.
    next_look: Option<Instant>,
    deps: Arc<Deps>,
    scope: Scope,
    live: Subscription,
    position: Position,
    passed: Passed,
    /// Whether sessions are never left out of the position.
    is_exact: bool,
    is_started: bool,
    has_ended: bool,
    /// What is to be done before the next delivery is taken. A step stays here until it is done, so a caller may stop
    /// waiting at any time.
    steps: VecDeque<Step>,
    ready: VecDeque<Delivery>,
    /// What was in progress, until newer events come: the subscription repeats its events.
    joined: HashMap<Arc<str>, InProgress>,
    /// Which sessions have the labels, as far as it is known.
    members: HashMap<Arc<str>, Membership>,
}

/// The time up to which the events of all followed sessions have been passed, in Unix milliseconds.
///
/// Where this process runs all sessions, they are published in the order in which they were recorded, except for less
/// than a minute: with each event that is taken from the subscription, what was recorded before it has been passed. Where
/// other nodes run some, nothing tells of these, and only the time of a list of all sessions counts, once each of them was
/// read.
#[derive(Debug, Default)]
struct Passed {
    until_ms: u64,
    /// The newest time in the latest list of all sessions, whose reads are among the steps.
    listed_ms: Option<u64>,
    /// Sessions with events that may be missing, because they could not be read.
    unread: BTreeSet<Arc<str>>,
}

impl Passed {
    /// Notes that the sessions of this list are about to be read.
    fn list(&mut self, sessions: &[SessionSummary]) {
        self.listed_ms = sessions.iter().map(|session| session.updated_at_ms).max();
    }

    /// Returns the time, when no steps are left; `None` while something may be missing.
    fn settled(&mut self) -> Option<u64> {
        if !self.unread.is_empty() {
            return None;
        }
        self.until_ms = self.until_ms.max(self.listed_ms.take().unwrap_or(0));
        Some(self.until_ms)
    }
}

/// Whether a session has the labels.
#[derive(Debug, Clone, Copy)]
struct Membership {
    /// When the session was created: a new one may have the id of a deleted one.
    created_at_ms: u64,
    is_member: bool,
    /// Whether it is a sub-agent's, which also has the labels of the sessions above it.
    is_below: bool,
}

/// The sessions that are followed.
#[derive(Debug, Clone, Default)]
struct Scope {
    /// One session; `None` for all.
    session: Option<Arc<str>>,
    /// Whether the sub-agents below that session are followed, too.
    is_tree: bool,
    /// Only sessions with all these labels, and the sub-agents below them.
    labels: BTreeMap<String, String>,
    /// Only durable events.
    is_durable: bool,
}

#[derive(Clone)]
enum Step {
    /// Read what a session has after the position.
    Read(Arc<str>),
    /// Take what the subscription returned.
    Take(Delivery),
}

impl Scope {
    fn filter(&self) -> Filter {
        let filter = match &self.session {
            Some(id) if self.is_tree => Filter::tree(Arc::clone(id)),
            Some(id) => Filter::session(Arc::clone(id)),
            None => Filter::all(),
        };
        if self.is_durable { filter.durable() } else { filter }
    }

    /// The stored sessions that are followed.
    async fn sessions(&self, store: &dyn Engine) -> Result<Vec<SessionSummary>> {
        let Some(id) = &self.session else { return sessions_within(store, &self.labels).await };
        if !self.labels.is_empty() && !has_labels(store, id, &self.labels).await? {
            return Ok(Vec::new());
        }
        let mut heads: Vec<(String, Head)> =
            store.head(id).await?.map(|head| (id.to_string(), head)).into_iter().collect();
        if self.is_tree {
            heads.extend(family::below(store, id).await?);
        }
        Ok(heads.into_iter().map(|(id, head)| SessionSummary::new(id, head)).collect())
    }

    /// Whether a session is followed.
    async fn includes(&self, store: &dyn Engine, id: &str) -> Result<bool> {
        if let Some(root) = self.session.as_deref().filter(|root| *root != id)
            && !(self.is_tree && is_below(store, id, root).await?)
        {
            return Ok(false);
        }
        Ok(self.labels.is_empty() || has_labels(store, id, &self.labels).await?)
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Follow {
    pub(crate) fn one(deps: &Arc<Deps>, id: &Arc<str>, from: Position) -> Self {
        Self::new(deps, Scope { session: Some(Arc::clone(id)), ..Scope::default() }, from)
    }

    pub(crate) fn all(deps: &Arc<Deps>, from: Position) -> Self {
        Self::new(deps, Scope::default(), from)
    }

    fn new(deps: &Arc<Deps>, scope: Scope, position: Position) -> Self {
        Self {
            next_look: deps.store.placement().map(|_| Instant::now() + LOOK_EVERY),
            deps: Arc::clone(deps),
            // Before anything is read, so that nothing is missed in between.
            live: deps.bus.subscribe(scope.filter()),
            scope,
            position,
            passed: Passed::default(),
            is_exact: false,
            is_started: false,
            has_ended: false,
            steps: VecDeque::new(),
            ready: VecDeque::new(),
            joined: HashMap::new(),
            members: HashMap::new(),
        }
    }

    /// Follows only sessions with this label, and the sub-agents below them. Repeated calls require all of these labels. A
    /// session that gets the label later is followed from then on; a [`Consumer`](crate::Consumer) reads it from its
    /// beginning.
    pub fn label(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.scoped(|scope| _ = scope.labels.insert(name, value))
    }

    /// Follows the sub-agents below the session, too, including those that begin later.
    pub fn tree(self) -> Self {
        self.scoped(|scope| scope.is_tree = true)
    }

    /// Returns only durable events, which are in the logs.
    pub fn durable(self) -> Self {
        self.scoped(|scope| scope.is_durable = true)
    }

    fn scoped(mut self, change: impl FnOnce(&mut Scope)) -> Self {
        change(&mut self.scope);
        self.live = self.deps.bus.subscribe(self.scope.filter());
        self
    }

    /// Leaves no session out of the position, so that nothing depends on the clock.
    pub(crate) fn exact(mut self) -> Self {
        self.is_exact = true;
        self
    }

    /// Begins at another position in the sessions that it names.
    pub(crate) fn start_at(&mut self, position: &Position) {
        self.position.name(position);
    }

    /// Leaves out the past: continues from the sessions' present ends, with what is in progress.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn from_now(mut self) -> Result<Self> {
        let sessions = self.sessions().await?;
        self.position = Position::end_of(&sessions);
        self.join(sessions).await?;
        self.is_started = true;
        Ok(self)
    }

    /// Returns the next event, once there is one; `None` after the runtime has ended. Nothing is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if a log could not be read. Its session is followed again when it has news, from
    /// where it was read; the other sessions are followed as before.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>> {
        loop {
            match self.next_delivery().await? {
                Some(Delivery::Event(event)) => return Ok(Some(event)),
                Some(Delivery::Gap { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    /// As [`Self::next`], if there is an event now: this reads logs, and waits for nothing to happen.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn try_next(&mut self) -> Result<Option<Arc<Event>>> {
        loop {
            match self.try_next_delivery().await? {
                Some(Delivery::Event(event)) => return Ok(Some(event)),
                Some(Delivery::Gap { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    /// As [`Self::next`], and returns a [`Delivery::Gap`] where transient events are missing because the program was too
    /// slow. The durable ones follow, and what is in progress is returned again, from its `step_start`.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_delivery(&mut self) -> Result<Option<Delivery>> {
        loop {
            if let Some(known) = self.prepared().await? {
                return Ok(Some(known));
            }
            let next = match self.next_look {
                None => self.live.next().await,
                // The look comes first: a slow reader always has news of its own node.
                Some(at) => tokio::select! {
                    biased;
                    () = sleep_until(at) => {
                        self.look_elsewhere().await?;
                        continue;
                    }
                    next = self.live.next() => next,
                },
            };
            match next {
                Some(delivery) => self.steps.push_back(Step::Take(delivery)),
                None => {
                    self.has_ended = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Prepares reading what sessions on other nodes have recorded: nothing else tells of it here.
    async fn look_elsewhere(&mut self) -> Result<()> {
        self.next_look = Some(Instant::now() + LOOK_EVERY);
        // What these have in progress is on its way already, and would be doubled.
        let skipped = if self.live.waiting() > 0 { self.live().await } else { BTreeSet::new() };
        let sessions = self.sessions().await?;
        let mut is_whole = true;
        for session in &sessions {
            if !self.position.is_behind(session) {
                continue;
            }
            if skipped.contains(session.id.as_str()) {
                is_whole = false;
            } else {
                self.steps.push_back(Step::Read(Arc::from(session.id.as_str())));
            }
        }
        if is_whole {
            self.passed.list(&sessions);
        }
        Ok(())
    }

    /// As [`Self::next_delivery`], if there is one now.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn try_next_delivery(&mut self) -> Result<Option<Delivery>> {
        loop {
            if let Some(known) = self.prepared().await? {
                return Ok(Some(known));
            }
            if self.next_look.is_some_and(|at| at <= Instant::now()) {
                self.look_elsewhere().await?;
                continue;
            }
            let Some(delivery) = self.live.try_next() else { return Ok(None) };
            self.steps.push_back(Step::Take(delivery));
        }
    }

    /// Returns the position after the returned events: another [`Follow`] with the same scope continues there.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Returns how many durable events are in the logs and were not returned yet. For a session whose place in its log is
    /// not known yet, all of its events are counted.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn lag(&self) -> Result<u64> {
        Ok(self.sessions().await?.iter().map(|session| self.position.behind(session)).sum())
    }

    /// The labels of the followed sessions.
    pub(crate) fn labels(&self) -> &BTreeMap<String, String> {
        &self.scope.labels
    }

    /// Whether all events were returned that there will be.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The next delivery without another one of the subscription.
    async fn prepared(&mut self) -> Result<Option<Delivery>> {
        if !self.is_started {
            let sessions = self.sessions().await?;
            self.join(sessions).await?;
            self.is_started = true;
        }
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                if let Delivery::Event(event) = &delivery {
                    self.position.pass(event);
                }
                self.settle();
                return Ok(Some(delivery));
            }
            let Some(step) = self.steps.front().cloned() else {
                self.settle();
                return Ok(None);
            };
            let done = match &step {
                Step::Read(id) => self.read(id).await,
                Step::Take(Delivery::Event(event)) => self.take(Arc::clone(event)).await,
                Step::Take(Delivery::Gap { from, to, sessions }) => {
                    self.fill(*from, *to, sessions.clone()).await
                }
            };
            self.steps.pop_front();
            if let Err(error) = done {
                // Nobody knows when a damaged log can be read again: the position does not wait for that.
                if error.is_retryable() {
                    self.miss(&step);
                }
                return Err(error);
            }
        }
    }

    /// Leaves quiet sessions out of the position, if nothing is left to be read.
    fn settle(&mut self) {
        if !self.is_exact
            && self.ready.is_empty()
            && self.steps.is_empty()
            && let Some(passed_ms) = self.passed.settled()
        {
            self.position.settle(passed_ms);
        }
    }

    /// Notes the sessions of a step that failed: they are read when they have news.
    fn miss(&mut self, step: &Step) {
        match step {
            Step::Read(id) => _ = self.passed.unread.insert(Arc::clone(id)),
            Step::Take(Delivery::Event(event)) if event.is_durable() => {
                self.passed.unread.insert(Arc::clone(&event.session));
            }
            Step::Take(Delivery::Event(_)) => {}
            Step::Take(Delivery::Gap { sessions, .. }) => {
                self.passed.unread.extend(sessions.iter().map(|(id, _)| Arc::clone(id)));
            }
        }
    }

    /// The stored sessions that are followed.
    async fn sessions(&self) -> Result<Vec<SessionSummary>> {
        self.scope.sessions(&*self.deps.store).await
    }

    /// Prepares reading what these sessions have after the position, and what is in progress in them.
    async fn join(&mut self, sessions: Vec<SessionSummary>) -> Result<()> {
        let is_all = self.scope.session.is_none() && self.scope.labels.is_empty();
        self.position.learn(&sessions, is_all);
        self.passed.list(&sessions);
        if !self.scope.labels.is_empty() {
            // The labels of one that is deleted cannot be read any more.
            let known = sessions.iter().take(MEMBERS_MAX).map(|session| {
                let is_below = session.parent.is_some();
                let known = Membership { created_at_ms: session.created_at_ms, is_member: true, is_below };
                (Arc::from(session.id.as_str()), known)
            });
            self.members = known.collect();
        }
        let live = self.live().await;
        for session in sessions {
            let id = Arc::from(session.id.as_str());
            if self.position.is_behind(&session) || live.contains(&id) {
                self.steps.push_back(Step::Read(id));
            }
        }
        Ok(())
    }

    /// The sessions in which something may be in progress, if that is wanted.
    async fn live(&self) -> BTreeSet<Arc<str>> {
        let live = if self.scope.is_durable { None } else { self.ask(SupervisorMessage::Live).await };
        live.into_iter().flatten().collect()
    }

    /// Asks the supervisor; `None` if the runtime has ended.
    async fn ask<T: Send + 'static>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> SupervisorMessage,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.deps.supervisor.get()?.cast(message(reply)).ok()?;
        answer.await.ok()
    }

    /// Reads what a session has after the position, and what is in progress if transient events are wanted.
    async fn read(&mut self, id: &Arc<str>) -> Result<()> {
        // Events after this snapshot come from the subscription, which began before.
        let now = match self.scope.is_durable {
            true => None,
            false => {
                let found = self.ask(|reply| SupervisorMessage::Find { id: Arc::clone(id), reply }).await;
                found.flatten().and_then(|shared| shared.in_progress())
            }
        };
        let Some(head) = self.deps.store.head(id).await? else {
            self.passed.unread.remove(id);
            return Ok(());
        };
        let end = now.as_ref().map_or(head.entries, |now| head.entries.min(now.seq.map_or(0, |seq| seq + 1)));
        let from = self.load(id, head, end).await?;
        // What was in progress before the position is over.
        let is_over = matches!(from, From::Event(next) if next > end);
        if let Some(now) = now.filter(|_| !is_over) {
            self.ready.extend(now.events.iter().cloned().map(|event| Delivery::Event(Arc::new(event))));
            self.joined.insert(Arc::clone(id), now);
        }
        Ok(())
    }

    /// Prepares a session's events after the position and before the one at `end`. Returns where they begin.
    async fn load(&mut self, id: &Arc<str>, head: Head, end: u64) -> Result<From> {
        let from = self.position.next(&SessionSummary::new(id.to_string(), head.clone()));
        let entries = entries(&*self.deps.store, id, from, head.entries).await?;
        let parent = head.parent_session.map(Arc::from);
        let events =
            entry_events::of_entries(id, parent.as_ref(), head.created_at_ms, &entries, head.open_run);
        let events = events.filter(|event| event.seq < end);
        self.ready.extend(events.map(|event| Delivery::Event(Arc::new(event))));
        self.passed.unread.remove(id);
        Ok(from)
    }

    /// Takes an event of the subscription.
    async fn take(&mut self, event: Arc<Event>) -> Result<()> {
        if event.is_durable() && self.next_look.is_none() {
            self.passed.until_ms = self.passed.until_ms.max(event.at_ms);
        }
        if !self.is_wanted(&event).await? {
            return Ok(());
        }
        if !event.is_durable() {
            match self.joined.get(&event.session) {
                Some(now) if now.contains(&event) => return Ok(()),
                Some(_) => _ = self.joined.remove(&event.session),
                None => {}
            }
            if self.position.is_at(&event) {
                self.ready.push_back(Delivery::Event(event));
            }
            return Ok(());
        }
        // What was recorded before it, on another node or where a read failed, may be missing.
        let may_miss = (self.next_look.is_some() && !self.position.knows_next(&event))
            || self.passed.unread.contains(&event.session);
        match self.position.seen(&event) {
            Seen::Before => {}
            Seen::Next | Seen::Later if may_miss => {
                self.joined.remove(&event.session);
                if let Some(head) = self.deps.store.head(&event.session).await? {
                    self.load(&event.session, head, event.seq + 1).await?;
                }
            }
            Seen::Next => {
                self.joined.remove(&event.session);
                self.ready.push_back(Delivery::Event(event));
            }
            Seen::Later => self.steps.push_back(Step::Read(Arc::clone(&event.session))),
        }
        Ok(())
    }

    /// Prepares reading what a gap left out.
    async fn fill(&mut self, from: u64, to: u64, sessions: Vec<(Arc<str>, u64)>) -> Result<()> {
        self.members.clear();
        // In the place of transient events, what is in progress.
        let mut ids = self.live().await;
        ids.extend(sessions.iter().map(|(id, _)| Arc::clone(id)));
        let mut included = Vec::new();
        for id in ids {
            if self.scope.includes(&*self.deps.store, &id).await? {
                included.push(id);
            }
        }
        self.ready.push_back(Delivery::Gap { from, to, sessions });
        self.steps.extend(included.into_iter().map(Step::Read));
        Ok(())
    }

    /// Whether the event's session has the labels.
    async fn is_wanted(&mut self, event: &Event) -> Result<bool> {
        if self.scope.labels.is_empty() {
            return Ok(true);
        }
        let is_label = |record: &Record| matches!(record, Record::SessionLabel { name, .. } if self.scope.labels.contains_key(name));
        let changes = matches!(&event.kind, EventKind::Recorded { record, .. } if is_label(record));
        if changes {
            // A label counts for the sub-agents below, too.
            self.members.retain(|id, known| !known.is_below && *id != event.session);
        } else if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(&event.session) {
            self.members.clear();
        }
        let created_at_ms = event.session_created_at_ms;
        if let Some(known) = self.members.get(&event.session)
            && known.created_at_ms == created_at_ms
        {
            return Ok(known.is_member);
        }
        let (store, is_exact) = (&*self.deps.store, self.is_exact);
        let is_member = has_labels(store, &event.session, &self.scope.labels).await?;
        // If it has just got the label, so have the sub-agents below it.
        let below = match is_exact && changes && is_member {
            true => family::below(store, &event.session).await?,
            false => Vec::new(),
        };
        let known = Membership { created_at_ms, is_member, is_below: event.parent.is_some() };
        self.members.insert(Arc::clone(&event.session), known);
        if changes && is_member && !is_exact {
            self.position.begin(event);
        }
        for (id, head) in below {
            let session = SessionSummary::new(id, head);
            if self.position.is_behind(&session) {
                self.steps.push_back(Step::Read(Arc::from(session.id)));
            }
        }
        Ok(is_member)
    }
}

/// Reads a log from a place to an end.
async fn entries(store: &dyn Engine, id: &str, from: From, end: u64) -> Result<Vec<Entry>> {
    let load = async |from: u64| -> Result<Vec<Entry>> {
        if from >= end {
            return Ok(Vec::new());
        }
        let mut entries = store.load(id, EntryId(from)).await?;
        entries.retain(|entry| entry.id.0 < end);
        Ok(entries)
    };
    match from {
        From::Event(next) => load(next).await,
        From::Time(at_ms) => {
            // From the end, since little is new.
            let mut tail = TAIL;
            loop {
                let first = end.saturating_sub(tail);
                let mut entries = load(first).await?;
                if first == 0 || entries.first().is_some_and(|entry| entry.at_ms < at_ms) {
                    let newer =
                        entries.iter().position(|entry| entry.at_ms >= at_ms).unwrap_or(entries.len());
                    entries.drain(..newer);
                    return Ok(entries);
                }
                tail = tail.saturating_mul(4);
            }
        }
    }
}
