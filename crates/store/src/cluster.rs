//! A cluster in memory: several nodes that share one store, and whose leases end when a test says so.
//!
//! Invariants: the same rules hold as for a database (see [`Engine`] and [`Placement`]). Nothing depends on time, so a
//! simulation can be replayed: a lease runs out by [`Cluster::expire`], and its node learns of that by
//! [`Cluster::notice`], or when it is refused.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, Head};
use parking_lot::Mutex;

use crate::engine::{Answer, Claim, Engine, Lease, Member, Opened, Owner, Placement};
use crate::{Appended, Batch, Store, StoreError};

/// A cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Cluster {
    shared: Arc<Mutex<Shared>>,
    /// A change of a lease completes those who wait for one.
    changed: Arc<tokio::sync::Notify>,
    store: Store,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    nodes: BTreeMap<String, Registration>,
    /// The owner of each session that has one, and the newest epoch of each that ever had one.
    owners: HashMap<String, (String, u64)>,
    epochs: HashMap<String, u64>,
    wishes: HashMap<String, String>,
    faults: HashMap<String, Fault>,
    /// The nodes whose next look-ups of an owner, so many, come just before a claim of another node.
    early: HashMap<String, usize>,
    incarnations: u64,
}

/// The lease of a node.
struct Registration {
    address: Option<String>,
    incarnation: u64,
    is_valid: bool,
    /// The node knows, or fears, that it is not valid.
    is_noticed: bool,
    is_draining: bool,
    /// How often it was noticed that a lease was lost.
    losses: u64,
}

/// What happens to the next append of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, and the node is told so.
    Unavailable,
    /// The batch is written, and the node is told that it may have been.
    WrittenInDoubt,
    /// Nothing is written, and the node is told that it may have been.
    LostInDoubt,
}

impl Cluster {
    /// Creates a cluster without nodes and sessions.
    pub fn new() -> Self {
        Self { shared: Arc::default(), changed: Arc::default(), store: Store::memory() }
    }

    /// Lets a node join, or come back after it has ended or lost its lease. What an earlier one of this name held is free.
    pub fn join(&self, node: &str, address: Option<&str>) -> Arc<Node> {
        let mut shared = self.shared.lock();
        shared.incarnations += 1;
        let incarnation = shared.incarnations;
        shared.disown(node);
        let losses = shared.nodes.get(node).map_or(0, |lease| lease.losses);
        let address = address.map(str::to_owned);
        let lease = Registration {
            address,
            incarnation,
            is_valid: true,
            is_noticed: false,
            is_draining: false,
            losses,
        };
        shared.nodes.insert(node.to_owned(), lease);
        Arc::new(Node {
            cluster: self.clone(),
            name: node.to_owned(),
            incarnation: Mutex::new(incarnation),
            held: Mutex::default(),
        })
    }

    /// Lets a node's lease run out: others may take over what it owns. The node does not know it.
    pub fn expire(&self, node: &str) {
        if let Some(lease) = self.shared.lock().nodes.get_mut(node) {
            lease.is_valid = false;
        }
    }

    /// Tells a node that its lease has run out. It gets a new one at its next renewal: see [`Node::renew`].
    pub fn notice(&self, node: &str) {
        if let Some(lease) = self.shared.lock().nodes.get_mut(node).filter(|lease| !lease.is_valid) {
            (lease.is_noticed, lease.losses) = (true, lease.losses + 1);
        }
        self.changed.notify_waiters();
    }

    /// Sets whether a node doubts its lease, as one does whose renewal is late: nothing is lost yet, but
    /// [`Placement::check`] fails.
    pub fn doubt(&self, node: &str, doubts: bool) {
        if let Some(lease) = self.shared.lock().nodes.get_mut(node) {
            lease.is_noticed = doubts;
        }
    }

    /// Sets what happens to the next append of a node.
    pub fn fault(&self, node: &str, fault: Fault) {
        self.shared.lock().faults.insert(node.to_owned(), fault);
    }

    /// Lets the next look-ups of an owner by this node find nobody, as those that come just before another node's claim.
    pub fn look_up_early(&self, node: &str, times: usize) {
        self.shared.lock().early.insert(node.to_owned(), times);
    }

    /// The sessions as they are stored.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    /// Whether this node has this lease.
    fn is_valid(&self, node: &str, incarnation: u64) -> bool {
        self.nodes.get(node).is_some_and(|lease| lease.is_valid && lease.incarnation == incarnation)
    }

    /// Frees what a node owns.
    fn disown(&mut self, node: &str) {
        self.owners.retain(|_, (owner, _)| owner != node);
    }

    /// The owner of a session, if its lease is valid.
    fn owner(&self, session: &str) -> Option<Owner> {
        let (node, epoch) = self.owners.get(session)?;
        let lease = self.nodes.get(node).filter(|lease| lease.is_valid)?;
        Some(Owner { node: node.clone(), address: lease.address.clone(), epoch: *epoch })
    }

