//! In which sessions of a tree questions are open.
//!
//! Invariants: only heads and the starts of agents without an end are read; nothing is opened.

use greenroom_kernel::{EntryKind, Head};
use greenroom_store::{Store, StoreError};

use crate::core::deps::{Deps, blocking};
use crate::values::error::Result;

/// Whether this holds of the session or of one of the agents that work for it, on all levels.
fn any_in_tree(
    store: &Store,
    session: &str,
    mut holds: impl FnMut(&str, &Head) -> std::result::Result<bool, StoreError>,
) -> std::result::Result<bool, StoreError> {
    let mut sessions = vec![session.to_owned()];
    let mut next = 0;
    while let Some(session) = sessions.get(next).cloned() {
        next += 1;
        let Some(head) = store.head(&session)? else { continue };
        if holds(&session, &head)? {
            return Ok(true);
        }
        if head.open_children.is_empty() {
            continue;
        }
        for entry in store.get(&session, &head.open_children)? {
            // A damaged log must not make a circle.
            if let EntryKind::Child(child) = entry.kind
                && !sessions.contains(&child.session)
            {
                sessions.push(child.session);
            }
        }
    }
    Ok(false)
}

/// How many questions are open in the sessions of the agents that work for this one, on all levels.
pub(crate) async fn below(deps: &Deps, session: &str) -> Result<usize> {
    let (store, session) = (deps.store.clone(), session.to_owned());
    blocking(deps, move || {
        let asking = asking_below(&store, &session)?;
        Ok(asking.iter().map(|(_, questions)| questions).sum())
    })
    .await
}

/// The sessions of the agents that work for this one, on all levels, in which questions are open, and how many. Only heads
/// and the starts of agents without an end are read. This blocks on the disk.
fn asking_below(store: &Store, session: &str) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = asking_in_tree(store, session)?;
    asking.retain(|(asking, _)| asking != session);
    Ok(asking)
}

/// As [`asking_below`], with the session itself.
pub(crate) fn asking_in_tree(store: &Store, session: &str) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = Vec::new();
    any_in_tree(store, session, |session, head| {
        if !head.questions.is_empty() {
            asking.push((session.to_owned(), head.questions.len()));
        }
        Ok(false)
    })?;
    Ok(asking)
}
