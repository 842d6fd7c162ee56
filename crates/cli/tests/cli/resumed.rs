//! A session comes back as it was; one-shots stay out of the way; lists fit the terminal.

use greenroom_simulator::{Answer, CallInfo, Echo, Function, SeenRequest, Simulator};

use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

const SIZE: (u16, u16) = (100, 32);

fn model() -> Model {
    Model::new(Echo, |options| options.model = "own-model".to_owned())
}

/// Leaves a chat, and returns the command that it prints for going on.
fn leave(terminal: &Terminal) -> Vec<String> {
    terminal.leaves();
    terminal.shows("ended with 0");
    let all = terminal.all();
    let hint = all
        .lines()
        .find_map(|line| line.strip_prefix("To continue: greenroom "))
        .unwrap_or_else(|| panic!("{all}"));
    hint.split_whitespace().map(str::to_owned).collect()
}

/// Returns the status line: the last line of the screen.
fn status(screen: &str) -> &str {
    screen.trim_end().lines().last().unwrap_or_default()
}

fn says(terminal: &Terminal, text: &str) {
    terminal.says(text);
    // Leaving while it works asks, so the spinner must be gone.
    let is_at_work = |screen: &str| screen.contains(|glyph| ('\u{2800}'..='\u{28ff}').contains(&glyph));
    terminal.until("the answer is there", |screen| screen.matches(text).count() >= 2 && !is_at_work(screen));
}

#[test]
fn the_hint_on_leaving_brings_everything_back() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let url = model.url();
    let asked = ["--base-url", &url, "--model", "first-model", "--mode", "accept_edits", "--effort", "high"];
    let terminal = Terminal::run(&place, SIZE, &[&["chat"], &asked[..]].concat());
    terminal.shows("accept edits");
    says(&terminal, "remember this");
    let hint = leave(&terminal);
    assert_eq!((hint.len(), hint[0].as_str()), (2, "resume"), "{hint:?}");

    // In another folder: it is the session's own that counts.
    let elsewhere = place.work().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let hint: Vec<&str> = hint.iter().map(String::as_str).collect();
    let mut command = place.command(&hint);
    command.current_dir(&elsewhere);
    // tmux begins in the workspace, so the command goes there itself.
    let line = format!("cd {} && exec \"$0\" \"$@\"", elsewhere.display());
    let mut shell = place.command_of("/bin/sh".into(), &["-c", &line]);
    shell.arg(command.get_program()).args(command.get_args());
    let terminal = Terminal::of(&place, SIZE, &shell);
    terminal.shows("working in");
    let screen = terminal.shows("first-model");
    assert!(screen.contains("accept edits"), "{screen}");
    says(&terminal, "and this");
    let requests = model.simulator.requests();
    let last = requests.last().unwrap();
    assert_eq!(last.request.model, "first-model", "what is shown is what is asked");
    assert_eq!(last.request.settings.reasoning_effort, requests[0].request.settings.reasoning_effort);
    assert!(last.request.settings.reasoning_effort.is_some());
    leave(&terminal);

    // A flag takes precedence, and is then the session's.
    let with = [&hint[..], &["--model", "second-model"]].concat();
    let terminal = Terminal::run(&place, SIZE, &with);
    terminal.until("the new model is shown", |screen| screen.contains("· second-model"));
    says(&terminal, "once more");
    leave(&terminal);
    let terminal = Terminal::run(&place, SIZE, &["-c"]);
    terminal.until("it is still shown", |screen| screen.contains("· second-model"));
    says(&terminal, "at last");
    assert_eq!(model.simulator.requests().last().unwrap().request.model, "second-model");
}

