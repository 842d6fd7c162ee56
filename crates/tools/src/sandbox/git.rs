//! The files of git repositories, and of our own configuration, through which a command could have programs run
//! outside the sandbox later.
//!
//! Invariants: nothing here runs git, and nothing that a repository says makes a folder writable, unless the main
//! repository, which commands cannot change, confirms it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::path::{Component, Path, PathBuf};

use super::placeholders::is_placeholder;
use super::plan::outermost;

/// The name of a project's configuration.
pub(super) const OWN_CONFIGURATION: &str = "greenroom.yaml";
/// After how many entries of folders the search for nested repositories ends.
const ENTRIES_MAX: usize = 100_000;
/// With more folders left, those of the workspace that they are in count.
const UNEXAMINED_MAX: usize = 64;
/// The maximum number of bytes read of a file of git: its own limit for a `.git` that is a file.
pub(super) const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Folders with many entries that hold no repositories of the user's.
pub(super) const SKIPPED: [&str; 3] = ["node_modules", "target", ".venv"];

/// What a folder has that git takes for a repository: a head, and the next two, or the name of a folder with them.
pub(crate) const PARTS: [&str; 4] = ["HEAD", "objects", "refs", "commondir"];

/// Which of the names that make a folder a repository are in it.
#[derive(Debug, Default)]
pub(crate) struct Shape([bool; 4]);

impl Shape {
    /// Adds the name of an entry. Some file systems do not distinguish upper case from lower case.
    pub(crate) fn add(&mut self, name: &OsStr) {
        PARTS
            .iter()
            .zip(&mut self.0)
            .for_each(|(part, is_there)| *is_there |= name.eq_ignore_ascii_case(part));
    }

    /// Whether git takes the folder for a repository.
    pub(crate) fn is_repository(&self) -> bool {
        let [has_head, has_objects, has_refs, is_part] = self.0;
        has_head && (is_part || has_objects && has_refs)
    }
}

/// Whether it is the name under which git looks for a repository.
pub(super) fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(".git")
}

/// What to protect in a workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// Existing files and folders that must not be changed.
    pub(crate) existing: Vec<PathBuf>,
    /// Files that must not be created.
    pub(crate) missing_files: Vec<PathBuf>,
    /// Folders that must not be created.
    pub(crate) missing_folders: Vec<PathBuf>,
    /// Files that must not be there afterwards, and cannot be covered meanwhile, because git would not work.
    pub(crate) forbidden: Vec<PathBuf>,
    /// Folders outside the workspace that belong to its repository.
    pub(crate) writable: Vec<PathBuf>,
    /// The `.git` of each repository that was found; of a bare one, the folder itself.
    pub(crate) repositories: Vec<PathBuf>,
    /// Folders that were not searched, because the workspace has too many files.
    pub(crate) unexamined: Vec<PathBuf>,
}

/// Returns what to protect in a workspace; `configurations` are the user's own files of git.
pub(crate) fn protected(root: &Path, configurations: &[PathBuf]) -> Protected {
    let mut found = Protected::default();
    found.search(root, ENTRIES_MAX);
    if kind(&root.join(".git")).is_none() {
        found.missing_folders.push(root.join(".git"));
    }
    if kind(&root.join(OWN_CONFIGURATION)).is_none() {
        // An empty folder in its place is what git ignores, whatever a command adds.
        found.missing_folders.push(root.join(OWN_CONFIGURATION));
    }
    for configuration in configurations {
        found.named_by(configuration, root, root);
    }
    found
}

/// Visits the folders of a workspace, the outer ones first; `visit` gets each folder and the names of interest in it:
/// `.git`, our configuration, and the folder itself if git takes it for a repository. Returns the folders that are left after so many entries.
pub(crate) fn visit(root: &Path, entries_max: usize, mut visit: impl FnMut(&Path, &Path)) -> Vec<PathBuf> {
    let mut queue = VecDeque::from([root.to_owned()]);
    let mut entries_left = entries_max;
    while let Some(folder) = queue.pop_front() {
        if entries_left == 0 {
            queue.push_front(folder);
            break;
        }
        let mut shape = Shape::default();
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            entries_left = entries_left.saturating_sub(1);
            let (path, name) = (entry.path(), entry.file_name());
            shape.add(&name);
            if is_git(&name) || name == OWN_CONFIGURATION {
                visit(&folder, &path);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !SKIPPED.iter().any(|skipped| name == *skipped)
            {
                queue.push_back(path);
            }
        }
        if shape.is_repository() {
            visit(&folder, &folder);
        }
    }
    let left: Vec<PathBuf> = queue.into();
    if left.len() <= UNEXAMINED_MAX {
        return left;
    }
    let first = |path: &PathBuf| Some(root.join(path.strip_prefix(root).ok()?.components().next()?));
    outermost(&left.iter().filter_map(first).collect::<Vec<_>>())
}

/// Returns what a path itself is, without following it. A placeholder of another command counts as nothing.
pub(super) fn kind(path: &Path) -> Option<Metadata> {
    path.symlink_metadata().ok().filter(|_| !is_placeholder(path))
}

pub(super) fn text(path: &Path) -> Option<String> {
    let metadata = kind(path)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    String::from_utf8(std::fs::read(path).ok()?).ok()
}

impl Protected {
    fn search(&mut self, root: &Path, entries_max: usize) {
        self.unexamined = visit(root, entries_max, |folder, path| {
            if path.ends_with(OWN_CONFIGURATION) {
                self.file(path);
            } else {
                // One that cannot be looked at is new once it can.
                self.repositories.extend(kind(path).map(|_| path.to_owned()));
                self.repository(path, folder);
            }
        });
    }

