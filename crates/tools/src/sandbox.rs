//! The sandbox for commands: what a command may reach, as data, and which protection of the system enforces it.
//!
//! A [`Sandbox`] says what is allowed. `choose` selects the protection, `places` looks up the files to protect,
//! `plan` turns both into mounts, `bubblewrap` turns mounts into arguments, and the helper applies the rest (`confinement`).
//! `found` tries which protections the system offers. A command gets a folder of its own (`private`), may reach the hosts of
//! `proxy`, and `hint` tells the model what was in its way. `git` lists the files through which programs could be run later;
//! `placeholders` stand where a command must create none of them, and `created` disarms those that it did.
//!
//! Invariants: a sandbox that was requested is there, or the command does not start. The places in
//! [`Sandbox::closed`] are never reachable, unless the user chose [`SandboxMode::Off`] on a system where nothing
//! can hide them; [`Sandbox::check`] says so. Nothing that a model writes changes a sandbox.

pub(crate) mod bubblewrap;
pub(crate) mod confinement;
mod created;
mod found;
pub(crate) mod git;
pub(crate) mod hint;
pub(crate) mod placeholders;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod private;
pub mod proxy;

use std::path::PathBuf;

pub use self::found::Found;
pub use self::placeholders::{is_placeholder, make_room};
pub use self::proxy::HostPattern;
use crate::process::Containment;

/// Which protection of the system enforces a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SandboxMode {
    /// bubblewrap where it works, else Landlock, else none: then commands are refused.
    #[default]
    Auto,
    /// bubblewrap: mount, PID and network namespaces.
    Bubblewrap,
    /// Landlock and seccomp, together with namespaces where the system grants them.
    Landlock,
    /// No sandbox; only the places in [`Sandbox::closed`] are hidden.
    Off,
}

impl SandboxMode {
    /// All modes with their names.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Auto, "auto"),
        (Self::Bubblewrap, "bubblewrap"),
        (Self::Landlock, "landlock"),
        (Self::Off, "off"),
    ];

    /// Returns the mode's name.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(mode, _)| *mode == self).map_or("auto", |(_, name)| name)
    }
}

/// What a command may connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    /// Nothing.
    #[default]
    None,
    /// Everything that this process can reach.
    All,
    /// These hosts, through a proxy for HTTP and HTTPS. It needs bubblewrap.
    Hosts(Vec<HostPattern>),
}

/// Limits of a command's processes. They apply to each process, except `processes_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// The maximum amount of memory that a process may allocate, in bytes. `None`: no limit.
    pub memory_bytes_max: Option<u64>,
    /// The maximum number of processes and threads of a command. The system counts them for ordinary users in a PID
    /// namespace; elsewhere a limit would count all processes of the user, and none applies to `root`.
    pub processes_max: u64,
    /// The largest file that a process may write, in bytes. `None`: no limit.
    pub file_bytes_max: Option<u64>,
    /// The maximum number of open files of a process. `None`: the limit of this process.
    pub files_max: Option<u64>,
    /// The maximum processor time of a process, in seconds. `None`: no limit.
    pub cpu_s_max: Option<u64>,
}

impl Default for Limits {
    /// Enough for a parallel build of a large program.
    fn default() -> Self {
        Self {
            memory_bytes_max: None,
            processes_max: 8_192,
            file_bytes_max: Some(16 << 30),
            files_max: None,
            cpu_s_max: None,
        }
    }
}

/// What commands may reach. Paths are absolute; one that does not exist is ignored, except in
/// [`Self::closed`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// The protection.
    pub mode: SandboxMode,
    /// What commands may connect to.
    pub network: Network,
    /// Folders that commands may change, besides the workspace and a private `/tmp`.
    pub writable: Vec<PathBuf>,
    /// Files and folders that commands may not change, although they are in a writable folder.
    pub read_only: Vec<PathBuf>,
    /// Files and folders that commands may not read, if there is a sandbox.
    pub hidden: Vec<PathBuf>,
    /// Files and folders of the program that runs the agent, which commands may not read whatever the mode is:
    /// its store, its configuration, its sockets.
    pub closed: Vec<PathBuf>,
    /// Limits of a command's processes; they take effect with a [`Helper`](crate::helper::Helper).
    pub limits: Limits,
}

impl Sandbox {
    /// Returns no sandbox: commands can reach whatever this process can.
    pub fn off() -> Self {
        Self { mode: SandboxMode::Off, network: Network::All, ..Self::default() }
    }

