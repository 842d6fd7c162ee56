//! Secrets in many places, and everything that Greenroom writes and sends: each may appear only where it must.
//!
//! Invariants: each place has a secret of its own, so one that appears names its place; each is shown to have been there,
//! by what stands for it; there are at least [`PLACES_MIN`] places.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use greenroom::provider::Purpose;
use greenroom_kernel::Message;

use greenroom_simulator::{
    Answer, ByPurpose, CallInfo, Fault, Function, Pace, RetryAfter, Script as _, SeenRequest, Sequence,
    Summariser,
};
use serde_json::{Value, json};

use super::prompts::write;
use super::support::{Model, Place, files, ran};

/// The fewest places.
const PLACES_MIN: usize = 40;

/// What Greenroom writes or sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sink {
    /// The lines of `-vv`, and the files of logs.
    Log,
    /// The events of `run --json`, of HTTP and of JSON-RPC.
    Events,
    /// Errors, warnings, and outputs of other commands.
    Said,
    /// The files of the store.
    Store,
    /// Exported files.
    Export,
    /// Requests for answers.
    Request,
    /// Requests for summaries.
    Summary,
}

/// The places of secrets whose values are known: variables of the environment. None may appear anywhere.
const VALUES: [&str; 36] = [
    "the prompt",
    "AGENTS.md",
    "--append-system",
    "a skill's description",
    "a skill's text",
    "a file",
    "a file, in base64",
    "a file, in a URL",
    "a file, in JSON",
    "a line of a value with several, in a file",
    "the result of grep",
    "the arguments of grep",
    "a file's name",
    "the output of a command",
    "the errors of a command that fails",
    "the command itself",
    "the output of a command, in base64 behind a user's name",
    "an answer",
    "the reasoning of an answer",
    "an answer in single pieces",
    "a file that the model writes",
    "a provider's error",
    "a provider's error that is no JSON",
    "a provider's error before a retry",
    "the focus of a compaction",
    "a summary",
    "the instructions for summaries in the configuration",
    "an imported file",
    "a prompt over HTTP",
    "a prompt over JSON-RPC",
    "a title",
    "a label",
    "an unknown setting",
    "standard input",
    "a key that a command prints",
    "a password in a proxy's address",
];

/// Texts that only look like secrets, and where they may appear: what the user and the model see of the user's own files
/// and words is not changed.
const OWN: &[Sink] = &[Sink::Events, Sink::Store, Sink::Request];
const SHAPES: [(&str, &[Sink]); 9] = [
    ("a token in the output of a command", &[]),
    ("a private key in the output of a command", &[]),
    ("a web token in the errors of a command", &[]),
    ("a password in a provider's error", &[]),
    ("a key in a summary", &[]),
    ("a key in a search of the model's", OWN),
    ("a token in a file", OWN),
    ("a bearer in the prompt", OWN),
    ("a token in the answer", OWN),
];

/// The variable of a place.
fn variable(place: &str) -> String {
    match VALUES.iter().position(|known| *known == place).unwrap() {
        35 => "FTP_PROXY".to_owned(),
        34 => "key_command".to_owned(),
        number => format!("CANARY_{number:02}_TOKEN"),
    }
}

/// The secret of a place: letters, digits, and what is written differently in URLs.
fn value(place: &str) -> String {
    let number = VALUES.iter().position(|known| *known == place).unwrap();
    match place {
        "a file, in JSON" => format!("cAnary{number:02}\"quoted\\Zq81"),
        "a file's name" | "a password in a proxy's address" => format!("cAnary{number:02}-Zq81xT"),
        _ => format!("cAnary{number:02}/Zq81+xT{}w", number * 7919),
    }
}

/// The line of a value with several that is shown.
const LINE: &str = "QyVt9kPzWm4hLx0aTfJqLine";

