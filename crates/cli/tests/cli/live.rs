//! Settings are live: the real files are edited while the real binary runs.

use std::io::{Read as _, Write as _};
use std::path::Path;

use greenroom_simulator::{Answer, ByPurpose, CallInfo, Function, SeenRequest, Summariser};
use serde_json::{Value, json};

use super::support::{Model, Place, Running};

/// Says about a thousand tokens.
fn talker() -> Model {
    let runs = Function(|_: &SeenRequest, call: CallInfo| {
        Answer::text(format!("answer {}: {}", call.session_call, "word ".repeat(1_000)))
    });
    Model::new(ByPurpose::new(runs, Summariser::Obedient), |_| {})
}

/// One of the commands that go on, with a session that is spoken with.
enum Talk {
    Chat(Running),
    Rpc(Running),
    Serve(Running, String, String),
}

/// What one prompt gave.
#[derive(Debug, Default)]
struct Said {
    compactions: usize,
    warnings: Vec<String>,
}

const COMMANDS: [&str; 3] = ["chat", "rpc", "serve"];

impl Talk {
    fn start(name: &str, place: &Place, model: &Model, more: &[&str]) -> Self {
        let url = model.url();
        let mut arguments = vec![name, "--window", "100000", "--base-url", &url];
        arguments.extend_from_slice(more);
        match name {
            "chat" => {
                arguments.extend(["--session", "mine"]);
                Self::Chat(place.start(&arguments))
            }
            "rpc" => Self::Rpc(place.start(&arguments)),
            _ => {
                arguments.extend(["--listen", "127.0.0.1:0"]);
                let mut serve = place.start_alone(&arguments);
                let line = serve.wait_for_word("http://");
                let address = line.split("http://").nth(1).unwrap().split(';').next().unwrap().to_owned();
                let token = std::fs::read_to_string(place.store().join("token")).unwrap();
                Self::Serve(serve, address, token)
            }
        }
    }

