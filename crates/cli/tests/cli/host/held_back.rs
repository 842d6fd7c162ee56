//! Input that waited when a host died starts only on request, and never with tools for which it was not meant.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom::State;
use greenroom_server::operations::{
    AnswerQuestion, ClientKind, FollowUp, GetState, ListQuestions, ListWaiting, PromptSession, ResumeSession,
    StartSession, Steer,
};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use serde_json::{Value, json};

use super::{Hosted, wait_until};

/// A model that does what it is told: `CALL command` runs a command, and whatever is slow takes minutes as long as `is_slow`.
async fn hosted(is_slow: &Arc<AtomicBool>) -> Hosted {
    let is_slow = Arc::clone(is_slow);
    Hosted::of(Function(move |request: &SeenRequest, _: CallInfo| {
        let last = request.messages.last().map(|last| (last.role(), last.text()));
        match last {
            Some(("user", told)) if told.starts_with("CALL ") => {
                Answer::call("bash", &json!({ "command": told.trim_start_matches("CALL ") }))
            }
            Some(("user", told)) if told == "slow" && is_slow.load(Ordering::SeqCst) => {
                Answer::text("word ".repeat(6_000)).with_pace(Pace {
                    chunks: 6_000,
                    first_ms: 0,
                    between_ms: 50,
                })
            }
            Some((role, told)) => Answer::text(format!("{role} said {told}")),
            None => Answer::text("nobody said anything"),
        }
    }))
    .await
}

async fn start(client: &Client) -> State {
    client.call(StartSession { session_id: "s".to_owned() }).await.unwrap();
    client.call(GetState { session_id: "s".to_owned() }).await.unwrap()
}

async fn resumed(client: &Client) -> Result<String, ClientError> {
    let resume =
        ResumeSession { session_id: "s".to_owned(), settings: Default::default(), output_schema: None };
    Ok(client.work(resume).await?.outcome().await?.reply.text)
}

async fn says(client: &Client, text: &str) -> String {
    client.work(PromptSession::new("s", text)).await.unwrap().outcome().await.unwrap().reply.text
}

/// Waits until the session rests.
async fn rest(client: &Client) -> State {
    loop {
        let state = client.call(GetState { session_id: "s".to_owned() }).await.unwrap();
        if state.status == greenroom::Status::Idle && state.waiting == state.held_back {
            return state;
        }
        tokio::task::yield_now().await;
    }
}

