//! Clients that share a host: what becomes of their runs.

use greenroom::EventKind;
use greenroom_server::Received;
use greenroom_server::operations::{ClientKind, GetState, PromptSession, StartSession};
use rustix::process::Signal;
use serde_json::json;

use super::{Hosted, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_interrupted_or_killed_takes_its_run_with_it_and_a_chat_does_not() {
    for signal in [Signal::INT, Signal::KILL] {
        // It would take a minute.
        let hosted = Hosted::new(600, 100).await;
        hosted.start_host();
        let watch = hosted.client(ClientKind::Chat, json!({})).await;
        let mut events = watch.events_of("a");
        let arguments = ["run", "--window", "100000", "--session", "a", "-p", "one"];
        let mut running = hosted.place.start_command(hosted.command(&arguments));
        running.close_input();
        wait_until("the model is asked", || hosted.simulator.in_flight() == 1);
        watch.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, (signal == Signal::INT).then_some(130), "{ended:?}");
        let outcome = loop {
            let Some(Received::Event(event)) = events.next().await else { panic!("nothing is missed") };
            if let EventKind::RunEnd { outcome, .. } = &event.kind {
                break outcome.as_str().to_owned();
            }
        };
        assert_eq!(outcome, "aborted", "{signal:?}");
        wait_until("the model's call is over", || hosted.simulator.in_flight() == 0);
    }
    let hosted = Hosted::new(30, 50).await;
    hosted.start_host();
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    drop(chat.work(PromptSession::new("a", "one")).await.unwrap());
    chat.close().await;
    // It comes back, and hears the rest.
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    let mut events = chat.events_of("a");
    chat.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
    let state = chat.call(GetState { session_id: "a".to_owned() }).await.unwrap();
    assert_eq!(state.status, greenroom::Status::Working);
    loop {
        let Some(Received::Event(event)) = events.next().await else { panic!("nothing is missed") };
        if let EventKind::RunEnd { outcome, .. } = &event.kind {
            assert_eq!(outcome.as_str(), "completed");
            break;
        }
    }
    assert_eq!(hosted.simulator.calls(), 1);
}
