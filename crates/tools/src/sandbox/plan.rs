//! The mounts of a sandbox: what a command sees in place of the files of the system.
//!
//! Invariants: [`mounts`] is a pure function of [`Places`]. A later mount is in front of an earlier one, so the order
//! is: what covers whole folders, what is writable, what in it is not, what is hidden. A folder on the way from
//! a writable folder to a protected place is mounted on itself, so that it cannot be renamed and replaced.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mount {
    /// All file systems as they are, but read-only.
    Root,
    /// A folder of ours in place of another one.
    Replaced { folder: PathBuf, at: PathBuf },
    /// A file or folder on itself: it stays, and cannot be renamed.
    Writable(PathBuf),
    /// A file or folder that cannot be changed.
    ReadOnly(PathBuf),
    /// An empty folder that cannot be changed.
    Empty(PathBuf),
    /// A file that cannot be opened: a device that is forbidden there.
    Blank(PathBuf),
    /// Terminals and shared memory of its own.
    Devices,
}

/// The places to mount, with their links resolved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Whether everything is read-only unless something else is said.
    pub(crate) is_read_only: bool,
    /// Whether there are terminals and shared memory of its own.
    pub(crate) has_devices: bool,
    /// Folders of ours in place of others.
    pub(crate) replaced: Vec<(PathBuf, PathBuf)>,
    /// Folders that are covered before anything is mounted over them.
    pub(crate) covered: Vec<PathBuf>,
    /// Folders that can be changed.
    pub(crate) writable: Vec<PathBuf>,
    /// Files and folders that cannot be changed.
    pub(crate) read_only: Vec<PathBuf>,
    /// Folders that cannot be read.
    pub(crate) empty: Vec<PathBuf>,
    /// Files that cannot be opened.
    pub(crate) blank: Vec<PathBuf>,
}

/// Returns the mounts for these places.
pub(crate) fn mounts(places: &Places) -> Vec<Mount> {
    let writable = outermost(&places.writable);
    let holds_writable = |place: &&PathBuf| writable.iter().any(|folder| folder.starts_with(place));
    let mut mounts = Vec::new();
    mounts.extend(places.is_read_only.then_some(Mount::Root));
    mounts.extend(places.has_devices.then_some(Mount::Devices));
    for (folder, at) in &places.replaced {
        mounts.push(Mount::Replaced { folder: folder.clone(), at: at.clone() });
    }
    mounts.extend(sorted(&places.covered).into_iter().map(Mount::Empty));
    // A hidden folder around a writable one is covered first.
    let (around, empty): (Vec<PathBuf>, Vec<PathBuf>) =
        sorted(&places.empty).into_iter().partition(|place| holds_writable(&place));
    mounts.extend(around.into_iter().map(Mount::Empty));
    mounts.extend(writable.iter().cloned().map(Mount::Writable));
    let protected = [&*places.read_only, &*empty, &*places.blank].concat();
    mounts.extend(pins(&writable, &protected).into_iter().map(Mount::Writable));
    mounts.extend(sorted(&places.read_only).into_iter().map(Mount::ReadOnly));
    mounts.extend(outermost(&empty).into_iter().map(Mount::Empty));
    let is_covered = |place: &PathBuf| empty.iter().any(|folder| place.starts_with(folder));
    mounts.extend(sorted(&places.blank).into_iter().filter(|place| !is_covered(place)).map(Mount::Blank));
    mounts
}

/// Returns the folders between the writable folders and the protected places in them.
fn pins(writable: &[PathBuf], protected: &[PathBuf]) -> Vec<PathBuf> {
    let mut pins = Vec::new();
    for place in protected {
        let Some(root) = writable.iter().find(|root| place.starts_with(root) && place != *root) else {
            continue;
        };
        let between = place.ancestors().skip(1).take_while(|folder| folder != root);
        pins.extend(between.map(Path::to_owned));
    }
    pins.retain(|pin| !protected.contains(pin));
    sorted(&pins)
}

/// Returns the paths from the outermost to the innermost, each once.
fn sorted(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = paths.to_vec();
    paths.sort();
    paths.dedup();
    paths
}

/// Returns the paths that are in no other one.
pub(crate) fn outermost(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in sorted(paths) {
        if !kept.iter().any(|outer| path.starts_with(outer)) {
            kept.push(path);
        }
    }
    kept
}

#[cfg(test)]
mod tests;
