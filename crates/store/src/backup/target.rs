//! The target directory of a backup, and the replacement of the previous backup.
//!
//! A backup is written to `DIR.partial`, which has a marker file until the backup is complete. Segments that are no
//! longer written to are hard links where the file system permits it, to those of the backup before or of the store:
//! they never change. Others, and the active one, are copied.
//!
//! Invariants: a directory that is neither empty nor a backup of this store, and nothing else, is never changed. The mark is removed after
//! everything was synced, and written again before anything of a finished backup is removed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::info::{self, BackupInfo};
use super::{Progress, length};
use crate::bytes::to_usize;
use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_at, write_all_at};
use crate::identity;
use crate::journal::manifest::{Listed, Manifest, SegmentState};
use crate::journal::segments::{Segments, journal_dir};
use crate::journal::sessions::SegmentSessions;
use crate::journal::stream::FrameStream;
use crate::journal::{SEGMENT_HEADER_BYTES, SegmentHeader, first_chain};
use crate::loss::StoreDamage;
use crate::writer::{OpenedFile, OpenedSegment, Snapshot};

/// The file that marks an unfinished backup.
const MARK: &str = "unfinished-backup";
/// How many bytes are copied at once.
const COPIED_BYTES: u64 = 1 << 20;

/// Whether a directory holds an unfinished backup.
pub(crate) fn is_unfinished(dir: &Path) -> bool {
    dir.join(MARK).exists()
}

/// How a segment is that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Whole,
    /// It has not the frames that it should have.
    Damaged,
    /// The disk cannot read it.
    Unreadable,
}

/// The target of a backup.
pub(super) struct Target {
    files: Arc<dyn Files>,
    /// The directory that the backup will have.
    dir: PathBuf,
    /// The directory that it is written to.
    partial: PathBuf,
    /// The store's directory.
    store: PathBuf,
    /// The store's id.
    id: String,
    /// The list of the segments in the backup before, without those that were damaged then.
    before: Option<Manifest>,
    /// Locks the directory against another backup at the same time.
    _lock: Option<fs::File>,
}

impl Target {
    /// Checks the directory, and creates the one beside it.
    pub(super) fn prepare(
        dir: &Path,
        store: &Path,
        id: String,
        files: Arc<dyn Files>,
    ) -> Result<Self, StoreError> {
        let store = fs::canonicalize(store).map_err(|error| StoreError::io("find", store, error))?;
        let dir = real_path(dir)?;
        if dir.starts_with(&store) || store.starts_with(&dir) {
            let reason =
                format!("lies in the store {}, or the store in it; name another directory", store.display());
            return Err(StoreError::unusable(&dir, reason));
        }
        let before = before(files.as_ref(), &dir, &store, &id)?;
        let partial = beside(&dir, ".partial");
        let lock = make_partial(&partial)?;
        let target = Self { files, dir, partial, store, id, before, _lock: lock };
        let journal = target.journal();
        let made = make_dir(&journal).map_err(|error| StoreError::io("create", &journal, error));
        if made.is_err() {
            target.discard();
        }
        made.map(|()| target)
    }

    fn journal(&self) -> PathBuf {
        journal_dir(&self.partial)
    }

    /// Takes a segment with the files beside it. Returns how it is as far as is known: one of the backup before is not
    /// read again, because that backup has the same file.
    pub(super) fn take(&self, segment: &OpenedSegment, progress: &Progress) -> Result<Condition, StoreError> {
        let OpenedSegment { listed, files } = segment;
        let was_before = self.before.as_ref().is_some_and(|before| before.get(listed.id) == Some(listed));
        let mut is_of_before = false;
        for file in files {
            progress.check()?;
            let name = file.path.file_name().unwrap_or_default();
            let to = self.journal().join(name);
            let is_fixed = !matches!(listed.state, SegmentState::Active { .. });
            let earlier = was_before.then(|| journal_dir(&self.dir).join(name));
            let is_earlier = is_fixed && earlier.is_some_and(|earlier| link(&earlier, &to, file.length));
            if name == OsStr::new(&Segments::name(listed.id)) {
                is_of_before = is_earlier;
            }
            let is_linked = is_earlier || is_fixed && link(&file.path, &to, file.length);
            if !is_linked {
                self.copy(file, &to, progress)?;
            }
        }
        let condition = match is_of_before {
            true => Condition::Whole,
            false => self.condition(listed, progress)?,
        };
        progress.add(length(listed.state));
        Ok(condition)
    }

