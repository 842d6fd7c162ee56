//! The permissions of the agent: by flags, by the configuration, and by answers in the chat.

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Echo, Function, SeenRequest, Summariser};
use serde_json::{Value, json};

use super::host::Hosted;
use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

const SIZE: (u16, u16) = (90, 34);

/// The file with the rules of earlier answers.
fn remembered(place: &Place) -> std::path::PathBuf {
    place.own_file("").with_file_name("permissions.yaml")
}

/// A model that makes this call once for each prompt, and repeats the result.
fn calling(tool: &'static str, arguments: Value) -> Model {
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        match request.messages.last().filter(|message| message.role() == "tool") {
            Some(result) => Answer::text(format!("it says: {}", result.text())),
            None => Answer::call(tool, &arguments),
        }
    });
    Model::new(ByPurpose::new(script, Summariser::Obedient), |_| {})
}

#[test]
fn tools_are_offered_where_some_call_of_them_may_run() {
    let model = Model::new(Echo, |_| {});
    let reading = ["read", "list", "grep", "recall"];
    let files = ["write", "edit"];
    let rows: &[(&str, &[&str], &[&str])] = &[
        ("", &["--mode", "ask"], &[]),
        ("", &["--mode", "read-only", "--allow", "bash(ls)"], &[]),
        ("", &["--mode", "accept_edits"], &files),
        ("", &["--mode", "everything"], &["write", "edit", "bash"]),
        ("", &["--allow", "write(src/**)"], &files),
        ("", &["--allow", "bash(ls *)"], &["write", "edit", "bash"]),
        ("", &["--deny", "bash"], &[]),
        ("permissions: { mode: accept_edits }", &[], &files),
        ("permissions: { allow: [\"bash(ls *)\"] }", &[], &["write", "edit", "bash"]),
        ("permissions: { mode: everything }", &["--mode", "ask"], &[]),
    ];
    for (config, flags, more) in rows {
        let place = Place::new();
        place.own_file(config);
        let url = model.url();
        let arguments = [&["run", "-p", "Hello.", "--base-url", &*url], *flags].concat();
        let ran = place.run(&arguments);
        assert_eq!(ran.code, Some(0), "{config} {flags:?}: {ran:?}");
        let request = model.simulator.requests().pop().unwrap().request;
        let mut offered: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        let mut expected = [&reading[..], more].concat();
        offered.sort_unstable();
        expected.sort_unstable();
        assert_eq!(offered, expected, "{config} {flags:?}");
    }
}

#[test]
fn a_run_denies_what_would_ask_and_names_the_rule() {
    let rows: &[(&str, &[&str], &str, &str)] = &[
        ("", &["--allow", "bash(ls *)"], "touch made", "--allow 'bash(touch *)'"),
        ("", &["--allow", "bash(touch *)"], "touch made", "no output"),
        ("", &["--mode", "everything", "--deny", "bash(touch *)"], "env touch made", "a rule forbids it"),
        ("", &["--mode", "everything", "--ask", "bash(touch *)"], "touch made", "a rule asks for it"),
        ("permissions: { deny: [\"bash(touch *)\"] }", &["--allow-shell"], "touch made", "greenroom.yaml"),
    ];
    for (config, flags, command, expected) in rows {
        let model = calling("bash", json!({ "command": command }));
        let place = Place::new();
        place.own_file(config);
        let url = model.url();
        let arguments = [&["run", "-p", "Do it.", "--base-url", &*url], *flags].concat();
        let ran = place.run(&arguments);
        assert!(ran.code == Some(0) && ran.stdout.contains(expected), "{config} {flags:?}: {ran:?}");
        let is_run = *expected == "no output";
        assert_eq!(place.work().join("made").exists(), is_run, "{flags:?}");
        // A model may say that it did it: the reason is on standard error, too.
        let told = ran.stderr.contains("bash was denied: ") && ran.stderr.contains(expected);
        assert_eq!(told, !is_run, "{config} {flags:?}: {ran:?}");
    }
}

