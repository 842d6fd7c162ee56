//! Bringing files back: what has to be done to each, and doing it.
//!
//! Invariants: nothing is overwritten or removed that was not kept before; a file that somebody else changed
//! is left alone unless the caller wants it overwritten. Files that are as they were then are not mentioned.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::contents::ContentsHash;
use super::journal::{Journal, Record, interrupted};
use super::{By, FileHistory, FileState, NotKept};
use crate::workspace::{Expected, Replacement, Version, WorkspacePath};
use crate::{ToolsError, Workspace};

/// A moment of a session's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Just before this entry was recorded.
    Before(u64),
    /// When this entry was the newest. What a rewind changed then comes later.
    After(u64),
}

impl Moment {
    /// Whether a record was made later.
    fn is_before(self, at: u64, by: By) -> bool {
        let key = at.saturating_mul(2) + u64::from(by == By::Rewind);
        match self {
            Self::Before(entry) => key >= entry.saturating_mul(2),
            Self::After(entry) => key > entry.saturating_mul(2),
        }
    }
}

/// A request to bring files back.
#[derive(Debug, Clone, Copy)]
pub struct RewindFiles {
    /// The moment.
    pub to: Moment,
    /// The newest entry of the session's log, which this change follows.
    pub entry: u64,
    /// Whether files that somebody else changed since are overwritten, too.
    pub overwrites: bool,
    /// Whether to say only what would be done.
    pub dry_run: bool,
}

/// What is done to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "action")]
#[non_exhaustive]
pub enum FileAction {
    /// Its old content is brought back.
    Restore,
    /// It did not exist, and is removed.
    Remove,
    /// It is left as it is: somebody else changed it since, or between two changes of the session, or a
    /// command that was interrupted.
    ChangedByOthers,
    /// It is left as it is: its old content was not kept.
    NotKept {
        /// Why.
        why: NotKept,
    },
    /// It is left as it is, because it cannot be changed.
    Failed {
        /// Why.
        reason: String,
    },
}

/// A file of a rewind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileRewind {
    /// The workspace's folder.
    pub root: PathBuf,
    /// The file, relative to it.
    pub path: String,
    /// What is done.
    #[serde(flatten)]
    pub action: FileAction,
    /// Whether somebody else's change is overwritten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrites: bool,
}

/// What the journal says about a file.
#[derive(Debug, Default)]
struct Line {
    /// Its state before the session changed it since the moment; `None` if it did not.
    target: Option<FileState>,
    /// Whether a change of it was recorded since.
    is_changed: bool,
    /// The state that the last change left, and the one before it, in which the file still is if a crash
    /// prevented the change.
    last: Option<(FileState, FileState)>,
    /// Whether somebody else changed it between two changes since.
    is_mixed: bool,
    /// The state that was recorded last.
    known: Option<FileState>,
    /// Whether a command that could have changed it was interrupted since.
    is_open: bool,
}

impl Line {
    /// Notes how the file was when the session was about to change it again.
    fn meets(&mut self, state: &FileState) {
        self.is_mixed |= match &self.target {
            Some(_) if self.is_changed => !self.is_ours(state),
            Some(target) => !target.has_content_of(state),
            None => false,
        };
        self.target.get_or_insert_with(|| state.clone());
    }

    fn changed(&mut self, is_later: bool, before: &FileState, after: &FileState) {
        if is_later {
            self.meets(before);
            self.is_changed = true;
        }
        self.last = Some((before.clone(), after.clone()));
        self.known = Some(after.clone());
    }

    /// A command began that was interrupted, and may have changed the file.
    fn opened(&mut self) {
        let Some(known) = self.known.clone() else { return };
        self.meets(&known);
        self.is_open = true;
        self.last = Some((known.clone(), known));
    }

    /// Whether the last change left the file in this state.
    fn is_ours(&self, state: &FileState) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(before, after)| before.has_content_of(state) || after.has_content_of(state))
    }
}

type RootedPath = (PathBuf, String);

/// Returns what the records say about each file.
fn lines(records: &[Record], to: Moment) -> BTreeMap<RootedPath, Line> {
    let open = interrupted(records);
    let mut lines: BTreeMap<RootedPath, Line> = BTreeMap::new();
    for (index, record) in records.iter().enumerate() {
        match record {
            Record::Session { .. } | Record::CommandEnded { .. } => {}
            Record::Change { at, by, root, path, before, after } => {
                let line = lines.entry((root.clone(), path.clone())).or_default();
                line.changed(to.is_before(*at, *by), before, after);
            }
            Record::Seen { root, path, state, .. } => {
                let line = lines.entry((root.clone(), path.clone())).or_default();
                line.known = Some(state.clone());
            }
            Record::CommandBegun { at, root } => {
                if open.contains(&index) && to.is_before(*at, By::Command) {
                    let in_root = lines.iter_mut().filter(|((of, _), _)| of == root);
                    in_root.for_each(|(_, line)| line.opened());
                }
            }
        }
    }
    lines
}

