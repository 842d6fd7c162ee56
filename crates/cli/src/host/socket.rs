//! The socket of a host: a Unix socket in its store's folder, for its owner alone.
//!
//! Invariants: the holder of the store's lock replaces an existing socket, because nobody serves it; before a
//! client sends anything, it knows that the process at the other end holds the store's lock and was not
//! started by a command of a tool; if the path is too long for a socket, the socket is in a private folder,
//! to which a link in the store leads, while a link in the place of a socket is not followed; other files are
//! never removed, and neither is a successor's socket.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_files::access::{self, Need};
use greenroom_files::private;
use greenroom_terminal::screen::variable;
use greenroom_tools::origin;
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

use super::AGAIN_AFTER;
use super::error::{Unreached, other_users};
use super::peer::{self, Stranger};
use crate::error::{self, usage};

#[cfg(test)]
mod tests;

/// The socket's name in the store's folder.
const NAME: &str = "host.sock";
/// The longest path of a socket, in bytes: systems allow between 104 and 108, including the terminator.
const PATH_BYTES_MAX: usize = 100;
/// The file in the store that its host has locked.
const LOCK: &str = "lock";
/// How long a process without the lock may answer: a host releases its lock a moment before it ends.
const WITHOUT_LOCK_MAX: Duration = Duration::from_secs(3);

/// Returns the path of the socket for the store in this directory, which must exist.
pub(super) fn path(data_dir: &Path) -> Result<PathBuf> {
    let real = data_dir.canonicalize().with_context(|| format!("find {}", data_dir.display()))?;
    let beside = real.join(NAME);
    if beside.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok(beside);
    }
    let name = format!("greenroom-{:016x}.sock", hash(real.as_os_str().as_bytes()));
    // The noted path, which does not depend on the host's environment. A copy of the store has another name.
    if let Ok(noted) = std::fs::read_link(&beside)
        && noted.file_name().is_some_and(|noted| noted.as_bytes() == name.as_bytes())
        && noted.parent().is_some_and(is_private)
        && noted.as_os_str().len() <= PATH_BYTES_MAX
    {
        return Ok(noted);
    }
    match elsewhere(&name, variable("XDG_RUNTIME_DIR").map(PathBuf::from)) {
        Some(elsewhere) => Ok(elsewhere),
        None => Ok(own_folder(own_folder_path())?.join(&name)),
    }
}

/// Returns the path of a socket with this name in the user's folder for sockets, if that is private and the path
/// is short enough.
fn elsewhere(name: &str, folder: Option<PathBuf>) -> Option<PathBuf> {
    let path = folder.filter(|folder| is_private(folder))?.join(name);
    (path.as_os_str().len() <= PATH_BYTES_MAX).then_some(path)
}

/// Returns the path of a folder of this user.
fn own_folder_path() -> PathBuf {
    PathBuf::from(format!("/tmp/greenroom-{}", access::user()))
}

/// Creates a folder of this user, if it does not exist.
fn own_folder(folder: PathBuf) -> Result<PathBuf> {
    match private::create_folder(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("make {}", folder.display()));
        }
        Ok(()) | Err(_) => {}
    }
    if is_private(&folder) {
        return Ok(folder);
    }
    let folder = folder.display();
    Err(usage(format!(
        "{folder} must be your own folder, not writable by others: remove it, or set XDG_RUNTIME_DIR"
    )))
}

/// Whether this is a folder of this user, not a link, that nobody else may change.
fn is_private(folder: &Path) -> bool {
    folder.is_absolute()
        && folder
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir() && access::check(&metadata, Need::Own).is_ok())
}

/// FNV-1a: the same in every build, because both sides must compute the same name. It only separates the
/// names of sockets.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The store's lock, as this process holds it.
pub(super) struct HeldLock {
    path: PathBuf,
    file: (u64, u64),
}

impl HeldLock {
    /// Returns the lock of the store in this directory. Only the holder may call this.
    ///
    /// # Errors
    /// The lock cannot be found.
    pub(super) fn of(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(LOCK);
        let file = identity(&path).with_context(|| format!("find {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Whether the store is still in its place: not moved, removed or replaced.
    pub(super) fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|there| there == self.file)
    }
}

/// A socket on which this process listens.
pub(super) struct HostSocket {
    path: PathBuf,
    /// The link to it in the store, if it is elsewhere.
    link: Option<PathBuf>,
    /// Its device and inode: any other file at this path is not ours.
    file: Mutex<(u64, u64)>,
}

impl HostSocket {
    /// Creates the socket again if it is gone.
    ///
    /// # Errors
    /// No socket can be created.
    pub(super) fn renewed(&self) -> Result<Option<UnixListener>> {
        if self.is_there() {
            if let Some(link) = &self.link {
                note(link, &self.path)?;
            }
            return Ok(None);
        }
        let (listener, Self { file, .. }) = bind(self.path.clone(), self.link.clone())?;
        *self.file.lock() = file.into_inner();
        Ok(Some(listener))
    }

    /// Removes the socket.
    pub(super) fn leave(&self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(link) = &self.link
            && std::fs::read_link(link).is_ok_and(|noted| noted == self.path)
        {
            let _ = std::fs::remove_file(link);
        }
    }

