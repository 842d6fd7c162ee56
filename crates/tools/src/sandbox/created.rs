//! Repositories that a command creates or leads git to: what git would run in them is disarmed.
//!
//! Invariants: a repository that was there before is left alone, and so is all that git does not run. A hook is not
//! deleted: it loses the right to be executed, so that git passes over it. A configuration that can name programs is
//! moved aside, and so is a `.git` that leads to a place that commands can change and that is not searched. The
//! search follows no link, and has no limit: what a command has made may not keep the rest from being found.

use std::ffi::OsStr;
use std::fs::{Metadata, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::git::{FILE_BYTES_MAX, SKIPPED, Shape, after_head, is_git, is_worktree, kind, text};

/// The files of a repository that can name programs, or the folder of another one.
const ARMED: [&str; 3] = ["config", "config.worktree", "commondir"];
/// By how much the clock of a file system may be behind.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(2);
/// The permissions that a search needs for a folder.
const SEARCHABLE: u32 = 0o500;
/// The permissions that a folder needs whose files are moved or removed.
const CHANGEABLE: u32 = 0o700;
/// The ending of a file that was moved aside.
const ASIDE: &str = "not-used";
/// The keys of a new repository's configuration that name no program, by section.
const HARMLESS: [(&str, &[&str]); 8] = [
    (
        "core",
        &[
            "repositoryformatversion", "filemode", "bare", "logallrefupdates", "ignorecase",
            "precomposeunicode", "symlinks", "autocrlf", "sparsecheckout", "sparsecheckoutcone",
        ],
    ),
    ("remote", &["url", "fetch", "pushurl", "tagopt"]),
    ("branch", &["remote", "merge", "rebase"]),
    ("user", &["name", "email"]),
    ("init", &["defaultbranch"]),
    ("submodule", &["url", "active"]),
    ("extensions", &["objectformat", "refstorage", "compatobjectformat"]),
    ("pull", &["rebase", "ff"]),
];

/// The repositories of a workspace before a command.
#[derive(Debug)]
pub(super) struct Repositories {
    /// The folders to search: the workspace, and the repository of which it is a worktree.
    roots: Vec<PathBuf>,
    /// Each `.git`; of a bare repository, the folder itself.
    known: Vec<Known>,
    /// Folders in which commands can change nothing.
    read_only: Vec<PathBuf>,
    /// Folders that were not searched, besides those that never are: what has changed in them is new.
    unsearched: Vec<PathBuf>,
    /// All folders that commands can change.
    writable: Vec<PathBuf>,
    /// When the command may have begun.
    since: SystemTime,
}

#[derive(Debug)]
struct Known {
    path: PathBuf,
    /// Where a file or a link leads.
    leads_to: Option<PathBuf>,
}

/// A place where git would look for a repository.
struct Place {
    path: PathBuf,
    /// Whether it was not searched before the command.
    is_by_time: bool,
}

impl Repositories {
    /// Notes the repositories that were found; `writable` is all that commands can change, `belonging` what of it
    /// belongs to the workspace's repository.
    pub(super) fn new(
        root: &Path,
        found: Vec<PathBuf>,
        belonging: &[PathBuf],
        read_only: Vec<PathBuf>,
        unsearched: Vec<PathBuf>,
        writable: Vec<PathBuf>,
    ) -> Self {
        let roots = [&[root.to_owned()], belonging].concat();
        let known = found.into_iter().map(|path| Known { leads_to: leads_to(&path), path }).collect();
        let since = SystemTime::now().checked_sub(CLOCKS_DIFFER_BY).unwrap_or(UNIX_EPOCH);
        Self { roots, known, read_only, unsearched, writable, since }
    }

    /// Disarms the repositories that are new. Returns what was done, for the model.
    pub(super) fn disarm(&self) -> Vec<String> {
        let (mut places, mut closed) = (Vec::new(), Vec::new());
        for root in &self.roots {
            self.search(root, &mut places, &mut closed);
        }
        let mut done = Vec::new();
        for place in &places {
            match kind(&place.path) {
                Some(metadata) if metadata.is_dir() => {
                    if self.is_new(place) {
                        self.disarm_folder(&place.path, &places, &mut done);
                    }
                }
                Some(metadata) if metadata.is_file() || metadata.is_symlink() => {
                    self.disarm_file(place, &places, &mut done);
                }
                // Something that git does not use.
                Some(_) | None => {}
            }
        }
        for (folder, mode) in closed.iter().rev() {
            let _ = std::fs::set_permissions(folder, Permissions::from_mode(*mode));
        }
        if done.is_empty() {
            return Vec::new();
        }
        let names: Vec<String> = done.iter().map(|path: &PathBuf| path.display().to_string()).collect();
        vec![format!(
            "a command created a git repository that could run programs, or led git to one; git does not use these files any \
             more, and the user decides whether they are to be used: {}",
            names.join(", ")
        )]
    }

    /// Finds the places in a folder. `closed` gets the folders whose permissions were in the way, with what they were.
    fn search(&self, root: &Path, places: &mut Vec<Place>, closed: &mut Vec<(PathBuf, u32)>) {
        let mut folders = vec![(root.to_owned(), false)];
        while let Some((folder, is_by_time)) = folders.pop() {
            if self.read_only.contains(&folder) {
                continue;
            }
            let mode = kind(&folder).map_or(SEARCHABLE, |metadata| metadata.permissions().mode() & 0o7777);
            let is_closed = mode & SEARCHABLE != SEARCHABLE;
            if is_closed
                && std::fs::set_permissions(&folder, Permissions::from_mode(mode | SEARCHABLE)).is_ok()
            {
                closed.push((folder.clone(), mode));
            }
            let name = folder.file_name().unwrap_or_default();
            let is_skipped = folder != root && SKIPPED.iter().any(|skipped| name == *skipped);
            let is_by_time = is_by_time || is_closed || is_skipped || self.unsearched.contains(&folder);
            let mut shape = Shape::default();
            for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
                let name = entry.file_name();
                shape.add(&name);
                if is_git(&name) {
                    places.push(Place { path: entry.path(), is_by_time });
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push((entry.path(), is_by_time));
                }
            }
            // A `.git` was added with the folder that it is in.
            if shape.is_repository() && !is_git(name) {
                places.push(Place { path: folder, is_by_time });
            }
        }
    }

    /// Whether a folder of git was not there before, or may have been changed since.
    fn is_new(&self, place: &Place) -> bool {
        if !place.is_by_time {
            return !self.known.iter().any(|known| known.path == place.path);
        }
        let hooks = place.path.join("hooks");
        let hook =
            std::fs::read_dir(&hooks).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
        let parts = ARMED.iter().map(|name| place.path.join(name));
        let mut all = parts.chain(hook).chain([hooks.clone(), place.path.clone()]);
        all.any(|path| kind(&path).is_some_and(|metadata| changed(&metadata) >= self.since))
    }

    /// Disarms where a `.git` leads that is a file or a link.
    fn disarm_file(&self, place: &Place, places: &[Place], done: &mut Vec<PathBuf>) {
        let Some(target) = leads_to(&place.path) else { return };
        let is_as_before =
            |known: &Known| known.path == place.path && known.leads_to.as_ref() == Some(&target);
        if self.known.iter().any(is_as_before) {
            return;
        }
        let is_in = |folders: &[PathBuf]| folders.iter().any(|folder| target.starts_with(folder));
        if is_in(&self.roots) {
            let is_found = places.iter().any(|found| found.path == target);
            let is_known = self.known.iter().any(|known| known.path == target);
            if !is_found && !is_known && !is_in(&self.read_only) {
                self.disarm_folder(&target, places, done);
            }
        } else if is_in(&self.writable) {
            move_aside(&place.path, done);
        }
    }

    fn disarm_folder(&self, git: &Path, places: &[Place], done: &mut Vec<PathBuf>) {
        disarm_hooks(&git.join("hooks"), done);
        // Its repository is protected, or disarmed here.
        let is_found = |main: &Path| {
            places.iter().any(|place| place.path == main) || self.known.iter().any(|known| known.path == main)
        };
        let belongs = is_worktree(git) && git.ancestors().nth(2).is_some_and(is_found);
        // A working folder in the workspace, and none in a repository.
        let is_inside = |folder: &str| {
            git.join(folder).canonicalize().is_ok_and(|folder| {
                let has_git = folder.components().any(|part| is_git(part.as_os_str()));
                !has_git && self.roots.first().is_some_and(|root| folder.starts_with(root))
            })
        };
        for name in ARMED {
            let path = git.join(name);
            let is_fine = match kind(&path) {
                None => true,
                Some(_) if name == "commondir" => belongs,
                Some(metadata) => {
                    metadata.is_file() && text(&path).is_some_and(|text| is_harmless(&text, is_inside))
                }
            };
            if !is_fine {
                move_aside(&path, done);
            }
        }
    }
}

