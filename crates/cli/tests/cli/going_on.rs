//! Sessions are found again: by the beginning of an id, by the folder; looked at, gone on with, compacted.

use std::time::{Duration, Instant};

use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Function, Pace, Script, SeenRequest, Simulator, Summariser,
};
use rustix::process::Signal;
use serde_json::json;

use super::screen::{Terminal, is_there};
use super::support::{Model, Place, Running, Says};

fn talker() -> Model {
    let runs = Function(|_: &SeenRequest, call: CallInfo| {
        Answer::text(format!("answer {}: {}", call.session_call, "word ".repeat(1_000)))
    });
    Model::new(ByPurpose::new(runs, Summariser::Obedient), |_| {})
}

fn say(place: &Place, model: &Model, text: &str, more: &[&str]) -> super::support::Ran {
    let url = model.url();
    place.run(&[&["run", "-p", text, "--base-url", &url], more].concat())
}

#[test]
fn a_session_is_named_by_the_beginning_of_its_id() {
    let (place, model) = (Place::new(), talker());
    for id in ["alpha-one", "alpha-two", "beta"] {
        assert_eq!(say(&place, &model, "hi", &["--session", id]).code, Some(0));
    }
    let shown = |id: &str| place.json(&["show", id, "--json"])["id"].as_str().unwrap().to_owned();
    assert_eq!(shown("b"), "beta");
    assert_eq!(shown("alpha-o"), "alpha-one");
    assert_eq!(shown("alpha-two"), "alpha-two");
    for arguments in [
        &["show", "alpha"][..],
        &["export", "alpha"],
        &["show", "--tree", "al"],
        &["compact", "--dry-run", "alpha"],
        &["delete", "alpha-"],
    ] {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("alpha-one, alpha-two"), "{ran:?}");
    }
    // A whole id is that session, whatever begins with it.
    assert_eq!(say(&place, &model, "hi", &["--session", "alpha"]).code, Some(0));
    assert_eq!(shown("alpha"), "alpha");
    assert_eq!(place.run(&["show", "gamma"]).code, Some(3));
    assert_eq!(place.run(&["delete", "be", "--yes"]).stdout.trim(), "Deleted beta.");
    assert_eq!(place.run(&["show", "beta"]).code, Some(3));
}

#[test]
fn run_goes_on_with_the_newest_session_of_the_folder() {
    let (place, model) = (Place::new(), talker());
    let nothing = say(&place, &model, "hi", &["-c"]);
    assert!(nothing.code == Some(2) && nothing.stderr.contains("no session was started in"), "{nothing:?}");
    assert_eq!(say(&place, &model, "one", &["--session", "first"]).code, Some(0));
    assert_eq!(say(&place, &model, "two", &["--session", "second"]).code, Some(0));
    assert_eq!(say(&place, &model, "three", &["-c"]).code, Some(0));
    assert_eq!(place.json(&["show", "second", "--json"])["conversation"][2]["text"], "three");
    // Another folder has sessions of its own.
    let other = place.work().join("other");
    std::fs::create_dir(&other).unwrap();
    let url = model.url();
    let mut command = place.command(&["run", "-p", "x", "-c", "--base-url", &url]);
    assert_eq!(command.current_dir(&other).output().unwrap().status.code(), Some(2));
    assert_eq!(place.json(&["sessions", "--here", "--json"]).as_array().unwrap().len(), 2);
    let elsewhere = place.command(&["sessions", "--here", "--json"]).current_dir(&other).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&elsewhere.stdout).trim(), "[]");
}

/// A model that reads a file, and then says nothing for an hour.
fn slow() -> impl Script {
    Function(|request: &SeenRequest, _: CallInfo| match request.messages.last().map(|last| last.role()) {
        Some("user") => Answer::call("read", &json!({ "path": "README.md" })),
        _ => Answer::text("done").with_pace(Pace { chunks: 1, first_ms: 3_600_000, between_ms: 0 }),
    })
}

/// Waits until the first run is under way, and kills this process.
fn kill_in_the_run(mut running: Running, simulator: &Simulator, kill: impl FnOnce(&Running)) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while simulator.calls() < 2 {
        assert!(Instant::now() < deadline && !running.has_ended(), "the model is never asked");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    kill(&running);
    running.end();
}

