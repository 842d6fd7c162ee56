//! The interface of sessions to storage, and to the component that decides which node runs a session.
//!
//! [`Engine`] is the seam between sessions and storage. [`Store`](crate::Store), a journal or memory, is one; a
//! database that several nodes share is another. [`Placement`] belongs to an engine that several nodes share.
//!
//! Invariants of every engine:
//!
//! - An acknowledged append is durable, and a later read by any node returns it. A batch is there entirely or not at
//!   all.
//! - A session's entries have dense ids from 0 and never change. A key that was used once writes nothing again.
//! - Only one node writes to a session. A node that lost it gets [`StoreError::Fenced`] for each append from then on.
//! - [`StoreError::Unavailable`] means that nothing was written; [`StoreError::InDoubt`], that the batch may have been.
//!   The same batch with the same key settles which.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use greenroom_kernel::{Entry, EntryId, Head};

use crate::{Appended, Batch, Begun, LogPage, Salvaged, Store, StoreError};

/// A result that is awaited.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// The storage of sessions. All methods may be called at any time and concurrently. A future that is dropped leaves
/// nothing open, and an append whose future is dropped may still be written.
pub trait Engine: fmt::Debug + Send + Sync + 'static {
    /// Appends a batch of any size atomically. When this returns, the batch is durable, and every reader sees it.
    ///
    /// With several nodes, the session must be this node's. One that nobody owns is claimed by the append.
    ///
    /// # Errors
    /// [`StoreError::Sequence`], [`StoreError::Head`], [`StoreError::SessionId`] and [`StoreError::TooLarge`] for an
    /// invalid batch; [`StoreError::Fenced`] and [`StoreError::Elsewhere`] if another node owns the session;
    /// [`StoreError::InDoubt`] if the batch may have been written; others if nothing of it was.
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended>;

    /// Deletes a session durably. The id can be used again, but not by a node that owned the deleted session.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; those of [`Engine::append`].
    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()>;

    /// Returns the session's head; `None` if there is no such session.
    ///
    /// # Errors
    /// [`StoreError::SessionId`] and those of reading.
    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>>;

    /// Returns the first entry of the batch that was appended with this idempotency key; `None` if there is none.
    ///
    /// # Errors
    /// Those of [`Engine::head`].
    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>>;

    /// Returns all idempotency keys of the session, ordered as bytes, each with the first entry of its batch; none if
    /// there is no such session.
    ///
    /// # Errors
    /// Those of [`Engine::head`].
    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>>;

    /// Returns the session's entries from `from` on.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; [`StoreError::Damaged`] if one of the entries is lost.
    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>>;

    /// Returns the session's entries with these ids, in the same order.
    ///
    /// # Errors
    /// Those of [`Engine::load`]. An entry that the session does not have is [`StoreError::Damaged`] too.
    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>>;

    /// Returns what a session needs to be opened, in one read where the engine can; `None` if there is no such session.
    ///
    /// # Errors
    /// Those of [`Engine::load`].
    fn open<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Opened>> {
        Box::pin(async move {
            let Some(head) = self.head(session).await? else { return Ok(None) };
            let active = self.load(session, head.active_from).await?;
            let older = self.get(session, &Opened::older(&head)).await?;
            Ok(Some(Opened { head, active, older }))
        })
    }

    /// Returns the sessions after `after` and their heads, ordered by id as bytes: at most `limit`; fewer mean that no
    /// more follow.
    ///
    /// # Errors
    /// Those of reading.
    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>>;

    /// Returns the readable ones of this many entries from `from` on, with the session's head and losses; `None` if
    /// there is no such session.
    ///
    /// # Errors
    /// Those of reading. Damage is not an error here.
    fn entries<'a>(&'a self, session: &'a str, from: EntryId, limit: u64) -> Answer<'a, Option<LogPage>> {
        Box::pin(async move {
            let Some(head) = self.head(session).await? else { return Ok(None) };
            let until = from.0.saturating_add(limit).min(head.entries);
            let ids: Vec<EntryId> = (from.0..until).map(EntryId).collect();
            let entries = self.get(session, &ids).await?;
            let next = (until < head.entries).then_some(EntryId(until));
            Ok(Some(LogPage { head, entries, lost: Vec::new(), next }))
        })
    }

    /// Returns all entries of the session that can be read, and the ids of those that cannot.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]. Damage is not an error here.
    fn salvage<'a>(&'a self, session: &'a str) -> Answer<'a, Salvaged> {
        Box::pin(async move {
            let entries = self.load(session, EntryId(0)).await?;
            Ok(Salvaged { entries, lost: Vec::new() })
        })
    }

    /// Returns a fact: a small value of the runtime that belongs to no session, such as a model's true window, what was
    /// spent, or the position of a consumer; `None` if there is none of this name.
    ///
    /// # Errors
    /// Those of reading.
    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>>;

    /// Returns the names of all facts that begin with `prefix`, ordered as bytes.
    ///
    /// # Errors
    /// Those of reading.
    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>>;

    /// Stores a fact durably. It replaces the old value of the same name; an empty value removes it. The last write
    /// wins, whichever node makes it.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`], and those of writing.
    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()>;

    /// Writes what is pending, gives back all sessions that this node owns, and closes the engine.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if it was closed before.
    fn close(&self) -> Answer<'_, ()>;

    /// Returns the engine as a store of one process: in its files, or in memory. What only such a store can do (accept
    /// a loss, back up, reclaim space) is asked of it. The default is `None`.
    fn as_store(&self) -> Option<&Store> {
        None
    }

    /// Returns what decides which node runs a session; `None` if this process runs all of them, which is the default.
    fn placement(&self) -> Option<&dyn Placement> {
        None
    }

    /// The name under which a node keeps facts of its own, such as a deletion that it has begun. Empty if there is only
    /// one, which is the default.
    fn node(&self) -> &str {
        ""
    }
}

