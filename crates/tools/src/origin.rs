//! Which processes were started by a command of a tool, and how others can tell.
//!
//! A command can leave its parent, its session, its process group, its environment and its program behind. What it cannot
//! leave is a hard limit: every child inherits it, every program that is executed keeps it, and only `CAP_SYS_RESOURCE` of
//! the system itself raises it again, which no command has. So the helper gives commands a hard limit on file locks
//! (`RLIMIT_LOCKS`). Linux has counted none of these locks since 2.4.25: the limit changes nothing, and everybody else has
//! none.
//!
//! Invariants: a process that a [`Helper`](crate::builtin::bash::Helper) started, and every process that comes from it, is
//! marked for as long as it lives; whatever cannot be read is an error, and never "no".

/// Whether this process was started by a command of a tool, or by whatever that has started.
#[cfg(target_os = "linux")]
pub fn is_of_command() -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Locks).maximum.is_some()
}

/// Whether this process was started by a command of a tool: never known on this system.
#[cfg(not(target_os = "linux"))]
pub fn is_of_command() -> bool {
    false
}

/// Whether another process was started by a command of a tool. Its number may be given to another process meanwhile:
/// whoever asks must know that it still lives when the answer is there.
///
/// # Errors
/// The process is gone, or this system does not say; also where the process is in another PID namespace than this one,
/// as then the system does not say enough to either of the two.
#[cfg(target_os = "linux")]
pub fn is_process_of_command(process: i32) -> std::io::Result<bool> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}"));
    if is_marked(&read("limits")?)? {
        return Ok(true);
    }
    let own = std::fs::read_to_string("/proc/self/status")?;
    let is_same = namespaces(&own)? == 1 && namespaces(&read("status")?)? == 1;
    if is_same { Ok(false) } else { Err(std::io::Error::other("it is in another PID namespace")) }
}

/// Whether another process was started by a command of a tool: never known on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn is_process_of_command(_: i32) -> std::io::Result<bool> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Marks this process, and so whatever it starts from now on.
#[cfg(target_os = "linux")]
pub(crate) fn mark() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if is_of_command() {
        return Ok(());
    }
    Ok(setrlimit(Resource::Locks, Rlimit { current: Some(LOCKS), maximum: Some(LOCKS) })?)
}

/// More than any process ever has. Only that there is a limit matters.
#[cfg(target_os = "linux")]
const LOCKS: u64 = 1 << 30;

/// In how many PID namespaces a process is, from that of `/proc` on downwards.
#[cfg(target_os = "linux")]
fn namespaces(status: &str) -> std::io::Result<usize> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers = numbers.ok_or_else(|| std::io::Error::other("/proc does not tell of PID namespaces"))?;
    Ok(numbers.split_ascii_whitespace().count())
}

#[cfg(target_os = "linux")]
fn is_marked(limits: &str) -> std::io::Result<bool> {
    let values = limits.lines().find_map(|line| line.strip_prefix("Max file locks"));
    let hard = values.and_then(|values| values.split_ascii_whitespace().nth(1));
    let hard = hard.ok_or_else(|| std::io::Error::other("/proc does not tell the limit on file locks"))?;
    Ok(hard != "unlimited")
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