fn environment() -> BTreeMap<String, String> {
    let mut variables: BTreeMap<String, String> =
        VALUES.iter().map(|place| (variable(place), value(place))).collect();
    variables.remove("key_command");
    let password = value("a password in a proxy's address");
    variables.insert("FTP_PROXY".to_owned(), format!("ftp://me:{password}@proxy:21"));
    let several = variable("a line of a value with several, in a file");
    variables.insert(
        several,
        format!("-----BEGIN THING-----\n{LINE}\nAAAAB3NzaC1yc2EAAAADAQAB\n-----END THING-----"),
    );
    variables.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    variables
}

/// The text of a shape; its parts stand apart here, so that no scanner takes it for a real one.
fn shape(place: &str) -> String {
    let random = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";
    match SHAPES.iter().position(|(known, _)| *known == place).unwrap() {
        0 => format!("{}_{random}", "ghp"),
        1 => format!("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCcanary{random}"),
        2 => format!("{}hbGciOiJIUzI1NiJ9.{}zdWIiOiJjYW5hcnkifQ.{random}", "eyJ", "eyJ"),
        3 => "hunter2-canary".to_owned(),
        4 => format!("{}IOSFODNN7CANARY0", "AKIA"),
        5 => format!("{}-proj-{random}", "sk"),
        6 => format!("{}_{}", "gho", random.to_uppercase()),
        7 => format!("Canary7{random}"),
        _ => format!("{}_pat_canary{random}{random}", "github"),
    }
}

/// Everything that was written and sent.
#[derive(Default)]
struct Sinks(BTreeMap<Sink, String>);

impl Sinks {
    fn put(&mut self, sink: Sink, text: &str) {
        let known = self.0.entry(sink).or_default();
        known.push_str(text);
        known.push('\n');
    }

    /// What a command printed: events on standard output, and log lines or errors on standard error.
    fn ran(&mut self, command: &mut Command, out: Sink, err: Sink) -> Option<i32> {
        let ran = ran(command.envs(environment()).output().unwrap());
        self.put(out, &ran.stdout);
        self.put(err, &ran.stderr);
        ran.code
    }

    fn requests(&mut self, model: &Model) {
        for logged in model.simulator.requests() {
            let SeenRequest { system, messages, tools, purpose, .. } = &*logged.request;
            let sink = if *purpose == Purpose::Step { Sink::Request } else { Sink::Summary };
            self.put(sink, system.as_deref().unwrap_or_default());
            self.put(sink, &format!("{tools:?}"));
            for message in messages {
                self.put(sink, &message.said());
                if let Message::Assistant(answer) = &**message {
                    self.put(sink, &format!("{answer:?}"));
                }
            }
        }
    }

    fn has(&self, sink: Sink, text: &str) -> bool {
        self.0.get(&sink).is_some_and(|known| known.contains(text))
    }

    fn check(&self, place: &str, secret: &str, may: &[Sink], stands_for: &str) {
        for sink in self.0.keys() {
            assert!(may.contains(sink) || !self.has(*sink, secret), "{place}: {secret} is in {sink:?}");
        }
        let is_seen = |sink: &Sink| self.has(*sink, stands_for);
        assert!(self.0.keys().any(is_seen), "{place}: {stands_for} is nowhere, so {secret} was not there");
        may.iter().for_each(|sink| assert!(self.has(*sink, secret), "{place}: {secret} is not in {sink:?}"));
    }
}

fn base64(text: &str) -> String {
    use std::process::Stdio;
    let mut command =
        Command::new("base64").arg("-w0").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    command.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    String::from_utf8(command.wait_with_output().unwrap().stdout).unwrap()
}

