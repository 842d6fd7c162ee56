//! Traverses a workspace's folders in the order of names, without files ignored by `.gitignore`.
//!
//! Invariants: each folder is opened relative to its parent and no link is followed, so that the walk never
//! leaves the workspace, whatever is replaced meanwhile. `.git` is never entered, and closed places are not
//! visited.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use tokio_util::sync::CancellationToken;

use super::closed::ClosedNow;
use super::{Version, Workspace, WorkspacePath, file_flags, is_closed, join, open_child_directory, regular};
use crate::ToolsError;

/// The maximum depth below the start: each level holds a file descriptor.
const DEPTH_MAX: usize = 64;
/// The maximum that is read of a `.gitignore`, in bytes.
const GITIGNORE_BYTES_MAX: u64 = 1024 * 1024;

/// An entry found by the walk.
pub(crate) struct Found<'a> {
    /// Its path, relative to the workspace.
    pub(crate) path: &'a WorkspacePath,
    /// File, folder or link.
    pub(crate) kind: FileType,
    directory: &'a OwnedFd,
    name: &'a str,
    closed: &'a ClosedNow,
}

impl Found<'_> {
    /// Returns its version now; `None` if it is gone.
    pub(crate) fn version(&self) -> Option<Version> {
        let stat = rustix::fs::statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Version::of(&stat))
    }

    /// Opens it for reading, if it is still the regular file that was found.
    pub(crate) fn open(&self) -> Result<(File, Version), ToolsError> {
        let wrong = |error| ToolsError::io(self.path.shown(), error);
        let flags = file_flags() | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(self.directory, self.name, flags, Mode::empty()).map_err(wrong)?;
        let stat = rustix::fs::fstat(&file).map_err(wrong)?;
        regular(self.path, &stat)?;
        if self.closed.is(&stat) {
            return Err(is_closed(self.path));
        }
        Ok((File::from(file), Version::of(&stat)))
    }
}

/// The callback for each entry.
pub(crate) type Visit<'a> = dyn FnMut(&Found<'_>) -> Result<ControlFlow<()>, ToolsError> + 'a;

