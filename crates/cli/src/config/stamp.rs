//! Detects that a file has changed, without reading it.
//!
//! Invariants: a file that is replaced, written or touched has another stamp, unless that happens within the resolution
//! of the file system's clock.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// File metadata used to detect changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    place: (u64, u64),
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            place: (metadata.dev(), metadata.ino()),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Stamp {
    /// Returns the stamp of a file, or of what a link leads to; `None` if there is none.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        path.metadata().ok().as_ref().map(Self::from)
    }

    /// Like [`Self::of`], but does not follow a link.
    pub(super) fn of_link(path: &Path) -> Option<Self> {
        path.symlink_metadata().ok().as_ref().map(Self::from)
    }

    /// Returns how long before `now` the file changed; zero if that is in the future.
    pub(super) fn age(&self, now: SystemTime) -> Duration {
        let (seconds, nanoseconds) = self.changed.max(self.modified);
        let since_epoch = Duration::new(
            u64::try_from(seconds).unwrap_or_default(),
            u32::try_from(nanoseconds).unwrap_or_default(),
        );
        now.duration_since(SystemTime::UNIX_EPOCH + since_epoch).unwrap_or_default()
    }
}
