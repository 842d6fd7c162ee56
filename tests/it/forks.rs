//! Copies of sessions that work meanwhile: a fork is one moment of its original.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use greenroom::prelude::*;
use greenroom_kernel::{Entry, EntryId, EntryKind};
use greenroom_simulator::{Echo, History};
use serde_json::json;

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

/// An import whose entries do not fit together is refused, and nothing of it is kept.
#[tokio::test(start_paused = true)]
async fn an_import_whose_entries_do_not_fit_together_is_refused() {
    let model = simulator(Echo, 50_000);
    let runtime = runtime(&model).await;
    let history = History::new().user("question").tool("t", &json!({}), "result").assistant("answer");
    let (entries, leaf) = (history.entries(), history.leaf());
    let moved = |by: u64| -> Vec<Arc<Entry>> {
        let moved = entries.iter().map(|entry| Entry {
            id: EntryId(entry.id.0 + by),
            parent: entry.parent.map(|parent| EntryId(parent.0 + by)),
            ..Entry::clone(entry)
        });
        moved.map(Arc::new).collect()
    };
    let reversed: Vec<_> = entries.iter().rev().cloned().collect();
    let twice: Vec<_> = entries.iter().chain(&entries[..1]).cloned().collect();
    for (what, entries, leaf) in [
        ("a leaf that is not among them", entries.clone(), Some(EntryId(99))),
        ("children before their parents", reversed, leaf),
        ("the first one is missing", entries[1..].to_vec(), leaf),
        ("one id twice", twice, leaf),
        ("ids from 100", moved(100), leaf.map(|leaf| EntryId(leaf.0 + 100))),
        ("a leaf of other ids", moved(100), leaf),
    ] {
        let session = runtime.open(what, &agent(50_000)).await.unwrap();
        let refused = session.import(entries, leaf).await;
        assert!(matches!(refused, Err(Error::BranchPoint(_))), "{what}: {refused:?}");
        assert_eq!(session.state().await.unwrap().entries, 0, "{what}");
    }
    let texts = ["question", "", "result", "answer"];
    for (what, entries, leaf, kept) in [
        ("as it is", entries.clone(), leaf, 4),
        ("a leaf in the middle", entries.clone(), Some(EntryId(0)), 1),
        ("no leaf", entries.clone(), None, 0),
    ] {
        let session = runtime.open(what, &agent(50_000)).await.unwrap();
        session.import(entries, leaf).await.unwrap();
        let said: Vec<_> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
        assert_eq!(said, texts[..kept], "{what}");
        assert!(session.prompt("next").await.is_ok(), "{what}");
    }
    model.assert_clean();
}

/// A fork begins wherever a branch does: also at an entry beside the path, which stands for the one before it.
#[tokio::test(start_paused = true)]
async fn a_fork_begins_where_a_branch_may() {
    let model = simulator(Echo, 50_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(50_000)).await.unwrap();
    for text in ["a", "b", "c"] {
        session.prompt(text).await.unwrap();
    }
    let mut forked = 0;
    for at in 0..session.state().await.unwrap().entries + 2 {
        let at = EntryId(at);
        let fork = runtime.fork_at("one", &format!("at {at}"), at, &agent(50_000)).await;
        let branched = session.branch(Some(at)).await;
        if branched.is_ok() {
            let fork = fork.unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(fork.context().await.unwrap(), session.context().await.unwrap(), "{at}");
            forked += 1;
        }
    }
    assert!(forked >= 6, "{forked}");
}
