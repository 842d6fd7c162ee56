//! Verifies a backup: every frame is read, and compared with what was counted when the backup was made.
//!
//! Invariants: nothing in the backup is changed. Damage is not an error, but is named.

use std::path::Path;
use std::sync::Arc;

use super::info::{self, BackupInfo};
use super::{Progress, is_unfinished};
use crate::error::{Notice, StoreError};
use crate::files::{Files, OpenMode, RealFiles, read_all};
use crate::journal::manifest::{Listed, Manifest, SegmentState};
use crate::journal::segments::{Segments, journal_dir};
use crate::journal::{SegmentHeader, is_whole, scan};
use crate::loss::Loss;
use crate::{Store, StoreOptions};

/// What a verification found.
#[derive(Debug, Clone)]
pub struct VerifiedBackup {
    /// What the backup says that it holds.
    pub info: BackupInfo,
    /// The number of sessions that were found.
    pub sessions: u64,
    /// The number of their entries.
    pub entries: u64,
    /// How the backup differs from what was written when it was made, in words. Each is a lower-case fragment.
    pub damage: Vec<String>,
    /// What sessions have lost: with the damage, or before the backup was made.
    pub losses: Vec<Loss>,
    /// The numbers of the segments with a loss that cannot be attributed to sessions, and that nobody has accepted.
    pub unknown_losses: Vec<u64>,
    /// The notices about the backup's journal, for people.
    pub notices: Vec<Notice>,
}

impl VerifiedBackup {
    /// Whether the backup is as it was written. The store may have had losses even then.
    pub fn is_undamaged(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Reads what the backup in a directory says that it holds.
pub(super) fn open(dir: &Path) -> Result<BackupInfo, StoreError> {
    let listed = std::fs::read_dir(dir);
    listed.map_err(|error| StoreError::io("read", dir, error))?;
    if is_unfinished(dir) {
        let reason = "is an unfinished backup: its process was killed, or is still writing; use another one";
        return Err(StoreError::unusable(dir, reason));
    }
    let info = BackupInfo::load(&RealFiles, dir)?;
    info.ok_or_else(|| StoreError::unusable(dir, format!("is not a backup: it has no file {}", info::FILE)))
}

impl Store {
    /// Reads every entry of the backup in a directory, and compares it with what was written. This blocks on the disk. In
    /// memory it takes one segment, and the positions of all entries.
    ///
    /// # Errors
    /// [`StoreError::Backup`] if the directory is not a backup, or an unfinished one; [`StoreError::Io`];
    /// [`StoreError::Version`]; [`StoreError::Cancelled`]. Damage is not an error.
    pub fn verify_backup(dir: &Path, progress: &Progress) -> Result<VerifiedBackup, StoreError> {
        let info = open(dir)?;
        // Each byte is read once for its segment, and once for its session.
        progress.begin();
        progress.expect(2 * info.bytes);
        let damage = check_journal(dir, &info, progress)?;
        let options = StoreOptions { is_read_only: true, ..StoreOptions::new(dir) };
        let (store, notices) = Store::open(&options)?;
        let mut verified = VerifiedBackup {
            sessions: 0,
            entries: 0,
            damage,
            losses: Vec::new(),
            unknown_losses: store.unknown_losses(),
            notices: notices
                .into_iter()
                .filter(|notice| !matches!(notice, Notice::ReadOnly { .. }))
                .collect(),
            info,
        };
        for (session, head) in store.list()? {
            progress.check()?;
            verified.sessions += 1;
            verified.entries += head.entries;
            verified.losses.extend(store.check_session(&session)?);
            progress.add(verified.info.bytes * head.entries / verified.info.entries.max(1));
        }
        let VerifiedBackup { info, sessions, entries, damage, .. } = &mut verified;
        if (*sessions, *entries) != (info.sessions, info.entries) {
            damage.push(format!(
                "it holds {sessions} sessions with {entries} entries, and was made with {} and {}",
                info.sessions, info.entries
            ));
        }
        Ok(verified)
    }
}

/// Compares the journal with what was written. Returns the differences.
fn check_journal(dir: &Path, info: &BackupInfo, progress: &Progress) -> Result<Vec<String>, StoreError> {
    let (files, journal) = (RealFiles, journal_dir(dir));
    let Some(manifest) = Manifest::load(&files, &journal)? else {
        return Ok(vec!["the list of segments, journal/manifest, is damaged or missing".to_owned()]);
    };
    let (mut damage, mut chain) = (Vec::new(), None);
    let names = files.list(&journal).map_err(|error| StoreError::io("read", &journal, error))?;
    let unlisted =
        names.iter().filter_map(|name| Segments::id_of(name)).filter(|id| manifest.get(*id).is_none());
    damage.extend(unlisted.map(|id| format!("segment {id} does not belong to it")));
    for listed in &manifest.segments {
        progress.check()?;
        match check_segment(&files, &journal, listed)? {
            Ok(end) => chain = Some(end),
            Err(reason) => damage.push(format!("segment {} is {reason}", listed.id)),
        }
        progress.add(super::length(listed.state));
    }
    if damage.is_empty() && chain.is_none_or(|chain| info::digest(&manifest, chain) != info.digest) {
        damage.push("the segments are not those that the backup was made of".to_owned());
    }
    Ok(damage)
}

/// Reads a segment. Returns the chain after its last frame, or what is wrong with it. One that the store knew to be
/// damaged or lost is not compared.
fn check_segment(
    files: &RealFiles,
    journal: &Path,
    listed: &Listed,
) -> Result<Result<u32, String>, StoreError> {
    if let SegmentState::Abandoned { .. } | SegmentState::Lost = listed.state {
        return Ok(Ok(0));
    }
    let path = journal.join(Segments::name(listed.id));
    let bytes = match files.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Err("missing".to_owned())),
        other => other.and_then(|file: Arc<_>| read_all(file.as_ref())),
    };
    // A bad sector is damage like any other.
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(format!("not readable: {error}"))),
    };
    let scanned = scan(&bytes, listed.id, listed.seed, None);
    let is_as_written = match listed.state {
        SegmentState::Active { floor } => {
            scanned.bad.is_empty()
                && scanned.tail.is_none()
                && scanned.end == floor
                && bytes.len() as u64 == floor
        }
        SegmentState::Sealed { length, frames, digest } => {
            is_whole(&bytes, &scanned)
                && (scanned.end, scanned.frames.len() as u64, scanned.chain) == (length, frames, digest)
        }
        SegmentState::Abandoned { .. } | SegmentState::Lost => true,
    };
    let has_header = SegmentHeader::decode(&bytes)? == Some(listed.header());
    if has_header && is_as_written {
        return Ok(Ok(scanned.chain));
    }
    let bad = scanned.bad.first().or(scanned.tail.as_ref());
    let at = if has_header { bad.map_or(scanned.end, |bad| bad.from) } else { 0 };
    Ok(Err(format!("damaged at byte {at} ({})", path.display())))
}
