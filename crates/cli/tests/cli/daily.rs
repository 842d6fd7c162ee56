//! Daily input: one key at a question, going back, another model, settings that stay, a server that is down.

use greenroom_kernel::Message;
use greenroom_simulator::{Answer, ByPurpose, CallInfo, Echo, Function, SeenRequest, Summariser};
use serde_json::json;

use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

const SIZE: (u16, u16) = (100, 32);

/// Writes the prompt into a file, and says what came of it.
fn writer() -> Model {
    let script =
        Function(|request: &SeenRequest, _: CallInfo| match request.messages.last().map(|last| &**last) {
            Some(Message::ToolResult(_)) => Answer::text(format!("done with {}", request.last_user_text())),
            _ => Answer::call("write", &json!({ "path": "a.txt", "content": request.last_user_text() })),
        });
    Model::new(ByPurpose::new(script, Summariser::Obedient), |_| {})
}

fn chat(place: &Place, model: &Model, more: &[&str]) -> Terminal {
    let url = model.url();
    let terminal =
        Terminal::run(place, SIZE, &[&["chat", "--base-url", &*url, "--session", "mine"], more].concat());
    terminal.shows("›");
    terminal
}

#[test]
fn one_key_answers_and_no_ends_the_run() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), writer());
    let read = || std::fs::read_to_string(place.work().join("a.txt")).unwrap_or_default();
    let terminal = chat(&place, &model, &[]);
    terminal.says("first");
    let screen = terminal.shows("1. Yes");
    assert!(screen.contains("? write a.txt waiting for you"), "{screen}");
    assert!(screen.contains("❯ 1. Yes") && screen.contains("3. No, and stop"), "{screen}");
    terminal.types("1");
    terminal.shows("done with first");
    assert_eq!(read(), "first");
    terminal.says("second");
    terminal.shows("1. Yes");
    terminal.types("3");
    terminal.shows("Stopped because you answered no");
    let screen = terminal.shows("write a.txt · denied");
    assert!(!screen.contains("done with second") && !screen.contains("refused it"), "{screen}");
    assert_eq!(read(), "first");
    // Neither who answered nor how long it took is told.
    assert!(!screen.contains("(by ") && !screen.contains("failed"), "{screen}");
    // The key of the modes is a yes to this and all later edits.
    terminal.says("third");
    terminal.shows("Shift+Tab: yes, and accept all edits");
    terminal.press("BTab");
    terminal.shows("done with third");
    terminal.shows("· accept edits");
    terminal.says("fourth");
    terminal.shows("done with fourth");
    assert_eq!(read(), "fourth");
}

#[test]
fn what_was_taken_back_is_named_and_comes_back() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), writer());
    let read = || std::fs::read_to_string(place.work().join("a.txt")).unwrap_or_default();
    let terminal = chat(&place, &model, &["--mode", "accept-edits"]);
    terminal.says("/redo");
    terminal.shows("Nothing to redo");
    for prompt in ["one", "two"] {
        terminal.says(prompt);
        terminal.shows(&format!("done with {prompt}"));
    }
    terminal.until("the run is over", |screen| !screen.contains("Esc interrupts"));
    terminal.says("/undo --both");
    let screen = terminal.shows("Took back “two”; it is in the editor. /redo brings it back");
    assert!(!screen.contains("entry") && !screen.contains("/tree"), "{screen}");
    terminal.until("the prompt is in the editor", |screen| screen.contains("› two"));
    assert_eq!(read(), "one");
    terminal.press("C-u");
    terminal.says("/redo");
    let screen = terminal.shows("The conversation is as it was before /undo");
    assert!(!screen.contains("branch from"), "{screen}");
    assert_eq!(read(), "two");
    terminal.says("/redo");
    terminal.shows("Nothing to redo");
    // The model knows of it again.
    terminal.says("three");
    terminal.shows("done with three");
    let last = model.simulator.requests().pop().unwrap();
    assert!(format!("{:?}", last.request.messages).contains("two"), "{last:?}");
}

#[test]
fn another_provider_answers_once_its_key_is_kept() {
    if !is_there() {
        return;
    }
    let (place, first) = (Place::new(), Model::new(Echo, |options| options.model = "first-model".to_owned()));
    let second = Model::new(Echo, |options| {
        options.require_key = Some("the-key-of-the-second".to_owned());
        options.model = "claude-opus-5".to_owned();
    });
    place.own_file(&format!(
        "provider: first\nmodel: first-model\nproviders:\n  first: {{ base_url: {:?} }}\n  second:\n    base_url: {:?}\n    \
         api_key_env: SECOND_KEY\n    catalog: anthropic\n",
        first.url(),
        second.url()
    ));
    // Another provider needs a host.
    let hosted = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("GREENROOM_HOST_START", "true").env("GREENROOM_HOST_IDLE_S", "1");
        Terminal::of(&place, SIZE, &command)
    };
    let terminal = hosted(&["chat", "--session", "mine"]);
    terminal.shows("first-model");
    terminal.says("/model");
    let screen = terminal.shows("Choose a model");
    assert!(!screen.contains("second/"), "there is no key yet: {screen}");
    terminal.press("Escape");
    terminal.until("it is closed", |screen| !screen.contains("Choose a model"));
    let login = Terminal::run(&place, SIZE, &["login", "second"]);
    login.shows("not shown");
    login.pastes("the-key-of-the-second");
    login.press("Enter");
    login.shows("is stored in");
    terminal.says("/model");
    terminal.shows("second/claude-");
    terminal.types("opus-5");
    terminal.shows("❯ second/claude-opus-5");
    terminal.press("Escape");
    terminal.until("it is closed", |screen| !screen.contains("Choose a model"));
    // A name is found where it is, also without its provider.
    terminal.says("/model claude-opus-5");
    terminal.until("it is shown", |screen| screen.contains("· claude-opus-5"));
    terminal.says("say it back");
    terminal.until("it answers", |screen| screen.matches("say it back").count() >= 2);
    assert_eq!((first.simulator.calls(), second.simulator.calls()), (0, 1));
    terminal.says("/status");
    let screen = terminal.shows("claude-opus-5 of second (");
    assert!(screen.contains(&second.url()), "{screen}");
    terminal.says("/model first/first-model");
    terminal.until("it is shown", |screen| screen.contains("· first-model"));
    // What was chosen last is shown when it is resumed, although nothing was asked since.
    terminal.press("C-d");
    terminal.shows("ended with 0");
    let terminal = hosted(&["resume", "mine"]);
    terminal.shows("Resumed");
    terminal.until("it is shown", |screen| screen.contains("· first-model"));
    // A model that no list contains is used anyway, with a message.
    terminal.says("/model no-such-model");
    terminal.shows("The server does not list no-such-model");
}

