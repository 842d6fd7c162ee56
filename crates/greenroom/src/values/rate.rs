//! Amounts per minute: how long something waits so that a limit per minute is not exceeded.
//!
//! Invariants: waits are in the order of their reservations; what was reserved and not used is returned, except for what no
//! longer counts by then; an amount larger than a whole minute's starts when nothing else counts any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// A limit per minute, of tokens or messages. An amount is used at once and is returned evenly.
#[derive(Debug)]
pub(crate) struct Rate {
    /// The limit of all nodes together.
    total: u64,
    /// The part of this node.
    per_minute: u64,
    /// The amount that counts at time `at`, the sum of `counted`; more than a minute's while calls wait.
    used: f64,
    /// The amounts that count, in the order of their reservations: the oldest is returned first.
    counted: VecDeque<Counted>,
    at: Instant,
}

/// A part of a limit that is used, or reserved.
#[derive(Debug)]
struct Counted {
    number: u64,
    /// What still counts of it.
    left: f64,
}

/// A reservation: it can be replaced by the amount that was used.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Its number among those of all limits.
    number: u64,
    amount: u64,
}

impl Reservation {
    fn new(amount: u64) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Self { number: NUMBER.fetch_add(1, Ordering::Relaxed), amount }
    }
}

impl Rate {
    pub(crate) fn new(per_minute: u64, now: Instant) -> Self {
        Self { total: per_minute, per_minute, used: 0.0, counted: VecDeque::new(), at: now }
    }

    /// Divides the limit by the number of nodes that share it.
    pub(crate) fn divide(&mut self, nodes: u64, now: Instant) {
        self.advance(now);
        self.per_minute = (self.total / nodes.max(1)).max(1);
    }

    /// Reserves an amount. Returns how long its use must wait, too.
    pub(crate) fn reserve(&mut self, amount: u64, now: Instant) -> (Reservation, Duration) {
        self.advance(now);
        let wait = self.wait(amount);
        (self.count(amount), wait)
    }

    /// Uses an amount now.
    ///
    /// # Errors
    /// How long to wait before there is room for it. Then nothing is used.
    pub(crate) fn take(&mut self, amount: u64, now: Instant) -> Result<Reservation, Duration> {
        self.advance(now);
        match self.wait(amount) {
            Duration::ZERO => Ok(self.count(amount)),
            wait => Err(wait),
        }
    }

    /// Replaces a reservation by the amount that was used. What has expired of the reservation has been returned already,
    /// and does not make room for others again.
    pub(crate) fn settle(&mut self, reservation: &mut Reservation, used: u64, now: Instant) {
        self.advance(now);
        let Reservation { number, amount } = *reservation;
        reservation.amount = used;
        if let Ok(place) = self.counted.binary_search_by_key(&number, |counted| counted.number) {
            let counted = &mut self.counted[place];
            let left = (counted.left + as_f64(used) - as_f64(amount)).max(0.0);
            self.used += left - counted.left;
            counted.left = left;
        } else if used > amount {
            *reservation = Reservation { amount: used, ..self.count(used - amount) };
        }
    }

    fn count(&mut self, amount: u64) -> Reservation {
        let reservation = Reservation::new(amount);
        self.counted.push_back(Counted { number: reservation.number, left: as_f64(amount) });
        self.used += as_f64(amount);
        reservation
    }

    fn wait(&self, amount: u64) -> Duration {
        let limit = as_f64(self.per_minute);
        let over = self.used + as_f64(amount).min(limit) - limit;
        Duration::from_secs_f64((over / self.rate()).max(0.0))
    }

    /// The refill rate, per second.
    fn rate(&self) -> f64 {
        as_f64(self.per_minute) / 60.0
    }

    fn advance(&mut self, now: Instant) {
        let mut returned = now.duration_since(self.at).as_secs_f64() * self.rate();
        self.at = now;
        while let Some(oldest) = self.counted.front_mut() {
            if oldest.left > returned {
                oldest.left -= returned;
                self.used -= returned;
                return;
            }
            returned -= oldest.left;
            self.used -= oldest.left;
            self.counted.pop_front();
        }
        self.used = 0.0;
    }
}

#[expect(clippy::cast_precision_loss, reason = "an amount per minute")]
fn as_f64(amount: u64) -> f64 {
    amount as f64
}