fn shell() -> Value {
    json!({ "model": { "allow_shell": true, "allow_write": true } })
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_terminal_said_never_begins_with_the_tools_of_another() {
    let is_slow = Arc::new(AtomicBool::new(true));
    let hosted = hosted(&is_slow).await;
    let crossed = hosted.place.work().join("crossed");
    hosted.start_host();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    start(&ada).await;
    drop(ada.work(PromptSession::new("s", "slow")).await.unwrap());
    wait_until("her run is under way", || hosted.simulator.in_flight() == 1);
    // He may do nothing, and what he says waits behind her run.
    let call = format!("CALL echo crossed >> {}", crossed.display());
    let his = json!({ "model": { "no_tools": true } });
    let bob = hosted.client(ClientKind::Chat, his.clone()).await;
    drop(bob.work(PromptSession::new("s", &call)).await.unwrap());
    loop {
        let state = ada.call(GetState { session_id: "s".to_owned() }).await.unwrap();
        if state.waiting == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    hosted.kill_host();
    is_slow.store(false, Ordering::SeqCst);
    hosted.start_host();
    let calls = hosted.simulator.calls();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    let state = start(&ada).await;
    assert_eq!((state.waiting, state.held_back, state.is_unanswered), (1, 1, true));
    let shown = ada.call(ListWaiting { session_id: "s".to_owned() }).await.unwrap().inputs;
    assert_eq!(shown.iter().map(|input| input.text.as_str()).collect::<Vec<_>>(), [&call]);
    assert_eq!(says(&ada, "hello").await, "user said hello");
    assert_eq!(rest(&ada).await.held_back, 1);
    assert_eq!(hosted.simulator.calls(), calls + 1, "nothing else began");
    // She goes on, and what he said is not hers.
    drop(ada.work(PromptSession::new("s", "slow")).await.unwrap().outcome().await.unwrap());
    let refused = resumed(&ada).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ProblemKind::Invalid), "{refused}");
    assert!(refused.to_string().contains("other tools"), "{refused}");
    assert_eq!(rest(&ada).await.held_back, 1);
    // He says that his may begin, and it has his tools: none.
    let bob = hosted.client(ClientKind::Chat, his).await;
    start(&bob).await;
    resumed(&bob).await.unwrap();
    let state = rest(&bob).await;
    assert_eq!(state.held_back, 0);
    assert_eq!(lines(&crossed), [""; 0]);
    let offered = hosted.simulator.requests().into_iter().filter(|logged| {
        logged.request.messages.iter().any(|message| message.role() == "user" && message.text() == call)
    });
    let offered: Vec<bool> =
        offered.map(|logged| logged.request.tools.iter().any(|tool| tool.name == "bash")).collect();
    assert!(!offered.is_empty() && offered.iter().all(|has_bash| !has_bash), "{offered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_is_done_once_when_somebody_says_that_it_may_go_on() {
    let is_slow = Arc::new(AtomicBool::new(true));
    let hosted = hosted(&is_slow).await;
    let done = hosted.place.work().join("done");
    hosted.start_host();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    start(&ada).await;
    drop(ada.work(PromptSession::new("s", "slow")).await.unwrap());
    wait_until("the run is under way", || hosted.simulator.in_flight() == 1);
    let call = |what: &str| format!("CALL echo {what} >> {}", done.display());
    let session_id = "s".to_owned();
    ada.call(FollowUp { session_id: session_id.clone(), text: call("followed"), images: Vec::new() })
        .await
        .unwrap();
    ada.call(Steer { session_id: session_id.clone(), text: call("steered"), images: Vec::new() })
        .await
        .unwrap();
    let keyed = PromptSession { key: Some("its key".to_owned()), ..PromptSession::new("s", call("keyed")) };
    drop(ada.work(keyed.clone()).await.unwrap());
    hosted.kill_host();
    is_slow.store(false, Ordering::SeqCst);
    hosted.start_host();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    let state = start(&ada).await;
    assert_eq!((state.held_back, state.is_unanswered), (3, true));
    assert_eq!(says(&ada, "hello").await, "user said hello");
    assert_eq!(rest(&ada).await.held_back, 3);
    assert_eq!(lines(&done), [""; 0], "nothing was done unasked");
    // A prompt that is repeated with its key starts.
    ada.work(keyed).await.unwrap().outcome().await.unwrap();
    assert_eq!(lines(&done), ["keyed"]);
    assert_eq!(rest(&ada).await.held_back, 2);
    resumed(&ada).await.unwrap();
    let state = rest(&ada).await;
    assert_eq!((state.held_back, state.waiting), (0, 0));
    let mut all = lines(&done);
    all.sort();
    assert_eq!(all, ["followed", "keyed", "steered"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steer_stays_with_the_run_that_it_was_meant_for() {
    let is_slow = Arc::new(AtomicBool::new(true));
    let hosted = hosted(&is_slow).await;
    let done = hosted.place.work().join("done");
    hosted.start_host();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    start(&ada).await;
    // A tool is at work when the host dies.
    drop(
        ada.work(PromptSession::new("s", format!("CALL echo once >> {}; sleep 600", done.display())))
            .await
            .unwrap(),
    );
    wait_until("the command is at work", || lines(&done).len() == 1);
    ada.call(Steer { session_id: "s".to_owned(), text: "steered".to_owned(), images: Vec::new() })
        .await
        .unwrap();
    hosted.kill_host();
    hosted.start_host();
    let ada = hosted.client(ClientKind::Chat, shell()).await;
    let state = start(&ada).await;
    assert_eq!((state.held_back, state.is_unanswered), (1, true));
    let calls = hosted.simulator.calls();
    assert_eq!(resumed(&ada).await.unwrap(), "user said steered");
    assert_eq!(rest(&ada).await.held_back, 0);
    assert!(hosted.simulator.calls() > calls);
    assert_eq!(lines(&done), ["once"], "the command is not run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_host_dies_says_where_its_prompt_stands() {
    let hosted = hosted(&Arc::new(AtomicBool::new(true))).await;
    let arguments = ["run", "--window", "100000", "--session", "s", "-p", "slow", "--json"];
    let mut running = hosted.place.start_command(hosted.command(&arguments));
    running.close_input();
    // Its events are told when the prompt has been taken on.
    running.wait_for("message_delta");
    hosted.kill_host();
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("`greenroom resume s`"), "{ended:?}");
}

/// A run that waits at a question is no less hers than one that was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_for_a_person_goes_on_with_its_own_tools_only() {
    let hosted = Hosted::of(Function(|request: &SeenRequest, _: CallInfo| {
        let last = request.messages.last().map(|last| (last.role(), last.text()));
        match last {
            Some(("user", told)) if told == "ask" => {
                Answer::call("ask_user", &json!({ "question": "Which command?" }))
            }
            Some(("tool", command)) if command.starts_with("echo ") => {
                Answer::call("bash", &json!({ "command": command }))
            }
            Some((role, told)) => Answer::text(format!("{role} said {told}")),
            None => Answer::text("nobody said anything"),
        }
    }))
    .await;
    let crossed = hosted.place.work().join("crossed");
    hosted.start_host();
    let hers = json!({ "model": { "answers": "person", "allow_write": true } });
    let his = json!({ "model": { "answers": "person", "allow_shell": true } });
    let ada = hosted.client(ClientKind::Chat, hers.clone()).await;
    start(&ada).await;
    drop(ada.work(PromptSession::new("s", "ask")).await.unwrap());
    let listed = async |client: &Client| {
        let questions = ListQuestions { session_id: Some("s".to_owned()) };
        client.call(questions).await.unwrap().questions
    };
    while listed(&ada).await.is_empty() {
        tokio::task::yield_now().await;
    }
    hosted.kill_host();
    hosted.start_host();
    // He comes first, and answers; with a shell of his.
    let bob = hosted.client(ClientKind::Chat, his).await;
    let state = start(&bob).await;
    assert_eq!((state.status, state.is_held_back), (greenroom::Status::Waiting, true), "{state:?}");
    assert_eq!(state.waiting_tools, ["ask_user"]);
    let question_id = listed(&bob).await[0].id;
    let value = json!(format!("echo crossed >> {}", crossed.display()));
    bob.call(AnswerQuestion { session_id: "s".to_owned(), question_id, value, by: None }).await.unwrap();
    let refused = resumed(&bob).await.unwrap_err();
    assert!(refused.to_string().contains("was started by an agent with other tools"), "{refused}");
    let calls = hosted.simulator.calls();
    // A prompt of his waits for her run, and is his own.
    let mine = bob.work(PromptSession::new("s", "mine")).await.unwrap();
    assert_eq!(hosted.simulator.calls(), calls, "nothing began");
    let ada = hosted.client(ClientKind::Chat, hers).await;
    start(&ada).await;
    assert_eq!(mine.outcome().await.unwrap().reply.text, "user said mine");
    assert_eq!(lines(&crossed), Vec::<String>::new(), "she has no shell");
    let offered = |request: &SeenRequest| request.tools.iter().any(|tool| tool.name == "bash");
    let requests = hosted.simulator.requests();
    let with_shell: Vec<String> = requests
        .iter()
        .filter(|logged| offered(&logged.request))
        .map(|logged| logged.request.messages.last().unwrap().text())
        .collect();
    assert_eq!(with_shell, ["mine"], "his shell was offered for his own words alone");
}
