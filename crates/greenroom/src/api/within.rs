//! The sessions of a label: those that have it, and the sub-agents below them.
//!
//! Invariants: only heads are read, and no session is woken.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_kernel::Head;
use greenroom_store::{Engine, Heads};

use crate::api::runtime::Runtime;
use crate::api::sessions::{PAGE, SessionSummary};
use crate::values::error::Result;
use crate::values::family;

impl Runtime {
    /// Whether a session, or a session above it, has all these labels; `false` if it does not exist. With a label for each
    /// tenant of a service, this is the check whether a session is one of the tenant's.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn has_labels(&self, id: &str, labels: &BTreeMap<String, String>) -> Result<bool> {
        has_labels(&*self.deps().store, id, labels).await
    }

    /// Returns the sessions with all these labels, and those of the sub-agents below them.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    #[doc(hidden)]
    pub async fn sessions_within(&self, labels: &BTreeMap<String, String>) -> Result<Vec<SessionSummary>> {
        sessions_within(&*self.deps().store, labels).await
    }
}

fn have(head: &Head, labels: &BTreeMap<String, String>) -> bool {
    labels.iter().all(|(name, value)| head.labels.get(name) == Some(value))
}

/// As [`Runtime::has_labels`].
pub(super) async fn has_labels(
    store: &dyn Engine,
    id: &str,
    labels: &BTreeMap<String, String>,
) -> Result<bool> {
    let Some(head) = store.head(id).await? else { return Ok(false) };
    if have(&head, labels) {
        return Ok(true);
    }
    let above = family::above(store, head.parent_session).await?;
    Ok(above.iter().any(|(_, head)| head.as_ref().is_some_and(|head| have(head, labels))))
}

/// Whether a session is below another one, on any level.
pub(super) async fn is_below(store: &dyn Engine, id: &str, root: &str) -> Result<bool> {
    let parent = store.head(id).await?.and_then(|head| head.parent_session);
    Ok(family::above(store, parent).await?.iter().any(|(id, _)| id == root))
}

/// As [`Runtime::sessions_within`].
pub(super) async fn sessions_within(
    store: &dyn Engine,
    labels: &BTreeMap<String, String>,
) -> Result<Vec<SessionSummary>> {
    let (mut sessions, mut heads) = (Vec::new(), Heads::new(store, None, PAGE));
    while let Some(page) = heads.next().await? {
        let found = page.into_iter().filter(|(_, head)| have(head, labels));
        sessions.extend(found.map(|(id, head)| SessionSummary::new(id, head)));
    }
    if labels.is_empty() {
        return Ok(sessions);
    }
    let mut known: BTreeSet<String> = sessions.iter().map(|session| session.id.clone()).collect();
    for root in known.clone() {
        let below = family::below(store, &root).await?.into_iter().filter(|(id, _)| known.insert(id.clone()));
        sessions.extend(below.map(|(id, head)| SessionSummary::new(id, head)));
    }
    Ok(sessions)
}