    /// Says in a sentence what commands can change and reach; `None` without a sandbox.
    pub fn summary(&self) -> Option<String> {
        let network = match (self.mode, &self.network) {
            (SandboxMode::Off, _) => return None,
            (_, Network::None) => "have no network".to_owned(),
            (_, Network::All) => "can use the network".to_owned(),
            (_, Network::Hosts(hosts)) => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                format!("reach only {}, over HTTP and HTTPS", hosts.join(", "))
            }
        };
        let folders: Vec<String> = self.writable.iter().map(|path| format!(", {}", path.display())).collect();
        let folders =
            if folders.is_empty() { " and /tmp".to_owned() } else { format!(", /tmp{}", folders.concat()) };
        Some(format!(
            "Commands run in a sandbox: they can change only the workspace{folders}, and {network}."
        ))
    }

    /// Returns what protects commands on this system, and what it does not stop; blocks for some milliseconds
    /// the first time. `has_helper`: whether commands are started by a helper.
    ///
    /// # Errors
    /// Returns the reason why commands cannot run, and what the user can do.
    pub fn check(&self, has_helper: bool) -> Result<Protection, String> {
        self.choose(Found::detect(), Containment::detect(), has_helper)
    }

    /// Returns the protection for this system; see [`Self::check`].
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn choose(
        &self,
        found: &Found,
        containment: Containment,
        has_helper: bool,
    ) -> Result<Protection, String> {
        let is_namespace = containment.is_namespace();
        let landlock = |found: &Found| match (found.landlock, has_helper) {
            (_, false) => Err("Landlock needs a helper, which this program does not offer".to_owned()),
            (None, true) => Err("the kernel has no Landlock (Linux 5.13), or it is disabled".to_owned()),
            // Without a PID namespace, only Landlock itself keeps signals from other processes.
            (Some(abi), true) if abi < SIGNALS_ABI && !is_namespace => Err(format!(
                "Landlock cannot keep commands from ending other processes here: that takes a PID namespace or \
                 Landlock {SIGNALS_ABI} (Linux 6.12), and this is Landlock {abi}"
            )),
            (Some(_), true) => Ok(Way::Landlock),
        };
        let bubblewrap = |found: &Found| match &found.bubblewrap {
            Ok(program) => Ok(Way::Bubblewrap(program.clone())),
            Err(reason) => Err(reason.clone()),
        };
        let way = match self.mode {
            SandboxMode::Off => Ok(Way::Off),
            SandboxMode::Bubblewrap => bubblewrap(found),
            SandboxMode::Landlock => landlock(found),
            SandboxMode::Auto => bubblewrap(found)
                .or_else(|first| landlock(found).map_err(|second| format!("{first}; {second}"))),
        };
        let way = way.map_err(|reason| {
            format!(
                "commands do not run, because there is no sandbox for them: {reason}. Install bubblewrap (the \
                 package `bubblewrap`), or turn the sandbox off with `--sandbox off` or `sandbox: {{ mode: off }}`"
            )
        })?;
        if let (Network::Hosts(_), Way::Landlock | Way::Off) = (&self.network, &way) {
            return Err(
                "a list of hosts in `sandbox.network` needs bubblewrap: install it, or choose `none` or \
                        `all`"
                    .to_owned(),
            );
        }
        if let (Network::Hosts(_), false) = (&self.network, has_helper) {
            return Err("a list of hosts needs a helper, which this program does not offer".to_owned());
        }
        // Mounts of our own take the namespace and the helper that makes them there.
        let has_mounts = match &way {
            Way::Bubblewrap(_) => true,
            Way::Landlock | Way::Off => is_namespace && has_helper,
        };
        Ok(Protection { way, has_mounts, is_namespace })
    }
}

/// The version of Landlock from which on a command cannot send signals to processes outside it.
const SIGNALS_ABI: i32 = 6;

/// How a sandbox is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// With this program.
    Bubblewrap(PathBuf),
    Landlock,
    Off,
}

/// What protects commands on this system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    pub(crate) way: Way,
    /// Whether places can be covered by mounts.
    pub(crate) has_mounts: bool,
    /// Whether commands have a PID namespace.
    pub(crate) is_namespace: bool,
}

impl Protection {
    /// Returns the mode that is in effect; it is never [`SandboxMode::Auto`].
    pub fn mode(&self) -> SandboxMode {
        match self.way {
            Way::Bubblewrap(_) => SandboxMode::Bubblewrap,
            Way::Landlock => SandboxMode::Landlock,
            Way::Off => SandboxMode::Off,
        }
    }

    /// Returns what is not stopped although it should be, a sentence each, for the user.
    pub fn gaps(&self) -> Vec<&'static str> {
        match (&self.way, self.has_mounts) {
            (Way::Bubblewrap(_), _) => Vec::new(),
            (Way::Landlock, true) => Vec::new(),
            (Way::Landlock, false) => vec![
                "Landlock without namespaces: commands can change `.git/hooks`, `.git/config` and `greenroom.yaml` \
                 in the workspace, change permissions and times of your files, and see their names and the command lines \
                 of your processes; install bubblewrap to stop that",
            ],
            (Way::Off, true) => Vec::new(),
            (Way::Off, false) => vec![
                "the sandbox is off, and this system grants no namespaces: commands can read the store, its token \
                 and your configuration, write to your terminals, and remove the host's socket",
            ],
        }
    }
}

#[cfg(test)]
mod tests;
