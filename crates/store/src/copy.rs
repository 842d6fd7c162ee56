//! Copies all sessions from one engine to another, such as from a journal to a database and back.
//!
//! Invariants: what is copied is read back from the target and compared. Nothing in the target is overwritten: a session that
//! is there must be the same, or the beginning of the same, which a copy that was interrupted leaves. So a copy can be
//! repeated until it is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, Head};

use crate::{Batch, Engine, Heads, StoreError, without_loss};

/// The sessions of a page.
const PAGE: usize = 500;
/// The maximum number of entries that are appended together.
const ENTRIES_MAX: usize = 2_000;

/// What a copy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// The sessions that are in the target, and were compared.
    pub sessions: u64,
    /// The entries that were written.
    pub entries: u64,
    /// The entries that were there before.
    pub entries_before: u64,
    /// The facts that are in the target.
    pub facts: u64,
}

/// Copies all sessions with their entries, heads and idempotency keys, and all facts. Nobody else may write to either engine
/// meanwhile. `progress` is called after each session.
///
/// If it fails or is cancelled, the same call continues it. Until it has succeeded, a session in the target may lack its newest
/// entries, so it must not be used.
///
/// # Errors
/// [`StoreError::Unsuitable`] if the target has another session of the same id, or differs after the copy;
/// [`StoreError::Damaged`] and [`StoreError::Quarantined`] if a session cannot be read whole; those of reading and writing.
pub async fn copy(
    from: &dyn Engine,
    to: &dyn Engine,
    progress: impl Fn(&Copied) + Send + Sync,
) -> Result<Copied, StoreError> {
    let mut copied = Copied::default();
    let mut heads = Heads::new(from, None, PAGE);
    while let Some(page) = heads.next().await? {
        for (session, head) in page {
            if let Some(lost) = head.lost_from {
                return Err(StoreError::Quarantined { session, from: lost });
            }
            copy_session(from, to, &session, Arc::new(head), &mut copied).await?;
            progress(&copied);
        }
    }
    for name in from.fact_keys("").await? {
        if let Some(value) = from.fact_get(&name).await? {
            to.fact_put(&name, &value).await?;
            copied.facts += 1;
        }
    }
    Ok(copied)
}

async fn copy_session(
    from: &dyn Engine,
    to: &dyn Engine,
    session: &str,
    head: Arc<Head>,
    copied: &mut Copied,
) -> Result<(), StoreError> {
    let entries = from.load(session, EntryId(0)).await?;
    let before = match to.head(session).await? {
        Some(_) => to.load(session, EntryId(0)).await?,
        None => Vec::new(),
    };
    let differs = (0..).zip(&before).find(|(at, there)| entries.get(*at) != Some(*there));
    if let Some((at, _)) = differs {
        return Err(other(session, at));
    }
    let keys: BTreeSet<_> = from.used_keys(session).await?.into_iter().collect();
    let keys_before: BTreeSet<_> = to.used_keys(session).await?.into_iter().collect();
    // The keys of batches from here on, by the places of their first entries.
    let mut missing = BTreeMap::<usize, Vec<String>>::new();
    for (key, first) in keys.difference(&keys_before) {
        let first = usize::try_from(first.0).unwrap_or(usize::MAX);
        if first >= before.len() {
            missing.entry(first).or_default().push(key.clone());
        }
    }
    let part_head = |end: usize| match end == entries.len() {
        true => Arc::clone(&head),
        false => Arc::new(head.without_context(end as u64)),
    };
    let mut next = before.len();
    let mut is_done = next == entries.len()
        && !missing.contains_key(&next)
        && to.head(session).await?.as_ref() == Some(head.as_ref());
    while !is_done {
        let mut begun = missing.remove(&next).unwrap_or_default();
        let key = begun.pop();
        // If several batches begin here, all but one have no entries.
        for key in begun {
            let batch = Batch { entries: Vec::new(), head: part_head(next), key: Some(key) };
            to.append(session, batch).await?;
        }
        // A batch begins wherever a key does.
        let end = missing.keys().next().copied().unwrap_or(entries.len());
        let end = end.min(next + ENTRIES_MAX).min(entries.len());
        let part = entries[next..end].iter().cloned().map(Arc::new).collect();
        to.append(session, Batch { entries: part, head: part_head(end), key }).await?;
        next = end;
        is_done = next == entries.len() && !missing.contains_key(&next);
    }
    copied.sessions += 1;
    copied.entries += (entries.len() - before.len()) as u64;
    copied.entries_before += before.len() as u64;
    check(to, session, &entries, head, &keys).await?;
    match to.placement() {
        Some(placement) => placement.release(session, None).await,
        None => Ok(()),
    }
}

/// Compares what the target has with what was to be copied.
async fn check(
    to: &dyn Engine,
    session: &str,
    entries: &[Entry],
    head: Arc<Head>,
    keys: &BTreeSet<(String, EntryId)>,
) -> Result<(), StoreError> {
    let there = to.load(session, EntryId(0)).await?;
    let differs = (0..entries.len().max(there.len())).find(|at| entries.get(*at) != there.get(*at));
    if let Some(at) = differs {
        return Err(other(session, at));
    }
    if to.head(session).await? != Some(Head::clone(&without_loss(head))) {
        return Err(other(session, entries.len()));
    }
    let there: BTreeSet<_> = to.used_keys(session).await?.into_iter().collect();
    match keys.symmetric_difference(&there).map(|(_, first)| *first).min() {
        Some(first) => Err(other(session, usize::try_from(first.0).unwrap_or(usize::MAX))),
        None => Ok(()),
    }
}

fn other(session: &str, at: usize) -> StoreError {
    StoreError::Unsuitable {
        detail: format!(
            "session {session} differs in the target from entry {at} on; delete it there, or copy to an empty place"
        ),
    }
}
