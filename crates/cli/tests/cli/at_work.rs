//! The chat at a terminal while its agent works, and what it shows of that: results, leaving, coming back, notices, the
//! user's own editor and clipboard, going back, exports.

use std::os::unix::fs::PermissionsExt as _;

use greenroom_kernel::Message;
use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use serde_json::json;

use super::chats::{SIZE, chat, new};
use super::host::Hosted;
use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

/// Calls a tool for each prompt that names one, and answers with how long the prompt is.
fn worker() -> Model {
    new(Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.last_user_text().to_owned();
        match request.messages.last().map(|last| &**last) {
            Some(Message::ToolResult(_)) => Answer::text(format!("done with {told}")),
            _ if told.starts_with("count") => {
                Answer::call("bash", &json!({ "command": "for i in $(seq 120); do echo row $i; done" }))
            }
            _ if told.starts_with("fail") => Answer::call("bash", &json!({ "command": "echo oops; exit 3" })),
            _ if told.starts_with("look") => Answer::call("read", &json!({ "path": "a.txt" })),
            _ if told.starts_with("search") => {
                Answer::call("grep", &json!({ "pattern": "line 1", "path": "a.txt" }))
            }
            _ if told.starts_with("change") => Answer::call(
                "edit",
                &json!({ "path": "a.txt", "old": "line 12\n", "new": "LINE 12\nand more\n" }),
            ),
            _ => Answer::text(format!("heard {}", told.split_whitespace().next().unwrap_or_default())),
        }
    }))
}

#[test]
fn a_row_says_what_a_tool_did_and_ctrl_o_opens_and_folds_it() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), worker());
    let lines: String = (1..=30).map(|number| format!("line {number}\n")).collect();
    std::fs::write(place.work().join("a.txt"), lines).unwrap();
    let terminal = chat(&place, &model, SIZE, &["--allow-shell"]);
    for (said, rows) in [
        ("look", &["✓ read a.txt · 30 lines"][..]),
        (
            "search",
            &["✓ grep line 1 in a.txt · 11 matches in 1 file", "a.txt:1: line 1", "… 8 more lines · Ctrl-O"],
        ),
        (
            "change",
            &[
                "✓ edit a.txt · +2 −1", "11   line 11", "12 - line 12", "12 + LINE 12", "13 + and more",
                "14   line 13",
            ],
        ),
        ("fail", &["✗ bash echo oops; exit 3 · exit code 3", "      oops"]),
        ("count", &["· 120 lines", "… 117 earlier lines · Ctrl-O", "      row 118", "      row 120"]),
    ] {
        terminal.says(said);
        terminal.shows(&format!("done with {said}"));
        let screen = terminal.screen();
        for row in rows {
            assert!(screen.contains(row), "{said}: {row} in\n{screen}");
        }
        assert!(!screen.contains(" ms"), "{said}: a short call says no time\n{screen}");
    }
    terminal.until("the run is over", |screen| !screen.contains("Esc interrupts"));
    let before = terminal.all();
    terminal.press("C-o");
    let screen = terminal.shows("❯▾  ✓ bash for i in");
    assert!(screen.contains("    row 1\n") && !screen.contains("done with"), "{screen}");
    terminal.press("Enter");
    let screen = terminal.shows("❯▸  ✓ bash for i in");
    assert!(screen.contains("▸  ✓ edit a.txt · +2 −1") && !screen.contains("    row 1\n"), "{screen}");
    terminal.press("Up");
    terminal.press("Up");
    terminal.press("Enter");
    terminal.shows("edited `a.txt`: 1 replacement at line 12");
    terminal.press("C-o");
    terminal.shows("done with count");
    assert_eq!(terminal.all(), before, "the scrollback is as it was");
}

