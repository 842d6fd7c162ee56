//! `serve` among clients that mean it no good, with tokens that others may know, and on a network.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, Pace};
use rustix::process::{Signal, geteuid};

use super::commands::Circumstances;
use super::support::{Model, Place, Running, Says, ran};

/// How long it may take to end.
pub(super) const END_MAX: Duration = Duration::from_secs(10);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A server and where it listens. `warned` is what it said before.
pub(super) struct Serving {
    pub(super) running: Running,
    pub(super) address: String,
    pub(super) token: String,
}

pub(super) fn serve(place: &Place, arguments: &[&str]) -> Serving {
    let arguments = [&["serve", "--listen", "127.0.0.1:0", "--simulate"], arguments].concat();
    serving(place, place.start_alone(&arguments))
}

fn serving(place: &Place, mut running: Running) -> Serving {
    let line = running.wait_for_word("http://");
    let address = line.split("http://").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let token = std::fs::read_to_string(place.store().join("token")).unwrap().trim().to_owned();
    Serving { running, address, token }
}

impl Serving {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(END_MAX)).unwrap();
        stream
    }

    /// The status of the answer to the owner's request with this `Host`.
    fn status(&self, host: &str) -> Option<u16> {
        let mut stream = self.connect();
        let token = &self.token;
        write!(
            stream,
            "GET /v1/sessions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }
}

#[test]
fn it_ends_in_time_whatever_clients_hold_open() {
    let place = Place::new();
    let server = serve(&place, &[]);
    let (host, token) = (&server.address, &server.token);
    let half_a_body = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\ncontent-type: \
         application/json\r\ncontent-length: 20\r\n\r\n{{"
    );
    let mut clients = Vec::new();
    for said in ["", "GET /se", "GET / HTTP/1.1\r\nhost: x\r\n", &half_a_body] {
        let mut stream = server.connect();
        stream.write_all(said.as_bytes()).unwrap();
        clients.push(stream);
    }
    assert_eq!(server.status(host), Some(200), "what was sent before this was seen");
    let asked = Instant::now();
    server.running.signal(Signal::TERM);
    let ran = server.running.end_within(END_MAX);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(asked.elapsed() < END_MAX, "{:?}", asked.elapsed());
    drop(clients);
}

#[test]
fn idle_clients_do_not_take_the_owners_file_descriptors() {
    let place = Place::new();
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 64; exec \"$0\" serve --listen 127.0.0.1:0 --simulate"])
        .arg(env!("CARGO_BIN_EXE_greenroom"))
        .current_dir(place.work())
        .env_clear()
        .env("HOME", place.store())
        .env("GREENROOM_DATA_DIR", place.store());
    let mut running = place.start_command(command);
    let warned = running.wait_for_word("warning");
    assert!(warned.contains("at most 32 connections") && warned.contains("ulimit -n"), "{warned}");
    let server = serving(&place, running);
    let mut idle = Vec::new();
    for number in 0..120 {
        idle.push(server.connect());
        if number % 10 == 9 {
            assert_eq!(server.status(&server.address), Some(200), "after {} clients", number + 1);
        }
    }
    server.running.signal(Signal::TERM);
    assert_eq!(server.running.end_within(END_MAX).code, Some(0));
}

#[test]
fn connections_that_cannot_be_accepted_make_room() {
    let place = Place::new();
    let server = serve(&place, &[]);
    assert_eq!(server.status(&server.address), Some(200));
    // Fewer file descriptors than it was started with.
    server.running.limit_files(40);
    let mut idle = Vec::new();
    for number in 0..60 {
        idle.push(server.connect());
        if number % 20 == 19 {
            assert_eq!(server.status(&server.address), Some(200), "after {} clients", number + 1);
        }
    }
}