/// Whoever prompts first, the folder is recorded with the prompt.
#[test]
fn a_session_whose_first_run_was_killed_is_found_by_its_folder() {
    for surface in ["run", "chat", "rpc"] {
        let (place, model) = (Place::new(), Model::new(slow(), |_| {}));
        let url = model.url();
        let at = ["--base-url", &url, "--no-host"];
        let mut running = match surface {
            "run" => place.start(&[&["run", "-p", "Count."], &at[..]].concat()),
            _ => place.start(&[&[surface], &at[..]].concat()),
        };
        let prompt = json!({ "session_id": "mine", "text": "Count." });
        match surface {
            "chat" => running.say("Count."),
            "rpc" => running.say(
                &json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt })
                    .to_string(),
            ),
            _ => {}
        }
        kill_in_the_run(running, &model.simulator, |running| running.signal(Signal::KILL));
        let sessions = place.json(&["sessions", "--here", "--json"]);
        assert_eq!(sessions.as_array().map(Vec::len), Some(1), "{surface}: {sessions}");
        let sessions = place.json(&["sessions", "--here", "--no-runs", "--json"]);
        let conversations = if surface == "run" { 0 } else { 1 };
        assert_eq!(sessions.as_array().map(Vec::len), Some(conversations), "{surface}: {sessions}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_one_shot_whose_host_was_killed_is_no_conversation() {
    let hosted = super::host::Hosted::of(slow()).await;
    let running = hosted.place.start_command(hosted.command(&["run", "-p", "Count.", "--window", "100000"]));
    tokio::task::block_in_place(|| kill_in_the_run(running, &hosted.simulator, |_| hosted.kill_host()));
    let listed = |more: &[&str]| hosted.run(&[&["sessions", "--here", "--json"], more].concat()).stdout;
    assert!(listed(&[]).contains("run-"), "{}", listed(&[]));
    assert!(!listed(&["--no-runs"]).contains("run-"), "{}", listed(&["--no-runs"]));
}

#[test]
fn a_session_of_another_folder_says_where_its_tools_work_now() {
    let (place, model) = (Place::new(), talker());
    assert_eq!(say(&place, &model, "one", &["--session", "mine"]).stderr, "");
    let begun = place.work().canonicalize().unwrap();
    let other = begun.join("other");
    std::fs::create_dir(&other).unwrap();
    let said = format!(
        "greenroom: session mine was started in {}; its tools work in {} now",
        begun.display(),
        other.display()
    );
    let url = model.url();
    for (arguments, is_said) in [
        (&["run", "-p", "two", "--session", "mine"][..], true),
        (&["run", "-p", "three", "--session", "mine", "--no-tools"], false),
        (&["run", "-p", "four", "--session", "new"], false),
        (&["resume", "mine"], false),
        (&["resume", "mine", "--workspace", "."], true),
        (&["chat", "--session", "mine"], false),
    ] {
        let mut command = place.command(&[arguments, &["--base-url", &url]].concat());
        let ran = super::support::ran(command.current_dir(&other).output().unwrap());
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().any(|line| line == said), is_said, "{arguments:?}: {ran:?}");
        // A chat goes to the session's folder, unless another one is named.
        let is_there = ran.stderr.contains("greenroom: working in ~/work, the folder of this session");
        assert_eq!(is_there, arguments[0] != "run" && !is_said, "{arguments:?}: {ran:?}");
    }
    assert_eq!(say(&place, &model, "five", &["--session", "mine"]).stderr, "", "it is at home here");
}

#[test]
fn resume_goes_on_in_chat() {
    let (place, model) = (Place::new(), talker());
    assert_eq!(say(&place, &model, "one", &["--session", "mine"]).code, Some(0));
    let url = model.url();
    for arguments in [
        &["resume", "mi", "--base-url", &url][..],
        &["resume", "--base-url", &url],
        &["chat", "-c", "--base-url", &url],
    ] {
        let mut chat = place.start(arguments);
        chat.wait_for("Resumed mine");
        chat.close_input();
        assert_eq!(chat.end().code, Some(0));
    }
    assert_eq!(place.run(&["resume", "nobody", "--base-url", &url]).code, Some(3));
}

