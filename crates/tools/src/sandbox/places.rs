//! Looks up the files and folders that a sandbox is about, and makes a confinement of them.
//!
//! Invariants: paths in a confinement have no links in them; a place that cannot be protected because of its
//! name is an error, and never left out.

use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::confinement::{Confinement, Rules};
use super::git::{self, Protected};
use super::placeholders::{Placeholders, is_placeholder};
use super::plan::{Places, mounts, outermost};
use super::private::PrivateFolder;
use super::{Network, Protection, Sandbox, Way};

/// Devices that commands may use without a `/dev` of their own.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// The most sockets of others that are covered.
const SOCKETS_MAX: usize = 256;
/// How many entries of folders around hidden places are examined.
const ENTRIES_MAX: usize = 50_000;

/// A sandbox that is ready for one command.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) confinement: Confinement,
    /// `TMPDIR` of the command.
    pub(crate) tmp: Option<PathBuf>,
    placeholders: Placeholders,
    forbidden: Vec<PathBuf>,
}

impl Ready {
    /// Removes what the command should not have made; returns those paths. All its processes have ended.
    pub(crate) fn end(self) -> Vec<PathBuf> {
        let removed = self.forbidden.iter().filter(|path| std::fs::remove_file(path).is_ok());
        let removed = removed.cloned().collect();
        drop(self.placeholders);
        removed
    }
}

/// Prepares a sandbox for one command in the workspace `root`, a path without links. `home` is the user's folder.
pub(crate) fn prepare(
    sandbox: &Sandbox,
    protection: &Protection,
    root: &Path,
    private: &PrivateFolder,
    home: Option<&Path>,
) -> Result<Ready> {
    if root.parent().is_none() {
        let text = "the workspace is the root of the file system, which a sandbox cannot protect; name another folder \
                    with --workspace, or turn the sandbox off";
        return match protection.way {
            Way::Off => Ok(Ready::default()),
            Way::Bubblewrap(_) | Way::Landlock => Err(Error::new(ErrorKind::InvalidInput, text)),
        };
    }
    let mut ready = match protection.way {
        Way::Off => off(sandbox, protection, root),
        Way::Bubblewrap(_) | Way::Landlock => sandboxed(sandbox, protection, root, private, home),
    };
    ready.confinement.limits = sandbox.limits;
    Ok(ready)
}

/// Only what belongs to this program is hidden.
fn off(sandbox: &Sandbox, protection: &Protection, root: &Path) -> Ready {
    if !protection.has_mounts {
        return Ready::default();
    }
    let mut places = Places { has_devices: true, ..Places::default() };
    let (present, missing) = present_and_missing(&sandbox.closed);
    let placeholders = Placeholders::create(root, &[], &missing);
    hide(&present, &mut places);
    hide(placeholders.folders(), &mut places);
    let confinement = Confinement { mounts: mounts(&places), ..Confinement::default() };
    Ready { confinement, placeholders, ..Ready::default() }
}

fn sandboxed(
    sandbox: &Sandbox,
    protection: &Protection,
    root: &Path,
    private: &PrivateFolder,
    home: Option<&Path>,
) -> Ready {
    let real = |paths: &[PathBuf]| -> Vec<PathBuf> {
        paths.iter().filter_map(|path| path.canonicalize().ok()).collect()
    };
    let Protected { existing, missing_files, missing_folders, forbidden, writable } =
        git::protected(root, &configurations(home));
    let mut places = Places { is_read_only: true, has_devices: true, ..Places::default() };
    places.writable = [vec![root.to_owned()], real(&sandbox.writable), writable].concat();
    let (closed, closed_missing) = present_and_missing(&sandbox.closed);
    let is_writable = |path: &PathBuf| places.writable.iter().any(|folder| path.starts_with(folder));
    let hidden = [closed, real(&sandbox.hidden)].concat();
    if !protection.has_mounts {
        let confinement = without_mounts(sandbox, &places.writable, &hidden, private);
        return Ready { confinement, tmp: Some(private.tmp()), forbidden, ..Ready::default() };
    }
    let closed_missing: Vec<PathBuf> = closed_missing.into_iter().filter(is_writable).collect();
    let folders = [missing_folders, closed_missing].concat();
    let placeholders = Placeholders::create(root, &missing_files, &folders);
    let exists = |path: &&str| Path::new(path).symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    places.covered = ["/run", "/var/run"].iter().filter(|path| exists(path)).map(PathBuf::from).collect();
    places.replaced = vec![(private.tmp(), "/tmp".into())];
    if exists(&"/var/tmp") {
        places.replaced.push((private.var_tmp(), "/var/tmp".into()));
    }
    places.read_only = [existing, real(&sandbox.read_only), needed(&sandbox.network)].concat();
    places.read_only.push(private.output());
    if let Network::Hosts(_) = sandbox.network {
        places.read_only.push(private.proxy());
    }
    places.read_only.extend_from_slice(placeholders.files());
    hide(&hidden, &mut places);
    hide(placeholders.folders(), &mut places);
    let sockets = sockets(&places, &private.proxy());
    places.blank.extend(sockets);
    let landlock = match protection.way {
        Way::Landlock => Some(Rules {
            read: vec!["/".into()],
            write: [
                places.writable.clone(),
                ["/tmp", "/var/tmp", "/dev/shm", "/dev/pts"].map(PathBuf::from).to_vec(),
            ]
            .concat(),
            devices: [&DEVICES[..], &["/dev/ptmx"]].concat().into_iter().map(PathBuf::from).collect(),
            list: Vec::new(),
        }),
        Way::Bubblewrap(_) | Way::Off => None,
    };
    let confinement = Confinement {
        mounts: mounts(&places),
        landlock,
        has_filter: true,
        // In a network namespace there is only what the command itself offers.
        has_internet: true,
        has_sockets: true,
        has_own_loopback: protection.way == Way::Landlock && sandbox.network == Network::None,
        has_all_families: sandbox.network == Network::All,
        ..Confinement::default()
    };
    Ready { confinement, tmp: Some("/tmp".into()), placeholders, forbidden }
}

