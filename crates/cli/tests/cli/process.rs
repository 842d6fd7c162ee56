//! Problems of the process: a polite request to end, and no file descriptors left.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use rustix::process::Signal;

use super::support::{Model, Place, Running, Says, ran};

/// How long it may take to end in order.
const DRAIN: Duration = Duration::from_secs(10);

/// A model that counts for half an hour.
fn slow() -> Model {
    let pace = Pace { chunks: 2_000, first_ms: 0, between_ms: 1_000 };
    let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
    Model::new(Says(Answer::text(text).with_pace(pace)), |_| {})
}

/// Asked to end during a run, it ends in time, and its run is closed: as aborted where a person sat before it, and as
/// interrupted, to be resumed, where a program did.
fn check_ends(surface: &str, place: &Place, model: &Model, running: Running) {
    let deadline = Instant::now() + DRAIN;
    while model.simulator.calls() == 0 {
        assert!(Instant::now() < deadline, "{surface}: the model is never asked");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let asked = Instant::now();
    running.signal(Signal::TERM);
    let ran = running.end();
    assert!(asked.elapsed() < DRAIN, "{surface}: it took {:?}", asked.elapsed());
    assert_eq!(ran.code, Some(0), "{surface}: {ran:?}");
    let sessions = place.json(&["sessions", "--json"]);
    let is_left = surface != "chat";
    let state = if is_left { "interrupted" } else { "idle" };
    assert_eq!(sessions[0]["state"], state, "{surface}: {sessions}");
    assert_eq!(sessions[0]["is_unfinished"], is_left, "{surface}: {sessions}");
    assert!(sessions[0]["entries"].as_u64() >= Some(2), "{surface}: the prompt and the end: {sessions}");
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{surface}: {sessions}");
}

#[test]
fn chat_ends_in_order_when_it_is_asked_to() {
    let (place, model) = (Place::new(), slow());
    let mut chat = place.start(&["chat", "--session", "mine", "--base-url", &model.url()]);
    chat.say("Count.");
    check_ends("chat", &place, &model, chat);
}

#[test]
fn rpc_ends_in_order_when_it_is_asked_to() {
    let (place, model) = (Place::new(), slow());
    let mut rpc = place.start(&["rpc", "--base-url", &model.url()]);
    let request = |id: u32, method: &str, parameters: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{parameters}}}"#)
    };
    rpc.say(&request(1, "session/start", r#"{"session_id":"mine"}"#));
    rpc.say(&request(2, "session/prompt", r#"{"session_id":"mine","text":"Count."}"#));
    check_ends("rpc", &place, &model, rpc);
}

/// Asked to end, `rpc` answers all that is open: each prompt is accepted, and has its outcome.
#[test]
fn rpc_tells_the_outcomes_of_its_open_prompts_when_it_is_asked_to_end() {
    let (place, model) = (Place::new(), slow());
    let rpc = place.start(&["rpc", "--base-url", &model.url()]);
    check_outcomes(rpc, &|| model.simulator.calls(), Signal::TERM);
    let rpc = place.start(&["rpc", "--base-url", &model.url()]);
    check_outcomes(rpc, &|| model.simulator.calls() - SESSIONS, Signal::INT);
}

#[tokio::test(flavor = "multi_thread")]
async fn rpc_with_a_host_tells_the_outcomes_of_its_open_prompts_when_it_is_asked_to_end() {
    let hosted = super::host::Hosted::new(2_000, 1_000).await;
    hosted.start_host();
    let rpc = hosted.place.start_command(hosted.command(&["rpc", "--window", "100000"]));
    tokio::task::block_in_place(|| check_outcomes(rpc, &|| hosted.simulator.calls(), Signal::TERM));
}

/// In how many sessions [`check_outcomes`] prompts: the last one has two prompts.
const SESSIONS: u64 = 4;

fn check_outcomes(mut rpc: Running, calls: &dyn Fn() -> u64, signal: Signal) {
    let ids: Vec<u64> = (0..=SESSIONS).collect();
    for id in &ids {
        let session = format!("{}-{}", signal.as_raw(), id.min(&(SESSIONS - 1)));
        let prompt = serde_json::json!({ "session_id": session, "text": "Count." });
        rpc.say(&request(u32::try_from(*id).unwrap(), "session/prompt", &prompt));
    }
    let deadline = Instant::now() + DRAIN;
    while calls() < SESSIONS {
        assert!(Instant::now() < deadline, "the model is never asked");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let asked = Instant::now();
    rpc.signal(signal);
    // Its input is still open.
    let ran = rpc.end();
    assert!(asked.elapsed() < DRAIN, "it took {:?}", asked.elapsed());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |found: &dyn Fn(&serde_json::Value) -> Option<u64>| {
        let mut of: Vec<u64> = lines.iter().filter_map(found).collect();
        of.sort_unstable();
        of
    };
    assert_eq!(of(&|line| line["id"].as_u64()), ids, "each request has its answer: {lines:?}");
    let outcome = |line: &serde_json::Value| {
        (line["method"] == "session/prompt_result").then(|| line["params"]["request_id"].as_u64().unwrap())
    };
    assert_eq!(of(&outcome), ids, "each prompt has its outcome: {lines:?}");
}

/// One request of JSON-RPC.
fn request(id: u32, method: &str, parameters: &serde_json::Value) -> String {
    serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }).to_string()
}

#[test]
fn a_prompt_that_rpc_accepted_survives_kill_9() {
    let (place, model) = (Place::new(), slow());
    let mut rpc = place.start(&["rpc", "--base-url", &model.url()]);
    for id in 0..5 {
        let prompt = serde_json::json!({ "session_id": "mine", "text": format!("number {id} of five") });
        rpc.say(&request(id, "session/prompt", &prompt));
    }
    // Answers may come in another order than requests.
    let mut accepted: Vec<String> = (0..5).map(|_| rpc.wait_for(r#""accepted":true"#)).collect();
    accepted.sort();
    accepted.dedup();
    assert_eq!(accepted.len(), 5, "{accepted:?}");
    rpc.signal(Signal::KILL);
    rpc.end();
    let shown = place.run(&["show", "mine"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for id in 0..5 {
        assert!(shown.stdout.contains(&format!("number {id} of five")), "{id}: {}", shown.stdout);
    }
}

#[test]
fn rpc_goes_on_after_a_long_line_that_is_no_json() {
    let place = Place::new();
    let mut rpc = place.start(&["rpc", "--simulate"]);
    rpc.say(&"x".repeat(5 << 20));
    let refused = rpc.wait_for("error");
    assert!(refused.contains("-32700"), "{refused}");
    rpc.say(&request(1, "session/list", &serde_json::json!({})));
    rpc.wait_for(r#""id":1,"result""#);
    rpc.close_input();
    assert_eq!(rpc.end().code, Some(0));
}

#[test]
fn serve_ends_in_order_when_it_is_asked_to() {
    let (place, model) = (Place::new(), slow());
    place.own_file("serve: { drain_timeout_s: 1 }\n");
    let mut serve = place.start_alone(&["serve", "--listen", "127.0.0.1:0", "--base-url", &model.url()]);
    let line = serve.wait_for_word("http://");
    let address = line.split("http://").nth(1).unwrap().split(';').next().unwrap().to_owned();
    let token = std::fs::read_to_string(place.store().join("token")).unwrap();
    let body = r#"{"text":"Count."}"#;
    let mut connection = TcpStream::connect(&address).unwrap();
    write!(
        connection,
        "POST /v1/sessions/mine/prompt HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-type: \
         application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    check_ends("serve", &place, &model, serve);
    // The caller that waited for the answer gets an error.
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 5") || answer.starts_with("HTTP/1.1 4"), "{answer}");
}

/// A tool finds no file descriptor: the model is told, the run ends, and afterwards everything works again.
#[test]
fn no_file_descriptors_left_is_said_and_survived() {
    let place = Place::with_files(1);
    let script = Function(|request: &SeenRequest, info: CallInfo| {
        if request.messages.last().is_some_and(|message| message.role() == "tool") {
            Answer::text(format!("done {}\n", info.session_call))
        } else {
            Answer::call("read", &serde_json::json!({ "path": "README.md" }))
        }
    });
    let model = Model::new(script, |_| {});
    let mut chat = place.start(&["chat", "--session", "mine", "--base-url", &model.url()]);
    let result = || {
        let requests = model.simulator.requests();
        requests.last().unwrap().request.messages.last().unwrap().text()
    };
    chat.say("First.");
    chat.wait_for("done 1");
    assert!(result().contains("made-up"), "{}", result());
    chat.limit_files(3);
    chat.say("Second.");
    chat.wait_for("done 3");
    assert!(result().to_lowercase().contains("too many open files"), "{}", result());
    chat.limit_files(512);
    chat.say("Third.");
    chat.wait_for("done 5");
    assert!(result().contains("made-up"), "{}", result());
    chat.say("/quit");
    assert_eq!(chat.end().code, Some(0));
}

/// Nothing can be written at all: that is said, and the process is not killed for it.
#[test]
fn a_limit_of_no_bytes_for_files_is_said() {
    let place = Place::new();
    let line = "ulimit -f 0; exec \"$0\" run -p Hello. --simulate --no-tools";
    let mut command = place.command_of("/bin/sh".into(), &["-c", line, env!("CARGO_BIN_EXE_greenroom")]);
    let ran = ran(command.output().unwrap());
    assert!(ran.code == Some(3) && ran.stderr.contains("File too large"), "{ran:?}");
}

/// Below some limits nothing can begin; that is said at once.
#[test]
fn limits_that_are_too_low_are_said() {
    for (limit, words) in
        [("-v 300000", "292 MiB of memory, and needs at least 512"), ("-n 13", "13 files open, and needs")]
    {
        let place = Place::new();
        let line = format!("ulimit {limit}; exec \"$0\" run -p Hello. --simulate --no-tools");
        let mut command = place.command_of("/bin/sh".into(), &["-c", &line, env!("CARGO_BIN_EXE_greenroom")]);
        let ran = ran(command.output().unwrap());
        assert_eq!(ran.code, Some(2), "{limit}: {ran:?}");
        assert!(ran.stderr.contains(words) && ran.stderr.lines().count() == 1, "{limit}: {ran:?}");
        assert!(!place.store().exists(), "{limit}");
    }
}
