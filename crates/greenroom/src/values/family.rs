//! The tree of sessions that sub-agents form: the sessions above one, and those below it.
//!
//! Invariants: only heads are read, and no session is woken; a damaged store causes no endless loop; the ids of a session's
//! sub-agents begin alike, so they are adjacent in the store.

use std::collections::{BTreeMap, HashSet};

use greenroom_kernel::Head;
use greenroom_store::{Engine, Heads, StoreError};

#[cfg(test)]
mod tests;

/// How many sessions are followed above a sub-agent.
pub(crate) const ABOVE_MAX: usize = 256;
/// How many heads of sub-agents' sessions are read at once.
const PAGE: usize = 64;
/// How much of the caller's id a sub-agent's id contains, in bytes, before two dots and 16 digits.
const CALLER_BYTES_MAX: usize = 44;

/// Returns the prefix of the ids of this session's sub-agents.
pub(crate) fn prefix(caller: &str) -> String {
    let end = (0..=CALLER_BYTES_MAX.min(caller.len())).rev().find(|end| caller.is_char_boundary(*end));
    format!("{}..", caller[..end.unwrap_or(0)].trim_end())
}

/// Returns the sessions above one whose caller is `parent`, nearest first, by their heads, which are durable, so the result
/// does not depend on how the session is opened. The list ends with a session that does not exist, if there is one.
pub(crate) async fn above(
    store: &dyn Engine,
    parent: Option<String>,
) -> Result<Vec<(String, Option<Head>)>, StoreError> {
    let (mut above, mut next) = (Vec::new(), parent);
    while let Some(id) = next.filter(|_| above.len() < ABOVE_MAX) {
        let head = store.head(&id).await?;
        next = head.as_ref().and_then(|head| head.parent_session.clone());
        above.push((id, head));
    }
    Ok(above)
}

/// Returns the labels by which a session is counted: those of the highest session above it that exists, or its own.
pub(crate) async fn top_labels(
    store: &dyn Engine,
    parent: Option<String>,
    own: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, StoreError> {
    let top = above(store, parent).await?.into_iter().rev().find_map(|(_, head)| head);
    Ok(top.map_or_else(|| own.clone(), |head| head.labels))
}

/// Returns the sessions of a session's sub-agents, in the order of their ids. Only they are read, those below them, and those
/// of callers with long ids that start alike.
pub(crate) async fn children(store: &dyn Engine, parent: &str) -> Result<Vec<(String, Head)>, StoreError> {
    let prefix = prefix(parent);
    let mut heads = Heads::new(store, Some(prefix.clone()), PAGE);
    let mut found = Vec::new();
    while let Some(page) = heads.next().await? {
        let is_last = page.last().is_some_and(|(id, _)| !id.starts_with(&prefix));
        let is_child = |(id, head): &(String, Head)| {
            id.starts_with(&prefix) && head.parent_session.as_deref() == Some(parent)
        };
        found.extend(page.into_iter().filter(is_child));
        if is_last {
            break;
        }
    }
    Ok(found)
}

/// Returns the sessions below a session: each one before those below it, and of one caller the oldest first.
pub(crate) async fn below(store: &dyn Engine, root: &str) -> Result<Vec<(String, Head)>, StoreError> {
    let mut found = Vec::new();
    let mut known = HashSet::from([root.to_owned()]);
    let mut waiting = newest_first(store, root).await?;
    while let Some((id, head)) = waiting.pop() {
        if known.insert(id.clone()) {
            waiting.extend(newest_first(store, &id).await?);
            found.push((id, head));
        }
    }
    Ok(found)
}

async fn newest_first(store: &dyn Engine, parent: &str) -> Result<Vec<(String, Head)>, StoreError> {
    let mut children = children(store, parent).await?;
    children.sort_by_key(|(_, head)| std::cmp::Reverse(head.created_at_ms));
    Ok(children)
}