/// The files of the project.
fn prepare(place: &Place) {
    let in_url = value("a file, in a URL").replace('/', "%2F").replace('+', "%2B");
    let in_json = Value::from(value("a file, in JSON")).to_string();
    let lines = [
        format!("KEY={}", value("a file")),
        base64(&value("a file, in base64")),
        format!("https://example.com/?key={in_url}"),
        in_json,
        LINE.to_owned(),
        format!("TOKEN={}", shape("a token in a file")),
    ];
    write(place, ".env", &lines.join("\n"));
    write(place, "found.txt", &format!("needle {}\n", value("the result of grep")));
    write(place, &format!("{}.txt", value("a file's name")), "x\n");
    write(place, "AGENTS.md", &format!("The key is {}.\n", value("AGENTS.md")));
    let (description, text) = (value("a skill's description"), value("a skill's text"));
    write(
        place,
        ".claude/skills/plan/SKILL.md",
        &format!("---\nname: plan\ndescription: 'Plan with {description}'\n---\nUse {text}.\n"),
    );
    let private = shape("a private key in the output of a command");
    let begin = format!("-----BEGIN {} KEY-----", "PRIVATE");
    let body = format!("{begin}\n{private}\n-----END {} KEY-----\n", "PRIVATE");
    let basic =
        base64(&format!("someone:{}", value("the output of a command, in base64 behind a user's name")));
    let output = [
        value("the output of a command"),
        basic,
        shape("a token in the output of a command"),
        body,
        value("a password in a proxy's address"),
    ];
    write(place, "output", &output.join("\n"));
    let errors =
        [value("the errors of a command that fails"), shape("a web token in the errors of a command")];
    write(place, "errors", &errors.join("\n"));
}

/// The answers of the long session.
fn answers() -> Vec<Answer> {
    let searched =
        format!("{}|{}", value("the arguments of grep"), shape("a key in a search of the model's"));
    let call = |name: &str, arguments: Value| Answer::call(name, &arguments);
    let pieces = Pace { chunks: 40, first_ms: 0, between_ms: 0 };
    vec![
        call("read", json!({ "path": ".env" })),
        call("grep", json!({ "pattern": "needle", "path": "." })),
        call("grep", json!({ "pattern": searched, "path": "found.txt" })),
        call("list", json!({ "path": "." })),
        call("skill", json!({ "name": "plan" })),
        call("bash", json!({ "command": "cat output" })),
        call("bash", json!({ "command": "cat errors >&2; exit 3" })),
        call("bash", json!({ "command": format!("true {}", value("the command itself")) })),
        call("write", json!({ "path": "new.txt", "content": value("a file that the model writes") })),
        Answer::text(format!("It is {}.", value("an answer")))
            .with_reasoning(value("the reasoning of an answer")),
        Answer::text(format!("{} {}", value("an answer in single pieces"), shape("a token in the answer")))
            .with_pace(pieces),
        Answer::fault(Fault::RateLimited(RetryAfter::Milliseconds(1))),
        Answer::text("Fine."),
        Answer::text("Fine."),
        Answer::text("Fine."),
        Answer::text("Fine."),
    ]
}

/// A model that works, one whose server fails, and one that is asked again.
fn failing(status: u16, body: String) -> Model {
    let fault = Fault::Http { status, headers: Vec::new(), body };
    let answers = vec![Answer::fault(fault), Answer::text("Fine.")];
    Model::new(Sequence(answers), |_| {})
}