#[test]
fn a_session_is_compacted_by_a_command() {
    let (place, model) = (Place::new(), talker());
    let url = model.url();
    for text in ["one", "two", "three"] {
        assert_eq!(say(&place, &model, text, &["--session", "mine"]).code, Some(0));
    }
    let compact =
        |more: &[&str]| place.run(&[&["compact", "mi", "--base-url", &url, "--json"], more].concat());
    let ran = compact(&["--keep-recent", "500", "--focus", "numbers"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ended = place.json_of(&ran);
    assert_eq!((&ended["outcome"], &ended["session_id"]), (&json!("completed"), &json!("mine")), "{ended}");
    assert!(ended["tokens_after"].as_u64() < ended["tokens_before"].as_u64(), "{ended}");
    let conversation = place.json(&["show", "mine", "--json"])["conversation"].clone();
    let roles: Vec<&str> =
        conversation.as_array().unwrap().iter().map(|said| said["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user", "assistant", "summary"]);
    let again = compact(&[]);
    assert_eq!((again.code, &place.json_of(&again)["outcome"]), (Some(0), &json!("nothing")), "{again:?}");
    assert_eq!(place.run(&["compact", "nobody", "--base-url", &url]).code, Some(3));
}

#[test]
fn the_branches_of_a_session_are_shown() {
    let (place, model) = (Place::new(), talker());
    let url = model.url();
    let mut rpc = place.start(&["rpc", "--base-url", &url]);
    let mut call = |method: &str, params: serde_json::Value| {
        rpc.say(&json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string());
        rpc.wait_for("\"id\":1");
        if method == "session/prompt" {
            rpc.wait_for("session/prompt_result");
        }
    };
    call("session/prompt", json!({ "session_id": "a", "text": "first" }));
    call("session/prompt", json!({ "session_id": "a", "text": "old way" }));
    let conversation = place.json(&["show", "a", "--json"])["conversation"].clone();
    call("session/branch", json!({ "session_id": "a", "entry_id": conversation[1]["entry_id"] }));
    call("session/prompt", json!({ "session_id": "a", "text": "new way" }));
    rpc.close_input();
    rpc.end();
    let tree = place.json(&["show", "--tree", "a", "--json"]);
    let branches = tree["branches"].as_array().unwrap();
    let told: Vec<(u64, bool, &str)> = branches
        .iter()
        .map(|branch| {
            (
                branch["depth"].as_u64().unwrap(),
                branch["is_current"].as_bool().unwrap(),
                branch["text"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [(0, true, "you: first"), (1, false, "you: old way"), (1, true, "you: new way")],
        "{tree}"
    );
    let shown = place.run(&["show", "--tree", "a"]).stdout;
    let here = shown.lines().find(|line| line.ends_with("← here")).unwrap();
    assert!(here.contains("new way"), "{shown}");
}

#[test]
fn a_run_takes_images_and_has_limits() {
    let (place, model) = (Place::new(), Model::new(Says(Answer::text("Yes.")), |_| {}));
    std::fs::write(place.work().join("a.gif"), b"GIF89a and more").unwrap();
    let ran =
        say(&place, &model, "what is it?", &["--image", "a.gif", "--max-cost", "$0.50", "--timeout", "60"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        format!("{:?}", model.simulator.requests()[0].request.messages).matches("image/gif").count(),
        1
    );
    let shown = place.run(&["show", &place.only_session()]).stdout;
    assert!(shown.contains("you › what is it?\n[image: image/gif, 15 bytes]"), "{shown}");
    std::fs::write(place.work().join("a.pdf"), b"%PDF-1.7").unwrap();
    for (flag, value, reason) in [
        ("--image", "a.pdf", "a.pdf: "),
        ("--image", "none.png", "read none.png: "),
        ("--max-cost", "much", "US dollars"),
        ("--timeout", "0", "--timeout"),
    ] {
        let ran = say(&place, &model, "x", &[flag, value]);
        assert!(ran.code == Some(2) && ran.stderr.contains(reason), "{flag} {value}: {ran:?}");
    }
    assert_eq!(model.simulator.requests().len(), 1, "nothing was asked");
    // A silent server, and a second of patience.
    let slow = Model::new(
        Says(Answer::text("word ".repeat(50)).with_pace(greenroom_simulator::Pace {
            chunks: 10,
            first_ms: 200,
            between_ms: 2_000,
        })),
        |_| {},
    );
    let ran = say(&place, &slow, "x", &["--timeout", "1"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("within 1s"), "{ran:?}");
}

#[test]
fn a_short_beginning_deletes_nothing_without_a_yes() {
    let (place, model) = (Place::new(), talker());
    for id in ["alpha", "beta", "gamma-one", "delta"] {
        assert_eq!(say(&place, &model, "hi", &["--session", id]).code, Some(0));
    }
    let count = || place.json(&["sessions", "--json"]).as_array().unwrap().len();
    for short in ["a", "al", "alp"] {
        let ran = place.run(&["delete", short]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        let said = format!("{short} is only a prefix of alpha; give at least 4 characters of it, or --yes");
        assert!(ran.stderr.contains(&said), "{ran:?}");
    }
    assert_eq!(count(), 4);
    assert_eq!(place.run(&["delete", "a", "--yes"]).stdout, "Deleted alpha.\n");
    assert_eq!(place.run(&["delete", "gamm"]).stdout, "Deleted gamma-one.\n");
    if !is_there() {
        return;
    }
    // At a terminal it is asked.
    for (answer, code, left) in [("n", 1, 2), ("", 1, 2), ("y", 0, 1)] {
        let terminal = Terminal::run(&place, (90, 20), &["delete", "b"]);
        terminal.shows("Delete beta? [y/N]");
        terminal.says(answer);
        terminal.shows(&format!("ended with {code}"));
        drop(terminal);
        assert_eq!(count(), left, "{answer:?}");
    }
}

/// A full disk behind standard output must not look as if all had been printed.
#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let (place, model) = (Place::new(), talker());
    assert_eq!(say(&place, &model, "hi", &["--session", "mine"]).code, Some(0));
    let url = model.url();
    for arguments in [
        &["--help"][..],
        &["help", "run"],
        &["--version"],
        &["sessions"],
        &["show", "mine", "--json"],
        &["export", "mine"],
        &["config"],
        &["config", "--schema"],
        &["completions", "bash"],
        &["run", "-p", "x", "--base-url", &url],
        &["run", "-p", "x", "--json", "--base-url", &url],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = super::support::ran(place.command(arguments).stdout(full).output().unwrap());
        assert_eq!(ran.code, Some(1), "{arguments:?}: {ran:?}");
        let said = "write standard output: No space left on device";
        assert!(ran.stderr.contains(said) && ran.stderr.lines().count() == 1, "{arguments:?}: {ran:?}");
    }
}