#[test]
fn settings_of_what_is_asked_come_back_and_others_are_named() {
    let place = Place::new();
    let model = Model::new(Echo, |options| options.model = "own-model".to_owned());
    let url = model.url();
    let server = format!("providers={{ mine: {{ base_url: {url:?} }} }}");
    let begun = place.run(&[
        "run", "-p", "hi", "--session", "mine", "--base-url", &url, "--temperature", "0.25", "--system",
        "Be brief.", "--set", "context_window=9000", "--set", &server,
    ]);
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let ran = place.run(&["run", "-p", "again", "--session", "mine"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let warning = "this session was used with --set providers=…, which is not stored with a session";
    assert!(ran.stderr.contains(warning), "{ran:?}");
    let requests = model.simulator.requests();
    for seen in &requests {
        assert_eq!(seen.request.settings.temperature, Some(0.25));
        assert!(format!("{:?}", seen.request).contains("Be brief."), "{seen:?}");
    }
    assert_eq!(requests.len(), 2);
    assert_eq!(place.json(&["sessions", "--json"])[0]["window"], json!(9_000));
    // It is said once: from now on, the session lacks it.
    let ran = place.run(&["run", "-p", "more", "--session", "mine", "--temperature", "0.5"]);
    assert!(ran.code == Some(0) && !ran.stderr.contains("is not stored with a session"), "{ran:?}");
    assert_eq!(model.simulator.requests().pop().unwrap().request.settings.temperature, Some(0.5));
}

#[test]
fn failed_attempts_are_one_row_and_the_last_error_stays() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    // Nobody listens there.
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1", listener.local_addr().unwrap())
    };
    let arguments = ["chat", "--base-url", &url, "--model", "m", "--set", "limits.retries_max=2"];
    let terminal = Terminal::run(&place, SIZE, &arguments);
    terminal.shows("›");
    terminal.says("hello");
    terminal.shows("attempt 1 failed");
    terminal.shows("again in");
    let screen = terminal.shows("Error: ");
    let all = terminal.all();
    assert!(!all.contains("failed: ") && !all.contains("Trying again"), "{all}");
    assert_eq!(all.matches("connection refused").count(), 1, "{all}");
    assert!(screen.contains(&url) && screen.contains("check that the server"), "{screen}");
}

#[test]
fn a_small_conversation_is_compacted_or_it_is_said_why_not() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), writer());
    let terminal = chat(&place, &model, &["--mode", "accept-edits", "--window", "40000"]);
    terminal.says("/compact");
    terminal.shows("the session is empty");
    terminal.says("small");
    terminal.shows("done with small");
    terminal.until("the run is over", |screen| !screen.contains("Esc interrupts"));
    terminal.says("/compact");
    let screen = terminal.shows("everything is recent enough to keep");
    assert!(screen.contains("of 40k)") && screen.contains("/compact --force keeps"), "{screen}");
}

#[test]
fn the_agent_writes_the_instructions_and_they_are_a_part_of_the_context() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), writer());
    let url = model.url();
    // At the command line and in the chat it is one prompt.
    let terminal = Terminal::run(&place, SIZE, &["init", "--base-url", &url, "--mode", "accept-edits"]);
    terminal.shows("done with Read this project");
    terminal.press("C-d");
    terminal.shows("ended with 0");
    place.own_file(&format!("trusted_folders: [{:?}]\n", place.work()));
    super::prompts::write(&place, "AGENTS.md", &"Use tabs. ".repeat(200));
    let skill = place.work().join(".claude/skills/deploy");
    std::fs::create_dir_all(&skill).unwrap();
    std::fs::write(skill.join("SKILL.md"), "---\nname: deploy\ndescription: Ships it\n---\nShip it.\n")
        .unwrap();
    let commands = place.work().join(".claude/commands");
    std::fs::create_dir_all(&commands).unwrap();
    std::fs::write(commands.join("review.md"), "Review $1.\n").unwrap();
    let terminal = chat(&place, &model, &["--mode", "accept-edits", "--window", "40000"]);
    for (typed, sent) in [
        ("/init", "Read this project"),
        ("/deploy to staging", "Use the skill"),
        ("/review src", "Review src."),
    ] {
        terminal.says(typed);
        terminal.shows(&format!("done with {sent}"));
        terminal.until("the run is over", |screen| !screen.contains("Esc interrupts"));
        let asked = model.simulator.requests().pop().unwrap().request.last_user_text().to_owned();
        assert!(asked.starts_with(sent), "{typed}: {asked}");
    }
    terminal.says("/context");
    let screen = terminal.shows("kept free by compaction");
    for part in [
        "■ system prompt and rest", "◆ AGENTS.md", "▲ skills", "● tool definitions", "█ conversation",
        "· free",
    ] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
}
