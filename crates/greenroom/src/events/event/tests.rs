//! Events as JSON, and reading them back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use greenroom_kernel::entry::CompactionOutcome;
use greenroom_kernel::question::GivenAnswer;
use greenroom_kernel::usage::{ContextUsage, Measured, Window, WindowSource};
use greenroom_kernel::{FactRecall, FailureClass, RunOutcome, StopReason};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;
use crate::events::reasons::PrefixChange;
use crate::{CallView, CompactOptions, HookAction, HookPoint, Reply, Role, SessionSummary, State, Status};

pub(in crate::events) fn context() -> ContextUsage {
    let window = Window { tokens: Some(8_000), source: WindowSource::Catalog };
    ContextUsage::new(Measured { usage_tokens: 1_234, trailing_tokens: 7 }, window)
}

fn run_end(outcome: RunOutcome) -> EventKind {
    EventKind::RunEnd { outcome, context: context(), cost_microdollars: 5, is_cost_estimated: true }
}

fn compacted(outcome: CompactionOutcome) -> Compacted {
    Compacted {
        started: Some(EntryId(7)),
        trigger: Trigger::Threshold,
        entry_id: outcome.is_installed().then_some(EntryId(9)),
        outcome,
        tokens_before: 900,
        tokens_after: 90,
        messages_before: 12,
        messages_after: 3,
        messages_removed: 10,
        duration_ms: 1_200,
        waited_ms: 900,
        prepared_ms: Some(700),
        summary_usage: Usage { input_tokens: 5, ..Usage::default() },
        cost_microdollars: None,
        recall: Some(FactRecall { facts: 3, before: 1, after: 2 }),
    }
}

fn failure() -> Failure {
    Failure { limit: Some(8_000), ..Failure::new(FailureClass::ContextOverflow, "too long") }
}

