//! From keys to answers of the right type.

use serde_json::json;

use super::*;

fn ask(kind: &QuestionKind) -> Ask {
    Ask::new(EntryId(7), "refund", "Refund it?", Some("Order 7"), kind)
}

/// A moment at which the question is not new any more.
const LATER: u64 = 10_000;
/// The room of a question.
const ROOM: usize = 200;

/// Presses keys, and nothing for a moment after the last one.
fn press(ask: &mut Ask, keys: &[KeyCode]) -> AskOutcome {
    let mut last = AskOutcome::Waits;
    for code in keys {
        last = ask.key(KeyEvent::from(*code), LATER);
    }
    if last == AskOutcome::Waits { ask.due(LATER + MOMENT_MS) } else { last }
}

fn type_in(ask: &mut Ask, text: &str) {
    for c in text.chars() {
        ask.key(KeyEvent::from(KeyCode::Char(c)), LATER);
    }
}

#[test]
fn a_choice_is_made_by_number_or_arrows() {
    let kind =
        QuestionKind::Choice { choices: ["yes", "no", "later"].map(str::to_owned).to_vec(), several: false };
    use KeyCode::*;
    assert_eq!(press(&mut ask(&kind), &[Down, Enter]), AskOutcome::Answered(json!("yes")));
    assert_eq!(press(&mut ask(&kind), &[Down, Down, Down, Down, Enter]), AskOutcome::Answered(json!("yes")));
    assert_eq!(press(&mut ask(&kind), &[Char('2'), Enter]), AskOutcome::Answered(json!("no")));
    assert_eq!(press(&mut ask(&kind), &[Char('2')]), AskOutcome::Waits, "a number alone answers nothing");
    assert_eq!(press(&mut ask(&kind), &[Up, Enter]), AskOutcome::Answered(json!("later")));
    assert_eq!(press(&mut ask(&kind), &[Char('9'), Enter]), AskOutcome::Waits);
    assert_eq!(press(&mut ask(&kind), &[Esc]), AskOutcome::Later);
}

#[test]
fn a_number_of_several_digits_is_one_number() {
    let choices: Vec<String> = (1..=60).map(|number| format!("choice {number}")).collect();
    let kind = |several| QuestionKind::Choice { choices: choices.clone(), several };
    use KeyCode::*;
    for (keys, wanted) in
        [(&['4', '2'][..], 42), (&['1', '0'], 10), (&['7'], 7), (&['6', '0'], 60), (&['6', '1'], 1)]
    {
        let keys: Vec<KeyCode> = keys.iter().map(|key| Char(*key)).chain([Enter]).collect();
        let answer = press(&mut ask(&kind(false)), &keys);
        assert_eq!(answer, AskOutcome::Answered(json!(format!("choice {wanted}"))), "{keys:?}");
    }
    let answer = press(&mut ask(&kind(true)), &[Char('4'), Char('2'), Char(' '), Enter]);
    assert_eq!(answer, AskOutcome::Answered(json!(["choice 42"])));
}

#[test]
fn who_types_something_else_chooses_nothing() {
    let kind = QuestionKind::Choice { choices: ["yes", "no"].map(str::to_owned).to_vec(), several: false };
    let mut ask = ask(&kind);
    type_in(&mut ask, "no, never");
    assert_eq!(press(&mut ask, &[KeyCode::Enter]), AskOutcome::Waits);
    let (rows, _) = ask.layout(60, ROOM);
    let shown = rows.iter().map(Row::text).collect::<Vec<_>>().join("\n");
    assert!(shown.contains("a number or ↑ ↓ chooses") && !shown.contains('❯'), "{shown}");
}

#[test]
fn a_number_inside_of_a_text_chooses_nothing() {
    let choices = ["yes", "no"].map(str::to_owned).to_vec();
    for (several, text) in [(false, "1 more"), (false, "more 1"), (true, "more 1"), (false, "x2")] {
        let kind = QuestionKind::Choice { choices: choices.clone(), several };
        let mut ask = ask(&kind);
        type_in(&mut ask, text);
        assert_eq!(press(&mut ask, &[KeyCode::Enter]), AskOutcome::Waits, "{text}");
        // After a pause, or an arrow, a number is meant.
        let mut later = ask.clone();
        for code in [KeyCode::Char('2'), KeyCode::Enter] {
            let asked = later.key(KeyEvent::from(code), LATER + 1_000);
            assert_eq!(asked != AskOutcome::Waits, code == KeyCode::Enter, "{text}: {asked:?}");
        }
        assert_ne!(press(&mut ask, &[KeyCode::Down, KeyCode::Char('2'), KeyCode::Enter]), AskOutcome::Waits);
    }
}