    fn is_there(&self) -> bool {
        let file = *self.file.lock();
        identity(&self.path).is_ok_and(|there| there == file)
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Listens for the store in this directory. Only the holder of the store's lock may call this.
///
/// # Errors
/// No socket can be created.
pub(super) fn listen(data_dir: &Path) -> Result<(UnixListener, HostSocket)> {
    let path = path(data_dir)?;
    let beside = data_dir.canonicalize().with_context(|| format!("find {}", data_dir.display()))?.join(NAME);
    let link = (path != beside).then_some(beside);
    bind(path, link)
}

/// Notes the socket's path in the store.
fn note(link: &Path, path: &Path) -> Result<()> {
    let shown = link.display();
    match link.symlink_metadata() {
        Err(_) => {}
        Ok(there) if there.is_symlink() || there.file_type().is_socket() => {
            if std::fs::read_link(link).is_ok_and(|noted| noted == path) {
                return Ok(());
            }
            std::fs::remove_file(link).with_context(|| format!("replace {shown}"))?;
        }
        Ok(_) => return Err(in_the_way(link)),
    }
    std::os::unix::fs::symlink(path, link).with_context(|| format!("make {shown}"))
}

fn in_the_way(path: &Path) -> anyhow::Error {
    let shown = path.display();
    usage(format!("{shown} exists and is not a socket; move it so that the host can listen there"))
}

fn bind(path: PathBuf, link: Option<PathBuf>) -> Result<(UnixListener, HostSocket)> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(_) => {}
        // A store that was moved to a shorter path leaves a link behind.
        Ok(there) if !there.file_type().is_socket() && !there.is_symlink() => return Err(in_the_way(&path)),
        Ok(_) => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error::of_store("replace", &path, &error).into());
            }
            Ok(()) | Err(_) => {}
        },
    }
    // What is missing is a permission of the directory.
    let folder = path.parent().unwrap_or(&path);
    let refused = |error| error::of_store("create the host's socket in", folder, &error);
    let listener = UnixListener::bind(&path).map_err(refused)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(private::FILE_MODE))
        .with_context(|| format!("protect {shown}"))?;
    let file = Mutex::new(identity(&path).with_context(|| format!("look at {shown}"))?);
    if let Some(link) = &link {
        note(link, &path)?;
    }
    Ok((listener, HostSocket { path, link, file }))
}

/// The result of a connection attempt.
pub(super) enum Connected {
    /// Connected to this process, which holds the store.
    Host(UnixStream, i32),
    /// No process listens there.
    Nobody,
    /// The process is just ending, or is overloaded.
    Again,
}

/// Connects to the host of the store in this directory, whose socket is at this path. Nothing is sent yet.
///
/// # Errors
/// The process is not the host, or this is unknown; it cannot be reached for a permanent reason; hosts do not
/// serve this process.
pub(super) async fn connect(data_dir: &Path, path: &Path) -> Result<Connected> {
    let began = Instant::now();
    loop {
        let stream = match connect_to(path).await? {
            Ok(stream) => stream,
            Err(other) => return Ok(other),
        };
        let refused = |reason: &dyn std::fmt::Display| {
            let reason = format!("the process that answers at {} is not trusted: {reason}", path.display());
            Unreached::refused(error::STORE, &reason).into()
        };
        if origin::is_of_command() {
            return Err(refused(&peer::OF_COMMAND));
        }
        match peer::process(&stream) {
            Ok(process) if peer::holds(process, &data_dir.join(LOCK)) => {
                return Ok(Connected::Host(stream, process));
            }
            Ok(_) | Err(Stranger::Gone) if began.elapsed() < WITHOUT_LOCK_MAX => sleep(AGAIN_AFTER).await,
            Ok(process) => {
                let reason =
                    format!("it does not have the store's lock, as the host would (process {process})");
                return Err(refused(&reason));
            }
            Err(Stranger::Gone) => {
                return Err(refused(
                    &"the process that listened there has ended, and another one has its socket",
                ));
            }
            Err(Stranger::OtherUser) => return Err(other_users(path).into()),
            Err(stranger @ Stranger::OfCommand(_)) => {
                let advice = "end that command, or remove the socket";
                return Err(refused(&format!("{stranger}, and no host is; {advice}")));
            }
            Err(stranger @ Stranger::Unknown(_)) => {
                return Err(refused(&format!(
                    "{stranger}; once it has ended, --no-host runs without a host"
                )));
            }
        }
    }
}

/// Connects to the process that listens there. `Err` means that there is none.
#[expect(clippy::wildcard_enum_match_arm, reason = "the system's errors are open-ended")]
async fn connect_to(path: &Path) -> Result<Result<UnixStream, Connected>> {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, NotConnected,
        NotFound, PermissionDenied, TimedOut, WouldBlock,
    };
    if path.is_symlink() {
        return Ok(Err(Connected::Nobody));
    }
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Ok(stream)),
        Err(error) => match error.kind() {
            NotFound | ConnectionRefused => Ok(Err(Connected::Nobody)),
            // The listener was closed before it accepted, or its queue is full.
            ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected | TimedOut | WouldBlock
            | Interrupted => Ok(Err(Connected::Again)),
            PermissionDenied => Err(other_users(path).into()),
            _ => Err(Unreached::unusable("connect to", path, &error).into()),
        },
    }
}
