//! Rules for every command: its help, the ids that it takes, `--json`, progress, and exit codes.
//!
//! Invariants: the commands are read off the helps, so that a new one is tried without being listed here.

use std::collections::BTreeSet;
use std::path::Path;

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Echo, Function, Pace, SeenRequest, Summariser};
use rustix::process::Signal;
use serde_json::Value;

use super::questions::{asked_in, yes_or_no};
use super::support::{Model, Place, Ran, Says};

/// Wider than this, help is hard to read.
const COLUMNS_MAX: usize = 100;

/// All commands with their helps, those below others too: `["store", "check"]`.
fn commands(place: &Place) -> Vec<(Vec<String>, String)> {
    fn walk(place: &Place, above: &[String], found: &mut Vec<(Vec<String>, String)>) {
        let arguments: Vec<&str> = above.iter().map(String::as_str).chain(["--help"]).collect();
        let ran = place.run(&arguments);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{above:?}: {ran:?}");
        let listed = ran.stdout.lines().skip_while(|line| *line != "Commands:").skip(1);
        let listed = listed.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
        let mut names: Vec<String> =
            listed.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect();
        if above.is_empty() {
            // They are listed in groups, several on a line.
            let grouped =
                ran.stdout.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
            let grouped =
                grouped.flat_map(|line| line.trim().split("  ").next().unwrap_or_default().split(", "));
            names.extend(grouped.map(str::to_owned));
            // It is not listed.
            names.push("store".to_owned());
        }
        found.push((above.to_vec(), ran.stdout));
        for name in names.into_iter().filter(|name| name != "help") {
            walk(place, &[above, &[name]].concat(), found);
        }
    }
    let mut found = Vec::new();
    walk(place, &[], &mut found);
    assert!(found.len() >= 25, "{found:?}");
    found
}

/// The commands that take an id, with a value for whatever else they must be given.
fn with_ids(place: &Place) -> Vec<Vec<String>> {
    let mut taken = Vec::new();
    for (command, help) in commands(place) {
        let usage = help.lines().find(|line| line.starts_with("Usage: ")).unwrap();
        let of_positions = usage.split(" [OPTIONS]").nth(1).unwrap_or_default();
        let mut with: Vec<String> = command.clone();
        let mut has_id = false;
        for word in of_positions.split_whitespace() {
            match word {
                "<ID>" | "[ID]" | "<SESSION>" | "<FILE|ID>" => {
                    has_id = true;
                    with.push("ID".to_owned());
                }
                "<QUESTION>" => with.push("1".to_owned()),
                "<VALUE>" => with.push("yes".to_owned()),
                "<WORD>..." => with.push("word".to_owned()),
                _ => {}
            }
        }
        // `run` and `chat` begin a session under a name that is new, so they take whole ids.
        let begins = matches!(command.first().map(String::as_str), Some("run" | "chat"));
        if !has_id && !begins && help.contains("--session <ID>") {
            has_id = true;
            with.extend(["--session".to_owned(), "ID".to_owned()]);
        }
        if help.contains("--simulate") {
            with.push("--simulate".to_owned());
        }
        if has_id {
            taken.push(with);
        }
    }
    taken
}

fn run_with_id(place: &Place, command: &[String], id: &str) -> Ran {
    let arguments: Vec<&str> =
        command.iter().map(|word| if word == "ID" { id } else { word.as_str() }).collect();
    place.run_with(&arguments, "")
}