#[test]
fn several_choices_are_ticked() {
    let kind = QuestionKind::Choice { choices: ["a", "b", "c"].map(str::to_owned).to_vec(), several: true };
    let mut ask = ask(&kind);
    use KeyCode::*;
    assert_eq!(press(&mut ask, &[Enter]), AskOutcome::Waits, "nothing is chosen yet");
    let answer = press(&mut ask, &[Char('1'), Down, Down, Char(' '), Char('2'), Char('2'), Enter]);
    assert_eq!(answer, AskOutcome::Answered(json!(["a", "c"])));
}

#[test]
fn a_text_is_typed_or_pasted() {
    let mut ask = ask(&QuestionKind::Text);
    assert_eq!(press(&mut ask, &[KeyCode::Enter]), AskOutcome::Waits);
    type_in(&mut ask, "well ");
    ask.paste("of\ntwo lines");
    assert_eq!(press(&mut ask, &[KeyCode::Enter]), AskOutcome::Answered(json!("well of\ntwo lines")));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(ask.key(control_c, LATER), AskOutcome::NotMine, "an interrupt is no answer");
}

#[test]
fn a_form_is_filled_in_field_by_field_with_the_right_types() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "euros": { "type": "integer", "description": "How much" },
            "fast": { "type": ["boolean", "null"] },
            "by": { "type": "string", "enum": ["bank", "card"] },
        },
        "required": ["name", "euros", "by"],
    });
    let mut ask = ask(&QuestionKind::Form { schema });
    assert_eq!(press(&mut ask, &[KeyCode::Enter]), AskOutcome::Waits);
    assert_eq!(ask.problem.as_deref(), Some("name is required"));
    type_in(&mut ask, "Ada");
    press(&mut ask, &[KeyCode::Enter]);
    type_in(&mut ask, "many");
    press(&mut ask, &[KeyCode::Enter]);
    assert_eq!(ask.problem.as_deref(), Some("euros must be of type integer"));
    ask.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL), LATER);
    type_in(&mut ask, "120");
    press(&mut ask, &[KeyCode::Enter, KeyCode::Enter]);
    type_in(&mut ask, "cash");
    press(&mut ask, &[KeyCode::Enter]);
    assert_eq!(ask.problem.as_deref(), Some("by must be one of bank, card"));
    ask.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL), LATER);
    type_in(&mut ask, "Card");
    let answer = press(&mut ask, &[KeyCode::Enter]);
    assert_eq!(answer, AskOutcome::Answered(json!({ "name": "Ada", "euros": 120, "by": "card" })));
}

#[test]
fn it_fits_in_thirty_columns() {
    let kind = QuestionKind::Choice {
        choices: vec!["a choice that is rather long, indeed".to_owned()],
        several: false,
    };
    let mut ask = Ask::new(EntryId(1), "tool", "A question that takes more than a row?", None, &kind);
    let (rows, cursor) = ask.layout(29, ROOM);
    assert!(rows.iter().all(|row| row.width() <= 29), "{rows:?}");
    assert!(cursor.0 < rows.len());
}

fn approval(rules: &[&str]) -> greenroom::Approval {
    let mut approval = greenroom::Approval::new("edit", json!({ "path": "a.rs", "old": "x", "new": "y" }));
    approval.rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
    approval.folder = Some("/srv".to_owned());
    approval.preview =
        Some((0..40).map(|line| format!("-old {line}\n+new {line}")).collect::<Vec<_>>().join("\n"));
    approval
}

#[test]
fn an_approval_is_answered_by_number_arrows_or_words() {
    use KeyCode::*;
    let with = QuestionKind::Approval { approval: Box::new(approval(&["write(src/**)"])) };
    let without = QuestionKind::Approval { approval: Box::new(approval(&[])) };
    let rows: &[(&QuestionKind, &[KeyCode], AskOutcome)] = &[
        (&with, &[Char('3')], AskOutcome::Refused(json!("no"))),
        (&with, &[Down, Enter], AskOutcome::Answered(json!("always"))),
        (&with, &[Char('4'), Char('1'), Char('b'), Enter], AskOutcome::Answered(json!({ "no": "1b" }))),
        (&with, &[Char('4'), Char('b'), Up, Enter], AskOutcome::Refused(json!("no"))),
        (&with, &[Char('4'), Enter], AskOutcome::Waits),
        (&with, &[Enter], AskOutcome::Answered(json!("yes"))),
        (&with, &[Char('1')], AskOutcome::Answered(json!("yes"))),
        (&with, &[Char('2')], AskOutcome::Answered(json!("always"))),
        (&with, &[Char('y')], AskOutcome::Answered(json!("yes"))),
        (&with, &[Char('n')], AskOutcome::Refused(json!("no"))),
        (&with, &[BackTab], AskOutcome::AnsweredForEdits(json!("yes"))),
        (&with, &[Char('2'), Enter], AskOutcome::Answered(json!("always"))),
        (&with, &[Char('y'), Backspace], AskOutcome::Waits),
        (&with, &[Char('y'), Down, Down, Enter], AskOutcome::Refused(json!("no"))),
        (&with, &[Char('a')], AskOutcome::Typed("a".to_owned())),
        (&with, &[Char('9')], AskOutcome::Typed("9".to_owned())),
        (&with, &[Char('4'), Char(' '), Char('y'), Enter], AskOutcome::Answered(json!({ "no": " y" }))),
        (&with, &[Char('4'), Char('y'), Enter], AskOutcome::Answered(json!({ "no": "y" }))),
        (&with, &[Esc], AskOutcome::Later),
        // The numbers are the same without "always".
        (&without, &[Char('2')], AskOutcome::Typed("2".to_owned())),
        (&without, &[Char('3')], AskOutcome::Refused(json!("no"))),
        (&without, &[Up, Char('x'), Enter], AskOutcome::Answered(json!({ "no": "x" }))),
    ];
    for (kind, keys, expected) in rows {
        let mut ask = ask(kind);
        ask.layout(60, ROOM);
        assert_eq!(press(&mut ask, keys), *expected, "{keys:?}");
    }
    let mut pasted = ask(&with);
    press(&mut pasted, &[Char('4')]);
    pasted.paste("use git mv");
    assert_eq!(press(&mut pasted, &[Enter]), AskOutcome::Answered(json!({ "no": "use git mv" })));
}

