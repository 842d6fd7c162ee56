//! Searches in what was said: by the model in what was compacted away, by programs in everything.

use std::sync::atomic::Ordering;

use greenroom::EntryId;
use greenroom::prelude::*;
use greenroom_kernel::message::Message;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::{newest, text};
use crate::support::overtaken::Overtaken;
use crate::support::{agent, builder, runtime, simulator};

/// Asks with a search where the user says so, and answers with what was found.
fn searching(window: u64) -> Simulator {
    let talk = |request: &SeenRequest, info: CallInfo| {
        if let Some(Message::ToolResult(result)) = request.messages.last().map(|last| &**last) {
            return Said::text(format!("found: {}", greenroom_kernel::message::blocks_text(&result.content)));
        }
        match request.last_user_text().strip_prefix("search: ") {
            Some(query) => Said::call("recall", &json!({ "query": query })),
            None => Said::text(text(&format!("answer {}.", info.session_call), 200)),
        }
    };
    simulator(ByPurpose::new(Function(talk), Summariser::Lossy), window)
}

/// A tool, so that the agent has `recall`.
fn with_tool(window: u64) -> Agent {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    agent(window).tool("look", |_: Nothing| async { Ok("nothing") })
}

async fn say(session: &SessionHandle, text: impl Into<Prompt>) -> String {
    session.prompt(text).await.unwrap().text
}

/// What a lossy summary dropped is one search away; what the model still sees is not shown again.
#[tokio::test(start_paused = true)]
async fn the_model_finds_what_was_compacted_away() {
    let model = searching(8_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &with_tool(8_000)).await.unwrap();
    assert!(say(&session, "search: staging").await.contains("Nothing that was compacted away"));
    say(&session, "The staging database listens on port 6543; never migrate it on a Friday.").await;
    for turn in 0..12 {
        say(&session, format!("Turn {turn}: {}", text("more of it", 400))).await;
    }
    let first_kept = newest(&runtime, "s").await.first_kept.unwrap();
    say(&session, "The staging banner is green.").await;
    let found = say(&session, "search: which port has the staging database").await;
    assert!(found.contains("port 6543"), "{found}");
    assert!(!found.contains("banner"), "that is in the context: {found}");
    let first = found.lines().next().unwrap();
    assert!(first.starts_with("found: [entry ") && first.contains(", user, "), "{first}");
    let entry: u64 = first["found: [entry ".len()..].split(',').next().unwrap().parse().unwrap();
    assert!(entry < first_kept.0, "{entry}, kept from {first_kept}");
    assert!(say(&session, "search: xylophone").await.contains("Nothing that was compacted away"));
    model.assert_clean();
}

/// A session that is deleted while all are searched has no hits, and the others have theirs.
#[tokio::test(start_paused = true)]
async fn a_search_in_all_sessions_survives_the_deletion_of_one() {
    let (model, engine) = (searching(100_000), Overtaken::new());
    let runtime = builder(&model).engine(engine.clone()).start().await.unwrap();
    for id in ["gone", "kept"] {
        let session = runtime.open(id, &agent(100_000)).await.unwrap();
        say(&session, "The service retries seven times.").await;
    }
    engine.is_next_late.store(true, Ordering::SeqCst);
    let deletes = async {
        engine.reads.notified().await;
        runtime.delete("gone").await.unwrap();
        engine.goes_on.notify_one();
    };
    let (found, ()) = tokio::join!(runtime.recall("retries", 10), deletes);
    let found = found.unwrap();
    assert!(!found.is_empty() && found.iter().all(|hit| hit.session == "kept"), "{found:?}");
    model.assert_clean();
}