#[test]
fn no_secret_is_where_it_should_not_be() {
    let (place, mut sinks) = (Place::new(), Sinks::default());
    prepare(&place);
    place.own_file(&format!(
        "trusted_folders: [{:?}]\ncompaction: {{ compact_instructions: 'Name {}.' }}\n",
        place.work(),
        value("the instructions for summaries in the configuration")
    ));
    let summary = Function(|request: &SeenRequest, call: CallInfo| {
        let mut answer = Summariser::Obedient.reply(request, call);
        answer.text.push_str(&format!("\n- {} and {}\n", value("a summary"), shape("a key in a summary")));
        answer
    });
    let model = Model::new(ByPurpose::new(Sequence(answers()), summary), |_| {});
    let url = model.url();
    let at = ["--base-url", &url, "--window", "200000", "--no-host"];
    let run = |sinks: &mut Sinks, more: &[&str]| {
        let mut command = place
            .command(&[&["run", "--session", "mine", "--allow-shell", "--json", "-vv"], more, &at].concat());
        assert_eq!(
            sinks.ran(&mut command, Sink::Events, Sink::Log),
            Some(0),
            "{more:?}: {:?}",
            sinks.0.get(&Sink::Log)
        );
    };
    let prompt =
        format!("Use {} and Authorization: Bearer {}", value("the prompt"), shape("a bearer in the prompt"));
    run(&mut sinks, &["-p", &prompt, "--append-system", &format!("Also {}.", value("--append-system"))]);
    run(&mut sinks, &["-p", "again"]);
    // Standard input.
    let input = place.work().join("input");
    std::fs::write(&input, value("standard input")).unwrap();
    let mut command =
        place.command(&[&["run", "--session", "mine", "--json", "-vv", "-p", "x"], &at[..]].concat());
    command.stdin(std::fs::File::open(&input).unwrap());
    assert_eq!(sinks.ran(&mut command, Sink::Events, Sink::Log), Some(0));
    std::fs::remove_file(&input).unwrap();
    // Failures.
    let message = format!(
        "no {} at postgres://u:{}@host/x",
        value("a provider's error"),
        shape("a password in a provider's error")
    );
    let body = json!({ "error": { "message": message, "type": "invalid_request_error" } }).to_string();
    let retried = json!({ "error": { "message": value("a provider's error before a retry") } }).to_string();
    for (session, status, body, code) in [
        ("wrong", 400, body, 1),
        ("plain", 400, format!("cannot {}", value("a provider's error that is no JSON")), 1),
        ("retried", 503, retried, 0),
    ] {
        let failing = failing(status, body);
        let arguments = [
            "run",
            "--session",
            session,
            "-p",
            "x",
            "--json",
            "-vv",
            "--no-host",
            "--base-url",
            &failing.url(),
        ];
        assert_eq!(
            sinks.ran(&mut place.command(&arguments), Sink::Events, Sink::Said),
            Some(code),
            "{session}"
        );
    }
    // A key that a command prints, which the server tells back: in an answer, and in an error.
    let key = value("a key that a command prints");
    let body = json!({ "error": { "message": format!("bad key {key}") } }).to_string();
    let fault = Answer::fault(Fault::Http { status: 400, headers: Vec::new(), body });
    let told = Model::new(Sequence(vec![Answer::text(format!("You sent {key}.")), fault]), |_| {});
    let provider = json!({ "base_url": told.url(), "key_command": format!("echo '{key}'") });
    write(&place, "keys.yaml", &json!({ "provider": "corp", "providers": { "corp": provider } }).to_string());
    for code in [0, 1] {
        let of_session = ["run", "--session", "corp", "-p", "x", "--json", "--no-host"];
        let mut command =
            place.command(&[&of_session[..], &["--config", "keys.yaml", "--model", "m"]].concat());
        let ended = sinks.ran(&mut command, Sink::Events, Sink::Said);
        assert_eq!(ended, Some(code), "{:?}", sinks.0.get(&Sink::Said).unwrap().trim_end().lines().last());
    }
    let unknown = format!("unknown.{}", value("an unknown setting"));
    assert_eq!(sinks.ran(&mut place.command(&["config", "get", &unknown]), Sink::Said, Sink::Said), Some(2));
    // Compaction.
    let focus = value("the focus of a compaction");
    let arguments = [&["compact", "mine", "--force", "--json", "-vv", "--focus", &focus], &at[..]].concat();
    let code = sinks.ran(&mut place.command(&arguments), Sink::Events, Sink::Log);
    assert_eq!(code, Some(0), "{:?}", sinks.0.get(&Sink::Log).unwrap().trim_end().lines().last());
    // Exports, and an import.
    for arguments in [&["export", "mine"][..], &["export", "retried"], &["export", "mine", "-o", "out.jsonl"]]
    {
        assert_eq!(
            sinks.ran(&mut place.command(arguments), Sink::Export, Sink::Said),
            Some(0),
            "{arguments:?}"
        );
    }
    let exported = std::fs::read_to_string(place.work().join("out.jsonl")).unwrap();
    sinks.put(Sink::Export, &exported);
    let imported = exported.replacen("\"again\"", &Value::from(value("an imported file")).to_string(), 1);
    assert_ne!(imported, exported, "{exported}");
    write(&place, "in.jsonl", &imported.replacen("\"mine\"", "\"imported\"", 1));
    let code = sinks.ran(&mut place.command(&["import", "in.jsonl"]), Sink::Said, Sink::Said);
    assert_eq!(code, Some(0), "{:?}", sinks.0.get(&Sink::Said).unwrap().trim_end().lines().last());
    over_http_and_rpc(&place, &model, &mut sinks);
    sinks.requests(&model);
    // What is kept for `undo` is the user's own files, as they were.
    let kept = place.store().join("files");
    for path in files(&place.store()).into_iter().filter(|path| !path.starts_with(&kept)) {
        let bytes = std::fs::read(&path).unwrap();
        let sink = if path.extension().is_some_and(|end| end == "log") { Sink::Log } else { Sink::Store };
        sinks.put(sink, &String::from_utf8_lossy(&bytes));
    }
    for place in VALUES {
        let shown = if place.contains("a line of a value") { LINE.to_owned() } else { value(place) };
        let stands_for = format!("[redacted:{}]", variable(place));
        sinks.check(place, &shown, &[], &stands_for);
        for form in [
            base64(&shown),
            Value::from(shown.as_str()).to_string(),
            shown.replace('/', "%2F").replace('+', "%2B"),
        ] {
            sinks.check(place, form.trim_matches(['"', '=']), &[], &stands_for);
        }
    }
    for (place, may) in SHAPES {
        sinks.check(place, &shape(place), may, "[redacted:");
    }
    assert!(VALUES.len() + SHAPES.len() >= PLACES_MIN && sinks.0.len() == 7, "{:?}", sinks.0.keys());
}