/// A search of the whole folder does not show what may not be read by its name.
#[test]
fn what_may_not_be_read_is_not_listed_or_found() {
    for (tool, arguments) in [
        ("grep", json!({ "pattern": "KEY" })),
        ("grep", json!({ "pattern": "KEY", "path": "secrets" })),
        ("list", json!({ "path": "." })),
        ("read", json!({ "path": ".env" })),
        ("read", json!({ "path": "./secrets/../secrets/deep/b.txt" })),
    ] {
        let shown = arguments.to_string();
        let model = calling(tool, arguments);
        let place = Place::new();
        std::fs::create_dir_all(place.work().join("secrets/deep")).unwrap();
        for file in [".env", "secrets/a.txt", "secrets/deep/b.txt", "open.txt"] {
            std::fs::write(place.work().join(file), format!("KEY in {file}\n")).unwrap();
        }
        let url = model.url();
        let rules = ["--deny", "read(.env)", "--deny", "read(secrets/**)"];
        let ran = place.run(&[&["run", "-p", "Look.", "--base-url", &*url], &rules[..]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for hidden in ["KEY in .env", "KEY in secrets", "a.txt\n"] {
            assert!(!ran.stdout.contains(hidden), "{tool} {shown}: {hidden:?} in {}", ran.stdout);
        }
        let is_open = ran.stdout.contains("open.txt");
        assert!(is_open || ran.stdout.contains("a rule forbids it"), "{tool} {shown}: {}", ran.stdout);
    }
}

#[test]
fn a_projects_file_only_tightens() {
    let model = calling("bash", json!({ "command": "touch made" }));
    let url = model.url();
    let (place, run) = (Place::new(), ["run", "-p", "Do it.", "--base-url", &url]);
    let project = |text: &str| std::fs::write(place.work().join("greenroom.yaml"), text).unwrap();
    project("permissions: { allow: [bash] }\n");
    let ran = place.run(&run);
    assert!(ran.code == Some(2) && ran.stderr.contains("permissions.allow"), "{ran:?}");
    project("permissions: { mode: everything }\n");
    let ran = place.run(&run);
    assert!(ran.code == Some(0) && !place.work().join("made").exists(), "{ran:?}");
    project("permissions: { deny: [\"bash(touch *)\"] }\n");
    let ran = place.run(&[&run[..], &["--allow-shell"]].concat());
    assert!(ran.stdout.contains("the project's greenroom.yaml"), "{ran:?}");
    assert!(!place.work().join("made").exists());
}

#[test]
fn rules_that_cannot_be_read_are_errors_and_broken_answers_deny() {
    let model = calling("bash", json!({ "command": "touch made" }));
    let url = model.url();
    let place = Place::new();
    let run = ["run", "-p", "Do it.", "--base-url", &url];
    let ran = place.run(&[&run[..], &["--deny", "rm -rf"]].concat());
    assert!(ran.code == Some(2) && ran.stderr.contains("--deny"), "{ran:?}");
    let ran = place.run(&[&run[..], &["--mode", "yolo"]].concat());
    assert!(ran.code == Some(2) && ran.stderr.contains("accept_edits"), "{ran:?}");
    place.own_file("");
    std::fs::write(remembered(&place), "allow: [x\n").unwrap();
    let ran = place.run(&[&run[..], &["--allow-shell"]].concat());
    let is_told =
        ran.stderr.contains("every call of a tool is denied") && ran.stderr.contains("permissions.yaml");
    assert!(is_told && ran.code == Some(0), "{ran:?}");
    assert!(!place.work().join("made").exists());
}

fn chat(place: &Place, model: &Model, more: &[&str]) -> Terminal {
    let url = model.url();
    let arguments = [&["chat", "--base-url", &*url, "--session", "mine"], more].concat();
    let terminal = Terminal::run(place, SIZE, &arguments);
    terminal.shows("›");
    terminal
}

#[test]
fn a_chat_asks_before_it_changes_a_file_and_shows_the_change() {
    if !is_there() {
        return;
    }
    let model = calling("write", json!({ "path": "src/a.txt", "content": "one\nTWO\n" }));
    let place = Place::new();
    let file = place.work().join("src/a.txt");
    std::fs::create_dir(place.work().join("src")).unwrap();
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let read = || std::fs::read_to_string(&file).unwrap();
    let terminal = chat(&place, &model, &[]);
    terminal.says("go");
    let screen = terminal.shows("1. Yes");
    for part in [
        "Write src/a.txt?",
        "-two",
        "+TWO",
        "2. Yes, and do not ask again for write(src/**)",
        "4. No, and tell",
    ] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert_eq!(read(), "one\ntwo\n");
    terminal.types("4use lower case");
    terminal.press("Enter");
    terminal.shows("refused it and says: use lower case");
    assert_eq!(read(), "one\ntwo\n");
    terminal.says("again");
    terminal.shows("1. Yes");
    terminal.types("2");
    terminal.shows("it says: replaced");
    assert_eq!(read(), "one\nTWO\n");
    // The rule is remembered, and nothing is asked in the next chat.
    let rules = std::fs::read_to_string(remembered(&place)).unwrap();
    assert!(rules.contains("write(src/**)"), "{rules}");
    drop(terminal);
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let terminal = chat(&place, &model, &[]);
    terminal.says("/permissions");
    terminal.shows("permissions.yaml");
    terminal.says("once more");
    terminal.until("it is not asked", |screen| screen.matches("it says: replaced").count() == 2);
    assert_eq!(read(), "one\nTWO\n");
}

#[test]
fn a_text_that_is_typed_while_a_call_waits_approves_nothing_and_is_not_lost() {
    if !is_there() {
        return;
    }
    let model = calling("bash", json!({ "command": "touch oops" }));
    let place = Place::new();
    let terminal = chat(&place, &model, &[]);
    terminal.says("go");
    terminal.shows("1. Yes");
    terminal.types("yes, try another");
    terminal.shows("› yes, try another");
    let screen = terminal.shows("Ctrl-Q returns to it");
    assert!(!screen.contains("1. Yes") && !screen.contains("it says"), "{screen}");
    assert!(!place.work().join("oops").exists());
    terminal.press("C-q");
    terminal.shows("1. Yes");
    terminal.types("1");
    terminal.shows("it says: (no output)");
    assert!(place.work().join("oops").exists());
    // The text is still there.
    terminal.shows("› yes, try another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_in_all_terminals_and_who_had_half_an_answer_keeps_it() {
    if !is_there() {
        return;
    }
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        Answer::call("write", &json!({ "path": "w.txt", "content": "x" }))
    });
    let hosted = Hosted::of(ByPurpose::new(script, Summariser::Obedient)).await;
    let open = || {
        let arguments = ["chat", "--session", "mine", "--window", "100000"];
        let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&arguments));
        terminal.shows("simulated");
        terminal
    };
    const WAITS: &str = "? write w.txt waiting for you";
    let one = open();
    one.says("go");
    one.shows("1. Yes");
    one.shows(WAITS);
    drop(one);
    let (one, two) = (open(), open());
    for terminal in [&one, &two] {
        terminal.shows("1. Yes");
        terminal.shows(WAITS);
    }
    // Another host goes on with it.
    hosted.kill_host();
    for terminal in [&one, &two] {
        terminal.until("the call waits again", |screen| screen.matches(WAITS).count() == 1);
        terminal.shows("1. Yes");
    }
    one.types("4half a reason");
    one.shows("half a reason");
    two.types("3");
    two.shows("Stopped because you answered no; tell");
    let screen = one.shows("Stopped because");
    assert!(!screen.contains("/continue to resume"), "{screen}");
    one.shows("\n› half a reason");
}