impl Workspace {
    /// Visits everything below the folder `start`, at most `depth_max` levels deep (1 means its own entries),
    /// until the visitor breaks or `cancel` fires.
    pub(crate) fn walk(
        &self,
        start: &WorkspacePath,
        depth_max: usize,
        cancel: &CancellationToken,
        visit: &mut Visit<'_>,
    ) -> Result<(), ToolsError> {
        let directory = self.open_directory(start)?;
        let mut ignores = vec![self.exclude_file()];
        let mut above = String::new();
        for part in start.components() {
            ignores.extend(
                self.open_directory(&WorkspacePath(above.clone())).ok().map(|folder| rules(&folder, &above)),
            );
            above = join(&above, part);
        }
        let closed = self.inner.closed.now();
        let mut permitted = |found: &Found<'_>| match &self.passed_over.0 {
            Some(is_passed_over) if is_passed_over(&self.inner.root.join(found.path.as_str())) => {
                Ok(ControlFlow::Continue(()))
            }
            Some(_) | None => visit(found),
        };
        let mut walk = Walk { ignores, closed: &closed, cancel, visit: &mut permitted };
        walk.folder(&directory, start, depth_max.min(DEPTH_MAX)).map(|_| ())
    }

    /// Returns the paths of the regular files in the workspace, sorted by name: at most `depth_max` levels of
    /// folders deep, and at most `count_max` files. Files ignored by `.gitignore` are omitted. Blocks while
    /// folders are read.
    ///
    /// # Errors
    /// If the workspace's own folder cannot be read.
    pub fn files(&self, depth_max: usize, count_max: usize) -> Result<Vec<String>, ToolsError> {
        let mut files = Vec::new();
        self.walk(&self.locate(".")?, depth_max, &CancellationToken::new(), &mut |found| {
            if found.kind == FileType::RegularFile {
                files.push(found.path.as_str().to_owned());
            }
            Ok(if files.len() < count_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(files)
    }

    /// Returns the rules of `.git/info/exclude`.
    fn exclude_file(&self) -> Gitignore {
        let text = self
            .open_file(&WorkspacePath(".git/info/exclude".to_owned()))
            .ok()
            .map(|(file, _)| read_text(file));
        parse("", &text.unwrap_or_default())
    }
}

struct Walk<'a, 'v> {
    /// From the outermost folder inwards.
    ignores: Vec<Gitignore>,
    closed: &'a ClosedNow,
    cancel: &'a CancellationToken,
    visit: &'a mut Visit<'v>,
}

impl Walk<'_, '_> {
    fn folder(
        &mut self,
        directory: &OwnedFd,
        path: &WorkspacePath,
        depth: usize,
    ) -> Result<ControlFlow<()>, ToolsError> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(directory).map_err(|error| ToolsError::io(path.shown(), error))? {
            if self.cancel.is_cancelled() {
                return Err(ToolsError::Cancelled);
            }
            let entry = entry.map_err(|error| ToolsError::io(path.shown(), error))?;
            // A model cannot name a file whose name is not UTF-8.
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | ".." | ".git")
            {
                entries.push((name.to_owned(), entry.file_type()));
            }
        }
        entries.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        self.ignores.push(rules(directory, path.as_str()));
        for (name, kind) in entries {
            if self.cancel.is_cancelled() {
                return Err(ToolsError::Cancelled);
            }
            let kind = if kind == FileType::Unknown {
                // Some file systems do not report the type with the name.
                match rustix::fs::statat(directory, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_gone) => continue,
                }
            } else {
                kind
            };
            let child = WorkspacePath(join(path.as_str(), &name));
            if self.ignored(&child, kind == FileType::Directory) {
                continue;
            }
            if self.is_closed(directory, &name) {
                continue;
            }
            let found = Found { path: &child, kind, directory, name: &name, closed: self.closed };
            if (self.visit)(&found)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if kind == FileType::Directory && depth > 1 {
                // Gone, replaced or not permitted: the walk continues without it.
                let Ok(inner) = open_child_directory(directory, &name) else { continue };
                // It may have been replaced with a closed one.
                if rustix::fs::fstat(&inner).is_ok_and(|stat| self.closed.is(&stat)) {
                    continue;
                }
                if self.folder(&inner, &child, depth - 1)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        self.ignores.pop();
        Ok(ControlFlow::Continue(()))
    }

    /// Links are visited: their target is checked when they are followed.
    fn is_closed(&self, directory: &OwnedFd, name: &str) -> bool {
        let stat = || rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        !self.closed.is_empty() && stat().is_ok_and(|stat| self.closed.is(&stat))
    }

    /// The innermost rule that matches decides.
    fn ignored(&self, path: &WorkspacePath, is_directory: bool) -> bool {
        for rules in self.ignores.iter().rev() {
            match rules.matched(path.as_str(), is_directory) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }
}

/// Returns the rules of the `.gitignore` in a folder.
fn rules(directory: &OwnedFd, path: &str) -> Gitignore {
    let flags = file_flags() | OFlags::NOFOLLOW;
    let Ok(file) = rustix::fs::openat(directory, ".gitignore", flags, Mode::empty()) else {
        return Gitignore::empty();
    };
    match rustix::fs::fstat(&file) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            parse(path, &read_text(File::from(file)))
        }
        Ok(_) | Err(_) => Gitignore::empty(),
    }
}

fn read_text(file: File) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    // The part that can be read counts.
    let _ = file.take(GITIGNORE_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse(folder: &str, text: &str) -> Gitignore {
    let mut builder = GitignoreBuilder::new(folder);
    for line in text.lines() {
        // As in git, a line that is not a pattern is skipped.
        let _ = builder.add_line(None, line);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}
