//! The order of published events. A row of a table has an event, and what is published for it: `3` is the
//! durable event with that number, and `3+2` the second transient one after it; `discard` marks one that was
//! inserted.

use greenroom_kernel::entry::RunOutcome;
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{EntryId, ToolStatus};

use super::*;

const RUN: Option<RunId> = Some(EntryId(2));
const NEXT: Option<RunId> = Some(EntryId(7));

fn warning() -> EventKind {
    EventKind::Warning { message: "look out".into() }
}

fn tool_end() -> EventKind {
    let (call_id, name) = ("c".to_owned(), "look".to_owned());
    EventKind::ToolEnd { call_id, name, status: ToolStatus::Interrupted, duration_ms: 0 }
}

fn run_end() -> EventKind {
    let window = Window { tokens: None, source: WindowSource::Unknown };
    EventKind::RunEnd {
        outcome: RunOutcome::Aborted,
        context: ContextUsage::new(Measured::default(), window),
        cost_microdollars: 0,
        is_cost_estimated: false,
    }
}

fn shown(place: Place) -> String {
    format!("{}+{}", place.seq, place.n)
}

fn discard(discarded: Option<Discarded>) -> Option<String> {
    Some(format!("discard {}", shown(discarded?.place)))
}

/// The published events of a session.
struct Told(Broadcast);

impl Told {
    #[track_caller]
    fn durable(&mut self, seq: u64, run: Option<RunId>, kind: &EventKind, published: &str) {
        let (is_due, first) = self.0.durable(seq, run, kind, 50);
        let itself = is_due.then(|| seq.to_string());
        let all: Vec<String> = discard(first).into_iter().chain(itself).collect();
        assert_eq!(all.join(", "), published, "{seq}: {kind:?}");
    }

    #[track_caller]
    fn transient(&mut self, run: Option<RunId>, kind: &EventKind, published: &str) {
        let (first, place) = self.0.transient(run, kind, || 50);
        let all: Vec<String> = discard(first).into_iter().chain(place.map(shown)).collect();
        assert_eq!(all.join(", "), published, "{kind:?}");
    }
}

#[test]
fn durable_events_are_published_once_and_transient_ones_count_on_from_them() {
    let mut told = Told(Broadcast::default());
    assert_eq!(told.0.start(0, 9), None);
    told.transient(None, &warning(), "0+1");
    told.durable(0, None, &warning(), "0");
    told.transient(None, &warning(), "0+1");
    told.transient(None, &warning(), "0+2");
    told.durable(1, None, &warning(), "1");
    // The successor of a crashed agent repeats it.
    told.durable(0, None, &warning(), "");
    told.durable(1, None, &warning(), "");
    told.transient(None, &warning(), "1+1");
    assert_eq!(told.0.below(), 2);
    // Entries without an event leave no gap.
    told.durable(5, None, &warning(), "5");
    told.transient(None, &warning(), "5+1");
    assert_eq!((told.0.below(), told.0.created_at_ms()), (6, Some(9)));
}

#[test]
fn an_answer_that_began_is_discarded_before_what_ends_it() {
    let mut told = Told(Broadcast::default());
    told.0.start(2, 9);
    told.transient(RUN, &EventKind::RunStart, "1+1");
    assert_eq!(told.0.run(), RUN);
    told.transient(RUN, &EventKind::MessageStart, "1+2");
    told.transient(RUN, &EventKind::MessageStart, "discard 1+3, 1+4");
    // Before the durable end, at the position of the earlier transient events.
    told.durable(2, RUN, &run_end(), "discard 1+5, 2");
    assert_eq!(told.0.run(), None);
    told.transient(RUN, &tool_end(), "");
    told.transient(NEXT, &EventKind::RunStart, "2+1");
    told.transient(RUN, &tool_end(), "");
    told.transient(NEXT, &tool_end(), "2+2");
    // An unpublished event does not count.
    told.transient(NEXT, &EventKind::MessageDiscarded, "");
    told.transient(NEXT, &tool_end(), "2+3");
}

#[test]
fn the_next_actor_publishes_what_the_one_before_did_not_live_to() {
    /// The last event that the previous actor published (`None`: there was no actor), whether that actor
    /// ended in order, and the log's length then.
    #[track_caller]
    fn check(before: Option<u64>, is_flushed: bool, entries: u64, due: Option<u64>, below: u64) {
        let mut broadcast = Broadcast::default();
        if let Some(published) = before {
            broadcast.start(0, 9);
            (0..published).for_each(|seq| _ = broadcast.durable(seq, None, &warning(), 50));
        }
        if is_flushed {
            broadcast.mark_flushed();
        }
        assert_eq!(broadcast.start(entries, 9), due, "{before:?} of {entries}");
        assert_eq!(broadcast.below(), below, "{before:?} of {entries}");
        assert_eq!(broadcast.first_unpublished(), Some(below), "its end is not in order yet");
    }
    check(None, false, 0, None, 0);
    // Entries from before this process are not published.
    check(None, false, 4, None, 4);
    check(Some(4), false, 4, None, 4);
    check(Some(2), false, 4, Some(2), 2);
    // Others may write to a session that ended in order.
    check(Some(2), true, 4, None, 4);
    // A shorter log belongs to another session.
    check(Some(4), false, 2, None, 2);
}

#[test]
fn a_session_of_the_same_id_that_was_created_later_is_another_one() {
    let mut broadcast = Broadcast::default();
    broadcast.start(0, 9);
    broadcast.durable(0, None, &warning(), 50);
    assert_eq!(broadcast.start(3, 10), None);
    assert_eq!((broadcast.below(), broadcast.created_at_ms()), (3, Some(10)));
}

#[test]
fn what_was_due_when_nobody_held_the_session_is_still_due() {
    assert_eq!(Broadcast::new(None).first_unpublished(), None, "nothing was read");
    let mut broadcast = Broadcast::new(Some(3));
    assert_eq!(broadcast.first_unpublished(), Some(3));
    assert_eq!(broadcast.start(5, 9), Some(3));
    broadcast.durable(3, None, &warning(), 50);
    broadcast.durable(4, None, &warning(), 50);
    broadcast.mark_flushed();
    assert_eq!(broadcast.first_unpublished(), None);
}

#[test]
fn whoever_comes_late_is_told_what_goes_on() {
    let mut told = Told(Broadcast::default());
    assert_eq!(told.0.unrecorded(), None, "nobody knows how far the log is");
    told.0.start(3, 9);
    told.transient(RUN, &EventKind::RunStart, "2+1");
    told.transient(RUN, &EventKind::StepStart { step: 1, model: "m".into() }, "2+2");
    told.transient(RUN, &warning(), "2+3");
    let unrecorded = told.0.unrecorded().expect("it was opened");
    assert_eq!((unrecorded.seq, unrecorded.n, unrecorded.run), (Some(2), 3, RUN));
    let step = EventKind::StepStart { step: 1, model: "m".into() };
    assert!(unrecorded.events.contains(&(50, step)), "{:?}", unrecorded.events);
    assert_eq!((told.0.activity().since_ms, told.0.activity().step), (Some(50), Some(1)));
    told.durable(3, RUN, &run_end(), "3");
    let unrecorded = told.0.unrecorded().expect("it was opened");
    assert_eq!((unrecorded.seq, unrecorded.n, unrecorded.events), (Some(3), 0, Vec::new()));
}
