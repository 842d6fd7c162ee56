//! The state that a session's actors, its handles and the supervisor share: the session's state as its actor
//! publishes it ([`Published`]), access to the actor, the target of aborts, the sub-agents of its run, the
//! order of its events, and its budget.
//!
//! Invariants: published data is a copy for readers; everything else is access, not state. A falling-asleep
//! actor is removed from here while no sender is about to use it, so no message to a session is lost because
//! it falls asleep.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use greenroom_kernel::entry::ChildRecord;
use greenroom_kernel::usage::{ContextUsage, Counting, Measured, Window, WindowSource};
use greenroom_kernel::{EntryId, RunId};
use greenroom_tools::Pauses;
use parking_lot::{Mutex, MutexGuard};
use ractor::ActorRef;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use greenroom_store::StoreError;

use crate::core::child_work::ChildWork;
use crate::core::message::{SessionMail, SessionMessage};
use crate::events::activity::{Activity, InProgress};
use crate::events::bus::Bus;
use crate::events::entry_events::Due;
use crate::events::event::{Event, EventKind};
use crate::events::redact;
use crate::limits::accounts::slots::LabelSlot;
use crate::limits::labels::Tenants;
use crate::limits::spending::tree::{Account, Spends};
use crate::values::error::Error;

mod agent;
mod broadcast;
mod children;
mod published;
mod run_slot;

use broadcast::{Broadcast, Discarded, Place, Unrecorded};
use children::Children;
pub(crate) use published::Published;
use run_slot::RunSlot;

/// The maximum number of outside requests that wait for a session's actor, or for the supervisor to open one.
pub(crate) const REQUESTS_MAX: usize = 1_024;

/// The number of a parking: a session's run may be parked many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parking(u64);

/// The state that a session's actors, its handles and the supervisor share.
pub(crate) struct SessionShared {
    pub(crate) id: Arc<str>,
    pub(crate) parent: Option<Arc<str>>,
    /// The callers of this session's agent, the nearest first; none for a top-level session.
    ancestors: Mutex<Arc<[Arc<str>]>>,
    /// The session's published state.
    published: Mutex<Published>,
    /// The sub-agents of its run.
    children: Mutex<Children>,
    actor: Mutex<Option<ActorRef<SessionMail>>>,
    /// The number of senders that are about to send to the actor, or whose messages were not handled yet.
    kept_awake: AtomicUsize,
    /// The session's agent; `None` until a program provides one.
    agent: Mutex<Option<Arc<Agent>>>,
    /// The agent with which the run in progress began, if the session has another one by now.
    #[cfg(feature = "permissions")]
    working: Mutex<Option<Arc<Agent>>>,
    /// The target of an abort.
    run: Mutex<RunSlot>,
    /// The answer whose calls run, or ran last.
    #[cfg(feature = "command-tools")]
    answer: Mutex<Option<EntryId>>,
    /// Whether a run continues while the session sleeps; the supervisor keeps it.
    is_suspended: AtomicBool,
    /// The number of times a run was parked.
    parkings: AtomicU64,
    /// Whether another node took the session over.
    is_lost: AtomicBool,
    /// Whether the session was deleted. A new session with the same id has its own shared state.
    is_deleted: AtomicBool,
    is_deleting: AtomicBool,
    /// The tracker's newest measurement.
    measured: Mutex<TrackerMeasured>,
    account: Mutex<Account<Self>>,
    /// The labels by which it is counted; for a sub-agent, those of its top-level session when it was opened.
    tenants: Mutex<Tenants>,
    /// The slots of its run among those of its labels.
    label_slots: Mutex<Vec<LabelSlot>>,
    /// Whether a person is being asked, in its run or below: then the time limits of those that wait for it
    /// stop.
    pauses: Pauses,
    /// The published events. The lock is held during a publication, so each session's events are in order.
    broadcast: Mutex<Broadcast>,
    /// Whether a request to abort the compaction is in the mailbox: one is enough.
    abort_asked: AtomicBool,
    /// How often the context was rewritten, by a compaction, an undo or a branch.
    rewrites: AtomicU64,
    /// The reasons of dropped thinking of which the user was told.
    dropped_thinking: Mutex<HashSet<String>>,
    pub(crate) activity: AtomicU64,
    /// The number of its newest use among the uses of all sessions.
    used: AtomicU64,
    /// Permits for requests in the actor's mailbox, which is unbounded.
    pub(crate) requests: Arc<Semaphore>,
    /// Permits for queries of the session's state, which wait instead of being refused.
    pub(crate) queries: Arc<Semaphore>,
}

