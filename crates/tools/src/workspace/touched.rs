//! The files that tools of a workspace have read or changed, and changes to them during a command.
//!
//! Invariants: at most [`KNOWN_MAX`] files are known, those that were touched last; a snapshot takes one
//! `stat` for each and reads nothing; a change made by a tool while a command ran is not attributed to the
//! command.

use std::collections::VecDeque;

use greenroom_kernel::Touch;
use parking_lot::Mutex;

use super::{Version, Workspace, WorkspacePath};
use crate::ToolOutput;

#[cfg(test)]
mod tests;

/// The maximum number of files that are known.
const KNOWN_MAX: usize = 500;

#[derive(Debug, Default)]
pub(super) struct TouchedFiles(Mutex<VecDeque<File>>);

/// A file that a tool touched.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    path: WorkspacePath,
    /// How often tools have changed it.
    changes: u64,
}

impl TouchedFiles {
    fn touched(&self, path: &WorkspacePath, touch: Touch) {
        let mut files = self.0.lock();
        let place = files.iter().position(|file| file.path == *path);
        let known = place.and_then(|place| files.remove(place));
        let mut file = known.unwrap_or_else(|| File { path: path.clone(), changes: 0 });
        file.changes += u64::from(touch == Touch::Modified);
        files.push_back(file);
        if files.len() > KNOWN_MAX {
            files.pop_front();
        }
    }

    fn files(&self) -> Vec<File> {
        self.0.lock().iter().cloned().collect()
    }
}

/// The known files as they were at one moment.
pub(crate) struct Snapshot(Vec<(File, Option<Version>)>);

impl Snapshot {
    /// Returns the files and their versions; `None` if there was nothing that a tool could open.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&WorkspacePath, Option<Version>)> {
        self.0.iter().map(|(file, version)| (&file.path, *version))
    }
}

impl Workspace {
    /// Declares in an output that a tool touched a file, which is known from then on.
    pub(crate) fn touched(&self, output: ToolOutput, path: &WorkspacePath, touch: Touch) -> ToolOutput {
        self.inner.touched.touched(path, touch);
        output.touching(path.shown(), touch)
    }

    /// Takes a snapshot of the known files.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let with_version = |file: File| {
            let version = self.version(&file.path);
            (file, version)
        };
        Snapshot(self.inner.touched.files().into_iter().map(with_version).collect())
    }

    /// Declares in an output the files that were changed, removed or restored since a snapshot.
    pub(crate) fn changed_since(&self, before: &Snapshot, mut output: ToolOutput) -> ToolOutput {
        for path in self.changes_since(before) {
            output = self.touched(output, &path, Touch::Modified);
        }
        output
    }

    /// Returns the known files that were changed, removed or restored since a snapshot, except by tools.
    pub(crate) fn changes_since(&self, before: &Snapshot) -> Vec<WorkspacePath> {
        let by_tools = self.changed_by_tools_since(before);
        let changed = before
            .0
            .iter()
            .filter(|(file, version)| !by_tools.contains(&file.path) && self.version(&file.path) != *version);
        changed.map(|(file, _)| file.path.clone()).collect()
    }

    /// Returns the known files that tools have changed since a snapshot.
    pub(crate) fn changed_by_tools_since(&self, before: &Snapshot) -> Vec<WorkspacePath> {
        let now = self.inner.touched.files();
        let is_changed =
            |file: &File| now.iter().any(|now| now.path == file.path && now.changes != file.changes);
        before.0.iter().filter(|(file, _)| is_changed(file)).map(|(file, _)| file.path.clone()).collect()
    }

    /// Adds a file to the known ones.
    pub(crate) fn knows(&self, path: &WorkspacePath) {
        self.inner.touched.touched(path, Touch::Read);
    }

    /// Whether a tool has touched the file.
    pub(crate) fn is_known(&self, path: &WorkspacePath) -> bool {
        self.inner.touched.0.lock().iter().any(|file| file.path == *path)
    }
}
