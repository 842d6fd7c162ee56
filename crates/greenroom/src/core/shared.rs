//! What a session's actors, its handles and the supervisor share: how the session stands, as its actor publishes it
//! ([`Published`]); the way to the actor; what an abort reaches; the children of its run; the order of its events; and what it
//! may cost.
//!
//! Invariants: what is published is a copy for others to read; all else is a way to reach somebody, and not a state. An actor
//! that falls asleep was taken away from here while nobody was about to speak to it, so nothing that is said to a session is
//! lost because it falls asleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use greenroom_kernel::entry::ChildRecord;
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{EntryId, RunId};
use greenroom_tools::Pauses;
use parking_lot::{Mutex, MutexGuard};
use ractor::ActorRef;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::core::child_work::ChildWork;
use crate::core::message::{SessionMail, SessionMessage};
use crate::events::activity::{Activity, InProgress};
use crate::events::bus::Bus;
use crate::events::event::{Event, EventKind};
use crate::limits::spending::tree::{Account, Ledger, Spends};
use crate::values::error::Error;

mod broadcast;
mod children;
mod published;
mod run_slot;

use broadcast::{Broadcast, Placed, Unrecorded};
use children::Children;
pub(crate) use published::Published;
use run_slot::RunSlot;

/// The most requests from outside that wait for a session's actor, or for the supervisor to open one.
pub(crate) const REQUESTS_MAX: usize = 1_024;

/// The number of a parking: a session's run may be parked many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parking(u64);

/// What is shared between a session's actors, its handles and the supervisor.
pub(crate) struct SessionShared {
    pub(crate) id: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    /// The sessions whose agents called each other down to this one, the nearest first: none for one that a program
    /// opened first.
    ancestors: Mutex<Arc<[Arc<str>]>>,
    /// How the session stands.
    published: Mutex<Published>,
    /// The agents that its run called as tools.
    children: Mutex<Children>,
    actor: Mutex<Option<ActorRef<SessionMail>>>,
    /// How many are about to speak to the actor, or have and were not heard yet.
    kept_awake: AtomicUsize,
    /// The definition that it works with; `None` until a program gives one.
    agent: Mutex<Option<Arc<Agent>>>,
    /// What an abort reaches.
    run: Mutex<RunSlot>,
    /// Whether a run goes on while the session sleeps; the supervisor keeps it.
    is_suspended: AtomicBool,
    /// How many times a run was parked.
    parkings: AtomicU64,
    /// Whether the session was deleted. Another one of the same id has another shared.
    is_deleted: AtomicBool,
    is_deleting: AtomicBool,
    /// The context's size, as the tracker measured it last.
    context: Mutex<ContextUsage>,
    account: Mutex<Account<Self>>,
    /// Whether a person is asked, in its run or below: then the limits of those who wait for it stand still.
    pauses: Pauses,
    /// Which events were published. It is held while one is, so that each session's events are in order.
    broadcast: Mutex<Broadcast>,
    /// Whether a request to abort the compaction is in the mailbox: one is enough.
    abort_asked: AtomicBool,
    pub(crate) activity: AtomicU64,
    /// Which use of all sessions its newest one was.
    used: AtomicU64,
    /// Places for requests in the actor's mailbox, which has no bound of its own.
    pub(crate) requests: Arc<Semaphore>,
    /// Places for queries of the session's state, which wait instead of being refused.
    pub(crate) queries: Arc<Semaphore>,
}

/// Keeps a session's actor awake until it is dropped.
pub(crate) struct KeptAwake(Arc<SessionShared>);

impl Drop for KeptAwake {
    fn drop(&mut self) {
        self.0.kept_awake.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What it costs and may cost.
impl Spends for SessionShared {
    fn account(&self) -> MutexGuard<'_, Account<Self>> {
        self.account.lock()
    }

    fn name(&self) -> &str {
        &self.id
    }
}

impl SessionShared {
    /// A shared for a session that has no actor yet. `unpublished` is the first durable event that is still due, where an
    /// earlier shared was given up before it was broadcast.
    pub(crate) fn new(
        id: Arc<str>,
        parent: Option<Arc<str>>,
        agent: Option<Arc<Agent>>,
        unpublished: Option<u64>,
    ) -> Self {
        let ancestors = Mutex::new(parent.iter().cloned().collect());
        Self {
            id,
            parent,
            ancestors,
            published: Mutex::default(),
            children: Mutex::default(),
            actor: Mutex::new(None),
            kept_awake: AtomicUsize::new(0),
            agent: Mutex::new(agent),
            run: Mutex::default(),
            is_suspended: AtomicBool::new(false),
            parkings: AtomicU64::new(0),
            is_deleted: AtomicBool::new(false),
            is_deleting: AtomicBool::new(false),
            context: Mutex::new(ContextUsage::new(
                Measured::default(),
                Window { tokens: None, source: WindowSource::Unknown },
            )),
            account: Mutex::default(),
            pauses: Pauses::default(),
            broadcast: Mutex::new(Broadcast::new(unpublished)),
            abort_asked: AtomicBool::new(false),
            activity: AtomicU64::new(0),
            used: AtomicU64::new(0),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            queries: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }

    /// The sessions above it, the nearest first.
    pub(crate) fn ancestors(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.ancestors.lock())
    }

