//! A store in memory, for simulations on a paused clock and for sessions that need not persist.
//!
//! Invariants: an append completes at once, on the caller's thread, with the same results as on a disk. If
//! there is a file to simulate a failing disk, an append is first written to it; if that fails, the append
//! changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use greenroom_kernel::head::Head;
use greenroom_kernel::{Entry, EntryId};

use crate::error::StoreError;
use crate::files::{File, write_all_at};
use crate::{Appended, Batch};

#[derive(Debug, Clone, Default)]
struct Session {
    entries: Vec<Arc<Entry>>,
    head: Arc<Head>,
    keys: HashMap<String, EntryId>,
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    sessions: BTreeMap<String, Session>,
    facts: HashMap<String, Vec<u8>>,
    pub(crate) is_closed: bool,
    /// A file that simulates a failing disk.
    disk: Option<Arc<dyn File>>,
}

impl Memory {
    /// Creates a store whose appends are also written to this file, and fail if that fails.
    pub(crate) fn on(disk: Arc<dyn File>) -> Self {
        Self { disk: Some(disk), ..Self::default() }
    }

    /// Returns an open copy.
    pub(crate) fn reopened(&self) -> Self {
        let Self { sessions, facts, is_closed: _, disk } = self;
        Self { sessions: sessions.clone(), facts: facts.clone(), is_closed: false, disk: disk.clone() }
    }

    /// Appends a batch that is already validated except against the session. `first` is its first id.
    pub(crate) fn append(
        &mut self,
        session: &str,
        first: EntryId,
        batch: Batch,
    ) -> Result<Appended, StoreError> {
        let known = self.sessions.get(session);
        let used = batch.key.as_ref().and_then(|key| known?.keys.get(key));
        if let Some(&first) = used {
            return Ok(Appended::Duplicate { first });
        }
        let expected = EntryId(known.map_or(0, |known| known.entries.len() as u64));
        if first != expected {
            return Err(StoreError::Sequence { session: session.to_owned(), expected, got: first });
        }
        if let Some(disk) = &self.disk {
            let written = write_all_at(disk.as_ref(), session.as_bytes(), 0).and_then(|()| disk.sync());
            written.map_err(|error| StoreError::io("write", Path::new(session), error))?;
        }
        let known = match self.sessions.get_mut(session) {
            Some(known) => known,
            None => self.sessions.entry(session.to_owned()).or_default(),
        };
        let next = EntryId(first.0 + batch.entries.len() as u64);
        known.entries.extend(batch.entries);
        known.head = batch.head;
        known.keys.extend(batch.key.map(|key| (key, first)));
        Ok(Appended::Written { first, next })
    }

    pub(crate) fn head(&self, session: &str) -> Option<Head> {
        self.sessions.get(session).map(|known| Head::clone(&known.head))
    }

    pub(crate) fn used_key(&self, session: &str, key: &str) -> Option<EntryId> {
        self.sessions.get(session)?.keys.get(key).copied()
    }

    pub(crate) fn used_keys(&self, session: &str) -> Vec<(String, EntryId)> {
        let keys = self.sessions.get(session).into_iter().flat_map(|known| &known.keys);
        let mut keys: Vec<_> = keys.map(|(key, first)| (key.clone(), *first)).collect();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn load(
        &self,
        session: &str,
        from: EntryId,
        until: EntryId,
    ) -> Result<Vec<Entry>, StoreError> {
        let known = self.sessions.get(session);
        let known = known.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })?;
        let place = |id: EntryId| usize::try_from(id.0).unwrap_or(usize::MAX).min(known.entries.len());
        let (from, until) = (place(from), place(until));
        Ok(known.entries[from.min(until)..until].iter().map(|entry| Entry::clone(entry)).collect())
    }

    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> Vec<(String, Head)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = self.sessions.range::<str, _>((from, Bound::Unbounded)).take(limit);
        sessions.map(|(session, known)| (session.clone(), Head::clone(&known.head))).collect()
    }

    pub(crate) fn list(&self) -> Vec<(String, Head)> {
        self.sessions.iter().map(|(session, known)| (session.clone(), Head::clone(&known.head))).collect()
    }

    pub(crate) fn delete(&mut self, session: &str) -> Result<(), StoreError> {
        let removed = self.sessions.remove(session).map(drop);
        removed.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })
    }

    pub(crate) fn fact_get(&self, key: &str) -> Option<Vec<u8>> {
        self.facts.get(key).cloned()
    }

    pub(crate) fn fact_keys(&self, prefix: &str) -> Vec<String> {
        let mut keys: Vec<String> =
            self.facts.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        keys.sort_unstable();
        keys
    }

    pub(crate) fn fact_put(&mut self, key: String, value: Vec<u8>) {
        if value.is_empty() {
            self.facts.remove(&key);
        } else {
            self.facts.insert(key, value);
        }
    }
}