/// A session as it is opened.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The session's head.
    pub head: Head,
    /// The entries that may be in the model's view: from [`Head::active_from`] on.
    pub active: Vec<Entry>,
    /// The earlier entries that the head refers to: queued input, pins, open calls of sub-agents, the compaction in
    /// effect, an open one, and the terms of the open run.
    pub older: Vec<Entry>,
}

impl Opened {
    /// The ids of the entries before the active ones that the head refers to.
    pub fn older(head: &Head) -> Vec<EntryId> {
        let mut ids: Vec<EntryId> =
            head.inbox.iter().chain(&head.pins).chain(&head.open_children).copied().collect();
        ids.extend(head.active_compaction);
        ids.extend(head.open_compaction);
        ids.extend(head.run_terms);
        ids.retain(|entry| *entry < head.active_from);
        ids
    }
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's name, which it keeps across restarts.
    pub node: String,
    /// The URL at which other nodes reach it; `None` for a program that serves nothing.
    pub address: Option<String>,
    /// Whether the node is leaving: it takes no more sessions.
    pub is_draining: bool,
    /// The number of sessions that it owns.
    pub sessions: u64,
}

/// A valid lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The lease's number: another one after the node has lost its lease, even if it has got a new one since.
    pub number: u64,
    /// The URL at which other nodes reach its holder; `None` for a program that serves nothing.
    pub address: Option<String>,
}

/// The owner of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The node's name.
    pub node: String,
    /// The URL at which other nodes reach it; `None` for a program that serves nothing.
    pub address: Option<String>,
    /// The session's epoch: it grows with each change of owner.
    pub epoch: u64,
}

/// The answer to a node that wants to run a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// The session is this node's, in this epoch, until it releases it or loses its lease.
    Mine {
        /// The session's epoch.
        epoch: u64,
    },
    /// The session is another node's, whose lease is valid.
    Theirs(Owner),
}

/// Decides which node runs a session. A node has one lease for everything that it owns.
///
/// Invariants: at any moment at most one node is told that a session is its own, measured by the engine's clock; the
/// lease's deadline is counted from before it was asked for, so this node stops no later than others may take over.
pub trait Placement: fmt::Debug + Send + Sync {
    /// Claims a session for this node: one that is new, free, or whose owner's lease has run out.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`] past the lease's deadline; those of writing.
    fn claim<'a>(&'a self, session: &'a str) -> Answer<'a, Claim>;

    /// Whether the session is this node's, as far as the node knows without asking: it has claimed the session under
    /// its present lease. A caller that relies on it wrongly is refused by [`Engine::append`].
    fn holds(&self, session: &str) -> bool;

