//! An engine whose reads are slow or fail once, so that something happens between two reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Answer, Appended, Batch, Engine, Store, StoreError};
use tokio::sync::Notify;

/// An engine in which a session's log is read only after the test says so, once, or cannot be read, once.
#[derive(Debug)]
pub(crate) struct Overtaken {
    store: Store,
    /// Whether the next read waits for `goes_on`.
    pub(crate) is_next_late: AtomicBool,
    /// Whether the next read fails.
    pub(crate) fails_next: AtomicBool,
    /// A read waits.
    pub(crate) reads: Notify,
    pub(crate) goes_on: Notify,
}

impl Overtaken {
    pub(crate) fn new() -> Arc<Self> {
        let (is_next_late, fails_next) = (AtomicBool::new(false), AtomicBool::new(false));
        let (store, reads, goes_on) = (Store::memory(), Notify::new(), Notify::new());
        Arc::new(Self { store, is_next_late, fails_next, reads, goes_on })
    }
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
            if self.fails_next.swap(false, Ordering::SeqCst) {
                return Err(StoreError::Unavailable { detail: "for a moment".to_owned() });
            }
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