/// At least one event of each type.
pub(crate) fn all() -> Vec<EventKind> {
    let entry_id = EntryId(6);
    let call = CallView { id: "c".into(), name: "read".into(), arguments: "{}".into() };
    let said = MessageView { tool_calls: vec![call], ..MessageView::plain(Role::Assistant, "hi".into()) };
    let mut kinds = vec![
        EventKind::RunStart,
        EventKind::InstructionsChanged { text: "Be brief.".into(), tokens: 3 },
        EventKind::StepStart { step: 1, model: "m".into() },
        EventKind::StepEnd { step: 1 },
        EventKind::MessageStart,
        EventKind::MessageDelta { delta: Delta::Text("h".into()) },
        EventKind::MessageDelta { delta: Delta::Reasoning("hm".into()) },
        EventKind::MessageDelta {
            delta: Delta::ToolArguments { index: 0, name: Some("read".into()), text: "{".into() },
        },
        EventKind::MessageDiscarded,
        EventKind::MessageEnd { entry_id, message: said, queued: Some(EntryId(1)) },
        EventKind::ToolStart { call_id: "c".into(), name: "read".into(), arguments: "{}".into() },
        EventKind::ToolUpdate { call_id: "c".into(), name: "read".into(), line: "half".into() },
        EventKind::ToolEnd {
            call_id: "c".into(),
            name: "read".into(),
            status: ToolStatus::Ok,
            duration_ms: 3,
        },
        EventKind::UsageUpdate {
            context: context(),
            context_window: Some(8_000),
            total_tokens: 1_300,
            estimated_tokens: 12,
            cost_microdollars: 12,
        },
        EventKind::PrefixChanged { reason: PrefixChange::Hook, messages_kept: 7 },
        EventKind::CompactionNear { tokens: 80, compacts_at: 100 },
        EventKind::CompactionStart {
            entry_id,
            trigger: Trigger::Manual,
            tokens_before: 9,
            messages_before: 2,
        },
        EventKind::ChildStart {
            entry_id,
            call_id: "c".into(),
            name: "web".into(),
            child: "s..0123456789abcdef".into(),
        },
        EventKind::HandOff { from: "triage".into(), to: "refunds".into(), sees: Sees::Last(4) },
        EventKind::HandOff { from: "refunds".into(), to: "triage".into(), sees: Sees::All },
        EventKind::SessionCompacted { entry_id, tokens_saved: 810 },
        EventKind::ResultsPruned { entry_id: EntryId(3), results: 2, tokens_saved: 900 },
        EventKind::CompactionUndone { compaction: entry_id },
        EventKind::InputQueued { entry_id, delivery: InboxDelivery::FollowUp },
        EventKind::Retry { compaction: None, attempt: 1, delay_ms: 500, failure: failure() },
        EventKind::Retry { compaction: Some(EntryId(7)), attempt: 2, delay_ms: 0, failure: failure() },
        EventKind::QueueUpdate {
            provider: "local".into(),
            is_summary: false,
            reason: QueueReason::Slots,
            position: 3,
            waited_ms: 0,
        },
        EventKind::Fallback { provider: "local".into(), model: "qwen3".into(), failure: failure() },
        EventKind::Hook {
            hook: HookPoint::BeforeTool,
            action: HookAction::Changed,
            call_id: Some("c".into()),
            name: Some("read".into()),
            detail: Some("{}".into()),
        },
        EventKind::Hook {
            hook: HookPoint::BeforeModel,
            action: HookAction::Answered,
            call_id: None,
            name: None,
            detail: None,
        },
        EventKind::QuestionAsked {
            entry_id,
            call_id: "c".into(),
            tool: "refund".into(),
            asker: Asker::Tool,
            question: Question::choice("Refund?", ["yes", "no"]).details("order 7"),
            expires_at_ms: Some(1_700_000_000_000),
        },
        EventKind::QuestionAsked {
            entry_id,
            call_id: "c".into(),
            tool: "refund".into(),
            asker: Asker::Hook,
            question: Question::form::<Failure>("Why?"),
            expires_at_ms: None,
        },
        EventKind::QuestionEnded {
            question: entry_id,
            end: QuestionEnd::Answered(GivenAnswer::from(serde_json::json!({ "euros": 120 })).by("ada")),
        },
        EventKind::QuestionEnded { question: entry_id, end: QuestionEnd::Expired },
        EventKind::QuestionEnded { question: entry_id, end: QuestionEnd::Withdrawn },
        EventKind::ModeChanged { mode: "ask".to_owned() },
        EventKind::OverflowDetected,
        EventKind::Warning { message: "w".into() },
        EventKind::SessionRestarted { reason: "r".into() },
        EventKind::SessionFailed { reason: "r".into() },
        EventKind::SessionMoved { reason: "r".into() },
        EventKind::SessionDeleted { reason: None },
        EventKind::SessionDeleted { reason: Some(DeletionReason::Age) },
    ];
    let outcomes = [
        RunOutcome::Completed,
        RunOutcome::Aborted,
        RunOutcome::Interrupted,
        RunOutcome::Stopped { reason: "250 steps".into() },
        RunOutcome::Failed(Box::new(failure())),
    ];
    let child_end = |outcome| EventKind::ChildEnd {
        started: entry_id,
        call_id: "c".into(),
        name: "web".into(),
        child: "s..0123456789abcdef".into(),
        outcome,
    };
    kinds.extend(outcomes.clone().map(child_end));
    kinds.extend(outcomes.map(run_end));
    let outcomes = [
        CompactionOutcome::Completed,
        CompactionOutcome::Truncated { reason: "the model is down".into() },
        CompactionOutcome::Pruned { reason: Some("the model is down".into()) },
        CompactionOutcome::Nothing { reason: "recent".into() },
        CompactionOutcome::Failed { reason: "refused".into() },
        CompactionOutcome::Cancelled { reason: "aborted".into() },
        CompactionOutcome::Superseded,
        CompactionOutcome::Interrupted,
    ];
    kinds.extend(outcomes.map(|outcome| EventKind::CompactionEnd(compacted(outcome))));
    let records = [
        Record::InboxCleared { items: vec![EntryId(3), EntryId(4)] },
        Record::Pin { entry: EntryId(3), pinned: true },
        Record::ModelChange { provider: "p".into(), model: "m".into() },
        Record::Label { target: EntryId(3), label: None },
        Record::Note { name: "bookmark".into(), data: "{\"page\":3}".into() },
        Record::LeafMoved { to: Some(EntryId(3)) },
        Record::Spent {
            sub_agent: Some("s.web".into()),
            usage: Usage::default(),
            cost_microdollars: Some(4),
        },
        Record::Spent { sub_agent: None, usage: Usage::default(), cost_microdollars: None },
        Record::WholeResult { call_id: "c".into() },
        Record::CallStarted { call_id: "c".into() },
        Record::Terms {
            output: Some("City".into()),
            settings: Some(serde_json::json!({ "temperature": 0.5 })),
            cost_limit_microdollars: Some(1_000),
            timeout_ms: Some(60_000),
            validators: vec!["checked".into()],
            again: Some(EntryId(1)),
        },
    ];
    kinds.extend(records.map(|record| EventKind::Recorded { entry_id, record }));
    kinds
}

