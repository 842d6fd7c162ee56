//! Errors about hosts that cannot be reached.
//!
//! Invariants: the message about a silent host is the same in all commands.

use std::fmt;
use std::path::Path;

use greenroom_server::ClientError;

use super::LOG_FILE;
use crate::error::{self, CliError};

/// The advice after giving up on a silent host.
pub(super) const GIVEN_UP: &str = "wait, or kill it with `greenroom host --stop --force`";

/// Why no host can be reached.
#[derive(Debug, Clone)]
pub(crate) struct Unreached {
    /// The message and its exit code.
    pub(super) failure: CliError,
    /// Whether there is a host that does not answer.
    is_silent: bool,
}

impl Unreached {
    /// Creates the error of a host that could not start, with its message.
    pub(super) fn refused(code: u8, reason: &str) -> Self {
        Self { failure: CliError::new(code, reason), is_silent: false }
    }

    /// Creates an error of the system about a path in the store. `action` is a verb.
    pub(super) fn unusable(action: &'static str, path: &Path, error: &std::io::Error) -> Self {
        Self { failure: error::of_store(action, path, error), is_silent: false }
    }

    /// Creates the error that the host of this store is connected but does not answer.
    pub(super) fn silent(dir: &Path) -> Self {
        Self { failure: CliError::new(error::STORE, silent_text(dir, GIVEN_UP)), is_silent: true }
    }

    /// Creates the error that all hosts ended as they started. `last_words` is the newest one's last log
    /// message.
    pub(super) fn died(last_words: Option<&str>) -> Self {
        let told = match last_words {
            Some(words) => format!("the last line of {LOG_FILE} beside the store is: {words}"),
            None => format!("see {LOG_FILE} beside the store"),
        };
        let reason = format!("background hosts exited on startup; {told}; use --no-host to run without one");
        Self::refused(error::FAILED, &reason)
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl std::error::Error for Unreached {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.failure)
    }
}

/// Creates the error that the socket or its folder belongs to another user.
pub(super) fn other_users(path: &Path) -> CliError {
    let text = match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let folder = path.parent().unwrap_or(path).display();
            format!("the store in {folder} is not accessible to you; name another one with --data-dir")
        }
        Ok(_) | Err(_) => format!(
            "{} is another user's socket; remove it, or name another store with --data-dir",
            path.display()
        ),
    };
    CliError::new(error::STORE, text)
}

/// Whether the connection to a host ended, or the host was about to end, before it performed the request. The
/// request may have been performed.
pub(crate) fn is_gone(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<ClientError>()).any(ClientError::is_gone)
}

/// Whether a host was connected, and did not answer.
pub(crate) fn is_silent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Unreached>().is_some_and(|unreached| unreached.is_silent)
        || error.chain().filter_map(|cause| cause.downcast_ref::<ClientError>()).any(is_silent_client)
}

/// Whether the client gave up on a silent host.
pub(crate) fn is_silent_client(error: &ClientError) -> bool {
    matches!(error, ClientError::Silent(_))
}

/// Returns the message that the host of this store does not answer, with advice.
pub(super) fn silent_text(dir: &Path, advice: &str) -> String {
    match holder(dir) {
        Some(pid) => format!(
            "the host of this store (process {pid}) does not answer; {advice}: nothing that was acknowledged is lost"
        ),
        None => "the host of this store does not answer".to_owned(),
    }
}

/// Returns the process that holds the store, by its lock.
pub(super) fn holder(dir: &Path) -> Option<i32> {
    std::fs::read_to_string(dir.join("lock")).ok()?.trim().parse().ok()
}