    fn members(&self) -> Vec<Member> {
        let valid = self.nodes.iter().filter(|(_, lease)| lease.is_valid);
        let member = |(node, lease): (&String, &Registration)| Member {
            node: node.clone(),
            address: lease.address.clone(),
            is_draining: lease.is_draining,
            sessions: self.owners.values().filter(|(owner, _)| owner == node).count() as u64,
        };
        valid.map(member).collect()
    }
}

/// A node of a cluster in memory.
#[derive(Debug)]
pub struct Node {
    cluster: Cluster,
    name: String,
    incarnation: Mutex<u64>,
    /// The epochs of the sessions that this node believes are its own.
    held: Mutex<HashMap<String, u64>>,
}

impl Node {
    /// Takes a new lease after the old one has run out. Nothing that the node owned is its own any more.
    pub fn renew(&self) {
        let mut shared = self.cluster.shared.lock();
        shared.incarnations += 1;
        let incarnation = shared.incarnations;
        shared.disown(&self.name);
        if let Some(lease) = shared.nodes.get_mut(&self.name) {
            (lease.incarnation, lease.is_valid, lease.is_noticed) = (incarnation, true, false);
        }
        *self.incarnation.lock() = incarnation;
        self.held.lock().clear();
    }

    fn claim_now(&self, session: &str) -> Result<Claim, StoreError> {
        let mut shared = self.cluster.shared.lock();
        if !shared.is_valid(&self.name, *self.incarnation.lock()) {
            return Err(StoreError::LeaseLost);
        }
        if let Some(owner) = shared.owner(session) {
            let is_held = self.held.lock().get(session) == Some(&owner.epoch);
            return Ok(if owner.node == self.name && is_held {
                Claim::Mine { epoch: owner.epoch }
            } else {
                Claim::Theirs(owner)
            });
        }
        let epoch = shared.epochs.entry(session.to_owned()).or_default();
        *epoch += 1;
        let epoch = *epoch;
        shared.owners.insert(session.to_owned(), (self.name.clone(), epoch));
        shared.wishes.remove(session);
        self.held.lock().insert(session.to_owned(), epoch);
        Ok(Claim::Mine { epoch })
    }

    /// Checks that this node may write to a session, which it claims if nobody owns it.
    fn may_write(&self, session: &str) -> Result<(), StoreError> {
        let held = self.held.lock().get(session).copied();
        let Some(epoch) = held else {
            return match self.claim_now(session)? {
                Claim::Mine { .. } => Ok(()),
                Claim::Theirs(owner) => Err(StoreError::Elsewhere { session: session.to_owned(), owner }),
            };
        };
        let is_owner = self
            .cluster
            .shared
            .lock()
            .owners
            .get(session)
            .is_some_and(|(node, now)| *node == self.name && *now == epoch);
        if is_owner {
            return Ok(());
        }
        self.held.lock().remove(session);
        Err(StoreError::Fenced { session: session.to_owned() })
    }

    async fn append_once(&self, session: &str, batch: Batch) -> Result<Appended, StoreError> {
        let fault = self.cluster.shared.lock().faults.remove(&self.name);
        let detail = || "a fault of the simulation".to_owned();
        match fault {
            Some(Fault::Unavailable) => return Err(StoreError::Unavailable { detail: detail() }),
            Some(Fault::LostInDoubt) => return Err(StoreError::InDoubt { detail: detail() }),
            Some(Fault::WrittenInDoubt) | None => {}
        }
        self.may_write(session)?;
        let appended = self.cluster.store.append(session, batch).await?;
        match fault {
            None => Ok(appended),
            Some(_) => Err(StoreError::InDoubt { detail: detail() }),
        }
    }
}

impl Engine for Node {
    fn append<'a>(&'a self, session: &'a str, batch: Batch) -> Answer<'a, Appended> {
        Box::pin(self.append_once(session, batch))
    }

    fn delete<'a>(&'a self, session: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.may_write(session)?;
            self.cluster.store.delete(session).await?;
            self.cluster.shared.lock().owners.remove(session);
            self.held.lock().remove(session);
            Ok(())
        })
    }

    fn head<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Head>> {
        Engine::head(&self.cluster.store, session)
    }

    fn used_key<'a>(&'a self, session: &'a str, key: &'a str) -> Answer<'a, Option<EntryId>> {
        Engine::used_key(&self.cluster.store, session, key)
    }

    fn used_keys<'a>(&'a self, session: &'a str) -> Answer<'a, Vec<(String, EntryId)>> {
        Engine::used_keys(&self.cluster.store, session)
    }

    fn load<'a>(&'a self, session: &'a str, from: EntryId) -> Answer<'a, Vec<Entry>> {
        Engine::load(&self.cluster.store, session, from)
    }

    fn get<'a>(&'a self, session: &'a str, entries: &'a [EntryId]) -> Answer<'a, Vec<Entry>> {
        Engine::get(&self.cluster.store, session, entries)
    }

    fn open<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Opened>> {
        Engine::open(&self.cluster.store, session)
    }

    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<(String, Head)>> {
        Engine::page(&self.cluster.store, after, limit)
    }

    fn fact_get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<Vec<u8>>> {
        Engine::fact_get(&self.cluster.store, key)
    }

    fn fact_keys<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Engine::fact_keys(&self.cluster.store, prefix)
    }

    fn fact_put<'a>(&'a self, key: &'a str, value: &'a [u8]) -> Answer<'a, ()> {
        Engine::fact_put(&self.cluster.store, key, value)
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut shared = self.cluster.shared.lock();
            if shared.is_valid(&self.name, *self.incarnation.lock()) {
                shared.disown(&self.name);
                shared.nodes.remove(&self.name);
            }
            Ok(())
        })
    }

    fn placement(&self) -> Option<&dyn Placement> {
        Some(self)
    }

    fn node(&self) -> &str {
        &self.name
    }
}

