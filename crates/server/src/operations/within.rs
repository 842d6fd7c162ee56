//! The sessions of a label: those that have it, and the sub-agents below them.
//!
//! Invariants: a client that is confined to a label cannot tell other sessions from sessions that do not exist, except
//! that it cannot create a session under their ids.

use std::collections::BTreeMap;

use super::{CallScope, Label, Refused};

impl Label {
    /// The label as a set of one.
    pub(crate) fn alone(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.name.clone(), self.value.clone())])
    }
}

impl CallScope {
    /// Whether this session exists for the client.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) async fn sees(&self, id: &str) -> Result<bool, Refused> {
        match &self.within {
            Some(label) => Ok(self.runtime.has_labels(id, &label.alone()).await?),
            None => Ok(true),
        }
    }

    /// Those of these items whose session exists for the client.
    pub(super) async fn seen<T>(
        &self,
        items: Vec<T>,
        session: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>, Refused> {
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        let mut seen = Vec::new();
        for item in items {
            let id = session(&item);
            let is_seen = match known.get(id) {
                Some(is_seen) => *is_seen,
                None => self.sees(id).await?,
            };
            known.insert(id.to_owned(), is_seen);
            if is_seen {
                seen.push(item);
            }
        }
        Ok(seen)
    }
}
