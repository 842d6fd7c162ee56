//! Backups: a copy of the journal as it was at one moment, made while the store is written to.
//!
//! The writer describes the journal and opens its files (`writer/snapshot.rs`); a thread copies them (`target` has the
//! directories), so appends do not wait. `verify` reads a backup again, and `restore` makes a store of one.
//!
//! Invariants: everything acknowledged before the call is in the backup, and no session whose deletion was acknowledged
//! before it. A directory with the name of a backup is a whole one at any moment, the old or the new: a backup is
//! written beside it, synced, and renamed. An unfinished backup is marked, and is never opened as a store, verified or
//! restored. A backup is replaced only by one of the same store, and not by that of a damaged store unless the caller
//! wants it. Memory does not grow with the store, apart from the list of its segments.

pub(crate) mod info;
mod restore;
mod target;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use self::target::{Condition, Target};
use crate::index::Index;
use crate::journal::manifest::SegmentState;
use crate::journal::segments::Segments;
use crate::loss::StoreDamage;
use crate::writer::{Command, Copied, OPENED_FIRST, OPENED_MAX, Snapshot};
use crate::{Inner, Store, StoreError, identity};

pub use self::info::BackupInfo;
pub(crate) use self::target::is_unfinished;
pub use self::verify::VerifiedBackup;

/// How far a backup, its verification or its restoration is, for the one who waits. It can be cancelled. If it is used
/// again, it counts from the start; one that was cancelled stays so.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    /// Returns how many bytes are done.
    pub fn done_bytes(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns how many bytes there are, as far as is known; 0 at the start.
    pub fn total_bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Ends the work soon, with [`StoreError::Cancelled`]. What was written until then is removed.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Begins work of unknown length.
    fn begin(&self) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
    }

    fn expect(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.is_cancelled.load(Ordering::Relaxed) { Err(StoreError::Cancelled) } else { Ok(()) }
    }
}

/// Whether a damaged store is backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDamage {
    Refuse,
    BackUp,
}

impl Store {
    /// Backs the store up to a directory, while it is used: everything acknowledged before the call is in the backup.
    /// The directory is created, or replaced if it has a backup of this store, which has the same id wherever the store
    /// is; at any moment it holds a whole backup or nothing. `made_at_ms` is the time, in Unix milliseconds.
    ///
    /// A backup is a store without an index: [`Self::restore_backup`] copies it, and [`Self::verify_backup`] reads all of it.
    /// Segments that are no longer written to are hard links to the store's or to those of the backup before, if the
    /// file systems permit that. So a backup takes little space beside the store, but shares bad sectors with it. A
    /// session that is deleted later stays in the backup; one that was deleted before is not in it, but its bytes may
    /// be, unless [`Store::reclaim`] has erased them.
    ///
    /// A damaged store is not backed up, so that an earlier backup, which may have what was lost, stays. Damage is what
    /// nobody has accepted of the known losses, and what is found in the segments that the backup before does not have.
    /// [`Self::backup_damaged`] backs the store up all the same.
    ///
    /// If the future is dropped, the backup ends soon, and what was written is removed.
    ///
    /// # Errors
    /// [`StoreError::DamagedStore`]; [`StoreError::Backup`] if the directory cannot be used, or the store is in memory;
    /// [`StoreError::Full`], [`StoreError::NotPermitted`], [`StoreError::Io`] or [`StoreError::Cancelled`]. Nothing of
    /// the backup remains then, and one that was there before is unchanged.
    pub async fn backup(
        &self,
        dir: &Path,
        made_at_ms: u64,
        progress: &Arc<Progress>,
    ) -> Result<BackupInfo, StoreError> {
        self.back_up(dir, made_at_ms, OnDamage::Refuse, progress).await
    }

    /// Like [`Self::backup`], also if the store is damaged: the result says what is ([`BackupInfo::damage`]). The
    /// backup before is replaced, even if it has what the store lost.
    ///
    /// # Errors
    /// Those of [`Self::backup`] except [`StoreError::DamagedStore`].
    pub async fn backup_damaged(
        &self,
        dir: &Path,
        made_at_ms: u64,
        progress: &Arc<Progress>,
    ) -> Result<BackupInfo, StoreError> {
        self.back_up(dir, made_at_ms, OnDamage::BackUp, progress).await
    }

    async fn back_up(
        &self,
        dir: &Path,
        made_at_ms: u64,
        on_damage: OnDamage,
        progress: &Arc<Progress>,
    ) -> Result<BackupInfo, StoreError> {
        match self.inner.as_ref() {
            Inner::Memory(_) => {
                Err(StoreError::unusable(dir, "cannot be a backup of a store in memory, which has no files"))
            }
            Inner::Disk(disk) => disk.backup(dir, made_at_ms, on_damage, progress).await,
        }
    }
}

