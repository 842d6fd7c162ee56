//! Past, present and live events of some sessions as one stream: the log from a position on, what is in progress, and then
//! what happens.
//!
//! Invariants: a durable event of a session comes once and in order, whatever is missed in between; transient events come
//! if the reader is fast enough, and after a gap what is in progress comes again. At most one session's log is in memory,
//! besides the subscription's queue.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use greenroom::{
    Delivery, Error, Event, EventKind, Filter, InProgress, Record, Runtime, SessionSummary, Subscription,
};

use super::position::{Position, Seen};
use crate::operations::{has_labels, sessions_of};

/// The most sessions of which it is remembered whether they have the labels.
const MEMBERS_MAX: usize = 4_096;

/// The sessions whose events are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Scope {
    /// One session; `None` for all.
    pub(super) session: Option<Arc<str>>,
    /// Whether the sub-agents below that session are wanted, too.
    pub(super) is_tree: bool,
    /// Only sessions with all these labels, and the sub-agents below them.
    pub(super) labels: BTreeMap<String, String>,
    /// Only durable events.
    pub(super) is_durable: bool,
}

impl Scope {
    pub(super) fn session(id: &str) -> Self {
        Self { session: Some(Arc::from(id)), ..Self::default() }
    }

    fn filter(&self) -> Filter {
        let filter = match &self.session {
            Some(id) if self.is_tree => Filter::tree(Arc::clone(id)),
            Some(id) => Filter::session(Arc::clone(id)),
            None => Filter::all(),
        };
        if self.is_durable { filter.durable() } else { filter }
    }

    /// The stored sessions that are wanted.
    async fn sessions(&self, runtime: &Runtime) -> Result<Vec<SessionSummary>, Error> {
        let Some(id) = &self.session else { return sessions_of(runtime, &self.labels).await };
        if !self.labels.is_empty() && !has_labels(runtime, id, &self.labels).await? {
            return Ok(Vec::new());
        }
        let mut sessions: Vec<SessionSummary> = runtime.summary(id).await?.into_iter().collect();
        if self.is_tree {
            sessions.extend(runtime.sessions().tree(&**id).await?);
        }
        Ok(sessions)
    }
}

/// An item of the stream.
#[derive(Debug)]
pub(super) enum Item {
    /// An event. If it is durable, [`Following::position`] is behind it.
    Event(Arc<Event>),
    /// The reader was too slow: transient events are missing here. The durable ones follow.
    Gap,
}

impl Step {
    fn of(delivery: Delivery) -> Self {
        match delivery {
            Delivery::Event(event) => Self::Take(event),
            Delivery::Gap { .. } => Self::Gap,
        }
    }
}

/// The stream.
pub(super) struct Following {
    runtime: Runtime,
    scope: Scope,
    subscription: Subscription,
    position: Position,
    /// What is to be done before the next delivery is taken. A step stays here until it is done, so a caller may stop
    /// waiting at any time.
    steps: VecDeque<Step>,
    ready: VecDeque<Item>,
    /// What was in progress, until newer events come.
    joined: HashMap<Arc<str>, InProgress>,
    /// Whether a session with this creation time has the labels.
    members: HashMap<Arc<str>, (u64, bool)>,
}

#[derive(Clone)]
enum Step {
    /// Read what a session has behind the position.
    Read { session: Arc<str>, is_at_work: bool },
    /// Take an event of the subscription.
    Take(Arc<Event>),
    /// Events are missing.
    Gap,
}

