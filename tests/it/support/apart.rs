//! PostgreSQL as the store of a test whose time may be paused.
//!
//! Invariants: the engine runs on threads of its own, in real time. While one of its answers is awaited, a thread for
//! blocking work waits for it, so a paused clock stands still as it does for a store in files.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_postgres::{Postgres, PostgresOptions};
use greenroom_store::{
    Answer, Appended, Batch, Claim, Engine, Lease, LogPage, Member, Opened, Owner, Placement, Salvaged,
    StoreError,
};
use parking_lot::Mutex;
use tokio::runtime::Runtime as Threads;

/// Returns the threads of all engines of this process.
fn threads() -> &'static Threads {
    static THREADS: OnceLock<Threads> = OnceLock::new();
    let builder = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    THREADS.get_or_init(|| builder().unwrap())
}

/// An engine in a schema of its own. Closing it gives its sessions back; the next use opens it again, as the next process
/// of the node would.
#[derive(Clone)]
pub(super) struct Apart {
    options: PostgresOptions,
    open: Arc<Mutex<Option<Postgres>>>,
}

impl std::fmt::Debug for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options.fmt(f)
    }
}

impl Apart {
    /// Creates an engine in a new schema of the database with this URL.
    pub(super) fn new(url: &str) -> Arc<Self> {
        static SCHEMAS: AtomicU64 = AtomicU64::new(0);
        // Process ids come again within one run of all tests.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let schema = format!("t{now}_{}", SCHEMAS.fetch_add(1, Ordering::Relaxed));
        let mut options = PostgresOptions::new(url, "one");
        (options.schema, options.writers, options.readers) = (schema, 1, 1);
        Arc::new(Self { options, open: Arc::default() })
    }

    /// Returns the engine. Must be called where it may block.
    fn engine(&self) -> Result<Postgres, StoreError> {
        let mut open = self.open.lock();
        if let Some(engine) = &*open {
            return Ok(engine.clone());
        }
        let engine = threads().block_on(Postgres::connect(&self.options))?;
        Ok(open.insert(engine).clone())
    }

    /// Answers with what a method of the engine returns.
    fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Threads, &Postgres) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'static, T> {
        let this = self.clone();
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || ask(threads(), &this.engine()?));
            answer.await.expect("a method of the engine panicked")
        })
    }
}

impl Engine for Apart {
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.append(&session, batch)))
    }

    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.delete(&session)))
    }

    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.head(&session)))
    }

    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>> {
        let (session, key) = (session.to_owned(), key.to_owned());
        self.ask(move |on, engine| on.block_on(engine.used_key(&session, &key)))
    }

    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.used_keys(&session)))
    }

    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.load(&session, from)))
    }

    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>> {
        let (session, entries) = (session.to_owned(), entries.to_vec());
        self.ask(move |on, engine| on.block_on(engine.get(&session, &entries)))
    }

    fn open<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Opened>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.open(&session)))
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>> {
        let after = after.map(str::to_owned);
        self.ask(move |on, engine| on.block_on(engine.page(after.as_deref(), limit)))
    }

    fn entries<'a>(&'a self, session: &'a str, from: EntryId, limit: u64) -> Answer<'a, Option<LogPage>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.entries(&session, from, limit)))
    }

    fn salvage<'a>(&'a self, session: &'a str) -> Answer<'a, Salvaged> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.salvage(&session)))
    }

    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>> {
        let key = key.to_owned();
        self.ask(move |on, engine| on.block_on(engine.fact_get(&key)))
    }

    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        let prefix = prefix.to_owned();
        self.ask(move |on, engine| on.block_on(engine.fact_keys(&prefix)))
    }

    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()> {
        let (key, value) = (key.to_owned(), value.to_vec());
        self.ask(move |on, engine| on.block_on(engine.fact_put(&key, &value)))
    }

    fn close(&self) -> Answer<'_, ()> {
        let open = Arc::clone(&self.open);
        self.ask(move |on, engine| {
            open.lock().take();
            on.block_on(engine.close())
        })
    }

    fn placement(&self) -> Option<&dyn Placement> {
        Some(self)
    }

    fn node(&self) -> &str {
        &self.options.node
    }
}

impl Placement for Apart {
    fn claim<'a>(&'a self, session: &'a str) -> Answer<'a, Claim> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.claim(&session)))
    }

    fn holds(&self, session: &str) -> bool {
        self.open.lock().as_ref().is_some_and(|engine| engine.holds(session))
    }

    fn release<'a>(&'a self, session: &'a str, to: Option<&'a str>) -> Answer<'a, ()> {
        let (session, to) = (session.to_owned(), to.map(str::to_owned));
        self.ask(move |on, engine| on.block_on(engine.release(&session, to.as_deref())))
    }

    fn owner_of<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Owner>> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.owner_of(&session)))
    }

    fn place<'a>(&'a self, session: &'a str) -> Answer<'a, Member> {
        let session = session.to_owned();
        self.ask(move |on, engine| on.block_on(engine.place(&session)))
    }

    fn members(&self) -> Answer<'_, Vec<Member>> {
        self.ask(|on, engine| on.block_on(engine.members()))
    }

    fn leases(&self) -> Answer<'_, BTreeMap<String, Lease>> {
        self.ask(|on, engine| on.block_on(engine.leases()))
    }

    fn abandoned<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<String>> {
        let after = after.map(str::to_owned);
        self.ask(move |on, engine| on.block_on(engine.abandoned(after.as_deref(), limit)))
    }

    fn drain(&self) -> Answer<'_, ()> {
        self.ask(|on, engine| on.block_on(engine.drain()))
    }

    fn check(&self) -> Result<(), StoreError> {
        self.open.lock().as_ref().map_or(Ok(()), Placement::check)
    }

    fn lost(&self, known: u64) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> {
        match &*self.open.lock() {
            Some(engine) => engine.lost(known),
            None => Box::pin(std::future::pending()),
        }
    }
}
