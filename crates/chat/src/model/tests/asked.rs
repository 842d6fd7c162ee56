//! What is typed while a question is open: an answer, or a text that is something else.

use greenroom::{Approval, Question, QuestionKind};
use greenroom_kernel::question::{Asker, GivenAnswer, QuestionEnd};
use serde_json::json;

use super::*;

/// The time between two keys of a text, in milliseconds.
const KEY_MS: u64 = 120;

/// A chat that has asked for an approval.
fn asking() -> Chat {
    let mut chat = Chat::new();
    chat.model.set_now(1_000);
    chat.says("hello");
    chat.joins("hello", 1);
    chat.hears(EventKind::RunStart);
    begins(&mut chat);
    let mut approval = Approval::new("bash", json!({ "command": "touch oops" }));
    approval.rules = vec!["bash(touch *)".to_owned()];
    let kind = QuestionKind::Approval { approval: Box::new(approval) };
    chat.hears(EventKind::QuestionAsked {
        entry_id: EntryId(4),
        call_id: "c".into(),
        tool: "bash".into(),
        asker: Asker::Hook,
        question: Question::text("Run `touch oops`?").of_kind(kind),
        expires_at_ms: None,
    });
    chat.region();
    chat
}

/// The call begins.
fn begins(chat: &mut Chat) {
    let arguments = r#"{"command":"touch oops"}"#.into();
    chat.hears(EventKind::ToolStart { call_id: "c".into(), name: "bash".into(), arguments });
}

/// The question is answered, by somebody.
fn ends(chat: &mut Chat, value: Value, by: Option<&str>) {
    let answer = GivenAnswer::from(value);
    let answer = by.map_or(answer.clone(), |by| answer.by(by));
    chat.hears(EventKind::QuestionEnded { question: EntryId(4), end: QuestionEnd::Answered(answer) });
}

/// Returns the answer that was given.
fn given(effects: &[Effect]) -> Option<&str> {
    let value = effects.iter().find_map(|effect| {
        let (Effect::Answer { value, .. } | Effect::Refuse { value, .. }) = effect else { return None };
        Some(value.get("no").unwrap_or(value))
    });
    value.and_then(Value::as_str)
}

/// Types each text at its time, in milliseconds after the question appeared. Checks what is answered, and what stands
/// in the editor then.
fn check(typed: &[(u64, &str)], answer: Option<&str>, draft: &str) {
    let mut chat = asking();
    let (mut effects, mut now_ms) = (Vec::new(), 0);
    for (at_ms, text) in typed {
        now_ms = 1_000 + at_ms;
        for c in text.chars() {
            // As the chat does it: what was typed comes first.
            chat.model.set_now(now_ms);
            let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
            effects.extend(chat.press(code));
            effects.extend(chat.model.due());
            chat.region();
            now_ms += KEY_MS;
        }
        chat.model.set_now(now_ms + 800);
        effects.extend(chat.model.due());
    }
    assert_eq!(given(&effects), answer, "{typed:?}");
    assert_eq!(chat.model.editor.text(), draft, "{typed:?}");
    if !draft.is_empty() {
        // The question is still there, and an answer is one.
        assert!(chat.region().join("\n").contains("Ctrl-Q returns to it"), "{typed:?}");
        chat.control('q');
        chat.region();
        chat.types("n");
        chat.model.set_now(now_ms + 10_000);
        assert_eq!(chat.model.due(), [Effect::Refuse { id: EntryId(4), value: json!("no") }], "{typed:?}");
    }
}

/// Types the text with long pauses, in which nothing was drawn and no answer counted.
fn check_late(text: &str, answer: Option<&str>, draft: &str) {
    let mut chat = asking();
    let mut effects = Vec::new();
    for (place, c) in (0..).zip(text.chars()) {
        chat.model.set_now(5_000 + place * 510);
        effects.extend(chat.press(if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) }));
    }
    chat.model.set_now(60_000);
    effects.extend(chat.model.due());
    assert_eq!((given(&effects), &*chat.model.editor.text()), (answer, draft), "{text:?}");
}

#[test]
fn a_letter_inside_of_a_text_answers_nothing_and_no_text_is_lost() {
    let (yes, no) = (Some("yes"), Some("no"));
    for text in
        ["try another", "/title renamed", "yes please", "no wait", "1 more", "33 of them", "a y", "nn?"]
    {
        // At any time: as the question appears, or long after it.
        for at_ms in [0, 300, 450, 2_000, 60_000] {
            check(&[(at_ms, text)], None, text);
        }
        check(&[(2_000, text), (8_000, "y")], None, &format!("{text}y"));
    }
    check(&[(2_000, "y")], yes, "");
    check(&[(2_000, "n")], no, "");
    check(&[(2_000, "yyyy")], yes, "");
    check(&[(2_000, "y\n")], yes, "");
    check(&[(100, "y"), (2_000, "y")], yes, "");
    check(&[(100, "1")], yes, "");
    check(&[(2_000, " "), (2_300, "3")], no, "");
    check(&[(2_000, "4no y\n")], Some("no y"), "");
    // A key that comes before it was noticed that the answer counts: the terminal was blocked.
    check_late("no wait", None, "no wait");
    check_late("y is it", None, "y is it");
    check_late("n\n", no, "");
    check_late("yy", yes, "");
}

