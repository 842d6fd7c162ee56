//! A part of one session of a store, for readers.
//!
//! Invariants: a session's losses are reported together with the remaining entries; a page reads only its own
//! entries of an undamaged session.

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::head::Head;

use crate::error::StoreError;
use crate::{Salvaged, Store};

/// A part of a session, as far as it can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct LogPage {
    /// The session's head.
    pub head: Head,
    /// The entries of this part, in order.
    pub entries: Vec<Entry>,
    /// The ranges of lost entries in the whole session: the id of the first, and the id after the last.
    pub lost: Vec<(EntryId, EntryId)>,
    /// The id of the entry after this part, if there is one.
    pub next: Option<EntryId>,
}

impl Store {
    /// Returns the readable ones of this many entries from `from` on; `None` if there is no such session. This
    /// blocks on the disk.
    ///
    /// # Errors
    /// If the session cannot be read for a reason other than damage.
    pub fn entries(&self, session: &str, from: EntryId, limit: u64) -> Result<Option<LogPage>, StoreError> {
        let Some(head) = self.head(session)? else { return Ok(None) };
        let until = EntryId(from.0.saturating_add(limit).min(head.entries));
        let (entries, lost) = match self.load_until(session, from, until) {
            Ok(entries) if head.lost_from.is_none() => (entries, Vec::new()),
            Ok(_) | Err(StoreError::Damaged { .. } | StoreError::Quarantined { .. }) => {
                let Salvaged { mut entries, lost } = self.salvage(session)?;
                entries.retain(|entry| (from..until).contains(&entry.id));
                (entries, lost)
            }
            Err(error) => return Err(error),
        };
        let next = (until.0 < head.entries).then_some(until);
        Ok(Some(LogPage { head, entries, lost, next }))
    }
}
