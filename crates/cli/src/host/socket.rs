//! Where a host is reached: a Unix socket beside its store, for its owner alone.
//!
//! Invariants: who holds the store's lock replaces a socket that is there already, since nobody answers it; a peer of
//! another user is refused on both sides; a path that is too long for a socket leads to a private folder, always the same one.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tokio::net::{UnixListener, UnixStream};

use crate::errors::usage;
use crate::terminal::variable;

/// The socket's name beside the store.
const NAME: &str = "host.sock";
/// The longest path of a socket, in bytes: systems allow between 104 and 108, with the end.
const PATH_BYTES_MAX: usize = 100;

/// The path of the socket for the store in this directory, which must be there.
pub(super) fn path(data_dir: &Path) -> Result<PathBuf> {
    let real = data_dir.canonicalize().with_context(|| format!("find {}", data_dir.display()))?;
    let beside = real.join(NAME);
    if beside.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok(beside);
    }
    let name = format!("greenroom-{:016x}.sock", hash(real.as_os_str().as_bytes()));
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
        "{folder} must be a folder of yours that nobody else can write: remove it, or set XDG_RUNTIME_DIR"
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

/// FNV-1a: the same in every build, as both sides must find the same name.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Listens there. Only who holds the store's lock may call this.
///
/// # Errors
/// When no socket can be made there.
pub(super) fn listen(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("replace {}", path.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .with_context(|| format!("protect {}", path.display()))?;
    Ok(listener)
}

/// Whether whoever is at the other end is this user.
pub(super) fn is_own(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

/// A connection to whoever answers there; `None` where nobody does.
///
/// # Errors
/// It is another user's, or cannot be reached for another reason than that nobody listens.
pub(super) async fn connect(path: &Path) -> Result<Option<UnixStream>> {
    match UnixStream::connect(path).await {
        Ok(stream) if is_own(&stream) => Ok(Some(stream)),
        Ok(_) => Err(usage(format!("{} is another user's socket; remove it", path.display()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("connect to {}", path.display())),
    }
}
