//! The helper's roles.
//!
//! Invariants: each role runs before a second thread exists, except for the guard's watch over its parent.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper,
    set_parent_process_death_signal, setsid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use super::Role;
use crate::process::end_descendants;
use crate::sandbox::confinement::{Confinement, filters, mount_all, restrict_files, set_limits};

mod forward;

/// The capabilities that `root` keeps in a command: those that manage files and users of a system. All others
/// concern other processes, devices, or the system as a whole. Other users have no capabilities anyway.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Performs a role; returns the exit code of the command when it ends.
pub(super) fn act(role: Role, parent: i32, command: &[OsString]) -> Result<u8> {
    crate::origin::mark()?;
    let never = match role {
        Role::Guard => return guard(parent, confined(command)),
        Role::Serve => return guard(parent, served(command)?),
        Role::Lead => lead(parent, command),
        Role::Confine => confine(parent, command),
        Role::Forward => forward::serve(command),
    };
    never.map(|never| match never {})
}

fn lead(parent: i32, command: &[OsString]) -> Result<Infallible> {
    setsid()?;
    end_with(parent)?;
    execute(command)
}

fn confine(parent: i32, arguments: &[OsString]) -> Result<Infallible> {
    let (confinement, command) = arguments.split_first().ok_or(ErrorKind::InvalidInput)?;
    let confinement = Confinement::of_argument(confinement)?;
    end_with(parent)?;
    close_files()?;
    mount_all(&confinement.mounts)?;
    if confinement.has_own_loopback {
        start_loopback();
    }
    if let Some(target) = &confinement.forward {
        forward::start(target)?;
    }
    // In its own namespace, an ordinary user's processes are counted separately. Elsewhere a limit would count
    // all processes of the user, and it does not apply to `root`.
    let counts_processes = getppid().is_none() && !rustix::process::geteuid().is_root();
    set_limits(&confinement.limits, counts_processes)?;
    give_up_privileges()?;
    forget_input()?;
    restrict_files(&confinement)?;
    match filters(&confinement) {
        Ok(filters) => {
            filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter).map_err(Error::other))?;
        }
        Err(error) if confinement.has_filter => return Err(error),
        // Without a sandbox it is one protection among others, which an unusual processor does not have.
        Err(_) => {}
    }
    execute(command)
}

/// Starts the loopback interface of a new network namespace, if there is a program that can.
fn start_loopback() {
    let program = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"].into_iter();
    if let Some(program) = program.into_iter().find(|path| std::path::Path::new(path).exists()) {
        let mut command = Command::new(program);
        // Without it, commands have no network at all.
        let _ =
            command.args(["link", "set", "lo", "up"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// Returns the program that confines itself and becomes the command.
fn confined(command: &[OsString]) -> Command {
    let [program, arguments @ ..] = Role::Confine.command_line(std::process::id());
    let mut confined = Command::new(program);
    confined.args(arguments).args(command);
    confined
}

/// Returns a program of the user's own, which gets the standard streams and no other open file.
fn served(command: &[OsString]) -> Result<Command> {
    close_files()?;
    let (program, arguments) = command.split_first().ok_or(ErrorKind::InvalidInput)?;
    let mut served = Command::new(program);
    served.args(arguments);
    Ok(served)
}

/// Makes orphaned descendants of the command children of this process, so that none is ever lost.
fn guard(parent: i32, mut command: Command) -> Result<u8> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    match parent_descriptor(parent)? {
        Some(descriptor) => {
            std::thread::Builder::new().spawn(move || {
                wait_for_end(&descriptor);
                end_descendants();
                std::process::exit(128 + Signal::KILL.as_raw());
            })?;
        }
        // An old system: the command's first process ends with this one, and this one with its parent.
        None => end_with(parent)?,
    }
    // In its own process group, so that signals that a command sends to its group do not reach this process.
    let child = command.process_group(0).spawn()?;
    let child = Pid::from_child(&child);
    let status = loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => break ExitStatus::from_raw(status.as_raw()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    end_descendants();
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// Makes this process end when its parent dies; immediately, if that has already happened.
fn end_with(parent: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    check_parent(parent)
}

fn check_parent(parent: i32) -> Result<()> {
    if Pid::as_raw(getppid()) == parent {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::NotFound, "the parent process has ended"))
    }
}

/// Returns `None` if the system does not support process descriptors.
fn parent_descriptor(parent: i32) -> Result<Option<OwnedFd>> {
    let descriptor = match Pid::from_raw(parent).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(descriptor)) => Some(descriptor),
        Some(Err(Errno::NOSYS | Errno::PERM)) => None,
        Some(Err(error)) => return Err(error.into()),
        None => return Err(ErrorKind::InvalidInput.into()),
    };
    // The descriptor refers to the parent only if the parent still has this number.
    check_parent(parent)?;
    Ok(descriptor)
}

fn wait_for_end(process: &OwnedFd) {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Closes all inherited files except the input and the outputs: the program that started the agents may have
/// left files open that are not meant for commands.
fn close_files() -> Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<OsString> = names.collect::<Result<_>>()?;
    for number in names.iter().filter_map(|name| name.to_str()?.parse::<RawFd>().ok()) {
        if number > 2 {
            // The descriptor of the directory listing is already closed.
            let _ = nix::unistd::close(number);
        }
    }
    Ok(())
}

/// Drops privileges. The order matters: without the privilege no capability set can be changed.
fn give_up_privileges() -> Result<()> {
    // No program that the command executes gets more privileges than this process, not even a set-user-ID
    // one.
    set_no_new_privs(true)?;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if KEPT.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // A capability that this system does not know, or one that we do not have: then there is none to
            // gain either.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let permitted = capabilities(None)?.permitted;
    // An ordinary user has capabilities only in a namespace, where they were needed for mounts.
    let is_root = rustix::process::geteuid().is_root();
    let kept = if is_root { permitted & KEPT } else { CapabilitySet::empty() };
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })?;
    Ok(())
}

/// Forgets what this process still holds of the program that started it.
fn forget_input() -> Result<()> {
    Ok(rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?)
}

fn execute(command: &[OsString]) -> Result<Infallible> {
    let (program, arguments) = command.split_first().ok_or(ErrorKind::InvalidInput)?;
    let error = Command::new(program).args(arguments).exec();
    Err(Error::new(error.kind(), format!("{}: {error}", program.display())))
}
