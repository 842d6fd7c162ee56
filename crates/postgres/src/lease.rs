//! The lease of this node: registered at the start, renewed in time, lost if that fails.
//!
//! Invariants: the deadline is counted from before the request, on a clock that does not jump, so it is never later than the
//! server's. A lost lease is never renewed: the node registers again, as another incarnation, and what it owned is free.
//! Of two processes with one name the second is refused as long as the first renews.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use greenroom_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_postgres::Row;

use crate::backoff::Backoff;
use crate::link::{Fault, Link};
use crate::options::{PostgresOptions, Server, unsuitable};
use crate::statements::Sql;

const STATEMENTS: &[Sql] = &[Sql::Register, Sql::Renew, Sql::NodeNamed, Sql::Goodbye];

/// A lease that was granted.
#[derive(Debug, Clone)]
struct Granted {
    incarnation: i64,
    until: Instant,
    is_lost: bool,
    /// Why the newest renewal failed, if it did.
    failure: Option<String>,
}

/// Why a lease is lost that the server does not know.
const UNKNOWN: &str =
    "the database does not know the lease any more: it ran out, or another process took the node's name";

impl Granted {
    /// Returns why the lease was not renewed in time.
    fn late(&self) -> String {
        match &self.failure {
            Some(failure) => format!("the database could not renew it in time ({failure})"),
            None => "this process did not run in time to renew it: it was stopped, or the machine was suspended or busy"
                .to_owned(),
        }
    }
}

/// This node's lease.
pub(crate) struct Lease {
    granted: Mutex<Granted>,
    is_draining: AtomicBool,
    losses: watch::Sender<u64>,
}

impl Lease {
    /// Returns the number under which this node owns sessions now.
    ///
    /// # Errors
    /// [`StoreError::LeaseLost`].
    pub(crate) fn incarnation(&self) -> Result<i64, StoreError> {
        let mut granted = self.granted.lock();
        if !granted.is_lost && Instant::now() >= granted.until {
            let why = granted.late();
            self.lose(&mut granted, &why);
        }
        if granted.is_lost { Err(StoreError::LeaseLost) } else { Ok(granted.incarnation) }
    }

    /// Takes note that the server does not know this incarnation's lease any more.
    pub(crate) fn end(&self, incarnation: i64) {
        let mut granted = self.granted.lock();
        if granted.incarnation == incarnation && !granted.is_lost {
            self.lose(&mut granted, UNKNOWN);
        }
    }

    fn lose(&self, granted: &mut Granted, why: &str) {
        granted.is_lost = true;
        self.losses.send_modify(|losses| *losses += 1);
        tracing::warn!(
            incarnation = granted.incarnation,
            "this node has lost its lease, and all sessions that it owned: {why}"
        );
    }

