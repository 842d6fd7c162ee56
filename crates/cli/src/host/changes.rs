//! A connection for commands that change stored sessions and have no agent: to the host that holds the store,
//! or to one in this process.
//!
//! Invariants: requests and results are the same in both cases; a host in this process ends with the command,
//! and no session has an agent in it.

use std::sync::Arc;

use anyhow::Result;
use greenroom::Runtime;
use greenroom_server::Client;

use super::again::{self, Connection};
use super::connect::{CHANGES, reach_to_change};
use super::{Nobody, own};
use crate::agent::data_dir;
use crate::args::Global;
use crate::error::secrets;

/// A connection without an agent.
pub(crate) struct Changes {
    /// The connection.
    pub(crate) client: Client,
    /// The runtime, if it is in this process.
    own: Option<Runtime>,
}

impl Changes {
    /// Opens a connection.
    ///
    /// # Errors
    /// The host refuses this client, or does not answer; the store cannot be opened.
    pub(crate) async fn open(global: &Global) -> Result<Self> {
        match reach_to_change(global).await? {
            Some(client) => Ok(Self { client, own: None }),
            None => {
                let builder = Runtime::builder()
                    .redactor(secrets::redactor().clone())
                    .provider(Arc::new(Nobody))
                    .data_dir(data_dir(global)?);
                let runtime = own::start(global, builder).await?;
                let client = own::connect(global, &runtime, CHANGES.kind).await?;
                Ok(Self { client, own: Some(runtime) })
            }
        }
    }

    /// Like [`Self::open`], with a first request that changes nothing: a host that ends in the meantime is not
    /// asked again.
    ///
    /// # Errors
    /// Those of [`Self::open`] and of `first`.
    pub(crate) async fn open_and<T>(
        global: &Global,
        first: impl AsyncFn(&Client) -> Result<T>,
    ) -> Result<(Self, T)> {
        again::open_and(
            async || Self::open(global).await,
            async |changes: &Self| first(&changes.client).await,
        )
        .await
    }

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
        let Self { client, own } = self;
        let Some(runtime) = own else { return Ok(()) };
        client.close().await;
        own::end(runtime, async {}).await
    }
}

impl Connection for Changes {
    fn is_host(&self) -> bool {
        Self::is_host(self)
    }

    async fn end(self) -> Result<()> {
        Self::end(self).await
    }
}
