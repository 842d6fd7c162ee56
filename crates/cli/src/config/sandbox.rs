//! The sandbox of commands.
//!
//! Invariants: a project's file can only restrict it further; a host or a path that cannot work is refused with its
//! key.

use std::path::PathBuf;

use greenroom_tools::sandbox::{HostPattern, Limits, Network, Sandbox, SandboxMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_norway::Value;

use super::layers::expanded;
use super::surroundings::Surroundings;
use super::{Wrong, check_at_least_one, layers, or_default, wrong};

/// The files, hosts and resources that commands may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SandboxConfig {
    /// The protection: `auto` is bubblewrap where it works, else Landlock, else commands are refused; `off` lets commands
    /// reach what you can reach. Also `--sandbox`.
    pub(crate) mode: ModeConfig,
    /// The hosts that commands may connect to: `none`, `all`, or a list of hosts, as `crates.io`, `*.crates.io` or
    /// `10.0.0.7:8080`, by HTTP and HTTPS (ports 80 and 443 without a port). A list needs bubblewrap.
    pub(crate) network: NetworkConfig,
    /// Folders that commands may change besides the workspace and their own `/tmp`: absolute paths, or `~/…`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) writable: Vec<String>,
    /// Files and folders that commands may not change: absolute paths, `~/…`, or paths in the workspace.
    #[serde(deserialize_with = "or_default")]
    pub(crate) read_only: Vec<String>,
    /// Files and folders that commands may not read: absolute paths, `~/…`, or paths in the workspace.
    #[serde(deserialize_with = "or_default")]
    pub(crate) hidden: Vec<String>,
    /// The maximum amount of memory that each process of a command may allocate, in MiB. `null`: no limit.
    pub(crate) memory_mib_max: Option<u64>,
    /// The maximum number of processes and threads of a command: enforced by the system for ordinary users with a PID
    /// namespace, and otherwise counted by Greenroom.
    pub(crate) processes_max: u64,
    /// The largest file that a command may write, in MiB. `null`: no limit.
    pub(crate) file_mib_max: Option<u64>,
    /// The maximum number of open files of each process of a command. `null`: the limit of greenroom itself.
    pub(crate) open_files_max: Option<u64>,
    /// The maximum processor time of each process of a command, in seconds. `null`: no limit.
    pub(crate) cpu_s_max: Option<u64>,
}

/// Names of the modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeConfig {
    Auto,
    Bubblewrap,
    Landlock,
    Off,
}

/// The hosts that commands may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum NetworkConfig {
    Word(NetworkWord),
    Hosts(Vec<String>),
}

/// A word in place of a list of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NetworkWord {
    None,
    All,
}

/// Keys and tokens that programs keep in the user's folder.
const SECRETS: [&str; 13] = [
    "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.config/gcloud", "~/.config/gh", "~/.kube",
    "~/.docker/config.json", "~/.netrc", "~/.git-credentials", "~/.npmrc", "~/.pypirc",
    "~/.cargo/credentials.toml",
];
const MIB: u64 = 1024 * 1024;

impl ModeConfig {
    /// How much it restricts; `auto` and `landlock` are not compared.
    fn rank(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Auto | Self::Landlock => 1,
            Self::Bubblewrap => 2,
        }
    }

    /// Whether nothing that `other` stops is permitted.
    pub(crate) fn is_within(self, other: Self) -> bool {
        self.rank() >= other.rank()
    }
}

impl Default for SandboxConfig {
    fn default() -> Self {
        let Limits { memory_bytes_max, processes_max, file_bytes_max, files_max, cpu_s_max } =
            Limits::default();
        Self {
            mode: ModeConfig::Auto,
            network: NetworkConfig::Word(NetworkWord::None),
            writable: Vec::new(),
            read_only: Vec::new(),
            hidden: SECRETS.map(str::to_owned).to_vec(),
            memory_mib_max: memory_bytes_max.map(|bytes| bytes / MIB),
            processes_max,
            file_mib_max: file_bytes_max.map(|bytes| bytes / MIB),
            open_files_max: files_max,
            cpu_s_max,
        }
    }
}

