//! The changes of a command: the files are examined before and after it.
//!
//! Invariants: the files that tools have read or written are kept before the command starts; of the others,
//! only the names and the versions are compared, of at most [`EXAMINED_MAX`] files. What changed is recorded
//! when the command has ended, however it ended; a command that a crash interrupted is found by its open
//! record.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;

use rustix::fs::FileType;
use tokio_util::sync::CancellationToken;

use super::journal::Record;
use super::{Call, CallFiles, FileState, NotKept, VERSIONS_MAX};
use crate::Workspace;
use crate::rewind::contents::ContentsHash;
use crate::workspace::{Snapshot, Version, WorkspacePath};

/// The maximum number of files of a workspace that are examined before and after a command. Files that git ignores do
/// not count.
const EXAMINED_MAX: usize = 5_000;

/// The maximum number of files that a command changed without a tool knowing them that become known. More would replace
/// those that the model has read.
const FOUND_MAX: usize = 50;

/// The files as they were before a command.
pub(crate) struct CommandFiles {
    files: CallFiles,
    known: Vec<(WorkspacePath, FileState)>,
    /// The known files that were modified so recently that a change does not show in their version.
    recent: Vec<WorkspacePath>,
    others: Others,
}

/// The versions of files, and whether these are all.
struct Others {
    versions: BTreeMap<String, Version>,
    is_complete: bool,
}

impl CommandFiles {
    /// Keeps the known files before a command.
    ///
    /// # Errors
    /// If they cannot be kept.
    pub(crate) fn before(workspace: &Workspace, snapshot: &Snapshot, files: &CallFiles) -> io::Result<Self> {
        let files = files.of_command();
        let Some(call) = &files.0 else {
            let others = Others { versions: BTreeMap::new(), is_complete: false };
            return Ok(Self { files, known: Vec::new(), recent: Vec::new(), others });
        };
        let (mut known, mut recent) = (Vec::new(), Vec::new());
        for (path, version) in snapshot.files() {
            if let Some(state) = call.state_before(workspace, path, version, &files)? {
                known.push((path.clone(), state));
                recent.extend(version.filter(Version::is_recent).map(|_| path.clone()));
            }
        }
        let root = workspace.root().to_owned();
        let (at, session) = (call.at, &call.session);
        let mut records = call.history.last(session, |last| {
            let is_new = |(path, state): &&(WorkspacePath, FileState)| {
                last.get(&(root.clone(), path.as_str().to_owned())) != Some(state)
            };
            let seen = |(path, state): &(WorkspacePath, FileState)| Record::Seen {
                at,
                root: root.clone(),
                path: path.as_str().to_owned(),
                state: state.clone(),
            };
            known.iter().filter(is_new).map(seen).collect::<Vec<_>>()
        })?;
        records.push(Record::CommandBegun { at, root: root.clone() });
        call.history.write(session, &records)?;
        let others = Others::of(workspace);
        Ok(Self { files, known, recent, others })
    }

    /// Records what has changed since. Returns the files that changed and whose old content was not kept.
    ///
    /// # Errors
    /// If it cannot be recorded.
    pub(crate) fn after(self, workspace: &Workspace, snapshot: &Snapshot) -> io::Result<Vec<String>> {
        let Some(call) = &self.files.0 else { return Ok(Vec::new()) };
        let (root, bytes_max) = (workspace.root(), call.history.0.limits.file_bytes_max);
        let now = |path: &WorkspacePath| {
            let state = workspace.state(path, bytes_max).map(|(state, _)| state);
            state.unwrap_or(FileState::NotKept { why: NotKept::Unreadable })
        };
        let mut records = Vec::new();
        let changed = workspace.changes_since(snapshot);
        let by_tools = workspace.changed_by_tools_since(snapshot);
        for (path, before) in &self.known {
            let is_changed = changed.contains(path) || self.recent.contains(path);
            if is_changed && !by_tools.contains(path) {
                let after = now(path);
                if !before.has_content_of(&after) {
                    records.push(call.record(root, path.as_str(), before, &after));
                }
            }
        }
        let (mut not_kept, mut found) = (Vec::new(), 0);
        let others = Others::of(workspace);
        for (path, before) in self.others.changes(&others) {
            let Ok(path) = workspace.place(&path) else { continue };
            // Known files were compared; a file that became known meanwhile was touched by a tool.
            if workspace.is_known(&path) {
                continue;
            }
            if before != FileState::Absent {
                not_kept.push(path.as_str().to_owned());
            }
            records.push(call.record(root, path.as_str(), &before, &now(&path)));
            if found < FOUND_MAX {
                // From now on it is kept before commands.
                workspace.knows(&path);
                found += 1;
            }
        }
        records.push(Record::CommandEnded { at: call.at, root: root.to_owned() });
        call.history.write(&call.session, &records)?;
        Ok(not_kept)
    }
}

impl Call {
    /// Returns the state of a file that a command may change, which is kept. `None` if it is not a file.
    fn state_before(
        &self,
        workspace: &Workspace,
        path: &WorkspacePath,
        version: Option<Version>,
        files: &CallFiles,
    ) -> io::Result<Option<FileState>> {
        let inner = &self.history.0;
        let place = (workspace.root().to_owned(), path.as_str().to_owned());
        if let Some(version) = version
            && let Some((_, state)) =
                inner.known.lock().versions.get(&place).filter(|(known, _)| *known == version)
        {
            let is_kept = match state.hash().and_then(ContentsHash::parse) {
                Some(hash) => inner.contents.lock().has(&hash),
                None => true,
            };
            if is_kept {
                return Ok(Some(state.clone()));
            }
        }
        let Some((state, version)) = workspace.keep_now(path, files)? else { return Ok(None) };
        if let Some(version) = version.filter(|version| !version.is_recent()) {
            let mut known = inner.known.lock();
            if known.versions.len() >= VERSIONS_MAX {
                known.versions.clear();
            }
            known.versions.insert(place, (version, state.clone()));
        }
        Ok(Some(state))
    }
}

impl Others {
    fn of(workspace: &Workspace) -> Self {
        let (mut versions, mut is_complete) = (BTreeMap::new(), true);
        let walked = workspace.locate(".").and_then(|start| {
            workspace.walk(&start, usize::MAX, &CancellationToken::new(), &mut |found| {
                if found.kind == FileType::RegularFile {
                    if versions.len() >= EXAMINED_MAX {
                        is_complete = false;
                        return Ok(ControlFlow::Break(()));
                    }
                    versions.extend(found.version().map(|version| (found.path.as_str().to_owned(), version)));
                }
                Ok(ControlFlow::Continue(()))
            })
        });
        Self { versions, is_complete: is_complete && walked.is_ok() }
    }

    /// Returns what changed, and how it was before. Files that may just not have been examined do not count.
    fn changes(&self, after: &Self) -> Vec<(String, FileState)> {
        let unknown = FileState::NotKept { why: NotKept::Unknown };
        let mut changes = Vec::new();
        for (path, version) in &self.versions {
            let is_gone = after.is_complete && !after.versions.contains_key(path);
            if is_gone || after.versions.get(path).is_some_and(|now| now != version) {
                changes.push((path.clone(), unknown.clone()));
            }
        }
        if self.is_complete {
            let is_new = |path: &&String| !self.versions.contains_key(*path);
            changes
                .extend(after.versions.keys().filter(is_new).map(|path| (path.clone(), FileState::Absent)));
        }
        changes
    }
}
