//! `simulate`: a scripted model for clients in any language.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::support::{Place, Ran, Running};

/// Starts it, and gives its address.
fn simulate(place: &Place, arguments: &[&str]) -> (Running, String) {
    let mut running = place.start_alone(&[&["simulate"], arguments].concat());
    let url = running.wait_for("http://").trim().to_owned();
    let address = url.strip_prefix("http://").unwrap().strip_suffix("/v1").unwrap().to_owned();
    (running, address)
}

/// The status and the body of the answer to one question, as any client asks it.
fn ask(address: &str, question: &str) -> (u16, Value) {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": question }] }).to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
    (status, serde_json::from_str(body).unwrap())
}

fn stopped(running: Running) -> Ran {
    running.signal(Signal::INT);
    running.end()
}

#[test]
fn it_gives_the_answers_in_order_and_ends_well() {
    let place = Place::new();
    let (running, address) = simulate(&place, &["--say", "Hello", "--say", "Goodbye"]);
    for wanted in ["Hello", "Goodbye"] {
        let (status, answer) = ask(&address, "hi");
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["choices"][0]["message"]["content"], wanted, "{answer}");
    }
    let ran = stopped(running);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("2 calls"), "{ran:?}");
}

#[test]
fn a_client_that_differs_from_the_script_is_told_and_so_is_the_exit_code() {
    let place = Place::new();
    let (running, address) = simulate(&place, &["--say", "Hello"]);
    ask(&address, "hi");
    let (status, answer) = ask(&address, "and?");
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("scripted_model")), "{answer}");
    let ran = stopped(running);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("the script has 1 answer") && ran.stderr.contains("and?"), "{ran:?}");
    let (running, _) = simulate(&place, &["--say", "Hello"]);
    let ran = stopped(running);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("not used"), "{ran:?}");
}

#[test]
fn a_script_in_a_file_has_calls_faults_and_expectations_and_our_own_client_follows_it() {
    let place = Place::new();
    std::fs::write(place.work().join("notes.txt"), "the answer is 42").unwrap();
    let script = place.work().join("script.yaml");
    std::fs::write(
        &script,
        "answers:\n  - calls: [{ tool: read, arguments: { path: notes.txt } }]\n    expect_user: notes\n  \
         - fault: rate_limited\n    retry_after_s: 0\n  \
         - text: It is 42.\n    expect_tool_result: { tool: read, contains: the answer is 42 }\n",
    )
    .unwrap();
    let (running, address) = simulate(&place, &["--script", script.to_str().unwrap(), "--require-key", "k"]);
    let mut command = place.command(&["run", "-p", "What is in the notes?", "--model", "simulated"]);
    command.env("OPENAI_BASE_URL", format!("http://{address}/v1")).env("OPENAI_API_KEY", "k");
    let ran = super::support::ran(command.output().unwrap());
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "It is 42."), "{ran:?}");
    let ran = stopped(running);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn what_is_no_script_is_refused_in_one_line() {
    let place = Place::new();
    let path = place.work().join("script.yaml");
    let shown = path.to_str().unwrap().to_owned();
    for (text, told) in [
        ("answers:\n  - txt: Hello\n", "txt"),
        ("answers: []\n", "no `answers`"),
        ("answers:\n  - fault: gone\n", "gone"),
        ("model: [", "line 1"),
    ] {
        std::fs::write(&path, text).unwrap();
        let ran = place.run(&["simulate", "--script", &shown]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(told) && ran.stderr.lines().count() == 1, "{text}: {ran:?}");
    }
    let ran = place.run(&["simulate", "--script", "nowhere.yaml"]);
    assert_eq!((ran.code, ran.stderr.contains("nowhere.yaml")), (Some(2), true), "{ran:?}");
}
