//! Every compaction is told where the user is: in a chat that waits and in one that does not, and as events of `run`,
//! which begins none that it would not see the end of.

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, Pace, Script, SeenRequest, Summariser};

use super::support::{Model, Place, events};

/// What is set for a model's window holds where that model writes summaries: each request fits, and where the server
/// would cut a longer one in silence, nothing is lost.
#[test]
fn the_window_that_is_set_for_the_summary_model_holds() {
    let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
    let url = model.url();
    place.project_file("compaction: { summary_model: tiny }\n");
    place.own_file("models: { tiny: { context_window: 6000 } }\n");
    let at = ["--session", "mine", "--no-tools", "--window", "100000", "--base-url", &url];
    for _ in 0..5 {
        let ran = place.run(&[&["run", "-p", "Go on."], &at[..]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let ran = place.run(&[&["compact", "mine", "--keep-recent", "2000"], &at[3..]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let seen = model.simulator.requests();
    let asked: Vec<u64> = seen
        .iter()
        .filter(|logged| logged.request.model == "tiny")
        .map(|logged| logged.request.tokens)
        .collect();
    assert!(asked.len() > 1 && asked.iter().all(|tokens| *tokens < 6_000), "{asked:?}");
    model.simulator.assert_clean();
}

/// A command of the user's own decides about compactions: it reads the proposal, and cancels, focuses or supplies. One whose answer is not
/// understood decides nothing.
#[test]
fn a_command_decides_about_compactions() {
    for (answer, outcome, summaries) in [
        ("", "✓ Compacted", 1),
        (r#"{"decision": "focus", "focus": "the units"}"#, "✓ Compacted", 1),
        (r#"{"decision": "supply", "summary": "By the command."}"#, "✓ Compacted", 0),
        (r#"{"decision": "cancel", "reason": "not now"}"#, "not now", 0),
        ("yes", "✓ Compacted", 1),
    ] {
        let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
        let (url, folder) = (model.url(), tempfile::tempdir().unwrap());
        let (given, printed) = (folder.path().join("given"), folder.path().join("printed"));
        std::fs::write(&printed, answer).unwrap();
        let command = format!("cat > '{}'; cat '{}'", given.display(), printed.display());
        let command = serde_json::to_string(&command).unwrap();
        place.own_file(&format!(
            "compaction: {{ compact_instructions: 'Name each colour.' }}\nhooks: {{ before_compact: {command} }}\n"
        ));
        let at = ["--session", "mine", "--no-tools", "--window", "100000", "--base-url", &url];
        for _ in 0..4 {
            let ran = place.run(&[&["run", "-p", "Go on."], &at[..]].concat());
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
        let ran = place.run(&[&["compact", "mine", "--keep-recent", "2000"], &at[3..]].concat());
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains(outcome), "{answer}: {ran:?}");
        assert_eq!(ran.code, Some(if answer.contains("cancel") { 1 } else { 0 }), "{answer}: {ran:?}");
        let is_warned = ran.stderr.contains("before_compact");
        assert_eq!(is_warned, answer == "yes", "{answer}: {ran:?}");
        let proposal: serde_json::Value = serde_json::from_slice(&std::fs::read(&given).unwrap()).unwrap();
        assert_eq!((&proposal["session"], &proposal["trigger"]), (&"mine".into(), &"manual".into()));
        assert!(proposal["transcript"].as_str().unwrap().starts_with("[User]: Go on."), "{proposal}");
        let requests = model.simulator.requests();
        let texts: Vec<String> =
            requests.iter().skip(4).map(|logged| logged.request.last_user_text()).collect();
        assert_eq!(texts.len(), summaries, "{answer}: {ran:?}");
        for text in &texts {
            assert!(text.contains("Name each colour."), "{text}");
            assert_eq!(text.ends_with("Attend above all to this: the units"), answer.contains("focus"));
        }
        if answer.contains("supply") {
            let shown = place.run(&["show", "mine"]);
            assert!(shown.stdout.contains("By the command."), "{shown:?}");
        }
    }
}

/// No project's file may name a command.
#[test]
fn a_project_has_no_hooks() {
    let place = Place::new();
    place.project_file("hooks: { before_compact: 'touch here' }\n");
    let ran = place.run(&["config"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("line 1: hooks"), "{ran:?}");
    for (wrong, reason) in [
        ("hooks: { before_compact: ' ' }", "must be a command, or null"),
        ("hooks: { timeout_s: 0 }", "must be at least 1"),
        ("hooks: { after: 'x' }", "after"),
    ] {
        let place = Place::new();
        place.own_file(&format!("{wrong}\n"));
        let ran = place.run(&["config"]);
        assert!(ran.code != Some(0) && ran.stderr.contains(reason), "{wrong}: {ran:?}");
    }
}

/// A chat that is no terminal takes the same words after /compact: how much is kept, and nothing else as a focus.
#[test]
fn a_plain_chat_reads_how_to_compact_as_a_chat_at_a_terminal_does() {
    let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
    let url = model.url();
    let lines = "Go on.\nGo on.\nGo on.\nGo on.\n/compact --keep 2500\n/compact --frce\n/compact --keep\n/status now\n\
                 /tree\n/compact --force -- the --json flag\n/quit\n";
    let chat = ["chat", "--session", "mine", "--no-tools", "--window", "100000", "--base-url", &url];
    let ran = place.run_with(&chat, lines);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("To continue: greenroom resume mine"), "{}", ran.stdout.replace("word ", ""));
    let requests = model.simulator.requests();
    let texts: Vec<String> = requests.iter().skip(4).map(|logged| logged.request.last_user_text()).collect();
    assert_eq!(texts.len(), 2, "{ran:?}");
    assert!(
        !texts[0].contains("Attend above all")
            && texts[1].contains("Attend above all to this: the --json flag")
    );
    for said in [
        "✓ Compacted 4 messages",
        "/compact has no option --frce; its options are --keep N and --force, and text after -- is the focus",
        "--keep needs a number of tokens, such as 20000",
        "/status takes no arguments",
        "/tree needs a chat at a terminal; /help lists the commands available here.",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout.replace("word ", ""));
    }
}

/// What the model sees in place of the older part is shown, and from where on it sees what was said.
#[test]
fn a_session_is_shown_with_its_summary_and_with_what_the_model_sees() {
    let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
    let url = model.url();
    let at = ["--session", "mine", "--no-tools", "--window", "100000", "--base-url", &url];
    for number in 0..4 {
        let text = format!("Go on {number}.");
        let ran = place.run(&[&["run", "-p", &text], &at[..]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let before = place.run(&["show", "mine"]).stdout;
    assert!(!before.contains("the model sees") && !before.contains("summary"), "{before}");
    let ran = place.run(&[&["compact", "mine", "--keep-recent", "2500"], &at[3..]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = place.run(&["show", "mine"]).stdout;
    let of =
        |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: {}", shown.replace("word ", "")));
    let stored = place.json(&["show", "mine", "--json"]);
    let id = stored["compactions"][0]["entry_id"].as_u64().unwrap();
    let mark = of(&format!("the model sees the summary of entry {id} instead of the messages above"));
    assert!(of("you › Go on 1.") < mark && mark < of("you › Go on 3."), "{}", shown.replace("word ", ""));
    let summary = of(&format!("summary, entry {id} › "));
    assert!(mark < summary && shown[summary..].contains("## Goal"), "{}", &shown[summary..]);
    // All about it, by its number.
    let whole = place.run(&["show", "mine", "--compaction", "1"]);
    let last = place.run(&["show", "mine", "--compaction", "last"]);
    assert_eq!((whole.code, &whole.stdout), (Some(0), &last.stdout), "{whole:?}");
    for said in [
        &format!("compaction 1, entry {id}: manual, completed, in effect"),
        "Go on 0.",
        "of yours",
        "/undo-compact 1 in `greenroom chat`",
        "## Goal",
    ] {
        assert!(whole.stdout.contains(said), "{said}: {}", whole.stdout);
    }
    let json = place.json(&["show", "mine", "--compaction", "1", "--json"]);
    assert_eq!(
        (&json["entry_id"], &json["is_active"]),
        (&stored["compactions"][0]["entry_id"], &true.into())
    );
    let none = place.run(&["show", "mine", "--compaction", "2"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.contains("session mine has 1 compaction, and no number 2"), "{none:?}");
    // Undone, it is still shown, and the model sees everything. Messages are pinned and released.
    let orders = "/compactions\n/pin\n/pin 99999\n/pins\n/unpin 9999\n/unpin\n/unpin 1\n/compactions 1\n/undo-compact 1\n/undo-compact 1\n/cost\n/quit\n";
    let ran = place.run_with(&[&["chat"], &at[..]].concat(), orders);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for said in [
        "  1  manual  compacted ", "/compactions N shows one", "you: Go on 3.", "entry 9999 is not pinned",
        "/unpin needs an entry", "compaction 1, entry", "The compaction was undone", "1 compaction; ",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout.replace("word ", ""));
    }
    let shown = place.run(&["show", "mine"]).stdout;
    assert!(!shown.contains("the model sees") && shown.contains("## Goal"), "{}", shown.replace("word ", ""));
}

/// A copy, a copy of a part, and a new session with a goal and a summary.
#[test]
fn a_session_is_forked_and_continued_with_a_goal() {
    let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
    let url = model.url();
    let at = ["--no-tools", "--window", "100000", "--base-url", &url];
    for number in 0..4 {
        let text = format!("Go on {number}.");
        let ran = place.run(&[&["run", "-p", &text, "--session", "mine"], &at[..]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let fork = |arguments: &[&str]| place.run(&[&["fork", "mine"], arguments, &at[..]].concat());
    let copy = fork(&["copy"]);
    assert_eq!((copy.code, copy.stdout.as_str()), (Some(0), "copy\n"), "{copy:?}");
    let shown = place.run(&["show", "copy"]).stdout;
    assert!(shown.contains("you › Go on 0.") && shown.contains("you › Go on 3."), "{shown}");
    let answer = place.json(&["show", "mine", "--json"])["conversation"][1]["entry_id"].to_string();
    let unnamed = fork(&["--at", &answer]);
    let name = unnamed.stdout.trim().to_owned();
    assert!(unnamed.code == Some(0) && name.starts_with("fork-"), "{unnamed:?}");
    assert!(!place.run(&["show", &name]).stdout.contains("Go on 3."));
    let continued = fork(&["tests", "--compact", "write the tests", "--json"]);
    assert_eq!(continued.code, Some(0), "{continued:?}");
    let json: serde_json::Value = serde_json::from_str(&continued.stdout).unwrap();
    assert_eq!((&json["session_id"], &json["compacted"]["outcome"]), (&"tests".into(), &"completed".into()));
    let shown = place.json(&["show", "tests", "--json"]);
    assert_eq!(
        (&shown["title"], &shown["labels"]["continued_from"]),
        (&"write the tests".into(), &"mine".into())
    );
    let taken = fork(&["copy", "--compact", "again"]);
    assert!(
        taken.code == Some(2)
            && taken.stderr.contains("there is already a session copy; choose another name"),
        "{taken:?}"
    );
    let both = fork(&["x", "--at", "1", "--compact", "y"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

/// What needs no model needs no key, and a session that is not there is reported first.
#[test]
fn commands_about_a_session_ask_for_a_key_only_where_a_model_is_called() {
    let (place, model) = (Place::new(), model_of(100_000, Pace::default()));
    let missing = |arguments: &[&str]| {
        let ran = place.run(arguments);
        assert_eq!(ran.code, Some(3), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("nosuch") && !ran.stderr.contains("API key"), "{arguments:?}: {ran:?}");
    };
    let commands = [&["undo", "nosuch"][..], &["fork", "nosuch", "copy"], &["compact", "nosuch"]];
    commands.into_iter().for_each(missing);
    let url = model.url();
    let ran = place.run(&["run", "-p", "Go on.", "--session", "mine", "--no-tools", "--base-url", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    commands.into_iter().for_each(missing);
    // An imported session has no server.
    let file = place.work().join("mine.jsonl").to_string_lossy().into_owned();
    assert_eq!(place.run(&["export", "mine", "--output", &file]).code, Some(0));
    assert_eq!(place.run(&["delete", "mine"]).code, Some(0));
    let imported = place.json(&["import", &file, "--json"])["session_id"].as_str().unwrap().to_owned();
    let copy = place.run(&["fork", &imported, "copy"]);
    assert_eq!((copy.code, copy.stdout.as_str()), (Some(0), "copy\n"), "{copy:?}");
    let undone = place.run(&["undo", &imported, "--conversation"]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    let compacted = place.run(&["compact", &imported]);
    assert!(compacted.stderr.contains("API key"), "{compacted:?}");
}

/// A window that three answers fill.
const WINDOW: &str = "8000";

/// A model with long answers in a window that they fill, whose summaries come at this pace.
fn model(summaries: Pace) -> Model {
    model_of(8_000, summaries)
}

/// As [`model`], in a window of so many tokens.
fn model_of(window: u64, summaries: Pace) -> Model {
    let runs = Function(|_: &SeenRequest, call: CallInfo| {
        Answer::text(format!("answer {}: {}", call.session_call, "word ".repeat(1_600)))
    });
    let summaries = Function(move |request: &SeenRequest, call: CallInfo| {
        Summariser::Obedient.reply(request, call).with_pace(summaries)
    });
    Model::new(ByPurpose::new(runs, summaries), |options| options.window = window)
}

/// A summary takes about as long as a person needs to type.
const SLOW: Pace = Pace { chunks: 1, first_ms: 1_500, between_ms: 0 };
/// Nobody lives to see such a summary.
const NEVER: Pace = Pace { chunks: 1, first_ms: 3_600_000, between_ms: 0 };

/// Waits until the model is asked for a summary, after four answers: then the compaction is under way.
fn wait_for_summary(model: &Model) {
    while model.simulator.calls() < 5 {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}

fn chat(url: &str) -> [&str; 8] {
    ["chat", "--session", "mine", "--no-tools", "--window", WINDOW, "--base-url", url]
}

/// A run that leaves the context over the threshold ends; the next one compacts before it asks the model.
#[test]
fn run_leaves_a_compaction_that_is_due_to_the_next_run() {
    let (place, model) = (Place::new(), model(Pace::default()));
    let url = model.url();
    let mut next_seq = 0;
    let mut compacted = 0;
    for run in 0..8 {
        let ran = place.run(&[
            "run", "-p", "Go on.", "--session", "mine", "--json", "--no-tools", "--window", WINDOW,
            "--base-url", &url,
        ]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let events = events(&ran);
        // The folder is noted beside the first run, which may end before that.
        let is_next = |seq: u64| seq == next_seq || (run == 1 && seq == next_seq + 1);
        assert!(
            events[0]["seq"].as_u64().is_some_and(is_next),
            "run {run}: nothing is recorded after a run's end: {} and {next_seq}",
            events[0]["seq"]
        );
        let place = |name: &str| events.iter().position(|event| event["type"] == name);
        if let Some(end) = place("compaction_end") {
            assert_eq!(events[end]["outcome"], "completed", "{}", events[end]);
            let (start, asked) = (place("compaction_start").unwrap(), place("message_start").unwrap());
            assert!(start < end && end < asked, "run {run}: before the model is asked");
            compacted += 1;
        }
        let last = events.last().unwrap();
        assert_eq!(last["type"], "run_end");
        next_seq = last["seq"].as_u64().unwrap() + 1;
    }
    assert!(compacted >= 2, "{compacted} compactions");
    model.simulator.assert_clean();
}

#[test]
fn an_idle_chat_tells_a_compaction_when_it_ends() {
    let (place, model) = (Place::new(), model(SLOW));
    let url = model.url();
    let mut running = place.start(&chat(&url));
    for prompt in 0..4 {
        running.say("Go on.");
        running.wait_for(&format!("answer {prompt}"));
    }
    // Nothing more is said: the chat tells it by itself.
    let line = running.wait_for("  compacted ");
    assert!(line.contains('→') && line.contains("messages"), "{line}");
    running.say("/quit");
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains("compact"), "it is told once: {}", ran.stdout);
}

#[test]
fn a_chat_says_at_once_that_a_prompt_waits_for_a_compaction() {
    let (place, model) = (Place::new(), model(SLOW));
    let url = model.url();
    let mut running = place.start(&chat(&url));
    for prompt in 0..4 {
        running.say("Go on.");
        running.wait_for(&format!("answer {prompt}"));
    }
    wait_for_summary(&model);
    running.say("And on.");
    let line = running.wait_for("  compacting ");
    assert!(line.ends_with(" …; waiting for it\n"), "{line}");
    let line = running.wait_for("compact");
    assert!(line.starts_with("  compacted "), "{line}");
    running.wait_for("answer 4");
    running.say("/quit");
    let ran = running.end();
    assert!(!ran.stdout.contains("compact"), "it is told once: {}", ran.stdout);
}

#[test]
fn a_compaction_that_leaving_interrupts_is_told_too() {
    let (place, model) = (Place::new(), model(NEVER));
    let url = model.url();
    let mut running = place.start(&chat(&url));
    for prompt in 0..4 {
        running.say("Go on.");
        running.wait_for(&format!("answer {prompt}"));
    }
    wait_for_summary(&model);
    running.say("/quit");
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = "  compaction cancelled: the session is closed; the conversation is unchanged\n";
    assert!(ran.stdout.contains(told), "{}", ran.stdout);
}
