//! Detects which processes were started by a command of a tool.
//!
//! A command can leave its parent, its session, its process group, its environment and its program behind. It
//! cannot leave a hard limit: every child inherits it, every executed program keeps it, and only the system's
//! own `CAP_SYS_RESOURCE` raises it again, which no command has. So the helper gives commands a hard limit on
//! file locks (`RLIMIT_LOCKS`). Linux has counted none of these locks since 2.4.25: the limit changes
//! nothing, and no other process has one.
//!
//! Invariants: a process that a [`Helper`](crate::builtin::bash::Helper) started, and each of its
//! descendants, is marked for as long as it lives; anything that cannot be read is an error, and never "no".

/// Whether this process was started by a command of a tool, directly or through its descendants.
#[cfg(target_os = "linux")]
pub fn is_of_command() -> bool {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Locks).maximum.is_some()
}

/// Whether this process was started by a command of a tool: unknown on this system, so always false.
#[cfg(not(target_os = "linux"))]
pub fn is_of_command() -> bool {
    false
}

/// Whether another process was started by a command of a tool. Its number may be reused meanwhile: the caller
/// must verify that the process is still alive when it has the answer.
///
/// # Errors
/// If the process is gone, or if the system cannot tell; in particular if the process is in another PID
/// namespace than this one, as then the system tells neither of the two enough.
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

/// Whether another process was started by a command of a tool: unknown on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn is_process_of_command(_: i32) -> std::io::Result<bool> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Marks this process and all processes that it starts from now on.
#[cfg(target_os = "linux")]
pub(crate) fn mark() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if is_of_command() {
        return Ok(());
    }
    Ok(setrlimit(Resource::Locks, Rlimit { current: Some(LOCKS), maximum: Some(LOCKS) })?)
}

/// More than any process ever has. Only the existence of the limit matters.
#[cfg(target_os = "linux")]
const LOCKS: u64 = 1 << 30;

/// Returns the number of PID namespaces that a process is in, counted from that of `/proc` downwards.
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
