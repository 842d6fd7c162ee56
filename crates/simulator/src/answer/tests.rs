//! The steps, pieces and limits of a reply.

use super::*;

fn facts() -> ReplyFacts {
    ReplyFacts { usage: Usage { input_tokens: 10, ..Usage::default() }, id_seed: 7, window: 100 }
}

#[test]
fn text_is_cut_at_characters_and_nothing_is_lost() {
    for chunks in [0, 1, 2, 3, 100] {
        let text = "aé你🙂 and so on";
        let pieces: Vec<&str> = cut(text, chunks).collect();
        assert_eq!(pieces.concat(), text);
        assert!(pieces.len() <= chunks.max(1), "{chunks}: {pieces:?}");
    }
    assert_eq!(cut("", 4).count(), 0);
}

#[test]
fn output_is_cut_at_the_limit() {
    let mut reply = Answer::text("one two three").and_call("read", &serde_json::json!({ "path": "abc" }));
    let whole = reply.clone();
    let (all, _) = limit_output(&mut reply, 1_000);
    assert_eq!(reply, whole);
    for room in 0..all {
        let mut reply = whole.clone();
        assert_eq!(limit_output(&mut reply, room), (room, 0), "{room}");
        assert_eq!(reply.finish, Some(StopReason::Length), "{room}");
    }
}

#[test]
fn every_fault_fires_and_nothing_follows_an_end() {
    let reply = Answer::text("one two three four").and_call("read", &serde_json::json!({ "path": "abc" }));
    for fault in Fault::every_kind() {
        match answer(&reply, Some(&fault), &facts()) {
            Transmission::Status(status) => assert_eq!(status.fired, Some(fault.name())),
            Transmission::Stream(steps) => {
                let fired = steps.iter().filter(|step| matches!(step, Step::Fired(_))).count();
                assert_eq!(fired, 1, "{fault:?}: {steps:?}");
                let end = steps
                    .iter()
                    .position(|step| matches!(step, Step::Reset | Step::Stall { for_ms: None, .. }));
                assert!(end.is_none_or(|end| end + 1 == steps.len()), "{fault:?}: {steps:?}");
            }
        }
    }
}

#[test]
fn a_plan_is_the_same_every_time_and_keeps_its_rate() {
    let plan = crate::FaultPlan::new(11, 0.25);
    let purpose = greenroom_provider::Purpose::Step;
    let mut names = std::collections::BTreeSet::new();
    let mut count = 0_u32;
    for request in 0..4_000 {
        let chosen = plan.choose("s", request, purpose);
        assert_eq!(chosen, plan.clone().choose("s", request, purpose));
        count += u32::from(chosen.is_some());
        names.extend(chosen.map(Fault::name));
    }
    assert!((850..1_150).contains(&count), "seed 11: {count} of 4000");
    let all: std::collections::BTreeSet<_> = Fault::every_kind().iter().map(Fault::name).collect();
    assert_eq!(names, all, "seed 11");
    let only = crate::FaultPlan {
        purpose: Some(greenroom_provider::Purpose::Summary),
        ..crate::FaultPlan::new(1, 1.0)
    };
    assert_eq!(only.choose("s", 0, purpose), None);
}
