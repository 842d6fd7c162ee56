//! The bus: order, filters, gaps.

use greenroom_kernel::redact::Redactor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::StreamExt;

use super::{Bus, Delivery, Filter, QUEUE_BYTES};
use crate::events::event::{Event, EventKind, EventType};
use crate::values::clock::Clock;

fn update(session: &str, seq: u64, bytes: usize) -> Arc<Event> {
    let kind = EventKind::ToolUpdate { call_id: String::new(), name: String::new(), line: "x".repeat(bytes) };
    Arc::new(Event {
        session: Arc::from(session),
        session_created_at_ms: 7,
        seq,
        n: None,
        at_ms: 0,
        run: None,
        parent: None,
        kind,
    })
}

#[test]
fn a_slow_subscriber_gets_what_fits_and_then_one_explicit_gap() {
    let bus = Bus::new(Clock::new(Some(0)), Redactor::default());
    let mut slow = bus.subscribe(Filter::all());
    let mut other = bus.subscribe(Filter::session("b"));
    for seq in 0..100 {
        bus.publish(&update("a", seq, QUEUE_BYTES / 10), &[]);
    }
    bus.publish(&update("b", 7, 1), &[]);
    let mut events = 0;
    loop {
        match slow.try_next().expect("a gap comes before the queue is empty") {
            Delivery::Event(event) => {
                assert_eq!(event.seq, events);
                events += 1;
            }
            Delivery::Gap { from, to, sessions } => {
                assert_eq!((from, to), (events, 101));
                assert_eq!(sessions, vec![(Arc::from("a"), events), (Arc::from("b"), 7)]);
                break;
            }
        }
    }
    assert!(events < 11, "at most QUEUE_BYTES wait");
    assert!(slow.try_next().is_none());
    bus.publish(&update("a", 100, 1), &[]);
    assert!(matches!(slow.try_next(), Some(Delivery::Event(event)) if event.seq == 100));
    assert!(matches!(other.try_next(), Some(Delivery::Event(event)) if event.seq == 7));
    assert!(other.try_next().is_none());
}

#[test]
fn filters_choose_by_session_durability_and_type() {
    let bus = Bus::new(Clock::new(Some(0)), Redactor::default());
    let mut durable = bus.subscribe(Filter::session("a").durable());
    let mut named = bus.subscribe(Filter::all().kinds([EventType::Warning]));
    let mut transient = update("a", 1, 0);
    Arc::make_mut(&mut transient).n = Some(1);
    bus.publish(&transient, &[]);
    bus.publish(&update("b", 1, 0), &[]);
    bus.publish(&update("a", 2, 0), &[]);
    let word = EventKind::Warning { message: "w".into() };
    bus.publish(
        &Arc::new(Event {
            session_created_at_ms: 7,
            session: Arc::from("b"),
            seq: 3,
            n: Some(1),
            at_ms: 0,
            run: None,
            parent: None,
            kind: word,
        }),
        &[],
    );
    assert!(matches!(durable.try_next(), Some(Delivery::Event(event)) if event.seq == 2));
    assert!(durable.try_next().is_none());
    assert!(matches!(named.try_next(), Some(Delivery::Event(event)) if event.seq == 3));
    assert!(named.try_next().is_none());
}

#[test]
fn a_filter_of_a_tree_wants_every_session_below_its_root_and_no_other() {
    let bus = Bus::new(Clock::new(Some(0)), Redactor::default());
    let mut tree = bus.subscribe(Filter::tree("team"));
    let mut branch = bus.subscribe(Filter::tree("team..1").kinds([EventType::ToolUpdate]));
    let mut alone = bus.subscribe(Filter::session("team"));
    let of = |texts: &[&str]| texts.iter().map(|text| Arc::from(*text)).collect::<Vec<Arc<str>>>();
    let told: [(&str, &[&str]); 5] = [
        ("team", &[]),
        ("team..1", &["team"]),
        ("team..1..2", &["team..1", "team"]),
        ("other", &[]),
        ("x", &["other"]),
    ];
    for (session, ancestors) in told {
        bus.publish(&update(session, 0, 0), &of(ancestors));
    }
    let sessions = |subscription: &mut super::Subscription| {
        let next = || match subscription.try_next()? {
            Delivery::Event(event) => Some(event.session.to_string()),
            Delivery::Gap { .. } => panic!("nothing is missed"),
        };
        std::iter::from_fn(next).collect::<Vec<_>>()
    };
    assert_eq!(sessions(&mut tree), ["team", "team..1", "team..1..2"]);
    assert_eq!(sessions(&mut branch), ["team..1", "team..1..2"]);
    assert_eq!(sessions(&mut alone), ["team"]);
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_subscriber_is_woken_once_for_what_it_has_not_read() {
    let bus = Bus::new(Clock::new(Some(0)), Redactor::default());
    let mut events = bus.subscribe(Filter::all());
    let wakes = Arc::<Wakes>::default();
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut poll = || events.poll_next_unpin(&mut Context::from_waker(&waker)).is_ready();
    let mut seq = 0;
    let mut publish = |count: usize| {
        for _ in 0..count {
            bus.publish(&update("a", seq, 10), &[]);
            seq += 1;
        }
    };
    assert!(!poll(), "there is nothing yet");
    publish(3);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(poll(), "the first");
    publish(2);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "it has not read what is there");
    assert_eq!((poll(), poll(), poll(), poll(), poll()), (true, true, true, true, false));
    publish(1);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 2, "it waited again");
    assert!(poll());
}

#[test]
fn a_subscriber_that_has_lost_events_is_woken_for_the_gap() {
    let bus = Bus::new(Clock::new(Some(0)), Redactor::default());
    let mut events = bus.subscribe(Filter::all());
    let wakes = Arc::<Wakes>::default();
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut poll = || events.poll_next_unpin(&mut Context::from_waker(&waker));
    assert!(poll().is_pending());
    // The event is too large, so the queue has only a gap.
    bus.publish(&update("a", 0, 2 * QUEUE_BYTES), &[]);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert!(matches!(poll(), Poll::Ready(Some(Delivery::Gap { .. }))));
}
