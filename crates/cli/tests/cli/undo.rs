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
        assert!(ran.code == Some(0) && ran.stdout.starts_with("a: would be restored\n"), "{ran:?}");
        let ran = undo(&[]);
        assert!(ran.code == Some(2) && ran.stderr.contains("1 file would be changed; add --yes"), "{ran:?}");
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
        assert!(ran.code == Some(1) && ran.stdout.contains("a: unchanged, because somebody"), "{ran:?}");
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
        "a: restored", "the conversation continues after entry", "a: removed; it did not exist",
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

/// Writes into each of the files that the prompt names.
fn writer_of_many() -> Model {
    let runs = Function(|request: &SeenRequest, _: CallInfo| {
        let Some(Message::User(_)) = request.messages.last().map(|last| &**last) else {
            return Answer::text("done");
        };
        let text = request.last_user_text();
        let call = |number: usize| json!({ "path": format!("deep/{number}"), "content": format!("{text} {number}") });
        let first = Answer::call("write", &call(0));
        (1..FILES).fold(first, |answer, number| answer.and_call("write", &call(number)))
    });
    Model::new(runs, |_| {})
}

/// How many files a prompt changes.
const FILES: usize = 12;

/// The process is killed in the middle: when so many files are back, and once the conversation is, too. After that the
/// same request does the rest, and what others did is as they left it.
#[test]
fn a_kill_during_an_undo_loses_nothing() {
    let mut states = std::collections::BTreeSet::new();
    for killed_at in 0..=FILES + 1 {
        let (place, model) = (Place::new(), writer_of_many());
        let url = model.url();
        let flags = ["--base-url", &url, "--allow-write", "--no-host"];
        let run = |arguments: &[&str]| place.run(&[arguments, &flags].concat());
        let content = |number: usize| {
            std::fs::read_to_string(place.work().join(format!("deep/{number}"))).unwrap_or_default()
        };
        std::fs::write(place.work().join("mine"), "the user's").unwrap();
        for prompt in ["one", "two"] {
            assert_eq!(run(&["run", "-p", prompt, "--session", "s"]).code, Some(0));
        }
        // One of the files is somebody else's now.
        std::fs::write(place.work().join("deep/3"), "the user's").unwrap();
        let back = || (0..FILES).filter(|number| content(*number) == format!("one {number}")).count();
        let mut undo = place.start(&[&["undo", "s", "--yes"][..], &flags].concat());
        while back() < killed_at.min(FILES - 1) && !undo.has_ended() {
            std::thread::yield_now();
        }
        if killed_at <= FILES && !undo.has_ended() {
            undo.signal(rustix::process::Signal::KILL);
        }
        let _ = undo.end();
        let were_back = back();
        for number in (0..FILES).filter(|number| *number != 3) {
            let (old, new) = (format!("one {number}"), format!("two {number}"));
            assert!([old, new].contains(&content(number)), "{killed_at}: {number}: {:?}", content(number));
        }
        let prompts = || {
            let shown = place.run(&["show", "s"]);
            assert_eq!(shown.code, Some(0), "{killed_at}: {shown:?}");
            shown.stdout.matches("two").count()
        };
        let is_conversation_back = prompts() == 0;
        assert!(!is_conversation_back || were_back == FILES - 1, "{killed_at}: the files go first");
        states.insert((were_back, is_conversation_back));
        if !is_conversation_back {
            let ran = run(&["undo", "s", "--yes"]);
            assert!(ran.stdout.contains("unchanged, because somebody"), "{killed_at}: {ran:?}");
        }
        assert_eq!((back(), prompts()), (FILES - 1, 0), "{killed_at}");
        assert_eq!(content(3), "the user's", "{killed_at}");
        assert_eq!(std::fs::read_to_string(place.work().join("mine")).unwrap(), "the user's");
        // Temporary files hold nothing that is not kept.
        for entry in std::fs::read_dir(place.work().join("deep")).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let is_known = text.is_empty() || text.starts_with("one ") || text.starts_with("two ");
            assert!(is_known || path.ends_with("3"), "{killed_at}: {path:?}: {text}");
        }
    }
    assert!(states.len() >= 3, "it was killed in the middle: {states:?}");
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
        let screen = terminal.shows("what should be restored?");
        for part in ["Go back to before “two”", "The conversation and a", "The conversation only", "Only a"]
        {
            assert!(screen.contains(part), "{part}: {screen}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two", "nothing is changed unasked");
        (0..downs).for_each(|_| terminal.press("Down"));
        terminal.press("Enter");
        terminal.until("it is done", |screen| !screen.contains("what should be restored?"));
        terminal.shows(editor);
        terminal.until("the file is as chosen", |_| std::fs::read_to_string(&file).unwrap() == content);
    }
}