    /// Compares the frames of a segment that was taken with what the list says. What the store knew to be damaged or
    /// lost is not compared.
    fn condition(&self, listed: &Listed, progress: &Progress) -> Result<Condition, StoreError> {
        let (end, sealed) = match listed.state {
            SegmentState::Active { floor } => (floor, None),
            SegmentState::Sealed { length, frames, digest } => (length, Some((frames, digest))),
            SegmentState::Abandoned { .. } | SegmentState::Lost => return Ok(Condition::Whole),
        };
        let path = self.journal().join(Segments::name(listed.id));
        let file = self.files.open(&path, OpenMode::Read);
        let file = file.map_err(|error| StoreError::io("read", &path, error))?;
        let unreadable = |error| {
            tracing::warn!(%error, segment = listed.id, "a segment cannot be read");
            Ok(Condition::Unreadable)
        };
        let header = match read_at(file.as_ref(), 0, to_usize(SEGMENT_HEADER_BYTES)) {
            Ok(header) => header,
            Err(error) => return unreadable(error),
        };
        if SegmentHeader::decode(&header)? != Some(listed.header()) {
            return Ok(Condition::Damaged);
        }
        let mut stream = FrameStream::new(file.as_ref(), listed.seed, end);
        let (mut chain, mut frames, mut at) = (first_chain(listed.id, listed.seed), 0, SEGMENT_HEADER_BYTES);
        loop {
            progress.check()?;
            let parsed = match stream.next() {
                Ok(Some(parsed)) => parsed,
                Ok(None) => break,
                Err(error) => return unreadable(error),
            };
            if parsed.chain != chain {
                return Ok(Condition::Damaged);
            }
            (chain, frames, at) = (parsed.next_chain, frames + 1, parsed.frame.end());
        }
        let is_whole = at == end && sealed.is_none_or(|sealed| sealed == (frames, chain));
        Ok(if is_whole { Condition::Whole } else { Condition::Damaged })
    }

    fn copy(&self, file: &OpenedFile, to: &Path, progress: &Progress) -> Result<(), StoreError> {
        let write = |error| StoreError::io("write", to, error);
        let copy = self.files.open(to, OpenMode::Create).map_err(write)?;
        let mut at = 0;
        while at < file.length {
            progress.check()?;
            let count = usize::try_from(COPIED_BYTES.min(file.length - at)).expect("a megabyte at most");
            let read = read_at(file.file.as_ref(), at, count);
            let bytes = read.and_then(|bytes| match bytes.is_empty() {
                true => Err(ErrorKind::UnexpectedEof.into()),
                false => Ok(bytes),
            });
            let bytes = bytes.map_err(|error| StoreError::io("read", &file.path, error))?;
            write_all_at(copy.as_ref(), &bytes, at).map_err(write)?;
            at += bytes.len() as u64;
        }
        copy.sync().map_err(write)
    }

