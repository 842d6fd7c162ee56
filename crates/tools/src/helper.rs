//! The helper: another instance of this program, between the process that runs agents and a command.
//!
//! A process must give up some things before it becomes a command (privileges, its tie to a process that may
//! die), and can only do so itself, between its own start and the command's. Without `unsafe` that takes a
//! separate program, and the one that is always available is our own: [`run_if_requested`] at the beginning of
//! `main` makes it a helper.
//!
//! Invariants: a helper reads nothing but its arguments, and its environment is the command's. A command that
//! it starts can gain no privilege, and keeps none that concerns other processes or the system. When the
//! process that requested the command dies, for whatever reason, the command and all processes it started are
//! ended. A part of the sandbox that cannot be applied keeps the command from starting. Every process can be recognised as started by a helper ([`origin`](crate::origin)).

#[cfg(target_os = "linux")]
mod roles;

use std::ffi::OsString;
use std::fs::File;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

/// The first argument that selects the helper mode.
const HELPER_ARGUMENT: &str = "__command";
/// The program file, passed as the helper's standard input. It can be opened even if its file was replaced or
/// deleted meanwhile, and in another mount namespace.
const PROGRAM: &str = "/proc/self/fd/0";

/// A program that calls [`run_if_requested`], started as the helper. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Helper(Arc<File>);

impl Helper {
    /// Returns the running program.
    ///
    /// # Errors
    /// If its file cannot be opened, and on systems other than Linux.
    pub fn this_program() -> std::io::Result<Self> {
        if cfg!(target_os = "linux") {
            File::open("/proc/self/exe").map(|file| Self(Arc::new(file)))
        } else {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    /// Returns a path of the program that is valid until a child of this process starts it.
    pub(crate) fn path(&self) -> String {
        use std::os::fd::AsRawFd as _;
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    /// Returns the helper's standard input.
    pub(crate) fn input(&self) -> std::io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }
}

/// The task of a helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Detach from the terminal, end together with the parent, and become the command.
    Lead,
    /// Detach from the terminal, start the command, and end all processes it started when it or the parent
    /// ends.
    Guard,
    /// Detach from the terminal, start a program of the user's own with the standard streams, and end all processes it
    /// started when it or the parent ends.
    Serve,
    /// Apply the confinement that is the first argument, drop privileges and become the command.
    Confine,
    /// Pass connections on from standard input, a listening socket, to the proxy of a sandbox.
    Forward,
}

impl Role {
    const ALL: [(Self, &str); 5] = [
        (Self::Lead, "lead"),
        (Self::Guard, "guard"),
        (Self::Serve, "serve"),
        (Self::Confine, "confine"),
        (Self::Forward, "forward"),
    ];

    /// Returns the command line that starts a helper in this role; the command's own arguments follow it.
    /// `parent` is 0 for the first process of a PID namespace.
    pub(crate) fn command_line(self, parent: u32) -> [OsString; 4] {
        let [mode, name, parent] = self.arguments(parent);
        [PROGRAM.into(), mode, name, parent]
    }

    /// Returns the arguments of a helper in this role, without the program.
    pub(crate) fn arguments(self, parent: u32) -> [OsString; 3] {
        let (_, name) = Self::ALL.into_iter().find(|(role, _)| *role == self).expect("all are named");
        [HELPER_ARGUMENT.into(), name.into(), parent.to_string().into()]
    }
}

/// Acts as the helper if this process was started as one; `main` must then return the exit code. Call it
/// before anything else.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != HELPER_ARGUMENT {
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
            let text = format!("cannot start the command: {error}");
            // A command has one reader for both outputs. The standard output of a server is for its protocol.
            let _ = match role {
                Role::Serve => writeln!(std::io::stderr(), "{text}"),
                Role::Lead | Role::Guard | Role::Confine | Role::Forward => {
                    writeln!(std::io::stdout(), "{text}")
                }
            };
            ExitCode::from(126)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn act(_: Role, _: i32, _: &[OsString]) -> ExitCode {
    ExitCode::from(126)
}
