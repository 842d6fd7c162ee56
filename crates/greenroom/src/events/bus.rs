//! The event bus: delivers every event to each subscriber that wants it, and a notice to a subscriber that
//! missed some.
//!
//! Invariants: publishing never waits; a subscriber's queue holds at most [`QUEUE_BYTES`], and events that do
//! not fit become one explicit [`Delivery::Gap`] in their place; a caller that streams its own run loses no
//! event of it, because the run waits (`run_link`); live events of one session arrive in the order in which
//! they were published.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, RwLock};

use crate::events::event::{Event, EventKind, EventType};
use crate::events::run_link::{Room, RunLink};
use crate::values::clock::Clock;
use greenroom_kernel::redact::Redactor;

#[cfg(test)]
mod tests;

/// The maximum number of bytes (estimated) in one subscriber's queue.
pub(crate) const QUEUE_BYTES: usize = 1024 * 1024;

/// An item of a subscription.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// An event.
    Event(Arc<Event>),
    /// Events that did not fit into the subscriber's queue. The durable ones can be read again: see
    /// [`Runtime::replay`](crate::Runtime::replay).
    Gap {
        /// The cursor of the first missed event.
        from: u64,
        /// The cursor after the last missed one.
        to: u64,
        /// The sessions that lost durable events, with the sequence number of the first lost one.
        sessions: Vec<(Arc<str>, u64)>,
    },
}

/// Selects the events of a subscription.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Filter {
    session: Option<Arc<str>>,
    /// Whether events of the session's descendants are selected, too.
    is_tree: bool,
    durable_only: bool,
    types: Option<Vec<EventType>>,
}

impl Filter {
    /// Selects every event of every session.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects the events of one session.
    pub fn session(id: impl Into<Arc<str>>) -> Self {
        Self { session: Some(id.into()), ..Self::default() }
    }

    /// Selects the events of a session and of all its sub-agents on every level, including those that start
    /// later.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # async fn example(runtime: Runtime) {
    /// let mut events = runtime.subscribe(Filter::tree("team"));
    /// while let Some(event) = events.next_event().await {
    ///     println!("{} of {:?}: {}", event.session, event.parent, event.kind.name());
    /// }
    /// # }
    /// ```
    pub fn tree(root: impl Into<Arc<str>>) -> Self {
        Self { session: Some(root.into()), is_tree: true, ..Self::default() }
    }

    /// Restricts the filter to durable events, which are in the log.
    pub fn durable(mut self) -> Self {
        self.durable_only = true;
        self
    }

    /// Restricts the filter to these types.
    ///
    /// ```
    /// use greenroom::{EventType, Filter};
    /// let ends = Filter::all().kinds([EventType::RunEnd, EventType::CompactionEnd]);
    /// ```
    pub fn kinds(mut self, types: impl IntoIterator<Item = EventType>) -> Self {
        self.types = Some(types.into_iter().collect());
        self
    }

    /// Whether the filter selects this event of a session with these ancestors.
    fn wants(&self, event: &Event, ancestors: &[Arc<str>]) -> bool {
        let is_below = |session| self.is_tree && ancestors.contains(session);
        self.session.as_ref().is_none_or(|session| *session == event.session || is_below(session))
            && (!self.durable_only || event.is_durable())
            && self.types.as_ref().is_none_or(|types| types.contains(&event.kind.event_type()))
    }
}

#[derive(Debug, Default)]
struct Subscribers {
    all: Vec<Weak<Queue>>,
    by_session: HashMap<Arc<str>, Vec<Weak<Queue>>>,
}

/// The bus of one runtime.
#[derive(Debug)]
pub(crate) struct Bus {
    /// The clock for transient events.
    clock: Clock,
    /// Redacts transient events.
    redactor: Redactor,
    subscribers: RwLock<Subscribers>,
    /// Whether `subscribers` is not empty.
    is_heard: AtomicBool,
    cursor: AtomicU64,
    /// The number of gaps so far, in all queues.
    gaps: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    filter: Filter,
    own_run: Option<OwnRun>,
    state: Mutex<QueueState>,
    waker: AtomicWaker,
}

/// The run that a subscriber streams.
#[derive(Debug)]
struct OwnRun {
    link: Arc<RunLink>,
    room: Arc<Room>,
}