/// Programs search everything on the current path: of one session or of all, over restarts, and not what was deleted.
#[tokio::test]
async fn programs_search_every_session() {
    let dir = tempfile::tempdir().unwrap();
    for life in 0..2 {
        let model = searching(100_000);
        let runtime =
            Runtime::builder().provider(model.provider()).data_dir(dir.path()).start().await.unwrap();
        let sessions = ["a", "b", "c"];
        if life == 0 {
            for id in sessions {
                let session = runtime.open(id, &agent(100_000)).await.unwrap();
                say(&session, format!("The {id} service retries seven times.")).await;
                say(&session, "Something else altogether.").await;
                // A branch that was left is not searched.
                say(&session, "The retry limit is a platypus.").await;
                session.branch(Some(EntryId(1))).await.unwrap();
                say(&session, format!("Then {id} goes on.")).await;
            }
        }
        let found = runtime.recall("how often does it retry", 10).await.unwrap();
        let mut of: Vec<&str> = found.iter().map(|found| found.session.as_str()).collect();
        of.sort_unstable();
        assert_eq!(of, sessions, "{found:?}");
        assert!(found.iter().all(|found| found.role == "user" && found.text.contains("seven times")));
        assert!(runtime.recall("platypus", 10).await.unwrap().is_empty());
        assert_eq!(runtime.recall("retry", 2).await.unwrap().len(), 2);
        let session = runtime.session("b").await.unwrap();
        let own = session.recall("retries", 10).await.unwrap();
        assert_eq!(own.iter().map(|found| found.session.as_str()).collect::<Vec<_>>(), ["b"]);
        assert!(life == 0 || !session.is_live(), "a search starts nothing");
        // What is said after a search is found by the next one.
        let session = runtime.open("b", &agent(100_000)).await.unwrap();
        say(&session, format!("A walrus {life}.")).await;
        assert_eq!(session.recall("walrus", 9).await.unwrap().len(), life + 1);
        if life == 1 {
            runtime.delete("b").await.unwrap();
            assert!(runtime.recall("walrus", 9).await.unwrap().is_empty());
            assert!(matches!(session.recall("walrus", 9).await, Err(Error::Deleted { .. })));
            let again = runtime.open("b", &agent(100_000)).await.unwrap();
            say(&again, "A heron.").await;
            assert!(again.recall("walrus", 9).await.unwrap().is_empty());
            assert_eq!(again.recall("heron", 9).await.unwrap()[0].text, "A heron.");
        }
        runtime.shutdown().await.unwrap();
    }
}

/// The whole text of a result that was cut on arrival is searched, and is found in the entry of the result, which is on the
/// path and opens with the whole text.
#[tokio::test(start_paused = true)]
async fn a_result_that_was_cut_on_arrival_is_found() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let talk = |request: &SeenRequest, _: CallInfo| {
        if let Some(Message::ToolResult(_)) = request.messages.last().map(|last| &**last) {
            return Said::text("seen");
        }
        match request.last_user_text().strip_prefix("recall ") {
            Some(entry) => {
                let entry: u64 = entry.parse().unwrap();
                Said::call("recall", &json!({ "entry": entry, "find": "A platypus" }))
            }
            None => Said::call("look", &json!({})),
        }
    };
    let model = simulator(Function(talk), 8_000);
    let runtime = runtime(&model).await;
    let long =
        format!("{}\nA platypus listens on port 6543.\n{}", text("before", 1_500), text("after", 2_000));
    let agent = agent(8_000).tool("look", move |_: Nothing| {
        let long = long.clone();
        async move { Ok(long) }
    });
    let session = runtime.open("s", &agent).await.unwrap();
    say(&session, "look").await;
    let context = session.context().await.unwrap();
    assert!(context.iter().all(|message| !message.said().contains("platypus")), "it was cut");
    let found = session.recall("platypus", 9).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].text.contains("platypus listens on port 6543"), "{found:?}");
    assert_eq!(found[0].role, "tool");
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let path = greenroom_kernel::path::is_message;
    assert!(entries.iter().any(|entry| entry.id == found[0].entry && path(&entry.kind)), "{found:?}");
    say(&session, format!("recall {}", found[0].entry)).await;
    let context = session.context().await.unwrap();
    assert!(context.iter().any(|message| message.said().contains("]\nA platypus listens")), "{context:?}");
    model.assert_clean();
}