pub(crate) fn event(kind: EventKind) -> Event {
    let (session, parent) = (Arc::from("s"), Some(Arc::from("boss")));
    Event {
        session,
        session_created_at_ms: 7,
        seq: 6,
        n: Some(2),
        at_ms: 1_700_000_000_000,
        run: Some(EntryId(5)),
        parent,
        kind,
    }
}

#[test]
fn every_event_reads_back_and_says_its_type() {
    let mut seen = BTreeSet::new();
    for kind in all() {
        seen.insert(kind.event_type());
        let event = event(kind);
        let text = serde_json::to_string(&event).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["type"], event.kind.event_type().as_str(), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
    }
    assert_eq!(seen, EventType::ALL.iter().copied().collect(), "each type is among them");
}

/// A program older than an event, a record or a reason can continue reading, and loses none of its data.
#[test]
fn what_a_newer_program_wrote_is_read_as_unknown_and_written_as_it_was() {
    let of = |mut fields: Value| {
        for (name, value) in json!(event(EventKind::RunStart)).as_object().unwrap() {
            fields.as_object_mut().unwrap().entry(name.clone()).or_insert_with(|| value.clone());
        }
        let event: Event = serde_json::from_value(fields.clone()).unwrap();
        assert_eq!(json!(event), fields, "it is written as it was read");
        assert_eq!((event.seq, event.n, event.at_ms), (6, Some(2), 1_700_000_000_000));
        event.kind
    };

    let kind = of(json!({ "type": "image_end", "url": "a.png", "sizes": [1, 2] }));
    assert_eq!((kind.event_type(), kind.name()), (EventType::Unknown, "unknown"));
    let EventKind::Unknown { name, fields } = kind else { panic!("{kind:?}") };
    assert_eq!((name.as_str(), json!(fields)), ("image_end", json!({ "url": "a.png", "sizes": [1, 2] })));
    // A known event with an unknown part.
    let of_delta = of(json!({ "type": "message_delta", "delta": { "kind": "image", "text": "a.png" } }));
    assert!(matches!(of_delta, EventKind::Unknown { name, .. } if name == "message_delta"));

    let kind = of(json!({ "type": "recorded", "entry_id": 6, "kind": "moved", "to": "elsewhere" }));
    let EventKind::Recorded { entry_id: EntryId(6), record: Record::Unknown { name, fields } } = kind else {
        panic!("{kind:?}")
    };
    assert_eq!((name.as_str(), json!(fields)), ("moved", json!({ "to": "elsewhere" })));
    // Without a type, it is not an event.
    assert!(serde_json::from_value::<Event>(json!({ "session_id": "s", "seq": 1, "at_ms": 1 })).is_err());
}