#[test]
fn a_summary_is_read_where_the_results_are() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), worker());
    let terminal = chat(&place, &model, SIZE, &[]);
    for number in 0..4 {
        terminal.pastes(&format!("note{number} {}", "lorem ipsum dolor ".repeat(400)));
        terminal.press("Enter");
        terminal.until("it is answered", |screen| screen.contains(&format!("heard note{number}")));
    }
    terminal.says("/compact --keep 500");
    terminal.shows("Ctrl-O shows the summary");
    terminal.press("C-o");
    let screen = terminal.shows("❯▾  ≡ compacted");
    assert!(!screen.contains("heard note3"), "{screen}");
    terminal.shows("## Goal");
    terminal.press("End");
    terminal.shows("manual, completed");
    terminal.press("Escape");
    terminal.shows("Ctrl-O shows the summary");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_while_it_works_is_asked_and_who_comes_back_is_told() {
    if !is_there() {
        return;
    }
    let hosted = Hosted::new(3_000, 20).await;
    let open = |session: &str| {
        let arguments = ["chat", "--session", session, "--window", "100000"];
        let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&arguments));
        terminal.shows("›");
        terminal
    };
    let one = open("one");
    one.says("a long task");
    one.shows("word word");
    // Staying, and leaving it running.
    one.press("C-d");
    let screen = one.shows("The agent is still working");
    assert!(screen.contains("❯ Stop it and leave") && screen.contains("Leave it running"), "{screen}");
    one.press("Escape");
    one.until("it goes on", |screen| !screen.contains("still working") && screen.contains("Esc interrupts"));
    one.says("/quit");
    one.shows("The agent is still working");
    one.press("Down");
    one.press("Enter");
    one.shows("ended with 0");
    // A new chat in the same folder is told of it, and who comes back to it.
    let two = open("two");
    let screen = two.shows("Another session is working in this folder: a long task");
    assert!(screen.contains("/resume one joins it"), "{screen}");
    drop(one);
    let one = open("one");
    one.shows("This session is working");
    let screen = one.shows("you have joined it");
    assert!(screen.contains("Resumed a long task"), "{screen}");
    // It is stopped, and what it has done is kept.
    one.press("C-c");
    one.shows("Interrupted. Everything above is kept");
    one.says("again");
    one.until("it works again", |screen| screen.contains("Esc interrupts"));
    one.press("C-d");
    one.shows("The agent is still working");
    one.press("Enter");
    let screen = one.shows("ended with 0");
    assert_eq!(screen.matches("Interrupted. Everything above is kept").count(), 2, "{screen}");
    let three = open("three");
    three.says("/sessions");
    let screen = three.shows("Resume session");
    assert!(!screen.contains("at work"), "{screen}");
}

#[test]
fn what_is_queued_is_edited_and_a_prompt_that_was_chosen_comes_back_as_it_was_typed() {
    if !is_there() {
        return;
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        let told = request.last_user_text().to_owned();
        let pace = if told.starts_with("slow") { 50 } else { 0 };
        let chunks = 100;
        let words: String = (0..100).map(|number| format!("word{number} ")).collect();
        let text =
            if pace > 0 { words } else { format!("heard {}", told.lines().next().unwrap_or_default()) };
        Answer::text(text).with_pace(Pace { chunks, first_ms: 0, between_ms: pace })
    });
    let (place, model) = (Place::with_files(1), new(script));
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("slow one");
    terminal.shows("word3 ");
    terminal.types("later");
    terminal.press("M-Enter");
    terminal.shows("⧗ next: later");
    terminal.shows("↑ takes back what is queued");
    terminal.press("Up");
    terminal.until("it is in the editor", |screen| screen.contains("› later") && !screen.contains("⧗"));
    terminal.types(" on");
    terminal.press("M-Enter");
    terminal.shows("⧗ next: later on");
    terminal.shows("heard later on");
    // What `!` and `@` added is no part of what was typed.
    terminal.says("!echo from-the-shell");
    terminal.shows("The output is sent with your next prompt");
    terminal.says("look @src/part_0.rs now");
    let screen = terminal.shows("heard look");
    assert!(screen.contains("[ran echo from-the-shell]") && screen.contains("[src/part_0.rs, "), "{screen}");
    terminal.press("Escape");
    terminal.shows("Press Esc again to go back");
    terminal.press("Escape");
    let screen = terminal.shows("Go back to a prompt");
    let row = screen.lines().find(|line| line.contains("❯ look")).unwrap_or_default();
    assert!(
        row.contains("look @src/part_0.rs now")
            && !row.contains("before:")
            && !screen.contains("after entry"),
        "{screen}"
    );
    // A list that is left leaves nothing.
    terminal.press("Escape");
    let screen = terminal.until("it is closed", |screen| !screen.contains("Go back to a prompt"));
    assert!(!screen.contains("/branch"), "{screen}");
    terminal.says("/branch");
    terminal.shows("Go back to a prompt");
    terminal.press("Enter");
    let screen =
        terminal.shows("Back to before “look @src/part_0.rs now”; it is in the editor. /redo returns");
    let editor = screen.rsplit("───").next().unwrap_or_default();
    assert!(editor.contains("› look @src/part_0.rs now") && !editor.contains("I ran"), "{screen}");
    // /undo takes back the turn before it.
    terminal.press("C-u");
    terminal.types("/undo");
    terminal.press("Enter");
    terminal.until("the prompt is back", |screen| {
        screen.rsplit("───").next().unwrap_or_default().contains("› later on")
    });
    assert!(!terminal.screen().contains("ompaction"), "{}", terminal.screen());
}