/// Without mounts, what may be read and changed is listed.
fn without_mounts(
    sandbox: &Sandbox,
    writable: &[PathBuf],
    hidden: &[PathBuf],
    private: &PrivateFolder,
) -> Confinement {
    let mut entries_left = ENTRIES_MAX;
    let hidden = [hidden, &["/dev".into()]].concat();
    let mut around = |folder: &Path| {
        let mut found = Vec::new();
        allowed_around(folder, &hidden, &mut entries_left, &mut found);
        found
    };
    let read = around(Path::new("/"));
    let mut write: Vec<PathBuf> = outermost(writable).iter().flat_map(|folder| around(folder)).collect();
    write.push(private.tmp());
    Confinement {
        landlock: Some(Rules {
            read,
            write,
            devices: DEVICES.map(PathBuf::from).to_vec(),
            list: vec!["/".into()],
        }),
        has_filter: true,
        has_internet: sandbox.network == Network::All,
        // A socket in a file may belong to a program that acts for the command.
        has_sockets: false,
        has_all_families: false,
        ..Confinement::default()
    }
}

/// Lists the files and folders in `folder` that are not around a hidden place: an allowed folder includes all
/// that is in it.
fn allowed_around(folder: &Path, hidden: &[PathBuf], entries_left: &mut usize, found: &mut Vec<PathBuf>) {
    if hidden.iter().any(|place| folder.starts_with(place)) {
        return;
    }
    if !hidden.iter().any(|place| place.starts_with(folder)) {
        found.push(folder.to_owned());
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        if *entries_left == 0 {
            return;
        }
        *entries_left -= 1;
        // A link's target is allowed or not by its own path.
        if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
            allowed_around(&entry.path(), hidden, entries_left, found);
        }
    }
}

/// Returns the user's own configurations of git.
fn configurations(home: Option<&Path>) -> Vec<PathBuf> {
    home.into_iter().flat_map(|home| [home.join(".gitconfig"), home.join(".config/git/config")]).collect()
}

/// Returns the paths that exist, without links in them, and those that could be created, below folders that
/// exist.
fn present_and_missing(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for path in paths {
        match path.canonicalize() {
            Ok(path) if !is_placeholder(&path) => present.push(path),
            Ok(_) | Err(_) => missing.extend(first_missing(path)),
        }
    }
    (present, missing)
}

/// Returns the outermost part of a path that does not exist.
fn first_missing(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|part| Some(part.parent()?.canonicalize().ok()?.join(part.file_name()?)))
}

/// Sorts hidden places by their kinds.
fn hide(paths: &[PathBuf], places: &mut Places) {
    for path in paths {
        match path.is_dir() {
            true => places.empty.push(path.clone()),
            false => places.blank.push(path.clone()),
        }
    }
}

/// Returns what programs need in folders that are covered.
fn needed(network: &Network) -> Vec<PathBuf> {
    let names = match network {
        Network::All => Path::new("/etc/resolv.conf").canonicalize().ok(),
        Network::None | Network::Hosts(_) => None,
    };
    let programs = Path::new("/run/current-system");
    let programs = programs.exists().then(|| programs.to_owned());
    names.filter(|path| path.starts_with("/run")).into_iter().chain(programs).collect()
}

/// Returns the sockets of other programs, through which a command could have them act for it. Those in folders
/// that are covered or replaced are left out.
fn sockets(places: &Places, own: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_gone = |path: &Path| {
        let replaced = places.replaced.iter().map(|(_, at)| at);
        let is_back = places.writable.iter().any(|folder| path.starts_with(folder));
        !is_back
            && replaced.chain(&places.covered).chain(&places.empty).any(|folder| path.starts_with(folder))
    };
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| Some(PathBuf::from(&line[line.find(" /")? + 1..])))
        .filter(|path| !is_gone(path) && !path.starts_with(own))
        .filter(|path| path.symlink_metadata().is_ok_and(|metadata| metadata.file_type().is_socket()))
        .filter_map(|path| path.canonicalize().ok())
        .filter(|path| !is_gone(path))
        .collect();
    found.sort();
    found.dedup();
    found.truncate(SOCKETS_MAX);
    found
}
