//! File rewind: the old content of files is kept before tool calls change them, and can be restored.
//!
//! Invariants: the content of a file and the record of its change are on the disk before the file is changed,
//! so a crash at any moment loses nothing. Bringing files back is itself such a change: the present content is
//! kept first. A file whose content is neither what a call left nor what was there before that is somebody
//! else's, and is overwritten only on demand. Files are reached through a [`Workspace`] only. The contents
//! and the records together stay within [`Limits`]; the oldest are dropped, and a rewind says which files this
//! concerns.
//!
//! The moments are those of a session's log. An entry of the log is a moment; the files of that moment are
//! found by undoing everything that was recorded after it, whichever branch it belongs to, because files have
//! one history where a conversation has branches.

mod command;
mod contents;
mod journal;
mod plan;
mod state;
#[cfg(test)]
mod tests;

use crate::Workspace;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::command::CommandFiles;
use self::contents::{Contents, ContentsHash};
use self::journal::{Journal, Record};
pub use self::plan::{FileAction, FileRewind, Moment, RewindFiles};
pub(crate) use self::state::FileState;
pub use self::state::NotKept;
use crate::workspace::Version;

/// The maximum number of sessions whose last states are held in memory, and of contents that are recognised by their
/// file's version.
const SESSIONS_MAX: usize = 256;
const VERSIONS_MAX: usize = 20_000;
/// How many files may be changed at the same time, at most.
const CHANGING: usize = 64;
/// The maximum number of runs whose kept bytes are counted.
const RUNS_MAX: usize = 1_000;

/// How much is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// All contents and records together. Above it, the oldest contents are dropped, and then the oldest records, except
    /// the last state of each file.
    pub total_bytes_max: u64,
    /// One file. Larger files are not kept.
    pub file_bytes_max: u64,
    /// The files that one run changes, together. Above it, further files are not kept.
    pub run_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self { total_bytes_max: 512 * MIB, file_bytes_max: 10 * MIB, run_bytes_max: 128 * MIB }
    }
}

impl Limits {
    /// Creates limits.
    pub fn new(total_bytes_max: u64, file_bytes_max: u64, run_bytes_max: u64) -> Self {
        Self { total_bytes_max, file_bytes_max, run_bytes_max }
    }
}

/// The kept files of all sessions of one store. Cloning is cheap. One process may have a folder open at a time:
/// the one that has the store.
#[derive(Debug, Clone)]
pub struct FileHistory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Limits,
    /// Files and folders that no rewind touches.
    closed: Vec<PathBuf>,
    /// Guards the folder: one change at a time.
    contents: Mutex<Contents>,
    journals: PathBuf,
    known: Mutex<Known>,
    /// Held while a file is changed, so that changes are made in the order of their records. Each guards the
    /// files of one hash.
    changing: [Mutex<()>; CHANGING],
}

/// What is known without reading the folder.
#[derive(Debug, Default)]
struct Known {
    /// The last recorded state of each file, by session.
    last: HashMap<String, HashMap<(PathBuf, String), FileState>>,
    /// The kept state of files by their version.
    versions: HashMap<(PathBuf, String), (Version, FileState)>,
    /// How many bytes were kept for each run.
    runs: HashMap<(String, u64), u64>,
    /// The size of everything after records were last dropped: it makes no sense to try again soon.
    left: u64,
}

/// The origin of a change to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    Tool,
    Command,
    Rewind,
}

impl FileHistory {
    /// Opens the folder, which is created if it is missing. `closed` are files and folders that no rewind
    /// touches, such as those of the program.
    ///
    /// # Errors
    /// If the folder cannot be created or read.
    pub fn open(dir: &Path, limits: Limits, closed: Vec<PathBuf>) -> io::Result<Self> {
        let mut contents = Contents::open(dir.join("contents"))?;
        let journals = dir.join("sessions");
        contents::create_private(&journals)?;
        contents.journal(0, Journal::all(&journals)?.iter().map(Journal::bytes).sum());
        let closed = closed.into_iter().chain([dir.to_owned()]).collect();
        let known = Mutex::default();
        let changing = std::array::from_fn(|_| Mutex::default());
        let contents = Mutex::new(contents);
        Ok(Self(Arc::new(Inner { limits, closed, contents, journals, known, changing })))
    }

    /// Returns what a call of a session needs to keep the files that it changes. `entry` is the entry of the
    /// session's log that the change follows: the answer with the call; `run` is the run's id. A sub-agent's
    /// calls are those of the session at the top.
    pub fn call(&self, session: impl Into<String>, run: u64, entry: u64) -> CallFiles {
        self.call_by(session.into(), run, entry, By::Tool)
    }