#[test]
fn a_notice_is_given_to_who_looks_elsewhere_and_the_title_comes_back() {
    if !is_there() {
        return;
    }
    for (settings, rings) in
        [("notify: { after_s: 0 }\n", true), ("notify: { method: off, title: false }\n", false), ("", false)]
    {
        let (place, model) = (Place::new(), worker());
        place.own_file(settings);
        let terminal = chat(&place, &model, SIZE, &[]);
        let has_title = !settings.contains("title: false");
        if has_title {
            terminal.tells("#{pane_title}", "greenroom");
        }
        // The terminal loses the focus in the middle of a run.
        terminal.says("hello");
        terminal.sends(b"\x1b[O");
        terminal.shows("heard hello");
        terminal.until("the run is over", |screen| !screen.contains("Esc interrupts"));
        if rings {
            terminal.tells("#{window_bell_flag}", "1");
        }
        if has_title {
            terminal.tells("#{pane_title}", "hello · greenroom");
        }
        terminal.press("C-d");
        terminal.shows("ended with 0");
        assert_eq!(terminal.told("#{window_bell_flag}"), if rings { "1" } else { "0" }, "{settings}");
        assert!(!terminal.told("#{pane_title}").contains("greenroom"), "{settings}");
    }
}

/// Makes a program for the user in a folder of its own, and returns that folder.
fn program(place: &Place, name: &str, script: &str) -> String {
    let folder = place.work().with_file_name("programs");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder.display().to_string()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the user's programs come before those of the system")]
fn the_users_own_editor_and_clipboard_are_used() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), worker());
    // The editor reads a key from the terminal, which nothing else gets.
    program(
        &place,
        "edit",
        "echo editing > /dev/tty; read -r line < /dev/tty; printf '%s, %s' \"$(cat \"$1\")\" \"$line\" > \"$1\"",
    );
    std::fs::write(place.work().join("pixel.png"), PIXEL).unwrap();
    let pixel = place.work().join("pixel.png").display().to_string();
    let programs = program(&place, "xclip", &format!("cat '{pixel}'"));
    let mut command = place.command(&["chat", "--base-url", &model.url(), "--session", "mine"]);
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    command.env("VISUAL", format!("{programs}/edit")).env("DISPLAY", ":99").env("PATH", path);
    let terminal = Terminal::of(&place, SIZE, &command);
    terminal.shows("›");
    for keys in [&["C-g"][..], &["C-x", "C-e"]] {
        terminal.types("typed");
        keys.iter().for_each(|key| terminal.press(key));
        let is_open = |screen: &str| screen.trim_end().ends_with("editing");
        terminal.until("the editor is there, and the chat has gone", is_open);
        terminal.says("from the editor");
        terminal.shows("› typed, from the editor");
        terminal.press("C-u");
    }
    terminal.types("see ");
    terminal.press("C-v");
    terminal.shows("clipboard/");
    terminal.press("Enter");
    terminal.shows("[1 image]");
    terminal.shows("heard see");
    assert_eq!(model.simulator.calls(), 1);
    // Without such a program, it is said what is missing.
    terminal.press("C-d");
    terminal.shows("ended with 0");
    let other = Terminal::run(&place, SIZE, &["chat", "--base-url", &model.url(), "--session", "other"]);
    other.shows("›");
    other.press("C-v");
    other.shows("install wl-clipboard (Wayland)");
}