#[test]
fn what_is_chosen_in_the_chat_is_the_sessions_own() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let url = model.url();
    let terminal = Terminal::run(&place, SIZE, &["chat", "--base-url", &url, "--session", "mine"]);
    terminal.shows("own-model");
    says(&terminal, "hello there");
    terminal.says("/model other-model");
    terminal.until("the model is another", |screen| screen.contains("· other-model"));
    terminal.says("/effort high");
    terminal.shows("effort high");
    terminal.says("/permissions accept_edits");
    terminal.shows("· accept edits");
    let hint = leave(&terminal);
    let hint: Vec<&str> = hint.iter().map(String::as_str).collect();
    let terminal = Terminal::run(&place, SIZE, &hint);
    let screen = terminal.until("all of it is shown", |screen| screen.contains("· other-model"));
    assert!(screen.contains("accept edits") && screen.contains("other-model (high)"), "{screen}");
    says(&terminal, "and now");
    let requests = model.simulator.requests();
    let last = &requests.last().unwrap().request;
    assert_eq!(last.model, "other-model");
    assert!(last.settings.reasoning_effort.is_some());
    // A new one in the same chat begins with what is chosen there.
    terminal.says("/new");
    terminal.shows("New session");
    says(&terminal, "a new one");
    assert_eq!(model.simulator.requests().last().unwrap().request.model, "other-model");
    // An effort is that of its session, and the default is a choice, too.
    let effort = |said: &str| {
        says(&terminal, said);
        let settings = model.simulator.requests().last().unwrap().request.settings.clone();
        settings.reasoning_effort.map(|effort| effort.as_str())
    };
    assert_eq!(effort("as the one before"), Some("high"));
    terminal.says("/effort low");
    terminal.shows("Effort low");
    assert_eq!(effort("a little"), Some("low"));
    terminal.says("/resume mine");
    terminal.until("it is the first one's", |screen| status(screen).contains("other-model (high)"));
    assert_eq!(effort("as before"), Some("high"));
    terminal.says("/effort default");
    terminal.shows("Effort default");
    assert_eq!(effort("as the provider wants"), None);
    let hint = leave(&terminal);
    let hint: Vec<&str> = hint.iter().map(String::as_str).collect();
    let terminal = Terminal::run(&place, SIZE, &hint);
    terminal.until("it is shown", |screen| screen.contains("· other-model"));
}

#[test]
fn a_copy_made_in_the_chat_goes_on_as_the_session_was_at_that_moment() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    let url = model.url();
    let chat = Terminal::run(&place, SIZE, &["chat", "--base-url", &url, "--session", "mine"]);
    check_copies(&chat, &model.simulator, &|arguments| Terminal::run(&place, SIZE, arguments));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_made_in_a_chat_with_a_host_goes_on_as_the_session_was() {
    if !is_there() {
        return;
    }
    let hosted = super::host::Hosted::of(Echo).await;
    let run = |arguments: &[&str]| Terminal::of(&hosted.place, SIZE, &hosted.command(arguments));
    let chat = run(&["chat", "--session", "mine", "--model", "own-model", "--window", "100000"]);
    tokio::task::block_in_place(|| check_copies(&chat, &hosted.simulator, &run));
}

/// Copies a session whose settings were changed, in both ways: the copies have them too, also when they are resumed.
fn check_copies(terminal: &Terminal, simulator: &Simulator, run: &dyn Fn(&[&str]) -> Terminal) {
    terminal.shows("own-model");
    says(terminal, "hello there");
    terminal.says("/model other-model");
    terminal.until("the model is another", |screen| status(screen).contains("other-model"));
    terminal.says("/effort high");
    terminal.shows("effort high");
    terminal.says("/permissions deny bash(secret *)");
    terminal.shows("for this session: deny");
    terminal.says("/permissions read_only");
    terminal.until("the mode is another", |screen| status(screen).contains("read only"));
    let copies = [
        ("/fork copied", "This is a copy of hello there (mine); its own id is copied", "in it"),
        ("/continue-in do more", "continues copied", "in the next"),
    ];
    for (command, shown, said) in copies {
        terminal.says(command);
        terminal.shows(shown);
        // The goal is in the editor, to be sent.
        terminal.press("C-u");
        says(terminal, said);
        let screen = terminal.screen();
        assert!(status(&screen).contains("read only"), "{command}: {screen}");
        assert!(status(&screen).contains("other-model (high)"), "{command}: {screen}");
        let requests = simulator.requests();
        let last = &requests.last().unwrap().request;
        assert_eq!((last.last_user_text().as_str(), last.model.as_str()), (said, "other-model"), "{command}");
        terminal.says("/permissions");
        let screen = terminal.shows("the agent reads, and changes nothing");
        assert!(screen.contains("bash(secret *)"), "{command}: {screen}");
        terminal.press("C-l");
    }
    let hint = leave(terminal);
    let hint: Vec<&str> = hint.iter().map(String::as_str).collect();
    let terminal = run(&hint);
    let screen = terminal.until("the mode is back", |screen| status(screen).contains("read only"));
    assert!(status(&screen).contains("other-model (high)"), "{screen}");
}

