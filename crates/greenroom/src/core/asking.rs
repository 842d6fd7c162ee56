//! Finds open questions in a tree of sessions.
//!
//! Invariants: only heads and the starts of unfinished sub-agents are read; nothing is opened.

use greenroom_kernel::{EntryKind, Head};
use greenroom_store::{Engine, StoreError};

use crate::core::deps::Deps;
use crate::values::error::Result;

/// Whether the condition holds for a session or any of the sub-agents that work for it, on all levels.
async fn any_in_tree(
    store: &dyn Engine,
    session: &str,
    mut holds: impl FnMut(&str, &Head) -> std::result::Result<bool, StoreError>,
) -> std::result::Result<bool, StoreError> {
    let mut sessions = vec![session.to_owned()];
    let mut next = 0;
    while let Some(session) = sessions.get(next).cloned() {
        next += 1;
        let Some(head) = store.head(&session).await? else { continue };
        if holds(&session, &head)? {
            return Ok(true);
        }
        if head.open_children.is_empty() {
            continue;
        }
        for entry in store.get(&session, &head.open_children).await? {
            // A damaged log must not cause an endless loop.
            if let EntryKind::Child(child) = entry.kind
                && !sessions.contains(&child.session)
            {
                sessions.push(child.session);
            }
        }
    }
    Ok(false)
}

/// Counts the open questions in the sessions of sub-agents that work for this one, on all levels.
pub(crate) async fn below(deps: &Deps, session: &str) -> Result<usize> {
    let asking = asking_below(&*deps.store, session).await?;
    Ok(asking.iter().map(|(_, questions)| questions).sum())
}

/// Returns the sessions with open questions among those of sub-agents that work for this one, on all levels,
/// and their number of questions. Only heads and the starts of unfinished sub-agents are read.
async fn asking_below(store: &dyn Engine, session: &str) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = asking_in_tree(store, session).await?;
    asking.retain(|(asking, _)| asking != session);
    Ok(asking)
}

/// Like [`asking_below`], including the session itself.
pub(crate) async fn asking_in_tree(
    store: &dyn Engine,
    session: &str,
) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = Vec::new();
    any_in_tree(store, session, |session, head| {
        if !head.questions.is_empty() {
            asking.push((session.to_owned(), head.questions.len()));
        }
        Ok(false)
    })
    .await?;
    Ok(asking)
}
