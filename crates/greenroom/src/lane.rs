//! Room: a lane: one provider, shared by many sessions ([`shared_provider`], `queue`, `silence`), and what is known about its
//! models ([`learned`] from answers and refusals, [`served`] from the server's list).
//!
//! May use `events` and `values`.
//!
//! Invariants: at most `in_flight_max` calls are in progress, and slots rotate among the waiting sessions
//! (`queue`); a `Retry-After` pauses the whole lane, not one session; with a limit on tokens per minute, no
//! call starts that would exceed it ([`Rate`]); a call whose model is silent for too long fails, whatever its
//! provider allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom_kernel::{FailureClass, Usage};
use greenroom_provider::{Provider, ProviderError};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::events::event::EventKind;
use crate::events::reasons::QueueReason;
use crate::lane::learned::Learned;
use crate::lane::served::ServedModels;
use crate::values::rate::{Rate, Reservation};

pub(crate) mod learned;
mod queue;
pub(crate) mod served;
pub(crate) mod shared_provider;
pub(crate) mod silence;

use queue::Queue;
pub(crate) use queue::{Turn, Urgency};
use silence::Silence;

/// The default limit of concurrent model calls per provider.
pub(crate) const IN_FLIGHT_MAX: usize = 16;
/// The default limit of a model's silence during a call.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(300);

/// The lane of one provider.
pub(crate) struct Lane {
    pub(crate) provider: Arc<dyn Provider>,
    queue: Mutex<Queue>,
    budget: Option<Mutex<Rate>>,
    paused_until: Mutex<Option<Instant>>,
    silence_max: Duration,
    /// The server's own data about its models.
    pub(crate) served: Arc<ServedModels>,
    /// Whether the newest call did not reach the server.
    is_unreachable: AtomicBool,
    /// Whether the server has ever answered, even with a refusal.
    has_answered: AtomicBool,
    /// Whether the provider said that it does not count tokens.
    does_not_count: AtomicBool,
}

/// The limits of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneLimits {
    pub(crate) in_flight_max: usize,
    /// `None`: no limit.
    pub(crate) tokens_per_minute: Option<u64>,
    /// Zero: no limit.
    pub(crate) silence_max: Duration,
}

/// A call that requests a slot.
#[derive(Debug, Clone)]
pub(crate) struct ModelCall {
    /// The session that calls, or the top-level session of which it is a sub-agent, and its group.
    pub(crate) turn: Turn,
    pub(crate) urgency: Urgency,
    /// The expected number of tokens, as far as known.
    pub(crate) tokens: u64,
}

/// The state of a queued call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queued {
    /// 1 is next; 0 means that the wait is over.
    pub(crate) position: usize,
    pub(crate) waited: Duration,
    pub(crate) reason: QueueReason,
}

/// A slot in a lane. Dropping it frees the slot.
pub(crate) struct Slot {
    ticket: Ticket,
    /// The tokens reserved from the limit per minute, if there is one.
    reserved: Option<Reservation>,
    has_begun: bool,
}

impl Slot {
    /// Reports the usage of an answered call. Without a report, the reservation counts.
    pub(crate) fn used(&mut self, usage: &Usage) {
        self.settle(usage.total_tokens());
    }

    fn settle(&mut self, used: u64) {
        if let (Some(reserved), Some(mut budget)) = (&mut self.reserved, self.ticket.lane.budget()) {
            budget.settle(reserved, used, Instant::now());
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.has_begun {
            self.settle(0);
        }
    }
}

/// A call in the queue or with a slot. Dropping it leaves the lane.
struct Ticket {
    lane: Arc<Lane>,
    turn: Turn,
    urgency: Urgency,
    number: u64,
    /// Whether the call is known to have its slot.
    has_slot: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.lane.queue.lock();
        if self.has_slot || !queue.remove(&self.turn, self.number) {
            queue.release(self.urgency);
        }
        grant(&mut queue);
    }
}

/// Grants the free slots to the next waiters.
fn grant(queue: &mut Queue) {
    while let Some(waiter) = queue.next() {
        // A waiter that has given up leaves through its ticket, which frees the slot.
        let _ = waiter.granted.send(());
    }
}

