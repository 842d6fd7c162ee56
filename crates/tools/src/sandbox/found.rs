//! Which protections this system offers, found by trying.
//!
//! Invariants: a protection counts as available only if it worked.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where bubblewrap may be: not looked up in `PATH`, which others may have set.
const PLACES: [&str; 3] = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];

/// The protections that a system offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The program bubblewrap, or why it cannot be used.
    pub bubblewrap: Result<PathBuf, String>,
    /// The version of Landlock's interface (ABI), up to the newest one that is used here.
    pub landlock: Option<i32>,
}

impl Found {
    /// Returns what this system offers; blocks for some milliseconds the first time.
    pub fn detect() -> &'static Self {
        static FOUND: OnceLock<Found> = OnceLock::new();
        FOUND.get_or_init(|| {
            let found = Self { bubblewrap: bubblewrap(), landlock: landlock() };
            tracing::debug!(?found, "protections of the system");
            found
        })
    }
}

fn bubblewrap() -> Result<PathBuf, String> {
    let program = PLACES.into_iter().map(PathBuf::from).find(|place| place.exists());
    let program = program.ok_or_else(|| "bubblewrap is not installed".to_owned())?;
    let mut probe = Command::new(&program);
    probe.args(super::bubblewrap::NAMESPACES).arg("--unshare-net");
    probe.args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]);
    probe.args(["--", "/bin/sh", "-c", "exit 0"]);
    let output = probe.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("bubblewrap cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(program);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("bubblewrap does not work here ({})", said.lines().next().unwrap_or_default().trim()))
}

#[cfg(target_os = "linux")]
fn landlock() -> Option<i32> {
    use landlock::{
        ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated, Scope,
    };
    let works = |abi: ABI| {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        let ruleset = ruleset.handle_access(AccessFs::from_all(abi)).ok();
        let ruleset = if abi == ABI::V6 {
            ruleset.and_then(|ruleset| ruleset.scope(Scope::from_all(abi)).ok())
        } else {
            ruleset
        };
        // It restricts nobody until it is applied.
        ruleset.and_then(|ruleset| ruleset.create().ok()).is_some_and(|_: RulesetCreated| true)
    };
    let tried = [(6, ABI::V6), (5, ABI::V5), (3, ABI::V3), (2, ABI::V2), (1, ABI::V1)];
    tried.into_iter().find(|(_, abi)| works(*abi)).map(|(number, _)| number)
}

#[cfg(not(target_os = "linux"))]
fn landlock() -> Option<i32> {
    None
}
