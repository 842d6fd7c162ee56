//! Searches in the logs of sessions, with an index of each session that was searched lately.
//!
//! Invariants: an index is made from the log alone, and is only in memory; all indexes together are bounded in bytes, the
//! least recently used go first; the index of a deleted session is dropped with it, and one of another session with the
//! same id is not used.

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::head::Head;
use greenroom_kernel::search::{Index, readable, whole_of};
use greenroom_store::{Engine, StoreError};
use parking_lot::Mutex;

use crate::values::error::{Error, Result};
use crate::values::recalled::Recalled;

/// The maximum amount of memory of all kept indexes, in bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How much of an entry a program's search shows, in bytes.
const PASSAGE_BYTES: usize = 400;
/// How many entries are added to an index without a thread for blocking work.
const ADDED_HERE_MAX: usize = 256;
/// How many sessions are listed at a time.
const SESSIONS_AT_A_TIME: usize = 256;

/// The searched words.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) words: String,
    /// The maximum number of entries.
    pub(crate) limit: usize,
    /// The maximum number of bytes shown of each entry.
    pub(crate) passage_bytes: usize,
    /// Only what the model no longer sees: entries that a compaction replaced.
    pub(crate) only_compacted: bool,
}

impl Wanted {
    /// The search of a program or a person.
    pub(crate) fn by_program(words: String, limit: usize) -> Self {
        Self { words, limit, passage_bytes: PASSAGE_BYTES, only_compacted: false }
    }
}

/// The indexes of sessions that were searched.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    /// The most recently used one is the last.
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    session: String,
    created_at_ms: u64,
    index: Index,
}

impl Searches {
    /// Searches one session, best first.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn find(
        &self,
        store: &dyn Engine,
        session: &str,
        wanted: &Wanted,
    ) -> Result<Vec<Recalled>> {
        let Some(head) = store.head(session).await? else { return Ok(Vec::new()) };
        let mut kept = self.take(session, head.created_at_ms);
        update(&mut kept.index, store, session, &head).await?;
        let query = kept.index.query(&wanted.words);
        let on_path = kept.index.path_to(head.leaf);
        let compacted_before = match wanted.only_compacted {
            true => active_from(store, session, &head).await?,
            false => EntryId(head.entries),
        };
        let is_meant = |id: EntryId| {
            let is_on_path = usize::try_from(id.0).is_ok_and(|at| on_path.get(at) == Some(&true));
            is_on_path && id >= head.hidden_before && id < compacted_before
        };
        let hits = kept.index.find(&query, wanted.limit, is_meant);
        self.put(kept);
        let mut found = Vec::with_capacity(hits.len());
        for hit in hits {
            let Some(entry) = whole(store, session, hit.entry, head.hidden_before).await? else { continue };
            let Some(text) = readable(&entry.kind) else { continue };
            let (from, passage) = query.passage(&text, wanted.passage_bytes);
            found.push(Recalled {
                session: session.to_owned(),
                entry: hit.entry,
                at_ms: entry.at_ms,
                role: entry.kind.as_message().map_or("other", |message| message.role()).to_owned(),
                from,
                text: passage.trim().to_owned(),
                score: hit.score,
            });
        }
        Ok(found)
    }

    /// Searches all sessions, best first.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn find_in_all(&self, store: &dyn Engine, wanted: &Wanted) -> Result<Vec<Recalled>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = store.page(after.as_deref(), SESSIONS_AT_A_TIME).await?;
            for (session, _) in &page {
                match self.find(store, session, wanted).await {
                    Ok(hits) => found.extend(hits),
                    // It was deleted in the meantime.
                    Err(Error::Store(error)) if matches!(*error, StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            found.sort_by(|one: &Recalled, other| other.score.total_cmp(&one.score));
            found.truncate(wanted.limit);
            match page.last() {
                Some((last, _)) => after = Some(last.clone()),
                None => return Ok(found),
            }
        }
    }

    /// Drops the index of a session.
    pub(crate) fn forget(&self, session: &str) {
        self.kept.lock().retain(|kept| kept.session != session);
    }

    /// Takes out the index of a session, or makes an empty one. Nobody else waits while it is used.
    fn take(&self, session: &str, created_at_ms: u64) -> Kept {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|kept| kept.session == session);
        let known = at.map(|at| kept.remove(at)).filter(|known| known.created_at_ms == created_at_ms);
        known.unwrap_or_else(|| Kept { session: session.to_owned(), created_at_ms, index: Index::default() })
    }

    fn put(&self, used: Kept) {
        let mut kept = self.kept.lock();
        kept.retain(|other| other.session != used.session);
        kept.push(used);
        let mut bytes: usize = kept.iter().map(|kept| kept.index.bytes()).sum();
        while bytes > KEPT_BYTES_MAX && !kept.is_empty() {
            bytes -= kept.remove(0).index.bytes();
        }
    }
}

/// Reads an entry with its whole text.
pub(crate) async fn whole(
    store: &dyn Engine,
    session: &str,
    id: EntryId,
    hidden_before: EntryId,
) -> Result<Option<Entry>, StoreError> {
    let Some(found) = store.get(session, &[id]).await?.pop() else { return Ok(None) };
    let Some(before) = id.0.checked_sub(1).map(EntryId).filter(|before| *before >= hidden_before) else {
        return Ok(Some(found));
    };
    match store.get(session, &[before]).await {
        Ok(mut before) => Ok(Some(whole_of(found, before.pop()))),
        Err(StoreError::Damaged { .. }) => Ok(Some(found)),
        Err(error) => Err(error),
    }
}

/// Adds the entries that the index lacks.
async fn update(index: &mut Index, store: &dyn Engine, session: &str, head: &Head) -> Result<()> {
    if index.entries() >= head.entries {
        return Ok(());
    }
    let from = EntryId(index.entries());
    let new = match store.load(session, from).await {
        Ok(new) => new,
        // The readable entries are searched.
        Err(StoreError::Damaged { .. }) => store.salvage(session).await?.entries,
        Err(error) => return Err(error.into()),
    };
    let end = head.entries;
    if new.len() <= ADDED_HERE_MAX {
        add(index, &new, end);
        return Ok(());
    }
    let mut whole = std::mem::take(index);
    let added = tokio::task::spawn_blocking(move || {
        add(&mut whole, &new, end);
        whole
    });
    *index = added.await.map_err(|panic| Error::internal("searching a session", &panic))?;
    Ok(())
}

/// Adds the entries before `end` that the index lacks.
fn add(index: &mut Index, new: &[Entry], end: u64) {
    let from = index.entries();
    for entry in new.iter().filter(|entry| entry.id.0 >= from && entry.id.0 < end) {
        while index.entries() < entry.id.0 {
            index.skip();
        }
        index.add(entry);
    }
}

/// Returns the first entry that the model still sees verbatim; the first one if nothing was compacted away.
async fn active_from(store: &dyn Engine, session: &str, head: &Head) -> Result<EntryId> {
    let Some(active) = head.active_compaction else { return Ok(EntryId(0)) };
    let entry = store.get(session, &[active]).await?.pop();
    let first_kept = entry.and_then(|entry| entry.kind.as_compaction()?.first_kept);
    Ok(first_kept.unwrap_or(active))
}
