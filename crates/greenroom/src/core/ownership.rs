//! Which node runs a session, where several share one storage: see [`greenroom_store::Placement`].
//!
//! Invariants: a session has actors only while it is this node's; it is given back when it sleeps without a run, and when
//! the runtime ends. Without a placement, this process runs everything and nothing here waits.

use std::sync::Arc;
use std::time::Duration;

use greenroom_store::{Claim, StoreError};
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;

use crate::core::deps::Deps;
use crate::core::message::SupervisorMessage;
use crate::values::error::Result;

/// How often it is checked whether a lease that may have run out was renewed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Makes a session this node's.
///
/// # Errors
/// [`StoreError::Elsewhere`] if another node runs it; [`StoreError::LeaseLost`]; those of the storage.
pub(crate) async fn claim(deps: &Deps, session: &str) -> Result<()> {
    let Some(placement) = deps.store.placement() else { return Ok(()) };
    match placement.claim(session).await? {
        Claim::Mine { .. } => Ok(()),
        Claim::Theirs(owner) => Err(StoreError::Elsewhere { session: session.to_owned(), owner }.into()),
    }
}

/// Gives a session back. That it cannot be given back is not an error: its lease runs out.
pub(crate) async fn release(deps: &Deps, session: &str) {
    let Some(placement) = deps.store.placement() else { return };
    if let Err(error) = placement.release(session, None).await {
        tracing::debug!(session, %error, "a session could not be given back; its lease runs out");
    }
}

/// Waits until an effect outside may begin: this node's lease is valid. Returns early if the work is cancelled.
pub(crate) async fn may_act(deps: &Deps, cancel: &CancellationToken) {
    let Some(placement) = deps.store.placement() else { return };
    while placement.check().is_err() && !cancel.is_cancelled() {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Whether an append failed because the session is no longer this node's.
pub(crate) fn is_lost(error: &StoreError) -> bool {
    matches!(error, StoreError::Fenced { .. } | StoreError::Elsewhere { .. } | StoreError::LeaseLost)
}

/// Lets the supervisor end everything whenever this node loses its lease, as long as the runtime exists.
pub(crate) fn watch(deps: &Arc<Deps>, supervisor: &ActorRef<SupervisorMessage>) {
    if deps.store.placement().is_none() {
        return;
    }
    let (store, supervisor) = (Arc::downgrade(&deps.store), supervisor.clone());
    tokio::spawn(async move {
        let mut known = 0;
        while let Some(store) = store.upgrade() {
            let Some(placement) = store.placement() else { return };
            tokio::select! {
                losses = placement.lost(known) => {
                    known = losses;
                    tracing::error!("this node lost its lease: everything that it ran ends here");
                    if supervisor.cast(SupervisorMessage::LeaseLost).is_err() {
                        return;
                    }
                }
                // The storage is not kept open for this.
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    });
}
