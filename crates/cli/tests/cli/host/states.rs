//! The states that `sessions` and `show` report while a host has the store.

use greenroom_server::operations::{ClientKind, ListQuestions, PromptSession, StartSession};
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use super::{Hosted, wait_until};

/// What both commands say that session `a` does.
fn state(hosted: &Hosted) -> String {
    let json = |arguments: &[&str]| {
        let ran = hosted.run(arguments);
        serde_json::from_str::<Value>(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    let listed = json(&["sessions", "--json"])[0]["state"].clone();
    assert_eq!(json(&["show", "a", "--json"])["state"], listed);
    listed.as_str().unwrap().to_owned()
}

/// How large a file of this process may become.
fn limit_files(pid: Pid, bytes: Option<u64>) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_end_could_not_be_written_does_not_go_on() {
    let hosted = Hosted::new(30, 50).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there");
    let run = ["run", "--window", "100000", "--session", "a", "-p", "one"];
    let mut running = hosted.place.start_command(hosted.command(&run));
    running.close_input();
    wait_until("the model is asked", || hosted.simulator.in_flight() == 1);
    assert_eq!(state(&hosted), "running");
    limit_files(host, Some(1));
    let ended = running.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    limit_files(host, None);
    assert_eq!(state(&hosted), "interrupted");
    assert_eq!(hosted.host(), Some(host));
    assert_eq!(hosted.say("a", "two").code, Some(0));
    assert_eq!(state(&hosted), "idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_asks_a_person_waits() {
    let hosted = Hosted::of(Function(|_: &SeenRequest, _: CallInfo| {
        Answer::call("ask_user", &json!({ "question": "Which?" }))
    }))
    .await;
    hosted.start_host();
    let chat = hosted
        .client(ClientKind::Chat, json!({ "model": { "answers": "person", "allow_write": true } }))
        .await;
    chat.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
    drop(chat.work(PromptSession::new("a", "ask")).await.unwrap());
    let questions = ListQuestions { session_id: Some("a".to_owned()) };
    while chat.call(questions.clone()).await.unwrap().questions.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(state(&hosted), "waiting");
    // Also where nobody has it: the question is in the log.
    hosted.kill_host();
    assert_eq!(state(&hosted), "waiting");
}
