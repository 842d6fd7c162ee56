//! Where a host is reached: a Unix socket beside its store, for its owner alone.
//!
//! Invariants: who holds the store's lock replaces a socket that is there already, since nobody answers it; before a client
//! says anything it knows that the process at the other end has the store's lock and was started by no command of a tool;
//! a path that is too long for a socket leads to a private folder, and a link in the store says to which, while a link in
//! the place of a socket leads nowhere; what is neither is never removed, and neither is the socket of whoever came after.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
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

/// The socket's name beside the store.
const NAME: &str = "host.sock";
/// The longest path of a socket, in bytes: systems allow between 104 and 108, with the end.
const PATH_BYTES_MAX: usize = 100;
/// The file in the store that its host has locked.
const LOCK: &str = "lock";
/// How long somebody may answer who does not have the lock, or has ended: a host lets go of its lock a moment before it ends.
const WITHOUT_LOCK_MAX: Duration = Duration::from_secs(3);

/// The path of the socket for the store in this directory, which must be there.
pub(super) fn path(data_dir: &Path) -> Result<PathBuf> {
    let real = data_dir.canonicalize().with_context(|| format!("find {}", data_dir.display()))?;
    let beside = real.join(NAME);
    if beside.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok(beside);
    }
    let name = format!("greenroom-{:016x}.sock", hash(real.as_os_str().as_bytes()));
    // Where the host is, whatever environment it was started in. The name is another one in a copy of the store.
    if let Ok(noted) = std::fs::read_link(&beside)
        && noted.file_name().is_some_and(|noted| noted.as_bytes() == name.as_bytes())
        && noted.parent().is_some_and(is_private)
        && noted.as_os_str().len() <= PATH_BYTES_MAX
    {
        return Ok(noted);
    }
    let elsewhere = match variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| is_private(dir)) {
        Some(dir) => dir.join(&name),
        None => own_folder()?.join(&name),
    };
    if elsewhere.as_os_str().len() > PATH_BYTES_MAX {
        return Ok(own_folder()?.join(&name));
    }
    Ok(elsewhere)
}

/// A folder of this user's under `/tmp`.
fn own_folder() -> Result<PathBuf> {
    let folder = PathBuf::from(format!("/tmp/greenroom-{}", rustix::process::geteuid().as_raw()));
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
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

/// Whether it is a folder of this user's, no link, which nobody else may change.
fn is_private(folder: &Path) -> bool {
    folder.is_absolute()
        && folder.symlink_metadata().is_ok_and(|metadata| {
            metadata.is_dir()
                && metadata.uid() == rustix::process::geteuid().as_raw()
                && metadata.mode() & 0o022 == 0
        })
}

/// FNV-1a: the same in every build, as both sides must find the same name. It keeps nothing apart but names of sockets.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The store's lock, as this process has it.
pub(super) struct HeldLock {
    path: PathBuf,
    file: (u64, u64),
}

impl HeldLock {
    /// That of the store in this directory. Only who holds it may call this.
    ///
    /// # Errors
    /// It cannot be found.
    pub(super) fn of(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(LOCK);
        let file = identity(&path).with_context(|| format!("find {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Whether the store is still where it was: nobody moved, removed or replaced it.
    pub(super) fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|there| there == self.file)
    }
}

/// A socket that this process listens on.
pub(super) struct Place {
    path: PathBuf,
    /// The link to it in the store, where it is elsewhere.
    link: Option<PathBuf>,
    /// Its device and number: what else has this path is another's.
    file: Mutex<(u64, u64)>,
}

impl Place {
    /// A socket in the place of this one, where it is gone.
    ///
    /// # Errors
    /// When none can be made.
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

    /// Removes it.
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

/// Listens for the store in this directory. Only who holds the store's lock may call this.
///
/// # Errors
/// When no socket can be made.
pub(super) fn listen(data_dir: &Path) -> Result<(UnixListener, Place)> {
    let path = path(data_dir)?;
    let beside = data_dir.canonicalize().with_context(|| format!("find {}", data_dir.display()))?.join(NAME);
    let link = (path != beside).then_some(beside);
    bind(path, link)
}

/// Notes in the store where its socket is.
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

fn bind(path: PathBuf, link: Option<PathBuf>) -> Result<(UnixListener, Place)> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(_) => {}
        // A link is left of a store that was moved to a shorter path.
        Ok(there) if !there.file_type().is_socket() && !there.is_symlink() => return Err(in_the_way(&path)),
        Ok(_) => match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("replace {shown}"));
            }
            Ok(()) | Err(_) => {}
        },
    }
    let listener = UnixListener::bind(&path).with_context(|| format!("listen on {shown}"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protect {shown}"))?;
    let file = Mutex::new(identity(&path).with_context(|| format!("look at {shown}"))?);
    if let Some(link) = &link {
        note(link, &path)?;
    }
    Ok((listener, Place { path, link, file }))
}

/// What came of a connection.
pub(super) enum Connected {
    /// To this process, which has the store.
    Host(UnixStream, i32),
    /// Nobody listens there.
    Nobody,
    /// Somebody did, and ends just now, or has too much to do.
    Again,
}

/// Connects to the host of the store in this directory, whose socket is at this path. Nothing is said to it yet.
///
/// # Errors
/// Whoever answers is not the host, or nobody knows; it cannot be reached for a reason that does not pass; this process is
/// one that hosts do not serve.
pub(super) async fn connect(data_dir: &Path, path: &Path) -> Result<Connected> {
    let began = Instant::now();
    loop {
        let stream = match connect_to(path).await? {
            Ok(stream) => stream,
            Err(other) => return Ok(other),
        };
        let refused = |reason: &dyn std::fmt::Display| {
            let reason = format!("what answers at {} is not spoken with: {reason}", path.display());
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
                return Err(refused(&format!("{stranger}; --no-host does without one where it has ended")));
            }
        }
    }
}

/// Connects to whoever answers there. `Err`: nobody does.
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
            // It was accepted by nobody before the listener was closed, or there is no place in its queue.
            ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected | TimedOut | WouldBlock
            | Interrupted => Ok(Err(Connected::Again)),
            PermissionDenied => Err(other_users(path).into()),
            _ => Err(Unreached::unusable("connect to", path, &error).into()),
        },
    }
}
