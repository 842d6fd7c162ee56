//! The sessions of a label: those that have it, and the sub-agents below them.
//!
//! Invariants: a client that is confined to a label cannot tell other sessions from sessions that do not exist, except
//! that it cannot create a session under their ids.

use std::collections::{BTreeMap, BTreeSet};

use greenroom::{Error, Runtime, SessionSummary};

use super::{Asked, Label, Refused};

/// How many callers are looked up above a sub-agent.
const ABOVE_MAX: usize = 64;

/// Whether a session, or one above it, has all these labels. `false` if it does not exist.
pub(crate) async fn has_labels(
    runtime: &Runtime,
    id: &str,
    labels: &BTreeMap<String, String>,
) -> Result<bool, Error> {
    let mut next = Some(id.to_owned());
    for _ in 0..ABOVE_MAX {
        let Some(id) = next else { return Ok(false) };
        let Some(found) = runtime.summary(&id).await? else { return Ok(false) };
        if labels.iter().all(|(name, value)| found.labels.get(name) == Some(value)) {
            return Ok(true);
        }
        next = found.parent;
    }
    Ok(false)
}

impl Label {
    /// The label as a set of one.
    pub(crate) fn alone(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.name.clone(), self.value.clone())])
    }
}

impl Asked {
    /// Whether this session exists for the client.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) async fn sees(&self, id: &str) -> Result<bool, Refused> {
        match &self.within {
            Some(label) => Ok(has_labels(&self.runtime, id, &label.alone()).await?),
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

/// The sessions with all these labels, and the sub-agents below them. All sessions if there are no labels.
///
/// # Errors
/// [`Error::Store`].
pub(crate) async fn sessions_of(
    runtime: &Runtime,
    labels: &BTreeMap<String, String>,
) -> Result<Vec<SessionSummary>, Error> {
    let query = labels.iter().fold(runtime.sessions(), |query, (name, value)| query.label(name, value));
    let mut sessions = query.await?;
    if labels.is_empty() {
        return Ok(sessions);
    }
    let mut known: BTreeSet<String> = sessions.iter().map(|session| session.id.clone()).collect();
    for root in known.clone() {
        let below = runtime.sessions().tree(&root).await?;
        sessions.extend(below.into_iter().filter(|session| known.insert(session.id.clone())));
    }
    Ok(sessions)
}