    fn call_by(&self, session: String, run: u64, at: u64, by: By) -> CallFiles {
        CallFiles(Some(Arc::new(Call { history: self.clone(), session, run, at, by })))
    }

    /// Returns how many bytes are kept: contents, and the records of changes.
    pub fn bytes(&self) -> u64 {
        self.0.contents.lock().bytes()
    }

    /// Forgets a session. Its contents are dropped by the next [`Self::clean`], if no other session has them.
    ///
    /// # Errors
    /// If the journal cannot be removed.
    pub fn forget(&self, session: &str) -> io::Result<()> {
        // No call may write between the removal and the memory's.
        let mut contents = self.0.contents.lock();
        self.0.known.lock().last.remove(session);
        let journal = Journal::of(&self.0.journals, session);
        contents.journal(journal.bytes(), 0);
        journal.remove()
    }

    /// Forgets the sessions for which `exists` is false, and drops the contents that no session refers to.
    ///
    /// # Errors
    /// If the folder cannot be read. What cannot be removed is left for the next time.
    pub fn clean(&self, exists: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut contents = self.0.contents.lock();
        let mut referred = std::collections::HashSet::new();
        let mut changed = Changed::new();
        for journal in Journal::all(&self.0.journals)? {
            let (session, records) = journal.read()?;
            note_changed(&records, &mut changed);
            if session.as_deref().is_some_and(&exists) {
                referred.extend(records.iter().flat_map(Record::hashes).map(str::to_owned));
            } else {
                if let Some(session) = &session {
                    self.0.known.lock().last.remove(session);
                }
                contents.journal(journal.bytes(), 0);
                journal.remove()?;
            }
        }
        self.0.known.lock().versions.clear();
        self.remove_leftovers(changed, &contents);
        contents.retain(|hash| referred.contains(hash))
    }

    /// Removes the temporary files that a killed process left beside files that it changed, if their content is kept or
    /// was to be written.
    fn remove_leftovers(&self, changed: Changed, contents: &Contents) {
        for (root, folders) in changed {
            let Ok(workspace) = Workspace::open_without(&root, self.0.closed.iter().cloned()) else {
                continue;
            };
            for (folder, hashes) in folders {
                let Ok(folder) = workspace.place(&folder) else { continue };
                let is_kept = |hash: &str| ContentsHash::parse(hash).is_some_and(|hash| contents.has(&hash));
                let removed =
                    workspace.remove_leftovers(&folder, |hash| hashes.contains(hash) || is_kept(hash));
                if let Ok(count @ 1..) = removed {
                    tracing::info!(count, root = %root.display(), "temporary files of a killed process were removed");
                }
            }
        }
    }

    /// Writes records, with which the contents that they refer to are no longer in use by a call.
    fn write(&self, session: &str, records: &[Record]) -> io::Result<()> {
        let mut contents = self.0.contents.lock();
        let journal = Journal::of(&self.0.journals, session);
        let before = journal.bytes();
        let appended = journal.append(session, records);
        contents.journal(before, journal.bytes());
        appended?;
        records.iter().flat_map(Record::hashes).for_each(|hash| contents.recorded(hash));
        let mut known = self.0.known.lock();
        let known = &mut *known;
        if let Some(last) = known.last.get_mut(session) {
            records.iter().for_each(|record| record.follow(last));
        }
        // The change is recorded, and must not fail because others are too many.
        if let Err(error) = self.bound(&mut contents, &mut known.left) {
            tracing::warn!(%error, "old kept files could not be dropped");
        }
        Ok(())
    }

    /// Drops what is too much: contents first, then records.
    fn bound(&self, contents: &mut Contents, left: &mut u64) -> io::Result<()> {
        let bytes_max = self.0.limits.total_bytes_max;
        if contents.bytes() <= bytes_max {
            return Ok(());
        }
        contents.drop_oldest(bytes_max)?;
        if contents.bytes() <= bytes_max || contents.bytes() / 2 < *left {
            return Ok(());
        }
        let mut journals = Journal::all(&self.0.journals)?;
        journals.sort_by_key(Journal::changed_at);
        for journal in journals {
            if contents.bytes() <= contents::left_after(bytes_max) {
                break;
            }
            let (before, (session, records)) = (journal.bytes(), journal.read()?);
            let Some(session) = session else { continue };
            journal.rewrite(&session, &journal::shortened(&records))?;
            contents.journal(before, journal.bytes());
        }
        *left = contents.bytes();
        tracing::info!(bytes_max, "the oldest records of changed files were dropped: there were too many");
        Ok(())
    }