/// When anything of a file was changed last: unlike the time of its content, nobody can set it.
fn changed(metadata: &Metadata) -> SystemTime {
    let seconds = u64::try_from(metadata.ctime()).unwrap_or_default();
    UNIX_EPOCH + Duration::new(seconds, u32::try_from(metadata.ctime_nsec()).unwrap_or_default())
}

/// Returns the folder to which a `.git` leads that is a file or a link, read exactly as git does.
fn leads_to(git: &Path) -> Option<PathBuf> {
    let is_link = kind(git)?.is_symlink();
    let file = if is_link { git.canonicalize().ok()? } else { git.to_owned() };
    let metadata = kind(&file)?;
    if metadata.is_dir() {
        return is_link.then_some(file);
    }
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    let text = std::fs::read(&file).ok()?;
    let mut named = text.strip_prefix(b"gitdir: ")?;
    while let [rest @ .., b'\n' | b'\r'] = named {
        named = rest;
    }
    let named = named.split(|byte| *byte == 0).next()?;
    git.parent()?.join(OsStr::from_bytes(named)).canonicalize().ok()
}

fn move_aside(path: &Path, done: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = (1_u64..).map(|number| match number {
        1 => format!("{name}.{ASIDE}"),
        number => format!("{name}.{number}.{ASIDE}"),
    });
    let free = names.map(|name| path.with_file_name(name)).find(|free| free.symlink_metadata().is_err());
    let is_moved = free.is_some_and(|free| change(path, || std::fs::rename(path, &free)));
    done.extend(is_moved.then(|| path.to_owned()));
}

