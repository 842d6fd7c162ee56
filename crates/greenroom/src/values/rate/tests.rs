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
    fn waits(&mut self, tokens: u64, seconds: u64) {
        assert_eq!(self.rate.reserve(tokens, self.now), Duration::from_secs(seconds));
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
    timed.waits(6_000, 0);
    timed.rate.settle(6_000, 1_000, timed.now);
    timed.waits(5_000, 0);
    timed.rate.settle(5_000, 6_000, timed.now);
    timed.waits(100, 11);
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
            timed.rate.take(amount, timed.now),
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
