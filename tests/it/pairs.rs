//! Every event that begins has one that ends, of the same name, whichever actor dies in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use greenroom::prelude::*;
use greenroom::{Delta, Role};
use greenroom_simulator::{Answer as Said, Pace, Sequence};
use serde_json::json;

use crate::support::{agent, builder, drain, quiet_injected_panics, runtime, simulator};

/// Starts and ends, in order.
fn pairs(events: &[Arc<Event>]) -> Vec<&'static str> {
    let is_pair = |event: &&Arc<Event>| match &event.kind {
        EventKind::RunStart
        | EventKind::RunEnd { .. }
        | EventKind::MessageStart
        | EventKind::MessageDiscarded => true,
        EventKind::MessageEnd { message, .. } => message.role == Role::Assistant,
        _ => false,
    };
    events.iter().filter(is_pair).map(|event| event.kind.name()).collect()
}

/// The model had only reasoned when it was interrupted: nothing of that joins the conversation.
#[tokio::test(start_paused = true)]
async fn an_answer_of_which_nothing_is_kept_is_discarded_before_its_run_ends() {
    let thinks = Said::call("look", &json!({ "at": "the sky, for a long time" })).with_pace(Pace {
        chunks: 10,
        first_ms: 10,
        between_ms: 1_000,
    });
    let model = simulator(Sequence(vec![thinks]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("thinks", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("look").await }
    });
    let mut seen = Vec::new();
    loop {
        let event = events.next_event().await.unwrap();
        seen.push(Arc::clone(&event));
        if matches!(event.kind, EventKind::MessageDelta { delta: Delta::ToolArguments { .. }, .. }) {
            break;
        }
    }
    session.abort();
    assert!(matches!(prompt.await.unwrap(), Err(Error::Aborted)));
    seen.extend(drain(&mut events));
    assert_eq!(pairs(&seen), ["run_start", "message_start", "message_discarded", "run_end"]);
}

/// The agent dies at each of its messages in turn, and another continues the run: it begins once and ends
/// once.
#[tokio::test(start_paused = true)]
async fn a_run_that_outlives_its_agent_begins_once_and_ends_once() {
    quiet_injected_panics();
    let mut strikes = 0;
    for strike in 1..40 {
        let script = vec![Said::call("nothing", &json!({})), Said::text("one two three")];
        let model = simulator(Sequence(script), 100_000);
        let (hits, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&count);
        let struck = Arc::clone(&hits);
        let runtime = builder(&model)
            .probe(move |_, at| {
                let strikes =
                    at.starts_with("agent/") && counted.fetch_add(1, Ordering::Relaxed) + 1 == strike;
                if strikes {
                    struck.fetch_add(1, Ordering::Relaxed);
                    panic!("injected at message {strike} of the agent: {at}");
                }
            })
            .start()
            .await
            .unwrap();
        let mut events = runtime.subscribe(Filter::session("dies"));
        let Ok(session) = runtime.open("dies", &agent(100_000)).await else { continue };
        let reply = session.prompt("go").await;
        if hits.load(Ordering::Relaxed) == 0 {
            break;
        }
        strikes += 1;
        assert!(reply.is_ok(), "{strike}: {reply:?}");
        let told = pairs(&drain(&mut events));
        let count = |name: &str| told.iter().filter(|told| **told == name).count();
        assert_eq!((count("run_start"), count("run_end")), (1, 1), "{strike}: {told:?}");
        assert_eq!(
            count("message_start"),
            count("message_end") + count("message_discarded"),
            "{strike}: {told:?}"
        );
        assert_eq!((told[0], *told.last().unwrap()), ("run_start", "run_end"), "{strike}: {told:?}");
    }
    assert!(strikes >= 12, "only {strikes} of the agent's messages were struck");
}
