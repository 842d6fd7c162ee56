//! Room: a lane: one provider, shared by many sessions; and what is learned of its models.
//!
//! May touch `events` and `values`.
//!
//! Invariants: at most `in_flight_max` calls are under way, and places go round the sessions that wait (`queue`); a
//! `Retry-After` holds the whole lane back, not one session; with a limit of tokens a minute no call begins that would
//! exceed it (`budget`); a model that says nothing for too long is given up, whatever its provider allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom_kernel::{FailureClass, Usage};
use greenroom_provider::{Provider, ProviderError};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::events::event::{EventKind, QueueReason};
use crate::lane::learned::Learned;
use crate::lane::served::ServedModels;

mod budget;
pub(crate) mod learned;
mod queue;
pub(crate) mod served;
pub(crate) mod shared_provider;
mod silence;

use budget::TokenBudget;
use queue::Queue;
pub(crate) use queue::Urgency;
use silence::Silence;

/// How many model calls one provider gets at a time, by default.
pub(crate) const IN_FLIGHT_MAX: usize = 16;
/// How long a model may say nothing before its call is given up, by default.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(300);

/// One provider's lane.
pub(crate) struct Lane {
    pub(crate) provider: Arc<dyn Provider>,
    queue: Mutex<Queue>,
    budget: Option<Mutex<TokenBudget>>,
    paused_until: Mutex<Option<Instant>>,
    silence_max: Duration,
    /// What the server says of its models.
    pub(crate) served: Arc<ServedModels>,
    /// Whether the newest call did not reach the server.
    is_unreachable: AtomicBool,
    /// Whether the server ever answered, if only with a refusal.
    has_answered: AtomicBool,
}

/// The limits of a lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneLimits {
    pub(crate) in_flight_max: usize,
    /// `None`: no limit.
    pub(crate) tokens_per_minute: Option<u64>,
    /// Zero: for ever.
    pub(crate) silence_max: Duration,
}

/// A call that wants a place.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The session that calls, or the one above all that it is a sub-agent of: their calls take turns with those of other
    /// families.
    pub(crate) family: Arc<str>,
    pub(crate) urgency: Urgency,
    /// How many tokens it will take, as far as that is known.
    pub(crate) tokens: u64,
}

/// How a call that waits stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queued {
    /// 1 is next; 0: it goes on.
    pub(crate) position: usize,
    pub(crate) waited: Duration,
    pub(crate) reason: QueueReason,
}

/// A place in a lane. Dropping it frees the place.
pub(crate) struct Place {
    ticket: Ticket,
    /// What was reserved of the tokens a minute.
    reserved: u64,
    has_begun: bool,
}

impl Place {
    /// The call was answered, and this is what it used. Without that, what was reserved for it counts.
    pub(crate) fn used(&mut self, usage: &Usage) {
        self.settle(usage.total_tokens());
    }

    fn settle(&mut self, used: u64) {
        let reserved = std::mem::replace(&mut self.reserved, used);
        if let Some(mut budget) = self.ticket.lane.budget() {
            budget.settle(reserved, used, Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.has_begun {
            self.settle(0);
        }
    }
}

/// A call in the queue, or with a place. Dropping it leaves the lane.
struct Ticket {
    lane: Arc<Lane>,
    family: Arc<str>,
    urgency: Urgency,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.lane.queue();
        if !queue.remove(&self.family, self.number) {
            queue.release(self.urgency);
        }
        grant(&mut queue);
    }
}

/// Gives the free places to those who are next.
fn grant(queue: &mut Queue) {
    while let Some(waiter) = queue.next() {
        // One that gives up leaves by its ticket, which frees the place.
        let _ = waiter.granted.send(());
    }
}

impl Lane {
    /// A call waits, or no longer does, as an event tells it.
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
            provider,
            queue: Mutex::new(Queue::new(limits.in_flight_max.max(1))),
            budget: limits
                .tokens_per_minute
                .map(|tokens| Mutex::new(TokenBudget::new(tokens.max(1), Instant::now()))),
            paused_until: Mutex::new(None),
            silence_max: limits.silence_max,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn budget(&self) -> Option<MutexGuard<'_, TokenBudget>> {
        self.budget.as_ref().map(|budget| budget.lock())
    }

    /// Whether there is a limit of tokens a minute.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.budget.is_some()
    }

    /// Waits for a place, and until the call may begin. `tell` hears of it if the call has to wait: when that begins,
    /// when its reason changes, and when it is over. Dropping the future leaves the queue.
    pub(crate) async fn enter(self: &Arc<Self>, call: Call, mut tell: impl FnMut(Queued)) -> Place {
        let began = Instant::now();
        let mut waits = |position, reason| tell(Queued { position, waited: began.elapsed(), reason });
        let mut reason = None;
        let (sender, mut granted) = oneshot::channel();
        let (ticket, position) = self.take_ticket(&call, sender);
        if granted.try_recv().is_err() {
            reason = Some(QueueReason::Places);
            waits(position, QueueReason::Places);
            granted.await.expect("the queue keeps who waits until it grants a place");
        }
        let delay =
            self.budget().map_or(Duration::ZERO, |mut budget| budget.reserve(call.tokens, Instant::now()));
        let mut place = Place { ticket, reserved: call.tokens, has_begun: false };
        if !delay.is_zero() {
            reason = Some(QueueReason::Tokens);
            waits(1, QueueReason::Tokens);
            tokio::time::sleep(delay).await;
        }
        while let Some(until) = self.pause() {
            reason = Some(QueueReason::Paused);
            waits(1, QueueReason::Paused);
            tokio::time::sleep_until(until).await;
        }
        if let Some(reason) = reason {
            waits(0, reason);
        }
        place.has_begun = true;
        place
    }

    /// Joins the queue. Gives the position in it.
    fn take_ticket(self: &Arc<Self>, call: &Call, granted: oneshot::Sender<()>) -> (Ticket, usize) {
        let mut queue = self.queue();
        let (number, position) = queue.add(&call.family, call.urgency, granted);
        grant(&mut queue);
        drop(queue);
        let ticket = Ticket {
            lane: Arc::clone(self),
            family: Arc::clone(&call.family),
            urgency: call.urgency,
            number,
        };
        (ticket, position)
    }

    /// Until when the provider asked everybody to wait, if that is not over.
    fn pause(&self) -> Option<Instant> {
        let until = *self.paused_until.lock();
        until.filter(|until| *until > Instant::now())
    }

    /// Somebody waits now for the summaries of this family.
    pub(crate) fn promote(&self, family: &Arc<str>) {
        let mut queue = self.queue();
        queue.promote(family);
        grant(&mut queue);
    }

    /// The wait for the pieces of one answer.
    pub(crate) fn silence(&self) -> Silence {
        Silence::new(self.silence_max)
    }

    /// To what the facts belong that are learned of this lane's models: the server's address, else the provider's name.
    pub(crate) fn origin(&self) -> &str {
        self.provider.address().unwrap_or_else(|| self.provider.name())
    }

    /// A call ended: takes note of what that says of the server, and completes what the failure says with what was known
    /// of it before.
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

    /// The provider asked everybody to wait.
    pub(crate) fn pause_ms(&self, delay_ms: u64) {
        let until = Instant::now() + Duration::from_millis(delay_ms);
        let mut paused = self.paused_until.lock();
        if paused.is_none_or(|now| now < until) {
            *paused = Some(until);
        }
    }
}
