//! The folder that file tools are confined to.
//!
//! Invariants: files are opened relative to the folder's descriptor and by the kernel's own confined lookup
//! (`openat2` with `RESOLVE_BENEATH`), never by checking a path first and opening it later, so that replacing
//! a path with a symbolic link in between has no effect. On systems without such a lookup, paths are opened
//! component by component without following any link. Only regular files are opened. Tools that write follow
//! no links at all, and change nothing that is protected. Closed places are neither read nor changed, by any
//! path.

mod closed;
mod replace;
mod seen;
mod touched;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::closed::{Closed, ClosedNow};
pub(crate) use self::replace::{Expected, Replacement};
use self::seen::SeenVersions;
pub(crate) use self::touched::Snapshot;
use self::touched::TouchedFiles;
use crate::sandbox::git::{PARTS, Shape};
use crate::{PROTECTED, ToolError, ToolOutput, ToolsError, similar};

/// The maximum length of a chain of symbolic links.
const LINKS_MAX: usize = 40;

/// The longest tick of a file system's clock, in seconds.
const TICK_S: i64 = 2;

/// How many file operations of one workspace run at once; the others wait.
const BLOCKING_MAX: usize = 8;

/// A folder whose files tools may use. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Workspace {
    inner: Arc<Inner>,
    /// The permission bits that new files and folders do not get. `None`: the `umask` of this process.
    umask: Option<u32>,
    passed_over: PassedOver,
}

/// Whether a file or folder with this path is meant.
type IsMeant = dyn Fn(&Path) -> bool + Send + Sync;

/// Which files and folders are not listed or searched, by their paths.
#[derive(Clone, Default)]
struct PassedOver(Option<Arc<IsMeant>>);

impl std::fmt::Debug for PassedOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PassedOver").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// The root as given, before links in it were resolved: models may see either.
    given: PathBuf,
    directory: OwnedFd,
    closed: Closed,
    /// Whether the kernel has `openat2`.
    confined_lookup: bool,
    permits: Arc<Semaphore>,
    touched: TouchedFiles,
    seen: SeenVersions,
}

/// A path inside the workspace: relative, without `.`, `..` and empty components. The empty path is the
/// workspace itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkspacePath(String);

impl WorkspacePath {
    /// Returns the path as shown to people and models.
    pub(crate) fn shown(&self) -> &str {
        self.here()
    }

    /// Returns the path as passed to the system.
    fn here(&self) -> &str {
        if self.0.is_empty() { "." } else { &self.0 }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// Returns the parent folder and the name in it; `None` for the workspace itself.
    fn split(&self) -> Option<(Self, &str)> {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => Some((Self(parent.to_owned()), name)),
            None if self.0.is_empty() => None,
            None => Some((Self(String::new()), &self.0)),
        }
    }
}

/// File metadata that distinguishes versions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    inode: u64,
    size: i64,
    modified_s: i64,
    modified_ns: i64,
}

impl Version {
    #[expect(clippy::useless_conversion, reason = "the fields have other types on other systems")]
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino.into(),
            size: stat.st_size.into(),
            modified_s: stat.st_mtime.into(),
            modified_ns: i64::try_from(stat.st_mtime_nsec).unwrap_or_default(),
        }
    }

    /// Whether the file was modified so recently that a change since may not show in its version: the clocks
    /// of file systems have ticks, and a new file may get the number of one that was just removed.
    pub(crate) fn is_recent(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        i64::try_from(now.as_secs()).unwrap_or(i64::MAX) <= self.modified_s.saturating_add(TICK_S)
    }
}