#[test]
fn a_token_that_others_may_know_is_not_used() {
    let place = Place::new();
    // The store's directory is there after this.
    place.run(&["sessions"]);
    let serve_once = |text: &str, mode: u32| {
        std::fs::create_dir_all(place.store()).unwrap();
        let path = place.store().join("token");
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    for (text, mode, parts) in [
        ("x", 0o600, &["has 1 characters", "needs 32", "delete"][..]),
        (&TOKEN[1..], 0o600, &["has 31 characters", "delete"]),
        (TOKEN, 0o644, &["others can read", "chmod 600", "delete"]),
        (TOKEN, 0o620, &["others can read or write", "chmod 600"]),
        (&format!("{TOKEN}\n{TOKEN}\n"), 0o600, &["one line", "delete"]),
        (&format!("{TOKEN} {TOKEN}"), 0o600, &["one line", "delete"]),
    ] {
        let path = serve_once(text, mode);
        let ran = place.run(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
        assert_eq!(ran.code, Some(2), "{text:?} {mode:o}: {ran:?}");
        assert!(ran.stderr.contains(path.to_str().unwrap()), "{ran:?}");
        assert!(!ran.stderr.contains(&TOKEN[1..]), "the token is not shown: {ran:?}");
        for part in parts {
            assert!(ran.stderr.contains(part), "{part:?}: {ran:?}");
        }
    }
    // As an editor leaves it.
    serve_once(&format!("{TOKEN}\n"), 0o600);
    let server = serve(&place, &[]);
    assert_eq!((server.token.as_str(), server.status(&server.address)), (TOKEN, Some(200)));
}

#[test]
fn on_a_network_it_says_what_that_means_and_answers_to_names_that_are_given() {
    let place = Place::new();
    place.own_file("serve:\n  host_names: [proxy.example]\n  listen: 0.0.0.0:0\n");
    let arguments = ["serve", "--host-name", "build.example:8443", "--simulate"];
    let mut running = place.start_alone(&arguments);
    let warned = running.wait_for_word("no TLS");
    assert!(warned.contains("token") && warned.contains("SSH tunnel"), "{warned}");
    let names = running.wait_for_word("Host header");
    assert!(names.contains("proxy.example, build.example:8443") && names.contains("--host-name"), "{names}");
    let mut server = serving(&place, running);
    server.address = server.address.replace("0.0.0.0", "127.0.0.1");
    for (host, status) in [
        (server.address.as_str(), 200),
        ("proxy.example", 200),
        ("proxy.example:80", 200),
        ("build.example:8443", 200),
        ("build.example", 421),
        ("evil.example", 421),
    ] {
        assert_eq!(server.status(host), Some(status), "{host}");
    }
    let ran = place.run(&["serve", "--simulate", "--host-name", "https://build.example/"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("without http://"), "{ran:?}");
}

#[test]
fn how_it_listens_is_the_users_to_configure() {
    let place = Place::new();
    for (text, parts) in [
        ("serve:\n  connections_max: 1\n", &["line 2", "connections_max", "at least 2"][..]),
        ("serve:\n  request_timeout_s: 0\n", &["line 2", "request_timeout_s", "at least 1"]),
        ("serve: { host_names: [\"http://x\"] }\n", &["line 1", "host_names", "without http://"]),
        ("serve: { listen: here }\n", &["line 1"]),
    ] {
        place.own_file(text);
        let ran = place.run(&["config"]);
        assert_eq!(ran.code, Some(2), "{text}: {ran:?}");
        for part in parts {
            assert!(ran.stderr.contains(part), "{text}: {ran:?}");
        }
    }
    place.own_file("serve: { request_timeout_s: 1 }\n");
    let server = serve(&place, &[]);
    let mut silent = server.connect();
    let mut nothing = [0; 1];
    assert_eq!(silent.read(&mut nothing).unwrap(), 0, "it is closed after a second");
    drop(server);
    place.project_file("serve: { listen: \"0.0.0.0:7878\" }\n");
    let ran = place.run(&["config"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("only your own file"), "{ran:?}");
}

/// As in a rolling deployment: the next one starts before the one before it has ended.
#[test]
fn the_next_one_waits_for_the_store() {
    let place = Place::new();
    let first = serve(&place, &[]);
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--simulate"];
    let refused = place.start_alone(&arguments).end_within(END_MAX);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let mut next = place.start_alone(&[&arguments[..], &["--wait-for-store", "60"]].concat());
    next.wait_for_word("the store is in use; waiting up to 60 s for it");
    first.running.signal(Signal::TERM);
    assert_eq!(first.running.end_within(END_MAX).code, Some(0));
    let next = serving(&place, next);
    assert_eq!(next.status(&next.address), Some(200));
    next.running.signal(Signal::TERM);
    assert_eq!(next.running.end_within(END_MAX).code, Some(0));
}

/// The status of a request with this token.
fn status_of(server: &Serving, token: &str, request: &str) -> u16 {
    let mut stream = server.connect();
    let host = &server.address;
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn further_tokens_come_from_the_environment_from_files_and_from_commands() {
    let place = Place::new();
    let file = place.store().join("reader-token");
    std::fs::create_dir_all(place.store()).unwrap();
    let (reader, prompter, ada) = ("r".repeat(40), "p".repeat(40), "a".repeat(40));
    std::fs::write(&file, format!("{reader}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    place.own_file(&format!(
        "serve:\n  tokens:\n    reader: {{ right: read, token_file: {:?} }}\n    prompter: {{ right: prompt, token_command: \
         \"printf %s {prompter}\" }}\n    ada: {{ right: administer, label: {{ name: tenant, value: ada }}, token_env: \
         TOKEN_OF_ADA }}\n",
        file.display()
    ));
    let mut command = place.command(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
    command.env("TOKEN_OF_ADA", &ada);
    let server = serving(&place, place.start_command(command));
    for (token, request, status) in [
        (server.token.as_str(), "GET /v1/sessions", 200),
        (server.token.as_str(), "POST /v1/sessions/a/abort", 404),
        (&reader, "GET /v1/sessions", 200),
        (&reader, "POST /v1/sessions/a/abort", 403),
        (&prompter, "POST /v1/sessions/a/abort", 404),
        (&prompter, "DELETE /v1/sessions/a", 403),
        (&ada, "DELETE /v1/sessions/a", 404),
        (&ada, "POST /v1/models/forget", 400),
        (&"x".repeat(40), "GET /v1/sessions", 401),
    ] {
        assert_eq!(status_of(&server, token, request), status, "{request} {}", &token[..1]);
    }
    server.running.signal(Signal::TERM);
    assert_eq!(server.running.end_within(END_MAX).code, Some(0));

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (token, parts) in [
        (
            format!("right: read, token_file: {:?}", file.display()),
            &["serve.tokens.x", "others can read"][..],
        ),
        ("right: read, token_env: NO_SUCH".to_owned(), &["serve.tokens.x", "NO_SUCH is not set"]),
        ("right: read, token_command: \"echo short\"".to_owned(), &["serve.tokens.x", "has 5 characters"]),
        (format!("right: read, token_env: {}", &TOKEN[..8]), &["token_env", "not the token"]),
        ("right: read".to_owned(), &["exactly one of"]),
        ("right: read, token_env: A, token_command: b".to_owned(), &["exactly one of"]),
        ("right: all, token_env: A".to_owned(), &["right"]),
        ("token_env: A".to_owned(), &["right"]),
        ("right: read, token_env: A, label: { name: tenant }".to_owned(), &["value"]),
        ("right: read, token_file: here".to_owned(), &["token_file", "absolute"]),
        (
            format!(
                "right: observe, label: {{ name: tenant, value: ada }}, token_command: \"printf %s {ada}\""
            ),
            &["greenroom: a token with the right `observe` cannot have a label"],
        ),
    ] {
        place.own_file(&format!("serve: {{ tokens: {{ x: {{ {token} }} }} }}\n"));
        let ran = place.run(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
        assert_eq!(ran.code, Some(2), "{token}: {ran:?}");
        for part in parts {
            assert!(ran.stderr.contains(part), "{token}: {part:?}: {ran:?}");
        }
        assert!(!ran.stderr.contains("rrrr") && !ran.stderr.contains("short"), "{ran:?}");
    }
}

/// The doctor finds it, too, and both say which token it is.
#[test]
fn a_token_that_cannot_be_used_is_named() {
    const OTHER: &str = "fedcba9876543210fedcba9876543210";
    let place = Place::new();
    std::fs::create_dir_all(place.store()).unwrap();
    let file = place.store().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let with = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        ran(command.env("OWN", TOKEN).env("OTHER", OTHER).output().unwrap())
    };
    for (tokens, reason) in [
        (
            "prom: { right: observe, token_env: NO_SUCH }",
            "serve.tokens.prom: the variable NO_SUCH is not set",
        ),
        (
            "a: { right: read, token_env: OTHER }, b: { right: observe, token_env: OTHER }",
            "serve.tokens.b: the token equals that of serve.tokens.a, so their rights are ambiguous",
        ),
        (
            "a: { right: read, token_env: OWN }",
            "serve.tokens.a: the token equals the server's own in the file token, so their rights are ambiguous",
        ),
    ] {
        place.own_file(&format!("serve: {{ tokens: {{ {tokens} }} }}\n"));
        let looked = with(&["doctor"]);
        let is_named = looked.stdout.contains(&format!("✗ serve: {reason}"));
        assert!(looked.code == Some(2) && is_named, "{looked:?}");
        let served = with(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
        assert!(served.code == Some(2) && served.stderr.contains(reason), "{served:?}");
    }
    place.own_file("serve: { tokens: { a: { right: read, token_env: OTHER } } }\n");
    assert!(with(&["doctor"]).stdout.contains("✓ serve: 2 tokens"));
}

/// A store in which nothing can be made, or the token not be read, is unusable: that is no problem of the network.
#[test]
fn a_store_without_permission_is_unusable() {
    // Nothing is closed to `root`.
    let circumstances = Circumstances { is_nobody: geteuid().is_root(), has_namespaces: false };
    for (part, mode, expected) in [
        ("", 0o500, "not permitted to create the host's socket in "),
        ("token", 0o000, "not permitted to read "),
    ] {
        let place = Place::new();
        let run = |arguments: &[&str]| ran(circumstances.command(&place, arguments).output().unwrap());
        let served = ["serve", "--listen", "127.0.0.1:0", "--simulate"];
        let made = run(&["run", "-p", "Hello.", "--simulate"]);
        assert_eq!(made.code, Some(0), "{made:?}");
        let mut server = circumstances.start(&place, &served);
        server.wait_for_word("greenroom serves");
        server.signal(Signal::TERM);
        assert_eq!(server.end_within(END_MAX).code, Some(0));
        let path = if part.is_empty() { place.store() } else { place.store().join(part) };
        let before = std::fs::metadata(&path).unwrap().permissions();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = run(&served);
        std::fs::set_permissions(&path, before).unwrap();
        let shown = path.display().to_string();
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stderr.contains(expected) && refused.stderr.contains(&shown), "{refused:?}");
        assert!(refused.stderr.contains("check who owns it"), "{refused:?}");
    }
}

/// After SIGTERM, a run in progress ends, and new work is sent elsewhere.
#[test]
fn a_run_in_progress_ends_before_the_server_does() {
    let place = Place::new();
    let pace = Pace { chunks: 15, first_ms: 0, between_ms: 100 };
    let model = Model::new(Says(Answer::text("word ".repeat(15)).with_pace(pace)), |_| {});
    let mut server =
        serving(&place, place.start_alone(&["serve", "--listen", "127.0.0.1:0", "--base-url", &model.url()]));
    let (host, token) = (server.address.clone(), server.token.clone());
    let prompt = |id: &str, prefer: &str| {
        let mut stream = TcpStream::connect(&host).unwrap();
        let body = r#"{"text":"Go on."}"#;
        write!(
            stream,
            "POST /v1/sessions/{id}/prompt HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\ncontent-type: \
             application/json\r\nprefer: {prefer}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    };
    let read = |mut stream: TcpStream| {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let first = prompt("a", "wait=60");
    while model.simulator.calls() == 0 {
        std::thread::yield_now();
    }
    server.running.signal(Signal::TERM);
    server.running.wait_for_word("have 5 s to end");
    let refused = loop {
        // One may come between that line and the drain.
        let answer = read(prompt("b", "respond-async"));
        if !answer.starts_with("HTTP/1.1 202") {
            break answer;
        }
    };
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 5"), "{refused}");
    assert!(refused.contains("is shutting down"), "{refused}");
    let answered = read(first);
    assert!(answered.starts_with("HTTP/1.1 200") && answered.contains("\"stop\":\"stop\""), "{answered}");
    assert_eq!(server.running.end_within(END_MAX).code, Some(0));
}

/// The walk-through of `docs/protocol.md`, as it is pasted.
#[test]
fn the_walk_through_works_as_it_is_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, walk) = page.split_once("### Walk-through").unwrap();
    let (script, _) = walk.split_once("```sh\n").unwrap().1.split_once("```").unwrap();
    let place = Place::new();
    let server = serve(&place, &[]);
    let token = place.store().join("token");
    let script = script
        .replace("127.0.0.1:7878", &server.address)
        .replace("~/.local/share/greenroom/token", token.to_str().unwrap());
    // A stream that is read for some time ends with an error of `curl`; everything else has to succeed.
    let script = script
        .replace("durable=true\"", "durable=true\" || [ $? = 28 ]")
        .replace("--max-time 2", "--max-time 1");
    let ran = Command::new("bash").args(["-eu", "-c", &script]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{errors}: {said}");
    for part in [
        r#"{"session_id":"umbrella"}"#, "event: accepted", "event: result", r#"{"accepted":true,"entry_id""#,
        r#""seq":0,"#, r#""labels":{"user":"ada"}"#, r#""conversation":[{"entry_id""#, r#""installed":"#,
        r#""erased":true"#,
    ] {
        assert!(said.contains(part), "{part}: {}", &said[..said.len().min(3_000)]);
    }
}

/// An agent with a name works on the sessions that name it, with its own tools, prompt and limits.
#[test]
fn named_agents_work_on_the_sessions_that_name_them() {
    let place = Place::new();
    let model = Model::new(Says(Answer::text("Fine.")), |_| {});
    place.own_file(
        "serve:\n  agents:\n    writer: { allow_write: true, append_system: \"You write.\", settings: [limits.steps_max=3] }\n    \
         talker: { no_tools: true, model: other }\n",
    );
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--base-url", &model.url()];
    let server = serving(&place, place.start_alone(&arguments));
    let (host, token) = (&server.address, &server.token);
    let send = |request: &str, body: &str| {
        let mut stream = server.connect();
        write!(
            stream,
            "{request} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\ncontent-type: \
             application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
    };
    for (id, agent, tools, has_text, named) in [
        ("a", None, &["grep", "list", "read", "recall"][..], false, "simulated"),
        ("b", Some("writer"), &["edit", "grep", "list", "read", "recall", "write"], true, "simulated"),
        ("c", Some("talker"), &[], false, "other"),
    ] {
        send("POST /v1/sessions", &format!(r#"{{"session_id":"{id}"}}"#));
        if let Some(agent) = agent {
            send(&format!("PUT /v1/sessions/{id}/labels/agent"), &format!(r#"{{"value":"{agent}"}}"#));
        }
        send(&format!("POST /v1/sessions/{id}/prompt"), r#"{"text":"Go on."}"#);
        let request = model.simulator.requests().last().unwrap().request.clone();
        let mut offered: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        offered.sort_unstable();
        assert_eq!(offered, tools, "{id}");
        let system = request.system.clone().unwrap_or_default();
        assert_eq!(system.contains("You write."), has_text, "{id}: {system}");
        assert_eq!(request.model, named, "{id}");
    }
    drop(server);
    for (agent, part) in [
        ("{ allow_all: true }", "allow_all"),
        ("{ workspace: here }", "absolute"),
        ("{ no_tools: true, allow_shell: true }", "contradicts"),
        ("{ provider: nobody }", "nobody"),
        ("{ settings: [limits.steps=1] }", "limits.steps"),
    ] {
        place.own_file(&format!("serve: {{ agents: {{ x: {agent} }} }}\n"));
        let ran = place.run(&["serve", "--listen", "127.0.0.1:0", "--simulate"]);
        assert_eq!(ran.code, Some(2), "{agent}: {ran:?}");
        assert!(ran.stderr.contains(part), "{agent}: {ran:?}");
    }
}
