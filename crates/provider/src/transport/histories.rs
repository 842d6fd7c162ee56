//! The conversations of a server's sessions, as they were written last.
//!
//! Invariants: together they have at most as many bytes as the server's options allow; those of the sessions that were not used for the
//! longest time are dropped first, and are written anew when they are needed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::dialect::History;

/// Conversations by their sessions.
#[derive(Debug)]
pub(super) struct Histories {
    by_session: HashMap<Arc<str>, Kept>,
    /// The sessions, the one that was not used for the longest time first.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Kept {
    history: History,
    used: u64,
    bytes: usize,
}

impl Histories {
    /// Creates a place for so many bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { by_session: HashMap::new(), by_use: BTreeMap::new(), uses: 0, bytes: 0, bytes_max }
    }

    /// Takes the conversation of a session out; it is empty if none is kept.
    pub(super) fn take(&mut self, session: &str) -> History {
        let Some(kept) = self.by_session.remove(session) else { return History::default() };
        self.by_use.remove(&kept.used);
        self.bytes -= kept.bytes;
        kept.history
    }

    /// Keeps the conversation of a session.
    pub(super) fn put(&mut self, session: &str, history: History) {
        let (used, bytes) = (self.uses, history.size());
        self.uses += 1;
        self.bytes += bytes;
        let session: Arc<str> = session.into();
        if let Some(before) = self.by_session.insert(Arc::clone(&session), Kept { history, used, bytes }) {
            self.by_use.remove(&before.used);
            self.bytes -= before.bytes;
        }
        self.by_use.insert(used, session);
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.take(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
