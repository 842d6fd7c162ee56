//! What a store holds of one session, as bytes: for a program that asks another one which has the store.
//!
//! Invariants: the bytes are those of the journal's records, so that there is one format; what a session has lost is told
//! with what is left of it.

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::head::Head;

use crate::error::StoreError;
use crate::record::{self, StoredRecord};
use crate::{Salvaged, Store};

/// A session, as much of it as can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionCopy {
    /// How it stands.
    pub head: Head,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
    /// The ranges of lost entries: the id of the first, and the id after the last.
    pub lost: Vec<(EntryId, EntryId)>,
}

impl SessionCopy {
    /// Its head and its entries as bytes.
    ///
    /// # Errors
    /// [`StoreError::Record`] where that is more than can be read again.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StoreError> {
        let (head, entries) =
            (Arc::new(self.head.clone()), self.entries.iter().cloned().map(Arc::new).collect());
        record::encode(&StoredRecord::Append { key: None, entries, head })
    }

    /// From what [`Self::to_bytes`] gave, and the ranges that are lost.
    ///
    /// # Errors
    /// [`StoreError::Version`]; [`StoreError::Record`] where these bytes are something else.
    pub fn from_bytes(bytes: &[u8], lost: Vec<(EntryId, EntryId)>) -> Result<Self, StoreError> {
        let StoredRecord::Append { key: _, entries, head } = record::decode(bytes)? else {
            return Err(StoreError::Record { detail: "not a session".to_owned() });
        };
        let entries = entries.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(Self { head: Arc::unwrap_or_clone(head), entries, lost })
    }
}

/// A head as bytes, in the form of the index.
///
/// # Errors
/// [`StoreError::Record`].
pub fn head_to_bytes(head: &Head) -> Result<Vec<u8>, StoreError> {
    record::encode_head(head)
}

/// A head from what [`head_to_bytes`] gave.
///
/// # Errors
/// [`StoreError::Version`]; [`StoreError::Record`] where these bytes are something else.
pub fn head_from_bytes(bytes: &[u8]) -> Result<Head, StoreError> {
    record::decode_head(bytes)
}

impl Store {
    /// A session with all its entries, or with those that are left of it. `None`: there is no such session.
    ///
    /// # Errors
    /// When it cannot be read for another reason than that it is damaged.
    pub fn copy(&self, session: &str) -> Result<Option<SessionCopy>, StoreError> {
        let Some(head) = self.head(session)? else { return Ok(None) };
        let (entries, lost) = match self.load(session, EntryId(0)) {
            Ok(entries) if head.lost_from.is_none() => (entries, Vec::new()),
            Ok(_) | Err(StoreError::Damaged { .. } | StoreError::Quarantined { .. }) => {
                let Salvaged { entries, lost } = self.salvage(session)?;
                (entries, lost)
            }
            Err(error) => return Err(error),
        };
        Ok(Some(SessionCopy { head, entries, lost }))
    }
}
