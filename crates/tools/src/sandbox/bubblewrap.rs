//! The arguments of bubblewrap.
//!
//! Invariants: [`arguments`] is a pure function; each path is an argument of its own. The root of the file system is
//! read-only unless a mount says otherwise.

use std::ffi::OsString;
use std::path::Path;

use super::Network;
use super::plan::Mount;

/// The namespaces of every sandbox, and what ties it to this process and detaches it from the terminal. The
/// command is the first process of its PID namespace.
pub(super) const NAMESPACES: [&str; 7] = [
    "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent",
    "--new-session", "--as-pid-1",
];

/// Settings and switches of the system in `/proc`.
const SYSTEM: [&str; 5] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"];

/// Returns the arguments up to the command.
pub(crate) fn arguments(mounts: &[Mount], network: &Network, folder: &Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = NAMESPACES.map(OsString::from).to_vec();
    match network {
        Network::All => {}
        Network::None | Network::Hosts(_) => line.push("--unshare-net".into()),
    }
    line.extend(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"].map(OsString::from));
    // bubblewrap itself leaves what only `root` may change.
    for part in SYSTEM {
        line.extend(["--ro-bind-try", part, part].map(OsString::from));
    }
    for mount in mounts {
        let mut add = |option: &str, paths: &[&Path]| {
            line.push(option.into());
            line.extend(paths.iter().map(|path| path.as_os_str().to_owned()));
        };
        match mount {
            Mount::Replaced { folder, at } => add("--bind", &[folder, at]),
            Mount::Writable(path) => add("--bind", &[path, path]),
            Mount::ReadOnly(path) => add("--ro-bind", &[path, path]),
            Mount::Empty(path) => {
                add("--tmpfs", &[path]);
            }
            Mount::Blank(path) => add("--ro-bind", &[Path::new("/dev/null"), path]),
            // `--ro-bind / /` and `--dev` have them.
            Mount::Root | Mount::Devices => {}
        }
    }
    // Later mounts may need folders in those that are empty.
    for mount in mounts {
        if let Mount::Empty(path) = mount {
            line.extend(["--remount-ro".into(), path.as_os_str().to_owned()]);
        }
    }
    line.extend(["--chdir".into(), folder.as_os_str().to_owned(), "--".into()]);
    line
}

#[cfg(test)]
mod tests;
