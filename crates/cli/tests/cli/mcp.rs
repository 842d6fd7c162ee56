//! MCP servers: their tools in runs and chats, with a host and without, and `greenroom mcp`. The server is that of
//! `crates/mcp/tests`. Without Python these tests are skipped, and say so.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, Script, SeenRequest, Summariser};
use serde_json::{Value, json};

use super::host::{Hosted, wait_until};
use super::screen::{Terminal, is_there};
use super::support::{Model, Place};

/// The interpreter itself: what starts it by its name may need more variables than a server gets.
pub(super) fn python() -> Option<String> {
    let found = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .stderr(Stdio::null())
        .output();
    let path = found
        .ok()
        .filter(|found| found.status.success())
        .and_then(|found| String::from_utf8(found.stdout).ok());
    if path.is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: there is no python3");
    }
    path.map(|path| path.trim().to_owned())
}

pub(super) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/server.py").canonicalize().unwrap()
}

/// Where the server of a place notes its calls.
fn log(place: &Place) -> PathBuf {
    place.work().with_file_name("server.log")
}

fn logged(place: &Place) -> String {
    std::fs::read_to_string(log(place)).unwrap_or_default()
}

/// Configures the server `test` with these further settings. Returns whether there is a Python for it.
fn configure(place: &Place, more: &Value) -> bool {
    let Some(python) = python() else { return false };
    let mut server = json!({ "command": python, "args": [script(), "--log", "{workspace}/../server.log"] });
    server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    place.own_file(&json!({ "mcp_servers": { "test": server } }).to_string());
    true
}

/// A script that makes this call once for each prompt, and repeats the result.
fn calls(tool: &'static str, arguments: Value) -> impl Script {
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        match request.messages.last().filter(|message| message.role() == "tool") {
            Some(result) => Answer::text(format!("it says: {}", result.text())),
            None => Answer::call(tool, &arguments),
        }
    });
    ByPurpose::new(script, Summariser::Obedient)
}

fn offered(model: &Model) -> Vec<String> {
    let request = model.simulator.requests().pop().unwrap().request;
    request.tools.iter().map(|tool| tool.name.clone()).filter(|name| name.starts_with("mcp__")).collect()
}

#[test]
fn a_run_calls_a_server_s_tool_where_a_rule_allows_it() {
    let echo = "mcp__test__echo";
    let rows: &[(&[&str], Value, usize, &str)] = &[
        // Nothing is started that could not be called.
        (&[], json!({}), 0, ""),
        (&["--allow", "bash(ls)"], json!({}), 0, ""),
        (&["--allow", "mcp__test__*", "--mode", "read-only"], json!({}), 0, ""),
        (&["--allow", "mcp__test__*"], json!({ "enabled": false }), 0, ""),
        (&["--allow", "mcp__test__*", "--no-tools"], json!({}), 0, ""),
        (&["--allow", "mcp__test__*"], json!({}), 15, "it says: you said: hi"),
        (&["--allow", echo], json!({}), 1, "it says: you said: hi"),
        (&["--allow", "mcp__test__*"], json!({ "tools": ["e*"] }), 2, "it says: you said: hi"),
        (&["--mode", "everything"], json!({}), 15, "it says: you said: hi"),
        (&["--mode", "everything", "--deny", echo], json!({}), 15, "a rule forbids it"),
        // The server says that one of its tools only reads.
        (&[], json!({ "trust_annotations": true }), 1, ""),
    ];
    for (flags, more, count, said) in rows {
        let (place, model) = (Place::new(), Model::new(calls(echo, json!({ "text": "hi" })), |_| {}));
        if !configure(&place, more) {
            return;
        }
        let url = model.url();
        let ran = place.run(&[&["run", "-p", "go", "--base-url", &*url], *flags].concat());
        assert!(ran.code == Some(0) && ran.stdout.contains(said), "{flags:?}: {ran:?}");
        assert_eq!(offered(&model).len(), *count, "{flags:?}: {ran:?}");
        // What the server says is in the prompt with its tools, in its element.
        let system = model.simulator.requests().pop().unwrap().request.system.clone().unwrap_or_default();
        let element = "<mcp-server name=\"test\">\nEcho before you write.\n<\\/mcp-server>\n</mcp-server>";
        assert_eq!(system.contains(element), *count > 0, "{flags:?}: {system}");
        // A server that was started noted its end.
        assert_eq!(log(&place).exists(), *count > 0, "{flags:?}: {}", logged(&place));
        assert_eq!(
            logged(&place).contains("call"),
            said.starts_with("it says"),
            "{flags:?}: {}",
            logged(&place)
        );
    }
}