#[test]
fn every_command_takes_the_beginning_of_an_id() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let url = model.url();
    for id in ["alpha-one", "alpha-two", "beta-one"] {
        let ran = place.run(&["run", "-p", "hi", "--session", id, "--base-url", &url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let mut commands = with_ids(&place);
    let names: BTreeSet<String> =
        commands.iter().map(|command| command[..command.len().min(2)].join(" ")).collect();
    assert!(commands.len() >= 10, "{names:?}");
    for name in
        ["show ID", "compact ID", "questions --session", "answer ID", "store accept-loss", "resume ID"]
    {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    // What deletes comes last.
    commands.sort_by_key(|command| command[0] == "delete");
    for command in &commands {
        let ran = run_with_id(&place, command, "alpha");
        assert_eq!(ran.code, Some(2), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("alpha-one, alpha-two"), "{command:?}: {ran:?}");
        let ran = run_with_id(&place, command, "gamma");
        assert_eq!(ran.code, Some(3), "{command:?}: {ran:?}");
        assert!(ran.stderr.contains("gamma") && ran.stderr.lines().count() == 1, "{command:?}: {ran:?}");
        let ran = run_with_id(&place, command, "beta");
        let found = !ran.stderr.contains("no session") && !ran.stderr.contains("several sessions");
        assert!(found, "{command:?}: {ran:?}");
        // There is no question, and the error is about that one.
        assert_eq!(ran.code, Some(if command[0] == "answer" { 2 } else { 0 }), "{command:?}: {ran:?}");
    }
    let left = place.json(&["sessions", "--json"]);
    // One was deleted, and one forked.
    assert_eq!(left.as_array().unwrap().len(), 3, "{left}");
}

#[test]
fn every_help_reads_as_written_for_a_person() {
    let place = Place::new();
    for (command, help) in commands(&place) {
        let name = format!("greenroom {}", command.join(" "));
        assert!(help.contains("Usage: "), "{name}");
        for line in help.lines() {
            assert!(line.chars().count() <= COLUMNS_MAX, "{name}: {line}");
        }
        // What is prose fills its lines, and what is no prose is not broken.
        for (line, next) in help.lines().zip(help.lines().skip(1)) {
            let is_prose = |line: &str| line.starts_with(|c: char| !c.is_whitespace());
            let has_room = line.len() + 1 + next.split(' ').next().unwrap_or_default().len() <= COLUMNS_MAX;
            let is_broken = is_prose(line) && is_prose(next) && has_room && !line.ends_with(['.', ':']);
            assert!(!is_broken, "{name}: {line}\n{next}");
            // The main help has headings between its groups.
            let is_heading = command.is_empty() && next.ends_with(':');
            assert!(!(line.starts_with("  ") && is_prose(next)) || is_heading, "{name}: {line}\n{next}");
        }
        // Each argument says what it is.
        for (index, line) in help.lines().enumerate() {
            let is_argument = line.starts_with("  -")
                || line.starts_with("      --")
                || line.starts_with("  <")
                || line.starts_with("  [");
            if is_argument {
                let next = help.lines().nth(index + 1).unwrap_or_default();
                let about = line.trim().split_once("  ").map_or(next, |(_, about)| about);
                assert!(about.trim().chars().next().is_some_and(|c| c.is_uppercase()), "{name}: {line}");
            }
        }
        let is_group = help.contains("\nCommands:\n") && !command.is_empty();
        let is_of_config = command.first().is_some_and(|first| first == "config") && command.len() > 1;
        if !command.is_empty() && !is_group && !is_of_config {
            assert!(help.contains("\nExamples:\n"), "{name} has no examples");
            assert!(help.contains(&format!("  {name}")), "{name}: the examples show another command");
        }
        // What stands in the examples can be parsed.
        let examples = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        for example in
            examples.take_while(|line| line.starts_with("  ")).filter(|line| line.starts_with("  greenroom "))
        {
            let words = words(example);
            // Behind `--` is another program.
            let own = words.iter().take_while(|word| *word != "--");
            for flag in own.filter(|word| word.starts_with("--")) {
                let of = commands_help(&place, &words);
                assert!(of.contains(flag.as_str()), "{example}: there is no {flag}");
            }
        }
        let short = place
            .run(&[&command.iter().map(String::as_str).collect::<Vec<_>>()[..], &["-h"]].concat())
            .stdout;
        // It says the same, or less.
        let flags = |help: &str| -> BTreeSet<String> {
            let words = help.split_whitespace().filter(|word| word.starts_with("--"));
            words.map(|word| word.trim_end_matches([',', '.', ';', ':', ')', '\'']).to_owned()).collect()
        };
        assert!(short == help || flags(&short).is_subset(&flags(&help)), "{name}: {short}");
    }
}

/// The words of an example, up to what it is piped into.
fn words(example: &str) -> Vec<String> {
    let command =
        example.trim().split(" | ").next().unwrap_or_default().split(" > ").next().unwrap_or_default();
    command.split_whitespace().map(str::to_owned).collect()
}

fn commands_help(place: &Place, words: &[String]) -> String {
    let named: Vec<&str> =
        words.iter().skip(1).map(String::as_str).take_while(|word| !word.starts_with('-')).collect();
    let has_subcommand = matches!(&named[..], ["store" | "config", ..] | ["mcp", "add" | "remove", ..]);
    let depth = if has_subcommand { 2 } else { 1 };
    let mut arguments: Vec<&str> = named.into_iter().take(depth).collect();
    arguments.push("--help");
    place.run(&arguments).stdout
}

/// What a script wants to read is JSON where it asks for it, and nothing else is on standard output.
#[test]
fn what_a_script_reads_is_json() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let url = model.url();
    for id in ["mine", "other"] {
        assert_eq!(place.run(&["run", "-p", "hi", "--session", id, "--base-url", &url]).code, Some(0));
    }
    let exported = place.run(&["export", "mine"]).stdout;
    std::fs::write(place.work().join("pi.jsonl"), exported.replace("mine", "taken")).unwrap();
    let question = asked_in(&place, "asked", yes_or_no());
    let table: [(&[&str], &str); 20] = [
        (&["sessions"], "/0/id"),
        (&["show", "mine"], "/conversation/0/text"),
        (&["show", "mine", "--tree"], ""),
        (&["compact", "mine", "--dry-run"], ""),
        (&["questions"], "/question_id"),
        (&["answer", "asked", &question, "yes"], "/question_id"),
        (&["compact", "mine", "--simulate"], "/outcome"),
        (&["import", "pi.jsonl"], "/session_id"),
        (&["models", "--base-url", &url], "/models"),
        (&["models", "--base-url", &url, "--forget", "x"], "/was_known"),
        (&["config"], "/model/value"),
        (&["config", "get", "model"], "/value"),
        (&["store", "check"], "/sessions"),
        (&["store", "accept-loss", "mine"], "/accepted"),
        (&["store", "accept-loss", "--segment", "9"], "/accepted"),
        (&["store", "backup", "backup"], "/sessions"),
        (&["store", "verify", "backup"], "/damage"),
        (&["store", "restore", "backup", "--data-dir", "restored"], "/sessions"),
        (&["prune", "--keep", "9"], "/sessions"),
        (&["delete", "other"], "/below"),
    ];
    for (arguments, place_of) in table {
        let ran = place.run(&[arguments, &["--json"]].concat());
        let value: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {ran:?}"));
        assert!(value.pointer(place_of).is_some(), "{arguments:?}: {value}");
    }
    // Each command that prints something about sessions, models, settings or the store has it.
    let without: BTreeSet<String> = commands(&place)
        .into_iter()
        .filter(|(command, help)| {
            !help.contains("--json") && !help.contains("\nCommands:\n") && !command.is_empty()
        })
        .map(|(command, _)| command.join(" "))
        .collect();
    let expected = [
        "acp", "chat", "completions", "config edit", "config path", "config set", "config trust",
        "config unset", "demo", "export", "host", "init", "login", "mcp add", "mcp remove", "resume", "rpc",
        "serve", "simulate",
    ];
    assert_eq!(without, expected.map(str::to_owned).into());
}

/// Long work says how far it is, at a terminal and nowhere else.
#[test]
fn long_work_says_how_far_it_is() {
    let (place, model) = (Place::new(), Model::new(Echo, |_| {}));
    let url = model.url();
    assert_eq!(place.run(&["run", "-p", "hi", "--session", "mine", "--base-url", &url]).code, Some(0));
    let pace = Pace { chunks: 4, first_ms: 400, between_ms: 100 };
    let long = Function(|_: &SeenRequest, _: CallInfo| Answer::text("word ".repeat(1_500)));
    let summaries = Function(move |request: &SeenRequest, call: CallInfo| {
        greenroom_simulator::Script::reply(&Summariser::Obedient, request, call).with_pace(pace)
    });
    let slow = Model::new(ByPurpose::new(long, summaries), |_| {});
    let slow_url = slow.url();
    for _ in 0..4 {
        let said = ["run", "-p", "go on", "--session", "long", "--base-url", &slow_url];
        assert_eq!(place.run(&said).code, Some(0));
    }
    let compact = ["compact", "long", "--keep-recent", "1000", "--force", "--base-url", &slow_url];
    let shown = place.run_at_terminal("xterm", &compact, "");
    assert!(shown.contains("compacting long …"), "{shown}");
    for _ in 0..2 {
        let said = ["run", "-p", "go on", "--session", "long", "--base-url", &slow_url];
        assert_eq!(place.run(&said).code, Some(0));
    }
    let piped = place.run(&compact);
    assert_eq!((piped.code, piped.stderr.as_str()), (Some(0), ""), "{piped:?}");

    // A file that takes a moment.
    let mut lines = place.run(&["export", "mine"]).stdout;
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let mut parent = last["id"].as_str().unwrap().to_owned();
    for number in 0..6_000 {
        let mut entry = last.clone();
        let id = format!("{number:08x}");
        entry["parentId"] = parent.into();
        entry["id"] = id.clone().into();
        parent = id;
        lines.push_str(&format!("{entry}\n"));
    }
    std::fs::write(place.work().join("long.jsonl"), lines.replace("\"mine\"", "\"taken\"")).unwrap();
    let shown = place.run_at_terminal("xterm", &["import", "long.jsonl"], "");
    assert!(shown.contains("importing 1 of 1: long.jsonl …"), "{shown}");
}

/// What an exit code means, and a command that ends with it. The codes of the help and of the docs are these.
#[test]
fn exit_codes_mean_what_the_docs_say() {
    let (place, model) =
        (Place::new(), Model::new(Says(Answer::call("list", &serde_json::json!({}))), |_| {}));
    let url = model.url();
    asked_in(&place, "asked", yes_or_no());
    let pace = Pace { chunks: 100, first_ms: 0, between_ms: 100 };
    let slow = Model::new(Says(Answer::text("word ".repeat(200)).with_pace(pace)), |_| {});
    let slow_url = slow.url();
    let table: [(i32, &[&str]); 15] = [
        (0, &["sessions"]),
        (0, &["config"]),
        (1, &["run", "-p", "x", "--base-url", "http://127.0.0.1:9/v1"]),
        (1, &["compact", "asked", "--base-url", "http://127.0.0.1:9/v1"]),
        (2, &["dance"]),
        (2, &["run", "-p", "x", "--set", "model"]),
        (2, &["run", "-p", "x", "--simulate", "--workspace", "nowhere"]),
        (2, &["run", "-p", "x", "--simulate", "--output-schema", "{"]),
        (3, &["show", "none"]),
        (3, &["run", "-p", "x", "--simulate", "--data-dir", "/dev/null/x"]),
        (4, &["run", "-p", "x", "--base-url", &url, "--set", "limits.steps_max=2"]),
        (4, &["run", "-p", "x", "--base-url", &slow_url, "--timeout", "1"]),
        (5, &["run", "-p", "x", "--session", "asked", "--base-url", &url]),
        (5, &["resume", "asked", "--base-url", &url]),
        (130, &["run", "-p", "x", "--base-url", &slow_url, "--json"]),
    ];
    let mut tried = BTreeSet::new();
    for (code, arguments) in table {
        let ran = if code == 130 {
            let mut run = place.start_alone(arguments);
            run.wait_for("message_delta");
            run.signal(Signal::INT);
            run.end()
        } else {
            place.run_with(arguments, "")
        };
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        tried.insert(code);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let page = std::fs::read_to_string(page).unwrap();
    let of_docs = page.lines().skip_while(|line| *line != "## Exit codes");
    let of_docs: BTreeSet<i32> =
        of_docs.filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok()).collect();
    let help = place.run(&["help", "run"]).stdout;
    let of_help = help.lines().skip_while(|line| *line != "Exit codes:");
    let of_help: BTreeSet<i32> = of_help
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    assert_eq!((&of_docs, &of_help), (&tried, &tried));
}
