//! Following sessions: what happened before, and what happens now, as one stream.
//!
//! Invariants: every durable event of a followed session is returned once, in the order of its log, whatever a
//! subscription missed; a transient event is returned only after all durable ones before it; a [`Position`] is enough to
//! continue in another process, and tells a session from a deleted one of the same id.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use greenroom_kernel::{EntryId, Head};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::runtime::Runtime;
use crate::api::sessions::SessionSummary;
use crate::core::deps::{Deps, blocking};
use crate::core::shared::SessionShared;
use crate::events::activity::InProgress;
use crate::events::bus::{Delivery, Filter, Subscription};
use crate::events::entry_events;
use crate::events::event::{Event, EventKind, Record};
use crate::values::error::Result;

#[cfg(test)]
mod tests;

/// How many sessions are listed at a time.
const PAGE: usize = 512;

/// A place in a session's log: how far a program has followed it. Its text, such as `1764273600000-17`, can be stored, and
/// is the id of a server-sent event. The default is the beginning of whichever session is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// When the session was created; 0 at the beginning.
    created_at_ms: u64,
    /// The sequence number of the next event.
    next: u64,
}

impl Position {
    /// Returns the place after this event.
    pub fn after(event: &Event) -> Self {
        Self { created_at_ms: event.session_created_at_ms, next: event.seq + 1 }
    }

    /// Reads the text of a position; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let (created, next) = text.split_once('-')?;
        // A sign would be read, too.
        let number =
            |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        Some(Self { created_at_ms: number(created)?, next: number(next)? })
    }

    /// Returns the place where following this session continues: this one, or its beginning if the position belongs to a
    /// session that had its id before.
    fn within(self, created_at_ms: u64) -> Self {
        match self.created_at_ms == created_at_ms {
            true => self,
            false => Self { created_at_ms, next: 0 },
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.created_at_ms, self.next)
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a position")))
    }
}

/// The events of one session, or the durable events of several: see [`SessionHandle::follow`] and [`Runtime::follow`].
///
/// [`SessionHandle::follow`]: crate::SessionHandle::follow
pub struct Follow {
    deps: Arc<Deps>,
    scope: Scope,
    live: Subscription,
    /// The newest event of the subscription, until it is taken.
    incoming: Option<Arc<Event>>,
    /// How far each session was followed.
    positions: BTreeMap<Arc<str>, Position>,
    /// The sessions whose logs have to be read.
    behind: VecDeque<Arc<str>>,
    /// Events that were read and not returned yet.
    ready: VecDeque<Arc<Event>>,
    /// The work in progress that was returned; the subscription repeats its events.
    joined: Option<InProgress>,
    has_ended: bool,
}

/// Returns the sessions with these labels.
async fn listed(runtime: &Runtime, labels: &[(String, String)]) -> Result<Vec<SessionSummary>> {
    let mut all = Vec::new();
    loop {
        let mut query = runtime.sessions().limit(PAGE);
        for (name, value) in labels {
            query = query.label(name, value);
        }
        if let Some(last) = all.last() {
            query = query.after(SessionSummary::cursor(last));
        }
        let page = query.await?;
        let is_last = page.len() < PAGE;
        all.extend(page);
        if is_last {
            return Ok(all);
        }
    }
}

/// Which sessions are followed.
enum Scope {
    /// One, with its transient events.
    One(Arc<SessionShared>),
    All {
        runtime: Runtime,
        labels: Vec<(String, String)>,
        /// Whether each session that was seen has the labels.
        members: HashMap<Arc<str>, bool>,
        is_listed: bool,
    },
}

impl Scope {
    /// Whether the session with this head is followed. Notes it.
    fn includes(&mut self, id: &Arc<str>, head: &Head) -> bool {
        let Self::All { labels, members, .. } = self else { return true };
        let is_member = labels.iter().all(|(name, value)| head.labels.get(name) == Some(value));
        if !labels.is_empty() {
            members.insert(Arc::clone(id), is_member);
        }
        is_member
    }
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("positions", &self.positions).finish_non_exhaustive()
    }
}

