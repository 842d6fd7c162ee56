//! `rpc` beside a host: what it hands on when the host dies.

use greenroom_server::operations::ClientKind;
use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::{Hosted, stop, wait_until};
use crate::cli::support::Running;

/// A model that takes a minute for what is slow.
async fn hosted() -> Hosted {
    let hosted = Hosted::of(Function(|request: &SeenRequest, _: CallInfo| {
        let is_slow = request.messages.last().is_some_and(|last| last.text() == "slow");
        let pace = Pace { chunks: 600, first_ms: 0, between_ms: 100 };
        if is_slow { Answer::text("word ".repeat(600)).with_pace(pace) } else { Answer::text("quick") }
    }))
    .await;
    hosted.start_host();
    hosted
}

fn ask(running: &mut Running, id: u64, method: &str, params: &Value) {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    running.say(&request.to_string());
}

/// The next message that holds this.
fn hear(running: &mut Running, text: &str) -> Value {
    serde_json::from_str(&running.wait_for(text)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_hears_what_became_of_its_requests_and_goes_on_with_the_next_host() {
    // Where there is no other host, it has the store itself.
    for is_next in [false, true] {
        let hosted = hosted().await;
        let mut rpc = hosted.place.start_command(hosted.command(&["rpc", "--window", "100000"]));
        ask(&mut rpc, 1, "session/prompt", &json!({ "session_id": "a", "text": "slow" }));
        let accepted = hear(&mut rpc, "\"id\":1");
        let entry_id = accepted["result"]["entry_id"].clone();
        wait_until("the model is asked", || hosted.simulator.in_flight() == 1);
        if is_next {
            // It must not be quicker.
            rpc.signal(Signal::STOP);
        }
        hosted.kill_host();
        if is_next {
            hosted.start_host();
            rpc.signal(Signal::CONT);
        }
        let outcome = hear(&mut rpc, "session/prompt_result")["params"].clone();
        assert_eq!(
            (&outcome["request_id"], &outcome["entry_id"], &outcome["session_id"], &outcome["error"]["kind"]),
            (&json!(1), &entry_id, &json!("a"), &json!("interrupted")),
        );
        hear(&mut rpc, "the host has ended; further requests go to the next one");
        ask(&mut rpc, 2, "agent/state", &json!({ "session_id": "a" }));
        assert_eq!(hear(&mut rpc, "\"id\":2")["result"]["is_unanswered"], json!(true));
        ask(&mut rpc, 3, "session/prompt", &json!({ "session_id": "a", "text": "and now" }));
        hear(&mut rpc, "\"run_start\"");
        assert_eq!(hear(&mut rpc, "session/prompt_result")["params"]["text"], "quick");
        let host = hosted.host().unwrap().as_raw_nonzero().get();
        assert_eq!(host.cast_unsigned() == rpc.id(), !is_next);
        // Every new client is served by the same host.
        let chat = hosted.client(ClientKind::Chat, json!({})).await;
        chat.close().await;
        rpc.close_input();
        let ended = rpc.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_that_its_host_is_silent_and_that_it_answers_again() {
    let hosted = hosted().await;
    let host = hosted.host().expect("a host is there");
    let mut rpc = hosted.place.start_command(hosted.command(&["rpc", "--window", "100000"]));
    ask(&mut rpc, 1, "session/prompt", &json!({ "session_id": "a", "text": "quick" }));
    hear(&mut rpc, "session/prompt_result");
    stop(host);
    ask(&mut rpc, 2, "agent/state", &json!({ "session_id": "a" }));
    let said = rpc.wait_for_word("does not answer");
    let process = host.as_raw_nonzero();
    assert!(
        said.contains(&format!("(process {process}) does not answer; waiting for it; Ctrl-C exits")),
        "{said}"
    );
    kill_process(host, Signal::CONT).unwrap();
    rpc.wait_for_word("the host answers again");
    hear(&mut rpc, "\"id\":2");
    // The first interruption ends it, whatever the host does.
    stop(host);
    rpc.signal(Signal::INT);
    let ended = rpc.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    kill_process(host, Signal::CONT).unwrap();
}
