//! The order of granted slots. A step is written as its family's name, a summary with `+`, a background
//! summary with `-`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;

use super::*;

/// A queue whose waiters have names.
struct Named {
    queue: Queue,
    names: HashMap<u64, String>,
    receivers: Vec<oneshot::Receiver<()>>,
    held: Vec<Urgency>,
}

impl Named {
    fn new(slots: usize) -> Self {
        Self { queue: Queue::new(slots), names: HashMap::new(), receivers: Vec::new(), held: Vec::new() }
    }

    /// Adds the waiters; returns their positions.
    fn add(&mut self, names: &str) -> Vec<usize> {
        let add = |name: &str| {
            let (sender, receiver) = oneshot::channel();
            self.receivers.push(receiver);
            let (number, position) = self.queue.add(&turn(name), urgency(name), sender);
            self.names.insert(number, name.to_owned());
            position
        };
        names.split(' ').map(add).collect()
    }

    /// Returns the waiters that get the free slots.
    fn granted(&mut self) -> String {
        let mut granted = Vec::new();
        while let Some(waiter) = self.queue.next() {
            let name = self.names[&waiter.number].clone();
            self.held.push(urgency(&name));
            granted.push(name);
        }
        granted.join(" ")
    }

    /// Frees the slot that was granted first, and returns the waiters that get one.
    fn freed(&mut self) -> String {
        let urgency = self.held.remove(0);
        self.queue.release(urgency);
        self.granted()
    }
}

fn family(name: &str) -> Arc<str> {
    let name = name.trim_end_matches(['+', '-']);
    name.split_once('/').map_or(name, |(_, family)| family).into()
}

/// A family is its own group, unless the group is before a slash.
fn turn(name: &str) -> Turn {
    let family = family(name);
    let group = name.split_once('/').map_or_else(|| Arc::clone(&family), |(group, _)| group.into());
    Turn { group, family }
}

fn urgency(name: &str) -> Urgency {
    match name.chars().last() {
        Some('+') => Urgency::Summary,
        Some('-') => Urgency::Background,
        _ => Urgency::Step,
    }
}

#[track_caller]
fn check(slots: usize, asked: &str, order: &str) {
    let mut named = Named::new(slots);
    named.add(asked);
    let mut granted = vec![named.granted()];
    while !named.held.is_empty() {
        granted.push(named.freed());
    }
    let granted: Vec<_> = granted.into_iter().filter(|names| !names.is_empty()).collect();
    assert_eq!(granted.join(" "), order);
}

#[test]
fn families_take_turns() {
    check(1, "a b c", "a b c");
    check(1, "a a a a b c", "a b c a a a");
    check(2, "a a a b b c", "a b c a b a");
}

#[test]
fn groups_take_turns_and_families_within_them() {
    check(1, "x/a x/b x/c y/d", "x/a y/d x/b x/c");
    check(1, "x/a x/a x/b y/c y/c", "x/a y/c x/b y/c x/a");
    check(2, "x/a x/b x/c y/d y/d z/e", "x/a y/d z/e x/b y/d x/c");
    // A group whose calls have all left has no turn.
    let mut named = Named::new(1);
    named.add("x/a y/b y/c z/d");
    assert_eq!(named.granted(), "x/a");
    assert!(named.queue.remove(&turn("y/b"), 2) && named.queue.remove(&turn("y/c"), 3));
    assert_eq!((named.freed(), named.freed()), ("z/d".to_owned(), String::new()));
}

#[test]
fn a_position_tells_of_the_calls_before() {
    let mut named = Named::new(1);
    assert_eq!(named.add("x/a"), [1]);
    named.granted();
    // The last one comes after the first of `y` and the one of `z`.
    assert_eq!(named.add("y/b y/c z/d y/e"), [1, 2, 2, 4]);
    assert_eq!((named.freed(), named.freed(), named.freed()), ("y/b".into(), "z/d".into(), "y/c".into()));
}