#[test]
fn a_rule_that_does_not_fit_beside_its_answer_is_shown_above() {
    let rule = "bash(sqlite3 a.db .tables *)";
    let kind = QuestionKind::Approval { approval: Box::new(approval(&[rule])) };
    for width in [20, 39, 59, 68, 69, 79] {
        let (rows, _) = ask(&kind).layout(width, ROOM);
        let rows: Vec<String> = rows.iter().map(Row::text).collect();
        let beside = rows.iter().any(|row| row.contains("2. ") && row.trim_end().ends_with(rule));
        let all: String = rows.concat().split_whitespace().collect();
        let rule: String = rule.split_whitespace().collect();
        let (above, is_whole) = (all.contains(&format!("allows{rule}")), all.contains(&rule));
        assert!(is_whole && beside != above && beside == (width >= 68), "{width}: {rows:#?}");
    }
}

#[test]
fn an_approval_shows_what_would_change() {
    let mut approval = approval(&["write(src/**)"]);
    approval.why = Some("a rule asks for it (ask write(src/**), from --ask)".to_owned());
    let kind = QuestionKind::Approval { approval: Box::new(approval) };
    let (rows, _) = ask(&kind).layout(60, ROOM);
    let text = rows.iter().map(|row| row.text()).collect::<Vec<_>>().join("\n");
    for part in [
        "because a rule asks", "-old 0", "+new 0", "-old 39", "+new 39", "in /srv", "1. Yes",
        "again for write(src/**)", "4. No, and tell",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(rows.iter().all(|row| row.width() <= 60), "{text}");
    let end = QuestionEnd::Answered(json!({ "no": "use git mv" }).into());
    assert!(ask(&kind).ended(&end, Some("ada"), 60).is_empty(), "the row of the call tells");
    let QuestionEnd::Answered(mut answer) = end else { panic!("it is answered") };
    answer.by = Some("bob".to_owned());
    let end = QuestionEnd::Answered(answer);
    let ended = ask(&kind).ended(&end, Some("ada"), 60).iter().map(|row| row.text()).collect::<String>();
    assert!(ended.contains("no: use git mv (by bob)"), "{ended}");
}

#[test]
fn in_its_first_moment_no_letter_and_no_enter_approves() {
    let kind = QuestionKind::Approval { approval: Box::new(approval(&[])) };
    for (code, is_answer) in [
        (KeyCode::Enter, false),
        (KeyCode::Char('y'), false),
        (KeyCode::Char('n'), false),
        // Nobody types a number by chance, and who moves the mark has seen it.
        (KeyCode::Char('1'), true),
    ] {
        let mut ask = ask(&kind);
        ask.appears(1_000);
        ask.layout(60, ROOM);
        assert_eq!(ask.key(KeyEvent::from(code), 1_499), AskOutcome::Waits, "{code:?}");
        let asked = ask.due(1_999);
        assert_eq!(asked != AskOutcome::Waits, is_answer, "{code:?}: {asked:?}");
        if !is_answer {
            let pressed = ask.key(KeyEvent::from(code), 2_000);
            assert!(pressed != AskOutcome::Waits || ask.due(2_500) != AskOutcome::Waits, "{code:?}");
        }
    }
    let mut ask = ask(&kind);
    ask.appears(1_000);
    ask.layout(60, ROOM);
    ask.key(KeyEvent::from(KeyCode::Down), 1_100);
    assert_eq!(ask.key(KeyEvent::from(KeyCode::Enter), 1_200), AskOutcome::Refused(json!("no")));
}
