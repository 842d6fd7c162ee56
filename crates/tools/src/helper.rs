//! The helper: this program once more, between the process that runs agents and a command.
//!
//! What a process must give up before it becomes a command (privileges, its tie to a process that may die) can only be
//! given up by that process itself, between its start and the command's. Without `unsafe` that takes a program, and
//! the one that is always there is our own: [`act_if_asked`] at the beginning of `main` makes it a helper.
//!
//! Invariants: a helper reads nothing but its arguments, and its environment is the command's. A command that it
//! starts can gain no privilege, and none that concerns other processes or the system is left to it. When the process
//! that asked for the command dies, however that happens, the command and all that it started are ended. Everybody can see
//! of a process that it comes from a helper ([`origin`](crate::origin)).

#[cfg(target_os = "linux")]
mod roles;

use std::ffi::OsString;
use std::fs::File;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

/// The first argument of a helper.
const ASKED: &str = "__command";
/// The program that a helper's standard input is. It is found even if its file was replaced or deleted meanwhile, and
/// in another mount namespace.
const PROGRAM: &str = "/proc/self/fd/0";

/// A program that calls [`act_if_asked`], to be started as the helper. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Helper(Arc<File>);

impl Helper {
    /// The program that is running.
    ///
    /// # Errors
    /// Where its file cannot be opened, and on other systems than Linux.
    pub fn this_program() -> std::io::Result<Self> {
        if cfg!(target_os = "linux") {
            File::open("/proc/self/exe").map(|file| Self(Arc::new(file)))
        } else {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    /// What a helper's standard input must be.
    pub(crate) fn input(&self) -> std::io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }
}

/// What a helper is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Leave the terminal, be ended with the parent, and become the command.
    Lead,
    /// Leave the terminal, start the command, and end all that it has started when it or the parent has ended.
    Guard,
    /// Give up privileges and become the command.
    Confine,
}

impl Role {
    const ALL: [(Self, &str); 3] = [(Self::Lead, "lead"), (Self::Guard, "guard"), (Self::Confine, "confine")];

    /// The command line by which a helper gets this role; the command's own is to follow. Its parent's number is 0 for
    /// the first process of a PID namespace.
    pub(crate) fn command_line(self, parent: u32) -> [OsString; 4] {
        let (_, name) = Self::ALL.into_iter().find(|(role, _)| *role == self).expect("all are named");
        [PROGRAM.into(), ASKED.into(), name.into(), parent.to_string().into()]
    }
}

/// Acts as the helper, if that is what this process was started for; the exit code is then to be returned from `main`.
/// To be called before anything else.
pub fn act_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    let name = arguments.next()?;
    let (role, _) = Role::ALL.into_iter().find(|(_, known)| name == *known)?;
    let parent = arguments.next()?.to_str()?.parse().ok()?;
    Some(act(role, parent, &arguments.collect::<Vec<OsString>>()))
}

#[cfg(target_os = "linux")]
fn act(role: Role, parent: i32, command: &[OsString]) -> ExitCode {
    use std::io::Write;
    match roles::act(role, parent, command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // What a command prints goes there, and that the command could not begin is for the same reader.
            let _ = writeln!(std::io::stdout(), "cannot start the command: {error}");
            ExitCode::from(126)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn act(_: Role, _: i32, _: &[OsString]) -> ExitCode {
    ExitCode::from(126)
}