impl Workspace {
    /// Opens a folder as a workspace. It remains the same folder if it is renamed later.
    ///
    /// # Errors
    /// [`ToolsError::Workspace`] if it does not exist or is not a readable folder.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, ToolsError> {
        Self::open_with(root.as_ref(), Vec::new(), true)
    }

    /// As [`Self::open`], with some files and folders closed: tools neither read nor change them or anything
    /// below them, by whatever path they could be reached, and do not create those that are missing. This is
    /// for what belongs to the program that runs the agent: its store, its keys, its configuration.
    ///
    /// # Errors
    /// As [`Self::open`]; also if the workspace itself is inside a closed place.
    pub fn open_without(
        root: impl AsRef<Path>,
        closed: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self, ToolsError> {
        Self::open_with(root.as_ref(), closed.into_iter().collect(), true)
    }

    fn open_with(given: &Path, closed: Vec<PathBuf>, confined_lookup: bool) -> Result<Self, ToolsError> {
        let wrong = |source: std::io::Error| ToolsError::Workspace { root: given.to_owned(), source };
        let root = given.canonicalize().map_err(wrong)?;
        let directory =
            rustix::fs::open(&root, directory_flags(), Mode::empty()).map_err(|error| wrong(error.into()))?;
        let given = std::path::absolute(given).map_err(wrong)?;
        let confined_lookup = confined_lookup && beneath(&directory, ".", directory_flags()).is_ok();
        let closed = Closed::new(&directory, closed).map_err(wrong)?;
        if let Some(place) = closed.around(&root) {
            let text = format!("{} is not accessible to tools", place.display());
            return Err(wrong(std::io::Error::new(std::io::ErrorKind::PermissionDenied, text)));
        }
        let permits = Arc::new(Semaphore::new(BLOCKING_MAX));
        let inner = Inner {
            root,
            given,
            directory,
            closed,
            confined_lookup,
            permits,
            touched: TouchedFiles::default(),
            seen: SeenVersions::default(),
        };
        Ok(Self { inner: Arc::new(inner), umask: None, passed_over: PassedOver::default() })
    }

    /// Sets the `umask`: the permission bits that new files and folders do not get. The default is the
    /// `umask` of this process.
    #[must_use]
    pub fn with_umask(self, umask: u32) -> Self {
        Self { umask: Some(umask & 0o777), ..self }
    }

    /// Sets which files and folders are passed over by `list` and `grep`, by their absolute paths: those that a rule
    /// forbids to read. A call that names such a file is the concern of that rule.
    #[must_use]
    pub fn passing_over(self, is_passed_over: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        Self { passed_over: PassedOver(Some(Arc::new(is_passed_over))), ..self }
    }

    /// Returns the folder's absolute path, with links resolved.
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// Converts a path written by a model, absolute or relative to the workspace, to a path inside it. Only
    /// the text is checked: the kernel checks links when the path is opened. `~` is meant as in a shell, and leads
    /// outside; a folder with this name is `./~`.
    pub(crate) fn locate(&self, path: &str) -> Result<WorkspacePath, ToolsError> {
        let given = path.trim();
        if Path::new(given).starts_with("~") {
            return Err(ToolsError::Outside { path: path.to_owned() });
        }
        self.place(given)
    }

    /// As [`Self::locate`], for the path of a file that was found: blanks and `~` are a part of its name.
    pub(crate) fn place(&self, path: &str) -> Result<WorkspacePath, ToolsError> {
        let outside = || ToolsError::Outside { path: path.to_owned() };
        if path.contains('\0') {
            return Err(ToolsError::Refused("a path has no NUL bytes".to_owned()));
        }
        let given = Path::new(path);
        let relative = if given.is_absolute() {
            let stripped =
                given.strip_prefix(&self.inner.root).or_else(|_| given.strip_prefix(&self.inner.given));
            stripped.map_err(|_| outside())?
        } else {
            given
        };
        let mut parts: Vec<&str> = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(part) => parts.push(part.to_str().expect("part of a str")),
                Component::ParentDir => {
                    parts.pop().ok_or_else(outside)?;
                }
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return Err(outside()),
            }
        }
        Ok(WorkspacePath(parts.join("/")))
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &WorkspacePath) -> Result<(File, Version), ToolsError> {
        let closed = self.inner.closed.now();
        let (directory, name) = self.place_of(path, &closed)?;
        // Opening a pipe blocks and opening a device has effects: check first, and check again what was
        // opened.
        let looked = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
        regular(path, &looked.map_err(|error| self.explain(path, error))?)?;
        let flags = file_flags() | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&directory, &name, flags, Mode::empty());
        let file = opened.map_err(|error| self.explain(path, error))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| self.explain(path, error))?;
        regular(path, &stat)?;
        if closed.is(&stat) {
            return Err(is_closed(path));
        }
        Ok((File::from(file), Version::of(&stat)))
    }

    /// Returns the current version of a file; `None` if there is nothing that a tool could open.
    fn version(&self, path: &WorkspacePath) -> Option<Version> {
        let (directory, name) = self.place_of(path, &self.inner.closed.now()).ok()?;
        let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Version::of(&stat))
    }

    /// Returns the folder that a file is in, and its name there; links are followed as far as the lookup can
    /// do that without leaving the workspace. Otherwise the name may be that of a link.
    fn place_of(&self, path: &WorkspacePath, closed: &ClosedNow) -> Result<(OwnedFd, OsString), ToolsError> {
        let Some((parent, name)) = path.split() else {
            return Err(wrong_kind(path, FileType::Directory));
        };
        if !self.inner.confined_lookup {
            return Ok((self.open_directory(&parent)?, name.into()));
        }
        let explain = |error| self.explain(path, error);
        let mut path_now = PathBuf::from(path.as_str());
        for _ in 0..LINKS_MAX {
            // It ends in `..`, as only the target of a link can.
            let name = path_now.file_name().ok_or_else(|| wrong_kind(path, FileType::Directory))?.to_owned();
            let parent = path_now.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let directory = beneath(&self.inner.directory, parent, directory_flags()).map_err(explain)?;
            // Checked before anything in it is examined: not even missing names are reported.
            if closed.holds(&directory) {
                return Err(is_closed(path));
            }
            match rustix::fs::readlinkat(&directory, &name, Vec::new()) {
                Ok(target) => {
                    let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                    if target.is_absolute() {
                        return Err(explain(Errno::XDEV));
                    }
                    path_now = parent.join(target);
                }
                // It is not a link.
                Err(Errno::INVAL) => return Ok((directory, name)),
                Err(error) => return Err(explain(error)),
            }
        }
        Err(explain(Errno::LOOP))
    }

    /// Opens a folder for reading its entries.
    pub(crate) fn open_directory(&self, path: &WorkspacePath) -> Result<OwnedFd, ToolsError> {
        if !self.inner.confined_lookup {
            return self.open_directory_plainly(path, false);
        }
        let opened =
            beneath(&self.inner.directory, path.here(), directory_flags()).map_err(|error| match error {
                Errno::NOTDIR => not_a_folder(path),
                other => self.explain(path, other),
            })?;
        if self.inner.closed.now().holds(&opened) { Err(is_closed(path)) } else { Ok(opened) }
    }

    /// Whether it is a folder, as opposed to a regular file.
    pub(crate) fn is_directory(&self, path: &WorkspacePath) -> Result<bool, ToolsError> {
        match self.open_directory(path) {
            Ok(_) => Ok(true),
            Err(ToolsError::WrongKind { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a folder without following any link; with `create`, creates missing folders.
    fn open_directory_plainly(&self, path: &WorkspacePath, create: bool) -> Result<OwnedFd, ToolsError> {
        let root = rustix::fs::openat(&self.inner.directory, ".", directory_flags(), Mode::empty());
        let mut directory = root.map_err(|error| self.explain(path, error))?;
        let closed = self.inner.closed.now();
        for part in path.components() {
            let mut is_new = false;
            if create {
                if closed.would_be(&directory, part) {
                    return Err(is_closed(path));
                }
                let mode = Mode::from_raw_mode(0o777 & !self.umask.unwrap_or_default());
                match rustix::fs::mkdirat(&directory, part, mode) {
                    Ok(()) => is_new = true,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(ToolsError::io(path.shown(), error)),
                }
            }
            directory = open_child_directory(&directory, part).map_err(|error| {
                let stat = rustix::fs::statat(&directory, part, AtFlags::SYMLINK_NOFOLLOW);
                match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                    Ok(FileType::Symlink) => ToolsError::Link { path: path.shown().to_owned() },
                    Ok(_) if error == Errno::NOTDIR => not_a_folder(path),
                    Ok(_) | Err(_) => self.explain(path, error),
                }
            })?;
            let stat = rustix::fs::fstat(&directory).map_err(|error| self.explain(path, error))?;
            if closed.is(&stat) {
                return Err(is_closed(path));
            }
            // The `umask` of this process may have removed more bits.
            if let Some(umask) = self.umask.filter(|_| is_new) {
                let mode = Mode::from_raw_mode(0o777 & !umask);
                rustix::fs::fchmod(&directory, mode).map_err(|error| ToolsError::io(path.shown(), error))?;
            }
        }
        Ok(directory)
    }

    /// Checks that tools that write may change the path.
    pub(crate) fn changeable(&self, path: &WorkspacePath) -> Result<(), ToolsError> {
        let protected = |part: &&str| PROTECTED.iter().any(|name| part.eq_ignore_ascii_case(name));
        match path.components().find(protected).or_else(|| self.repository_of(path)) {
            None => Ok(()),
            Some(part) => Err(ToolsError::Protected { path: path.shown().to_owned(), part: part.to_owned() }),
        }
    }

    /// Returns the folder of a path that git takes for a repository, or would if the path existed. A bare repository has no
    /// `.git`, and its settings name programs too.
    fn repository_of<'a>(&self, path: &'a WorkspacePath) -> Option<&'a str> {
        let text = path.as_str();
        let folders = std::iter::once(0).chain(text.match_indices('/').map(|(at, _)| at + 1));
        folders.map(|at| text.split_at(at)).find_map(|(folder, rest)| {
            let is_there = |part: &str| {
                let place = format!("{folder}{part}");
                rustix::fs::statat(&self.inner.directory, place, AtFlags::SYMLINK_NOFOLLOW).is_ok()
            };
            let mut shape = Shape::default();
            shape.add(OsStr::new(rest.split('/').next().unwrap_or_default()));
            PARTS.iter().filter(|part| is_there(part)).for_each(|part| shape.add(OsStr::new(part)));
            shape.is_repository().then(|| if folder.is_empty() { "." } else { folder.trim_end_matches('/') })
        })
    }

    /// Runs file work outside the asynchronous threads, with a bounded number of concurrent operations. When
    /// the call is cancelled or its future dropped, the token that the work receives fires, and the work ends
    /// when it next checks it.
    pub(crate) async fn blocking<W>(
        &self,
        cancel: &CancellationToken,
        work: W,
    ) -> Result<ToolOutput, ToolError>
    where
        W: FnOnce(&Self, &CancellationToken) -> Result<ToolOutput, ToolsError> + Send + 'static,
    {
        let ended = cancel.child_token();
        let _ends_when_dropped = ended.clone().drop_guard();
        let permits = self.inner.permits.clone();
        let permit = tokio::select! {
            () = cancel.cancelled() => return Ok(cancelled()),
            permit = permits.acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let workspace = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&workspace, &ended)
        });
        match task.await {
            Ok(Err(ToolsError::Cancelled)) => Ok(cancelled()),
            Ok(result) => Ok(result?),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_stopping) => Ok(cancelled()),
            },
        }
    }

    /// Converts a system error to one that the model understands.
    fn explain(&self, path: &WorkspacePath, error: Errno) -> ToolsError {
        if self.lies_in_closed(path) {
            return is_closed(path);
        }
        let shown = path.shown().to_owned();
        match error {
            Errno::XDEV => ToolsError::Outside { path: shown },
            Errno::NOENT => ToolsError::NotFound { nearest: self.nearest(path), path: shown },
            Errno::LOOP => ToolsError::Link { path: shown },
            other => ToolsError::io(shown, other),
        }
    }

    /// Whether the nearest existing folder above the path is closed: what is missing in it is not reported
    /// either.
    fn lies_in_closed(&self, path: &WorkspacePath) -> bool {
        let closed = self.inner.closed.now();
        // The plain lookup meets each folder on the way, and reports it itself.
        if closed.is_empty() || !self.inner.confined_lookup {
            return false;
        }
        let above =
            Path::new(path.as_str()).ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let mut opened =
            above.filter_map(|above| beneath(&self.inner.directory, above, directory_flags()).ok());
        opened.next().is_some_and(|folder| closed.holds(&folder))
    }

    /// Opens a folder, if possible.
    fn folder(&self, path: &WorkspacePath) -> Option<OwnedFd> {
        if !self.inner.confined_lookup {
            return self.open_directory_plainly(path, false).ok();
        }
        let opened = beneath(&self.inner.directory, path.here(), directory_flags()).ok()?;
        (!self.inner.closed.now().holds(&opened)).then_some(opened)
    }

    /// Returns similar names in the folder of a missing path.
    fn nearest(&self, path: &WorkspacePath) -> Vec<String> {
        let Some((parent, name)) = path.split() else { return Vec::new() };
        let Some(directory) = self.folder(&parent) else { return Vec::new() };
        let Ok(entries) = Dir::read_from(directory) else { return Vec::new() };
        let names: Vec<String> = entries
            .take(10_000)
            .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
            .filter(|name| name != "." && name != "..")
            .collect();
        let found = similar::nearest(name, names.iter().map(String::as_str), 2);
        found.into_iter().map(|name| join(parent.as_str(), name)).collect()
    }
}

