//! Changing files: a file is replaced or removed as a whole, by name, in a folder that is held open.
//!
//! Invariants: a reader sees the old file or the new one; the new content is on the disk before it gets the
//! name. Before a change, the old content is kept for rewinding, if the call keeps files. What is replaced is
//! exactly what was examined and kept: if something else has the name by then, it keeps it, and the change is
//! refused. No link is followed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use super::{Version, Workspace, WorkspacePath, file_flags, is_closed, regular, wrong_kind};
use crate::ToolsError;
use crate::rewind::{CallFiles, FileState};

/// The maximum number of extended attributes of a file that are carried over, in bytes of their names, and the largest
/// value.
const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;
/// How the names of temporary files begin; the number of the process follows.
const TEMPORARY: &str = ".greenroom-";
/// Larger leftovers are not examined, in bytes.
const LEFTOVER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// What has to be at a path that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A regular file, or nothing.
    Anything,
    /// This version of a file.
    Version(Version),
    /// Nothing.
    Absent,
}

/// The new content of a file.
pub(crate) struct Replacement<'a> {
    pub(crate) content: &'a [u8],
    pub(crate) expected: Expected,
    /// The permission bits; `None`: those of the file that is replaced, or those of a new file.
    pub(crate) mode: Option<u32>,
}

impl<'a> Replacement<'a> {
    /// Creates a replacement of whatever file is there.
    pub(crate) fn new(content: &'a [u8]) -> Self {
        Self { content, expected: Expected::Anything, mode: None }
    }
}

/// A file that was replaced or created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replaced {
    /// Whether there was a file before.
    pub(crate) existed: bool,
    /// How many other names (hard links) the old file has.
    pub(crate) other_names: u64,
    /// The new version.
    pub(crate) version: Version,
}

/// A file that is about to be changed, and its content as it was kept.
struct Before {
    stat: Stat,
    /// `None` if it cannot be read.
    file: Option<File>,
}

impl Workspace {
    /// Atomically replaces a file. Missing folders are created, unless a version is expected. An existing file
    /// keeps its permissions, its owner as far as the system permits, and its extended attributes.
    ///
    /// # Errors
    /// [`ToolsError::Refused`] if the expected version is not there, or something else was put there
    /// meanwhile; others as for opening files.
    pub(crate) fn replace(
        &self,
        path: &WorkspacePath,
        replacement: &Replacement<'_>,
        files: &CallFiles,
    ) -> Result<Replaced, ToolsError> {
        self.changeable(path)?;
        let Some((parent, name)) = path.split() else {
            return Err(wrong_kind(path, rustix::fs::FileType::Directory));
        };
        let io = |error: Errno| ToolsError::io(path.shown(), error);
        let creates = !matches!(replacement.expected, Expected::Version(_));
        let directory = self.open_directory_plainly(&parent, creates)?;
        let _alone = files.begin(&self.inner.root, path.as_str());
        let before = self.before(&directory, path, name, replacement.expected)?;
        let kept = self.keep(before.as_ref(), files, path)?;
        let (temporary, mut file) = create_temporary(&directory).map_err(io)?;
        let result = (|| {
            let mode = match (replacement.mode, &before) {
                (Some(mode), _) => Some(mode),
                (None, Some(before)) => Some(before.stat.st_mode & 0o7777),
                (None, None) => self.umask.map(|umask| 0o666 & !umask),
            };
            if let Some(before) = &before {
                carry_over(before, &file);
            }
            if let Some(mode) = mode {
                rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(io)?;
            }
            file.write_all(replacement.content).map_err(|error| ToolsError::io(path.shown(), error))?;
            // Otherwise a power cut after the renaming could leave an empty file.
            file.sync_data().map_err(|error| ToolsError::io(path.shown(), error))?;
            let stat = rustix::fs::fstat(&file).map_err(io)?;
            if let Some(kept) = &kept {
                let after = FileState::of(replacement.content, stat.st_mode & 0o7777);
                files
                    .changes(&self.inner.root, path.as_str(), kept, &after)
                    .map_err(|e| not_kept(path, &e))?;
            }
            put(&directory, &temporary, name, path, before.as_ref())?;
            Ok(Version::of(&stat))
        })();
        let other_names = before.as_ref().map_or(0, |before| other_names(&before.stat));
        match result {
            Ok(version) => Ok(Replaced { existed: before.is_some(), other_names, version }),
            Err(error) => {
                // Only our own file: after a failed exchange, the name could be that of somebody else's. A
                // leftover cannot be handled here, and the first error is the one that matters.
                let ours = rustix::fs::fstat(&file).map(|stat| stat.st_ino);
                let there = rustix::fs::statat(&directory, &temporary, AtFlags::SYMLINK_NOFOLLOW);
                if ours.is_ok() && ours == there.map(|stat| stat.st_ino) {
                    let _ = rustix::fs::unlinkat(&directory, &temporary, AtFlags::empty());
                }
                Err(error)
            }
        }
    }

