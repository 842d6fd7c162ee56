//! Which node runs a session, where several share one storage: see [`greenroom_store::Placement`].
//!
//! Invariants: a session has actors only while it is this node's; it is given back when it sleeps without a run, and when
//! the runtime ends, and then to the node with the least to do. Without a placement, this process runs everything and nothing
//! here waits.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_store::{Claim, Member, StoreError};
use parking_lot::Mutex;
use ractor::ActorRef;
use tokio_util::sync::CancellationToken;

use crate::core::deps::Deps;
use crate::core::message::SupervisorMessage;
use crate::values::error::Result;

/// How often it is checked whether a lease that may have run out was renewed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How often the nodes are counted among which the rates are divided.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// How often it is checked whether the runtime still exists.
const STILL_THERE_EVERY: Duration = Duration::from_secs(1);

/// The nodes that are to run this node's sessions once it has left, with their load.
#[derive(Default)]
pub(crate) struct Heirs(Mutex<Vec<Member>>);

impl Heirs {
    fn new(mut members: Vec<Member>, me: &str) -> Self {
        members.retain(|member| member.node != me && !member.is_draining);
        Self(Mutex::new(members))
    }

    /// The node that gets the next session; `None` if this node does not leave, or is the only one.
    fn next(&self) -> Option<String> {
        let mut members = self.0.lock();
        let heir = members.iter_mut().min_by_key(|member| member.sessions)?;
        heir.sessions += 1;
        Some(heir.node.clone())
    }
}

/// Takes no more sessions from now on, and chooses the nodes that get those of this one.
pub(crate) async fn leave(deps: &Deps) {
    let Some(placement) = deps.store.placement() else { return };
    let left = async {
        placement.drain().await?;
        placement.members().await
    };
    match left.await {
        Ok(members) => *deps.heirs.0.lock() = Heirs::new(members, deps.store.node()).0.into_inner(),
        Err(error) => tracing::warn!(%error, "other nodes do not know that this one is leaving"),
    }
}

/// Whether this node takes over the work of others, and a session that it opens is not its own yet.
pub(crate) fn takes_over(deps: &Deps, session: &str) -> bool {
    let is_new = deps.store.placement().is_some_and(|placement| !placement.holds(session));
    is_new && deps.taking_over.load(Ordering::Relaxed) > 0
}

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
    let heir = deps.heirs.next();
    if let Err(error) = placement.release(session, heir.as_deref()).await {
        tracing::debug!(session, %error, "a session could not be given back; its lease runs out");
    }
}

/// Waits until an effect outside may begin: this node's lease is valid. Returns early if the work is cancelled.
pub(crate) async fn may_act(deps: &Deps, cancel: &CancellationToken) {
    let Some(placement) = deps.store.placement() else { return };
    while placement.check().is_err() && !cancel.is_cancelled() {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = Box::pin(tokio::time::sleep(LOOK_AGAIN)) => {}
        }
    }
}

/// Whether an append failed because the session is no longer this node's.
pub(crate) fn is_lost(error: &StoreError) -> bool {
    matches!(error, StoreError::Fenced { .. } | StoreError::Elsewhere { .. } | StoreError::LeaseLost)
}

/// Lets the supervisor end everything whenever this node loses its lease, and divides the rates among the nodes, as
/// long as the runtime exists.
pub(crate) fn watch(deps: &Arc<Deps>, supervisor: &ActorRef<SupervisorMessage>) {
    if deps.store.placement().is_none() {
        return;
    }
    tokio::spawn(end_with_the_lease(Arc::downgrade(deps), supervisor.clone()));
    // A task of its own: a storage that does not answer must not delay the end.
    if deps.has_rates() {
        tokio::spawn(share_rates(Arc::downgrade(deps)));
    }
}

async fn end_with_the_lease(deps: Weak<Deps>, supervisor: ActorRef<SupervisorMessage>) {
    let mut known = 0;
    loop {
        let Some(lost) = deps.upgrade().and_then(|deps| Some(deps.store.placement()?.lost(known))) else {
            return;
        };
        tokio::select! {
            losses = lost => {
                known = losses;
                tracing::error!("this node lost its lease: everything that it ran ends here");
                if supervisor.cast(SupervisorMessage::LeaseLost).is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(STILL_THERE_EVERY) => {}
        }
    }
}

/// Divides the rates of providers and of labels among the nodes that there are.
async fn share_rates(weak: Weak<Deps>) {
    loop {
        let Some(deps) = weak.upgrade() else { return };
        let Some(placement) = deps.store.placement() else { return };
        match placement.members().await {
            Ok(members) => deps.share_rates(members.len().max(1) as u64),
            Err(error) => {
                tracing::debug!(%error, "the nodes could not be counted; the rates stay as they are")
            }
        }
        drop(deps);
        tokio::time::sleep(COUNT_EVERY).await;
    }
}