    /// Says something, and waits for the answer with this number.
    fn say(&mut self, number: usize) -> Said {
        let mut said = Said::default();
        match self {
            Self::Chat(chat) => {
                chat.say("Go on.");
                let answer = format!("answer {number}");
                loop {
                    // The line of figures follows the answer and what was told with it.
                    let line = chat.wait_for("");
                    said.compactions += usize::from(line.starts_with("  compacted "));
                    if line.contains("remain in effect") || line.contains("for the next start") {
                        said.warnings.push(line.trim().to_owned());
                    }
                    if line.starts_with(&answer) {
                        break;
                    }
                }
                chat.wait_for(" tokens in all");
            }
            Self::Rpc(rpc) => {
                let params = json!({ "session_id": "mine", "text": "Go on." });
                let request =
                    json!({ "jsonrpc": "2.0", "id": number, "method": "session/prompt", "params": params });
                rpc.say(&request.to_string());
                loop {
                    let line: Value = serde_json::from_str(&rpc.wait_for("")).unwrap();
                    if line["params"]["type"] == "compaction_end" {
                        assert_eq!(line["params"]["outcome"], "completed", "{line}");
                        said.compactions += 1;
                    }
                    if line["params"]["type"] == "warning" {
                        let text = line["params"]["message"].as_str().unwrap().to_owned();
                        // It is on standard error too.
                        let word = rpc.wait_for_word("greenroom: warning: ");
                        assert!(word.ends_with(&text), "{word}");
                        said.warnings.push(text);
                    }
                    if line["method"] == "session/prompt_result" {
                        assert!(line["params"]["text"].is_string(), "{line}");
                        break;
                    }
                }
            }
            Self::Serve(_, address, token) => {
                let body = json!({ "text": "Go on." }).to_string();
                let mut stream = std::net::TcpStream::connect(&*address).unwrap();
                write!(
                    stream,
                    "POST /v1/sessions/mine/prompt HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
                     content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
                .unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                let reply: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
                assert!(reply["text"].is_string(), "{reply}");
                said.compactions = reply["compactions"].as_array().unwrap().len();
            }
        }
        said
    }

    /// The next warning of `serve`, which has it on standard error.
    fn warning(&mut self, said: &Said) -> String {
        match self {
            Self::Chat(_) | Self::Rpc(_) => {
                assert_eq!(said.warnings.len(), 1, "{said:?}");
                said.warnings[0].clone()
            }
            Self::Serve(serve, ..) => serve.wait_for_word("greenroom: warning: "),
        }
    }

    /// All that was said of warnings and not looked at.
    fn end(self) -> String {
        match self {
            Self::Chat(mut running) | Self::Rpc(mut running) => {
                running.close_input();
                let ran = running.end();
                assert_eq!(ran.code, Some(0), "{ran:?}");
                ran.stderr
            }
            Self::Serve(running, ..) => {
                running.signal(rustix::process::Signal::TERM);
                running.end().stderr
            }
        }
    }
}

/// The settings of the newest request that was no summary's.
fn newest_settings(model: &Model) -> Value {
    let requests = model.simulator.requests();
    let is_step = |request: &SeenRequest| request.purpose == greenroom::provider::Purpose::Step;
    let newest = requests.iter().rev().find(|logged| is_step(&logged.request)).unwrap();
    json!(newest.request.settings)
}

const TIGHT: &str = "compaction: { auto_compact_token_limit: 3000, keep_recent_tokens: 500 }\n";

#[test]
fn an_edit_of_the_user_s_file_holds_at_the_next_check() {
    for name in COMMANDS {
        let (place, model) = (Place::new(), talker());
        place.own_file("limits: { steps_max: 9 }\n");
        let mut talk = Talk::start(name, &place, &model, &["--no-tools"]);
        for number in 0..4 {
            assert_eq!(talk.say(number).compactions, 0, "{name}");
        }
        assert_eq!(newest_settings(&model), json!({}), "{name}");
        place.own_file(&format!("{TIGHT}model_settings: {{ temperature: 0.5 }}\n"));
        let mut compactions = talk.say(4).compactions;
        assert_eq!(newest_settings(&model), json!({ "temperature": 0.5 }), "{name}");
        for number in 5..8 {
            compactions += talk.say(number).compactions;
        }
        assert!(compactions >= 2, "{name}: {compactions}");
        // And back: what is no longer set no longer holds.
        place.own_file("{}\n");
        talk.say(8);
        assert_eq!(newest_settings(&model), json!({}), "{name}");
        assert_eq!(talk.say(9).compactions + talk.say(10).compactions, 0, "{name}");
        let stderr = talk.end();
        assert!(!stderr.contains("warning"), "{name}: {stderr}");
        model.simulator.assert_clean();
    }
}

#[test]
fn a_bad_edit_keeps_what_held_and_is_said_once() {
    for name in COMMANDS {
        let (place, model) = (Place::new(), talker());
        place.own_file(TIGHT);
        let mut talk = Talk::start(name, &place, &model, &["--no-tools"]);
        let mut compactions = (0..3).map(|number| talk.say(number).compactions).sum::<usize>();
        for (round, (text, words)) in [
            ("limits: {}\ncompaction:\n  treshold: 0.5\n", ["line 3", "treshold"]),
            ("compaction: { threshold: 7 }\n", ["line 1", "threshold: must be"]),
            ("compaction: [\n", ["greenroom.yaml", "line 2"]),
            ("model: other\nprovider: nowhere\n", ["line 2", "no provider"]),
        ]
        .into_iter()
        .enumerate()
        {
            let own = place.own_file(text);
            let before = compactions;
            let first = talk.say(3 + round * 3);
            let warning = talk.warning(&first);
            for word in words.iter().chain(&["remain in effect", own.to_str().unwrap()]) {
                assert!(warning.contains(word), "{name}: {word} in {warning}");
            }
            compactions += first.compactions;
            for number in 1..3 {
                let said = talk.say(3 + round * 3 + number);
                assert_eq!(said.warnings, Vec::<String>::new(), "{name}: once");
                compactions += said.compactions;
            }
            assert!(compactions > before, "{name}: the limit still holds");
        }
        let stderr = talk.end();
        assert!(!stderr.contains("warning"), "{name}: once: {stderr}");
    }
}

/// What needs a restart says so; a file that is gone or half written loosens nothing.
#[test]
fn what_waits_for_a_start_and_what_is_gone_is_said() {
    for name in COMMANDS {
        let (place, model) = (Place::new(), talker());
        let own = place.own_file(TIGHT);
        let mut talk = Talk::start(name, &place, &model, &["--no-tools"]);
        talk.say(0);
        place.own_file(&format!("{TIGHT}model: other\nserve: {{ connections_max: 9 }}\n"));
        let said = talk.say(1);
        let warning = talk.warning(&said);
        assert!(warning.contains("model, serve wait for the next start"), "{name}: {warning}");
        assert_eq!(model.simulator.requests().pop().unwrap().request.model, "simulated", "{name}");
        place.own_file("");
        assert_eq!(talk.say(2).warnings, Vec::<String>::new(), "{name}");
        std::fs::remove_file(&own).unwrap();
        let said = talk.say(3);
        let warning = talk.warning(&said);
        assert!(warning.contains(own.to_str().unwrap()) && warning.contains("is gone"), "{name}: {warning}");
        let compactions: usize = (4..7).map(|number| talk.say(number).compactions).sum();
        assert!(compactions >= 1, "{name}: the limit still holds");
        let stderr = talk.end();
        assert!(!stderr.contains("warning"), "{name}: once: {stderr}");
    }
}

/// A file in the current folder tightens while sessions are open, and loosens nothing; the user's own file does both.
#[test]
fn an_edit_of_a_project_s_file_can_only_tighten() {
    for name in COMMANDS {
        let (place, model) = (Place::new(), talker());
        place.own_file("compaction: { auto_compact_token_limit: 90000, keep_recent_tokens: 500 }\n");
        place.project_file("compaction: { auto_compact_token_limit: 3000 }\n");
        let mut talk = Talk::start(name, &place, &model, &["--no-tools"]);
        let compactions: usize = (0..4).map(|number| talk.say(number).compactions).sum();
        assert!(compactions >= 1, "{name}: as at the start");
        // Looser, and what it may choose at a start only.
        place.project_file(
            "compaction:\n  auto_compact_token_limit: 80000\n  strategy: truncate\nmodel: other\n",
        );
        let first = talk.say(4);
        let warning = talk.warning(&first);
        let words =
            "line 2: compaction.auto_compact_token_limit, compaction.strategy, model wait for the next start";
        assert!(warning.contains(words), "{name}: {warning}");
        let more: usize = (5..8).map(|number| talk.say(number).compactions).sum();
        assert!(more >= 1, "{name}: 3,000 still holds");
        // Gone: what it set holds until the next start.
        std::fs::remove_file(place.work().join("greenroom.yaml")).unwrap();
        let first = talk.say(8);
        assert!(talk.warning(&first).contains("is gone"), "{name}");
        let more: usize = (9..12).map(|number| talk.say(number).compactions).sum();
        assert!(more >= 1, "{name}: 3,000 still holds");
        let stderr = talk.end();
        assert!(!stderr.contains("warning"), "{name}: {stderr}");
        assert!(model.simulator.requests().iter().all(|logged| logged.request.model == "simulated"));
    }
}

/// One that comes while sessions are open, too.
#[test]
fn a_project_s_file_that_appears_tightens() {
    for name in COMMANDS {
        let (place, model) = (Place::new(), talker());
        place.own_file("compaction: { keep_recent_tokens: 500 }\n");
        let mut talk = Talk::start(name, &place, &model, &["--no-tools"]);
        for number in 0..4 {
            assert_eq!(talk.say(number).compactions, 0, "{name}");
        }
        place.project_file("compaction: { auto_compact_token_limit: 3000 }\n");
        let compactions: usize = (4..8).map(|number| talk.say(number).compactions).sum();
        assert!(compactions >= 2, "{name}: {compactions}");
        talk.end();
    }
}

/// A model that would write itself better settings gets an error from the file tools.
#[test]
fn the_file_tools_reach_no_settings() {
    const OWN: &str = "limits: { steps_max: 9 }\n";
    const BETTER: &str = "limits: { steps_max: 1 }\n";
    let attempts: [fn(&Path) -> String; 3] = [
        |_| "greenroom.yaml".to_owned(),
        |own| own.display().to_string(),
        |own| format!("../{}", own.display()),
    ];
    for attempt in attempts {
        for name in COMMANDS {
            let place = Place::new();
            let own = place.own_file(OWN);
            let arguments = json!({ "path": attempt(&own), "content": BETTER });
            let runs = Function(move |request: &SeenRequest, info: CallInfo| {
                if request.messages.last().is_some_and(|message| message.role() == "tool") {
                    Answer::text(format!("answer {}", info.session_call / 2))
                } else {
                    Answer::call("write", &arguments)
                }
            });
            let model = Model::new(runs, |_| {});
            let mut talk = Talk::start(name, &place, &model, &["--allow-write"]);
            for number in 0..2 {
                // With a limit of one step, the second run would be stopped.
                talk.say(number);
            }
            let requests = model.simulator.requests();
            let result = requests.last().unwrap().request.messages.last().unwrap().text();
            assert!(!place.work().join("greenroom.yaml").exists(), "{name}: {result}");
            assert_eq!(std::fs::read_to_string(own).unwrap(), OWN, "{name}: {result}");
            talk.end();
        }
    }
}
