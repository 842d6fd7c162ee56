//! Looks up the files and folders that a sandbox is about, and makes a confinement of them.
//!
//! Invariants: paths in a confinement have no links in them; a place that cannot be protected because of its
//! name is an error, and never left out.

use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::confinement::{Confinement, Rules};
use super::created::{self, Repositories};
use super::git::{self, Protected};
use super::placeholders::{Placeholders, is_placeholder};
use super::plan::{Places, mounts, outermost};
use super::private::PrivateFolder;
use super::{Network, Protection, Sandbox, Way};

/// Devices that commands may use without a `/dev` of their own.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// The maximum number of sockets of others that are covered.
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
    /// The repositories that are known. `None`: none is examined afterwards.
    repositories: Option<Repositories>,
    /// Sockets of other programs, which may vanish.
    sockets: Vec<PathBuf>,
    /// What is closed for a reason that the model and the user cannot guess.
    pub(crate) notes: Vec<String>,
}

impl Ready {
    /// Whether the command did not start, by what bubblewrap said: a socket that was to be covered has vanished
    /// meanwhile.
    pub(crate) fn was_outrun(&self, output: &str) -> bool {
        let words = [
            "bwrap: Can't create file at ",
            // Its folder has vanished with it.
            "bwrap: Can't mkdir parents for ",
            // It vanished between the mount and its change to what may only be read.
            "bwrap: Can't bind mount /oldroot/dev/null on /newroot",
        ];
        let rest = words.into_iter().find_map(|words| output.strip_prefix(words));
        rest.and_then(|rest| rest.split(": ").next())
            .map(Path::new)
            .is_some_and(|path| self.sockets.iter().any(|socket| socket == path) && !path.exists())
    }

    /// Removes what the command should not have made, and disarms the repositories that it made; returns what was done,
    /// each for the model. All its processes have ended.
    pub(crate) fn end(self) -> Vec<String> {
        let removed: Vec<PathBuf> =
            self.forbidden.iter().filter(|path| created::remove(path)).cloned().collect();
        drop(self.placeholders);
        let mut done = self.notes;
        if !removed.is_empty() {
            done.push(format!("removed, since commands may not create it: {}", shown(&removed)));
        }
        done.extend(self.repositories.map(|known| known.disarm()).unwrap_or_default());
        done
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
        Way::Off => off(sandbox, protection),
        Way::Bubblewrap(_) | Way::Landlock => sandboxed(sandbox, protection, root, private, home)?,
    };
    ready.confinement.limits = sandbox.limits;
    Ok(ready)
}

