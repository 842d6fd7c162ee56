//! Where a command was started: its folder and its environment. A host makes the agents of clients whose surroundings are
//! others than its own.
//!
//! Invariants: what a client hands over is what can matter to its agent, and no other variables; none of it is shown.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom_terminal::screen;
use greenroom_tools::privacy;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::usage;

/// How the variables begin that can matter to an agent.
const PREFIXES: [&str; 2] = ["GREENROOM_", "OPENAI_"];
/// The others that can, in this spelling or in lower case. Other `XDG_…` change with each login and each window.
const NAMES: [&str; 11] = [
    "HOME",
    "XDG_CONFIG_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "PATH",
    "LANG",
    "TERM",
    "TMPDIR",
    "USER",
];

/// A folder and an environment. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Surroundings(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Empty for the current folder of this process.
    folder: PathBuf,
    /// `None`: those of this process.
    variables: Option<BTreeMap<String, String>>,
    /// `None`: as this process has it.
    umask: Option<u32>,
    /// What was asked for, and found or not.
    asked: Mutex<BTreeMap<String, Option<String>>>,
}

/// Surroundings as they are handed over.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Handed {
    /// The client's folder, as an absolute path: relative ones of the definition are meant from there.
    pub(crate) folder: PathBuf,
    /// Its environment: the variables that matter to its agent, such as `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `HOME` and
    /// `PATH`. The host's own are not used.
    #[serde(default)]
    variables: BTreeMap<String, String>,
    /// The permissions that files which its tools make do not get, as `umask` says it: 18 for 022.
    umask: u32,
}

impl Handed {
    /// The variables whose names are wanted.
    pub(crate) fn variables_that(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<&str, &str> {
        let variables = self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        variables.filter(|(name, _)| is_wanted(name)).collect()
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handed").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn here() -> Self {
        Self::default()
    }

    /// Those of a client.
    pub(crate) fn of(handed: Handed) -> Self {
        let Handed { folder, variables, umask } = handed;
        let (variables, umask) = (Some(variables), Some(umask));
        Self(Arc::new(Inner { folder, variables, umask, asked: Mutex::default() }))
    }

    /// This process's, for a host; the variables that hold keys are named, as nobody else knows which do.
    pub(crate) fn hand_over(keys: &[String]) -> Result<Handed> {
        let names = privacy::variable_names().into_iter().filter_map(|name| name.into_string().ok());
        let variables = names
            .filter(|name| matters(name) || keys.contains(name))
            .filter_map(|name| Some((name.clone(), screen::variable(&name)?)));
        let folder = std::env::current_dir()
            .map_err(|error| usage(format!("the current folder cannot be used: {error}")))?;
        Ok(Handed { folder, variables: variables.collect(), umask: own_umask() })
    }

    /// A variable that says something.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let Some(variables) = &self.0.variables else { return screen::variable(name) };
        let value = variables.get(name).cloned();
        self.0.asked.lock().insert(name.to_owned(), value.clone());
        value
    }

    /// The names of all variables.
    pub(crate) fn names(&self) -> Vec<String> {
        match &self.0.variables {
            Some(variables) => variables.keys().cloned().collect(),
            None => {
                let names = privacy::variable_names().into_iter();
                names.filter_map(|name| name.into_string().ok()).collect()
            }
        }
    }

    /// A path as it is meant here.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.folder.join(path)
    }

    /// The folder, for those who look for sessions that were begun in it.
    pub(crate) fn folder(&self) -> PathBuf {
        match &self.0.variables {
            Some(_) => self.0.folder.clone(),
            None => std::env::current_dir().unwrap_or_default(),
        }
    }

    /// The variables of a client that its commands are to see, and no others. `None`: those of this process.
    pub(crate) fn for_commands(&self) -> Option<Vec<(String, String)>> {
        let variables = self.0.variables.as_ref()?;
        let shown = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];
        let shown =
            shown.into_iter().filter_map(|name| Some((name.to_owned(), variables.get(name)?.clone())));
        Some(shown.collect())
    }

    /// The permissions that new files of a client do not get. `None`: as this process has it.
    pub(crate) fn umask(&self) -> Option<u32> {
        self.0.umask
    }

    /// Whether all that was asked of these would be answered the same by the others, in the same folder.
    pub(crate) fn are_like(&self, others: &Self) -> bool {
        let of_others =
            |name: &String| others.0.variables.as_ref().and_then(|known| known.get(name).cloned());
        let asked = self.0.asked.lock();
        self.0.folder == others.0.folder
            && self.0.umask == others.0.umask
            && asked.iter().all(|(name, value)| of_others(name) == *value)
            && self.for_commands() == others.for_commands()
            && ours(self) == ours(others)
    }
}

/// Whether a variable of this name can matter to an agent.
fn matters(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name.to_uppercase().as_str())
}

/// The `umask` of this process, which can be read only by setting another one for a moment: the strictest.
fn own_umask() -> u32 {
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    umask.as_raw_mode()
}

/// The variables of ours, which are looked through by their names.
fn ours(surroundings: &Surroundings) -> Vec<String> {
    surroundings.names().into_iter().filter(|name| name.starts_with("GREENROOM_")).collect()
}

#[cfg(test)]
mod tests {
    use super::matters;

    #[test]
    fn what_changes_with_each_login_does_not_matter() {
        for name in ["GREENROOM_MODEL", "OPENAI_BASE_URL", "HOME", "https_proxy", "XDG_CONFIG_HOME"] {
            assert!(matters(name), "{name}");
        }
        for name in ["XDG_SESSION_ID", "XDG_VTNR", "XDG_RUNTIME_DIR", "SSH_CLIENT", "HOMEBREW", "PWD"] {
            assert!(!matters(name), "{name}");
        }
    }
}