#[test]
fn space_shows_more_of_a_call_also_at_once_after_an_answer_that_came_too_early() {
    let mut chat = asking();
    chat.model.set_now(1_100);
    chat.types("y ");
    assert_eq!(chat.model.editor.text(), "");
    assert!(!chat.region().join("\n").contains("Ctrl-Q returns"));
}

#[test]
fn an_answer_counts_a_moment_after_its_key_and_at_once_with_enter() {
    let mut chat = asking();
    chat.model.set_now(5_000);
    assert_eq!(chat.press(KeyCode::Char('y')), []);
    for (now_ms, wanted) in [(5_499, 0), (5_500, 1), (5_501, 0)] {
        chat.model.set_now(now_ms);
        assert_eq!(chat.model.due().len(), wanted, "{now_ms}");
    }
    let mut chat = asking();
    chat.model.set_now(5_000);
    chat.types("2");
    assert!(chat.model.is_moving(), "the frame is drawn when it counts");
    assert_eq!(chat.press(KeyCode::Enter), [Effect::Answer { id: EntryId(4), value: json!("always") }]);
}

/// Presses an answer, and in the same moment what leaves the question. Checks that the answer does not count when the
/// user looks again.
fn check_left(answer: char, name: &str, leave: impl FnOnce(&mut Chat)) {
    let mut chat = asking();
    chat.model.set_now(5_000);
    assert_eq!(chat.press(KeyCode::Char(answer)), [], "{name}");
    chat.model.set_now(5_200);
    leave(&mut chat);
    // The run itself does not move the frame.
    let busy_since = chat.model.busy_since.take();
    assert!(!chat.model.is_moving(), "{name}: the chat draws without end");
    chat.model.busy_since = busy_since;
    chat.model.set_now(65_000);
    assert_eq!(chat.model.due(), [], "{name}");
    chat.press(KeyCode::Esc);
    assert_eq!(chat.model.due(), [], "{name}");
    chat.control('q');
    assert_eq!(chat.model.due(), [], "{name}: a minute later");
    chat.region();
    // The mark is where it was at first.
    assert_eq!(
        chat.press(KeyCode::Enter),
        [Effect::Answer { id: EntryId(4), value: json!("yes") }],
        "{name}"
    );
}

#[test]
fn an_answer_does_not_count_after_the_user_has_left_its_question() {
    let picker = || Picker::new(Purpose::Theme, "Theme", Vec::new());
    for answer in ['y', '2', 'n'] {
        check_left(answer, "Esc", |chat| drop(chat.press(KeyCode::Esc)));
        check_left(answer, "Ctrl-Z", |chat| assert_eq!(chat.control('z'), [Effect::Suspend]));
        check_left(answer, "Ctrl-C", |chat| assert_eq!(chat.control('c'), [Effect::Interrupt]));
        check_left(answer, "Ctrl-D", |chat| drop(chat.control('d')));
        check_left(answer, "a list", |chat| chat.model.pick(picker()));
    }
}

#[test]
fn a_paste_is_no_answer() {
    let mut chat = asking();
    chat.model.set_now(5_000);
    chat.types("y");
    chat.model.paste("no\n1");
    chat.model.set_now(9_000);
    assert_eq!(chat.model.due(), []);
    assert_eq!(chat.model.editor.text(), "yno\n1");
}

#[test]
fn what_was_typed_for_an_answer_is_not_lost_when_the_question_ends_otherwise() {
    for (typed, value, draft) in [
        ("4use git", json!("no"), "use git"),
        ("4use git", json!("yes"), "use git"),
        ("4use git", json!({ "no": "do not" }), "use git"),
        // This is the answer.
        ("4use git", json!({ "no": "use git" }), ""),
        ("4", json!("no"), ""),
        ("", json!("no"), ""),
    ] {
        let mut chat = asking();
        chat.types(typed);
        ends(&mut chat, value.clone(), Some("bob"));
        assert_eq!(chat.model.editor.text(), draft, "{typed} {value}");
    }
    let withdrawn = EventKind::QuestionEnded { question: EntryId(4), end: QuestionEnd::Withdrawn };
    let mut chat = asking();
    chat.types("4use git");
    chat.hears(withdrawn);
    assert_eq!(chat.model.editor.text(), "use git");
    // The host dies.
    let mut chat = asking();
    chat.types("4use git");
    chat.model.past_ends();
    assert_eq!(chat.model.editor.text(), "use git");
}

