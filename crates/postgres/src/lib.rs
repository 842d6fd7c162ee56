//! Sessions in PostgreSQL, shared by several nodes.
//!
//! [`Postgres`] is an [`Engine`]: the tables are the truth, and every node reads what any node has acknowledged. It is a
//! [`Placement`] too: each session belongs to at most one node at a time, the node has one lease for all of its sessions, and
//! an append is refused unless the session is still its own, in the same statement that writes.
//!
//! Invariants:
//!
//! - An acknowledged append is committed, with its head, its entries and its key, in one statement. Nothing else writes
//!   entries.
//! - A node whose lease has run out stops before another one can take over. If it is frozen instead, its appends are refused:
//!   an append checks the lease under a lock that a takeover waits for. The epoch of a session grows with each change of
//!   owner.
//! - No transaction stays open between two messages to the server.
//! - The URL of the database is in no error, log or `Debug` output.
//!
//! Reading order: `statements` (the SQL), `migrations/001.sql` (the tables), `migrations/002.sql` (the functions that append and
//! claim, and the fence), `append` (what an append and a deletion do), `writer` (many appends in one statement), `lease`,
//! `placement`, `reads`. Connections: `options`, `tls`, `link`, `pool`, `backoff`. Beside them: `schema` (migrations), `batch`,
//! `slots` (the sessions of this node), `survey` (for operators).

mod append;
mod backoff;
mod batch;
mod lease;
mod link;
mod options;
mod placement;
mod pool;
mod reads;
mod schema;
mod slots;
mod statements;
mod survey;
mod tls;
mod writer;

use std::fmt;
use std::future::Future;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{
    Answer, Appended, Batch, Engine, Opened, Placement, Salvaged, StoreError, check_fact, check_session,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use options::PostgresOptions;
pub use survey::{Survey, SurveyedNode};

use lease::{Keeper, Lease};
use options::Server;
use pool::{Kind, Pool};
use slots::Slots;
use statements::Sql;
use writer::{Append, Claim, Queue};

/// The engine of a node. All clones are the same node.
///
/// Dropping the last one ends its connections; [`Engine::close`] gives its sessions back too, which others otherwise take
/// over once the lease has run out.
#[derive(Clone)]
pub struct Postgres {
    node: Arc<Node>,
}

/// What the handles share. Its end is the end of the tasks.
struct Node {
    shared: Arc<Shared>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.end.cancel();
    }
}

/// What handles and tasks share.
struct Shared {
    options: PostgresOptions,
    server: Server,
    pool: Pool,
    /// A queue for each connection for appends.
    appends: Vec<Queue<Append>>,
    claims: Queue<Claim>,
    slots: Slots,
    hashes: RandomState,
    lease: Lease,
    /// Appends and deletions that are under way.
    writes: TaskTracker,
    is_closed: AtomicBool,
    end: CancellationToken,
}

impl Postgres {
    /// Connects, brings the tables to this version, and registers the node. Connections and lease live in tasks of the tokio
    /// runtime in which this is called.
    ///
    /// If a process of the same node name was killed, this waits until its lease has run out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the database cannot be reached; [`StoreError::Version`] if a newer version has
    /// changed the tables; [`StoreError::Unsuitable`] if the settings or the server cannot be used, or a running process has
    /// the same node name.
    pub async fn connect(options: &PostgresOptions) -> Result<Self, StoreError> {
        let server = options.server()?;
        schema::migrate(options, &server).await?;
        let pool = Pool::new(options, &server);
        pool.open().await?;
        let (keeper, lease) = Keeper::register(options, &server).await?;
        let shared = Arc::new(Shared {
            options: options.clone(),
            server: server.clone(),
            pool,
            appends: (0..options.writers).map(|_| Queue::default()).collect(),
            claims: Queue::default(),
            slots: Slots::default(),
            hashes: RandomState::new(),
            lease,
            writes: TaskTracker::new(),
            is_closed: AtomicBool::new(false),
            end: CancellationToken::new(),
        });
        for queue in 0..options.writers {
            let (options, server) = (options.clone(), server.clone());
            shared.spawn(move |shared| async move { shared.appends[queue].serve(options, server).await });
        }
        let options = options.clone();
        shared.spawn(move |shared| async move { shared.claims.serve(options, server).await });
        shared.spawn(move |shared| async move { keeper.keep(&shared.lease).await });
        Ok(Self { node: Arc::new(Node { shared }) })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.node.shared
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { options, server, .. } = self.shared().as_ref();
        write!(f, "Postgres {{ {server:?}, schema {}, node {} }}", options.schema, options.node)
    }
}

impl Shared {
    /// Runs a task until the engine is closed or dropped.
    fn spawn<F: Future<Output = ()> + Send + 'static>(self: &Arc<Self>, task: impl FnOnce(Arc<Self>) -> F) {
        let end = self.end.clone();
        let task = task(Arc::clone(self));
        drop(tokio::spawn(async move { end.run_until_cancelled(task).await }));
    }

    fn check_open(&self) -> Result<(), StoreError> {
        if self.is_closed.load(Ordering::SeqCst) { Err(StoreError::Closed) } else { Ok(()) }
    }

    async fn close(&self) -> Result<(), StoreError> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        self.writes.close();
        self.writes.wait().await;
        self.end.cancel();
        let left = lease::goodbye(&self.options, &self.server, &self.lease).await;
        self.pool.close().await;
        left
    }
}

impl Engine for Postgres {
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended> {
        Box::pin(async move {
            self.shared().check_open()?;
            self.shared().append(session, batch).await
        })
    }

    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            check_session(session)?;
            self.shared().check_open()?;
            self.shared().delete(session).await
        })
    }

    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>> {
        Box::pin(self.shared().head(session))
    }

    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>> {
        Box::pin(self.shared().used_key(session, key))
    }

    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>> {
        Box::pin(self.shared().used_keys(session))
    }

    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>> {
        Box::pin(self.shared().load(session, from))
    }

    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>> {
        Box::pin(self.shared().get(session, entries))
    }

    fn open<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Opened>> {
        Box::pin(self.shared().open(session))
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>> {
        Box::pin(self.shared().page(after, limit))
    }

    fn salvage<'a>(&'a self, session: &'a str) -> Answer<'a, Salvaged> {
        Box::pin(self.shared().salvage(session))
    }

    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.shared().check_open()?;
            let rows = self.shared().pool.run(Kind::Read, Sql::FactGet, &[&key.as_bytes()]).await?;
            Ok(rows.first().map(|row| row.get(0)))
        })
    }

    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            self.shared().check_open()?;
            let rows = self.shared().pool.run(Kind::Read, Sql::FactKeys, &[&prefix.as_bytes()]).await?;
            Ok(rows.iter().map(|row| String::from_utf8_lossy(row.get(0)).into_owned()).collect())
        })
    }

    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move {
            self.shared().check_open()?;
            check_fact(key, value)?;
            let pool = &self.shared().pool;
            let put = match value {
                [] => pool.run(Kind::Write, Sql::FactDropped, &[&key.as_bytes()]).await,
                value => pool.run(Kind::Write, Sql::FactPut, &[&key.as_bytes(), &value]).await,
            };
            put.map(drop)
        })
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(self.shared().close())
    }

    fn placement(&self) -> Option<&dyn Placement> {
        Some(self)
    }

    fn node(&self) -> &str {
        &self.shared().options.node
    }
}

#[cfg(test)]
mod tests;