#[test]
fn another_session_of_the_chat_comes_back_with_its_own_model() {
    if !is_there() {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let hosted = runtime.block_on(async {
        super::host::Hosted::of(Function(|request: &SeenRequest, _: CallInfo| {
            Answer::text(format!("{} answers", request.model))
        }))
        .await
    });
    for (id, model) in [("alpha", "model-a"), ("beta", "model-b")] {
        let ran = hosted.run(&["run", "hello", id, "--session", id, "--model", model]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let terminal = Terminal::of(&hosted.place, SIZE, &hosted.command(&["resume", "alpha"]));
    terminal.until("it is shown", |screen| screen.contains("· model-a"));
    terminal.says("/resume beta");
    terminal.until("the other one is shown", |screen| screen.contains("· model-b"));
    terminal.says("who are you");
    terminal.until("it answers", |screen| screen.matches("model-b answers").count() >= 2);
}

/// A copy needs a name of its own, and a session whose name was taken stays as it is.
#[test]
fn what_a_session_is_resumed_with_survives_a_copy_onto_its_name() {
    let (place, model) = (Place::new(), model());
    let url = model.url();
    for (id, model) in [("alpha", "model-a"), ("beta", "model-b")] {
        let ran = place.run(&["run", "-p", "hello", "--session", id, "--model", model, "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let kept = || std::fs::read_to_string(place.store().join("resumed-with/beta.json")).unwrap();
    let before = kept();
    assert!(before.contains("model-b"), "{before}");
    let ran = place.run(&["fork", "alpha", "beta"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("there is already a session beta"), "{ran:?}");
    assert_eq!(kept(), before);
}

#[test]
fn keys_are_not_kept_with_a_session() {
    let (place, model) = (Place::new(), model());
    let url = format!("{}?key=a-secret-of-the-address", model.url());
    let mut command =
        place.command(&["run", "-p", "hi", "--base-url", &url, "--session", "mine", "--model", "m"]);
    let ran =
        super::support::ran(command.env("OPENAI_API_KEY", "a-secret-of-the-environment").output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let kept = super::support::files(&place.store().join("resumed-with"));
    assert_eq!(kept.len(), 1, "{kept:?}");
    let text = std::fs::read_to_string(&kept[0]).unwrap();
    assert!(text.contains(model.url().as_str()) && !text.contains("a-secret"), "{text}");
    assert_eq!(place.run(&["delete", "mine"]).code, Some(0));
    assert!(!kept[0].exists(), "it goes with the session");
}

/// An address in the file of a session gets a key only if the user has sent it there.
#[test]
fn an_address_that_was_changed_gets_no_key() {
    let (place, model) = (Place::new(), model());
    let other = Model::new(Echo, |_| {});
    let run = |arguments: &[&str]| {
        let mut command = place.command(&[&["run", "-p", "hi", "--session", "mine"], arguments].concat());
        super::support::ran(command.env("OPENAI_API_KEY", "a-made-up-key").output().unwrap())
    };
    assert_eq!(run(&["--base-url", &model.url()]).code, Some(0));
    assert_eq!(run(&[]).code, Some(0), "it is resumed with its server");
    let kept = super::support::files(&place.store().join("resumed-with")).remove(0);
    let text = std::fs::read_to_string(&kept).unwrap().replace(&model.url(), &other.url());
    std::fs::write(&kept, text).unwrap();
    let ran = run(&[]);
    assert!(ran.code == Some(2) && ran.stderr.contains("not confirmed"), "{ran:?}");
    assert!(other.simulator.requests().is_empty());
}

#[test]
fn one_shots_stay_out_of_the_way() {
    let (place, model) = (Place::new(), model());
    let url = model.url();
    let run = |arguments: &[&str]| {
        let ran = place.run(&[arguments, &["--base-url", &url]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    };
    run(&["run", "-p", "a talk", "--session", "talk"]);
    run(&["-p", "review this"]);
    let listed = |arguments: &[&str]| -> Vec<String> {
        let list = place.json(&[&["sessions", "--json"], arguments].concat());
        list.as_array().unwrap().iter().map(|session| session["title"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&[]), ["review this", "a talk"]);
    assert_eq!(listed(&["--no-runs"]), ["a talk"]);
    assert!(place.run(&["sessions"]).stdout.contains("run: review this"));
    // The newest one is a one-shot, and is passed over.
    let chat = place.run_with(&["chat", "-c"], "/status\n");
    assert!(chat.code == Some(0) && chat.stdout.contains("Resumed talk"), "{chat:?}");
    // In a script, what `run` began goes on.
    run(&["run", "-p", "go on", "-c"]);
    assert_eq!(listed(&["--no-runs"]), ["a talk"]);
    // Talked with, it is a conversation.
    let id = place.json(&["sessions", "--json"])[0]["id"].as_str().unwrap().to_owned();
    let chat = place.run_with(&["resume", &id], "and now\n");
    assert_eq!(chat.code, Some(0), "{chat:?}");
    assert_eq!(listed(&["--no-runs"]).len(), 2);
}

#[test]
fn a_run_without_a_session_leaves_no_trace() {
    let (place, model) = (Place::new(), model());
    let url = model.url();
    for more in [&[][..], &["--json"]] {
        let ran = place.run(&[&["-p", "say it back", "--no-session", "--base-url", &url], more].concat());
        assert!(ran.code == Some(0) && ran.stdout.contains("say it back"), "{ran:?}");
    }
    assert!(!place.store().exists(), "{:?}", super::support::files(&place.store()));
    let ran = place.run(&["run", "-p", "x", "--no-session", "--session", "y", "--base-url", &url]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

/// Sessions with long titles and ids that begin alike.
fn many(place: &Place, url: &str) {
    for id in ["chat-20260102-030405-1", "chat-20260102-030406-2", "chat-20260102-040405-3"] {
        let prompt =
            format!("{id} is about a thing with a title that is much too long for a narrow terminal");
        let ran = place.run(&["run", "-p", &prompt, "--session", id, "--base-url", url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn the_list_of_sessions_fits_the_terminal() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    many(&place, &model.url());
    for columns in [60_u16, 80, 100] {
        let terminal = Terminal::run(&place, (columns, 24), &["sessions"]);
        let screen = terminal.shows("ended with 0");
        let lines: Vec<&str> = screen.lines().take_while(|line| !line.starts_with("ended")).collect();
        assert_eq!(lines.len(), 4, "no row wraps in {columns} columns: {screen}");
        assert!(lines[0].starts_with("TITLE"), "{screen}");
        let place_of_id = lines[0].find("ID").unwrap();
        for line in &lines[1..] {
            assert!(line.starts_with("chat-20260102-0"), "the title comes first: {screen}");
            let id: String = line.chars().skip(place_of_id).take_while(|c| !c.is_whitespace()).collect();
            assert!(id.len() < 22, "{id} is short: {screen}");
            // Every command takes it.
            assert_eq!(place.run(&["show", &id]).code, Some(0), "{id}");
        }
    }
    let wide = Terminal::run(&place, (120, 24), &["sessions"]);
    assert!(wide.shows("ended with 0").contains(" ~/work"), "the home folder is ~");
}

#[test]
fn a_session_is_chosen_from_the_shell() {
    if !is_there() {
        return;
    }
    let (place, model) = (Place::new(), model());
    many(&place, &model.url());
    let terminal = Terminal::run(&place, SIZE, &["-r"]);
    let screen = terminal.shows("Resume a session");
    assert!(screen.contains("chat-20260102-040405-3 · own-model · ~/work"), "a preview: {screen}");
    assert!(screen.contains("3 of 3") || screen.contains("1 of 3"), "{screen}");
    terminal.types("030405");
    terminal.until("one is left", |screen| screen.contains("1 of 1"));
    terminal.press("Enter");
    terminal.shows("own-model");
    terminal.until("it is that one", |screen| screen.contains("chat-20260102-030405-1"));
    terminal.press("C-d");
    let screen = terminal.shows("ended with 0");
    assert!(screen.contains("To continue: greenroom resume chat-20260102-030405-1"), "{screen}");
    let terminal = Terminal::run(&place, SIZE, &["-r"]);
    terminal.shows("Resume a session");
    terminal.press("Escape");
    terminal.shows("ended with 130");
    let piped = place.run(&["-r"]);
    assert!(piped.code == Some(2) && piped.stderr.contains("at a terminal"), "{piped:?}");
}
