//! What is shown of the work, and in which order.

use greenroom_kernel::entry::Trigger;
use greenroom_kernel::{Failure, FailureClass, ToolStatus};

use super::*;

fn compacts(chat: &mut Chat) {
    chat.hears(EventKind::CompactionStart {
        entry_id: EntryId(3),
        trigger: Trigger::Manual,
        tokens_before: 18_300,
        messages_before: 9,
    });
}

#[test]
fn failed_attempts_of_a_summary_are_shown_as_those_of_an_answer() {
    let mut chat = Chat::new();
    compacts(&mut chat);
    let region = chat.region().join("\n");
    assert!(region.contains("compacting") && region.contains("Esc interrupts"), "{region}");
    let failure = Failure::new(FailureClass::Overloaded, "500: it is broken");
    let retry = EventKind::Retry { compaction: Some(EntryId(3)), attempt: 1, delay_ms: 4_000, failure };
    chat.hears(retry.clone());
    chat.model.set_now(1_500);
    let region = chat.region().join("\n");
    assert!(region.contains("compacting") && region.contains("attempt 1 failed"), "{region}");
    assert!(region.contains("500: it is broken") && region.contains("again in 3 s"), "{region}");
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]);
    // The answer that streams meanwhile is none of its business.
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    compacts(&mut chat);
    chat.hears(EventKind::MessageStart);
    chat.streams("half an answer");
    chat.hears(retry);
    let region = chat.region().join("\n");
    assert!(region.contains("half an answer") && region.contains("attempt 1 failed"), "{region}");
}

#[test]
fn a_warning_about_an_answer_stands_below_it() {
    let cut = "the answer was cut off";
    let begun = || {
        let mut chat = Chat::new();
        chat.hears(EventKind::RunStart);
        chat.hears(EventKind::MessageStart);
        chat.streams("One.\n\nTwo");
        chat.hears(EventKind::Warning { message: cut.into() });
        chat
    };
    let mut chat = begun();
    let message = said(Role::Assistant, "One.\n\nTwo");
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(2), message, queued: None });
    assert_eq!(chat.above(), ["One.", "", "Two", "", "  the answer was cut off"]);
    // However the answer ends, the warning is there.
    for end in [EventKind::MessageDiscarded, EventKind::SessionFailed { reason: "x".into() }] {
        let mut chat = begun();
        chat.hears(end.clone());
        chat.ends(RunOutcome::Completed);
        assert_eq!(chat.above().iter().filter(|row| row.contains(cut)).count(), 1, "{end:?}");
    }
    let mut chat = Chat::new();
    chat.hears(EventKind::Warning { message: cut.into() });
    assert_eq!(chat.above(), ["  the answer was cut off"], "without an answer it is shown at once");
}

#[test]
fn held_back_input_is_not_interrupted_but_taken_back() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    let effects = chat.says("and then");
    let Some(&Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    chat.model.sent(ticket, taken_on(5));
    assert!(chat.region().join("\n").contains("Esc interrupts · ↑ takes back what is queued"));
    chat.ends(RunOutcome::Interrupted);
    let region = chat.region().join("\n");
    assert!(!region.contains("interrupts"), "{region}");
    assert!(region.contains("Esc takes back the input that is held back"), "{region}");
}

#[test]
fn a_call_that_did_not_begin_is_shown_with_its_arguments() {
    let mut chat = Chat::new();
    chat.hears(EventKind::RunStart);
    let calls = serde_json::json!([{ "id": "a", "name": "bash", "arguments": "{\"command\":\"make all\"}" }]);
    let message = serde_json::json!({ "role": "assistant", "text": "", "tool_calls": calls });
    let message = serde_json::from_value(message).unwrap();
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(2), message, queued: None });
    let mut message = said(Role::Tool, "The call was not run: it had not begun when the run was cut off.");
    (message.call_id, message.tool_name) = (Some("a".into()), Some("bash".into()));
    message.status = Some(ToolStatus::Error);
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(3), message, queued: None });
    let above = chat.above().join("\n");
    assert!(above.contains("✗ bash make all · not run"), "{above}");
}
