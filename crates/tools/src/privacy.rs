//! This process's own secrets, out of the reach of the commands that it starts.
//!
//! What an environment held when a program was started stays in the program's memory, where every process of the
//! same user can read it (`/proc/PID/environ`), whatever the program removes later. So [`hide`] executes the program
//! once more, with an environment of harmless variables, and hands the others over in a file that exists in memory
//! only. The process keeps its number, and its memory is closed to others.
//!
//! Invariants: after [`hide`], no variable outside `HARMLESS` is in the process's environment block;
//! [`variable`] gives all variables before and after it; the file that carried them is not inherited by any command.

use std::ffi::OsString;
use std::sync::OnceLock;

/// Variables that hold no secrets and that others than us read: the system's libraries, and libraries of ours.
/// All that begin with `LC_` are harmless as well.
const HARMLESS: [&str; 36] = [
    "COLORTERM",
    "COLUMNS",
    "GLIBC_TUNABLES",
    "GREENROOM_DATA_DIR",
    "GREENROOM_MODEL",
    "HOME",
    "HOSTALIASES",
    "LANG",
    "LANGUAGE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LINES",
    "LLVM_PROFILE_FILE",
    "LOCALDOMAIN",
    "LOGNAME",
    "MALLOC_ARENA_MAX",
    "NO_COLOR",
    "NO_PROXY",
    "PATH",
    "PWD",
    "RES_OPTIONS",
    "RUST_BACKTRACE",
    "RUST_LIB_BACKTRACE",
    "RUST_LOG",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TOKIO_WORKER_THREADS",
    "TZ",
    "USER",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "no_proxy",
];

/// The variable that names the descriptor of the file with the others.
pub(crate) const HANDED_OVER: &str = "GREENROOM_ENVIRONMENT_FD";

/// All variables, as they were when the program was started.
static VARIABLES: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// What [`hide`] achieved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Hidden {
    /// Other processes without privilege see neither the memory nor the secret variables of this one.
    All,
    /// They may see them, and why.
    NotAll(String),
}

/// Hides this process's secrets from others. To be called first of all in `main`, before there are threads and before
/// anything was read or written: where variables must be hidden, the program begins once more.
///
/// # Errors
/// When the variables were handed over and cannot be read: the program cannot go on without them.
pub fn hide() -> std::io::Result<Hidden> {
    system::hide()
}

/// A variable of the environment, hidden or not.
#[expect(clippy::disallowed_methods, reason = "this is where variables are looked up, hidden or not")]
pub fn variable(name: &str) -> Option<OsString> {
    match VARIABLES.get() {
        Some(variables) => variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        None => std::env::var_os(name),
    }
}

/// The names of all variables of the environment, hidden or not.
pub fn variable_names() -> Vec<OsString> {
    match VARIABLES.get() {
        Some(variables) => variables.iter().map(|(name, _)| name.clone()).collect(),
        None => std::env::vars_os().map(|(name, _)| name).collect(),
    }
}

fn is_harmless(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| HARMLESS.contains(&name) || name.starts_with("LC_"))
}

/// Other systems let nobody but `root` read what a process holds.
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

    /// The file's name, for those who look at `/proc`.
    const NAME: &str = "greenroom-environment";

    pub(super) fn hide() -> std::io::Result<Hidden> {
        // Neither traced nor read by others, except by the privileged; and no memory goes to a core file.
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

    /// Executes this program with the harmless variables; comes back only when that fails.
    fn begin_again(variables: &[(OsString, OsString)]) -> Error {
        let prepared = || {
            let program = std::env::current_exe()?;
            // The process would be killed without a word where it may not write so much.
            let bytes = variables.iter().map(|(name, value)| (name.len() + value.len() + 2) as u64).sum();
            let bytes_max = getrlimit(Resource::Fsize).current;
            if let Some(bytes_max) = bytes_max.filter(|bytes_max| *bytes_max < bytes) {
                let text = format!(
                    "a file may have {bytes_max} bytes here, and hiding the variables of the environment takes {bytes}; raise \
                     the limit with `ulimit -f`"
                );
                return Err(Error::new(ErrorKind::FileTooLarge, text));
            }
            // Without the flag that would close it on execution.
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

    /// Reads the variables that were handed over, and closes the descriptor.
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