/// Only what belongs to this program is hidden.
fn off(sandbox: &Sandbox, protection: &Protection) -> Ready {
    if !protection.has_mounts {
        return Ready::default();
    }
    let mut places = Places { has_devices: true, ..Places::default() };
    let (present, missing) = present_and_missing(&sandbox.closed);
    let placeholders = Placeholders::create(&[], &missing);
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
) -> Result<Ready> {
    let real = |paths: &[PathBuf]| -> Vec<PathBuf> {
        paths.iter().filter_map(|path| path.canonicalize().ok()).collect()
    };
    let Protected {
        existing,
        missing_files,
        missing_folders,
        forbidden,
        writable,
        repositories,
        unexamined,
        ..
    } = git::protected(root, home);
    let mut notes = Vec::new();
    let mut places = Places { is_read_only: true, has_devices: true, ..Places::default() };
    places.writable = [vec![root.to_owned()], real(&sandbox.writable), writable.clone()].concat();
    let chosen = real(&sandbox.writable);
    let can_change =
        |folder: &PathBuf| !protection.has_mounts || chosen.iter().any(|chosen| folder.starts_with(chosen));
    let (unsearched, unexamined): (Vec<PathBuf>, Vec<PathBuf>) = unexamined.into_iter().partition(can_change);
    let repositories = Repositories::new(
        root,
        repositories,
        &writable,
        unexamined.clone(),
        unsearched,
        places.writable.clone(),
    );
    let (closed, closed_missing) = present_and_missing(&sandbox.closed);
    let is_writable = |path: &PathBuf| places.writable.iter().any(|folder| path.starts_with(folder));
    let hidden = [closed, real(&sandbox.hidden)].concat();
    if !protection.has_mounts {
        let confinement = without_mounts(sandbox, &places.writable, &hidden, private);
        let (tmp, repositories) = (Some(private.tmp()), Some(repositories));
        return Ok(Ready { confinement, tmp, forbidden, repositories, ..Ready::default() });
    }
    let closed_missing: Vec<PathBuf> = closed_missing.into_iter().filter(is_writable).collect();
    let folders = [missing_folders, closed_missing].concat();
    let placeholders = Placeholders::create(&missing_files, &folders);
    let exists = |path: &&str| Path::new(path).symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    places.covered = ["/run", "/var/run"].iter().filter(|path| exists(path)).map(PathBuf::from).collect();
    places.replaced = vec![(private.tmp(), "/tmp".into())];
    if exists(&"/var/tmp") {
        places.replaced.push((private.var_tmp(), "/var/tmp".into()));
    }
    places.read_only = [existing, real(&sandbox.read_only), needed(&sandbox.network)].concat();
    if !unexamined.is_empty() {
        notes.push(format!(
            "not changeable, since the workspace has too many files to look for git repositories in them: {}; the user can \
             list them in `sandbox.writable`",
            shown(&unexamined)
        ));
        places.read_only.extend(unexamined);
    }
    places.read_only.push(private.output());
    if let Network::Hosts(_) = sandbox.network {
        places.read_only.push(private.proxy());
    }
    places.read_only.extend_from_slice(placeholders.files());
    hide(&hidden, &mut places);
    hide(placeholders.folders(), &mut places);
    let Covered { sockets, folders } =
        covering(sockets(&places, &private.proxy())?, |folder| is_needed(folder, &places))?;
    if !folders.is_empty() {
        notes.push(format!("hidden, since they have many sockets of other programs: {}", shown(&folders)));
    }
    places.blank.extend(sockets.iter().cloned());
    places.empty.extend(folders);
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
    Ok(Ready {
        confinement,
        tmp: Some("/tmp".into()),
        placeholders,
        forbidden,
        repositories: Some(repositories),
        sockets,
        notes,
    })
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
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
    // What is in a folder that exists is hidden with it.
    missing.retain(|path| !present.iter().any(|folder| path.starts_with(folder)));
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
fn sockets(places: &Places, own: &Path) -> Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/net/unix").map_err(|error| {
        let text = format!(
            "the sockets of other programs cannot be listed (/proc/net/unix: {error}), so none is hidden"
        );
        Error::new(error.kind(), text)
    })?;
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
    Ok(found)
}

/// How sockets are covered.
#[derive(Debug, Default, PartialEq, Eq)]
struct Covered {
    /// One by one.
    sockets: Vec<PathBuf>,
    /// With the folder that they are in.
    folders: Vec<PathBuf>,
}

/// Chooses how to cover sockets: one by one, and with their folders if there are too many. `is_needed`: whether a command
/// needs a folder.
fn covering(found: Vec<PathBuf>, is_needed: impl Fn(&Path) -> bool) -> Result<Covered> {
    if found.len() <= SOCKETS_MAX {
        return Ok(Covered { sockets: found, folders: Vec::new() });
    }
    let count = found.len();
    let mut covered = Covered::default();
    for socket in found {
        match socket.parent().filter(|folder| !is_needed(folder)) {
            Some(folder) => covered.folders.push(folder.to_owned()),
            None => covered.sockets.push(socket),
        }
    }
    covered.folders = outermost(&covered.folders);
    if covered.sockets.len() > SOCKETS_MAX || covered.folders.len() > SOCKETS_MAX {
        let text = format!(
            "there are {count} sockets of other programs that a command could reach, and at most {SOCKETS_MAX} are \
             hidden one by one; end these programs or have them put their sockets into one folder outside the workspace"
        );
        return Err(Error::new(ErrorKind::QuotaExceeded, text));
    }
    Ok(covered)
}

/// Whether commands need a folder: it is one of the system's, or around something that they use.
fn is_needed(folder: &Path, places: &Places) -> bool {
    let system = ["/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/dev", "/proc", "/sys", "/nix"];
    let is_around = |place: &PathBuf| place.starts_with(folder);
    system.iter().any(|place| folder.starts_with(place) || Path::new(place).starts_with(folder))
        || places.writable.iter().any(|place| folder.starts_with(place))
        || places.writable.iter().chain(&places.read_only).any(is_around)
        || places.replaced.iter().any(|(ours, _)| is_around(ours))
}

#[cfg(test)]
mod tests;
