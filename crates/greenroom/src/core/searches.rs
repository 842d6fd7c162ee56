//! Searches in the logs of sessions, with an index of each session that was searched lately.
//!
//! Invariants: an index is made from the log alone, and is only in memory; all indexes together are bounded in bytes, the
//! least recently used go first; the index of a deleted session is dropped with it, and one of another session with the
//! same id is not used.

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::head::Head;
use greenroom_kernel::search::{Index, readable};
use greenroom_store::{Store, StoreError};
use parking_lot::Mutex;

use crate::values::error::Result;
use crate::values::recalled::Recalled;

/// The most memory of all kept indexes, in bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How much of an entry a program's search shows, in bytes.
const PASSAGE_BYTES: usize = 400;
/// How many sessions are listed at a time.
const SESSIONS_AT_A_TIME: usize = 256;

/// The searched words.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) words: String,
    /// The most entries.
    pub(crate) limit: usize,
    /// The most of each entry that is shown, in bytes.
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
    /// Searches one session, best first. This blocks on the disk.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn find(&self, store: &Store, session: &str, wanted: &Wanted) -> Result<Vec<Recalled>> {
        let Some(head) = store.head(session)? else { return Ok(Vec::new()) };
        let mut kept = self.take(session, head.created_at_ms);
        update(&mut kept.index, store, session, &head)?;
        let query = kept.index.query(&wanted.words);
        let on_path = kept.index.path_to(head.leaf);
        let compacted_before = match wanted.only_compacted {
            true => active_from(store, session, &head)?,
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
            let Some(entry) = store.get(session, &[hit.entry])?.pop() else { continue };
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

    /// Searches all sessions, best first. This blocks on the disk.
    ///
    /// # Errors
    /// The store's.
    pub(crate) fn find_in_all(&self, store: &Store, wanted: &Wanted) -> Result<Vec<Recalled>> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = store.page(after.as_deref(), SESSIONS_AT_A_TIME)?;
            for (session, _) in &page {
                found.extend(self.find(store, session, wanted)?);
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

/// Adds the entries that the index lacks.
fn update(index: &mut Index, store: &Store, session: &str, head: &Head) -> Result<()> {
    if index.entries() >= head.entries {
        return Ok(());
    }
    let from = EntryId(index.entries());
    let new = match store.load(session, from) {
        Ok(new) => new,
        // The readable entries are searched.
        Err(StoreError::Damaged { .. }) => store.salvage(session)?.entries,
        Err(error) => return Err(error.into()),
    };
    let is_new = |entry: &&Entry| entry.id >= from && entry.id.0 < head.entries;
    for entry in new.iter().filter(is_new) {
        while index.entries() < entry.id.0 {
            index.skip();
        }
        index.add(entry);
    }
    Ok(())
}

/// Returns the first entry that the model still sees verbatim; the first one if nothing was compacted away.
fn active_from(store: &Store, session: &str, head: &Head) -> Result<EntryId> {
    let Some(active) = head.active_compaction else { return Ok(EntryId(0)) };
    let entry = store.get(session, &[active])?.pop();
    let first_kept = entry.and_then(|entry| entry.kind.as_compaction()?.first_kept);
    Ok(first_kept.unwrap_or(active))
}