#[test]
fn a_server_that_does_not_start_costs_its_tools_and_is_reported() {
    let (place, model) =
        (Place::new(), Model::new(calls("mcp__test__echo", json!({ "text": "hi" })), |_| {}));
    if !configure(&place, &json!({ "args": [script(), "--exit"] })) {
        return;
    }
    let ran = place.run(&["run", "-p", "go", "--base-url", &model.url(), "--mode", "everything"]);
    let warning = "warning: the MCP server `test` ended before it answered (no database / at line 7); its tools are missing";
    assert!(ran.code == Some(0) && ran.stderr.contains(warning), "{ran:?}");
    assert!(ran.stdout.contains("there is no tool `mcp__test__echo`"), "{ran:?}");
}

#[test]
fn a_project_s_file_cannot_add_a_server() {
    let place = Place::new();
    place.project_file("mcp_servers: { test: { command: touch, args: [made] } }\n");
    let ran = place.run(&["run", "-p", "go", "--simulate", "--mode", "everything"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("only your own file"), "{ran:?}");
    assert!(!place.work().join("made").exists());
}

/// One process serves all agents of a host with the same settings, and ends with it, even if it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_s_agents_share_a_server_which_ends_with_the_host() {
    let hosted = Hosted::of(calls("mcp__test__pid", json!({}))).await;
    if !configure(&hosted.place, &json!({ "env": { "SECRET_OF_TEST": "env:THE_SECRET" } })) {
        return;
    }
    let run = |session: &str, mode: &str| {
        let arguments = [
            "run", "--window", "100000", "--session", session, "-p", "go", "--mode", mode, "--allow",
            "mcp__test__*",
        ];
        let mut command = hosted.command(&arguments);
        let ran = super::support::ran(command.env("THE_SECRET", "a1b2c3d4e5f6").output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout.trim().trim_start_matches("it says: ").parse::<u32>().expect("a process")
    };
    let runs = |pid: u32| Path::new("/proc").join(pid.to_string()).join("exe").read_link().is_ok();
    // The agents differ, and both sessions stay in memory.
    let (first, second) = (run("a", "ask"), run("b", "everything"));
    assert_eq!(first, second);
    assert!(runs(first));
    hosted.kill_host();
    wait_until("the server has ended", || !runs(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gets_the_client_s_variables_and_starts_at_home() {
    let hosted = Hosted::of(calls("mcp__test__environment", json!({}))).await;
    let env = json!({ "A_TOKEN": "env:THE_TOKEN", "PLAIN": "x" });
    if !configure(&hosted.place, &json!({ "env": env })) {
        return;
    }
    let arguments = ["run", "--window", "100000", "-p", "go", "--allow", "mcp__test__*"];
    for is_hosted in [true, false] {
        let mut command = hosted.command(&arguments);
        if !is_hosted {
            command.arg("--no-host").env("GREENROOM_DATA_DIR", hosted.place.work().with_file_name("other"));
        }
        let ran = super::support::ran(
            command.env("THE_TOKEN", "t0k3n-of-test").env("OTHER", "x").output().unwrap(),
        );
        let said = ran.stdout.trim().trim_start_matches("it says: ");
        let (names, folder) = said.split_once(" in ").unwrap_or_default();
        let names: Vec<&str> = names.split(' ').collect();
        for (name, expected) in [
            ("A_TOKEN", true),
            ("PLAIN", true),
            ("HOME", true),
            ("OPENAI_API_KEY", false),
            ("THE_TOKEN", false),
            ("OTHER", false),
        ] {
            assert_eq!(names.contains(&name), expected, "{name}, {is_hosted}: {ran:?}");
        }
        // Not in the project, whose files could change what the program does.
        let home = hosted.place.work().parent().unwrap().canonicalize().unwrap();
        assert_eq!(Path::new(folder).canonicalize().unwrap(), home, "{ran:?}");
    }
    // Without the variable, the run goes on without the server.
    let ran = hosted.run(&arguments);
    let warning = "the MCP server `test` is not used: the environment variable THE_TOKEN is not set; its tools are missing";
    assert!(ran.stderr.contains(warning), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_agents_that_are_made_at_the_same_time_one_starts_the_server() {
    let hosted = Hosted::of(calls("mcp__test__pid", json!({}))).await;
    if !configure(&hosted.place, &json!({})) {
        return;
    }
    hosted.start_host();
    let modes = ["ask", "accept_edits", "everything"];
    let start = |mode: &&str| {
        let arguments = [
            "run", "--window", "100000", "--session", mode, "-p", "go", "--mode", mode, "--allow",
            "mcp__test__*",
        ];
        hosted.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = modes.iter().map(start).collect();
    let said: Vec<_> =
        started.into_iter().map(|child| super::support::ran(child.wait_with_output().unwrap())).collect();
    assert!(said[0].stdout.starts_with("it says: "), "{said:?}");
    assert!(said.iter().all(|ran| ran.stdout == said[0].stdout), "{said:?}");
}

#[test]
fn a_value_that_is_given_to_a_server_is_redacted() {
    let secret = "a-value-whose-name-says-nothing-7";
    let model = Model::new(calls("mcp__test__echo", json!({ "text": secret })), |_| {});
    for is_broken in [false, true] {
        let place = Place::new();
        let end = if is_broken {
            json!({ "args": ["-c", "import os; raise SystemExit(os.environ['A'])"] })
        } else {
            json!({})
        };
        let mut more = json!({ "env": { "A": "env:ACME_AUTH" } });
        more.as_object_mut().unwrap().extend(end.as_object().unwrap().clone());
        if !configure(&place, &more) {
            return;
        }
        let arguments =
            ["run", "-p", "go", "--base-url", &model.url(), "--mode", "everything", "-v", "--session", "s"];
        let ran = super::support::ran(place.command(&arguments).env("ACME_AUTH", secret).output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let shown = format!("{ran:?}");
        assert!(!shown.contains(secret) && shown.contains("[redacted:ACME_AUTH]"), "{is_broken}: {shown}");
    }
}

#[test]
fn a_key_in_a_service_s_address_is_in_no_log() {
    let place = Place::new();
    place.own_file("mcp_servers: { test: { url: 'http://127.0.0.1:1/mcp?apikey=s3cretkey77' } }\n");
    for flag in ["-v", "-vv", "-vvvv"] {
        let ran = place.run(&["run", "-p", "go", "--simulate", "--mode", "everything", flag]);
        assert!(
            ran.stderr.contains("the MCP server `test` cannot be reached: connection refused"),
            "{ran:?}"
        );
        assert!(!format!("{ran:?}").contains("s3cretkey77"), "{flag}: {ran:?}");
    }
}

#[test]
fn a_server_ends_with_the_run_even_if_its_helper_was_killed_and_in_its_own_time_if_not() {
    let (place, model) =
        (Place::new(), Model::new(calls("mcp__test__crash", json!({ "orphan": true })), |_| {}));
    if !configure(&place, &json!({})) {
        return;
    }
    let ran = place.run(&["run", "-p", "go", "--base-url", &model.url(), "--mode", "everything"]);
    assert!(ran.stdout.contains("ended during the call"), "{ran:?}");
    let noted = logged(&place);
    let pid = noted.lines().find_map(|line| line.strip_prefix("orphan ")).expect("it was called");
    wait_until("the orphan has ended", || !Path::new("/proc").join(pid).join("exe").exists());

    let place = Place::new();
    configure(&place, &json!({ "args": [script(), "--log", log(&place), "--slow-end"] }));
    assert_eq!(place.run(&["mcp"]).code, Some(0));
    assert_eq!(logged(&place), "end\n");
}

/// The host refuses processes with this mark, so none of them can answer an approval.
#[test]
fn a_server_counts_as_started_by_a_tool() {
    let (place, model) =
        (Place::new(), Model::new(calls("mcp__test__environment", json!({ "marks": true })), |_| {}));
    if !configure(&place, &json!({})) {
        return;
    }
    let ran = place.run(&["run", "-p", "go", "--base-url", &model.url(), "--mode", "everything"]);
    assert!(ran.stdout.contains("it says: [True]"), "{ran:?}");
}

#[test]
fn a_chat_asks_before_a_call_and_remembers_the_answer() {
    let (place, model) =
        (Place::new(), Model::new(calls("mcp__test__echo", json!({ "text": "hi" })), |_| {}));
    if !is_there() || !configure(&place, &json!({})) {
        return;
    }
    let terminal = Terminal::run(&place, (90, 34), &["chat", "--base-url", &model.url()]);
    terminal.shows("asks before");
    terminal.says("go");
    let screen = terminal.shows("1. Yes");
    assert!(screen.contains("mcp__test__echo") && screen.contains("hi"), "{screen}");
    assert_eq!(logged(&place), "");
    terminal.types("2");
    terminal.shows("it says: you said: hi");
    terminal.says("again");
    terminal.until("it is not asked again", |screen| screen.matches("it says: you said: hi").count() == 2);
    assert_eq!(logged(&place), "call echo\ncall echo\n");
    terminal.leaves();
    wait_until("the server has ended", || logged(&place).ends_with("end\n"));
}

#[test]
fn servers_are_added_listed_and_removed() {
    let Some(python) = python() else { return };
    let (place, script) = (Place::new(), script().display().to_string());
    let run = |arguments: &[&str]| place.run(&[&["mcp"], arguments].concat());
    let ran = run(&[]);
    assert!(ran.code == Some(0) && ran.stdout.contains("No MCP servers are configured"), "{ran:?}");
    place.own_file("# Mine.\nmodel: mine  # the best\n");
    let ran = run(&["add", "test", "--env", "LEVEL=debug", "--", &python, &script]);
    assert!(ran.code == Some(0) && ran.stdout.contains("✓ test: 15 tools (test server 1.2"), "{ran:?}");
    let file = std::fs::read_to_string(place.own_file_path()).unwrap();
    let expected = format!(
        "# Mine.\nmodel: mine  # the best\nmcp_servers:\n  test:\n    command: {python}\n    args: [\"{script}\"]\n    env:\n      \
         LEVEL: debug\n"
    );
    assert_eq!(file, expected);
    for (arguments, expected) in [
        (&["add", "test", "--", "x"][..], "there is an MCP server test already"),
        (&["add", "a b", "--", "x"], "must be a name of 1 to 32 letters"),
        (&["add", "x", "--env", "GH_TOKEN=ghp_0123456789", "--", "x"], "looks like a secret"),
        (&["add", "x", "--env", "LEVEL", "--", "x"], "write NAME=VALUE"),
        (
            &["add", "x", "--url", "http://h", "--header", "X-Key: 1"],
            "--header \"X-Key: 1\": write NAME=VALUE",
        ),
        (&["add", "x", "--url", "nothing"], "the base URL \"nothing\" is invalid"),
        (&["remove", "x"], "there is no MCP server x; there are test"),
        (&["x"], "there is no MCP server x; there are test"),
    ] {
        let ran = run(arguments);
        assert!(ran.code == Some(2) && ran.stderr.contains(expected), "{arguments:?}: {ran:?}");
        assert_eq!(std::fs::read_to_string(place.own_file_path()).unwrap(), file, "{arguments:?}");
    }
    let ran = run(&["add", "here", "--", &python, &script, "."]);
    assert!(ran.code == Some(0) && ran.stdout.contains("`.` is there; {workspace} stands for"), "{ran:?}");
    assert_eq!(run(&["remove", "here"]).code, Some(0));
    let ran = run(&["add", "some", "--folder", "{workspace}", "--tools", "echo,no*", "--", &python, &script]);
    assert!(ran.code == Some(0) && ran.stdout.contains("✓ some: 2 tools ("), "{ran:?}");
    let written = std::fs::read_to_string(place.own_file_path()).unwrap();
    assert!(written.contains("    folder: '{workspace}'\n"), "{written}");
    assert!(written.contains("    tools: [\"echo\",\"no*\"]\n"), "{written}");
    assert_eq!(run(&["remove", "some"]).code, Some(0));
    let ran = run(&["add", "far", "--url", "http://127.0.0.1:1/mcp", "--header", "X-Team=docs"]);
    assert!(ran.code == Some(2) && ran.stdout.contains("✗ the MCP server `far`"), "{ran:?}");
    let written = std::fs::read_to_string(place.own_file_path()).unwrap();
    assert!(written.contains("    headers:\n      X-Team: docs\n"), "{written}");
    assert_eq!(run(&["remove", "far"]).code, Some(0));
    // One that cannot start is added all the same: it may be installed later.
    let ran = run(&["add", "later", "--", "no-such-program"]);
    assert!(
        ran.code == Some(2) && ran.stdout.contains("✗ the MCP server `later` cannot be started"),
        "{ran:?}"
    );
    let ran = run(&["list", "--json"]);
    let listed: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (ran.code, &listed[0]["name"], &listed[1]["tools"][0]["name"]),
        (Some(2), &json!("later"), &json!("mcp__test__echo"))
    );
    let ran = place.run(&["doctor", "--base-url", "http://127.0.0.1:1"]);
    assert!(
        ran.stdout.contains("✓ MCP server: test: 15 tools") && ran.stdout.contains("✗ MCP server: the MCP"),
        "{ran:?}"
    );
    assert_eq!(run(&["remove", "later"]).code, Some(0));
    assert_eq!(std::fs::read_to_string(place.own_file_path()).unwrap(), file);
}
