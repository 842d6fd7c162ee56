//! What begins a command, and how one is completed and done.

use super::*;

#[test]
fn a_line_that_ends_with_a_backslash_goes_on_and_a_path_is_no_command() {
    let mut chat = Chat::new();
    chat.says("one\\");
    assert_eq!(sent(&chat.says("two")), [(Kind::Prompt, "one\ntwo")]);
    assert_eq!(sent(&chat.says("/etc/hosts is wrong")), [(Kind::Steer, "/etc/hosts is wrong")]);
    assert!(chat.says("/help").contains(&Effect::Command(Command::Help)));
}

#[test]
fn an_offered_command_is_done_with_enter_and_files_are_asked_for() {
    let mut chat = Chat::new();
    chat.types("/undo-");
    assert!(chat.region().join("\n").contains("❯ /undo-compact"));
    assert!(chat.press(KeyCode::Enter).contains(&Effect::Command(Command::UndoCompact(None))));
    chat.types("look at ");
    let effects = chat.model.key(KeyEvent::from(KeyCode::Char('@')));
    assert_eq!(effects, [Effect::Files(String::new())]);
    chat.types("li");
    chat.model.files("", vec!["late".to_owned()]);
    chat.model.files("li", vec!["src/lib.rs".to_owned(), "list".to_owned()]);
    chat.press(KeyCode::Tab);
    assert_eq!(sent(&chat.says("please")), [(Kind::Prompt, "look at @src/lib.rs please")]);
}

#[test]
fn a_beginning_that_several_commands_have_is_written_out_and_not_done() {
    let mut chat = Chat::new();
    for typed in ["/", "/co"] {
        chat.types(typed);
        assert_eq!(chat.press(KeyCode::Enter), [], "{typed}");
        assert!(chat.region().join("\n").contains("› /compact"));
        chat.control('u');
    }
    // An explicitly selected item is meant, and so is a complete name that is a prefix of others.
    chat.types("/co");
    chat.press(KeyCode::Down);
    assert!(chat.press(KeyCode::Enter).contains(&Effect::Command(Command::Context)));
    assert_eq!(chat.above(), ["  /context"], "what was done is seen");
    chat.types("/cost");
    assert!(chat.press(KeyCode::Enter).contains(&Effect::Command(Command::Told(crate::Told::Cost))));
}

#[test]
fn only_a_typed_slash_begins_a_command() {
    let commands = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Command(_)));
    let mut chat = Chat::new();
    assert!(commands(&chat.says("/tree")));
    chat.model.paste("/quit");
    let effects = chat.press(KeyCode::Enter);
    assert_eq!(text_of(effects.last().unwrap()), "/quit", "{effects:?}");
    let Some(Effect::Remember(kept)) = effects.first() else { panic!("{effects:?}") };
    let Some(Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
    // It is not a command when it returns from the history of a later chat, or is given back.
    let mut later = Model::new(SIZE, std::slice::from_ref(kept), Vec::new());
    later.key(KeyEvent::from(KeyCode::Up));
    assert!(!commands(&later.key(KeyEvent::from(KeyCode::Enter))));
    chat.model.sent(*ticket, Err("too much waits".to_owned()));
    assert!(!commands(&chat.press(KeyCode::Enter)));
}

#[test]
fn only_a_typed_mark_begins_a_command_of_the_users_own() {
    let runs = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Shell { .. }));
    let mut chat = Chat::new();
    assert!(runs(&chat.says("!date")));
    for pasted in ["!touch x".to_owned(), format!("!touch x\n{}", "more\n".repeat(60))] {
        chat.model.paste(&pasted);
        let effects = chat.press(KeyCode::Enter);
        assert_eq!(text_of(effects.last().unwrap()), pasted.trim(), "{effects:?}");
        let Some(Effect::Remember(kept)) = effects.first() else { panic!("{effects:?}") };
        // It is not a command when it returns from the history, here or in a later chat.
        let Some(Effect::Send { ticket, .. }) = effects.last() else { panic!("{effects:?}") };
        chat.press(KeyCode::Up);
        assert!(!runs(&chat.press(KeyCode::Enter)));
        let mut later = Model::new(SIZE, std::slice::from_ref(kept), Vec::new());
        later.key(KeyEvent::from(KeyCode::Up));
        assert!(!runs(&later.key(KeyEvent::from(KeyCode::Enter))));
        // It is not one when it is given back, either.
        chat.model.sent(*ticket, Err("too much waits".to_owned()));
        assert!(!runs(&chat.press(KeyCode::Enter)));
    }
    assert!(!runs(&chat.says("![a picture](of.png)")));
    assert!(!runs(&chat.says(" !date")));
}

#[test]
fn what_is_pasted_names_no_files() {
    let names = |effects: &[Effect]| match effects.last() {
        Some(Effect::Send { names, .. }) => names.matches('@').count(),
        other => panic!("{other:?}"),
    };
    let mut chat = Chat::new();
    chat.types("see @a.txt ");
    chat.model.paste("From: @b.txt");
    chat.model.paste(&"mail to @c.txt\n".repeat(60));
    let effects = chat.press(KeyCode::Enter);
    assert_eq!(names(&effects), 1);
    assert!(text_of(effects.last().unwrap()).starts_with("see @a.txt From: @b.txtmail to @c.txt\nmail"));
}

#[test]
fn what_a_command_prints_is_seen_as_it_comes() {
    let mut chat = Chat::new();
    chat.model.works(Some("make"));
    for number in 0..20 {
        chat.model.prints(format!("line {number}"));
    }
    let region = chat.region().join("\n");
    assert!(region.contains("make") && region.contains("line 19") && !region.contains("line 5"), "{region}");
    assert_eq!(chat.press(KeyCode::Esc), [Effect::Interrupt]);
}

#[test]
fn a_command_that_is_written_out_is_run_although_others_begin_like_it() {
    let mut checked = 0;
    for spec in &COMMANDS {
        let begins = |other: &&crate::commands::Spec| other.name.starts_with(spec.name);
        let is_alone = spec.arguments.is_empty() || spec.arguments.starts_with('[');
        if COMMANDS.iter().filter(begins).count() < 2 || !is_alone {
            continue;
        }
        let mut chat = Chat::new();
        let effects = chat.says(&format!("/{}", spec.name));
        let expected = commands::parse(&format!("/{}", spec.name), &[]).unwrap();
        assert_eq!(effects.last(), Some(&Effect::Command(expected)), "/{}", spec.name);
        checked += 1;
    }
    assert!(checked >= 2, "{checked}");
}
