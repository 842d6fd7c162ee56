//! Places inside a workspace that are closed to tools: the files of the program that runs the agent.
//!
//! Invariants: a place is identified by device and inode, not by the spelling of a path, so that no link and
//! no other name leads into it. A closed place that does not exist yet cannot be created.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, Stat};

use super::directory_flags;

/// The identity of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id {
    device: u64,
    inode: u64,
}

impl Id {
    #[expect(clippy::useless_conversion, reason = "the fields have other types on other systems")]
    fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev.try_into().unwrap_or_default(), inode: stat.st_ino.into() }
    }

    fn at(path: &Path) -> Option<Self> {
        rustix::fs::statat(CWD, path, rustix::fs::AtFlags::empty()).ok().as_ref().map(Self::of)
    }
}

/// The closed places.
#[derive(Debug)]
pub(super) struct Closed {
    root: Id,
    places: Vec<ClosedPath>,
}

#[derive(Debug)]
struct ClosedPath {
    path: PathBuf,
    /// Files and folders that existed when the workspace was opened; they stay closed when they are renamed.
    first: Option<Id>,
}

/// The closed files and folders at one moment.
pub(super) struct ClosedNow {
    root: Id,
    ids: Vec<Id>,
    /// Names that must not be created, in their folders.
    missing: Vec<(Id, OsString)>,
}

impl Closed {
    /// Creates the closed places; `root` is the workspace's folder.
    pub(super) fn new(root: &OwnedFd, paths: Vec<PathBuf>) -> std::io::Result<Self> {
        let places = paths.into_iter().map(|path| {
            let path = std::path::absolute(path)?;
            Ok(ClosedPath { first: Id::at(&path), path })
        });
        let root = Id::of(&rustix::fs::fstat(root)?);
        Ok(Self { root, places: places.collect::<std::io::Result<_>>()? })
    }

    /// Returns the place that contains the workspace or is the workspace, if any.
    pub(super) fn around(&self, root: &Path) -> Option<&Path> {
        let above: Vec<Id> = root.ancestors().filter_map(Id::at).collect();
        self.places
            .iter()
            .find(|place| place.first.is_some_and(|id| above.contains(&id)))
            .map(|place| &*place.path)
    }

    /// Resolves where the places are now.
    pub(super) fn now(&self) -> ClosedNow {
        let (mut ids, mut missing) = (Vec::new(), Vec::new());
        for place in &self.places {
            ids.extend(place.first);
            match Id::at(&place.path) {
                Some(id) => ids.push(id),
                None => missing.extend(first_missing(&place.path)),
            }
        }
        ClosedNow { root: self.root, ids, missing }
    }
}

/// Returns the first missing component of a path, and the folder where it would be.
fn first_missing(path: &Path) -> Option<(Id, OsString)> {
    path.ancestors().find_map(|part| Some((Id::at(part.parent()?)?, part.file_name()?.to_owned())))
}

impl ClosedNow {
    /// Whether there are no closed places.
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.missing.is_empty()
    }

    /// Whether this is a closed place.
    pub(super) fn is(&self, stat: &Stat) -> bool {
        self.ids.contains(&Id::of(stat))
    }

    /// Whether creating `name` in the folder would create a closed place, or a folder on the way to one.
    pub(super) fn would_be(&self, folder: impl AsFd, name: &str) -> bool {
        if self.missing.is_empty() {
            return false;
        }
        // A folder that cannot be examined counts as closed.
        let Ok(stat) = rustix::fs::fstat(folder) else { return true };
        let id = Id::of(&stat);
        self.missing.iter().any(|(folder, missing)| *folder == id && missing.eq_ignore_ascii_case(name))
    }

    /// Whether the folder, which is in the workspace, is a closed place or inside one.
    pub(super) fn holds(&self, folder: &OwnedFd) -> bool {
        if self.is_empty() {
            return false;
        }
        let Ok(stat) = rustix::fs::fstat(folder) else { return true };
        let (mut id, mut above) = (Id::of(&stat), None);
        loop {
            if self.ids.contains(&id) {
                return true;
            }
            if id == self.root {
                return false;
            }
            let flags = directory_flags() | OFlags::NOFOLLOW;
            let from = above.as_ref().unwrap_or(folder);
            let Ok(parent) = rustix::fs::openat(from, "..", flags, Mode::empty()) else { return true };
            let Ok(stat) = rustix::fs::fstat(&parent) else { return true };
            let next = Id::of(&stat);
            if next == id {
                // The root of the file system: the folder was moved out of the workspace meanwhile.
                return false;
            }
            (id, above) = (next, Some(parent));
        }
    }
}
