//! Deleting a session with the sessions of its sub-agents, on all levels.
//!
//! Invariants: the innermost sessions are deleted first and the session itself last, so a crash in between
//! leaves no session without its parent; retention deletes the session itself first, because only then is it
//! known that it goes. When a runtime next opens the store, it finishes a deletion that a
//! crash interrupted; one that may only read leaves it to the next. Callers that wait for one of these sessions
//! get the error that it was deleted.

use greenroom_store::{Engine, StoreError};

use crate::api::runtime::Runtime;
use crate::values::error::{Error, Result};
use crate::values::family;
use crate::values::retention::DeletionReason;

/// The store's key for the session that is being deleted together with others.
const DELETING: &str = "deleting";

/// The store's key for the session that retention deletes together with others. If it still exists, it is kept: it was
/// perhaps used again.
const DELETING_BELOW: &str = "deleting_below";

/// The name of a mark, which is a node's own.
fn own(store: &dyn Engine, mark: &str) -> String {
    match store.node() {
        "" => mark.to_owned(),
        node => format!("{mark} {node}"),
    }
}

/// Deletes a session of a runtime, and the sessions below it.
pub(crate) async fn delete(runtime: &Runtime, id: &str) -> Result<()> {
    let deps = runtime.deps();
    // One at a time, because the store keeps one name.
    let _turn = deps.deletions.lock().await;
    let mut doomed = vec![runtime.session(id).await?];
    for below in runtime.stored_tree(id).await? {
        // Sessions without a handle have no waiting callers.
        doomed.extend(runtime.held(&below).await?);
    }
    doomed.iter().for_each(|session| session.door.set_deleting(true));
    let deleted = delete_all(runtime, id).await;
    if deleted.is_err() {
        doomed.iter().for_each(|session| session.door.set_deleting(false));
    }
    deleted
}

async fn delete_all(runtime: &Runtime, id: &str) -> Result<()> {
    let deps = runtime.deps();
    // Closing the session ends the work below it cleanly.
    runtime.close(id).await?;
    let below = runtime.stored_tree(id).await?;
    if !below.is_empty() {
        deps.store.fact_put(&own(&*deps.store, DELETING), id.as_bytes()).await?;
    }
    for session in below.iter().rev() {
        delete_one(runtime, session).await?;
    }
    runtime.delete_alone(id).await?;
    // Sessions that were created since the first listing.
    let mut late: Vec<String> = Vec::new();
    for gone in below.iter().map(String::as_str).chain([id]) {
        late.extend(runtime.stored_tree(gone).await?);
    }
    for session in late.iter().rev() {
        delete_one(runtime, session).await?;
    }
    if !below.is_empty() {
        deps.store.fact_put(&own(&*deps.store, DELETING), &[]).await?;
    }
    Ok(())
}

async fn delete_one(runtime: &Runtime, id: &str) -> Result<()> {
    match runtime.delete_alone(id).await {
        // Another caller has deleted it.
        Err(Error::NoSession { .. }) => Ok(()),
        done => done,
    }
}

/// Deletes a session, and the sessions below it, if it has no actors and this many entries. Returns whether it did.
pub(crate) async fn delete_unused(
    runtime: &Runtime,
    id: &str,
    entries: u64,
    reason: DeletionReason,
) -> Result<bool> {
    let deps = runtime.deps();
    let _turn = deps.deletions.lock().await;
    let below = runtime.stored_tree(id).await?;
    if !below.is_empty() {
        deps.store.fact_put(&own(&*deps.store, DELETING_BELOW), id.as_bytes()).await?;
    }
    let is_deleted = runtime.delete_unused_alone(id, entries, reason).await;
    if let Ok(true) = is_deleted {
        for session in below.iter().rev() {
            let known = runtime.head(session).await?.map_or(0, |head| head.entries);
            if !runtime.delete_unused_alone(session, known, reason).await? {
                delete_one(runtime, session).await?;
            }
        }
    }
    if !below.is_empty() {
        deps.store.fact_put(&own(&*deps.store, DELETING_BELOW), &[]).await?;
    }
    is_deleted
}

/// Deletes a session, and the sessions below it, from a store that no runtime uses yet.
///
/// # Errors
/// [`Error::NoSession`], [`Error::Store`].
async fn delete_stored(store: &dyn Engine, id: &str) -> Result<()> {
    if store.head(id).await?.is_none() {
        return Err(Error::NoSession { session: id.to_owned() });
    }
    let below = family::below(store, id).await?;
    if !below.is_empty() {
        store.fact_put(&own(store, DELETING), id.as_bytes()).await?;
    }
    for (session, _) in below.iter().rev() {
        store.delete(session).await?;
    }
    store.delete(id).await?;
    if !below.is_empty() {
        store.fact_put(&own(store, DELETING), &[]).await?;
    }
    Ok(())
}

/// Finishes a deletion that a crash interrupted, if the store may be changed.
pub(crate) async fn finish(store: &dyn Engine) -> Result<()> {
    match resume(store).await {
        // The next runtime that may change the store finishes it.
        Err(Error::Store(error)) if matches!(*error, StoreError::NotPermitted { .. }) => Ok(()),
        finished => finished,
    }
}

/// Returns the session that was being deleted, by this key.
async fn interrupted(store: &dyn Engine, key: &str) -> Result<Option<String>> {
    let id = store.fact_get(&own(store, key)).await?.filter(|id| !id.is_empty());
    Ok(id.map(|id| String::from_utf8_lossy(&id).into_owned()))
}

async fn resume(store: &dyn Engine) -> Result<()> {
    if let Some(id) = interrupted(store, DELETING_BELOW).await? {
        if store.head(&id).await?.is_none() {
            delete_children(store, &id).await?;
            tracing::info!(session = %id, "an interrupted deletion was finished");
        }
        store.fact_put(&own(store, DELETING_BELOW), &[]).await?;
    }
    let Some(id) = interrupted(store, DELETING).await? else { return Ok(()) };
    match delete_stored(store, &id).await {
        Ok(()) => tracing::info!(session = %id, "an interrupted deletion was finished"),
        Err(Error::NoSession { .. }) => {
            // The session itself was the last one to delete, unless another was created below it at that
            // moment.
            delete_children(store, &id).await?;
            store.fact_put(&own(store, DELETING), &[]).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Deletes the sessions below one that is gone.
async fn delete_children(store: &dyn Engine, id: &str) -> Result<()> {
    for (session, _) in family::children(store, id).await? {
        delete_stored_below(store, &session).await?;
    }
    Ok(())
}

async fn delete_stored_below(store: &dyn Engine, id: &str) -> Result<()> {
    for (session, _) in family::below(store, id).await?.iter().rev() {
        store.delete(session).await?;
    }
    Ok(store.delete(id).await?)
}