    pub(crate) fn set_ancestors(&self, ancestors: Arc<[Arc<str>]>) {
        *self.ancestors.lock() = ancestors;
    }

    /// The agents that its newest run called as tools, in the order of their starts.
    pub(crate) fn children(&self) -> Vec<Arc<ChildWork>> {
        self.children.lock().works().to_vec()
    }

    pub(crate) fn add_child(&self, child: &Arc<ChildWork>) {
        self.children.lock().add(child);
    }

    /// The calls whose agents wait for people, and which therefore outlive whoever works on them.
    pub(crate) fn calls_that_wait(&self) -> Vec<String> {
        let children = self.children.lock();
        let waiting = children.works().iter().filter(|child| child.waits());
        waiting.map(|child| child.call_id.clone()).collect()
    }

    /// These agents were left, and wait for people.
    pub(crate) fn set_left_children(&self, left: Vec<(EntryId, ChildRecord)>) {
        self.children.lock().set_left(left);
    }

    /// The agent that was left with this call, for the one who goes on with the call; and the work on it here, if it was
    /// left here.
    pub(crate) fn take_left_child(
        &self,
        call_id: &str,
    ) -> Option<(EntryId, ChildRecord, Option<Arc<ChildWork>>)> {
        self.children.lock().take_left(call_id)
    }

    /// Whether this agent still works on a call of this session.
    pub(crate) fn has_child_at_work(&self, id: &str) -> bool {
        self.children.lock().works().iter().any(|child| *child.shared.id == *id && !child.is_over())
    }

    /// Takes an id for a child's session; `false` if another child of the run has it.
    pub(crate) fn take_child_id(&self, id: &Arc<str>) -> bool {
        self.children.lock().take_id(id)
    }

    /// Counts an agent that is about to be called, here and at each session above.
    ///
    /// # Errors
    /// [`Error::TooManySubAgents`] where one of their runs may call no more. Then nothing is counted.
    pub(crate) fn count_child(self: &Arc<Self>, ledger: &Ledger<Self>) -> Result<(), Error> {
        let chain = ledger.chain(self);
        for session in &chain {
            let max = session.agent().map_or(u32::MAX, |agent| agent.sub_agents_max);
            if session.children.lock().count() >= max {
                return Err(Error::TooManySubAgents { max });
            }
        }
        chain.iter().for_each(|session| session.children.lock().count_one());
        Ok(())
    }

    /// Paused while a person is asked, by its run or by an agent that works for it.
    pub(crate) fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// The session above all that it is a sub-agent of, or itself: the sessions of one family take turns with others as one.
    pub(crate) fn family(&self) -> Arc<str> {
        self.ancestors().last().map_or_else(|| Arc::clone(&self.id), Arc::clone)
    }

    /// Somebody uses the session, as the so-many-th use of all.
    pub(crate) fn mark_used(&self, number: u64) {
        self.used.store(number, Ordering::Relaxed);
    }

    /// Which use of all sessions its newest one was.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// How the session stands, as its actor published it last.
    pub(crate) fn published(&self) -> Published {
        self.published.lock().clone()
    }

    /// Publishes how the session stands now. Gives what was published before.
    pub(crate) fn publish_state(&self, published: Published) -> Published {
        std::mem::replace(&mut *self.published.lock(), published)
    }

    /// Whether somebody waits for what the session does.
    pub(crate) fn is_awaited(&self) -> bool {
        self.published.lock().is_awaited
    }

    pub(crate) fn actor(&self) -> Option<ActorRef<SessionMail>> {
        self.actor.lock().clone()
    }