/// Prompts over HTTP and JSON-RPC, a title and a label, and the events that both tell.
fn over_http_and_rpc(place: &Place, model: &Model, sinks: &mut Sinks) {
    let url = model.url();
    let mut command = place.command(&["serve", "--listen", "127.0.0.1:0", "--base-url", &url, "-vv"]);
    command.envs(environment());
    let mut server = place.start_command(command);
    let line = server.wait_for_word("http://");
    let address = line.split("http://").nth(1).unwrap().split(';').next().unwrap().trim().to_owned();
    let token = std::fs::read_to_string(place.store().join("token")).unwrap().trim().to_owned();
    let ask = |method: &str, path: &str, body: Value| {
        let mut stream = TcpStream::connect(&address).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        write!(
            stream,
            "{method} /v1{path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream, \
             application/json\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 2"), "{path}: {answer}");
        answer
    };
    sinks.put(
        Sink::Events,
        &ask("POST", "/sessions/http/prompt", json!({ "text": value("a prompt over HTTP") })),
    );
    sinks.put(Sink::Events, &ask("PUT", "/sessions/http/title", json!({ "title": value("a title") })));
    sinks.put(Sink::Events, &ask("PUT", "/sessions/http/labels/of", json!({ "value": value("a label") })));
    sinks.put(Sink::Events, &ask("GET", "/sessions/http", Value::Null));
    sinks.put(Sink::Export, &ask("GET", "/sessions/mine/export", Value::Null));
    server.signal(rustix::process::Signal::TERM);
    sinks.put(Sink::Log, &server.end().stderr);
    let mut command = place.command(&["rpc", "--no-host", "--base-url", &url, "-vv"]);
    command.envs(environment());
    let mut rpc = place.start_command(command);
    let parameters = json!({ "session_id": "rpc", "text": value("a prompt over JSON-RPC") });
    rpc.say(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": parameters }).to_string(),
    );
    let line = rpc.wait_for("run_end");
    sinks.put(Sink::Events, &line);
    rpc.close_input();
    let ran = rpc.end();
    sinks.put(Sink::Events, &ran.stdout);
    sinks.put(Sink::Log, &ran.stderr);
}