#[test]
fn a_busy_family_delays_a_quiet_one_by_one_call() {
    let mut named = Named::new(1);
    named.add(&["busy"; 1_000].join(" "));
    assert_eq!(named.granted(), "busy");
    assert_eq!(named.add("quiet"), [2]);
    assert_eq!((named.freed(), named.freed()), ("busy".to_owned(), "quiet".to_owned()));
}

#[test]
fn summaries_hold_half_and_come_in_turn() {
    check(1, "a b+ c", "a b+ c");
    let mut named = Named::new(4);
    named.add("a+ b+ c+ d e");
    assert_eq!(named.granted(), "a+ b+ d e");
    assert_eq!(named.freed(), "c+");
}

#[test]
fn the_background_takes_idle_slots_only() {
    let mut named = Named::new(2);
    named.add("a-");
    assert_eq!(named.granted(), "a-", "nobody else wants it, and another stays free");
    named.add("b- c");
    assert_eq!(named.granted(), "c");
    assert_eq!(named.freed(), "", "the last free slot is not for the background");
    assert_eq!(named.freed(), "b-");
    // Before a later step.
    let mut named = Named::new(2);
    named.add("a b");
    assert_eq!(named.granted(), "a b");
    named.add("c- d e");
    assert_eq!((named.freed(), named.freed()), ("d".to_owned(), "e".to_owned()));
    assert_eq!(named.freed(), "");
    assert_eq!(named.freed(), "c-");
    // The only slot would be idle.
    check(1, "a- b", "b a-");
}

#[test]
fn a_summary_that_somebody_waits_for_now_comes_in_its_turn() {
    let mut named = Named::new(1);
    named.add("x");
    assert_eq!(named.granted(), "x");
    named.add("a- b c");
    named.queue.promote(&family("a"));
    assert_eq!(named.freed(), "a-", "it came first");
    named.queue.promote(&family("a"));
    assert_eq!(named.freed(), "b");
}

#[test]
fn who_leaves_is_not_waited_for() {
    let mut named = Named::new(1);
    named.add("a b b c");
    assert_eq!(named.granted(), "a");
    assert!(named.queue.remove(&turn("b"), 2) && named.queue.remove(&turn("b"), 3));
    assert!(!named.queue.remove(&turn("b"), 3) && !named.queue.remove(&turn("a"), 1));
    assert_eq!((named.freed(), named.freed()), ("c".to_owned(), String::new()));
}

/// No slot is lost or granted twice, in any order of operations.
#[test]
fn slots_are_neither_lost_nor_given_twice() {
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap() % below
    };
    let (mut granted, mut left) = (0, 0);
    for slots in 1..=4 {
        let mut named = Named::new(slots);
        let mut waiting: Vec<(u64, String)> = Vec::new();
        for _ in 0..5_000 {
            match draw(4) {
                0 | 1 => {
                    let group = ["", "x/", "y/"][draw(3)];
                    let name = format!("{group}{}{}", draw(5), ["", "+", "-"][draw(3)]);
                    named.add(&name);
                    waiting.push((named.queue.newest, name));
                }
                2 if !named.held.is_empty() => {
                    let urgency = named.held.swap_remove(draw(named.held.len()));
                    named.queue.release(urgency);
                }
                _ if !waiting.is_empty() => {
                    let (number, name) = waiting.swap_remove(draw(waiting.len()));
                    assert!(named.queue.remove(&turn(&name), number), "it waits");
                    left += 1;
                }
                _ => named.queue.promote(&family(&draw(5).to_string())),
            }
            while let Some(waiter) = named.queue.next() {
                let at = waiting.iter().position(|(number, _)| *number == waiter.number).unwrap();
                named.held.push(urgency(&waiting.swap_remove(at).1));
                granted += 1;
            }
            assert!(named.held.len() <= slots);
            let summaries = named.held.iter().filter(|urgency| **urgency != Urgency::Step).count();
            assert!(summaries <= slots.div_ceil(2));
            let is_step = |(_, name): &&(u64, String)| urgency(name) == Urgency::Step;
            assert!(named.held.len() == slots || !waiting.iter().any(|waiter| is_step(&waiter)));
        }
    }
    assert!(granted > 1_000 && left > 1_000, "{granted} {left}");
}
