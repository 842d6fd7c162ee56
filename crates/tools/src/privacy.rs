//! Hides this process's secrets from the commands that it starts.
//!
//! The environment with which a program was started stays in the program's memory, where every process of the
//! same user can read it (`/proc/PID/environ`), even if the program later removes variables. So [`hide`]
//! executes the program again, with an environment of harmless variables, and passes the others in a
//! memory-only file. The process keeps its number, and its memory is closed to others.
//!
//! Invariants: after [`hide`], no variable outside `HARMLESS` is in the process's environment block;
//! [`variable`] returns all variables before and after it; no command inherits the file that carried them.

use std::ffi::OsString;
use std::sync::OnceLock;

/// Variables that hold no secrets and that system libraries and our dependencies read. All variables that
/// begin with `LC_` are harmless as well.
const HARMLESS: [&str; 36] = [
    "COLORTERM", "COLUMNS", "GLIBC_TUNABLES", "GREENROOM_DATA_DIR", "GREENROOM_MODEL", "HOME", "HOSTALIASES",
    "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LINES", "LLVM_PROFILE_FILE", "LOCALDOMAIN",
    "LOGNAME", "MALLOC_ARENA_MAX", "NO_COLOR", "NO_PROXY", "PATH", "PWD", "RES_OPTIONS", "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE", "RUST_LOG", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR",
    "TOKIO_WORKER_THREADS", "TZ", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "no_proxy",
];

/// The variable that holds the descriptor of the file with the other variables.
pub(crate) const HANDED_OVER: &str = "GREENROOM_ENVIRONMENT_FD";

/// All variables as of program start.
static VARIABLES: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// The result of [`hide`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Hidden {
    /// Unprivileged processes can see neither the memory nor the secret variables of this one.
    All,
    /// They may be visible, with the reason.
    NotAll(String),
}

/// Hides this process's secrets from others. Call it first in `main`, before there are threads and before any
/// input or output: if variables must be hidden, the program is executed again.
///
/// # Errors
/// If variables were passed but cannot be read: the program cannot continue without them.
pub fn hide() -> std::io::Result<Hidden> {
    system::hide()
}

/// Returns an environment variable, hidden or not.
#[expect(clippy::disallowed_methods, reason = "this is where variables are looked up, hidden or not")]
pub fn variable(name: &str) -> Option<OsString> {
    match VARIABLES.get() {
        Some(variables) => variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        None => std::env::var_os(name),
    }
}

/// Returns the names of all environment variables, hidden or not.
pub fn variable_names() -> Vec<OsString> {
    match VARIABLES.get() {
        Some(variables) => variables.iter().map(|(name, _)| name.clone()).collect(),
        None => std::env::vars_os().map(|(name, _)| name).collect(),
    }
}

fn is_harmless(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| HARMLESS.contains(&name) || name.starts_with("LC_"))
}

/// On other systems only `root` can read the memory of a process.
#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn hide() -> std::io::Result<super::Hidden> {
        Ok(super::Hidden::NotAll("only Linux offers what this needs".to_owned()))
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::OsString;
    use std::fs::File;
    use std::io::{Error, ErrorKind, Read, Write};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::fs::MemfdFlags;
    use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior};

    use super::{HANDED_OVER, Hidden, VARIABLES, is_harmless, variable};

    /// The file's name, visible in `/proc`.
    const NAME: &str = "greenroom-environment";

    pub(super) fn hide() -> std::io::Result<Hidden> {
        // Unprivileged processes can neither trace nor read it, and no memory goes to a core file.
        let closed = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        if let Some(number) = variable(HANDED_OVER) {
            let taken = take(&number).map_err(|error| {
                Error::new(error.kind(), format!("read the environment that was handed over: {error}"))
            })?;
            let _ = VARIABLES.set(taken);
        } else {
            let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
            if !variables.iter().all(|(name, _)| is_harmless(name)) {
                return Ok(Hidden::NotAll(begin_again(&variables).to_string()));
            }
        }
        Ok(match closed {
            Ok(()) => Hidden::All,
            Err(error) => Hidden::NotAll(error.to_string()),
        })
    }

    /// Executes this program with the harmless variables; returns only on failure.
    fn begin_again(variables: &[(OsString, OsString)]) -> Error {
        let prepared = || {
            let program = std::env::current_exe()?;
            // The process would be killed without a message if it exceeded the file size limit.
            let bytes = variables.iter().map(|(name, value)| (name.len() + value.len() + 2) as u64).sum();
            let bytes_max = getrlimit(Resource::Fsize).current;
            if let Some(bytes_max) = bytes_max.filter(|bytes_max| *bytes_max < bytes) {
                let text = format!(
                    "a file may have {bytes_max} bytes here, and hiding the variables of the environment takes {bytes}; raise \
                     the limit with `ulimit -f`"
                );
                return Err(Error::new(ErrorKind::FileTooLarge, text));
            }
            // Without the close-on-exec flag.
            let mut file = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::empty())?);
            for (name, value) in variables {
                file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
            }
            Ok((program, file))
        };
        let (program, file) = match prepared() {
            Ok(prepared) => prepared,
            Err(error) => return error,
        };
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.args(arguments).env_clear();
        command.envs(variables.iter().filter(|(name, _)| is_harmless(name)).cloned());
        command.env(HANDED_OVER, file.as_raw_fd().to_string()).exec()
    }

    /// Reads the passed variables and closes the descriptor.
    fn take(number: &OsString) -> std::io::Result<Vec<(OsString, OsString)>> {
        let number: Option<RawFd> = number.to_str().and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "no descriptor is named"))?;
        let path = format!("/proc/self/fd/{number}");
        let target = std::fs::read_link(&path)?;
        if !target.as_os_str().as_bytes().starts_with(format!("/memfd:{NAME}").as_bytes()) {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{} is another file", target.display())));
        }
        let mut bytes = Vec::new();
        File::open(&path)?.read_to_end(&mut bytes)?;
        nix::unistd::close(number)?;
        let pairs = bytes.split(|byte| *byte == 0).filter_map(|pair| {
            let end = pair.iter().skip(1).position(|byte| *byte == b'=')? + 1;
            Some((OsString::from_vec(pair[..end].to_vec()), OsString::from_vec(pair[end + 1..].to_vec())))
        });
        Ok(pairs.collect())
    }
}
