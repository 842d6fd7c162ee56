//! What is typed while a question is open: an answer, or a text that is something else.

use greenroom::{Approval, QuestionKind};
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
    let mut approval = Approval::new("bash", json!({ "command": "touch oops" }));
    approval.rules = vec!["bash(touch *)".to_owned()];
    let kind = QuestionKind::Approval { approval: Box::new(approval) };
    chat.model.ask(Ask::new(EntryId(4), "bash", "Run `touch oops`?", None, &kind));
    chat.region();
    chat
}

/// Types each text at its time, in milliseconds after the question appeared. Checks what is answered, and what stands in
/// the editor then.
fn check(typed: &[(u64, &str)], answer: Option<Value>, draft: &str) {
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
    let given = effects.iter().find_map(|effect| match effect {
        Effect::Answer { value, .. } | Effect::Refuse { value, .. } => Some(value.clone()),
        _ => None,
    });
    assert_eq!(given, answer, "{typed:?}");
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

#[test]
fn a_letter_inside_of_a_text_answers_nothing_and_no_text_is_lost() {
    let (yes, no) = (Some(json!("yes")), Some(json!("no")));
    for text in
        ["try another", "/title renamed", "yes please", "no wait", "1 more", "33 of them", "a y", "nn?"]
    {
        // At any time: as the question appears, or long after it.
        for at_ms in [0, 300, 450, 2_000, 60_000] {
            check(&[(at_ms, text)], None, text);
        }
        check(&[(2_000, text), (8_000, "y")], None, &format!("{text}y"));
    }
    check(&[(2_000, "y")], yes.clone(), "");
    check(&[(2_000, "n")], no.clone(), "");
    check(&[(2_000, "yyyy")], yes.clone(), "");
    check(&[(2_000, "y\n")], yes.clone(), "");
    check(&[(100, "y"), (2_000, "y")], yes.clone(), "");
    check(&[(100, "1")], yes, "");
    check(&[(2_000, " "), (2_300, "3")], no, "");
    check(&[(2_000, "4no y\n")], Some(json!({ "no": "no y" })), "");
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
