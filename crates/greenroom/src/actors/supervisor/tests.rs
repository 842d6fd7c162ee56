//! Late messages to the supervisor.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

use crate::core::message::SupervisorMessage;
use crate::core::shared::Parking;
use crate::values::error::Error;
use crate::{Agent, CompactOptions, Question, Runtime, SessionHandle, ToolContext, ToolError, tool};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// A model that calls its tool, and ends once the tool has a result.
fn model() -> Simulator {
    let script = Function(|request: &SeenRequest, _: CallInfo| match request.messages.last() {
        Some(last) if last.role() == "tool" => Answer::text("Done."),
        _ => Answer::call("ask", &json!({})),
    });
    Simulator::new(SimulatorOptions::new(script))
}

/// Waits until the session sleeps during its run.
async fn parked(session: &SessionHandle) -> Parking {
    for _ in 0..1_000 {
        if let Some(parking) = session.door.shared.parking() {
            return parking;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    panic!("it never sleeps in its run");
}

/// A session that sleeps during a run whose tool waits for a person, and the run's first parking.
async fn asleep(runtime: &Runtime, id: &str) -> (SessionHandle, crate::Run, Parking) {
    let ask = tool("ask", async |_: Nothing, cx: ToolContext| {
        let answer = cx.ask(Question::choice("May it?", ["yes", "no"])).await?;
        Ok::<_, ToolError>(answer.to_string())
    });
    let agent = Agent::new("simulated").context_window(100_000).add_tool(ask);
    let session = runtime.open(id, &agent).await.unwrap();
    let run = session.prompt("Do it.").start().await.unwrap();
    let first = parked(&session).await;
    (session, run, first)
}

fn give_up(session: &SessionHandle, parking: Parking) {
    let supervisor = session.door.deps.supervisor.get().unwrap();
    let error = Error::SessionFailed { session: session.id().to_owned(), reason: "too often".to_owned() };
    let id = Arc::clone(&session.door.shared.id);
    supervisor.cast(SupervisorMessage::GiveUp { id, parking, error }).unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_the_run_that_could_not_be_woken_is_given_up() {
    let model = model();
    let builder = Runtime::builder().provider(model.provider()).in_memory();
    let runtime = builder.idle_after(Duration::from_secs(60)).start().await.unwrap();

    // Another request woke the session in the meantime, and it parked its run again, so the message is late.
    let (session, run, first) = asleep(&runtime, "late").await;
    let _ = session.plan(CompactOptions::default()).await;
    while session.door.shared.parking() == Some(first) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_ne!(parked(&session).await, first);
    give_up(&session, first);
    assert_eq!(runtime.live().await.unwrap().len(), 0, "the supervisor has heard it");
    assert!(session.door.shared.is_suspended(), "the run goes on");
    let question = session.questions().await.unwrap().pop().unwrap();
    session.answer(question.id, "yes").await.unwrap();
    assert_eq!(run.reply().await.unwrap().text, "Done.");

    // Nothing woke this one: the caller of the run gets the error.
    let (session, run, first) = asleep(&runtime, "in time").await;
    give_up(&session, first);
    assert!(matches!(run.reply().await, Err(Error::SessionFailed { .. })));
    assert!(!session.door.shared.is_suspended());
    runtime.shutdown().await.unwrap();
}
