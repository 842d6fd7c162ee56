//! A steer joins the request in progress: after a compaction both are there, verbatim.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::entry::EntryKind;
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Sequence, Summariser};
use serde_json::json;

use crate::compaction_fixtures::{compactions, opened, said, text, user};
use crate::support::{agent, runtime, simulator};

#[derive(Deserialize, JsonSchema)]
struct Step {
    step: u64,
}

/// A run of many steps with two steers, then compacted: the request stays, with its steers.
#[tokio::test(start_paused = true)]
async fn a_request_and_its_steers_are_both_verbatim_after_a_compaction() {
    let talk = Function(|_: &SeenRequest, info: CallInfo| {
        if info.session_call < 24 {
            Said::call("work", &json!({ "step": info.session_call }))
        } else {
            Said::text("done")
        }
    });
    let model = simulator(ByPurpose::new(talk, Summariser::Obedient), 8_000);
    let runtime = runtime(&model).await;
    let worker = agent(8_000).tool("work", |step: Step| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(text(&format!("worked {}.", step.step), 400))
    });
    let session = opened(&runtime, "s", &worker, vec![user("hello"), said("hello")]).await;
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("Count the lighthouses.").await }
    });
    for steer in ["Only those that are red.", "And leave out the islands."] {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        session.steer(steer).await.unwrap();
    }
    run.await.unwrap().unwrap();
    let compactions = compactions(&runtime, "s").await;
    assert!(compactions.len() >= 2, "{} compactions", compactions.len());
    for (_, compaction) in &compactions {
        let request = compaction.active_request.clone().unwrap_or_default();
        for said in ["Count the lighthouses.", "Only those that are red.", "And leave out the islands."] {
            assert!(request.contains(said) && compaction.summary.contains(said), "{said}: {request}");
        }
    }
    // The path records which messages were steers, also when it is read again.
    let entries = runtime.engine().load("s", greenroom_kernel::EntryId(0)).await.unwrap();
    let steers: Vec<String> = entries
        .iter()
        .filter(|entry| entry.kind.is_steer())
        .filter_map(|entry| Some(entry.kind.as_message()?.text()))
        .collect();
    assert_eq!(steers, ["Only those that are red.", "And leave out the islands."]);
    model.assert_clean();
}

/// An answer that a validator sends back does not replace the request either; a message that begins a run is
/// never a steer.
#[tokio::test(start_paused = true)]
async fn a_correction_joins_the_request_and_what_begins_a_run_is_no_steer() {
    let model = simulator(Sequence(vec![Said::text("four"), Said::text("4"), Said::text("5")]), 8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(8_000)).await.unwrap();
    let prompt = session.prompt("Two and two?").validate(async |answer| {
        if answer.text.chars().all(|c| c.is_ascii_digit()) { Ok(()) } else { Err("use digits") }
    });
    prompt.await.unwrap();
    // A steer to an idle session is a prompt.
    session.steer("And one more?").await.unwrap();
    while session.state().await.unwrap().status != greenroom::Status::Idle {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let entries = runtime.engine().load("s", greenroom_kernel::EntryId(0)).await.unwrap();
    let users: Vec<(String, bool)> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::Message { message, steer, .. } if message.role() == "user" => {
                Some((message.text().lines().next().unwrap_or_default().to_owned(), *steer))
            }
            _ => None,
        })
        .collect();
    let expect = [
        ("Two and two?".to_owned(), false),
        ("Your answer was not accepted: use digits".to_owned(), true),
        ("And one more?".to_owned(), false),
    ];
    assert_eq!(users, expect);
}
