//! Opens a store read-only, even while another process writes to it.
//!
//! Invariants: nothing in the directory is created or changed; while another store writes, the result is a
//! state that the journal had, without partial writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::StoreOptions;
use crate::error::{Notice, StoreError};
use crate::journal::manifest::{Listed, Manifest, SegmentState};
use crate::journal::segments::journal_dir;
use crate::lock::DirectoryLock;
use crate::overlay::Overlay;
use crate::recovery;
use crate::writer::Writer;

/// How often the journal is read again because its files changed meanwhile. Segments rarely appear or
/// disappear: when one is full, and when deleted data is erased.
const ATTEMPTS_MAX: u32 = 20;
/// The wait before the journal is read again.
const WAIT: Duration = Duration::from_millis(50);

/// Reads the store in `options.dir`.
pub(crate) fn read(options: &StoreOptions) -> Result<(Writer, Vec<Notice>), StoreError> {
    // Without permission to list the directory, the caller gets that error, and not an empty store.
    let listed = std::fs::read_dir(&options.dir);
    listed.map_err(|error| StoreError::io("read", &options.dir, error))?;
    let in_use = match DirectoryLock::share(&options.dir) {
        Ok(lock) => return recovery::recover(&over(options), lock),
        Err(error) => error,
    };
    let StoreError::InUse { pid, .. } = in_use else { return Err(in_use) };
    for attempt in 1..=ATTEMPTS_MAX {
        let before = files(options)?;
        let read = recovery::recover(&over(options), DirectoryLock::none());
        let is_same = files(options)? == before;
        if is_same && let Ok((writer, mut notices)) = read {
            // A write in progress by the other store is not unfinished.
            notices.retain(|notice| !matches!(notice, Notice::TailCut { .. }));
            notices.push(Notice::InUse { pid });
            return Ok((writer, notices));
        }
        if attempt < ATTEMPTS_MAX {
            std::thread::sleep(WAIT);
        } else if is_same {
            return read;
        }
    }
    Err(in_use)
}

/// Returns the options for reading files that may change: changes made on opening stay in memory.
fn over(options: &StoreOptions) -> StoreOptions {
    let files = Arc::new(Overlay::new(Arc::clone(&options.files)));
    StoreOptions { files, reserve_bytes: 0, ..options.clone() }
}

/// Returns the listed segments and the existing files. The length of the active segment does not matter.
fn files(options: &StoreOptions) -> Result<(Vec<Listed>, BTreeSet<String>), StoreError> {
    let journal = journal_dir(&options.dir);
    let manifest = Manifest::load(options.files.as_ref(), &journal)?.unwrap_or_default();
    let segments = manifest.segments.into_iter().map(|listed| match listed.state {
        SegmentState::Active { .. } => Listed { state: SegmentState::Active { floor: 0 }, ..listed },
        SegmentState::Sealed { .. } | SegmentState::Abandoned { .. } | SegmentState::Lost => listed,
    });
    let names = match options.files.list(&journal) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        listed => listed.map_err(|error| StoreError::io("list", &journal, error))?,
    };
    Ok((segments.collect(), names.into_iter().filter(|name| name.ends_with(".seg")).collect()))
}
