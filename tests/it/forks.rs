//! Copies of sessions that work meanwhile: a fork is one moment of its original.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom::prelude::*;
use greenroom_kernel::{Entry, EntryId, EntryKind, Head};
use greenroom_simulator::Echo;
use greenroom_store::{Answer, Appended, Batch, Engine, Store};
use tokio::sync::Notify;

use crate::support::{agent, builder, runtime, simulator};

/// An engine in which a session's whole log is read only after the test says so, once.
#[derive(Debug)]
struct Overtaken {
    store: Store,
    is_next_late: AtomicBool,
    reads: Notify,
    goes_on: Notify,
}

impl Engine for Overtaken {
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended> {
        Engine::append(&self.store, session, batch)
    }

    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()> {
        Engine::delete(&self.store, session)
    }

    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>> {
        Engine::head(&self.store, session)
    }

    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>> {
        Engine::used_key(&self.store, session, key)
    }

    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>> {
        Engine::used_keys(&self.store, session)
    }

    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>> {
        Box::pin(async move {
            if self.is_next_late.swap(false, Ordering::SeqCst) {
                self.reads.notify_one();
                self.goes_on.notified().await;
            }
            Engine::load(&self.store, session, from).await
        })
    }

    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>> {
        Engine::get(&self.store, session, entries)
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>> {
        Engine::page(&self.store, after, limit)
    }

    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>> {
        Engine::fact_get(&self.store, key)
    }

    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Engine::fact_keys(&self.store, prefix)
    }

    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()> {
        Engine::fact_put(&self.store, key, value)
    }

    fn close(&self) -> Answer<'_, ()> {
        Engine::close(&self.store)
    }
}

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
        let engine = Arc::new(Overtaken {
            store: Store::memory(),
            is_next_late: AtomicBool::new(false),
            reads: Notify::new(),
            goes_on: Notify::new(),
        });
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