/// A picture of one pixel.
const PIXEL: &[u8] = &[
    0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0, 0, 1, 8,
    6, 0, 0, 0, 0x1f, 0x15, 0xc4, 0x89, 0, 0, 0, 13, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0, 1, 0, 0, 5,
    0, 1, 13, 10, 0x2d, 0xb4, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82,
];

#[test]
fn the_start_says_what_was_found_and_the_keys_are_a_key_away() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), worker());
    place.own_file(&format!("trusted_folders: [{:?}]\ntheme: light\n", place.work()));
    super::prompts::write(&place, "AGENTS.md", "Use tabs.\n");
    let skill = place.work().join(".greenroom/skills/deploy");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(skill.join("SKILL.md"), "---\nname: deploy\ndescription: Ships it\n---\nShip it.\n")
        .unwrap();
    let terminal = chat(&place, &model, SIZE, &[]);
    let screen = terminal.shows("? shows the keys");
    for words in
        ["simulated · context", "The agent asks before it changes a file", "AGENTS.md · 1 skill: deploy"]
    {
        assert!(screen.contains(words), "{words}: {screen}");
    }
    assert!(screen.contains(&"─".repeat(usize::from(SIZE.0) - 1)), "a rule: {screen}");
    terminal.press("?");
    let screen = terminal.shows("edit the text in $EDITOR");
    assert!(!screen.contains("› ?"), "{screen}");
    terminal.types("x");
    terminal
        .until("they go with the next key", |screen| screen.contains("› x") && !screen.contains("$EDITOR"));
    terminal.press("C-u");
    terminal.types("??");
    terminal.shows("› ?");
    terminal.press("C-u");
    terminal.says("/skills");
    terminal.shows("deploy  Ships it");
    terminal.says("/theme");
    terminal.shows("Choose a theme");
    terminal.press("Escape");
    terminal.until("it is closed", |screen| !screen.contains("Choose a theme"));
    terminal.says("/theme high-contrast");
    terminal.shows("Theme high_contrast in this chat");
    terminal.says("/theme solarized");
    terminal.shows("Unknown theme solarized; available themes: dark, light, high_contrast, colour_blind");
}

#[test]
fn an_export_asks_where_and_writes_nothing_into_the_working_folder_unasked() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), worker());
    let terminal = chat(&place, &model, SIZE, &[]);
    terminal.says("hello");
    terminal.shows("heard hello");
    terminal.says("/export");
    let screen = terminal.shows("Export to (or /export FILE)");
    assert!(screen.lines().any(|line| line.contains('❯') && line.contains("exports/mine.md")), "{screen}");
    terminal.press("Enter");
    terminal.shows("Exported to");
    let text = std::fs::read_to_string(place.store().join("exports/mine.md")).unwrap();
    assert!(text.starts_with("# hello\n") && text.contains("## Assistant"), "{text}");
    assert_eq!(std::fs::read_dir(place.work()).unwrap().count(), 0, "nothing is in the working folder");
    terminal.says("/export mine.jsonl");
    terminal.until("it is written where it was asked for", |_| place.work().join("mine.jsonl").exists());
    terminal.press("C-d");
    terminal.shows("ended with 0");
    let ran = place.run(&["export", "mine", "--format", "markdown"]);
    assert!(ran.code == Some(0) && ran.stdout == text, "{ran:?}");
}
