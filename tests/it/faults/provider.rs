//! Every kind of fault, in-process under a paused clock, and over HTTP through the real client.

use std::sync::Arc;

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom_kernel::FailureClass;
use greenroom_provider::{OpenAi, OpenAiOptions};
use greenroom_simulator::{
    ByPurpose, CallInfo, Fault, Function, Point, Reply as Said, Script, SeenRequest, Summariser,
};

use crate::support::{agent, builder, simulator};

/// Takes anything.
#[derive(Deserialize, JsonSchema)]
struct Anything {
    /// Whatever.
    text: Option<String>,
}

fn tooled() -> Agent {
    agent(20_000).tool("note", |it: Anything| async move { Ok(it.text.unwrap_or_default()) })
}

/// Each session is named after the fault that its first answer has; all further answers are good.
fn script(faults: Vec<Fault>) -> impl Script {
    let turns = Function(move |request: &SeenRequest, info: CallInfo| {
        let session = request.session.as_deref().unwrap_or_default();
        let number: usize = session.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        if info.session_call > 0 {
            return Said::text("a good answer");
        }
        let call = serde_json::json!({ "text": "some words that are long enough to be cut in half" });
        Said::text("this is only a part").and_call("note", &call).with_fault(faults[number].clone())
    });
    ByPurpose::new(turns, Summariser::Obedient)
}

/// Two prompts: the first meets the fault, and ends in a typed state; the second is answered.
async fn survive(runtime: &Runtime, number: usize, fault: &Fault) {
    let name = fault.name();
    let session = runtime.open(&format!("fault-{number}"), &tooled()).await.unwrap();
    match session.prompt("first").await {
        Ok(reply) => assert_eq!(reply.text, "a good answer", "{name}"),
        Err(Error::Model(failure)) => {
            // Below the window, a 400 without a word says nothing.
            let says_nothing = matches!(fault, Fault::EmptyBody(400));
            assert!(failure.class != FailureClass::Other || says_nothing, "{name}: {failure:?}");
        }
        Err(error) => panic!("{name}: {error:?}"),
    }
    assert_eq!(session.prompt("second").await.unwrap().text, "a good answer", "{name}");
    let state = session.state().await.unwrap();
    assert_eq!((state.status, state.waiting, state.is_unanswered), ("idle", 0, false), "{name}");
    let context = session.context().await.unwrap();
    let answers = context.iter().filter(|message| message.role() == "assistant");
    let parts =
        answers.filter(|message| message.text().contains("only a part") && message.tool_calls().count() == 0);
    assert_eq!(parts.count(), 0, "{name}: a partial answer was recorded as one");
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_fault_is_survived_in_process() {
    let faults = Fault::every_kind();
    let model = simulator(script(faults.clone()), 20_000);
    let runtime = builder(&model).max_in_flight(1_000).start().await.unwrap();
    join_all(faults.iter().enumerate().map(|(number, fault)| survive(&runtime, number, fault))).await;
    assert_all_fired(&model, &faults);
    runtime.shutdown().await.unwrap();
}

#[tokio::test]
async fn every_kind_of_fault_is_survived_over_http() {
    const IDLE_MS: u64 = 1_500;
    // Pings that come several times within the limit, before the answer begins and in the middle of it.
    let ping = |at| Fault::Stall { at, ping_every_ms: Some(IDLE_MS / 10), for_ms: None };
    let is_pinging = |fault: &Fault| matches!(fault, Fault::Stall { ping_every_ms: Some(_), .. });
    let mut faults = Fault::every_kind();
    faults.retain(|fault| !is_pinging(fault));
    faults.extend([ping(Point::AfterHeaders), ping(Point::MidStream)]);
    let model = simulator(script(faults.clone()), 20_000);
    let server = model.serve().await.unwrap();
    let options = OpenAiOptions {
        base_url: server.base_url(),
        first_event_timeout_ms: 2 * IDLE_MS,
        idle_timeout_ms: IDLE_MS,
        // The simulator tells sessions apart by it.
        prompt_cache_key: Some(true),
        ..OpenAiOptions::default()
    };
    let provider = OpenAi::new(options).unwrap();
    let runtime = Runtime::builder()
        .provider(Arc::new(provider))
        .max_in_flight(1_000)
        .in_memory()
        .start()
        .await
        .unwrap();
    join_all(faults.iter().enumerate().map(|(number, fault)| survive(&runtime, number, fault))).await;
    assert_all_fired(&model, &faults);
    // Both calls were pinged and given up all the same: their sessions were answered.
    assert_eq!(model.fired()["stall_with_pings"], 2);
    assert!(model.pings() >= 20, "{} pings", model.pings());
    runtime.shutdown().await.unwrap();
}

fn assert_all_fired(model: &greenroom_simulator::Simulator, faults: &[Fault]) {
    model.assert_clean();
    let fired = model.fired();
    for fault in faults {
        assert!(
            fired.get(fault.name()).copied().unwrap_or(0) > 0,
            "{} never happened: {fired:?}",
            fault.name()
        );
    }
}