impl Follow {
    pub(crate) fn one(deps: &Arc<Deps>, shared: &Arc<SessionShared>, from: Position) -> Self {
        let id = &shared.id;
        let mut follow = Self::new(deps, Filter::session(Arc::clone(id)), Scope::One(Arc::clone(shared)));
        follow.positions.insert(Arc::clone(id), from);
        follow.behind.push_back(Arc::clone(id));
        follow
    }

    pub(crate) fn all(runtime: &Runtime) -> Self {
        let scope = Scope::All {
            runtime: runtime.clone(),
            labels: Vec::new(),
            members: HashMap::new(),
            is_listed: false,
        };
        Self::new(runtime.deps(), Filter::all().durable(), scope)
    }

    fn new(deps: &Arc<Deps>, filter: Filter, scope: Scope) -> Self {
        Self {
            deps: Arc::clone(deps),
            scope,
            // Before anything is read, so that nothing is missed in between.
            live: deps.bus.subscribe(filter),
            incoming: None,
            positions: BTreeMap::new(),
            behind: VecDeque::new(),
            ready: VecDeque::new(),
            joined: None,
            has_ended: false,
        }
    }

    /// Continues from these positions. Sessions without one are followed from their beginnings.
    #[must_use]
    pub fn from<I: Into<Arc<str>>>(mut self, positions: impl IntoIterator<Item = (I, Position)>) -> Self {
        self.positions.extend(positions.into_iter().map(|(id, position)| (id.into(), position)));
        self
    }

