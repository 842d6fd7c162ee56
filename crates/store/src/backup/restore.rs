//! Restores a backup as a new store.
//!
//! Invariants: an existing store is never changed; the new store appears at once, by one rename, and shares no file
//! with the backup.

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::target::{is_empty, real_path};
use super::{BackupInfo, Progress, verify};
use crate::Store;
use crate::error::StoreError;
use crate::files::{Files, OpenMode, RealFiles, create_own_dir, write_all_at};
use crate::index::Index;
use crate::journal::segments::journal_dir;
use crate::lock::{self, DirectoryLock};

/// How many bytes are copied at once.
const COPIED_BYTES: usize = 1 << 20;
/// The journal until it is whole.
const PARTIAL: &str = "journal.partial";
/// What may be in the target: what an interrupted restoration leaves, what is left of a store whose journal and index
/// were moved away (see "Files" in docs/operations.md), and what a new volume has.
const HARMLESS: [&str; 15] = [
    lock::FILE,
    PARTIAL,
    "journal",
    "index",
    "index.damaged-1",
    "index.suspect",
    "reserve",
    "confirmed-addresses",
    "host.sock",
    "host.log",
    "token",
    "files",
    "chat_history",
    "resumed-with",
    "lost+found",
];

impl Store {
    /// Copies the backup in `from` to `to`, where a store is opened afterwards. The directory may exist, but is empty,
    /// apart from the `lost+found` of a volume and what lies beside the journal and the index of a store. This blocks on
    /// the disk. The backup is not verified: see [`Self::verify_backup`].
    ///
    /// # Errors
    /// [`StoreError::Backup`] if `from` is not a whole backup, or `to` is not empty; [`StoreError::InUse`];
    /// [`StoreError::Full`], [`StoreError::NotPermitted`], [`StoreError::Io`] or [`StoreError::Cancelled`], after which
    /// `to` has no store.
    pub fn restore_backup(from: &Path, to: &Path, progress: &Progress) -> Result<BackupInfo, StoreError> {
        let info = verify::open(from)?;
        let (from, to) = (real_path(from)?, real_path(to)?);
        if to.starts_with(&from) {
            return Err(StoreError::unusable(&to, "lies in the backup; name another directory"));
        }
        check_target(&to)?;
        create_own_dir(&to).map_err(|error| StoreError::io("create", &to, error))?;
        let _lock = DirectoryLock::take(&to)?;
        progress.begin();
        let partial = to.join(PARTIAL);
        let restored = copy(&journal_dir(&from), &partial, progress).and_then(|()| {
            // A backup has no index, so nobody should miss it. It comes first: with the journal there is a store.
            Index::begin(&to).map_err(|error| StoreError::io("create", &to, error))?;
            let journal = journal_dir(&to);
            let renamed = fs::rename(&partial, &journal).and_then(|()| RealFiles.sync_dir(&to));
            renamed.map_err(|error| StoreError::io("write", &journal, error))
        });
        if restored.is_err() {
            drop(fs::remove_dir_all(&partial));
        }
        restored.map(|()| info)
    }
}

/// Checks that there is no store in the target, and nothing that is not [`HARMLESS`].
fn check_target(to: &Path) -> Result<(), StoreError> {
    for part in ["journal", "index"] {
        if !is_empty(&to.join(part))? {
            let reason = "has a store already; name another directory, or move that one away";
            return Err(StoreError::unusable(to, reason));
        }
    }
    if is_empty(to)? {
        return Ok(());
    }
    let names = RealFiles.list(to).map_err(|error| StoreError::io("read", to, error))?;
    if names.iter().all(|name| HARMLESS.contains(&name.as_str())) {
        return Ok(());
    }
    Err(StoreError::unusable(to, "is not empty; name a new directory, or an empty one"))
}

/// Copies the files of a journal.
fn copy(from: &Path, to: &Path, progress: &Progress) -> Result<(), StoreError> {
    let write = |error| StoreError::io("write", to, error);
    // A restoration that was killed left it behind.
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(StoreError::io("remove", to, error)),
        Ok(()) | Err(_) => {}
    }
    create_own_dir(to).map_err(write)?;
    let names = RealFiles.list(from).map_err(|error| StoreError::io("read", from, error))?;
    let sizes = names.iter().map(|name| fs::metadata(from.join(name)).map_or(0, |file| file.len()));
    progress.expect(sizes.sum());
    for name in names {
        let (source, target) = (from.join(&name), to.join(&name));
        let read = |error| StoreError::io("read", &source, error);
        let mut file = fs::File::open(&source).map_err(read)?;
        let copy = RealFiles.open(&target, OpenMode::Create).map_err(write)?;
        let (mut buffer, mut at) = (vec![0; COPIED_BYTES], 0);
        loop {
            progress.check()?;
            let count = file.read(&mut buffer).map_err(read)?;
            if count == 0 {
                break;
            }
            write_all_at(copy.as_ref(), &buffer[..count], at).map_err(write)?;
            at += count as u64;
            progress.add(count as u64);
        }
        copy.sync().map_err(write)?;
    }
    RealFiles.sync_dir(to).map_err(write)
}