impl FileHistory {
    /// Brings the files of a session back to a moment, or says what that would do. Blocks.
    ///
    /// # Errors
    /// If the journal cannot be read. What happened to each file is in the result.
    pub fn rewind(&self, session: &str, wanted: RewindFiles) -> io::Result<Vec<FileRewind>> {
        let (_, records) = Journal::of(&self.0.journals, session).read()?;
        let mut workspaces: HashMap<PathBuf, Result<Workspace, String>> = HashMap::new();
        let mut files = Vec::new();
        for ((root, path), line) in lines(&records, wanted.to) {
            let opened = workspaces.entry(root.clone()).or_insert_with(|| {
                Workspace::open_without(&root, self.0.closed.iter().cloned())
                    .map_err(|error| error.to_string())
            });
            let done = match opened {
                _ if line.target.is_none() || !(line.is_changed || line.is_open) => continue,
                Ok(workspace) => self.one(session, workspace, &path, &line, wanted),
                Err(reason) => Some((FileAction::Failed { reason: reason.clone() }, false)),
            };
            files.extend(done.map(|(action, overwrites)| FileRewind { root, path, action, overwrites }));
        }
        Ok(files)
    }

    /// Brings one file back. `None` if there is nothing to do.
    fn one(
        &self,
        session: &str,
        workspace: &Workspace,
        path: &str,
        line: &Line,
        wanted: RewindFiles,
    ) -> Option<(FileAction, bool)> {
        let failed = |error: ToolsError| Some((FileAction::Failed { reason: error.to_string() }, false));
        let target = line.target.as_ref()?;
        let path = match workspace.place(path) {
            Ok(path) => path,
            Err(error) => return failed(error),
        };
        let (present, version) = match workspace.state(&path, self.0.limits.file_bytes_max) {
            Ok(found) => found,
            Err(error) => return failed(error),
        };
        if present.has_content_of(target) {
            return None;
        }
        if let FileState::NotKept { why } = target {
            return Some((FileAction::NotKept { why: *why }, false));
        }
        let is_ours = line.is_changed && !line.is_mixed && line.is_ours(&present);
        if !is_ours && !wanted.overwrites {
            return Some((FileAction::ChangedByOthers, false));
        }
        if let FileState::NotKept { why } = present {
            let reason = format!("its present content cannot be kept: {}", why.as_str());
            return Some((FileAction::Failed { reason }, false));
        }
        let action = match self.put(session, workspace, &path, target, version, wanted) {
            Ok(action) => action,
            Err(error) => return failed(error),
        };
        Some((action, !is_ours))
    }

    fn put(
        &self,
        session: &str,
        workspace: &Workspace,
        path: &WorkspacePath,
        target: &FileState,
        version: Option<Version>,
        wanted: RewindFiles,
    ) -> Result<FileAction, ToolsError> {
        workspace.changeable(path)?;
        let files = self.call_by(session.to_owned(), wanted.entry, wanted.entry, By::Rewind);
        let not_kept = |why| Ok(FileAction::NotKept { why });
        match (target, version) {
            (FileState::NotKept { why }, _) => not_kept(*why),
            (FileState::Absent, None) => Ok(FileAction::Remove),
            (FileState::Absent, Some(version)) => {
                if !wanted.dry_run {
                    workspace.remove(path, version, &files)?;
                }
                Ok(FileAction::Remove)
            }
            (FileState::File { hash, mode }, version) => {
                let Some(hash) = ContentsHash::parse(hash) else { return not_kept(NotKept::Dropped) };
                // Read first: keeping the present content may drop it.
                let content = self.0.contents.lock().get(&hash);
                let content = content.map_err(|error| ToolsError::io(path.shown(), error))?;
                let Some(content) = content else { return not_kept(NotKept::Dropped) };
                if !wanted.dry_run {
                    let expected = version.map_or(Expected::Absent, Expected::Version);
                    let replacement = Replacement { content: &content, expected, mode: Some(*mode) };
                    workspace.replace(path, &replacement, &files)?;
                }
                Ok(FileAction::Restore)
            }
        }
    }
}