    /// Completes once the lease was lost more than `known` times, and returns how often.
    pub(crate) fn lost(&self, known: u64) -> impl Future<Output = u64> + Send + use<> {
        let mut losses = self.losses.subscribe();
        async move {
            let lost = losses.wait_for(|losses| *losses > known).await.map(|losses| *losses);
            match lost {
                Ok(losses) => losses,
                // Without a lease there is nothing to lose any more.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Remembers that this node takes no more sessions.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
    }
}

/// Renews the lease on its own connection, so that no other statement delays a renewal.
pub(crate) struct Keeper {
    options: PostgresOptions,
    server: Server,
    link: Option<Link>,
    /// Whether another process has this node's name, and that was said.
    is_displaced: bool,
}

impl Keeper {
    /// Registers this node. Waits for a lease of the same name to expire if nobody renews it: that of a process that was
    /// killed.
    pub(crate) async fn register(
        options: &PostgresOptions,
        server: &Server,
    ) -> Result<(Self, Lease), StoreError> {
        let mut keeper =
            Self { options: options.clone(), server: server.clone(), link: None, is_displaced: false };
        let mut seen: Option<(i64, String)> = None;
        loop {
            let granted = keeper.try_register(None, false).await.map_err(unavailable)?;
            if let Some(granted) = granted {
                let lease = Lease {
                    granted: Mutex::new(granted),
                    is_draining: AtomicBool::new(false),
                    losses: watch::channel(0).0,
                };
                return Ok((keeper, lease));
            }
            let Some(row) = keeper.other_of_this_name().await.map_err(unavailable)? else { continue };
            let now = (row.get::<_, i64>(0), row.get::<_, String>(2));
            if seen.as_ref().is_some_and(|seen| *seen != now) {
                let address: Option<String> = row.get(1);
                let place = address.map_or_else(String::new, |address| format!(", at {address}"));
                return Err(unsuitable(format!(
                    "another process uses the node name {}{place}; give each node its own name (--node)",
                    keeper.options.node
                )));
            }
            seen = Some(now);
            let remaining = Duration::try_from_secs_f64(row.get::<_, f64>(3)).unwrap_or_default();
            tracing::info!(
                node = keeper.options.node,
                ?remaining,
                "waiting for the lease of an earlier process to expire"
            );
            tokio::time::sleep(remaining + Duration::from_millis(5)).await;
        }
    }

    /// Renews the lease, for ever.
    pub(crate) async fn keep(mut self, lease: &Lease) {
        let mut backoff = Backoff::new();
        let mut pause = self.options.lease / 3;
        loop {
            tokio::time::sleep(pause).await;
            let result = match lease.incarnation() {
                Ok(incarnation) => self.renew(lease, incarnation).await,
                Err(_) => self.register_again(lease).await,
            };
            pause = match result {
                Ok(true) => {
                    backoff = Backoff::new();
                    self.options.lease / 3
                }
                Ok(false) => backoff.next().min(self.options.lease / 10),
                Err(fault) => {
                    tracing::debug!(?fault, "the lease could not be renewed");
                    lease.granted.lock().failure = Some(fault.detail().to_owned());
                    self.link = None;
                    backoff.next().min(self.options.lease / 10)
                }
            };
        }
    }

    /// Renews a lease that is valid. Returns whether that worked.
    async fn renew(&mut self, lease: &Lease, incarnation: i64) -> Result<bool, Fault> {
        let before = Instant::now();
        let until = lease.granted.lock().until;
        let patience = (self.options.lease / 3).min(until.saturating_duration_since(before));
        let (node, length) = (self.options.node.clone(), self.options.lease.as_secs_f64());
        let rows = self.run(Sql::Renew, &[&node, &incarnation, &length], patience).await?;
        let mut granted = lease.granted.lock();
        if granted.is_lost || granted.incarnation != incarnation {
            return Ok(false);
        }
        // An answer that came too late is none: whoever asked in between was told that the lease is lost.
        if rows.is_empty() || Instant::now() >= granted.until {
            let why = if rows.is_empty() { UNKNOWN.to_owned() } else { granted.late() };
            lease.lose(&mut granted, &why);
            return Ok(false);
        }
        granted.until = before + self.options.lease;
        granted.failure = None;
        Ok(true)
    }

    /// Registers as another incarnation after a loss.
    async fn register_again(&mut self, lease: &Lease) -> Result<bool, Fault> {
        let before = lease.granted.lock().incarnation;
        let is_draining = lease.is_draining.load(Ordering::SeqCst);
        match self.try_register(Some(before), is_draining).await? {
            // The database answered so late that the lease has expired. The next attempt continues from this incarnation.
            Some(granted) if granted.until <= Instant::now() => {
                tracing::debug!(incarnation = granted.incarnation, "a lease came too late");
                lease.granted.lock().incarnation = granted.incarnation;
                Ok(false)
            }
            Some(granted) => {
                tracing::info!(incarnation = granted.incarnation, "this node has a lease again");
                *lease.granted.lock() = granted;
                self.is_displaced = false;
                Ok(true)
            }
            None => {
                if !std::mem::replace(&mut self.is_displaced, true) {
                    tracing::error!(
                        node = self.options.node,
                        "another process uses this node's name, so this one gets no lease: stop one of them, or give each its \
                         own name (--node)"
                    );
                }
                Ok(false)
            }
        }
    }

    async fn try_register(
        &mut self,
        before: Option<i64>,
        is_draining: bool,
    ) -> Result<Option<Granted>, Fault> {
        let asked = Instant::now();
        let (node, address) = (self.options.node.clone(), self.options.address.clone());
        let length = self.options.lease.as_secs_f64();
        let patience = self.options.patience;
        let rows =
            self.run(Sql::Register, &[&node, &address, &length, &is_draining, &before], patience).await?;
        let incarnation = rows.first().map(|row| row.get(0));
        Ok(incarnation.map(|incarnation| Granted {
            incarnation,
            until: asked + self.options.lease,
            is_lost: false,
            failure: None,
        }))
    }

    async fn other_of_this_name(&mut self) -> Result<Option<Row>, Fault> {
        let (node, patience) = (self.options.node.clone(), self.options.patience);
        Ok(self.run(Sql::NodeNamed, &[&node], patience).await?.into_iter().next())
    }

    async fn run(
        &mut self,
        sql: Sql,
        parameters: crate::link::Parameters<'_>,
        patience: Duration,
    ) -> Result<Vec<Row>, Fault> {
        let began = Instant::now();
        if self.link.as_ref().is_none_or(Link::is_closed) {
            let mut options = self.options.clone();
            options.patience = patience;
            let link = Link::open(&options, &self.server, STATEMENTS).await;
            self.link = Some(link.map_err(Fault::without_link)?);
        }
        let link = self.link.as_ref().expect("it was opened");
        link.run(sql, parameters, patience.saturating_sub(began.elapsed()).max(Duration::from_millis(1)))
            .await
    }
}

/// Gives a lease back: what this node owned is free.
pub(crate) async fn goodbye(
    options: &PostgresOptions,
    server: &Server,
    lease: &Lease,
) -> Result<(), StoreError> {
    let incarnation = {
        let mut granted = lease.granted.lock();
        granted.is_lost = true;
        granted.incarnation
    };
    let link = Link::open(options, server, &[Sql::Goodbye]).await?;
    let left = link.run(Sql::Goodbye, &[&options.node, &incarnation], options.patience).await;
    left.map(drop).map_err(unavailable)
}

fn unavailable(fault: Fault) -> StoreError {
    match fault {
        Fault::Unsent(detail) | Fault::Later(detail) | Fault::Unanswered(detail) => {
            StoreError::Unavailable { detail }
        }
        Fault::Refused(detail) | Fault::Taken(detail) => StoreError::Unsuitable { detail },
    }
}