    pub(crate) fn set_actor(&self, actor: Option<ActorRef<SessionMail>>) {
        *self.actor.lock() = actor;
    }

    /// Somebody is about to speak to the session: it does not fall asleep before what is given is dropped. Whoever speaks
    /// to the actor takes this first, then looks for the actor, and sends this along.
    pub(crate) fn keep_awake(self: &Arc<Self>) -> KeptAwake {
        self.kept_awake.fetch_add(1, Ordering::SeqCst);
        KeptAwake(Arc::clone(self))
    }

    /// The session's actor falls asleep: from now on whoever speaks to the session wakes it. `park` parks the run that goes on
    /// meanwhile, and says whether there is one. `false` where somebody is about to speak to the actor; then nothing is
    /// changed.
    pub(crate) fn fall_asleep(&self, park: impl FnOnce() -> bool) -> bool {
        // Whoever found the actor here was counted before, and whoever is counted later finds none.
        let mut actor = self.actor.lock();
        let is_free = self.kept_awake.load(Ordering::SeqCst) == 0;
        if is_free {
            self.set_suspended(park());
            *actor = None;
        }
        is_free
    }

    /// The definition that it works with; `None` where no program gave one yet.
    pub(crate) fn agent(&self) -> Option<Arc<Agent>> {
        self.agent.lock().clone()
    }

    pub(crate) fn set_agent(&self, agent: Option<Arc<Agent>>) {
        *self.agent.lock() = agent;
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::SeqCst)
    }

    /// Whether it is being deleted: what is under way in it ends for that reason.
    pub(crate) fn set_deleting(&self, is_deleting: bool) {
        self.is_deleting.store(is_deleting, Ordering::SeqCst);
    }

    /// Whether it is being deleted, or is gone.
    pub(crate) fn is_deleting(&self) -> bool {
        self.is_deleting.load(Ordering::SeqCst) || self.is_deleted()
    }

    /// Why nothing more comes of what was asked of it.
    pub(crate) fn gone(&self) -> Error {
        let session = self.id.to_string();
        match self.is_deleting() {
            true => Error::Deleted { session },
            false => Error::Interrupted { session },
        }
    }

    pub(crate) fn mark_deleted(&self) {
        self.is_deleted.store(true, Ordering::SeqCst);
    }