fn cancelled() -> ToolOutput {
    ToolOutput::interrupted("cancelled; it took no effect")
}

/// Joins `name` to the folder `parent`, which is empty for the workspace itself.
fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}/{name}") }
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

fn file_flags() -> OFlags {
    OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC
}

/// Other systems have no confined lookup.
#[cfg(not(target_os = "linux"))]
fn beneath(_directory: &OwnedFd, _path: impl AsRef<Path>, _flags: OFlags) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

/// Opens a path with the kernel's confined lookup.
#[cfg(target_os = "linux")]
fn beneath(directory: &OwnedFd, path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..64 {
        match rustix::fs::openat2(directory, path.as_ref(), flags, Mode::empty(), resolve) {
            // Something was renamed while `..` in a link was resolved: the kernel asks us to retry.
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a subfolder, unless it is a link.
fn open_child_directory(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, directory_flags() | OFlags::NOFOLLOW, Mode::empty())
}

fn regular(path: &WorkspacePath, stat: &Stat) -> Result<(), ToolsError> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::RegularFile {
        Ok(())
    } else if kind == FileType::Symlink {
        Err(ToolsError::Link { path: path.shown().to_owned() })
    } else {
        Err(wrong_kind(path, kind))
    }
}

fn is_closed(path: &WorkspacePath) -> ToolsError {
    ToolsError::Closed { path: path.shown().to_owned() }
}

fn wrong_kind(path: &WorkspacePath, found: FileType) -> ToolsError {
    let found = match found {
        FileType::Directory => "a folder",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a symbolic link",
        FileType::RegularFile => "a file",
        FileType::Unknown => "of an unknown kind",
    };
    ToolsError::WrongKind { path: path.shown().to_owned(), found, wanted: "a regular file" }
}

fn not_a_folder(path: &WorkspacePath) -> ToolsError {
    ToolsError::WrongKind {
        path: path.shown().to_owned(),
        found: "a file, or goes through one",
        wanted: "a folder",
    }
}

#[cfg(test)]
mod tests;
