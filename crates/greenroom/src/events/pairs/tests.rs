//! The published events for events in any order.

use greenroom_kernel::entry::RunOutcome;
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{EntryId, ToolStatus};

use super::*;

const FIRST: Option<RunId> = Some(EntryId(1));
const SECOND: Option<RunId> = Some(EntryId(5));

fn tool_end() -> EventKind {
    let (call_id, name) = ("c".to_owned(), "look".to_owned());
    EventKind::ToolEnd { call_id, name, status: ToolStatus::Interrupted, duration_ms: 0 }
}

/// A task of a finished run ends late: its events are not published, not even during the next run.
#[test]
fn nothing_of_a_run_is_told_after_its_end() {
    let mut pairs = Pairs::default();
    let late = [tool_end(), EventKind::MessageStart, EventKind::MessageDiscarded];
    let told = |pairs: &mut Pairs, run, kind: &EventKind| pairs.admit(run, kind).itself;
    assert!(told(&mut pairs, FIRST, &EventKind::RunStart) && told(&mut pairs, FIRST, &tool_end()));
    let context =
        ContextUsage::new(Measured::default(), Window { tokens: None, source: WindowSource::Unknown });
    assert!(told(
        &mut pairs,
        FIRST,
        &EventKind::RunEnd {
            outcome: RunOutcome::Aborted,
            context,
            cost_microdollars: 0,
            is_cost_estimated: false
        }
    ));
    for kind in &late {
        assert!(!told(&mut pairs, FIRST, kind), "between two runs: {kind:?}");
    }
    assert!(told(&mut pairs, SECOND, &EventKind::RunStart));
    assert!(told(&mut pairs, SECOND, &EventKind::MessageStart));
    for kind in &late {
        assert_eq!(
            pairs.admit(FIRST, kind),
            Admitted { discarded: None, itself: false },
            "in the next: {kind:?}"
        );
    }
    assert!(told(&mut pairs, SECOND, &EventKind::MessageDiscarded), "the answer of the second is still open");
}