/// If only a reason is unknown, the rest of the event is read.
#[test]
fn a_newer_reason_is_unknown_and_its_event_is_not() {
    let read = |kind: EventKind, field: &str, newer: &str| -> EventKind {
        let mut value = json!(event(kind));
        *value.pointer_mut(field).unwrap() = newer.into();
        serde_json::from_value::<Event>(value).unwrap().kind
    };
    let end = run_end(RunOutcome::Completed);
    let read_end = read(end.clone(), "/outcome", "paused");
    assert!(matches!(read_end, EventKind::RunEnd { outcome: RunOutcome::Unknown, .. }), "{read_end:?}");
    let read_end = read(end, "/context/window_source", "guessed");
    assert!(
        matches!(
            read_end,
            EventKind::RunEnd { context: ContextUsage { window_source: WindowSource::Unknown, .. }, .. }
        ),
        "{read_end:?}"
    );
    // An older program told no cost.
    let mut older = json!(event(run_end(RunOutcome::Completed)));
    older.as_object_mut().unwrap().retain(|key, _| !key.contains("cost"));
    let older = serde_json::from_value::<Event>(older).unwrap().kind;
    assert!(matches!(older, EventKind::RunEnd { cost_microdollars: 0, is_cost_estimated: false, .. }));
    let failed = run_end(RunOutcome::Failed(Box::new(failure())));
    let failed = read(failed, "/failure/class", "too_hot");
    let EventKind::RunEnd { outcome: RunOutcome::Failed(failure), .. } = failed else { panic!("{failed:?}") };
    assert_eq!((failure.class, failure.message.as_str()), (FailureClass::Other, "too long"));
    let said =
        MessageView { stop: Some(StopReason::Stop), ..MessageView::plain(Role::Assistant, "hi".into()) };
    let said = EventKind::MessageEnd { entry_id: EntryId(6), message: said, queued: None };
    for (field, is_read) in [
        ("/message/stop", (|message| message.stop == Some(StopReason::Unknown)) as fn(&MessageView) -> bool),
        ("/message/role", |message| message.role == Role::Unknown),
    ] {
        let read = read(said.clone(), field, "newer");
        assert!(
            matches!(&read, EventKind::MessageEnd { message, .. } if is_read(message) && message.text == "hi"),
            "{read:?}"
        );
    }
    for (field, newer) in [("/trigger", "boredom"), ("/outcome", "postponed")] {
        let ended = read(EventKind::CompactionEnd(compacted(CompactionOutcome::Completed)), field, newer);
        let EventKind::CompactionEnd(ended) = ended else { panic!("{ended:?}") };
        assert!(
            ended.trigger == Trigger::Unknown || ended.outcome == CompactionOutcome::Unknown,
            "{ended:?}"
        );
    }
    let hook = EventKind::Hook {
        hook: HookPoint::BeforeTool,
        action: HookAction::Changed,
        call_id: None,
        name: None,
        detail: None,
    };
    assert!(matches!(
        read(hook.clone(), "/hook", "after_model"),
        EventKind::Hook { hook: HookPoint::Unknown, .. }
    ));
    assert!(matches!(read(hook, "/action", "delayed"), EventKind::Hook { action: HookAction::Unknown, .. }));
    // A value that a caller requests must be known; otherwise it is refused.
    assert!(
        "unknown".parse::<EventType>().is_err() && serde_json::from_str::<EventType>("\"unknown\"").is_err()
    );
    assert!(serde_json::from_str::<EventType>("\"image_end\"").is_err());
}

