//! A panic in any handler during a conversation: the session continues from its log, and another one is not
//! affected.
//!
//! Invariants: the points are those that the conversation passes, so a new message is covered automatically.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_simulator::Answer as Said;

use crate::support::{agent, builder, drain, simulator};

/// Whichever actor panics, at whichever message: the session continues, and the log has every entry once.
#[tokio::test(start_paused = true)]
async fn a_panic_in_any_handler_ends_at_its_session() {
    crate::support::quiet_injected_panics();
    let points = points().await;
    assert!(points.len() > 20, "{points:?}");
    for point in points {
        let count = Arc::new(AtomicU32::new(0));
        let hits = Arc::clone(&count);
        let model = simulator(talk(), 6_000);
        let runtime = builder(&model)
            .probe(move |session, at| {
                assert!(
                    !(session == "victim" && at == point && hits.fetch_add(1, Ordering::Relaxed) == 0),
                    "injected panic at {point}"
                );
            })
            .start()
            .await
            .unwrap();
        let mut events = runtime.subscribe(Filter::all().durable());
        let victim = runtime.open("victim", &tooled()).await.unwrap();
        let other = runtime.open("other", &tooled()).await.unwrap();
        let mut failed = 0;
        for run in 0..8 {
            let words = format!("question {run} {}", "thing ".repeat(300));
            // Requests lost with the panic may be repeated; nothing else fails.
            if let Err(error) = victim.prompt(words.clone()).await {
                assert!(matches!(error, Error::Interrupted { .. }), "{point}: {error}");
                failed += 1;
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            other.prompt(words).await.unwrap_or_else(|error| panic!("{point}: the other session: {error}"));
        }
        assert_eq!(count.load(Ordering::Relaxed).min(1), 1, "{point} was never reached");
        assert!(failed <= 1, "{point}: {failed} prompts failed");
        model.assert_clean();
        for id in ["victim", "other"] {
            let entries = runtime.summary(id).await.unwrap().unwrap().entries;
            let replayed: Vec<u64> =
                runtime.replay(id, 0).await.unwrap().iter().map(|event| event.seq).collect();
            assert_eq!(replayed, (0..entries).collect::<Vec<_>>(), "{point}");
        }
        let seen = drain(&mut events);
        let others: Vec<u64> =
            seen.iter().filter(|event| &*event.session == "other").map(|event| event.seq).collect();
        assert_eq!(
            others,
            (0..others.len() as u64).collect::<Vec<_>>(),
            "{point}: the other session's events"
        );
        let starts = seen.iter().filter(|event| event.kind.name() == "compaction_start").count();
        let ends = seen.iter().filter(|event| event.kind.name() == "compaction_end").count();
        assert_eq!(starts, ends, "{point}: each start has one end");
        runtime.shutdown().await.unwrap();
    }
}

fn talk() -> impl greenroom_simulator::Script {
    let runs = greenroom_simulator::Function(|_: &_, info: greenroom_simulator::CallInfo| {
        if info.session_call.is_multiple_of(2) {
            Said::call("note", &serde_json::json!({"text": "x"}))
        } else {
            Said::text(format!("answer {} {}", info.session_call, "word ".repeat(400)))
        }
    });
    greenroom_simulator::ByPurpose::new(runs, greenroom_simulator::Summariser::Obedient)
}

/// Notes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// The text to work on.
    text: String,
}

fn tooled() -> Agent {
    agent(6_000).tool("note", |note: Note| async move { Ok(format!("noted {}", note.text)) })
}

/// Returns all points that such a conversation passes.
async fn points() -> Vec<&'static str> {
    let seen = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let model = simulator(talk(), 6_000);
    let points = Arc::clone(&seen);
    let runtime = builder(&model)
        .probe(move |_, at| {
            points.lock().unwrap().insert(at);
        })
        .start()
        .await
        .unwrap();
    let session = runtime.open("victim", &tooled()).await.unwrap();
    for run in 0..8 {
        session.prompt(format!("question {run} {}", "thing ".repeat(300))).await.unwrap();
    }
    assert!(session.state().await.unwrap().compactions > 0);
    let points = seen.lock().unwrap().iter().copied().collect::<Vec<_>>();
    runtime.shutdown().await.unwrap();
    // The beginning and the end of the session itself are not part of the conversation.
    let is_within = |point: &&str| {
        !matches!(*point, "session/stop" | "session/state" | "session/idle_check" | "session/started")
            && !point.ends_with("/starts")
    };
    points.into_iter().filter(is_within).collect()
}
