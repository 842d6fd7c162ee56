//! The files of git repositories, and of our own configuration, through which a command could have programs run
//! outside the sandbox later.
//!
//! Invariants: nothing here runs git, and nothing that a repository says makes a folder writable, unless the main
//! repository, which commands cannot change, confirms it.

use std::collections::{HashSet, VecDeque};
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
/// The maximum number of configurations that are read because others include them.
const INCLUDED_MAX: usize = 100;
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
    root: PathBuf,
    home: Option<PathBuf>,
}

/// Returns what to protect in a workspace, a path without links. `home` is the user's folder, with their own configurations.
pub(crate) fn protected(root: &Path, home: Option<&Path>) -> Protected {
    let home = home.map(Path::to_owned);
    let mut found = Protected { root: root.to_owned(), home: home.clone(), ..Protected::default() };
    found.search(root, ENTRIES_MAX);
    if kind(&root.join(".git")).is_none() {
        found.missing_folders.push(root.join(".git"));
    }
    if kind(&root.join(OWN_CONFIGURATION)).is_none() {
        // An empty folder in its place is what git ignores, whatever a command adds.
        found.missing_folders.push(root.join(OWN_CONFIGURATION));
    }
    for configuration in configurations(home.as_deref()) {
        if let Some(file) = real(&configuration).filter(|file| found.can_be_changed(file)) {
            found.file(&file);
        }
        found.named_by(&configuration, root);
    }
    found
}

/// Returns the user's own configurations of git.
fn configurations(home: Option<&Path>) -> Vec<PathBuf> {
    home.into_iter().flat_map(|home| [home.join(".gitconfig"), home.join(".config/git/config")]).collect()
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
    String::from_utf8(bytes(path)?).ok()
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    let metadata = kind(path)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    std::fs::read(path).ok()
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
            self.writable.push(main.clone());
            self.git_folder(&main, folder);
            self.within(&main, folder);
            self.repositories.push(main);
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
                false => self.git_folder(&inner, working_folder(&inner).as_deref().unwrap_or(folder)),
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
        for name in ["commondir", "config.worktree"] {
            self.file_or_forbidden(&git.join(name));
        }
        for name in ["config", "config.worktree"] {
            self.named_by(&git.join(name), folder);
        }
    }

    /// What a configuration of git names, and those that it includes: folders of hooks, relative to the working folder, and
    /// further configurations, relative to the folder of the file.
    fn named_by(&mut self, configuration: &Path, folder: &Path) {
        let (mut unread, mut known) = (vec![configuration.to_owned()], HashSet::new());
        while let Some(configuration) = unread.pop() {
            // git follows links.
            let Ok(file) = configuration.canonicalize() else { continue };
            let Some(text) = bytes(&file).filter(|_| known.insert(file) && known.len() <= INCLUDED_MAX)
            else {
                continue;
            };
            // Users' names may be in another encoding.
            for Setting { name: (section, key), value } in settings(&String::from_utf8_lossy(&text)) {
                let (base, is_folder) = match (&*section, &*key) {
                    ("core", "hookspath") => (folder, true),
                    ("include" | "includeif", "path") => (configuration.parent().unwrap_or(folder), false),
                    _ => continue,
                };
                let in_home = value.strip_prefix("~/").and_then(|rest| Some(self.home.as_ref()?.join(rest)));
                let Some(path) = plain(&in_home.unwrap_or_else(|| base.join(value))) else { continue };
                if !is_folder {
                    unread.push(path.clone());
                }
                let linked = real(&path).filter(|real| *real != path);
                for path in [Some(path), linked].into_iter().flatten() {
                    match is_folder {
                        // A command cannot change what is elsewhere.
                        _ if !self.can_be_changed(&path) => {}
                        true => self.folder_or_none(&path),
                        false => self.file_or_none(&path),
                    }
                }
            }
        }
    }

    /// Whether a path is in the workspace, or in the repository that belongs to it.
    fn can_be_changed(&self, path: &Path) -> bool {
        path.starts_with(&self.root) && path != self.root
            || self.writable.iter().any(|folder| path.starts_with(folder))
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

/// A setting in a configuration of git.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    /// The section without a subsection, and the key, in lower case.
    name: (String, String),
    value: String,
}

/// Reads the settings of a configuration as git does. In one that git rejects, settings may be found nevertheless.
fn settings(text: &str) -> Vec<Setting> {
    let text = text.replace("\r\n", "\n");
    let mut rest = text.trim_start_matches('\u{feff}');
    let (mut section, mut found) = (String::new(), Vec::new());
    loop {
        rest = rest.trim_start();
        if let Some(head) = rest.strip_prefix('[') {
            let Some((name, after)) = after_head(head) else { return found };
            (section, rest) = (name, after);
            continue;
        }
        let Some(end) = rest.find(['=', '#', ';', '\n']) else { return found };
        match rest.as_bytes()[end] {
            b'=' => {
                let name = (section.clone(), rest[..end].trim().to_ascii_lowercase());
                let (value, after) = value(&rest[end + 1..]);
                found.push(Setting { name, value });
                rest = after;
            }
            _ => rest = rest[end..].split_once('\n').map_or("", |(_, after)| after),
        }
    }
}

/// Returns the name in the head of a section, after its `[`, in lower case and without a subsection, and what follows the head.
/// In the quotes of a subsection, `]` has no meaning.
pub(super) fn after_head(head: &str) -> Option<(String, &str)> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, letter) in head.char_indices() {
        match letter {
            '\n' => return None,
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ']' if !is_quoted => {
                let name = head[..at].split_whitespace().next().unwrap_or_default();
                return Some((name.to_ascii_lowercase(), &head[at + 1..]));
            }
            _ => {}
        }
    }
    None
}

/// Returns the value that begins here, and what follows its line. It may be in quotes, and continue on the next line.
fn value(text: &str) -> (String, &str) {
    let (mut value, mut length) = (String::new(), 0);
    let (mut is_quoted, mut is_comment) = (false, false);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\n' => {
                value.truncate(length);
                return (value, &text[at + 1..]);
            }
            _ if is_comment => continue,
            '#' | ';' if !is_quoted => is_comment = true,
            '"' => is_quoted = !is_quoted,
            '\\' => match letters.next() {
                Some((_, '\n')) | None => {}
                Some((_, escaped)) => value.push(match escaped {
                    'n' => '\n',
                    't' => '\t',
                    'b' => '\u{8}',
                    other => other,
                }),
            },
            // Blanks at either end are not part of the value.
            space if space.is_ascii_whitespace() && !is_quoted => {
                if !value.is_empty() {
                    value.push(space);
                }
                continue;
            }
            other => value.push(other),
        }
        if !is_comment {
            length = value.len();
        }
    }
    value.truncate(length);
    (value, "")
}

/// Returns the working folder that a git folder names in its configuration (`core.worktree`).
fn working_folder(git: &Path) -> Option<PathBuf> {
    let of_core = ("core".to_owned(), "worktree".to_owned());
    let named = settings(&text(&git.join("config"))?).into_iter().rfind(|setting| setting.name == of_core);
    plain(&git.join(named?.value))
}

/// Returns a path without links, as far as it exists.
fn real(path: &Path) -> Option<PathBuf> {
    let of_parent = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(of_parent)
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