#[test]
fn shift_tab_changes_the_mode_at_once() {
    if !is_there() {
        return;
    }
    let model = calling("write", json!({ "path": "a.txt", "content": "x" }));
    let place = Place::new();
    let terminal = chat(&place, &model, &[]);
    terminal.shows("ask");
    terminal.press("BTab");
    let screen = terminal.shows("accept edits: the agent changes files");
    assert!(screen.contains("· accept edits"), "{screen}");
    terminal.says("go");
    terminal.shows("it says: created");
    terminal.press("BTab");
    terminal.shows("read only: the agent reads, and changes nothing");
    terminal.says("again");
    terminal.shows("the session is in the read-only mode");
    // A key leaves nothing behind.
    assert!(!terminal.all().contains("accept edits: "), "{}", terminal.all());
    terminal.says("/permissions everything");
    terminal.shows("without asking");
    terminal.says("/permissions deny write(*.txt)");
    terminal.shows("for this session: deny write(*.txt)");
    terminal.says("and again");
    terminal.shows("a rule forbids it");
}

#[test]
fn a_long_command_is_approved_only_after_its_end_was_shown() {
    if !is_there() {
        return;
    }
    let command = format!("echo {} > /dev/null\u{202e}\nprintf whole > end.txt", "x".repeat(9_000));
    let command = command.replace('\u{202e}', "; # \u{202e}");
    let model = calling("bash", json!({ "command": command }));
    let place = Place::new();
    let terminal = chat(&place, &model, &[]);
    terminal.says("go");
    let screen = terminal.shows("rows not seen");
    assert!(
        screen.contains("1. Yes (scroll to the end first)") && !screen.contains("printf whole > end.txt"),
        "{screen}"
    );
    terminal.types("1");
    terminal.press("Enter");
    terminal.shows("rows of the call were not shown");
    assert!(!place.work().join("end.txt").exists());
    terminal.press("End");
    let screen = terminal.shows("printf whole > end.txt");
    assert!(screen.contains("rows before were not seen") && screen.contains("\\u{202e}"), "{screen}");
    terminal.press("Enter");
    terminal.shows("it says:");
    assert_eq!(std::fs::read_to_string(place.work().join("end.txt")).unwrap(), "whole");
}