    /// Removes a segment that the store has no more.
    pub(super) fn remove(&self, id: u64) -> Result<(), StoreError> {
        let journal = self.journal();
        let segment = journal.join(Segments::name(id));
        for path in SegmentSessions::paths(&journal, id).into_iter().chain([segment]) {
            match self.files.remove(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(StoreError::io("remove", &path, error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Writes the list of the segments, and returns what the backup holds.
    pub(super) fn list(
        &self,
        snapshot: &Snapshot,
        made_at_ms: u64,
        damage: StoreDamage,
    ) -> Result<BackupInfo, StoreError> {
        let Snapshot { manifest, chain, sessions, entries, .. } = snapshot;
        manifest.store(self.files.as_ref(), &self.journal())?;
        identity::store(self.files.as_ref(), &self.journal(), &self.id)?;
        Ok(BackupInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store_id: Some(self.id.clone()),
            store: self.store.display().to_string(),
            damage,
            made_at_ms,
            sessions: *sessions,
            entries: *entries,
            segments: manifest.segments.len() as u64,
            bytes: manifest.segments.iter().map(|listed| length(listed.state)).sum(),
            digest: info::digest(manifest, *chain),
        })
    }

    /// Makes the backup whole, and gives it its name.
    pub(super) fn finish(&self, info: &BackupInfo) -> Result<(), StoreError> {
        let (files, partial) = (self.files.as_ref(), &self.partial);
        let failed = |error| StoreError::io("write", partial, error);
        files.sync_dir(&self.journal()).map_err(failed)?;
        info.store(files, partial)?;
        files.remove(&partial.join(MARK)).and_then(|()| files.sync_dir(partial)).map_err(failed)?;
        let replaced = replace_dir(partial, &self.dir);
        let replaced = replaced.map_err(|error| StoreError::io("replace", &self.dir, error))?;
        let parent = self.dir.parent().unwrap_or(&self.dir);
        files.sync_dir(parent).map_err(|error| StoreError::io("write", parent, error))?;
        if let Some(old) = replaced
            && let Err(error) = remove_backup(&old)
        {
            tracing::warn!(%error, dir = %old.display(), "the backup before cannot be removed; the next one tries again");
        }
        Ok(())
    }

    /// Removes what was written.
    pub(super) fn discard(&self) {
        if let Err(error) = remove_backup(&self.partial) {
            tracing::warn!(%error, dir = %self.partial.display(), "an unfinished backup cannot be removed; the next one tries again");
        }
    }
}

/// Returns the path of a directory beside this one, whose name has this ending.
fn beside(dir: &Path, ending: &str) -> PathBuf {
    let name = [dir.file_name().unwrap_or_default(), OsStr::new(ending)];
    dir.with_file_name(name.into_iter().collect::<OsString>())
}

/// Returns the path without links, of a directory that may not exist yet.
pub(super) fn real_path(dir: &Path) -> Result<PathBuf, StoreError> {
    if let Ok(real) = fs::canonicalize(dir) {
        return Ok(real);
    }
    let absolute = std::path::absolute(dir).map_err(|error| StoreError::io("find", dir, error))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(StoreError::unusable(dir, "is not the name of a directory; name another one"));
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let reason =
                format!("cannot be created, because {} does not exist; create that first", parent.display());
            Err(StoreError::unusable(dir, reason))
        }
        Err(error) => Err(StoreError::io("find", parent, error)),
    }
}

/// Returns the list of the segments of the backup that the directory holds, without those that were damaged when it was
/// made; `None` if it does not exist or is empty.
fn before(files: &dyn Files, dir: &Path, store: &Path, id: &str) -> Result<Option<Manifest>, StoreError> {
    if is_empty(dir)? {
        return Ok(None);
    }
    let foreign = "exists and is not a backup; name a new directory";
    let info = match BackupInfo::load(files, dir)? {
        Some(info) if !is_unfinished(dir) => info,
        Some(_) | None => return Err(StoreError::unusable(dir, foreign)),
    };
    let is_in_place = info.store == store.display().to_string();
    // Earlier versions knew a store only by its path.
    if !info.store_id.as_ref().map_or(is_in_place, |of| of == id) {
        let reason = match is_in_place {
            true => format!(
                "is a backup of another store that was in {} before this one; restore it if that store was lost, \
                 otherwise name another directory",
                info.store
            ),
            false => format!("is a backup of the store in {}; name another directory", info.store),
        };
        return Err(StoreError::unusable(dir, reason));
    }
    if dir.join("lock").exists() {
        let reason = "is a backup that was used as a store, and may have newer data; name another directory";
        return Err(StoreError::unusable(dir, reason));
    }
    if let Some(name) = foreign_file(dir)? {
        let reason = format!(
            "also holds {name}, which would be removed with it; move that away, or name another directory"
        );
        return Err(StoreError::unusable(dir, reason));
    }
    let mut manifest = Manifest::load(files, &journal_dir(dir))?;
    if let Some(manifest) = manifest.as_mut() {
        manifest.segments.retain(|listed| !info.damage.segments.contains(&listed.id));
    }
    Ok(manifest)
}

/// Returns the name of a file that somebody else put into a backup. Hidden files, which file managers leave, do not count.
fn foreign_file(dir: &Path) -> Result<Option<String>, StoreError> {
    let failed = |error| StoreError::io("read", dir, error);
    for found in fs::read_dir(dir).map_err(failed)? {
        let name = found.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let is_own = name == info::FILE || dir.join(&name) == journal_dir(dir);
        if !is_own && !name.starts_with('.') {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Whether a directory does not exist, or is empty.
pub(super) fn is_empty(dir: &Path) -> Result<bool, StoreError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(StoreError::unusable(dir, "is not a directory; name another one"))
        }
        Err(error) => Err(StoreError::io("read", dir, error)),
    }
}

fn make_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Creates the directory with its mark, in place of one that a killed backup left behind.
fn make_partial(partial: &Path) -> Result<Option<fs::File>, StoreError> {
    let failed = |error| StoreError::io("create", partial, error);
    if partial.exists() {
        let _lock = lock(partial)?;
        if !is_empty(partial)? && !is_unfinished(partial) && !partial.join(info::FILE).exists() {
            let reason = "exists and is no unfinished backup; remove it, or name another directory";
            return Err(StoreError::unusable(partial, reason));
        }
        remove_backup(partial).map_err(|error| StoreError::io("remove", partial, error))?;
    }
    make_dir(partial).map_err(failed)?;
    let marked =
        lock(partial).and_then(|lock| fs::write(partial.join(MARK), "").map_err(failed).map(|()| lock));
    if marked.is_err() {
        drop(fs::remove_dir(partial));
    }
    marked
}

/// Locks a directory against another backup; `None` where directories cannot be locked.
fn lock(dir: &Path) -> Result<Option<fs::File>, StoreError> {
    let Ok(file) = fs::File::open(dir) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => {
            Err(StoreError::unusable(dir, "is being written by another backup; wait for it"))
        }
        Err(fs::TryLockError::Error(_)) => Ok(None),
    }
}

/// Makes a hard link to a file of this length. Returns whether it did.
fn link(from: &Path, to: &Path, length: u64) -> bool {
    let is_whole = fs::symlink_metadata(from).is_ok_and(|found| found.is_file() && found.len() == length);
    is_whole && fs::hard_link(from, to).is_ok()
}

/// Renames a directory, in place of another one, which may not exist. Returns where the other one is then.
fn replace_dir(from: &Path, to: &Path) -> std::io::Result<Option<PathBuf>> {
    if fs::symlink_metadata(to).is_err() || fs::read_dir(to)?.next().is_none() {
        return fs::rename(from, to).map(|()| None);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        if renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).is_ok() {
            return Ok(Some(from.to_owned()));
        }
    }
    // Elsewhere the name is free for a moment; a reader then finds both under other names.
    let old = beside(to, ".old");
    if old.join(info::FILE).exists() || is_unfinished(&old) {
        remove_backup(&old)?;
    }
    fs::rename(to, &old)?;
    if let Err(error) = fs::rename(from, to) {
        fs::rename(&old, to)?;
        return Err(error);
    }
    Ok(Some(old))
}

/// Removes a backup. If that is interrupted, the rest is marked as unfinished.
fn remove_backup(dir: &Path) -> std::io::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    let mark = dir.join(MARK);
    // On a full disk there may be no room for the mark; without this file it is no backup either.
    drop(fs::write(&mark, ""));
    drop(fs::remove_file(dir.join(info::FILE)));
    for found in fs::read_dir(dir)? {
        let path = found?.path();
        if path == mark {
            continue;
        }
        if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
    }
    match fs::remove_file(&mark) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    fs::remove_dir(dir)
}
