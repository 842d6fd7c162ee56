//! One session of a store, for readers.
//!
//! Invariants: a session's losses are reported together with the remaining entries.

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::head::Head;

use crate::error::StoreError;
use crate::{Salvaged, Store};

/// A session, as far as it can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionCopy {
    /// Its head.
    pub head: Head,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
    /// The ranges of lost entries: the id of the first, and the id after the last.
    pub lost: Vec<(EntryId, EntryId)>,
}

impl Store {
    /// Returns a session with all its readable entries; `None` if there is no such session.
    ///
    /// # Errors
    /// If the session cannot be read for a reason other than damage.
    pub fn copy(&self, session: &str) -> Result<Option<SessionCopy>, StoreError> {
        self.copy_from(session, EntryId(0))
    }

    /// As [`Self::copy`], with the entries from this one on.
    ///
    /// # Errors
    /// As [`Self::copy`].
    pub fn copy_from(&self, session: &str, from: EntryId) -> Result<Option<SessionCopy>, StoreError> {
        let Some(head) = self.head(session)? else { return Ok(None) };
        let (entries, lost) = match self.load(session, from) {
            Ok(entries) if head.lost_from.is_none() => (entries, Vec::new()),
            Ok(_) | Err(StoreError::Damaged { .. } | StoreError::Quarantined { .. }) => {
                let Salvaged { mut entries, lost } = self.salvage(session)?;
                entries.retain(|entry| entry.id >= from);
                (entries, lost)
            }
            Err(error) => return Err(error),
        };
        Ok(Some(SessionCopy { head, entries, lost }))
    }
}