impl Lane {
    /// Returns the event that reports a queued call, or the end of its wait.
    pub(crate) fn queue_update(&self, is_summary: bool, queued: Queued) -> EventKind {
        EventKind::QueueUpdate {
            provider: self.provider.name().to_owned(),
            is_summary,
            reason: queued.reason,
            position: queued.position as u64,
            waited_ms: u64::try_from(queued.waited.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(crate) fn new(provider: Arc<dyn Provider>, limits: LaneLimits) -> Self {
        Self {
            served: Arc::new(ServedModels::new(Arc::clone(&provider))),
            is_unreachable: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            does_not_count: AtomicBool::new(false),
            provider,
            queue: Mutex::new(Queue::new(limits.in_flight_max.max(1))),
            budget: limits
                .tokens_per_minute
                .map(|tokens| Mutex::new(Rate::new(tokens.max(1), Instant::now()))),
            paused_until: Mutex::new(None),
            silence_max: limits.silence_max,
        }
    }

    /// Divides the limit on tokens per minute by the number of nodes that use the provider.
    pub(crate) fn share_rate(&self, nodes: u64) {
        if let Some(mut budget) = self.budget() {
            budget.divide(nodes, Instant::now());
        }
    }

    fn budget(&self) -> Option<MutexGuard<'_, Rate>> {
        self.budget.as_ref().map(|budget| budget.lock())
    }

    /// Returns the number of slots, of calls that have one, and of calls that wait for one.
    #[cfg(feature = "metrics")]
    pub(crate) fn occupancy(&self) -> (usize, usize, usize) {
        self.queue.lock().occupancy()
    }

    /// Whether it has one slot, so that a call of low urgency delays all others.
    pub(crate) fn has_one_slot(&self) -> bool {
        self.queue.lock().has_one_slot()
    }

    /// Whether there is a limit on tokens per minute.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.budget.is_some()
    }

    /// Whether the provider may be asked to count tokens now: not while it wants to be left alone.
    pub(crate) fn counts(&self) -> bool {
        !self.does_not_count.load(Ordering::Relaxed) && self.pause().is_none()
    }

    /// Notes that the provider does not count tokens.
    pub(crate) fn does_not_count(&self) {
        self.does_not_count.store(true, Ordering::Relaxed);
    }

    /// Waits for a slot, and until the call may start. `tell` is called if the call has to wait: when the
    /// wait starts, when its reason changes, and when it ends. Dropping the future leaves the queue.
    pub(crate) async fn enter(self: &Arc<Self>, call: &ModelCall, mut tell: impl FnMut(Queued)) -> Slot {
        let began = Instant::now();
        let mut waits = |position, reason| tell(Queued { position, waited: began.elapsed(), reason });
        let mut reason = None;
        let mut ticket = self.ticket(call);
        if !ticket.has_slot {
            let (sender, mut granted) = oneshot::channel();
            let position = self.queue_up(&mut ticket, sender);
            if granted.try_recv().is_err() {
                reason = Some(QueueReason::Slots);
                waits(position, QueueReason::Slots);
                granted.await.expect("the queue keeps who waits until it grants a slot");
            }
            ticket.has_slot = true;
        }
        let (reserved, delay) =
            self.budget().map(|mut budget| budget.reserve(call.tokens, Instant::now())).unzip();
        let delay = delay.unwrap_or_default();
        let mut slot = Slot { ticket, reserved, has_begun: false };
        if !delay.is_zero() {
            reason = Some(QueueReason::Tokens);
            waits(1, QueueReason::Tokens);
            Box::pin(tokio::time::sleep(delay)).await;
        }
        while let Some(until) = self.pause() {
            reason = Some(QueueReason::Paused);
            waits(1, QueueReason::Paused);
            Box::pin(tokio::time::sleep_until(until)).await;
        }
        if let Some(reason) = reason {
            waits(0, reason);
        }
        slot.has_begun = true;
        slot
    }

    /// Returns the ticket of a call, with a slot if one is free and no call waits.
    fn ticket(self: &Arc<Self>, call: &ModelCall) -> Ticket {
        let has_slot = self.queue.lock().take_free(call.urgency);
        let (turn, urgency) = (call.turn.clone(), call.urgency);
        Ticket { lane: Arc::clone(self), turn, urgency, number: 0, has_slot }
    }

    /// Joins the queue. Returns the position in it.
    fn queue_up(&self, ticket: &mut Ticket, granted: oneshot::Sender<()>) -> usize {
        let mut queue = self.queue.lock();
        let (number, position) = queue.add(&ticket.turn, ticket.urgency, granted);
        ticket.number = number;
        grant(&mut queue);
        position
    }

    /// Returns the end of the pause that the provider requested, or that its limits make, if the pause is not over.
    fn pause(&self) -> Option<Instant> {
        let now = Instant::now();
        let asked = self.paused_until.lock().filter(|until| *until > now);
        let limited = self.provider.limited_for().map(|wait| now + wait);
        asked.max(limited)
    }

    /// Notes that a run or caller now waits for the summaries of this family.
    pub(crate) fn promote(&self, family: &Arc<str>) {
        let mut queue = self.queue.lock();
        queue.promote(family);
        grant(&mut queue);
    }

    /// Returns the timer for the pieces of one answer.
    pub(crate) fn silence(&self) -> Silence {
        Silence::new(self.silence_max)
    }

    /// How long the calls of a compaction may keep failing before it stops asking this provider: enough for some
    /// repetitions, even if each is as long as the longest silence.
    pub(crate) fn patience(&self) -> Duration {
        self.silence_max.max(SILENCE_MAX) * 3
    }

    /// The key of facts learned about this lane's models: the server's address, or else the provider's name.
    pub(crate) fn origin(&self) -> &str {
        self.provider.address().unwrap_or_else(|| self.provider.name())
    }

    /// Handles the end of a call: notes what it shows about the server, and adds earlier knowledge to the
    /// failure.
    pub(crate) fn heard(&self, model: &str, mut failure: Option<&mut ProviderError>, learned: &Learned) {
        if failure.as_ref().is_none_or(|error| error.failure.status.is_some()) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        if let Some(error) = failure.as_deref_mut().filter(|error| error.connection_refused)
            && self.has_answered.load(Ordering::Relaxed)
        {
            self.is_unreachable.store(true, Ordering::Relaxed);
            error.failure.class = FailureClass::Loading;
            error.failure.message.push_str("; it had answered before, so it is expected back");
        }
        match failure.as_deref() {
            None if self.is_unreachable.swap(false, Ordering::Relaxed) => {
                learned.reconnected(self.origin());
                self.served.ask_again();
            }
            None if self.served.may_tell_more(model) => self.served.ask_again(),
            None => {}
            Some(error) if error.connection_lost => {
                self.is_unreachable.store(true, Ordering::Relaxed);
            }
            Some(_) => {}
        }
    }

    /// Pauses the lane, as the provider requested.
    pub(crate) fn pause_ms(&self, delay_ms: u64) {
        let until = Instant::now() + Duration::from_millis(delay_ms);
        let mut paused = self.paused_until.lock();
        if paused.is_none_or(|now| now < until) {
            *paused = Some(until);
        }
    }
}