#[test]
fn what_is_edited_in_the_file_of_answers_applies_to_the_next_call() {
    if !is_there() {
        return;
    }
    let model = calling("write", json!({ "path": "a.txt", "content": "x" }));
    let place = Place::new();
    let terminal = chat(&place, &model, &[]);
    terminal.says("go");
    terminal.shows("1. Yes");
    terminal.types("2");
    terminal.shows("it says: created");
    let rules = std::fs::read_to_string(remembered(&place)).unwrap();
    let shown = place.run(&["config"]).stdout;
    assert!(rules.contains("write(a.txt)"), "{rules}");
    assert!(shown.contains("Allowed with the answer") && shown.contains(": write(a.txt)"), "{shown}");
    terminal.says("again");
    terminal.until("it is not asked", |screen| screen.matches("it says:").count() == 2);
    // Another process takes the rule back.
    std::fs::write(remembered(&place), "allow: {}\n").unwrap();
    terminal.says("and again");
    terminal.shows("1. Yes");
    // What cannot be read denies, although the user said yes.
    std::fs::write(remembered(&place), "allow: [x\n").unwrap();
    terminal.types("1");
    terminal.press("Enter");
    terminal.shows("the permissions cannot be read, so nothing is allowed");
    std::fs::write(remembered(&place), &rules).unwrap();
    terminal.says("at last");
    terminal.until("it is allowed again", |screen| screen.matches("it says: replaced").count() >= 2);
}

#[test]
fn rules_of_answers_are_in_the_json_of_the_configuration() {
    let place = Place::new();
    let shown = || place.json(&["config", "--json"])["permissions.always"].clone();
    assert_eq!(shown(), Value::Null, "without any answer");
    let file = remembered(&place);
    for (text, expect) in [
        ("allow: {}\n", Value::Null),
        ("allow: { /srv/a: [] }\n", Value::Null),
        (
            "allow: { /srv/a: ['write(src/**)', 'bash(ls *)'], /srv/b: [read] }\n",
            json!({ "/srv/a": ["write(src/**)", "bash(ls *)"], "/srv/b": ["read"] }),
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let found = shown();
        assert_eq!(found["value"], expect, "{text}");
        let source = if expect.is_null() { Value::Null } else { json!(file) };
        assert_eq!(found["source"], source, "{text}");
    }
}

#[test]
fn files_do_not_go_back_in_the_read_only_mode() {
    let model = calling("write", json!({ "path": "a.txt", "content": "x" }));
    let (place, url) = (Place::new(), model.url());
    let run = |arguments: &[&str]| place.run(&[arguments, &["--base-url", &url, "--no-host"]].concat());
    let ran = run(&["run", "-p", "go", "--session", "s", "--allow-write"]);
    assert!(ran.code == Some(0) && place.work().join("a.txt").exists(), "{ran:?}");
    let ran = run(&["undo", "s", "--yes", "--mode", "read-only"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("read-only mode"), "{ran:?}");
    assert!(place.work().join("a.txt").exists());
    let ran = run(&["undo", "s", "--mode", "read-only", "--dry-run"]);
    assert!(ran.code == Some(0) && ran.stdout.contains("a.txt: would be removed"), "{ran:?}");
    let ran = run(&["undo", "s", "--yes"]);
    assert!(ran.code == Some(0) && !place.work().join("a.txt").exists(), "{ran:?}");
}