impl SandboxConfig {
    /// Checks the values of one layer.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        if let NetworkConfig::Hosts(hosts) = &self.network {
            for host in hosts {
                if let Err(reason) = host.parse::<HostPattern>() {
                    return wrong(&["sandbox", "network"], &format!("{host:?} {reason}"));
                }
            }
        }
        if self.writable.iter().any(|folder| !layers::is_absolute(folder)) {
            return wrong(&["sandbox", "writable"], "each must be an absolute path, or begin with ~/");
        }
        let values = [
            ("memory_mib_max", self.memory_mib_max.unwrap_or(1)),
            ("processes_max", self.processes_max),
            ("file_mib_max", self.file_mib_max.unwrap_or(1)),
            ("open_files_max", self.open_files_max.unwrap_or(1)),
            ("cpu_s_max", self.cpu_s_max.unwrap_or(1)),
        ];
        check_at_least_one(&["sandbox"], &values)
    }

    /// Returns the sandbox of an agent whose workspace is `root`. `closed` are the places of this program.
    pub(crate) fn sandbox(
        &self,
        flag: Option<ModeConfig>,
        root: &std::path::Path,
        closed: Vec<PathBuf>,
        surroundings: &Surroundings,
    ) -> Sandbox {
        let mode = match flag.unwrap_or(self.mode) {
            ModeConfig::Auto => SandboxMode::Auto,
            ModeConfig::Bubblewrap => SandboxMode::Bubblewrap,
            ModeConfig::Landlock => SandboxMode::Landlock,
            ModeConfig::Off => SandboxMode::Off,
        };
        let network = match (&self.network, mode) {
            // Nothing restricts the network then.
            (_, SandboxMode::Off) | (NetworkConfig::Word(NetworkWord::All), _) => Network::All,
            (NetworkConfig::Word(NetworkWord::None), _) => Network::None,
            (NetworkConfig::Hosts(hosts), _) => {
                Network::Hosts(hosts.iter().filter_map(|host| host.parse().ok()).collect())
            }
        };
        let paths = |texts: &[String]| -> Vec<PathBuf> {
            texts.iter().map(|text| expanded(text, surroundings).unwrap_or_else(|| root.join(text))).collect()
        };
        Sandbox {
            mode,
            network,
            writable: paths(&self.writable),
            read_only: paths(&self.read_only),
            hidden: paths(&self.hidden),
            closed,
            limits: Limits {
                memory_bytes_max: self.memory_mib_max.map(|mib| mib.saturating_mul(MIB)),
                processes_max: self.processes_max,
                file_bytes_max: self.file_mib_max.map(|mib| mib.saturating_mul(MIB)),
                files_max: self.open_files_max,
                cpu_s_max: self.cpu_s_max,
            },
        }
    }
}

/// Returns the value of a setting of the sandbox after a project's file asked for another one: the part of it that
/// restricts commands further. `None`: nothing of it does.
pub(super) fn restricted(key: &str, held: &Value, asked: &Value) -> Option<Value> {
    let texts = |value: &Value| -> Option<Vec<String>> { serde_norway::from_value(value.clone()).ok() };
    match key {
        "sandbox.mode" => {
            let read = |value: &Value| serde_norway::from_value::<ModeConfig>(value.clone()).ok();
            read(asked)?.is_within(read(held)?).then(|| asked.clone())
        }
        "sandbox.network" => {
            let read = |value: &Value| serde_norway::from_value(value.clone()).ok();
            let (held, wanted): (NetworkConfig, NetworkConfig) = (read(held)?, read(asked)?);
            let is_within = match (&wanted, &held) {
                (NetworkConfig::Word(NetworkWord::None), _) | (_, NetworkConfig::Word(NetworkWord::All)) => {
                    true
                }
                (NetworkConfig::Word(NetworkWord::All), _) | (_, NetworkConfig::Word(NetworkWord::None)) => {
                    false
                }
                (NetworkConfig::Hosts(wanted), NetworkConfig::Hosts(held)) => {
                    let held: Vec<HostPattern> = held.iter().filter_map(|host| host.parse().ok()).collect();
                    wanted
                        .iter()
                        .filter_map(|host| host.parse::<HostPattern>().ok())
                        .all(|host| held.iter().any(|held| host.is_within(held)))
                }
            };
            is_within.then(|| asked.clone())
        }
        "sandbox.writable" => {
            let (held, wanted) = (texts(held)?, texts(asked)?);
            wanted.iter().all(|folder| held.contains(folder)).then(|| asked.clone())
        }
        "sandbox.read_only" | "sandbox.hidden" => {
            let mut all = texts(held)?;
            let wanted = texts(asked)?;
            all.extend(
                wanted.into_iter().filter(|path| !texts(held).is_some_and(|held| held.contains(path))),
            );
            serde_norway::to_value(all).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