#[test]
fn ends_are_flat_and_their_outcomes_are_words() {
    let context = json!(context());
    for (kind, wanted) in [
        (
            run_end(RunOutcome::Completed),
            json!({
                "type": "run_end", "outcome": "completed", "context": context,
                "cost_microdollars": 5, "is_cost_estimated": true,
            }),
        ),
        (
            run_end(RunOutcome::Stopped { reason: "250 steps".into() }),
            json!({
                "type": "run_end", "outcome": "stopped", "reason": "250 steps", "context": context,
                "cost_microdollars": 5, "is_cost_estimated": true,
            }),
        ),
        (
            run_end(RunOutcome::Failed(Box::new(failure()))),
            json!({
                "type": "run_end", "outcome": "failed", "reason": "too long", "failure": failure(),
                "context": context, "cost_microdollars": 5, "is_cost_estimated": true,
            }),
        ),
        (
            EventKind::CompactionEnd(compacted(CompactionOutcome::Nothing { reason: "recent".into() })),
            json!({
                "type": "compaction_end", "started": 7, "trigger": "threshold", "outcome": "nothing",
                "reason": "recent", "tokens_before": 900, "tokens_after": 90, "messages_before": 12,
                "messages_after": 3, "messages_removed": 10, "duration_ms": 1200,
                "waited_ms": 900, "prepared_ms": 700,
                "summary_usage": Usage { input_tokens: 5, ..Usage::default() }, "cost_microdollars": null, "recall": { "facts": 3, "before": 1, "after": 2 },
            }),
        ),
        (
            EventKind::Recorded {
                entry_id: EntryId(6),
                record: Record::ModelChange { provider: "p".into(), model: "m".into() },
            },
            json!({ "type": "recorded", "entry_id": 6, "kind": "model_change", "provider": "p", "model": "m" }),
        ),
    ] {
        assert_eq!(json!(kind), wanted);
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for name in EventType::ALL {
        assert_eq!(name.as_str().parse(), Ok(*name));
        assert_eq!(json!(name), json!(name.to_string()));
    }
    let error = "run_ends".parse::<EventType>().unwrap_err();
    assert_eq!(error.to_string(), "there is no event named \"run_ends\"");
}

#[test]
fn states_replies_options_and_summaries_read_back() {
    fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let text = serde_json::to_string(value).unwrap();
        assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    }
    check(&Reply {
        text: "yes".into(),
        stop: StopReason::Length,
        model: "m".into(),
        run: EntryId(5),
        context: context(),
        usage: Usage { output_tokens: 3, ..Usage::default() },
        cost_microdollars: 6,
        is_cost_estimated: true,
        steps: 2,
        compactions: vec![compacted(CompactionOutcome::Completed)],
        compaction_bill: crate::CompactionBill { waited_ms: 4, ..Default::default() },
        tool_calls: vec![CallView { id: "c".into(), name: "read".into(), arguments: "{}".into() }],
    });
    check(&State {
        id: "s".into(),
        model: "m".into(),
        agent: Some("refunds".into()),
        compacts_at: Some(80),
        entries: 7,
        context: context(),
        context_window: Some(8_000),
        compactions: 1,
        total_tokens: 9,
        estimated_tokens: 0,
        cost_microdollars: 0,
        compaction_bill: crate::CompactionBill { saved_tokens: 3, ..Default::default() },
        status: Status::Compacting,
        waiting: 0,
        held_back: 0,
        questions: 1,
        questions_below: 2,
        waiting_tools: vec!["ask".into()],
        is_unanswered: true,
        is_held_back: true,
        lost_from: Some(EntryId(3)),
    });
    check(&CompactOptions { focus: Some("names".into()), keep_recent: Some(5), force: true });
    check(&SessionSummary::new("s".into(), greenroom_kernel::Head::default()));
    assert_eq!(serde_json::from_str::<CompactOptions>("{}").unwrap(), CompactOptions::default());
    assert!(serde_json::from_str::<CompactOptions>(r#"{"keep":5}"#).is_err(), "a typo is not passed over");
}