    /// Follows only sessions with this label, as long as they have it. Repeated calls require all of these labels.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        if let Scope::All { labels, .. } = &mut self.scope {
            labels.push((name.into(), value.into()));
        }
        self
    }

    /// Returns the next event, once there is one; `None` after the runtime has ended. Nothing is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if a log could not be read. Its session is followed again when it has
    /// news; the other sessions are followed as before.
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>> {
        self.list().await?;
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(self.returned(event)));
            }
            if let Some(id) = self.behind.front().cloned() {
                let read = self.read(&id).await;
                self.behind.pop_front();
                self.ready.extend(read?);
                continue;
            }
            if let Some(event) = self.incoming.clone() {
                let is_followed = self.is_followed(&event).await;
                self.incoming = None;
                if is_followed? {
                    self.take(event);
                }
                continue;
            }
            match self.live.next().await {
                Some(Delivery::Event(event)) => self.incoming = Some(event),
                Some(Delivery::Gap { sessions, .. }) => {
                    self.joined = None;
                    sessions.into_iter().for_each(|(id, _)| self.read_later(id));
                    if let Scope::One(shared) = &self.scope {
                        // If only transient events were lost, what is in progress replaces them.
                        let id = Arc::clone(&shared.id);
                        self.read_later(id);
                    }
                }
                None => {
                    self.has_ended = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Whether all events were returned that there will be.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns how far each session was followed, the returned events included.
    pub fn positions(&self) -> impl Iterator<Item = (&str, Position)> {
        self.positions.iter().map(|(id, position)| (&**id, *position))
    }

    /// Returns how far this session was followed.
    pub fn position(&self, session: &str) -> Position {
        self.positions.get(session).copied().unwrap_or_default()
    }

    /// Returns how many durable events are in the logs and were not returned yet.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn lag(&self) -> Result<u64> {
        let ends: Vec<(String, u64, u64)> = match &self.scope {
            Scope::One(shared) => {
                let head = self.head(&shared.id).await?;
                head.map(|head| (shared.id.to_string(), head.created_at_ms, head.entries))
                    .into_iter()
                    .collect()
            }
            Scope::All { runtime, labels, .. } => {
                let of = |session: SessionSummary| (session.id, session.created_at_ms, session.entries);
                listed(runtime, labels).await?.into_iter().map(of).collect()
            }
        };
        let behind = |(id, created_at_ms, entries): (String, u64, u64)| {
            entries.saturating_sub(self.position(&id).within(created_at_ms).next)
        };
        Ok(ends.into_iter().map(behind).sum())
    }

    /// Lists the sessions that have news, once.
    async fn list(&mut self) -> Result<()> {
        let Scope::All { runtime, labels, is_listed: false, .. } = &self.scope else { return Ok(()) };
        let sessions = listed(runtime, labels).await?;
        // Positions of sessions that are gone are forgotten.
        let mut known = std::mem::take(&mut self.positions);
        for session in sessions {
            let found = known.remove_entry(&*session.id);
            let (id, position) = found.unwrap_or_else(|| (Arc::from(session.id), Position::default()));
            let position = position.within(session.created_at_ms);
            if position.next < session.entries {
                self.behind.push_back(Arc::clone(&id));
            }
            self.positions.insert(id, position);
        }
        if let Scope::All { is_listed, .. } = &mut self.scope {
            *is_listed = true;
        }
        Ok(())
    }

    async fn head(&self, id: &Arc<str>) -> Result<Option<Head>> {
        let (store, id) = (self.deps.store.clone(), Arc::clone(id));
        blocking(&self.deps, move || Ok(store.head(&id)?)).await
    }

    /// Reads what is missing of a session, with its work in progress if transient events are wanted.
    async fn read(&mut self, id: &Arc<str>) -> Result<Vec<Arc<Event>>> {
        // Events after this snapshot come from the subscription, which began before.
        let joined = match &self.scope {
            Scope::One(shared) => shared.in_progress(),
            Scope::All { .. } => None,
        };
        let Some(head) = self.head(id).await? else { return Ok(Vec::new()) };
        if !self.scope.includes(id, &head) {
            return Ok(Vec::new());
        }
        let from = self.position(id).within(head.created_at_ms);
        self.positions.insert(Arc::clone(id), from);
        let end = joined
            .as_ref()
            .and_then(|joined| joined.seq)
            .map_or(head.entries, |seq| head.entries.min(seq + 1));
        let mut entries = Vec::new();
        if from.next < end {
            let (store, id) = (self.deps.store.clone(), Arc::clone(id));
            entries = blocking(&self.deps, move || Ok(store.load(&id, EntryId(from.next))?)).await?;
        }
        entries.retain(|entry| entry.id.0 < head.entries);
        let parent = head.parent_session.map(Arc::from);
        let events =
            entry_events::of_entries(id, parent.as_ref(), head.created_at_ms, &entries, head.open_run);
        let mut events: Vec<Event> = events.filter(|event| event.seq < end).collect();
        if let Some(joined) = joined
            && joined.seq.map_or(0, |seq| seq + 1) >= from.next
        {
            events.extend(joined.events.iter().cloned());
            self.joined = Some(joined);
        }
        Ok(events.into_iter().map(Arc::new).collect())
    }

    /// Reads a session's log before anything else is taken.
    fn read_later(&mut self, id: Arc<str>) {
        if !self.behind.contains(&id) {
            self.behind.push_back(id);
        }
    }

    /// Takes an event of the subscription.
    fn take(&mut self, event: Arc<Event>) {
        let known = self.position(&event.session);
        if event.session_created_at_ms < known.created_at_ms {
            // A late event of a deleted session.
            return;
        }
        let known = known.within(event.session_created_at_ms);
        if self.joined.as_ref().is_some_and(|joined| joined.contains(&event)) {
            return;
        }
        if event.is_durable() {
            self.joined = None;
            if event.seq > known.next {
                self.read_later(Arc::clone(&event.session));
            } else if event.seq == known.next {
                self.ready.push_back(event);
            }
        } else if event.seq + 1 == known.next || (known.next == 0 && event.seq == 0) {
            self.ready.push_back(event);
        }
    }

    /// Whether the event's session is followed. Its labels are read when it is first seen, and when one was set.
    async fn is_followed(&mut self, event: &Event) -> Result<bool> {
        let Scope::All { labels, members, .. } = &self.scope else { return Ok(true) };
        if labels.is_empty() {
            return Ok(true);
        }
        let is_news = matches!(&event.kind, EventKind::Recorded { record: Record::SessionLabel { .. }, .. });
        if let Some(known) = members.get(&event.session)
            && !is_news
        {
            return Ok(*known);
        }
        let head = self.head(&event.session).await?;
        Ok(head.is_some_and(|head| self.scope.includes(&event.session, &head)))
    }

    /// Notes that an event is returned.
    fn returned(&mut self, event: Arc<Event>) -> Arc<Event> {
        if event.is_durable() {
            self.positions.insert(Arc::clone(&event.session), Position::after(&event));
        }
        event
    }
}
