//! Identifies the process at the other end of a socket, and decides whether to talk to it.
//!
//! A path does not prove who listens there: a command of a model has the user's own rights, and can create a
//! socket there. So both sides ask the system about the other process before they send anything.
//!
//! Invariants: facts about a process are read while it lives, so a reused process id identifies nobody; a
//! process about which the system does not say enough is refused.

use std::fmt;
use std::path::Path;

use greenroom_tools::origin;
use tokio::net::UnixStream;

/// The reason for refusing a process that a command of a tool has started, on either side.
pub(super) const OF_COMMAND: &str = "a command of a tool started this process (`ulimit -x` is not unlimited here), and hosts \
    serve no such processes; give it a store of its own with --data-dir";

/// Why a peer is refused.
#[derive(Debug)]
pub(super) enum Stranger {
    /// The process has ended.
    Gone,
    /// It belongs to another user.
    OtherUser,
    /// A command of a tool started it.
    OfCommand(i32),
    /// The system does not say enough about it.
    Unknown(String),
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it has ended"),
            Self::OtherUser => f.write_str("it is another user's"),
            Self::OfCommand(process) => write!(f, "a command of a tool started it (process {process})"),
            Self::Unknown(reason) => write!(f, "this system does not report its owner: {reason}"),
        }
    }
}

/// Returns the process at the other end, if it belongs to this user and was not started by a command of a
/// tool.
///
/// # Errors
/// It does not, or this is unknown.
pub(super) fn process(stream: &UnixStream) -> Result<i32, Stranger> {
    let Ok(peer) = stream.peer_cred() else { return Err(Stranger::Gone) };
    if peer.uid() != rustix::process::geteuid().as_raw() {
        return Err(Stranger::OtherUser);
    }
    let handle = Handle::of(stream)?;
    let Some(process) = peer.pid().filter(|process| *process > 0) else {
        return Err(Stranger::Unknown("it is in another PID namespace".to_owned()));
    };
    let is_of_command = origin::is_process_of_command(process);
    // The facts belong to this process only if it still lives.
    if handle.has_ended() {
        return Err(Stranger::Gone);
    }
    match is_of_command {
        Ok(false) => Ok(process),
        Ok(true) => Err(Stranger::OfCommand(process)),
        Err(error) => Err(Stranger::Unknown(format!("process {process}: {error}"))),
    }
}

/// Checks that peers can be identified here, and that peers accept this process.
///
/// # Errors
/// The reason why not.
pub(crate) fn check_possible() -> Result<(), String> {
    if origin::is_of_command() {
        return Err(OF_COMMAND.to_owned());
    }
    let pair = UnixStream::pair().map_err(|error| error.to_string())?;
    match process(&pair.0) {
        Ok(_) => Ok(()),
        Err(stranger) => Err(stranger.to_string()),
    }
}

/// Whether a process holds this lock, by the system's information if available: the file's content may be
/// written by anybody.
pub(super) fn holds(process: i32, lock: &Path) -> bool {
    let number = |lock: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        lock.metadata().map(|metadata| metadata.ino())
    };
    let Ok(number) = number(lock) else { return false };
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let holders = holders(&locks, number);
    if holders.is_empty() {
        let noted = std::fs::read_to_string(lock).ok().and_then(|text| text.trim().parse().ok());
        return noted == Some(process);
    }
    holders.contains(&process)
}

/// Returns the processes that hold an exclusive lock on the whole file with this inode, by `/proc/locks`. The
/// device is not compared, because some file systems report another one there than in the metadata of their
/// files.
fn holders(locks: &str, number: u64) -> Vec<i32> {
    let holders = locks.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // 1: FLOCK  ADVISORY  WRITE 25121 fe:00:3153 0 EOF
        let [_, "FLOCK", _, "WRITE", process, file, ..] = fields[..] else { return None };
        let (_, of_file) = file.rsplit_once(':')?;
        (of_file.parse() == Ok(number)).then(|| process.parse().ok()).flatten()
    });
    holders.collect()
}

/// A reference to a process that stays valid when its id is reused.
struct Handle(#[cfg(target_os = "linux")] std::os::fd::OwnedFd);

impl Handle {
    #[cfg(target_os = "linux")]
    fn of(stream: &UnixStream) -> Result<Self, Stranger> {
        use nix::errno::Errno;
        use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
        match getsockopt(stream, PeerPidfd) {
            Ok(handle) => Ok(Self(handle)),
            // Handles are available only for living processes.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => Err(Stranger::Gone),
            Err(Errno::ENOPROTOOPT) => Err(Stranger::Unknown("this requires Linux 6.5 or newer".to_owned())),
            Err(error) => Err(Stranger::Unknown(error.desc().to_owned())),
        }
    }

    #[cfg(target_os = "linux")]
    fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If this cannot be determined, the process does not count as living.
        !matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&now)), Ok(0))
    }

    #[cfg(not(target_os = "linux"))]
    fn of(_: &UnixStream) -> Result<Self, Stranger> {
        Err(Stranger::Unknown("that takes Linux".to_owned()))
    }

    #[cfg(not(target_os = "linux"))]
    fn has_ended(&self) -> bool {
        true
    }
}

/// Returns the refusal for a peer.
pub(super) fn refusal(reason: &dyn fmt::Display) -> String {
    let error = serde_json::json!({
        "code": -32_600,
        "message": format!("this host rejects this process: {reason}"),
    });
    serde_json::json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string() + "\n"
}

#[cfg(test)]
mod tests;