    /// A file that must not be changed. A link could be replaced, so the folder with the link must not be
    /// changed either.
    fn file(&mut self, path: &Path) {
        match (kind(path), path.parent()) {
            (Some(metadata), Some(parent)) if metadata.is_symlink() => {
                self.existing.push(parent.to_owned());
            }
            (Some(_), _) => self.existing.push(path.to_owned()),
            (None, _) => {}
        }
    }

    fn file_or_none(&mut self, path: &Path) {
        match kind(path) {
            Some(_) => self.file(path),
            None => self.missing_files.push(path.to_owned()),
        }
    }

    fn folder_or_none(&mut self, path: &Path) {
        match kind(path) {
            Some(_) => self.file(path),
            None => self.missing_folders.push(path.to_owned()),
        }
    }

    /// `.git` in a working folder, or a repository without one.
    fn repository(&mut self, git: &Path, folder: &Path) {
        let Some(metadata) = kind(git) else { return };
        if metadata.is_dir() {
            self.git_folder(git, folder);
            // What is in other folders is found by the search.
            if git.file_name().is_some_and(is_git) {
                self.within(git, folder);
            }
            return;
        }
        self.file(git);
        if let Some(main) = main_repository(git) {
            self.git_folder(&main, folder);
            self.within(&main, folder);
            self.repositories.push(main.clone());
            self.writable.push(main);
        }
    }

    /// The repositories within a folder of git: those of submodules and worktrees, and whatever else has their shape.
    fn within(&mut self, git: &Path, folder: &Path) {
        let mut folders = vec![git.to_owned()];
        while let Some(inner) = folders.pop() {
            let mut shape = Shape::default();
            for entry in std::fs::read_dir(&inner).into_iter().flatten().filter_map(Result::ok) {
                shape.add(&entry.file_name());
                if is_git(&entry.file_name()) {
                    self.repositories.push(entry.path());
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
            }
            if inner == git || !shape.is_repository() {
                continue;
            }
            match is_worktree(&inner) {
                true => self.worktree(&inner),
                false => self.git_folder(&inner, folder),
            }
            self.repositories.push(inner);
        }
    }

    /// What a repository has for a worktree.
    fn worktree(&mut self, of_worktree: &Path) {
        for name in ["commondir", "gitdir"] {
            self.file(&of_worktree.join(name));
        }
        self.file_or_forbidden(&of_worktree.join("config.worktree"));
    }

    fn file_or_forbidden(&mut self, path: &Path) {
        match kind(path) {
            Some(_) => self.file(path),
            None => self.forbidden.push(path.to_owned()),
        }
    }

    /// A folder of git; `folder` is its working folder.
    fn git_folder(&mut self, git: &Path, folder: &Path) {
        self.folder_or_none(&git.join("hooks"));
        self.file_or_none(&git.join("config"));
        self.named_by(&git.join("config"), git, folder);
        for name in ["commondir", "config.worktree"] {
            self.file_or_forbidden(&git.join(name));
        }
    }

    /// What a configuration of git names: a folder of hooks, relative to the working folder, and further
    /// configurations, relative to the file's folder.
    fn named_by(&mut self, configuration: &Path, base: &Path, folder: &Path) {
        let Some(text) = text(configuration) else { return };
        for named in named(&text) {
            let (path, is_folder) = match &named {
                Named::Hooks(path) => (folder.join(path), true),
                Named::Included(path) => (base.join(path), false),
            };
            let Some(path) = plain(&path) else { continue };
            // What is elsewhere cannot be changed anyway.
            if path.starts_with(folder) && path != folder {
                match is_folder {
                    true => self.folder_or_none(&path),
                    false => self.file_or_none(&path),
                }
            }
        }
    }
}

/// Whether a folder of git is what a repository has for a worktree: all but a head and an index is the repository's.
pub(super) fn is_worktree(git: &Path) -> bool {
    git.parent().is_some_and(|parent| parent.ends_with("worktrees"))
        && text(&git.join("commondir")).is_some_and(|common| common.trim_end_matches(['\n', '\r']) == "../..")
}

/// Returns the main repository of a worktree whose `.git` is a file, if that repository names this worktree: a
/// `.git` that came with somebody's files could name any folder.
fn main_repository(git: &Path) -> Option<PathBuf> {
    let own = text(git)?;
    let named = own.strip_prefix("gitdir:")?.trim();
    let of_worktree = git.parent()?.join(named).canonicalize().ok()?;
    let back = text(&of_worktree.join("gitdir"))?;
    if PathBuf::from(back.trim()).canonicalize().ok()? != git.canonicalize().ok()? {
        return None;
    }
    let worktrees = of_worktree.parent().filter(|folder| folder.ends_with("worktrees"))?;
    let main = worktrees.parent()?.to_owned();
    (kind(&main.join("HEAD"))?.is_file() && main.ends_with(".git")).then_some(main)
}

/// A path that a configuration of git names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Hooks(PathBuf),
    Included(PathBuf),
}

/// Finds paths in the text of a configuration of git. It finds more than git would use, and never less.
fn named(text: &str) -> Vec<Named> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let Some((name, rest)) = rest.split_once(']') else { continue };
            section = name.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            line = rest.trim();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let value = PathBuf::from(value.trim().trim_matches('"'));
        match (section.as_str(), key.trim().to_ascii_lowercase().as_str()) {
            ("core", "hookspath") => found.push(Named::Hooks(value)),
            ("include" | "includeif", "path") => found.push(Named::Included(value)),
            _ => {}
        }
    }
    found
}

/// Removes `.` and `..`; returns `None` for a path that does not stay below the root.
pub(super) fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => plain.pop().then_some(())?,
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => plain.push(component),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests;