#[test]
fn a_paste_into_a_list_or_the_viewer_does_not_reach_the_question_below() {
    for is_list in [true, false] {
        let mut chat = asking();
        chat.model.calls.thought("a thought", "text");
        match is_list {
            true => chat.model.pick(Picker::new(Purpose::Theme, "Theme", Vec::new())),
            false => chat.model.viewer = crate::viewer::Viewer::new(&chat.model.calls),
        }
        assert_eq!(chat.model.viewer.is_none(), is_list);
        chat.model.paste("some text");
        assert!(!chat.model.is_asked_later, "list: {is_list}");
        assert_eq!(chat.model.editor.text(), "");
    }
}

/// Sends words for an answer; then the question ends, or its host does (`None`). Checks what stands in the editor.
fn check_sent(is_refused: bool, end: Option<(&Value, Option<&str>)>, draft: &str) {
    let mut chat = asking();
    chat.model.set_user(Some("ada".to_owned()));
    chat.types("4the key is k-123");
    assert_eq!(chat.press(KeyCode::Enter).len(), 1);
    if is_refused {
        chat.model.answer_refused(EntryId(4), "it has ended");
    }
    match end {
        Some((value, by)) => ends(&mut chat, value.clone(), by),
        None => chat.model.past_ends(),
    }
    assert_eq!(chat.model.editor.text(), draft, "refused: {is_refused}, {end:?}");
}

#[test]
fn an_answer_that_was_sent_does_not_return_even_if_the_log_has_it_without_its_secret() {
    let (typed, redacted) = ("the key is k-123", json!({ "no": "the key is [redacted]" }));
    check_sent(false, Some((&redacted, Some("ada"))), "");
    check_sent(false, None, "");
    // Somebody else was faster.
    check_sent(false, Some((&json!("no"), Some("bob"))), typed);
    check_sent(true, Some((&json!("no"), Some("bob"))), typed);
    check_sent(true, Some((&json!("no"), Some("ada"))), typed);
    check_sent(true, None, typed);
}

#[test]
fn a_run_that_a_no_ends_says_so_wherever_it_was_answered() {
    for (by, said) in [
        (Some("ada"), "Stopped because you answered no in another terminal"),
        (Some("bob"), "Stopped because bob answered no"),
        (None, "Stopped because the answer was no"),
    ] {
        let mut chat = asking();
        chat.model.set_user(Some("ada".to_owned()));
        ends(&mut chat, json!("no"), by);
        // The interrupt comes a moment after the answer.
        chat.hears(EventKind::MessageStart);
        chat.ends(RunOutcome::Aborted);
        let above = chat.above().join("\n");
        assert!(above.contains(said) && !above.contains("Interrupted"), "{by:?}: {above}");
    }
    let mut chat = asking();
    chat.model.set_user(Some("ada".to_owned()));
    chat.model.set_now(5_000);
    chat.types("3");
    assert_eq!(chat.press(KeyCode::Enter).len(), 1);
    ends(&mut chat, json!("no"), Some("ada"));
    chat.ends(RunOutcome::Aborted);
    assert!(chat.above().join("\n").contains("Stopped because you answered no; tell"));
    // A run that went on after a no is interrupted as any other.
    let message = said(Role::Assistant, "Then not.");
    check_went_on("an answer", |chat| {
        chat.hears(EventKind::MessageEnd { entry_id: EntryId(9), message, queued: None });
    });
    check_went_on("Esc", |chat| assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]));
    check_went_on("Ctrl-C", |chat| assert_eq!(chat.control('c'), [Effect::Interrupt]));
}

/// Checks that a run which went on after somebody's no is interrupted as any other.
fn check_went_on(name: &str, goes_on: impl FnOnce(&mut Chat)) {
    let mut chat = asking();
    ends(&mut chat, json!("no"), Some("bob"));
    goes_on(&mut chat);
    chat.ends(RunOutcome::Aborted);
    let above = chat.above().join("\n");
    assert!(above.contains("Interrupted") && !above.contains("because bob"), "{name}: {above}");
}

#[test]
fn a_call_that_waits_for_a_person_waits_also_in_a_chat_that_joins_it() {
    let waits = "? bash touch oops waiting for you";
    let mut chat = asking();
    assert!(chat.region().join("\n").contains(waits));
    // The call is begun again by another host, and waits for the same answer.
    begins(&mut chat);
    assert!(chat.region().join("\n").contains(waits), "{:?}", chat.region());
    // Waiting is no time of the call.
    chat.model.set_now(61_000);
    ends(&mut chat, json!("yes"), Some("ada"));
    chat.model.set_now(63_500);
    chat.hears(EventKind::ToolEnd {
        call_id: "c".into(),
        name: "bash".into(),
        status: greenroom_kernel::ToolStatus::Ok,
        duration_ms: 62_000,
    });
    let message = serde_json::json!({ "role": "tool", "call_id": "c", "tool_name": "bash", "text": "done" });
    let message = serde_json::from_value(message).unwrap();
    chat.hears(EventKind::MessageEnd { entry_id: EntryId(9), message, queued: None });
    let above = chat.above().join("\n");
    assert!(above.contains("✓ bash touch oops · 2.5 s"), "{above}");
}
