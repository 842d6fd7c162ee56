//! A connection to the runtime that has the store: that of a host, or one in this process.
//!
//! Invariants: requests and results are the same in both cases; a runtime in this process ends with the connection,
//! and is not replaced; a host that ends before the first result is replaced; a connection whose first request
//! fails is ended.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::Runtime;
use greenroom_server::operations::FindSession;
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_store::StoreError;

use super::connect::{CHANGES, reach_to_change};
use super::error::is_gone;
use super::{Nobody, own};
use crate::agent::data_dir;
use crate::args::Global;
use crate::error::{secrets, usage};

/// How many hosts that end are replaced before this is reported.
pub(crate) const ATTEMPTS: u32 = 5;

/// How long closing a connection may take.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// A connection to a runtime.
pub(crate) struct Connection<T = ()> {
    /// The connection.
    pub(crate) client: Client,
    /// The runtime, if it is in this process.
    pub(super) own: Option<Runtime>,
    /// What is known of this connection besides.
    pub(crate) with: T,
}

/// A connection without an agent, for commands that change stored sessions. In a runtime in this process, no
/// session has an agent either.
pub(crate) type Changes = Connection;

impl Changes {
    /// Opens a connection.
    ///
    /// # Errors
    /// The host refuses this client, or does not answer; the store cannot be opened.
    pub(crate) async fn open(global: &Global) -> Result<Self> {
        match reach_to_change(global).await? {
            Some(client) => Ok(Self { client, own: None, with: () }),
            None => {
                let builder = Runtime::builder()
                    .redactor(secrets::redactor().clone())
                    .provider(Arc::new(Nobody))
                    .data_dir(data_dir(global)?);
                let runtime = own::start(global, builder).await?;
                let client = own::connect(global, &runtime, CHANGES.kind).await?;
                Ok(Self { client, own: Some(runtime), with: () })
            }
        }
    }

    /// Like [`Self::open`], with a first request that may be repeated: see [`open_and`].
    ///
    /// # Errors
    /// Those of [`Self::open`] and of `first`.
    pub(crate) async fn open_and<R>(
        global: &Global,
        first: impl AsyncFn(&Client) -> Result<R>,
    ) -> Result<(Self, R)> {
        open_and(async || Self::open(global).await, async |changes: &Self| first(&changes.client).await).await
    }
}

/// Opens a connection, with a first request that may be repeated: a host that ends in the meantime is replaced.
///
/// # Errors
/// Those of `open` and of `first`.
pub(super) async fn open_and<T, R>(
    open: impl AsyncFn() -> Result<Connection<T>>,
    first: impl AsyncFn(&Connection<T>) -> Result<R>,
) -> Result<(Connection<T>, R)> {
    let mut attempt = 1;
    loop {
        let connection = open().await?;
        match first(&connection).await {
            Ok(result) => return Ok((connection, result)),
            Err(error) if connection.is_host() && attempt < ATTEMPTS && is_gone(&error) => attempt += 1,
            Err(error) => {
                connection.end().await?;
                return Err(error);
            }
        }
    }
}

impl<T> Connection<T> {
    /// Whether the runtime is in another process.
    pub(crate) fn is_host(&self) -> bool {
        self.own.is_none()
    }

    /// Returns the runtime, if it is in this process.
    pub(crate) fn runtime(&self) -> Option<&Runtime> {
        self.own.as_ref()
    }

    /// Closes the connection, and ends a runtime in this process.
    pub(crate) async fn end(self) -> Result<()> {
        match self.own {
            Some(runtime) => {
                self.client.close().await;
                own::end(runtime, async {}).await
            }
            None => {
                // Does not wait for a host that no longer replies.
                let _ = tokio::time::timeout(CLOSE_MAX, self.client.close()).await;
                Ok(())
            }
        }
    }
}

/// Resolves the user's session id: a full id, or a unique prefix.
///
/// # Errors
/// Several ids have this prefix, or none.
pub(crate) async fn resolve_known(client: &Client, given: &str) -> Result<String> {
    match client.call(FindSession { prefix: given.to_owned() }).await {
        Ok(found) => Ok(found.session_id),
        Err(ClientError::Parameters(text)) => Err(usage(text)),
        Err(error) if error.kind() == Some(ProblemKind::NoSession) => Err(not_found(given)),
        Err(error) => Err(error.into()),
    }
}

/// Creates the error that there is no such session.
pub(crate) fn not_found(session: &str) -> anyhow::Error {
    StoreError::NotFound { session: session.to_owned() }.into()
}