/// Cancels the work if its caller stops waiting for it.
struct CancelOnDrop(Option<Arc<Progress>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(|progress| progress.cancel());
    }
}

/// A backup to make.
pub(crate) struct Job {
    /// The queue of the writer. It is not kept open for the backup.
    pub(crate) commands: mpsc::WeakSender<Command>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) index: Arc<Index>,
    pub(crate) dir: PathBuf,
    pub(crate) made_at_ms: u64,
    /// The known damage of the store.
    pub(crate) damage: StoreDamage,
    pub(crate) on_damage: OnDamage,
    pub(crate) progress: Arc<Progress>,
}

impl Job {
    /// Makes the backup in a thread of its own.
    pub(crate) async fn run(self) -> Result<BackupInfo, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.progress.begin();
        let mut cancel = CancelOnDrop(Some(Arc::clone(&self.progress)));
        let dir = self.dir.clone();
        let thread = std::thread::Builder::new().name("greenroom-backup".to_owned());
        let started = thread.spawn(move || drop(reply.send(self.make())));
        started.map_err(|error| StoreError::io("start a thread for", &dir, error))?;
        let made = answer.await;
        cancel.0 = None;
        made.map_err(|_| StoreError::Closed)?
    }

    fn make(&self) -> Result<BackupInfo, StoreError> {
        let store = self.segments.dir.parent().unwrap_or(Path::new("."));
        self.permit(&self.damage)?;
        let files = Arc::clone(&self.segments.files);
        let id = identity::ensure(files.as_ref(), &self.segments.dir)?;
        let target = Target::prepare(&self.dir, store, id, files)?;
        let made = self.copy(&target).and_then(|info| target.finish(&info).map(|()| info));
        if made.is_err() {
            target.discard();
        }
        made
    }

    /// Refuses to back up a store with this damage, unless that is wanted.
    fn permit(&self, damage: &StoreDamage) -> Result<(), StoreError> {
        match self.on_damage {
            OnDamage::Refuse if !damage.is_none() => {
                Err(StoreError::DamagedStore { damage: Box::new(damage.clone()) })
            }
            OnDamage::Refuse | OnDamage::BackUp => Ok(()),
        }
    }

    /// Copies the journal to the target.
    fn copy(&self, target: &Target) -> Result<BackupInfo, StoreError> {
        let (mut copied, mut limit) = (Copied::new(), OPENED_FIRST);
        let mut damage = self.damage.clone();
        loop {
            let snapshot = self.snapshot(&copied, limit)?;
            limit = (2 * limit).min(OPENED_MAX);
            let Snapshot { manifest, .. } = &snapshot;
            // A segment that was rewritten in the meantime, because it held deleted data.
            for id in copied.iter().filter(|id| manifest.get(**id).is_none()) {
                target.remove(*id)?;
            }
            copied.retain(|id| manifest.get(*id).is_some());
            self.progress.expect(manifest.segments.iter().map(|listed| length(listed.state)).sum());
            for segment in &snapshot.opened {
                let id = segment.listed.id;
                let condition = target.take(segment, &self.progress)?;
                if condition == Condition::Damaged {
                    // A start reads only the ends of most segments. With this one it reads all of them, and says who
                    // lost entries here; then the loss can be accepted.
                    self.index.mark_suspect(&format!("segment {id} is damaged, as a backup found"));
                }
                if condition != Condition::Whole && !damage.segments.contains(&id) {
                    damage.segments.push(id);
                    damage.segments.sort_unstable();
                    self.permit(&damage)?;
                }
                copied.insert(id);
            }
            if snapshot.is_complete {
                return target.list(&snapshot, self.made_at_ms, damage);
            }
        }
    }

    /// Asks the writer for the journal as it is now.
    fn snapshot(&self, copied: &Copied, limit: usize) -> Result<Snapshot, StoreError> {
        self.progress.check()?;
        let (reply, answer) = oneshot::channel();
        let commands = self.commands.upgrade().ok_or(StoreError::Closed)?;
        let command = Command::Snapshot { copied: copied.clone(), limit, reply };
        commands.blocking_send(command).map_err(|_| StoreError::Closed)?;
        drop(commands);
        answer.blocking_recv().map_err(|_| StoreError::Closed)?
    }
}

/// Returns how many bytes of frames a segment has.
fn length(state: SegmentState) -> u64 {
    match state {
        SegmentState::Active { floor: length } | SegmentState::Sealed { length, .. } => length,
        SegmentState::Abandoned { length } if length < u64::MAX => length,
        SegmentState::Abandoned { .. } | SegmentState::Lost => 0,
    }
}