impl Placement for Node {
    fn claim<'a>(&'a self, session: &'a str) -> Answer<'a, Claim> {
        Box::pin(async move { self.claim_now(session) })
    }

    fn holds(&self, session: &str) -> bool {
        self.check().is_ok() && self.held.lock().contains_key(session)
    }

    fn release<'a>(&'a self, session: &'a str, to: Option<&'a str>) -> Answer<'a, ()> {
        Box::pin(async move {
            let Some(epoch) = self.held.lock().remove(session) else { return Ok(()) };
            let mut shared = self.cluster.shared.lock();
            if shared.owners.get(session).is_some_and(|(node, now)| *node == self.name && *now == epoch) {
                shared.owners.remove(session);
                if let Some(to) = to {
                    shared.wishes.insert(session.to_owned(), to.to_owned());
                }
            }
            Ok(())
        })
    }

    fn owner_of<'a>(&'a self, session: &'a str) -> Answer<'a, Option<Owner>> {
        Box::pin(async move {
            let mut shared = self.cluster.shared.lock();
            let early = shared.early.get_mut(&self.name).filter(|times| **times > 0);
            let is_early = early.map(|times| *times -= 1).is_some();
            Ok(shared.owner(session).filter(|_| !is_early))
        })
    }

    fn place<'a>(&'a self, session: &'a str) -> Answer<'a, Member> {
        Box::pin(async move {
            let shared = self.cluster.shared.lock();
            let members = shared.members();
            let wish = shared.wishes.get(session);
            let wished = members.iter().find(|member| Some(&member.node) == wish && !member.is_draining);
            let open = || members.iter().filter(|member| !member.is_draining);
            let chosen = wished.or_else(|| open().next());
            chosen
                .cloned()
                .ok_or_else(|| StoreError::Unavailable { detail: "no node takes sessions".to_owned() })
        })
    }

    fn members(&self) -> Answer<'_, Vec<Member>> {
        Box::pin(async move { Ok(self.cluster.shared.lock().members()) })
    }

    fn leases(&self) -> Answer<'_, BTreeMap<String, Lease>> {
        Box::pin(async move {
            let shared = self.cluster.shared.lock();
            let valid = shared.nodes.iter().filter(|(_, lease)| lease.is_valid);
            let of =
                |lease: &Registration| Lease { number: lease.incarnation, address: lease.address.clone() };
            Ok(valid.map(|(node, lease)| (node.clone(), of(lease))).collect())
        })
    }

    fn abandoned<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            let is_unfinished =
                |head: &Head| head.open_run.is_some() || head.interrupted.is_some() || !head.inbox.is_empty();
            let heads = self.cluster.store.list()?;
            let shared = self.cluster.shared.lock();
            let is_abandoned = |(id, head): &(String, Head)| {
                after.is_none_or(|after| id.as_str() > after)
                    && is_unfinished(head)
                    && shared.owner(id).is_none()
            };
            Ok(heads.into_iter().filter(is_abandoned).map(|(id, _)| id).take(limit).collect())
        })
    }

    fn drain(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            if let Some(lease) = self.cluster.shared.lock().nodes.get_mut(&self.name) {
                lease.is_draining = true;
            }
            Ok(())
        })
    }

    fn check(&self) -> Result<(), StoreError> {
        let shared = self.cluster.shared.lock();
        let lease = shared.nodes.get(&self.name);
        match lease.is_some_and(|lease| !lease.is_noticed && lease.incarnation == *self.incarnation.lock()) {
            true => Ok(()),
            false => Err(StoreError::LeaseLost),
        }
    }

    fn lost(&self, known: u64) -> Pin<Box<dyn Future<Output = u64> + Send>> {
        let (cluster, name) = (self.cluster.clone(), self.name.clone());
        Box::pin(async move {
            loop {
                let changed = cluster.changed.notified();
                let losses = cluster.shared.lock().nodes.get(&name).map_or(0, |lease| lease.losses);
                if losses > known {
                    return losses;
                }
                changed.await;
            }
        })
    }
}