impl OwnRun {
    /// Whether an event must not be lost: the run has started, and the event is not a tool's progress line.
    fn keeps(&self, event: &Event) -> bool {
        self.link.run().is_some() && event.kind.event_type() != EventType::ToolUpdate
    }

    fn ends_with(&self, event: &Event) -> bool {
        matches!(event.kind, EventKind::RunEnd { .. }) && event.run.is_some() && event.run == self.link.run()
    }
}

/// Events that did not fit.
#[derive(Debug)]
struct Gap {
    /// The cursor of the first one.
    from: u64,
    /// The cursor after the last one.
    to: u64,
    /// The first lost sequence number of each session that lost durable events.
    sessions: Vec<(Arc<str>, u64)>,
    /// The ids in `sessions`, for lookups: a queue that is not read may lose events of many sessions.
    known: HashSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<Delivery>,
    /// The subscriber's own run has ended: no more events are queued.
    is_over: bool,
    bytes: usize,
    /// The gap at the end of the queue.
    gap: Option<Gap>,
    closed: bool,
}

impl Bus {
    pub(crate) fn new(clock: Clock, redactor: Redactor) -> Self {
        let (is_heard, cursor, gaps) = (AtomicBool::default(), AtomicU64::default(), AtomicU64::default());
        Self { clock, redactor, subscribers: RwLock::default(), is_heard, cursor, gaps }
    }

    /// Returns what redacts transient events.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Returns the current time, in Unix milliseconds.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Whether there are no subscribers: then transient events are not created at all.
    pub(crate) fn is_unheard(&self) -> bool {
        !self.is_heard.load(Ordering::Relaxed)
    }

    /// Publishes an event to every subscriber that wants it, without waiting for any. `ancestors` are the
    /// sessions above the event's.
    pub(crate) fn publish(&self, event: &Arc<Event>, ancestors: &[Arc<str>]) {
        let cursor = self.cursor.fetch_add(1, Ordering::Relaxed);
        if self.is_unheard() {
            return;
        }
        let subscribers = self.subscribers.read();
        let sessions = [&event.session].into_iter().chain(ancestors);
        let of_session = sessions.filter_map(|session| subscribers.by_session.get(session)).flatten();
        for queue in subscribers.all.iter().chain(of_session).filter_map(Weak::upgrade) {
            if queue.filter.wants(event, ancestors) {
                let begins_gap = queue.push(cursor, event);
                self.gaps.fetch_add(u64::from(begins_gap), Ordering::Relaxed);
            }
        }
    }

    /// Returns the number of subscriptions, and the number of gaps so far.
    #[cfg(feature = "metrics")]
    pub(crate) fn counts(&self) -> (usize, u64) {
        let subscribers = self.subscribers.read();
        let all = subscribers.all.iter().chain(subscribers.by_session.values().flatten());
        let subscribed = all.filter(|queue| queue.strong_count() > 0).count();
        (subscribed, self.gaps.load(Ordering::Relaxed))
    }

    /// Adds a subscriber for events from now on.
    pub(crate) fn subscribe(&self, filter: Filter) -> Subscription {
        self.add(filter, None)
    }

    /// Adds a subscriber that streams its own run: the run waits when this subscriber is slow.
    pub(crate) fn subscribe_to_run(&self, filter: Filter, link: &Arc<RunLink>) -> Subscription {
        let room = Arc::new(Room::new(QUEUE_BYTES));
        link.watch(Arc::clone(&room));
        self.add(filter, Some(OwnRun { link: Arc::clone(link), room }))
    }

    fn add(&self, filter: Filter, own_run: Option<OwnRun>) -> Subscription {
        let queue = Arc::new(Queue { filter, own_run, state: Mutex::default(), waker: AtomicWaker::new() });
        let mut subscribers = self.subscribers.write();
        let list = match &queue.filter.session {
            Some(session) => subscribers.by_session.entry(Arc::clone(session)).or_default(),
            None => &mut subscribers.all,
        };
        list.retain(|other| other.strong_count() > 0);
        list.push(Arc::downgrade(&queue));
        self.is_heard.store(true, Ordering::Relaxed);
        // From time to time, sessions without subscribers are removed.
        if subscribers.by_session.len() > 64 && subscribers.by_session.len().is_power_of_two() {
            subscribers.by_session.retain(|_, list| list.iter().any(|queue| queue.strong_count() > 0));
        }
        Subscription { queue }
    }

