//! Other nodes' leases: a forwarded request does not wait for a node that has lost its lease, because that node may be
//! frozen, or gone without a word, and another one may have its name.
//!
//! Invariants: the leases are read only while somebody waits, and once for all who wait. Leases that cannot be read end no
//! request.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt as _, stream};
use greenroom_store::{Engine, Lease};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the leases are read.
const EVERY: Duration = Duration::from_secs(1);

/// Completes when a node has lost its lease.
pub(super) type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The valid leases, as they were read last.
#[derive(Clone, Default)]
pub(super) struct Leases(watch::Sender<BTreeMap<String, Lease>>);

impl Leases {
    /// Reads the leases until the server stops.
    pub(super) async fn watch(self, engine: Arc<dyn Engine>, stop: CancellationToken) {
        let Some(placement) = engine.placement() else { return };
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            if self.0.receiver_count() == 0 {
                continue;
            }
            match placement.leases().await {
                Ok(valid) => drop(self.0.send_replace(valid)),
                Err(error) => tracing::debug!(%error, "the nodes' leases could not be read"),
            }
        }
    }

    /// Completes when the node at this address has lost the lease that it has now.
    pub(super) fn lost(&self, node: &str, address: Option<&str>) -> Lost {
        let (mut valid, node, address) = (self.0.subscribe(), node.to_owned(), address.map(str::to_owned));
        Box::pin(async move {
            // The first list may have been read before the node joined.
            let mut lists = 0_u32;
            let mut lease = None;
            while valid.changed().await.is_ok() {
                lists = lists.saturating_add(1);
                let now = valid.borrow_and_update().get(&node).filter(|now| now.address == address).cloned();
                if lists > 1 && (now.is_none() || lease.is_some() && lease != now) {
                    return;
                }
                lease = now;
            }
            // The server stops.
            std::future::pending().await
        })
    }
}

/// The body of a node's answer, which breaks off when the node has lost its lease.
pub(super) fn until_lost(body: Body, lost: Lost) -> Body {
    Body::from_stream(broken_off(body.into_data_stream(), lost))
}

fn broken_off<E: Into<axum::BoxError>>(
    data: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
    lost: Lost,
) -> impl Stream<Item = Result<Bytes, axum::BoxError>> + Send {
    stream::unfold(Some((data, lost)), async |state| {
        let (mut data, mut lost) = state?;
        tokio::select! {
            biased;
            next = data.next() => next.map(|next| (next.map_err(Into::into), Some((data, lost)))),
            () = &mut lost => {
                let error = io::Error::new(io::ErrorKind::ConnectionAborted, "the node has lost its lease");
                Some((Err(error.into()), None))
            }
        }
    })
}

#[cfg(test)]
mod tests;
