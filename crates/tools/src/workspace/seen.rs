//! The version of each file that a session's tools have read or written last.
//!
//! Invariants: at most [`SEEN_MAX`] versions are known, the newest ones; a file without a known version
//! counts as unchanged.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::{Version, Workspace, WorkspacePath};
use crate::ToolsError;

/// The maximum number of versions that are known.
const SEEN_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct SeenVersions(Mutex<VecDeque<Seen>>);

#[derive(Debug)]
struct Seen {
    session: String,
    path: WorkspacePath,
    version: Version,
}

impl Workspace {
    /// Notes the version of a file that a session's model has now read or written.
    pub(crate) fn saw(&self, session: &str, path: &WorkspacePath, version: Version) {
        let mut seen = self.inner.seen.0.lock();
        seen.retain(|seen| seen.path != *path || seen.session != session);
        seen.push_back(Seen { session: session.to_owned(), path: path.clone(), version });
        if seen.len() > SEEN_MAX {
            seen.pop_front();
        }
    }

    /// Checks that a file has not changed since the session's model last read or wrote it.
    ///
    /// # Errors
    /// [`ToolsError::Refused`] if it has.
    pub(crate) fn check_seen(
        &self,
        session: &str,
        path: &WorkspacePath,
        version: Version,
    ) -> Result<(), ToolsError> {
        let seen = self.inner.seen.0.lock();
        let known = seen.iter().find(|seen| seen.path == *path && seen.session == session);
        if known.is_none_or(|known| known.version == version) {
            return Ok(());
        }
        let text = format!("`{}` has changed since you last read it; read it again", path.shown());
        Err(ToolsError::Refused(text))
    }
}
