//! A panic at any point of one session, with a hundred alive: the other ninety-nine are byte-identical to a run
//! without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom_kernel::{Entry, EntryId};
use greenroom_simulator::{ByPurpose, CallInfo, Function, Reply as Said, SeenRequest, Summariser};

use crate::support::{agent, builder, quiet_injected_panics, simulator};

const SESSIONS: usize = 100;
const TURNS: u64 = 3;
/// So many talk long enough to be compacted.
const LONG: usize = 10;

/// Notes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// What.
    text: String,
}

/// Runs a hundred sessions. Where `point` is named, the first session's actor panics the first time it is there,
/// or its tool, model call or summary does. Gives the logs of the others, and how often it panicked.
async fn live(point: Option<&'static str>) -> (Vec<Vec<Entry>>, u32) {
    let hits = Arc::new(AtomicU32::new(0));
    let strike = {
        let hits = Arc::clone(&hits);
        move |session: &str, at: &str| {
            let struck = session == "s0" && Some(at) == point && hits.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!struck, "injected at {at}");
        }
    };
    let (in_model, in_summary, in_tool) = (strike.clone(), strike.clone(), strike.clone());
    let turns = Function(move |request: &SeenRequest, info: CallInfo| {
        in_model(request.session.as_deref().unwrap_or_default(), "provider");
        if info.session_call.is_multiple_of(2) {
            Said::call("note", &serde_json::json!({ "text": request.session }))
        } else {
            Said::text(format!("answer {} {}", info.session_call, "word ".repeat(20)))
        }
    });
    let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
        in_summary(request.session.as_deref().unwrap_or_default(), "summary");
        greenroom_simulator::Script::reply(&Summariser::Obedient, request, info)
    });
    let model = simulator(ByPurpose::new(turns, summaries), 6_000);
    let in_hook = strike.clone();
    let runtime = builder(&model)
        .max_in_flight(10_000)
        .probe(strike)
        .before_compact(move |session, _| {
            in_hook(&session, "hook");
            async { greenroom::BeforeCompact::Continue }
        })
        .start()
        .await
        .unwrap();
    let tooled = Arc::new(agent(6_000).tool("note", move |note: Note| {
        in_tool(&note.text, "tool");
        async move { Ok(format!("noted {}", note.text)) }
    }));
    let lives = (0..SESSIONS).map(|number| {
        let (runtime, tooled) = (runtime.clone(), Arc::clone(&tooled));
        async move {
            let id = format!("s{number}");
            let session = runtime.open_shared(&id, tooled).await.unwrap();
            for turn in 0..TURNS {
                let words = "thing ".repeat(if number < LONG { 1_800 } else { 5 });
                let end = session.prompt(format!("question {turn} {words}")).await;
                assert!(number == 0 || end.is_ok(), "{id}: {end:?}");
                if end.is_err() {
                    // It is on its way back.
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                while number > 0 && session.state().await.unwrap().status != "idle" {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            }
            runtime.entries(&id, EntryId(0)).await.unwrap()
        }
    });
    let mut logs = join_all(lives).await;
    logs.remove(0);
    model.assert_clean();
    runtime.shutdown().await.unwrap();
    (logs, hits.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_of_a_hundred_sessions_changes_no_other() {
    quiet_injected_panics();
    let (calm, _) = live(None).await;
    assert!(calm[..LONG - 1].iter().all(|log| log.iter().any(|entry| entry.kind.as_compaction().is_some())));
    for point in [
        "session/prompt",
        "session/record",
        "session/measured",
        "session/project",
        "session/replace_path_segment",
        "install/2_drafted",
        "install/3_durable",
        "agent/begin",
        "agent/broadcast",
        "agent/context",
        "agent/model_over",
        "agent/tool_over",
        "usage_tracker/appended",
        "usage_tracker/measure_for",
        "compactor/begin",
        "compactor/answered",
        "provider",
        "summary",
        "tool",
        "hook",
    ] {
        let (others, hits) = live(Some(point)).await;
        assert!(hits > 0, "{point} was never reached");
        for (number, (log, calm)) in others.iter().zip(&calm).enumerate() {
            assert_eq!(log, calm, "{point}: session s{} is not what it was", number + 1);
        }
    }
}
