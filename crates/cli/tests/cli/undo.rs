//! `undo` and `/undo`: the conversation and the files go back, through a host and without one.

use greenroom_kernel::Message;
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use serde_json::json;

use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

/// Writes each prompt into the file `a`.
fn writer() -> Model {
    let runs =
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.last().map(|last| &**last) {
            Some(Message::User(_)) => {
                Answer::call("write", &json!({ "path": "a", "content": request.last_user_text() }))
            }
            Some(Message::Assistant(_) | Message::ToolResult(_)) | None => Answer::text("done"),
        });
    Model::new(runs, |_| {})
}

#[test]
fn a_turn_is_taken_back_with_its_files() {
    for more in [&[][..], &["--no-host"]] {
        let (place, model) = (Place::new(), writer());
        let (url, file) = (model.url(), place.work().join("a"));
        let run = |arguments: &[&str]| {
            place.run(&[arguments, &["--base-url", &url, "--allow-write"], more].concat())
        };
        let undo = |arguments: &[&str]| run(&[&["undo", "s"], arguments].concat());
        let content = || std::fs::read_to_string(&file).unwrap_or_default();
        std::fs::write(&file, "mine").unwrap();
        for prompt in ["one", "two"] {
            assert_eq!(run(&["run", "-p", prompt, "--session", "s"]).code, Some(0));
        }
        // Nothing is changed unasked.
        let ran = undo(&["--dry-run"]);
        assert!(ran.code == Some(0) && ran.stdout.starts_with("a: brought back\n"), "{ran:?}");
        let ran = undo(&[]);
        assert!(ran.code == Some(2) && ran.stderr.contains("1 file would be changed: add --yes"), "{ran:?}");
        assert_eq!(content(), "two");
        let ran = undo(&["--yes"]);
        assert!(
            ran.code == Some(0) && ran.stdout.contains("the conversation continues after entry"),
            "{ran:?}"
        );
        assert_eq!(content(), "one");
        // What somebody else changed stays, and is overwritten on demand.
        std::fs::write(&file, "mine again").unwrap();
        let ran = undo(&["--files", "--yes"]);
        assert!(ran.code == Some(1) && ran.stdout.contains("a: left as it is, because somebody"), "{ran:?}");
        assert_eq!(content(), "mine again");
        let ran = place.json_of(&undo(&["--files", "--yes", "--overwrite", "--json"]));
        assert_eq!(ran["files"][0]["action"], "restored", "{ran}");
        assert_eq!((ran["conversation"].as_bool(), content().as_str()), (Some(false), "mine"));
        let ran = undo(&["--conversation"]);
        assert!(ran.code == Some(0) && ran.stdout.contains("from the beginning"), "{ran:?}");
        assert_eq!(undo(&[]).stdout, "There is no prompt to take back.\n");
    }
}

#[test]
fn a_chat_in_plain_lines_takes_its_last_prompt_back() {
    let (place, model) = (Place::new(), writer());
    let (url, file) = (model.url(), place.work().join("a"));
    let ran = place.run_with(
        &["chat", "--base-url", &url, "--allow-write", "--session", "s"],
        "one\ntwo\n/undo\n/undo --files\n/undo 3\n",
    );
    for words in [
        "a: brought back",
        "the conversation continues after entry",
        "a: removed; it did not exist",
        "/undo takes --both",
    ] {
        assert!(ran.stdout.contains(words) || ran.stderr.contains(words), "{words}: {ran:?}");
    }
    assert!(!file.exists());
}

#[test]
fn without_the_setting_only_conversations_go_back() {
    let (place, model) = (Place::new(), writer());
    let url = model.url();
    place.own_file("rewind: { enabled: false }\n");
    let run = |arguments: &[&str]| place.run(&[arguments, &["--base-url", &url, "--allow-write"]].concat());
    assert_eq!(run(&["run", "-p", "one", "--session", "s"]).code, Some(0));
    let ran = place.json_of(&run(&["undo", "s", "--json"]));
    assert_eq!((ran["keeps_files"].as_bool(), ran["conversation"].as_bool()), (Some(false), Some(true)));
    assert_eq!(std::fs::read_to_string(place.work().join("a")).unwrap(), "one");
    assert!(!place.store().join("files").exists());
}

#[test]
fn the_chat_offers_what_goes_back() {
    // The choice, and the file and the prompt in the editor afterwards.
    let rows = [(0, "one", "› two"), (1, "two", "› two"), (2, "one", "›")];
    for (downs, content, editor) in rows.into_iter().filter(|_| is_there()) {
        let (place, model) = (Place::new(), writer());
        let (url, file) = (model.url(), place.work().join("a"));
        let arguments = ["chat", "--base-url", &*url, "--session", "s", "--mode", "accept-edits"];
        let terminal = Terminal::run(&place, (90, 30), &arguments);
        terminal.shows("›");
        for (prompt, count) in [("one", 1), ("two", 2)] {
            terminal.says(prompt);
            terminal.until("it answers", |screen| screen.matches("done").count() >= count);
        }
        terminal.says("/undo");
        let screen = terminal.shows("what goes back?");
        for part in ["Back to before “two”", "The conversation and a", "The conversation only", "Only a"]
        {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two", "nothing is changed unasked");
        (0..downs).for_each(|_| terminal.press("Down"));
        terminal.press("Enter");
        terminal.until("it is done", |screen| !screen.contains("what goes back?"));
        terminal.shows(editor);
        terminal.until("the file is as chosen", |_| std::fs::read_to_string(&file).unwrap() == content);
    }
}