impl Following {
    /// The stream from behind this position, or from now on; in both cases with what is in progress.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) async fn start(
        runtime: &Runtime,
        scope: Scope,
        after: Option<Position>,
    ) -> Result<Self, Error> {
        let is_from_now = after.is_none();
        let mut this = Self {
            runtime: runtime.clone(),
            subscription: runtime.subscribe(scope.filter()),
            scope,
            position: after.unwrap_or_default(),
            steps: VecDeque::new(),
            ready: VecDeque::new(),
            joined: HashMap::new(),
            members: HashMap::new(),
        };
        let sessions = this.scope.sessions(runtime).await?;
        if is_from_now {
            this.position = Position::of(&sessions);
        }
        this.join(sessions).await?;
        Ok(this)
    }

    /// The position behind the last item: a client that gives it gets what follows.
    pub(super) fn position(&self) -> &Position {
        &self.position
    }

    /// The next item; `None` when the runtime has ended. A caller that stops waiting loses nothing.
    pub(super) async fn next(&mut self) -> Option<Result<Item, Error>> {
        loop {
            if let Some(prepared) = self.prepared().await.transpose() {
                return Some(prepared);
            }
            let delivery = self.subscription.next().await?;
            self.steps.push_back(Step::of(delivery));
        }
    }

    /// The next item, if it has been published.
    pub(super) async fn next_known(&mut self) -> Option<Result<Item, Error>> {
        loop {
            if let Some(prepared) = self.prepared().await.transpose() {
                return Some(prepared);
            }
            let delivery = self.subscription.try_next()?;
            self.steps.push_back(Step::of(delivery));
        }
    }

    /// The next item without another delivery.
    async fn prepared(&mut self) -> Result<Option<Item>, Error> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                if let Item::Event(event) = &item {
                    self.position.pass(event);
                }
                let is_reading = self.steps.iter().any(|step| matches!(step, Step::Read { .. } | Step::Gap));
                if self.ready.is_empty() && !is_reading {
                    self.position.settle();
                }
                return Ok(Some(item));
            }
            let Some(step) = self.steps.front().cloned() else { return Ok(None) };
            match step {
                Step::Read { session, is_at_work } => self.read(session, is_at_work).await?,
                Step::Take(event) => self.take(event).await?,
                Step::Gap => {
                    let sessions = self.scope.sessions(&self.runtime).await?;
                    self.join(sessions).await?;
                    self.ready.push_back(Item::Gap);
                }
            }
            self.steps.pop_front();
        }
    }

    /// Prepares reading what these sessions have behind the position, and what is in progress in them.
    async fn join(&mut self, sessions: Vec<SessionSummary>) -> Result<(), Error> {
        let live = self.runtime.live().await?;
        for session in sessions {
            let is_at_work = session.has_open_run || live.contains(&session.id);
            if self.position.is_behind(&session) || (is_at_work && !self.scope.is_durable) {
                let session = Arc::from(session.id.as_str());
                self.steps.push_back(Step::Read { session, is_at_work });
            }
        }
        Ok(())
    }

    /// Reads what a session has behind the position.
    async fn read(&mut self, id: Arc<str>, is_at_work: bool) -> Result<(), Error> {
        let now = match self.runtime.session(&id).await {
            Ok(session) if is_at_work && !self.scope.is_durable => Some(session.in_progress().await?),
            Ok(_) => None,
            // It was deleted.
            Err(Error::NoSession { .. } | Error::Deleted { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some(summary) = self.runtime.summary(&id).await? else { return Ok(()) };
        let from = self.position.next(&summary);
        let events = self.runtime.replay(&id, from.seq).await?;
        // Later ones come from the subscription.
        let is_read =
            |event: &Event| now.as_ref().is_none_or(|now| now.seq.is_some_and(|seq| event.seq <= seq));
        let events = events.into_iter().skip_while(|event| event.at_ms < from.at_ms).filter(is_read);
        self.ready.extend(events.map(|event| Item::Event(Arc::new(event))));
        if let Some(now) = now {
            self.ready.extend(now.events.iter().cloned().map(|event| Item::Event(Arc::new(event))));
            self.joined.insert(id, now);
        }
        Ok(())
    }

    /// Takes an event of the subscription.
    async fn take(&mut self, event: Arc<Event>) -> Result<(), Error> {
        if !self.is_wanted(&event).await? {
            return Ok(());
        }
        if !event.is_durable() {
            match self.joined.get(&event.session) {
                Some(now) if now.contains(&event) => return Ok(()),
                Some(_) => _ = self.joined.remove(&event.session),
                None => {}
            }
            self.ready.push_back(Item::Event(event));
            return Ok(());
        }
        match self.position.seen(&event) {
            Seen::Before => {}
            Seen::Next => self.ready.push_back(Item::Event(event)),
            Seen::Later => {
                let session = Arc::clone(&event.session);
                self.steps.push_back(Step::Read { session, is_at_work: false });
            }
        }
        Ok(())
    }

    /// Whether the event's session has the labels.
    async fn is_wanted(&mut self, event: &Event) -> Result<bool, Error> {
        if self.scope.labels.is_empty() {
            return Ok(true);
        }
        let is_label = |record: &Record| matches!(record, Record::SessionLabel { .. });
        let changes = matches!(&event.kind, EventKind::Recorded { record, .. } if is_label(record));
        // A label counts for the sub-agents below, too.
        if changes || self.members.len() >= MEMBERS_MAX {
            self.members.clear();
        }
        let created_at_ms = event.session_created_at_ms;
        if let Some((of, is_member)) = self.members.get(&event.session)
            && *of == created_at_ms
        {
            return Ok(*is_member);
        }
        let is_member = has_labels(&self.runtime, &event.session, &self.scope.labels).await?;
        self.members.insert(Arc::clone(&event.session), (created_at_ms, is_member));
        Ok(is_member)
    }
}
