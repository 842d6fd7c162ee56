//! A few connections that many callers share: statements of several callers are sent without waiting for each other's
//! answers.
//!
//! Invariants: a connection that failed is replaced, not repaired. A caller waits for the database as long as its patience
//! lasts, and no longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use greenroom_store::StoreError;
use tokio::sync::Mutex;
use tokio_postgres::Row;

use crate::backoff::Attempts;
use crate::link::{Fault, Link, Parameters};
use crate::options::{PostgresOptions, Server};
use crate::statements::Sql;

/// What is run over these connections.
const STATEMENTS: &[Sql] = &[
    Sql::AppendParts,
    Sql::Part,
    Sql::PartsDropped,
    Sql::Diagnosis,
    Sql::Release,
    Sql::OwnerOf,
    Sql::Delete,
    Sql::Head,
    Sql::UsedKey,
    Sql::UsedKeys,
    Sql::Load,
    Sql::Open,
    Sql::Get,
    Sql::Page,
    Sql::FactGet,
    Sql::FactKeys,
    Sql::FactPut,
    Sql::FactDropped,
    Sql::Drain,
    Sql::Members,
    Sql::Leases,
    Sql::Wish,
    Sql::Abandoned,
];

/// What a failure means to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It reads, so nothing was written.
    Read,
    /// It writes, and may have written.
    Write,
}

pub(crate) struct Pool {
    options: PostgresOptions,
    server: Server,
    places: Vec<Mutex<Option<Arc<Link>>>>,
    next: AtomicUsize,
}

impl Pool {
    pub(crate) fn new(options: &PostgresOptions, server: &Server) -> Self {
        let places = (0..options.readers).map(|_| Mutex::new(None)).collect();
        Self { options: options.clone(), server: server.clone(), places, next: AtomicUsize::new(0) }
    }

    /// Runs a statement, again and again while the database cannot be reached and patience lasts.
    pub(crate) async fn run(
        &self,
        kind: Kind,
        sql: Sql,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        self.run_until(Instant::now() + self.options.patience, kind, sql, parameters).await
    }

    /// Like [`Self::run`], with patience until then.
    pub(crate) async fn run_until(
        &self,
        until: Instant,
        kind: Kind,
        sql: Sql,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        let mut attempts = Attempts::new(until);
        loop {
            match (self.run_once(until, sql, parameters).await, kind) {
                (Ok(rows), _) => return Ok(rows),
                (Err(fault), Kind::Write) => attempts.after(fault).await?,
                (Err(fault), Kind::Read) => attempts.after(fault.of_repeatable()).await?,
            }
        }
    }

    /// Runs a statement once.
    pub(crate) async fn run_once(
        &self,
        until: Instant,
        sql: Sql,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Fault> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.places.len();
        let link = self.link(number, until).await?;
        // Half of the patience, so that a connection that went silent leaves time for another one.
        let patience = (self.options.patience / 2).min(until.saturating_duration_since(Instant::now()));
        let result = link.run(sql, parameters, patience.max(Duration::from_millis(1))).await;
        if let Err(Fault::Unanswered(_) | Fault::Unsent(_) | Fault::Later(_)) = &result {
            let mut place = self.places[number].lock().await;
            if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, &link)) {
                *place = None;
            }
        }
        result
    }

    /// Returns the connection in this place, which is opened if there is none.
    async fn link(&self, number: usize, until: Instant) -> Result<Arc<Link>, Fault> {
        let mut place = self.places[number].lock().await;
        if let Some(link) = place.as_ref().filter(|link| !link.is_closed()) {
            return Ok(Arc::clone(link));
        }
        let mut options = self.options.clone();
        options.patience = options.patience.min(until.saturating_duration_since(Instant::now()));
        match Link::open(&options, &self.server, STATEMENTS).await {
            Ok(link) => Ok(Arc::clone(place.insert(Arc::new(link)))),
            // Whoever gives up says that it is not available.
            Err(StoreError::Unavailable { detail }) => Err(Fault::Unsent(detail)),
            Err(error) => Err(Fault::Unsent(error.to_string())),
        }
    }

    /// Opens all connections, so that what is wrong with the server is said at once.
    pub(crate) async fn open(&self) -> Result<(), StoreError> {
        for place in &self.places {
            *place.lock().await = Some(Arc::new(Link::open(&self.options, &self.server, STATEMENTS).await?));
        }
        Ok(())
    }

    /// Closes all connections.
    pub(crate) async fn close(&self) {
        for place in &self.places {
            *place.lock().await = None;
        }
    }
}
