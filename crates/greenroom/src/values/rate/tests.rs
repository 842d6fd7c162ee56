//! The waits of calls for tokens.

use super::*;

/// A budget of 100 tokens per second, and the seconds since its creation.
struct Timed {
    rate: Rate,
    now: Instant,
}

impl Timed {
    fn new() -> Self {
        let now = Instant::now();
        Self { rate: Rate::new(6_000, now), now }
    }

    #[track_caller]
    fn waits(&mut self, tokens: u64, seconds: u64) -> Reservation {
        let (reservation, wait) = self.rate.reserve(tokens, self.now);
        assert_eq!(wait, Duration::from_secs(seconds));
        reservation
    }

    fn settle(&mut self, reservation: &mut Reservation, used: u64) {
        self.rate.settle(reservation, used, self.now);
    }
}

#[test]
fn calls_wait_until_the_minute_has_room() {
    let mut timed = Timed::new();
    timed.waits(4_000, 0);
    timed.waits(2_000, 0);
    // A later call also waits for the earlier ones.
    timed.waits(1_000, 10);
    timed.waits(1_000, 20);
    timed.now += Duration::from_secs(80);
    timed.waits(6_000, 0);
    timed.waits(100, 1);
}

#[test]
fn what_was_not_used_is_given_back() {
    let mut timed = Timed::new();
    let mut first = timed.waits(6_000, 0);
    timed.settle(&mut first, 1_000);
    let mut second = timed.waits(5_000, 0);
    timed.settle(&mut second, 6_000);
    timed.waits(100, 11);
}

/// What was reserved for a call that took as long as the minute no longer counts when it ends, so nothing of it can make
/// room for others.
#[test]
fn what_has_expired_is_not_given_back() {
    for used in [100, 6_000] {
        let mut timed = Timed::new();
        let mut first = timed.waits(6_000, 0);
        timed.now += Duration::from_secs(60);
        timed.waits(6_000, 0);
        timed.settle(&mut first, used);
        timed.waits(6_000, 60);
    }
}

/// What expires first is what was reserved first, also of a call that waited for the ones before it.
#[test]
fn a_call_that_waited_gives_back_what_it_did_not_use() {
    let mut timed = Timed::new();
    timed.waits(6_000, 0);
    let mut second = timed.waits(6_000, 60);
    timed.now += Duration::from_secs(70);
    // Of the second, 1,000 have expired.
    timed.settle(&mut second, 1_500);
    timed.waits(6_000, 5);
}

#[test]
fn more_than_was_reserved_counts_also_after_the_reservation_has_expired() {
    let mut timed = Timed::new();
    let mut first = timed.waits(1_000, 0);
    timed.now += Duration::from_secs(60);
    timed.settle(&mut first, 5_000);
    timed.waits(3_000, 10);
    timed.settle(&mut first, 3_000);
    timed.waits(0, 0);
}

#[test]
fn a_call_larger_than_a_minute_begins_when_nothing_else_counts() {
    let mut timed = Timed::new();
    timed.waits(60_000, 0);
    timed.waits(6_000, 600);
}

#[test]
fn an_amount_is_taken_as_soon_as_there_is_room() {
    let mut timed = Timed::new();
    let mut takes = |amount, after: u64, wait: Option<u64>| {
        timed.now += Duration::from_secs(after);
        assert_eq!(
            timed.rate.take(amount, timed.now).map(drop),
            wait.map_or(Ok(()), |wait| Err(Duration::from_secs(wait)))
        );
    };
    takes(6_000, 0, None);
    takes(100, 0, Some(1));
    // A refusal uses nothing.
    takes(100, 0, Some(1));
    takes(100, 1, None);
    takes(6_000, 59, Some(1));
    takes(6_000, 1, None);
}