    /// Runs `look` with the last recorded states of a session's files.
    fn last<T>(
        &self,
        session: &str,
        look: impl FnOnce(&HashMap<(PathBuf, String), FileState>) -> T,
    ) -> io::Result<T> {
        if !self.0.known.lock().last.contains_key(session) {
            let (_, records) = Journal::of(&self.0.journals, session).read()?;
            let mut last = HashMap::new();
            records.iter().for_each(|record| record.follow(&mut last));
            let mut known = self.0.known.lock();
            if known.last.len() >= SESSIONS_MAX {
                known.last.clear();
            }
            known.last.insert(session.to_owned(), last);
        }
        let known = self.0.known.lock();
        let nothing = HashMap::new();
        Ok(look(known.last.get(session).unwrap_or(&nothing)))
    }
}

/// The folders of each workspace in which files were changed, with the hashes of what was written.
type Changed = HashMap<PathBuf, HashMap<String, std::collections::HashSet<String>>>;

fn note_changed(records: &[Record], changed: &mut Changed) {
    for record in records {
        let Record::Change { root, path, after, .. } = record else { continue };
        let folder = path.rsplit_once('/').map_or(".", |(folder, _)| folder);
        let hashes = changed.entry(root.clone()).or_default().entry(folder.to_owned()).or_default();
        hashes.extend(after.hash().map(str::to_owned));
    }
}

/// What one call needs to keep the files that it changes. The default keeps nothing. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct CallFiles(Option<Arc<Call>>);

#[derive(Debug)]
struct Call {
    history: FileHistory,
    session: String,
    run: u64,
    at: u64,
    by: By,
}

impl CallFiles {
    /// Whether files are kept.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Waits until no other call changes this file; `None` if files are not kept.
    pub(crate) fn begin(&self, root: &Path, path: &str) -> Option<MutexGuard<'_, ()>> {
        let call = self.0.as_ref()?;
        let mut hasher = DefaultHasher::new();
        (root, path).hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % CHANGING as u64).unwrap_or_default();
        Some(call.history.0.changing[place].lock())
    }

    /// Keeps the content of a file; `None` is one that cannot be read. Returns its state.
    pub(crate) fn keep(&self, file: Option<&File>, mode: u32) -> io::Result<FileState> {
        let Some(call) = &self.0 else { return Ok(FileState::NotKept { why: NotKept::Unreadable }) };
        let inner = &call.history.0;
        let Some(file) = file else { return Ok(FileState::NotKept { why: NotKept::Unreadable }) };
        let Some(content) = state::read_all(file, inner.limits.file_bytes_max)? else {
            return Ok(FileState::NotKept { why: NotKept::TooLarge });
        };
        let hash = ContentsHash::of(&content);
        let mut contents = inner.contents.lock();
        if !contents.touch(&hash) {
            let length = content.len() as u64;
            // A rewind must keep what it replaces.
            if call.by != By::Rewind && !call.takes(length) {
                return Ok(FileState::NotKept { why: NotKept::RunFull });
            }
            contents.put(&hash, &content)?;
            contents.drop_oldest(inner.limits.total_bytes_max)?;
        }
        Ok(FileState::File { hash: hash.into_text(), mode })
    }

    /// Records a change that is about to be made.
    pub(crate) fn changes(
        &self,
        root: &Path,
        path: &str,
        before: &FileState,
        after: &FileState,
    ) -> io::Result<()> {
        let Some(call) = &self.0 else { return Ok(()) };
        let record = call.record(root, path, before, after);
        call.history.write(&call.session, &[record])
    }

    /// As this call, for what a command changes.
    pub(crate) fn of_command(&self) -> Self {
        let Some(call) = &self.0 else { return Self(None) };
        call.history.call_by(call.session.clone(), call.run, call.at, By::Command)
    }
}

impl Call {
    fn record(&self, root: &Path, path: &str, before: &FileState, after: &FileState) -> Record {
        Record::Change {
            at: self.at,
            by: self.by,
            root: root.to_owned(),
            path: path.to_owned(),
            before: before.clone(),
            after: after.clone(),
        }
    }

    /// Whether this run may keep so many more bytes.
    fn takes(&self, bytes: u64) -> bool {
        let mut known = self.history.0.known.lock();
        if known.runs.len() >= RUNS_MAX {
            known.runs.clear();
        }
        let kept = known.runs.entry((self.session.clone(), self.run)).or_default();
        let is_permitted = kept.saturating_add(bytes) <= self.history.0.limits.run_bytes_max;
        if is_permitted {
            *kept += bytes;
        }
        is_permitted
    }
}