    /// Gives a session back. `to` names the node that should claim it next. Does nothing if it is not this node's.
    ///
    /// # Errors
    /// Those of writing.
    fn release<'a>(&'a self, session: &'a str, to: Option<&'a str>) -> Answer<'a, ()>;

    /// Returns the owner of a session; `None` if it has none, or its owner's lease has run out. May be this node.
    ///
    /// # Errors
    /// Those of reading.
    fn owner_of<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Owner>>;

    /// Returns the node that should run a session that nobody owns: the one that the last owner wished for, else one by
    /// rendezvous hashing among those that are not draining. May be this node.
    ///
    /// # Errors
    /// Those of reading.
    fn place<'a>(&'a self, session: &'a str) -> Answer<'a, Member>;

    /// Returns the nodes whose leases are valid, ordered by name.
    ///
    /// # Errors
    /// Those of reading.
    fn members(&self) -> Answer<'_, Vec<Member>>;

    /// Returns the valid leases, by the names of the nodes.
    ///
    /// # Errors
    /// Those of reading.
    fn leases(&self) -> Answer<'_, BTreeMap<String, Lease>>;

    /// Returns the sessions with an unfinished run whose owner's lease has run out, or that have none: at most `limit`, in
    /// the order of their ids, from the first one after `after`. The node that takes a session over resumes its run.
    ///
    /// # Errors
    /// Those of reading.
    fn abandoned<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<String>>;

    /// Takes no more sessions from now on: [`Placement::place`] names other nodes.
    ///
    /// # Errors
    /// Those of writing.
    fn drain(&self) -> Answer<'_, ()>;

    /// Checks, without asking anybody, that this node's lease is valid. Whatever has an effect outside, such as a tool
    /// or a model call, begins only if it is.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`].
    fn check(&self) -> Result<(), StoreError>;

    /// Completes once this node has lost its lease more than `known` times, and returns how often: with each loss,
    /// everything that it ran belongs to others. Waiting does not keep the engine open.
    fn lost(&self, known: u64) -> Pin<Box<dyn Future<Output = u64> + Send>>;
}

/// Runs a reading method of the store where it may block: here for one in memory, else on a thread for blocking work.
async fn read<T: Send + 'static>(
    store: &Store,
    read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    if store.is_memory() {
        return read(store);
    }
    #[cfg(feature = "disk")]
    {
        let store = store.clone();
        let read = tokio::task::spawn_blocking(move || read(&store)).await;
        read.unwrap_or_else(|panic| Err(StoreError::Index { detail: format!("reading failed: {panic}") }))
    }
    #[cfg(not(feature = "disk"))]
    read(store)
}

impl Engine for Store {
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended> {
        // What can be done without waiting is done here, because the future of the general case takes a kilobyte.
        match self.begin_append(session, batch) {
            Begun::Over(appended) => Box::pin(std::future::ready(appended)),
            #[cfg(feature = "disk")]
            Begun::Sent(answer) => Box::pin(crate::disk::answered(answer)),
            #[cfg(feature = "disk")]
            Begun::NotSent(first, batch) => Box::pin(self.append_checked(session, first, batch)),
        }
    }

    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()> {
        Box::pin(Store::delete(self, session))
    }

    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| store.head(&session)))
    }

    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>> {
        let (session, key) = (session.to_owned(), key.to_owned());
        Box::pin(read(self, move |store| store.used_key(&session, &key)))
    }

    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| store.used_keys(&session)))
    }

    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| store.load(&session, from)))
    }

    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>> {
        if entries.is_empty() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let (session, entries) = (session.to_owned(), entries.to_vec());
        Box::pin(read(self, move |store| store.get(&session, &entries)))
    }

    fn open<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Opened>> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| {
            let Some(head) = store.head(&session)? else { return Ok(None) };
            let active = store.load(&session, head.active_from)?;
            let older = store.get(&session, &Opened::older(&head))?;
            Ok(Some(Opened { head, active, older }))
        }))
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>> {
        let after = after.map(str::to_owned);
        Box::pin(read(self, move |store| store.page(after.as_deref(), limit)))
    }

    fn entries<'a>(&'a self, session: &'a str, from: EntryId, limit: u64) -> Answer<'a, Option<LogPage>> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| store.entries(&session, from, limit)))
    }

    fn salvage<'a>(&'a self, session: &'a str) -> Answer<'a, Salvaged> {
        let session = session.to_owned();
        Box::pin(read(self, move |store| store.salvage(&session)))
    }

    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>> {
        let key = key.to_owned();
        Box::pin(read(self, move |store| store.fact_get(&key)))
    }

    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        let prefix = prefix.to_owned();
        Box::pin(read(self, move |store| store.fact_keys(&prefix)))
    }

    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(Store::fact_put(self, key, value))
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(self.clone().close())
    }

    fn as_store(&self) -> Option<&Store> {
        Some(self)
    }
}