    /// Ends all subscriptions, after their queued deliveries.
    pub(crate) fn close(&self) {
        let subscribers = self.subscribers.read();
        for queue in
            subscribers.all.iter().chain(subscribers.by_session.values().flatten()).filter_map(Weak::upgrade)
        {
            queue.state.lock().closed = true;
            queue.waker.wake();
        }
    }
}

impl Queue {
    /// Queues an event. Returns whether it is the first one of a gap.
    fn push(&self, cursor: u64, event: &Arc<Event>) -> bool {
        let mut begins_gap = false;
        let weight = event.kind.weight();
        let was_empty;
        {
            let mut state = self.state.lock();
            if state.is_over {
                return false;
            }
            was_empty = state.is_empty();
            let keeps = self.own_run.as_ref().is_some_and(|own_run| own_run.keeps(event));
            if keeps {
                // A gap keeps its place before this event.
                let gap = state.take_gap();
                state.items.extend(gap);
                state.is_over = self.own_run.as_ref().is_some_and(|own_run| own_run.ends_with(event));
            }
            // Once there is a gap, all events until it is read belong to it: this keeps the order.
            if !keeps && (state.gap.is_some() || state.bytes + weight > QUEUE_BYTES) {
                begins_gap = state.gap.is_none();
                let gap = state.gap.get_or_insert_with(|| Gap {
                    from: cursor,
                    to: cursor,
                    sessions: Vec::new(),
                    known: HashSet::new(),
                });
                gap.to = cursor + 1;
                if event.is_durable() && !gap.known.contains(&event.session) {
                    gap.known.insert(Arc::clone(&event.session));
                    gap.sessions.push((Arc::clone(&event.session), event.seq));
                }
            } else {
                state.bytes += weight;
                state.items.push_back(Delivery::Event(Arc::clone(event)));
            }
            self.tell_room(&state);
        }
        // A waiting reader found the queue empty; any other reader was woken before, or does not wait.
        if was_empty {
            self.waker.wake();
        }
        begins_gap
    }
}

impl Queue {
    fn tell_room(&self, state: &QueueState) {
        if let Some(own_run) = &self.own_run {
            own_run.room.set(state.bytes);
        }
    }

    fn pop(&self, state: &mut QueueState) -> Option<Delivery> {
        let popped = state.pop();
        self.tell_room(state);
        popped
    }
}

/// A stream of events. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription {
    queue: Arc<Queue>,
}

impl Subscription {
    /// Waits for the next delivery; returns `None` when the runtime is shut down and everything was
    /// delivered.
    pub async fn next(&mut self) -> Option<Delivery> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Waits for the next event, skipping gaps; returns `None` when the runtime is shut down.
    pub async fn next_event(&mut self) -> Option<Arc<Event>> {
        loop {
            if let Delivery::Event(event) = self.next().await? {
                return Some(event);
            }
        }
    }

    /// Returns the next delivery if there is one, without waiting.
    pub fn try_next(&mut self) -> Option<Delivery> {
        let mut state = self.queue.state.lock();
        self.queue.pop(&mut state)
    }

    /// Returns the number of queued deliveries.
    pub fn waiting(&self) -> usize {
        let state = self.queue.state.lock();
        state.items.len() + usize::from(state.gap.is_some())
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        let take = || {
            let mut state = self.queue.state.lock();
            match self.queue.pop(&mut state) {
                Some(delivery) => Poll::Ready(Some(delivery)),
                None if state.closed => Poll::Ready(None),
                None => Poll::Pending,
            }
        };
        if let ready @ Poll::Ready(_) = take() {
            return ready;
        }
        self.queue.waker.register(context.waker());
        // An event may have arrived before the registration.
        take()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(own_run) = &self.queue.own_run {
            own_run.room.leave();
        }
    }
}

impl Stream for Subscription {
    type Item = Delivery;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.poll(context)
    }
}

impl QueueState {
    fn pop(&mut self) -> Option<Delivery> {
        let delivery = self.items.pop_front().or_else(|| self.take_gap());
        if let Some(Delivery::Event(event)) = &delivery {
            self.bytes -= event.kind.weight();
        }
        delivery
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.gap.is_none()
    }

    fn take_gap(&mut self) -> Option<Delivery> {
        self.gap.take().map(|Gap { from, to, sessions, known: _ }| Delivery::Gap { from, to, sessions })
    }
}