/// What a usage tracker has published of its newest measurement.
struct TrackerMeasured {
    /// The context's size.
    context: ContextUsage,
    /// What it has learned of the server's counting.
    counting: Counting,
    /// The server and the model to which that applies; `None` before a tracker has started.
    counted_model: Option<(String, String)>,
}

/// Keeps a session's actor awake until it is dropped.
pub(crate) struct KeptAwake(Arc<SessionShared>);

impl Drop for KeptAwake {
    fn drop(&mut self) {
        self.0.kept_awake.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The session's spending and its limit.
impl Spends for SessionShared {
    fn account(&self) -> MutexGuard<'_, Account<Self>> {
        self.account.lock()
    }

    fn name(&self) -> &str {
        &self.id
    }
}

impl SessionShared {
    /// Creates the shared state of a session without an actor. `unpublished` is the first unpublished durable
    /// event of an earlier shared state that was dropped.
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
            #[cfg(feature = "permissions")]
            working: Mutex::default(),
            run: Mutex::default(),
            #[cfg(feature = "command-tools")]
            answer: Mutex::new(None),
            is_suspended: AtomicBool::new(false),
            parkings: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            is_deleted: AtomicBool::new(false),
            is_deleting: AtomicBool::new(false),
            measured: Mutex::new(TrackerMeasured {
                context: ContextUsage::new(
                    Measured::default(),
                    Window { tokens: None, source: WindowSource::Unknown },
                ),
                counting: Counting::default(),
                counted_model: None,
            }),
            account: Mutex::default(),
            tenants: Mutex::new(Arc::from([])),
            label_slots: Mutex::default(),
            pauses: Pauses::default(),
            broadcast: Mutex::new(Broadcast::new(unpublished)),
            abort_asked: AtomicBool::new(false),
            rewrites: AtomicU64::new(0),
            dropped_thinking: Mutex::default(),
            activity: AtomicU64::new(0),
            used: AtomicU64::new(0),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            queries: Arc::new(Semaphore::new(REQUESTS_MAX)),
        }
    }

    /// Whether the user has not been told of thinking that was dropped for this reason. From now on, the user has.
    pub(crate) fn is_first_drop(&self, reason: String) -> bool {
        const REASONS_MAX: usize = 16;
        let mut told = self.dropped_thinking.lock();
        told.len() < REASONS_MAX && told.insert(reason)
    }

    /// Returns the sessions above it, the nearest first.
    pub(crate) fn ancestors(&self) -> Arc<[Arc<str>]> {
        Arc::clone(&self.ancestors.lock())
    }

    pub(crate) fn set_ancestors(&self, ancestors: Arc<[Arc<str>]>) {
        *self.ancestors.lock() = ancestors;
    }

    /// Returns the sub-agents of its newest run, in the order of their starts.
    pub(crate) fn children(&self) -> Vec<Arc<ChildWork>> {
        self.children.lock().works().to_vec()
    }

    pub(crate) fn add_child(&self, child: &Arc<ChildWork>) {
        self.children.lock().add(child);
    }

    /// Returns the calls whose sub-agents wait for people, and which therefore outlive the actor that runs
    /// them.
    pub(crate) fn calls_that_wait(&self) -> Vec<String> {
        let children = self.children.lock();
        let waiting = children.works().iter().filter(|child| child.waits());
        waiting.map(|child| child.call_id.clone()).collect()
    }

    /// Sets the sub-agents that were left waiting for people.
    pub(crate) fn set_left_children(&self, left: Vec<(EntryId, ChildRecord)>) {
        self.children.lock().set_left(left);
    }

    /// Returns the start of the sub-agent that was left with this call, for the successor that continues the
    /// call; and the work on it, if it was left in this process.
    pub(crate) fn take_left_child(
        &self,
        call_id: &str,
    ) -> Option<(EntryId, ChildRecord, Option<Arc<ChildWork>>)> {
        self.children.lock().take_left(call_id)
    }

    /// Whether this sub-agent still works on a call of this session.
    pub(crate) fn has_child_at_work(&self, id: &str) -> bool {
        self.children.lock().works().iter().any(|child| *child.shared.id == *id && !child.is_over())
    }

    /// Reserves an id for a sub-agent's session; returns false if another one of the run has it.
    pub(crate) fn take_child_id(&self, id: &Arc<str>) -> bool {
        self.children.lock().take_id(id)
    }

    /// The pauses while a person is being asked, by its run or by a sub-agent that works for it.
    pub(crate) fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// Returns the top-level session above this one, or this one: sessions of one family share turns.
    pub(crate) fn family(&self) -> Arc<str> {
        self.ancestors().last().map_or_else(|| Arc::clone(&self.id), Arc::clone)
    }

    /// Returns the labels by which it is counted, without regard to the session that called it.
    pub(crate) fn tenants(&self) -> Tenants {
        Arc::clone(&self.tenants.lock())
    }

    pub(crate) fn set_tenants(&self, tenants: Tenants) {
        *self.tenants.lock() = tenants;
    }

    /// Keeps the slots of this run, unless it has ended.
    pub(crate) fn keep_label_slots(&self, run: RunId, slots: Vec<LabelSlot>) {
        // The run cannot end in between.
        let open = self.run.lock();
        if open.open() == Some(run) {
            *self.label_slots.lock() = slots;
        }
    }

    /// Whether its run has slots.
    pub(crate) fn has_label_slots(&self) -> bool {
        !self.label_slots.lock().is_empty()
    }

    /// Frees the slots of its run, which ends or waits for a person.
    pub(crate) fn free_label_slots(&self) {
        self.label_slots.lock().clear();
    }

    /// Notes a use of the session, with its number among the uses of all sessions.
    pub(crate) fn mark_used(&self, number: u64) {
        self.used.store(number, Ordering::Relaxed);
    }

    /// Returns the number of its newest use among the uses of all sessions.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the session's published state.
    pub(crate) fn published(&self) -> Published {
        self.published.lock().clone()
    }

    /// Publishes the session's state. Returns the previously published one.
    pub(crate) fn publish_state(&self, published: Published) -> Published {
        std::mem::replace(&mut *self.published.lock(), published)
    }

    /// Whether a caller, a run or input waits for the session's work.
    pub(crate) fn is_awaited(&self) -> bool {
        self.published.lock().is_awaited
    }

    /// Whether a caller, a run or input waits for a compaction that has started.
    pub(crate) fn is_summary_awaited(&self) -> bool {
        self.published.lock().is_summary_awaited
    }

    pub(crate) fn actor(&self) -> Option<ActorRef<SessionMail>> {
        self.actor.lock().clone()
    }

    pub(crate) fn set_actor(&self, actor: Option<ActorRef<SessionMail>>) {
        *self.actor.lock() = actor;
    }

    /// Keeps the session awake until the returned guard is dropped. A sender takes the guard first, then
    /// looks for the actor, and sends the guard along with the message.
    pub(crate) fn keep_awake(self: &Arc<Self>) -> KeptAwake {
        self.kept_awake.fetch_add(1, Ordering::SeqCst);
        KeptAwake(Arc::clone(self))
    }

    /// Removes the session's actor, which falls asleep: later senders wake the session. `park` parks the run
    /// that continues in the meantime, and returns whether there is one. Returns false, and changes nothing,
    /// if a sender is about to use the actor.
    pub(crate) fn fall_asleep(&self, park: impl FnOnce() -> bool) -> bool {
        // A sender that found the actor was counted before; one that is counted later finds no actor.
        let mut actor = self.actor.lock();
        let is_free = self.kept_awake.load(Ordering::SeqCst) == 0;
        if is_free {
            self.set_suspended(park());
            *actor = None;
        }
        is_free
    }

    /// Returns the session's agent; `None` if no program has provided one yet.
    pub(crate) fn agent(&self) -> Option<Arc<Agent>> {
        self.agent.lock().clone()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::SeqCst)
    }

    /// Sets whether the session is being deleted: work in progress ends for that reason.
    pub(crate) fn set_deleting(&self, is_deleting: bool) {
        self.is_deleting.store(is_deleting, Ordering::SeqCst);
    }

    /// Whether the session is being deleted, or was deleted.
    pub(crate) fn is_deleting(&self) -> bool {
        self.is_deleting.load(Ordering::SeqCst) || self.is_deleted()
    }

    /// Returns why no more results of requests arrive.
    pub(crate) fn gone(&self) -> Error {
        let session = self.id.to_string();
        if self.is_deleting() {
            Error::Deleted { session }
        } else if self.is_lost() {
            StoreError::Fenced { session }.into()
        } else {
            Error::Interrupted { session }
        }
    }

    /// Whether another node took the session over. Its actors end without a trace, and are not started again before a
    /// caller asks for the session.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    /// Notes that another node took the session over: work in progress ends.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        self.set_closing(true);
        self.cancel_run();
    }

    /// Notes that the session is this node's again.
    pub(crate) fn claimed(&self) {
        self.is_lost.store(false, Ordering::SeqCst);
    }

    pub(crate) fn mark_deleted(&self) {
        self.is_deleted.store(true, Ordering::SeqCst);
        #[cfg(feature = "permissions")]
        if let Some(permissions) = self.agent().as_ref().and_then(|agent| agent.permissions.as_ref()) {
            permissions.forget(&self.id);
        }
    }

    /// Whether a run continues while the session sleeps.
    pub(crate) fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::SeqCst)
    }

    /// Returns the parked run that continues while the session sleeps; `None` if there is none.
    pub(crate) fn parking(&self) -> Option<Parking> {
        self.is_suspended().then(|| Parking(self.parkings.load(Ordering::SeqCst)))
    }

    pub(crate) fn set_suspended(&self, is_suspended: bool) {
        if is_suspended {
            self.parkings.fetch_add(1, Ordering::SeqCst);
        }
        self.is_suspended.store(is_suspended, Ordering::SeqCst);
    }

    /// Whether the session's actor is about to end, so its run is left and not aborted.
    pub(crate) fn is_closing(&self) -> bool {
        self.run.lock().is_closing()
    }

    pub(crate) fn set_closing(&self, is_closing: bool) {
        self.run.lock().set_closing(is_closing);
    }

    /// Starts a run, which `cancel` cancels. An early abort after the first `early_aborts` cancels it at
    /// once.
    pub(crate) fn begin_run(&self, id: RunId, cancel: CancellationToken, early_aborts: u64) {
        self.children.lock().begin_run();
        self.run.lock().begin(id, cancel, early_aborts);
    }

    /// Returns the run in progress; `None` if there is none.
    pub(crate) fn open_run(&self) -> Option<RunId> {
        self.run.lock().open()
    }

    /// Notes the answer whose calls run.
    #[cfg(feature = "command-tools")]
    pub(crate) fn set_answer(&self, answer: EntryId) {
        *self.answer.lock() = Some(answer);
    }

    /// Returns the answer whose calls run, or ran last.
    #[cfg(feature = "command-tools")]
    pub(crate) fn answer(&self) -> Option<EntryId> {
        *self.answer.lock()
    }

    /// Notes that no run is open.
    pub(crate) fn end_run(&self) {
        let mut run = self.run.lock();
        run.end();
        self.free_label_slots();
    }

    pub(crate) fn cancel_run(&self) {
        self.run.lock().cancel();
    }

    /// Whether the run in progress is cancelled.
    pub(crate) fn is_run_cancelled(&self) -> bool {
        self.run.lock().is_cancelled()
    }

    /// The number of aborts so far that found no open run.
    pub(crate) fn early_aborts(&self) -> u64 {
        self.run.lock().early_aborts()
    }

    /// Aborts the current run, the compaction for which no run waits, or the prompt on its way.
    pub(crate) fn abort(self: &Arc<Self>) {
        self.run.lock().abort();
        let awake = self.keep_awake();
        if let Some(actor) = self.actor()
            && !self.abort_asked.swap(true, Ordering::Relaxed)
        {
            let _ = actor.cast(SessionMail::heard(SessionMessage::AbortCompaction, awake));
        }
    }

    /// Notes that the request to abort the compaction was handled; the next one is another.
    pub(crate) fn abort_is_heard(&self) {
        self.abort_asked.store(false, Ordering::Relaxed);
    }

    /// Sets the context's size, which the session measured before the tracker.
    pub(crate) fn set_context(&self, context: ContextUsage) {
        self.measured.lock().context = context;
    }

    /// Sets the tracker's newest measurement.
    pub(crate) fn set_measured(&self, context: ContextUsage, counting: Counting) {
        let mut measured = self.measured.lock();
        (measured.context, measured.counting) = (context, counting);
    }

    /// As [`Self::set_measured`], with the server and the model whose counting the tracker learns from now on.
    pub(crate) fn set_counted_model(
        &self,
        origin: &str,
        model: &str,
        context: ContextUsage,
        counting: Counting,
    ) {
        let counted_model = Some((origin.to_owned(), model.to_owned()));
        *self.measured.lock() = TrackerMeasured { context, counting, counted_model };
    }

    pub(crate) fn context(&self) -> ContextUsage {
        self.measured.lock().context
    }

    /// Returns what the tracker has learned of the counting of this server and model; `None` if it follows another one.
    pub(crate) fn counting(&self, origin: &str, model: &str) -> Option<Counting> {
        let measured = self.measured.lock();
        let (of, name) = measured.counted_model.as_ref()?;
        (of == origin && name == model).then_some(measured.counting)
    }

    /// The sequence number of the next event to publish: all before it were published.
    pub(crate) fn broadcast_below(&self) -> u64 {
        self.broadcast.lock().below()
    }

    /// Returns the first durable event that may be unpublished; `None` if all were published, or nothing was
    /// ever read.
    pub(crate) fn first_unpublished(&self) -> Option<u64> {
        self.broadcast.lock().first_unpublished()
    }

    /// Notes that the session ends cleanly, with every durable event published.
    pub(crate) fn mark_flushed(&self) {
        self.broadcast.lock().mark_flushed();
    }

    /// Notes that the session was read from its log, which has `entries` entries. Returns the first one whose
    /// event is unpublished because an earlier actor crashed.
    pub(crate) fn start_broadcast(&self, entries: u64, created_at_ms: u64) -> Option<u64> {
        // A request that the last actor did not handle before its end is void.
        self.abort_is_heard();
        self.broadcast.lock().start(entries, created_at_ms)
    }

    /// Returns when the session was created, in Unix milliseconds; `None` before an actor knew.
    pub(crate) fn created_at_ms(&self) -> Option<u64> {
        self.broadcast.lock().created_at_ms()
    }

    /// Returns the current activity, as published.
    pub(crate) fn current_activity(&self) -> Activity {
        self.broadcast.lock().activity()
    }

    /// Returns the work in progress that the log does not contain yet; `None` if no actor has used this
    /// shared state, so the end of the log is unknown.
    pub(crate) fn in_progress(&self) -> Option<InProgress> {
        let broadcast = self.broadcast.lock();
        let Unrecorded { seq, n, run, events } = broadcast.unrecorded()?;
        let place = Place { seq: seq.unwrap_or(0), n };
        let event = |(at_ms, kind)| self.event(&broadcast, place, run, kind, at_ms);
        let events = events.into_iter().map(event).collect();
        Some(InProgress { seq, n, events })
    }

    /// Notes that the context was rewritten: the next request does not extend the one before.
    pub(crate) fn context_rewritten(&self) {
        self.rewrites.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the context was rewritten since the session became known.
    pub(crate) fn rewrites(&self) -> u64 {
        self.rewrites.load(Ordering::Relaxed)
    }

    /// Publishes a transient event of the run in progress, or of none.
    pub(crate) fn publish(&self, bus: &Bus, kind: EventKind) {
        self.publish_change(bus, || Some(kind));
    }

    /// Makes a change and publishes its transient event, if it has one, in one step: the newest event is that of the
    /// newest change.
    pub(crate) fn publish_change(&self, bus: &Bus, change: impl FnOnce() -> Option<EventKind>) {
        let mut broadcast = self.broadcast.lock();
        let Some(kind) = change() else { return };
        let run = broadcast.run();
        self.publish_transient(bus, &mut broadcast, run, kind);
    }

    /// Publishes a transient event of this run.
    pub(crate) fn publish_of_run(&self, bus: &Bus, run: RunId, kind: EventKind) {
        self.publish_transient(bus, &mut self.broadcast.lock(), Some(run), kind);
    }

    /// Publishes a durable event, once.
    pub(crate) fn publish_durable(&self, bus: &Bus, due: &Due) {
        let mut broadcast = self.broadcast.lock();
        let Due { entry, run } = due;
        let (is_due, discarded) = broadcast.durable(entry.id.0, *run, &due.outline(), entry.at_ms);
        if bus.is_unheard() {
            return;
        }
        self.publish_discarded(bus, &broadcast, discarded);
        if is_due {
            let created_at_ms = broadcast.created_at_ms().unwrap_or(0);
            self.publish_to(bus, &Arc::new(due.event(&self.id, self.parent.as_ref(), created_at_ms)));
        }
    }

    fn publish_transient(
        &self,
        bus: &Bus,
        broadcast: &mut Broadcast,
        run: Option<RunId>,
        mut kind: EventKind,
    ) {
        redact::transient(bus.redactor(), &mut kind);
        let (discarded, place) = broadcast.transient(run, &kind, || bus.now_ms());
        if bus.is_unheard() {
            return;
        }
        self.publish_discarded(bus, broadcast, discarded);
        if let Some(place) = place {
            self.publish_to(bus, &Arc::new(self.event(broadcast, place, run, kind, bus.now_ms())));
        }
    }

    fn publish_discarded(&self, bus: &Bus, broadcast: &Broadcast, discarded: Option<Discarded>) {
        if let Some(Discarded { place, run }) = discarded {
            let event = self.event(broadcast, place, Some(run), EventKind::MessageDiscarded, bus.now_ms());
            self.publish_to(bus, &Arc::new(event));
        }
    }

    fn event(
        &self,
        broadcast: &Broadcast,
        Place { seq, n }: Place,
        run: Option<RunId>,
        kind: EventKind,
        at_ms: u64,
    ) -> Event {
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
        // A session that a program opened has no sessions above it.
        match &self.parent {
            None => bus.publish(event, &[]),
            Some(_) => bus.publish(event, &self.ancestors()),
        }
    }
}
