//! Copies of sessions that work meanwhile: a fork is one moment of its original.

use std::sync::atomic::Ordering;

use greenroom::prelude::*;
use greenroom_kernel::{Entry, EntryId, EntryKind};
use greenroom_simulator::Echo;

use crate::support::overtaken::Overtaken;
use crate::support::{agent, builder, runtime, simulator};

/// Returns the texts of all messages in a session's log, on its path and beside it.
async fn logged(runtime: &Runtime, id: &str) -> Vec<String> {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let message = |entry: &Entry| match &entry.kind {
        EntryKind::Message { message, .. } => Some(message.text()),
        _ => None,
    };
    entries.iter().filter_map(message).collect()
}

/// The original gets a whole run between the two reads of a fork: its head, and its log. The copy has nothing of it.
#[tokio::test(start_paused = true)]
async fn a_fork_of_a_session_that_works_is_one_moment() {
    for continues in [false, true] {
        let model = simulator(Echo, 50_000);
        let engine = Overtaken::new();
        let runtime = builder(&model).engine(engine.clone()).start().await.unwrap();
        let session = runtime.open("one", &agent(50_000)).await.unwrap();
        session.prompt("first").await.unwrap();
        let before = logged(&runtime, "one").await;
        engine.is_next_late.store(true, Ordering::SeqCst);
        let copy = async {
            match continues {
                false => runtime.fork("one", "two", &agent(50_000)).await.unwrap(),
                true => runtime.continue_in("one", "two", "", &agent(50_000)).await.unwrap().session,
            }
        };
        let works = async {
            engine.reads.notified().await;
            session.prompt("second").await.unwrap();
            engine.goes_on.notify_one();
        };
        let (copy, ()) = tokio::join!(copy, works);
        let copied = runtime.entries("two", EntryId(0)).await.unwrap();
        assert!(copied.iter().any(|entry| entry.kind.is_on_path()), "it has a path");
        assert_eq!(logged(&runtime, "one").await.len(), 2 * before.len(), "the original went on");
        assert_eq!(logged(&runtime, "two").await, before, "continues: {continues}");
        let seen: Vec<String> = copy.context().await.unwrap().iter().map(|message| message.text()).collect();
        assert_eq!(seen, before, "continues: {continues}");
        model.assert_clean();
    }
}

/// A session in which nothing was said has a copy, too: an empty one.
#[tokio::test(start_paused = true)]
async fn a_session_without_entries_is_forked_into_an_empty_one() {
    let model = simulator(Echo, 50_000);
    let runtime = runtime(&model).await;
    runtime.open("one", &agent(50_000)).await.unwrap();
    let copy = runtime.fork("one", "two", &agent(50_000)).await.unwrap();
    assert_eq!(copy.id(), "two");
    assert_eq!(copy.context().await.unwrap().len(), 0);
    assert_eq!(copy.prompt("hello").await.unwrap().text, "hello");
    assert_eq!(logged(&runtime, "one").await.len(), 0);
    let deleted = runtime.open("gone", &agent(50_000)).await.unwrap();
    deleted.prompt("hello").await.unwrap();
    runtime.delete("gone").await.unwrap();
    let missing = runtime.fork("gone", "three", &agent(50_000)).await;
    assert!(matches!(missing, Err(Error::NoSession { .. })), "{missing:?}");
    let missing = runtime.fork("none", "three", &agent(50_000)).await;
    assert!(matches!(missing, Err(Error::NoSession { .. })), "{missing:?}");
    let missing = runtime.fork_at("one", "three", EntryId(0), &agent(50_000)).await;
    assert!(matches!(missing, Err(Error::NoEntry { .. })), "{missing:?}");
    model.assert_clean();
}