    /// Removes a file of this version.
    ///
    /// # Errors
    /// Those of [`Self::replace`].
    pub(crate) fn remove(
        &self,
        path: &WorkspacePath,
        version: Version,
        files: &CallFiles,
    ) -> Result<(), ToolsError> {
        self.changeable(path)?;
        let Some((parent, name)) = path.split() else {
            return Err(wrong_kind(path, rustix::fs::FileType::Directory));
        };
        let io = |error: Errno| ToolsError::io(path.shown(), error);
        let directory = self.open_directory_plainly(&parent, false)?;
        let _alone = files.begin(&self.inner.root, path.as_str());
        let before = self.before(&directory, path, name, Expected::Version(version))?;
        let Some(before) = before else { return Err(meanwhile(path)) };
        if let Some(kept) = self.keep(Some(&before), files, path)? {
            let gone = FileState::Absent;
            files.changes(&self.inner.root, path.as_str(), &kept, &gone).map_err(|e| not_kept(path, &e))?;
        }
        // It is moved aside first: what is removed is then what was examined.
        let (temporary, _) = create_temporary(&directory).map_err(io)?;
        rustix::fs::renameat(&directory, name, &directory, &temporary).map_err(io)?;
        let moved = rustix::fs::statat(&directory, &temporary, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        if Version::of(&moved) != Version::of(&before.stat) {
            rustix::fs::renameat(&directory, &temporary, &directory, name).map_err(io)?;
            return Err(meanwhile(path));
        }
        rustix::fs::unlinkat(&directory, &temporary, AtFlags::empty()).map_err(io)
    }

    /// Removes the temporary files in a folder that a process left which was ended while it changed a file, if `is_known`
    /// for the hash of the content. Another one can be a file of the user's that was moved aside.
    ///
    /// # Errors
    /// Those of opening the folder.
    pub(crate) fn remove_leftovers(
        &self,
        folder: &WorkspacePath,
        is_known: impl Fn(&str) -> bool,
    ) -> Result<usize, ToolsError> {
        let io = |error: Errno| ToolsError::io(folder.shown(), error);
        let directory = self.open_directory_plainly(folder, false)?;
        let mut removed = 0;
        for entry in rustix::fs::Dir::read_from(&directory).map_err(io)?.filter_map(Result::ok) {
            let Some(name) = entry.file_name().to_str().ok().filter(|name| is_leftover(name)) else {
                continue;
            };
            let Ok(file) =
                rustix::fs::openat(&directory, name, file_flags() | OFlags::NOFOLLOW, Mode::empty())
            else {
                continue;
            };
            let Ok(stat) = rustix::fs::fstat(&file) else { continue };
            let state = FileState::read(Some(&File::from(file)), stat.st_mode & 0o7777, LEFTOVER_BYTES_MAX);
            let is_known = state.is_ok_and(|state| state.hash().is_some_and(&is_known));
            let now = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
            let is_same = now.is_ok_and(|now| Version::of(&now) == Version::of(&stat));
            if is_known && is_same && rustix::fs::unlinkat(&directory, name, AtFlags::empty()).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Examines what is at a path that will be changed.
    fn before(
        &self,
        directory: &OwnedFd,
        path: &WorkspacePath,
        name: &str,
        expected: Expected,
    ) -> Result<Option<Before>, ToolsError> {
        let closed = self.inner.closed.now();
        if closed.would_be(directory, name) {
            return Err(is_closed(path));
        }
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if closed.is(&stat) => return Err(is_closed(path)),
            Ok(stat) => {
                regular(path, &stat)?;
                Some(stat)
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(ToolsError::io(path.shown(), error)),
        };
        let is_expected = match (expected, &stat) {
            (Expected::Anything, _) | (Expected::Absent, None) => true,
            (Expected::Version(version), Some(stat)) => version == Version::of(stat),
            (Expected::Version(_), None) | (Expected::Absent, Some(_)) => false,
        };
        if !is_expected {
            return Err(meanwhile(path));
        }
        let Some(stat) = stat else { return Ok(None) };
        let flags = file_flags() | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(file) => {
                let opened = rustix::fs::fstat(&file).map_err(|error| ToolsError::io(path.shown(), error))?;
                if Version::of(&opened) != Version::of(&stat) {
                    return Err(meanwhile(path));
                }
                Some(File::from(file))
            }
            // It can be replaced all the same: its folder is writable.
            Err(Errno::ACCESS) => None,
            Err(error) => return Err(ToolsError::io(path.shown(), error)),
        };
        Ok(Some(Before { stat, file }))
    }

    /// Keeps the content of a file that will be changed. `None`: this call keeps nothing.
    fn keep(
        &self,
        before: Option<&Before>,
        files: &CallFiles,
        path: &WorkspacePath,
    ) -> Result<Option<FileState>, ToolsError> {
        if !files.is_on() {
            return Ok(None);
        }
        let state = match before {
            None => FileState::Absent,
            Some(Before { stat, file }) => {
                files.keep(file.as_ref(), stat.st_mode & 0o7777).map_err(|error| not_kept(path, &error))?
            }
        };
        Ok(Some(state))
    }

    /// Returns the state of a file now, and its version; the content is not kept. `None` if there is
    /// something else, or it cannot be examined.
    pub(crate) fn state(
        &self,
        path: &WorkspacePath,
        bytes_max: u64,
    ) -> Result<(FileState, Option<Version>), ToolsError> {
        // Links are not followed: what is written is never written through one.
        let (parent, name) = path.split().ok_or_else(|| wrong_kind(path, rustix::fs::FileType::Directory))?;
        let directory = match self.open_directory_plainly(&parent, false) {
            Ok(directory) => directory,
            Err(ToolsError::NotFound { .. }) => return Ok((FileState::Absent, None)),
            Err(error) => return Err(error),
        };
        let Some(Before { stat, file }) = self.before(&directory, path, name, Expected::Anything)? else {
            return Ok((FileState::Absent, None));
        };
        let state = FileState::read(file.as_ref(), stat.st_mode & 0o7777, bytes_max)
            .map_err(|error| ToolsError::io(path.shown(), error))?;
        Ok((state, Some(Version::of(&stat))))
    }

    /// Keeps the present content of a file in the store of this call. `None` if it cannot be examined.
    pub(crate) fn keep_now(
        &self,
        path: &WorkspacePath,
        files: &CallFiles,
    ) -> Result<Option<(FileState, Option<Version>)>, std::io::Error> {
        let Some((parent, name)) = path.split() else { return Ok(None) };
        let directory = match self.open_directory_plainly(&parent, false) {
            Ok(directory) => directory,
            Err(ToolsError::NotFound { .. }) => return Ok(Some((FileState::Absent, None))),
            Err(_) => return Ok(None),
        };
        match self.before(&directory, path, name, Expected::Anything) {
            Ok(None) => Ok(Some((FileState::Absent, None))),
            Ok(Some(Before { stat, file })) => {
                let state = files.keep(file.as_ref(), stat.st_mode & 0o7777)?;
                Ok(Some((state, Some(Version::of(&stat)))))
            }
            Err(_) => Ok(None),
        }
    }
}

fn not_kept(path: &WorkspacePath, error: &std::io::Error) -> ToolsError {
    ToolsError::Refused(format!(
        "`{}` was not changed, because its content could not be kept for rewinding: {error}",
        path.shown()
    ))
}

fn meanwhile(path: &WorkspacePath) -> ToolsError {
    ToolsError::Refused(format!("`{}` was changed by someone else meanwhile; read it again", path.shown()))
}

#[expect(clippy::useless_conversion, reason = "the field has other types on other systems")]
fn other_names(stat: &Stat) -> u64 {
    u64::from(stat.st_nlink).saturating_sub(1)
}

/// Gives a new file the owner and the extended attributes of the one that it replaces, as far as the system
/// permits.
fn carry_over(before: &Before, new: &File) {
    if let Ok(stat) = rustix::fs::fstat(new) {
        let uid = (stat.st_uid != before.stat.st_uid).then(|| rustix::fs::Uid::from_raw(before.stat.st_uid));
        let gid = (stat.st_gid != before.stat.st_gid).then(|| rustix::fs::Gid::from_raw(before.stat.st_gid));
        // The group can often be kept when the owner cannot.
        if gid.is_some() {
            let _ = rustix::fs::fchown(new, None, gid);
        }
        if uid.is_some() {
            let _ = rustix::fs::fchown(new, uid, None);
        }
    }
    let Some(old) = &before.file else { return };
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let Ok(length) = rustix::fs::flistxattr(old, &mut names[..]) else { return };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
        if let Ok(length) = rustix::fs::fgetxattr(old, name, &mut value[..]) {
            // Those of the system can often not be set.
            let _ = rustix::fs::fsetxattr(new, name, &value[..length], XattrFlags::empty());
        }
    }
}

/// Gives the temporary file its name, if what has the name is still what was examined.
#[cfg(target_os = "linux")]
fn put(
    directory: &OwnedFd,
    temporary: &str,
    name: &str,
    path: &WorkspacePath,
    before: Option<&Before>,
) -> Result<(), ToolsError> {
    use rustix::fs::RenameFlags;
    let io = |error: Errno| ToolsError::io(path.shown(), error);
    let flags = if before.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(directory, temporary, directory, name, flags) {
        Ok(()) => {}
        Err(Errno::EXIST | Errno::NOENT) => return Err(meanwhile(path)),
        // The file system cannot do that.
        Err(Errno::INVAL | Errno::NOSYS) => return put_plainly(directory, temporary, name, path, before),
        Err(error) => return Err(io(error)),
    }
    let Some(before) = before else { return Ok(()) };
    let out = rustix::fs::statat(directory, temporary, AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
    if Version::of(&out) != Version::of(&before.stat) {
        // Somebody else's file, or a link, had the name by now, and gets it back.
        rustix::fs::renameat_with(directory, temporary, directory, name, RenameFlags::EXCHANGE)
            .map_err(io)?;
        return Err(meanwhile(path));
    }
    rustix::fs::unlinkat(directory, temporary, AtFlags::empty()).map_err(io)
}

#[cfg(not(target_os = "linux"))]
fn put(
    directory: &OwnedFd,
    temporary: &str,
    name: &str,
    path: &WorkspacePath,
    before: Option<&Before>,
) -> Result<(), ToolsError> {
    put_plainly(directory, temporary, name, path, before)
}

/// As [`put`], with a moment between the check and the renaming.
fn put_plainly(
    directory: &OwnedFd,
    temporary: &str,
    name: &str,
    path: &WorkspacePath,
    before: Option<&Before>,
) -> Result<(), ToolsError> {
    let now = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(Version::of(&stat)),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(ToolsError::io(path.shown(), error)),
    };
    if now != before.map(|before| Version::of(&before.stat)) {
        return Err(meanwhile(path));
    }
    rustix::fs::renameat(directory, temporary, directory, name)
        .map_err(|error| ToolsError::io(path.shown(), error))
}

/// Whether it is the name of a temporary file whose process has ended.
fn is_leftover(name: &str) -> bool {
    let number = name.strip_prefix(TEMPORARY).and_then(|rest| rest.strip_suffix(".tmp"));
    let process = number.and_then(|number| number.split('-').next()?.parse::<i32>().ok());
    let process = process.and_then(rustix::process::Pid::from_raw);
    process.is_some_and(|process| rustix::process::test_kill_process(process) == Err(Errno::SRCH))
}

/// Creates a temporary file in the folder.
fn create_temporary(directory: impl AsFd) -> Result<(String, File), Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TEMPORARY}{}-{number}.tmp", std::process::id());
        match rustix::fs::openat(&directory, &name, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok((name, File::from(file))),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