/// Removes a file or a link, also from a folder that its owner made read-only. Returns whether it did.
pub(super) fn remove(path: &Path) -> bool {
    change(path, || std::fs::remove_file(path))
}

/// Moves or removes a file, also where its folder has been made read-only. Returns whether it did.
fn change(path: &Path, act: impl Fn() -> Result<()>) -> bool {
    match act() {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let Some((folder, metadata)) = path.parent().and_then(|folder| Some((folder, kind(folder)?)))
            else {
                return false;
            };
            let mode = metadata.permissions().mode() & 0o7777;
            let set = |mode| std::fs::set_permissions(folder, Permissions::from_mode(mode));
            let is_done = set(mode | CHANGEABLE).and_then(|()| act()).is_ok();
            let _ = set(mode);
            is_done
        }
        Err(_) => false,
    }
}

fn disarm_hooks(hooks: &Path, done: &mut Vec<PathBuf>) {
    match kind(hooks) {
        Some(metadata) if metadata.is_dir() => {
            for entry in std::fs::read_dir(hooks).into_iter().flatten().filter_map(Result::ok) {
                let path = entry.path();
                if path.extension().is_some_and(|ending| ending == "sample") {
                    continue;
                }
                let Some(metadata) = kind(&path) else { continue };
                let mode = metadata.permissions().mode();
                let is_disarmed = if metadata.is_symlink() {
                    remove(&path)
                } else if metadata.is_file() && mode & 0o111 != 0 {
                    std::fs::set_permissions(&path, Permissions::from_mode(mode & 0o7777 & !0o111)).is_ok()
                } else {
                    false
                };
                done.extend(is_disarmed.then_some(path));
            }
        }
        // A link to a folder of hooks.
        Some(_) => done.extend(remove(hooks).then(|| hooks.to_owned())),
        None => {}
    }
}

/// Whether a configuration has only keys that name no program and no other configuration. `is_inside`: whether a path
/// of it is in the workspace.
fn is_harmless(text: &str, is_inside: impl Fn(&str) -> bool) -> bool {
    let mut section = String::new();
    text.lines().all(|line| {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, rest)) = after_head(rest) else { return false };
            section = name;
            line = rest.trim();
        }
        if line.is_empty() || line.starts_with(['#', ';']) {
            return true;
        }
        // A continued line could hide a key.
        let Some((key, value)) = line.split_once('=').filter(|_| !line.ends_with('\\')) else { return false };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        // `ext::` is a command, also with quotes within it.
        let unquoted = value.replace(['"', '\\'], "").to_ascii_lowercase();
        let is_plain = !unquoted.starts_with("ext::") && !unquoted.starts_with('!');
        if (&*section, &*key) == ("core", "worktree") {
            // Another reading of quotes and comments could be another path.
            return !value.contains(['\\', '"', '#', ';']) && is_inside(value);
        }
        is_plain && HARMLESS.iter().any(|(name, keys)| *name == section && keys.contains(&&*key))
    })
}

#[cfg(test)]
mod tests;
