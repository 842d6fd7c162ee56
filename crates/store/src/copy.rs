//! Copies all sessions from one engine to another, such as from a journal to a database and back.
//!
//! Invariants: what is copied is read back from the target and compared. Nothing in the target is overwritten: a session that
//! is there must be the same, or the beginning of the same, which a copy that was interrupted leaves. So a copy can be
//! repeated until it is complete.

use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, EntryKind, Head};

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
/// entries, so it must not be used. The keys that are copied are those that an entry of the inbox names.
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
    let mut keys = Vec::new();
    for key in entries.iter().filter_map(key_of) {
        if let Some(first) = from.used_key(session, key).await? {
            keys.push((first, key.to_owned()));
        }
    }
    let mut next = before.len();
    let is_same = next == entries.len() && to.head(session).await?.as_ref() == Some(head.as_ref());
    while next < entries.len() || !is_same && next == entries.len() {
        let key = keys.iter().find(|(first, _)| first.0 == next as u64).map(|(_, key)| key.clone());
        // A batch begins wherever a key does.
        let starts = keys.iter().filter_map(|(first, _)| usize::try_from(first.0).ok());
        let end = starts.filter(|start| *start > next).min().unwrap_or(entries.len());
        let end = end.min(next + ENTRIES_MAX).min(entries.len());
        let part = entries[next..end].iter().cloned().map(Arc::new).collect();
        let is_last = end == entries.len();
        let part_head = if is_last { Arc::clone(&head) } else { Arc::new(head.without_context(end as u64)) };
        to.append(session, Batch { entries: part, head: part_head, key }).await?;
        next = end;
        if is_last {
            break;
        }
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
    keys: &[(EntryId, String)],
) -> Result<(), StoreError> {
    let there = to.load(session, EntryId(0)).await?;
    let differs = (0..entries.len().max(there.len())).find(|at| entries.get(*at) != there.get(*at));
    if let Some(at) = differs {
        return Err(other(session, at));
    }
    if to.head(session).await? != Some(Head::clone(&without_loss(head))) {
        return Err(other(session, entries.len()));
    }
    for (first, key) in keys {
        if to.used_key(session, key).await? != Some(*first) {
            return Err(other(session, usize::try_from(first.0).unwrap_or(usize::MAX)));
        }
    }
    Ok(())
}

/// Returns the key of a batch that an entry names.
fn key_of(entry: &Entry) -> Option<&str> {
    if let EntryKind::Inbox { key, .. } = &entry.kind { key.as_deref() } else { None }
}

fn other(session: &str, at: usize) -> StoreError {
    StoreError::Unsuitable {
        detail: format!(
            "session {session} differs in the target from entry {at} on; delete it there, or copy to an empty place"
        ),
    }
}
