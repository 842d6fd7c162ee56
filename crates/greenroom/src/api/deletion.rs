//! Deleting a session, with the sessions below it: those of the agents that its agent called, and so on.
//!
//! Invariants: the innermost go first and the session itself goes last, so a crash in between leaves nothing without the
//! session that it belongs to; a deletion that a crash cut off is finished when the store is next opened by a runtime.
//! Whoever waits for something in one of them hears that it was deleted.

use greenroom_store::Store;

use crate::api::runtime::Runtime;
use crate::api::sessions::{children, tree};
use crate::values::error::{Error, Result};

/// Under what the store keeps which session is being deleted with others below it.
const DELETING: &str = "deleting";

/// Deletes a session of a runtime, with those below it.
pub(crate) async fn delete(runtime: &Runtime, id: &str) -> Result<()> {
    let deps = runtime.deps();
    // One at a time: the store keeps one name.
    let _turn = deps.deletions.lock().await;
    let mut doomed = vec![runtime.session(id).await?];
    for below in runtime.stored_tree(id).await? {
        // Nobody waits for one that nobody holds.
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
    // Whoever works for it ends in order with its run.
    runtime.close(id).await?;
    let below = runtime.stored_tree(id).await?;
    if !below.is_empty() {
        deps.store.learned_put(DELETING, id.as_bytes()).await?;
    }
    for session in below.iter().rev() {
        delete_one(runtime, session).await?;
    }
    runtime.delete_alone(id).await?;
    // What began between the look and now.
    let mut late: Vec<String> = Vec::new();
    for gone in below.iter().map(String::as_str).chain([id]) {
        late.extend(runtime.stored_tree(gone).await?);
    }
    for session in late.iter().rev() {
        delete_one(runtime, session).await?;
    }
    if !below.is_empty() {
        deps.store.learned_put(DELETING, &[]).await?;
    }
    Ok(())
}

async fn delete_one(runtime: &Runtime, id: &str) -> Result<()> {
    match runtime.delete_alone(id).await {
        // Somebody else did it.
        Err(Error::NoSession { .. }) => Ok(()),
        done => done,
    }
}

/// Deletes a session of a store that no runtime uses, with those below it. Gives how many sessions were below it.
///
/// # Errors
/// [`Error::NoSession`], [`Error::Store`].
pub async fn delete_stored(store: &Store, id: &str) -> Result<usize> {
    if store.head(id)?.is_none() {
        return Err(Error::NoSession { session: id.to_owned() });
    }
    let below = tree(store, id)?;
    if !below.is_empty() {
        store.learned_put(DELETING, id.as_bytes()).await?;
    }
    for (session, _) in below.iter().rev() {
        store.delete(session).await?;
    }
    store.delete(id).await?;
    if !below.is_empty() {
        store.learned_put(DELETING, &[]).await?;
    }
    Ok(below.len())
}

/// Finishes a deletion that a crash cut off.
pub(crate) async fn finish(store: &Store) -> Result<()> {
    let Some(id) = store.learned_get(DELETING)?.filter(|id| !id.is_empty()) else { return Ok(()) };
    let id = String::from_utf8_lossy(&id).into_owned();
    match delete_stored(store, &id).await {
        Ok(_) => tracing::info!(session = %id, "a deletion that was cut off is finished"),
        Err(Error::NoSession { .. }) => {
            // It was the last that went, unless something began below it at that very moment.
            for (session, _) in children(store, &id)? {
                delete_stored_below(store, &session).await?;
            }
            store.learned_put(DELETING, &[]).await?;
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn delete_stored_below(store: &Store, id: &str) -> Result<()> {
    for (session, _) in tree(store, id)?.iter().rev() {
        store.delete(session).await?;
    }
    Ok(store.delete(id).await?)
}