    /// Whether a run goes on while the session sleeps.
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::SeqCst)
    }

    /// Which parked run goes on while the session sleeps; `None` if there is none.
    pub(crate) fn parking(&self) -> Option<Parking> {
        self.is_suspended().then(|| Parking(self.parkings.load(Ordering::SeqCst)))
    }

    pub(crate) fn set_suspended(&self, is_suspended: bool) {
        if is_suspended {
            self.parkings.fetch_add(1, Ordering::SeqCst);
        }
        self.is_suspended.store(is_suspended, Ordering::SeqCst);
    }

    /// Whether the session's actor is about to end, so that its run is left and not aborted.
    pub(crate) fn is_closing(&self) -> bool {
        self.run.lock().is_closing()
    }

    pub(crate) fn set_closing(&self, is_closing: bool) {
        self.run.lock().set_closing(is_closing);
    }

    /// A run begins, which `cancel` cancels. It is cancelled at once by an early abort after the first `early_aborts`.
    pub(crate) fn begin_run(&self, id: RunId, cancel: CancellationToken, early_aborts: u64) {
        self.children.lock().begin_run();
        self.run.lock().begin(id, cancel, early_aborts);
    }

    /// The run in progress; `None` where none is open.
    pub(crate) fn open_run(&self) -> Option<RunId> {
        self.run.lock().open()
    }

    /// No run is open any more.
    pub(crate) fn end_run(&self) {
        self.run.lock().end();
    }

    pub(crate) fn cancel_run(&self) {
        self.run.lock().cancel();
    }

    /// Whether the run in progress is cancelled.
    pub(crate) fn is_run_cancelled(&self) -> bool {
        self.run.lock().is_cancelled()
    }

    /// How many aborts found no run open so far.
    pub(crate) fn early_aborts(&self) -> u64 {
        self.run.lock().early_aborts()
    }

    /// Leaves the current run, or the compaction that no run waits for, or the prompt that is on its way.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.run.lock().abort();
        let awake = self.keep_awake();
        if let Some(actor) = self.actor()
            && !self.abort_asked.swap(true, Ordering::Relaxed)
        {
            let _ = actor.cast(SessionMail::heard(SessionMessage::AbortCompaction, awake));
        }
    }

    /// The request to abort the compaction was taken up; the next one is another.
    pub(crate) fn abort_is_heard(&self) {
        self.abort_asked.store(false, Ordering::Relaxed);
    }

    pub(crate) fn set_context(&self, context: ContextUsage) {
        *self.context.lock() = context;
    }

    pub(crate) fn context(&self) -> ContextUsage {
        *self.context.lock()
    }

    /// The next sequence number to be broadcast: everything below it was.
    pub(crate) fn broadcast_below(&self) -> u64 {
        self.broadcast.lock().below()
    }

    /// The first durable event that may still be due; `None` where all were broadcast, or nothing was ever read.
    pub(crate) fn first_unpublished(&self) -> Option<u64> {
        self.broadcast.lock().first_unpublished()
    }

    /// The session ends in order, and every durable event was broadcast.
    pub(crate) fn mark_flushed(&self) {
        self.broadcast.lock().mark_flushed();
    }

    /// The session was read from its log, which has `entries` entries. Gives the first one whose event was not
    /// broadcast, if an actor before this one died before it could be.
    pub(crate) fn start_broadcast(&self, entries: u64, created_at_ms: u64) -> Option<u64> {
        // A request that the last actor did not live to take up is void.
        self.abort_is_heard();
        self.broadcast.lock().start(entries, created_at_ms)
    }

    /// When the session was created, in unix milliseconds; `None` before an actor knew.
    pub(crate) fn created_at_ms(&self) -> Option<u64> {
        self.broadcast.lock().created_at_ms()
    }

    /// What goes on, as far as it was published.
    pub(crate) fn current_activity(&self) -> Activity {
        self.broadcast.lock().activity()
    }

    /// What goes on that no entry says yet; `None` where no actor had this shared before, so that it does not know how far
    /// the log is.
    pub(crate) fn in_progress(&self) -> Option<InProgress> {
        let broadcast = self.broadcast.lock();
        let Unrecorded { seq, n, run, events } = broadcast.unrecorded()?;
        let event =
            |(at_ms, kind)| self.event(&broadcast, Placed { seq: seq.unwrap_or(0), n, run, kind }, at_ms);
        let events = events.into_iter().map(event).collect();
        Some(InProgress { seq, n, events })
    }

    /// Publishes a transient event of the run that is going on, or of none.
    pub(crate) fn publish(&self, bus: &Bus, kind: EventKind) {
        let mut broadcast = self.broadcast.lock();
        let run = broadcast.run();
        self.publish_transient(bus, &mut broadcast, run, kind);
    }

    /// Publishes a transient event of this run.
    pub(crate) fn publish_of_run(&self, bus: &Bus, run: RunId, kind: EventKind) {
        self.publish_transient(bus, &mut self.broadcast.lock(), Some(run), kind);
    }

    /// Publishes a durable event, once.
    pub(crate) fn publish_durable(&self, bus: &Bus, event: &Arc<Event>) {
        let mut broadcast = self.broadcast.lock();
        let (is_due, first) = broadcast.durable(event.seq, event.run, &event.kind, event.at_ms);
        if let Some(first) = first {
            self.publish_placed(bus, &broadcast, first);
        }
        if is_due {
            self.publish_to(bus, event);
        }
    }

    fn publish_transient(&self, bus: &Bus, broadcast: &mut Broadcast, run: Option<RunId>, kind: EventKind) {
        let placed = broadcast.transient(run, kind, || bus.now_ms());
        placed.into_iter().flatten().for_each(|placed| self.publish_placed(bus, broadcast, placed));
    }

    fn publish_placed(&self, bus: &Bus, broadcast: &Broadcast, placed: Placed) {
        if !bus.is_unheard() {
            self.publish_to(bus, &Arc::new(self.event(broadcast, placed, bus.now_ms())));
        }
    }

    fn event(&self, broadcast: &Broadcast, placed: Placed, at_ms: u64) -> Event {
        let Placed { seq, n, run, kind } = placed;
        Event {
            session: Arc::clone(&self.id),
            session_created_at_ms: broadcast.created_at_ms().unwrap_or(0),
            seq,
            n: Some(n),
            at_ms,
            run,
            parent: self.parent.clone(),
            kind,
        }
    }

    fn publish_to(&self, bus: &Bus, event: &Arc<Event>) {
        // One that a program opened has none.
        match &self.parent {
            None => bus.publish(event, &[]),
            Some(_) => bus.publish(event, &self.ancestors()),
        }
    }
}
