//! What the host of a store is asked for through `run`, `rpc` and `top` is what these give without one: answers of a form,
//! and lists with nothing in them.

use greenroom_server::operations::{ClientKind, ListLive, PromptSession, ResumeSession, StartSession};
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest};
use serde_json::{Value, json};

use super::Hosted;
use crate::cli::support::{Ran, events};

const CITY: &str =
    r#"{"title":"city","type":"object","properties":{"name":{"type":"string"}},"required":["name"]}"#;

/// A model that gives the form at the second attempt; never, where it is asked for nonsense; and its text where no form is
/// asked for.
async fn hosted() -> Hosted {
    Hosted::of(Function(|request: &SeenRequest, _: CallInfo| {
        let is_nonsense = request.messages.iter().any(|message| message.text() == "nonsense");
        let is_second = request.last_user_text().contains("not valid JSON");
        match request.output_schema.is_some() {
            true if is_second && !is_nonsense => Answer::text(r#"{"name":"Bergen"}"#),
            _ => Answer::text("It is Bergen."),
        }
    }))
    .await
}

/// All that can be asked of `run` with a form: each with its own session, of which some are gone on with.
fn asked(hosted: &Hosted, more: &[&str]) -> Vec<Ran> {
    let cases: [&[&str]; 8] = [
        &["--session", "a", "-p", "where?", "--output-schema", CITY],
        &["--session", "a", "-p", "where?"],
        &["--session", "b", "-p", "where?", "--output-schema", "city.json", "--json"],
        &["--session", "c", "-p", "nonsense", "--output-schema", CITY],
        &["--session", "d", "-p", "nonsense", "--output-schema", CITY, "--json"],
        &["--session", "e", "-p", "where?", "--output-schema", "none.json"],
        &["--session", "e", "-p", "where?", "--output-schema", r#"{"properties":{"a":{"type":"text"}}}"#],
        &["--session", "e", "-p", "where?", "--output-schema", r#"{"$ref":"https://example.com/x.json"}"#],
    ];
    cases
        .iter()
        .map(|case| hosted.run(&[&["run", "--window", "100000", "--no-tools"], *case, more].concat()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_form_is_the_same_with_a_host_and_without_one() {
    let (with, without) = (hosted().await, hosted().await);
    for hosted in [&with, &without] {
        std::fs::write(hosted.place.work().join("city.json"), CITY).unwrap();
    }
    let (ran, alone) = (asked(&with, &[]), asked(&without, &["--no-host"]));
    assert!(with.host().is_some() && without.host().is_none());
    let value = json!({ "name": "Bergen" });
    assert_eq!((ran[0].code, ran[0].stdout.as_str()), (Some(0), "{\"name\":\"Bergen\"}\n"), "{:?}", ran[0]);
    assert_eq!((ran[1].code, ran[1].stdout.as_str()), (Some(0), "It is Bergen.\n"), "{:?}", ran[1]);
    assert_eq!(events(&ran[2]).pop().unwrap()["value"], value);
    assert!(ran[3].stderr.contains("does not fit the schema \"city\""), "{:?}", ran[3]);
    assert_eq!(events(&ran[4]).pop().unwrap()["type"], "error");
    let codes: Vec<_> = ran.iter().map(|ran| ran.code).collect();
    assert_eq!(codes, [0, 0, 0, 1, 1, 2, 2, 2].map(Some));
    for (ran, alone) in ran.iter().zip(&alone) {
        assert_eq!((ran.code, &ran.stderr), (alone.code, &alone.stderr), "{ran:?}");
        // The size of a context is measured beside the run, and the folder is noted at another moment.
        let is_elsewhere =
            |event: &Value| matches!(event["type"].as_str(), Some("usage_update" | "recorded"));
        let kinds = |ran: &Ran| -> Vec<Value> {
            let events = ran.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let events = events.filter(|event| !is_elsewhere(event));
            events.map(|event| json!([event["type"], event["value"], event["outcome"]])).collect()
        };
        assert_eq!(kinds(ran), kinds(alone), "{ran:?} and {alone:?}");
    }
    let sessions = with.place.json(&["sessions", "--json"]);
    assert_eq!(sessions.as_array().unwrap().len(), 4, "nothing was begun with a wrong schema: {sessions}");
}

/// A program asks in its own words, and goes on with what was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_asks_a_host_for_an_answer_of_a_form() {
    let hosted = hosted().await;
    hosted.start_host();
    let schema: Value = serde_json::from_str(CITY).unwrap();
    let mut rpc = hosted.place.start_command(hosted.command(&["rpc", "--window", "100000", "--no-tools"]));
    let mut ask = |id: u64, params: Value| {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params });
        rpc.say(&request.to_string());
        loop {
            let line = rpc.wait_for("\"jsonrpc\"");
            let told: Value = serde_json::from_str(&line).unwrap();
            if told["error"].is_object() || told["params"]["request_id"] == id {
                break told;
            }
        }
    };
    let told = ask(1, json!({ "session_id": "a", "text": "where?", "output_schema": schema }));
    assert_eq!(told["params"]["value"], json!({ "name": "Bergen" }), "{told}");
    let told = ask(2, json!({ "session_id": "a", "text": "where?" }));
    assert_eq!((&told["params"]["text"], told["params"].get("value")), (&json!("It is Bergen."), None));
    let told = ask(3, json!({ "session_id": "b", "text": "nonsense", "output_schema": schema }));
    assert!(told["params"]["error"]["message"].as_str().unwrap().contains("does not fit"), "{told}");
    let wrong = json!({ "properties": { "a": { "type": "text" } } });
    let told = ask(4, json!({ "session_id": "b", "text": "x", "output_schema": wrong }));
    assert!(told["error"]["message"].as_str().unwrap().contains("/properties/a/type"), "{told}");
    rpc.close_input();
    assert_eq!(rpc.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_cut_off_goes_on_with_a_form() {
    let hosted = Hosted::new(6_000, 20).await;
    hosted.start_host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    drop(chat.work(PromptSession::new("a", "where?")).await.unwrap());
    super::wait_until("the model is asked", || hosted.simulator.in_flight() == 1);
    hosted.kill_host();
    hosted.start_host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    chat.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
    let output_schema = Some(serde_json::from_str(CITY).unwrap());
    let resume = ResumeSession { session_id: "a".to_owned(), settings: Default::default(), output_schema };
    drop(chat.work(resume).await.unwrap());
    super::wait_until("the model is asked", || {
        hosted.simulator.requests().last().unwrap().request.output_schema.is_some()
    });
    chat.close().await;
}

/// A host with nothing at work says so; looking on starts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_live_sessions_says_so() {
    let hosted = hosted().await;
    hosted.start_host();
    let look = |what: &str| {
        let ran = hosted.run(&["top", "--json"]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "[]\n", ""), "{what}");
        let ran = hosted.run(&["top"]);
        let said = "No session is live; `greenroom sessions` lists the stored ones.\n";
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), said, ""), "{what}");
    };
    look("nothing was ever said");
    let client = hosted.client(ClientKind::Watch, json!({})).await;
    assert!(client.call(ListLive {}).await.unwrap().sessions.is_empty());
    assert_eq!(hosted.say("a", "one").code, Some(0));
    assert_eq!(client.call(ListLive {}).await.unwrap().sessions[0].state.id, "a");
    assert_eq!(hosted.run(&["delete", "a"]).code, Some(0));
    look("what was said is deleted");
    hosted.kill_host();
    hosted.start_host();
    let client = hosted.client(ClientKind::Watch, json!({})).await;
    assert!(client.call(ListLive {}).await.unwrap().sessions.is_empty());
    assert_eq!(hosted.run(&["sessions"]).code, Some(0));
    look("looking starts nothing");
    client.close().await;
}
