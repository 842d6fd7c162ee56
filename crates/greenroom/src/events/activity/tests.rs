//! The activity agrees with the events.

use greenroom_kernel::ToolStatus;

use super::*;
use crate::events::reasons::QueueReason;

fn start(id: &str, name: &str) -> EventKind {
    EventKind::ToolStart { call_id: id.into(), name: name.into(), arguments: "{}".into() }
}

fn end(id: &str, name: &str) -> EventKind {
    EventKind::ToolEnd { call_id: id.into(), name: name.into(), status: ToolStatus::Ok, duration_ms: 1 }
}

fn queued(position: u64) -> EventKind {
    let provider = "openai".to_owned();
    EventKind::QueueUpdate { provider, is_summary: false, reason: QueueReason::Slots, position, waited_ms: 0 }
}

#[test]
fn a_run_is_followed_step_by_step() {
    let mut tracked = Tracked::default();
    let mut check = |kind: EventKind,
                     now_ms: u64,
                     step: Option<u32>,
                     tools: &[&str],
                     queue: Option<u64>,
                     since: Option<u64>| {
        tracked.follow(&kind, || now_ms);
        let activity = tracked.activity();
        assert_eq!(
            (activity.step, activity.queue_position, activity.since_ms),
            (step, queue, since),
            "{kind:?}"
        );
        assert_eq!(activity.tools, tools, "{kind:?}");
    };
    check(EventKind::RunStart, 5, None, &[], None, Some(5));
    check(EventKind::StepStart { step: 1, model: "m".into() }, 6, Some(1), &[], None, Some(5));
    check(queued(3), 7, Some(1), &[], Some(3), Some(5));
    check(queued(0), 8, Some(1), &[], None, Some(5));
    check(start("a", "read"), 9, Some(1), &["read"], None, Some(5));
    check(start("b", "grep"), 9, Some(1), &["read", "grep"], None, Some(5));
    check(start("c", "read"), 9, Some(1), &["read", "grep", "read"], None, Some(5));
    check(end("a", "read"), 9, Some(1), &["grep", "read"], None, Some(5));
    // An agent that crashed leaves calls without an end.
    check(EventKind::StepStart { step: 2, model: "m".into() }, 10, Some(2), &[], None, Some(5));
    check(EventKind::RunStart, 20, None, &[], None, Some(20));
}
