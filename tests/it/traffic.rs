//! The number of messages between actors for a run: each wakes a task, so that a new one must be noticed
//! here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest};
use serde_json::json;

use crate::support::{agent, builder, simulator};

/// Looks something up.
#[derive(Deserialize, JsonSchema)]
struct Look {
    /// The text to work on.
    up: String,
}

/// The messages of a run of two steps with a call between them. Nothing forwards a message that its receiver
/// could have got directly.
#[tokio::test(start_paused = true)]
async fn a_run_s_messages_are_these() {
    let script = Function(|request: &SeenRequest, _: CallInfo| {
        if request.messages.last().is_some_and(|message| message.role() == "tool") {
            Said::text("on page 7")
        } else {
            Said::call("look", &json!({ "up": "word" }))
        }
    });
    let model = simulator(script, 100_000);
    let passed = Arc::<Mutex<BTreeMap<&'static str, u32>>>::default();
    let counted = Arc::clone(&passed);
    let runtime = builder(&model)
        .probe(move |_, at| *counted.lock().unwrap().entry(at).or_default() += 1)
        .start()
        .await
        .unwrap();
    let look = agent(100_000).tool("look", |look: Look| async move { Ok(format!("{} is here", look.up)) });
    let session = runtime.open("s", &look).await.unwrap();
    session.prompt("Where is the first word?").await.unwrap();
    passed.lock().unwrap().clear();
    let reply = session.prompt("Where is the word?").await.unwrap();
    assert_eq!(reply.steps, 2);
    let passed: Vec<(&str, u32)> = std::mem::take(&mut *passed.lock().unwrap()).into_iter().collect();
    let expected = [
        ("agent/begin", 1),
        // The prompt, the answer with the call, its result, and the last answer with the end, which are
        // recorded together.
        ("agent/broadcast", 5),
        ("agent/model_over", 2),
        ("agent/recorded", 3),
        ("agent/sized", 2),
        ("agent/tool_over", 1),
        ("agent/tools_over", 1),
        ("session/measured", 1),
        ("session/prompt", 1),
        ("session/record", 3),
        ("usage_tracker/appended", 4),
        ("usage_tracker/billed", 2),
        ("usage_tracker/measure", 2),
        ("usage_tracker/measure_for", 1),
    ];
    assert_eq!(passed, expected);
    model.assert_clean();
}
